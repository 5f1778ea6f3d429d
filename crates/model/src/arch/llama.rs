//! llama: Llama 1 to 3, SmolLM, Mistral and whatever else converts to this name. Rotary over adjacent channels, SwiGLU.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, LayerSpec};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let experts = keys.usize_or("expert_count", 0)?;
    if experts > 0 {
        return Err(keys.unsupported(format!("{experts} experts")));
    }
    let rope = keys.file_rope(RopeStyle::Adjacent)?;
    let scale = keys.scale_or("attention.scale", 0.0)?;
    keys.decoder(keys.rms_norm()?, |_, layer| LayerSpec {
        rope: Some(rope.clone()),
        attention_scale: if scale == 0.0 { layer.attention_scale } else { scale },
        ..layer
    })
}
