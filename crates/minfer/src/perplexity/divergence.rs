//! KL divergence of a model against saved logits, with the figures that llama.cpp prints.

use super::{Error, Mean, Prediction};

/// Base probabilities below e to this are left out of the sum, as the saved form cannot tell them from each other.
const LEAST_LOG_PROB: f32 = -16.0;

/// How much higher than any other the log-probability of the base's most probable token is where the choice is clear.
const CLEAR_LEAD: f32 = 0.5;

/// Figures of a comparison: P is the saved base, Q the model.
#[derive(Clone, Debug, Default)]
pub struct Divergence {
    /// Negative log-likelihood of Q.
    pub nll: Mean,
    /// Negative log-likelihood of P.
    pub nll_base: Mean,
    /// Difference of the two: `ln(PPL(Q) / PPL(P))`.
    pub nll_difference: Mean,
    /// `KL(P ‖ Q)` of each prediction.
    pub kld: Mean,
    /// Square of the difference of the probabilities of the token that follows.
    pub p_difference_squared: Mean,
    /// Predictions whose most probable token is the same.
    pub same_top: u64,
    /// Predictions of which the base's most probable token leads by at least 0.5 in log-probability.
    pub clear: u64,
    /// Those of them whose most probable token is the same.
    pub same_clear: u64,
    values: Vec<f64>,
}

/// Order statistics of the divergences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    /// Largest.
    pub max: f64,
    /// 99.9 %.
    pub p999: f64,
    /// 99 %.
    pub p99: f64,
    /// 50 %.
    pub median: f64,
}

impl Divergence {
    /// Adds a prediction and the base's log-probabilities of it.
    ///
    /// # Errors
    ///
    /// [`Error::NotFinite`].
    pub fn add(&mut self, prediction: &Prediction<'_>, base: &[f32]) -> Result<(), Error> {
        let log_sum = prediction.log_sum_exp();
        let nll = prediction.nll()?;
        let nll_base = -f64::from(base.get(prediction.next as usize).copied().unwrap_or(f32::NAN));
        let mut kld = 0.0;
        let (mut top, mut top_base) = (0, 0);
        let mut second_base = f32::NEG_INFINITY;
        for (i, (logit, log_p)) in prediction.logits.iter().zip(base).enumerate() {
            if *logit > prediction.logits[top] {
                top = i;
            }
            if *log_p > base[top_base] {
                second_base = base[top_base];
                top_base = i;
            } else if i != top_base {
                second_base = second_base.max(*log_p);
            }
            if *log_p > LEAST_LOG_PROB {
                let log_p = f64::from(*log_p);
                kld += log_p.exp() * (log_p - (f64::from(*logit) - log_sum));
            }
        }
        if !(kld.is_finite() && nll_base.is_finite()) {
            let Prediction { window, position, .. } = *prediction;
            return Err(Error::NotFinite { window, position, value: kld + nll_base });
        }
        self.nll.add(nll);
        self.nll_base.add(nll_base);
        self.nll_difference.add(nll - nll_base);
        self.kld.add(kld);
        self.p_difference_squared.add(((-nll).exp() - (-nll_base).exp()).powi(2));
        self.same_top += u64::from(top == top_base);
        let clear = base[top_base] - second_base >= CLEAR_LEAD;
        self.clear += u64::from(clear);
        self.same_clear += u64::from(clear && top == top_base);
        self.values.push(kld);
        Ok(())
    }

    /// Share of predictions with the same most probable token, 0 to 1.
    pub fn same_top_share(&self) -> f64 {
        self.same_top as f64 / self.kld.count() as f64
    }

    /// Standard error of that share, of a binomial distribution.
    pub fn same_top_error(&self) -> f64 {
        let share = self.same_top_share();
        (share * (1.0 - share) / (self.kld.count() as f64 - 1.0)).sqrt()
    }

    /// `PPL(Q) / PPL(P)`.
    pub fn perplexity_ratio(&self) -> f64 {
        self.nll_difference.mean().exp()
    }

    /// Its standard error, to first order that of its logarithm times itself.
    pub fn perplexity_ratio_error(&self) -> f64 {
        self.perplexity_ratio() * self.nll_difference.standard_error()
    }

    /// Root mean square of the difference of probabilities, 0 to 1.
    pub fn rms_p_difference(&self) -> f64 {
        self.p_difference_squared.mean().sqrt()
    }

    /// Order statistics of the divergences; `None` of nothing.
    pub fn quantiles(&self) -> Option<Quantiles> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let max = *sorted.last()?;
        let at = |fraction: f64| {
            let place = fraction * (sorted.len() - 1) as f64;
            let (below, part) = (place.floor() as usize, place.fract());
            let above = (below + 1).min(sorted.len() - 1);
            sorted[below] * (1.0 - part) + sorted[above] * part
        };
        Some(Quantiles { max, p999: at(0.999), p99: at(0.99), median: at(0.5) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_known_distributions() {
        let mut d = Divergence::default();
        let base = [0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln()];
        let same = Prediction { window: 0, position: 0, logits: &base, next: 1 };
        d.add(&same, &base).unwrap();
        assert!(d.kld.mean().abs() < 1e-7 && d.same_top == 1 && d.rms_p_difference() < 1e-7);
        // Q uniform over three: KL = Σ p ln(3p).
        let uniform = Prediction { window: 0, position: 1, logits: &[0.0; 3], next: 0 };
        d.add(&uniform, &base).unwrap();
        let kl = 0.5 * 1.5f64.ln() + 0.5 * 0.75f64.ln();
        let q = d.quantiles().unwrap();
        assert!((q.max - kl).abs() < 1e-6 && (q.median - kl / 2.0).abs() < 1e-6, "{q:?}");
        assert!((d.perplexity_ratio() - 1.5f64.sqrt()).abs() < 1e-6 && d.same_top_error() == 0.0);
        assert!((d.nll_difference.mean() - (3f64.ln() - 2f64.ln()) / 2.0).abs() < 1e-6);
        assert_eq!(d.same_top_share(), 1.0);
    }

    #[test]
    fn a_clear_choice_is_one_with_a_lead() {
        let mut d = Divergence::default();
        // The lead is the same wherever the two are; a tie has none.
        for base in [[-0.1f32, -0.6, -3.0], [-3.0, -0.6, -0.1], [-0.6, -0.1, -3.0], [-3.0, -0.1, -0.6]] {
            d.add(&Prediction { window: 0, position: 0, logits: &base, next: 0 }, &base).unwrap();
        }
        assert_eq!((d.clear, d.same_clear), (4, 4));
        let other = Prediction { window: 0, position: 4, logits: &[0.0, 1.0, 0.0], next: 0 };
        for base in [[-0.1f32, -0.5, -3.0], [-0.7, -0.7, -3.0], [-3.0, -0.7, -0.7]] {
            d.add(&other, &base).unwrap();
        }
        assert_eq!((d.clear, d.same_clear), (4, 4));
        d.add(&other, &[-0.1, -2.0, -3.0]).unwrap();
        assert_eq!((d.clear, d.same_clear, d.kld.count()), (5, 4, 8));
    }

    #[test]
    fn a_nan_is_an_error() {
        let mut d = Divergence::default();
        let p = Prediction { window: 1, position: 2, logits: &[0.0, 0.0], next: 0 };
        assert!(matches!(d.add(&p, &[f32::NAN, 0.0]), Err(Error::NotFinite { window: 1, position: 2, .. })));
    }
}
