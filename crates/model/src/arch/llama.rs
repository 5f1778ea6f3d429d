//! llama: Llama 1 to 3, SmolLM, Mistral and whatever else converts to this name. Pre-norm, rotary over adjacent
//! channels, SwiGLU.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, Ffn, LayerSpec, Mask, QkNorm};
use minfer_ops::{Activation, RopeStyle};

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let (layers, d_model) = (keys.layers()?, keys.usize("embedding_length")?);
    let experts = keys.usize_or("expert_count", 0)?;
    if experts > 0 {
        return Err(keys.unsupported(format!("{experts} experts")));
    }
    let heads = keys.heads(layers, d_model)?;
    let dim = heads.first().map_or(0, |h| h.dim);
    let base = keys.f32_opt("rope.freq_base")?.unwrap_or(10_000.0);
    let dims = keys.usize_or("rope.dimension_count", dim)?;
    let rope = keys.rope(RopeStyle::Adjacent, dims, base, &keys.rope_scaling()?)?;
    let widths = keys.per_layer("feed_forward_length", layers)?;
    let widths = widths.ok_or_else(|| keys.bad("feed_forward_length", "is missing".into()))?;
    let scale = keys.f32_opt("attention.scale")?.unwrap_or(1.0 / (dim as f32).sqrt());
    Ok(DecoderSpec {
        architecture: keys.architecture.to_owned(),
        d_model,
        vocab: keys.vocab()?,
        context: keys.usize("context_length")?,
        norm: keys.rms_norm()?,
        embedding_scale: 1.0,
        layers: heads
            .into_iter()
            .zip(widths)
            .map(|(heads, width)| LayerSpec {
                heads,
                mask: Mask::Full,
                rope: Some(rope.clone()),
                qk_norm: QkNorm::None,
                attention_scale: scale,
                attention_cap: None,
                post_norms: false,
                ffn: Ffn { width, activation: Activation::Silu },
                residual_scale: 1.0,
            })
            .collect(),
        logit_scale: 1.0,
        logit_cap: None,
    })
}
