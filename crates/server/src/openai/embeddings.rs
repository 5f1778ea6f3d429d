//! `POST /v1/embeddings`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::completions::Prompts;
use crate::App;
use crate::embedding::{embed, shorten};
use crate::error::ApiError;
use crate::fields::Fields;

/// Texts to be embedded.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct EmbeddingFields {
    /// The model's name; the only or first one if left out.
    model: Option<String>,
    /// Up to 2048 texts.
    input: Prompts,
    /// `float`, or `base64` of little-endian 32-bit floats.
    encoding_format: Option<String>,
    /// Keep so many of the first values, at length 1 again: of use with models that were trained for it (Matryoshka).
    dimensions: Option<usize>,
    /// Without effect.
    #[expect(dead_code, reason = "read, but without effect")]
    user: Option<Value>,
}

/// Embeds.
pub(crate) async fn embeddings(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: EmbeddingFields = Fields::whole(body)?;
    let model = app.model(fields.model.as_deref())?;
    let base64 = match fields.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(ApiError::field("encoding_format", format!("{other:?} is neither float nor base64")));
        }
    };
    let width = model.about().embedding_width;
    if let Some(found) = fields.dimensions.filter(|found| !(1..=width).contains(found)) {
        return Err(ApiError::field("dimensions", format!("is {found}, must be 1 to {width}")));
    }
    let texts = fields.input.tokens(model.tokenizer());
    let mut embedded = embed(&model, texts, "input").await?;
    if let Some(dimensions) = fields.dimensions {
        embedded.vectors.iter_mut().for_each(|vector| shorten(vector, dimensions));
    }
    let of = |(index, vector): (usize, &Vec<f32>)| {
        let value = match base64 {
            true => json!(STANDARD.encode(vector.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())),
            false => json!(vector),
        };
        json!({"object": "embedding", "index": index, "embedding": value})
    };
    let data: Vec<Value> = embedded.vectors.iter().enumerate().map(of).collect();
    let usage = json!({"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens});
    Ok(Json(json!({"object": "list", "data": data, "model": model.id(), "usage": usage})).into_response())
}
