//! OpenAI's Responses.

use serde_json::{Value, json};

use super::check_call;
use super::support::{self, Client, HERMES};

fn functions() -> Value {
    let flat = |tool: Value| {
        let mut function = tool["function"].clone();
        function["type"] = json!("function");
        function
    };
    json!([flat(super::weather()), flat(super::clock())])
}

fn asked(more: Value) -> Value {
    let mut body = json!({"input": "How is it?", "max_output_tokens": 3500, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The events of a stream, whose names are their types and whose numbers count.
fn events(client: &Client, body: &Value) -> Vec<Value> {
    let (status, kind, text) = client.raw("POST", "/v1/responses", &[], body.to_string());
    assert!(status == 200 && kind.contains("text/event-stream"), "{text}");
    let event = |(number, event): (usize, &str)| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        data
    };
    text.split_terminator("\n\n").enumerate().map(event).collect()
}

/// Without what no two answers have in common.
fn plain(response: &Value) -> Vec<Value> {
    let without_ids = |mut item: Value| {
        for id in ["id", "call_id"] {
            item.as_object_mut().unwrap().remove(id);
        }
        item
    };
    response["output"].as_array().unwrap().iter().cloned().map(without_ids).collect()
}

#[test]
fn answers_are_items_whole_and_streamed() {
    let client = Client::new(HERMES);
    let thinks = Client::new(support::FAMILIES[2].1);
    let call = json!({"tools": functions(), "tool_choice": {"type": "function", "name": "weather"}});
    for (client, more, kinds, status) in [
        (&client, json!({"max_output_tokens": 20}), vec!["message"], "incomplete"),
        (&client, call, vec!["function_call"], "completed"),
        (&thinks, json!({"max_output_tokens": 8}), vec!["reasoning"], "incomplete"),
    ] {
        let mut body = asked(more);
        let (code, answer) = client.post("/v1/responses", &body);
        assert_eq!((code, answer["status"].as_str()), (200, Some(status)), "{answer}");
        let output = answer["output"].as_array().unwrap();
        assert_eq!(
            output.iter().map(|item| item["type"].as_str().unwrap()).collect::<Vec<_>>(),
            kinds,
            "{answer}"
        );
        for item in output.iter().filter(|item| item["type"] == "function_call") {
            let arguments = serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
            check_call(&(item["name"].as_str().unwrap().to_owned(), arguments));
        }
        let reasoned = answer["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        assert_eq!(reasoned, if kinds == ["reasoning"] { 8 } else { 0 });
        body["stream"] = json!(true);
        let told = events(client, &body);
        let names: Vec<&str> = told.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(names[..3], ["response.created", "response.in_progress", "response.output_item.added"]);
        let mut after: Vec<&str> = names[3..].to_vec();
        after.dedup();
        let expected = match kinds[0] {
            "message" => vec![
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.incomplete",
            ],
            "reasoning" => vec![
                "response.content_part.added",
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.incomplete",
            ],
            _ => vec![
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.completed",
            ],
        };
        assert_eq!(after, expected);
        let last = &told[told.len() - 1]["response"];
        assert_eq!(plain(last), plain(&answer));
        let deltas: String = told.iter().filter_map(|event| event["delta"].as_str()).collect();
        let done = told
            .iter()
            .find(|event| {
                event["type"].as_str().unwrap().ends_with("_text.done")
                    || event["type"].as_str().unwrap().ends_with("arguments.done")
            })
            .unwrap();
        assert_eq!(done["text"].as_str().or(done["arguments"].as_str()), Some(&deltas[..]));
    }
}

#[test]
fn answers_are_kept_and_gone_on_from() {
    let client = Client::new("{{ messages | tojson }}{{ tools }}{# <tool_call> #}");
    let get = |method: &str, path: &str| {
        let (status, _, text) = client.raw(method, path, &[], String::new());
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let body = asked(json!({"instructions": "Be brief.", "max_output_tokens": 8, "tools": functions(),
        "metadata": {"a": "b"}}));
    let (_, first) = client.post("/v1/responses", &body);
    assert_eq!((&first["metadata"], &first["instructions"]), (&json!({"a": "b"}), &json!("Be brief.")));
    let id = first["id"].as_str().unwrap().to_owned();
    assert_eq!(get("GET", &format!("/v1/responses/{id}")), (200, first.clone()));
    let more = json!([{"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{\"utc\": true}"},
        {"type": "function_call_output", "call_id": "c", "output": "12:00"},
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]}]);
    let (status, second) = client.post(
        "/v1/responses",
        &asked(json!({"input": more, "previous_response_id": id, "max_output_tokens": 4})),
    );
    assert_eq!((status, &second["previous_response_id"]), (200, &json!(id)), "{second}");
    // What the model was told: the question, its own answer, the call and its result; the instructions are not kept.
    let text = first["output"][0]["content"][0]["text"].as_str().unwrap();
    let told = json!({"messages": [{"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": text, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "clock", "arguments": {"utc": true}}}]},
        {"role": "tool", "tool_call_id": "c", "content": "12:00"},
        {"role": "user", "content": "And now?"}]});
    let (_, rendered) = client.post("/apply-template", &told);
    let (_, tokens) = client.post("/tokenize", &json!({"content": rendered["prompt"]}));
    assert_eq!(second["usage"]["input_tokens"], tokens["count"]);
    let second_id = second["id"].as_str().unwrap();
    let (_, items) = get("GET", &format!("/v1/responses/{second_id}/input_items?limit=2&order=asc"));
    assert_eq!((&items["data"][1]["output"], &items["has_more"]), (&json!("12:00"), &json!(true)), "{items}");
    let after = items["last_id"].as_str().unwrap();
    let (_, rest) = get("GET", &format!("/v1/responses/{second_id}/input_items?order=asc&after={after}"));
    assert_eq!(
        (&rest["data"][0]["content"][0]["text"], &rest["has_more"]),
        (&json!("And now?"), &json!(false))
    );
    assert_eq!(get("DELETE", &format!("/v1/responses/{id}")).1["deleted"], true);
    assert_eq!(get("GET", &format!("/v1/responses/{id}")).0, 404);
    let (status, gone) = client.post("/v1/responses", &asked(json!({"previous_response_id": second_id})));
    assert_eq!((status, &gone["error"]["code"]), (404, &json!("previous_response_not_found")));
    // What is not to be kept is not.
    let (_, passing) = client.post("/v1/responses", &asked(json!({"store": false, "max_output_tokens": 2})));
    assert_eq!(get("GET", &format!("/v1/responses/{}", passing["id"].as_str().unwrap())).0, 404);
}

#[test]
fn what_is_wrong_is_named() {
    let client = Client::new(HERMES);
    let item = |item: Value| json!({"input": [{"role": "user", "content": "x"}, item]});
    for (more, status, param) in [
        (json!({"input": null}), 400, Some("input")),
        (json!({"input": 7}), 400, Some("input")),
        (item(json!({"type": "web_search_call"})), 400, Some("input[1]")),
        (item(json!({"role": "wizard", "content": "x"})), 400, Some("input[1].role")),
        (
            item(json!({"role": "user", "content": [{"type": "input_image"}]})),
            400,
            Some("input[1].content[0]"),
        ),
        (
            item(json!({"type": "function_call", "name": "f", "arguments": "{}"})),
            400,
            Some("input[1].call_id"),
        ),
        (json!({"previous_response_id": "resp_x"}), 404, Some("previous_response_id")),
        (json!({"tools": [{"type": "web_search"}]}), 400, Some("tools[0]")),
        (json!({"tools": [{"type": "function"}]}), 400, Some("tools[0].name")),
        (json!({"tool_choice": "required"}), 400, Some("tool_choice")),
        (json!({"text": {"format": {"type": "json_schema"}}}), 400, Some("text.format.schema")),
        (json!({"truncation": "auto"}), 400, Some("truncation")),
        (json!({"background": true}), 400, Some("background")),
        (json!({"include": ["message.output_text.logprobs"]}), 400, Some("include")),
        (json!({"model": "gpt-5"}), 404, Some("model")),
    ] {
        let (found, answer) = client.post("/v1/responses", &asked(more));
        assert_eq!((found, answer["error"]["param"].as_str()), (status, param), "{answer}");
    }
}
