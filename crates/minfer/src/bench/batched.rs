//! Speed of many sequences at once, by llama-batched-bench's tests.
//!
//! `parallel` sequences of random tokens, each of its own: all their prompts are read, as many tokens at a time as a step
//! takes, then each step generates a token for every one of them, the most probable. Prompts and generation are timed apart.

use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

use minfer_engine::executor::{
    Executor, MAX_IN_FLIGHT, PlanRow, SeqId, StepId, StepOutput, StepPlan, TokenId, Tokens, Want,
};
use minfer_engine::kv::{Kv, Sequence};
use minfer_engine::sampling::SampleSpec;
use serde_json::{Map, Value, json};

use super::Error;
use super::report::{Column, Format, Record, Report};
use crate::random::Random;

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchedTest {
    /// Prompt tokens of each sequence.
    pub n_prompt: usize,
    /// Generated tokens of each sequence.
    pub n_gen: usize,
    /// Sequences.
    pub parallel: usize,
}

impl BatchedTest {
    /// Tokens of one sequence.
    pub fn context(&self) -> usize {
        self.n_prompt.saturating_add(self.n_gen)
    }

    fn label(&self) -> String {
        format!("{} sequences of {} tokens", self.parallel, self.context())
    }
}

/// A test's result.
#[derive(Clone, Debug)]
pub struct BatchedRow {
    /// The test.
    pub test: BatchedTest,
    /// Tokens that a step takes.
    pub n_batch: usize,
    /// Threads.
    pub n_threads: usize,
    /// Layers on a GPU, as llama.cpp counts: none, or all.
    pub n_gpu_layers: usize,
    /// Median time of all prompts.
    pub prompt: Duration,
    /// Median time of all generated tokens.
    pub generation: Duration,
}

impl BatchedRow {
    fn tokens(&self) -> usize {
        self.test.parallel * self.test.context()
    }

    fn prompt_speed(&self) -> f64 {
        speed(self.test.parallel * self.test.n_prompt, self.prompt)
    }

    fn generation_speed(&self) -> f64 {
        speed(self.test.parallel * self.test.n_gen, self.generation)
    }

    fn all(&self) -> Duration {
        self.prompt + self.generation
    }
}

/// Tokens per second; 0 of nothing.
fn speed(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

impl Record for BatchedRow {
    fn fields(&self) -> Map<String, Value> {
        let fields = [
            ("n_kv_max", json!(self.tokens())),
            ("n_batch", json!(self.n_batch)),
            ("n_ubatch", json!(self.n_batch)),
            ("flash_attn", json!(1)),
            ("is_pp_shared", json!(0)),
            ("n_gpu_layers", json!(self.n_gpu_layers)),
            ("n_threads", json!(self.n_threads)),
            ("n_threads_batch", json!(self.n_threads)),
            ("pp", json!(self.test.n_prompt)),
            ("tg", json!(self.test.n_gen)),
            ("pl", json!(self.test.parallel)),
            ("n_kv", json!(self.tokens())),
            ("t_pp", json!(self.prompt.as_secs_f64())),
            ("speed_pp", json!(self.prompt_speed())),
            ("t_tg", json!(self.generation.as_secs_f64())),
            ("speed_tg", json!(self.generation_speed())),
            ("t", json!(self.all().as_secs_f64())),
            ("speed", json!(speed(self.tokens(), self.all()))),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

const COLUMNS: [Column<BatchedRow>; 10] = [
    ("PP", 6, |row| row.test.n_prompt.to_string()),
    ("TG", 6, |row| row.test.n_gen.to_string()),
    ("B", 4, |row| row.test.parallel.to_string()),
    ("N_KV", 6, |row| row.tokens().to_string()),
    ("T_PP s", 8, |row| format!("{:.3}", row.prompt.as_secs_f64())),
    ("S_PP t/s", 9, |row| format!("{:.2}", row.prompt_speed())),
    ("T_TG s", 8, |row| format!("{:.3}", row.generation.as_secs_f64())),
    ("S_TG t/s", 9, |row| format!("{:.2}", row.generation_speed())),
    ("T s", 8, |row| format!("{:.3}", row.all().as_secs_f64())),
    ("S t/s", 9, |row| format!("{:.2}", speed(row.tokens(), row.all()))),
];

impl<W: Write> Report<W, BatchedRow> {
    /// A report of such tests, in llama-batched-bench's columns and field names.
    pub fn batched(out: W, format: Format) -> Self {
        Report::of(out, format, COLUMNS.to_vec())
    }
}

/// Runs such tests on one model.
pub struct Batched<'a, E> {
    executor: &'a mut E,
    random: Random,
    step_tokens: usize,
    next_seq: u64,
    out: StepOutput,
}

/// The sequences of a run.
struct Run {
    kv: Kv,
    sequences: Vec<(SeqId, Sequence)>,
    /// The steps in flight, and of each sequence the row that its next token comes from.
    in_flight: VecDeque<StepId>,
    sources: Vec<Option<(StepId, usize)>>,
}

impl<'a, E: Executor> Batched<'a, E> {
    /// Reads prompts by up to `step_tokens` tokens at a time, or fewer if the model takes fewer.
    pub fn new(executor: &'a mut E, step_tokens: usize) -> Self {
        let step_tokens = step_tokens.min(executor.limits().max_tokens).max(1);
        Batched { executor, random: Random::new(42), step_tokens, next_seq: 0, out: StepOutput::default() }
    }

    /// Runs a test once untimed and then `repetitions` times; returns the median times of prompts and of generation.
    ///
    /// # Errors
    ///
    /// [`Error::Parallel`] if a step does not take so many sequences, or any other [`Error`].
    pub fn run(&mut self, test: BatchedTest, repetitions: usize) -> Result<(Duration, Duration), Error> {
        let limits = self.executor.limits();
        let most = limits.max_outputs.min(self.step_tokens);
        if test.parallel > most {
            return Err(Error::Parallel { asked: test.parallel, most });
        }
        if test.context() > limits.context {
            return Err(Error::Context {
                test: test.label(),
                needed: test.context(),
                capacity: limits.context,
            });
        }
        let (mut prompts, mut generations) = (Vec::new(), Vec::new());
        for repetition in 0..=repetitions {
            let (prompt, generation) = self.once(test)?;
            if repetition > 0 {
                prompts.push(prompt);
                generations.push(generation);
            }
        }
        Ok((median(prompts), median(generations)))
    }

    fn once(&mut self, test: BatchedTest) -> Result<(Duration, Duration), Error> {
        let mut kv = Kv::new(self.executor.limits(), self.step_tokens)?;
        let mut sequences = Vec::new();
        for _ in 0..test.parallel {
            sequences.push((SeqId(self.next_seq), kv.admit(test.context())?));
            self.next_seq += 1;
        }
        let sources = vec![None; test.parallel];
        let mut run = Run { kv, sequences, in_flight: VecDeque::new(), sources };
        let start = Instant::now();
        self.prompts(&mut run, test.n_prompt)?;
        self.finish(&mut run)?;
        let prompt = start.elapsed();
        let start = Instant::now();
        for _ in 0..test.n_gen {
            self.generate(&mut run)?;
        }
        self.finish(&mut run)?;
        Ok((prompt, start.elapsed()))
    }

    /// All prompts, in the order of the sequences; a step may have the end of one and the beginning of the next.
    fn prompts(&mut self, run: &mut Run, n: usize) -> Result<(), Error> {
        let mut plan = StepPlan::default();
        let mut room = self.step_tokens;
        for at in 0..run.sequences.len() {
            let mut done = 0;
            while done < n {
                let len = room.min(n - done);
                let tokens = (0..len).map(|_| self.token()).collect();
                let want = if done + len == n { Want::Token(SampleSpec::GREEDY) } else { Want::Nothing };
                self.row(run, &mut plan, at, Tokens::Ids(tokens), done, want)?;
                (done, room) = (done + len, room - len);
                if room == 0 {
                    self.submit(run, &mut plan)?;
                    room = self.step_tokens;
                }
            }
        }
        if plan.rows.is_empty() { Ok(()) } else { self.submit(run, &mut plan) }
    }

    /// A token for every sequence.
    fn generate(&mut self, run: &mut Run) -> Result<(), Error> {
        let mut plan = StepPlan::default();
        for at in 0..run.sequences.len() {
            let tokens = match run.sources[at] {
                Some((step, row)) => Tokens::FromStep { step, row },
                None => Tokens::Ids(vec![self.token()]),
            };
            let position = run.sequences[at].1.len();
            self.row(run, &mut plan, at, tokens, position, Want::Token(SampleSpec::GREEDY))?;
        }
        self.submit(run, &mut plan)
    }

    fn row(
        &self,
        run: &mut Run,
        plan: &mut StepPlan,
        at: usize,
        tokens: Tokens,
        position: usize,
        want: Want,
    ) -> Result<(), Error> {
        let (seq, sequence) = &mut run.sequences[at];
        run.kv.cover(sequence, position, tokens.len())?;
        let tables = sequence.tables().to_vec();
        plan.rows.push(PlanRow { seq: *seq, tokens, position, tables, want, mask: None });
        Ok(())
    }

    fn submit(&mut self, run: &mut Run, plan: &mut StepPlan) -> Result<(), Error> {
        if run.in_flight.len() == MAX_IN_FLIGHT
            && let Some(step) = run.in_flight.pop_front()
        {
            self.executor.wait(step, &mut self.out)?;
        }
        let step = self.executor.submit(plan)?;
        run.in_flight.push_back(step);
        for (row, planned) in plan.rows.iter().enumerate().filter(|(_, row)| row.want != Want::Nothing) {
            if let Some(at) = run.sequences.iter().position(|(seq, _)| *seq == planned.seq) {
                run.sources[at] = Some((step, row));
            }
        }
        plan.rows.clear();
        Ok(())
    }

    /// Waits for all steps. What comes next takes its tokens from nowhere but the last step, and begins anew after others.
    fn finish(&mut self, run: &mut Run) -> Result<(), Error> {
        let last = run.in_flight.back().copied();
        for step in run.in_flight.drain(..) {
            self.executor.wait(step, &mut self.out)?;
        }
        for source in &mut run.sources {
            *source = source.filter(|(step, _)| Some(*step) == last);
        }
        Ok(())
    }

    fn token(&mut self) -> TokenId {
        self.random.below(self.executor.limits().vocab as u64) as TokenId
    }
}

/// The middle one; of none, nothing.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use minfer_engine::executor::RowOutput;
    use minfer_engine::fake::FakeExecutor;

    #[test]
    fn every_sequence_gets_its_tokens() {
        let mut executor = FakeExecutor::new(FakeExecutor::small_limits());
        let mut batched = Batched::new(&mut executor, 16);
        for parallel in [1, 3, 8] {
            let test = BatchedTest { n_prompt: 13, n_gen: 5, parallel };
            batched.run(test, 2).unwrap();
            assert_eq!(batched.out.rows.len(), parallel);
            assert!(batched.out.rows.iter().all(|row| matches!(row, RowOutput::Token(_))));
        }
        assert_eq!(batched.next_seq, 3 * (1 + 3 + 8));
        let test = BatchedTest { n_prompt: 0, n_gen: 5, parallel: 2 };
        assert!(batched.run(test, 1).is_ok());
        let wide = BatchedTest { n_prompt: 1, n_gen: 1, parallel: 9 };
        assert!(matches!(batched.run(wide, 1), Err(Error::Parallel { asked: 9, most: 8 })));
        let long = BatchedTest { n_prompt: 96, n_gen: 1, parallel: 1 };
        assert!(matches!(batched.run(long, 1), Err(Error::Context { needed: 97, .. })));
    }

    #[test]
    fn the_columns_are_llama_batched_benchs() {
        let row = BatchedRow {
            test: BatchedTest { n_prompt: 128, n_gen: 32, parallel: 4 },
            n_batch: 2048,
            n_threads: 2,
            n_gpu_layers: 0,
            prompt: Duration::from_millis(500),
            generation: Duration::from_secs(2),
        };
        let printed = |format| {
            let mut bytes = Vec::new();
            let mut report = Report::batched(&mut bytes, format);
            report.row(&row).unwrap();
            report.finish().unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let table = printed(Format::Markdown);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>().join(" "),
            "| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |"
        );
        assert_eq!(
            lines[2].split_whitespace().collect::<Vec<_>>().join(" "),
            "| 128 | 32 | 4 | 640 | 0.500 | 1024.00 | 2.000 | 64.00 | 2.500 | 256.00 |"
        );
        let fields: Value = serde_json::from_str(&printed(Format::JsonLines)).unwrap();
        assert_eq!((&fields["pl"], &fields["speed_tg"]), (&json!(4), &json!(64.0)));
    }
}
