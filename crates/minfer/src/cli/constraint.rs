//! Flags that say what a text has to be.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use minfer::engine::{Begin, Constraint, Grammar};

use super::args::usage;

/// What the text has to be. What cannot be honoured is refused before a model is loaded.
#[derive(clap::Args)]
#[command(next_help_heading = "Constraint")]
pub(super) struct ConstraintArgs {
    /// Any JSON object
    #[arg(long, group = "grammars")]
    json_object: bool,
    /// JSON that this JSON Schema describes
    #[arg(long, value_name = "FILE", group = "grammars")]
    json_schema: Option<PathBuf>,
    /// A sentence of this grammar, in llguidance's dialect of Lark or in GBNF (`root ::= …`)
    #[arg(long, value_name = "FILE", group = "grammars")]
    grammar: Option<PathBuf>,
    /// What this regular expression matches from end to end
    #[arg(long, value_name = "REGEX", group = "grammars")]
    regex: Option<String>,
    /// Only what follows this text, or special token, has to be that: `</think>`, for a model that reasons first. The text
    /// does not end before
    #[arg(long, value_name = "TEXT", requires = "grammars")]
    pub constrain_after: Option<String>,
}

impl ConstraintArgs {
    /// The grammar, checked as far as that is possible without a model.
    pub(super) fn grammar(&self) -> Result<Option<Grammar>> {
        let (flag, grammar) = if self.json_object {
            ("--json-object", Grammar::JsonObject)
        } else if let Some(file) = &self.json_schema {
            ("--json-schema", Grammar::JsonSchema(read(file)?))
        } else if let Some(file) = &self.grammar {
            ("--grammar", Grammar::gbnf_or_lark(read(file)?))
        } else if let Some(regex) = &self.regex {
            ("--regex", Grammar::Regex(regex.clone()))
        } else {
            return Ok(None);
        };
        let begin = self.constrain_after.clone().map_or(Begin::Now, Begin::AfterText);
        let constraint = Constraint { grammar, begin };
        constraint.check().map_err(|error| usage(format!("{flag}: {error}")))?;
        Ok(Some(constraint.grammar))
    }
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}
