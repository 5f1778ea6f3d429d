//! phi3: rotary over halves, with longrope's two sets of factors where the file has them; q, k, v in one tensor, gate
//! and up in another.
//!
//! Files carry a sliding window that the models' own code applies only in some versions and llama.cpp ignores; attention
//! is full, as in llama.cpp.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, LayerSpec};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Halves)?;
    keys.decoder(keys.rms_norm()?, |_, layer| LayerSpec { rope: Some(rope.clone()), ..layer })
}
