//! What a model will need, before it is loaded.

use crate::bind::{Binder, LayerWeights};
use crate::error::Error;
use crate::spec::{DecoderSpec, Mask};
use minfer_engine::executor::{CacheGroup, Limits};
use minfer_engine::kv::blocks_needed;
use minfer_gguf::Gguf;
use minfer_ops::{Device, EmbeddingSpec, HeadSpec, Holding, KV_BLOCK, KvGroup, KvSlot, KvTypes, Reserve};
use std::sync::Arc;

/// Context when nobody asks for one: the model's own up to this.
const DEFAULT_CONTEXT: usize = 8192;

/// How to load a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Longest sequence in tokens; `None` takes the model's own, at most 8,192.
    pub context: Option<usize>,
    /// Tokens of one step; `None` leaves it to the device.
    pub max_tokens: Option<usize>,
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
            max_tokens: None,
            max_outputs: 16,
            sequences: 1,
            kv_types: KvTypes::default(),
        }
    }
}

/// Memory of a loaded model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Tensors, as they lie on the device.
    pub weights: u64,
    /// What of them stays in the pages of the file, which the system takes back when memory is short.
    pub mapped: u64,
    /// The most that they take at a time while they are loaded.
    pub loading: u64,
    /// Keys and values of all sequences at full length.
    pub kv: u64,
    /// Keys and values of one token of one sequence, in the groups that keep all positions.
    pub kv_per_token: u64,
    /// Everything else of a step.
    pub activations: u64,
}

impl MemoryPlan {
    /// The most that is taken at a time, beside the pages of the file.
    pub fn total(&self) -> u64 {
        let all = [self.weights, self.kv, self.activations].into_iter().fold(0, u64::saturating_add);
        all.max(self.loading).saturating_sub(self.mapped)
    }
}

/// Sizes of a model on a device under some options.
pub(crate) struct Sizes {
    pub(crate) reserve: Reserve,
    pub(crate) limits: Limits,
}

impl Sizes {
    pub(crate) fn of(spec: &DecoderSpec, options: &LoadOptions, step_tokens: usize) -> Result<Sizes, Error> {
        let max_tokens = options.max_tokens.unwrap_or(step_tokens);
        let context = options.context.unwrap_or(spec.context.min(DEFAULT_CONTEXT));
        let refuse = |why: &str| Err(Error::Context { asked: context, why: why.to_owned() });
        if context == 0 || max_tokens == 0 || options.max_outputs == 0 || options.sequences == 0 {
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
        // A step has tokens of all sequences.
        let max_tokens = max_tokens.min(context.saturating_mul(options.sequences));
        // An encoder takes a text in one step: steps are as long as texts, unless somebody asks for shorter ones.
        let (context, max_tokens) = match (spec.bidirectional(), options.max_tokens) {
            (false, _) => (context, max_tokens),
            (true, None) => (context, max_tokens.max(context)),
            (true, Some(_)) => (context.min(max_tokens), max_tokens),
        };
        let max_outputs = options.max_outputs.min(max_tokens);
        let (groups, _) = spec.cache_groups();
        let blocks =
            |mask: &Mask| blocks_needed(mask.window(), context, max_tokens, KV_BLOCK) * options.sequences;
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
                    .map(|(_, mask, _)| CacheGroup { blocks: blocks(mask), window: mask.window() })
                    .collect(),
                bidirectional: spec.bidirectional(),
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
        let per_block = |g: &KvGroup| types.bytes(g.layers * g.heads.kv * KV_BLOCK, g.heads.dim) as u64;
        let groups = self.reserve.kv_groups.iter().map(|g| per_block(g).saturating_mul(g.blocks as u64));
        groups.fold(0, u64::saturating_add)
    }
}

/// A file's tensors, bound to the stages of its decoder: all that loading needs to know before it begins.
pub(crate) struct Bound {
    pub(crate) embedding: EmbeddingSpec,
    pub(crate) layers: Vec<(LayerWeights, KvSlot)>,
    pub(crate) head: Option<HeadSpec>,
}

impl Bound {
    /// Binds everything: a wrong file is refused before anything is loaded.
    pub(crate) fn new(gguf: &Arc<Gguf>, spec: &DecoderSpec) -> Result<Bound, Error> {
        let (_, places) = spec.cache_groups();
        let mut binder = Binder::new(gguf, spec);
        let embedding = binder.embedding()?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, (layer, (group, place))) in spec.layers.iter().zip(places).enumerate() {
            let kv = KvSlot { group, layer: place };
            layers.push((binder.layer(i, layer, kv)?, kv));
        }
        let head = binder.head()?;
        binder.finish()?;
        Ok(Bound { embedding, layers, head })
    }

    /// What a device will hold, in the order of loading.
    fn holdings(&self) -> Vec<Holding<'_>> {
        let mut all = Vec::new();
        let mut tell = |holding| all.push(holding);
        self.embedding.holdings(&mut tell);
        for (stages, _) in &self.layers {
            stages.attn_in.holdings(&mut tell);
            stages.attn_out.holdings(&mut tell);
            stages.ffn.holdings(&mut tell);
        }
        if let Some(head) = &self.head {
            head.holdings(&self.embedding.table, &mut tell);
        }
        all
    }

    /// The memory that loading will take.
    pub(crate) fn memory<D: Device>(
        &self,
        spec: &DecoderSpec,
        sizes: &Sizes,
        device: &D,
    ) -> Result<MemoryPlan, Error> {
        let memory = device.memory(&self.holdings(), &sizes.reserve)?;
        let kv = sizes.kv_bytes();
        let types = sizes.reserve.kv_types;
        let full = spec.layers.iter().filter(|l| l.mask.window().is_none());
        Ok(MemoryPlan {
            weights: memory.weights,
            mapped: memory.mapped,
            loading: memory.loading,
            kv,
            kv_per_token: full.map(|l| types.bytes(l.heads.kv, l.heads.dim) as u64).sum(),
            activations: memory.reserved.saturating_sub(kv),
        })
    }

    /// Refuses to load what a device has too little memory for, and tells what it has enough for.
    pub(crate) fn check_memory<D: Device>(
        &self,
        spec: &DecoderSpec,
        sizes: &Sizes,
        options: &LoadOptions,
        device: &D,
    ) -> Result<(), Error> {
        let plan = self.memory(spec, sizes, device)?;
        let Some(free) = device.free_bytes()?.filter(|free| plan.total() > *free) else { return Ok(()) };
        let fits = |context: usize| {
            let options = LoadOptions { context: Some(context), ..options.clone() };
            let sizes = Sizes::of(spec, &options, device.step_tokens());
            let plan = sizes.and_then(|sizes| self.memory(spec, &sizes, device));
            plan.is_ok_and(|plan| plan.total() <= free)
        };
        let context = sizes.limits.context;
        Err(Error::Memory { plan, context, free, fits: largest(context, fits) })
    }
}

/// The largest number below `end` for which `fits`, of which all smaller ones do; 0 if none does.
fn largest(end: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut good, mut bad) = (0, end.max(1));
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    good
}

/// The memory that `gguf` will need on `device`.
///
/// # Errors
/// As for loading: an unsupported file, or a context that it cannot have.
pub fn plan_memory<D: Device>(
    gguf: &Arc<Gguf>,
    device: &D,
    options: &LoadOptions,
) -> Result<MemoryPlan, Error> {
    let spec = DecoderSpec::for_context(gguf, options.context.unwrap_or(0))?;
    let sizes = Sizes::of(&spec, options, device.step_tokens())?;
    Bound::new(gguf, &spec)?.memory(&spec, &sizes, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_context_that_fits_is_found() {
        for (end, most) in [(1, 0), (2, 1), (100, 0), (100, 1), (100, 63), (100, 99), (1 << 40, 123_456_789)]
        {
            assert_eq!(largest(end, |context| context <= most), most.min(end - 1), "{most} below {end}");
        }
    }

    #[test]
    fn the_most_at_a_time_is_loading_or_running() {
        let plan = MemoryPlan { weights: 10, mapped: 0, loading: 15, kv: 1, kv_per_token: 1, activations: 2 };
        assert_eq!(plan.total(), 15);
        assert_eq!(MemoryPlan { kv: 100, ..plan }.total(), 112);
        assert_eq!(MemoryPlan { kv: 100, mapped: 10, ..plan }.total(), 102);
        assert_eq!(MemoryPlan { kv: u64::MAX, ..plan }.total(), u64::MAX);
    }
}
