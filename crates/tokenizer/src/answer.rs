//! The parse of the answer: reasoning and tool calls split out of the text that a model generates, as it comes.
//!
//! Feed an [`AnswerParser`] the text of the generated tokens decoded with [`Special::Show`](crate::Special::Show), in
//! pieces of any size; what it returns in total does not depend on the pieces, but for where deltas are cut. Nothing is
//! lost: what looks like a call and is none is content. White space next to a marker belongs to the marker.
//!
//! The forms are those that the families' own chat templates render for an assistant's turn.

mod formats;
mod gemma;
mod json;
mod parser;

use serde_json::Value;

pub use formats::AnswerFormat;
use parser::Parser;

/// A part of an answer. Deltas of the same kind follow each other; together they are the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text for the user.
    Content(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A part of a tool call. The first of each call has its name; the arguments are a text that should be, but need
    /// not be, a JSON object.
    ToolCall {
        /// Number of the call within the answer, from 0.
        index: usize,
        /// The function's name, in the call's first event.
        name: Option<String>,
        /// More of the arguments.
        arguments: String,
    },
}

/// Splits an answer into events, incrementally.
#[derive(Debug)]
pub struct AnswerParser {
    parser: Parser,
}

impl AnswerParser {
    /// A parser for the answer to `prompt`, the rendered chat template, whose end says whether the answer begins
    /// within the model's reasoning. `tools` is the list that the template was given (JSON schemas); without tools there
    /// are no calls, and what looks like one is content.
    pub fn new(format: AnswerFormat, tools: Option<&Value>, prompt: &str) -> AnswerParser {
        AnswerParser { parser: Parser::new(format.rules(), tools, prompt) }
    }

    /// Adds text, and returns what is now certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerEvent> {
        self.parser.push(text)
    }

    /// Ends the answer, and returns the rest.
    pub fn finish(self) -> Vec<AnswerEvent> {
        self.parser.finish()
    }
}
