//! What a response answers: items, as clients send them and as answers have them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::conversation::Tool;
use crate::error::ApiError;
use crate::fields::{missing, read_at};
use crate::openai::tools::{check_kind, check_name};
use crate::openai::unique;

/// A text, or items.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of items")]
pub(crate) enum Input {
    Text(String),
    Items(Vec<Value>),
}

/// A function that the model may call.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct FunctionField {
    /// `function`.
    #[expect(dead_code, reason = "checked before, for a better message")]
    r#type: String,
    name: String,
    /// For the model.
    description: Option<String>,
    /// A JSON Schema of its arguments.
    parameters: Option<Value>,
    /// Its arguments follow the schema in any case.
    strict: Option<bool>,
}

impl FunctionField {
    pub(super) fn tool(json: Value, at: String) -> Result<Tool, ApiError> {
        check_kind(json["type"].as_str(), &at)?;
        let field: FunctionField = read_at(json, &at)?;
        check_name(&field.name, &format!("{at}.name"))?;
        let strict = field.strict.unwrap_or(false);
        Ok(Tool::function(field.name, field.description, field.parameters, strict, at))
    }
}

impl Input {
    /// The items, each with an id, and messages with parts.
    pub(super) fn items(self) -> Result<Vec<Value>, ApiError> {
        let list = match self {
            Input::Text(text) => vec![json!({"role": "user", "content": text})],
            Input::Items(list) => list,
        };
        list.into_iter().enumerate().map(|(index, item)| whole(item, index)).collect()
    }
}

fn whole(mut item: Value, index: usize) -> Result<Value, ApiError> {
    let at = format!("input[{index}]");
    if !item.is_object() {
        return Err(ApiError::field(at, "is no object"));
    }
    if item["type"].is_null() {
        item["type"] = json!("message");
    }
    let prefix = match item["type"].as_str() {
        Some("message") => "msg_",
        Some("function_call") => "fc_",
        Some("function_call_output") => "fco_",
        Some("reasoning") => "rs_",
        kind => {
            let what = format!("items of type {:?} are not supported", kind.unwrap_or("?"));
            return Err(ApiError { code: Some("unsupported_parameter"), ..ApiError::field(at, what) });
        }
    };
    if item["id"].is_null() {
        item["id"] = json!(unique(prefix));
    }
    if prefix == "msg_" {
        let kind = if item["role"] == "assistant" { "output_text" } else { "input_text" };
        if let Some(text) = item["content"].as_str() {
            item["content"] = json!([{"type": kind, "text": text}]);
        }
        if item["status"].is_null() {
            item["status"] = json!("completed");
        }
    }
    // What is wrong with it is said where it stands in this request.
    let mut told = Told::default();
    told.add(&item, &at)?;
    Ok(item)
}

/// Items as messages for templates.
pub(super) fn messages(items: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut told = Told::default();
    for item in items {
        told.add(item, "input")?;
    }
    Ok(told.messages)
}

#[derive(Default)]
struct Told {
    messages: Vec<Value>,
    /// Of the next message of the assistant.
    reasoning: Option<String>,
}

impl Told {
    /// The assistant's message that calls and texts of one turn belong to.
    fn turn(&mut self) -> &mut Value {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") || self.reasoning.is_some() {
            let mut message = json!({"role": "assistant", "content": ""});
            if let Some(reasoning) = self.reasoning.take() {
                message["reasoning_content"] = json!(reasoning);
            }
            self.messages.push(message);
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn add(&mut self, item: &Value, at: &str) -> Result<(), ApiError> {
        let need = |name: &str| item[name].as_str().ok_or_else(|| missing(format!("{at}.{name}")));
        match item["type"].as_str() {
            Some("function_call") => {
                let arguments = need("arguments")?;
                let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
                let call = json!({"id": need("call_id")?, "type": "function",
                    "function": {"name": need("name")?, "arguments": arguments}});
                let turn = self.turn();
                match turn["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => turn["tool_calls"] = json!([call]),
                }
            }
            Some("function_call_output") => {
                let id = need("call_id")?;
                let text = text_of(&item["output"], &format!("{at}.output"))?;
                self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
            }
            Some("reasoning") => {
                let parts = item["content"].as_array().into_iter().flatten();
                self.reasoning = Some(parts.filter_map(|part| part["text"].as_str()).collect())
                    .filter(|text: &String| !text.is_empty());
            }
            _ => {
                let text = text_of(&item["content"], &format!("{at}.content"))?;
                match need("role")? {
                    "assistant" => {
                        let turn = self.turn();
                        let before = turn["content"].as_str().unwrap_or_default();
                        turn["content"] = json!(format!("{before}{text}"));
                    }
                    "developer" | "system" => self.messages.push(json!({"role": "system", "content": text})),
                    "user" => self.messages.push(json!({"role": "user", "content": text})),
                    other => {
                        return Err(ApiError::field(format!("{at}.role"), format!("{other:?} is not known")));
                    }
                }
            }
        }
        Ok(())
    }
}

fn text_of(content: &Value, at: &str) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let text = |(index, part): (usize, &Value)| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("input_text" | "output_text" | "text"), Some(text)) => Ok(text.to_owned()),
                (Some("refusal"), _) => Ok(String::new()),
                (kind, _) => {
                    let kind = kind.unwrap_or("?");
                    let what = format!("parts of type {kind:?} are not supported");
                    Err(ApiError {
                        code: Some("unsupported_parameter"),
                        ..ApiError::field(format!("{at}[{index}]"), what)
                    })
                }
            };
            parts.iter().enumerate().map(text).collect()
        }
        Value::Null => Err(missing(at.to_owned())),
        _ => Err(ApiError::field(at, "is neither a string nor a list of parts")),
    }
}
