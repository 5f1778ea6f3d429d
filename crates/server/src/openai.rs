//! OpenAI's API: chat completions, completions, models.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod messages;
pub(crate) mod responses;
pub(crate) mod tools;

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::executor::TokenId;
use minfer_engine::{FinishReason, Logprobs, Usage};
use minfer_tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::ApiError;
use crate::host::Model;

/// Most choices of a request.
const MAX_CHOICES: usize = 16;
/// Name of the implementation, with which and with a seed an answer can be repeated.
const FINGERPRINT: &str = concat!("minfer-", env!("CARGO_PKG_VERSION"));

/// `GET /v1/models`.
pub(crate) fn models(app: &App) -> Response {
    let list: Vec<Value> = app.host.list().iter().map(|model| card(&**model)).collect();
    Json(json!({"object": "list", "data": list})).into_response()
}

/// `GET /v1/models/{id}`.
pub(crate) fn model(app: &App, id: &str) -> Result<Response, ApiError> {
    Ok(Json(card(&*app.model(Some(id))?)).into_response())
}

fn card(model: &dyn Model) -> Value {
    json!({
        "id": model.id(),
        "object": "model",
        "created": model.loaded(),
        "owned_by": "minfer",
        "context_length": model.engine().capacity(),
    })
}

/// An id that no other answer has and nobody guesses: hashes under keys that this process drew.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let [high, low] = KEYS.each_ref().map(|keys| keys.hash_one(count));
    format!("{prefix}{high:016x}{low:016x}")
}

/// Seconds since 1970.
pub(crate) fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What the answers to a request have in common.
#[derive(Clone)]
struct Answer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

impl Answer {
    fn new(prefix: &str, object: &'static str, model: &dyn Model) -> Self {
        Answer { id: unique(&format!("{prefix}-")), object, created: seconds(), model: model.id().to_owned() }
    }

    fn json(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut answer = json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if let Some(usage) = usage {
            answer["usage"] = usage;
        }
        answer
    }
}

/// `usage` of prompts with `n` choices each: a prompt is counted once.
fn usage(parts: &[Usage], n: usize) -> Value {
    let of_prompts = |count: fn(&Usage) -> usize| parts.iter().step_by(n).map(count).sum::<usize>();
    let prompt = of_prompts(|part| part.prompt_tokens);
    let completion: usize = parts.iter().map(|part| part.completion_tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": of_prompts(|part| part.cached_tokens)},
    })
}

/// About a stream.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct StreamOptions {
    /// It ends with its usage.
    include_usage: Option<bool>,
    /// Without effect: nothing is hidden by padding.
    #[expect(dead_code, reason = "read, but without effect")]
    include_obfuscation: Option<bool>,
}

impl StreamOptions {
    fn include_usage(self) -> bool {
        self.include_usage.unwrap_or(false)
    }
}

/// `finish_reason`, or why there is none.
pub(crate) fn finish_reason(reason: &FinishReason) -> Result<&'static str, ApiError> {
    match reason {
        FinishReason::Stop(_) | FinishReason::Banned => Ok("stop"),
        FinishReason::Length | FinishReason::Deadline => Ok("length"),
        FinishReason::Embedded => Err(ApiError::server("an embedding, where a text was asked for")),
        FinishReason::Cancelled => Err(ApiError::server("the server is shutting down")),
        FinishReason::SlowReader(events) => {
            Err(ApiError::server(format!("the client left {events} events unread")))
        }
        FinishReason::Error(what) => Err(ApiError::server(what.clone())),
    }
}

/// A token with its log-probability.
fn token_json(tokenizer: &Tokenizer, id: TokenId, logprob: f32) -> Value {
    let bytes = tokenizer.token_bytes(id);
    json!({"token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes.to_vec()})
}

fn logprobs_json(tokenizer: &Tokenizer, id: TokenId, logprobs: &Logprobs) -> Value {
    let mut token = token_json(tokenizer, id, logprobs.chosen);
    token["top_logprobs"] = logprobs.top.iter().map(|&(id, p)| token_json(tokenizer, id, p)).collect();
    token
}

/// `n`, within bounds.
fn count(n: Option<usize>) -> Result<usize, ApiError> {
    match n.unwrap_or(1) {
        n if (1..=MAX_CHOICES).contains(&n) => Ok(n),
        n => Err(ApiError::field("n", format!("is {n}, must be 1 to {MAX_CHOICES}"))),
    }
}
