//! Mirostat: tokens whose surprise has a given mean.

use super::exp;
use super::filters::ln;

/// Mirostat 2 (Basu, Ramachandran, Keskar, Varshney, "Mirostat: a neural text decoding algorithm that directly controls
/// perplexity", ICLR 2021, in the second version of their repository, which needs no estimate of Zipf's exponent): only
/// tokens with a surprise `−log2 p` of at most `μ` bits are candidates. `μ` is `2·tau` at first; after a token whose surprise among
/// the candidates was `s` it is `μ − eta·(s − tau)`. The mean of `s` goes to `tau` as long as the model can be so surprising.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// 0 is none, 2 is the one above; there is no other.
    pub version: u32,
    /// The mean surprise that is sought, in bits. Finite, not negative.
    pub tau: f32,
    /// How fast `μ` follows. Finite, not negative.
    pub eta: f32,
}

impl Default for Mirostat {
    /// None, and llama.cpp's numbers.
    fn default() -> Mirostat {
        Mirostat { version: 0, tau: 5.0, eta: 0.1 }
    }
}

impl Mirostat {
    /// `μ` of the first token; none without mirostat.
    pub fn first(&self) -> Option<f64> {
        (self.version != 0).then(|| 2.0 * f64::from(self.tau))
    }

    /// The `μ` after `mu`, given the surprise of the token that was drawn with it, in bits.
    pub fn next(&self, mu: f64, surprise: f64) -> f64 {
        mu - f64::from(self.eta) * (surprise - f64::from(self.tau))
    }
}

/// Makes the weights 0 of all with more than `mu` bits of surprise: those below `ceil(2^−mu · total)`, where a `mu` below 0 is
/// 0. The one at `best` stays.
pub(super) fn exclude(weights: &mut [u64], mu: f64, best: Option<usize>) {
    let total: u64 = weights.iter().sum();
    let least = (exp(-mu.max(0.0) * std::f64::consts::LN_2) * total as f64).ceil() as u64;
    let excluded =
        weights.iter_mut().enumerate().filter(|(at, weight)| **weight < least && Some(*at) != best);
    excluded.for_each(|(_, weight)| *weight = 0);
}

/// `−log2(weight / total)`; both are above 0.
pub(super) fn surprise(weight: u64, total: u64) -> f64 {
    (ln(total as f64) - ln(weight as f64)) / std::f64::consts::LN_2
}
