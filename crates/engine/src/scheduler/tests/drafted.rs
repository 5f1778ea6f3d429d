//! Texts whose next tokens a draft model guesses.

use super::*;
use crate::sampling::{Dry, Mirostat};

fn fake() -> FakeExecutor {
    FakeExecutor::new(FakeExecutor::small_limits())
}

/// A model that is alike and knows fewer tokens.
fn smaller(vocab: usize) -> FakeExecutor {
    FakeExecutor::new(Limits { vocab, ..FakeExecutor::small_limits() })
}

/// Runs requests one after the other, and compares each with what it gets without guesses.
fn run(draft: FakeExecutor, requests: &[Request]) -> Vec<Usage> {
    run_on(fake(), draft, requests)
}

fn run_on(model: FakeExecutor, draft: FakeExecutor, requests: &[Request]) -> Vec<Usage> {
    let mut bench = Bench::new(model, EngineConfig::default()).with_draft(draft);
    for request in requests {
        bench.submit(request.clone(), 1000);
        bench.run();
        bench.check();
    }
    let all = bench.events();
    let usages = all.iter().map(|events| match events.last() {
        Some(Event::Finished { usage, .. }) => *usage,
        other => panic!("{other:?}"),
    });
    let usages = usages.collect();
    for (request, events) in requests.iter().zip(all) {
        assert_eq!(outcome(events), oracle(request, request.sampling.seed.unwrap_or(0), 96));
    }
    usages
}

/// Ways to choose a token, by the device and by the host.
fn samplings() -> Vec<SamplingParams> {
    let free = SamplingParams { temperature: 1.5, seed: Some(3), ..SamplingParams::default() };
    vec![
        SamplingParams::greedy(),
        free.clone(),
        SamplingParams { frequency_penalty: 0.5, ..free.clone() },
        SamplingParams { mirostat: Mirostat { version: 2, tau: 2.0, eta: 0.4 }, ..free.clone() },
        SamplingParams { dry: Dry { multiplier: 3.0, ..Dry::default() }, ..free },
    ]
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    for sampling in samplings() {
        for draft in 1..9 {
            let request = Request { draft, sampling: sampling.clone(), ..greedy((0..23).collect(), 60) };
            // The cache grows a block at a time, so within a block there is room for every guess.
            let groups = [CacheGroup { blocks: 4, window: None }, CacheGroup { blocks: 4, window: Some(7) }];
            let limits = Limits { block_tokens: 96, groups: groups.to_vec(), ..FakeExecutor::small_limits() };
            let usage = run_on(FakeExecutor::new(limits), fake(), &[request])[0];
            // The first token follows the prompt; each step gives those that are guessed and one more, of eight at most.
            let steps = 59usize.div_ceil(draft.min(7) + 1);
            assert_eq!(usage.accepted_tokens, usage.guessed_tokens, "{sampling:?}");
            assert_eq!(usage.accepted_tokens, 59 - steps, "{usage:?} of {draft}");
        }
    }
}

#[test]
fn a_draft_that_is_mostly_wrong_changes_nothing() {
    let (mut guessed, mut accepted) = (0, 0);
    for sampling in samplings() {
        for vocab in [28, 31, 32, 40] {
            let request = Request { draft: 4, sampling: sampling.clone(), ..greedy(vec![1, 2, 3], 80) };
            let usage = run(smaller(vocab), &[request])[0];
            guessed += usage.guessed_tokens;
            accepted += usage.accepted_tokens;
        }
    }
    assert!(accepted > 50 && accepted < guessed * 9 / 10, "{accepted} of {guessed}");
}

/// With tokens that only the larger model has nothing is guessed, from where they come on.
#[test]
fn tokens_that_the_draft_does_not_have_are_not_asked_about() {
    let request = Request { draft: 4, ..greedy(vec![31, 2, 3], 30) };
    assert_eq!(run(smaller(31), &[request])[0].guessed_tokens, 0);
}

/// A text that goes back has its draft go back, and tokens that are excluded are not guessed.
#[test]
fn the_draft_goes_back_with_the_text() {
    let plain = oracle(&greedy(vec![1, 2, 3], 60), 0, 96);
    let mut accepted = 0;
    for (start, len) in [(0, 4), (7, 9), (20, 1), (30, 14), (3, 30)] {
        for sampling in samplings() {
            for constraint in
                [None, Some(Constraint { grammar: Grammar::Regex("[abc]*".into()), begin: Begin::Now })]
            {
                let request = Request {
                    draft: 5,
                    banned: vec![plain.text[start..start + len].to_vec(), b"abca".to_vec()],
                    sampling: sampling.clone(),
                    constraint,
                    ..greedy(vec![1, 2, 3], 60)
                };
                accepted += run(fake(), &[request])[0].accepted_tokens;
            }
        }
    }
    assert!(accepted > 1000, "{accepted}");
}

/// A cache of the draft's that holds less than the texts, a context that is shorter, and windows.
#[test]
fn where_the_draft_has_no_room_nothing_is_guessed() {
    for (blocks, window, context) in [(3, 40, 96), (9, 12, 96), (60, 12, 20), (60, 40, 1)] {
        let groups = [CacheGroup { blocks, window: None }, CacheGroup { blocks: window, window: Some(3) }];
        let limits =
            Limits { context, max_tokens: 5, groups: groups.to_vec(), ..FakeExecutor::small_limits() };
        let mut bench = bench().with_draft(FakeExecutor::new(limits));
        let requests: Vec<Request> =
            (0..6).map(|i| Request { draft: 3, ..greedy(vec![i; 9 + i as usize], 30) }).collect();
        requests.iter().for_each(|request| _ = bench.submit(request.clone(), 1000));
        bench.run();
        bench.check();
        for (request, outcome) in requests.iter().zip(bench.outcomes()) {
            assert_eq!(outcome, oracle(request, 0, 96));
        }
    }
}

/// Rows of the draft that fail guess nothing; a device that fails is the end.
#[test]
fn a_draft_that_fails_is_not_believed() {
    let request = Request { draft: 4, ..greedy(vec![1, 2, 3], 60) };
    let nan = oracle(&request, 0, 96).ids[9];
    let usage = run(fake().nan_after(nan), std::slice::from_ref(&request))[0];
    assert!(usage.accepted_tokens > 5 && usage.guessed_tokens < 59, "{usage:?}");
    let refuses = |step: StepId, _: &StepPlan| match step.0 {
        4 => Err(StepError::Rows { rows: vec![0], what: "scripted".into() }),
        _ => Ok(()),
    };
    run(fake().on_wait(refuses), std::slice::from_ref(&request));
    let dies = |step: StepId, _: &StepPlan| match step.0 {
        4 => Err(StepError::Device("melted".into())),
        _ => Ok(()),
    };
    let mut bench = bench().with_draft(fake().on_wait(dies));
    bench.submit(request, 1000);
    let error = std::iter::from_fn(|| Some(bench.scheduler.step())).find_map(Result::err);
    assert_eq!(error.as_deref(), Some("the draft model: melted"));
}

/// Guesses behind a wrong one may be of anything, NaN among it.
#[test]
fn a_nan_behind_a_wrong_guess_harms_nobody() {
    let mut wrong = 0;
    for start in 0..40u32 {
        for request in [
            Request { draft: 5, ..greedy(vec![start % 32, 2, 3], 40) },
            Request { draft: 5, logprobs: Some(1), ..greedy(vec![start % 32, 2, 3], 40) },
            Request {
                lookup: 5,
                ..greedy([vec![start % 32], (0..20).collect(), vec![1, 2, 3]].concat(), 40)
            },
        ] {
            let expected = oracle(&request, 0, 96);
            // A token that the draft guesses and the text does not have.
            let Some(nan) = (0..28).rev().find(|id| {
                !expected.ids.contains(id) && !request.prompt[request.prompt.len() - 1..].contains(id)
            }) else {
                continue;
            };
            let mut bench =
                Bench::new(fake().nan_after(nan), EngineConfig::default()).with_draft(smaller(28));
            bench.submit(request, 1000);
            bench.run();
            let events = bench.events().remove(0);
            if let Some(Event::Finished { usage, .. }) = events.last() {
                wrong += usage.guessed_tokens - usage.accepted_tokens;
            }
            assert_eq!(outcome(events), expected);
        }
    }
    assert!(wrong > 200, "{wrong}");
}
