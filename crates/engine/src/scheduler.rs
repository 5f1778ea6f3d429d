//! The scheduler loop: which tokens of which requests the executor computes next.
//!
//! One turn is plan → execute → resolve → apply, in [`Scheduler::step`]. Every running request has a row in every step
//! while its next token is known or being sampled: first those that generate, one token each, then prompts in order
//! of arrival, in chunks that fill up the step's token budget. With two steps in flight, the second takes a generated
//! token straight from the first ([`Tokens::FromStep`](crate::executor::Tokens::FromStep)); if the first then turns out to have ended the text, the
//! second's row was computed in vain and is passed over. What a request gets is the same with one.
//!
//! A request is admitted when there is cache for the tokens that it has and a block more, and gets more as it grows. When there
//! is none left, the one with the lowest priority, of equals the newest, is set back: its cache is given up and it waits, before
//! all others of its priority, until it can go on from the tokens that it has, of which the prefix cache still has what nobody
//! needed. The first of the highest priority is never set back for others, so there is always one that gets on.
//!
//! A text in which a banned string comes to be goes back to where it began, and on with another token (`text.rs`); what steps in
//! flight compute of it is passed over.
//!
//! A request may have its next tokens guessed, from what has been said (`lookup.rs`) or by a draft model (`draft.rs`). They are rows of their own behind the row of its last token, each of
//! which samples what comes after it, as that is the same whoever else is in a step; those up to the first wrong one count, and the
//! rest is taken back. Such a request is in one step at a time.

mod draft;
mod lookup;
mod running;
mod text;
mod tier;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::engine::{EngineConfig, StartError};
use crate::event::{Event, FinishReason};
use crate::executor::{
    Executor, Limits, MAX_IN_FLIGHT, PlanRow, RowOutput, SeqId, StepError, StepId, StepOutput, StepPlan,
    TokenId, Tokens, Want,
};
use crate::kv::{Disk, Kv, KvError};
use crate::request::TokenTable;
use crate::sampling::Scratch;

use draft::Drafter;
pub(crate) use running::{Job, Place};
use running::{Running, Waiting};
use text::Chosen;
use tier::Tier;

/// All requests of an executor.
pub(crate) struct Scheduler<E> {
    executor: E,
    kv: Kv,
    /// Who guesses, for requests that ask for it.
    drafter: Option<Drafter>,
    tier: Option<Tier>,
    /// Steps that were submitted, and those of them that have been waited for.
    steps: u64,
    done: u64,
    table: Arc<TokenTable>,
    max_running: usize,
    step_tokens: usize,
    max_in_flight: usize,
    /// By priority, then in the order in which they go on.
    waiting: VecDeque<Waiting>,
    /// In order of admission, hence of id.
    running: Vec<Running>,
    in_flight: VecDeque<Flight>,
    /// The step that was submitted last, as long as it may be taken back.
    last_step: Option<StepId>,
    plan: StepPlan,
    /// Which of its rows are guesses.
    guesses: Vec<Option<TokenId>>,
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
    /// [`Running::turn`] of the sequence when it was submitted.
    turn: usize,
    /// Positions of its first token, and after its last one.
    start: usize,
    end: usize,
    /// Whether it yields anything.
    yields: bool,
    /// Its token, if that is a guess.
    guess: Option<TokenId>,
}

/// What a row came to.
enum Resolved {
    /// Part of the prompt was read.
    Read,
    /// A token was generated.
    Token(Chosen),
    /// Hidden states were computed; maybe the last ones of those that the embedding is made of.
    Pooled(Option<Vec<f32>>),
}

impl<E: Executor> Scheduler<E> {
    pub(crate) fn new(
        executor: E,
        table: Arc<TokenTable>,
        config: &EngineConfig,
    ) -> Result<Self, StartError> {
        let limits = executor.limits();
        let step_tokens = config.step_tokens.min(limits.max_tokens);
        let kv = Kv::new(limits, step_tokens)?;
        // What an encoder computes of a prefix depends on what follows.
        let remembers = config.prefix_cache && !limits.bidirectional;
        let kv = if remembers { kv.with_prefix_cache() } else { kv };
        let tier = open_tier(&executor, config, remembers)?;
        Ok(Scheduler {
            kv: if tier.is_some() { kv.noting_what_leaves() } else { kv },
            tier,
            steps: 0,
            done: 0,
            table,
            // Then a step has room for a row, and a result, of every running request.
            max_running: config.max_running.min(limits.max_outputs).min(step_tokens),
            step_tokens,
            max_in_flight: config.in_flight.min(MAX_IN_FLIGHT),
            waiting: VecDeque::new(),
            running: Vec::new(),
            in_flight: VecDeque::new(),
            last_step: None,
            plan: StepPlan::default(),
            guesses: Vec::new(),
            out: StepOutput::default(),
            scratch: Scratch::default(),
            next_seq: 0,
            drafter: None,
            executor,
        })
    }

    /// The same, with a draft model.
    pub(crate) fn with_draft(self, executor: Box<dyn Executor>) -> Result<Self, KvError> {
        let drafter = Drafter::new(executor, self.limits().vocab)?;
        Ok(Scheduler { drafter: Some(drafter), ..self })
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.executor.limits()
    }

    /// Positions that a sequence can have: the context, or less where the cache is smaller.
    pub(crate) fn capacity(&self) -> usize {
        let capacity = self.kv.capacity().min(self.limits().context);
        if self.limits().bidirectional { capacity.min(self.step_tokens) } else { capacity }
    }

    pub(crate) fn enqueue(&mut self, job: Job) {
        let priority = job.request.priority;
        let at = self.waiting.partition_point(|waiting| waiting.job().request.priority >= priority);
        self.waiting.insert(at, Waiting::New(Box::new(job)));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.in_flight.is_empty()
    }

    /// One turn of the loop. After an error, which is the device's, no further turn will succeed.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.reap();
        // Who waits for the device to be idle is not kept waiting by further steps.
        let goes_on = self.admit()?;
        while goes_on && self.in_flight.len() < self.max_in_flight && self.plan()? {
            self.execute()?;
            self.reap();
        }
        let Some(flight) = self.in_flight.pop_front() else { return Ok(()) };
        self.constrain(&flight);
        let (failed, what) = self.wait(&flight)?;
        for (index, row) in flight.rows.iter().enumerate() {
            // Who has finished or gone back in the meantime is passed over, and so is what follows a wrong guess.
            let Some(at) = self.find_row(row) else { continue };
            if !self.running[at].was_right(row.end, row.guess) {
                continue;
            }
            let applied = match failed.contains(&index) {
                true => Err(FinishReason::Error(what.clone())),
                false => self.settle(at, row, index),
            };
            if let Err(reason) = applied {
                self.finish(at, reason);
            }
        }
        for row in flight.rows.iter().filter(|row| row.guess.is_some()) {
            if let Some(at) = self.find_row(row) {
                self.running[at].take_back(&mut self.kv).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Ends what has been cancelled and whose time is over; its blocks are free for the next step.
    fn reap(&mut self) {
        let now = Instant::now();
        for at in (0..self.running.len()).rev() {
            if let Some(reason) = self.running[at].job.is_over(now) {
                self.finish(at, reason);
            }
        }
        for at in (0..self.waiting.len()).rev() {
            if let Some(reason) = self.waiting[at].job().is_over(now) {
                self.waiting.remove(at).into_iter().for_each(|waiting| waiting.finish(reason.clone()));
            }
        }
        self.give_up_last();
    }

    /// Takes the last step back if all that it computes is for nobody: on the CPU it may take seconds. What it would have written
    /// nobody has been told of.
    fn give_up_last(&mut self) {
        let Some(flight) = self.in_flight.back().filter(|flight| Some(flight.step) == self.last_step) else {
            return;
        };
        if flight.rows.iter().all(|row| self.find_row(row).is_none()) && self.executor.give_up(flight.step) {
            self.in_flight.pop_back();
            self.last_step = None;
            self.steps -= 1;
        }
    }

    /// Starts waiting requests in order, as long as blocks can be promised for the tokens that they have and one more. False
    /// if one of them needs the device to be idle, for what it gets from the second tier of the cache.
    fn admit(&mut self) -> Result<bool, String> {
        let capacity = self.capacity();
        while self.running.len() < self.max_running
            && let Some(waiting) = self.waiting.front()
        {
            // The last token is never written, so it may lie one past the end of the cache.
            let max_len = waiting.job().max_len().min(capacity + 1);
            let positions = (waiting.tokens().len() + self.limits().block_tokens).min(max_len - 1);
            let prompt = waiting.dispensable();
            if !self.kv.can_admit(positions.max(prompt.len())) {
                return Ok(true);
            }
            if let Some(tier) = &self.tier
                && let Some(wanted) = tier.wants(&self.kv, prompt)
            {
                // A step in flight may write to a block that is free by now.
                if !self.in_flight.is_empty() {
                    return Ok(false);
                }
                tier.restore(&mut self.kv, &mut self.executor, prompt, &wanted)?;
            }
            let Ok(cache) = self.kv.admit_prompt(prompt, positions) else { return Ok(true) };
            let id = SeqId(self.next_seq);
            self.next_seq += 1;
            match self.waiting.pop_front() {
                Some(Waiting::New(job)) => self.running.push(Running::new(id, *job, cache, max_len)),
                Some(Waiting::SetBack(running)) => self.running.push(running.resume(id, cache)),
                None => self.kv.release(cache),
            }
        }
        Ok(true)
    }

    /// Sees to it that everybody who generates has cache for the next token: a block at a time, and if there is none by setting
    /// others back, or themselves.
    fn make_room(&mut self) {
        let mut order: Vec<_> = self.running.iter().map(Running::order).collect();
        order.sort_unstable();
        for (_, id) in order {
            // It may have been set back meanwhile.
            while let Some(at) = self.find(id)
                && let Some(positions) = self.running[at].wants_room()
            {
                let block = self.limits().block_tokens;
                let running = &mut self.running[at];
                let more = (positions + block - 1).min(running.most_positions());
                if self.kv.extend(&mut running.cache, more).is_err() {
                    self.set_back_last();
                }
            }
        }
    }

    /// Sets back who is last in order.
    fn set_back_last(&mut self) {
        let last = (0..self.running.len()).max_by_key(|&at| self.running[at].order());
        last.into_iter().for_each(|at| self.set_back(at));
    }

    fn set_back(&mut self, at: usize) {
        let mut running = self.running.remove(at);
        self.release_draft(&mut running);
        let set_back = running.set_back(&mut self.kv);
        let priority = set_back.job().request.priority;
        let first = self.waiting.partition_point(|waiting| waiting.job().request.priority > priority);
        self.waiting.insert(first, set_back);
    }

    /// **Plan**: fills in the next step; false if there is nothing to compute.
    fn plan(&mut self) -> Result<bool, String> {
        self.make_room();
        self.kv.set_steps(self.steps);
        self.guesses.clear();
        let mut budget = self.step_tokens;
        // Everybody's own row comes first; guesses have what is left.
        let most = self.executor.limits().max_outputs.min(self.step_tokens);
        let mut spare = most.saturating_sub(self.running.len());
        if let Some(drafter) = &mut self.drafter {
            drafter.guess(&mut self.running, spare)?;
        }
        let whole = self.limits().bidirectional;
        for prompts in [false, true] {
            for running in self.running.iter_mut().filter(|running| running.reads_prompt() == prompts) {
                // A text that must come whole waits for a step that has room for it: the first one's has.
                let room = if whole && running.left() > budget { 0 } else { budget };
                let Some(tokens) = running.next_tokens(room) else { continue };
                let (position, len) = (running.submitted, tokens.len());
                // Before a window moves on. From here on others may read what the last step writes.
                running.remember(&mut self.kv);
                self.last_step = None;
                let guesses = running.guess(&tokens, spare.min(budget - len));
                // Promised at admission, so an error is ours.
                let cover = self.kv.cover(&mut running.cache, position, len + guesses.len());
                cover.map_err(|error| error.to_string())?;
                budget -= len + guesses.len();
                spare -= guesses.len();
                let rows = std::iter::once((tokens, None));
                let guessed = guesses.iter().map(|&guess| (Tokens::Ids(vec![guess]), Some(guess)));
                let mut position = position;
                for (tokens, guess) in rows.chain(guessed) {
                    let at = self.guesses.len();
                    if at == self.plan.rows.len() {
                        self.plan.rows.push(PlanRow::default());
                    }
                    let row = &mut self.plan.rows[at];
                    let end = position + tokens.len();
                    (row.seq, row.tokens, row.position) = (running.id, tokens, position);
                    row.want = running.want(position, end);
                    running.cache.tables().clone_into(&mut row.tables);
                    self.guesses.push(guess);
                    position = end;
                }
            }
        }
        self.plan.rows.truncate(self.guesses.len());
        // Before the step writes over it.
        if let Some(tier) = &self.tier {
            tier.save(&mut self.kv, &mut self.executor, self.done)?;
        }
        Ok(!self.guesses.is_empty())
    }

    /// **Execute**: enqueues the planned step.
    fn execute(&mut self) -> Result<(), String> {
        let step = match self.executor.submit(&self.plan) {
            Ok(step) => step,
            Err(StepError::Device(what)) => return Err(what),
            // Without these it is planned again.
            Err(StepError::Rows { rows, what }) => {
                let seqs: Vec<SeqId> =
                    rows.iter().filter_map(|&row| Some(self.plan.rows.get(row)?.seq)).collect();
                return if self.fail(&seqs, &what) > 0 { Ok(()) } else { Err(what) };
            }
        };
        let mut rows = Vec::with_capacity(self.plan.rows.len());
        for (index, row) in self.plan.rows.iter().enumerate() {
            let (seq, start, end) = (row.seq, row.position, row.position + row.tokens.len());
            let (guess, yields) = (self.guesses[index], row.want != Want::Nothing);
            // All of a plan run.
            let Some(at) = self.find(seq) else {
                return Err(format!("{seq:?} was planned and does not run"));
            };
            let sampled_by = matches!(row.want, Want::Token(_)).then_some((step, index));
            self.running[at].submit(end, sampled_by, guess.is_some());
            rows.push(FlightRow { seq, turn: self.running[at].turn, start, end, yields, guess });
        }
        self.in_flight.push_back(Flight { step, rows });
        self.last_step = Some(step);
        self.steps += 1;
        Ok(())
    }

    /// Computes the masks of a step in flight while the device computes its logits. Nothing of it is lost if the step is.
    fn constrain(&mut self, flight: &Flight) {
        for row in flight.rows.iter().filter(|row| row.yields) {
            let Some(at) = self.find_row(row) else { continue };
            if let Err(what) = self.running[at].constrain() {
                self.finish(at, FinishReason::Error(what));
            }
        }
    }

    /// Takes the results of a step. Gives the rows that failed, and why.
    fn wait(&mut self, flight: &Flight) -> Result<(Vec<usize>, String), String> {
        self.done += 1;
        let failed = match self.executor.wait(flight.step, &mut self.out) {
            Ok(()) => (Vec::new(), String::new()),
            Err(StepError::Device(what)) => return Err(what),
            Err(StepError::Rows { rows, what }) => (rows, what),
        };
        match (self.out.rows.len(), flight.rows.len()) {
            (found, expected) if found != expected => Err(format!("{found} results for {expected} rows")),
            _ => Ok(failed),
        }
    }

    /// Resolves and applies a row; `Err` is the end of the request. A token with which a banned string is complete makes place for
    /// another one: from the same logits if it is that token's place and they are here, else from logits computed again.
    fn settle(&mut self, at: usize, row: &FlightRow, index: usize) -> Result<(), FinishReason> {
        loop {
            let resolved = self.resolve(at, row, index)?;
            if !self.apply(at, row, resolved)? {
                return Ok(());
            }
            let here = self.running[at].tokens().len() == row.end;
            if !here || !matches!(self.out.rows[index], RowOutput::Logits(_)) {
                if self.running[at].go_back(&mut self.kv).is_err() {
                    self.set_back(at);
                }
                return Ok(());
            }
        }
    }

    /// **Resolve**: what a row came to, or why its request ends.
    fn resolve(&mut self, at: usize, row: &FlightRow, index: usize) -> Result<Resolved, FinishReason> {
        let running = &mut self.running[at];
        match &self.out.rows[index] {
            RowOutput::Nothing if !row.yields => Ok(Resolved::Read),
            &RowOutput::Token(id) if row.yields => Ok(Resolved::Token(running.sampled(id))),
            RowOutput::Logits(logits) if row.yields => {
                Ok(Resolved::Token(running.choose(logits, &mut self.scratch)?))
            }
            RowOutput::Embedding(values) if row.yields => {
                Ok(Resolved::Pooled(running.pool(row.start, row.end, values)))
            }
            _ => Err(FinishReason::Error("the executor returned another kind of result than wanted".into())),
        }
    }

    /// **Apply**: events out; `Err` is the end of the request. True if its text went back.
    fn apply(&mut self, at: usize, row: &FlightRow, resolved: Resolved) -> Result<bool, FinishReason> {
        let running = &mut self.running[at];
        running.read(row.end);
        match resolved {
            Resolved::Read | Resolved::Pooled(None) => Ok(false),
            Resolved::Pooled(Some(values)) => {
                running.job.sink.send(Event::Embedding { values })?;
                Err(FinishReason::Embedded)
            }
            Resolved::Token(chosen) => {
                let bytes = self.table.bytes(chosen.id);
                running.push(chosen, bytes)
            }
        }
    }

    /// Who a row in flight is for, if there still is such.
    fn find_row(&self, row: &FlightRow) -> Option<usize> {
        self.find(row.seq).filter(|&at| self.running[at].turn == row.turn)
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
        self.release_draft(&mut running);
        if !matches!(reason, FinishReason::Error(_)) {
            running.remember_computed(&mut self.kv);
        }
        self.kv.release(running.finish(reason));
    }

    fn release_draft(&mut self, running: &mut Running) {
        if let Some(drafter) = &mut self.drafter {
            drafter.release(&mut running.draft);
        }
    }

    /// Keeps what the prefix cache has, if it has a second tier. Every request has ended.
    pub(crate) fn keep_all(&mut self) {
        let Some(tier) = &self.tier else { return };
        if let Err(what) = tier.save_all(&mut self.kv, &mut self.executor, self.done) {
            tracing::warn!("the prefix cache is not kept: {what}");
        }
    }

    /// Ends every request.
    pub(crate) fn finish_all(&mut self, reason: FinishReason) {
        while !self.running.is_empty() {
            self.finish(0, reason.clone());
        }
        self.waiting.drain(..).for_each(|waiting| waiting.finish(reason.clone()));
    }
}

/// The second tier of the cache that the configuration asks for.
fn open_tier<E: Executor>(
    executor: &E,
    config: &EngineConfig,
    remembers: bool,
) -> Result<Option<Tier>, StartError> {
    let Some(disk) = &config.disk else { return Ok(None) };
    if !remembers {
        return Err(StartError::NothingToKeep("there is no prefix cache"));
    }
    let sizes = executor.block_bytes();
    let sizes = sizes.ok_or(StartError::NothingToKeep("the device does not give its cache away"))?;
    let open = Disk::open(disk.clone(), sizes);
    let disk = open.map_err(|error| StartError::Disk { dir: disk.dir.clone(), error })?;
    let limits = executor.limits();
    let windowed = limits.groups.iter().map(|group| group.window.is_some()).collect();
    Ok(Some(Tier::new(disk, limits.block_tokens, windowed)))
}

#[cfg(test)]
mod tests;
