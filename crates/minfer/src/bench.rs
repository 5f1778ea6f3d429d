//! Speed of prompt processing and generation, by llama-bench's tests.
//!
//! A test is a number of prompt tokens, generated tokens, or both after each other, optionally on top of a context of
//! some depth. Tokens are random, so nothing depends on a tokenizer. Each test is run once untimed, then `repetitions`
//! times; a sample is the time from the first submission of the test to its last result. Logits of the last token of
//! each batch are computed and copied; sampling is not part of it, unless a test is greedy: its generated tokens come
//! with the most probable next one instead of logits, as a generation at temperature 0 asks for.

mod batched;
mod report;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use minfer_engine::executor::{Executor, MAX_IN_FLIGHT, StepError, StepOutput, TokenId, Want};
use minfer_engine::kv::KvError;
use minfer_engine::sampling::SampleSpec;
use minfer_engine::session::Session;

pub use batched::{Batched, BatchedRow, BatchedTest};
pub use report::{Chosen, Format, Machine, Record, Report, Row};

use crate::random::Random;

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Prompt tokens, computed in batches.
    pub n_prompt: usize,
    /// Generated tokens, one by one.
    pub n_gen: usize,
    /// Tokens already in the context; not timed.
    pub n_depth: usize,
    /// Whether generated tokens come with the most probable next one, and not with logits.
    pub greedy: bool,
}

impl Test {
    /// Tokens that the context must hold.
    pub fn context(&self) -> usize {
        self.n_depth.saturating_add(self.n_prompt).saturating_add(self.n_gen)
    }

    /// Its name: `pp512`, `tg128`, `pp512+tg128`, ` greedy` if it is, ` @ d4096` for a depth.
    pub fn label(&self) -> String {
        let test = match (self.n_prompt, self.n_gen) {
            (p, 0) => format!("pp{p}"),
            (0, g) => format!("tg{g}"),
            (p, g) => format!("pp{p}+tg{g}"),
        };
        let test = if self.greedy && self.n_gen > 0 { test + " greedy" } else { test };
        if self.n_depth > 0 { format!("{test} @ d{}", self.n_depth) } else { test }
    }
}

/// Why a test has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The context is too short for it.
    #[error("{test} needs a context of {needed} tokens, there is room for {capacity}")]
    Context {
        /// The test.
        test: String,
        /// Tokens needed.
        needed: usize,
        /// Tokens that fit.
        capacity: usize,
    },
    /// A step does not take so many sequences.
    #[error("{asked} sequences at once, a step takes {most}")]
    Parallel {
        /// Sequences asked for.
        asked: usize,
        /// How many a step takes.
        most: usize,
    },
    /// Bookkeeping of the cache failed.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The model failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Runs tests on one model.
pub struct Bench<'a, E> {
    executor: &'a mut E,
    session: Session,
    random: Random,
    bos: Option<TokenId>,
    /// Tokens submitted at a time.
    chunk: usize,
    out: StepOutput,
}

impl<'a, E: Executor> Bench<'a, E> {
    /// Submits up to `chunk` tokens at a time (or fewer, if the model takes fewer); `bos` is the first token of a text.
    ///
    /// # Errors
    ///
    /// [`Error::Kv`] if the executor has no room for a sequence.
    pub fn new(executor: &'a mut E, chunk: usize, bos: Option<TokenId>) -> Result<Self, Error> {
        let session = Session::new(executor.limits())?;
        let chunk = chunk.min(executor.limits().max_tokens).max(1);
        Ok(Bench { executor, session, random: Random::new(42), bos, chunk, out: StepOutput::default() })
    }

    /// Runs a test and returns its samples. `before` is called before the warm-up (`None`) and each repetition.
    ///
    /// # Errors
    ///
    /// Any [`Error`].
    pub fn run(
        &mut self,
        test: Test,
        repetitions: usize,
        before: &mut dyn FnMut(Option<usize>),
    ) -> Result<Vec<Duration>, Error> {
        if test.context() > self.session.capacity() {
            let (needed, capacity) = (test.context(), self.session.capacity());
            return Err(Error::Context { test: test.label(), needed, capacity });
        }
        before(None);
        self.session.reset()?;
        self.prompt(test.n_prompt)?;
        self.generate(test.n_gen.min(1), test.greedy)?;
        self.session.reset()?;
        let mut samples = Vec::new();
        for repetition in 0..repetitions {
            before(Some(repetition));
            self.go_to_depth(test.n_depth)?;
            let start = Instant::now();
            self.prompt(test.n_prompt)?;
            self.generate(test.n_gen, test.greedy)?;
            samples.push(start.elapsed());
        }
        Ok(samples)
    }

    /// Leaves exactly `depth` tokens in the context, those of the previous repetition if they can be kept.
    fn go_to_depth(&mut self, depth: usize) -> Result<(), Error> {
        if depth > 0 && self.session.len() >= depth && self.session.truncate(depth).is_ok() {
            return Ok(());
        }
        self.session.reset()?;
        self.prompt(depth)
    }

    /// Appends `n` random tokens in batches.
    fn prompt(&mut self, n: usize) -> Result<(), Error> {
        let mut in_flight = VecDeque::with_capacity(MAX_IN_FLIGHT);
        let mut done = 0;
        while done < n {
            let len = self.chunk.min(n - done);
            let tokens: Vec<TokenId> = (0..len).map(|_| self.token()).collect();
            if in_flight.len() == MAX_IN_FLIGHT
                && let Some(step) = in_flight.pop_front()
            {
                self.executor.wait(step, &mut self.out)?;
            }
            let plan = self.session.plan([(tokens, Want::Logits)])?;
            in_flight.push_back(self.executor.submit(&plan)?);
            done += len;
        }
        for step in in_flight {
            self.executor.wait(step, &mut self.out)?;
        }
        Ok(())
    }

    /// Appends `n` random tokens, each after the previous one's logits, or greedy choice, has arrived.
    fn generate(&mut self, n: usize, greedy: bool) -> Result<(), Error> {
        for _ in 0..n {
            let token = self.token();
            let want = if greedy { Want::Token(SampleSpec::GREEDY) } else { Want::Logits };
            let plan = self.session.plan([(vec![token], want)])?;
            let step = self.executor.submit(&plan)?;
            self.executor.wait(step, &mut self.out)?;
        }
        Ok(())
    }

    fn token(&mut self) -> TokenId {
        match self.bos {
            Some(bos) if self.session.len() == 0 => bos,
            _ => self.random.below(self.executor.limits().vocab as u64) as TokenId,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minfer_engine::executor::RowOutput;
    use minfer_engine::fake::FakeExecutor;

    #[test]
    fn labels_are_llama_benchs() {
        let label = |n_prompt, n_gen, n_depth| Test { n_prompt, n_gen, n_depth, greedy: false }.label();
        assert_eq!(label(512, 0, 0), "pp512");
        assert_eq!(label(0, 128, 4096), "tg128 @ d4096");
        assert_eq!(label(512, 128, 0), "pp512+tg128");
        let greedy = |n_gen| Test { n_prompt: 0, n_gen, n_depth: 64, greedy: true }.label();
        assert_eq!((greedy(8), greedy(0)), ("tg8 greedy @ d64".to_owned(), "pp0 @ d64".to_owned()));
    }

    #[test]
    fn every_repetition_is_sampled_and_too_long_tests_are_refused() {
        let mut executor = FakeExecutor::new(FakeExecutor::small_limits());
        let mut bench = Bench::new(&mut executor, 4, Some(1)).unwrap();
        let mut calls = Vec::new();
        let test = Test { n_prompt: 6, n_gen: 3, n_depth: 5, greedy: false };
        let samples = bench.run(test, 3, &mut |r| calls.push(r)).unwrap();
        assert_eq!(samples.len(), 3);
        assert_eq!(calls, [None, Some(0), Some(1), Some(2)]);
        assert_eq!(bench.session.len(), 14);
        assert_eq!(bench.run(Test { greedy: true, ..test }, 2, &mut |_| {}).unwrap().len(), 2);
        assert!(matches!(bench.out.rows[..], [RowOutput::Token(_)]));
        let long = Test { n_prompt: 1 << 40, ..test };
        assert!(matches!(bench.run(long, 1, &mut |_| {}), Err(Error::Context { .. })));
    }
}
