//! Texts that have to be something.

use super::*;

fn constrained(regex: &str, begin: Begin, request: Request) -> Request {
    let grammar = Grammar::Regex(regex.to_owned());
    Request { constraint: Some(Constraint { grammar, begin }), ..request }
}

fn run(request: Request) -> Outcome {
    let mut bench = bench();
    bench.submit(request.clone(), 1000);
    bench.run();
    let outcome = bench.outcomes().remove(0);
    assert_eq!(outcome, oracle(&request, 0, 96));
    outcome
}

#[test]
fn a_text_ends_when_its_grammar_does() {
    let outcome = run(constrained("(ab|c){5}", Begin::Now, greedy(vec![1, 2, 3], 40)));
    assert_eq!(outcome.reason, FinishReason::Stop(Stopped::Constraint));
    let text = String::from_utf8(outcome.text).unwrap();
    assert_eq!(text.replace("ab", "c"), "ccccc");
}

#[test]
fn a_text_may_end_by_a_stop_token_only_where_it_is_a_sentence() {
    let mut ends = 0;
    for start in 0..40 {
        let mut request = constrained("(abc)+", Begin::Now, greedy(vec![start % 32, start / 2], 60));
        // All of the special ones, so that they are often the most probable.
        request.stop.tokens = (28..32).collect();
        let outcome = run(request);
        let whole = outcome.text.len().is_multiple_of(3);
        assert!(outcome.text.chunks(3).all(|chunk| b"abc".starts_with(chunk)));
        if matches!(outcome.reason, FinishReason::Stop(Stopped::Token(_))) {
            assert!(whole);
            ends += 1;
        }
    }
    assert!(ends > 10, "{ends}");
}

#[test]
fn before_its_beginning_a_text_is_free_and_cannot_end() {
    let mut began = 0;
    for start in 0..60 {
        let after = Begin::AfterText("bca".into());
        let mut request = constrained("c{4}", after, greedy(vec![start % 32, start / 2], 80));
        request.stop.tokens = (28..32).collect();
        let outcome = run(request);
        let text = String::from_utf8(outcome.text).unwrap();
        match text.find("bca") {
            Some(at) => {
                began += 1;
                assert_eq!(&text[at + 3..], "cccc");
                assert_eq!(outcome.reason, FinishReason::Stop(Stopped::Constraint));
            }
            None => assert_eq!(outcome.reason, FinishReason::Length),
        }
    }
    assert!(began > 10, "{began}");
}

#[test]
fn sampling_sees_the_allowed_tokens_only() {
    // The most probable token of all is never allowed, so top-k 1 has to choose among the others.
    let mut request = constrained("c{20}", Begin::Now, greedy(vec![1, 2, 3], 20));
    request.sampling.logit_bias = vec![(0, 100.0)];
    (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) = (1.0, 1, Some(0));
    assert_eq!(run(request).text, b"c".repeat(20));
}

#[test]
fn who_is_set_back_goes_on_in_its_grammar() {
    let groups = vec![CacheGroup { blocks: 24, window: None }];
    let limits = Limits { block_tokens: 4, groups, ..FakeExecutor::small_limits() };
    let mut bench = Bench::new(FakeExecutor::new(limits), EngineConfig::default());
    let requests: Vec<Request> = (0..4)
        .map(|i| constrained("([ab]c)*", Begin::Now, greedy(vec![i + 1; 8 + i as usize], 60)))
        .collect();
    requests.iter().for_each(|request| _ = bench.submit(request.clone(), 1000));
    let mut set_back = 0;
    while !bench.scheduler.is_idle() {
        bench.step();
        let waiting = &bench.scheduler.waiting;
        set_back = set_back.max(waiting.iter().filter(|w| matches!(w, Waiting::SetBack(_))).count());
    }
    assert_eq!(set_back, 3);
    for (request, outcome) in requests.iter().zip(bench.outcomes()) {
        assert_eq!(outcome, oracle(request, 0, 96));
        assert!(
            outcome.text.chunks(2).all(|chunk| chunk[0] != b'c' && chunk.get(1).is_none_or(|&b| b == b'c'))
        );
    }
}

/// Guesses are checked against the grammar, of which the mask of each is computed when it has turned out right.
#[test]
fn a_constrained_text_is_guessed_too() {
    let mut accepted = 0;
    for start in 0..20 {
        let request =
            Request { lookup: 8, ..constrained("(abc)*", Begin::Now, greedy(vec![start, 2, 3], 80)) };
        let mut bench = bench();
        bench.submit(request.clone(), 1000);
        bench.run();
        let events = bench.events().remove(0);
        if let Some(Event::Finished { usage, .. }) = events.last() {
            accepted += usage.accepted_tokens;
        }
        assert_eq!(outcome(events), oracle(&request, 0, 96));
    }
    assert!(accepted > 20, "{accepted}");
}
