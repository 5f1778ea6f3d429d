//! An answer as it grows.

use minfer_tokenizer::AnswerEvent;
use serde_json::{Value, json};

/// The parts of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Names and arguments of calls.
    pub(crate) calls: Vec<(String, String)>,
}

impl Answered {
    pub(crate) fn add(&mut self, event: AnswerEvent) {
        match event {
            AnswerEvent::Content(text) => self.content += &text,
            AnswerEvent::Reasoning(text) => self.reasoning += &text,
            AnswerEvent::ToolCall { index, name, arguments } => {
                if self.calls.len() <= index {
                    self.calls.resize_with(index + 1, Default::default);
                }
                let call = &mut self.calls[index];
                call.0 += &name.unwrap_or_default();
                call.1 += &arguments;
            }
        }
    }
}

/// Arguments as an object; what is none, as an answer that was cut off has it, is an empty one.
pub(crate) fn arguments(text: &str) -> Value {
    serde_json::from_str(text).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
}
