//! Penalties: logits of tokens that occurred lately, lowered.

use crate::executor::TokenId;
use crate::sampling::Scratch;

/// Strengths of the penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides a positive logit, multiplies another; 1 does nothing. (Keskar et al., "CTRL", 2019, section 4.1, with
    /// llama.cpp's multiplication, without which a negative logit would rise.)
    pub repetition: f32,
    /// Subtracted per occurrence, as in OpenAI's API.
    pub frequency: f32,
    /// Subtracted once, as in OpenAI's API.
    pub presence: f32,
}

impl Penalties {
    /// No penalty.
    pub const NONE: Penalties = Penalties { repetition: 1.0, frequency: 0.0, presence: 0.0 };
}

/// Lowers the logits of the tokens in `window`, in f32: for a token that occurs `c > 0` times, first
/// `l ← l / repetition` if `l > 0`, else `l · repetition`, then `l ← l − (c · frequency + presence)`. What was finite stays
/// finite: a candidate is not lost by a penalty, however small the temperature was that it was divided by. Window tokens
/// outside the vocabulary are passed over.
pub fn penalize(logits: &mut [f32], window: &[TokenId], penalties: &Penalties, scratch: &mut Scratch) {
    let counts = &mut scratch.counts;
    counts.resize(logits.len(), 0);
    for &token in window {
        if let Some(count) = counts.get_mut(token as usize) {
            *count += 1;
        }
    }
    for &token in window {
        let token = token as usize;
        let Some(count) = counts.get_mut(token).map(std::mem::take).filter(|&count| count > 0) else {
            continue;
        };
        let logit = &mut logits[token];
        let finite = logit.is_finite();
        *logit = if *logit > 0.0 { *logit / penalties.repetition } else { *logit * penalties.repetition };
        *logit -= count as f32 * penalties.frequency + penalties.presence;
        if finite {
            *logit = logit.clamp(f32::MIN, f32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalized<const N: usize>(mut logits: [f32; N], window: &[TokenId], penalties: Penalties) -> [f32; N] {
        let mut scratch = Scratch::default();
        penalize(&mut logits, window, &penalties, &mut scratch);
        assert!(scratch.counts.iter().all(|&count| count == 0));
        logits
    }

    #[test]
    fn follow_their_formulas() {
        let penalties = Penalties { repetition: 2.0, frequency: 0.5, presence: 0.25 };
        // 4/2 − (2·0.5 + 0.25); −4·2 − 0.75; 0·2 − 0.75; untouched.
        assert_eq!(penalized([4.0, -4.0, 0.0, 1.0], &[0, 1, 0, 2, 99], penalties), [0.75, -8.75, -0.75, 1.0]);
    }

    #[test]
    fn infinities_stay() {
        let penalties = Penalties { repetition: 1.5, frequency: 1.0, presence: 1.0 };
        let infinities = [f32::NEG_INFINITY, f32::INFINITY];
        assert_eq!(penalized(infinities, &[0, 1], penalties), infinities);
        let [low, high] = [f32::MIN, f32::MAX];
        assert_eq!(penalized([low, high], &[0, 1], penalties), [low, high / 1.5]);
        let raise = Penalties { repetition: 0.5, ..Penalties::NONE };
        assert_eq!(penalized([low, high], &[0, 1], raise), [low / 2.0, high]);
    }
}
