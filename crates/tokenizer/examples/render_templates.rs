//! Renders conversations with chat templates, for comparison with another implementation.
//!
//! ```text
//! render_templates CASES.json [--golden RENDERED.json] TEMPLATE.jinja...
//! ```
//! `CASES.json` is a list of `{"name", "messages", "tools"?, "kwargs"?, "add_generation_prompt"?}`; prints one JSON
//! object, `{TEMPLATE: [{"text"} | {"error"}]}`; or, with `--golden`, where the two differ
//! (`tests/golden/template/make.py` says what the golden holds). The time is 2024-07-26 12:00 UTC, BOS `<BOS>`, EOS
//! `<EOS>`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;

use minfer_tokenizer::{ChatTemplate, TemplateInput};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (cases, golden, templates) = match &arguments[..] {
        [cases, "--golden", golden, templates @ ..] => (cases, Some(golden), templates),
        [cases, templates @ ..] => (cases, None, templates),
        _ => return Err("usage: see the source".into()),
    };
    let read = |path: &str| -> Result<Value, Box<dyn Error>> {
        Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
    };
    let cases = read(cases)?;
    let cases = cases.as_array().ok_or("the cases are no list")?;
    let golden = golden.map(|path| read(path)).transpose()?;
    let mut all = Map::new();
    let (mut equal, mut refused, mut more, mut differ) = (0, 0, 0, 0);
    for path in templates {
        let source = std::fs::read_to_string(path)?;
        let rendered = match ChatTemplate::new(&source) {
            Ok(template) => cases.iter().map(|case| render(&template, case)).collect(),
            Err(error) => vec![json!({ "error": error.to_string() }); cases.len()],
        };
        let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        for (index, (case, found)) in cases.iter().zip(&rendered).enumerate() {
            let Some(expected) = golden.as_ref().map(|golden| &golden[name][index]) else { continue };
            let hash = match found["text"].as_str() {
                Some(text) => Sha256::digest(text)[..8].iter().map(|byte| format!("{byte:02x}")).collect(),
                None => "error".to_owned(),
            };
            match expected.as_str() {
                Some("error") if hash == "error" => refused += 1,
                // Jinja2 loops over none and its generators less willingly.
                Some("error") => more += 1,
                Some(expected) if expected == hash => equal += 1,
                _ => {
                    differ += 1;
                    println!("{name}, {}: expected {expected}, found {found}", case["name"]);
                }
            }
        }
        all.insert((*path).to_owned(), Value::Array(rendered));
    }
    if golden.is_none() {
        println!("{}", Value::Object(all));
        return Ok(());
    }
    println!(
        "{equal} texts equal, {refused} conversations refused by both, {more} only there, {differ} differ"
    );
    if differ > 0 { Err("not equal".into()) } else { Ok(()) }
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
