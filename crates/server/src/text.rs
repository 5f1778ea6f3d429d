//! `POST /tokenize` and `/detokenize`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::executor::TokenId;
use minfer_tokenizer::{EncodeOptions, Special};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::ApiError;
use crate::fields::{Fields, missing};

/// A text whose tokens are asked for.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct TokenizeFields {
    /// The model's name; the only or first one if left out.
    model: Option<String>,
    /// The text.
    content: Option<String>,
    /// Another name of `content`.
    prompt: Option<String>,
    /// With the special tokens that the model's file puts around a text; false if left out.
    add_special: Option<bool>,
    /// Another name of `add_special`.
    add_special_tokens: Option<bool>,
    /// Special tokens in the text are taken for such; true if left out.
    parse_special: Option<bool>,
    /// Each token with its piece of text.
    with_pieces: Option<bool>,
}

/// Tokens whose text is asked for.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct DetokenizeFields {
    /// The model's name; the only or first one if left out.
    model: Option<String>,
    tokens: Vec<TokenId>,
}

/// Ids of a text.
pub(crate) fn tokenize(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: TokenizeFields = Fields::whole(body)?;
    let model = app.model(fields.model.as_deref())?;
    let text = fields.content.or(fields.prompt).ok_or_else(|| missing("content"))?;
    let options = EncodeOptions {
        add_special: fields.add_special.or(fields.add_special_tokens).unwrap_or(false),
        parse_special: fields.parse_special.unwrap_or(true),
    };
    let tokenizer = model.tokenizer();
    let ids = tokenizer.encode(&text, options);
    let piece = |id: &TokenId| json!({"id": id, "piece": tokenizer.piece(*id).unwrap_or_default()});
    let tokens: Value =
        if fields.with_pieces == Some(true) { ids.iter().map(piece).collect() } else { json!(ids) };
    Ok(Json(json!({"tokens": tokens, "count": ids.len()})).into_response())
}

/// The text of ids; what is no character is replaced.
pub(crate) fn detokenize(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: DetokenizeFields = Fields::whole(body)?;
    let model = app.model(fields.model.as_deref())?;
    let vocab = model.tokenizer().vocab_size();
    if let Some(id) = fields.tokens.iter().find(|&&id| id as usize >= vocab) {
        return Err(ApiError::field("tokens", format!("has token {id}, the vocabulary has {vocab}")));
    }
    let text = model.tokenizer().decode(&fields.tokens, Special::Show);
    Ok(Json(json!({"content": String::from_utf8_lossy(&text)})).into_response())
}
