//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::{Request, Usage};
use minfer_tokenizer::{AnswerEvent, AnswerFormat, AnswerParser, TemplateInput};
use serde_json::{Map, Value, json};

use super::messages::Messages;
use super::{
    Answer, EventStream, choices_of, count, finish_reason, include_usage, logprobs_json, sampling, usage,
};
use crate::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choices, News, Reading};
use crate::host::Model;

/// A request, checked.
struct Chat {
    model: Arc<dyn Model>,
    request: Request,
    /// The prompt as a text, for who reads the answer.
    prompt: String,
    tools: Option<Value>,
    parallel: bool,
    n: usize,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
}

/// Answers.
pub(crate) async fn completions(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let chat = Chat::parse(&app, body)?;
    let format =
        chat.model.template().map_or(AnswerFormat::Hermes, |t| AnswerFormat::of_template(t.source()));
    let reading = || Reading {
        parser: Some(AnswerParser::new(format, chat.tools.as_ref(), &chat.prompt)),
        calls: if chat.parallel { usize::MAX } else { 1 },
    };
    let choices = Choices::start(&chat.model, choices_of(chat.request.clone(), chat.n), reading)?;
    match chat.stream {
        true => {
            let (stream, response) = EventStream::new();
            tokio::spawn(streamed(chat, choices, stream));
            Ok(response)
        }
        false => whole(chat, choices).await,
    }
}

/// `POST /apply-template`: the prompt as a text.
pub(crate) fn apply_template(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    let model = app.model(fields.take::<String>("model")?.as_deref())?;
    let tools = fields.take("tools")?;
    let prompt = render(&model, &mut fields, tools.as_ref())?;
    fields.finish()?;
    Ok(Json(json!({"prompt": prompt})).into_response())
}

impl Chat {
    fn parse(app: &App, body: &[u8]) -> Result<Chat, ApiError> {
        let mut fields = Fields::parse(body)?;
        let model = app.model(fields.take::<String>("model")?.as_deref())?;
        let tools = tools(&mut fields)?;
        let prompt = render(&model, &mut fields, tools.as_ref())?;
        let mut request = sampling::request(&mut fields, &*model)?;
        request.prompt = model.tokenizer().encode_prompt(&prompt);
        if tools.is_some() && request.constraint.is_some() {
            return Err(ApiError::field("tools", "cannot be used with a constraint on the text"));
        }
        let logprobs = fields.take("logprobs")?.unwrap_or(false);
        let top: Option<u8> = fields.take("top_logprobs")?;
        if top.is_some_and(|top| top > 0) && !logprobs {
            return Err(ApiError::field("top_logprobs", "needs logprobs to be true"));
        }
        request.logprobs = logprobs.then(|| top.unwrap_or(0));
        let chat = Chat {
            n: count(fields.take("n")?)?,
            stream: fields.take("stream")?.unwrap_or(false),
            parallel: fields.take("parallel_tool_calls")?.unwrap_or(true),
            include_usage: include_usage(&mut fields)?,
            model,
            request,
            prompt,
            tools,
            logprobs,
        };
        fields.ignore(&["user", "metadata", "store", "service_tier", "prediction", "cache_prompt"]);
        fields.ignore(&["prompt_cache_key", "safety_identifier"]);
        fields.finish()?;
        Ok(chat)
    }
}

/// The tools that the model is told of.
fn tools(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let tools: Option<Vec<Value>> = fields.take("tools")?;
    let choice: Option<Value> = fields.take("tool_choice")?;
    let tools = tools.filter(|tools| !tools.is_empty());
    for (index, tool) in tools.iter().flatten().enumerate() {
        if tool["type"] != "function" || !tool["function"]["name"].is_string() {
            return Err(ApiError::field(format!("tools[{index}]"), "is no function with a name"));
        }
    }
    match choice.as_ref().map(|choice| choice.as_str().unwrap_or("a named function")) {
        None | Some("auto") => Ok(tools.map(Value::Array)),
        Some("none") => Ok(None),
        Some(choice) => Err(ApiError {
            code: Some("unsupported_parameter"),
            ..ApiError::field(
                "tool_choice",
                format!("{choice:?} is not supported, \"auto\" and \"none\" are"),
            )
        }),
    }
}

/// The conversation in the model's template.
fn render(model: &Arc<dyn Model>, fields: &mut Fields, tools: Option<&Value>) -> Result<String, ApiError> {
    let messages: Messages = fields.need("messages")?;
    let mut kwargs: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        kwargs.insert("reasoning_effort".to_owned(), json!(effort));
    }
    let add_generation_prompt = fields.take("add_generation_prompt")?.unwrap_or(true);
    let Some(template) = model.template() else {
        return Err(ApiError::invalid(
            "the model has no chat template: it continues text, but does not answer",
        ));
    };
    let tokenizer = model.tokenizer();
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.piece(id)).unwrap_or_default().into_owned();
    let input = TemplateInput {
        messages: messages.for_template()?,
        tools: tools.cloned(),
        add_generation_prompt,
        bos: text(tokenizer.bos()),
        eos: text(tokenizer.eos()),
        kwargs,
        now: None,
    };
    template.render(&input).map_err(|error| ApiError::field("messages", error))
}

/// A choice as it grows.
#[derive(Default)]
struct Message {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    logprobs: Vec<Value>,
    finish: Option<&'static str>,
}

impl Message {
    fn add(&mut self, event: AnswerEvent) {
        match event {
            AnswerEvent::Content(text) => self.content += &text,
            AnswerEvent::Reasoning(text) => self.reasoning += &text,
            AnswerEvent::ToolCall { index, name, arguments } => {
                if self.calls.len() <= index {
                    self.calls.resize_with(index + 1, Default::default);
                }
                let call = &mut self.calls[index];
                call.0 += &name.unwrap_or_default();
                call.1 += &arguments;
            }
        }
    }

    fn json(self, index: usize, id: &str, logprobs: bool) -> Value {
        let content =
            if self.content.is_empty() && !self.calls.is_empty() { Value::Null } else { json!(self.content) };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            let call = |(number, (name, arguments)): (usize, (String, String))| {
                json!({"id": call_id(id, index, number), "type": "function",
                    "function": {"name": name, "arguments": arguments}})
            };
            message["tool_calls"] = self.calls.into_iter().enumerate().map(call).collect();
        }
        let logprobs = if logprobs { json!({"content": self.logprobs}) } else { Value::Null };
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.finish})
    }
}

/// An id of a tool call, unique among all answers.
fn call_id(answer: &str, choice: usize, number: usize) -> String {
    format!("call_{}_{choice}_{number}", answer.trim_start_matches("chatcmpl-"))
}

async fn whole(chat: Chat, mut choices: Choices) -> Result<Response, ApiError> {
    let answer = Answer::new("chatcmpl", "chat.completion", &*chat.model);
    let mut messages: Vec<Message> = (0..chat.n).map(|_| Message::default()).collect();
    let mut used = vec![Usage::default(); chat.n];
    while let Some(piece) = choices.pieces.recv().await {
        let message = &mut messages[piece.choice];
        match piece.news {
            News::Delta { events, logprobs } => {
                events.into_iter().for_each(|event| message.add(event));
                let json = logprobs.map(|(id, p)| logprobs_json(chat.model.tokenizer(), id, &p));
                message.logprobs.extend(json);
            }
            News::End { reason, usage } => {
                let finish = finish_reason(&reason)?;
                let called = finish == "stop" && !message.calls.is_empty();
                message.finish = Some(if called { "tool_calls" } else { finish });
                used[piece.choice] = usage;
            }
        }
    }
    let of = |(index, message): (usize, Message)| message.json(index, &answer.id, chat.logprobs);
    let list = messages.into_iter().enumerate().map(of).collect();
    Ok(Json(answer.json(list, Some(usage(&used, chat.n)))).into_response())
}

async fn streamed(chat: Chat, mut choices: Choices, stream: EventStream) {
    let answer = Answer::new("chatcmpl", "chat.completion.chunk", &*chat.model);
    let chunk = |choice: usize, delta: Value, logprobs: Value, finish: Option<&str>| {
        answer.json(
            json!([{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]),
            None,
        )
    };
    for choice in 0..chat.n {
        let role = json!({"role": "assistant", "content": ""});
        if !stream.send(&chunk(choice, role, Value::Null, None)).await {
            return;
        }
    }
    let mut called = vec![false; chat.n];
    let mut used = vec![Usage::default(); chat.n];
    while let Some(piece) = stream.next(&mut choices).await {
        let index = piece.choice;
        let sent = match piece.news {
            News::Delta { events, logprobs } => {
                let json = logprobs
                    .map(|(id, p)| json!({"content": [logprobs_json(chat.model.tokenizer(), id, &p)]}));
                let mut logprobs = json.unwrap_or_default();
                let mut deltas: Vec<Value> = Vec::new();
                for event in events {
                    called[index] |= matches!(event, AnswerEvent::ToolCall { .. });
                    deltas.push(delta(event, &answer.id, index));
                }
                // A token that settles no text yet has its log-probability all the same.
                if deltas.is_empty() && !logprobs.is_null() {
                    deltas.push(json!({}));
                }
                let mut sent = true;
                for delta in deltas {
                    sent = sent && stream.send(&chunk(index, delta, logprobs.take(), None)).await;
                }
                sent
            }
            News::End { reason, usage } => {
                used[index] = usage;
                match finish_reason(&reason) {
                    Ok("stop") if called[index] => {
                        stream.send(&chunk(index, json!({}), Value::Null, Some("tool_calls"))).await
                    }
                    Ok(finish) => stream.send(&chunk(index, json!({}), Value::Null, Some(finish))).await,
                    Err(error) => {
                        stream.send(&error.body()).await;
                        false
                    }
                }
            }
        };
        if !sent {
            return;
        }
    }
    if chat.include_usage {
        stream.send(&answer.json(json!([]), Some(usage(&used, chat.n)))).await;
    }
    stream.done().await;
}

fn delta(event: AnswerEvent, id: &str, choice: usize) -> Value {
    match event {
        AnswerEvent::Content(text) => json!({"content": text}),
        AnswerEvent::Reasoning(text) => json!({"reasoning_content": text}),
        AnswerEvent::ToolCall { index, name: Some(name), arguments } => json!({"tool_calls": [{
            "index": index, "id": call_id(id, choice, index), "type": "function",
            "function": {"name": name, "arguments": arguments},
        }]}),
        AnswerEvent::ToolCall { index, name: None, arguments } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
        }
    }
}
