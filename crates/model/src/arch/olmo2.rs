//! olmo2: no norms before attention and feed-forward, only on their results; q and k normed over all heads together.
//! OLMo 3 converts to this name too, with sliding layers.

use super::Keys;
use crate::error::Error;
use crate::rope::Scaling;
use crate::spec::{DecoderSpec, LayerSpec, Mask, Norms, QkNorm};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Halves)?;
    let masks = keys.sliding(None, 4)?;
    if masks.iter().any(|mask| *mask != Mask::Full) && keys.rope_scaling()? != Scaling::None {
        return Err(keys.unsupported("a scaled rope beside sliding layers".into()));
    }
    keys.decoder(keys.rms_norm()?, |i, layer| LayerSpec {
        mask: masks[i],
        rope: Some(rope.clone()),
        qk_norm: QkNorm::AllHeads,
        norms: Norms::Post,
        ..layer
    })
}
