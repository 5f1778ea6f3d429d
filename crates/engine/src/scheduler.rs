//! The scheduler loop: which tokens of which requests the executor computes next.
//!
//! One turn is plan → execute → resolve → apply, in [`Scheduler::step`]. Every running request has a row in every step
//! while its next token is known or being sampled: first those that generate, one token each, then prompts in order
//! of arrival, in chunks that fill up the step's token budget. With two steps in flight, the second takes a generated
//! token straight from the first ([`Tokens::FromStep`](crate::executor::Tokens::FromStep)); if the first then turns out to have ended the text, the
//! second's row was computed in vain and is passed over. What a request gets is the same with one.

mod running;

use std::collections::VecDeque;

use crate::engine::EngineConfig;
use crate::event::{Event, FinishReason};
use crate::executor::{
    Executor, Limits, MAX_IN_FLIGHT, PlanRow, RowOutput, SeqId, StepError, StepId, StepOutput, StepPlan,
    TokenId, Want,
};
use crate::kv::{Kv, KvError};
use crate::request::TokenTable;
use crate::sampling::{Logprobs, Scratch};
use crate::scheduler::running::Running;

pub(crate) use running::{Job, Place};

/// All requests of an executor.
pub(crate) struct Scheduler<E> {
    executor: E,
    kv: Kv,
    table: TokenTable,
    max_running: usize,
    step_tokens: usize,
    max_in_flight: usize,
    /// In order of arrival.
    waiting: VecDeque<Job>,
    /// In order of admission, hence of id.
    running: Vec<Running>,
    in_flight: VecDeque<Flight>,
    plan: StepPlan,
    out: StepOutput,
    scratch: Scratch,
    next_seq: u64,
}

/// A step in flight.
struct Flight {
    step: StepId,
    rows: Vec<FlightRow>,
}

/// A row in flight.
struct FlightRow {
    seq: SeqId,
    /// Position after its last token.
    end: usize,
    /// Whether it yields a token.
    yields: bool,
}

/// What a row came to.
enum Resolved {
    /// Part of the prompt was read.
    Read,
    /// A token was generated.
    Token(TokenId, Option<Logprobs>),
}

impl<E: Executor> Scheduler<E> {
    pub(crate) fn new(executor: E, table: TokenTable, config: &EngineConfig) -> Result<Self, KvError> {
        let limits = executor.limits();
        let step_tokens = config.step_tokens.min(limits.max_tokens);
        let kv = Kv::new(limits, step_tokens)?;
        Ok(Scheduler {
            kv: if config.prefix_cache { kv.with_prefix_cache() } else { kv },
            table,
            // Then a step has room for a row, and a result, of every running request.
            max_running: config.max_running.min(limits.max_outputs).min(step_tokens),
            step_tokens,
            max_in_flight: config.in_flight.min(MAX_IN_FLIGHT),
            waiting: VecDeque::new(),
            running: Vec::new(),
            in_flight: VecDeque::new(),
            plan: StepPlan::default(),
            out: StepOutput::default(),
            scratch: Scratch::default(),
            next_seq: 0,
            executor,
        })
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.executor.limits()
    }

    /// Positions that a sequence can have: the context, or less where the cache is smaller.
    pub(crate) fn capacity(&self) -> usize {
        self.kv.capacity().min(self.limits().context)
    }

    pub(crate) fn enqueue(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.in_flight.is_empty()
    }

    /// One turn of the loop. After an error, which is the device's, no further turn will succeed.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.reap();
        self.admit();
        while self.in_flight.len() < self.max_in_flight && self.plan()? {
            self.execute()?;
            // Where a step is computed as it is handed over, it may have taken seconds.
            self.reap();
        }
        let Some(flight) = self.in_flight.pop_front() else { return Ok(()) };
        self.wait(&flight)?;
        for (index, row) in flight.rows.iter().enumerate() {
            // Who has finished in the meantime is passed over.
            let Some(at) = self.find(row.seq) else { continue };
            let applied = self.resolve(at, row, index).and_then(|resolved| self.apply(at, row, resolved));
            if let Err(reason) = applied {
                self.finish(at, reason);
            }
        }
        Ok(())
    }

    /// Ends what has been cancelled; its blocks are free for the next step.
    fn reap(&mut self) {
        while let Some(at) = self.running.iter().position(|running| running.job.canceller.is_cancelled()) {
            self.finish(at, FinishReason::Cancelled);
        }
        while let Some(at) = self.waiting.iter().position(|job| job.canceller.is_cancelled()) {
            self.waiting.remove(at).into_iter().for_each(|job| job.finish(FinishReason::Cancelled));
        }
    }

    /// Starts waiting requests in order, as long as all the blocks that they may come to need can be promised.
    fn admit(&mut self) {
        while self.running.len() < self.max_running
            && let Some(job) = self.waiting.front()
        {
            // The last token is never written, so it may lie one past the end of the cache.
            let max_len = job.max_len().min(self.capacity() + 1);
            let Ok(cache) = self.kv.admit_prompt(&job.request.prompt, max_len - 1) else { return };
            let Some(job) = self.waiting.pop_front() else { return };
            self.running.push(Running::new(SeqId(self.next_seq), job, cache, max_len));
            self.next_seq += 1;
        }
    }

    /// **Plan**: fills in the next step; false if there is nothing to compute.
    fn plan(&mut self) -> Result<bool, String> {
        let (mut rows, mut budget) = (0, self.step_tokens);
        for prompts in [false, true] {
            for running in self.running.iter_mut().filter(|running| running.reads_prompt() == prompts) {
                let Some(tokens) = running.next_tokens(budget) else { continue };
                let (position, len) = (running.submitted, tokens.len());
                // Before a window moves on.
                running.remember(&mut self.kv);
                // Promised at admission, so an error is ours.
                self.kv.cover(&mut running.cache, position, len).map_err(|error| error.to_string())?;
                budget -= len;
                if rows == self.plan.rows.len() {
                    self.plan.rows.push(PlanRow::default());
                }
                let row = &mut self.plan.rows[rows];
                (row.seq, row.tokens, row.position) = (running.id, tokens, position);
                row.want = running.want(position + len);
                running.cache.tables().clone_into(&mut row.tables);
                rows += 1;
            }
        }
        self.plan.rows.truncate(rows);
        Ok(rows > 0)
    }

    /// **Execute**: enqueues the planned step.
    fn execute(&mut self) -> Result<(), String> {
        let step = match self.executor.submit(&self.plan) {
            Ok(step) => step,
            Err(StepError::Device(what)) => return Err(what),
            // Without these it is planned again.
            Err(StepError::Rows { seqs, what }) if self.fail(&seqs, &what) > 0 => return Ok(()),
            Err(StepError::Rows { what, .. }) => return Err(what),
        };
        let mut rows = Vec::with_capacity(self.plan.rows.len());
        for (index, row) in self.plan.rows.iter().enumerate() {
            let (seq, end) = (row.seq, row.position + row.tokens.len());
            if let Some(at) = self.find(seq) {
                self.running[at].submitted = end;
                self.running[at].source = matches!(row.want, Want::Token(_)).then_some((step, index));
            }
            rows.push(FlightRow { seq, end, yields: row.want != Want::Nothing });
        }
        self.in_flight.push_back(Flight { step, rows });
        Ok(())
    }

    fn wait(&mut self, flight: &Flight) -> Result<(), String> {
        match self.executor.wait(flight.step, &mut self.out) {
            Ok(()) => {}
            Err(StepError::Device(what)) => return Err(what),
            Err(StepError::Rows { seqs, what }) => {
                self.fail(&seqs, &what);
            }
        }
        match (self.out.rows.len(), flight.rows.len()) {
            (found, expected) if found != expected => Err(format!("{found} results for {expected} rows")),
            _ => Ok(()),
        }
    }

    /// **Resolve**: what a row came to, or why its request ends.
    fn resolve(&mut self, at: usize, row: &FlightRow, index: usize) -> Result<Resolved, FinishReason> {
        match &self.out.rows[index] {
            RowOutput::Nothing if !row.yields => Ok(Resolved::Read),
            &RowOutput::Token(id) if row.yields => Ok(Resolved::Token(id, None)),
            RowOutput::Logits(logits) if row.yields => {
                let chosen = self.running[at].choose(logits, &mut self.scratch);
                let (id, logprobs) = chosen.map_err(|error| FinishReason::Error(error.to_string()))?;
                Ok(Resolved::Token(id, logprobs))
            }
            _ => Err(FinishReason::Error("the executor returned another kind of result than wanted".into())),
        }
    }

    /// **Apply**: events out; `Err` is the end of the request.
    fn apply(&mut self, at: usize, row: &FlightRow, resolved: Resolved) -> Result<(), FinishReason> {
        let running = &mut self.running[at];
        running.read(row.end);
        let Resolved::Token(id, logprobs) = resolved else { return Ok(()) };
        let (bytes, reason) = running.push(id, self.table.bytes(id));
        running.job.sink.send(Event::Token { id, bytes, logprobs })?;
        reason.map_or(Ok(()), Err)
    }

    fn find(&self, seq: SeqId) -> Option<usize> {
        self.running.binary_search_by_key(&seq, |running| running.id).ok()
    }

    /// Ends the requests among these sequences that still run; says how many.
    fn fail(&mut self, seqs: &[SeqId], what: &str) -> usize {
        let mut failed = 0;
        for &seq in seqs {
            if let Some(at) = self.find(seq) {
                self.finish(at, FinishReason::Error(what.to_owned()));
                failed += 1;
            }
        }
        failed
    }

    fn finish(&mut self, at: usize, reason: FinishReason) {
        let mut running = self.running.remove(at);
        if !matches!(reason, FinishReason::Error(_)) {
            running.remember(&mut self.kv);
        }
        self.kv.release(running.finish(reason));
    }

    /// Ends every request.
    pub(crate) fn finish_all(&mut self, reason: FinishReason) {
        while !self.running.is_empty() {
            self.finish(0, reason.clone());
        }
        self.waiting.drain(..).for_each(|job| job.finish(reason.clone()));
    }
}

#[cfg(test)]
mod tests;
