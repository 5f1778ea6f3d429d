//! The vocabulary: token texts, types and scores, and the way back from a text to its id.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use crate::source::{SCORES, TOKEN_TYPE};
use crate::{Error, VocabSource};

/// Stands for "no token" in the dense tables of this crate; a vocabulary is never that large.
pub(crate) const NONE: u32 = u32::MAX;

/// What a token is, as a set: a token that looks like a control token becomes one without ceasing to be normal text.
/// A file has one of them per token (`tokenizer.ggml.token_type`, numbered as SentencePiece does).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr(u8);

impl Attr {
    pub(crate) const NONE: Attr = Attr(0);
    pub(crate) const NORMAL: Attr = Attr(1);
    pub(crate) const UNKNOWN: Attr = Attr(2);
    /// Part of a protocol, not of text: hidden in output, and parsed in input only where that is asked for.
    pub(crate) const CONTROL: Attr = Attr(4);
    /// Added after training: always found whole in text.
    pub(crate) const USER_DEFINED: Attr = Attr(8);
    pub(crate) const UNUSED: Attr = Attr(16);
    /// One byte, spelled `<0xNN>`.
    pub(crate) const BYTE: Attr = Attr(32);
    /// A control token that is part of the text nevertheless, because whoever reads the answer needs it.
    pub(crate) const SHOWN: Attr = Attr(64);

    fn from_file(id: i32) -> Attr {
        match id {
            1 => Attr::NORMAL,
            2 => Attr::UNKNOWN,
            3 => Attr::CONTROL,
            4 => Attr::USER_DEFINED,
            5 => Attr::UNUSED,
            6 => Attr::BYTE,
            _ => Attr::NONE,
        }
    }

    /// Whether the two have anything in common.
    pub(crate) fn any(self, other: Attr) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) const fn with(self, other: Attr) -> Attr {
        Attr(self.0 | other.0)
    }
}

/// Token texts in one buffer, their types and scores, and an index from text to id.
pub(crate) struct Vocab {
    bytes: Vec<u8>,
    /// Where the text of each token ends in `bytes`.
    ends: Vec<u32>,
    pub(crate) attrs: Vec<Attr>,
    /// Empty, or one per token.
    pub(crate) scores: Vec<f32>,
    /// Hash and id of each token, at the first free slot from its hash on.
    index: Vec<Slot>,
    /// Bytes of the longest text.
    pub(crate) longest: usize,
}

/// A slot of the index. The hash spares most comparisons of texts, each a cache miss.
#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    id: u32,
}

fn hash(text: &[u8]) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write(text);
    hasher.finish() as u32
}

impl Vocab {
    pub(crate) fn new(source: &VocabSource<'_>) -> Result<Vocab, Error> {
        let tokens = source.tokens.len();
        let total = source.tokens.iter().map(<[u8]>::len).sum::<usize>();
        // An empty text is replaced by a name of at most 18 bytes.
        let bytes = total.saturating_add(tokens.saturating_mul(18));
        if tokens == 0 || u32::try_from(bytes).is_err() || tokens > (u32::MAX / 4) as usize {
            return Err(Error::VocabularySize { tokens, bytes: total });
        }
        let short = |key, found| Error::ShortArray { key, found, expected: tokens };
        let scores = match &source.scores {
            Some(scores) => scores.get(..tokens).ok_or_else(|| short(SCORES, scores.len()))?.to_vec(),
            None => Vec::new(),
        };
        let attrs = match &source.token_types {
            Some(types) => {
                let types = types.get(..tokens).ok_or_else(|| short(TOKEN_TYPE, types.len()))?;
                types.iter().map(|&id| Attr::from_file(id)).collect()
            }
            None => vec![Attr::NORMAL; tokens],
        };
        let mut vocab = Vocab {
            bytes: Vec::with_capacity(total),
            ends: Vec::with_capacity(tokens),
            attrs,
            scores,
            index: vec![Slot { hash: 0, id: NONE }; (tokens * 2).next_power_of_two()],
            longest: 0,
        };
        for (id, text) in (0..).zip(source.tokens.iter()) {
            if text.is_empty() {
                vocab.push(id, format!("[EMPTY_{id}]").as_bytes())?;
            } else {
                vocab.push(id, text)?;
            }
        }
        Ok(vocab)
    }

    fn push(&mut self, id: u32, text: &[u8]) -> Result<(), Error> {
        let slot = match self.find(text) {
            Err(slot) => slot,
            Ok(first) => {
                let text = String::from_utf8_lossy(text).into_owned();
                return Err(Error::DuplicateToken { first, second: id, text });
            }
        };
        self.index[slot] = Slot { hash: hash(text), id };
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len() as u32); // The caller checked the total.
        self.longest = self.longest.max(text.len());
        Ok(())
    }

    /// The id of a text, or the free slot of the index where it would stand. The index is at most half full, so the
    /// search ends.
    fn find(&self, text: &[u8]) -> Result<u32, usize> {
        let mask = self.index.len() - 1;
        let hash = hash(text);
        let mut at = hash as usize & mask;
        loop {
            match self.index[at] {
                Slot { id: NONE, .. } => return Err(at),
                slot if slot.hash == hash && self.text(slot.id) == text => return Ok(slot.id),
                _ => at = (at + 1) & mask,
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text of a token as the file spells it; empty for an id beyond the vocabulary.
    pub(crate) fn text(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let begin = id.checked_sub(1).map_or(0, |previous| self.ends[previous] as usize);
        &self.bytes[begin..end as usize]
    }

    /// The token that is spelled like this.
    pub(crate) fn id(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest { None } else { self.find(text).ok() }
    }

    pub(crate) fn attr(&self, id: u32) -> Attr {
        self.attrs.get(id as usize).copied().unwrap_or(Attr::NONE)
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        (id as usize) < self.len()
    }

    pub(crate) fn ids(&self) -> std::ops::Range<u32> {
        0..self.len() as u32
    }

    /// The byte that a token `<0xNN>` stands for.
    pub(crate) fn byte(&self, id: u32) -> Option<u8> {
        let digits = self.text(id).strip_prefix(b"<0x")?.strip_suffix(b">")?;
        match digits {
            [high, low] => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                Some((digit(*high)? * 16 + digit(*low)?) as u8)
            }
            _ => None,
        }
    }

    /// The token `<0xNN>` of each byte.
    pub(crate) fn byte_tokens(&self) -> [u32; 256] {
        std::array::from_fn(|byte| self.id(format!("<0x{byte:02X}>").as_bytes()).unwrap_or(NONE))
    }
}
