//! A bound on the tokens of a part of a text, as of what a model reasons.

use std::sync::Arc;

use super::state::Free;
use super::{Begin, ConstraintError};
use crate::executor::TokenId;
use crate::request::TokenTable;
use crate::stop::StopMatcher;

/// A part of a text that is ended after so many tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Tokens of the part; then come `forced`, one by one.
    pub tokens: usize,
    /// Where the part begins.
    pub begin: Begin,
    /// What ends it without the bound: a token or a text.
    pub end: Begin,
    /// What ends it at the bound, at least one token.
    pub forced: Vec<TokenId>,
}

impl Budget {
    pub(super) fn check(&self, vocab: usize) -> Result<(), ConstraintError> {
        let mut tokens = self.forced.clone();
        for place in [&self.begin, &self.end] {
            match place {
                Begin::Now => {}
                Begin::AfterToken(id) => tokens.push(*id),
                Begin::AfterText(text) => {
                    super::check_length("text that a budget goes by", text, super::MAX_BEGIN_BYTES)?;
                }
            }
        }
        if self.forced.is_empty() {
            let what = "list of tokens that end a budget's part";
            return Err(ConstraintError::Length { what, found: 0, max: super::MAX_BEGIN_BYTES });
        }
        match tokens.into_iter().find(|&id| id as usize >= vocab) {
            Some(id) => Err(ConstraintError::Token { id, vocab }),
            None => Ok(()),
        }
    }
}

/// A budget under way.
pub(super) struct Counted {
    state: State,
    left: usize,
    begin: Option<Free>,
    end: Option<Free>,
    forced: Vec<TokenId>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Before,
    Within,
    /// So many of the forced tokens have come.
    Forcing(usize),
    Over,
}

/// How far it had come, to go back to.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    state: State,
    left: usize,
    /// How much there was of the texts that the part begins and ends with.
    begin: Option<StopMatcher>,
    end: Option<StopMatcher>,
}

impl Counted {
    pub(super) fn new(budget: &Budget, table: &Arc<TokenTable>, vocab: usize) -> Self {
        let begin = Free::until(&budget.begin, table, vocab);
        let end = Free::until(&budget.end, table, vocab);
        let state = if begin.is_some() { State::Before } else { State::Within };
        let mut counted = Counted { state, left: budget.tokens, begin, end, forced: budget.forced.clone() };
        counted.check();
        counted
    }

    fn check(&mut self) {
        if matches!(self.state, State::Within) && self.left == 0 {
            self.state = State::Forcing(0);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// The only token that may come next.
    pub(super) fn forced(&self) -> Option<TokenId> {
        match self.state {
            State::Forcing(at) => self.forced.get(at).copied(),
            _ => None,
        }
    }

    /// Takes the next token.
    pub(super) fn commit(&mut self, id: TokenId, bytes: &[u8]) {
        match self.state {
            State::Before => {
                if self.begin.as_mut().is_some_and(|begin| begin.ends_with(id, bytes)) {
                    self.state = State::Within;
                }
            }
            State::Within => {
                self.left -= 1;
                if self.end.as_mut().is_some_and(|end| end.ends_with(id, bytes)) {
                    self.state = State::Over;
                }
            }
            State::Forcing(at) if at + 1 < self.forced.len() => self.state = State::Forcing(at + 1),
            State::Forcing(_) => self.state = State::Over,
            State::Over => {}
        }
        self.check();
    }

    pub(super) fn mark(&self) -> Mark {
        let text = |free: &Option<Free>| free.as_ref().and_then(Free::mark);
        Mark { state: self.state, left: self.left, begin: text(&self.begin), end: text(&self.end) }
    }

    pub(super) fn go_back(&mut self, mark: Mark) {
        (self.state, self.left) = (mark.state, mark.left);
        for (free, text) in [(&mut self.begin, mark.begin), (&mut self.end, mark.end)] {
            if let Some(free) = free {
                free.go_back(text);
            }
        }
    }
}
