//! Messages as Anthropic's clients send them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::missing;

/// A message.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct MessageField {
    /// `user` or `assistant`.
    pub(super) role: String,
    content: Content,
}

/// A text, or blocks.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of content blocks with a type")]
pub(crate) enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// A block: its fields by its type.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Block {
    /// `text`, `tool_use`, `tool_result`, `thinking` or `redacted_thinking`.
    r#type: String,
    /// Of `text`.
    text: Option<String>,
    /// Of `tool_use`.
    id: Option<String>,
    /// Of `tool_use`.
    name: Option<String>,
    /// Of `tool_use`.
    input: Option<Value>,
    /// Of `tool_result`.
    tool_use_id: Option<String>,
    /// Of `tool_result`.
    content: Option<Box<Content>>,
    /// Of `tool_result`.
    is_error: Option<bool>,
    /// Of `thinking`.
    thinking: Option<String>,
}

impl Content {
    /// The text of a content that is nothing but text.
    pub(super) fn text(self, at: &str) -> Result<String, ApiError> {
        match self {
            Content::Text(text) => Ok(text),
            Content::Blocks(blocks) => {
                let text = |(index, block): (usize, Block)| match (&block.r#type[..], block.text) {
                    ("text", Some(text)) => Ok(text),
                    ("text", None) => Err(missing(format!("{at}[{index}].text"))),
                    (other, _) => Err(unsupported(&format!("{at}[{index}]"), other)),
                };
                blocks.into_iter().enumerate().map(text).collect()
            }
        }
    }
}

fn unsupported(at: &str, kind: &str) -> ApiError {
    let what = format!("blocks of type {kind:?} are not supported here");
    ApiError { code: Some("unsupported_parameter"), ..ApiError::field(at, what) }
}

impl MessageField {
    /// As templates take it: results of tools are messages of their own, before the text that comes with them.
    pub(super) fn for_template(self, at: &str) -> Result<Vec<Value>, ApiError> {
        let assistant = match &self.role[..] {
            "assistant" => true,
            "user" => false,
            "system" => return Ok(vec![json!({"role": "system", "content": self.content.text(at)?})]),
            other => return Err(ApiError::field(format!("{at}.role"), format!("{other:?} is not known"))),
        };
        let blocks = match self.content {
            Content::Text(text) => return Ok(vec![json!({"role": self.role, "content": text})]),
            Content::Blocks(blocks) => blocks,
        };
        let (mut text, mut thinking) = (String::new(), String::new());
        let (mut calls, mut messages) = (Vec::new(), Vec::new());
        for (index, block) in blocks.into_iter().enumerate() {
            let at = format!("{at}.content[{index}]");
            let need =
                |field: Option<String>, name: &str| field.ok_or_else(|| missing(format!("{at}.{name}")));
            match (&block.r#type[..], assistant) {
                ("text", _) => text += &need(block.text, "text")?,
                ("thinking", true) => thinking += &need(block.thinking, "thinking")?,
                // Nobody but who made it can read it.
                ("redacted_thinking", true) => {}
                ("tool_use", true) => calls.push(json!({
                    "id": need(block.id, "id")?,
                    "type": "function",
                    "function": {"name": need(block.name, "name")?, "arguments": block.input.unwrap_or_else(|| json!({}))},
                })),
                ("tool_result", false) => {
                    let result = block.content.map(|content| content.text(&format!("{at}.content")));
                    let mut result = result.transpose()?.unwrap_or_default();
                    if block.is_error == Some(true) {
                        result = format!("Error: {result}");
                    }
                    let id = need(block.tool_use_id, "tool_use_id")?;
                    messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
                }
                (other, _) => return Err(unsupported(&at, other)),
            }
        }
        if assistant {
            let mut message = json!({"role": "assistant", "content": text});
            if !thinking.is_empty() {
                message["reasoning_content"] = json!(thinking);
            }
            if !calls.is_empty() {
                message["tool_calls"] = json!(calls);
            }
            messages.push(message);
        } else if !text.is_empty() || messages.is_empty() {
            messages.push(json!({"role": "user", "content": text}));
        }
        Ok(messages)
    }
}
