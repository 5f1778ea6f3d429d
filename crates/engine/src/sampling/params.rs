//! What a request says about sampling.

use super::{Penalties, SampleSpec};

/// How a request wants its tokens chosen; see [the specification](crate::sampling).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Flattens the distribution above 1, sharpens it below; 0 is greedy. Finite, not negative.
    pub temperature: f32,
    /// Keep the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most probable tokens that together have this probability; 0 to 1, 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this share of the largest probability; 0 to 1, 0 keeps all.
    pub min_p: f32,
    /// Divides (positive) or multiplies (others) the logit of a token in the penalty window; above 0, 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted for every occurrence in the penalty window; −2 to 2.
    pub frequency_penalty: f32,
    /// Subtracted once for a token in the penalty window; −2 to 2.
    pub presence_penalty: f32,
    /// How many of the last tokens, prompt included, the penalties look at.
    pub penalty_window: usize,
    /// Key of the random numbers; `None` takes a new one for every request.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the most probable token, without penalties.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// What chooses the token at `position`, penalties apart.
    pub fn spec(&self, seed: u64, position: usize) -> SampleSpec {
        let Self { temperature, top_k, top_p, min_p, .. } = *self;
        SampleSpec { temperature, top_k, top_p, min_p, seed, position: position as u64 }
    }

    /// The penalties, if they do anything.
    pub fn penalties(&self) -> Option<Penalties> {
        let penalties = Penalties {
            repetition: self.repetition_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
        };
        (penalties != Penalties::NONE && self.penalty_window > 0).then_some(penalties)
    }
}
