//! A byte-level BPE vocabulary of any size that works: every byte is a token, and every longer token is the merge of
//! two shorter ones, so that any text can be encoded and comes back.

use std::collections::HashSet;

use crate::random::Random;

/// Longest token in characters.
const MAX_CHARS: usize = 16;

/// Tokens that are not text, at the end of the vocabulary.
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// A chat template over [`SPECIAL`], so that `run` works as with a real model.
pub(super) const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
    message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' \
    }}{% endif %}";

/// Values of the `tokenizer.ggml.*` keys.
pub(super) struct Vocabulary {
    /// Token texts, in gpt2's spelling of bytes.
    pub tokens: Vec<String>,
    /// 1 normal, 3 control.
    pub types: Vec<i32>,
    /// "left right", best first.
    pub merges: Vec<String>,
    /// Id of the token that starts a text, and of padding.
    pub bos: u32,
    /// Id of the token that ends an answer.
    pub eos: u32,
}

impl Vocabulary {
    /// A vocabulary of `size` tokens (at least 512), the same for the same `size`.
    pub(super) fn new(size: usize) -> Vocabulary {
        let mut tokens: Vec<String> = (0..=255).map(|byte| spelling(byte).to_string()).collect();
        let mut known: HashSet<String> = tokens.iter().cloned().collect();
        let mut merges = Vec::new();
        let mut random = Random::new(size as u64);
        // English-like tokens first, for plausible lengths on real text; then any token and a short one.
        let letters: Vec<usize> = (b'a'..=b'z').map(usize::from).collect();
        let space = usize::from(b' ');
        let mut pairs: Vec<(usize, usize)> =
            letters.iter().flat_map(|a| letters.iter().map(move |b| (*a, *b))).collect();
        pairs.extend(letters.iter().map(|a| (space, *a)));
        let short = (256 + pairs.len()) as u64;
        let mut pairs = pairs.into_iter();
        while tokens.len() + SPECIAL.len() < size {
            let (left, right) = pairs.next().unwrap_or_else(|| {
                let left = random.below(tokens.len() as u64) as usize;
                (left, random.below(short.min(tokens.len() as u64)) as usize)
            });
            let text = format!("{}{}", tokens[left], tokens[right]);
            if text.chars().count() <= MAX_CHARS && known.insert(text.clone()) {
                merges.push(format!("{} {}", tokens[left], tokens[right]));
                tokens.push(text);
            }
        }
        let mut types = vec![1; tokens.len()];
        let first_special = tokens.len() as u32;
        tokens.extend(SPECIAL.map(str::to_owned));
        types.extend([3; SPECIAL.len()]);
        Vocabulary { tokens, types, merges, bos: first_special, eos: first_special + 2 }
    }
}

/// The character that stands for a byte in gpt2's vocabularies: printable Latin-1 stands for itself, the other 68
/// bytes follow from U+0100 on.
fn spelling(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or('\u{fffd}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_gpt2s_spelling() {
        for (byte, c) in
            [(b'!', '!'), (b' ', 'Ġ'), (b'\n', 'Ċ'), (0, 'Ā'), (0x7f, 'ġ'), (0xad, 'Ń'), (0xff, 'ÿ')]
        {
            assert_eq!(spelling(byte), c, "{byte}");
        }
    }

    #[test]
    fn tokens_are_unique_and_every_long_one_has_its_merge() {
        let v = Vocabulary::new(3000);
        assert_eq!((v.tokens.len(), v.types.len(), v.merges.len()), (3000, 3000, 3000 - 256 - 3));
        let unique: HashSet<&String> = v.tokens.iter().collect();
        assert_eq!(unique.len(), 3000);
        for (merge, token) in v.merges.iter().zip(&v.tokens[256..]) {
            assert_eq!(&merge.replace(' ', ""), token);
        }
        assert_eq!(v.tokens[v.eos as usize], "<|im_end|>");
        assert_eq!(v.tokens, Vocabulary::new(3000).tokens);
    }
}
