//! The table of rules. Patterns are those of the models' own `tokenizer.json`, as llama.cpp (b11434) lists them.

use super::Rule;
use super::Stage::{self, Isolate, Words};

/// GPT-2's words: English contractions, letters, digits, the rest; each with the space before it.
const GPT2: Stage = Words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");

const RULE: Rule = Rule { names: &[], stages: &[], ignore_merges: false, add_bos: false };

pub(super) const RULES: &[Rule] = &[
    Rule {
        names: &["default"],
        stages: &[Isolate(r"[\p{P}$+<=>^~|]+"), GPT2, Isolate(r"\p{N}+"), Isolate("[0-9][0-9][0-9]")],
        ..RULE
    },
    Rule {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        stages: &[Isolate(r"\p{N}"), GPT2],
        ..RULE
    },
    Rule {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        stages: &[GPT2],
        ..RULE
    },
];
