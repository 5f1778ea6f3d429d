//! How a chat answers, by names that the command line, `/set` and session files share.

use minfer_engine::executor::Limits;
use minfer_engine::sampling::{Dry, Mirostat, Samplers};
use minfer_engine::{Request, RequestError, SamplingParams, Stop};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::llm::DryBreakers;

/// What happens when the context is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// The answer ends, and the user is told.
    #[default]
    Stop,
    /// The oldest exchanges are dropped, and the user is told.
    Drop,
}

/// All of it. In JSON the names have dashes: `top-k`; what is left out has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    /// [`SamplingParams::temperature`].
    pub temp: f32,
    /// [`SamplingParams::top_k`].
    pub top_k: u32,
    /// [`SamplingParams::typical_p`].
    pub typical: f32,
    /// [`SamplingParams::top_p`].
    pub top_p: f32,
    /// [`SamplingParams::min_p`].
    pub min_p: f32,
    /// [`SamplingParams::top_n_sigma`].
    pub top_n_sigma: f32,
    /// [`SamplingParams::xtc_probability`].
    pub xtc_probability: f32,
    /// [`SamplingParams::xtc_threshold`].
    pub xtc_threshold: f32,
    /// [`SamplingParams::dynatemp_range`].
    pub dynatemp_range: f32,
    /// [`SamplingParams::dynatemp_exponent`].
    pub dynatemp_exponent: f32,
    /// `multiplier` of [`SamplingParams::dry`].
    pub dry_multiplier: f32,
    /// `base` of it.
    pub dry_base: f32,
    /// `allowed_length` of it.
    pub dry_allowed_length: usize,
    /// `window` of it; `None` is all tokens.
    pub dry_penalty_last_n: Option<usize>,
    /// Texts that no repetition goes past.
    pub dry_breakers: DryBreakers,
    /// [`SamplingParams::repetition_penalty`].
    pub repeat_penalty: f32,
    /// [`SamplingParams::frequency_penalty`].
    pub frequency_penalty: f32,
    /// [`SamplingParams::presence_penalty`].
    pub presence_penalty: f32,
    /// [`SamplingParams::penalty_window`].
    pub repeat_last_n: usize,
    /// [`SamplingParams::samplers`], as text.
    #[serde(with = "as_text")]
    pub samplers: Samplers,
    /// `version` of [`SamplingParams::mirostat`].
    pub mirostat: u32,
    /// `tau` of it.
    pub mirostat_tau: f32,
    /// `eta` of it.
    pub mirostat_eta: f32,
    /// [`SamplingParams::logit_bias`]; `None` forbids a token, as JSON has no −∞.
    pub logit_bias: Vec<(u32, Option<f32>)>,
    /// The seed of every answer; `None` takes a new one each time.
    pub seed: Option<u64>,
    /// Tokens of an answer at most.
    pub max_tokens: Option<usize>,
    /// Strings that end an answer before themselves.
    pub stop: Vec<String>,
    /// What happens when the context is full.
    pub on_full: OnFull,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::of(&SamplingParams::default())
    }
}

impl Settings {
    /// With the given sampling.
    pub fn of(sampling: &SamplingParams) -> Settings {
        let finite = |bias: f32| (bias > f32::NEG_INFINITY).then_some(bias);
        Settings {
            temp: sampling.temperature,
            top_k: sampling.top_k,
            typical: sampling.typical_p,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            top_n_sigma: sampling.top_n_sigma,
            xtc_probability: sampling.xtc_probability,
            xtc_threshold: sampling.xtc_threshold,
            dynatemp_range: sampling.dynatemp_range,
            dynatemp_exponent: sampling.dynatemp_exponent,
            dry_multiplier: sampling.dry.multiplier,
            dry_base: sampling.dry.base,
            dry_allowed_length: sampling.dry.allowed_length,
            dry_penalty_last_n: (sampling.dry.window < usize::MAX).then_some(sampling.dry.window),
            dry_breakers: DryBreakers::default(),
            repeat_penalty: sampling.repetition_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            repeat_last_n: sampling.penalty_window,
            samplers: sampling.samplers,
            mirostat: sampling.mirostat.version,
            mirostat_tau: sampling.mirostat.tau,
            mirostat_eta: sampling.mirostat.eta,
            logit_bias: sampling.logit_bias.iter().map(|&(id, bias)| (id, finite(bias))).collect(),
            seed: sampling.seed,
            max_tokens: None,
            stop: Vec::new(),
            on_full: OnFull::Stop,
        }
    }

    /// As the engine takes it; the tokens that [`Settings::dry_breakers`] stands for are for who has a vocabulary to add.
    pub fn sampling(&self) -> SamplingParams {
        let bias = |&(id, bias): &(u32, Option<f32>)| (id, bias.unwrap_or(f32::NEG_INFINITY));
        SamplingParams {
            temperature: self.temp,
            top_k: self.top_k,
            typical_p: self.typical,
            top_p: self.top_p,
            min_p: self.min_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            dry: Dry {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed_length: self.dry_allowed_length,
                window: self.dry_penalty_last_n.unwrap_or(usize::MAX),
                breakers: Vec::new(),
            },
            logit_bias: self.logit_bias.iter().map(bias).collect(),
            repetition_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window: self.repeat_last_n,
            mirostat: Mirostat { version: self.mirostat, tau: self.mirostat_tau, eta: self.mirostat_eta },
            samplers: self.samplers,
            seed: self.seed,
        }
    }

    /// The stop strings as the engine takes them.
    pub(super) fn stop_bytes(&self) -> Vec<Vec<u8>> {
        self.stop.iter().map(|stop| stop.clone().into_bytes()).collect()
    }

    /// Checks the range of every setting for a model.
    ///
    /// # Errors
    ///
    /// As [`Request::validate`].
    pub fn validate(&self, limits: &Limits, context: usize) -> Result<(), RequestError> {
        let request = Request {
            prompt: vec![0],
            max_tokens: self.max_tokens,
            sampling: self.sampling(),
            stop: Stop { tokens: Vec::new(), strings: self.stop_bytes() },
            ..Request::default()
        };
        request.validate(limits, context)
    }

    /// Every setting by name, in order, as JSON.
    pub fn named(&self) -> Map<String, Value> {
        // By way of text, in which 0.8 is 0.8 and not the f64 next to the f32.
        let text = serde_json::to_string(self).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// These settings with one of them replaced: JSON, or a word; `none` is JSON's `null`, and a list of nothing. A list may
    /// be written as its one text, biases as in [`parse_bias`]. The range is not checked.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the name or the value.
    pub fn with(&self, name: &str, value: &str) -> Result<Settings, String> {
        let mut named = self.named();
        let names = named.keys().cloned().collect::<Vec<_>>().join(", ");
        let Some(place) = named.get_mut(name) else {
            return Err(format!("no setting '{name}': there are {names}"));
        };
        let given = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        *place = match (&*place, given) {
            (Value::Array(_), _) if value == "none" => Value::Array(Vec::new()),
            _ if value == "none" => Value::Null,
            (Value::Array(_), given @ Value::Array(_)) => given,
            (Value::Array(_), _) if name == "logit-bias" => {
                biases(value).map_err(|e| format!("{name} {value}: {e}"))?
            }
            (Value::Array(_), Value::String(text)) => Value::from(vec![text]),
            (Value::Array(_), _) => Value::from(vec![value]),
            (_, given) => given,
        };
        serde_json::from_value(Value::Object(named)).map_err(|e| format!("{name} {value}: {e}"))
    }
}

/// [`Samplers`] in JSON.
mod as_text {
    use minfer_engine::sampling::Samplers;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(samplers: &Samplers, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(samplers)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Samplers, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// `42+5 7-inf` as [`Settings::logit_bias`] has it in JSON.
fn biases(value: &str) -> Result<Value, String> {
    let bias = |given: &str| {
        let (id, bias) = parse_bias(given)?;
        Ok(serde_json::json!([id, bias.is_finite().then_some(bias)]))
    };
    value.split_whitespace().map(bias).collect::<Result<Vec<_>, String>>().map(Value::from)
}

/// `42+5`, `42-1.5`, `42-inf`: a token's id and what is added to its logit, in llama.cpp's spelling.
///
/// # Errors
///
/// Says what is expected.
pub fn parse_bias(given: &str) -> Result<(u32, f32), String> {
    let expected = || "expected a token's id and what to add, like 42+5 or 42-inf".to_owned();
    let at = given.find(['+', '-']).ok_or_else(expected)?;
    let (id, bias) = given.split_at(at);
    match (id.parse(), bias.parse()) {
        (Ok(id), Ok(bias)) if bias < f32::INFINITY => Ok((id, bias)),
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_json_and_the_engines_form() {
        let settings = Settings {
            temp: 0.7,
            typical: 0.9,
            xtc_probability: 0.5,
            dry_multiplier: 0.8,
            dry_penalty_last_n: Some(77),
            samplers: "temperature;top_k".parse().unwrap(),
            mirostat: 2,
            mirostat_tau: 3.0,
            logit_bias: vec![(3, Some(-1.5)), (4, None)],
            seed: Some(u64::MAX),
            max_tokens: Some(9),
            stop: vec!["\n\n".into()],
            on_full: OnFull::Drop,
            ..Settings::default()
        };
        let text = serde_json::to_string(&settings).unwrap();
        assert!(text.contains("\"temp\":0.7,") && text.contains("\"on-full\":\"drop\""), "{text}");
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
        let engine = settings.sampling();
        assert_eq!(engine.logit_bias, [(3, -1.5), (4, f32::NEG_INFINITY)]);
        assert_eq!(Settings::of(&engine).sampling(), engine);
        assert_eq!(settings.named()["top-p"], serde_json::json!(0.95));
    }

    #[test]
    fn one_setting_is_replaced_by_name() {
        let s = Settings::default();
        assert_eq!(s.with("temp", "0").unwrap().temp, 0.0);
        assert_eq!(s.with("seed", "7").unwrap().with("seed", "none").unwrap().seed, None);
        assert_eq!(s.with("on-full", "drop").unwrap().on_full, OnFull::Drop);
        assert_eq!(s.with("stop", "[\"a\", \"b\"]").unwrap().stop, ["a", "b"]);
        for (given, stop) in [("### end", "### end"), ("\"\\n\"", "\n"), ("42", "42")] {
            assert_eq!(s.with("stop", given).unwrap().stop, [stop]);
        }
        assert!(s.with("stop", "x").unwrap().with("stop", "none").unwrap().stop.is_empty());
        let biased = s.with("logit-bias", "3-1.5 4-inf").unwrap();
        assert_eq!(biased.logit_bias, [(3, Some(-1.5)), (4, None)]);
        assert_eq!(s.with("logit-bias", "[[3, -1.5], [4, null]]").unwrap(), biased);
        for (name, value) in [
            ("logit-bias", "3"),
            ("logit-bias", "3+1 x"),
            ("heat", "1"),
            ("temp", "hot"),
            ("top-k", "-1"),
            ("seed", "1.5"),
            ("samplers", "top_k;heat"),
            ("on-full", "x"),
        ] {
            let e = s.with(name, value).unwrap_err();
            assert!(e.contains(name), "{e}");
        }
        assert_eq!(s.with("dry-breakers", "[\".\"]").unwrap().dry_breakers.0, ["."]);
        let order = s.with("samplers", "temp;top-k").unwrap().samplers;
        assert_eq!(order.to_string(), "temperature;top_k");
        // A file of an earlier version has fewer.
        assert_eq!(
            serde_json::from_str::<Settings>("{\"temp\":0.5}").unwrap(),
            s.with("temp", "0.5").unwrap()
        );
        assert!(s.with("heat", "1").unwrap_err().contains("top-k"));
    }

    #[test]
    fn a_bias_is_an_id_and_a_signed_number() {
        assert_eq!(parse_bias("42+5"), Ok((42, 5.0)));
        assert_eq!(parse_bias("0-1.5"), Ok((0, -1.5)));
        assert_eq!(parse_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for bad in ["", "42", "42=5", "+5", "a+5", "42+x", "42+inf", "42+nan", "-1+5", "4294967296+1"] {
            assert!(parse_bias(bad).is_err(), "{bad}");
        }
    }
}
