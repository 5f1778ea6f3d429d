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
}

/// A rule of the table, with what else its name implies.
pub(crate) struct Rule {
    /// Names in files.
    pub(crate) names: &'static [&'static str],
    pub(crate) stages: &'static [Stage],
    /// A word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Begin texts with BOS unless the file says otherwise.
    pub(crate) add_bos: bool,
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
    Words(Regex),
}

const WHITE_SPACE: PatternID = PatternID::new_unchecked(1);

impl PreTokenizer {
    pub(crate) fn new(rule: &Rule) -> PreTokenizer {
        // No pattern comes from a file, and a test compiles them all.
        let compile = |patterns: &[&str]| Regex::new_many(patterns).expect("the table's patterns compile");
        let stages = rule.stages.iter().map(|stage| match stage {
            Stage::Isolate(pattern) => Splitter::Isolate(compile(&[pattern])),
            Stage::Words(pattern) => Splitter::Words(compile(&[pattern, r"\s+"])),
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
    let mut begin = 0;
    match stage {
        Splitter::Isolate(regex) => {
            for found in regex.find_iter(text_part) {
                piece(begin, found.start());
                piece(found.start(), found.end());
                begin = found.end();
            }
        }
        Splitter::Words(regex) => {
            let input = |begin| Input::new(text_part).range(begin..);
            // Words follow each other almost always, and a search that may not skip is twice as fast.
            while let Some(found) =
                regex.search(&input(begin).anchored(Anchored::Yes)).or_else(|| regex.search(&input(begin)))
            {
                let mut end = found.end();
                if found.pattern() == WHITE_SPACE && end < text_part.len() {
                    end = give_back(text_part, found.start(), end);
                }
                piece(begin, found.start());
                piece(found.start(), end);
                begin = end;
            }
        }
    }
    piece(begin, text_part.len());
}

/// The end of the white space `text[start..end]` without its last character, if it has another one.
fn give_back(text: &str, start: usize, end: usize) -> usize {
    match text[start..end].char_indices().next_back() {
        Some((0, _)) | None => end,
        Some((last, _)) => start + last,
    }
}
