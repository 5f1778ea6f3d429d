//! Mirostat 2 against its definition in floating point, and against what it promises.

use super::*;

const TWO: Mirostat = Mirostat { version: 2, tau: 5.0, eta: 0.1 };

proptest! {
    /// Probabilities, logarithms and all.
    #[test]
    fn only_tokens_of_so_much_surprise_are_drawn(
        logits in proptest::collection::vec(-8.0f32..8.0, 2..400),
        mu in 0.0f64..14.0,
        temperature in 0.3f32..2.0,
        seed in any::<u64>(),
    ) {
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let weights: Vec<f64> = logits.iter().map(|l| (f64::from(l - max) / f64::from(temperature)).exp()).collect();
        let total: f64 = weights.iter().sum();
        let surprise = |w: f64| -(w / total).log2();
        // Where the border is clear.
        prop_assume!(weights.iter().all(|&w| (surprise(w) - mu).abs() > 1e-6));
        let kept: f64 = weights.iter().filter(|&&w| w == 1.0 || surprise(w) <= mu).sum();
        let spec = SampleSpec { temperature, mirostat: Some(mu), seed, top_k: 1, top_p: 0.0, ..FREE };
        let mut scratch = Scratch::default();
        for position in 0..20 {
            let spec = SampleSpec { position, ..spec };
            let Drawn { token, surprise: found } =
                sample_adjusted(&logits, &Adjust::default(), &spec, None, &mut scratch).unwrap();
            let w = weights[token as usize];
            prop_assert!(w == 1.0 || surprise(w) <= mu);
            prop_assert!((found + (w / kept).log2()).abs() < 1e-6, "{} {}", found, -(w / kept).log2());
        }
    }
}

/// Draws `n` tokens, one after the other; their mean surprise and the last `μ`.
fn mean_surprise(params: &SamplingParams, logits: impl Fn(u64) -> Vec<f32>, n: u64) -> (f64, f64) {
    let (mut scratch, mut mu, mut tokens) = (Scratch::default(), params.mirostat.first(), vec![0]);
    let mut sum = 0.0;
    for position in 0..n {
        let before = mu.unwrap();
        let logits = logits(position);
        tokens.push(params.choose(&logits, (3, &tokens), &mut mu, None, &mut scratch).unwrap());
        // What it went on by says what the surprise was.
        sum += f64::from(params.mirostat.tau) + (before - mu.unwrap()) / f64::from(params.mirostat.eta);
    }
    (sum / n as f64, mu.unwrap())
}

/// A distribution by Zipf's law, another one at every place.
fn zipf(position: u64) -> Vec<f32> {
    let exponent = 1.0 + (position % 7) as f32 / 10.0;
    (1..=4000).map(|rank| -exponent * (rank as f32).ln()).collect()
}

#[test]
fn the_mean_surprise_goes_to_tau() {
    for (tau, eta) in [(2.0, 0.1), (3.0, 0.1), (5.0, 0.1), (3.0, 0.5)] {
        let mirostat = Mirostat { tau, eta, ..TWO };
        let params = SamplingParams { temperature: 1.0, mirostat, ..SamplingParams::default() };
        let (mean, _) = mean_surprise(&params, zipf, 3000);
        assert!((mean - f64::from(tau)).abs() < 0.05, "{tau} {eta}: {mean}");
    }
    // Without it, it is that of the distributions.
    let free =
        SamplingParams { mirostat: Mirostat { eta: 0.0, tau: 50.0, ..TWO }, ..SamplingParams::default() };
    let (mut scratch, mut sum) = (Scratch::default(), 0.0);
    for position in 0..3000 {
        let spec = SampleSpec { temperature: 1.0, ..free.spec(3, position as usize) };
        sum +=
            sample_adjusted(&zipf(position), &Adjust::default(), &spec, None, &mut scratch).unwrap().surprise;
    }
    assert!(sum / 3000.0 > 5.5, "{}", sum / 3000.0);
}

/// A model that is never surprised: `μ` rises, and nothing breaks.
#[test]
fn what_cannot_be_reached_is_not() {
    let params = SamplingParams { temperature: 1.0, mirostat: TWO, ..SamplingParams::default() };
    let (mean, mu) = mean_surprise(&params, |_| vec![60.0, 0.0, 0.0], 500);
    assert!(mean < 1e-9 && (mu - (10.0 + 500.0 * 0.5)).abs() < 1e-4, "{mean} {mu}");
    // Nor does one below 0 leave nobody.
    let spec = SampleSpec { mirostat: Some(-3.0), ..FREE };
    assert_eq!(histogram(&[1.0, 1.0, 0.0], spec, 100), [100, 0, 0]);
}

/// By hand: four tokens of 1, 2, 3 and 3 bits.
#[test]
fn the_first_steps_by_hand() {
    let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).to_vec();
    let counts = |mu| histogram(&logits, SampleSpec { mirostat: Some(mu), ..FREE }, 1000);
    assert!(counts(3.01).iter().all(|&count| count > 0));
    assert!(counts(2.99)[1] > 0 && counts(2.99)[2..] == [0, 0]);
    assert_eq!(counts(1.99), [1000, 0, 0, 0]);
    // 2·1.2 = 2.4 keeps two, of log2(3/2) and log2(3) bits.
    let mirostat = Mirostat { tau: 1.2, eta: 0.5, ..TWO };
    assert!((mirostat.first().unwrap() - 2.4).abs() < 1e-6);
    let params = SamplingParams { temperature: 1.0, mirostat, ..SamplingParams::default() };
    let mut mu = mirostat.first();
    let id = params.choose(&logits, (9, &[0]), &mut mu, None, &mut Scratch::default()).unwrap();
    let surprise = [1.5f64, 3.0][id as usize].log2();
    assert!((mu.unwrap() - (2.4 - 0.5 * (surprise - 1.2))).abs() < 1e-6);
}

#[test]
fn only_the_second_version_is_known() {
    assert_eq!(Mirostat::default().first(), None);
    let params = |mirostat| SamplingParams { mirostat, ..SamplingParams::default() };
    let error = |mirostat| params(mirostat).validate(10).unwrap_err().to_string();
    assert_eq!(params(TWO).validate(10), Ok(()));
    assert_eq!(error(Mirostat { version: 1, ..TWO }), "mirostat is 1, must be 0 or 2, its second version");
    assert!(error(Mirostat { tau: -1.0, ..TWO }).starts_with("mirostat_tau is -1"));
    assert!(error(Mirostat { eta: f32::NAN, ..TWO }).starts_with("mirostat_eta is NaN"));
}
