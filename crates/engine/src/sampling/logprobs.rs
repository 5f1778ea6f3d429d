//! Log-probabilities.

use super::{exp, id_of, top_k};
use crate::executor::TokenId;

/// Log-probabilities at one position: natural logarithms of the softmax of the raw logits, before penalties, mask and
/// everything else of the sampling specification.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most probable tokens, best first, ties by lower id.
    pub top: Vec<(TokenId, f32)>,
}

/// Log-probabilities of `chosen` and of the `top` most probable tokens: `(l − m) − ln Σ exp(l − m)` in f64, the sum
/// in ascending id. `logits` must be free of NaN and not all −∞ (as [`sample`](super::sample) has checked); tokens at
/// +∞ share the probability.
pub fn logprobs(logits: &[f32], chosen: TokenId, top: usize) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let below = |logit: f32| if logit == max { 0.0 } else { f64::from(logit) - f64::from(max) };
    let log_sum = logits.iter().map(|&logit| exp(below(logit))).sum::<f64>().ln();
    let of = |id: TokenId| {
        let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        (below(logit) - log_sum) as f32
    };
    let mut ranks = Vec::new();
    if top > 0 {
        top_k(logits, None, top, f64::NEG_INFINITY, &mut ranks);
        ranks.sort_unstable();
    }
    Logprobs { chosen: of(chosen), top: ranks.into_iter().map(id_of).map(|id| (id, of(id))).collect() }
}

#[cfg(test)]
mod tests {
    use super::super::rank;
    use super::*;

    #[test]
    fn are_a_log_softmax() {
        // softmax([1, 2, 3]) by hand: 0.09003057, 0.24472847, 0.66524096.
        let out = logprobs(&[1.0, 3.0, 2.0], 0, 2);
        assert!((out.chosen - 0.090_030_57_f32.ln()).abs() < 1e-6);
        assert_eq!(out.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
        assert!((out.top[0].1 - 0.665_240_96_f32.ln()).abs() < 1e-6);
        assert!((out.top[1].1 - 0.244_728_47_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn infinities_and_ties() {
        let inf = f32::INFINITY;
        let out = logprobs(&[0.0, inf, -inf, inf], 2, 4);
        assert_eq!(out.chosen, -inf);
        let half = 0.5_f32.ln();
        // A token at −∞ is never among the top.
        assert_eq!(out.top, [(1, half), (3, half), (0, -inf)]);
        assert_eq!(rank(-0.0, 1), rank(0.0, 1));
    }
}
