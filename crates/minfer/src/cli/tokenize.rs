//! `minfer tokenize` and `minfer detokenize`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use minfer::tokenizer::{EncodeOptions, Special};

use super::args::{ModelArgs, VocabularyArgs, open, usage};
use super::terminal::{print, read_file, read_stdin, utf8};

/// Show the tokens of a text
///
/// The text, which is UTF-8, is taken byte for byte: from the argument, a file, or stdin. BOS and EOS are added as the model's file
/// says, and special tokens in the text are parsed.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer tokenize -m model.gguf 'Hello, world'\n  minfer tokenize --pieces -f text.txt"
)]
pub(super) struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    vocabulary: VocabularyArgs,
    /// The text
    #[arg(allow_hyphen_values = true)]
    text: Option<String>,
    /// Read the text from this file
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Add no BOS or EOS, and take special tokens in the text as text
    #[arg(long)]
    no_special: bool,
    /// Print one line per token: its id, and its piece as a JSON string
    #[arg(long)]
    pieces: bool,
    /// Print JSON; with --pieces, an array of objects
    #[arg(long)]
    json: bool,
}

impl TokenizeArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let text = match (self.text, self.file) {
            (Some(text), _) => text,
            (None, Some(path)) => utf8(read_file(&path)?, &path.display().to_string())?,
            (None, None) => {
                let bytes = read_stdin()?
                    .ok_or_else(|| usage("no text: give it as an argument, by --file, or on stdin"))?;
                utf8(bytes, "the text on stdin")?
            }
        };
        let tokenizer = self.vocabulary.tokenizer(&*open(&self.model.model)?)?;
        let special = !self.no_special;
        let ids = tokenizer.encode(&text, EncodeOptions { add_special: special, parse_special: special });
        if !self.pieces {
            return print(format!("{}\n", serde_json::to_string(&ids)?));
        }
        if self.json {
            let pieces: Vec<_> = ids
                .iter()
                .map(|&id| serde_json::json!({"id": id, "piece": tokenizer.piece(id).unwrap_or_default()}))
                .collect();
            return print(format!("{}\n", serde_json::to_string_pretty(&pieces)?));
        }
        let mut lines = String::new();
        for id in ids {
            let piece = tokenizer.piece(id).unwrap_or_default();
            lines.push_str(&format!("{id}\t{}\n", serde_json::to_string(&piece)?));
        }
        print(lines)
    }
}

/// Show the text of tokens
///
/// The inverse of `tokenize`: the ids come as one JSON array (or separated by spaces) from the argument, a file, or
/// stdin; the bytes of the text go to stdout, nothing added.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer detokenize -m model.gguf '[19556, 28, 905]'\n  minfer tokenize 'Hello' | minfer detokenize"
)]
pub(super) struct DetokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    vocabulary: VocabularyArgs,
    /// The ids
    ids: Option<String>,
    /// Read the ids from this file
    #[arg(short, long, value_name = "FILE", conflicts_with = "ids")]
    file: Option<PathBuf>,
    /// The ids were made with --no-special: a BOS or EOS at the ends is part of the text
    #[arg(long)]
    no_special: bool,
}

impl DetokenizeArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let text = match (self.ids, self.file) {
            (Some(ids), _) => ids,
            (None, Some(path)) => utf8(read_file(&path)?, &path.display().to_string())?,
            (None, None) => {
                let bytes = read_stdin()?
                    .ok_or_else(|| usage("no ids: give them as an argument, by --file, or on stdin"))?;
                utf8(bytes, "what is on stdin")?
            }
        };
        let ids = parse_ids(&text)?;
        let tokenizer = self.vocabulary.tokenizer(&*open(&self.model.model)?)?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= tokenizer.vocab_size()) {
            bail!("token {id} is outside of the vocabulary of {}", tokenizer.vocab_size());
        }
        let mut ids = ids.as_slice();
        if !self.no_special {
            ids = ids.strip_prefix(added(tokenizer.adds_bos(), &tokenizer.bos())).unwrap_or(ids);
            ids = ids.strip_suffix(added(tokenizer.adds_eos(), &tokenizer.end())).unwrap_or(ids);
        }
        print(tokenizer.decode(ids, Special::Show))
    }
}

/// The token that `tokenize` adds at an end, if it does.
fn added(adds: bool, id: &Option<u32>) -> &[u32] {
    if adds { id.as_slice() } else { &[] }
}

/// Ids of a JSON array, or between spaces and commas.
fn parse_ids(text: &str) -> Result<Vec<u32>> {
    let inner = text.trim();
    let inner = inner.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(inner);
    inner
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|id| !id.is_empty())
        .map(|id| id.parse().with_context(|| format!("'{id}' is no token id")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse_ids;

    #[test]
    fn ids_are_read_from_json_or_words() {
        assert_eq!(parse_ids("[1, 2,3]\n").unwrap(), [1, 2, 3]);
        assert_eq!(parse_ids(" 7 8\n9 ").unwrap(), [7, 8, 9]);
        assert!(parse_ids("[]").unwrap().is_empty());
        for bad in ["[1, x]", "-1", "1.5", "[1", "99999999999"] {
            assert!(parse_ids(bad).is_err(), "{bad}");
        }
    }
}
