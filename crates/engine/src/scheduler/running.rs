//! One request and how far it has come.

use std::cmp::Reverse;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::lookup;
use crate::constraint::Constrained;
use crate::embedding::Pool;
use crate::event::{Canceller, Event, FinishReason, Sink, Stopped, Timings, Usage};
use crate::executor::{SeqId, StepId, TokenId, Tokens, Want};
use crate::kv::{Kv, KvError, Sequence};
use crate::request::Request;
use crate::sampling::{Logprobs, Scratch, logprobs};
use crate::stop::StopMatcher;

/// A request that waits for cache.
pub(super) enum Waiting {
    /// It has had none.
    New(Box<Job>),
    /// It had to give its cache to others; what it has is the same when it goes on.
    SetBack(Box<Running>),
}

impl Waiting {
    pub(super) fn job(&self) -> &Job {
        match self {
            Waiting::New(job) => job,
            Waiting::SetBack(running) => &running.job,
        }
    }

    /// The tokens so far.
    pub(super) fn tokens(&self) -> &[TokenId] {
        match self {
            Waiting::New(job) => &job.request.prompt,
            Waiting::SetBack(running) => &running.tokens,
        }
    }

    /// Those of them, the first ones, that need not be computed if the cache has them.
    pub(super) fn dispensable(&self) -> &[TokenId] {
        let tokens = self.tokens();
        let count = |pool: &Pool| pool.dispensable(tokens.len());
        &tokens[..self.job().pool.as_ref().map_or(tokens.len(), count)]
    }

    /// Ends it.
    pub(super) fn finish(self, reason: FinishReason) {
        match self {
            Waiting::New(job) => job.finish(reason),
            // It has no cache.
            Waiting::SetBack(running) => _ = running.finish(reason),
        }
    }
}

/// A valid request on its way to the executor.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Its constraint, as far as the text has come.
    pub(crate) constraint: Option<Constrained>,
    /// What its hidden states have come to, if it is to be embedded: then nothing is generated.
    pub(crate) pool: Option<Pool>,
    pub(crate) sink: Sink,
    pub(crate) canceller: Canceller,
    pub(crate) submitted: Instant,
    /// Dropped when it leaves the queue.
    pub(crate) place: Option<Place>,
}

/// A place in the queue: the count is of the places taken.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// Takes one of `max` places.
    pub(crate) fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Place> {
        let place = Place(taken.clone());
        (taken.fetch_add(1, Ordering::Relaxed) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Job {
    /// Tokens, prompt included, at which the request ends.
    pub(super) fn max_len(&self) -> usize {
        let max = self.request.max_tokens.unwrap_or(usize::MAX);
        self.request.prompt.len().saturating_add(max)
    }

    /// Why it ends now, if it does: it was cancelled, or its time is over.
    pub(super) fn is_over(&self, now: Instant) -> Option<FinishReason> {
        let late = |deadline| now.duration_since(self.submitted) >= deadline;
        if self.canceller.is_cancelled() {
            Some(FinishReason::Cancelled)
        } else {
            self.request.deadline.is_some_and(late).then_some(FinishReason::Deadline)
        }
    }

    /// Ends a request that still waits.
    fn finish(mut self, reason: FinishReason) {
        // Who hears of the end may count on the place.
        self.place = None;
        let usage = Usage { prompt_tokens: self.request.prompt.len(), ..Usage::default() };
        let timings = Timings { queue: self.submitted.elapsed(), ..Timings::default() };
        self.sink.finish(reason, usage, timings);
    }
}

/// A request that has its share of the cache.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: SeqId,
    pub(super) job: Job,
    pub(super) cache: Sequence,
    /// Positions that the executor has been given. At most one more than there are `tokens`: see `source`.
    pub(super) submitted: usize,
    /// The row in flight that samples the token after `submitted`, for a row that takes it from there.
    pub(super) source: Option<(StepId, usize)>,
    /// Positions that were in the cache when it was first admitted.
    cached_tokens: usize,
    /// Positions that have been computed for sure.
    computed: usize,
    /// Tokens of the prompt that its reader knows to be read.
    read: usize,
    /// Positions at the end of those submitted whose tokens are guesses.
    guesses: usize,
    guessed_tokens: usize,
    accepted_tokens: usize,
    /// The prompt and what has been generated.
    tokens: Vec<TokenId>,
    /// Tokens at which it ends.
    max_len: usize,
    stop: StopMatcher,
    /// Of mirostat, after the tokens so far; it stays when the cache is given up.
    mu: Option<f64>,
    seed: u64,
    admitted: Instant,
    first_token: Option<Instant>,
}

impl Running {
    pub(super) fn new(id: SeqId, mut job: Job, cache: Sequence, max_len: usize) -> Self {
        job.place = None;
        let seed = job.request.sampling.seed.unwrap_or_else(|| RandomState::new().hash_one(id));
        let tokens = job.request.prompt.clone();
        // If there is no reader, its canceller says so.
        let cached_tokens = cache.len();
        let _ = job.sink.send(Event::Started { prompt_tokens: tokens.len(), cached_tokens, seed });
        Running {
            id,
            submitted: cached_tokens,
            cached_tokens,
            computed: cached_tokens,
            read: cached_tokens,
            guesses: 0,
            guessed_tokens: 0,
            accepted_tokens: 0,
            cache,
            source: None,
            tokens,
            max_len,
            stop: StopMatcher::new(&job.request.stop.strings),
            mu: job.request.sampling.mirostat.first(),
            seed,
            admitted: Instant::now(),
            first_token: None,
            job,
        }
    }

    /// Gives its cache up. What steps in flight yield for it is lost, and computed again.
    pub(super) fn set_back(mut self, kv: &mut Kv) -> Waiting {
        self.remember_computed(kv);
        kv.release(std::mem::take(&mut self.cache));
        (self.source, self.guesses) = (None, 0);
        Waiting::SetBack(Box::new(self))
    }

    /// Goes on, as another sequence.
    pub(super) fn resume(self, id: SeqId, cache: Sequence) -> Running {
        Running { id, submitted: cache.len(), computed: cache.len(), cache, ..self }
    }

    /// Whether more is known than the one token after what was submitted: a prompt, or what has to be computed again.
    pub(super) fn reads_prompt(&self) -> bool {
        self.submitted < self.job.request.prompt.len() || self.submitted + 1 < self.tokens.len()
    }

    /// The positions that its cache must grow to for its next row, if that is a generated token.
    pub(super) fn wants_room(&self) -> Option<usize> {
        let end = self.submitted + 1;
        let lacks = end > self.cache.promised() && self.next_tokens(1).is_some();
        lacks.then_some(end)
    }

    /// The most positions that its cache needs: the last token is never written.
    pub(super) fn most_positions(&self) -> usize {
        self.max_len - 1
    }

    /// First those with the higher priority, of equals those that came first.
    pub(super) fn order(&self) -> (Reverse<i32>, SeqId) {
        (Reverse(self.job.request.priority), self.id)
    }

    /// Has the cache remember what steps have been given to compute, as far as its tokens are known. Whoever reads it does
    /// so in a later step.
    pub(super) fn remember(&mut self, kv: &mut Kv) {
        kv.remember(&mut self.cache, &self.tokens, self.submitted - self.guesses);
    }

    /// The same of what has been computed for sure, at an end: the last step may be taken back.
    pub(super) fn remember_computed(&mut self, kv: &mut Kv) {
        kv.remember(&mut self.cache, &self.tokens, self.computed);
    }

    /// Guesses for the positions after its next row of `row` tokens, at most `room`.
    pub(super) fn guess(&self, row: &Tokens, room: usize) -> Vec<TokenId> {
        let end = self.submitted + row.len();
        let want = self.want(self.submitted, end);
        if self.job.request.lookup == 0 || end != self.tokens.len() || !matches!(want, Want::Token(_)) {
            return Vec::new();
        }
        // The last token is never written, and the cache holds what it has been promised.
        let positions = self.most_positions().min(self.cache.promised()).saturating_sub(end);
        lookup::guess(&self.tokens, self.job.request.lookup.min(room).min(positions)).to_vec()
    }

    /// The token after position `end` is sampled by row `row` of `step`, which nobody has to wait for; `guess` says that it
    /// follows a guess.
    pub(super) fn submit(&mut self, end: usize, sampled_by: Option<(StepId, usize)>, guess: bool) {
        self.submitted = end;
        self.source = if guess || self.job.request.lookup > 0 { None } else { sampled_by };
        if guess {
            self.guesses += 1;
            self.guessed_tokens += 1;
        }
    }

    /// Whether a row that ends before `end` has computed what it should: that of a guess has if the guess was right.
    pub(super) fn was_right(&mut self, end: usize, guess: Option<TokenId>) -> bool {
        let Some(guess) = guess else { return true };
        let right = end == self.tokens.len() && self.tokens[end - 1] == guess;
        if right {
            self.guesses -= 1;
            self.accepted_tokens += 1;
        }
        right
    }

    /// Takes back the guesses that were wrong.
    pub(super) fn take_back(&mut self, kv: &mut Kv) -> Result<(), KvError> {
        self.submitted -= std::mem::take(&mut self.guesses);
        kv.truncate(&mut self.cache, self.submitted)
    }

    /// Known tokens that have not been submitted.
    pub(super) fn left(&self) -> usize {
        self.tokens.len().saturating_sub(self.submitted)
    }

    /// The tokens of its next row, at most `budget`; `None` if there is nothing it can do yet.
    pub(super) fn next_tokens(&self, budget: usize) -> Option<Tokens> {
        let known = self.tokens.get(self.submitted..).unwrap_or_default();
        match self.source {
            _ if budget == 0 => None,
            _ if !known.is_empty() => Some(Tokens::Ids(known[..known.len().min(budget)].to_vec())),
            // Worth it only if the token after that one is wanted too.
            Some((step, row)) if self.submitted + 1 < self.max_len => Some(Tokens::FromStep { step, row }),
            _ => None,
        }
    }

    /// What a row of the positions `start..end` should yield.
    pub(super) fn want(&self, start: usize, end: usize) -> Want {
        let request = &self.job.request;
        if let Some(pool) = &self.job.pool {
            pool.want(start, end, self.tokens.len())
        } else if end < self.tokens.len() {
            Want::Nothing
        } else if request.logprobs.is_some() || request.constraint.is_some() || !request.sampling.device_can()
        {
            Want::Logits
        } else {
            Want::Token(request.sampling.spec(self.seed, end))
        }
    }

    /// Computes which tokens may come next.
    pub(super) fn constrain(&mut self) -> Result<(), String> {
        let Job { request, constraint, .. } = &mut self.job;
        let constraint = constraint.as_mut();
        constraint.map_or(Ok(()), |constraint| constraint.prepare(&request.stop.tokens))
    }

    /// Samples the next token from its logits, or says why there is none.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(TokenId, Option<Logprobs>), FinishReason> {
        let mask = match &self.job.constraint {
            Some(constraint) => Some(constraint.mask().ok_or(FinishReason::Stop(Stopped::Constraint))?),
            None => None,
        };
        let Request { sampling, logprobs: top, .. } = &self.job.request;
        let id = sampling.choose(logits, (self.seed, &self.tokens), &mut self.mu, mask, scratch);
        let id = id.map_err(|error| FinishReason::Error(error.to_string()))?;
        Ok((id, top.map(|top| logprobs(logits, id, top.into()))))
    }

    /// The positions up to `end` have been computed.
    pub(super) fn read(&mut self, end: usize) {
        self.computed = end;
        if end > self.read && end <= self.job.request.prompt.len() {
            self.read = end;
            // Only progress: a reader that is behind can do without.
            let _ = self.job.sink.send(Event::Prefill { done: end });
        }
    }

    /// Takes the hidden states of the positions `start..end`; all that was asked for, once there is no more to come.
    pub(super) fn pool(&mut self, start: usize, end: usize, values: &[f32]) -> Option<Vec<f32>> {
        let pool = self.job.pool.as_mut()?;
        pool.add(start, end, values, self.tokens.len())
    }

    /// Appends a generated token: the bytes that can be shown now, and why this is the end, if it is.
    pub(super) fn push(&mut self, id: TokenId, bytes: &[u8]) -> (Vec<u8>, Option<FinishReason>) {
        self.first_token.get_or_insert_with(Instant::now);
        self.tokens.push(id);
        if self.job.request.stop.tokens.contains(&id) {
            return (self.stop.finish(), Some(FinishReason::Stop(Stopped::Token(id))));
        }
        let (mut text, stopped) = self.stop.push(bytes);
        if let Some(string) = stopped {
            return (text, Some(FinishReason::Stop(Stopped::String(string))));
        }
        let committed = self.job.constraint.as_mut().map(|constraint| constraint.commit(id, bytes));
        let full = self.tokens.len() >= self.max_len;
        let reason = match committed {
            Some(Err(what)) => Some(FinishReason::Error(what)),
            Some(Ok(true)) => Some(FinishReason::Stop(Stopped::Constraint)),
            _ => full.then_some(FinishReason::Length),
        };
        if reason.is_some() {
            text.extend(self.stop.finish());
        }
        (text, reason)
    }

    /// Sends the last event, and gives the cache back.
    pub(super) fn finish(self, reason: FinishReason) -> Sequence {
        let prompt_tokens = self.job.request.prompt.len();
        let usage = Usage {
            prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.tokens.len() - prompt_tokens,
            guessed_tokens: self.guessed_tokens,
            accepted_tokens: self.accepted_tokens,
        };
        let now = Instant::now();
        let first_token = self.first_token.unwrap_or(now);
        let timings = Timings {
            queue: self.admitted - self.job.submitted,
            prefill: first_token - self.admitted,
            decode: now - first_token,
        };
        self.job.sink.finish(reason, usage, timings);
        self.cache
    }
}
