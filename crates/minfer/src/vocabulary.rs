//! The vocabulary of a model's file.

use std::path::Path;

use minfer_gguf::Gguf;
use minfer_tokenizer::{Overrides, Tokenizer};

use crate::Error;

/// The vocabulary of a file, with another pre-tokenizer rule than the file's if `pre` names one.
///
/// # Errors
///
/// [`Error::Vocabulary`].
pub fn vocabulary(gguf: &Gguf, pre: Option<&str>) -> Result<Tokenizer, Error> {
    Tokenizer::from_gguf_with(gguf.metadata(), Overrides { pre })
        .map_err(|error| Error::Vocabulary { file: file(gguf), error })
}

/// The vocabulary of a file whose weights are to read its tokens.
///
/// # Errors
///
/// [`Error::Vocabulary`]; [`Error::Rows`] if the embedding lacks rows for some of the tokens.
pub fn model_vocabulary(gguf: &Gguf, pre: Option<&str>) -> Result<Tokenizer, Error> {
    const TABLE: &str = "token_embd.weight";
    let tokenizer = vocabulary(gguf, pre)?;
    let tokens = tokenizer.vocab_size() as u64;
    match gguf.tensor(TABLE).map(|table| table.dims().get(1).copied().unwrap_or(1)) {
        Some(rows) if rows < tokens => {
            Err(Error::Rows { file: file(gguf), tensor: TABLE.to_owned(), rows, tokens })
        }
        // Without a table loading says what is missing.
        _ => Ok(tokenizer),
    }
}

fn file(gguf: &Gguf) -> String {
    gguf.paths().next().map(Path::display).map(|path| path.to_string()).unwrap_or_default()
}
