//! What a client hears, and the channel it hears it through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::executor::TokenId;
use crate::sampling::Logprobs;

/// News of a request, in this order: one `Started`, `Prefill`s, one `Token` per generated token or the `Embedding`, one
/// `Finished`. Where the
/// cache was needed by others in between, nothing of it is heard.
/// A request that ends while it waits has only the `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It left the queue.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Those of them, the first ones, that an earlier request had computed.
        cached_tokens: usize,
        /// The request's seed, or the one chosen for it.
        seed: u64,
    },
    /// More of the prompt has been read. Left out where the reader is behind.
    Prefill {
        /// Tokens read, of the prompt's.
        done: usize,
    },
    /// A token was generated.
    Token {
        /// The token.
        id: TokenId,
        /// Bytes of the text that it settles: its own, earlier ones that a stop string might have claimed, or none. A token that a
        /// banned string might still begin with is not told of.
        /// All events together give the text; whole characters only if tokens are.
        bytes: Vec<u8>,
        /// If asked for.
        logprobs: Option<Logprobs>,
    },
    /// The text was embedded.
    Embedding {
        /// Its vectors, one after the other: one, or with [`Pooling::None`](crate::Pooling::None) one per token.
        values: Vec<f32>,
    },
    /// The last event.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Bytes of the text that no token's event had: only after [`FinishReason::Banned`].
        rest: Vec<u8>,
        /// Counts.
        usage: Usage,
        /// Durations.
        timings: Timings,
    },
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model, or a stop string, ended the text.
    Stop(Stopped),
    /// As long as the request, the context or the cache allows.
    Length,
    /// Each token that could come next would be one with which a banned string begins, or a thousand have been tried in vain:
    /// see [`Request::banned`](crate::Request::banned).
    Banned,
    /// The text was embedded.
    Embedded,
    /// By its client, or by the engine's end.
    Cancelled,
    /// At its [`Request::deadline`](crate::Request::deadline).
    Deadline,
    /// Its client left this many events unread.
    SlowReader(usize),
    /// The step failed.
    Error(String),
}

/// What ended a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// An end-of-generation token.
    Token(TokenId),
    /// A stop string, by its index in the request.
    String(usize),
    /// The request's constraint: the text is a sentence of its grammar that nothing can follow.
    Constraint,
}

/// Token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not computed, as an earlier request had done so: whole blocks
    /// ([`Limits::block_tokens`](crate::executor::Limits::block_tokens), 64 with our models), so none of a shorter prompt.
    pub cached_tokens: usize,
    /// Tokens generated, an end-of-generation token included and those taken back for a banned string not: the number of
    /// [`Event::Token`]s.
    pub completion_tokens: usize,
    /// Tokens that were guessed ([`Request::lookup`](crate::Request::lookup), [`Request::draft`](crate::Request::draft)).
    pub guessed_tokens: usize,
    /// Those of them that were right.
    pub accepted_tokens: usize,
}

/// How long the parts of a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From submission to admission.
    pub queue: Duration,
    /// From admission to the first token.
    pub prefill: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}

/// Cancels a request, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Asks for the end of the request; it comes within a step, with [`FinishReason::Cancelled`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The engine's end of a request's channel. Sending never waits.
#[derive(Debug)]
pub(crate) struct Sink {
    events: mpsc::Sender<Event>,
    unread: Arc<AtomicUsize>,
    capacity: usize,
}

/// The client's end.
#[derive(Debug)]
pub(crate) struct Source {
    events: mpsc::Receiver<Event>,
    unread: Arc<AtomicUsize>,
}

/// A channel of `capacity` events and the final one.
pub(crate) fn channel(capacity: usize) -> (Sink, Source) {
    let (sender, receiver) = mpsc::channel();
    let unread = Arc::new(AtomicUsize::new(0));
    (Sink { events: sender, unread: unread.clone(), capacity }, Source { events: receiver, unread })
}

impl Sink {
    /// Sends, unless the reader is too far behind; then says how far.
    pub(crate) fn send(&self, event: Event) -> Result<(), FinishReason> {
        if self.unread.load(Ordering::Relaxed) >= self.capacity {
            return Err(FinishReason::SlowReader(self.capacity));
        }
        self.unread.fetch_add(1, Ordering::Relaxed);
        self.events.send(event).map_err(|_| FinishReason::Cancelled)
    }

    /// Sends the last event, which always has room. A reader that has gone needs none.
    pub(crate) fn finish(self, reason: FinishReason, rest: Vec<u8>, usage: Usage, timings: Timings) {
        self.unread.fetch_add(1, Ordering::Relaxed);
        let _ = self.events.send(Event::Finished { reason, rest, usage, timings });
    }
}

impl Source {
    /// Waits; `None` if the engine's end was dropped without a last event.
    pub(crate) fn recv(&self) -> Option<Event> {
        let event = self.events.recv().ok()?;
        self.unread.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }

    /// What is there already.
    #[cfg(test)]
    pub(crate) fn try_recv(&self) -> Option<Event> {
        let event = self.events.try_recv().ok()?;
        self.unread.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }
}
