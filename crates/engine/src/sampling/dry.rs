//! DRY ("don't repeat yourself"): tokens that would go on with what has been said before, lowered.

use super::Scratch;
use crate::executor::TokenId;

/// How much a token is lowered that would continue a repetition.
///
/// By P. E. Weidmann, in text-generation-webui's pull request 5677: where the last `n` tokens stand earlier in the text too and
/// are followed by a token there, that token's logit is lowered by `multiplier · base^(n − allowed_length)`, once `n`
/// is at least `allowed_length`; the longest repetition counts. Neither goes a repetition past a breaker nor is a breaker lowered.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// 0 does nothing. Finite, not negative.
    pub multiplier: f32,
    /// At least 1, finite.
    pub base: f32,
    /// The longest repetition that costs nothing but the multiplier; at least 1.
    pub allowed_length: usize,
    /// How many of the last tokens, prompt included, are looked at.
    pub window: usize,
    /// Tokens that end a repetition, ascending.
    pub breakers: Vec<TokenId>,
}

impl Default for Dry {
    fn default() -> Self {
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, window: usize::MAX, breakers: Vec::new() }
    }
}

impl Dry {
    /// Lowers logits, in f32, after `tokens`. Powers are products in f64, at most `f32::MAX`; tokens outside the vocabulary are
    /// passed over.
    pub fn apply(&self, logits: &mut [f32], tokens: &[TokenId], scratch: &mut Scratch) {
        let tokens = &tokens[tokens.len().saturating_sub(self.window)..];
        let breaks = |token: &TokenId| self.breakers.binary_search(token).is_ok();
        // What the text ends with, as far as a repetition may go.
        let longest = tokens.iter().rev().take_while(|token| !breaks(token)).count();
        if self.multiplier == 0.0 || longest < self.allowed_length {
            return;
        }
        // From the end on: z[i] is how far the tokens before position len − i agree with those before the end.
        let z = &mut scratch.matches;
        from_the_end(tokens, z);
        let lengths = &mut scratch.counts;
        lengths.resize(logits.len(), 0);
        for (i, &common) in z.iter().enumerate().skip(1) {
            let (next, length) = (tokens[tokens.len() - i], common.min(longest));
            if length >= self.allowed_length
                && !breaks(&next)
                && let Some(known) = lengths.get_mut(next as usize)
            {
                *known = (*known).max(length as u32);
            }
        }
        for &token in tokens {
            let Some(length) = lengths.get_mut(token as usize).map(std::mem::take).filter(|&n| n > 0) else {
                continue;
            };
            let excess = length as usize - self.allowed_length;
            let logit = &mut logits[token as usize];
            if logit.is_finite() {
                // A candidate is not lost by it, however small the temperature was that it was divided by.
                *logit = (*logit - self.penalty(excess)).max(f32::MIN);
            }
        }
    }

    fn penalty(&self, excess: usize) -> f32 {
        let mut penalty = f64::from(self.multiplier);
        for _ in 0..excess {
            penalty *= f64::from(self.base);
            if penalty >= f64::from(f32::MAX) || self.base == 1.0 {
                break;
            }
        }
        penalty.min(f64::from(f32::MAX)) as f32
    }
}

/// The Z function (Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997, section 1.4) of the tokens read backwards.
fn from_the_end(tokens: &[TokenId], z: &mut Vec<usize>) {
    let n = tokens.len();
    let at = |i: usize| tokens[n - 1 - i];
    z.clear();
    z.resize(n, 0);
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut length = if i < right { z[i - left].min(right - i) } else { 0 };
        while i + length < n && at(length) == at(i + length) {
            length += 1;
        }
        z[i] = length;
        if i + length > right {
            (left, right) = (i, i + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, by trying.
    fn naive(dry: &Dry, tokens: &[TokenId], vocab: usize) -> Vec<usize> {
        let tokens = &tokens[tokens.len().saturating_sub(dry.window)..];
        let mut longest = vec![0; vocab];
        for at in 1..tokens.len() {
            let mut n = 0;
            while n < at
                && tokens[at - 1 - n] == tokens[tokens.len() - 1 - n]
                && !dry.breakers.contains(&tokens[at - 1 - n])
            {
                n += 1;
            }
            let next = tokens[at] as usize;
            if !dry.breakers.contains(&tokens[at]) && n >= dry.allowed_length {
                longest[next] = longest[next].max(n);
            }
        }
        longest
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            tokens in proptest::collection::vec(0u32..4, 1..60),
            allowed_length in 1usize..4,
            window in prop_oneof![Just(usize::MAX), 1usize..60],
            breaker in proptest::option::of(0u32..4),
        ) {
            let breakers = breaker.into_iter().collect();
            let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length, window, breakers };
            let mut logits = vec![0.0f32; 4];
            let mut scratch = Scratch::default();
            dry.apply(&mut logits, &tokens, &mut scratch);
            let expected = naive(&dry, &tokens, 4).into_iter().map(|n| match n {
                0 => 0.0,
                n => -(2f32.powi((n - allowed_length) as i32)),
            });
            prop_assert_eq!(logits, expected.collect::<Vec<f32>>());
            prop_assert!(scratch.counts.iter().all(|&count| count == 0));
        }
    }

    #[test]
    fn a_long_repetition_costs_a_finite_amount() {
        let dry = Dry { multiplier: 1.0, base: 4.0, ..Dry::default() };
        let mut logits = [0.0, 0.0];
        dry.apply(&mut logits, &[0; 500], &mut Scratch::default());
        assert_eq!(logits, [-f32::MAX, 0.0]);
        let flat = Dry { multiplier: 0.5, base: 1.0, ..Dry::default() };
        let mut logits = [0.0, 0.0];
        flat.apply(&mut logits, &[1, 0, 1, 0, 1, 0], &mut Scratch::default());
        assert_eq!(logits, [0.0, -0.5]);
    }

    #[test]
    fn tokens_outside_the_vocabulary_are_passed_over() {
        let dry = Dry { multiplier: 1.0, ..Dry::default() };
        let mut logits = [1.0; 3];
        dry.apply(&mut logits, &[9, 9, 9, 9, 9], &mut Scratch::default());
        assert_eq!(logits, [1.0; 3]);
    }
}
