//! `minfer template`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use jiff::Zoned;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::TimeZone;
use minfer::source::Source;
use minfer::tokenizer::{ChatTemplate, TemplateInput};
use serde_json::{Map, Value};

use super::args::{open, parse_source, usage};
use super::terminal::{print, read_file};

/// Render a chat template to text
///
/// The text goes to stdout exactly as the template makes it, no newline added.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer template --messages chat.json\n  minfer template --template chat.jinja --messages chat.json --bos '<s>'\n\n\
    chat.json: {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"tools\": […], \"chat_template_kwargs\": {…}}"
)]
pub(super) struct Args {
    /// Model whose template and special tokens are used; SmolLM2 if neither this nor --template is given
    #[arg(short, long, value_name = "MODEL", value_parser = parse_source)]
    model: Option<Source>,
    /// Template to use instead; needs no model
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// JSON file with `messages` and, if wanted, `tools` and `chat_template_kwargs`
    #[arg(long, value_name = "FILE")]
    messages: PathBuf,
    /// Text of the token that begins a sequence, if it is not the model's
    #[arg(long, value_name = "TEXT")]
    bos: Option<String>,
    /// Text of the token that ends a sequence, if it is not the model's
    #[arg(long, value_name = "TEXT")]
    eos: Option<String>,
    /// Do not begin the assistant's answer
    #[arg(long)]
    no_generation_prompt: bool,
    /// The time that the template is told, like 2026-11-30T12:00:00+01:00
    #[arg(long, value_name = "RFC3339", value_parser = parse_time)]
    now: Option<Zoned>,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let mut input = read_messages(&self.messages)?;
        let source = match &self.template {
            Some(_) => self.model,
            None => Some(self.model.unwrap_or_default()),
        };
        let gguf = source.as_ref().map(open).transpose()?;
        if let Some(gguf) = &gguf {
            let tokenizer = minfer::vocabulary(gguf, None).context("cannot read the vocabulary")?;
            let text =
                |id: Option<u32>| id.and_then(|id| tokenizer.piece(id)).unwrap_or_default().into_owned();
            input.bos = text(tokenizer.bos());
            input.eos = text(tokenizer.eos());
        }
        input.bos = self.bos.unwrap_or(input.bos);
        input.eos = self.eos.unwrap_or(input.eos);
        input.add_generation_prompt = !self.no_generation_prompt;
        input.now = self.now;
        let template = match (&self.template, &gguf) {
            (Some(path), _) => {
                let text = String::from_utf8(read_file(path)?);
                let text = text.with_context(|| format!("{} is not UTF-8", path.display()))?;
                ChatTemplate::new(&text).with_context(|| path.display().to_string())?
            }
            (None, Some(gguf)) => match ChatTemplate::from_gguf(gguf.metadata())? {
                Some(template) => template,
                None => bail!("the model has no chat template: give one by --template"),
            },
            (None, None) => return Err(usage("neither a model nor a template")),
        };
        print(template.render(&input)?)
    }
}

/// Reads the conversation: an object, or the bare list of messages.
fn read_messages(path: &std::path::Path) -> Result<TemplateInput> {
    let what = || path.display().to_string();
    let json: Value = serde_json::from_slice(&read_file(path)?).with_context(what)?;
    let mut object = match json {
        Value::Object(object) => object,
        messages @ Value::Array(_) => Map::from_iter([("messages".to_owned(), messages)]),
        _ => bail!("{}: expected an object with `messages`", path.display()),
    };
    let Some(messages @ Value::Array(_)) = object.remove("messages") else {
        bail!("{}: `messages` must be an array", path.display());
    };
    let tools = object.remove("tools").filter(|tools| !tools.is_null());
    let kwargs = match object.remove("chat_template_kwargs") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(kwargs)) => kwargs,
        Some(_) => bail!("{}: `chat_template_kwargs` must be an object", path.display()),
    };
    if let Some(name) = object.keys().next() {
        bail!(
            "{}: unknown field `{name}`: expected `messages`, `tools`, `chat_template_kwargs`",
            path.display()
        );
    }
    Ok(TemplateInput { messages, tools, kwargs, ..TemplateInput::default() })
}

/// A time with an offset, kept in that offset.
fn parse_time(given: &str) -> Result<Zoned, String> {
    let parser = DateTimeParser::new();
    let time = parser.parse_timestamp(given).map_err(|e| e.to_string())?;
    let pieces = parser.parse_pieces(given).map_err(|e| e.to_string())?;
    let offset = pieces.to_numeric_offset().unwrap_or(jiff::tz::Offset::UTC);
    Ok(time.to_zoned(TimeZone::fixed(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_offset() {
        let time = parse_time("2026-11-30T12:34:56+02:00").unwrap();
        assert_eq!(time.strftime("%Y-%m-%d %H:%M %z").to_string(), "2026-11-30 12:34 +0200");
        assert_eq!(parse_time("2026-11-30T12:34:56Z").unwrap().hour(), 12);
        assert!(parse_time("yesterday").is_err());
    }

    #[test]
    fn conversations_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_messages(&path)
        };
        assert!(read(r#"[{"role": "user"}]"#).unwrap().tools.is_none());
        let full = read(r#"{"messages": [], "tools": [{}], "chat_template_kwargs": {"a": 1}}"#).unwrap();
        assert!(full.tools.is_some() && full.kwargs["a"] == 1);
        for bad in ["3", "{}", r#"{"messages": 1}"#, r#"{"messages": [], "tool": 1}"#, "not json"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
