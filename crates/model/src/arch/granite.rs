//! granite: llama with scales on the embedding, attention, what is added to the residual stream, and the logits.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, LayerSpec};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Adjacent)?;
    let scale = keys.scale_or("attention.scale", 0.0)?;
    let residual_scale = keys.scale_or("residual_scale", 1.0)?;
    let spec = keys.decoder(keys.rms_norm()?, |_, layer| LayerSpec {
        rope: Some(rope.clone()),
        attention_scale: if scale == 0.0 { layer.attention_scale } else { scale },
        residual_scale,
        ..layer
    })?;
    Ok(DecoderSpec {
        embedding_scale: keys.scale_or("embedding_scale", 1.0)?,
        logit_scale: 1.0 / keys.scale_or("logit_scale", 1.0)?,
        ..spec
    })
}
