//! `minfer serve` as its clients see it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{SMOLLM2, cache_dir, cores, open};

/// A server that ends with the test.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        open(SMOLLM2);
        let mut process = Command::new(env!("CARGO_BIN_EXE_minfer"))
            .args(["serve", "--port", "0", "--ctx", "1024", "--device", "cpu"])
            .args(args)
            .env("MINFER_CACHE", cache_dir())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let out = process.stdout.take().expect("stdout");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
        Server { address: address.to_owned(), process }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream
    }

    fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let length = body.len();
        write!(stream, "{head}\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
            .expect("sent");
        stream
    }

    /// Status, headers and body.
    fn raw(&self, head: &str, body: &str) -> (u16, String, String) {
        read(self.send(head, body))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, head, body) = self.raw(&format!("POST {path} HTTP/1.1"), &body.to_string());
        assert!(head.contains("application/json"), "{head}");
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    /// The objects of a stream, without its end.
    fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, head, body) = self.raw(&format!("POST {path} HTTP/1.1"), &body.to_string());
        assert!(status == 200 && head.contains("text/event-stream"), "{head}{body}");
        events(&body)
    }

    fn terminate(&self) {
        let killed = Command::new("kill").arg(self.process.id().to_string()).status();
        assert!(killed.expect("kill").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read(mut stream: TcpStream) -> (u16, String, String) {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("an answer");
    let all = String::from_utf8(all).expect("UTF-8");
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{all:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, head.to_ascii_lowercase(), if chunked { joined(body) } else { body.to_owned() })
}

/// The parts of a chunked body.
fn joined(mut rest: &str) -> String {
    let mut text = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a length");
        text += &after[..length];
        rest = after[length..].trim_start_matches("\r\n");
    }
    text
}

fn events(body: &str) -> Vec<Value> {
    let mut list: Vec<&str> = body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(list.pop(), Some("[DONE]"), "{body}");
    list.into_iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
}

fn question(more: Value) -> Value {
    let mut body = json!({
        "model": "smollm2", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

#[test]
fn a_chat_is_answered_whole_and_streamed() {
    let _cores = cores();
    let server = Server::start(&["--alias", "smollm2"]);
    let (status, answer) = server.post("/v1/chat/completions", &question(json!({})));
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().expect("a text");
    assert!(text.len() > 20, "{answer}");
    assert_eq!(
        (&choice["message"]["role"], &answer["object"]),
        (&json!("assistant"), &json!("chat.completion"))
    );
    assert!(["stop", "length"].contains(&choice["finish_reason"].as_str().expect("a reason")));
    let usage = &answer["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap())
    );
    // The command says the same.
    let args = [
        "run",
        "-m",
        "pip:smollm2",
        "--temp",
        "0",
        "-n",
        "24",
        "--device",
        "cpu",
        "What is the capital of France?",
    ];
    let command =
        Command::new(env!("CARGO_BIN_EXE_minfer")).args(args).env("MINFER_CACHE", cache_dir()).output();
    assert_eq!(String::from_utf8(command.expect("output").stdout).unwrap().trim_end(), text.trim_end());

    let options = json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2});
    let chunks = server.stream("/v1/chat/completions", &question(options));
    let (last, chunks) = chunks.split_last().expect("chunks");
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), usage));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let of = |field: &str| {
        chunks.iter().filter_map(|c| c["choices"][0]["delta"][field].as_str()).collect::<String>()
    };
    assert_eq!(of("content"), text);
    assert_eq!(chunks[chunks.len() - 1]["choices"][0]["finish_reason"], choice["finish_reason"]);
    let scored = chunks.iter().filter(|c| !c["choices"][0]["logprobs"].is_null()).count() as u64;
    assert_eq!(Some(scored), usage["completion_tokens"].as_u64());

    // Two choices with seeds of their own, each again by itself.
    let drawn = json!({"temperature": 1.5, "seed": 7, "n": 2, "max_tokens": 8});
    let (_, two) = server.post("/v1/chat/completions", &question(drawn));
    let (_, second) = server
        .post("/v1/chat/completions", &question(json!({"temperature": 1.5, "seed": 8, "max_tokens": 8})));
    assert_eq!(two["choices"][1]["message"], second["choices"][0]["message"]);
    assert_ne!(two["choices"][0]["message"], two["choices"][1]["message"]);
}

#[test]
fn texts_are_continued_and_constrained() {
    let _cores = cores();
    let server = Server::start(&[]);
    let body = json!({"prompt": ["one two three four", "a b c d"], "max_tokens": 6, "temperature": 0, "logprobs": 1});
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
    assert!(answer["choices"][0]["text"].as_str().expect("a text").len() > 5, "{answer}");
    assert_eq!(answer["choices"][1]["logprobs"]["tokens"].as_array().map(Vec::len), Some(6));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let chunks = server.stream("/v1/completions", &streamed);
    for (index, choice) in answer["choices"].as_array().expect("choices").iter().enumerate() {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == index);
        let text: String = own.filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(choice["text"], text);
    }
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"],
        "additionalProperties": false});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, "model": null});
    let (status, answer) = server.post("/v1/chat/completions", &question(format));
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    let found: Value = serde_json::from_str(text).expect("JSON");
    assert!(["Rome", "Paris"].contains(&found["city"].as_str().expect("a city")));

    let (_, tokens) = server.post("/tokenize", &json!({"content": "Hello world"}));
    let (_, text) = server.post("/detokenize", &json!({"tokens": tokens["tokens"]}));
    assert_eq!(text["content"], "Hello world");
    let (_, prompt) =
        server.post("/apply-template", &json!({"messages": [{"role": "user", "content": "x"}]}));
    assert!(prompt["prompt"].as_str().expect("a prompt").contains("<|im_start|>user\nx<|im_end|>"));
    let (status, _, models) = server.raw("GET /v1/models HTTP/1.1", "");
    assert!(status == 200 && models.contains("\"object\":\"list\""), "{models}");
}

#[test]
fn what_is_wrong_is_answered_by_name() {
    let _cores = cores();
    let server = Server::start(&["--alias", "smollm2"]);
    let chat = "/v1/chat/completions";
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    for (path, body, status, param) in [
        (chat, json!({}), 400, Some("messages")),
        (chat, question(json!({"model": "gpt-4"})), 404, Some("model")),
        (chat, question(json!({"temperature": "hot"})), 400, Some("temperature")),
        (chat, question(json!({"temperature": -1})), 400, None),
        (chat, question(json!({"modalities": ["audio"]})), 400, Some("modalities")),
        (chat, question(json!({"tool_choice": "required"})), 400, Some("tool_choice")),
        (chat, question(json!({"n": 0})), 400, Some("n")),
        (chat, question(json!({"top_logprobs": 3})), 400, Some("top_logprobs")),
        (chat, question(json!({"response_format": {"type": "yaml"}})), 400, Some("response_format.type")),
        (chat, question(json!({"json_schema": {"not": {}}})), 400, None),
        (chat, question(json!({"messages": [{"role": "user", "content": "x ".repeat(3000)}]})), 400, None),
        ("/v1/completions", json!({"prompt": [99999999]}), 400, None),
        ("/v1/completions", json!({"prompt": []}), 400, None),
        ("/v1/completions", json!({"prompt": "x", "suffix": "y"}), 400, Some("suffix")),
        ("/detokenize", json!({"tokens": [99999999]}), 400, Some("tokens")),
        ("/nowhere", json!({}), 404, None),
    ] {
        let (found, answer) = server.post(path, &body);
        assert_eq!(found, status, "{body}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
        assert_eq!(answer["error"]["param"].as_str(), param, "{answer}");
    }
    for body in ["", "{", &deep, "\u{0}"] {
        let (status, _, text) = server.raw(&format!("POST {chat} HTTP/1.1"), body);
        assert!(status == 400 && text.contains("\"invalid_request_error\""), "{text}");
    }
    let (status, _, text) = server.raw(&format!("GET {chat} HTTP/1.1"), "");
    assert!(status == 405 && text.contains("\"error\""), "{text}");
    // The head alone says that it is too long.
    let mut stream = server.connect();
    write!(
        stream,
        "POST {chat} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 99999999\r\n\r\n"
    )
    .expect("sent");
    let (status, _, text) = read(stream);
    assert!(status == 413 && text.contains("\"error\""), "{status} {text}");
    // And the server goes on.
    assert_eq!(server.raw("GET /health HTTP/1.1", "").0, 200);
}

#[test]
fn keys_open_and_nothing_else_does() {
    let _cores = cores();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, "one\n\n two \n").expect("written");
    let server = Server::start(&["--api-key-file", file.to_str().expect("UTF-8")]);
    for (head, expected) in [
        ("GET /v1/models HTTP/1.1", 401),
        ("GET /v1/models HTTP/1.1\r\nauthorization: Bearer three", 401),
        ("GET /v1/models HTTP/1.1\r\nauthorization: Bearer two", 200),
        ("GET /v1/models HTTP/1.1\r\nx-api-key: one", 200),
        ("GET /health HTTP/1.1", 200),
    ] {
        assert_eq!(server.raw(head, "").0, expected, "{head}");
    }
}

#[test]
fn clients_that_go_free_their_places_and_the_end_waits_for_those_that_stay() {
    let _cores = cores();
    let mut server = Server::start(&["--alias", "smollm2"]);
    let long = question(json!({"stream": true, "max_tokens": 900, "ignore_eos": true})).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1";
    // Each of these would take half a minute.
    for _ in 0..20 {
        let mut stream = server.send(head, &long);
        stream.read_exact(&mut [0; 200]).expect("a beginning");
    }
    let start = Instant::now();
    assert_eq!(server.post("/v1/chat/completions", &question(json!({"max_tokens": 2}))).0, 200);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let short = question(json!({"stream": true, "max_tokens": 100, "ignore_eos": true})).to_string();
    let mut stream = server.send(head, &short);
    let mut begun = [0; 200];
    stream.read_exact(&mut begun).expect("a beginning");
    server.terminate();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    assert!(server.process.wait().expect("an end").success());
}
