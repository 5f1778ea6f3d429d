//! Conversations as templates take them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// Messages as they come: of roles `system`, `developer`, `user`, `assistant` and `tool`.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Messages(Vec<Map<String, Value>>);

impl Messages {
    /// As templates take them: text instead of parts, arguments of calls as objects, `system` for `developer`.
    pub(crate) fn for_template(self) -> Result<Vec<Value>, ApiError> {
        if self.0.is_empty() {
            return Err(ApiError::field("messages", "is empty"));
        }
        self.0.into_iter().enumerate().map(|(index, message)| for_template(index, message)).collect()
    }
}

fn for_template(index: usize, mut message: Map<String, Value>) -> Result<Value, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let role = match message.get("role").and_then(Value::as_str) {
        Some("developer") => "system".to_owned(),
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role.to_owned(),
        Some(role) => return Err(ApiError::field(at("role"), format!("{role:?} is not known"))),
        None => return Err(ApiError::field(at("role"), "is missing")),
    };
    let mut out = Map::new();
    out.insert("role".to_owned(), json!(role));
    let content = text_of(message.remove("content"), &at("content"))?;
    if content.is_none() && role != "assistant" {
        return Err(ApiError::field(at("content"), "is missing"));
    }
    out.insert("content".to_owned(), json!(content.unwrap_or_default()));
    for name in ["name", "tool_call_id", "reasoning_content"] {
        match message.remove(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => drop(out.insert(name.to_owned(), json!(text))),
            Some(_) => return Err(ApiError::field(at(name), "is not a string")),
        }
    }
    match message.remove("tool_calls") {
        None | Some(Value::Null) => {}
        Some(Value::Array(calls)) if calls.is_empty() => {}
        Some(Value::Array(calls)) => {
            let calls: Result<Vec<_>, _> =
                calls.into_iter().map(|call| call_for_template(call, &at("tool_calls"))).collect();
            out.insert("tool_calls".to_owned(), Value::Array(calls?));
        }
        Some(_) => return Err(ApiError::field(at("tool_calls"), "is not a list")),
    }
    if let Some(name) =
        ["audio", "function_call"].iter().find(|name| message.get(**name).is_some_and(|v| !v.is_null()))
    {
        return Err(ApiError::unsupported(&at(name)));
    }
    Ok(Value::Object(out))
}

/// The text of a content, of its parts one after the other.
fn text_of(content: Option<Value>, at: &str) -> Result<Option<String>, ApiError> {
    match content {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let mut all = String::new();
            for part in &parts {
                match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text"), Some(text)) => all += text,
                    (Some("refusal"), _) => {}
                    (Some("text") | None, _) => {
                        return Err(ApiError::field(at, "has a part that is no text part"));
                    }
                    (Some(kind), _) => {
                        return Err(ApiError {
                            code: Some("unsupported_parameter"),
                            ..ApiError::field(at, format!("parts of type {kind:?} are not supported"))
                        });
                    }
                }
            }
            Ok(Some(all))
        }
        Some(_) => Err(ApiError::field(at, "is neither a string nor a list of parts")),
    }
}

/// Clients send arguments as a string that has JSON in it; templates write objects.
fn call_for_template(mut call: Value, at: &str) -> Result<Value, ApiError> {
    let function = call.get_mut("function").and_then(Value::as_object_mut);
    let function = function.filter(|function| function.get("name").is_some_and(Value::is_string));
    let Some(function) = function else {
        return Err(ApiError::field(at, "has a call without function.name"));
    };
    if let Some(Value::String(text)) = function.get("arguments")
        && let Ok(parsed @ Value::Object(_)) = serde_json::from_str(text)
    {
        function.insert("arguments".to_owned(), parsed);
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(value: Value) -> Result<Value, ApiError> {
        serde_json::from_value::<Messages>(value).unwrap().for_template().map(Value::Array)
    }

    #[test]
    fn messages_are_as_templates_take_them() {
        let found = messages(json!([
            {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
            {"role": "user", "content": "x", "name": "n"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ]));
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "x", "name": "n"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
        ]);
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (wrong, param) in [
            (json!([]), "messages"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (
                json!([{"role": "user", "content": "x"}, {"role": "wizard", "content": "x"}]),
                "messages[1].role",
            ),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 1}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content",
            ),
            (json!([{"role": "assistant", "tool_calls": [{}]}]), "messages[0].tool_calls"),
            (
                json!([{"role": "assistant", "content": "x", "function_call": {}}]),
                "messages[0].function_call",
            ),
        ] {
            assert_eq!(messages(wrong).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
