//! Pre-tokenizer rules: how byte-pair encoding cuts text into words, by the name in `tokenizer.ggml.pre`.
//!
//! A rule is a sequence of stages. Each stage cuts what the one before left, and no match of a stage crosses a cut: a
//! white-space run before a digit that an earlier stage cut off ends its fragment and is not shortened.

mod rules;

use std::ops::Range;

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input, PatternID};

use crate::Error;
use rules::RULES;

/// One step of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Matches of the pattern, and what lies between them.
    Isolate(&'static str),
    /// The pattern, or else a run of white space, whose last character goes to the word that follows. It stands for
    /// the usual ending `|\s+(?!\S)|\s+` of these patterns, which a finite automaton cannot express.
    Words(&'static str),
    /// Like `Words`, but white space is taken in runs of 512, 256, …, 4, 2 and 1, with a character left for the word
    /// that follows: the ending `|\s{512}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`.
    WordsAndPowers(&'static str),
    /// Runs of the characters of this class, cut into threes from the right.
    Thousands(&'static str, Thousands),
}

/// Which runs of digits are cut into threes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thousands {
    /// All, and they are words of their own.
    Isolated,
    /// Those at the end of a word, and they are words of their own: `\d{1,3}(?=(?:\d{3})*\b)`.
    AtWordEnd,
    /// All, but the first one or two stay with what is before the run, and what follows stays with the run:
    /// `(?=(\d{3})+(?!\d))`.
    CutBefore,
}

/// How token texts spell text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// In GPT-2's alphabet of 256 characters, one for each byte.
    Bytes,
    /// As it is, with `<0xNN>` for the bytes of what no token spells.
    Characters,
    /// As it is, with `▁` for a space.
    Spaces,
    /// The same, and each line begins with `▁`, which also begins each word (Metaspace).
    Metaspace,
}

/// When texts begin with BOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bos {
    IfFileSays,
    UnlessFileDenies,
    /// Files that deny it are wrong.
    Always,
}

/// A rule of the table, with what else its name implies.
pub(crate) struct Rule {
    /// Names in files.
    pub(crate) names: &'static [&'static str],
    pub(crate) stages: &'static [Stage],
    /// A word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// A run of line ends that is a token is that token, whatever the merges say.
    pub(crate) line_ends_whole: bool,
    pub(crate) spelling: Spelling,
    /// Text is composed first: Unicode's normalization form C.
    pub(crate) nfc: bool,
    pub(crate) bos: Bos,
}

impl Rule {
    /// The rule of a name.
    pub(crate) fn named(name: &str) -> Result<&'static Rule, Error> {
        RULES.iter().find(|rule| rule.names.contains(&name)).ok_or_else(|| Error::UnsupportedPre {
            found: name.to_owned(),
            supported: supported().collect::<Vec<_>>().join(", "),
        })
    }
}

/// The names of all known rules: values of `tokenizer.ggml.pre`.
pub fn supported() -> impl Iterator<Item = &'static str> {
    RULES.iter().flat_map(|rule| rule.names).copied()
}

/// A rule ready to run.
pub(crate) struct PreTokenizer {
    stages: Vec<Splitter>,
}

enum Splitter {
    Isolate(Regex),
    /// Pattern 0 is the stage's, pattern 1 white space.
    Words(Regex, WhiteSpace),
    Thousands {
        /// Matches a run of digits.
        digits: Regex,
        which: Thousands,
        /// Matches a character that goes on with a word (Unicode's `\w`).
        word: Regex,
    },
}

/// How much of a run of white space is a word.
#[derive(Clone, Copy)]
enum WhiteSpace {
    AllButOne,
    PowersOfTwo,
}

const WHITE_SPACE: PatternID = PatternID::new_unchecked(1);

impl PreTokenizer {
    pub(crate) fn new(rule: &Rule) -> PreTokenizer {
        // No pattern comes from a file, and a test compiles them all.
        let compile = |patterns: &[&str]| Regex::new_many(patterns).expect("the table's patterns compile");
        let stages = rule.stages.iter().map(|stage| match stage {
            Stage::Isolate(pattern) => Splitter::Isolate(compile(&[pattern])),
            Stage::Words(pattern) => Splitter::Words(compile(&[pattern, r"\s+"]), WhiteSpace::AllButOne),
            Stage::WordsAndPowers(pattern) => {
                Splitter::Words(compile(&[pattern, r"\s+"]), WhiteSpace::PowersOfTwo)
            }
            Stage::Thousands(class, which) => Splitter::Thousands {
                digits: compile(&[&format!("{class}+")]),
                which: *which,
                word: compile(&[r"\w"]),
            },
        });
        PreTokenizer { stages: stages.collect() }
    }

    /// Calls `emit` with the place of each word of `text`, which is not empty, in order. They cover it, and none is
    /// empty.
    pub(crate) fn split(&self, text: &str, emit: &mut dyn FnMut(Range<usize>)) {
        split(&self.stages, text, 0..text.len(), emit);
    }
}

fn split(stages: &[Splitter], text: &str, part: Range<usize>, emit: &mut dyn FnMut(Range<usize>)) {
    let Some((stage, rest)) = stages.split_first() else { return emit(part) };
    let offset = part.start;
    let text_part = &text[part]; // No pattern sees what is beyond a cut.
    let mut piece = |begin: usize, end: usize| {
        if begin < end {
            split(rest, text, offset + begin..offset + end, emit);
        }
    };
    match stage {
        Splitter::Isolate(regex) => {
            let mut begin = 0;
            for found in regex.find_iter(text_part) {
                piece(begin, found.start());
                piece(found.start(), found.end());
                begin = found.end();
            }
            piece(begin, text_part.len());
        }
        Splitter::Words(regex, white_space) => split_words(regex, *white_space, text_part, &mut piece),
        Splitter::Thousands { digits, which, word } => {
            split_thousands(digits, *which, word, text_part, &mut piece);
        }
    }
}

fn split_words(regex: &Regex, white_space: WhiteSpace, text: &str, piece: &mut dyn FnMut(usize, usize)) {
    let mut begin = 0;
    let input = |begin| Input::new(text).range(begin..);
    // Words follow each other almost always, and a search that may not skip is twice as fast.
    while let Some(found) =
        regex.search(&input(begin).anchored(Anchored::Yes)).or_else(|| regex.search(&input(begin)))
    {
        piece(begin, found.start());
        let (start, mut end) = (found.start(), found.end());
        if found.pattern() == WHITE_SPACE {
            end = match white_space {
                WhiteSpace::AllButOne if end < text.len() => give_back(text, start, end),
                WhiteSpace::AllButOne => end,
                WhiteSpace::PowersOfTwo => {
                    begin = split_powers(text, start, end, piece);
                    continue;
                }
            };
        }
        piece(start, end);
        begin = end;
    }
    piece(begin, text.len());
}

/// The end of the white space `text[start..end]` without its last character, if it has another one.
fn give_back(text: &str, start: usize, end: usize) -> usize {
    match text[start..end].char_indices().next_back() {
        Some((0, _)) | None => end,
        Some((last, _)) => start + last,
    }
}

/// Cuts the white space `text[start..end]`, and returns where the words go on: at its end, or one character before.
fn split_powers(text: &str, start: usize, end: usize, piece: &mut dyn FnMut(usize, usize)) -> usize {
    let mut left = text[start..end].chars().count();
    // What follows is a word, which may take the last character; a lone one is what no word has taken.
    let keep = usize::from(end < text.len() && left > 1);
    let mut ends = text[start..end].char_indices().map(|(at, character)| start + at + character.len_utf8());
    let mut begin = start;
    while left > keep {
        let take =
            [512, 256, 128, 64, 32, 16, 8, 4, 2].into_iter().find(|take| left - keep >= *take).unwrap_or(1);
        let Some(end) = ends.nth(take - 1) else { break };
        piece(begin, end);
        begin = end;
        left -= take;
    }
    begin
}

fn split_thousands(
    digits: &Regex,
    which: Thousands,
    word: &Regex,
    text: &str,
    piece: &mut dyn FnMut(usize, usize),
) {
    let goes_on = |at: usize| word.search(&Input::new(text).range(at..).anchored(Anchored::Yes)).is_some();
    let mut begin = 0;
    for run in digits.find_iter(text) {
        if which == Thousands::AtWordEnd && goes_on(run.end()) {
            continue;
        }
        let count = text[run.range()].chars().count();
        for (index, (at, _)) in text[run.range()].char_indices().enumerate() {
            if (count - index).is_multiple_of(3) || (index == 0 && which != Thousands::CutBefore) {
                piece(begin, run.start() + at);
                begin = run.start() + at;
            }
        }
        if which != Thousands::CutBefore {
            piece(begin, run.end());
            begin = run.end();
        }
    }
    piece(begin, text.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of `text` by a rule, for comparison with other engines.
    fn words<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        words_by(&PreTokenizer::new(Rule::named(pre).unwrap()), text)
    }

    fn words_by<'t>(pre: &PreTokenizer, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        pre.split(text, &mut |word| words.push(&text[word]));
        words
    }

    /// Lengths of words in characters, as `rules.py` writes them.
    fn code(words: &[&str]) -> String {
        let code = |word: &&str| match word.chars().count() {
            length @ 0..=35 => char::from_digit(length as u32, 36).unwrap().to_string(),
            length @ 36..=61 => char::from(b'A' + (length - 36) as u8).to_string(),
            length => format!("({length})"),
        };
        words.iter().map(code).collect()
    }

    /// Made by `tests/golden/tokenizer/rules.py` with another engine, from the models' own patterns.
    #[test]
    fn words_are_those_of_the_models_own_patterns() {
        #[derive(serde::Deserialize)]
        struct Golden {
            texts: Vec<String>,
            rules: Vec<Expected>,
        }
        #[derive(serde::Deserialize)]
        struct Expected {
            names: Vec<String>,
            words: Vec<String>,
        }
        let golden = include_str!("../../../tests/golden/tokenizer/rules.json");
        let golden: Golden = serde_json::from_str(golden).unwrap();
        let mut wrong = Vec::new();
        for rule in &golden.rules {
            assert_eq!(rule.words.len(), golden.texts.len());
            for name in &rule.names {
                let pre = PreTokenizer::new(Rule::named(name).unwrap());
                for (text, expected) in golden.texts.iter().zip(&rule.words) {
                    let found = code(&words_by(&pre, text));
                    if found != *expected {
                        wrong.push(format!("{name}: {text:?}: expected {expected}, found {found}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        // mmbert's rule is for text that was changed first.
        let known: usize = golden.rules.iter().map(|rule| rule.names.len()).sum();
        assert_eq!(supported().count(), known + 1);
    }

    #[test]
    fn digits_in_threes_from_the_right() {
        assert_eq!(words("afmoe", "a 1234567b"), ["a", " ", "1", "234", "567", "b"]);
        assert_eq!(words("tiny_aya", "1234 123456"), ["1", "234", " ", "123", "456"]);
        assert_eq!(words("tiny_aya", "1234abc"), ["123", "4", "abc"]); // No word ends after the 4.
        assert_eq!(
            words("superbpe", "ab 1234 Ⅷ1234½ 123"),
            ["ab ", "1", "234", " ", "Ⅷ1", "234½", " ", "123"]
        );
    }

    #[test]
    fn white_space_in_powers_of_two() {
        let of = |n: usize, tail: &str| {
            let text = " ".repeat(n) + tail;
            words("jais-2", &text).iter().map(|word| word.len()).collect::<Vec<_>>()
        };
        assert_eq!(of(7, "a"), [4, 2, 2]);
        assert_eq!(of(7, ""), [4, 2, 1]);
        assert_eq!(of(1, "1"), [1, 1]);
        assert_eq!(of(2, "1"), [1, 1, 1]);
        assert_eq!(of(1030, "1"), [512, 512, 4, 1, 1, 1]);
    }
}
