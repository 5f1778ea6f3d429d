//! glm4: rotary over adjacent channels of the first half of a head, norms before and after, gate and up in one tensor.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, LayerSpec, Norms};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    if keys.has("rope.dimension_sections") {
        return Err(keys.unsupported("rope in sections".into()));
    }
    let rope = keys.file_rope(RopeStyle::Adjacent)?;
    keys.decoder(keys.rms_norm()?, |_, layer| LayerSpec {
        rope: Some(rope.clone()),
        norms: Norms::PreAndPost,
        ..layer
    })
}
