//! The fields that say how tokens are chosen and what ends a text.

use minfer_engine::executor::TokenId;
use minfer_engine::{Begin, Constraint, Grammar, Request, SamplingParams, Stop};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{OneOrMore, missing};
use crate::host::Model;

/// How tokens are chosen, and what ends the text. What is left out is as the engine has it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Sampling {
    /// Tokens to generate at most, reasoning included; −1 is no bound.
    pub(crate) max_completion_tokens: Option<i64>,
    /// The older name of `max_completion_tokens`.
    pub(crate) max_tokens: Option<i64>,
    /// llama.cpp's name of `max_completion_tokens`.
    pub(crate) n_predict: Option<i64>,
    /// What ends the text: up to 16 strings, which are no part of it.
    pub(crate) stop: Option<OneOrMore>,
    /// Go on where the model would end.
    pub(crate) ignore_eos: Option<bool>,
    /// Any integer; with the same one the answer is the same. −1 is none.
    pub(crate) seed: Option<i64>,
    /// 0 takes the most probable token.
    pub(crate) temperature: Option<f32>,
    /// Keep the k most probable tokens; 0 and less keep all.
    pub(crate) top_k: Option<i64>,
    /// Keep the most probable tokens that together have this probability.
    pub(crate) top_p: Option<f32>,
    /// Keep tokens with at least this share of the largest probability.
    pub(crate) min_p: Option<f32>,
    /// Keep the most typical tokens that together have this probability.
    pub(crate) typical_p: Option<f32>,
    /// Keep tokens whose logit is at most so many standard deviations below the largest.
    pub(crate) top_n_sigma: Option<f32>,
    /// How probably the most probable tokens are excluded.
    pub(crate) xtc_probability: Option<f32>,
    /// The least probability of tokens that may be excluded.
    pub(crate) xtc_threshold: Option<f32>,
    /// How far the temperature goes below and above by the entropy.
    pub(crate) dynatemp_range: Option<f32>,
    /// The power of the entropy's share that the temperature follows.
    pub(crate) dynatemp_exponent: Option<f32>,
    /// 0, or 2 for the second version of mirostat.
    pub(crate) mirostat: Option<u32>,
    /// The surprise that mirostat aims at.
    pub(crate) mirostat_tau: Option<f32>,
    /// How fast mirostat learns.
    pub(crate) mirostat_eta: Option<f32>,
    /// Divides the logits of tokens in the penalty window; 1 does nothing.
    pub(crate) repetition_penalty: Option<f32>,
    /// llama.cpp's name of `repetition_penalty`.
    pub(crate) repeat_penalty: Option<f32>,
    /// Subtracted for every occurrence in the penalty window.
    pub(crate) frequency_penalty: Option<f32>,
    /// Subtracted once for a token in the penalty window.
    pub(crate) presence_penalty: Option<f32>,
    /// Tokens that the penalties look at, the last ones, prompt included; −1 is all.
    pub(crate) repeat_last_n: Option<i64>,
    /// What repeating a run of tokens costs; 0 is nothing.
    pub(crate) dry_multiplier: Option<f32>,
    /// By how much that grows with the run.
    pub(crate) dry_base: Option<f32>,
    /// The longest run that costs nothing.
    pub(crate) dry_allowed_length: Option<usize>,
    /// Tokens that are looked at for runs; −1 is all.
    pub(crate) dry_penalty_last_n: Option<i64>,
    /// What ends a run.
    pub(crate) dry_sequence_breakers: Option<Vec<String>>,
    /// The steps of sampling in their order: a list of names, or names with semicolons between.
    pub(crate) samplers: Option<OneOrMore>,
    /// Added to the logits of tokens, by their ids; −100 or less, and false, ban one.
    pub(crate) logit_bias: Option<Map<String, Value>>,
    /// What the text has to be.
    pub(crate) response_format: Option<ResponseFormat>,
    /// A JSON Schema that the text has to follow.
    pub(crate) json_schema: Option<Value>,
    /// A grammar in GBNF or in llguidance's Lark that the text has to follow.
    pub(crate) grammar: Option<String>,
}

/// What the text has to be: `text`, `json_object` or `json_schema`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(crate) struct ResponseFormat {
    /// Which.
    r#type: String,
    /// Of `json_schema`.
    json_schema: Option<NamedSchema>,
    /// llama.cpp's place for the schema.
    schema: Option<Value>,
}

/// A JSON Schema with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(crate) struct NamedSchema {
    /// The schema.
    schema: Option<Value>,
}

impl Sampling {
    /// The request with everything but its prompt and its log-probabilities.
    pub(crate) fn request(self, model: &dyn Model) -> Result<Request, ApiError> {
        let constraint = self.constraint()?;
        let max_tokens = self.max_tokens()?;
        let mut sampling = self.params()?;
        let mut tokens = model.tokenizer().end_of_generation();
        if self.ignore_eos.unwrap_or(false) {
            sampling.logit_bias.extend(tokens.drain(..).map(|id| (id, f32::NEG_INFINITY)));
            sampling.logit_bias.sort_unstable_by_key(|&(id, _)| id);
            sampling.logit_bias.dedup_by_key(|&mut (id, _)| id);
        }
        if sampling.dry.multiplier != 0.0 {
            let usual = || ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
            let breakers = self.dry_sequence_breakers.unwrap_or_else(usual);
            sampling.dry.breakers = model.tokenizer().special_or_with(&breakers);
        }
        let stop = self.stop.map(OneOrMore::into_list).unwrap_or_default();
        // Empty strings end nothing; some clients send them.
        let strings = stop.into_iter().filter(|text| !text.is_empty()).map(String::into_bytes).collect();
        Ok(Request { max_tokens, sampling, stop: Stop { tokens, strings }, constraint, ..Request::default() })
    }

    fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        let named = [
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_tokens", self.max_tokens),
            ("n_predict", self.n_predict),
        ];
        match named.into_iter().find_map(|(name, count)| Some((name, count?))) {
            None | Some((_, -1)) => Ok(None),
            Some((name, count)) if count < 1 => {
                Err(ApiError::field(name, format!("is {count}, must be at least 1")))
            }
            Some((_, count)) => Ok(Some(count as usize)),
        }
    }

    fn params(&self) -> Result<SamplingParams, ApiError> {
        let mut params = SamplingParams::default();
        fn set<T>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        // What is negative is everything that there is.
        let window = |count: i64| usize::try_from(count).unwrap_or(usize::MAX);
        set(&mut params.temperature, self.temperature);
        set(&mut params.top_k, self.top_k.map(|k| k.clamp(0, u32::MAX.into()) as u32));
        set(&mut params.top_p, self.top_p);
        set(&mut params.min_p, self.min_p);
        set(&mut params.typical_p, self.typical_p);
        set(&mut params.top_n_sigma, self.top_n_sigma);
        set(&mut params.xtc_probability, self.xtc_probability);
        set(&mut params.xtc_threshold, self.xtc_threshold);
        set(&mut params.dynatemp_range, self.dynatemp_range);
        set(&mut params.dynatemp_exponent, self.dynatemp_exponent);
        set(&mut params.mirostat.version, self.mirostat);
        set(&mut params.mirostat.tau, self.mirostat_tau);
        set(&mut params.mirostat.eta, self.mirostat_eta);
        set(&mut params.repetition_penalty, self.repetition_penalty.or(self.repeat_penalty));
        set(&mut params.frequency_penalty, self.frequency_penalty);
        set(&mut params.presence_penalty, self.presence_penalty);
        set(&mut params.penalty_window, self.repeat_last_n.map(window));
        set(&mut params.dry.multiplier, self.dry_multiplier);
        set(&mut params.dry.base, self.dry_base);
        set(&mut params.dry.allowed_length, self.dry_allowed_length);
        set(&mut params.dry.window, self.dry_penalty_last_n.map(window));
        params.seed = self.seed.filter(|&seed| seed != -1).map(|seed| seed as u64);
        params.logit_bias = self.logit_bias()?;
        if let Some(samplers) = &self.samplers {
            let names = samplers.clone().into_list().join(";");
            params.samplers = names.parse().map_err(|error| ApiError::field("samplers", error))?;
        }
        Ok(params)
    }

    /// Token ids as the keys of an object.
    fn logit_bias(&self) -> Result<Vec<(TokenId, f32)>, ApiError> {
        let mut list = Vec::new();
        for (key, value) in self.logit_bias.iter().flatten() {
            let id: TokenId = key
                .parse()
                .map_err(|_| ApiError::field("logit_bias", format!("{key:?} is not a token id")))?;
            let bias = match value {
                // As llama.cpp has it: the token never comes.
                Value::Bool(false) => f32::NEG_INFINITY,
                value => value.as_f64().ok_or_else(|| {
                    ApiError::field("logit_bias", format!("the bias of token {id} is not a number"))
                })? as f32,
            };
            // OpenAI's −100 bans.
            list.push((id, if bias <= -100.0 { f32::NEG_INFINITY } else { bias }));
        }
        list.sort_unstable_by_key(|&(id, _)| id);
        Ok(list)
    }

    /// What the text has to be: one of `response_format`, `json_schema` and `grammar`.
    fn constraint(&self) -> Result<Option<Constraint>, ApiError> {
        let mut found = Vec::new();
        if let Some(format) = &self.response_format {
            found.extend(format.grammar()?);
        }
        found.extend(self.json_schema.as_ref().map(|schema| Grammar::JsonSchema(schema.to_string())));
        let grammar = self.grammar.clone().filter(|text| !text.is_empty());
        found.extend(grammar.map(Grammar::gbnf_or_lark));
        match found.len() {
            0 | 1 => Ok(found.pop().map(|grammar| Constraint { grammar, begin: Begin::Now })),
            _ => Err(ApiError::invalid("only one of response_format, json_schema and grammar is possible")),
        }
    }
}

impl NamedSchema {
    pub(crate) fn of(schema: Value) -> Self {
        NamedSchema { schema: Some(schema) }
    }
}

impl ResponseFormat {
    /// A text that follows a schema.
    pub(crate) fn json(schema: NamedSchema) -> Self {
        ResponseFormat { r#type: "json_schema".to_owned(), json_schema: Some(schema), schema: None }
    }

    /// Any JSON object.
    pub(crate) fn object() -> Self {
        ResponseFormat { r#type: "json_object".to_owned(), json_schema: None, schema: None }
    }

    fn grammar(&self) -> Result<Option<Grammar>, ApiError> {
        let named = self.json_schema.as_ref().and_then(|named| named.schema.as_ref());
        let schema = named.or(self.schema.as_ref()).map(|schema| Grammar::JsonSchema(schema.to_string()));
        match self.r#type.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(schema.unwrap_or(Grammar::JsonObject))),
            "json_schema" => schema.map(Some).ok_or_else(|| missing("response_format.json_schema.schema")),
            other => Err(ApiError::field("response_format.type", format!("{other:?} is not supported"))),
        }
    }
}
