//! What a request says about sampling.

use super::{
    Adjust, Dry, Mirostat, Penalties, SampleError, SampleSpec, Sampler, Samplers, Scratch, sample_adjusted,
};
use crate::executor::TokenId;
use crate::request::RequestError;

/// How a request wants its tokens chosen; see [the specification](crate::sampling).
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Flattens the distribution above 1, sharpens it below; 0 is greedy. Finite, not negative.
    pub temperature: f32,
    /// Keep the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most typical tokens, those whose information is nearest to its expectation, that together have this
    /// probability; 0 to 1, 1 keeps all.
    pub typical_p: f32,
    /// Keep the most probable tokens that together have this probability; 0 to 1, 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this share of the largest probability; 0 to 1, 0 keeps all.
    pub min_p: f32,
    /// Keep tokens whose logit is at most so many standard deviations below the largest; finite, 0 keeps all.
    pub top_n_sigma: f32,
    /// How probably the most probable tokens are excluded (XTC): all of at least the threshold but the least of them; 0 to 1.
    pub xtc_probability: f32,
    /// 0 to 1; above 0.5 nothing is excluded.
    pub xtc_threshold: f32,
    /// How far the temperature goes below and above by the entropy (dynamic temperature); finite, 0 keeps it.
    pub dynatemp_range: f32,
    /// The power of the entropy's share that it follows; finite, not negative.
    pub dynatemp_exponent: f32,
    /// What repetitions cost.
    pub dry: Dry,
    /// Added to the logits of tokens, before all else; −∞ forbids a token. Neither NaN nor +∞.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Divides (positive) or multiplies (others) the logit of a token in the penalty window; above 0, 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted for every occurrence in the penalty window; −2 to 2.
    pub frequency_penalty: f32,
    /// Subtracted once for a token in the penalty window; −2 to 2.
    pub presence_penalty: f32,
    /// How many of the last tokens, prompt included, the penalties look at.
    pub penalty_window: usize,
    /// Candidates by a given mean surprise, instead of top-nσ, top-k, typical, top-p, min-p and XTC.
    pub mirostat: Mirostat,
    /// The steps that are taken, and in which order; the biases come before them all.
    pub samplers: Samplers,
    /// Key of the random numbers; `None` takes a new one for every request.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            typical_p: 1.0,
            top_p: 0.95,
            min_p: 0.05,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            dry: Dry::default(),
            logit_bias: Vec::new(),
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            mirostat: Mirostat::default(),
            samplers: Samplers::DEFAULT,
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the most probable token, without penalties.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// What chooses the token at `position`, penalties apart; with mirostat the first one of a text.
    pub fn spec(&self, seed: u64, position: usize) -> SampleSpec {
        SampleSpec {
            temperature: self.temperature,
            top_k: self.top_k,
            typical_p: self.typical_p,
            top_p: self.top_p,
            min_p: self.min_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            mirostat: self.mirostat.first(),
            samplers: self.samplers,
            seed,
            position: position as u64,
        }
    }

    /// Chooses the token after `tokens` from its logits. `mu` is that of [`SamplingParams::mirostat`], which goes on with the token:
    /// what it is called for must be sure to come.
    ///
    /// # Errors
    ///
    /// As [`sample`](super::sample).
    pub fn choose(
        &self,
        logits: &[f32],
        (seed, tokens): (u64, &[TokenId]),
        mu: &mut Option<f64>,
        mask: Option<&[u32]>,
        scratch: &mut Scratch,
    ) -> Result<TokenId, SampleError> {
        let spec = SampleSpec { mirostat: *mu, ..self.spec(seed, tokens.len()) };
        let drawn = sample_adjusted(logits, &self.adjust(tokens), &spec, mask, scratch)?;
        *mu = mu.map(|mu| self.mirostat.next(mu, drawn.surprise));
        Ok(drawn.token)
    }

    /// What happens to the logits, given all tokens so far.
    pub fn adjust<'a>(&'a self, tokens: &'a [TokenId]) -> Adjust<'a> {
        let window = &tokens[tokens.len().saturating_sub(self.penalty_window)..];
        Adjust {
            bias: &self.logit_bias,
            penalties: self.penalties().map(|penalties| (penalties, window)),
            dry: self.repetitions_cost().then_some((&self.dry, tokens)),
        }
    }

    /// Whether [`SamplingParams::spec`] is all there is to it and a device may sample by itself.
    pub fn device_can(&self) -> bool {
        self.logit_bias.is_empty()
            && self.penalties().is_none()
            && !self.repetitions_cost()
            && self.spec(0, 0).device_can()
    }

    fn repetitions_cost(&self) -> bool {
        self.dry.multiplier != 0.0 && self.samplers.contains(Sampler::Dry)
    }

    /// The penalties, if they do anything.
    pub fn penalties(&self) -> Option<Penalties> {
        let penalties = Penalties {
            repetition: self.repetition_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
        };
        let taken = self.samplers.contains(Sampler::Penalties) && self.penalty_window > 0;
        (taken && penalties != Penalties::NONE).then_some(penalties)
    }

    /// Checks the range of every field; `vocab` is the number of tokens.
    ///
    /// # Errors
    ///
    /// [`RequestError::Range`] and [`RequestError::Token`], with the field's name.
    pub fn validate(&self, vocab: usize) -> Result<(), RequestError> {
        type Check = (&'static str, f32, fn(f32) -> bool, &'static str);
        let unit: fn(f32) -> bool = |x| (0.0..=1.0).contains(&x);
        let two: fn(f32) -> bool = |x| (-2.0..=2.0).contains(&x);
        let not_negative: fn(f32) -> bool = |x| x >= 0.0 && x.is_finite();
        let checks: [Check; 16] = [
            ("temperature", self.temperature, not_negative, "finite and at least 0"),
            ("top_n_sigma", self.top_n_sigma, not_negative, "finite and at least 0"),
            ("xtc_probability", self.xtc_probability, unit, "between 0 and 1"),
            ("xtc_threshold", self.xtc_threshold, unit, "between 0 and 1"),
            ("dynatemp_range", self.dynatemp_range, not_negative, "finite and at least 0"),
            ("dynatemp_exponent", self.dynatemp_exponent, not_negative, "finite and at least 0"),
            ("mirostat_tau", self.mirostat.tau, not_negative, "finite and at least 0"),
            ("mirostat_eta", self.mirostat.eta, not_negative, "finite and at least 0"),
            ("dry_multiplier", self.dry.multiplier, not_negative, "finite and at least 0"),
            ("dry_base", self.dry.base, |x| x >= 1.0 && x.is_finite(), "finite and at least 1"),
            ("typical_p", self.typical_p, unit, "between 0 and 1"),
            ("top_p", self.top_p, unit, "between 0 and 1"),
            ("min_p", self.min_p, unit, "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                |x| x > 0.0 && x.is_finite(),
                "finite and above 0",
            ),
            ("frequency_penalty", self.frequency_penalty, two, "between -2 and 2"),
            ("presence_penalty", self.presence_penalty, two, "between -2 and 2"),
        ];
        if let Some((field, found, _, bound)) = checks.into_iter().find(|(_, found, holds, _)| !holds(*found))
        {
            return Err(RequestError::Range { field, found, bound });
        }
        if ![0, 2].contains(&self.mirostat.version) {
            let (field, found) = ("mirostat", self.mirostat.version as f32);
            return Err(RequestError::Range { field, found, bound: "0 or 2, its second version" });
        }
        if self.dry.allowed_length == 0 {
            return Err(RequestError::Range { field: "dry_allowed_length", found: 0.0, bound: "at least 1" });
        }
        if !self.dry.breakers.is_sorted() {
            return Err(RequestError::Order { field: "dry_breakers" });
        }
        let field = "logit_bias";
        for &(id, found) in &self.logit_bias {
            if id as usize >= vocab {
                return Err(RequestError::Token { field, id, vocab });
            }
            if found.is_nan() || found == f32::INFINITY {
                return Err(RequestError::Range { field, found, bound: "finite or -inf" });
            }
        }
        Ok(())
    }
}
