//! SentencePiece's Unigram (`tokenizer.ggml.model = t5`): of all ways to spell a text in tokens, the one with the
//! highest sum of scores, which are logarithms of probabilities. Source: Kudo, "Subword Regularization" (2018),
//! <https://arxiv.org/abs/1804.10959>, and SentencePiece's `unigram_model.cc`.

use crate::charsmap::Charsmap;
use crate::spm::SPACE;
use crate::trie::Trie;
use crate::utf8::{char_len, first_value};
use crate::vocab::{Attr, NONE, Vocab};
use crate::{Error, VocabSource};

/// How much worse an unknown character is than the worst token, as in SentencePiece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Stands for unknown characters among tokens; a vocabulary is never that large.
const UNKNOWN: u32 = NONE - 1;

/// A Unigram encoder.
pub(crate) struct Unigram {
    trie: Trie,
    charsmap: Option<Charsmap>,
    unknown: u32,
    unknown_score: f64,
    /// The longest token, in bytes.
    longest: usize,
    space_prefix: bool,
    /// A run of spaces is one, and the text ends with none.
    merges_spaces: bool,
}

impl Unigram {
    pub(crate) fn new(
        source: &VocabSource<'_>,
        vocab: &Vocab,
        unknown: Option<u32>,
    ) -> Result<Unigram, Error> {
        let missing = |key| Error::MissingKey { key, model: source.model.clone() };
        let unknown = unknown.ok_or_else(|| missing("tokenizer.ggml.unknown_token_id"))?;
        if vocab.scores.is_empty() {
            return Err(missing(crate::source::SCORES));
        }
        let normal = vocab.ids().filter(|&id| vocab.attr(id).any(Attr::NORMAL));
        let worst = normal.map(|id| vocab.scores[id as usize]).fold(f32::MAX, f32::min);
        let matched = Attr::NORMAL.with(Attr::USER_DEFINED).with(Attr::UNUSED);
        let tokens = vocab.ids().filter(|&id| vocab.attr(id).any(matched));
        Ok(Unigram {
            trie: Trie::new(tokens.map(|id| (vocab.text(id), id))),
            charsmap: source.charsmap.as_deref().map(Charsmap::new).transpose()?,
            unknown,
            unknown_score: f64::from(worst - UNKNOWN_PENALTY),
            longest: vocab.longest,
            space_prefix: source.add_space_prefix.unwrap_or(false),
            merges_spaces: source.remove_extra_whitespaces.unwrap_or(false),
        })
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<u32>) {
        let text = self.normalize(text);
        // Scores of the best spellings up to a place, as far ahead as a token may reach: a ring. A slot belongs to the
        // place that `last` says was reached.
        let window = (self.longest.max(4) + 1).next_power_of_two();
        let mut scores = vec![0.0; window];
        let slot = |place: usize| place & (window - 1);
        // The last token of the best spelling up to a place; `UNKNOWN` less its length for an unknown character.
        let mut last = vec![NONE; text.len() + 1];
        let mut begin = 0;
        while begin < text.len() {
            let score = scores[slot(begin)];
            let mut consider = |end: usize, token: u32, score: f64| {
                if last[end] == NONE || score > scores[slot(end)] {
                    scores[slot(end)] = score;
                    last[end] = token;
                }
            };
            let character = char_len(text[begin]).min(text.len() - begin);
            let mut is_known = false;
            for (length, token) in self.trie.prefixes(&text[begin..]) {
                is_known |= length == character;
                let added = match vocab.attr(token).any(Attr::USER_DEFINED) {
                    true => 0.0,
                    false => f64::from(vocab.scores[token as usize]),
                };
                consider(begin + length, token, score + added);
            }
            if !is_known {
                consider(begin + character, UNKNOWN - character as u32, score + self.unknown_score);
            }
            begin += character;
        }
        self.collect(vocab, &last, out);
    }

    /// Follows the best spelling from its end.
    fn collect(&self, vocab: &Vocab, last: &[u32], out: &mut Vec<u32>) {
        let first = out.len();
        let mut end = last.len() - 1;
        let mut after_unknown = false;
        while end > 0 {
            let token = last[end];
            let is_unknown = token >= UNKNOWN - 4;
            // A run of unknown characters is one unknown token.
            if !is_unknown {
                out.push(token);
            } else if !after_unknown {
                out.push(self.unknown);
            }
            let length = if is_unknown { (UNKNOWN - token) as usize } else { vocab.text(token).len() };
            end -= length;
            after_unknown = is_unknown;
        }
        out[first..].reverse();
    }

    /// The text as the model was trained on it: replaced by the map, and spaces as the flags say.
    fn normalize(&self, text: &[u8]) -> Vec<u8> {
        let mut normal = Vec::with_capacity(text.len() + text.len() / 2 + SPACE.len());
        let mut within_word = false;
        let mut has_prefix = false;
        let mut emit = |part: &[u8]| {
            for &byte in part {
                if byte != b' ' {
                    if !within_word && (self.merges_spaces || (self.space_prefix && !has_prefix)) {
                        normal.extend_from_slice(SPACE);
                        has_prefix = true;
                    }
                    normal.push(byte);
                } else if !self.merges_spaces {
                    normal.extend_from_slice(SPACE);
                }
                within_word = byte != b' ';
            }
        };
        let mut rest = text;
        while !rest.is_empty() {
            let mapped = self.charsmap.as_ref().and_then(|map| map.longest_prefix(rest));
            let (used, part) = mapped.unwrap_or_else(|| match first_value(rest) {
                (Some(_), used) => (used, &rest[..used]),
                (None, used) => (used, "\u{FFFD}".as_bytes()),
            });
            emit(part);
            rest = &rest[used..];
        }
        normal
    }
}
