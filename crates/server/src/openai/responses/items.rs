//! What an answer is made of, and the events that tell it: each item is begun, told and ended.

use minfer_tokenizer::AnswerEvent;
use serde_json::{Value, json};

use crate::openai::unique;

/// The items of an answer as it grows.
#[derive(Default)]
pub(super) struct Items {
    /// Those that are whole.
    pub(super) output: Vec<Value>,
    /// Tokens of reasoning: those after which the model still reasons.
    pub(super) reasoning_tokens: usize,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
    /// The call of this number.
    Call(usize),
}

/// The item that is being told.
struct Open {
    kind: Kind,
    item: Value,
    text: String,
}

impl Kind {
    fn part(self, text: &str) -> Value {
        match self {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
        }
    }

    /// What its events are called.
    fn name(self) -> &'static str {
        match self {
            Kind::Text => "response.output_text",
            Kind::Reasoning => "response.reasoning_text",
            Kind::Call(_) => "response.function_call_arguments",
        }
    }

    /// An item of which there is nothing yet.
    fn item(self, name: Option<&str>) -> Value {
        match self {
            Kind::Text => json!({"type": "message", "id": unique("msg_"), "status": "in_progress",
                "role": "assistant", "content": []}),
            Kind::Reasoning => json!({"type": "reasoning", "id": unique("rs_"), "status": "in_progress",
                "summary": [], "content": []}),
            Kind::Call(_) => json!({"type": "function_call", "id": unique("fc_"), "status": "in_progress",
                "call_id": unique("call_"), "name": name, "arguments": ""}),
        }
    }
}

impl Items {
    /// The news of one token, as events.
    pub(super) fn add_all(&mut self, events: Vec<AnswerEvent>) -> Vec<Value> {
        let told = events.into_iter().flat_map(|event| self.add(event)).collect();
        let reasons = self.open.as_ref().is_some_and(|open| open.kind == Kind::Reasoning);
        self.reasoning_tokens += usize::from(reasons);
        told
    }

    fn add(&mut self, event: AnswerEvent) -> Vec<Value> {
        let (kind, name, text) = match event {
            AnswerEvent::Content(text) => (Kind::Text, None, text),
            AnswerEvent::Reasoning(text) => (Kind::Reasoning, None, text),
            AnswerEvent::ToolCall { index, name, arguments } => (Kind::Call(index), name, arguments),
        };
        let mut events = Vec::new();
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            events.extend(self.close("completed"));
            events.extend(self.begin(kind, name.as_deref()));
        }
        let at = self.output.len();
        if let Some(open) = &mut self.open {
            open.text += &text;
            let mut event = json!({"type": format!("{}.delta", kind.name()), "item_id": open.item["id"],
                "output_index": at, "delta": text});
            if !matches!(kind, Kind::Call(_)) {
                event["content_index"] = json!(0);
            }
            if kind == Kind::Text {
                event["logprobs"] = json!([]);
            }
            events.push(event);
        }
        events
    }

    fn begin(&mut self, kind: Kind, name: Option<&str>) -> Vec<Value> {
        let (item, at) = (kind.item(name), self.output.len());
        let mut events =
            vec![json!({"type": "response.output_item.added", "output_index": at, "item": item})];
        if !matches!(kind, Kind::Call(_)) {
            events.push(
                json!({"type": "response.content_part.added", "item_id": item["id"], "output_index": at,
                "content_index": 0, "part": kind.part("")}),
            );
        }
        self.open = Some(Open { kind, item, text: String::new() });
        events
    }

    fn close(&mut self, status: &str) -> Vec<Value> {
        let Some(Open { kind, mut item, text }) = self.open.take() else { return Vec::new() };
        let (id, at) = (item["id"].clone(), self.output.len());
        let done = format!("{}.done", kind.name());
        let mut events = Vec::new();
        item["status"] = json!(status);
        if let Kind::Call(_) = kind {
            events.push(json!({"type": done, "item_id": id, "output_index": at, "name": item["name"], "arguments": text}));
            item["arguments"] = json!(text);
        } else {
            let part = kind.part(&text);
            let mut event =
                json!({"type": done, "item_id": id, "output_index": at, "content_index": 0, "text": text});
            if kind == Kind::Text {
                event["logprobs"] = json!([]);
            }
            events.push(event);
            events.push(json!({"type": "response.content_part.done", "item_id": id, "output_index": at,
                "content_index": 0, "part": part}));
            item["content"] = json!([part]);
        }
        events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
        self.output.push(item);
        events
    }

    /// Ends the answer, which was cut off or not. One without anything has an empty message.
    pub(super) fn end(&mut self, cut: bool) -> Vec<Value> {
        let mut events = Vec::new();
        if self.open.is_none() && self.output.is_empty() {
            events.extend(self.begin(Kind::Text, None));
        }
        events.extend(self.close(if cut { "incomplete" } else { "completed" }));
        events
    }
}
