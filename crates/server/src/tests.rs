//! The dialects over HTTP, on a model that makes up its text: what it says has no sense, but a grammar is obeyed.

mod anthropic;
mod ollama;
mod openai;
mod responses;
pub(crate) mod support;

use serde_json::{Value, json};

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {
        "type": "object", "properties": {"day": {"enum": ["today", "tomorrow"]}, "hour": {"type": "boolean"}},
        "required": ["day", "hour"], "additionalProperties": false}}})
}

fn clock() -> Value {
    json!({"type": "function", "function": {"name": "clock", "parameters": {
        "type": "object", "properties": {"utc": {"type": "boolean"}}, "required": ["utc"],
        "additionalProperties": false}}})
}

fn question(more: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "How is it?"}], "max_tokens": 3500, "seed": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The calls of an answer in OpenAI's form, with their arguments read.
fn calls(message: &Value) -> Vec<(String, Value)> {
    let call = |call: &Value| {
        let function = &call["function"];
        let arguments = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        (function["name"].as_str().unwrap().to_owned(), arguments)
    };
    message["tool_calls"].as_array().into_iter().flatten().map(call).collect()
}

fn check_call((name, arguments): &(String, Value)) {
    match &name[..] {
        "weather" => {
            assert!(["today", "tomorrow"].contains(&arguments["day"].as_str().unwrap()), "{arguments}");
            assert!(arguments["hour"].is_boolean(), "{arguments}");
        }
        "clock" => assert!(arguments["utc"].is_boolean(), "{arguments}"),
        other => panic!("{other}"),
    }
}
