//! bert: an encoder with learned positions, biases everywhere, and GELU without a gate.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, Ffn, Inputs, LayerSpec};
use minfer_ops::Activation;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let spec = keys.encoder(|layer| LayerSpec {
        ffn: Ffn { activation: Activation::Gelu, gated: false, ..layer.ffn },
        ..layer
    })?;
    Ok(DecoderSpec { inputs: Inputs { positions: true, ..spec.inputs }, ..spec })
}
