//! gemma3: gemma2 without soft caps, with q and k normed, five sliding layers to one full one, each kind with a rope of its
//! own.

use super::Keys;
use crate::error::Error;
use crate::rope::Scaling;
use crate::spec::{DecoderSpec, Ffn, LayerSpec, Mask, Norms, QkNorm};
use minfer_ops::{Activation, RopeStyle};

/// Every so manyth layer sees all positions, unless the file has a pattern.
const PATTERN: usize = 6;
/// Rope base of the sliding layers, unless the file names one.
const LOCAL_BASE: f32 = 10_000.0;
/// Layers of the 27B model.
const LAYERS_27B: usize = 62;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let d_model = keys.usize("embedding_length")?;
    let full = keys.file_rope(RopeStyle::Halves)?;
    let local_base = keys.f32_opt("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE);
    let local = keys.rope(RopeStyle::Halves, local_base, &Scaling::None)?;
    let masks = keys.sliding(None, PATTERN)?;
    let spec = keys.decoder(keys.rms_norm()?, |i, layer| LayerSpec {
        mask: masks[i],
        rope: Some(if masks[i] == Mask::Full { full.clone() } else { local.clone() }),
        qk_norm: QkNorm::PerHead,
        attention_scale: super::gemma2::attention_scale(&layer, masks.len() == LAYERS_27B, d_model),
        norms: Norms::PreAndPost,
        ffn: Ffn { activation: Activation::GeluTanh, ..layer.ffn },
        ..layer
    })?;
    Ok(DecoderSpec {
        embedding_scale: (d_model as f32).sqrt(),
        logit_cap: keys.f32_opt("final_logit_softcapping")?.filter(|cap| *cap > 0.0),
        ..spec
    })
}
