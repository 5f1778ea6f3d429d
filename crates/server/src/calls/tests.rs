use minfer_engine::{Begin, Constraint};

use super::*;
use crate::tests::support::{self, Client};

/// The grammar of an answer under `template`.
fn grammar(template: &str, choice: ToolChoice, strict: bool) -> Constraint {
    let parameters = json!({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": false});
    let tool = Tool::function("f".to_owned(), None, Some(parameters), strict, "tools[0]".to_owned());
    let conversation = Conversation { tools: vec![tool], choice, ..Conversation::default() };
    let model = Client::model(template);
    let format = AnswerFormat::of_template(template);
    let lark = super::grammar(&conversation, &*model, format).unwrap().unwrap();
    Constraint { grammar: Grammar::Lark(lark), begin: Begin::Now }
}

#[test]
fn a_strict_function_is_held_to_its_schema_only_where_it_is_called() {
    let hermes = grammar(support::HERMES, ToolChoice::Auto, true);
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    for (text, admitted) in [
        ("", true),
        ("Just text, with a < and <tool_ in it.", true),
        (&call("{\"n\": 1}"), true),
        (&format!("First this:\n{}", call("{\"n\": 2}")), true),
        (&format!("{}\n{}", call("{\"n\": 2}"), call("{\"n\": 1}")), true),
        (&call("{\"n\": 3}"), false),
        (&format!("{}\n{}", call("{\"n\": 2}"), call("{\"n\": 3}")), false),
        ("<tool_call>\nno", false),
    ] {
        assert_eq!(hermes.admits(text), Ok(admitted), "{text:?}");
    }
    let llama = grammar(support::FAMILIES[3].1, ToolChoice::Auto, true);
    for (text, admitted) in [
        ("", true),
        ("Text {with braces}", true),
        ("{\"name\": \"f\", \"parameters\": {\"n\": 1}}", true),
        ("{\"name\": \"f\", \"parameters\": {\"n\": 3}}", false),
        ("{\"name\": \"g\", \"parameters\": {\"n\": 1}}", false),
    ] {
        assert_eq!(llama.admits(text), Ok(admitted), "{text:?}");
    }
}

#[test]
fn tools_and_their_results_are_told_to_templates_that_know_none() {
    let tool = Tool::function("f".to_owned(), Some("Does it.".to_owned()), None, false, String::new());
    let messages = [
        json!({"role": "user", "content": "x"}),
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}),
        json!({"role": "tool", "content": "2"}),
        json!({"role": "tool", "content": "3"}),
    ];
    let told = told_in_text(&messages, &[tool], AnswerFormat::Hermes);
    let text = |index: usize| told[index]["content"].as_str().unwrap();
    let roles: Vec<&str> = told.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    assert!(text(0).contains(r#"{"name":"f","description":"Does it."#), "{}", text(0));
    assert_eq!(text(2), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>");
    assert_eq!(text(3), "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>");
}
