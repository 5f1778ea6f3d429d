//! SentencePiece's normalization map (`tokenizer.ggml.precompiled_charsmap`): character sequences and what replaces
//! them.
//!
//! Four bytes of length, a double array of that many bytes, and texts that end with a zero byte. A node of the array is
//! 32 bits: label in bits 0-7, "has a value" in bit 8, and the offset to its children in bits 10-30, times 256 if bit 9
//! is set; a value is the place of a text. Source: `normalizer.cc` of SentencePiece, and darts-clone,
//! <https://github.com/s-yata/darts-clone>.

use crate::Error;
use crate::source::CHARSMAP;

/// A map that was read.
pub(crate) struct Charsmap {
    nodes: Vec<u32>,
    texts: Vec<u8>,
}

impl Charsmap {
    pub(crate) fn new(bytes: &[u8]) -> Result<Charsmap, Error> {
        let bad = |detail: &'static str| Error::BadCharsmap { key: CHARSMAP, bytes: bytes.len(), detail };
        let (length, rest) = bytes.split_first_chunk().ok_or_else(|| bad("it has no length"))?;
        let length = u32::from_le_bytes(*length) as usize;
        if !length.is_multiple_of(4) {
            return Err(bad("its array is not one of 32-bit nodes"));
        }
        let (nodes, texts) = rest.split_at_checked(length).ok_or_else(|| bad("its array is cut off"))?;
        if texts.last() != Some(&0) {
            return Err(bad("its last text has no end"));
        }
        let nodes = nodes.as_chunks().0.iter().map(|node| u32::from_le_bytes(*node)).collect();
        let map = Charsmap { nodes, texts: texts.to_vec() };
        Ok(map)
    }

    /// The longest sequence of the map that `text` begins with: its length and what replaces it. A damaged map finds
    /// less than it should, and nothing worse.
    pub(crate) fn longest_prefix(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let offset = |node: u32| (node >> 10 & 0x1F_FFFF) << (if node >> 9 & 1 == 1 { 8 } else { 0 });
        let mut place = offset(*self.nodes.first()?);
        let mut longest = None;
        for (length, &byte) in (1..).zip(text) {
            if byte == 0 {
                break;
            }
            place ^= u32::from(byte);
            let Some(&node) = self.nodes.get(place as usize) else { break };
            // Bit 31 marks a value, which is no child.
            if node & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            place ^= offset(node);
            if node >> 8 & 1 == 1 {
                let value = self.nodes.get(place as usize).map(|value| (value & !(1 << 31)) as usize);
                longest =
                    value.and_then(|value| self.texts.get(value..)).map(|text| (length, text)).or(longest);
            }
        }
        let (length, text) = longest?;
        let end = text.iter().position(|&byte| byte == 0)?;
        Some((length, &text[..end]))
    }
}
