//! Requests under way: the engine's events as they are told to a client.
//!
//! A handle of the engine is read on a thread of its own, as reading waits; what it says goes through a bounded channel to
//! the task that answers. If that task ends, as it does when its client goes, all of its requests are cancelled.

use std::sync::Arc;
use std::time::Instant;

use minfer_engine::executor::TokenId;
use minfer_engine::{Canceller, Event, FinishReason, Handle, Logprobs, Request, Timings, Usage};
use minfer_tokenizer::{AnswerEvent, AnswerParser, Characters};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::host::Model;

/// Pieces that may wait for a slow client.
const PIECES: usize = 256;

/// News of a choice.
pub(crate) struct Piece {
    /// Its number.
    pub(crate) choice: usize,
    pub(crate) news: News,
}

pub(crate) enum News {
    /// So much of the prompt has been read, and what of it had been computed before.
    Prompt { done: usize, cached: usize },
    /// More of the answer, and of which tokens.
    Delta { events: Vec<AnswerEvent>, logprobs: Option<(TokenId, Logprobs)> },
    /// The end, once for each choice.
    End { reason: FinishReason, usage: Usage, timings: Timings },
}

/// How fast a choice goes, in llama.cpp's words. Times are those at which the server hears.
pub(crate) struct Clock {
    prompt: usize,
    cached: usize,
    done: usize,
    tokens: usize,
    begun: Instant,
    first: Option<Instant>,
}

impl Clock {
    /// Of a prompt of so many tokens.
    pub(crate) fn new(prompt: usize) -> Self {
        Clock { prompt, cached: 0, done: 0, tokens: 0, begun: Instant::now(), first: None }
    }

    pub(crate) fn hears(&mut self, news: &News) {
        match news {
            News::Prompt { done, cached } => (self.done, self.cached) = (*done, *cached),
            News::Delta { .. } => {
                self.first.get_or_insert_with(Instant::now);
                self.tokens += 1;
            }
            News::End { usage, .. } => self.tokens = usage.completion_tokens,
        }
    }

    pub(crate) fn progress(&self) -> Value {
        json!({"total": self.prompt, "cache": self.cached, "processed": self.done,
            "time_ms": self.begun.elapsed().as_millis() as u64})
    }

    pub(crate) fn timings(&self) -> Value {
        let read = self.first.map_or(self.begun.elapsed(), |first| first - self.begun).as_secs_f64();
        let told = self.first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        let per_second = |count: usize, time: f64| if time > 0.0 { count as f64 / time } else { 0.0 };
        let computed = self.prompt - self.cached;
        json!({"cache_n": self.cached, "prompt_n": computed, "prompt_ms": read * 1e3,
            "prompt_per_second": per_second(computed, read), "predicted_n": self.tokens, "predicted_ms": told * 1e3,
            "predicted_per_second": per_second(self.tokens.saturating_sub(1), told)})
    }
}

/// How an answer is read.
pub(crate) struct Reading {
    /// Splits it; `None` leaves it as text.
    pub(crate) parser: Option<AnswerParser>,
    /// Calls of tools at most.
    pub(crate) calls: usize,
}

/// The choices of a request. Dropping it cancels them.
pub(crate) struct Choices {
    pub(crate) pieces: mpsc::Receiver<Piece>,
    cancellers: Vec<Canceller>,
}

impl Drop for Choices {
    fn drop(&mut self) {
        self.cancellers.iter().for_each(Canceller::cancel);
    }
}

impl Choices {
    /// Submits requests, one for each choice. If one is refused, none runs.
    pub(crate) fn start(
        model: &Arc<dyn Model>,
        requests: impl IntoIterator<Item = Request>,
        reading: impl Fn() -> Reading,
    ) -> Result<Choices, ApiError> {
        let handles: Result<Vec<_>, _> =
            requests.into_iter().map(|request| model.engine().submit(request)).collect();
        let (sender, pieces) = mpsc::channel(PIECES);
        let mut cancellers = Vec::new();
        for (choice, handle) in handles?.into_iter().enumerate() {
            cancellers.push(handle.canceller());
            let (sender, model, reading) = (sender.clone(), model.clone(), reading());
            tokio::task::spawn_blocking(move || read(choice, handle, &*model, reading, &sender));
        }
        Ok(Choices { pieces, cancellers })
    }
}

/// Reads a handle to its end, or until nobody listens.
fn read(choice: usize, handle: Handle, model: &dyn Model, reading: Reading, sender: &mpsc::Sender<Piece>) {
    let Reading { mut parser, calls } = reading;
    let tokenizer = model.tokenizer();
    let canceller = handle.canceller();
    let mut characters = Characters::default();
    // There are more calls than were asked for: what has come so far is the answer.
    let mut full = false;
    let mut cached = 0;
    let content = |text: String| if text.is_empty() { vec![] } else { vec![AnswerEvent::Content(text)] };
    for event in handle {
        let news = match event {
            Event::Token { id, bytes, logprobs } => {
                let mut text = characters.push(&bytes);
                // What the parser goes by may be special tokens, which have no text of their own.
                if parser.is_some() && tokenizer.is_special(id) && !tokenizer.is_end_of_generation(id) {
                    text += &characters.finish();
                    text += &tokenizer.piece(id).unwrap_or_default();
                }
                let mut events = match &mut parser {
                    Some(parser) => parser.push(&text),
                    None => content(text),
                };
                let fits = |event: &AnswerEvent| !matches!(event, AnswerEvent::ToolCall { index, .. } if *index >= calls);
                if !events.iter().all(fits) {
                    full = true;
                    events.retain(fits);
                    canceller.cancel();
                }
                News::Delta { events, logprobs: logprobs.map(|logprobs| (id, logprobs)) }
            }
            Event::Finished { mut reason, rest, usage, timings } => {
                let rest = characters.push(&rest) + &characters.finish();
                let mut events = match parser.take() {
                    Some(mut parser) => {
                        let mut events = parser.push(&rest);
                        events.extend(parser.finish());
                        events
                    }
                    None => content(rest),
                };
                events
                    .retain(|event| !matches!(event, AnswerEvent::ToolCall { index, .. } if *index >= calls));
                if full {
                    events.clear();
                    reason = FinishReason::Stop(minfer_engine::Stopped::Constraint);
                }
                if !events.is_empty() {
                    let news = News::Delta { events, logprobs: None };
                    if sender.blocking_send(Piece { choice, news }).is_err() {
                        return;
                    }
                }
                News::End { reason, usage, timings }
            }
            Event::Started { cached_tokens, .. } => {
                cached = cached_tokens;
                News::Prompt { done: cached, cached }
            }
            Event::Prefill { done } => News::Prompt { done, cached },
            Event::Embedding { .. } => continue,
        };
        if sender.blocking_send(Piece { choice, news }).is_err() {
            return;
        }
    }
}
