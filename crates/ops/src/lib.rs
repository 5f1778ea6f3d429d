//! The stage-op boundary: everything the decoder may ask of a device.
//!
//! A device owns the weights it was given, the KV cache and every activation. The decoder owns the order of the
//! stages and nothing else: it never sees a buffer. The ops are coarse (a whole stage each), so a device is free to
//! fuse, repack and schedule inside one; a loaded stage (`Device::AttnIn`, …) is whatever it wants to keep.
//!
//! # Life of a step
//!
//! [`Device::begin`] fixes the tokens of the step; [`Device::embed`] fills the residual stream `x` `[tokens, d_model]`;
//! then per layer [`Device::attn_in`] → [`Device::attention`] → [`Device::attn_out`] → [`Device::ffn`]; at last
//! [`Device::head`] computes logits of the batch's `outputs`, which [`Device::logits`] copies to the host; or
//! [`Device::hidden`] copies what embeddings are made of.
//! Calls of one step come in this order, from one thread; a device may run them asynchronously until `logits` or
//! `hidden`, which wait.
//!
//! # Numerics
//!
//! The bits of a token's KV entries and logits depend on its own prefix alone, never on the other tokens of the
//! batch, on how the prompt was cut into steps, or on the number of threads.

mod check;
mod draw;
mod memory;

use std::ops::Range;
use std::sync::Arc;

pub use check::{at_most_reserved, expect_reserved};
pub use draw::Draw;
pub use memory::{Holding, Memory};
pub use minfer_gguf::{GgmlType, SharedBytes};

/// Tokens of one KV block, on every device.
pub const KV_BLOCK: usize = 64;

/// Keys of one attention segment: a softmax partial is taken per segment at absolute positions
/// `[256·s, 256·(s+1))`, and partials are combined in ascending order. It makes the sum's order a function of the
/// position alone. A multiple of [`KV_BLOCK`].
pub const ATTN_SEGMENT: usize = 256;

/// What a device can answer when an op fails.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A tensor's type, shape or size that this device cannot hold or compute.
    #[error("{tensor}: {what}")]
    Unsupported {
        /// Name of the tensor in the file.
        tensor: String,
        /// What was found and what is supported.
        what: String,
    },
    /// Memory for weights, cache or activations was refused.
    #[error("out of memory: {what} needs {needed} bytes")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Bytes asked for.
        needed: u64,
    },
    /// The device itself failed; no step can run on it any more.
    #[error("device fault: {0}")]
    Fault(String),
}

/// A weight matrix as it lies in the file: `rows` × `cols`, row-major, every row a whole number of blocks of `ty`.
///
/// `y[rows] = W · x[cols]`. In GGUF's terms `cols` is `dims[0]`.
#[derive(Clone)]
pub struct Weight {
    /// Name of the tensor in the file, for errors and traces.
    pub name: Arc<str>,
    /// Element type.
    pub ty: GgmlType,
    /// Output width.
    pub rows: usize,
    /// Input width (K).
    pub cols: usize,
    /// `rows` × row bytes.
    pub data: SharedBytes,
}

impl Weight {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.data.len() / self.rows.max(1)
    }

    /// The matrix of the rows in `range`: how a fused `qkv` or `gate_up` tensor becomes its parts.
    ///
    /// # Panics
    /// If `range` is not inside `0..rows`.
    pub fn slice_rows(&self, range: Range<usize>) -> Weight {
        let bytes = self.row_bytes();
        let data = self.data.slice(range.start * bytes..range.end * bytes);
        Weight { name: Arc::clone(&self.name), ty: self.ty, rows: range.len(), cols: self.cols, data }
    }
}

/// A matrix with an optional bias of `weight.rows` values.
#[derive(Clone)]
pub struct Linear {
    /// The matrix.
    pub weight: Weight,
    /// Added to the product.
    pub bias: Option<Arc<[f32]>>,
}

/// Stage: rows of a table → what belongs to their positions and type → norm.
pub struct EmbeddingSpec {
    /// `[vocab, d_model]`.
    pub table: Weight,
    /// Learned positions, `[context, d_model]`: row `p` is added to the token at position `p`.
    pub positions: Option<Weight>,
    /// The type that all tokens have, `[d_model]`: added to each.
    pub token_type: Option<Arc<[f32]>>,
    /// Norm of the sum.
    pub norm: Option<Norm>,
}

/// A table alone.
impl From<Weight> for EmbeddingSpec {
    fn from(table: Weight) -> Self {
        EmbeddingSpec { table, positions: None, token_type: None, norm: None }
    }
}

/// A normalisation over the last dimension.
#[derive(Clone, Debug)]
pub struct Norm {
    /// What is computed before the scale.
    pub kind: NormKind,
    /// Scale per channel. The file's values, with nothing added: converters store gemma's `1 + w`.
    pub weight: Arc<[f32]>,
    /// Shift per channel.
    pub bias: Option<Arc<[f32]>>,
}

/// Kinds of [`Norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps)`.
    Rms {
        /// Added under the root.
        eps: f32,
    },
    /// `(x − mean(x)) / sqrt(var(x) + eps)`.
    Layer {
        /// Added under the root.
        eps: f32,
    },
}

/// A norm of q or k.
#[derive(Clone, Debug)]
pub enum HeadNorm {
    /// Over each head. The weight has `heads.dim` values that serve every head, or as many for each head.
    EachHead(Norm),
    /// Over all heads together.
    AllHeads(Norm),
}

/// Rotary position embedding of q and k. Every scaling method (linear, YaRN, llama-3, longrope) is resolved into
/// `inv_freq` and `magnitude` at load: a device only rotates.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Which channels form a pair.
    pub style: RopeStyle,
    /// Angle per position and pair: `θ = position · inv_freq[i]`. The rotated width is `2 · inv_freq.len()`; the
    /// remaining channels of a head pass unchanged.
    pub inv_freq: Arc<[f64]>,
    /// Factor on cos and sin (YaRN's attention factor); 1 otherwise.
    pub magnitude: f32,
}

/// Pairing of channels in [`Rope`]; `n` is the rotated width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Channels `2i` and `2i + 1` (ggml's "normal").
    Adjacent,
    /// Channels `i` and `i + n/2` (ggml's "neox").
    Halves,
}

/// Where a layer's keys and values live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSlot {
    /// Index into the cache groups given to [`Device::reserve`].
    pub group: usize,
    /// Layer within that group.
    pub layer: usize,
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads; a multiple of `kv`.
    pub q: usize,
    /// Key/value heads.
    pub kv: usize,
    /// Channels per head.
    pub dim: usize,
}

/// Stage: norm → q, k, v → bias → q/k norm → rope → KV write.
pub struct AttnInSpec {
    /// Norm of the residual stream; `None` feeds it as it is.
    pub norm: Option<Norm>,
    /// `[heads.q · heads.dim, d_model]`.
    pub q: Linear,
    /// `[heads.kv · heads.dim, d_model]`.
    pub k: Linear,
    /// `[heads.kv · heads.dim, d_model]`.
    pub v: Linear,
    /// Norm of q before rope.
    pub q_norm: Option<HeadNorm>,
    /// Norm of k before rope.
    pub k_norm: Option<HeadNorm>,
    /// Rotation of q and k; `None` leaves them.
    pub rope: Option<Rope>,
    /// Head counts.
    pub heads: Heads,
    /// Where k and v are written.
    pub kv: KvSlot,
}

/// Stage: scaled dot-product attention of the step's q over the cache.
pub struct AttentionSpec {
    /// Head counts.
    pub heads: Heads,
    /// Factor on q·k.
    pub scale: f32,
    /// `s ← cap · tanh(s / cap)` on scaled scores.
    pub soft_cap: Option<f32>,
    /// Whether a token sees no later ones. Otherwise it sees all of its span, which is the whole sequence.
    pub causal: bool,
    /// A token at position `p` sees no keys before `p − window + 1`.
    pub window: Option<usize>,
    /// Where k and v are read.
    pub kv: KvSlot,
}

/// Stage: projection of the attention's result → post-norm → residual → norm of the stream.
pub struct AttnOutSpec {
    /// `[d_model, heads.q · heads.dim]`.
    pub proj: Linear,
    /// Norm before the addition to the residual stream.
    pub post_norm: Option<Norm>,
    /// Norm of the residual stream after the addition.
    pub stream_norm: Option<Norm>,
    /// Factor on what is added.
    pub residual_scale: f32,
}

/// Activation function of a feed-forward stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · σ(x)`.
    Silu,
    /// `x/2 · (1 + erf(x/√2))`.
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³)))`.
    GeluTanh,
}

/// Input of a feed-forward stage.
pub enum FfnInput {
    /// The residual stream, normed (`None` feeds it as it is).
    Residual(Option<Norm>),
    /// The normed input of the same layer's [`AttnInSpec`], which must have a norm: attention and feed-forward run side
    /// by side.
    AttentionInput,
}

/// Stage: norm → gate/up → activation → down → post-norm → residual → norm of the stream.
///
/// With a gate, `act(gate·x) ⊙ (up·x)`; without, `act(up·x)`.
pub struct FfnSpec {
    /// What the stage reads.
    pub input: FfnInput,
    /// `[d_ff, d_model]`.
    pub gate: Option<Linear>,
    /// `[d_ff, d_model]`.
    pub up: Linear,
    /// `[d_model, d_ff]`.
    pub down: Linear,
    /// Activation.
    pub activation: Activation,
    /// Norm before the addition to the residual stream.
    pub post_norm: Option<Norm>,
    /// Norm of the residual stream after the addition.
    pub stream_norm: Option<Norm>,
    /// Factor on what is added.
    pub residual_scale: f32,
}

/// Stage: norm → logits of the batch's outputs.
pub struct HeadSpec {
    /// Final norm.
    pub norm: Option<Norm>,
    /// `[vocab, d_model]`; `None` uses the embedding table (tied weights).
    pub proj: Option<Linear>,
    /// Factor on the logits.
    pub scale: f32,
    /// `l ← cap · tanh(l / cap)` on scaled logits.
    pub soft_cap: Option<f32>,
}

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// IEEE half precision.
    #[default]
    F16,
    /// bfloat16: the range of f32 in two bytes, with eight bits of precision.
    BF16,
    /// IEEE single precision: nothing is rounded when it is cached.
    F32,
    /// Eight bits: 32 channels of a token's head share a scale of half precision.
    Q8_0,
    /// E4M3 of the OCP's 8-bit floating point: a sign, four bits of exponent, three of mantissa. A token's head has a scale
    /// besides, `2^e` as a half: `e` is the least from −15 for which its largest channel is at most `448 · 2^e`, and no more
    /// than 7, so that every value is a half. What is larger than `448 · 2^7` becomes that; others are rounded to nearest even.
    FP8,
}

impl KvType {
    /// Every type.
    pub const ALL: [KvType; 5] = [KvType::F16, KvType::BF16, KvType::F32, KvType::Q8_0, KvType::FP8];

    /// Channels that are cached, or read, together: those of a head are a multiple of it.
    pub const fn block(self) -> usize {
        match self {
            KvType::F16 | KvType::BF16 | KvType::F32 => 1,
            KvType::Q8_0 | KvType::FP8 => 32,
        }
    }

    /// Bytes of a token's head of `dim` channels, a whole number of blocks.
    pub const fn head_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F16 | KvType::BF16 => dim.saturating_mul(2),
            KvType::F32 => dim.saturating_mul(4),
            KvType::Q8_0 => (dim / 32).saturating_mul(34),
            KvType::FP8 => dim.saturating_add(2),
        }
    }

    /// Bytes of `heads` such heads, of one token or of many; more than any memory if that overflows.
    pub const fn bytes(self, heads: usize, dim: usize) -> usize {
        heads.saturating_mul(self.head_bytes(dim))
    }

    /// The type's name, as `--ctk` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::BF16 => "bf16",
            KvType::F32 => "f32",
            KvType::Q8_0 => "q8_0",
            KvType::FP8 => "fp8",
        }
    }
}

/// Types of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvTypes {
    /// Of keys.
    pub keys: KvType,
    /// Of values.
    pub values: KvType,
}

impl KvTypes {
    /// Keys and values of one type.
    pub const fn same(ty: KvType) -> KvTypes {
        KvTypes { keys: ty, values: ty }
    }

    /// Bytes of so many heads of keys and as many of values; more than any memory if that overflows.
    pub const fn bytes(self, heads: usize, dim: usize) -> usize {
        self.keys.bytes(heads, dim).saturating_add(self.values.bytes(heads, dim))
    }

    /// A type that heads of `dim` channels cannot be cached in.
    pub fn refused(self, dim: usize) -> Option<KvType> {
        [self.keys, self.values].into_iter().find(|ty| !dim.is_multiple_of(ty.block()))
    }
}

/// Layers that share block tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Layers in the group.
    pub layers: usize,
    /// Heads of each layer.
    pub heads: Heads,
    /// Blocks of [`KV_BLOCK`] tokens that exist for each layer.
    pub blocks: usize,
}

impl KvGroup {
    /// Bytes of a block, keys and values of all layers.
    pub const fn block_bytes(&self, types: KvTypes) -> usize {
        types.bytes(self.layers.saturating_mul(self.heads.kv).saturating_mul(KV_BLOCK), self.heads.dim)
    }
}

/// Upper bounds of what a step can hold, from which a device sizes its activations once.
#[derive(Clone, Debug)]
pub struct Reserve {
    /// Tokens of one step.
    pub max_tokens: usize,
    /// Outputs of one step.
    pub max_outputs: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Widest `heads.q · heads.dim`.
    pub max_q: usize,
    /// Widest `heads.kv · heads.dim`.
    pub max_kv: usize,
    /// Widest feed-forward stage.
    pub max_ff: usize,
    /// Rows of the head.
    pub vocab: usize,
    /// Cache groups.
    pub kv_groups: Vec<KvGroup>,
    /// Types of cached keys and values.
    pub kv_types: KvTypes,
}

impl Reserve {
    /// Refuses a block that a cache does not have, and another number of bytes than it has.
    ///
    /// # Errors
    /// [`DeviceError::Fault`].
    pub fn check_block(&self, group: usize, block: usize, bytes: usize) -> Result<(), DeviceError> {
        let of = self.kv_groups.get(group).filter(|of| block < of.blocks);
        let of = of.ok_or_else(|| DeviceError::Fault(format!("no block {block} of cache group {group}")))?;
        match of.block_bytes(self.kv_types) {
            found if found == bytes => Ok(()),
            found => Err(DeviceError::Fault(format!("{bytes} bytes for a block of {found}"))),
        }
    }
}

/// The blocks of one sequence in one cache group.
#[derive(Clone, Copy, Debug)]
pub struct BlockTable<'a> {
    /// Logical block of `blocks[0]`: position `p` lies in `blocks[p / KV_BLOCK − first]`. Not 0 once a
    /// sliding-window group has dropped its oldest blocks.
    pub first: usize,
    /// Physical block numbers.
    pub blocks: &'a [u32],
}

/// Consecutive tokens of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Index of the first token in [`Batch::tokens`].
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// Position of the first token.
    pub position: usize,
    /// One table per cache group; they cover every position the tokens write or see.
    pub tables: &'a [BlockTable<'a>],
}

/// The tokens of one step. Spans are disjoint, ascending, and cover all tokens; no sequence has two.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids, all below the vocabulary's size.
    pub tokens: &'a [u32],
    /// Who they belong to.
    pub spans: &'a [Span<'a>],
    /// Indices into `tokens` whose result is wanted, ascending.
    pub outputs: &'a [u32],
}

/// A device that can run a decoder. See the crate documentation for the order of calls.
pub trait Device {
    /// A loaded [`EmbeddingSpec`].
    type Embedding;
    /// A loaded [`AttnInSpec`].
    type AttnIn;
    /// A loaded [`AttnOutSpec`].
    type AttnOut;
    /// A loaded [`FfnSpec`].
    type Ffn;
    /// A loaded [`HeadSpec`].
    type Head;

    /// Name and kind, for people.
    fn describe(&self) -> String;

    /// Tokens of a step that suit it when nobody asks for a number: a prompt is handed over in pieces of so many.
    fn step_tokens(&self) -> usize {
        512
    }

    /// Loads a stage.
    fn load_embedding(&mut self, spec: EmbeddingSpec) -> Result<Self::Embedding, DeviceError>;
    /// Loads a stage.
    fn load_attn_in(&mut self, spec: AttnInSpec) -> Result<Self::AttnIn, DeviceError>;
    /// Loads a stage.
    fn load_attn_out(&mut self, spec: AttnOutSpec) -> Result<Self::AttnOut, DeviceError>;
    /// Loads a stage.
    fn load_ffn(&mut self, spec: FfnSpec) -> Result<Self::Ffn, DeviceError>;
    /// Loads a stage; `embedding` serves tied weights.
    fn load_head(&mut self, spec: HeadSpec, embedding: &Self::Embedding) -> Result<Self::Head, DeviceError>;

    /// Allocates activations and the KV cache. Called once, after the weights were loaded.
    fn reserve(&mut self, reserve: &Reserve) -> Result<(), DeviceError>;
    /// Bytes that [`Device::reserve`] would allocate.
    fn reserve_bytes(&self, reserve: &Reserve) -> u64;
    /// What a device without anything on it will hold once `holdings` are loaded, in this order, and `reserve` is reserved.
    /// Unless a device says otherwise, tensors are held as they lie in the file.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: a cache that it does not have.
    fn memory(&self, holdings: &[Holding<'_>], reserve: &Reserve) -> Result<Memory, DeviceError> {
        let bytes = |holding: &Holding<'_>| match holding {
            Holding::Table(weight) | Holding::Matrix(weight) => weight.data.len() as u64,
            Holding::Vector(len) => 4 * *len as u64,
            Holding::Tied(_) | Holding::Rope(_) => 0,
        };
        let weights = holdings.iter().map(bytes).sum();
        let mapped = if self.keeps_file() { weights } else { 0 };
        Ok(Memory { weights, mapped, loading: weights, reserved: self.reserve_bytes(reserve) })
    }
    /// Whether tensors stay in the pages of the file, and are read there.
    fn keeps_file(&self) -> bool {
        false
    }
    /// Bytes of the memory that it would take that are free, if it knows.
    ///
    /// # Errors
    /// [`DeviceError::Fault`].
    fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    /// What the bits of cached keys and values, and how they lie, depend on besides model, tokens and types: the kind of
    /// device, its level, its numerics. Blocks go from one device to another only if it is the same.
    fn cache_kind(&self) -> String;
    /// Waits, then copies a block of a cache group to `bytes`, all [`KvGroup::block_bytes`] of it: of each layer the keys, then
    /// the values, as they lie.
    ///
    /// # Errors
    /// [`DeviceError::Fault`]: a block that there is not, another number of bytes, a device that failed.
    fn read_block(&mut self, group: usize, block: usize, bytes: &mut [u8]) -> Result<(), DeviceError>;
    /// Copies such bytes to a block, before what comes after.
    ///
    /// # Errors
    /// As [`Device::read_block`].
    fn write_block(&mut self, group: usize, block: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Starts a step.
    fn begin(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError>;
    /// `x ← norm(table[token] · scale + positions[position] + token_type)`.
    fn embed(&mut self, table: &Self::Embedding, scale: f32) -> Result<(), DeviceError>;
    /// q of the step and its cache entries from `x`.
    fn attn_in(&mut self, stage: &Self::AttnIn) -> Result<(), DeviceError>;
    /// Attention of the step's q over the cache.
    fn attention(&mut self, stage: &AttentionSpec) -> Result<(), DeviceError>;
    /// `x ← stream_norm(x + scale · post_norm(proj · attention))`.
    fn attn_out(&mut self, stage: &Self::AttnOut) -> Result<(), DeviceError>;
    /// `x ← stream_norm(x + scale · post_norm(ffn(norm(x))))`.
    fn ffn(&mut self, stage: &Self::Ffn) -> Result<(), DeviceError>;
    /// Logits of the batch's outputs.
    fn head(&mut self, stage: &Self::Head) -> Result<(), DeviceError>;
    /// [`Device::head`]; then waits, and tells the token with the largest logit of each output: the lowest id of several,
    /// and `None` if a logit is NaN or all are −∞. `false`, and `out` as it was, from a device that leaves this to who reads
    /// the logits.
    fn head_argmax(&mut self, stage: &Self::Head, out: &mut [Option<u32>]) -> Result<bool, DeviceError> {
        let _ = out;
        self.head(stage)?;
        Ok(false)
    }
    /// [`Device::head`]; then waits, and tells the token that each output's draw yields: bit for bit the sampler's. `None` as
    /// [`Device::head_argmax`] has it. `false`, and `out` as it was, from a device that leaves this to who reads the logits.
    fn head_draw(
        &mut self,
        stage: &Self::Head,
        draws: &[Draw],
        out: &mut [Option<u32>],
    ) -> Result<bool, DeviceError> {
        let _ = (draws, out);
        self.head(stage)?;
        Ok(false)
    }
    /// Waits, then copies the logits `[outputs, vocab]`.
    fn logits(&mut self, out: &mut [f32]) -> Result<(), DeviceError>;
    /// Waits, then copies the hidden state `[tokens, d_model]` of tokens of the step, as `head` norms it for its product; without
    /// a head as the last stage left it. It needs no [`Device::head`], and leaves what that found.
    fn hidden(
        &mut self,
        head: Option<&Self::Head>,
        tokens: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), DeviceError>;
}
