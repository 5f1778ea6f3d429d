//! What a device needs to choose a token by itself.

/// How a token is drawn from logits, in the terms of the sampler's specification (`minfer_engine::sampling`), without
/// what devices are never asked for. The fields are in range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 is the largest logit, whatever the other fields say.
    pub temperature: f32,
    /// Keep the k highest ranking tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the shortest run of highest ranking tokens with this share of the weight; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens of at least this weight at temperature 1: min-p.
    pub least_weight: u64,
    /// The 64 random bits.
    pub random: u64,
}
