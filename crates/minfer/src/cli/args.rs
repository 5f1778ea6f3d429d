//! Flags that commands share: one struct per concept.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
#[cfg(feature = "cuda")]
use minfer::GpuNumerics;
use minfer::chat::parse_bias;
use minfer::cpu::{CpuOptions, Host, Isa, Numerics, Repack};
#[cfg(feature = "cuda")]
use minfer::cuda::Prefill;
use minfer::engine::SamplingParams;
use minfer::engine::sampling::{Dry, Mirostat, Samplers};
use minfer::gguf::Gguf;
use minfer::model::{KvType, KvTypes, LoadOptions};
use minfer::source::{Cache, Source};
use minfer::tokenizer::Tokenizer;
use minfer::{DeviceChoice, DiskCache, DryBreakers, Options};

use super::terminal;

/// An error of usage: printed like clap's own, exit code 2.
pub(super) fn usage(message: impl std::fmt::Display) -> anyhow::Error {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n")).into()
}

/// Which model.
#[derive(Args)]
pub(super) struct ModelArgs {
    /// Path of a GGUF file, `hf:ORG/REPO[:QUANT|/FILE]`, an https URL, or a name like `pip:gemma-3-270m`
    #[arg(short, long, value_name = "MODEL", default_value_t = Source::default(), value_parser = parse_source)]
    pub model: Source,
}

/// How to read the vocabulary.
#[derive(Args)]
pub(super) struct VocabularyArgs {
    /// Pre-tokenizer rule to use instead of the one that the file names
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
}

impl VocabularyArgs {
    /// The tokenizer of a file.
    pub(super) fn tokenizer(&self, gguf: &Gguf) -> Result<Tokenizer> {
        minfer::vocabulary(gguf, self.pre.as_deref()).context("cannot read the vocabulary")
    }

    /// The tokenizer of a file whose weights are to be loaded.
    pub(super) fn model_tokenizer(&self, gguf: &Gguf) -> Result<Tokenizer> {
        minfer::model_vocabulary(gguf, self.pre.as_deref()).context("cannot load the model")
    }
}

/// Reads a source; the message of the error is the whole story.
pub(super) fn parse_source(given: &str) -> Result<Source, minfer::source::SourceError> {
    given.parse()
}

/// The file of a source, fetched with progress on the terminal if it has to be.
pub(super) fn fetch(source: &Source) -> Result<PathBuf> {
    if let Source::Path(path) = source {
        // No cache is needed, so none has to be found.
        return Ok(source.fetch(&Cache::at(path), &mut |_| {})?);
    }
    let mut bar = terminal::FetchBar::new(source);
    Ok(source.fetch(&Cache::from_env()?, &mut |p| bar.update(p))?)
}

/// Fetches and opens a model's file.
pub(super) fn open(source: &Source) -> Result<Arc<Gguf>> {
    let path = fetch(source)?;
    Ok(Arc::new(Gguf::open(&path).context("cannot open the model")?))
}

/// Where and how to compute.
#[derive(Args)]
#[command(next_help_heading = "Device")]
pub(super) struct DeviceArgs {
    /// What runs the model
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub device: Device,
    /// Number of the GPU; with another than the first, `--device auto` is a GPU
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpu: usize,
    /// Instruction set level: scalar, avx2, … (`minfer doctor` lists them); the best of this machine if left out
    #[arg(long, value_name = "LEVEL")]
    pub isa: Option<Isa>,
    /// Whether weights are rearranged in memory at load
    #[arg(long, value_enum, default_value_t = RepackArg::Auto)]
    pub repack: RepackArg,
    /// Numerics profile
    #[arg(long, value_enum, default_value_t = NumericsArg::Auto)]
    pub numerics: NumericsArg,
    /// Kernels to take instead of those that fit best, for experiments: `prefill=NAME` takes prompts in the int8 profile,
    /// with NAME auto or nb2, and in builds with `--features lab` nb, nb-unrolled, wide and wide-unrolled, which take Q4_K
    /// and Q4_1 and have bits of their own
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "OP=NAME", value_delimiter = ',', value_parser = parse_kernels)]
    pub kernels: Vec<Prefill>,
}

impl DeviceArgs {
    /// An instruction set that the machine does not have is wrong usage.
    fn check_isa(&self) -> Result<()> {
        match self.isa {
            Some(isa) if !isa.available() => {
                let levels: Vec<&str> = Host::levels().into_iter().map(Isa::name).collect();
                Err(usage(format!("--isa {isa}: this machine has {}", levels.join(", "))))
            }
            _ => Ok(()),
        }
    }

    /// What takes prompts.
    #[cfg(feature = "cuda")]
    fn prefill(&self) -> Result<Prefill> {
        match self.kernels[..] {
            [] => Ok(Prefill::Auto),
            [prefill] if prefill == Prefill::Auto || self.numerics == NumericsArg::Int8 => Ok(prefill),
            [prefill] => {
                Err(usage(format!("--kernels prefill={} takes prompts of --numerics int8", prefill.name())))
            }
            _ => Err(usage("--kernels: prefill is given more than once")),
        }
    }

    /// What runs the model. A profile that it does not have is refused.
    #[cfg(feature = "cuda")]
    pub(super) fn choice(&self) -> Result<DeviceChoice> {
        self.check_isa()?;
        let prefill = self.prefill()?;
        match (self.device, self.numerics) {
            (Device::Cuda, NumericsArg::Exact | NumericsArg::Fast) => {
                Err(usage("--numerics exact and fast are the CPU's; a GPU has f16 and int8"))
            }
            (Device::Cpu, NumericsArg::F16 | NumericsArg::Int8) => {
                Err(usage("--numerics f16 and int8 are a GPU's; the CPU has exact and fast"))
            }
            (Device::Cuda, _) | (Device::Auto, NumericsArg::F16 | NumericsArg::Int8) => {
                let numerics = match self.numerics {
                    NumericsArg::F16 => Some(GpuNumerics::F16),
                    NumericsArg::Int8 => Some(GpuNumerics::Int8),
                    _ => None,
                };
                Ok(DeviceChoice::Cuda { gpu: self.gpu, numerics, prefill })
            }
            (Device::Cpu, _) | (Device::Auto, NumericsArg::Exact | NumericsArg::Fast) => {
                Ok(DeviceChoice::Cpu)
            }
            (Device::Auto, NumericsArg::Auto) if self.gpu != 0 => {
                Ok(DeviceChoice::Cuda { gpu: self.gpu, numerics: None, prefill })
            }
            (Device::Auto, NumericsArg::Auto) => Ok(DeviceChoice::Auto),
        }
    }

    /// What runs the model: the CPU, which is all that this build has.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn choice(&self) -> Result<DeviceChoice> {
        self.check_isa()?;
        let gpu = match (self.device, self.numerics) {
            (Device::Cuda, _) => "--device cuda",
            (_, NumericsArg::F16) => "--numerics f16",
            (_, NumericsArg::Int8) => "--numerics int8",
            _ => return Ok(DeviceChoice::Cpu),
        };
        Err(usage(format!("{gpu} needs a build for GPUs: this one was made without `--features cuda`")))
    }

    /// How to set the CPU up, with so many threads.
    pub(super) fn cpu(&self, threads: &ThreadArgs) -> CpuOptions {
        CpuOptions {
            threads: threads.threads,
            isa: self.isa,
            repack: self.repack.into(),
            numerics: self.numerics.into(),
        }
    }
}

/// `prefill=nb2`.
#[cfg(feature = "cuda")]
fn parse_kernels(given: &str) -> Result<Prefill, String> {
    let (op, name) = given.split_once('=').ok_or("expected OP=NAME, like prefill=nb2")?;
    if op != "prefill" {
        return Err(format!("{op:?}: only kernels of prefill can be chosen"));
    }
    match name.parse::<Prefill>()? {
        prefill if prefill.is_available() => Ok(prefill),
        _ => Err("an experiment, which needs a build with `--features lab`".to_owned()),
    }
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Device {
    /// The best there is: a GPU that this build can use, else the CPU
    Auto,
    /// The CPU
    Cpu,
    /// An NVIDIA GPU
    Cuda,
}

/// A numerics profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum NumericsArg {
    /// The device's own: `exact` on the CPU; on a GPU `f16`, or `int8` where half precision is slow (compute
    /// capability 8.6 to 8.9 and 12)
    Auto,
    /// Integer sums in a fixed order, on the CPU: the same bits for any batch, number of threads and instruction set
    Exact,
    /// Prompts of types with blocks of 32 values to sixteen bits, on a CPU with AMX: about a tenth faster with Q4_1, and
    /// nearer to the float model; bits depend on how tokens are grouped
    Fast,
    /// Half precision with sums in single precision and a fixed order, on a GPU
    F16,
    /// Bytes under a scale for every 256 values (K-quants, IQ4_XS) or 32 (other types) with integer sums and a fixed order, on
    /// a GPU; on an H200 a twentieth faster than f16 for one token, and three fifths as fast for prompts (7B, Q4_K_M)
    Int8,
}

impl From<NumericsArg> for Numerics {
    /// The CPU's; what a GPU alone has is the default there.
    fn from(arg: NumericsArg) -> Numerics {
        match arg {
            NumericsArg::Fast => Numerics::Fast,
            _ => Numerics::Exact,
        }
    }
}

/// [`Repack`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RepackArg {
    /// If memory allows
    Auto,
    /// Always
    On,
    /// Never: weights are read from the file as they are needed, which must not change while it is in use
    Off,
}

impl From<RepackArg> for Repack {
    fn from(arg: RepackArg) -> Repack {
        match arg {
            RepackArg::Auto => Repack::Auto,
            RepackArg::On => Repack::On,
            RepackArg::Off => Repack::Off,
        }
    }
}

/// How many threads.
#[derive(Args)]
#[command(next_help_heading = "Device")]
pub(super) struct ThreadArgs {
    /// Threads; one for each fast physical core that the process may use if left out (`minfer doctor` tells)
    #[arg(short, long, value_name = "N", value_parser = parse_positive)]
    pub threads: Option<usize>,
}

/// A whole number of at least 1.
pub(super) fn parse_positive(given: &str) -> Result<usize, String> {
    match given.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) if given.starts_with('-') => Err("must be at least 1".to_owned()),
        Err(_) => Err("expected a whole number".to_owned()),
    }
}

/// Tokens to generate. Other engines take -1 for no limit.
pub(super) fn parse_tokens(given: &str) -> Result<usize, String> {
    match given {
        "-1" => Err("for no limit, leave it out".to_owned()),
        _ => parse_positive(given),
    }
}

/// How a model is loaded that generates or embeds.
#[derive(Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl LoadArgs {
    /// As the library takes them. What the machine or a profile does not have is an error of usage.
    pub(super) fn options(&self, vocabulary: &VocabularyArgs) -> Result<Options> {
        Ok(Options {
            device: self.device.choice()?,
            cpu: self.device.cpu(&self.threads),
            load: self.context.load(),
            pre: vocabulary.pre.clone(),
            disk: None,
        })
    }
}

/// The cache of keys and values.
#[derive(Args)]
#[command(next_help_heading = "Context")]
struct ContextArgs {
    /// Tokens that the context holds; what the model was made for, at most 8,192, if left out
    #[arg(short, long, value_name = "N", value_parser = parse_positive)]
    ctx: Option<usize>,
    #[command(flatten)]
    cache: CacheArgs,
}

/// How keys and values are kept.
#[derive(Args)]
#[command(next_help_heading = "Context")]
pub(super) struct CacheArgs {
    /// Type of cached keys
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub ctk: KvArg,
    /// Type of cached values
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub ctv: KvArg,
}

/// Where keys and values are kept for later.
#[derive(Args)]
#[command(next_help_heading = "Context")]
pub(super) struct DiskArgs {
    /// Keep keys and values of prompts in this folder: those that memory has no room for, and all at the end. A later prompt, of
    /// this or of another process of the same build with the same model, cache types and device, goes on from there, to the same
    /// text
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Size that the folder may have, like 500M or 20G; what was used longest ago goes first
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = parse_size, requires = "cache_dir")]
    cache_disk: u64,
}

impl DiskArgs {
    /// The folder, if there is one.
    pub(super) fn config(&self) -> Option<DiskCache> {
        self.cache_dir.clone().map(|dir| DiskCache { dir, bytes: self.cache_disk })
    }
}

/// Bytes, with a unit of 1024 bytes to the first, second, third or fourth power.
fn parse_size(given: &str) -> Result<u64, String> {
    let wrong = || "expected a size like 500M or 20G".to_owned();
    let digits = given.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match given[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 1,
        "M" | "MB" | "MIB" => 2,
        "G" | "GB" | "GIB" => 3,
        "T" | "TB" | "TIB" => 4,
        _ => return Err(wrong()),
    };
    let size =
        digits.parse::<u64>().map_err(|_| wrong())?.checked_mul(1024u64.pow(power)).ok_or_else(wrong)?;
    if size == 0 { Err("must be more than 0".to_owned()) } else { Ok(size) }
}

impl ContextArgs {
    /// What the cache asks of a load.
    fn load(&self) -> LoadOptions {
        LoadOptions { context: self.ctx, kv_types: self.cache.types(), ..LoadOptions::default() }
    }
}

/// A type of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum KvArg {
    /// IEEE half precision
    F16,
    /// bfloat16: coarser, with the range of f32
    Bf16,
    /// IEEE single precision
    F32,
    /// Eight bits and a scale for 32 channels: half of f16's memory; heads of a multiple of 32 channels
    #[value(name = "q8_0")]
    Q8_0,
    /// Eight-bit floating point (E4M3) and a scale for each head: half of f16's memory; heads of a multiple of 32 channels
    Fp8,
}

impl CacheArgs {
    /// The types of the cache.
    pub(super) fn types(&self) -> KvTypes {
        KvTypes { keys: self.ctk.into(), values: self.ctv.into() }
    }
}

impl From<KvArg> for KvType {
    fn from(arg: KvArg) -> KvType {
        match arg {
            KvArg::F16 => KvType::F16,
            KvArg::Bf16 => KvType::BF16,
            KvArg::F32 => KvType::F32,
            KvArg::Q8_0 => KvType::Q8_0,
            KvArg::Fp8 => KvType::FP8,
        }
    }
}

impl KvArg {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        KvType::from(self).name()
    }
}

/// How tokens are chosen.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArgs {
    /// Flattens the distribution above 1, sharpens it below; 0 always takes the most probable token
    #[arg(long, value_name = "T", default_value_t = SamplingParams::default().temperature, allow_negative_numbers = true)]
    pub temp: f32,
    /// Keep the K most probable tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = SamplingParams::default().top_k)]
    pub top_k: u32,
    /// Keep the most typical tokens, those nearest to the expected surprise, that together have this probability; 1
    /// keeps all
    #[arg(long = "typical", alias = "typical-p", value_name = "P", default_value_t = SamplingParams::default().typical_p, allow_negative_numbers = true)]
    pub typical_p: f32,
    /// Keep the most probable tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = SamplingParams::default().top_p, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Keep tokens with at least this share of the largest probability
    #[arg(long, value_name = "P", default_value_t = SamplingParams::default().min_p, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Keep tokens whose logit is at most N standard deviations below the largest; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = SamplingParams::default().top_n_sigma, allow_negative_numbers = true)]
    pub top_n_sigma: f32,
    /// How probably the most probable tokens are excluded: all of at least --xtc-threshold but the least probable of them
    #[arg(long, value_name = "P", default_value_t = SamplingParams::default().xtc_probability, allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// See --xtc-probability; above 0.5 nothing is excluded
    #[arg(long, value_name = "P", default_value_t = SamplingParams::default().xtc_threshold, allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// Let the temperature be so much lower where the model is sure, and so much higher where it is not; 0 does nothing
    #[arg(long, value_name = "T", default_value_t = SamplingParams::default().dynatemp_range, allow_negative_numbers = true)]
    pub dynatemp_range: f32,
    /// How --dynatemp-range follows the entropy: its share of the largest one, to this power
    #[arg(long = "dynatemp-exponent", alias = "dynatemp-exp", value_name = "E", default_value_t = SamplingParams::default().dynatemp_exponent,
        allow_negative_numbers = true)]
    pub dynatemp_exponent: f32,
    /// Lower tokens that would go on with a repetition (DRY): by this, times --dry-base for each token beyond
    /// --dry-allowed-length that is repeated already; 0 does nothing
    #[arg(long, value_name = "M", default_value_t = Dry::default().multiplier, allow_negative_numbers = true)]
    pub dry_multiplier: f32,
    /// See --dry-multiplier; at least 1
    #[arg(long, value_name = "B", default_value_t = Dry::default().base, allow_negative_numbers = true)]
    pub dry_base: f32,
    /// See --dry-multiplier; shorter repetitions cost nothing
    #[arg(long, value_name = "N", default_value_t = Dry::default().allowed_length, value_parser = parse_positive)]
    pub dry_allowed_length: usize,
    /// How many of the last tokens are searched for repetitions; all if left out
    #[arg(long, value_name = "N")]
    pub dry_penalty_last_n: Option<usize>,
    /// No repetition goes past this text; may be given several times, `none` is no text; a new line, `:`, `"` and `*` if left out
    #[arg(long = "dry-sequence-breaker", value_name = "TEXT")]
    pub dry_breakers: Vec<String>,
    /// Add to a token's logit, like `42+5`, `42-1.5` or `42-inf`, which forbids it; may be given several times
    #[arg(short = 'l', long, value_name = "ID±BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides the logits of recent tokens; 1 does nothing
    #[arg(long, value_name = "R", default_value_t = SamplingParams::default().repetition_penalty, allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Subtracted from a token's logit for each recent occurrence
    #[arg(long, value_name = "R", default_value_t = SamplingParams::default().frequency_penalty, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Subtracted once from the logits of recent tokens
    #[arg(long, value_name = "R", default_value_t = SamplingParams::default().presence_penalty, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// How many of the last tokens count as recent
    #[arg(long, value_name = "N", default_value_t = SamplingParams::default().penalty_window)]
    pub repeat_last_n: usize,
    /// The steps that are taken and their order, with semicolons between: `top_k;temperature`, for example. What is left out
    /// does nothing; orders other than this one are sampled on the CPU
    #[arg(long, value_name = "NAMES", default_value_t = Samplers::DEFAULT)]
    pub samplers: Samplers,
    /// 2 keeps tokens up to a surprise that follows what has been drawn, so that its mean is --mirostat-tau, and leaves out
    /// top-nσ, top-k, typical, top-p, min-p and XTC; 0 does nothing
    #[arg(long, value_name = "VERSION", default_value_t = Mirostat::default().version)]
    pub mirostat: u32,
    /// The mean surprise that --mirostat seeks, in bits
    #[arg(long = "mirostat-tau", alias = "mirostat-ent", value_name = "BITS", default_value_t = Mirostat::default().tau, allow_negative_numbers = true)]
    pub mirostat_tau: f32,
    /// How fast --mirostat follows
    #[arg(long = "mirostat-eta", alias = "mirostat-lr", value_name = "RATE", default_value_t = Mirostat::default().eta, allow_negative_numbers = true)]
    pub mirostat_eta: f32,
    /// Makes the choice repeatable; a new one is taken and shown if left out
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// As the engine takes them. What no model could take is an error of usage, before one is loaded.
    pub(super) fn params(&self) -> Result<SamplingParams> {
        let params = SamplingParams {
            temperature: self.temp,
            top_k: self.top_k,
            typical_p: self.typical_p,
            top_p: self.top_p,
            min_p: self.min_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            dry: Dry {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed_length: self.dry_allowed_length,
                window: self.dry_penalty_last_n.unwrap_or(usize::MAX),
                breakers: Vec::new(),
            },
            logit_bias: self.logit_bias.clone(),
            repetition_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window: self.repeat_last_n,
            mirostat: Mirostat { version: self.mirostat, tau: self.mirostat_tau, eta: self.mirostat_eta },
            samplers: self.samplers,
            seed: self.seed,
        };
        params.validate(usize::MAX).map_err(usage)?;
        Ok(params)
    }

    /// Texts that no repetition goes past.
    pub(super) fn dry_breakers(&self) -> DryBreakers {
        match &self.dry_breakers[..] {
            [] => DryBreakers::default(),
            [none] if none == "none" => DryBreakers(Vec::new()),
            texts => DryBreakers(texts.to_vec()),
        }
    }
}
