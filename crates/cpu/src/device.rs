//! The CPU as a [`minfer_ops::Device`].

mod argmax;
mod attention;
mod stages;
mod state;

use crate::Numerics;
use crate::arch::{self, Kernels};
use crate::cores::Cores;
use crate::detect::{Host, Isa};
use crate::kernel::vector::{Act, NormOp};
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::simd::LANES;
use minfer_ops::*;
use state::State;
use std::ops::Range;
use std::sync::Arc;

/// Whether weights are packed into panels at load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repack {
    /// Packed if the machine has the memory for it.
    #[default]
    Auto,
    /// Packed.
    On,
    /// Left in the mapped file, and packed panel by panel whenever used: starts at once, runs slower.
    Off,
}

/// How to set the CPU up.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Worker threads; `None` takes [`Cores::threads`](crate::Cores::threads).
    pub threads: Option<usize>,
    /// Instruction set; `None` takes the best that is there.
    pub isa: Option<Isa>,
    /// Whether to pack weights.
    pub repack: Repack,
    /// Numerics profile.
    pub numerics: Numerics,
}

/// A CPU that runs a decoder.
pub struct CpuDevice {
    kernels: &'static Kernels,
    pool: Pool,
    repack: Repack,
    numerics: Numerics,
    /// Every distinct rope of the loaded stages.
    ropes: Vec<Rope>,
    state: Option<State>,
}

/// A loaded [`EmbeddingSpec`]; the head may share its table.
pub struct Embedding {
    table: Arc<Matrix>,
    positions: Option<Matrix>,
    token_type: Option<Arc<[f32]>>,
    norm: Option<LoadedNorm>,
}

/// A loaded norm: scale and shift padded with zeros to whole vectors.
struct LoadedNorm {
    op: NormOp,
    len: usize,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

/// A loaded [`HeadNorm`].
enum LoadedHeadNorm {
    None,
    /// One for every head.
    Shared(LoadedNorm),
    /// One for each head.
    Own(Vec<LoadedNorm>),
    /// Over all heads together.
    AllHeads(LoadedNorm),
}

/// What a loaded [`FfnSpec`] reads.
enum LoadedInput {
    Residual(Option<LoadedNorm>),
    Attention,
}

/// A matrix and its bias.
struct LoadedLinear {
    matrix: Matrix,
    bias: Option<Arc<[f32]>>,
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
    stream_norm: Option<LoadedNorm>,
    residual_scale: f32,
}

/// A loaded [`FfnSpec`].
pub struct Ffn {
    input: LoadedInput,
    gate: Option<LoadedLinear>,
    up: LoadedLinear,
    down: LoadedLinear,
    act: Act,
    post_norm: Option<LoadedNorm>,
    stream_norm: Option<LoadedNorm>,
    residual_scale: f32,
}

/// A loaded [`HeadSpec`].
pub struct Head {
    norm: Option<LoadedNorm>,
    proj: HeadProj,
    scale: f32,
    soft_cap: Option<f32>,
}

enum HeadProj {
    Tied(Arc<Matrix>),
    Own(LoadedLinear),
}

impl Head {
    fn matrix(&self) -> (&Matrix, Option<&[f32]>) {
        match &self.proj {
            HeadProj::Tied(matrix) => (matrix, None),
            HeadProj::Own(linear) => (&linear.matrix, linear.bias.as_deref()),
        }
    }
}

impl LoadedNorm {
    fn new(norm: &Norm) -> LoadedNorm {
        let pad = |values: &[f32]| {
            let mut padded = values.to_vec();
            padded.resize(values.len().next_multiple_of(LANES), 0.0);
            padded
        };
        let op = match norm.kind {
            NormKind::Rms { eps } => NormOp::Rms(eps),
            NormKind::Layer { eps } => NormOp::Layer(eps),
        };
        LoadedNorm {
            op,
            len: norm.weight.len(),
            weight: pad(&norm.weight),
            bias: norm.bias.as_deref().map(pad),
        }
    }

    /// A norm of `width` values beside the matrix `tensor`.
    fn load(norm: Option<&Norm>, width: usize, tensor: &str) -> Result<Option<LoadedNorm>, DeviceError> {
        let Some(norm) = norm else { return Ok(None) };
        expect(tensor, "norm values", width, norm.weight.len())?;
        if let Some(bias) = &norm.bias {
            expect(tensor, "norm bias values", width, bias.len())?;
        }
        Ok(Some(LoadedNorm::new(norm)))
    }
}

impl LoadedHeadNorm {
    /// The norm of `heads` heads of `dim` channels behind the matrix `tensor`.
    fn load(norm: Option<&HeadNorm>, heads: usize, dim: usize, tensor: &str) -> Result<Self, DeviceError> {
        let load = |norm, width| LoadedNorm::load(Some(norm), width, tensor);
        Ok(match norm {
            None => LoadedHeadNorm::None,
            Some(HeadNorm::AllHeads(norm)) => {
                load(norm, heads * dim)?.map_or(LoadedHeadNorm::None, LoadedHeadNorm::AllHeads)
            }
            Some(HeadNorm::EachHead(norm)) if norm.weight.len() == dim => {
                load(norm, dim)?.map_or(LoadedHeadNorm::None, LoadedHeadNorm::Shared)
            }
            Some(HeadNorm::EachHead(norm)) => {
                load(norm, heads * dim)?;
                let part = |values: &[f32], head: usize| values[head * dim..(head + 1) * dim].into();
                let own = |head| {
                    LoadedNorm::new(&Norm {
                        kind: norm.kind,
                        weight: part(&norm.weight, head),
                        bias: norm.bias.as_deref().map(|bias| part(bias, head)),
                    })
                };
                LoadedHeadNorm::Own((0..heads).map(own).collect())
            }
        })
    }

    /// The norm over head `head`, if heads are normed one by one.
    fn of_head(&self, head: usize) -> Option<&LoadedNorm> {
        match self {
            LoadedHeadNorm::None | LoadedHeadNorm::AllHeads(_) => None,
            LoadedHeadNorm::Shared(norm) => Some(norm),
            LoadedHeadNorm::Own(norms) => norms.get(head),
        }
    }

    /// The norm over all heads together.
    fn of_all(&self) -> Option<&LoadedNorm> {
        if let LoadedHeadNorm::AllHeads(norm) = self { Some(norm) } else { None }
    }
}

impl CpuDevice {
    /// Starts the worker threads.
    ///
    /// # Errors
    /// The machine lacks the asked instruction set, the level has nothing faster to offer, or the system refuses threads.
    pub fn new(options: &CpuOptions) -> Result<CpuDevice, DeviceError> {
        let isa = choose(options.isa, &Host::levels())?;
        if options.numerics == Numerics::Fast && arch::kernels(isa).wide.is_none() {
            let what = format!(
                "numerics fast: {isa} has no faster forms, only amx does; the profile is exact there"
            );
            return Err(DeviceError::Fault(what));
        }
        let threads = options.threads.unwrap_or_else(|| Cores::detect().threads());
        let most = 4 * std::thread::available_parallelism().map_or(1, |n| n.get());
        if threads > most.max(8) {
            let what = format!("{threads} threads: expected at most {}, four for each core", most.max(8));
            return Err(DeviceError::Fault(what));
        }
        let pool = Pool::new(threads)
            .map_err(|error| DeviceError::Fault(format!("cannot start {threads} worker threads: {error}")))?;
        Ok(CpuDevice {
            kernels: arch::kernels(isa),
            pool,
            repack: options.repack,
            numerics: options.numerics,
            ropes: Vec::new(),
            state: None,
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// The numerics profile in use.
    pub fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Decides, once the model's size is known, whether `bytes` of weights will be packed.
    pub fn settle_repack(&mut self, bytes: u64) -> bool {
        if self.repack == Repack::Auto {
            // Packing needs room for a second copy while the file is read; a fifth more is for everything else.
            let short = crate::detect::memory_available().is_some_and(|free| free < bytes + bytes / 5);
            self.repack = if short { Repack::Off } else { Repack::On };
        }
        self.repack == Repack::On
    }

    fn matrix(&mut self, weight: Weight) -> Result<Matrix, DeviceError> {
        let matrix = Matrix::load(weight, self.kernels, self.repack != Repack::Off, &mut self.pool)?;
        Ok(if self.numerics == Numerics::Fast { matrix.fast(self.kernels) } else { matrix })
    }

    fn linear(&mut self, linear: Linear) -> Result<LoadedLinear, DeviceError> {
        if let Some(bias) = &linear.bias {
            expect(&linear.weight.name, "bias values", linear.weight.rows, bias.len())?;
        }
        Ok(LoadedLinear { matrix: self.matrix(linear.weight)?, bias: linear.bias })
    }

    fn rope(&mut self, rope: Rope) -> usize {
        let same =
            |r: &Rope| r.style == rope.style && r.magnitude == rope.magnitude && r.inv_freq == rope.inv_freq;
        self.ropes.iter().position(same).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        })
    }

    fn state(&mut self) -> Result<&mut State, DeviceError> {
        self.state.as_mut().ok_or_else(|| DeviceError::Fault("a step before memory was reserved".into()))
    }
}

/// The asked level, or the best one, of those that are there (ascending).
fn choose(asked: Option<Isa>, available: &[Isa]) -> Result<Isa, DeviceError> {
    let isa = asked.or(available.last().copied()).unwrap_or(Isa::Scalar);
    if !available.contains(&isa) {
        let have: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        let why = if isa == Isa::Amx { crate::detect::amx_refused() } else { None };
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        return Err(DeviceError::Fault(format!("this CPU has no {isa}{why}; it has {}", have.join(", "))));
    }
    Ok(isa)
}

fn expect(tensor: &str, what: &str, expected: usize, found: usize) -> Result<(), DeviceError> {
    if expected == found {
        return Ok(());
    }
    Err(DeviceError::Unsupported {
        tensor: tensor.to_owned(),
        what: format!("expected {expected} {what}, found {found}"),
    })
}

impl Device for CpuDevice {
    type Embedding = Embedding;
    type AttnIn = AttnIn;
    type AttnOut = AttnOut;
    type Ffn = Ffn;
    type Head = Head;

    fn describe(&self) -> String {
        let packing = if self.repack == Repack::Off { ", weights not repacked" } else { "" };
        let numerics = if self.numerics == Numerics::Fast { ", numerics fast" } else { "" };
        format!("CPU, {}, {} threads{packing}{numerics}", self.kernels.isa, self.pool.threads())
    }

    fn cache_kind(&self) -> String {
        let numerics = if self.numerics == Numerics::Fast { "fast" } else { "exact" };
        format!("CPU, {}, numerics {numerics}", self.kernels.isa)
    }

    fn read_block(&mut self, group: usize, block: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.state()?.read_block(group, block, bytes)
    }

    fn write_block(&mut self, group: usize, block: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.state()?.write_block(group, block, bytes)
    }

    fn load_embedding(&mut self, spec: EmbeddingSpec) -> Result<Embedding, DeviceError> {
        let (name, width) = (Arc::clone(&spec.table.name), spec.table.cols);
        if let Some(positions) = &spec.positions {
            expect(&positions.name, "columns", width, positions.cols)?;
        }
        if let Some(token_type) = &spec.token_type {
            expect(&name, "values of the token type", width, token_type.len())?;
        }
        Ok(Embedding {
            norm: LoadedNorm::load(spec.norm.as_ref(), width, &name)?,
            table: Arc::new(self.matrix(spec.table)?),
            positions: spec.positions.map(|positions| self.matrix(positions)).transpose()?,
            token_type: spec.token_type,
        })
    }

    fn load_attn_in(&mut self, spec: AttnInSpec) -> Result<AttnIn, DeviceError> {
        let Heads { q, kv, dim } = spec.heads;
        let (name, width) = (Arc::clone(&spec.q.weight.name), spec.q.weight.cols);
        for (linear, heads) in [(&spec.q, q), (&spec.k, kv), (&spec.v, kv)] {
            expect(&linear.weight.name, "rows", heads.saturating_mul(dim), linear.weight.rows)?;
            expect(&linear.weight.name, "columns", width, linear.weight.cols)?;
        }
        if dim == 0
            || dim % LANES != 0
            || dim > crate::kernel::attention::MAX_DIM
            || kv == 0
            || q == 0
            || q % kv != 0
        {
            let what = format!(
                "{q} query and {kv} key heads of {dim} channels; heads of 16…512 channels in steps of 16, query heads a multiple of key heads"
            );
            return Err(DeviceError::Unsupported { tensor: name.to_string(), what });
        }
        if let Some(rope) = &spec.rope
            && 2 * rope.inv_freq.len() > dim
        {
            let what = format!("rope over {} of {dim} channels", 2 * rope.inv_freq.len());
            return Err(DeviceError::Unsupported { tensor: name.to_string(), what });
        }
        Ok(AttnIn {
            norm: LoadedNorm::load(spec.norm.as_ref(), width, &name)?,
            q_norm: LoadedHeadNorm::load(spec.q_norm.as_ref(), q, dim, &name)?,
            k_norm: LoadedHeadNorm::load(spec.k_norm.as_ref(), kv, dim, &spec.k.weight.name)?,
            q: self.linear(spec.q)?,
            k: self.linear(spec.k)?,
            v: self.linear(spec.v)?,
            rope: spec.rope.map(|rope| self.rope(rope)),
            heads: spec.heads,
            kv: spec.kv,
        })
    }

    fn load_attn_out(&mut self, spec: AttnOutSpec) -> Result<AttnOut, DeviceError> {
        Ok(AttnOut {
            post_norm: LoadedNorm::load(
                spec.post_norm.as_ref(),
                spec.proj.weight.rows,
                &spec.proj.weight.name,
            )?,
            stream_norm: LoadedNorm::load(
                spec.stream_norm.as_ref(),
                spec.proj.weight.rows,
                &spec.proj.weight.name,
            )?,
            proj: self.linear(spec.proj)?,
            residual_scale: spec.residual_scale,
        })
    }

    fn load_ffn(&mut self, spec: FfnSpec) -> Result<Ffn, DeviceError> {
        expect(&spec.down.weight.name, "columns", spec.up.weight.rows, spec.down.weight.cols)?;
        if let Some(gate) = &spec.gate {
            expect(&gate.weight.name, "rows", spec.up.weight.rows, gate.weight.rows)?;
            expect(&gate.weight.name, "columns", spec.up.weight.cols, gate.weight.cols)?;
        }
        let width = spec.up.weight.cols;
        Ok(Ffn {
            input: match &spec.input {
                FfnInput::Residual(norm) => {
                    LoadedInput::Residual(LoadedNorm::load(norm.as_ref(), width, &spec.up.weight.name)?)
                }
                FfnInput::AttentionInput => LoadedInput::Attention,
            },
            post_norm: LoadedNorm::load(
                spec.post_norm.as_ref(),
                spec.down.weight.rows,
                &spec.down.weight.name,
            )?,
            stream_norm: LoadedNorm::load(
                spec.stream_norm.as_ref(),
                spec.down.weight.rows,
                &spec.down.weight.name,
            )?,
            gate: spec.gate.map(|gate| self.linear(gate)).transpose()?,
            up: self.linear(spec.up)?,
            down: self.linear(spec.down)?,
            act: match spec.activation {
                Activation::Silu => Act::Silu,
                Activation::Gelu => Act::Gelu,
                Activation::GeluTanh => Act::GeluTanh,
            },
            residual_scale: spec.residual_scale,
        })
    }

    fn load_head(&mut self, spec: HeadSpec, embedding: &Embedding) -> Result<Head, DeviceError> {
        let (proj, name) = match spec.proj {
            Some(linear) => {
                let name = Arc::clone(&linear.weight.name);
                (HeadProj::Own(self.linear(linear)?), name)
            }
            None => (HeadProj::Tied(Arc::clone(&embedding.table)), "token_embd".into()),
        };
        let width = match &proj {
            HeadProj::Tied(matrix) => matrix.cols,
            HeadProj::Own(linear) => linear.matrix.cols,
        };
        let norm = LoadedNorm::load(spec.norm.as_ref(), width, &name)?;
        Ok(Head { norm, proj, scale: spec.scale, soft_cap: spec.soft_cap })
    }

    fn reserve(&mut self, reserve: &Reserve) -> Result<(), DeviceError> {
        self.state = Some(State::new(reserve, &self.ropes, self.pool.threads(), self.numerics)?);
        Ok(())
    }

    fn reserve_bytes(&self, reserve: &Reserve) -> u64 {
        State::bytes(reserve, &self.ropes, self.pool.threads(), self.numerics)
    }

    fn keeps_file(&self) -> bool {
        self.repack == Repack::Off
    }

    fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        Ok(crate::detect::memory_available())
    }

    fn begin(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.state()?.begin(batch)?;
        self.prepare_ropes()
    }

    fn embed(&mut self, table: &Embedding, scale: f32) -> Result<(), DeviceError> {
        self.run_embed(table, scale)
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
        self.run_head(stage, false)
    }

    fn head_argmax(&mut self, stage: &Head, out: &mut [Option<u32>]) -> Result<bool, DeviceError> {
        self.run_head(stage, true)?;
        self.state()?.read_argmax(out)?;
        Ok(true)
    }

    fn logits(&mut self, out: &mut [f32]) -> Result<(), DeviceError> {
        self.state()?.read_logits(out)
    }

    fn hidden(
        &mut self,
        head: Option<&Head>,
        tokens: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.run_hidden(head, tokens, out)
    }
}

#[cfg(test)]
mod tests;
