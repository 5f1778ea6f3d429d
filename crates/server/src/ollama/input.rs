//! Requests as Ollama's clients send them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::conversation::{Conversation, Ending};
use crate::error::ApiError;
use crate::fields::{OneOrMore, missing, read_at};
use crate::openai::tools::{ToolField, tools};
use crate::sampling::{NamedSchema, ResponseFormat, Sampling};

/// `POST /api/chat`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ChatFields {
    pub(super) model: String,
    #[serde(default)]
    pub(super) messages: Vec<MessageField>,
    /// What the model may call.
    #[schemars(with = "Option<Vec<ToolField>>")]
    tools: Option<Vec<Value>>,
    /// Lines of JSON instead of one answer; true if left out.
    pub(super) stream: Option<bool>,
    /// Whether the model thinks before it answers, or how much: `low`, `medium`, `high`.
    think: Option<Value>,
    /// `json`, or a JSON Schema.
    format: Option<Value>,
    #[schemars(with = "Option<Options>")]
    options: Option<Map<String, Value>>,
    /// Without effect: a model stays.
    #[expect(dead_code, reason = "read, but without effect")]
    keep_alive: Option<Value>,
}

/// `POST /api/generate`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct GenerateFields {
    pub(super) model: String,
    pub(super) prompt: Option<String>,
    /// A message of the system before it.
    system: Option<String>,
    /// The prompt goes to the model as it is.
    pub(super) raw: Option<bool>,
    /// Not supported, unless empty.
    suffix: Option<String>,
    /// Lines of JSON instead of one answer; true if left out.
    pub(super) stream: Option<bool>,
    /// Whether the model thinks before it answers, or how much: `low`, `medium`, `high`.
    think: Option<Value>,
    /// `json`, or a JSON Schema.
    format: Option<Value>,
    #[schemars(with = "Option<Options>")]
    options: Option<Map<String, Value>>,
    /// Without effect: a model stays.
    #[expect(dead_code, reason = "read, but without effect")]
    keep_alive: Option<Value>,
}

/// `POST /api/show`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ShowFields {
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    /// Without effect.
    #[expect(dead_code, reason = "read, but without effect")]
    verbose: Option<bool>,
}

impl ShowFields {
    pub(super) fn name(self) -> Result<String, ApiError> {
        self.model.or(self.name).ok_or_else(|| missing("model"))
    }
}

/// `POST /api/embed`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct EmbedFields {
    pub(super) model: Option<String>,
    pub(super) input: OneOrMore,
    /// False refuses a text that is longer than the context, instead of cutting it off.
    pub(super) truncate: Option<bool>,
    /// Keep so many of the first values, at length 1 again.
    pub(super) dimensions: Option<usize>,
    /// Without effect, as the next one.
    #[expect(dead_code, reason = "read, but without effect")]
    options: Option<Value>,
    #[expect(dead_code, reason = "read, but without effect")]
    keep_alive: Option<Value>,
}

/// `POST /api/embeddings`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct EmbeddingsFields {
    pub(super) model: Option<String>,
    pub(super) prompt: String,
    /// Without effect, as the next one.
    #[expect(dead_code, reason = "read, but without effect")]
    options: Option<Value>,
    #[expect(dead_code, reason = "read, but without effect")]
    keep_alive: Option<Value>,
}

/// A message.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct MessageField {
    /// `system`, `user`, `assistant` or `tool`.
    role: String,
    #[serde(default)]
    content: String,
    thinking: Option<String>,
    /// Not supported, unless empty.
    images: Option<Vec<Value>>,
    tool_calls: Option<Vec<CallField>>,
    /// Whose result it is.
    tool_name: Option<String>,
    tool_call_id: Option<String>,
}

/// A call.
#[derive(Deserialize, JsonSchema)]
struct CallField {
    function: CalledField,
}

/// A call's function.
#[derive(Deserialize, JsonSchema)]
struct CalledField {
    name: String,
    arguments: Map<String, Value>,
}

/// How tokens are chosen.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[allow(dead_code, reason = "those of loading are read, but without effect")]
pub(crate) struct Options {
    num_predict: Option<i64>,
    seed: Option<i64>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repeat_last_n: Option<i64>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    mirostat: Option<u32>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    stop: Option<OneOrMore>,
    /// Without effect, as all that follow: what a model is loaded with is the server's affair.
    num_ctx: Option<i64>,
    num_keep: Option<i64>,
    num_batch: Option<i64>,
    num_gpu: Option<i64>,
    main_gpu: Option<i64>,
    num_thread: Option<i64>,
    numa: Option<bool>,
    use_mmap: Option<bool>,
    use_mlock: Option<bool>,
    low_vram: Option<bool>,
    f16_kv: Option<bool>,
    penalize_newline: Option<bool>,
}

/// The sampling that options and a format say.
fn sampling(options: &Option<Map<String, Value>>, format: &Option<Value>) -> Result<Sampling, ApiError> {
    let options: Options = match options {
        Some(options) => read_at(Value::Object(options.clone()), "options")?,
        None => Options::default(),
    };
    let mut sampling = Sampling {
        // −1 and −2 are as much as there is room for.
        n_predict: options.num_predict.map(|count| if count < 0 { -1 } else { count }),
        seed: options.seed,
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        min_p: options.min_p,
        typical_p: options.typical_p,
        repeat_last_n: options.repeat_last_n,
        repeat_penalty: options.repeat_penalty,
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        mirostat: options.mirostat,
        mirostat_tau: options.mirostat_tau,
        mirostat_eta: options.mirostat_eta,
        stop: options.stop,
        ..Sampling::default()
    };
    sampling.response_format = match format {
        None => None,
        Some(Value::String(name)) if name.is_empty() => None,
        Some(Value::String(name)) if name == "json" => Some(ResponseFormat::object()),
        Some(schema @ Value::Object(_)) => Some(ResponseFormat::json(NamedSchema::of(schema.clone()))),
        Some(_) => return Err(ApiError::field("format", "is neither \"json\" nor a JSON Schema")),
    };
    Ok(sampling)
}

/// Variables of the template that say whether the model thinks.
fn thinking(think: Option<Value>) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = Map::new();
    match think {
        None => {}
        Some(Value::Bool(think)) => drop(kwargs.insert("enable_thinking".to_owned(), json!(think))),
        Some(Value::String(level)) if ["low", "medium", "high"].contains(&&level[..]) => {
            kwargs.insert("enable_thinking".to_owned(), json!(true));
            kwargs.insert("reasoning_effort".to_owned(), json!(level));
        }
        Some(_) => {
            return Err(ApiError::field("think", "is neither true nor false nor low, medium or high"));
        }
    }
    Ok(kwargs)
}

impl ChatFields {
    pub(super) fn sampling(&self) -> Result<Sampling, ApiError> {
        sampling(&self.options, &self.format)
    }

    pub(super) fn conversation(self) -> Result<Conversation, ApiError> {
        let ending = match self.messages.last() {
            Some(last) if last.role == "assistant" && last.tool_calls.is_none() => Ending::Open,
            _ => Ending::Answer,
        };
        let messages: Result<Vec<Value>, ApiError> = self
            .messages
            .into_iter()
            .enumerate()
            .map(|(index, message)| message.for_template(index))
            .collect();
        Ok(Conversation {
            messages: messages?,
            tools: tools(self.tools)?,
            kwargs: thinking(self.think)?,
            ending,
            ..Conversation::default()
        })
    }
}

impl GenerateFields {
    pub(super) fn sampling(&self) -> Result<Sampling, ApiError> {
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported("suffix"));
        }
        sampling(&self.options, &self.format)
    }

    pub(super) fn conversation(self, prompt: String) -> Result<Conversation, ApiError> {
        let mut messages = Vec::new();
        let system = self.system.filter(|system| !system.is_empty());
        messages.extend(system.map(|system| json!({"role": "system", "content": system})));
        messages.push(json!({"role": "user", "content": prompt}));
        Ok(Conversation { messages, kwargs: thinking(self.think)?, ..Conversation::default() })
    }
}

impl MessageField {
    fn for_template(self, index: usize) -> Result<Value, ApiError> {
        let at = |name: &str| format!("messages[{index}].{name}");
        if !["system", "user", "assistant", "tool"].contains(&&self.role[..]) {
            return Err(ApiError::field(at("role"), format!("{:?} is not known", self.role)));
        }
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(ApiError::unsupported(&at("images")));
        }
        let mut message = json!({"role": self.role, "content": self.content});
        for (name, value) in [
            ("reasoning_content", self.thinking),
            ("name", self.tool_name),
            ("tool_call_id", self.tool_call_id),
        ] {
            if let Some(value) = value {
                message[name] = json!(value);
            }
        }
        if let Some(calls) = self.tool_calls.filter(|calls| !calls.is_empty()) {
            let call = |CallField { function: CalledField { name, arguments } }| json!({"type": "function", "function": {"name": name, "arguments": arguments}});
            message["tool_calls"] = calls.into_iter().map(call).collect();
        }
        Ok(message)
    }
}
