//! Frequencies of rotary embeddings: every scaling method ends here as one frequency per pair of channels.

/// How the frequencies differ from `base^(−2i/n)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scaling {
    /// Not at all.
    None,
    /// Divided by a factor: positions are squeezed into the trained range.
    Linear(f64),
    /// Divided by a factor each (llama-3 scaling, as converters store it in `rope_freqs.weight`).
    Factors(Vec<f32>),
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
                return Err(format!(
                    "rope_freqs.weight of {} values (expected {} positive ones)",
                    factors.len(),
                    dims / 2
                ));
            }
            Ok(plain.zip(factors).map(|(f, factor)| f / f64::from(*factor)).collect())
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
