//! The fields that say how tokens are chosen and what ends a text.

use minfer_engine::executor::TokenId;
use minfer_engine::{Begin, Constraint, Grammar, Request, SamplingParams, Stop};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::host::Model;

/// One or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// The request with everything but its prompt and its log-probabilities.
pub(super) fn request(fields: &mut Fields, model: &dyn Model) -> Result<Request, ApiError> {
    let stop = match fields.take("stop")? {
        None => Vec::new(),
        Some(OneOrMore::One(text)) => vec![text],
        Some(OneOrMore::More(list)) => list,
    };
    // Empty strings end nothing; some clients send them.
    let strings = stop.into_iter().filter(|text| !text.is_empty()).map(String::into_bytes).collect();
    let ignore_eos = fields.take("ignore_eos")?.unwrap_or(false);
    let mut tokens = model.tokenizer().end_of_generation();
    let mut sampling = params(fields)?;
    sampling.logit_bias = logit_bias(fields)?;
    if ignore_eos {
        sampling.logit_bias.extend(tokens.drain(..).map(|id| (id, f32::NEG_INFINITY)));
        sampling.logit_bias.sort_unstable_by_key(|&(id, _)| id);
        sampling.logit_bias.dedup_by_key(|&mut (id, _)| id);
    }
    if let Some(breakers) = dry(fields, &mut sampling)? {
        sampling.dry.breakers = model.tokenizer().special_or_with(&breakers);
    }
    Ok(Request {
        max_tokens: max_tokens(fields)?,
        sampling,
        stop: Stop { tokens, strings },
        constraint: constraint(fields)?,
        ..Request::default()
    })
}

/// The older name is the fallback; −1 is no bound.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let found: Option<i64> = fields.take_one_of(&["max_completion_tokens", "max_tokens", "n_predict"])?;
    match found {
        None | Some(-1) => Ok(None),
        Some(count) => usize::try_from(count)
            .map(Some)
            .map_err(|_| ApiError::field("max_tokens", format!("is {count}, must be at least 1"))),
    }
}

fn params(fields: &mut Fields) -> Result<SamplingParams, ApiError> {
    let mut params = SamplingParams::default();
    fn set<T: serde::de::DeserializeOwned>(
        fields: &mut Fields,
        names: &[&str],
        place: &mut T,
    ) -> Result<(), ApiError> {
        if let Some(value) = fields.take_one_of(names)? {
            *place = value;
        }
        Ok(())
    }
    set(fields, &["temperature"], &mut params.temperature)?;
    set(fields, &["top_k"], &mut params.top_k)?;
    set(fields, &["top_p"], &mut params.top_p)?;
    set(fields, &["min_p"], &mut params.min_p)?;
    set(fields, &["typical_p"], &mut params.typical_p)?;
    set(fields, &["top_n_sigma"], &mut params.top_n_sigma)?;
    set(fields, &["xtc_probability"], &mut params.xtc_probability)?;
    set(fields, &["xtc_threshold"], &mut params.xtc_threshold)?;
    set(fields, &["dynatemp_range"], &mut params.dynatemp_range)?;
    set(fields, &["dynatemp_exponent"], &mut params.dynatemp_exponent)?;
    set(fields, &["mirostat"], &mut params.mirostat.version)?;
    set(fields, &["mirostat_tau"], &mut params.mirostat.tau)?;
    set(fields, &["mirostat_eta"], &mut params.mirostat.eta)?;
    set(fields, &["repetition_penalty", "repeat_penalty"], &mut params.repetition_penalty)?;
    set(fields, &["frequency_penalty"], &mut params.frequency_penalty)?;
    set(fields, &["presence_penalty"], &mut params.presence_penalty)?;
    set(fields, &["repeat_last_n"], &mut params.penalty_window)?;
    // Any integer is a seed, −1 none.
    params.seed = fields.take::<i64>("seed")?.filter(|&seed| seed != -1).map(|seed| seed as u64);
    Ok(params)
}

/// Token ids as the keys of an object.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let map: Map<String, Value> = fields.take("logit_bias")?.unwrap_or_default();
    let mut list = Vec::with_capacity(map.len());
    for (key, value) in &map {
        let id: TokenId =
            key.parse().map_err(|_| ApiError::field("logit_bias", format!("{key:?} is not a token id")))?;
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

/// The costs of repetitions; the texts that end one, if repetitions cost anything.
fn dry(fields: &mut Fields, params: &mut SamplingParams) -> Result<Option<Vec<String>>, ApiError> {
    let dry = &mut params.dry;
    dry.multiplier = fields.take("dry_multiplier")?.unwrap_or(dry.multiplier);
    dry.base = fields.take("dry_base")?.unwrap_or(dry.base);
    dry.allowed_length = fields.take("dry_allowed_length")?.unwrap_or(dry.allowed_length);
    let last: Option<i64> = fields.take("dry_penalty_last_n")?;
    dry.window = last.and_then(|last| usize::try_from(last).ok()).unwrap_or(dry.window);
    let breakers: Option<Vec<String>> = fields.take("dry_sequence_breakers")?;
    let usual = || ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
    Ok((dry.multiplier != 0.0).then(|| breakers.unwrap_or_else(usual)))
}

/// What the text has to be: one of `response_format`, `json_schema` and `grammar`.
fn constraint(fields: &mut Fields) -> Result<Option<Constraint>, ApiError> {
    #[derive(Deserialize)]
    struct Format {
        r#type: String,
        json_schema: Option<Map<String, Value>>,
        schema: Option<Value>,
    }
    let format: Option<Format> = fields.take("response_format")?;
    let schema: Option<Value> = fields.take("json_schema")?;
    let grammar: Option<String> = fields.take("grammar")?.filter(|text: &String| !text.is_empty());
    let mut found = Vec::new();
    match format {
        None => {}
        Some(format) => match format.r#type.as_str() {
            "text" => {}
            "json_object" => found.push(match format.schema {
                Some(schema) => Grammar::JsonSchema(schema.to_string()),
                None => Grammar::JsonObject,
            }),
            "json_schema" => {
                let schema =
                    format.json_schema.and_then(|mut named| named.remove("schema")).or(format.schema);
                let schema = schema
                    .ok_or_else(|| ApiError::field("response_format", "json_schema.schema is missing"))?;
                found.push(Grammar::JsonSchema(schema.to_string()));
            }
            other => {
                return Err(ApiError::field("response_format", format!("type {other:?} is not supported")));
            }
        },
    }
    found.extend(schema.map(|schema| Grammar::JsonSchema(schema.to_string())));
    found.extend(grammar.map(Grammar::gbnf_or_lark));
    match found.len() {
        0 | 1 => Ok(found.pop().map(|grammar| Constraint { grammar, begin: Begin::Now })),
        _ => Err(ApiError::invalid("only one of response_format, json_schema and grammar is possible")),
    }
}
