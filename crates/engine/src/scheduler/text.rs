//! The text of a request: what follows from its tokens, which of them are certain, and how others are taken back.
//!
//! A token in which a banned string may still begin is held: nobody hears of it. So is one in which none can any more, but could
//! again if a token behind it were taken back: a text of many beginnings in a row is held as a whole. When the string is complete, the text goes back
//! to before that token, with all that follows from tokens (stop strings, constraint, mirostat), and the token is excluded there.
//! What is excluded at a place is forgotten with the place.

use std::collections::VecDeque;

use crate::constraint::{Constrained, Mark};
use crate::event::{Event, FinishReason, Stopped};
use crate::executor::TokenId;
use crate::request::Request;
use crate::sampling::{Logprobs, SampleError, Scratch, logprobs};
use crate::stop::{Finder, StopMatcher};

/// Tokens that may be taken back before one more is certain.
pub(super) const MOST_IN_VAIN: usize = 1000;

/// A token that was chosen and is not part of the text yet.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) id: TokenId,
    pub(super) logprobs: Option<Logprobs>,
    /// Mirostat's number after it.
    mu: Option<f64>,
}

/// What became of a chosen token.
#[derive(Debug)]
pub(super) enum Pushed {
    /// It is the next one, and the last one if there is a reason.
    Next(Option<FinishReason>),
    /// It is not, and so many tokens before it are none any more.
    Back(usize),
}

/// All that follows from the tokens so far.
#[derive(Debug)]
struct State {
    stop: StopMatcher,
    banned: Finder,
    mu: Option<f64>,
    constraint: Option<Mark>,
}

/// A token that may have to be taken back.
#[derive(Debug)]
struct Held {
    id: TokenId,
    /// Bytes of the text that are its own.
    len: usize,
    event: Event,
    /// What there was before it; nothing if no string is banned.
    before: Option<State>,
    /// The tokens excluded in its place.
    excluded: Vec<TokenId>,
}

#[derive(Debug)]
pub(super) struct Text {
    stop: StopMatcher,
    banned: Finder,
    /// Of mirostat, after the tokens so far.
    mu: Option<f64>,
    constraint: Option<Constrained>,
    /// The last tokens.
    held: VecDeque<Held>,
    /// Tokens that cannot come next.
    excluded: Vec<TokenId>,
    /// Tokens taken back since one was certain.
    in_vain: usize,
    /// Those that may come next, where some are excluded.
    mask: Vec<u32>,
}

/// Where in a token's bytes a banned string was complete.
#[derive(Clone, Copy)]
struct Hit {
    /// Bytes of the token up to its end, at least 1.
    end: usize,
    /// Its length.
    len: usize,
}

impl Text {
    pub(super) fn new(request: &Request, constraint: Option<Constrained>) -> Text {
        Text {
            stop: StopMatcher::new(&request.stop.strings),
            banned: Finder::new(&request.banned),
            mu: request.sampling.mirostat.first(),
            constraint,
            held: VecDeque::new(),
            excluded: Vec::new(),
            in_vain: 0,
            mask: Vec::new(),
        }
    }

    /// Tokens that cannot come next, as a banned string began with them.
    pub(super) fn excluded(&self) -> &[TokenId] {
        &self.excluded
    }

    /// Whether a constraint or a budget says what may come, now or later.
    pub(super) fn restricts(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constrained::restricts)
    }

    /// Mirostat's number after the tokens so far.
    pub(super) fn mu(&self) -> Option<f64> {
        self.mu
    }

    /// Computes which tokens may come next. `ends` are those that end the text.
    pub(super) fn prepare(&mut self, ends: &[TokenId]) -> Result<(), String> {
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.prepare(ends))
    }

    /// A token that the executor has sampled.
    pub(super) fn sampled(&self, id: TokenId) -> Chosen {
        Chosen { id, logprobs: None, mu: self.mu }
    }

    /// Samples the token after `tokens` from its logits, or says why there is none.
    pub(super) fn choose(
        &mut self,
        request: &Request,
        (seed, tokens): (u64, &[TokenId]),
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<Chosen, FinishReason> {
        // Of a guess that was right it is not there yet.
        self.prepare(&request.stop.tokens).map_err(FinishReason::Error)?;
        let allowed = match &self.constraint {
            Some(constraint) => Some(constraint.mask().ok_or(FinishReason::Stop(Stopped::Constraint))?),
            None => None,
        };
        let mask = match &self.excluded[..] {
            [] => allowed,
            excluded => {
                let all = std::iter::repeat_n(u32::MAX, logits.len().div_ceil(32));
                self.mask.clear();
                match allowed {
                    Some(allowed) => self.mask.extend_from_slice(allowed),
                    None => self.mask.extend(all),
                }
                excluded.iter().for_each(|&id| self.mask[id as usize / 32] &= !(1 << (id % 32)));
                Some(&self.mask[..])
            }
        };
        let mut mu = self.mu;
        let id = request.sampling.choose(logits, (seed, tokens), &mut mu, mask, scratch);
        let id = id.map_err(|error| match error {
            SampleError::NoCandidate if !self.excluded.is_empty() => FinishReason::Banned,
            error => FinishReason::Error(error.to_string()),
        })?;
        Ok(Chosen { id, logprobs: request.logprobs.map(|top| logprobs(logits, id, top.into())), mu })
    }

    /// Appends a token of these bytes, unless a banned string is complete with it. `full` says that there is room for no other.
    pub(super) fn push(
        &mut self,
        request: &Request,
        chosen: Chosen,
        bytes: &[u8],
        full: bool,
    ) -> Result<Pushed, FinishReason> {
        let before = self.state();
        let Chosen { id, logprobs, mu } = chosen;
        self.mu = mu;
        let ends = request.stop.tokens.contains(&id);
        let bytes = if ends { &[] } else { bytes };
        let hit = self.find_banned(bytes);
        // A stop string that is complete before has ended the text.
        let (mut text, stopped) = self.stop.push(&bytes[..hit.map_or(bytes.len(), |hit| hit.end - 1)]);
        if let (Some(hit), None) = (hit, stopped) {
            return self.take_back(id, hit, before);
        }
        let reason = match stopped {
            Some(string) => Some(FinishReason::Stop(Stopped::String(string))),
            None if ends => Some(FinishReason::Stop(Stopped::Token(id))),
            None => self.commit(id, bytes, full),
        };
        if reason.is_some() {
            text.extend(self.stop.finish());
        }
        let event = Event::Token { id, bytes: text, logprobs };
        let excluded = std::mem::take(&mut self.excluded);
        self.held.push_back(Held { id, len: bytes.len(), event, before, excluded });
        Ok(Pushed::Next(reason))
    }

    /// The events of tokens that are certain now: with `all`, at an end, of all of them.
    pub(super) fn certain(&mut self, all: bool) -> Vec<Event> {
        let uncertain = if all { 0 } else { self.uncertain() };
        let events: Vec<Event> =
            self.held.drain(..self.held.len() - uncertain).map(|held| held.event).collect();
        if !events.is_empty() {
            self.in_vain = 0;
        }
        events
    }

    /// How many tokens, the last ones, may have to be taken back: those in which a string may have begun now, and, as others may come
    /// in the place of each of these, those in which one may have begun before it.
    fn uncertain(&self) -> usize {
        let (mut count, mut undecided) = (0, self.banned.undecided());
        for held in self.held.iter().rev() {
            if undecided == 0 {
                break;
            }
            let before = held.before.as_ref().map_or(0, |state| state.banned.undecided());
            undecided = undecided.saturating_sub(held.len).max(before);
            count += 1;
        }
        count
    }

    /// Bytes that a stop string might still have claimed, at an end that is not a token's.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.stop.finish()
    }

    /// What there is to go back to, if there may be a reason to.
    fn state(&self) -> Option<State> {
        (!self.banned.is_empty()).then(|| State {
            stop: self.stop.clone(),
            banned: self.banned.clone(),
            mu: self.mu,
            constraint: self.constraint.as_ref().map(Constrained::mark),
        })
    }

    fn find_banned(&mut self, bytes: &[u8]) -> Option<Hit> {
        let hit = |(at, &byte): (usize, &u8)| {
            let len = self.banned.push(byte).map(|(_, len)| len).min()?;
            Some(Hit { end: at + 1, len })
        };
        bytes.iter().enumerate().find_map(hit)
    }

    /// Why a token ends the text that the grammar allows here, if it does.
    fn commit(&mut self, id: TokenId, bytes: &[u8], full: bool) -> Option<FinishReason> {
        match self.constraint.as_mut().map(|constraint| constraint.commit(id, bytes)) {
            Some(Err(what)) => Some(FinishReason::Error(what)),
            Some(Ok(true)) => Some(FinishReason::Stop(Stopped::Constraint)),
            _ => full.then_some(FinishReason::Length),
        }
    }

    /// Goes back to before the token in which a string began that is complete with `id`, and excludes it there.
    fn take_back(&mut self, id: TokenId, hit: Hit, before: Option<State>) -> Result<Pushed, FinishReason> {
        // Bytes of it that are not of the last token.
        let mut bytes = hit.len.saturating_sub(hit.end);
        let (mut first, mut state, mut back) = (id, before, 0);
        while bytes > 0
            && let Some(held) = self.held.pop_back()
        {
            bytes = bytes.saturating_sub(held.len);
            (first, state, back) = (held.id, held.before, back + 1);
            self.excluded = held.excluded;
        }
        self.excluded.push(first);
        if let Some(State { stop, banned, mu, constraint }) = state {
            (self.stop, self.banned, self.mu) = (stop, banned, mu);
            if let (Some(constraint), Some(mark)) = (&mut self.constraint, constraint) {
                constraint.go_back(mark).map_err(FinishReason::Error)?;
            }
        }
        self.in_vain += 1;
        match self.in_vain > MOST_IN_VAIN {
            true => Err(FinishReason::Banned),
            false => Ok(Pushed::Back(back)),
        }
    }
}
