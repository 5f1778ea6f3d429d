//! starcoder2: layer norm, biases everywhere, GELU without a gate.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, Ffn, LayerSpec};
use minfer_ops::{Activation, RopeStyle};

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Halves)?;
    keys.decoder(keys.layer_norm()?, |_, layer| LayerSpec {
        rope: Some(rope.clone()),
        ffn: Ffn { activation: Activation::GeluTanh, gated: false, ..layer.ffn },
        ..layer
    })
}
