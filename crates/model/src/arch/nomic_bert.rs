//! nomic-bert: an encoder with rope and a gated SiLU.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, LayerSpec};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Halves)?;
    keys.encoder(|layer| LayerSpec { rope: Some(rope.clone()), ..layer })
}
