//! Renders conversations with chat templates, for comparison with another implementation.
//!
//! ```text
//! render_templates CASES.json TEMPLATE.jinja...
//! ```
//! `CASES.json` is a list of `{"messages", "tools"?, "kwargs"?, "add_generation_prompt"?}`; prints one JSON object,
//! `{TEMPLATE: [{"text"} | {"error"}]}`. The time is 2024-07-26 12:00 UTC, BOS `<BOS>`, EOS `<EOS>`.
#![allow(clippy::print_stdout)]

use std::error::Error;

use minfer_tokenizer::{ChatTemplate, TemplateInput};
use serde_json::{Map, Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let cases = std::fs::read_to_string(arguments.next().ok_or("usage: see the source")?)?;
    let cases: Vec<Value> = serde_json::from_str(&cases)?;
    let mut all = Map::new();
    for path in arguments {
        let source = std::fs::read_to_string(&path)?;
        let rendered = match ChatTemplate::new(&source) {
            Ok(template) => cases.iter().map(|case| render(&template, case)).collect(),
            Err(error) => vec![json!({ "error": error.to_string() }); cases.len()],
        };
        all.insert(path, Value::Array(rendered));
    }
    println!("{}", Value::Object(all));
    Ok(())
}

fn render(template: &ChatTemplate, case: &Value) -> Value {
    let input = TemplateInput {
        messages: case["messages"].clone(),
        tools: case.get("tools").filter(|tools| !tools.is_null()).cloned(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(true),
        bos: "<BOS>".into(),
        eos: "<EOS>".into(),
        kwargs: case["kwargs"].as_object().cloned().unwrap_or_default(),
        now: Some("2024-07-26T12:00:00+00:00[+00:00]".parse().expect("a constant time parses")),
    };
    match template.render(&input) {
        Ok(text) => json!({ "text": text }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}
