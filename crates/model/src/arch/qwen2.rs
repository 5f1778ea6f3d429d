//! qwen2: llama with rotary over halves and biases of q, k and v.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, LayerSpec};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Halves)?;
    keys.decoder(keys.rms_norm()?, |_, layer| LayerSpec { rope: Some(rope.clone()), ..layer })
}
