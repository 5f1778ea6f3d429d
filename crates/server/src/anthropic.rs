//! Anthropic's API: messages, and how many tokens they have.

mod input;
mod stream;

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::{FinishReason, Stopped, Usage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::answered::{Answered, arguments};
use crate::conversation::{Conversation, Ending, Tool, ToolChoice, Turn};
use crate::error::ApiError;
use crate::fields::{Fields, OneOrMore};
use crate::generation::{Choices, News};
use crate::openai::tools::check_name;
use crate::openai::{finish_reason, unique};
use crate::sampling::{NamedSchema, ResponseFormat, Sampling};
use crate::stream::EventStream;
use input::{Content, MessageField};

/// The conversation.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ConversationFields {
    /// The model's name.
    model: Option<String>,
    /// Of roles `user` and `assistant`. If the last is the assistant's, it goes on.
    messages: Vec<MessageField>,
    /// What comes before them.
    system: Option<Content>,
    /// What the model may call.
    tools: Option<Vec<ToolField>>,
    tool_choice: Option<ChoiceField>,
    thinking: Option<ThinkingField>,
}

/// How it is answered.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct MessagesFields {
    /// Tokens to generate at most, thinking included.
    max_tokens: i64,
    /// Strings that end the text; the answer says which one did.
    stop_sequences: Option<Vec<String>>,
    /// Server-sent events instead of one answer.
    stream: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    /// What the text has to be.
    output_format: Option<FormatField>,
    /// The newer place of the format.
    output_config: Option<OutputField>,
    /// Without effect, as the next two.
    #[expect(dead_code, reason = "read, but without effect")]
    metadata: Option<Value>,
    #[expect(dead_code, reason = "read, but without effect")]
    service_tier: Option<Value>,
    #[expect(dead_code, reason = "read, but without effect")]
    cache_control: Option<Value>,
}

/// A tool.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ToolField {
    /// `custom`, or left out: those that the server would run are not supported.
    r#type: Option<String>,
    name: String,
    /// For the model.
    description: Option<String>,
    /// A JSON Schema of its arguments.
    input_schema: Option<Value>,
    /// Its arguments follow the schema in any case.
    strict: Option<bool>,
}

/// Whether a tool is called.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ChoiceField {
    /// `auto`, `any`, `tool` or `none`.
    r#type: String,
    /// Which, of `tool`.
    name: Option<String>,
    /// One call at most.
    disable_parallel_tool_use: Option<bool>,
}

/// Whether the model thinks before it answers. Left out, that is the template's affair.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ThinkingField {
    /// `enabled`, `adaptive` or `disabled`.
    r#type: String,
    /// Tokens of thinking at most; then it is ended.
    budget_tokens: Option<usize>,
}

/// What the text has to be.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct FormatField {
    /// `json_schema`.
    r#type: String,
    schema: Option<Value>,
}

/// About the answer.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct OutputField {
    format: Option<FormatField>,
    /// A variable of the template, `reasoning_effort`.
    effort: Option<String>,
}

impl ConversationFields {
    fn conversation(self) -> Result<Conversation, ApiError> {
        let mut conversation = Conversation::default();
        if let Some(system) = self.system {
            let text = system.text("system")?;
            conversation
                .messages
                .extend((!text.is_empty()).then(|| json!({"role": "system", "content": text})));
        }
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "is empty"));
        }
        if self.messages.last().is_some_and(|message| message.role == "assistant") {
            conversation.ending = Ending::Open;
        }
        for (index, message) in self.messages.into_iter().enumerate() {
            conversation.messages.extend(message.for_template(&format!("messages[{index}]"))?);
        }
        for (index, tool) in self.tools.into_iter().flatten().enumerate() {
            conversation.tools.push(tool.tool(format!("tools[{index}]"))?);
        }
        if let Some(choice) = self.tool_choice {
            conversation.max_calls = (choice.disable_parallel_tool_use == Some(true)).then_some(1);
            conversation.choice = choice.choice()?;
        }
        match self.thinking.as_ref().map(|thinking| &thinking.r#type[..]) {
            None => {}
            Some("disabled") => drop(conversation.kwargs.insert("enable_thinking".to_owned(), json!(false))),
            Some("enabled" | "adaptive") => {
                conversation.kwargs.insert("enable_thinking".to_owned(), json!(true));
                conversation.budget = self.thinking.and_then(|thinking| thinking.budget_tokens);
            }
            Some(other) => return Err(ApiError::field("thinking.type", format!("{other:?} is not known"))),
        }
        Ok(conversation)
    }
}

impl ToolField {
    fn tool(self, at: String) -> Result<Tool, ApiError> {
        if let Some(kind) = self.r#type.filter(|kind| kind != "custom") {
            let what = format!("tools of type {kind:?} are not supported, only those that the client runs");
            return Err(ApiError { code: Some("unsupported_parameter"), ..ApiError::field(at, what) });
        }
        check_name(&self.name, &format!("{at}.name"))?;
        let strict = self.strict.unwrap_or(false);
        Ok(Tool::function(self.name, self.description, self.input_schema, strict, at))
    }
}

impl ChoiceField {
    fn choice(self) -> Result<ToolChoice, ApiError> {
        match (&self.r#type[..], self.name) {
            ("auto", _) => Ok(ToolChoice::Auto),
            ("none", _) => Ok(ToolChoice::None),
            ("any", _) => Ok(ToolChoice::Required),
            ("tool", Some(name)) => Ok(ToolChoice::Named(name)),
            ("tool", None) => Err(crate::fields::missing("tool_choice.name")),
            (other, _) => Err(ApiError::field("tool_choice.type", format!("{other:?} is not known"))),
        }
    }
}

impl MessagesFields {
    /// How tokens are chosen.
    fn sampling(self, conversation: &mut Conversation) -> Result<Sampling, ApiError> {
        let (config, effort) =
            self.output_config.map_or((None, None), |config| (config.format, config.effort));
        if let Some(effort) = effort {
            conversation.kwargs.insert("reasoning_effort".to_owned(), json!(effort));
        }
        let response_format = match self.output_format.or(config) {
            None => None,
            Some(format) if format.r#type == "json_schema" => {
                let Some(schema) = format.schema else {
                    return Err(crate::fields::missing("output_format.schema"));
                };
                Some(ResponseFormat::json(NamedSchema::of(schema)))
            }
            Some(format) => {
                return Err(ApiError::field(
                    "output_format.type",
                    format!("{:?} is not supported", format.r#type),
                ));
            }
        };
        Ok(Sampling {
            max_tokens: Some(self.max_tokens),
            stop: self.stop_sequences.map(OneOrMore::More),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            response_format,
            ..Sampling::default()
        })
    }
}

/// `POST /v1/messages`.
pub(crate) async fn messages(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    let of_conversation: ConversationFields = fields.read()?;
    let own: MessagesFields = fields.read()?;
    fields.finish()?;
    let model = app.model(of_conversation.model.as_deref())?;
    let mut conversation = of_conversation.conversation()?;
    let streamed = own.stream.unwrap_or(false);
    let stops = own.stop_sequences.clone().unwrap_or_default();
    let request = own.sampling(&mut conversation)?.request(&*model)?;
    let turn = conversation.turn(model, request)?;
    let choices = turn.start(1)?;
    let head = Head::new(&turn, stops);
    match streamed {
        true => {
            let (stream, response) = EventStream::new();
            tokio::spawn(stream::streamed(head, choices, stream));
            Ok(response)
        }
        false => whole(head, choices).await,
    }
}

/// `POST /v1/messages/count_tokens`.
pub(crate) fn count_tokens(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let fields: ConversationFields = Fields::whole(body)?;
    let model = app.model(fields.model.as_deref())?;
    let prompt = fields.conversation()?.render(&*model)?;
    let count = model.tokenizer().encode_prompt(&prompt).len();
    Ok(Json(json!({"input_tokens": count})).into_response())
}

/// What is known before an answer comes.
struct Head {
    id: String,
    model: String,
    prompt_tokens: usize,
    /// Strings that end the text, as the engine has them.
    stops: Vec<String>,
}

impl Head {
    fn new(turn: &Turn, mut stops: Vec<String>) -> Head {
        stops.retain(|stop| !stop.is_empty());
        let (model, prompt_tokens) = (turn.model.id().to_owned(), turn.request.prompt.len());
        Head { id: unique("msg_"), model, prompt_tokens, stops }
    }

    /// A message; its content and end are still to come.
    fn message(&self) -> Value {
        json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null,
            "usage": used(&Usage { prompt_tokens: self.prompt_tokens, ..Usage::default() })})
    }

    /// `stop_reason`, and the string that ended the text.
    fn end(&self, reason: &FinishReason, called: bool) -> Result<(&'static str, Option<&str>), ApiError> {
        Ok(match (finish_reason(reason)?, reason) {
            ("length", _) => ("max_tokens", None),
            (_, FinishReason::Stop(Stopped::String(index))) => {
                ("stop_sequence", self.stops.get(*index).map(String::as_str))
            }
            _ if called => ("tool_use", None),
            _ => ("end_turn", None),
        })
    }

    /// The id of a call.
    fn call_id(&self, index: usize) -> String {
        format!("toolu_{}_{index}", self.id.trim_start_matches("msg_"))
    }
}

/// Of the prompt, those tokens are counted that were computed.
fn used(usage: &Usage) -> Value {
    json!({"input_tokens": usage.prompt_tokens - usage.cached_tokens, "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0, "output_tokens": usage.completion_tokens})
}

async fn whole(head: Head, mut choices: Choices) -> Result<Response, ApiError> {
    let mut answered = Answered::default();
    let mut message = head.message();
    while let Some(piece) = choices.pieces.recv().await {
        match piece.news {
            News::Prompt { .. } => {}
            News::Delta { events, .. } => events.into_iter().for_each(|event| answered.add(event)),
            News::End { reason, usage, .. } => {
                let (reason, sequence) = head.end(&reason, !answered.calls.is_empty())?;
                message["stop_reason"] = json!(reason);
                message["stop_sequence"] = json!(sequence);
                message["usage"] = used(&usage);
            }
        }
    }
    let mut content = Vec::new();
    let Answered { content: text, reasoning, calls } = answered;
    if !reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": reasoning, "signature": ""}));
    }
    if !text.is_empty() {
        content.push(json!({"type": "text", "text": text}));
    }
    for (index, (name, input)) in calls.into_iter().enumerate() {
        let input = arguments(&input);
        content.push(json!({"type": "tool_use", "id": head.call_id(index), "name": name, "input": input}));
    }
    message["content"] = json!(content);
    Ok(Json(message).into_response())
}
