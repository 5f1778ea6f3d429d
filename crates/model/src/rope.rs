//! Frequencies of rotary embeddings: every scaling method ends here as one frequency per pair of channels.

/// How the frequencies differ from `base^(−2i/n)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scaling {
    /// Not at all.
    None,
    /// Divided by a factor: positions are squeezed into the trained range.
    Linear(f64),
    /// Divided by a factor each: llama-3 and longrope, as converters store them.
    Factors(Vec<f32>),
    /// Fast pairs as they are, slow ones squeezed, a ramp between.
    Yarn(Yarn),
}

/// YaRN (Peng et al., arXiv 2309.00071, section 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Yarn {
    /// How much longer the context is than the original one.
    pub(crate) factor: f64,
    /// Original context in tokens.
    pub(crate) original: f64,
    /// Pairs that turn at least so often within the original context stay as they are.
    pub(crate) beta_fast: f64,
    /// Pairs that turn at most so often are squeezed.
    pub(crate) beta_slow: f64,
    /// Factor on cos and sin, if not the paper's `1 + 0.1 ln factor`.
    pub(crate) magnitude: Option<f32>,
}

impl Scaling {
    /// Factor on cos and sin.
    pub(crate) fn magnitude(&self) -> f32 {
        match self {
            Scaling::Yarn(yarn) => yarn.magnitude.unwrap_or((1.0 + 0.1 * yarn.factor.ln()) as f32),
            Scaling::None | Scaling::Linear(_) | Scaling::Factors(_) => 1.0,
        }
    }
}

impl Yarn {
    /// Share of the unscaled frequency of pair `i` of `n` rotated channels.
    fn share(&self, i: usize, n: usize, base: f64) -> f64 {
        // The pair that turns `turns` times within the original context.
        let pair = |turns: f64| {
            n as f64 * (self.original / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
        };
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(n as f64 - 1.0);
        1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }
}

/// `n/2` frequencies for `n` channels: `base^(−2i/n)`, scaled.
///
/// # Errors
/// Factors of another number than pairs, or that are not positive.
pub(crate) fn inv_freq(dims: usize, base: f64, scaling: &Scaling) -> Result<Vec<f64>, String> {
    let plain = (0..dims / 2).map(|i| base.powf(-2.0 * i as f64 / dims as f64));
    match scaling {
        Scaling::None => Ok(plain.collect()),
        Scaling::Linear(factor) => Ok(plain.map(|f| f / factor).collect()),
        Scaling::Factors(factors) => {
            if factors.len() != dims / 2 || factors.iter().any(|f| !(*f > 0.0 && f.is_finite())) {
                let (found, expected) = (factors.len(), dims / 2);
                return Err(format!("{found} rope factors (expected {expected} positive ones)"));
            }
            Ok(plain.zip(factors).map(|(f, factor)| f / f64::from(*factor)).collect())
        }
        Scaling::Yarn(yarn) => {
            let scaled = |(i, f): (usize, f64)| {
                let share = yarn.share(i, dims, base);
                f * (share + (1.0 - share) / yarn.factor)
            };
            Ok(plain.enumerate().map(scaled).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies() {
        assert_eq!(inv_freq(4, 10_000.0, &Scaling::None), Ok(vec![1.0, 0.01]));
        assert_eq!(inv_freq(4, 10_000.0, &Scaling::Linear(8.0)), Ok(vec![0.125, 0.00125]));
        assert_eq!(inv_freq(4, 10_000.0, &Scaling::Factors(vec![1.0, 2.0])), Ok(vec![1.0, 0.005]));
        assert!(inv_freq(4, 10_000.0, &Scaling::Factors(vec![1.0])).is_err());
        assert!(inv_freq(4, 10_000.0, &Scaling::Factors(vec![1.0, f32::NAN])).is_err());
    }
}
