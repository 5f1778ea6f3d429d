//! Byte-pair encoding (`tokenizer.ggml.model = gpt2`): bytes, joined pair by pair in the order of the merge list.
//!
//! A word is a row of bytes, or of characters, as the rule's [`Spelling`] has it. GPT-2 spells the 256 bytes as 256 printable characters, so that token texts and merges are text; here that alphabet
//! is undone at load, and words are encoded from their bytes. Source of the alphabet: `bytes_to_unicode` of
//! <https://github.com/openai/gpt-2/blob/master/src/encoder.py>.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use crate::merge::{Join, Merger, Piece};
use crate::pre::{PreTokenizer, Rule, Spelling};
use crate::source::MERGES;
use crate::spm::{SPACE, SpaceJoins};
use crate::utf8::{Text, char_len};
use crate::vocab::{NONE, Vocab};
use crate::{Error, VocabSource};

/// The character that spells a byte.
pub(crate) fn byte_to_char(byte: u8) -> char {
    // Printable Latin-1 stands for itself; the other 68 bytes take the characters from U+0100 on, in order.
    let shifted = match byte {
        0x00..=0x20 => u32::from(byte),
        0x7F..=0xA0 => u32::from(byte) - 0x7F + 0x21,
        0xAD => 0x43,
        _ => return char::from(byte),
    };
    char::from_u32(0x100 + shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that a character spells.
fn char_to_byte(character: char) -> Option<u8> {
    Some(match u32::from(character) {
        0x0021..=0x007E | 0x00A1..=0x00AC | 0x00AE..=0x00FF => u32::from(character) as u8,
        shifted @ 0x0100..=0x0120 => (shifted - 0x100) as u8,
        shifted @ 0x0121..=0x0142 => (shifted - 0x121 + 0x7F) as u8,
        0x0143 => 0xAD,
        _ => return None,
    })
}

/// The bytes that a token's text spells; the text itself if it is not in the alphabet.
pub(crate) fn spelled_bytes(text: &[u8]) -> Vec<u8> {
    let spelled = std::str::from_utf8(text).ok().and_then(|text| text.chars().map(char_to_byte).collect());
    spelled.unwrap_or_else(|| text.to_vec())
}

/// A byte-pair encoder.
pub(crate) struct Bpe {
    pre: PreTokenizer,
    rule: &'static Rule,
    /// `tokenizer.ggml.model = whitespace`: white space ends words and is no part of them; and whether text is made
    /// lower-case.
    drops_white_space: Option<bool>,
    /// Symbol of each byte: of its letter in GPT-2's alphabet, or of `<0xNN>`. `NONE` if neither a token nor a merge
    /// has it.
    bytes: [u32; 256],
    /// What two symbols become. The key is the rank of the merge.
    merges: FxHashMap<u64, Join>,
    /// Tokens that spell the symbols beyond the vocabulary: merges may make a text that is no token.
    extra: Vec<Vec<u32>>,
    /// Characters that are no token, but that merges know.
    characters: FxHashMap<Vec<u8>, u32>,
    joins_space: SpaceJoins,
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Symbols by text: token ids, and numbers after them for texts that only merges know.
struct Symbols<'v> {
    vocab: &'v Vocab,
    extra: FxHashMap<Vec<u8>, u32>,
    /// What the last merge made.
    made: u32,
}

impl Symbols<'_> {
    /// The symbol that a merge makes. Most lists are in the order of the tokens that they make, and a comparison in order
    /// is much cheaper than a search.
    fn made(&mut self, text: &[u8]) -> u32 {
        let next = self.made.wrapping_add(1);
        self.made = match [self.made, next].into_iter().find(|id| self.vocab.text(*id) == text) {
            Some(id) => id,
            None => self.get(text),
        };
        self.made
    }

    fn get(&mut self, text: &[u8]) -> u32 {
        if let Some(id) = self.vocab.id(text) {
            return id;
        }
        let next = (self.vocab.len() + self.extra.len()) as u32;
        *self.extra.entry(text.to_vec()).or_insert(next)
    }
}

impl Bpe {
    pub(crate) fn new(source: &VocabSource<'_>, vocab: &Vocab, rule: &'static Rule) -> Result<Bpe, Error> {
        let list =
            source.merges.ok_or_else(|| Error::MissingKey { key: MERGES, model: source.model.clone() })?;
        if list.len() > (u32::MAX / 4) as usize {
            return Err(Error::VocabularySize { tokens: list.len(), bytes: 0 });
        }
        let mut symbols = Symbols { vocab, extra: FxHashMap::default(), made: 0 };
        let mut merges = FxHashMap::default();
        let mut joins_space = SpaceJoins::default();
        merges.reserve(list.len());
        let mut joined = Vec::new();
        for (rank, merge) in list.iter().enumerate() {
            let bad = || Error::BadMerge { index: rank, merge: String::from_utf8_lossy(merge).into_owned() };
            // The space of the first character is part of a text.
            let space = merge.iter().skip(1).position(|&byte| byte == b' ').ok_or_else(bad)? + 1;
            let (left, right) = (&merge[..space], &merge[space + 1..]);
            if right.is_empty() {
                return Err(bad());
            }
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            joins_space.add(&joined);
            let join = Join { key: rank as u32, symbol: symbols.made(&joined) };
            let pair = pair(symbols.get(left), symbols.get(right));
            merges.entry(pair).or_insert(join); // A pair that is listed twice has its first rank.
        }
        let bytes = match rule.spelling {
            Spelling::Bytes => std::array::from_fn(|byte| {
                let mut text = [0; 4];
                let text = byte_to_char(byte as u8).encode_utf8(&mut text).as_bytes();
                vocab.id(text).or_else(|| symbols.extra.get(text).copied()).unwrap_or(NONE)
            }),
            _ => vocab.byte_tokens(),
        };
        let mut extra = vec![Vec::new(); symbols.extra.len()];
        for (text, symbol) in &symbols.extra {
            // Each byte of the spelling on its own, as llama.cpp has it: those above U+007F are no tokens and vanish.
            let of = |byte: &u8| match rule.spelling {
                Spelling::Bytes => vocab.id(std::slice::from_ref(byte)),
                _ => Some(bytes[usize::from(*byte)]).filter(|id| *id != NONE),
            };
            extra[*symbol as usize - vocab.len()] = text.iter().filter_map(of).collect();
        }
        let mut characters = symbols.extra;
        characters.retain(|text, _| text.len() == char_len(text[0]));
        let drops_white_space =
            (source.model == "whitespace").then(|| source.lowercase.unwrap_or(rule.names != ["whitespace"]));
        let pre = PreTokenizer::new(rule);
        Ok(Bpe { pre, rule, drops_white_space, bytes, merges, extra, characters, joins_space })
    }

    /// Whether text is brought into normalization form C first.
    pub(crate) fn composes(&self) -> bool {
        self.rule.nfc
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &Text<'_>, merger: &mut Merger, out: &mut Vec<u32>) {
        if let Some(lowercase) = self.drops_white_space {
            for segment in text.shape.split_whitespace() {
                let segment =
                    if lowercase { Cow::Owned(segment.to_lowercase()) } else { Cow::Borrowed(segment) };
                self.encode_words(vocab, &segment, segment.as_bytes(), merger, out);
            }
            return;
        }
        match self.rule.spelling {
            Spelling::Bytes | Spelling::Characters => {
                self.encode_words(vocab, &text.shape, &text.bytes, merger, out);
            }
            spelling => {
                let lines = spelling == Spelling::Metaspace;
                // The two differ in surrogates only, so both are changed alike.
                let shape = escape(text.shape.as_bytes(), lines);
                let bytes = escape(&text.bytes, lines);
                self.encode_words(vocab, &String::from_utf8_lossy(&shape), &bytes, merger, out);
            }
        }
    }

    fn encode_words(
        &self,
        vocab: &Vocab,
        shape: &str,
        bytes: &[u8],
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        if shape.is_empty() {
            return;
        }
        let mut spelling = String::new();
        self.pre.split(shape, &mut |word| {
            let word = &bytes[word];
            let of_bytes = self.rule.spelling == Spelling::Bytes;
            if self.rule.ignore_merges {
                spelling.clear();
                spelling.extend(word.iter().map(|&byte| byte_to_char(byte)));
                if let Some(id) = vocab.id(if of_bytes { spelling.as_bytes() } else { word }) {
                    return out.push(id);
                }
            }
            if self.rule.line_ends_whole
                && word.first() == Some(&b'\n')
                && let Some(id) = vocab.id(word)
            {
                return out.push(id);
            }
            if of_bytes {
                merger.pieces.clear();
                merger.pieces.extend((0..).zip(word).map(|(start, &byte)| Piece {
                    start,
                    end: start + 1,
                    symbol: self.bytes[usize::from(byte)],
                }));
                self.finish_word(vocab, word, merger, out);
            } else {
                self.encode_characters(vocab, word, merger, out);
            }
        });
    }

    fn encode_characters(&self, vocab: &Vocab, word: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        merger.pieces.clear();
        let mut start = 0;
        while start < word.len() {
            let end = word.len().min(start + char_len(word[start]));
            let character = &word[start..end];
            if start > 0 && character == SPACE && !self.joins_space.after(word[start - 1]) {
                self.finish_word(vocab, word, merger, out);
            }
            let symbol = vocab.id(character).or_else(|| self.characters.get(character).copied());
            let symbol = symbol.unwrap_or(NONE);
            merger.pieces.push(Piece { start: start as u32, end: end as u32, symbol });
            start = end;
        }
        self.finish_word(vocab, word, merger, out);
    }

    /// Joins the pieces of `word` that are in `merger`, and appends their tokens.
    fn finish_word(&self, vocab: &Vocab, word: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        merger.merge(|left, right| self.merges.get(&pair(left.symbol, right.symbol)).copied());
        for piece in &merger.pieces {
            match (piece.symbol as usize).checked_sub(vocab.len()) {
                None => out.push(piece.symbol),
                Some(_) if piece.symbol == NONE && self.rule.spelling != Spelling::Bytes => {
                    let bytes = &word[piece.start as usize..piece.end as usize];
                    let of = bytes.iter().map(|byte| self.bytes[usize::from(*byte)]);
                    out.extend(of.filter(|id| *id != NONE));
                }
                // A byte that no token spells vanishes, as in llama.cpp.
                Some(beyond) => out.extend(self.extra.get(beyond).into_iter().flatten()),
            }
        }
        merger.pieces.clear();
    }

    /// What a token of ordinary text stands for.
    pub(crate) fn plain(&self, text: &[u8]) -> Vec<u8> {
        match self.rule.spelling {
            Spelling::Bytes => spelled_bytes(text),
            Spelling::Characters => text.to_vec(),
            Spelling::Spaces | Spelling::Metaspace => crate::spm::unescape(text),
        }
    }
}

/// `text` with the space sign for spaces, and at the beginning of each line if `lines`.
fn escape(text: &[u8], lines: bool) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(text.len() + text.len() / 2);
    let mut at_start = lines;
    for (at, &byte) in text.iter().enumerate() {
        if std::mem::take(&mut at_start) && byte != b'\n' && byte != b' ' && !text[at..].starts_with(SPACE) {
            escaped.extend_from_slice(SPACE);
        }
        match byte {
            b' ' => escaped.extend_from_slice(SPACE),
            _ => escaped.push(byte),
        }
        at_start = lines && byte == b'\n';
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection_with_gpt2s_well_known_letters() {
        for byte in 0..=255 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(byte_to_char(b'\t'), 'ĉ');
        assert_eq!(byte_to_char(0x7F), 'ġ');
        assert_eq!(byte_to_char(0xA0), 'ł');
        assert_eq!(byte_to_char(0xAD), 'Ń');
        assert_eq!(byte_to_char(b'a'), 'a');
        assert_eq!(spelled_bytes("Ġhello".as_bytes()), b" hello");
        assert_eq!(spelled_bytes("語".as_bytes()), "語".as_bytes());
    }
}
