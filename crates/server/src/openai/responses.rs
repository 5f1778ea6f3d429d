//! `/v1/responses`: answers of several items, which may be kept for the next question.

mod input;
mod items;
pub(crate) mod store;

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::{FinishReason, Usage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::tools::ChoiceField;
use super::{finish_reason, seconds, unique};
use crate::App;
use crate::conversation::{Conversation, Tool, ToolChoice, Turn};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choices, News};
use crate::sampling::{NamedSchema, ResponseFormat, Sampling};
use crate::stream::EventStream;
use input::{FunctionField, Input};
use items::Items;
use store::{Store, Stored};

/// A request.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ResponsesFields {
    /// The model's name; the only or first one if left out.
    model: Option<String>,
    /// A text, or messages, calls and their results.
    input: Option<Input>,
    /// What the system says before all else; not kept for the next question.
    instructions: Option<String>,
    /// The kept answer that this goes on after.
    previous_response_id: Option<String>,
    /// Whether the answer is kept, in memory and within bounds; true if left out.
    store: Option<bool>,
    /// Server-sent events instead of one answer.
    stream: Option<bool>,
    /// Tokens to generate at most, reasoning included.
    max_output_tokens: Option<i64>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    /// What the model may call.
    #[schemars(with = "Option<Vec<FunctionField>>")]
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    /// False: one call at most.
    parallel_tool_calls: Option<bool>,
    /// What the text has to be.
    text: Option<TextField>,
    reasoning: Option<ReasoningField>,
    /// Only `disabled`: what does not fit is refused.
    truncation: Option<String>,
    /// Kept with the answer, as the next one.
    #[expect(dead_code, reason = "the answer has it from the JSON")]
    metadata: Option<Map<String, Value>>,
    /// Without effect, but for log-probabilities, which are not supported.
    include: Option<Vec<String>>,
    #[expect(dead_code, reason = "the answer has it from the JSON")]
    user: Option<String>,
}

/// Fields without effect.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[allow(dead_code, reason = "read, but without effect")]
pub(crate) struct Effectless {
    service_tier: Option<Value>,
    prompt_cache_key: Option<Value>,
    prompt_cache_retention: Option<Value>,
    safety_identifier: Option<Value>,
    stream_options: Option<Value>,
}

/// About the text.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct TextField {
    format: Option<FormatField>,
    /// Without effect.
    #[expect(dead_code, reason = "read, but without effect")]
    verbosity: Option<String>,
}

/// What the text has to be.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct FormatField {
    /// `text`, `json_object` or `json_schema`.
    r#type: String,
    /// Of `json_schema`.
    schema: Option<Value>,
}

/// About the reasoning.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ReasoningField {
    /// As `reasoning_effort` of chat completions.
    effort: Option<String>,
    /// Without effect, as the next one: the reasoning is told as it is.
    #[expect(dead_code, reason = "read, but without effect")]
    summary: Option<String>,
    #[expect(dead_code, reason = "read, but without effect")]
    generate_summary: Option<String>,
}

impl TextField {
    fn format(self) -> Result<Option<ResponseFormat>, ApiError> {
        let Some(format) = self.format else { return Ok(None) };
        match &format.r#type[..] {
            "text" => Ok(None),
            "json_object" => Ok(Some(ResponseFormat::object())),
            "json_schema" => {
                let schema = format.schema.ok_or_else(|| crate::fields::missing("text.format.schema"))?;
                Ok(Some(ResponseFormat::json(NamedSchema::of(schema))))
            }
            other => Err(ApiError::field("text.format.type", format!("{other:?} is not supported"))),
        }
    }
}

/// An answer on its way.
struct Answer {
    /// The response without its output and its end.
    head: Value,
    items: Items,
    /// What it is kept as, if it is.
    kept: Option<(Arc<Store>, Vec<Value>)>,
}

/// `POST /v1/responses`.
pub(crate) async fn create(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let given: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let mut fields = Fields::parse(body)?;
    let own: ResponsesFields = fields.read()?;
    fields.read::<Effectless>()?;
    fields.finish()?;
    let stream = own.stream.unwrap_or(false);
    let (turn, answer) = prepare(&app, own, &given)?;
    let choices = turn.start(1)?;
    match stream {
        true => {
            let (stream, response) = EventStream::new();
            tokio::spawn(streamed(answer, choices, stream));
            Ok(response)
        }
        false => whole(answer, choices).await,
    }
}

fn prepare(app: &App, own: ResponsesFields, given: &Map<String, Value>) -> Result<(Turn, Answer), ApiError> {
    let model = app.model(own.model.as_deref())?;
    check(&own)?;
    let input = own.input.map(Input::items).transpose()?.unwrap_or_default();
    let mut context = match &own.previous_response_id {
        Some(id) => app.responses.context(id)?,
        None => Vec::new(),
    };
    context.extend(input.iter().cloned());
    if context.is_empty() {
        return Err(crate::fields::missing("input"));
    }
    let mut conversation = Conversation { tools: tools(own.tools)?, ..Conversation::default() };
    let system = own.instructions.as_ref().map(|text| json!({"role": "system", "content": text}));
    conversation.messages.extend(system);
    conversation.messages.extend(input::messages(&context)?);
    if let Some(choice) = own.tool_choice {
        let choice: ChoiceField = crate::fields::read_at(choice, "tool_choice")?;
        conversation.choice = choice.choice()?;
    }
    conversation.max_calls = (own.parallel_tool_calls == Some(false)).then_some(1);
    if let Some(effort) = own.reasoning.and_then(|reasoning| reasoning.effort) {
        conversation.effort(&effort);
    }
    let sampling = Sampling {
        max_tokens: own.max_output_tokens,
        temperature: own.temperature,
        top_p: own.top_p,
        response_format: own.text.map_or(Ok(None), TextField::format)?,
        ..Sampling::default()
    };
    let head = head(model.id(), given, own.store.unwrap_or(true), &conversation);
    let request = sampling.request(&*model)?;
    let kept = own.store.unwrap_or(true).then(|| (app.responses.clone(), input));
    Ok((conversation.turn(model, request)?, Answer { head, items: Items::default(), kept }))
}

/// Refuses what is not done.
fn check(own: &ResponsesFields) -> Result<(), ApiError> {
    if let Some(other) = own.truncation.as_deref().filter(|&truncation| truncation != "disabled") {
        return Err(ApiError::field("truncation", format!("{other:?} is not supported, \"disabled\" is")));
    }
    match own.include.iter().flatten().find(|what| what.contains("logprobs")) {
        Some(what) => Err(ApiError::field("include", format!("{what:?} is not supported"))),
        None => Ok(()),
    }
}

fn tools(list: Option<Vec<Value>>) -> Result<Vec<Tool>, ApiError> {
    let of = |(index, json): (usize, Value)| FunctionField::tool(json, format!("tools[{index}]"));
    list.into_iter().flatten().enumerate().map(of).collect()
}

/// The response before there is anything of it.
fn head(model: &str, given: &Map<String, Value>, store: bool, conversation: &Conversation) -> Value {
    let or = |name: &str, default: Value| {
        given.get(name).filter(|value| !value.is_null()).cloned().unwrap_or(default)
    };
    json!({
        "id": unique("resp_"),
        "object": "response",
        "created_at": seconds(),
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": or("instructions", Value::Null),
        "max_output_tokens": or("max_output_tokens", Value::Null),
        "model": model,
        "output": [],
        "parallel_tool_calls": conversation.max_calls.is_none(),
        "previous_response_id": or("previous_response_id", Value::Null),
        "reasoning": or("reasoning", json!({"effort": null, "summary": null})),
        "store": store,
        "temperature": or("temperature", Value::Null),
        "text": or("text", json!({"format": {"type": "text"}})),
        "tool_choice": or("tool_choice", json!(if conversation.choice == ToolChoice::None { "none" } else { "auto" })),
        "tools": or("tools", json!([])),
        "top_p": or("top_p", Value::Null),
        "truncation": "disabled",
        "usage": null,
        "user": or("user", Value::Null),
        "metadata": or("metadata", json!({})),
    })
}

impl Answer {
    /// The response as it is at its end, which is kept if it should be.
    fn end(&mut self, reason: &FinishReason, usage: &Usage) -> Value {
        let mut response = self.head.clone();
        response["usage"] = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.items.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        });
        match finish_reason(reason) {
            Ok("length") => {
                response["status"] = json!("incomplete");
                response["incomplete_details"] = json!({"reason": "max_output_tokens"});
            }
            Ok(_) => response["status"] = json!("completed"),
            Err(error) => {
                response["status"] = json!("failed");
                response["error"] = json!({"code": "server_error", "message": error.message});
                return response;
            }
        }
        response["output"] = json!(self.items.output);
        if let Some((store, input)) = self.kept.take() {
            store.keep(Stored { response: response.clone(), input });
        }
        response
    }
}

async fn whole(mut answer: Answer, mut choices: Choices) -> Result<Response, ApiError> {
    while let Some(piece) = choices.pieces.recv().await {
        match piece.news {
            News::Prompt { .. } => {}
            News::Delta { events, .. } => drop(answer.items.add_all(events)),
            News::End { reason, usage, .. } => {
                finish_reason(&reason)?;
                answer.items.end(reason == FinishReason::Length);
                return Ok(Json(answer.end(&reason, &usage)).into_response());
            }
        }
    }
    Err(ApiError::server("the answer has no end"))
}

async fn streamed(mut answer: Answer, mut choices: Choices, stream: EventStream) {
    let mut number = 0;
    let mut numbered = |mut event: Value| {
        event["sequence_number"] = json!(number);
        number += 1;
        event
    };
    for name in ["response.created", "response.in_progress"] {
        let event = numbered(json!({"type": name, "response": answer.head}));
        if !stream.send_typed(&event).await {
            return;
        }
    }
    while let Some(piece) = stream.next(&mut choices).await {
        let events = match piece.news {
            News::Prompt { .. } => Vec::new(),
            News::Delta { events, .. } => answer.items.add_all(events),
            News::End { reason, usage, .. } => {
                let mut events = answer.items.end(reason == FinishReason::Length);
                let response = answer.end(&reason, &usage);
                let name = format!("response.{}", response["status"].as_str().unwrap_or_default());
                events.push(json!({"type": name, "response": response}));
                events
            }
        };
        for event in events {
            if !stream.send_typed(&numbered(event)).await {
                return;
            }
        }
    }
}

/// `GET /v1/responses/{id}`.
pub(crate) fn get(app: &App, id: &str) -> Result<Response, ApiError> {
    Ok(Json(app.responses.get(id)?.response.clone()).into_response())
}

/// `DELETE /v1/responses/{id}`.
pub(crate) fn delete(app: &App, id: &str) -> Result<Response, ApiError> {
    app.responses.delete(id)?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})).into_response())
}

/// `GET /v1/responses/{id}/input_items`: the last first, unless `order=asc` is asked for; up to `limit` of them, `after` one.
pub(crate) fn input_items(app: &App, id: &str, query: &str) -> Result<Response, ApiError> {
    let stored = app.responses.get(id)?;
    let asked = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let limit = match asked("limit").map(str::parse) {
        None => 20,
        Some(Ok(limit @ 1..=100)) => limit,
        Some(_) => return Err(ApiError::field("limit", "must be 1 to 100")),
    };
    let mut items = stored.input.clone();
    match asked("order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "is neither asc nor desc")),
    }
    if let Some(after) = asked("after") {
        let at = items.iter().position(|item| item["id"] == after);
        let at = at.ok_or_else(|| ApiError::field("after", "is none of the items"))?;
        items.drain(..=at);
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map(|item| item["id"].clone()).unwrap_or_default();
    let (first, last) = (id(items.first()), id(items.last()));
    Ok(Json(json!({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": more}))
        .into_response())
}
