//! [`sample`] against the specification written down naively: sort everything, then filter.

use proptest::prelude::*;

use super::*;

/// The specification, step by step.
fn naive(logits: &[f32], spec: &SampleSpec, mask: Option<&[u32]>) -> Option<TokenId> {
    let mut tokens: Vec<usize> = (0..logits.len())
        .filter(|&id| {
            mask.is_none_or(|m| m[id / 32] & (1 << (id % 32)) != 0) && logits[id] != f32::NEG_INFINITY
        })
        .collect();
    tokens.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    let &first = tokens.first()?;
    if spec.temperature == 0.0 {
        return Some(first as TokenId);
    }
    let w = |id: usize, t: f32| weight(logits[id], logits[first], t);
    if spec.top_k > 0 {
        tokens.truncate(spec.top_k as usize);
    }
    if spec.top_p < 1.0 {
        let total: u64 = tokens.iter().map(|&id| w(id, 1.0)).sum();
        let goal = (f64::from(spec.top_p) * total as f64).ceil() as u64;
        let needed =
            (1..=tokens.len()).find(|&n| tokens[..n].iter().map(|&id| w(id, 1.0)).sum::<u64>() >= goal);
        tokens.truncate(needed.unwrap_or(tokens.len()));
    }
    tokens.retain(|&id| w(id, 1.0) as f64 >= f64::from(spec.min_p) * ONE);
    tokens.sort();
    let words = |x: u64| [x as u32, (x >> 32) as u32];
    let [p0, p1] = words(spec.position);
    let r = philox4x32_10([p0, p1, 0, 0], words(spec.seed));
    let r = u128::from(r[0]) + (u128::from(r[1]) << 32);
    let total: u128 = tokens.iter().map(|&id| u128::from(w(id, spec.temperature))).sum();
    let target = r * total / (1 << 64);
    let mut sum = 0;
    for id in tokens {
        sum += u128::from(w(id, spec.temperature));
        if sum > target {
            return Some(id as TokenId);
        }
    }
    None
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
    (temperature, k, share(), share(), any::<u64>(), any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, seed, position)| SampleSpec {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            position,
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

    #[test]
    fn exp_is_right(x in -700.0f64..0.0) {
        let (ours, std) = (exp(x), x.exp());
        prop_assert!(((ours - std) / std).abs() < 4.0 * f64::EPSILON, "{ours} {std}");
    }
}

const FREE: SampleSpec = SampleSpec { temperature: 1.0, ..SampleSpec::GREEDY };

/// Draws `n` tokens at successive positions.
fn histogram(logits: &[f32], spec: SampleSpec, n: u64) -> Vec<u64> {
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
        let position = u64::from(position);
        assert_eq!(draw(&[1, 1, 1, 1], 9, position), Some(high as usize >> 30));
        assert_eq!(draw(&[0, 1, 0, 1, 0], 9, position), Some(1 + 2 * (high as usize >> 31)));
    }
    assert_eq!(draw(&[0, 0], 0, 0), None);
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
    let spec = SampleSpec { top_p: -0.1, ..FREE };
    assert_eq!(fails(&[1.0], spec, None), SampleError::Spec { field: "top_p" });
    let spec = SampleSpec { min_p: 1.5, ..FREE };
    assert_eq!(fails(&[1.0], spec, None), SampleError::Spec { field: "min_p" });
    let vocab = MAX_VOCAB + 1;
    assert_eq!(fails(&vec![0.0; vocab], FREE, None), SampleError::Vocab { found: vocab });
}
