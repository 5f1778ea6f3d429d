//! What happens to logits before a token is chosen from them.

use super::{Dry, Penalties, Sampler, Scratch, penalize};
use crate::executor::TokenId;

/// Adjustments of the logits: first the biases, in order, then the penalties and what repeats itself, where [`Samplers`](super::Samplers)
/// has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adjust<'a> {
    /// Added to the logits of tokens; −∞ forbids one.
    pub bias: &'a [(TokenId, f32)],
    /// Penalties, and the tokens that occurred lately.
    pub penalties: Option<(Penalties, &'a [TokenId])>,
    /// What repetitions cost, and the tokens so far.
    pub dry: Option<(&'a Dry, &'a [TokenId])>,
}

impl Adjust<'_> {
    /// Whether it leaves all logits as they are.
    pub fn is_nothing(&self) -> bool {
        self.bias.is_empty() && self.penalties.is_none() && self.dry.is_none()
    }

    /// Applies what belongs to a step. Biases belong to none.
    pub(super) fn step(&self, step: Sampler, logits: &mut [f32], scratch: &mut Scratch) {
        match (step, &self.penalties, &self.dry) {
            (Sampler::Penalties, Some((penalties, window)), _) => {
                penalize(logits, window, penalties, scratch)
            }
            (Sampler::Dry, _, Some((dry, tokens))) => dry.apply(logits, tokens, scratch),
            _ => {}
        }
    }

    /// Whether a step does anything.
    pub(super) fn has(&self, step: Sampler) -> bool {
        step == Sampler::Penalties && self.penalties.is_some() || step == Sampler::Dry && self.dry.is_some()
    }
}

/// Adds biases to logits, in f32 and in order; tokens outside the vocabulary are passed over. A bias of −∞ makes any
/// logit −∞ but NaN, which stays what it is.
pub fn bias(logits: &mut [f32], biases: &[(TokenId, f32)]) {
    for &(token, bias) in biases {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        *logit = if bias == f32::NEG_INFINITY && !logit.is_nan() { bias } else { *logit + bias };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SampleError, SampleSpec, sample_adjusted};
    use super::*;

    const INF: f32 = f32::INFINITY;

    #[test]
    fn biases_are_added_in_order() {
        let mut logits = [1.0, 2.0, INF, f32::NAN, 5.0];
        bias(&mut logits, &[(0, 0.5), (0, 0.25), (1, -INF), (1, 100.0), (2, -INF), (3, -INF), (99, 1.0)]);
        assert_eq!((logits[0], logits[1], logits[2], logits[4]), (1.75, -INF, -INF, 5.0));
        assert!(logits[3].is_nan());
    }

    #[test]
    fn biases_come_before_penalties_and_both_before_the_choice() {
        let greedy = |bias: &[(TokenId, f32)], window: &[TokenId]| {
            let penalties = Penalties { repetition: 2.0, ..Penalties::NONE };
            let penalties = (!window.is_empty()).then_some((penalties, window));
            let adjust = Adjust { bias, penalties, dry: None };
            let drawn =
                sample_adjusted(&[2.0, 3.0], &adjust, &SampleSpec::GREEDY, None, &mut Scratch::default());
            drawn.map(|drawn| drawn.token)
        };
        assert_eq!(greedy(&[], &[]), Ok(1));
        assert_eq!(greedy(&[(0, 1.5)], &[]), Ok(0));
        assert_eq!(greedy(&[(1, -INF)], &[]), Ok(0));
        assert_eq!(greedy(&[(0, -INF), (1, -INF)], &[]), Err(SampleError::NoCandidate));
        // (3 + 4) / 2 = 3.5 is above 2; 3 / 2 + 4 would be too, but (3 + 0.9) / 2 is not, and 3 / 2 + 0.9 would be.
        assert_eq!(greedy(&[(1, 4.0)], &[1]), Ok(1));
        assert_eq!(greedy(&[(1, 0.9)], &[1]), Ok(0));
    }
}
