//! How far a constrained text has come.

use std::sync::Arc;

use llguidance::Matcher;

use super::budget::{self, Counted};
use super::vocabulary::reason;
use super::{Begin, Budget};
use crate::executor::TokenId;
use crate::request::TokenTable;
use crate::stop::StopMatcher;

/// The constraint of a request under way, and the budget of a part of it.
pub(crate) struct Constrained {
    /// `None`: any text.
    matcher: Option<Matcher>,
    /// Tokens that the matcher has taken.
    taken: usize,
    budget: Option<Counted>,
    /// What the free part of the text ends with, if there is one.
    free: Option<Free>,
    /// Whether that part is over.
    began: bool,
    vocab: usize,
    /// Tokens that may come next, one bit each, if `ready`.
    mask: Vec<u32>,
    ready: bool,
}

/// How far a text had come, to go back to.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    taken: usize,
    began: bool,
    /// How much of [`Begin::AfterText`] there was.
    text: Option<StopMatcher>,
    budget: Option<budget::Mark>,
}

/// What the free part of a text ends with.
pub(super) enum Free {
    Token(TokenId),
    Text {
        matcher: StopMatcher,
        /// Tokens that may go on behind it.
        beyond: Vec<TokenId>,
        table: Arc<TokenTable>,
    },
}

impl std::fmt::Debug for Constrained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constrained").field("began", &self.began).finish_non_exhaustive()
    }
}

impl Constrained {
    pub(super) fn new(matcher: Matcher, begin: &Begin, table: &Arc<TokenTable>, vocab: usize) -> Self {
        let free = Free::until(begin, table, vocab);
        let began = free.is_none();
        Constrained { matcher: Some(matcher), free, began, ..Constrained::any(vocab) }
    }

    /// Any text.
    pub(super) fn any(vocab: usize) -> Self {
        Constrained {
            matcher: None,
            taken: 0,
            budget: None,
            free: None,
            began: true,
            vocab,
            mask: Vec::new(),
            ready: false,
        }
    }

    /// With a budget too.
    pub(super) fn with_budget(self, budget: &Budget, table: &Arc<TokenTable>) -> Self {
        Constrained { budget: Some(Counted::new(budget, table, self.vocab)), ..self }
    }

    /// Whether it restricts what may come, or ever will.
    pub(crate) fn restricts(&self) -> bool {
        self.matcher.is_some() || self.budget.as_ref().is_some_and(|budget| !budget.is_over())
    }

    /// Computes the mask of the next token, unless it is there. `ends` are the tokens that end the text. An error is that
    /// the grammar became too complex, or that the vocabulary has no token for what it asks for.
    pub(crate) fn prepare(&mut self, ends: &[TokenId]) -> Result<(), String> {
        if self.ready {
            return Ok(());
        }
        let words = self.vocab.div_ceil(32);
        self.mask.clear();
        let forced = self.budget.as_ref().and_then(Counted::forced);
        match (forced, &self.free, &mut self.matcher) {
            (Some(id), ..) => {
                self.mask.resize(words, 0);
                self.mask[id as usize / 32] |= 1 << (id % 32);
            }
            (None, Some(free), _) if !self.began => {
                self.mask.resize(words, u32::MAX);
                ends.iter().for_each(|&id| forbid(&mut self.mask, id));
                free.beyond().for_each(|id| forbid(&mut self.mask, id));
            }
            (None, _, None) => self.mask.resize(words, u32::MAX),
            (None, _, Some(matcher)) => {
                let computed = matcher.compute_mask().map_err(|error| reason(&error))?;
                self.mask.extend_from_slice(computed.as_slice());
                self.mask.resize(words, 0);
                let accepting = matcher.is_accepting().map_err(|error| reason(&error))?;
                if accepting {
                    ends.iter().for_each(|&id| self.mask[id as usize / 32] |= 1 << (id % 32));
                }
            }
        }
        // Those past the vocabulary, among them the grammar's own end.
        (self.vocab..words * 32).for_each(|id| forbid(&mut self.mask, id as TokenId));
        self.ready = true;
        Ok(())
    }

    /// The tokens that may come next; none if the text is a sentence that no token can follow.
    pub(crate) fn mask(&self) -> Option<&[u32]> {
        let some = self.ready && self.mask.iter().any(|&word| word != 0);
        some.then_some(&self.mask[..])
    }

    /// Whether the text may end here.
    pub(super) fn is_whole(&mut self) -> Result<bool, String> {
        match &mut self.matcher {
            _ if !self.began => Ok(false),
            Some(matcher) => matcher.is_accepting().map_err(|error| reason(&error)),
            None => Ok(true),
        }
    }

    /// Takes the next token, none of those that end the text. True if the text is a sentence that nothing can follow.
    pub(crate) fn commit(&mut self, id: TokenId, bytes: &[u8]) -> Result<bool, String> {
        self.ready = false;
        if let Some(budget) = &mut self.budget {
            budget.commit(id, bytes);
        }
        match (&mut self.free, &mut self.matcher) {
            (Some(free), _) if !self.began => {
                self.began = free.ends_with(id, bytes);
                Ok(false)
            }
            (_, Some(matcher)) => {
                matcher.consume_token(id).map_err(|error| reason(&error))?;
                self.taken += 1;
                Ok(matcher.is_stopped())
            }
            (_, None) => Ok(false),
        }
    }

    /// Where the text is now.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            taken: self.taken,
            began: self.began,
            text: self.free.as_ref().and_then(Free::mark),
            budget: self.budget.as_ref().map(Counted::mark),
        }
    }

    /// Takes tokens back, to where the text was at `mark`.
    pub(crate) fn go_back(&mut self, mark: Mark) -> Result<(), String> {
        self.ready = false;
        if let Some(matcher) = &mut self.matcher {
            matcher.rollback(self.taken - mark.taken).map_err(|error| reason(&error))?;
        }
        (self.taken, self.began) = (mark.taken, mark.began);
        if let Some(free) = &mut self.free {
            free.go_back(mark.text);
        }
        if let (Some(budget), Some(mark)) = (&mut self.budget, mark.budget) {
            budget.go_back(mark);
        }
        Ok(())
    }
}

impl Free {
    /// The text up to where something begins, if that is not at once.
    pub(super) fn until(begin: &Begin, table: &Arc<TokenTable>, vocab: usize) -> Option<Free> {
        match begin {
            Begin::Now => None,
            &Begin::AfterToken(id) => Some(Free::Token(id)),
            Begin::AfterText(text) => {
                let last = text.as_bytes().last().copied();
                let goes_on = |bytes: &[u8]| {
                    bytes.split_last().is_some_and(|(_, before)| before.iter().any(|&b| Some(b) == last))
                };
                let beyond = (0..vocab as TokenId).filter(|&id| goes_on(table.bytes(id))).collect();
                let matcher = StopMatcher::new(&[text.clone().into_bytes()]);
                Some(Free::Text { matcher, beyond, table: table.clone() })
            }
        }
    }

    /// How much of the text there is.
    pub(super) fn mark(&self) -> Option<StopMatcher> {
        match self {
            Free::Token(_) => None,
            Free::Text { matcher, .. } => Some(matcher.clone()),
        }
    }

    /// Goes back to there.
    pub(super) fn go_back(&mut self, mark: Option<StopMatcher>) {
        if let (Free::Text { matcher, .. }, Some(mark)) = (self, mark) {
            *matcher = mark;
        }
    }

    /// Whether it ends with this token.
    pub(super) fn ends_with(&mut self, id: TokenId, bytes: &[u8]) -> bool {
        match self {
            Free::Token(last) => *last == id,
            Free::Text { matcher, .. } => matcher.push(bytes).1.is_some(),
        }
    }

    /// The tokens that would complete the text and go on behind it.
    fn beyond(&self) -> impl Iterator<Item = TokenId> {
        let text = match self {
            Free::Token(_) => None,
            Free::Text { matcher, beyond, table } => Some((matcher, beyond, table)),
        };
        text.into_iter().flat_map(|(matcher, beyond, table)| {
            let goes_on = |id: &TokenId| {
                let bytes = table.bytes(*id);
                matcher.clone().push(&bytes[..bytes.len() - 1]).1.is_some()
            };
            beyond.iter().copied().filter(goes_on)
        })
    }
}

fn forbid(mask: &mut [u32], id: TokenId) {
    if let Some(word) = mask.get_mut(id as usize / 32) {
        *word &= !(1 << (id % 32));
    }
}
