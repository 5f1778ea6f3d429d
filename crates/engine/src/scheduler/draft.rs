//! A draft model: a smaller one with the same tokens, which guesses what comes next.
//!
//! Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, section 2, but with another rule
//! of what to accept: a guess is right if it is the token that the model itself chooses there. That gives the same text, not only
//! the same distribution. It chooses by a random number that its place alone decides, and the draft model draws with the same one,
//! so the more alike the two distributions are, the more likely are they to draw the same token.
//!
//! The draft model has an executor and a cache of its own. It reads what has been said as far as there is room in its steps, one
//! step in each turn of the loop, and then guesses, a step for each token of all texts. Where it has no room, nothing is guessed.

use crate::executor::{
    Executor, PlanRow, RowOutput, SeqId, StepError, StepOutput, StepPlan, TokenId, Tokens, Want,
};
use crate::kv::{Kv, KvError, Sequence};
use crate::sampling::Scratch;

use super::running::Running;

/// The draft model at work.
pub(super) struct Drafter {
    executor: Box<dyn Executor>,
    kv: Kv,
    /// Tokens that the other model has.
    vocab: usize,
    out: StepOutput,
    scratch: Scratch,
    next_seq: u64,
}

/// A text as the draft model has it.
#[derive(Debug, Default)]
pub(super) struct Draft {
    id: SeqId,
    cache: Option<Sequence>,
    /// The tokens in the cache: those of the text, and guesses.
    tokens: Vec<TokenId>,
    /// What comes after all tokens of the text.
    guesses: Vec<TokenId>,
    /// How many guesses there are to be.
    wanted: usize,
    /// Mirostat's number after the last guess.
    mu: Option<f64>,
}

impl Draft {
    /// The tokens of the text and the guesses, as far as they are read, and mirostat's number after them.
    pub(super) fn state(&mut self) -> (&[TokenId], &mut Option<f64>) {
        (&self.tokens, &mut self.mu)
    }

    /// Begins to guess, from mirostat's number after the text.
    pub(super) fn begin(&mut self, mu: Option<f64>) {
        self.mu = mu;
    }

    /// Its guesses for the tokens after the text, once.
    pub(super) fn take(&mut self, most: usize) -> Vec<TokenId> {
        let mut guesses = std::mem::take(&mut self.guesses);
        guesses.truncate(most);
        guesses
    }

    /// What it holds of the cache.
    #[cfg(test)]
    pub(super) fn cache(&self) -> Option<&Sequence> {
        self.cache.as_ref()
    }
}

impl Drafter {
    /// For a model of `vocab` tokens.
    pub(super) fn new(executor: Box<dyn Executor>, vocab: usize) -> Result<Drafter, KvError> {
        let limits = executor.limits();
        let kv = Kv::new(limits, limits.max_tokens)?.with_prefix_cache();
        let (out, scratch) = (StepOutput::default(), Scratch::default());
        Ok(Drafter { executor, kv, vocab, out, scratch, next_seq: 0 })
    }

    /// Has texts read and guessed, `room` tokens at most of all of them. An error is the device's.
    pub(super) fn guess(&mut self, all: &mut [Running], mut room: usize) -> Result<(), String> {
        let limits = self.executor.limits();
        let (mut tokens, mut outputs) = (limits.max_tokens, limits.max_outputs);
        let mut plan = StepPlan::default();
        let mut who = Vec::new();
        for (at, running) in all.iter_mut().enumerate() {
            running.draft.guesses.clear();
            if running.job.request.draft == 0 || tokens == 0 {
                continue;
            }
            let wanted = if outputs > 0 { running.wants_guesses(room) } else { 0 };
            let Some(row) = self.read(running, wanted, tokens) else { continue };
            tokens -= row.tokens.len();
            if row.want != Want::Nothing {
                (room, outputs) = (room - running.draft.wanted, outputs - 1);
            }
            plan.rows.push(row);
            who.push(at);
        }
        while !plan.rows.is_empty() {
            self.run(&plan, &who, all)?;
            // Who has guessed, and is to guess more, reads the guess.
            plan.rows.clear();
            let guessing = std::mem::take(&mut who);
            for at in guessing {
                if let Some(row) = self.read_guess(&mut all[at]) {
                    plan.rows.push(row);
                    who.push(at);
                }
            }
        }
        Ok(())
    }

    /// The row that reads what the cache lacks of a text, at most `most` tokens; it asks for the first guess if that is all of it and
    /// guesses are wanted.
    fn read(&mut self, running: &mut Running, wanted: usize, most: usize) -> Option<PlanRow> {
        self.align(running)?;
        let limits = self.executor.limits();
        let context = self.kv.capacity().min(limits.context);
        let text = running.tokens();
        let start = running.draft.tokens.len();
        let end = text.len().min(start + most).min(context);
        // A text may have tokens that only the other model has.
        if start >= end || text[start..end].iter().any(|&id| id as usize >= limits.vocab) {
            return None;
        }
        let wanted = if end == text.len() { wanted.min(context - end + 1) } else { 0 };
        let read = text[start..end].to_vec();
        let draft = &mut running.draft;
        let cache = draft.cache.as_mut()?;
        // The last guess is not read.
        self.kv.extend(cache, end + wanted.saturating_sub(1)).ok()?;
        self.kv.remember(cache, &draft.tokens, start);
        self.kv.cover(cache, start, read.len()).ok()?;
        draft.tokens.extend_from_slice(&read);
        draft.wanted = wanted;
        running.begin_draft();
        Some(row(running, read, start))
    }

    /// Lets the cache hold tokens of the text only, and not the last one, whose row is asked what comes next.
    fn align(&mut self, running: &mut Running) -> Option<()> {
        let text = running.tokens();
        let held = running.draft.tokens.iter().zip(&text[..text.len() - 1]);
        let same = held.take_while(|(held, token)| held == token).count();
        if let Some(cache) = &mut running.draft.cache {
            if same == running.draft.tokens.len() {
                return Some(());
            }
            if self.kv.rewind(cache, same).is_ok() {
                let len = cache.len();
                running.draft.tokens.truncate(len);
                return Some(());
            }
            // A sliding window has moved past it.
            self.release(&mut running.draft);
        }
        let cache = self.kv.admit_prompt(running.tokens(), running.tokens().len()).ok()?;
        running.draft.tokens = running.tokens()[..cache.len()].to_vec();
        running.draft.cache = Some(cache);
        running.draft.id = SeqId(self.next_seq);
        self.next_seq += 1;
        Some(())
    }

    /// The row that reads the last guess, if there are to be more.
    fn read_guess(&mut self, running: &mut Running) -> Option<PlanRow> {
        let draft = &mut running.draft;
        let &last = draft.guesses.last().filter(|_| draft.guesses.len() < draft.wanted)?;
        let start = draft.tokens.len();
        self.kv.cover(draft.cache.as_mut()?, start, 1).ok()?;
        draft.tokens.push(last);
        Some(row(running, vec![last], start))
    }

    /// Runs a step, and takes what it guesses. A row that fails guesses nothing: it may be behind a guess that is wrong.
    fn run(&mut self, plan: &StepPlan, who: &[usize], all: &mut [Running]) -> Result<(), String> {
        let error = |what: String| format!("the draft model: {what}");
        let step = match self.executor.submit(plan) {
            Ok(step) => step,
            Err(StepError::Device(what)) => return Err(error(what)),
            // Nothing of it was computed.
            Err(StepError::Rows { .. }) => {
                for &at in who {
                    self.release(&mut all[at].draft);
                }
                return Ok(());
            }
        };
        match self.executor.wait(step, &mut self.out) {
            Ok(()) | Err(StepError::Rows { .. }) => {}
            Err(StepError::Device(what)) => return Err(error(what)),
        }
        for (&at, out) in who.iter().zip(&self.out.rows) {
            let running = &mut all[at];
            let guess = match out {
                &RowOutput::Token(id) => Some(id),
                RowOutput::Logits(logits) => running.choose_draft(logits, &mut self.scratch),
                _ => None,
            };
            let draft = &mut running.draft;
            match guess.filter(|&guess| (guess as usize) < self.vocab) {
                Some(guess) => draft.guesses.push(guess),
                None => draft.wanted = 0,
            }
        }
        Ok(())
    }

    /// Gives a text's cache back, for others that begin alike.
    pub(super) fn release(&mut self, draft: &mut Draft) {
        if let Some(mut cache) = draft.cache.take() {
            self.kv.remember(&mut cache, &draft.tokens, draft.tokens.len());
            self.kv.release(cache);
        }
        *draft = Draft::default();
    }

    /// The accounts, for checks.
    #[cfg(test)]
    pub(super) fn kv(&self) -> &Kv {
        &self.kv
    }
}

/// A row of tokens at `position`, the last ones in the draft's cache; it asks for what comes next if a guess is wanted.
fn row(running: &mut Running, tokens: Vec<TokenId>, position: usize) -> PlanRow {
    let want = match running.draft.wanted {
        0 => Want::Nothing,
        _ => running.want_draft(position + tokens.len()),
    };
    let draft = &running.draft;
    let tables = draft.cache.as_ref().map_or(Vec::new(), |cache| cache.tables().to_vec());
    PlanRow { seq: draft.id, tokens: Tokens::Ids(tokens), position, tables, want, mask: None }
}
