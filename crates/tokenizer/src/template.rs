//! Chat templates: the Jinja source that a file carries, with the environment that `transformers`'
//! `apply_chat_template` gives it.
//!
//! Source: `_compile_jinja_template` and `render_jinja_template` in
//! <https://github.com/huggingface/transformers/blob/main/src/transformers/utils/chat_template_utils.py>.

mod json;
mod limits;
mod methods;
mod names;
mod python;

use std::fmt;

use jiff::Zoned;
use minfer_gguf::Metadata;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use regex_automata::meta::Regex;
use rustc_hash::FxHashSet;
use serde_json::Map;

use crate::Error;

/// The name errors know the template by.
const NAME: &str = "chat template";

/// A compiled chat template. Immutable, so one may serve all threads.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    warnings: Vec<String>,
}

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct TemplateInput {
    /// A list of messages with `role`, `content` and what else the template reads.
    pub messages: serde_json::Value,
    /// Tools as JSON schemas; `none` in the template where there are no tools.
    pub tools: Option<serde_json::Value>,
    /// End with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// `bos_token`: its text.
    pub bos: String,
    /// `eos_token`: its text.
    pub eos: String,
    /// Further variables (`documents`, `enable_thinking`, …). They go before the ones above.
    pub kwargs: Map<String, serde_json::Value>,
    /// The time that `strftime_now` tells; now, where there is none.
    pub now: Option<Zoned>,
}

impl ChatTemplate {
    /// The default template of a file, if it has one.
    pub fn from_gguf(metadata: &Metadata) -> Result<Option<ChatTemplate>, Error> {
        metadata.str("tokenizer.chat_template")?.map(ChatTemplate::new).transpose()
    }

    /// Compiles a template. One that uses a filter, test or function that does not exist is refused, unless that is
    /// within an `if` ([`warnings`](Self::warnings)), and so is one above 128 KiB.
    pub fn new(source: &str) -> Result<ChatTemplate, Error> {
        if source.len() > limits::MAX_SOURCE {
            return Err(Error::TemplateSize { found: source.len(), limit: limits::MAX_SOURCE });
        }
        limits::with_stack(|| ChatTemplate::compile(source))
    }

    fn compile(source: &str) -> Result<ChatTemplate, Error> {
        let source = prepare(source);
        if let Some((line, found)) = names::longest_tag(&source).filter(|tag| tag.1 > limits::MAX_TOKENS) {
            let detail = format!("a tag of {found} names and signs; the limit is {}", limits::MAX_TOKENS);
            return Err(Error::TemplateSyntax { line, construct: construct(&source, line), detail });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| syntax_error(&source, &error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(methods::call);
        environment.set_fuel(Some(limits::FUEL));
        environment.set_formatter(python::print);
        environment.add_filter("tojson", json::tojson);
        environment.add_filter("string", python::string);
        environment.add_filter("join", python::join);
        environment.add_filter("default", methods::default);
        environment.add_filter("d", methods::default);
        environment.add_filter("int", methods::int);
        environment.add_filter("float", methods::float);
        environment.add_filter("wordcount", methods::wordcount);
        environment.add_filter("urlencode", methods::urlencode);
        environment.add_filter("center", methods::center);
        environment.add_filter("attr", methods::attr);
        environment.add_test("callable", methods::is_callable);
        environment.add_test("iterable", is_iterable);
        environment.add_test("sequence", is_sequence);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, source.clone())
            .map_err(|error| syntax_error(&source, &error))?;
        let unknown = unknown_names(&environment, &source);
        let mut warnings = Vec::new();
        for found in unknown {
            let detail = match found.kind {
                names::Kind::Filter => format!("unknown filter `{}`", found.name),
                names::Kind::Test => format!("unknown test `{}`", found.name),
                names::Kind::Function => format!("unknown function `{}`", found.name),
            };
            let construct = construct(&source, found.line);
            // Jinja2 draws the same line: what may never be reached may be unknown.
            if !found.conditional {
                return Err(Error::TemplateSyntax { line: found.line, construct, detail });
            }
            warnings.push(format!("chat template, line {}: {detail}, in `{construct}`", found.line));
        }
        Ok(ChatTemplate { environment, source, warnings })
    }

    /// The template's source, with line ends and `generation` tags made plain.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Filters, tests and functions that do not exist, in parts that a conversation may not reach. One that does is
    /// refused.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Renders a conversation to the text that the model expects, of at most 32 MiB.
    pub fn render(&self, input: &TemplateInput) -> Result<String, Error> {
        limits::with_stack(|| self.render_here(input))
    }

    fn render_here(&self, input: &TemplateInput) -> Result<String, Error> {
        let now = input.now.clone();
        let strftime_now = move |format: &str| strftime(now.as_ref(), format);
        let mut variables = vec![
            ("messages", Value::from(Serde(messages(&input.messages)))),
            ("tools", input.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(input.add_generation_prompt)),
            ("bos_token", Value::from(input.bos.as_str())),
            ("eos_token", Value::from(input.eos.as_str())),
            ("strftime_now", Value::from_function(strftime_now)),
        ];
        variables.extend(input.kwargs.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        let mut rendered = limits::Rendered::default();
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(Value::from_pairs(variables), &mut rendered))
            .map(drop)
            .map_err(|error| self.render_error(&error))?;
        String::from_utf8(rendered.0).map_err(|error| Error::TemplateRender {
            line: 1,
            construct: construct(&self.source, 1),
            detail: error.to_string(),
        })
    }

    fn render_error(&self, error: &minijinja::Error) -> Error {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = cause {
            if let Some(Raised(message)) = inner.downcast_ref() {
                return Error::TemplateRaised { message: message.clone() };
            }
            cause = inner.source();
        }
        let (line, construct, detail) = place(&self.source, error);
        Error::TemplateRender { line, construct, detail }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The names that a message's reasoning goes by, the standard one first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Messages as `apply_chat_template` hands them on: without keys that are null, and with reasoning under its standard
/// name and under gpt-oss's.
fn messages(messages: &serde_json::Value) -> serde_json::Value {
    let serde_json::Value::Array(list) = messages else { return messages.clone() };
    let normal = list.iter().map(|message| {
        let serde_json::Value::Object(fields) = message else { return message.clone() };
        let mut fields: Map<_, _> = fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() {
            let mut aliased = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
            aliased.extend(std::mem::take(&mut fields));
            aliased.insert("reasoning_content".to_owned(), reasoning);
            fields = aliased;
        }
        serde_json::Value::Object(fields)
    });
    serde_json::Value::Array(normal.collect())
}

/// Python's notion, to which `none` does not belong.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Jinja2's notion: what has a length and can be indexed.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

/// The message of a `raise_exception`, on its way out of the renderer.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: Value) -> Result<Value, minijinja::Error> {
    let message = python::text(&message)?;
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime(now: Option<&Zoned>, format: &str) -> Result<String, minijinja::Error> {
    let now = now.cloned().unwrap_or_else(Zoned::now);
    let bad = |error: jiff::Error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string());
    jiff::fmt::strtime::format(format, &now).map_err(bad)
}

/// Makes a source what Jinja2 would see: line ends are `\n`, and the `generation` tags, which only mark the assistant's
/// part for training, are plain scopes.
fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let tag = Regex::new(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}").expect("a constant pattern compiles");
    let mut plain = String::with_capacity(source.len());
    let mut copied = 0;
    for found in tag.find_iter(&source) {
        let text = &source[found.range()];
        plain.push_str(&source[copied..found.start()]);
        plain.push_str(&match text.contains("endgeneration") {
            true => text.replacen("endgeneration", "endif", 1),
            false => text.replacen("generation", "if true", 1),
        });
        copied = found.end();
    }
    plain.push_str(&source[copied..]);
    plain
}

fn syntax_error(source: &str, error: &minijinja::Error) -> Error {
    let (line, construct, detail) = place(source, error);
    Error::TemplateSyntax { line, construct, detail }
}

/// The uses of names that do not exist.
fn unknown_names<'s>(environment: &Environment<'_>, source: &'s str) -> Vec<names::Use<'s>> {
    let exists = |test: &str, name: &str| {
        let found =
            environment.compile_expression(test).and_then(|test| test.eval(minijinja::context!(name)));
        found.is_ok_and(|found| found.is_true())
    };
    let globals: FxHashSet<&str> =
        environment.globals().map(|(name, _)| name).chain(["strftime_now"]).collect();
    let mut uses = names::uses(source);
    uses.retain(|found| match found.kind {
        names::Kind::Filter => !exists("name is filter", found.name),
        names::Kind::Test => !exists("name is test", found.name),
        names::Kind::Function => !globals.contains(found.name),
    });
    uses
}

/// The text of a line, counted from 1; some templates are one line.
fn construct(source: &str, line: usize) -> String {
    const LONGEST: usize = 160;
    let text = source.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
    let mut construct: String = text.chars().take(LONGEST).collect();
    if construct.len() < text.len() {
        construct.push('…');
    }
    construct
}

/// Line (from 1), text of that line, and description of an error.
fn place(source: &str, error: &minijinja::Error) -> (usize, String, String) {
    // The writer's error says what is wrong; the one around it, only that something is.
    let written = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .and_then(|source| source.get_ref()?.downcast_ref::<minijinja::Error>());
    let error = written.unwrap_or(error);
    let line = error.line().unwrap_or(1);
    let detail = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    (line, construct(source, line), detail)
}
