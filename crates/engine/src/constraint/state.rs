//! How far a constrained text has come.

use std::sync::Arc;

use llguidance::Matcher;

use super::Begin;
use super::vocabulary::reason;
use crate::executor::TokenId;
use crate::request::TokenTable;
use crate::stop::StopMatcher;

/// The constraint of a request under way.
pub(crate) struct Constrained {
    matcher: Matcher,
    /// Tokens that the matcher has taken.
    taken: usize,
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
}

/// What the free part of a text ends with.
enum Free {
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
        let free = match begin {
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
        };
        let began = free.is_none();
        Constrained { matcher, taken: 0, free, began, vocab, mask: Vec::new(), ready: false }
    }

    /// Computes the mask of the next token, unless it is there. `ends` are the tokens that end the text. An error is that
    /// the grammar became too complex, or that the vocabulary has no token for what it asks for.
    pub(crate) fn prepare(&mut self, ends: &[TokenId]) -> Result<(), String> {
        if self.ready {
            return Ok(());
        }
        let words = self.vocab.div_ceil(32);
        self.mask.clear();
        match &self.free {
            Some(free) if !self.began => {
                self.mask.resize(words, u32::MAX);
                ends.iter().for_each(|&id| forbid(&mut self.mask, id));
                free.beyond().for_each(|id| forbid(&mut self.mask, id));
            }
            _ => {
                let computed = self.matcher.compute_mask().map_err(|error| reason(&error))?;
                self.mask.extend_from_slice(computed.as_slice());
                self.mask.resize(words, 0);
                let accepting = self.matcher.is_accepting().map_err(|error| reason(&error))?;
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
        match self.began {
            false => Ok(false),
            true => self.matcher.is_accepting().map_err(|error| reason(&error)),
        }
    }

    /// Takes the next token, none of those that end the text. True if the text is a sentence that nothing can follow.
    pub(crate) fn commit(&mut self, id: TokenId, bytes: &[u8]) -> Result<bool, String> {
        self.ready = false;
        match &mut self.free {
            Some(free) if !self.began => {
                self.began = free.ends_with(id, bytes);
                Ok(false)
            }
            _ => {
                self.matcher.consume_token(id).map_err(|error| reason(&error))?;
                self.taken += 1;
                Ok(self.matcher.is_stopped())
            }
        }
    }

    /// Where the text is now.
    pub(crate) fn mark(&self) -> Mark {
        let text = match &self.free {
            Some(Free::Text { matcher, .. }) => Some(matcher.clone()),
            _ => None,
        };
        Mark { taken: self.taken, began: self.began, text }
    }

    /// Takes tokens back, to where the text was at `mark`.
    pub(crate) fn go_back(&mut self, mark: Mark) -> Result<(), String> {
        self.ready = false;
        self.matcher.rollback(self.taken - mark.taken).map_err(|error| reason(&error))?;
        (self.taken, self.began) = (mark.taken, mark.began);
        if let (Some(Free::Text { matcher, .. }), Some(text)) = (&mut self.free, mark.text) {
            *matcher = text;
        }
        Ok(())
    }
}

impl Free {
    /// Whether it ends with this token.
    fn ends_with(&mut self, id: TokenId, bytes: &[u8]) -> bool {
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
