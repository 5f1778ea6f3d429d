//! command-r: layer norm, attention and feed-forward side by side on the same normed input, logits scaled. Command R+
//! norms q and k with a weight for each head; its files show it by the tensors.

use super::Keys;
use crate::error::Error;
use crate::spec::{Block, DecoderSpec, LayerSpec, QkNorm};
use minfer_ops::RopeStyle;

pub(crate) fn spec(keys: &Keys<'_>) -> Result<DecoderSpec, Error> {
    let rope = keys.file_rope(RopeStyle::Adjacent)?;
    let qk_norm = if keys.has_tensor("blk.0.attn_q_norm.weight") { QkNorm::PerHead } else { QkNorm::None };
    let spec = keys.decoder(keys.layer_norm()?, |_, layer| LayerSpec {
        rope: Some(rope.clone()),
        qk_norm,
        block: Block::Parallel,
        ..layer
    })?;
    Ok(DecoderSpec { logit_scale: keys.scale_or("logit_scale", 1.0)?, ..spec })
}
