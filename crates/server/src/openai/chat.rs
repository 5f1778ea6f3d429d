//! `POST /v1/chat/completions`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::Usage;
use minfer_tokenizer::AnswerEvent;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::messages::Messages;
use super::tools::{ChoiceField, ToolField, tools};
use super::{Answer, StreamOptions, count, finish_reason, logprobs_json, usage};
use crate::App;
use crate::answered::Answered;
use crate::conversation::{Conversation, Ending, ToolChoice, Turn};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choices, Clock, News};
use crate::sampling::Sampling;
use crate::stream::EventStream;

/// The conversation, and how it is rendered.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ConversationFields {
    /// The model's name; the only or first one if left out.
    model: Option<String>,
    messages: Messages,
    /// What the model may call.
    #[schemars(with = "Option<Vec<ToolField>>")]
    tools: Option<Vec<Value>>,
    /// Variables of the chat template.
    chat_template_kwargs: Option<Map<String, Value>>,
    /// `none`, `minimal`, `low`, `medium` or `high`: a variable of the template; `none` also says `enable_thinking: false`.
    reasoning_effort: Option<String>,
    /// False ends the prompt with the last message.
    add_generation_prompt: Option<bool>,
    /// The last message goes on.
    continue_final_message: Option<bool>,
}

/// What is particular to chats.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ChatFields {
    /// Whether a tool is called.
    tool_choice: Option<ChoiceField>,
    /// False: one call at most.
    parallel_tool_calls: Option<bool>,
    /// `none` leaves the reasoning in the content; `auto` and `deepseek` split it off.
    reasoning_format: Option<String>,
    /// Tokens that the model may reason for; then its reasoning is ended. −1 is no bound.
    reasoning_budget: Option<i64>,
    /// Another word for that.
    thinking: Option<ThinkingField>,
    /// The stream tells how far the prompt has been read.
    return_progress: Option<bool>,
    /// Every chunk tells how fast it goes.
    timings_per_token: Option<bool>,
    /// Answers, each with a seed of its own.
    n: Option<usize>,
    /// Server-sent events instead of one answer.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Log-probabilities of the tokens.
    logprobs: Option<bool>,
    /// And of so many of the most probable ones, up to 20.
    top_logprobs: Option<u8>,
    /// llama.cpp's word for both.
    n_probs: Option<u8>,
}

/// Whether and how long the model reasons.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ThinkingField {
    /// `enabled` or `disabled`.
    r#type: Option<String>,
    /// Tokens at most.
    budget_tokens: Option<usize>,
}

/// Fields without effect.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[allow(dead_code, reason = "read, but without effect")]
pub(crate) struct Effectless {
    user: Option<Value>,
    metadata: Option<Value>,
    store: Option<Value>,
    service_tier: Option<Value>,
    prediction: Option<Value>,
    prompt_cache_key: Option<Value>,
    prompt_cache_retention: Option<Value>,
    safety_identifier: Option<Value>,
    verbosity: Option<Value>,
    /// What was computed for the same beginning is used in any case; the answer is the same.
    cache_prompt: Option<bool>,
    id_slot: Option<i64>,
}

impl ConversationFields {
    fn conversation(self) -> Result<Conversation, ApiError> {
        let ending = match (self.continue_final_message, self.add_generation_prompt) {
            (Some(true), Some(true)) => {
                let what = "cannot be true along with add_generation_prompt";
                return Err(ApiError::field("continue_final_message", what));
            }
            (Some(true), _) => Ending::Open,
            (_, Some(false)) => Ending::Message,
            _ => Ending::Answer,
        };
        let mut conversation = Conversation {
            messages: self.messages.for_template()?,
            tools: tools(self.tools)?,
            kwargs: self.chat_template_kwargs.unwrap_or_default(),
            ending,
            ..Conversation::default()
        };
        if let Some(effort) = self.reasoning_effort {
            conversation.effort(&effort);
        }
        Ok(conversation)
    }
}

/// A request, checked.
struct Chat {
    turn: Turn,
    n: usize,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
    speaks: Speaks,
}

/// What a stream tells besides the answer.
#[derive(Clone, Copy, Debug)]
struct Speaks {
    progress: bool,
    timings: bool,
}

/// Answers.
pub(crate) async fn completions(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let chat = Chat::parse(&app, body)?;
    let choices = chat.turn.start(chat.n)?;
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
    let fields: ConversationFields = Fields::whole(body)?;
    let model = app.model(fields.model.as_deref())?;
    Ok(Json(json!({"prompt": fields.conversation()?.render(&*model)?})).into_response())
}

impl Chat {
    fn parse(app: &App, body: &[u8]) -> Result<Chat, ApiError> {
        let mut fields = Fields::parse(body)?;
        let of_conversation: ConversationFields = fields.read()?;
        let own: ChatFields = fields.read()?;
        let sampling: Sampling = fields.read()?;
        fields.read::<Effectless>()?;
        fields.finish()?;
        let model = app.model(of_conversation.model.as_deref())?;
        let mut request = sampling.request(&*model)?;
        if own.top_logprobs.is_some_and(|top| top > 0) && !own.logprobs.unwrap_or(false) {
            return Err(ApiError::field("top_logprobs", "needs logprobs to be true"));
        }
        let asked = own.logprobs.unwrap_or(false).then(|| own.top_logprobs.unwrap_or(0));
        request.logprobs = asked.or(own.n_probs.filter(|&n| n > 0));
        let mut conversation = of_conversation.conversation()?;
        conversation.choice = own.tool_choice.map_or(Ok(ToolChoice::Auto), ChoiceField::choice)?;
        conversation.max_calls = (own.parallel_tool_calls == Some(false)).then_some(1);
        conversation.unsplit = match own.reasoning_format.as_deref() {
            None | Some("auto" | "deepseek") => false,
            // Calls are found by who splits off the reasoning.
            Some("none") if conversation.tools.is_empty() => true,
            Some("none") => {
                return Err(ApiError::field("reasoning_format", "\"none\" is not possible with tools"));
            }
            Some(other) => {
                return Err(ApiError::field("reasoning_format", format!("{other:?} is not supported")));
            }
        };
        conversation.budget = own.reasoning_budget.and_then(|budget| usize::try_from(budget).ok());
        if let Some(ThinkingField { r#type, budget_tokens }) = own.thinking {
            conversation.budget = conversation.budget.or(budget_tokens);
            match r#type.as_deref() {
                None | Some("enabled") => {}
                Some("disabled") => {
                    conversation.kwargs.entry("enable_thinking").or_insert(json!(false));
                }
                Some(other) => {
                    return Err(ApiError::field("thinking.type", format!("{other:?} is not known")));
                }
            }
        }
        let logprobs = request.logprobs.is_some();
        let speaks = Speaks {
            progress: own.return_progress.unwrap_or(false),
            timings: own.timings_per_token.unwrap_or(false),
        };
        let include_usage = own.stream_options.is_some_and(StreamOptions::include_usage);
        let (n, stream) = (count(own.n)?, own.stream.unwrap_or(false));
        Ok(Chat { turn: conversation.turn(model, request)?, n, stream, include_usage, logprobs, speaks })
    }
}

/// A choice as it grows.
#[derive(Default)]
struct Message {
    answered: Answered,
    logprobs: Vec<Value>,
    finish: Option<&'static str>,
}

impl Message {
    fn json(self, index: usize, id: &str, logprobs: bool) -> Value {
        let Answered { content, reasoning, calls } = self.answered;
        let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { json!(content) };
        let mut message = json!({"role": "assistant", "content": content});
        if !reasoning.is_empty() {
            message["reasoning_content"] = json!(reasoning);
        }
        if !calls.is_empty() {
            let call = |(number, (name, arguments)): (usize, (String, String))| {
                json!({"id": call_id(id, index, number), "type": "function",
                    "function": {"name": name, "arguments": arguments}})
            };
            message["tool_calls"] = calls.into_iter().enumerate().map(call).collect();
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
    let answer = Answer::new("chatcmpl", "chat.completion", &*chat.turn.model);
    let mut messages: Vec<Message> = (0..chat.n).map(|_| Message::default()).collect();
    let mut used = vec![Usage::default(); chat.n];
    while let Some(piece) = choices.pieces.recv().await {
        let message = &mut messages[piece.choice];
        match piece.news {
            News::Prompt { .. } => {}
            News::Delta { events, logprobs } => {
                events.into_iter().for_each(|event| message.answered.add(event));
                let json = logprobs.map(|(id, p)| logprobs_json(chat.turn.model.tokenizer(), id, &p));
                message.logprobs.extend(json);
            }
            News::End { reason, usage, .. } => {
                let finish = finish_reason(&reason)?;
                let called = finish == "stop" && !message.answered.calls.is_empty();
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
    let answer = Answer::new("chatcmpl", "chat.completion.chunk", &*chat.turn.model);
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
    let mut clocks: Vec<Clock> = (0..chat.n).map(|_| Clock::new(chat.turn.request.prompt.len())).collect();
    while let Some(piece) = stream.next(&mut choices).await {
        let index = piece.choice;
        let clock = &mut clocks[index];
        clock.hears(&piece.news);
        let sent = match piece.news {
            News::Prompt { .. } if chat.speaks.progress => {
                let mut chunk = chunk(index, json!({}), Value::Null, None);
                chunk["prompt_progress"] = clock.progress();
                stream.send(&chunk).await
            }
            News::Prompt { .. } => true,
            News::Delta { events, logprobs } => {
                let json = logprobs
                    .map(|(id, p)| json!({"content": [logprobs_json(chat.turn.model.tokenizer(), id, &p)]}));
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
                    let mut chunk = chunk(index, delta, logprobs.take(), None);
                    if chat.speaks.timings {
                        chunk["timings"] = clock.timings();
                    }
                    sent = sent && stream.send(&chunk).await;
                }
                sent
            }
            News::End { reason, usage, .. } => {
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
