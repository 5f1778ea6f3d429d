//! Sampling: the one specification.

/// What a device may sample by itself, in exactly this order: top-k, top-p, min-p, temperature, draw.
/// Ties go to the lower id; the random number is Philox4x32-10 of (`seed`, `position`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSpec {
    /// 0 is greedy: the largest logit, whatever the other fields say.
    pub temperature: f32,
    /// Keep the k largest; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens of at least this share of the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Key of the random numbers.
    pub seed: u64,
    /// Position of the token being drawn: the counter of the random numbers.
    pub position: u64,
}
