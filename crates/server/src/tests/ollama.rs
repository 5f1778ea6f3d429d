//! Ollama's dialect.

use serde_json::{Value, json};

use super::support::{self, Client, HERMES};
use super::{clock, weather};

fn lines(client: &Client, path: &str, body: &Value) -> Vec<Value> {
    let (status, kind, text) = client.raw("POST", path, &[], body.to_string());
    assert!(status == 200 && kind == "application/x-ndjson", "{kind} {text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn joined(lines: &[Value], field: &str) -> String {
    lines.iter().filter_map(|line| line["message"][field].as_str()).collect()
}

#[test]
fn chats_are_answered_in_lines_and_whole() {
    let client = Client::new(support::FAMILIES[2].1);
    let body = |stream: bool| {
        json!({"model": "fake:latest", "stream": stream, "think": true,
        "options": {"num_predict": 30, "temperature": 0, "num_ctx": 100},
        "messages": [{"role": "user", "content": "How is it?"}]})
    };
    let (status, whole) = client.post("/api/chat", &body(false));
    assert_eq!(
        (status, &whole["done"], &whole["done_reason"]),
        (200, &json!(true), &json!("length")),
        "{whole}"
    );
    assert_eq!(whole["eval_count"], 30);
    for field in
        ["total_duration", "eval_duration", "prompt_eval_duration", "prompt_eval_count", "load_duration"]
    {
        assert!(whole[field].is_u64(), "{field}: {whole}");
    }
    let mut streamed = body(true);
    streamed.as_object_mut().unwrap().remove("stream");
    let told = lines(&client, "/api/chat", &streamed);
    let (last, rest) = told.split_last().unwrap();
    assert!(last["done"] == true && rest.iter().all(|line| line["done"] == false));
    for field in ["content", "thinking"] {
        assert_eq!(joined(&told, field), whole["message"][field].as_str().unwrap_or_default());
    }
    assert_eq!(last["eval_count"], 30);
}

#[test]
fn formats_and_texts_and_nothing_at_all() {
    let client = Client::new(HERMES);
    let schema = json!({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": false});
    let (_, answer) = client
        .post("/api/generate", &json!({"model": "fake", "prompt": "x", "stream": false, "format": schema}));
    let value: Value = serde_json::from_str(answer["response"].as_str().unwrap()).unwrap();
    assert!([json!(1), json!(2)].contains(&value["n"]), "{answer}");
    let raw = |raw: bool| {
        let body = json!({"model": "fake", "prompt": "x", "raw": raw, "stream": false, "options": {"num_predict": 4, "temperature": 0}});
        client.post("/api/generate", &body).1
    };
    assert_eq!(raw(true)["prompt_eval_count"], 1);
    assert!(raw(false)["prompt_eval_count"].as_u64() > Some(5));
    let (_, loaded) = client.post("/api/chat", &json!({"model": "fake"}));
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
}

#[test]
fn models_are_listed_and_shown() {
    let client = Client::new(HERMES);
    let (status, _, tags) = client.raw("GET", "/api/tags", &[], String::new());
    let tags: Value = serde_json::from_str(&tags).unwrap();
    assert_eq!((status, &tags["models"][0]["details"]["quantization_level"]), (200, &json!("Q4_1")));
    let (_, shown) = client.post("/api/show", &json!({"model": "fake"}));
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert_eq!(shown["model_info"]["fake.context_length"], 4096);
    let (status, _, props) = client.raw("GET", "/props", &[], String::new());
    assert!(status == 200 && props.contains("chat_template"), "{props}");
    assert_eq!(client.raw("GET", "/api/version", &[], String::new()).0, 200);
}

#[test]
fn texts_are_embedded() {
    let client = Client::new(HERMES);
    let (_, many) = client.post("/api/embed", &json!({"model": "fake", "input": ["a b", "c"]}));
    let (_, one) = client.post("/api/embeddings", &json!({"model": "fake", "prompt": "a b"}));
    assert_eq!(
        (many["embeddings"].as_array().map(Vec::len), &many["embeddings"][0]),
        (Some(2), &one["embedding"])
    );
    assert_eq!(many["prompt_eval_count"], 4);
    let long = "x".repeat(5000);
    let (status, _) = client.post("/api/embed", &json!({"model": "fake", "input": long, "truncate": false}));
    assert_eq!(status, 400);
    let (status, cut) = client.post("/api/embed", &json!({"model": "fake", "input": long}));
    assert_eq!((status, &cut["prompt_eval_count"]), (200, &json!(4096)));
}

#[test]
fn calls_and_results_are_taken_back() {
    let client = Client::new("{{ tools }}{{ messages | tojson }}{# <tool_call> #}");
    let body = json!({"model": "fake", "stream": false, "tools": [weather(), clock()], "options": {"num_predict": 3},
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": "clock", "arguments": {"utc": true}}}]},
            {"role": "tool", "content": "12:00", "tool_name": "clock"}]});
    let (status, answer) = client.post("/api/chat", &body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn errors_have_the_form_that_clients_know() {
    let client = Client::new(HERMES);
    let chat = |more: Value| {
        let mut body = json!({"model": "fake", "messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (body, status, name) in [
        (chat(json!({"model": "llama3"})), 404, "llama3"),
        (json!({}), 400, "model"),
        (chat(json!({"options": {"temperature": "hot"}})), 400, "options.temperature"),
        (chat(json!({"options": {"tfs_z": 1}})), 400, "tfs_z"),
        (chat(json!({"format": "yaml"})), 400, "format"),
        (chat(json!({"think": "deeply"})), 400, "think"),
        (
            chat(json!({"messages": [{"role": "user", "content": "x", "images": ["aa"]}]})),
            400,
            "messages[0].images",
        ),
        (chat(json!({"messages": [{"role": "wizard", "content": "x"}]})), 400, "messages[0].role"),
    ] {
        let (found, answer) = client.post("/api/chat", &body);
        assert_eq!(found, status, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(name), "{answer}");
    }
    let (status, _, text) = client.raw("POST", "/api/chat", &[], "{".to_owned());
    assert!(status == 400 && text.starts_with("{\"error\":\"the body"), "{text}");
}
