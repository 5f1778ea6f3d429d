//! [`sample`] against the specification written down naively: sort everything, then filter.

use proptest::prelude::*;

use super::*;

mod mirostat;
mod order;

/// The specification without adjustments.
fn naive(logits: &[f32], spec: &SampleSpec, mask: Option<&[u32]>) -> Option<TokenId> {
    naive_adjusted(logits, &Adjust::default(), spec, mask)
}

/// The specification, step by step, with all candidates sorted at each.
fn naive_adjusted(
    logits: &[f32],
    adjust: &Adjust<'_>,
    spec: &SampleSpec,
    mask: Option<&[u32]>,
) -> Option<TokenId> {
    let mut logits = logits.to_vec();
    bias(&mut logits, adjust.bias);
    let steps = spec.samplers.to_string();
    let greedy = spec.temperature == 0.0 && steps.contains("temperature");
    let mut tokens: Vec<usize> =
        (0..logits.len()).filter(|&id| mask.is_none_or(|m| m[id / 32] & (1 << (id % 32)) != 0)).collect();
    let mut t = 1.0f32;
    for step in steps.split(';') {
        match (step, adjust) {
            ("penalties", Adjust { penalties: Some((penalties, window)), .. }) => {
                divide(&mut logits, &mut t);
                penalize(&mut logits, window, penalties, &mut Scratch::default());
            }
            ("dry", Adjust { dry: Some((dry, seen)), .. }) => {
                divide(&mut logits, &mut t);
                dry.apply(&mut logits, seen, &mut Scratch::default());
            }
            _ => {}
        }
        tokens.retain(|&id| logits[id] > f32::NEG_INFINITY);
        tokens.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
        let &first = tokens.first()?;
        match step {
            "temperature" if !greedy => t = naive_temperature(&logits, spec, &tokens),
            _ if greedy || spec.mirostat.is_some() => {}
            _ => naive_filter(step, &logits, spec, t, &mut tokens),
        }
        // Nothing drops the last one.
        assert!(!tokens.is_empty(), "{step} {first}");
    }
    let &first = tokens.first()?;
    if greedy {
        return Some(first as TokenId);
    }
    let w = |id: usize| weight(logits[id], logits[first], t);
    if let Some(mu) = spec.mirostat {
        let total: u64 = tokens.iter().map(|&id| w(id)).sum();
        let least = (exp(-mu.max(0.0) * std::f64::consts::LN_2) * total as f64).ceil() as u64;
        tokens.retain(|&id| id == first || w(id) >= least);
    }
    tokens.sort();
    let r = u128::from(spec.random());
    let total: u128 = tokens.iter().map(|&id| u128::from(w(id))).sum();
    let target = r * total / (1 << 64);
    let mut sum = 0;
    for id in tokens {
        sum += u128::from(w(id));
        if sum > target {
            return Some(id as TokenId);
        }
    }
    None
}

fn divide(logits: &mut [f32], t: &mut f32) {
    for logit in logits.iter_mut().filter(|l| l.is_finite() && *t != 1.0) {
        *logit = (f64::from(*logit) / f64::from(*t).max(1e-30)) as f32;
        *logit = logit.clamp(f32::MIN, f32::MAX);
    }
    *t = 1.0;
}

fn naive_temperature(logits: &[f32], spec: &SampleSpec, tokens: &[usize]) -> f32 {
    if spec.dynatemp_range == 0.0 {
        return spec.temperature;
    }
    // Its own tests say whether it is right.
    let mut ranks: Vec<u64> = tokens.iter().map(|&id| id as u64).collect();
    ranks.sort();
    let range = (spec.temperature, spec.dynatemp_range, spec.dynatemp_exponent);
    filters::dynamic_temperature(&ranks, logits, logits[tokens[0]], range)
}

/// A step that drops candidates, which are in the order of their ranks.
fn naive_filter(step: &str, logits: &[f32], spec: &SampleSpec, t: f32, tokens: &mut Vec<usize>) {
    let first = tokens[0];
    let w = |id: usize| weight(logits[id], logits[first], t);
    let total: u64 = tokens.iter().map(|&id| w(id)).sum();
    let share = |share: f32| (f64::from(share) * total as f64).ceil() as u64;
    match step {
        "top_n_sigma" if spec.top_n_sigma > 0.0 => {
            let mut ids = tokens.clone();
            ids.sort();
            let l = |id: usize| f64::from(logits[id]);
            let n = ids.len() as f64;
            let mean = ids.iter().map(|&id| l(id)).sum::<f64>() / n;
            let variance = ids.iter().map(|&id| (l(id) - mean) * (l(id) - mean)).sum::<f64>() / n;
            let least = l(first) - f64::from(spec.top_n_sigma) * variance.sqrt();
            tokens.retain(|&id| l(id) >= least);
        }
        "top_k" if spec.top_k > 0 => tokens.truncate(spec.top_k as usize),
        "typ_p" if spec.typical_p < 1.0 => naive_typical(logits, t, spec.typical_p, tokens),
        "top_p" if spec.top_p < 1.0 => {
            let goal = share(spec.top_p);
            let enough = |n: &usize| tokens[..*n].iter().map(|&id| w(id)).sum::<u64>() >= goal;
            let needed = (1..=tokens.len()).find(enough);
            tokens.truncate(needed.unwrap_or(tokens.len()));
        }
        "min_p" => tokens.retain(|&id| w(id) as f64 >= f64::from(spec.min_p) * ONE),
        "xtc" => {
            let words = |x: u64| [x as u32, (x >> 32) as u32];
            let [p0, p1] = words(spec.position);
            let r = philox4x32_10([p0, p1, 0, 0], words(spec.seed));
            let r = (u64::from(r[2]) + (u64::from(r[3]) << 32)) as f64 / 2f64.powi(64);
            if r < f64::from(spec.xtc_probability) {
                let enough = share(spec.xtc_threshold);
                let top = tokens.iter().filter(|&&id| w(id) >= enough).count();
                tokens.drain(..top.saturating_sub(1));
            }
        }
        _ => {}
    }
}

fn naive_typical(logits: &[f32], t: f32, typical_p: f32, tokens: &mut Vec<usize>) {
    let m = logits[tokens[0]];
    let w = |id: usize| i128::from(weight(logits[id], m, t));
    let below = |id: usize| match logits[id] == m {
        true => 0.0,
        false => (f64::from(logits[id]) - f64::from(m)) / f64::from(t),
    };
    let total: i128 = tokens.iter().map(|&id| w(id)).sum();
    let products: i128 = tokens
        .iter()
        .filter(|&&id| w(id) > 0)
        .map(|&id| (w(id) as f64 * below(id) * 1_048_576.0).trunc() as i128)
        .sum();
    let mean = products as f64 / 1_048_576.0 / total as f64;
    let mut typical = tokens.clone();
    // The sort is stable: ties stay in the order of ranks.
    typical.sort_by(|&a, &b| (below(a) - mean).abs().total_cmp(&(below(b) - mean).abs()));
    let goal = (f64::from(typical_p) * total as f64).ceil() as i128;
    let needed = (1..=typical.len()).find(|&n| typical[..n].iter().map(|&id| w(id)).sum::<i128>() >= goal);
    typical.truncate(needed.unwrap_or(typical.len()));
    tokens.retain(|id| typical.contains(id));
}

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -12.0f32..12.0,
        2 => (-4i8..4).prop_map(f32::from), // many ties, both zeros
        1 => prop_oneof![Just(f32::NEG_INFINITY), Just(-0.0f32), Just(f32::MIN), Just(f32::MAX)],
    ]
}

fn spec() -> impl Strategy<Value = SampleSpec> {
    let share = || prop_oneof![Just(0.0f32), Just(1.0f32), 0.0f32..1.0];
    let temperature = prop_oneof![1 => Just(0.0f32), 1 => Just(1e-30f32), 4 => 0.05f32..4.0];
    let k = prop_oneof![Just(0u32), Just(1u32), 1u32..600, Just(u32::MAX)];
    let typical = prop_oneof![2 => Just(1.0f32), 1 => Just(0.0f32), 3 => 0.0f32..1.0];
    let n_sigma = prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..3.0];
    let xtc = (prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..1.0], 0.0f32..0.6);
    let dynatemp = (prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..3.0], prop_oneof![Just(1.0f32), 0.0f32..3.0]);
    let rest = (n_sigma, xtc, dynatemp);
    (temperature, k, typical, share(), share(), any::<u64>(), any::<u64>(), rest).prop_map(
        |(temperature, top_k, typical_p, top_p, min_p, seed, position, (top_n_sigma, xtc, dynatemp))| {
            SampleSpec {
                temperature,
                top_k,
                typical_p,
                top_p,
                min_p,
                top_n_sigma,
                xtc_probability: xtc.0,
                xtc_threshold: xtc.1,
                dynatemp_range: dynatemp.0,
                dynatemp_exponent: dynatemp.1,
                mirostat: None,
                samplers: Samplers::DEFAULT,
                seed,
                position,
            }
        },
    )
}

proptest! {
    #[test]
    fn agrees_with_the_specification(
        logits in proptest::collection::vec(logit(), 1..5000),
        spec in spec(),
        mask in proptest::option::of(proptest::collection::vec(any::<u32>(), 5000 / 32 + 1)),
    ) {
        let mask = mask.as_deref();
        let expected = naive(&logits, &spec, mask).ok_or(SampleError::NoCandidate);
        prop_assert_eq!(sample(&logits, &spec, mask, &mut Scratch::default()), expected);
    }

    /// The paper's definition, with logarithms and the entropy.
    #[test]
    fn typical_is_nearness_to_the_entropy(
        logits in proptest::collection::vec(-6.0f32..6.0, 1..300),
        typical_p in 0.01f32..0.99,
    ) {
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let total: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        let p: Vec<f64> = logits.iter().map(|&l| f64::from(l - max).exp() / total).collect();
        let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
        let mut order: Vec<usize> = (0..p.len()).collect();
        let distance = |id: usize| (-p[id].ln() - entropy).abs();
        order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
        let mut sum = 0.0;
        let kept = order.iter().take_while(|&&id| { let go_on = sum < f64::from(typical_p); sum += p[id]; go_on });
        let mut expected: Vec<usize> = kept.copied().collect();
        let mut ranks = Vec::new();
        top_k(&logits, None, 0, f64::NEG_INFINITY, &mut ranks);
        typical(&logits, (max, 1.0), typical_p, &mut ranks, &mut Vec::new());
        let mut found: Vec<usize> = ranks.into_iter().map(|rank| id_of(rank) as usize).collect();
        // The two round differently: only where the border is clear must they agree.
        let clear = order.get(expected.len()).is_none_or(|&next| {
            let last = expected.last().copied().unwrap_or(next);
            distance(next) - distance(last) > 1e-4
        });
        let reached: f64 = expected.iter().map(|&id| p[id]).sum();
        let before = reached - expected.last().map_or(0.0, |&id| p[id]);
        let share = f64::from(typical_p);
        if clear && (reached - share).abs() > 1e-5 && (before - share).abs() > 1e-5 {
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn exp_is_right(x in -700.0f64..0.0) {
        let (ours, std) = (exp(x), x.exp());
        prop_assert!(((ours - std) / std).abs() < 4.0 * f64::EPSILON, "{ours} {std}");
    }
}

pub(super) const FREE: SampleSpec = SampleSpec { temperature: 1.0, ..SampleSpec::GREEDY };

/// Draws `n` tokens at successive positions.
pub(super) fn histogram(logits: &[f32], spec: SampleSpec, n: u64) -> Vec<u64> {
    let mut counts = vec![0; logits.len()];
    let mut scratch = Scratch::default();
    for position in 0..n {
        let id = sample(logits, &SampleSpec { position, ..spec }, None, &mut scratch).unwrap();
        counts[id as usize] += 1;
    }
    counts
}

#[test]
fn draws_follow_the_distribution() {
    let p = [0.5f64, 0.25, 0.15, 0.1];
    let logits = p.map(|p| p.ln() as f32);
    let n = 200_000;
    let chi2 = |counts: &[u64], p: &[f64]| -> f64 {
        counts.iter().zip(p).map(|(&c, p)| (c as f64 - n as f64 * p).powi(2) / (n as f64 * p)).sum()
    };
    // 16.27 is the 99.9% point of χ² with 3 degrees of freedom; the draws are fixed by the seed.
    assert!(chi2(&histogram(&logits, FREE, n), &p) < 16.27);
    // Temperature 2 takes square roots.
    let roots: f64 = p.iter().map(|p| p.sqrt()).sum();
    let flat = p.map(|p| p.sqrt() / roots);
    assert!(chi2(&histogram(&logits, SampleSpec { temperature: 2.0, seed: 7, ..FREE }, n), &flat) < 16.27);
    // top_p 0.7 keeps two, min_p 0.25 keeps three.
    assert_eq!(histogram(&logits, SampleSpec { top_p: 0.7, ..FREE }, n)[2..], [0, 0]);
    let counts = histogram(&logits, SampleSpec { min_p: 0.25, ..FREE }, n);
    assert!(counts[2] > 0 && counts[3] == 0);
}

/// Distributions and results of `test_typical` in llama.cpp's `tests/test-sampling.cpp`.
#[test]
fn typical_keeps_what_llama_cpp_keeps() {
    let kept = |p: &[f32], typical_p| {
        let logits: Vec<f32> = p.iter().map(|p| p.ln()).collect();
        let counts = histogram(&logits, SampleSpec { typical_p, ..FREE }, 2000);
        counts.iter().map(|&count| count > 0).collect::<Vec<_>>()
    };
    assert_eq!(kept(&[0.97, 0.01, 0.01, 0.01], 0.5), [true, false, false, false]);
    assert_eq!(kept(&[0.4, 0.2, 0.2, 0.2], 0.5), [false, true, true, true]);
}

#[test]
fn typical_comes_after_top_k_and_before_top_p() {
    let logits = [0.4f32, 0.2, 0.2, 0.2].map(f32::ln);
    // Of the two that top-k leaves, the first has the larger weight and is nearer to the mean.
    let spec = SampleSpec { typical_p: 0.5, top_k: 2, ..FREE };
    assert_eq!(histogram(&logits, spec, 200), [200, 0, 0, 0]);
    // Without the first, which typical drops, each of the others is all of 0.3; top-p 0.5 keeps two of three.
    let spec = SampleSpec { typical_p: 0.5, top_p: 0.5, ..FREE };
    let counts = histogram(&logits, spec, 200);
    assert!(counts[0] == 0 && counts[1] > 0 && counts[2] > 0 && counts[3] == 0, "{counts:?}");
    // Min-p is relative to the largest that is left: half of 0.4 would be above all of them.
    let spec = SampleSpec { typical_p: 0.5, min_p: 0.9, ..FREE };
    assert!(histogram(&logits, spec, 200)[1..].iter().all(|&count| count > 0));
}

#[test]
fn borders_are_exact() {
    // Half of the weight is reached by the first of two equals, so top-p 0.5 keeps only that.
    assert_eq!(histogram(&[0.0, 0.0], SampleSpec { top_p: 0.5, ..FREE }, 100), [100, 0]);
    assert_eq!(
        histogram(&[0.0; 3], SampleSpec { top_p: f32::from_bits(0.5f32.to_bits() + 1), ..FREE }, 100)[2],
        0
    );
    // Four equal weights are told apart by the two highest bits; one of 0 is never met.
    for position in 0..100 {
        let [_, high, ..] = philox4x32_10([position, 0, 0, 0], [9, 0]);
        let random = SampleSpec { seed: 9, position: position.into(), ..FREE }.random();
        assert_eq!(draw(&[1, 1, 1, 1], random), Some(high as usize >> 30));
        assert_eq!(draw(&[0, 1, 0, 1, 0], random), Some(1 + 2 * (high as usize >> 31)));
    }
    assert_eq!(draw(&[0, 0], 0), None);
}

#[test]
fn filters_come_before_temperature() {
    // At temperature 100 all are nearly equal, but min-p has already dropped the second.
    let hot = SampleSpec { temperature: 100.0, min_p: 0.5, ..FREE };
    assert_eq!(histogram(&[0.0, -1.0], hot, 1000), [1000, 0]);
}

#[test]
fn greedy_takes_the_lowest_of_equals_at_every_place() {
    for n in 1..70 {
        for at in 0..n {
            let mut logits = vec![-1.0f32; n];
            logits[at..].fill(3.0);
            assert_eq!(
                sample(&logits, &SampleSpec::GREEDY, None, &mut Scratch::default()),
                Ok(at as TokenId)
            );
        }
    }
}

#[test]
fn infinities_are_values() {
    let inf = f32::INFINITY;
    let counts = histogram(&[3.0, inf, -inf, inf], FREE, 1000);
    assert!(counts[0] == 0 && counts[2] == 0 && counts[1] > 400 && counts[3] > 400, "{counts:?}");
    let none = sample(&[-inf; 40], &FREE, None, &mut Scratch::default());
    assert_eq!(none, Err(SampleError::NoCandidate));
}

#[test]
fn what_cannot_be_sampled_is_an_error() {
    let mut scratch = Scratch::default();
    for n in [1, 16, 33] {
        for at in 0..n {
            let mut logits = vec![0.0f32; n];
            logits[at] = f32::NAN;
            // Even where the mask would hide it: a NaN says that the model failed.
            for mask in [None, Some(&[0u32; 2][..])] {
                let result = sample(&logits, &SampleSpec::GREEDY, mask, &mut scratch);
                assert_eq!(result, Err(SampleError::Nan { id: at as TokenId }));
            }
        }
    }
    let mut fails = |logits: &[f32], spec, mask| sample(logits, &spec, mask, &mut scratch).unwrap_err();
    assert_eq!(fails(&[], FREE, None), SampleError::NoCandidate);
    assert_eq!(fails(&[1.0; 3], FREE, Some(&[0])), SampleError::NoCandidate);
    assert_eq!(fails(&[1.0; 33], FREE, Some(&[!0])), SampleError::Mask { expected: 2, found: 1 });
    let spec = SampleSpec { temperature: f32::NAN, ..FREE };
    assert_eq!(fails(&[1.0], spec, None), SampleError::Spec { field: "temperature" });
    let spec = SampleSpec { typical_p: 1.1, ..FREE };
    assert_eq!(fails(&[1.0], spec, None), SampleError::Spec { field: "typical_p" });
    let spec = SampleSpec { top_p: -0.1, ..FREE };
    assert_eq!(fails(&[1.0], spec, None), SampleError::Spec { field: "top_p" });
    let spec = SampleSpec { min_p: 1.5, ..FREE };
    assert_eq!(fails(&[1.0], spec, None), SampleError::Spec { field: "min_p" });
    let vocab = MAX_VOCAB + 1;
    assert_eq!(fails(&vec![0.0; vocab], FREE, None), SampleError::Vocab { found: vocab });
}
