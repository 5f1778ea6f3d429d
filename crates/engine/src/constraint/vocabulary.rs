//! A vocabulary as constraints see it, and the compilation of grammars.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use llguidance::{Matcher, ParserFactory};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::{Begin, Budget, Constrained, Constraint, ConstraintError, MAX_BEGIN_BYTES, check_length};
use crate::executor::TokenId;
use crate::request::TokenTable;

/// Longest token that a constraint lets through, in bytes: the trie holds no longer ones.
const MAX_TOKEN_BYTES: usize = 1000;
/// The trie's own token for the end of a text: in its notation a special one. No text has it.
const END: &[u8] = b"\xFF<\0>";
/// Most bytes of all tokens that the trie holds.
const MAX_BYTES: usize = 1 << 22;

/// A model's tokens. What constraints need to know about them takes up to a second to compute, so the first one does.
pub(crate) struct Vocabulary {
    table: Arc<TokenTable>,
    vocab: usize,
    factory: OnceLock<Result<ParserFactory, ConstraintError>>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("vocab", &self.vocab).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Of `vocab` tokens.
    pub(crate) fn new(table: Arc<TokenTable>, vocab: usize) -> Self {
        Vocabulary { table, vocab, factory: OnceLock::new() }
    }

    /// The state at the beginning of a text that is constrained, or has a budget, or both; `None` if neither.
    pub(crate) fn state(
        &self,
        constraint: Option<&Constraint>,
        budget: Option<&Budget>,
    ) -> Result<Option<Constrained>, ConstraintError> {
        let constrained = constraint.map(|constraint| self.compile(constraint)).transpose()?;
        let Some(budget) = budget else { return Ok(constrained) };
        budget.check(self.vocab)?;
        let constrained = constrained.unwrap_or_else(|| Constrained::any(self.vocab));
        Ok(Some(constrained.with_budget(budget, &self.table)))
    }

    /// The state at the beginning of a text.
    pub(crate) fn compile(&self, constraint: &Constraint) -> Result<Constrained, ConstraintError> {
        match &constraint.begin {
            Begin::Now => {}
            &Begin::AfterToken(id) if id as usize >= self.vocab => {
                return Err(ConstraintError::Token { id, vocab: self.vocab });
            }
            Begin::AfterToken(_) => {}
            Begin::AfterText(text) => {
                check_length("text that the constraint begins after", text, MAX_BEGIN_BYTES)?;
            }
        }
        let grammar = constraint.grammar.name();
        let refused = |why: String| ConstraintError::Grammar { grammar, why };
        let lowered = constraint.grammar.lower()?;
        let factory = self.factory.get_or_init(|| factory(&self.table, self.vocab)).as_ref();
        let factory = factory.map_err(Clone::clone)?;
        let mut parser = factory.create_parser(lowered).map_err(|error| refused(reason(&error)))?;
        // A warning is something that will not be honoured.
        if let Some(warning) = parser.grammar_warnings().into_iter().next() {
            return Err(refused(warning));
        }
        let mut matcher = Matcher::new(Ok(parser));
        // A grammar without a sentence shows here.
        if !matcher.is_accepting().map_err(|error| refused(reason(&error)))? {
            matcher.compute_mask().map_err(|error| refused(reason(&error)))?;
        }
        Ok(Constrained::new(matcher, &constraint.begin, &self.table, self.vocab))
    }
}

/// What llguidance needs of a vocabulary.
fn factory(table: &TokenTable, vocab: usize) -> Result<ParserFactory, ConstraintError> {
    let error = |what: String| ConstraintError::Vocabulary(what);
    // The trie marks special tokens by a byte that no text has.
    let usable = |bytes: &&[u8]| bytes.len() <= MAX_TOKEN_BYTES && bytes.first() != Some(&0xFF);
    let words = (0..vocab).map(|id| Some(table.bytes(id as TokenId)).filter(usable).unwrap_or_default());
    // What ends a text is each request's affair. The trie has a token of its own for it, after all others.
    let words: Vec<Vec<u8>> = words.map(<[u8]>::to_vec).chain([END.to_vec()]).collect();
    let bytes: usize = words.iter().map(Vec::len).sum();
    if bytes == END.len() || bytes > MAX_BYTES || words.len() > MAX_BYTES / 2 {
        return Err(error(format!("its {vocab} tokens have {bytes} bytes of text")));
    }
    let build = AssertUnwindSafe(|| {
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, vocab as TokenId), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        ParserFactory::new_simple(&env)
    });
    let built = catch_unwind(build).map_err(|_| error("its tokens make no trie".into()))?;
    let mut factory = built.map_err(|e| error(reason(&e)))?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// What an error of llguidance says, without the state that it may dump, and without the line of Lark that a regular
/// expression is wrapped in.
pub(super) fn reason(error: &dyn std::fmt::Display) -> String {
    const MAX_CHARS: usize = 800;
    let text = error.to_string();
    if text.starts_with("NoExtension") {
        return "no token of this vocabulary can come next".to_owned();
    }
    let text = text.strip_prefix("at 1(8): ").unwrap_or(&text);
    let end = ["\n<", "\n   1 | start: /"].iter().filter_map(|mark| text.find(mark)).min();
    let text = text[..end.unwrap_or(text.len())].trim_end();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
