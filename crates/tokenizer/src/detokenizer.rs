//! Ids back to text while they are being generated.

use crate::{Special, Tokenizer};

/// Turns ids into text as they come. What it returns in total is what [`Tokenizer::decode`] makes of all ids, with
/// U+FFFD for what is not UTF-8; each return holds whole characters only.
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    special: Special,
    at_start: bool,
    /// Bytes of a character that is not complete yet, and of the token being added.
    pending: Vec<u8>,
    text: String,
}

impl<'t> Detokenizer<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer, special: Special) -> Detokenizer<'t> {
        let at_start = tokenizer.space_prefix;
        Detokenizer { tokenizer, special, at_start, pending: Vec::new(), text: String::new() }
    }

    /// The ids go on with an earlier text, so that a space before the first one is part of it.
    pub fn continuing(mut self) -> Detokenizer<'t> {
        self.at_start = false;
        self
    }

    /// Adds a token and returns the text that is now certain; often empty, while a character is incomplete.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        self.tokenizer.append_text(id, self.special, &mut self.at_start, &mut self.pending);
        let mut done = 0;
        loop {
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    done = self.pending.len();
                    break;
                }
                Err(error) => {
                    let (valid, _) = rest.split_at(error.valid_up_to());
                    self.text.push_str(&String::from_utf8_lossy(valid));
                    done += valid.len();
                    let Some(invalid) = error.error_len() else { break };
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    done += invalid;
                }
            }
        }
        self.pending.drain(..done);
        &self.text
    }

    /// Ends the text: U+FFFD if it stops within a character.
    pub fn finish(self) -> String {
        if self.pending.is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.into() }
    }
}
