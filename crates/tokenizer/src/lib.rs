//! Text to token ids and back, and chat templates, from the metadata of a GGUF file.
//!
//! The path of a text through [`Tokenizer::encode`]:
//!
//! ```text
//! text ── added ──► fragments ── pre ──► words ── bpe ──► ids     tokenizer.ggml.model = gpt2
//!          │                   ├─ spm ──────────────────► ids     tokenizer.ggml.model = llama
//!          │                   ├─ wpm ──────────────────► ids     tokenizer.ggml.model = bert
//!          │                   └─ unigram ──────────────► ids     tokenizer.ggml.model = t5
//!          └─ special and added tokens, found whole
//! ```
//!
//! | module | what it owns |
//! |---|---|
//! | `source` | the only reader of GGUF metadata: a plain [`VocabSource`] |
//! | `vocab` | token texts, types and scores; text → id |
//! | `special` | BOS, EOS and friends; tokens known by their text; end of generation |
//! | `added` | finds special and added tokens in text |
//! | `pre` | the table of pre-tokenizer rules of byte-pair encoding |
//! | `merge` | joins neighbours in order of priority, in n log n |
//! | `trie` | all tokens that a text begins with |
//! | `bpe`, `spm`, `wpm`, `unigram` | the four tokenizer models |
//! | `charsmap` | what Unigram replaces beforehand |
//! | `detokenizer` | ids back to whole characters, incrementally |
//! | `template` | chat templates |
//! | `answer` | reasoning and tool calls split out of what a model answers |
//!
//! The reference for ids is llama.cpp (facts of its build 11434); where it departs from what a model was trained with,
//! the `tokenizers` package decides, and the module concerned says so.

mod added;
mod answer;
mod bpe;
mod characters;
mod charsmap;
mod detokenizer;
mod error;
mod merge;
mod pre;
mod source;
mod special;
mod spm;
mod template;
mod tokenizer;
mod trie;
mod unigram;
mod utf8;
mod vocab;
mod wpm;

pub use answer::{AnswerEvent, AnswerFormat, AnswerParser};
pub use characters::Characters;
pub use detokenizer::Detokenizer;
pub use error::Error;
pub use pre::supported as supported_pre_tokenizers;
pub use source::{SpecialIds, VocabSource};
pub use template::{ChatTemplate, TemplateInput};
pub use tokenizer::{EncodeOptions, Overrides, Special, Tokenizer};
