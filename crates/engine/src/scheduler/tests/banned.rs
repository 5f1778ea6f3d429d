//! Texts that must not have strings in them.

use super::*;
use crate::sampling::{Dry, Mirostat};

fn run(request: Request) -> (Outcome, Usage) {
    let mut bench = bench();
    bench.submit(request.clone(), 1000);
    bench.run();
    bench.scheduler.kv.check_integrity([]).unwrap();
    let events = bench.events().remove(0);
    let Some(Event::Finished { usage, .. }) = events.last() else { panic!("{events:?}") };
    let usage = *usage;
    let outcome = outcome(events);
    assert_eq!(outcome, oracle(&request, request.sampling.seed.unwrap_or(0), 96));
    (outcome, usage)
}

fn contains(text: &[u8], string: &[u8]) -> bool {
    text.windows(string.len()).any(|window| window == string)
}

/// Every part of a text is banned in turn, so that the string begins and ends everywhere in tokens.
#[test]
fn what_is_banned_never_comes_whatever_else_there_is() {
    let plain = oracle(&greedy(vec![1, 2, 3], 40), 0, 96);
    let mirostat = SamplingParams {
        mirostat: Mirostat { version: 2, tau: 2.0, eta: 0.4 },
        seed: Some(4),
        ..SamplingParams::default()
    };
    let penalties = SamplingParams { frequency_penalty: 0.5, ..SamplingParams::greedy() };
    let dry = SamplingParams { dry: Dry { multiplier: 3.0, ..Dry::default() }, ..SamplingParams::greedy() };
    let free = SamplingParams { temperature: 1.5, seed: Some(3), ..SamplingParams::default() };
    for start in 0..plain.text.len() - 8 {
        for len in 1..8 {
            let string = plain.text[start..start + len].to_vec();
            let request = Request { banned: vec![string.clone()], ..greedy(vec![1, 2, 3], 40) };
            for request in [
                Request { lookup: 4, ..request.clone() },
                Request { logprobs: Some(2), ..request.clone() },
                Request { sampling: mirostat.clone(), ..request.clone() },
                Request { sampling: penalties.clone(), ..request.clone() },
                Request { sampling: dry.clone(), lookup: 3, ..request.clone() },
                Request { sampling: free.clone(), ..request.clone() },
                request,
            ] {
                let (outcome, usage) = run(request.clone());
                assert!(!contains(&outcome.text, &string), "{:?} {string:?}", outcome.text);
                assert_eq!(usage.completion_tokens, outcome.ids.len());
            }
        }
    }
}

/// Nobody hears of what is taken back: the events of a run are at every turn the beginning of its outcome.
#[test]
fn what_is_shown_is_never_taken_back() {
    let mut held = 0;
    for start in 0..30 {
        let banned = [&b"abcab"[..], b"cc", b"bacb"].map(<[u8]>::to_vec).to_vec();
        let request = Request { banned, ..greedy(vec![start, start / 2], 60) };
        let expected = oracle(&request, 0, 96);
        let mut bench = bench();
        bench.submit(request, 1000);
        let (mut ids, mut text) = (Vec::new(), Vec::new());
        while !bench.scheduler.is_idle() {
            bench.step();
            while let Some(event) = bench.clients[0].0.try_recv() {
                if let Event::Token { id, bytes, .. } = event {
                    ids.push(id);
                    text.extend(bytes);
                }
            }
            assert!(expected.ids.starts_with(&ids) && expected.text.starts_with(&text));
            if let Some(running) = bench.scheduler.running.first() {
                held += running.tokens().len() - 2 - ids.len();
            }
        }
        assert_eq!((ids, text), (expected.ids, expected.text));
    }
    assert!(held > 100, "{held}");
}

#[test]
fn a_dead_end_is_an_end_that_says_so() {
    // Each letter is banned, so only the special tokens are left.
    let letters = [b"a", b"b", b"c"].map(|letter| letter.to_vec()).to_vec();
    let mut request = Request { banned: letters, ..greedy(vec![1, 2, 3], 5) };
    let (outcome, _) = run(request.clone());
    assert!(outcome.ids.iter().all(|id| *id >= 28) && outcome.reason == FinishReason::Length);
    // Those are forbidden too.
    request.sampling.logit_bias = (28..32).map(|id| (id, f32::NEG_INFINITY)).collect();
    let (outcome, _) = run(request.clone());
    assert_eq!((outcome.ids.len(), &outcome.reason), (0, &FinishReason::Banned));
    // After text that was withheld for a stop string.
    request.constraint = Some(Constraint { grammar: Grammar::Regex("aa[bc]+".into()), begin: Begin::Now });
    request.banned = vec![b"b".to_vec(), b"c".to_vec()];
    request.stop.strings = vec![b"aa!".to_vec()];
    let (outcome, usage) = run(request);
    assert_eq!((&outcome.text[..], &outcome.reason), (&b"aa"[..], &FinishReason::Banned));
    assert_eq!(usage.completion_tokens, outcome.ids.len());
}

/// A constraint that leaves nothing else is a dead end too, and goes back with the text.
#[test]
fn a_constraint_goes_back_with_the_text() {
    let constrained = |regex: &str, begin, banned: &[&str]| Request {
        constraint: Some(Constraint { grammar: Grammar::Regex(regex.into()), begin }),
        banned: banned.iter().map(|string| string.as_bytes().to_vec()).collect(),
        ..greedy(vec![1, 2, 3], 40)
    };
    let (outcome, _) = run(constrained("(ab|c){5}", Begin::Now, &["cc", "abc"]));
    // After c comes no c, and after ab none.
    assert!([&b"cabababab"[..], b"ababababab"].contains(&&outcome.text[..]), "{:?}", outcome.text);
    let (outcome, _) = run(constrained("abcabc", Begin::Now, &["bca"]));
    assert_eq!(outcome.reason, FinishReason::Banned);
    for begin in [Begin::AfterText("bca".into()), Begin::AfterToken(7)] {
        let (outcome, _) = run(constrained("(c|ab)*", begin, &["cc", "bcaa", "aba"]));
        assert!(!contains(&outcome.text, b"cc") && !contains(&outcome.text, b"aba"));
    }
}

/// Each place goes on trying as long as there are tokens, but not for ever.
#[test]
fn attempts_in_vain_are_bounded() {
    const VOCAB: usize = 3000;
    let limits = Limits { vocab: VOCAB, ..FakeExecutor::small_limits() };
    let executor = FakeExecutor::new(limits);
    let table: TokenTable = (0..VOCAB).map(|id| format!("a{id}")).collect();
    let scheduler = Scheduler::new(executor, table.into(), &EngineConfig::default()).unwrap();
    let mut bench = Bench { scheduler, clients: Vec::new() };
    bench.submit(Request { banned: vec![b"a".to_vec()], ..greedy(vec![1], 40) }, 1000);
    bench.run();
    let events = bench.events().remove(0);
    assert!(matches!(events.last(), Some(Event::Finished { reason: FinishReason::Banned, .. })));
}

/// Going back past what a sliding window, or the prefix cache, has kept.
#[test]
fn going_back_far_is_going_back_right() {
    for (window, block_tokens) in [(1, 1), (2, 2), (3, 4), (9, 2)] {
        let groups =
            [CacheGroup { blocks: 120, window: None }, CacheGroup { blocks: 30, window: Some(window) }];
        let limits = Limits { block_tokens, groups: groups.to_vec(), ..FakeExecutor::small_limits() };
        let config = EngineConfig { step_tokens: 8, ..EngineConfig::default() };
        for start in 0..20 {
            let plain = oracle(&greedy(vec![start, 2], 40), 0, 96);
            let banned = vec![plain.text[10..26].to_vec()];
            let request = Request { banned, ..greedy(vec![start, 2], 40) };
            let requests = [request.clone(), request];
            let usages = usages(limits.clone(), config.clone(), &requests);
            assert_eq!(usages[0].completion_tokens, usages[1].completion_tokens);
        }
    }
}
