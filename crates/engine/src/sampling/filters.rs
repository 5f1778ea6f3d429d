//! The steps of the chain that only the host has: top-nσ, exclusion of top choices, dynamic temperature.

use super::{exp, id_of, weight};

/// The least logit that top-nσ keeps, `m − n·σ`: σ is the population's standard deviation of the candidates' logits, mean and
/// variance summed in f64 in their order. Where `m` is infinite only its equals are kept.
pub(super) fn least_logit(candidates: impl Iterator<Item = f32> + Clone, max: f32, n_sigma: f32) -> f64 {
    let max = f64::from(max);
    if max.is_infinite() {
        return max;
    }
    let count = candidates.clone().count() as f64;
    let mean = candidates.clone().map(f64::from).sum::<f64>() / count;
    let variance = candidates.map(|l| (f64::from(l) - mean) * (f64::from(l) - mean)).sum::<f64>() / count;
    max - f64::from(n_sigma) * variance.sqrt()
}

/// Drops all but the least of those candidates whose weight `w(1)` is at least `ceil(threshold · total)`, if there are two or more.
pub(super) fn exclude_top_choices(ranks: &mut Vec<u64>, threshold: f32, weight: impl Fn(u64) -> u64) {
    let total: u64 = ranks.iter().map(|&rank| weight(rank)).sum();
    let enough = (f64::from(threshold) * total as f64).ceil() as u64;
    let top = |rank: u64| weight(rank) >= enough;
    // The bits of a rank ascend as candidates rank lower.
    let Some(least) = ranks.iter().copied().filter(|&rank| top(rank)).max() else { return };
    ranks.retain(|&rank| rank >= least || !top(rank));
}

/// The temperature between `temperature − range` (at least 0) and `temperature + range` that the entropy of the candidates asks for:
/// its share of the entropy of as many equal ones, to the power of `exponent`. `ranks` ascend in id.
pub(super) fn dynamic_temperature(
    ranks: &[u64],
    logits: &[f32],
    max: f32,
    (temperature, range, exponent): (f32, f32, f32),
) -> f32 {
    let (low, high) = (f64::from(temperature - range).max(0.0), f64::from(temperature) + f64::from(range));
    let weights =
        || ranks.iter().map(|&rank| weight(logits[id_of(rank) as usize], max, 1.0)).filter(|w| *w > 0);
    let total: u64 = weights().sum();
    // −Σ p·ln p with p = w / total.
    let entropy = ln(total as f64) - weights().map(|w| w as f64 * ln(w as f64)).sum::<f64>() / total as f64;
    let most = ln(ranks.len() as f64);
    let share = if most > 0.0 { (entropy / most).clamp(0.0, 1.0) } else { 1.0 };
    let share = match exponent {
        1.0 => share,
        0.0 => 1.0,
        _ if share == 0.0 => 0.0,
        exponent => exp(f64::from(exponent) * ln(share)),
    };
    (low + (high - low) * share) as f32
}

/// `ln(x)` of a normal number above 0, within some units in the last place. `x = m·2^n` with `m` from √½ to √2, and
/// `ln m = 2·artanh((m − 1) / (m + 1))` by its series, whose remainder after the 23rd power is below 2^-60.
pub(super) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut n = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        (m, n) = (m / 2.0, n + 1);
    }
    let s = (m - 1.0) / (m + 1.0);
    let series = (0..12).rev().fold(0.0, |sum, i| sum * (s * s) + 1.0 / f64::from(2 * i + 1));
    n as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FREE, histogram};
    use super::super::{SampleSpec, Scratch, sample};
    use super::*;
    use proptest::prelude::*;

    fn kept(p: &[f32], spec: SampleSpec) -> Vec<bool> {
        let logits: Vec<f32> = p.iter().map(|p| p.ln()).collect();
        histogram(&logits, spec, 3000).iter().map(|&count| count > 0).collect()
    }

    /// Distributions and results of `test_top_n_sigma` in llama.cpp's `tests/test-sampling.cpp`.
    #[test]
    fn top_n_sigma_keeps_what_llama_cpp_keeps() {
        let p = [0.1, 0.2, 0.3, 0.4];
        assert_eq!(kept(&p, SampleSpec { top_n_sigma: 1.0, ..FREE }), [false, false, true, true]);
        assert_eq!(kept(&p, SampleSpec { top_n_sigma: 0.0, ..FREE }), [true; 4]);
        assert_eq!(kept(&p, SampleSpec { top_n_sigma: 3.0, ..FREE }), [true; 4]);
        let infinite = [1.0, f32::INFINITY, 3.0];
        assert_eq!(histogram(&infinite, SampleSpec { top_n_sigma: 5.0, ..FREE }, 50), [0, 50, 0]);
    }

    /// Distributions and results of `test_xtc` in llama.cpp's `tests/test-sampling.cpp`.
    #[test]
    fn top_choices_are_excluded_as_llama_cpp_does() {
        let p = [0.4, 0.3, 0.2, 0.1];
        let of = |xtc_threshold| kept(&p, SampleSpec { xtc_probability: 1.0, xtc_threshold, ..FREE });
        assert_eq!(of(0.09), [false, false, false, true]);
        assert_eq!(of(0.19), [false, false, true, true]);
        assert_eq!(of(0.29), [false, true, true, true]);
        assert_eq!(of(0.39), [true; 4]);
        assert_eq!(of(0.51), [true; 4]);
    }

    /// Its own random number says whether, so the share of draws without the first is the probability.
    #[test]
    fn exclusion_happens_as_often_as_asked() {
        let spec = SampleSpec { xtc_probability: 0.25, xtc_threshold: 0.1, ..FREE };
        let n = 40_000;
        let first = histogram(&[5.0, 3.0, -2.0], spec, n)[0] as f64 / n as f64;
        let p = 5f64.exp() / (5f64.exp() + 3f64.exp() + (-2f64).exp());
        assert!((first - 0.75 * p).abs() < 0.01, "{first} {}", 0.75 * p);
    }

    #[test]
    fn the_temperature_follows_the_entropy() {
        let of = |logits: &[f32], range, exponent| {
            let ranks: Vec<u64> = (0..logits.len() as u64).collect();
            let max = logits.iter().copied().fold(f32::MIN, f32::max);
            dynamic_temperature(&ranks, logits, max, (1.0, range, exponent))
        };
        assert_eq!(of(&[2.0; 7], 0.5, 1.0), 1.5);
        assert_eq!(of(&[3.0], 0.5, 1.0), 1.5);
        assert!(of(&[90.0, 0.0, 0.0], 0.5, 1.0) < 0.5 + 1e-6);
        // p = 0.75, 0.25: 0.8113 bits of one.
        let half = of(&[3f32.ln(), 0.0], 1.0, 1.0);
        assert!((half - 2.0 * 0.811_278).abs() < 1e-5, "{half}");
        let squared = of(&[3f32.ln(), 0.0], 1.0, 2.0);
        assert!((squared - 2.0 * 0.811_278 * 0.811_278).abs() < 1e-5, "{squared}");
        // All the way down is greedy.
        let spec = SampleSpec { dynatemp_range: 5.0, dynatemp_exponent: 60.0, ..FREE };
        assert_eq!(histogram(&[1.0, 2.0, 0.0], spec, 200), [0, 200, 0]);
    }

    #[test]
    fn the_order_is_that_of_the_specification() {
        // Top-nσ looks at all candidates, before top-k leaves two.
        let spec = SampleSpec { top_n_sigma: 0.5, top_k: 2, ..FREE };
        assert_eq!(histogram(&[3.0, 2.0, -5.0, -5.0, -5.0], spec, 400).iter().filter(|c| **c > 0).count(), 2);
        // Min-p has dropped the last before exclusion asks which of the top choices is the least.
        let spec = SampleSpec { min_p: 0.5, xtc_probability: 1.0, xtc_threshold: 0.1, ..FREE };
        assert_eq!(kept(&[0.45, 0.35, 0.2], spec), [false, true, false]);
        // Greedy is greedy.
        let spec = SampleSpec { temperature: 0.0, xtc_probability: 1.0, xtc_threshold: 0.0, ..FREE };
        assert_eq!(sample(&[1.0, 2.0], &spec, None, &mut Scratch::default()), Ok(1));
    }

    proptest! {
        #[test]
        fn ln_is_right(x in 1e-300f64..1e300) {
            prop_assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(0.1), "{} {}", ln(x), x.ln());
        }
    }
}
