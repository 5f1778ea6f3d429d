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

#[test]
fn reasoning_is_bounded_and_split_off() {
    let client = Client::new(support::FAMILIES[2].1);
    let message = |more: Value| {
        let mut body = question(json!({"max_tokens": 40, "temperature": 0}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = client.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"].clone()
    };
    // Without the token that ends it.
    let free = message(json!({"logit_bias": {"261": -100}}));
    let reasoning = free["reasoning_content"].as_str().unwrap();
    assert!(free["content"] == "" && !reasoning.is_empty());
    for more in [json!({"reasoning_budget": 6}), json!({"thinking": {"type": "enabled", "budget_tokens": 6}})]
    {
        let bounded = message(more);
        let begin = bounded["reasoning_content"].as_str().unwrap();
        assert!(reasoning.starts_with(begin) && begin.len() < reasoning.len(), "{bounded}");
        assert!(!bounded["content"].as_str().unwrap().is_empty(), "{bounded}");
    }
    let none = message(json!({"reasoning_budget": 0}));
    assert!(none["reasoning_content"].is_null() && none["content"] != "", "{none}");
    // A format that the text has to have begins after the reasoning.
    let schema = json!({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let held = message(json!({"reasoning_budget": 3, "response_format": format, "max_tokens": 400}));
    let value: Value = serde_json::from_str(held["content"].as_str().unwrap()).unwrap();
    assert!([json!(1), json!(2)].contains(&value["n"]) && !held["reasoning_content"].is_null(), "{held}");
    let whole = message(json!({"reasoning_format": "none", "logit_bias": {"261": -100}}));
    assert!(
        whole["reasoning_content"].is_null() && whole["content"].as_str().unwrap().len() >= reasoning.len()
    );
}

#[test]
fn more_fields_are_honoured_or_refused() {
    let client = Client::new(HERMES);
    let told = client.stream("/v1/chat/completions",
        &question(json!({"stream": true, "max_tokens": 5, "ignore_eos": true, "return_progress": true, "timings_per_token": true})));
    let progress: Vec<&Value> = told.iter().map(|c| &c["prompt_progress"]).filter(|p| !p.is_null()).collect();
    let last = progress.last().unwrap();
    assert!(last["processed"] == last["total"] && last["total"].as_u64() > Some(10), "{last}");
    let timings: Vec<&Value> = told.iter().map(|c| &c["timings"]).filter(|t| !t.is_null()).collect();
    assert!(
        !timings.is_empty()
            && timings.iter().all(|t| t["predicted_n"].is_u64() && t["prompt_ms"].is_number())
    );
    // The order of steps is honoured: only the last one's name is one that draws.
    let drawn = |more: Value| {
        let mut body = question(json!({"max_tokens": 12, "seed": 5, "temperature": 3.0}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.post("/v1/chat/completions", &body).1["choices"][0]["message"]["content"].clone()
    };
    let greedy = drawn(json!({"temperature": 0}));
    assert_eq!(drawn(json!({"samplers": ["top_k", "temperature"], "top_k": 1})), greedy);
    assert_ne!(drawn(json!({"samplers": ["temperature"], "top_k": 1})), greedy);
    // The last message goes on.
    let render = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.post("/apply-template", &body).1["prompt"].as_str().unwrap().to_owned()
    };
    assert!(render(json!({"continue_final_message": true})).ends_with("assistant\nIt is"));
    assert!(render(json!({"add_generation_prompt": false})).ends_with("It is<|im_end|>"));
    for (more, param) in [
        (json!({"samplers": ["top_k", "magic"]}), Some("samplers")),
        (json!({"mirostat": 1}), None),
        (json!({"lora": [{"id": 0}]}), Some("lora")),
        (json!({"functions": []}), Some("functions")),
        (json!({"reasoning_format": "xml"}), Some("reasoning_format")),
        (json!({"thinking": {"type": "maybe"}}), Some("thinking.type")),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            Some("continue_final_message"),
        ),
        (json!({"web_search_options": {}}), Some("web_search_options")),
    ] {
        let (status, answer) = client.post("/v1/chat/completions", &question(more));
        assert_eq!((status, answer["error"]["param"].as_str()), (400, param), "{answer}");
    }
    let effectless = json!({"user": "u", "store": true, "metadata": {}, "cache_prompt": false, "id_slot": -1,
        "service_tier": "auto", "prediction": null, "max_tokens": 1});
    assert_eq!(client.post("/v1/chat/completions", &question(effectless)).0, 200);
}
