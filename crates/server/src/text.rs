//! `POST /tokenize` and `/detokenize`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::executor::TokenId;
use minfer_tokenizer::{EncodeOptions, Special};
use serde_json::{Value, json};

use crate::App;
use crate::error::ApiError;
use crate::fields::Fields;

/// Ids of a text.
pub(crate) fn tokenize(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    let model = app.model(fields.take::<String>("model")?.as_deref())?;
    let text: String = fields
        .take_one_of(&["content", "prompt"])?
        .ok_or_else(|| ApiError::field("content", "is missing"))?;
    let options = EncodeOptions {
        add_special: fields.take_one_of(&["add_special", "add_special_tokens"])?.unwrap_or(false),
        parse_special: fields.take("parse_special")?.unwrap_or(true),
    };
    let pieces = fields.take("with_pieces")?.unwrap_or(false);
    fields.finish()?;
    let tokenizer = model.tokenizer();
    let ids = tokenizer.encode(&text, options);
    let piece = |id: &TokenId| json!({"id": id, "piece": tokenizer.piece(*id).unwrap_or_default()});
    let tokens: Value = if pieces { ids.iter().map(piece).collect() } else { json!(ids) };
    Ok(Json(json!({"tokens": tokens, "count": ids.len()})).into_response())
}

/// The text of ids; what is no character is replaced.
pub(crate) fn detokenize(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    let model = app.model(fields.take::<String>("model")?.as_deref())?;
    let ids: Vec<TokenId> = fields.need("tokens")?;
    fields.finish()?;
    let vocab = model.tokenizer().vocab_size();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
        return Err(ApiError::field("tokens", format!("has token {id}, the vocabulary has {vocab}")));
    }
    let text = model.tokenizer().decode(&ids, Special::Show);
    Ok(Json(json!({"content": String::from_utf8_lossy(&text)})).into_response())
}
