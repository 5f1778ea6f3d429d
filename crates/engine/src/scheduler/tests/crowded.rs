//! More requests than the cache holds.

use super::*;
use crate::sampling::Mirostat;

/// Four requests that fit at their beginning and not at their end.
fn crowded(priorities: [i32; 4]) -> (Vec<Request>, Bench) {
    let groups = vec![CacheGroup { blocks: 24, window: None }];
    let limits = Limits { block_tokens: 4, groups, ..FakeExecutor::small_limits() };
    let mut bench = Bench::new(FakeExecutor::new(limits), EngineConfig::default());
    let request =
        |(i, priority): (usize, i32)| Request { priority, ..greedy(vec![i as TokenId + 1; 8 + i], 60) };
    let requests: Vec<Request> = priorities.into_iter().enumerate().map(request).collect();
    requests.iter().for_each(|request| _ = bench.submit(request.clone(), 1000));
    (requests, bench)
}

#[test]
fn who_is_set_back_for_others_does_not_notice() {
    let (requests, mut bench) = crowded([0; 4]);
    let (mut set_back, mut together) = (0, 0);
    while !bench.scheduler.is_idle() {
        bench.step();
        let waiting = &bench.scheduler.waiting;
        set_back = set_back.max(waiting.iter().filter(|w| matches!(w, Waiting::SetBack(_))).count());
        together = together.max(bench.scheduler.running.len());
        // In order of arrival: the first is never set back.
        assert!(waiting.iter().all(|w| matches!(w, Waiting::New(_)) || w.tokens()[0] != 1));
    }
    assert_eq!((set_back, together), (3, 4));
    for (request, outcome) in requests.iter().zip(bench.outcomes()) {
        assert_eq!(outcome, oracle(request, 0, 96));
    }
}

#[test]
fn the_highest_priority_comes_first_and_is_never_set_back() {
    let (requests, mut bench) = crowded([0, 1, 0, 7]);
    let mut ended = Vec::new();
    while !bench.scheduler.is_idle() {
        bench.step();
        let of = |r: &Running| r.job.request.prompt[0];
        let running: Vec<TokenId> = bench.scheduler.running.iter().map(of).collect();
        let waiting = bench.scheduler.waiting.iter().map(|w| w.tokens()[0]).collect::<Vec<_>>();
        let left = |id: &TokenId| !running.contains(id) && !waiting.contains(id) && !ended.contains(id);
        let gone: Vec<TokenId> = [1, 2, 3, 4].into_iter().filter(left).collect();
        ended.extend(gone);
        assert!(ended.contains(&4) || running.contains(&4));
    }
    assert_eq!(ended[..2], [4, 2]);
    for (request, outcome) in requests.iter().zip(bench.outcomes()) {
        assert_eq!(outcome, oracle(request, 0, 96));
    }
}

/// What mirostat has learned stays when the cache is given up, and is nobody else's.
#[test]
fn mirostat_goes_on_where_it_was() {
    let (mut requests, mut bench) = crowded([0; 4]);
    let mirostat = Mirostat { version: 2, tau: 2.0, eta: 0.4 };
    for (seed, request) in (0..).zip(&mut requests) {
        request.sampling = SamplingParams { mirostat, seed: Some(seed), ..SamplingParams::default() };
    }
    bench.clients.clear();
    bench.scheduler.waiting.clear();
    requests.iter().for_each(|request| _ = bench.submit(request.clone(), 1000));
    let mut set_back = 0;
    while !bench.scheduler.is_idle() {
        bench.step();
        set_back += bench.scheduler.waiting.iter().filter(|w| matches!(w, Waiting::SetBack(_))).count();
    }
    assert!(set_back > 0);
    for ((seed, request), outcome) in (0..).zip(&requests).zip(bench.outcomes()) {
        assert_eq!(outcome, oracle(request, seed, 96));
    }
}

/// 10,000 requests of random lengths and priorities over a tiny cache, of which some are cancelled, are late or begin like
/// others, are guessed or have strings banned: the accounts are right after every turn, everybody ends, and who is not cut short gets what it gets alone.
#[test]
fn ten_thousand_requests_leave_nothing_behind() {
    const REQUESTS: usize = 10_000;
    let mut state = 7u64;
    let mut below = move |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let groups = [CacheGroup { blocks: 30, window: None }, CacheGroup { blocks: 16, window: Some(6) }];
    let limits = Limits { block_tokens: 4, groups: groups.to_vec(), ..FakeExecutor::small_limits() };
    // One that knows all tokens but the last, with less cache.
    let groups = [CacheGroup { blocks: 20, window: None }, CacheGroup { blocks: 12, window: Some(6) }];
    let draft = Limits { vocab: VOCAB - 1, groups: groups.to_vec(), ..limits.clone() };
    let mut bench = Bench::new(FakeExecutor::new(limits), EngineConfig::default());
    bench = bench.with_draft(FakeExecutor::new(draft));
    let (mut requests, mut patience, mut set_back, mut turn) = (Vec::new(), Vec::new(), 0, 0);
    while requests.len() < REQUESTS || !bench.scheduler.is_idle() {
        for _ in 0..below(3).min(REQUESTS - requests.len()) {
            let shared = below(5) * 8;
            let prompt: Vec<TokenId> = (0..shared)
                .map(|i| i * 7 % 32)
                .chain((0..1 + below(20)).map(|_| below(32)))
                .map(|t| t as TokenId)
                .collect();
            let guesses = below(8);
            let (lookup, draft) = [(0, 0), (guesses, 0), (0, guesses)][below(3)];
            let mut letters = |count: usize| (0..count).map(|_| b"abc"[below(3)]).collect();
            let banned = match letters(2) {
                string if string == b"ab" => vec![string, letters(5)],
                string if string == b"ca" => vec![letters(4)],
                _ => vec![],
            };
            let request = Request {
                priority: below(3) as i32,
                deadline: (below(20) == 0).then_some(Duration::ZERO),
                lookup,
                draft,
                banned,
                ..greedy(prompt, 1 + below(30))
            };
            let canceller = bench.submit(request.clone(), 1000);
            if below(10) == 0 {
                patience.push((turn + below(40), canceller));
            }
            requests.push(request);
        }
        patience.retain(|(at, canceller)| {
            let due = *at <= turn;
            if due {
                canceller.cancel();
            }
            !due
        });
        bench.step();
        set_back += bench.scheduler.waiting.iter().filter(|w| matches!(w, Waiting::SetBack(_))).count();
        turn += 1;
        assert!(turn < 40 * REQUESTS, "somebody never ends");
    }
    bench.check();
    assert!(bench.scheduler.running.is_empty() && set_back > 100, "the cache was never full");
    let (mut whole, mut cached, mut accepted) = (0, 0, 0);
    for (request, events) in requests.iter().zip(bench.events()) {
        if let Some(Event::Finished { usage, .. }) = events.last() {
            cached += usage.cached_tokens;
            // Some that were right may have been taken back.
            assert!(usage.accepted_tokens <= usage.guessed_tokens);
            assert!(!request.banned.is_empty() || usage.accepted_tokens <= usage.completion_tokens);
            accepted += usage.accepted_tokens;
        }
        let outcome = outcome(events);
        let expected = oracle(request, 0, 96);
        match outcome.reason {
            FinishReason::Cancelled | FinishReason::Deadline => {
                assert!(expected.ids.starts_with(&outcome.ids))
            }
            _ => {
                assert_eq!(outcome, expected);
                whole += 1;
            }
        }
    }
    assert!(
        whole > REQUESTS * 8 / 10 && cached > REQUESTS && accepted > REQUESTS / 5,
        "{whole} {cached} {accepted}"
    );
}
