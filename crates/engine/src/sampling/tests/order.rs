//! Orders of the steps other than the default one.

use super::*;

/// Some of the steps in some order.
pub(super) fn samplers() -> impl Strategy<Value = Samplers> {
    let all = Just(Samplers::DEFAULT.steps().to_vec()).prop_shuffle();
    (all, 1..=9usize).prop_map(|(steps, len)| Samplers::new(&steps[..len]).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn any_order_agrees_with_the_specification(
        logits in proptest::collection::vec(logit(), 1..1500),
        spec in spec(),
        samplers in samplers(),
        mirostat in proptest::option::weighted(0.2, -1.0f64..16.0),
        mask in proptest::option::of(proptest::collection::vec(any::<u32>(), 1500 / 32 + 1)),
        tokens in proptest::collection::vec(0u32..30, 0..60),
        (penalized, repeats) in any::<(bool, bool)>(),
    ) {
        let spec = SampleSpec { samplers, mirostat, ..spec };
        let penalties = Penalties { repetition: 1.5, frequency: 0.25, presence: -0.5 };
        let dry = Dry { multiplier: 3.0, allowed_length: 1, ..Dry::default() };
        let adjust = Adjust {
            bias: &[(3, 2.0), (4, f32::NEG_INFINITY)],
            penalties: penalized.then_some((penalties, &tokens[..])),
            dry: repeats.then_some((&dry, &tokens[..])),
        };
        let expected = naive_adjusted(&logits, &adjust, &spec, mask.as_deref()).ok_or(SampleError::NoCandidate);
        let drawn = sample_adjusted(&logits, &adjust, &spec, mask.as_deref(), &mut Scratch::default());
        prop_assert_eq!(drawn.map(|drawn| drawn.token), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Numbers at the edges of f32, temperatures that end at 0 and penalties after them make no NaN and lose nobody: who has a
    /// candidate has a token.
    #[test]
    fn extremes_leave_a_token(
        logits in proptest::collection::vec(prop_oneof![
            -30f32..30.0,
            Just(-f32::MAX), Just(f32::MAX), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(0.0), Just(-1e-40),
        ], 1..12),
        (temperature, dynatemp_range, dynatemp_exponent) in (0f32..2.0, prop_oneof![Just(0f32), 0f32..4.0], 0f32..40.0),
        (repetition, frequency, presence) in
            (prop_oneof![Just(1e-38f32), Just(f32::MAX), 0.5f32..2.0], -2f32..2.0, -2f32..2.0),
        base in prop_oneof![Just(1f32), Just(f32::MAX), 1f32..4.0],
        samplers in samplers(),
        tokens in proptest::collection::vec(0u32..12, 0..40),
        seed in any::<u64>(),
    ) {
        let spec = SampleSpec { temperature, dynatemp_range, dynatemp_exponent, samplers, seed, ..FREE };
        let dry = Dry { multiplier: 3.0, base, allowed_length: 1, ..Dry::default() };
        let adjust = Adjust {
            bias: &[],
            penalties: Some((Penalties { repetition, frequency, presence }, &tokens[..])),
            dry: Some((&dry, &tokens[..])),
        };
        let drawn = sample_adjusted(&logits, &adjust, &spec, None, &mut Scratch::default());
        match logits.iter().any(|logit| *logit > f32::NEG_INFINITY) {
            true => prop_assert!(drawn.is_ok_and(|drawn| drawn.surprise.is_finite()), "{:?}", drawn),
            false => prop_assert_eq!(drawn, Err(SampleError::NoCandidate)),
        }
    }
}

/// The temperature is 0, so logits have been divided by next to nothing when repetitions are to cost more than f32 has room for.
#[test]
fn a_penalty_after_a_temperature_of_zero_loses_no_candidate() {
    let dry = Dry { multiplier: 1.0, base: 4.0, ..Dry::default() };
    let samplers = "temperature;top_k;dry".parse().unwrap();
    let spec = SampleSpec { temperature: 0.5, dynatemp_range: 2.0, top_k: 1, samplers, ..FREE };
    let adjust = Adjust { dry: Some((&dry, &[0; 500])), ..Adjust::default() };
    let drawn = sample_adjusted(&[-50.0, -200.0], &adjust, &spec, None, &mut Scratch::default());
    assert_eq!(drawn.map(|drawn| drawn.token), Ok(0));
}

fn kept(p: &[f32], spec: SampleSpec, samplers: &str) -> Vec<bool> {
    let logits: Vec<f32> = p.iter().map(|p| p.ln()).collect();
    let spec = SampleSpec { samplers: samplers.parse().unwrap(), ..spec };
    histogram(&logits, spec, 2000).iter().map(|&count| count > 0).collect()
}

#[test]
fn the_order_decides() {
    let p = [0.4, 0.3, 0.2, 0.1];
    // Of all, top-p 0.75 keeps three; of the two that top-k leaves, 0.4/0.7 = 0.57 is not enough yet.
    let spec = SampleSpec { top_p: 0.55, top_k: 2, ..FREE };
    assert_eq!(kept(&p, spec, "top_k;top_p"), [true, false, false, false]);
    assert_eq!(kept(&p, spec, "top_p;top_k"), [true, true, false, false]);
    // Hot, all are nearly equal, and min-p drops none.
    let spec = SampleSpec { min_p: 0.6, temperature: 50.0, ..FREE };
    assert_eq!(kept(&p, spec, "min_p;temperature"), [true, true, false, false]);
    assert_eq!(kept(&p, spec, "temperature;min_p"), [true; 4]);
    // Cold, it drops all but the first.
    let spec = SampleSpec { min_p: 0.6, temperature: 0.1, ..FREE };
    assert_eq!(kept(&p, spec, "temperature;min_p"), [true, false, false, false]);
    // Exclusion before top-k leaves it others to keep.
    let spec = SampleSpec { top_k: 2, xtc_probability: 1.0, xtc_threshold: 0.15, ..FREE };
    assert_eq!(kept(&p, spec, "top_k;xtc"), [false, true, false, false]);
    assert_eq!(kept(&p, spec, "xtc;top_k"), [false, false, true, true]);
}

#[test]
fn what_is_not_in_the_order_does_nothing() {
    let p = [0.4, 0.3, 0.2, 0.1];
    let spec = SampleSpec { top_k: 1, top_p: 0.1, min_p: 0.9, temperature: 0.0, ..FREE };
    // Not even temperature 0.
    assert_eq!(kept(&p, spec, "typ_p"), [true; 4]);
    assert_eq!(kept(&p, spec, "temperature;typ_p"), [true, false, false, false]);
    let mut params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() };
    params.dry.multiplier = 1.0;
    params.samplers = "temperature;top_k".parse().unwrap();
    assert!(params.adjust(&[1, 1, 1]).is_nothing());
    params.samplers = "temperature;dry".parse().unwrap();
    assert!(params.adjust(&[1, 1, 1]).penalties.is_none() && params.adjust(&[1]).dry.is_some());
}

#[test]
fn late_penalties_see_what_is_left_and_divided_logits() {
    let drawn = |samplers: &str, logits: &[f32], temperature, spec| {
        let penalties = Penalties { presence: 2.0, ..Penalties::NONE };
        let adjust = Adjust { penalties: Some((penalties, &[0])), ..Adjust::default() };
        let spec = SampleSpec { temperature, samplers: samplers.parse().unwrap(), ..spec };
        let mut scratch = Scratch::default();
        let ids = (0..400).map(|position| {
            let spec = SampleSpec { position, ..spec };
            sample_adjusted(logits, &adjust, &spec, None, &mut scratch).unwrap().token
        });
        let mut ids: Vec<TokenId> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    // The first is penalized below both others, but top-k has dropped them already.
    let one = SampleSpec { top_k: 1, ..FREE };
    assert_eq!(drawn("penalties;top_k", &[3.0, 2.0, 1.5], 1.0, one), [1]);
    assert_eq!(drawn("top_k;penalties", &[3.0, 2.0, 1.5], 1.0, one), [0]);
    // Divided by 0.1 first, the penalty of 2 cannot make up for the lead of 10.
    assert_eq!(drawn("penalties;temperature;top_k", &[3.0, 2.0, 1.5], 0.1, one), [1]);
    assert_eq!(drawn("temperature;penalties;top_k", &[3.0, 2.0, 1.5], 0.1, one), [0]);
}

#[test]
fn other_orders_are_for_the_host() {
    assert!(FREE.device_can());
    let order = |text: &str| SampleSpec { samplers: text.parse().unwrap(), ..FREE };
    assert!(!order("top_p;top_k;temperature").device_can());
    assert!(!order("top_k").device_can());
    let greedy = SampleSpec { temperature: 0.0, ..order("top_p;temperature") };
    assert!(greedy.device_can());
    assert!(!SampleSpec { temperature: 0.0, ..order("top_p") }.device_can());
    let mirostat = SampleSpec { mirostat: Some(10.0), ..FREE };
    assert!(!mirostat.device_can());
    let params = SamplingParams { samplers: "top_p;top_k".parse().unwrap(), ..SamplingParams::default() };
    assert!(!params.device_can() && SamplingParams::default().device_can());
}
