//! A message as events: blocks one after the other, each begun, told and ended.

use minfer_tokenizer::AnswerEvent;
use serde_json::{Value, json};

use super::{Head, used};
use crate::generation::{Choices, News};
use crate::stream::EventStream;

/// What a block is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    /// The call of this number.
    Call(usize),
}

/// The block that is being told.
#[derive(Default)]
struct Blocks {
    open: Option<Kind>,
    /// Number of the next one.
    next: usize,
    called: bool,
}

impl Blocks {
    /// The events that end the block.
    fn close(&mut self) -> Vec<Value> {
        let Some(kind) = self.open.take() else { return Vec::new() };
        let index = self.next;
        self.next += 1;
        let mut events = Vec::new();
        if kind == Kind::Thinking {
            events.push(json!({"type": "content_block_delta", "index": index,
                "delta": {"type": "signature_delta", "signature": ""}}));
        }
        events.push(json!({"type": "content_block_stop", "index": index}));
        events
    }

    /// The events that tell a part of an answer.
    fn add(&mut self, event: AnswerEvent, head: &Head) -> Vec<Value> {
        let (kind, begin, delta) = match event {
            AnswerEvent::Content(text) => {
                (Kind::Text, json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text}))
            }
            AnswerEvent::Reasoning(text) => (
                Kind::Thinking,
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "thinking_delta", "thinking": text}),
            ),
            AnswerEvent::ToolCall { index, name, arguments } => (
                Kind::Call(index),
                json!({"type": "tool_use", "id": head.call_id(index), "name": name, "input": {}}),
                json!({"type": "input_json_delta", "partial_json": arguments}),
            ),
        };
        self.called |= matches!(kind, Kind::Call(_));
        let mut events = Vec::new();
        if self.open != Some(kind) {
            events.extend(self.close());
            self.open = Some(kind);
            events.push(json!({"type": "content_block_start", "index": self.next, "content_block": begin}));
        }
        events.push(json!({"type": "content_block_delta", "index": self.next, "delta": delta}));
        events
    }
}

pub(super) async fn streamed(head: Head, mut choices: Choices, stream: EventStream) {
    let begin = json!({"type": "message_start", "message": head.message()});
    if !stream.send_typed(&begin).await || !stream.send_typed(&json!({"type": "ping"})).await {
        return;
    }
    let mut blocks = Blocks::default();
    while let Some(piece) = stream.next(&mut choices).await {
        let events = match piece.news {
            News::Prompt { .. } => Vec::new(),
            News::Delta { events, .. } => {
                events.into_iter().flat_map(|event| blocks.add(event, &head)).collect::<Vec<Value>>()
            }
            News::End { reason, usage, .. } => match head.end(&reason, blocks.called) {
                Ok((reason, sequence)) => {
                    let mut events = blocks.close();
                    events.push(json!({"type": "message_delta", "usage": used(&usage),
                        "delta": {"stop_reason": reason, "stop_sequence": sequence}}));
                    events.push(json!({"type": "message_stop"}));
                    events
                }
                Err(error) => vec![error.anthropic()],
            },
        };
        for event in &events {
            if !stream.send_typed(event).await {
                return;
            }
        }
    }
}
