//! OpenAI's dialect.

use serde_json::{Value, json};

use super::support::{self, Client, HERMES};
use super::{calls, check_call, clock, question, weather};

#[test]
fn calls_that_have_to_be_are_made_in_every_family() {
    for (family, template) in support::FAMILIES {
        let client = Client::new(template);
        for (choice, expected) in [
            (json!("required"), None),
            (json!({"type": "function", "function": {"name": "clock"}}), Some("clock")),
        ] {
            for (seed, parallel) in [(1, true), (2, true), (3, false)] {
                let body =
                    question(json!({"tools": [weather(), clock()], "tool_choice": choice, "seed": seed,
                    "parallel_tool_calls": parallel}));
                let (status, answer) = client.post("/v1/chat/completions", &body);
                assert_eq!(status, 200, "{family}: {answer}");
                let message = &answer["choices"][0]["message"];
                let found = calls(message);
                assert!(!found.is_empty() && message["content"].is_null(), "{family}: {answer}");
                assert!(parallel || found.len() == 1, "{family}: {answer}");
                found.iter().for_each(check_call);
                if let Some(expected) = expected {
                    assert_eq!(
                        found.iter().map(|call| &call.0[..]).collect::<Vec<_>>(),
                        [expected],
                        "{family}"
                    );
                }
                assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{family}: {answer}");
                // The stream says the same.
                let mut streamed = body.clone();
                streamed["stream"] = json!(true);
                let chunks = client.stream("/v1/chat/completions", &streamed);
                let mut arguments = vec![String::new(); found.len()];
                let mut names = vec![String::new(); found.len()];
                for delta in chunks
                    .iter()
                    .flat_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array())
                    .flatten()
                {
                    let index = delta["index"].as_u64().unwrap() as usize;
                    names[index] += delta["function"]["name"].as_str().unwrap_or_default();
                    arguments[index] += delta["function"]["arguments"].as_str().unwrap();
                }
                for ((name, arguments), call) in names.into_iter().zip(arguments).zip(&found) {
                    assert_eq!(
                        (&name, &serde_json::from_str::<Value>(&arguments).unwrap()),
                        (&call.0, &call.1)
                    );
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_by_name() {
    let client = Client::new(HERMES);
    let other = Client::new(support::HARMONY);
    let bad = json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}});
    for (client, more, param) in [
        (&client, json!({"tool_choice": "required"}), "tool_choice"),
        (&client, json!({"tools": [clock()], "tool_choice": "sometimes"}), "tool_choice"),
        (
            &client,
            json!({"tools": [clock()], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
            "tool_choice",
        ),
        (
            &client,
            json!({"tools": [clock(), bad], "tool_choice": "required"}),
            "tools[1].function.parameters",
        ),
        (&client, json!({"tools": [{"type": "function", "function": {}}]}), "tools[0].function.name"),
        (&client, json!({"tools": [{"type": "web_search"}]}), "tools[0]"),
        (
            &client,
            json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}),
            "tools[0].function.name",
        ),
        (&other, json!({"tools": [clock()], "tool_choice": "required"}), "tool_choice"),
    ] {
        let (status, answer) = client.post("/v1/chat/completions", &question(more));
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
    }
}

#[test]
fn embeddings_come_as_numbers_and_as_bytes() {
    use base64::Engine as _;
    let client = Client::new(HERMES);
    let body = |more: Value| {
        let mut body = json!({"input": ["one", "two two", "one"]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let (status, answer) = client.post("/v1/embeddings", &body(json!({})));
    assert_eq!((status, answer["data"].as_array().map(Vec::len)), (200, Some(3)), "{answer}");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 13, "total_tokens": 13}));
    let vector = |answer: &Value, index: usize| -> Vec<f32> {
        serde_json::from_value(answer["data"][index]["embedding"].clone()).unwrap()
    };
    assert_eq!(vector(&answer, 0), vector(&answer, 2));
    assert_ne!(vector(&answer, 0), vector(&answer, 1));
    let (_, coded) = client.post("/v1/embeddings", &body(json!({"encoding_format": "base64"})));
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(coded["data"][1]["embedding"].as_str().unwrap());
    let floats: Vec<f32> =
        bytes.unwrap().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(floats, vector(&answer, 1));
    let (_, short) = client.post("/v1/embeddings", &body(json!({"dimensions": 2})));
    let short = vector(&short, 1);
    assert!(short.len() == 2 && (short[0].hypot(short[1]) - 1.0).abs() < 1e-6, "{short:?}");
    assert!((short[0] / short[1] - floats[0] / floats[1]).abs() < 1e-4);
    let (_, tokens) = client.post("/v1/embeddings", &json!({"input": [[7, 8], [9]]}));
    assert_eq!(tokens["usage"]["prompt_tokens"], 3);
    for (wrong, param) in [
        (json!({"input": []}), Some("input")),
        (json!({"input": ""}), Some("input")),
        (json!({}), Some("input")),
        (json!({"input": {"a": 1}}), Some("input")),
        (json!({"input": "x", "dimensions": 0}), Some("dimensions")),
        (json!({"input": "x", "dimensions": 10_000}), Some("dimensions")),
        (json!({"input": "x", "encoding_format": "int8"}), Some("encoding_format")),
        (json!({"input": [999_999]}), None),
        (json!({"input": "x", "pooling": "max"}), Some("pooling")),
    ] {
        let (status, answer) = client.post("/v1/embeddings", &wrong);
        assert_eq!((status, answer["error"]["param"].as_str()), (400, param), "{wrong} {answer}");
    }
}
