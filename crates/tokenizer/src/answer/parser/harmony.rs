//! gpt-oss's messages in channels.

use super::{Channel, Found, LONGEST_NAME, Parser, State, Step, find};

/// Ends of harmony's messages.
const MESSAGE_ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"];

/// Between a message's head and its text.
const MESSAGE: &str = "<|message|>";

impl Parser {
    /// The head of a harmony message: channel and recipient.
    pub(super) fn header(&mut self, end: bool) -> Step {
        const BEGINNINGS: [&str; 5] = ["<|start|>", "<|channel|>", "<|message|>", "to=", "assistant"];
        let text = self.pending.trim_ascii_start();
        let begins = BEGINNINGS.iter().any(|known| text.starts_with(known));
        let may_begin = BEGINNINGS.iter().any(|known| known.starts_with(text));
        let head = text.split_once(MESSAGE).map(|(head, _)| head);
        let is_head = |head: &str| head.len() <= LONGEST_NAME && !head.contains('\n');
        match head {
            Some(head) if begins && is_head(head) => {
                let recipient = head.split_once("to=").map(|(_, after)| {
                    let end = after.find([' ', '<']).unwrap_or(after.len());
                    after[..end].to_owned()
                });
                let is_analysis = head.contains("<|channel|>analysis");
                let taken = self.pending.len() - text.len() + head.len() + MESSAGE.len();
                self.pending.drain(..taken);
                let channel = match recipient {
                    Some(recipient) if !self.tools.is_empty() => {
                        self.begin(recipient.strip_prefix("functions.").unwrap_or(&recipient));
                        Channel::Tool
                    }
                    _ if is_analysis => Channel::Analysis,
                    _ => Channel::Final,
                };
                self.enter(State::Message(channel))
            }
            None if !end && may_begin => self.wait(),
            // The marker may have come in part.
            None if !end && begins && text.len() < LONGEST_NAME + MESSAGE.len() && !text.contains('\n') => {
                self.wait()
            }
            _ => {
                // Not all of it, or its marker would be found again.
                let first = self.pending.chars().next().map_or(0, char::len_utf8);
                let first: String = self.pending.drain(..first).collect();
                self.content(&first);
                self.enter(State::Message(Channel::Final))
            }
        }
    }

    pub(super) fn message(&mut self, channel: Channel, end: bool) -> Step {
        let (at, marker) = match find(&self.pending, &MESSAGE_ENDS) {
            Found::Marker(at, marker) => (at, marker),
            Found::Perhaps(at) if !end => (at, ""),
            _ => (self.pending.len(), ""),
        };
        let text: String = self.pending.drain(..at).collect();
        match channel {
            Channel::Final => self.content(&text),
            Channel::Analysis => self.reasoning(&text),
            Channel::Tool => self.arguments(&text),
        }
        if marker.is_empty() {
            return Step::Wait;
        }
        // `<|start|>` begins the next head.
        if marker != "<|start|>" {
            self.pending.drain(..marker.len());
        }
        self.enter(State::Header)
    }
}
