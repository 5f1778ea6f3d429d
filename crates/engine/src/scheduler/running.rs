//! One request and how far it has come.

use std::cmp::Reverse;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::draft::Draft;
use super::lookup;
use super::text::{Chosen, Pushed, Text};
use crate::constraint::Constrained;
use crate::embedding::Pool;
use crate::event::{Canceller, Event, FinishReason, Sink, Timings, Usage};
use crate::executor::{SeqId, StepId, TokenId, Tokens, Want};
use crate::kv::{Kv, KvError, Sequence};
use crate::request::Request;
use crate::sampling::Scratch;

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
    /// Its constraint, until it runs.
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
        self.sink.finish(reason, Vec::new(), usage, timings);
    }
}

/// A request that has its share of the cache.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: SeqId,
    pub(super) job: Job,
    pub(super) cache: Sequence,
    /// What the draft model has of it.
    pub(super) draft: Draft,
    /// Positions that the executor has been given. At most one more than there are `tokens`: see `source`.
    pub(super) submitted: usize,
    /// How often it went back: rows of before count no more.
    pub(super) turn: usize,
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
    /// What follows from them; it stays when the cache is given up.
    text: Text,
    /// Generated tokens that its reader has been told of.
    told: usize,
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
            turn: 0,
            cached_tokens,
            computed: cached_tokens,
            read: cached_tokens,
            guesses: 0,
            guessed_tokens: 0,
            accepted_tokens: 0,
            cache,
            draft: Draft::default(),
            source: None,
            tokens,
            max_len,
            text: Text::new(&job.request, job.constraint.take()),
            told: 0,
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
    pub(super) fn guess(&mut self, row: &Tokens, room: usize) -> Vec<TokenId> {
        let end = self.submitted + row.len();
        if !self.is_guessed() || end != self.tokens.len() {
            return Vec::new();
        }
        let room = room.min(self.guessable());
        let guesses = match self.job.request.lookup {
            0 => self.draft.take(room),
            lookup => lookup::guess(&self.tokens, lookup.min(room)).to_vec(),
        };
        match guesses.first().is_some_and(|first| self.text.excluded().contains(first)) {
            true => Vec::new(),
            false => guesses,
        }
    }

    /// Whether tokens are guessed: then it is in one step at a time.
    fn is_guessed(&self) -> bool {
        self.job.request.lookup > 0 || self.job.request.draft > 0
    }

    /// The most tokens that can be guessed after all that are known: the last one is never written, and the cache holds what it has
    /// been promised.
    fn guessable(&self) -> usize {
        self.most_positions().min(self.cache.promised()).saturating_sub(self.tokens.len())
    }

    /// How many guesses of the draft model its next row can have behind it, at most `room`; none if it does not generate.
    pub(super) fn wants_guesses(&self, room: usize) -> usize {
        match self.left() {
            1 => self.job.request.draft.min(room).min(self.guessable()),
            _ => 0,
        }
    }

    /// The draft model begins to guess what comes next.
    pub(super) fn begin_draft(&mut self) {
        self.draft.begin(self.text.mu());
    }

    /// What the draft model's row that ends before `end` should yield: as the model's own, except that masks and what is excluded
    /// are not looked at.
    pub(super) fn want_draft(&self, end: usize) -> Want {
        let sampling = &self.job.request.sampling;
        if sampling.device_can() { Want::Token(sampling.spec(self.seed, end)) } else { Want::Logits }
    }

    /// Guesses the next token from the draft model's logits.
    pub(super) fn choose_draft(&mut self, logits: &[f32], scratch: &mut Scratch) -> Option<TokenId> {
        let (tokens, mu) = self.draft.state();
        self.job.request.sampling.choose(logits, (self.seed, tokens), mu, None, scratch).ok()
    }

    /// The token after position `end` is sampled by row `row` of `step`, which nobody has to wait for; `guess` says that it
    /// follows a guess.
    pub(super) fn submit(&mut self, end: usize, sampled_by: Option<(StepId, usize)>, guess: bool) {
        self.submitted = end;
        self.source = if guess || self.is_guessed() { None } else { sampled_by };
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

    /// The prompt and what has been generated.
    pub(super) fn tokens(&self) -> &[TokenId] {
        &self.tokens
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
        let Job { request, .. } = &self.job;
        if let Some(pool) = &self.job.pool {
            pool.want(start, end, self.tokens.len())
        } else if end < self.tokens.len() {
            Want::Nothing
        } else if request.logprobs.is_some()
            || self.text.restricts()
            || !request.sampling.device_can()
            || end == self.tokens.len() && !self.text.excluded().is_empty()
        {
            Want::Logits
        } else {
            Want::Token(request.sampling.spec(self.seed, end))
        }
    }

    /// Computes which tokens may come next.
    pub(super) fn constrain(&mut self) -> Result<(), String> {
        self.text.prepare(&self.job.request.stop.tokens)
    }

    /// A token that the executor has sampled.
    pub(super) fn sampled(&self, id: TokenId) -> Chosen {
        self.text.sampled(id)
    }

    /// Samples the next token from its logits, or says why there is none.
    pub(super) fn choose(&mut self, logits: &[f32], scratch: &mut Scratch) -> Result<Chosen, FinishReason> {
        self.text.choose(&self.job.request, (self.seed, &self.tokens), logits, scratch)
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

    /// Appends a generated token, and tells of what is certain; `Err` is the end. True if it, and maybe others before it, cannot
    /// be: then the text is shorter.
    pub(super) fn push(&mut self, chosen: Chosen, bytes: &[u8]) -> Result<bool, FinishReason> {
        self.first_token.get_or_insert_with(Instant::now);
        let (id, full) = (chosen.id, self.tokens.len() + 1 >= self.max_len);
        match self.text.push(&self.job.request, chosen, bytes, full)? {
            Pushed::Back(count) => {
                self.tokens.truncate(self.tokens.len() - count);
                Ok(true)
            }
            Pushed::Next(reason) => {
                self.tokens.push(id);
                self.tell(reason.is_some())?;
                reason.map_or(Ok(false), Err)
            }
        }
    }

    /// Sends the tokens that are certain, or all.
    fn tell(&mut self, all: bool) -> Result<(), FinishReason> {
        for event in self.text.certain(all) {
            self.job.sink.send(event)?;
            self.told += 1;
        }
        Ok(())
    }

    /// Makes the cache fit tokens that are fewer than they were, so that the last of them is computed again. Fails where a sliding
    /// window has moved past them: then the cache has to be given up.
    pub(super) fn go_back(&mut self, kv: &mut Kv) -> Result<(), KvError> {
        let last = self.tokens.len() - 1;
        self.computed = self.computed.min(last);
        kv.rewind(&mut self.cache, last)?;
        self.submitted = self.cache.len();
        self.computed = self.computed.min(self.submitted);
        (self.source, self.guesses) = (None, 0);
        self.turn += 1;
        Ok(())
    }

    /// Sends the last event, and gives the cache back.
    pub(super) fn finish(mut self, mut reason: FinishReason) -> Sequence {
        let prompt_tokens = self.job.request.prompt.len();
        let mut rest = Vec::new();
        if reason == FinishReason::Banned {
            // Nothing of it will be taken back any more.
            match self.tell(true) {
                Ok(()) => rest = self.text.rest(),
                Err(unread) => reason = unread,
            }
        }
        let usage = Usage {
            prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.told,
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
        self.job.sink.finish(reason, rest, usage, timings);
        self.cache
    }
}
