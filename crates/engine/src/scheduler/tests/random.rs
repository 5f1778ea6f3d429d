//! Random requests on random machines.

use proptest::prelude::*;

use super::*;
use crate::sampling::{Mirostat, Sampler, Samplers};

/// Grammars over the letters that [`table`] has; it has each of them alone, so no text gets stuck.
fn constraint() -> impl Strategy<Value = Constraint> {
    let regex = ["(ab|c)+", "[ab]{3}c{2,5}", "a*b(c|ca)*", "(a[bc]){4}"].map(String::from);
    let begin = prop_oneof![
        4 => Just(Begin::Now),
        1 => (0u32..32).prop_map(Begin::AfterToken),
        2 => "[abc]{1,3}".prop_map(Begin::AfterText),
    ];
    (proptest::sample::select(regex.to_vec()), begin)
        .prop_map(|(regex, begin)| Constraint { grammar: Grammar::Regex(regex), begin })
}

/// Long ones hold tokens back, short ones take many back.
fn banned() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let string = prop_oneof!["[abc]{3,7}", "[abc]{1,2}"].prop_map(String::into_bytes);
    prop_oneof![Just(vec![]), proptest::collection::vec(string, 1..4)]
}

pub(super) fn request() -> impl Strategy<Value = Request> {
    let sampling = (any::<u64>(), 0..3, 0..8).prop_map(|(seed, temperature, extra)| SamplingParams {
        temperature: temperature as f32,
        seed: Some(seed),
        repetition_penalty: if extra == 1 { 1.5 } else { 1.0 },
        frequency_penalty: if extra == 2 { 0.5 } else { 0.0 },
        penalty_window: 9,
        typical_p: if extra == 3 { 0.6 } else { 1.0 },
        mirostat: Mirostat { version: if extra == 6 { 2 } else { 0 }, tau: 2.5, eta: 0.3 },
        samplers: match extra {
            7 => Samplers::new(&[Sampler::Temperature, Sampler::TopP, Sampler::TopK]).unwrap(),
            _ => Samplers::DEFAULT,
        },
        logit_bias: if extra == 4 { vec![(3, 2.0), (5, f32::NEG_INFINITY)] } else { vec![] },
        ..SamplingParams::default()
    });
    let stop = (
        proptest::collection::vec(0u32..32, 0..3),
        proptest::collection::vec("[abc]{2,6}".prop_map(String::into_bytes), 0..3),
    );
    // Prompts that begin alike, as conversations do.
    let alike = (0usize..30, proptest::collection::vec(0u32..32, 1..10)).prop_map(|(shared, rest)| {
        (0..shared as u32).map(|i| i * 7 % 32).chain(rest).collect::<Vec<TokenId>>()
    });
    (
        prop_oneof![proptest::collection::vec(0u32..32, 1..40), alike],
        proptest::option::weighted(0.9, 1usize..25),
        sampling,
        stop.prop_map(|(tokens, strings)| Stop { tokens, strings }),
        proptest::option::weighted(0.2, 0u8..4),
        prop_oneof![Just((0usize, 0usize)), (1usize..9, Just(0)), (Just(0), 1usize..9)],
        -1i32..2,
        proptest::option::weighted(0.3, constraint()),
        banned(),
    )
        .prop_map(
            |(prompt, max_tokens, sampling, stop, logprobs, guesses, priority, constraint, banned)| {
                let (lookup, draft) = guesses;
                Request {
                    banned,
                    prompt,
                    max_tokens,
                    sampling,
                    stop,
                    logprobs,
                    lookup,
                    draft,
                    constraint,
                    priority,
                    ..Request::default()
                }
            },
        )
}

/// A request, the turn it arrives in, and after how many more it is cancelled.
fn arrival() -> impl Strategy<Value = (Request, usize, Option<usize>)> {
    (request(), 0usize..40, proptest::option::weighted(0.2, 0usize..30))
}

pub(super) fn machine() -> impl Strategy<Value = (Limits, EngineConfig)> {
    let limits = (1usize..20, 1usize..6, 1usize..6, 2usize..12, 0usize..40, 0usize..20);
    let config = (1usize..8, 1usize..20, 1usize..3, proptest::bool::weighted(0.8));
    (limits, config).prop_map(|(limits, (max_running, step_tokens, in_flight, prefix_cache))| {
        let (max_tokens, max_outputs, block_tokens, window, more, more_windowed) = limits;
        // Down to what a sequence of about 40 needs.
        let (full, windowed) = (40 / block_tokens + 1 + more, 12 + more_windowed);
        let groups = [(full, None), (windowed, Some(window))];
        let groups = groups.map(|(blocks, window)| CacheGroup { blocks, window }).to_vec();
        let limits = Limits {
            vocab: VOCAB,
            context: 64,
            max_tokens,
            max_outputs,
            block_tokens,
            groups,
            bidirectional: false,
        };
        let config =
            EngineConfig { max_running, step_tokens, in_flight, prefix_cache, ..EngineConfig::default() };
        (limits, config)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The property that matters: arrival, company, chunks, cache and pipelining change nothing for anybody, and when
    /// all is over every block is free.
    #[test]
    fn a_request_gets_what_it_gets_alone(
        arrivals in proptest::collection::vec(arrival(), 1..12),
        (limits, config) in machine(),
        // As good as the model, or knowing less.
        draft in proptest::option::of((machine(), 26usize..36)),
    ) {
        let mut bench = Bench::new(FakeExecutor::new(limits.clone()), config);
        if let Some(((limits, _), vocab)) = draft {
            bench = bench.with_draft(FakeExecutor::new(Limits { vocab, ..limits }));
        }
        let capacity = bench.scheduler.capacity();
        let mut arrivals: Vec<_> =
            arrivals.into_iter().filter(|(request, ..)| request.validate(&limits, capacity).is_ok()).collect();
        arrivals.sort_by_key(|&(_, turn, _)| turn);
        let (mut coming, mut cancels) = (arrivals.iter(), Vec::new());
        for turn in 0..80 {
            while coming.as_slice().first().is_some_and(|(_, at, _)| *at <= turn) {
                let (request, _, patience) = coming.next().unwrap();
                let canceller = bench.submit(request.clone(), 1000);
                cancels.extend(patience.map(|patience| (turn + patience, canceller)));
            }
            cancels.iter().filter(|(at, _)| *at == turn).for_each(|(_, canceller)| canceller.cancel());
            bench.step();
        }
        bench.run();
        bench.scheduler.kv.check_integrity([]).unwrap();
        for ((request, ..), outcome) in arrivals.iter().zip(bench.outcomes()) {
            let expected = oracle(request, request.sampling.seed.unwrap(), capacity);
            if outcome.reason == FinishReason::Cancelled {
                prop_assert!(expected.ids.starts_with(&outcome.ids));
                prop_assert!(expected.text.starts_with(&outcome.text));
            } else {
                prop_assert_eq!(outcome, expected);
            }
        }
    }

    /// Requests of which some fail, by their rows or by NaN logits, leave the others untouched. (With one priority, sequences are
    /// numbered as requests are; one whose cache is given up to go back is numbered anew.)
    #[test]
    fn errors_end_only_their_requests(
        requests in proptest::collection::vec(request().prop_map(|r| Request { priority: 0, banned: vec![], ..r }), 1..6),
        fails in proptest::collection::vec((0u64..6, 0u64..20, any::<bool>()), 0..4),
        nan_after in proptest::option::of(0u32..32),
        in_flight in 1usize..3,
    ) {
        let hook = |submit: bool| {
            let fails = fails.clone();
            move |step: StepId, plan: &StepPlan| {
                let due = |row: &&PlanRow| {
                    fails.iter().any(|&(seq, at, on)| row.seq.0 == seq && step.0 >= at && on == submit)
                };
                let rows: Vec<usize> = (0..plan.rows.len()).filter(|&row| due(&&plan.rows[row])).collect();
                if rows.is_empty() { Ok(()) } else { Err(StepError::Rows { rows, what: "scripted".into() }) }
            }
        };
        let limits = FakeExecutor::small_limits();
        let mut executor = FakeExecutor::new(limits.clone()).on_submit(hook(true)).on_wait(hook(false));
        if let Some(token) = nan_after {
            executor = executor.nan_after(token);
        }
        let mut bench = Bench::new(executor, EngineConfig { in_flight, ..EngineConfig::default() });
        for request in &requests {
            bench.submit(request.clone(), 1000);
        }
        bench.run();
        for (seq, (request, outcome)) in requests.iter().zip(bench.outcomes()).enumerate() {
            let expected = oracle(request, request.sampling.seed.unwrap(), limits.context);
            let scripted = fails.iter().any(|&(at, ..)| at == seq as u64);
            match &outcome.reason {
                // One text stands for all that failed in a step, so only that there was a cause can be checked.
                FinishReason::Error(what) => {
                    let last = outcome.ids.last().or(request.prompt.last()).copied();
                    prop_assert!(scripted || last == nan_after, "{}", what);
                    prop_assert!(expected.ids.starts_with(&outcome.ids));
                }
                _ => prop_assert_eq!(outcome, expected),
            }
        }
    }
}
