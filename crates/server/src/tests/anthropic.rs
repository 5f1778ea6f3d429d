//! Anthropic's dialect.

use serde_json::{Value, json};

use super::check_call;
use super::support::{self, Client, HERMES};

fn tools() -> Value {
    let tool = |tool: Value| {
        let function = &tool["function"];
        json!({"name": function["name"], "description": "x", "input_schema": function["parameters"]})
    };
    json!([tool(super::weather()), tool(super::clock())])
}

fn message(more: Value) -> Value {
    let mut body = json!({"model": "fake", "max_tokens": 3500, "temperature": 0,
        "messages": [{"role": "user", "content": "How is it?"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The events of a stream, whose names are their types.
fn events(client: &Client, body: &Value) -> Vec<Value> {
    let (status, kind, text) = client.raw("POST", "/v1/messages", &[], body.to_string());
    assert!(status == 200 && kind.contains("text/event-stream"), "{text}");
    let event = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// The message that a stream tells, put together as clients do.
fn told(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut json_text = String::new();
    for event in events {
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(message["content"].as_array().unwrap().len(), index);
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
                json_text.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &event["delta"]);
                for field in ["text", "thinking"] {
                    if let Some(text) = delta[field].as_str() {
                        block[field] = json!(block[field].as_str().unwrap().to_owned() + text);
                    }
                }
                json_text += delta["partial_json"].as_str().unwrap_or_default();
            }
            "content_block_stop" if message["content"][index]["type"] == "tool_use" => {
                message["content"][index]["input"] = serde_json::from_str(&json_text).unwrap();
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_start" | "ping" | "content_block_stop" | "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    message
}

/// Without what no two answers have in common.
fn plain(mut message: Value) -> Value {
    message["id"] = Value::Null;
    message["usage"] = message["usage"]["output_tokens"].clone();
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            assert!(block["id"].as_str().unwrap().starts_with("toolu_"));
            block["id"] = Value::Null;
        }
    }
    message
}

#[test]
fn messages_are_answered_whole_and_streamed() {
    let client = Client::new(HERMES);
    let thinks = Client::new(support::FAMILIES[2].1);
    let budget = json!({"thinking": {"type": "enabled", "budget_tokens": 5}, "max_tokens": 30});
    for (client, more, kinds, reason) in [
        (&client, json!({"max_tokens": 12}), vec!["text"], "max_tokens"),
        (
            &client,
            json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "weather"}}),
            vec!["tool_use"],
            "tool_use",
        ),
        (
            &client,
            json!({"tools": tools(), "tool_choice": {"type": "any", "disable_parallel_tool_use": true}}),
            vec!["tool_use"],
            "tool_use",
        ),
        (&thinks, budget, vec!["thinking", "text"], "max_tokens"),
    ] {
        let mut body = message(more);
        let (status, answer) = client.post("/v1/messages", &body);
        assert_eq!(status, 200, "{answer}");
        let content = answer["content"].as_array().unwrap();
        assert_eq!(
            content.iter().map(|block| block["type"].as_str().unwrap()).collect::<Vec<_>>(),
            kinds,
            "{answer}"
        );
        assert_eq!(answer["stop_reason"], reason);
        for block in content.iter().filter(|block| block["type"] == "tool_use") {
            check_call(&(block["name"].as_str().unwrap().to_owned(), block["input"].clone()));
        }
        body["stream"] = json!(true);
        assert_eq!(plain(told(&events(client, &body))), plain(answer));
    }
}

#[test]
fn a_string_that_ends_the_text_is_told() {
    let client = Client::new(HERMES);
    let (_, whole) = client.post("/v1/messages", &message(json!({"max_tokens": 40})));
    let text = whole["content"][0]["text"].as_str().unwrap();
    // No sign that a special token is written with.
    let stop =
        text.chars().find(|c| "bcfgjoqpuvwxyzBDHJKMNPQUVWXYZ0123456789".contains(*c)).unwrap().to_string();
    let (_, cut) = client
        .post("/v1/messages", &message(json!({"max_tokens": 40, "stop_sequences": ["\n\n\n\nno", stop]})));
    assert_eq!(
        (cut["stop_reason"].as_str(), cut["stop_sequence"].as_str()),
        (Some("stop_sequence"), Some(&stop[..]))
    );
    assert!(text.starts_with(cut["content"][0]["text"].as_str().unwrap_or_default()));
}

#[test]
fn conversations_are_told_to_the_template_in_its_own_way() {
    let client = Client::new("{{ messages | tojson }}");
    let conversation = json!({"model": "fake", "system": [{"type": "text", "text": "Be brief."}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "no"}], "is_error": true},
            {"type": "text", "text": "c"}]},
    ]});
    let expected = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "tool_call_id": "1", "content": "Error: no"},
        {"role": "user", "content": "c"},
    ]);
    let (_, rendered) = client.post("/apply-template", &json!({"messages": expected}));
    let (status, count) = client.post("/v1/messages/count_tokens", &conversation);
    assert_eq!(status, 200, "{count}");
    let (_, tokens) = client.post("/tokenize", &json!({"content": rendered["prompt"]}));
    assert_eq!(count["input_tokens"], tokens["count"]);
}

#[test]
fn errors_have_the_form_that_clients_know() {
    let client = Client::new(HERMES);
    for (path, body, status, kind, name) in [
        ("/v1/messages", message(json!({"model": "claude"})), 404, "not_found_error", "claude"),
        (
            "/v1/messages",
            json!({"model": "fake", "messages": []}),
            400,
            "invalid_request_error",
            "max_tokens",
        ),
        ("/v1/messages", message(json!({"messages": []})), 400, "invalid_request_error", "messages"),
        ("/v1/messages", message(json!({"temperature": "hot"})), 400, "invalid_request_error", "temperature"),
        ("/v1/messages", message(json!({"mcp_servers": [{}]})), 400, "invalid_request_error", "mcp_servers"),
        (
            "/v1/messages",
            message(json!({"tool_choice": {"type": "any"}})),
            400,
            "invalid_request_error",
            "tool_choice",
        ),
        (
            "/v1/messages",
            message(json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})),
            400,
            "invalid_request_error",
            "tools[0]",
        ),
        (
            "/v1/messages",
            message(json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})),
            400,
            "invalid_request_error",
            "messages[0].content[0]",
        ),
        ("/v1/messages/count_tokens", json!({}), 400, "invalid_request_error", "messages"),
    ] {
        let (found, answer) = client.post(path, &body);
        assert_eq!(
            (found, &answer["type"], &answer["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{answer}"
        );
        assert!(answer["error"]["message"].as_str().unwrap().contains(name), "{answer}");
    }
}
