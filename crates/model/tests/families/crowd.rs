//! Many requests at once against each by itself.

use minfer_engine::executor::{Executor, TokenId};
use minfer_engine::{Engine, EngineConfig, Event, FinishReason, Request, SamplingParams, TokenTable};

/// Requests of a crowd.
const REQUESTS: usize = 64;
/// Longest prompt, and most tokens after it: a cache for three blocks of 64 holds one of them.
const PROMPT: usize = 130;
const MORE: usize = 24;
pub(crate) const CONTEXT: usize = 192;

/// A sequence of numbers that is the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % bound
    }
}

/// 64 prompts, every second one of which begins as others do.
fn requests(vocab: usize) -> Vec<Request> {
    let mut numbers = Numbers(vocab as u64);
    let mut tokens =
        |count: usize| -> Vec<TokenId> { (0..count).map(|_| numbers.below(vocab) as TokenId).collect() };
    let shared = [tokens(64), tokens(70), tokens(PROMPT - 1)];
    let mut numbers = Numbers(7);
    (0..REQUESTS)
        .map(|index| {
            let begin: &[TokenId] = if index % 2 == 0 { &shared[index / 2 % 3] } else { &[] };
            let rest = 1 + numbers.below(PROMPT - begin.len());
            Request {
                prompt: [begin, &tokens(rest)].concat(),
                max_tokens: Some(1 + numbers.below(MORE)),
                sampling: SamplingParams::greedy(),
                ..Request::default()
            }
        })
        .collect()
}

/// What a request got, and how much of its prompt was known.
fn outcome(handle: impl Iterator<Item = Event>) -> (Vec<TokenId>, usize) {
    let (mut ids, mut known) = (Vec::new(), 0);
    for event in handle {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Finished { reason, usage, .. } => {
                assert_eq!(reason, FinishReason::Length);
                known = usage.cached_tokens;
            }
            _ => {}
        }
    }
    (ids, known)
}

/// Compares greedy texts of 64 requests, each alone in an engine that knows nothing, with those of `rounds` crowds: in another order
/// each time, some later than others, in chunks and batches of other sizes, with a cache of a few sequences, whoever
/// needs it; in every second one many are guessed, by what has been said or by the model itself with less cache. `model` makes a model whose cache holds so many sequences of [`CONTEXT`] tokens.
pub(crate) fn each_gets_what_it_gets_alone<E: Executor + Send + 'static>(
    name: &str,
    rounds: usize,
    model: &dyn Fn(usize) -> E,
) {
    let config = EngineConfig { max_running: 1, prefix_cache: false, ..EngineConfig::default() };
    let start = |sequences: usize, drafts: bool, config: EngineConfig| {
        let executor = model(sequences);
        let vocab = executor.limits().vocab;
        let table: TokenTable = (0..vocab).map(|_| [b'x']).collect();
        let engine = match drafts {
            true => Engine::with_draft(executor, model(1), table, config),
            false => Engine::new(executor, table, config),
        };
        (engine.expect("an engine"), vocab)
    };
    let (engine, vocab) = start(1, false, config);
    let requests = requests(vocab);
    let alone: Vec<_> =
        requests.iter().map(|r| outcome(engine.submit(r.clone()).expect("a place")).0).collect();
    drop(engine);
    let mut numbers = Numbers(11);
    let mut known = 0;
    for round in 0..rounds {
        let config = EngineConfig {
            max_running: [3, 64, 17, 8][round % 4],
            step_tokens: [16, 512, 7, 130][round % 4].max([3, 64, 17, 8][round % 4]),
            in_flight: 1 + round % 2,
            prefix_cache: round % 3 != 2,
            ..EngineConfig::default()
        };
        let drafts = round % 2 == 1;
        let (engine, _) = start([1, 4, 2, 12][round % 4], drafts, config.clone());
        let mut left: Vec<usize> = (0..REQUESTS).collect();
        let mut under_way = Vec::new();
        while !left.is_empty() || !under_way.is_empty() {
            // A few come; then a few of those that are there are heard to their end.
            for _ in 0..(1 + numbers.below(24)).min(left.len()) {
                let index = left.swap_remove(numbers.below(left.len()));
                let (lookup, draft) = if drafts { [(0, 3), (3, 0), (0, 0)][index % 3] } else { (0, 0) };
                let request = Request { lookup, draft, ..requests[index].clone() };
                under_way.push((index, engine.submit(request).expect("a place")));
            }
            for _ in 0..(1 + numbers.below(16)).min(under_way.len()) {
                let (index, handle) = under_way.swap_remove(numbers.below(under_way.len()));
                let (ids, cached) = outcome(handle);
                assert_eq!(ids, alone[index], "{name}: request {index} in round {round}, {config:?}");
                known += cached;
            }
        }
    }
    assert!(known > 0, "{name}: nothing was known");
}
