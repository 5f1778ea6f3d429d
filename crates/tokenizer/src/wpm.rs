//! WordPiece (`tokenizer.ggml.model = bert`): words cleaned as BERT does, and each taken apart from left to right, the
//! longest token first. A word that cannot be taken apart is the unknown token.
//!
//! The file's tokens begin words with `▁` and go on with them without it (BERT's own spelling is `##` for the latter).
//! The cleaning is that of `BertNormalizer` and `BertPreTokenizer` in the `tokenizers` package. llama.cpp (b11434)
//! differs from it on purpose or for want of tables: of a character's decomposition it keeps the first character only,
//! it takes all marks (not only those without width) and no unprintable formats away, and its tables are of another
//! version of Unicode.

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::UnicodeNormalization;

use crate::spm::SPACE;
use crate::trie::Trie;
use crate::vocab::{Attr, Vocab};
use crate::{Error, VocabSource};

/// Words of more characters are unknown, as in the `tokenizers` package and BERT's own code.
const LONGEST_WORD: usize = 100;

/// A WordPiece encoder.
pub(crate) struct Wpm {
    trie: Trie,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
    punctuation: Characters,
    marks: Characters,
    unprintable: Characters,
}

/// A set of characters, as sorted ranges.
struct Characters(Vec<(char, char)>);

impl Characters {
    /// The characters of a regular expression's class.
    fn new(class: &str) -> Characters {
        match regex_syntax::parse(class).map(regex_syntax::hir::Hir::into_kind) {
            Ok(HirKind::Class(Class::Unicode(class))) => {
                Characters(class.iter().map(|range| (range.start(), range.end())).collect())
            }
            _ => unreachable!("the classes are constants, and a test parses them"),
        }
    }

    fn contains(&self, character: char) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= character);
        after.checked_sub(1).is_some_and(|at| character <= self.0[at].1)
    }
}

impl Wpm {
    pub(crate) fn new(source: &VocabSource<'_>, vocab: &Vocab, unknown: Option<u32>) -> Result<Wpm, Error> {
        let unknown = unknown.ok_or(Error::MissingKey {
            key: "tokenizer.ggml.unknown_token_id",
            model: source.model.clone(),
        })?;
        let lowercase = source.lowercase.unwrap_or(true);
        let plain = vocab.ids().filter(|&id| !vocab.attr(id).any(Attr::UNKNOWN));
        Ok(Wpm {
            trie: Trie::new(plain.map(|id| (vocab.text(id), id))),
            unknown,
            lowercase,
            strip_accents: source.strip_accents.unwrap_or(lowercase),
            punctuation: Characters::new(r"[\p{P}!-/:-@\[-`{-~]"),
            marks: Characters::new(r"\p{Mn}"),
            unprintable: Characters::new(r"[\p{Cc}\p{Cf}\p{Co}&&[^\t\n\r]]"),
        })
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut word = String::new();
        self.clean(text, |character, alone| {
            if alone || character.is_whitespace() {
                self.encode_word(&mut word, out);
            }
            if !character.is_whitespace() {
                word.push(character);
            }
            if alone {
                self.encode_word(&mut word, out);
            }
        });
        self.encode_word(&mut word, out);
    }

    /// Calls `emit` with the characters of the cleaned text, and whether each is a word of its own.
    fn clean(&self, text: &str, mut emit: impl FnMut(char, bool)) {
        let mut lower = |character: char| {
            let alone = |character| is_han(character) || self.punctuation.contains(character);
            if self.lowercase && !character.is_ascii() {
                character.to_lowercase().for_each(|character| emit(character, alone(character)));
            } else if self.lowercase {
                emit(character.to_ascii_lowercase(), alone(character));
            } else {
                emit(character, alone(character));
            }
        };
        let kept = |character: &char| {
            !matches!(*character, '\0' | char::REPLACEMENT_CHARACTER)
                && !self.unprintable.contains(*character)
        };
        // Han characters are set apart before they are decomposed; each decomposes to one Han character.
        let characters = text.chars().filter(kept);
        if self.strip_accents && !text.is_ascii() {
            characters.nfd().filter(|character| !self.marks.contains(*character)).for_each(&mut lower);
        } else {
            characters.for_each(&mut lower);
        }
    }

    fn encode_word(&self, word: &mut String, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let before = out.len();
        let text = [SPACE, word.as_bytes()].concat();
        let mut rest = &text[..];
        while !rest.is_empty() && word.chars().nth(LONGEST_WORD).is_none() {
            // A space sign within the word is text, and no token has it.
            let within = rest.len() < text.len() && rest.starts_with(SPACE);
            let Some((length, id)) = self.trie.prefixes(rest).last().filter(|_| !within) else {
                out.truncate(before);
                break;
            };
            out.push(id);
            rest = &rest[length..];
        }
        if out.len() == before {
            out.push(self.unknown);
        }
        word.clear();
    }
}

/// BERT's "Chinese characters", which are words of their own. One of its ranges begins at U+2B920 in the `tokenizers`
/// package and llama.cpp, instead of U+2B820.
fn is_han(character: char) -> bool {
    matches!(character, '\u{4E00}'..='\u{9FFF}' | '\u{3400}'..='\u{4DBF}' | '\u{F900}'..='\u{FAFF}'
        | '\u{20000}'..='\u{2A6DF}' | '\u{2A700}'..='\u{2B73F}' | '\u{2B740}'..='\u{2B81F}'
        | '\u{2B920}'..='\u{2CEAF}' | '\u{2F800}'..='\u{2FA1F}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_parse() {
        assert!(Characters::new(r"[\p{P}!-/:-@\[-`{-~]").contains('~'));
        assert!(Characters::new(r"\p{Mn}").contains('\u{301}'));
        let unprintable = Characters::new(r"[\p{Cc}\p{Cf}\p{Co}&&[^\t\n\r]]");
        assert!(
            unprintable.contains('\u{7F}') && unprintable.contains('\u{200D}') && !unprintable.contains('\n')
        );
    }
}
