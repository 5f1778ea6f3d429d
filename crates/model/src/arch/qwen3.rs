//! qwen3: rotary over halves, q and k normed per head.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, LayerSpec, QkNorm};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Halves)?;
    keys.decoder(keys.rms_norm()?, |_, layer| LayerSpec {
        rope: Some(rope.clone()),
        qk_norm: QkNorm::PerHead,
        ..layer
    })
}
