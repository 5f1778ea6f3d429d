//! SentencePiece's byte-pair form (`tokenizer.ggml.model = llama`): characters, joined where that makes a token, the
//! token of the highest score first. Characters that are no token are spelled in bytes.

use crate::merge::{Join, Merger, Piece};
use crate::utf8::char_len;
use crate::vocab::{NONE, Vocab};

/// The sign that stands for a space in token texts, U+2581.
pub(crate) const SPACE: &[u8] = "▁".as_bytes();

/// A SentencePiece encoder.
pub(crate) struct Spm {
    /// Token of each byte; `NONE` if there is none.
    bytes: [u32; 256],
    /// Priority of each token: the smaller, the higher its score.
    keys: Vec<u32>,
    joins_space: SpaceJoins,
}

/// Which bytes some token has before a space sign, so that the two may be joined. Text is cut before any other space
/// sign: no token crosses the cut, so the pieces on both sides know nothing of each other.
pub(crate) struct SpaceJoins([bool; 256]);

impl Default for SpaceJoins {
    fn default() -> SpaceJoins {
        SpaceJoins([false; 256])
    }
}

impl SpaceJoins {
    /// Takes note of what `text`, which may be made by joining, has before its space signs.
    pub(crate) fn add(&mut self, text: &[u8]) {
        for at in 1..text.len().saturating_sub(SPACE.len() - 1) {
            if text[at..].starts_with(SPACE) {
                self.0[usize::from(text[at - 1])] = true;
            }
        }
    }

    /// Whether a space sign may be joined to this byte.
    pub(crate) fn after(&self, byte: u8) -> bool {
        self.0[usize::from(byte)]
    }
}

/// Orders scores from the highest down. Not-a-number comes last; no key is `u32::MAX`.
fn score_key(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // -0 and 0 are equal.
    match bits >> 31 {
        _ if score.is_nan() => NONE - 1,
        0 => !(bits | 1 << 31),
        _ => bits,
    }
}

impl Spm {
    pub(crate) fn new(vocab: &Vocab, unknown: Option<u32>) -> Spm {
        let mut joins_space = SpaceJoins::default();
        vocab.ids().for_each(|id| joins_space.add(vocab.text(id)));
        let mut bytes = vocab.byte_tokens();
        for (byte, token) in (0u8..=255).zip(&mut bytes) {
            if *token == NONE {
                *token = vocab.id(&[byte]).or(unknown).unwrap_or(NONE);
            }
        }
        let keys = match vocab.scores.is_empty() {
            true => vec![score_key(0.0); vocab.len()],
            false => vocab.scores.iter().map(|&score| score_key(score)).collect(),
        };
        Spm { bytes, keys, joins_space }
    }

    /// Appends the tokens of `text`, with a space before it if `prefix`.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        text: &[u8],
        prefix: bool,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let spaces = text.iter().filter(|byte| **byte == b' ').count();
        let mut escaped = Vec::with_capacity(text.len() + (SPACE.len() - 1) * spaces + SPACE.len());
        if prefix {
            escaped.extend_from_slice(SPACE);
        }
        for (index, part) in text.split(|byte| *byte == b' ').enumerate() {
            if index > 0 {
                escaped.extend_from_slice(SPACE);
            }
            escaped.extend_from_slice(part);
        }
        merger.pieces.clear();
        let mut start = 0;
        while start < escaped.len() {
            let end = escaped.len().min(start + char_len(escaped[start]));
            let character = &escaped[start..end];
            if character == SPACE && start > 0 && !self.joins_space.after(escaped[start - 1]) {
                self.finish_word(vocab, &escaped, merger, out);
            }
            let symbol = vocab.id(character).unwrap_or(NONE);
            merger.pieces.push(Piece { start: start as u32, end: end as u32, symbol });
            start = end;
        }
        self.finish_word(vocab, &escaped, merger, out);
    }

    /// Joins the characters in `merger` and appends their tokens.
    fn finish_word(&self, vocab: &Vocab, text: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        merger.merge(|left, right| {
            let symbol = vocab.id(&text[left.start as usize..right.end as usize])?;
            Some(Join { key: self.keys[symbol as usize], symbol })
        });
        for piece in &merger.pieces {
            if piece.symbol == NONE {
                let bytes = &text[piece.start as usize..piece.end as usize];
                out.extend(bytes.iter().map(|byte| self.bytes[usize::from(*byte)]).filter(|id| *id != NONE));
            } else {
                out.push(piece.symbol);
            }
        }
        merger.pieces.clear();
    }
}

/// A token's text with its space signs as spaces.
pub(crate) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        match rest.strip_prefix(SPACE) {
            Some(after) => {
                plain.push(b' ');
                rest = after;
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_scores_from_the_highest_down() {
        let scores = [f32::INFINITY, 3.5, 0.0, -1e-40, -1.0, -2.5, -1e9, f32::NEG_INFINITY, f32::NAN];
        let keys = scores.map(score_key);
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert_eq!(score_key(0.0), score_key(-0.0));
        assert!(keys.iter().all(|key| *key < NONE));
    }
}
