//! Ollama's API: chat, generate, embeddings, and what models there are.

mod input;

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::{Timings, Usage};
use minfer_tokenizer::{AnswerEvent, ChatTemplate};
use serde_json::{Value, json};

use crate::App;
use crate::answered::{Answered, arguments};
use crate::conversation::Turn;
use crate::embedding::{embed, shorten};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choices, News};
use crate::host::Model;
use crate::openai::finish_reason;
use crate::stream::LineStream;
use input::{ChatFields, EmbedFields, EmbeddingsFields, GenerateFields, ShowFields};

/// Clients that name no tag mean this one, and some name it.
const TAG: &str = ":latest";

/// The model that a request names, with or without a tag.
fn model_of(app: &App, name: Option<&str>) -> Result<Arc<dyn Model>, ApiError> {
    let found = app.model(name);
    match name.and_then(|name| name.strip_suffix(TAG)) {
        Some(plain) if found.is_err() => app.model(Some(plain)),
        _ => found,
    }
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}

fn details(model: &dyn Model) -> Value {
    let about = model.about();
    json!({"parent_model": "", "format": "gguf", "family": about.family, "families": [about.family],
        "parameter_size": about.size, "quantization_level": about.quantization})
}

fn modified(model: &dyn Model) -> String {
    let seconds = i64::try_from(model.loaded()).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// `GET /api/tags`.
pub(crate) fn tags(app: &App) -> Response {
    let card = |model: &Arc<dyn Model>| {
        json!({"name": model.id(), "model": model.id(), "modified_at": modified(&**model),
            "size": model.about().bytes, "digest": "", "details": details(&**model)})
    };
    let models: Vec<Value> = app.host.list().iter().map(card).collect();
    Json(json!({"models": models})).into_response()
}

/// `GET /api/version`.
pub(crate) fn version() -> Response {
    Json(json!({"version": env!("CARGO_PKG_VERSION")})).into_response()
}

/// `POST /api/show`.
pub(crate) fn show(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: ShowFields = Fields::whole(body)?;
    let model = model_of(app, Some(&fields.name()?))?;
    let about = model.about();
    let template = model.template().map(ChatTemplate::source).unwrap_or_default();
    let mut capabilities =
        vec![if model.engine().limits().bidirectional { "embedding" } else { "completion" }];
    capabilities.extend(template.contains("tools").then_some("tools"));
    capabilities.extend(template.contains("think").then_some("thinking"));
    let family = &about.family;
    Ok(Json(json!({
        "modelfile": "",
        "parameters": "",
        "template": template,
        "details": details(&*model),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": about.parameters,
            format!("{family}.context_length"): model.engine().limits().context,
            format!("{family}.embedding_length"): about.embedding_width,
        },
        "capabilities": capabilities,
        "modified_at": modified(&*model),
    }))
    .into_response())
}

/// `GET /props`, llama.cpp's.
pub(crate) fn props(app: &App) -> Result<Response, ApiError> {
    let model = app.model(None)?;
    let tokenizer = model.tokenizer();
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.piece(id)).unwrap_or_default().into_owned();
    Ok(Json(json!({
        "default_generation_settings": {"n_ctx": model.engine().capacity()},
        "model_alias": model.id(),
        "chat_template": model.template().map(ChatTemplate::source),
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("minfer ", env!("CARGO_PKG_VERSION")),
    }))
    .into_response())
}

/// `POST /api/embed`.
pub(crate) async fn embed_all(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: EmbedFields = Fields::whole(body)?;
    let model = model_of(&app, fields.model.as_deref())?;
    let capacity = model.engine().capacity();
    let tokens = |text: String| {
        let mut tokens = model.tokenizer().encode_prompt(&text);
        if fields.truncate != Some(false) && tokens.len() > capacity {
            // The end of an encoder's text is a token that it goes by.
            let last = tokens[tokens.len() - 1];
            tokens.truncate(capacity - 1);
            tokens.push(last);
        }
        tokens
    };
    let texts = fields.input.into_list().into_iter().map(tokens).collect();
    let mut embedded = embed(&model, texts, "input").await?;
    if let Some(dimensions) = fields.dimensions {
        let width = model.about().embedding_width;
        if !(1..=width).contains(&dimensions) {
            return Err(ApiError::field("dimensions", format!("is {dimensions}, must be 1 to {width}")));
        }
        embedded.vectors.iter_mut().for_each(|vector| shorten(vector, dimensions));
    }
    let total = total(&embedded.timings);
    Ok(Json(json!({"model": model.id(), "embeddings": embedded.vectors, "total_duration": total,
        "load_duration": 0, "prompt_eval_count": embedded.tokens}))
    .into_response())
}

/// `POST /api/embeddings`, the older form.
pub(crate) async fn embed_one(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: EmbeddingsFields = Fields::whole(body)?;
    let model = model_of(&app, fields.model.as_deref())?;
    let tokens = model.tokenizer().encode_prompt(&fields.prompt);
    let embedded = embed(&model, vec![tokens], "prompt").await?;
    Ok(Json(json!({"embedding": embedded.vectors[0]})).into_response())
}

/// Where the text of an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// `message`, of a chat.
    Message,
    /// `response`, of a text.
    Response,
}

/// What the lines of an answer have in common.
struct Head {
    model: String,
    place: Place,
}

impl Head {
    fn line(&self, text: &str, thinking: &str, calls: &[(String, String)]) -> Value {
        let mut line = json!({"model": self.model, "created_at": now()});
        let place = match self.place {
            Place::Message => {
                line["message"] = json!({"role": "assistant", "content": text});
                &mut line["message"]
            }
            Place::Response => {
                line["response"] = json!(text);
                &mut line
            }
        };
        if !thinking.is_empty() {
            place["thinking"] = json!(thinking);
        }
        if !calls.is_empty() {
            let call = |(name, text): &(String, String)| json!({"function": {"name": name, "arguments": arguments(text)}});
            place["tool_calls"] = calls.iter().map(call).collect();
        }
        line["done"] = json!(false);
        line
    }

    fn end(&self, mut line: Value, reason: &str, usage: &Usage, timings: &Timings) -> Value {
        let more = json!({
            "done": true,
            "done_reason": reason,
            "total_duration": total(timings),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(timings.prefill),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(timings.decode),
        });
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
            line.extend(more);
        }
        line
    }
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn total(timings: &Timings) -> u64 {
    nanoseconds(timings.queue + timings.prefill + timings.decode)
}

/// `POST /api/chat`.
pub(crate) async fn chat(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: ChatFields = Fields::whole(body)?;
    let model = model_of(&app, Some(&fields.model))?;
    let head = Head { model: fields.model.clone(), place: Place::Message };
    if fields.messages.is_empty() {
        return Ok(nothing(&head));
    }
    let request = fields.sampling()?.request(&*model)?;
    let stream = fields.stream.unwrap_or(true);
    let turn = fields.conversation()?.turn(model, request)?;
    answer(head, turn, stream).await
}

/// `POST /api/generate`.
pub(crate) async fn generate(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: GenerateFields = Fields::whole(body)?;
    let model = model_of(&app, Some(&fields.model))?;
    let head = Head { model: fields.model.clone(), place: Place::Response };
    let Some(prompt) = fields.prompt.clone().filter(|prompt| !prompt.is_empty()) else {
        return Ok(nothing(&head));
    };
    let request = fields.sampling()?.request(&*model)?;
    let stream = fields.stream.unwrap_or(true);
    let turn = match fields.raw == Some(true) || model.template().is_none() {
        true => Turn::text(model, request, &prompt),
        false => fields.conversation(prompt)?.turn(model, request)?,
    };
    answer(head, turn, stream).await
}

/// Without a question, a model is only loaded, which it is.
fn nothing(head: &Head) -> Response {
    let mut line = head.line("", "", &[]);
    line["done"] = json!(true);
    line["done_reason"] = json!("load");
    Json(line).into_response()
}

async fn answer(head: Head, turn: Turn, stream: bool) -> Result<Response, ApiError> {
    let choices = turn.start(1)?;
    match stream {
        true => {
            let (stream, response) = LineStream::new();
            tokio::spawn(streamed(head, choices, stream));
            Ok(response)
        }
        false => whole(head, choices).await,
    }
}

async fn whole(head: Head, mut choices: Choices) -> Result<Response, ApiError> {
    let mut answered = Answered::default();
    while let Some(piece) = choices.pieces.recv().await {
        match piece.news {
            News::Prompt { .. } => {}
            News::Delta { events, .. } => events.into_iter().for_each(|event| answered.add(event)),
            News::End { reason, usage, timings } => {
                let finish = finish_reason(&reason)?;
                let line = head.line(&answered.content, &answered.reasoning, &answered.calls);
                return Ok(Json(head.end(line, finish, &usage, &timings)).into_response());
            }
        }
    }
    Err(ApiError::server("the answer has no end"))
}

async fn streamed(head: Head, mut choices: Choices, stream: LineStream) {
    // A call is told when it is whole.
    let mut calls: Vec<(String, String)> = Vec::new();
    while let Some(piece) = stream.next(&mut choices).await {
        let mut lines = Vec::new();
        match piece.news {
            News::Prompt { .. } => {}
            News::Delta { events, .. } => {
                for event in events {
                    match event {
                        AnswerEvent::Content(text) => lines.push(head.line(&text, "", &[])),
                        AnswerEvent::Reasoning(text) => lines.push(head.line("", &text, &[])),
                        AnswerEvent::ToolCall { name: Some(name), arguments, .. } => {
                            if !calls.is_empty() {
                                lines.push(head.line("", "", &std::mem::take(&mut calls)));
                            }
                            calls.push((name, arguments));
                        }
                        AnswerEvent::ToolCall { arguments, .. } => {
                            if let Some((_, text)) = calls.last_mut() {
                                text.push_str(&arguments);
                            }
                        }
                    }
                }
            }
            News::End { reason, usage, timings } => {
                if !calls.is_empty() {
                    lines.push(head.line("", "", &std::mem::take(&mut calls)));
                }
                lines.push(match finish_reason(&reason) {
                    Ok(finish) => head.end(head.line("", "", &[]), finish, &usage, &timings),
                    Err(error) => json!({"error": error.message}),
                });
            }
        }
        for line in &lines {
            if !stream.send(line).await {
                return;
            }
        }
    }
}
