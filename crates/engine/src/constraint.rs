//! Constrained decoding: a text that is a sentence of a grammar.
//!
//! A [`Constraint`] is compiled when its request is submitted, so what cannot be honoured is refused there. From then on the
//! request has a mask of the tokens that may come next. It is applied before everything that sampling does: a token that it
//! forbids is no candidate. The mask is computed while the device computes the logits, and the grammar's state advances
//! only with tokens that were chosen, so neither a step in vain nor a cache given up is seen by it; it goes back with the text.
//!
//! Parsing and masks are [`llguidance`]'s: an Earley parser over lexemes that are derivatives of regular expressions, which
//! walks a trie of the vocabulary.

mod budget;
mod gbnf;
mod schema;
mod state;
mod vocabulary;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use crate::executor::TokenId;

pub use budget::Budget;
pub(crate) use state::{Constrained, Mark};
pub(crate) use vocabulary::Vocabulary;

/// Longest text of a grammar, in bytes.
pub const MAX_GRAMMAR_BYTES: usize = 1 << 20;
/// Longest text of [`Begin::AfterText`], in bytes.
pub const MAX_BEGIN_BYTES: usize = 256;

/// What a text has to be, and from where on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// What it has to be.
    pub grammar: Grammar,
    /// From where on.
    pub begin: Begin,
}

/// A set of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// The JSON texts that a JSON Schema (draft 2020-12 and before) describes, with properties in its order. A keyword that
    /// cannot be honoured is refused.
    JsonSchema(String),
    /// The texts that match a regular expression (syntax of the crate `regex`) from end to end.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark, from its rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's GBNF, from its rule `root`. Refused if it has tokens in it.
    Gbnf(String),
}

/// Where a constraint begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// With the first generated token.
    #[default]
    Now,
    /// After this token, as the one that ends a reasoning. Until then the text is free, but cannot end.
    AfterToken(TokenId),
    /// After this text, wherever token borders fall, except that a token which goes on behind it is not chosen. Until then
    /// the text is free, but cannot end.
    AfterText(String),
}

/// Why a constraint is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// A schema that is not JSON.
    #[error("the JSON schema is not JSON: {0}")]
    Json(String),
    /// A part of a schema that cannot be honoured.
    #[error("the JSON schema has {keyword:?} at {at:?}, which is not supported")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer to the schema that has it; empty for the whole.
        at: String,
    },
    /// A grammar that is wrong, or that asks for what there is not.
    #[error("the {grammar} is refused: {why}")]
    Grammar {
        /// Which kind.
        grammar: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A text that is empty or too long.
    #[error("the {what} has {found} bytes, must have 1 to {max}")]
    Length {
        /// Which.
        what: &'static str,
        /// Its bytes.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// A token that the model does not have.
    #[error("the constraint begins after token {id}, the vocabulary has {vocab}")]
    Token {
        /// The token.
        id: TokenId,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A constraint that could never begin.
    #[error("the constraint begins after token {id}, which ends the text")]
    End {
        /// The token.
        id: TokenId,
    },
    /// A vocabulary that no constraint can be put on.
    #[error("no constraint is possible with this vocabulary: {0}")]
    Vocabulary(String),
}

impl Constraint {
    /// Checks all that can be checked without a model.
    ///
    /// # Errors
    ///
    /// Those of a request with it, but for [`ConstraintError::Token`] and [`ConstraintError::Vocabulary`].
    pub fn check(&self) -> Result<(), ConstraintError> {
        self.of_bytes().map(drop)
    }

    /// Its state in front of a text whose tokens are bytes.
    fn of_bytes(&self) -> Result<Constrained, ConstraintError> {
        let bytes = crate::TokenTable::from_iter((0..=u8::MAX).map(|byte| [byte]));
        Vocabulary::new(bytes.into(), 256).compile(self)
    }

    /// Whether a whole text is one that this lets through, as if every byte were a token.
    ///
    /// # Errors
    ///
    /// Those of [`Constraint::check`].
    pub fn admits(&self, text: &str) -> Result<bool, ConstraintError> {
        let mut state = self.of_bytes()?;
        let refused = |why| ConstraintError::Grammar { grammar: self.grammar.name(), why };
        let mut last = false;
        for &byte in text.as_bytes() {
            if last {
                return Ok(false);
            }
            state.prepare(&[]).map_err(refused)?;
            let id = TokenId::from(byte);
            if state.mask().is_none_or(|mask| mask[id as usize / 32] >> (id % 32) & 1 != 1) {
                return Ok(false);
            }
            last = state.commit(id, &[byte]).map_err(refused)?;
        }
        Ok(last || state.is_whole().map_err(refused)?)
    }
}

impl Grammar {
    /// A grammar that is GBNF or Lark: GBNF if its first rule has `::=`.
    pub fn gbnf_or_lark(text: String) -> Grammar {
        match gbnf::looks_so(&text) {
            true => Grammar::Gbnf(text),
            false => Grammar::Lark(text),
        }
    }

    /// A JSON Schema as a rule of a Lark grammar: the text that stands for the values it describes.
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Keyword`], or that it is no object.
    pub fn schema_in_lark(schema: serde_json::Value) -> Result<String, ConstraintError> {
        Ok(format!("%json {}", schema::checked(schema)?))
    }

    fn name(&self) -> &'static str {
        match self {
            Grammar::JsonObject | Grammar::JsonSchema(_) => "JSON schema",
            Grammar::Regex(_) => "regular expression",
            Grammar::Lark(_) => "Lark grammar",
            Grammar::Gbnf(_) => "GBNF grammar",
        }
    }

    /// As llguidance has it.
    fn lower(&self) -> Result<TopLevelGrammar, ConstraintError> {
        let name = self.name();
        let text = match self {
            Grammar::JsonObject => "{}",
            Grammar::JsonSchema(text) | Grammar::Regex(text) | Grammar::Lark(text) | Grammar::Gbnf(text) => {
                text
            }
        };
        check_length(name, text, MAX_GRAMMAR_BYTES)?;
        let refused = |why| ConstraintError::Grammar { grammar: name, why };
        let lowered = match self {
            Grammar::JsonObject => schema::lower(r#"{"type": "object"}"#)?,
            Grammar::JsonSchema(_) => schema::lower(text)?,
            Grammar::Regex(_) => GrammarWithLexer::from_regex(text),
            Grammar::Lark(_) => {
                check_depth(text).map_err(refused)?;
                GrammarWithLexer::from_lark(text.to_owned())
            }
            Grammar::Gbnf(_) => {
                check_depth(text).map_err(refused)?;
                match gbnf::lower(text).map_err(refused)? {
                    gbnf::Lowered::Regex(regex) => GrammarWithLexer::from_regex(&regex),
                    gbnf::Lowered::Lark(lark) => GrammarWithLexer::from_lark(lark),
                }
            }
        };
        Ok(TopLevelGrammar::from_grammar(lowered))
    }
}

fn check_length(what: &'static str, text: &str, max: usize) -> Result<(), ConstraintError> {
    match text.len() {
        found if found == 0 || found > max => Err(ConstraintError::Length { what, found, max }),
        _ => Ok(()),
    }
}

/// Refuses what a recursive parser would need too much stack for. Brackets inside of strings count too.
fn check_depth(text: &str) -> Result<(), String> {
    const MAX: usize = 256;
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX {
            return Err(format!("brackets are nested more than {MAX} deep"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
