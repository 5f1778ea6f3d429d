//! The loop, turned by hand over the fake executor, against an oracle that knows nothing of steps.

mod banned;
mod constrained;
mod crowded;
mod drafted;
mod embedding;
mod random;
mod tier;

use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::constraint::{Begin, Constrained, Constraint, Grammar, Vocabulary};
use crate::embedding::Pool;
use crate::event::{Canceller, Source, Stopped, Usage, channel};
use crate::executor::{CacheGroup, Tokens};
use crate::fake::FakeExecutor;
use crate::request::{Request, Stop};
use crate::sampling::{
    Adjust, Logprobs, SampleSpec, SamplingParams, bias, logprobs, penalize, sample_adjusted,
};

const VOCAB: usize = 32;

/// Tokens of one to three of the letters a, b and c; the last four are special.
fn table() -> TokenTable {
    let piece = |id: usize| match id {
        28.. => String::new(),
        _ => (0..1 + id % 3).map(|i| ["a", "b", "c"][(id / 3 + i * i) % 3]).collect(),
    };
    (0..VOCAB).map(piece).collect()
}

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| Vocabulary::new(table().into(), VOCAB));

/// What a request came to.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    ids: Vec<TokenId>,
    text: Vec<u8>,
    logprobs: Vec<Logprobs>,
    reason: FinishReason,
}

/// The same, from the definition: one token after the other, on the whole prefix.
fn oracle(request: &Request, seed: u64, capacity: usize) -> Outcome {
    let (table, mut scratch) = (table(), Scratch::default());
    let mut out = Outcome { ids: vec![], text: vec![], logprobs: vec![], reason: FinishReason::Length };
    // Per generated token, and of the next one: what is excluded there, and mirostat's number.
    let (mut excluded, mut mus) = (vec![Vec::<TokenId>::new()], vec![request.sampling.mirostat.first()]);
    let mut constraint = constraint_after(request, &[]);
    let most = request.max_tokens.unwrap_or(usize::MAX).min(capacity + 1 - request.prompt.len());
    'next: while out.ids.len() < most {
        let tokens = [&request.prompt[..], &out.ids].concat();
        let logits = FakeExecutor::logits_after(&tokens, VOCAB);
        let (sampling, place) = (&request.sampling, out.ids.len());
        let spec = SampleSpec { mirostat: mus[place], ..sampling.spec(seed, tokens.len()) };
        let window = &tokens[tokens.len().saturating_sub(sampling.penalty_window)..];
        let mut adjusted = logits.clone();
        bias(&mut adjusted, &sampling.logit_bias);
        if let Some(penalties) = sampling.penalties() {
            penalize(&mut adjusted, window, &penalties, &mut scratch);
        }
        sampling.dry.apply(&mut adjusted, &tokens, &mut scratch);
        if let Some(constraint) = &mut constraint {
            constraint.prepare(&request.stop.tokens).unwrap();
        }
        let allowed = constraint.as_ref().map_or(vec![u32::MAX], |c| c.mask().unwrap().to_vec());
        let mask = excluded[place].iter().fold(allowed[0], |mask, id| mask & !(1u32 << id));
        let drawn = sample_adjusted(&adjusted, &Adjust::default(), &spec, Some(&[mask]), &mut scratch);
        let Ok(drawn) = drawn else {
            assert!(!excluded[place].is_empty(), "{drawn:?}");
            out.reason = FinishReason::Banned;
            return out;
        };
        let id = drawn.token;
        out.ids.push(id);
        out.logprobs.extend(request.logprobs.map(|top| logprobs(&logits, id, top.into())));
        if request.stop.tokens.contains(&id) {
            out.reason = FinishReason::Stop(Stopped::Token(id));
            return out;
        }
        for &byte in table.bytes(id) {
            out.text.push(byte);
            let banned =
                request.banned.iter().filter(|string| out.text.ends_with(string)).map(Vec::len).min();
            if let Some(len) = banned {
                let begin = out.text.len() - len;
                let ends = out.ids.iter().scan(0, |end, &id| {
                    *end += table.bytes(id).len();
                    Some(*end)
                });
                let place = ends.take_while(|end| *end <= begin).count();
                excluded.truncate(place + 1);
                excluded[place].push(out.ids[place]);
                mus.truncate(place + 1);
                out.ids.truncate(place);
                out.logprobs.truncate(place);
                out.text = out.ids.iter().flat_map(|&id| table.bytes(id)).copied().collect();
                constraint = constraint_after(request, &out.ids);
                continue 'next;
            }
            let strings = request.stop.strings.iter().enumerate();
            let ends = strings.filter(|(_, string)| out.text.ends_with(string));
            if let Some((index, string)) = ends.max_by_key(|(_, string)| string.len()) {
                out.text.truncate(out.text.len() - string.len());
                out.reason = FinishReason::Stop(Stopped::String(index));
                return out;
            }
        }
        if constraint.as_mut().is_some_and(|constraint| constraint.commit(id, table.bytes(id)).unwrap()) {
            out.reason = FinishReason::Stop(Stopped::Constraint);
            return out;
        }
        mus.push(mus[place].map(|mu| sampling.mirostat.next(mu, drawn.surprise)));
        excluded.push(vec![]);
    }
    out
}

/// The state of a request's constraint after these tokens.
fn constraint_after(request: &Request, ids: &[TokenId]) -> Option<Constrained> {
    let mut constraint = VOCABULARY.compile(request.constraint.as_ref()?).unwrap();
    for &id in ids {
        constraint.prepare(&request.stop.tokens).unwrap();
        constraint.commit(id, table().bytes(id)).unwrap();
    }
    Some(constraint)
}

/// A scheduler and its clients.
struct Bench {
    scheduler: Scheduler<FakeExecutor>,
    clients: Vec<(Source, Canceller)>,
}

impl Bench {
    fn new(executor: FakeExecutor, config: EngineConfig) -> Self {
        let scheduler = Scheduler::new(executor, table().into(), &config).unwrap();
        Bench { scheduler, clients: Vec::new() }
    }

    /// With a draft model.
    fn with_draft(self, draft: FakeExecutor) -> Self {
        Bench { scheduler: self.scheduler.with_draft(Box::new(draft)).unwrap(), ..self }
    }

    fn submit(&mut self, request: Request, capacity: usize) -> Canceller {
        self.submit_either(request, None, capacity)
    }

    fn submit_either(&mut self, request: Request, pool: Option<Pool>, capacity: usize) -> Canceller {
        let (sink, source) = channel(capacity);
        let canceller = Canceller::default();
        self.clients.push((source, canceller.clone()));
        let (submitted, place) = (Instant::now(), None);
        let compiled = |constraint| VOCABULARY.compile(constraint).unwrap();
        let constraint = request.constraint.as_ref().map(compiled);
        self.scheduler.enqueue(Job {
            request,
            constraint,
            pool,
            sink,
            canceller: canceller.clone(),
            submitted,
            place,
        });
        canceller
    }

    /// A turn, after which the accounts must be right.
    fn step(&mut self) {
        self.scheduler.step().unwrap();
        self.check();
    }

    fn check(&self) {
        self.scheduler.kv.check_integrity(self.scheduler.running.iter().map(|r| &r.cache)).unwrap();
        if let Some(drafter) = &self.scheduler.drafter {
            let live = self.scheduler.running.iter().filter_map(|r| r.draft.cache());
            drafter.kv().check_integrity(live).unwrap();
        }
    }

    fn run(&mut self) {
        let mut turns = 0;
        while !self.scheduler.is_idle() {
            self.step();
            turns += 1;
            assert!(turns < 10_000, "the loop does not end");
        }
    }

    /// The events of all clients, in order of submission.
    fn events(self) -> Vec<Vec<Event>> {
        drop(self.scheduler);
        self.clients.into_iter().map(|(source, _)| std::iter::from_fn(|| source.recv()).collect()).collect()
    }

    fn outcomes(self) -> Vec<Outcome> {
        self.events().into_iter().map(outcome).collect()
    }
}

/// Checks the order and the counts of a request's events.
fn outcome(events: Vec<Event>) -> Outcome {
    let mut out = Outcome { ids: vec![], text: vec![], logprobs: vec![], reason: FinishReason::Cancelled };
    let (mut prompt, mut read) = (None, 0);
    let last = events.len() - 1;
    for (index, event) in events.into_iter().enumerate() {
        match event {
            Event::Started { prompt_tokens, .. } => {
                assert_eq!(index, 0);
                prompt = Some(prompt_tokens);
            }
            Event::Prefill { done } => {
                assert!(read < done && done <= prompt.unwrap() && out.ids.is_empty());
                read = done;
            }
            Event::Token { id, bytes, logprobs } => {
                assert_eq!(Some(read), prompt);
                out.ids.push(id);
                out.text.extend(bytes);
                out.logprobs.extend(logprobs);
            }
            Event::Embedding { .. } => panic!("an embedding of a text to be continued"),
            Event::Finished { reason, rest, usage, .. } => {
                assert_eq!(index, last);
                out.text.extend(rest);
                assert_eq!(usage.completion_tokens, out.ids.len());
                assert!(prompt.is_none_or(|prompt| prompt == usage.prompt_tokens));
                out.reason = reason;
            }
        }
    }
    out
}

fn greedy(prompt: Vec<TokenId>, max_tokens: usize) -> Request {
    Request { prompt, max_tokens: Some(max_tokens), sampling: SamplingParams::greedy(), ..Request::default() }
}

fn bench() -> Bench {
    Bench::new(FakeExecutor::new(FakeExecutor::small_limits()), EngineConfig::default())
}

#[test]
fn stop_strings_end_the_text_at_every_cut() {
    let whole = oracle(&greedy(vec![1, 2, 3], 40), 0, 96);
    let mut cut_inside = false;
    for start in 0..whole.text.len() {
        for end in start + 1..whole.text.len().min(start + 7) {
            let mut request = greedy(vec![1, 2, 3], 40);
            request.stop.strings.push(whole.text[start..end].to_vec());
            let expected = oracle(&request, 0, 96);
            cut_inside |= expected.text.len() > start.saturating_sub(7) && expected.ids.len() > 1;
            let mut bench = bench();
            bench.submit(request, 1000);
            bench.run();
            assert_eq!(bench.outcomes(), [expected]);
        }
    }
    assert!(cut_inside);
}

/// The usage of each of these requests, one after the other.
fn usages(limits: Limits, config: EngineConfig, requests: &[Request]) -> Vec<Usage> {
    let mut bench = Bench::new(FakeExecutor::new(limits.clone()), config);
    let capacity = bench.scheduler.capacity();
    for request in requests {
        bench.submit(request.clone(), 1000);
        bench.run();
    }
    bench.scheduler.kv.check_integrity([]).unwrap();
    let events = bench.events();
    let usages = events.iter().map(|events| match events.last() {
        Some(Event::Finished { usage, .. }) => *usage,
        other => panic!("{other:?}"),
    });
    let usages = usages.collect();
    for (events, request) in events.into_iter().zip(requests) {
        assert_eq!(outcome(events), oracle(request, 0, capacity));
    }
    usages
}

#[test]
fn a_prompt_that_begins_like_an_earlier_one_is_not_computed_again() {
    let (limits, config) = (FakeExecutor::small_limits(), EngineConfig::default());
    let block = limits.block_tokens;
    let long: Vec<TokenId> = (0..6 * block as u32 + 1).map(|i| i % 31).collect();
    let mut other = long.clone();
    other[3 * block] = 31;
    let requests =
        [long.clone(), long.clone(), other, long[..2 * block].to_vec()].map(|prompt| greedy(prompt, 2));
    let cached = |config| {
        usages(limits.clone(), config, &requests).iter().map(|u| u.cached_tokens).collect::<Vec<_>>()
    };
    // The last one is whole blocks, but its last token has to be computed.
    assert_eq!(cached(config.clone()), [0, 6 * block, 3 * block, block]);
    assert_eq!(cached(EngineConfig { prefix_cache: false, ..config }), [0; 4]);
}

#[test]
fn a_conversation_goes_on_where_it_ended_with_a_sliding_window_too() {
    for window in [3, 4, 5, 9] {
        let groups =
            [CacheGroup { blocks: 40, window: None }, CacheGroup { blocks: 12, window: Some(window) }];
        let limits = Limits { block_tokens: 4, groups: groups.to_vec(), ..FakeExecutor::small_limits() };
        let config = EngineConfig { step_tokens: 8, ..EngineConfig::default() };
        let first = greedy(vec![1; 10], 21);
        let answer = oracle(&first, 0, 96).ids;
        assert_eq!(answer.len(), 21);
        let second = greedy([first.prompt.clone(), answer, vec![5, 6, 7]].concat(), 4);
        let usages = usages(limits, config, &[first, second]);
        // 31 tokens, of which the last one was never computed: seven blocks.
        assert_eq!(usages[1].cached_tokens, 28, "a window of {window}");
    }
}

#[test]
fn what_was_used_longest_ago_is_given_up_when_memory_is_needed() {
    let groups = vec![CacheGroup { blocks: 12, window: None }];
    let limits = Limits { block_tokens: 4, groups, ..FakeExecutor::small_limits() };
    let prompt = |id: TokenId| greedy(vec![id; 17], 1);
    // Four whole blocks each: the third takes what the second had, as the first was used again; the last finds the first.
    let requests = [1, 2, 1, 3, 1].map(prompt);
    let usages = usages(limits, EngineConfig::default(), &requests);
    assert_eq!(usages.iter().map(|u| u.cached_tokens).collect::<Vec<_>>(), [0, 0, 16, 0, 16]);
}

#[test]
fn those_who_compute_the_same_at_once_end_up_with_one_copy() {
    let mut bench = bench();
    for _ in 0..3 {
        bench.submit(greedy(vec![9; 30], 20), 1000);
    }
    let used = |bench: &Bench| {
        bench.scheduler.running.iter().map(|r| r.cache.tables()[0].blocks[0]).collect::<Vec<_>>()
    };
    (0..12).for_each(|_| bench.step());
    let blocks = used(&bench);
    assert_eq!(blocks.len(), 3);
    assert!(blocks.iter().all(|block| *block == blocks[0]), "{blocks:?}");
    bench.run();
    assert!(bench.outcomes().iter().all(|outcome| *outcome == oracle(&greedy(vec![9; 30], 20), 0, 96)));
}

#[test]
fn cancelling_frees_the_blocks_for_the_very_next_step() {
    for turns in 1..20 {
        let mut bench = bench();
        // Either prompt takes more than half of the cache.
        let mut limits = FakeExecutor::small_limits();
        limits.groups[0].blocks = 24;
        bench.scheduler =
            Scheduler::new(FakeExecutor::new(limits), table().into(), &EngineConfig::default()).unwrap();
        let first = bench.submit(greedy(vec![1; 60], 30), 1000);
        bench.submit(greedy(vec![2; 50], 40), 1000);
        (0..turns).for_each(|_| bench.step());
        assert_eq!((bench.scheduler.running.len(), bench.scheduler.waiting.len()), (1, 1));
        first.cancel();
        bench.step();
        assert_eq!(bench.scheduler.running[0].id, SeqId(1));
        bench.run();
        let outcomes = bench.outcomes();
        assert_eq!(outcomes[0].reason, FinishReason::Cancelled);
        assert_eq!(outcomes[1], oracle(&greedy(vec![2; 50], 40), 0, 96));
    }
}

#[test]
fn a_deadline_ends_what_runs_and_what_waits() {
    let mut bench = bench();
    let late = Request { deadline: Some(Duration::ZERO), ..greedy(vec![1; 5], 40) };
    bench.submit(late.clone(), 1000);
    bench.submit(greedy(vec![2; 5], 9), 1000);
    bench.run();
    // One that runs: its time is over after some steps.
    bench.submit(Request { deadline: Some(Duration::from_secs(3600)), ..late }, 1000);
    (0..5).for_each(|_| bench.step());
    bench.scheduler.running[0].job.request.deadline = Some(Duration::ZERO);
    bench.run();
    let outcomes = bench.outcomes();
    assert_eq!((&outcomes[0].reason, outcomes[0].ids.len()), (&FinishReason::Deadline, 0));
    assert_eq!(outcomes[1], oracle(&greedy(vec![2; 5], 9), 0, 96));
    assert_eq!(outcomes[2].reason, FinishReason::Deadline);
    assert!(!outcomes[2].ids.is_empty());
}

/// As on a CPU, where a step is computed while it is waited for: the next one, already handed over, is not computed.
#[test]
fn cancelling_during_a_step_takes_the_next_one_back() {
    let canceller = Canceller::default();
    let waited = Arc::new(Mutex::new(0));
    let executor = FakeExecutor::new(FakeExecutor::small_limits()).on_wait({
        let (canceller, waited) = (canceller.clone(), waited.clone());
        move |_, _| {
            *waited.lock().unwrap() += 1;
            canceller.cancel();
            Ok(())
        }
    });
    let config = EngineConfig { step_tokens: 4, ..EngineConfig::default() };
    let mut bench = Bench::new(executor, config);
    let (sink, source) = channel(1000);
    bench.clients.push((source, canceller.clone()));
    let (submitted, place) = (Instant::now(), None);
    bench.scheduler.enqueue(Job {
        request: greedy(vec![1; 30], 10),
        constraint: None,
        pool: None,
        sink,
        canceller,
        submitted,
        place,
    });
    bench.run();
    assert_eq!(*waited.lock().unwrap(), 1);
    // What was computed is remembered, and no more.
    bench.submit(greedy(vec![1; 30], 10), 1000);
    bench.clients[1].1.cancel();
    bench.run();
    bench.submit(greedy(vec![1; 30], 10), 1000);
    bench.step();
    assert_eq!(bench.scheduler.running[0].cache.len(), 12);
    bench.run();
    let outcomes = bench.outcomes();
    assert_eq!(outcomes[0].reason, FinishReason::Cancelled);
    assert_eq!(outcomes[2], oracle(&greedy(vec![1; 30], 10), 0, 96));
}

#[test]
fn cancelling_ends_what_waits() {
    let mut bench = bench();
    bench.submit(greedy(vec![1], 90), 1000);
    for _ in 0..20 {
        bench.submit(greedy(vec![1], 90), 1000).cancel();
    }
    bench.step();
    assert!(bench.scheduler.waiting.is_empty());
    bench.run();
    let events = bench.events();
    assert!(matches!(events[20][..], [Event::Finished { reason: FinishReason::Cancelled, .. }]));
}

#[test]
fn a_slow_reader_is_cut_off_at_its_bound() {
    let mut bench = bench();
    bench.submit(greedy(vec![1; 40], 50), 5);
    bench.submit(greedy(vec![2; 40], 30), 1000);
    bench.run();
    let events = bench.events();
    assert_eq!(events[0].len(), 6);
    assert!(matches!(events[0][5], Event::Finished { reason: FinishReason::SlowReader(5), .. }));
    assert_eq!(outcome(events[1].clone()), oracle(&greedy(vec![2; 40], 30), 0, 96));
}

#[test]
fn prompts_are_chunked_and_hold_nobody_up() {
    let plans = Arc::new(Mutex::new(Vec::<Vec<usize>>::new()));
    let seen = plans.clone();
    let executor = FakeExecutor::new(FakeExecutor::small_limits()).on_submit(move |_, plan| {
        seen.lock().unwrap().push(plan.rows.iter().map(|row| row.tokens.len()).collect());
        Ok(())
    });
    let mut bench = Bench::new(executor, EngineConfig { step_tokens: 8, in_flight: 1, ..Default::default() });
    bench.submit(greedy(vec![1], 5), 1000);
    bench.step();
    bench.submit(greedy(vec![2; 20], 1), 1000);
    bench.run();
    // One generated token per step, and what is left of its eight tokens for the prompt.
    assert_eq!(*plans.lock().unwrap(), [vec![1], vec![1, 7], vec![1, 7], vec![1, 6], vec![1]]);
    let progress: Vec<Event> = bench.events().remove(1).drain(1..4).collect();
    assert_eq!(progress, [7, 14, 20].map(|done| Event::Prefill { done }));
}

#[test]
fn pipelining_feeds_tokens_from_the_step_before() {
    let from_step = Arc::new(Mutex::new((0, 0)));
    let seen = from_step.clone();
    let executor = FakeExecutor::new(FakeExecutor::small_limits()).on_submit(move |_, plan| {
        let mut seen = seen.lock().unwrap();
        for row in &plan.rows {
            seen.0 += usize::from(matches!(row.tokens, Tokens::FromStep { .. }));
            seen.1 += 1;
        }
        Ok(())
    });
    let mut bench = Bench::new(executor, EngineConfig::default());
    bench.submit(greedy(vec![1], 10), 1000);
    bench.run();
    // All but the prompt; none beyond the ten.
    assert_eq!(*from_step.lock().unwrap(), (9, 10));
}

#[test]
fn a_device_error_is_final() {
    let executor = FakeExecutor::new(FakeExecutor::small_limits())
        .on_wait(|step, _| if step.0 == 3 { Err(StepError::Device("gone".into())) } else { Ok(()) });
    let mut bench = Bench::new(executor, EngineConfig::default());
    bench.submit(greedy(vec![1], 10), 1000);
    let error = std::iter::from_fn(|| Some(bench.scheduler.step())).find_map(Result::err);
    assert_eq!(error.as_deref(), Some("gone"));
    bench.scheduler.finish_all(FinishReason::Error("gone".into()));
    bench.check();
    assert_eq!(bench.outcomes()[0].ids.len(), 2);
}
