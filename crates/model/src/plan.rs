//! What a model will need, before it is loaded.

use crate::error::Error;
use crate::spec::{DecoderSpec, Mask};
use minfer_engine::executor::{CacheGroup, Limits};
use minfer_engine::kv::blocks_needed;
use minfer_gguf::Gguf;
use minfer_ops::{Device, KV_BLOCK, KvGroup, KvTypes, Reserve};

/// Context when nobody asks for one: the model's own up to this.
const DEFAULT_CONTEXT: usize = 8192;

/// How to load a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Longest sequence in tokens; `None` takes the model's own, at most 8,192.
    pub context: Option<usize>,
    /// Tokens of one step.
    pub max_tokens: usize,
    /// Rows with a result in one step.
    pub max_outputs: usize,
    /// Sequences that can be of full length at once.
    pub sequences: usize,
    /// Types of cached keys and values.
    pub kv_types: KvTypes,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            context: None,
            max_tokens: 512,
            max_outputs: 16,
            sequences: 1,
            kv_types: KvTypes::default(),
        }
    }
}

/// Memory of a loaded model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Tensors, as they lie in the file.
    pub weights: u64,
    /// Keys and values of all sequences at full length.
    pub kv: u64,
    /// Keys and values of one token of one sequence, in the groups that keep all positions.
    pub kv_per_token: u64,
    /// Everything else of a step.
    pub activations: u64,
}

impl MemoryPlan {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.activations
    }
}

/// Sizes of a model on a device under some options.
pub(crate) struct Sizes {
    pub(crate) reserve: Reserve,
    pub(crate) limits: Limits,
}

impl Sizes {
    pub(crate) fn of(spec: &DecoderSpec, options: &LoadOptions) -> Result<Sizes, Error> {
        let context = options.context.unwrap_or(spec.context.min(DEFAULT_CONTEXT));
        let refuse = |why: &str| Err(Error::Context { asked: context, why: why.to_owned() });
        if context == 0 || options.max_tokens == 0 || options.max_outputs == 0 || options.sequences == 0 {
            return refuse("context, step size and number of sequences are at least 1");
        }
        if context > spec.context {
            return refuse(&format!("the model was trained for {}", spec.context));
        }
        for heads in spec.layers.iter().map(|l| l.heads) {
            if let Some(ty) = options.kv_types.refused(heads.dim) {
                return Err(Error::CacheType { ty: ty.name(), dim: heads.dim, block: ty.block() });
            }
        }
        let max_tokens = options.max_tokens.min(context);
        let max_outputs = options.max_outputs.min(max_tokens);
        let (groups, _) = spec.cache_groups();
        let window = |mask: &Mask| match mask {
            Mask::Full => None,
            Mask::Sliding(window) => Some(*window),
        };
        let blocks =
            |mask: &Mask| blocks_needed(window(mask), context, max_tokens, KV_BLOCK) * options.sequences;
        let widest =
            |f: &dyn Fn(&crate::spec::LayerSpec) -> usize| spec.layers.iter().map(f).max().unwrap_or(0);
        Ok(Sizes {
            limits: Limits {
                vocab: spec.vocab,
                context,
                max_tokens,
                max_outputs,
                block_tokens: KV_BLOCK,
                groups: groups
                    .iter()
                    .map(|(_, mask, _)| CacheGroup { blocks: blocks(mask), window: window(mask) })
                    .collect(),
            },
            reserve: Reserve {
                max_tokens,
                max_outputs,
                d_model: spec.d_model,
                max_q: widest(&|l| l.heads.q * l.heads.dim),
                max_kv: widest(&|l| l.heads.kv * l.heads.dim),
                max_ff: widest(&|l| l.ffn.width),
                vocab: spec.vocab,
                kv_groups: groups
                    .iter()
                    .map(|(heads, mask, layers)| KvGroup {
                        layers: *layers,
                        heads: *heads,
                        blocks: blocks(mask),
                    })
                    .collect(),
                kv_types: options.kv_types,
            },
        })
    }

    fn kv_bytes(&self) -> u64 {
        let types = self.reserve.kv_types;
        let per_block = |g: &KvGroup| types.bytes(g.layers * g.heads.kv * g.heads.dim * KV_BLOCK) as u64;
        self.reserve.kv_groups.iter().map(|g| per_block(g) * g.blocks as u64).sum()
    }
}

/// The memory that `gguf` will need on `device`.
///
/// # Errors
/// As for loading: an unsupported file, or a context that it cannot have.
pub fn plan_memory<D: Device>(gguf: &Gguf, device: &D, options: &LoadOptions) -> Result<MemoryPlan, Error> {
    let spec = DecoderSpec::for_context(gguf, options.context.unwrap_or(0))?;
    let sizes = Sizes::of(&spec, options)?;
    let kv = sizes.kv_bytes();
    let full = spec.layers.iter().filter(|l| l.mask == Mask::Full);
    Ok(MemoryPlan {
        weights: gguf.tensors().map(|t| t.data().len() as u64).sum(),
        kv,
        kv_per_token: full.map(|l| options.kv_types.bytes(l.heads.kv * l.heads.dim) as u64).sum(),
        activations: device.reserve_bytes(&sizes.reserve).saturating_sub(kv),
    })
}
