//! smollm3: llama whose every fourth layer has no rope; files do not say so.

use super::Keys;
use crate::error::Error;
use crate::spec::{DecoderSpec, LayerSpec};
use minfer_ops::RopeStyle;

/// Every so manyth layer has no rope.
const WITHOUT_ROPE: usize = 4;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Adjacent)?;
    keys.decoder(keys.rms_norm()?, |i, layer| LayerSpec {
        rope: (!(i + 1).is_multiple_of(WITHOUT_ROPE)).then(|| rope.clone()),
        ..layer
    })
}
