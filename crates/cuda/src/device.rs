//! An NVIDIA GPU as a [`minfer_ops::Device`].

mod argmax;
mod decode;
#[cfg(feature = "lab")]
mod lab;
mod load;
mod plan;
mod probe;
mod sample;
mod stages;
mod state;
#[cfg(test)]
mod tests;

use crate::args::{Address, HeadsArgs, NormArgs, at};
use crate::driver::{Buffer, Gpu, GpuInfo, Kernel, STATIC_SHARED, Unavailable};
use crate::kernels::Kernels;
use crate::launch::{Lane, Queue};
use crate::matrix::{Matrix, has_wgmma};
use crate::numerics::Numerics;
use crate::prefill::Prefill;
#[cfg(feature = "lab")]
pub use lab::{MmqProduct, MmqVariant, Observed, Rate, Repacked};
use minfer_ops::*;
use stages::Act;
use state::State;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// Tokens up to which a step's launches are kept for a graph: launching is what such steps wait for.
const GRAPH_TOKENS: usize = 256;

/// How to set a GPU up.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// Number of the GPU.
    pub gpu: usize,
    /// Numerics profile; that of its kind, [`Numerics::of`], if left out.
    pub numerics: Option<Numerics>,
    /// What takes prompts in the int8 profile; the profile's own kernel where this build has no such experiment.
    pub prefill: Prefill,
}

/// A GPU that runs a decoder.
pub struct CudaDevice {
    // Dropped in this order: what holds memory and modules before the stream and the context.
    queue: Queue,
    state: Option<State>,
    ropes: Vec<LoadedRope>,
    common: Common,
    /// Whether a feed-forward stage reads the attention stage's normed input, so that it has to exist.
    keeps_normed: bool,
    /// Gated feed-forward stages of the step so far that ran in one kernel.
    gated: Cell<usize>,
    /// Heads that the attention stage finishes itself.
    pending: Cell<Option<HeadsArgs>>,
    numerics: Numerics,
    prefill: Prefill,
    /// What takes prompts of matrices of which type, of those loaded.
    prompt_kernels: Vec<(GgmlType, Prefill)>,
    kernels: Kernels,
    gpu: Gpu,
}

/// Kernels that do not depend on a type of weights.
#[derive(Clone, Copy)]
struct Common {
    prepare_rows: Kernel,
    /// For any row; for a norm without a bias; for a row as it is.
    prepare_tiles: [Kernel; 3],
    prepare_bytes: Kernel,
    prepare_byte_tiles: [Kernel; 3],
    norm_rows: Kernel,
    rope_angles: Kernel,
    /// Of a cache of f16, and of any types.
    finish_heads: Kernel,
    finish_heads_any: Kernel,
    /// `None` in tests that compare.
    finish_heads_plain: Option<Kernel>,
    /// For heads of up to 64, 128 and 256 channels.
    attention_walk: [Kernel; 3],
    attention_split: [Kernel; 3],
    /// The same of a cache of any types.
    attention_walk_any: [Kernel; 3],
    attention_split_any: [Kernel; 3],
    attention_merge: Kernel,
    /// Of many tokens, for heads of as many channels and a cache of one type: of every GPU.
    attention_tile: [(usize, KvType, Kernel); 8],
    /// Of a cache of f16, of those with `wgmma`.
    attention_wgmma: Option<[(usize, Kernel); 4]>,
    argmax: Kernel,
    sample_bins: Kernel,
    sample_draw: Kernel,
    decode_matmul: Kernel,
    decode_matmul_int8: Kernel,
    /// Clusters of both of them that run at a time, of [`decode::SPLITS`] blocks.
    decode_clusters: [usize; 2],
    /// For heads of [`decode::ATTENTION_HEADS`] channels; of short contexts, and of long ones or larger heads.
    decode_attention: [Option<Kernel>; 3],
    decode_attention_deep: [Option<Kernel>; 3],
    /// Of a cache of these types, of any contexts.
    decode_attention_bf16: [Option<Kernel>; 3],
    decode_attention_q8_0: [Option<Kernel>; 3],
    decode_attention_fp8: [Option<Kernel>; 3],
    /// Of many sequences, of a cache in f16, then in bf16.
    decode_walk: [[Option<Kernel>; 3]; 2],
}

/// A distinct rope of the loaded stages.
struct LoadedRope {
    rope: Rope,
    inv_freq: Buffer<f64>,
}

/// A loaded [`EmbeddingSpec`]; the head may share its table.
pub struct Embedding(Arc<Matrix>);

/// A loaded norm.
struct LoadedNorm {
    kind: NormKind,
    weight: Buffer<f32>,
    bias: Option<Buffer<f32>>,
}

/// A loaded [`HeadNorm`].
enum LoadedHeadNorm {
    None,
    /// Over each head; values from one head's weights to the next one's, 0 if all share them.
    Each(LoadedNorm, usize),
    /// Over all heads together.
    All(LoadedNorm),
}

/// What a loaded [`FfnSpec`] reads.
enum LoadedInput {
    Residual(Option<LoadedNorm>),
    Attention,
}

/// A matrix and its bias.
struct LoadedLinear {
    matrix: Arc<Matrix>,
    bias: Option<Buffer<f32>>,
}

impl LoadedLinear {
    fn bias(&self) -> Address {
        self.bias.as_ref().map_or(0, |bias| at(bias, 0))
    }
}

/// A loaded [`AttnInSpec`].
pub struct AttnIn {
    norm: Option<LoadedNorm>,
    q: LoadedLinear,
    k: LoadedLinear,
    v: LoadedLinear,
    q_norm: LoadedHeadNorm,
    k_norm: LoadedHeadNorm,
    /// Index into the device's ropes.
    rope: Option<usize>,
    heads: Heads,
    kv: KvSlot,
}

/// A loaded [`AttnOutSpec`].
pub struct AttnOut {
    proj: LoadedLinear,
    post_norm: Option<LoadedNorm>,
    residual_scale: f32,
}

/// A loaded [`FfnSpec`].
pub struct Ffn {
    input: LoadedInput,
    gate: Option<LoadedLinear>,
    up: LoadedLinear,
    down: LoadedLinear,
    activation: Act,
    post_norm: Option<LoadedNorm>,
    residual_scale: f32,
}

/// A loaded [`HeadSpec`].
pub struct Head {
    norm: Option<LoadedNorm>,
    proj: LoadedLinear,
    scale: f32,
    soft_cap: Option<f32>,
}

impl LoadedNorm {
    fn args(norm: Option<&LoadedNorm>) -> NormArgs {
        norm.map_or(NormArgs::default(), |norm| {
            let (kind, eps) = kind_and_eps(norm.kind);
            NormArgs {
                weight: at(&norm.weight, 0),
                bias: norm.bias.as_ref().map_or(0, |b| at(b, 0)),
                eps,
                kind,
            }
        })
    }
}

/// `enum class Norm` of the kernels.
fn kind_and_eps(kind: NormKind) -> (i32, f32) {
    match kind {
        NormKind::Rms { eps } => (1, eps),
        NormKind::Layer { eps } => (2, eps),
    }
}

impl CudaDevice {
    /// Opens a GPU and loads the kernels.
    ///
    /// # Errors
    /// [`Unavailable`], in one line.
    pub fn new(options: &CudaOptions) -> Result<CudaDevice, Unavailable> {
        let gpu = Gpu::open(options.gpu)?;
        let failed = |error: DeviceError| Unavailable::Failed(error.to_string());
        let kernels = Kernels::load(&gpu).map_err(failed)?;
        let get = |module: &str, name: &str| kernels.get(module, name).map_err(failed);
        let allowed = |module: &str, name: &str, fixed: usize| -> Result<Kernel, Unavailable> {
            let kernel = get(module, name)?;
            gpu.allow_shared(kernel, fixed).map_err(|failure| Unavailable::Failed(failure.to_string()))?;
            Ok(kernel)
        };
        let with_shared = |module: &str, name: &str| allowed(module, name, STATIC_SHARED);
        let attention = |kind: &str| -> Result<[Kernel; 3], Unavailable> {
            let of = |d: usize| get("attention", &format!("attention_{kind}_d{d}"));
            Ok([of(64)?, of(128)?, of(256)?])
        };
        let decode_attention = |kind: &str| -> Result<[Option<Kernel>; 3], Unavailable> {
            let of = |d: usize| with_shared("decode_attention", &format!("decode_attention_d{d}{kind}"));
            let [small, large, largest] = decode::ATTENTION_HEADS;
            // A segment of the largest has no room beside its values.
            let largest = if kind.is_empty() { None } else { Some(of(largest)?) };
            Ok([Some(of(small)?), Some(of(large)?), largest])
        };
        let decode_walk = |kind: &str| -> Result<[Option<Kernel>; 3], Unavailable> {
            let of = |d: usize| allowed("decode_attention", &format!("decode_walk_d{d}{kind}"), 0);
            let [small, large, _] = decode::ATTENTION_HEADS;
            Ok(match gpu.info.shared_per_block >= decode::walk_shared(large) {
                true => [Some(of(small)?), Some(of(large)?), None],
                false => [None; 3],
            })
        };
        let tile = |d: usize, ty: KvType| -> Result<(usize, KvType, Kernel), Unavailable> {
            let suffix = if ty == KvType::F16 { String::new() } else { format!("_{}", ty.name()) };
            Ok((d, ty, with_shared("attention_tile", &format!("attention_tile_d{d}{suffix}"))?))
        };
        let common = Common {
            prepare_rows: get("rows", "prepare_rows")?,
            prepare_tiles: [
                get("rows", "prepare_tiles")?,
                get("rows", "prepare_tiles_rms")?,
                get("rows", "prepare_tiles_plain")?,
            ],
            prepare_bytes: get("rows", "prepare_bytes")?,
            prepare_byte_tiles: [
                get("rows", "prepare_byte_tiles")?,
                get("rows", "prepare_byte_tiles_rms")?,
                get("rows", "prepare_byte_tiles_plain")?,
            ],
            norm_rows: get("rows", "norm_rows")?,
            rope_angles: get("heads", "rope_angles")?,
            finish_heads: get("heads", "finish_heads")?,
            finish_heads_any: get("heads", "finish_heads_any")?,
            finish_heads_plain: Some(get("heads", "finish_heads_plain")?),
            attention_walk: attention("walk")?,
            attention_split: attention("split")?,
            attention_walk_any: attention("walk_any")?,
            attention_split_any: attention("split_any")?,
            attention_merge: get("attention", "attention_merge")?,
            attention_tile: [
                tile(64, KvType::F16)?,
                tile(64, KvType::BF16)?,
                tile(64, KvType::Q8_0)?,
                tile(64, KvType::FP8)?,
                tile(128, KvType::F16)?,
                tile(128, KvType::BF16)?,
                tile(128, KvType::Q8_0)?,
                tile(128, KvType::FP8)?,
            ],
            attention_wgmma: match has_wgmma(&gpu.info) {
                true => {
                    let of = |d: usize| allowed("attention_wgmma", &format!("attention_wgmma_d{d}"), 0);
                    Some([(64, of(64)?), (96, of(96)?), (128, of(128)?), (256, of(256)?)])
                }
                false => None,
            },
            argmax: get("argmax", "argmax")?,
            sample_bins: get("sample", "sample_bins")?,
            sample_draw: get("sample", "sample_draw")?,
            decode_matmul: with_shared("decode", "decode_matmul")?,
            decode_matmul_int8: with_shared("decode_int8", "decode_matmul_int8")?,
            decode_clusters: decode::clusters(&gpu, with_shared("decode", "decode_matmul")?)
                .map_err(|failure| Unavailable::Failed(failure.to_string()))?,
            decode_attention: decode_attention("")?,
            decode_attention_deep: decode_attention("_deep")?,
            decode_attention_bf16: decode_attention("_bf16")?,
            decode_attention_q8_0: decode_attention("_q8_0")?,
            decode_attention_fp8: decode_attention("_fp8")?,
            decode_walk: [decode_walk("")?, decode_walk("_bf16")?],
        };
        Ok(CudaDevice {
            queue: Queue::default(),
            state: None,
            ropes: Vec::new(),
            common,
            keeps_normed: false,
            gated: Cell::new(0),
            pending: Cell::new(None),
            numerics: options.numerics.unwrap_or(Numerics::of(gpu.info.capability)),
            prefill: options.prefill,
            prompt_kernels: Vec::new(),
            kernels,
            gpu,
        })
    }

    /// What it is.
    pub fn info(&self) -> &GpuInfo {
        &self.gpu.info
    }

    /// Bytes free on the GPU.
    ///
    /// # Errors
    /// The driver fails.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        self.gpu.make_current()?;
        Ok(self.gpu.free_memory()?)
    }

    /// Its numerics profile.
    pub fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// What takes prompts of a matrix with tuned kernels.
    fn prefill_of(&self, weight: &Weight) -> Prefill {
        match self.numerics {
            Numerics::F16 => Prefill::Auto,
            Numerics::Int8 => self.prefill.of(self.gpu.info.capability, weight.ty, weight.cols),
        }
    }

    /// Steps that were replayed as a graph so far.
    pub fn replayed_steps(&self) -> u64 {
        self.queue.replays()
    }

    fn lane(&self) -> Lane<'_> {
        Lane { gpu: &self.gpu, queue: &self.queue }
    }

    /// Runs what the step has kept.
    fn flush(&self) -> Result<(), DeviceError> {
        self.queue.flush(&self.gpu)
    }

    fn state(&self) -> Result<&State, DeviceError> {
        self.state.as_ref().ok_or_else(|| DeviceError::Fault("a step before memory was reserved".into()))
    }
}

impl Device for CudaDevice {
    type Embedding = Embedding;
    type AttnIn = AttnIn;
    type AttnOut = AttnOut;
    type Ffn = Ffn;
    type Head = Head;

    fn describe(&self) -> String {
        let info = &self.gpu.info;
        format!("{}, compute capability {}.{}", info.name, info.capability.0, info.capability.1)
    }

    fn cache_kind(&self) -> String {
        let (major, minor) = self.gpu.info.capability;
        let numerics = if self.numerics == Numerics::Int8 { "int8" } else { "f16" };
        format!("CUDA, compute capability {major}.{minor}, numerics {numerics}")
    }

    fn read_block(&mut self, group: usize, block: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.gpu.make_current()?;
        let state = self.state()?;
        state.reserve.check_block(group, block, bytes.len())?;
        for (cache, at, part) in state.kv[group].parts_of(block) {
            self.gpu.download_at(cache, at, &mut bytes[part])?;
        }
        Ok(())
    }

    fn write_block(&mut self, group: usize, block: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.gpu.make_current()?;
        let state = self.state()?;
        state.reserve.check_block(group, block, bytes.len())?;
        for (cache, at, part) in state.kv[group].parts_of(block) {
            self.gpu.upload_at(&bytes[part], cache, at)?;
        }
        Ok(())
    }

    /// Tiles of tokens fill the multiprocessors only together with many others; other kernels do not need so many, nor
    /// the memory for them.
    fn step_tokens(&self) -> usize {
        let tiles = self.numerics == Numerics::Int8 || has_wgmma(&self.gpu.info);
        if tiles { 2048 } else { 512 }
    }

    fn load_embedding(&mut self, spec: EmbeddingSpec) -> Result<Embedding, DeviceError> {
        self.embedding_stage(&spec)
    }

    fn load_attn_in(&mut self, spec: AttnInSpec) -> Result<AttnIn, DeviceError> {
        self.attn_in_stage(spec)
    }

    fn load_attn_out(&mut self, spec: AttnOutSpec) -> Result<AttnOut, DeviceError> {
        self.attn_out_stage(spec)
    }

    fn load_ffn(&mut self, spec: FfnSpec) -> Result<Ffn, DeviceError> {
        self.ffn_stage(spec)
    }

    fn load_head(&mut self, spec: HeadSpec, embedding: &Embedding) -> Result<Head, DeviceError> {
        self.head_stage(spec, embedding)
    }

    fn reserve(&mut self, reserve: &Reserve) -> Result<(), DeviceError> {
        self.gpu.make_current()?;
        self.state = None;
        self.state = Some(State::new(&self.gpu, reserve, &self.ropes)?);
        Ok(())
    }

    fn reserve_bytes(&self, reserve: &Reserve) -> u64 {
        let pairs: Vec<usize> = self.ropes.iter().map(|r| r.rope.inv_freq.len()).collect();
        State::bytes(reserve, &pairs)
    }

    fn memory(&self, holdings: &[Holding<'_>], reserve: &Reserve) -> Result<Memory, DeviceError> {
        plan::memory(holdings, reserve, |weight| self.prefill_of(weight).is_experiment())
    }

    fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        self.free_memory().map(Some)
    }

    fn begin(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.gpu.make_current()?;
        // A step without outputs may still be kept.
        self.flush()?;
        match &mut self.state {
            Some(state) => {
                state.begin(&self.gpu, batch)?;
                self.queue.keep(batch.tokens.len() <= GRAPH_TOKENS);
            }
            None => return Err(DeviceError::Fault("a step before memory was reserved".into())),
        }
        self.gated.set(0);
        self.pending.set(None);
        self.run_ropes()
    }

    fn embed(&mut self, table: &Embedding, scale: f32) -> Result<(), DeviceError> {
        self.run_embed(&table.0, scale)
    }

    fn attn_in(&mut self, stage: &AttnIn) -> Result<(), DeviceError> {
        self.run_attn_in(stage)
    }

    fn attention(&mut self, stage: &AttentionSpec) -> Result<(), DeviceError> {
        self.run_attention(stage)
    }

    fn attn_out(&mut self, stage: &AttnOut) -> Result<(), DeviceError> {
        self.run_attn_out(stage)
    }

    fn ffn(&mut self, stage: &Ffn) -> Result<(), DeviceError> {
        self.run_ffn(stage)
    }

    fn head(&mut self, stage: &Head) -> Result<(), DeviceError> {
        self.run_head(stage)?;
        // The step ends here.
        self.flush()
    }

    fn head_argmax(&mut self, stage: &Head, out: &mut [Option<u32>]) -> Result<bool, DeviceError> {
        self.run_head(stage)?;
        self.run_argmax(None)?;
        self.flush()?;
        self.read_argmax(out)?;
        Ok(true)
    }

    fn head_draw(
        &mut self,
        stage: &Head,
        draws: &[Draw],
        out: &mut [Option<u32>],
    ) -> Result<bool, DeviceError> {
        self.run_head(stage)?;
        self.run_sample(draws)?;
        self.flush()?;
        self.read_argmax(out)?;
        Ok(true)
    }

    fn logits(&mut self, out: &mut [f32]) -> Result<(), DeviceError> {
        self.flush()?;
        let Some(state) = &mut self.state else {
            return Err(DeviceError::Fault("logits before memory was reserved".into()));
        };
        expect_reserved("logits asked", state.outputs * state.reserve.vocab, out.len())?;
        self.gpu.download_through(&state.logits, &mut state.arrival, out)
    }

    fn hidden(
        &mut self,
        head: Option<&Head>,
        tokens: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.flush()?;
        self.run_hidden(head, tokens, out)
    }
}
