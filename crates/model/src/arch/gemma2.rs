//! gemma2: norms before and after, every other layer sliding, soft caps on scores and logits, GeGLU, the embedding scaled
//! by √d.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, Ffn, LayerSpec, Norms};
use minfer_ops::{Activation, RopeStyle};

/// Every so manyth layer sees all positions, unless the file has a pattern.
const PATTERN: usize = 2;
/// Window, unless the file names one.
const WINDOW: usize = 4096;
/// Cap on scores, unless the file names one.
const ATTENTION_CAP: f32 = 50.0;
/// Cap on logits, unless the file names one.
const LOGIT_CAP: f32 = 30.0;
/// Layers of the 27B model.
const LAYERS_27B: usize = 46;

/// 1/√(head size); the 27B models take the residual stream's share of a head instead, which files do not say.
pub(crate) fn attention_scale(layer: &LayerSpec, is_27b: bool, d_model: usize) -> f32 {
    let width = if is_27b { d_model / layer.heads.q.max(1) } else { layer.heads.dim };
    1.0 / (width as f32).sqrt()
}

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let d_model = keys.usize("embedding_length")?;
    let rope = keys.file_rope(RopeStyle::Halves)?;
    let masks = keys.sliding(Some(WINDOW), PATTERN)?;
    let cap = keys.f32_opt("attn_logit_softcapping")?.unwrap_or(ATTENTION_CAP);
    let spec = keys.decoder(keys.rms_norm()?, |i, layer| LayerSpec {
        mask: masks[i],
        rope: Some(rope.clone()),
        attention_scale: attention_scale(&layer, masks.len() == LAYERS_27B, d_model),
        attention_cap: (cap > 0.0).then_some(cap),
        norms: Norms::PreAndPost,
        ffn: Ffn { activation: Activation::GeluTanh, ..layer.ffn },
        ..layer
    })?;
    let cap = keys.f32_opt("final_logit_softcapping")?.unwrap_or(LOGIT_CAP);
    Ok(DecoderSpec {
        embedding_scale: (d_model as f32).sqrt(),
        logit_cap: (cap > 0.0).then_some(cap),
        ..spec
    })
}
