//! Calls of tools that have to be: a grammar of the family's own syntax; and tools in words, for templates that have none.

use minfer_engine::{ConstraintError, Grammar};
use minfer_tokenizer::AnswerFormat;
use serde_json::{Value, json};

use crate::conversation::{Conversation, Tool, ToolChoice};
use crate::error::ApiError;
use crate::host::Model;

/// Most calls of an answer that has to have some: so that a model which does not get out of it ends.
const MOST_CALLS: usize = 16;

/// How a family writes calls.
struct Syntax {
    /// Before each call, or before the list of them.
    open: Option<&'static str>,
    /// Between that and the call, and between the call and `close`.
    inner: &'static str,
    close: Option<&'static str>,
    /// What stands around the list of calls, if they are a list within one pair of markers.
    list: Option<(&'static str, &'static str)>,
    /// Between calls.
    between: &'static str,
    body: Body,
    /// Calls of an answer at most.
    most: usize,
}

/// How a call itself is written.
enum Body {
    /// `{"name": …, KEY: …}`.
    Object(&'static str),
    /// The name, this, and the arguments.
    Named(&'static str),
}

const ONE_AFTER_THE_OTHER: Syntax = Syntax {
    open: None,
    inner: "",
    close: None,
    list: None,
    between: "",
    body: Body::Object("arguments"),
    most: MOST_CALLS,
};

/// The syntax of a family; `None` if its calls are not JSON.
fn syntax(format: AnswerFormat, template: &str) -> Option<Syntax> {
    match format {
        AnswerFormat::Hermes => Some(Syntax {
            open: Some("<tool_call>"),
            inner: "\n",
            close: Some("</tool_call>"),
            between: "\n",
            ..ONE_AFTER_THE_OTHER
        }),
        // Its template renders one call at a time.
        AnswerFormat::Llama3 => {
            Some(Syntax { body: Body::Object("parameters"), most: 1, ..ONE_AFTER_THE_OTHER })
        }
        AnswerFormat::Mistral if template.contains("[ARGS]") => {
            Some(Syntax { open: Some("[TOOL_CALLS]"), body: Body::Named("[ARGS]"), ..ONE_AFTER_THE_OTHER })
        }
        AnswerFormat::Mistral => Some(Syntax {
            open: Some("[TOOL_CALLS]"),
            list: Some(("[", "]")),
            between: ", ",
            ..ONE_AFTER_THE_OTHER
        }),
        // Gemma 4 writes arguments in a way of its own.
        AnswerFormat::Gemma if template.contains("<|tool_call>") => None,
        AnswerFormat::Gemma if template.contains("<start_function_call>") => None,
        AnswerFormat::Gemma => Some(Syntax {
            list: Some(("[", "]")),
            between: ", ",
            body: Body::Object("parameters"),
            ..ONE_AFTER_THE_OTHER
        }),
        AnswerFormat::Granite => Some(Syntax {
            open: Some("<|tool_call|>"),
            list: Some(("[", "]")),
            between: ", ",
            ..ONE_AFTER_THE_OTHER
        }),
        _ => None,
    }
}

/// The grammar of an answer whose calls have to be as asked for; `None` if there is nothing to enforce.
pub(crate) fn grammar(
    conversation: &Conversation,
    model: &dyn Model,
    format: AnswerFormat,
) -> Result<Option<String>, ApiError> {
    let Conversation { tools, choice, max_calls, .. } = conversation;
    if tools.is_empty() {
        return match choice {
            ToolChoice::Required | ToolChoice::Named(_) => {
                Err(ApiError::field("tool_choice", "asks for a call, but there are no tools"))
            }
            ToolChoice::Auto | ToolChoice::None => Ok(None),
        };
    }
    let callable: Vec<&Tool> = match choice {
        ToolChoice::None => return Ok(None),
        ToolChoice::Auto if !tools.iter().any(|tool| tool.strict) => return Ok(None),
        ToolChoice::Auto | ToolChoice::Required => tools.iter().collect(),
        ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name == *name).collect(),
    };
    if callable.is_empty() {
        return Err(ApiError::field("tool_choice", "names none of the tools"));
    }
    let source = model.template().map(|template| template.source()).unwrap_or_default();
    let field = if *choice == ToolChoice::Auto { "tools: strict" } else { "tool_choice" };
    let Some(syntax) = syntax(format, source) else {
        let message = format!("cannot be enforced: calls of the family {format:?} are no JSON");
        return Err(ApiError { code: Some("unsupported_parameter"), ..ApiError::field(field, message) });
    };
    let named = matches!(choice, ToolChoice::Named(_));
    let most = if named { 1 } else { max_calls.unwrap_or(usize::MAX).clamp(1, syntax.most) };
    let lark = Lark { syntax: &syntax, model, most };
    let start = if *choice == ToolChoice::Auto { lark.perhaps() } else { lark.calls("") };
    Ok(Some(format!("{start}{}", lark.functions(&callable, *choice == ToolChoice::Auto)?)))
}

/// A grammar in llguidance's Lark.
struct Lark<'a> {
    syntax: &'a Syntax,
    model: &'a dyn Model,
    most: usize,
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Lark<'_> {
    /// A marker: its token, if that has no text.
    fn marker(&self, text: &str) -> String {
        let tokenizer = self.model.tokenizer();
        match tokenizer.token_id(text).filter(|&id| tokenizer.is_special(id)) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    }

    /// The rule `start` of one call or more; with `opened` for the first marker where it has been said.
    fn calls(&self, opened: &str) -> String {
        let Syntax { open, inner, close, list, between, .. } = self.syntax;
        let marker = |marker: &Option<&str>| marker.map(|text| self.marker(text)).unwrap_or_default();
        let (open, close) = (marker(open), marker(close));
        let first = if opened.is_empty() { &open } else { opened };
        let space = |text: &str| if text.is_empty() { String::new() } else { quoted(text) };
        let (inner, between) = (space(inner), space(between));
        let more = self.most - 1;
        match list {
            // Of a family without markers, a single call needs no list.
            Some((begin, end)) => {
                let more = if more == 0 { String::new() } else { format!("({between} call){{0,{more}}}") };
                let list = format!("{} call {more} {}", quoted(begin), quoted(end));
                match (open.is_empty(), self.most) {
                    (true, 1) => "start: call\n".to_owned(),
                    (true, _) => format!("start: call | {list}\n"),
                    (false, _) => format!("start: {first} \" \"? {list}\n"),
                }
            }
            None => {
                let one = |open: &str| format!("{open} {inner} call {inner} {close}");
                match more {
                    0 => format!("start: {}\n", one(first)),
                    more => format!("start: {} ({between} {}){{0,{more}}}\n", one(first), one(&open)),
                }
            }
        }
    }

    /// The rule `start` of a text that may have calls in it.
    fn perhaps(&self) -> String {
        let text = "TEXT: /(?s:.+)/\n";
        match self.syntax.open {
            // What begins like a call has to be one.
            None => {
                self.calls("").replacen("start:", "calls:", 1)
                    + "start: calls | OTHER?\nOTHER: /[^{\\[](?s:.*)/\n"
            }
            Some(open) => {
                let marker = self.marker(open);
                // A marker with a text of its own is found where it ends; one that is a token by itself.
                let (opened, rules) = match marker.starts_with('<') {
                    true => (format!("TEXT? {marker}"), String::new()),
                    false => {
                        let pattern: String = open
                            .chars()
                            .map(|c| match c {
                                '[' | ']' | '|' | '/' => format!("\\{c}"),
                                c => c.to_string(),
                            })
                            .collect();
                        ("open".to_owned(), format!("open[lazy]: /(?s:.*){pattern}/\n"))
                    }
                };
                let calls = self.calls(&opened).replacen("start:", "calls:", 1);
                format!("{calls}start: calls | TEXT?\n{rules}{text}")
            }
        }
    }

    /// The rules of the functions: their names and arguments.
    fn functions(&self, tools: &[&Tool], only_strict: bool) -> Result<String, ApiError> {
        let names: Vec<String> = (0..tools.len()).map(|index| format!("f{index}")).collect();
        let mut rules = format!("call: {}\n", names.join(" | "));
        for (index, tool) in tools.iter().enumerate() {
            let name = match self.syntax.body {
                Body::Object(key) => format!(
                    "{} args{index} \"}}\"",
                    quoted(&format!("{{\"name\": {}, \"{key}\": ", quoted(&tool.name)))
                ),
                Body::Named(separator) => {
                    format!("{} {} args{index}", quoted(&tool.name), self.marker(separator))
                }
            };
            let schema = match only_strict && !tool.strict {
                true => json!({"type": "object"}),
                false => object(&tool.parameters),
            };
            let schema = Grammar::schema_in_lark(schema).map_err(|error: ConstraintError| {
                ApiError::field(format!("{}.parameters", tool.at), error)
            })?;
            rules += &format!("f{index}: {name}\nargs{index}: {schema}\n");
        }
        Ok(rules)
    }
}

/// Arguments are an object, whether the schema says so or not.
fn object(schema: &Value) -> Value {
    let mut schema = schema.clone();
    match schema.as_object_mut() {
        Some(keywords) => {
            keywords.entry("type").or_insert_with(|| json!("object"));
            schema
        }
        None => json!({"type": "object"}),
    }
}

/// The conversation for a template that does not know of tools: they are described to the model, and calls and their
/// results are told as text.
pub(crate) fn told_in_text(messages: &[Value], tools: &[Tool], format: AnswerFormat) -> Vec<Value> {
    let hermes = format == AnswerFormat::Hermes;
    let list: Vec<String> = tools.iter().map(|tool| tool.json["function"].to_string()).collect();
    let list = list.join("\n");
    let about = match hermes {
        true => format!(
            "You may call functions. They are described here, one a line:\n<tools>\n{list}\n</tools>\n\nTo call one, \
             answer with its name and arguments as JSON:\n<tool_call>\n{{\"name\": \"...\", \"arguments\": {{...}}}}\n\
             </tool_call>"
        ),
        false => format!(
            "You may call functions. They are described here, one a line:\n{list}\n\nTo call one, answer with nothing \
             but its name and arguments as JSON:\n{{\"name\": \"...\", \"parameters\": {{...}}}}"
        ),
    };
    let mut told: Vec<Value> = Vec::new();
    let mut rest = messages;
    if let [first, others @ ..] = messages
        && first["role"] == "system"
    {
        let text = first["content"].as_str().unwrap_or_default();
        told.push(json!({"role": "system", "content": format!("{text}\n\n{about}")}));
        rest = others;
    } else {
        told.push(json!({"role": "system", "content": about}));
    }
    for message in rest {
        let text = message["content"].as_str().unwrap_or_default();
        let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        if message["role"] == "tool" {
            let text = match hermes {
                true => format!("<tool_response>\n{text}\n</tool_response>"),
                false => format!("Result: {text}"),
            };
            // Turns alternate, so results of one turn are one message.
            match told.last_mut() {
                Some(last) if last["role"] == "user" => {
                    last["content"] =
                        json!(format!("{}\n{text}", last["content"].as_str().unwrap_or_default()));
                }
                _ => told.push(json!({"role": "user", "content": text})),
            }
        } else if calls.is_empty() {
            told.push(message.clone());
        } else {
            let mut parts: Vec<String> = Vec::new();
            parts.extend((!text.is_empty()).then(|| text.to_owned()));
            parts.extend(calls.iter().map(|call| call_as_text(&call["function"], hermes)));
            told.push(json!({"role": "assistant", "content": parts.join("\n")}));
        }
    }
    told
}

fn call_as_text(function: &Value, hermes: bool) -> String {
    let (name, arguments) = (&function["name"], &function["arguments"]);
    match hermes {
        true => format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"),
        false => format!("{{\"name\": {name}, \"parameters\": {arguments}}}"),
    }
}

#[cfg(test)]
mod tests;
