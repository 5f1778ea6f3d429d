//! Special and added tokens are found whole in a text, before anything else looks at it.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::Error;
use crate::vocab::{Attr, Vocab};

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    /// Ordinary text, never empty.
    Text(&'t [u8]),
    /// A token that stands in the text as it is spelled.
    Token(u32),
}

/// White space that goes with a token found in text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strip {
    pub(crate) before: bool,
    pub(crate) after: bool,
}

/// Finds special and added tokens. Where tokens overlap, the leftmost counts, and the longest of those that begin
/// there, as in the `tokenizers` package; llama.cpp looks for each token in turn, longest first, which differs only
/// where a longer token begins inside a shorter one.
pub(crate) struct Added {
    /// Control, unknown and user-defined tokens.
    every: Finder,
    /// User-defined tokens, which are parsed even in text that is not trusted; whatever else they are known as.
    user_defined: Finder,
}

#[derive(Default)]
struct Finder {
    automaton: Option<AhoCorasick>,
    /// Id and stripping of each pattern.
    tokens: Vec<(u32, Strip)>,
}

impl Added {
    pub(crate) fn new(vocab: &Vocab, strip: impl Fn(u32) -> Strip) -> Result<Added, Error> {
        let hidden = Attr::CONTROL.with(Attr::UNKNOWN);
        let of = |wanted: &dyn Fn(Attr) -> bool| {
            let tokens: Vec<_> =
                vocab.ids().filter(|&id| wanted(vocab.attr(id))).map(|id| (id, strip(id))).collect();
            Finder::new(vocab, tokens)
        };
        Ok(Added {
            every: of(&|attr| attr.any(hidden.with(Attr::USER_DEFINED)))?,
            user_defined: of(&|attr| attr.any(Attr::USER_DEFINED))?,
        })
    }

    /// Calls `emit` with the fragments of `text`, in order.
    pub(crate) fn split<'t>(&self, text: &'t [u8], parse_special: bool, mut emit: impl FnMut(Fragment<'t>)) {
        let finder = if parse_special { &self.every } else { &self.user_defined };
        let mut begin = 0;
        if let Some(automaton) = &finder.automaton {
            for found in automaton.find_iter(text) {
                let (id, strip) = finder.tokens[found.pattern().as_usize()];
                // White space stripped after the token before may reach into this one.
                if found.start() < begin {
                    continue;
                }
                let mut before = &text[begin..found.start()];
                if strip.before {
                    before = trim_end(before);
                }
                if !before.is_empty() {
                    emit(Fragment::Text(before));
                }
                emit(Fragment::Token(id));
                begin = found.end();
                if strip.after {
                    begin += text[begin..].iter().take_while(|byte| is_space(**byte)).count();
                }
            }
        }
        if begin < text.len() {
            emit(Fragment::Text(&text[begin..]));
        }
    }
}

impl Finder {
    fn new(vocab: &Vocab, tokens: Vec<(u32, Strip)>) -> Result<Finder, Error> {
        if tokens.is_empty() {
            return Ok(Finder::default());
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|&(id, _)| vocab.text(id)))
            .map_err(Error::SpecialTokens)?;
        Ok(Finder { automaton: Some(automaton), tokens })
    }
}

/// White space as C's `isspace` has it, in single bytes.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn trim_end(text: &[u8]) -> &[u8] {
    let stripped = text.iter().rev().take_while(|byte| is_space(**byte)).count();
    &text[..text.len() - stripped]
}
