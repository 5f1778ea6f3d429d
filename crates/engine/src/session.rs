//! One sequence on an executor, without a scheduler.

use crate::executor::{Limits, PlanRow, SeqId, StepPlan, Tokens, Want};
use crate::kv::{Kv, KvError, Sequence};

/// Drives an [`Executor`](crate::executor::Executor) for one sequence: benchmarks, scoring, tests. It hands out all
/// blocks of the executor, so an executor has one session at a time, and no engine beside it.
///
/// Scoring a text, as perplexity does, is one row per token, each wanting its logits; a step has at most
/// [`Limits::max_outputs`] of them:
///
/// ```
/// use minfer_engine::{executor::*, fake::FakeExecutor, session::Session};
///
/// let mut executor = FakeExecutor::new(FakeExecutor::small_limits());
/// let mut session = Session::new(executor.limits())?;
/// let mut out = StepOutput::default();
/// for chunk in [3, 1, 4, 1, 5, 9, 2, 6].chunks(4) {
///     let plan = session.plan(chunk.iter().map(|&token| (vec![token], Want::Logits)))?;
///     let step = executor.submit(&plan)?;
///     executor.wait(step, &mut out)?;
///     assert_eq!(out.rows.len(), 4);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    kv: Kv,
    sequence: Sequence,
    id: SeqId,
    capacity: usize,
}

impl Session {
    /// An empty sequence, which may grow to [`Session::capacity`] tokens.
    pub fn new(limits: &Limits) -> Result<Self, KvError> {
        let mut kv = Kv::new(limits, limits.max_tokens)?;
        let capacity = kv.capacity().min(limits.context);
        let sequence = kv.admit(capacity)?;
        Ok(Session { kv, sequence, id: SeqId(0), capacity })
    }

    /// Tokens so far.
    #[expect(clippy::len_without_is_empty, reason = "a count of tokens, not a collection")]
    pub fn len(&self) -> usize {
        self.sequence.len()
    }

    /// Tokens that fit: the context, or less if the executor has fewer blocks.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The row of a step that appends `tokens`. One row per step: several rows of a step come from
    /// [`Session::plan`].
    pub fn row(&mut self, tokens: impl Into<Tokens>, want: Want) -> Result<PlanRow, KvError> {
        let tokens = tokens.into();
        let position = self.len();
        self.kv.cover(&mut self.sequence, position, tokens.len())?;
        Ok(self.row_at(position, tokens, want))
    }

    /// A step that appends the tokens of several rows. If the step fails, [`Session::truncate`] takes them back.
    pub fn plan<T: Into<Tokens>>(
        &mut self,
        rows: impl IntoIterator<Item = (T, Want)>,
    ) -> Result<StepPlan, KvError> {
        let rows: Vec<(Tokens, Want)> =
            rows.into_iter().map(|(tokens, want)| (tokens.into(), want)).collect();
        let mut position = self.len();
        // All at once: what the first row sees must not become the block that the last row writes.
        self.kv.cover(&mut self.sequence, position, rows.iter().map(|(tokens, _)| tokens.len()).sum())?;
        let mut plan = StepPlan::default();
        for (tokens, want) in rows {
            let len = tokens.len();
            plan.rows.push(self.row_at(position, tokens, want));
            position += len;
        }
        Ok(plan)
    }

    fn row_at(&self, position: usize, tokens: Tokens, want: Want) -> PlanRow {
        let tables = self.sequence.tables().to_vec();
        PlanRow { seq: self.id, tokens, position, tables, want, mask: None }
    }

    /// Forgets the tokens from `len` on; fails where a sliding window has moved past them.
    pub fn truncate(&mut self, len: usize) -> Result<(), KvError> {
        self.kv.truncate(&mut self.sequence, len)
    }

    /// Begins anew, as another sequence.
    pub fn reset(&mut self) -> Result<(), KvError> {
        let fresh = Sequence::default();
        self.kv.release(std::mem::replace(&mut self.sequence, fresh));
        self.sequence = self.kv.admit(self.capacity)?;
        self.id.0 += 1;
        Ok(())
    }
}
