//! gemma3: pre- and post-norms, normed q and k, five sliding-window layers to one full one, each kind with its own
//! rope; GeGLU; the embedding scaled by √d.

use super::Keys;
use crate::error::Error;
use crate::rope::Scaling;
use crate::spec::{DecoderSpec, Ffn, LayerSpec, Mask, QkNorm};
use minfer_ops::{Activation, RopeStyle};

/// Every so manyth layer sees all positions; files do not say so.
const PATTERN: usize = 6;
/// Rope base of the sliding-window layers, unless the file names one.
const LOCAL_BASE: f32 = 10_000.0;
/// The 27B model's number of layers: its queries are scaled by the width of a head of the residual stream instead of
/// the head size.
const LAYERS_27B: usize = 62;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let (layers, d_model) = (keys.layers()?, keys.usize("embedding_length")?);
    let heads = keys.heads(layers, d_model)?;
    let dim = heads.first().map_or(0, |h| h.dim);
    let base = keys.f32_opt("rope.freq_base")?.unwrap_or(1_000_000.0);
    let local_base = keys.f32_opt("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE);
    let dims = keys.usize_or("rope.dimension_count", dim)?;
    let full = keys.rope(RopeStyle::Halves, dims, base, &keys.rope_scaling()?)?;
    let local = keys.rope(RopeStyle::Halves, dims, local_base, &Scaling::None)?;
    let window = keys.usize("attention.sliding_window")?;
    let pattern = keys.usize_or("attention.sliding_window_pattern", PATTERN)?.max(1);
    let width = keys.usize("feed_forward_length")?;
    let layer = |(i, heads): (usize, minfer_ops::Heads)| {
        let sliding = i % pattern < pattern - 1;
        let query = if layers == LAYERS_27B { d_model / heads.q.max(1) } else { dim };
        LayerSpec {
            heads,
            mask: if sliding { Mask::Sliding(window) } else { Mask::Full },
            rope: Some(if sliding { local.clone() } else { full.clone() }),
            qk_norm: QkNorm::PerHead,
            attention_scale: 1.0 / (query as f32).sqrt(),
            attention_cap: None,
            post_norms: true,
            ffn: Ffn { width, activation: Activation::GeluTanh },
            residual_scale: 1.0,
        }
    };
    Ok(DecoderSpec {
        architecture: keys.architecture.to_owned(),
        d_model,
        vocab: keys.vocab()?,
        context: keys.usize("context_length")?,
        norm: keys.rms_norm()?,
        embedding_scale: (d_model as f32).sqrt(),
        layers: heads.into_iter().enumerate().map(layer).collect(),
        logit_scale: 1.0,
        logit_cap: keys.f32_opt("final_logit_softcapping")?.filter(|cap| *cap > 0.0),
    })
}
