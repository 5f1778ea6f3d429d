use proptest::prelude::*;

use super::*;
use crate::executor::{Executor, RowOutput, StepOutput, StepPlan, TokenId, Tokens, Want};
use crate::fake::FakeExecutor;
use crate::sampling::SampleSpec;
use crate::session::Session;

fn limits(block_tokens: usize, groups: &[(usize, Option<usize>)]) -> Limits {
    let groups = groups.iter().map(|&(blocks, window)| CacheGroup { blocks, window }).collect();
    Limits { block_tokens, groups, ..FakeExecutor::small_limits() }
}

/// The blocks a sequence holds at most, over every way of alignment, by walking through it.
fn walked(window: Option<usize>, positions: usize, step: usize, block_tokens: usize) -> usize {
    let held = |start: usize| {
        let seen = window.map_or(0, |w| (start + 1).saturating_sub(w));
        (start + step).min(positions).div_ceil(block_tokens) - seen / block_tokens
    };
    (0..positions).map(held).max().unwrap_or(0)
}

#[test]
fn need_is_exact() {
    for block_tokens in 1..6 {
        for step in 1..9 {
            for positions in 0..60 {
                let need = |window| blocks_needed(window, positions, step, block_tokens);
                assert_eq!(need(None), walked(None, positions, step, block_tokens));
                for window in 1..20 {
                    let (need, walked) =
                        (need(Some(window)), walked(Some(window), positions, step, block_tokens));
                    assert!(need >= walked, "{block_tokens} {step} {positions} {window}");
                    // Long sequences meet every alignment.
                    let long = positions >= window + step + 2 * block_tokens;
                    assert!(!long || need == walked, "{block_tokens} {step} {positions} {window}");
                }
            }
        }
    }
}

#[test]
fn capacity_is_the_smallest_group() {
    let of = |groups: &[_]| Kv::new(&limits(4, groups), 3).unwrap().capacity();
    assert_eq!(of(&[(10, None), (3, Some(6))]), 40);
    // A window of 6 and steps of 3 span 8 positions, in at most 3 blocks of 4; 2 hold only what fits without moving.
    assert_eq!(of(&[(10, None), (2, Some(6))]), 8);
    assert_eq!(of(&[(0, None)]), 0);
    assert_eq!(of(&[(3, Some(6))]), usize::MAX);
}

#[test]
fn promises_are_kept_and_bounded() {
    let mut kv = Kv::new(&limits(4, &[(5, None)]), 8).unwrap();
    let mut a = kv.admit(9).unwrap();
    assert_eq!(kv.admit(9).unwrap_err(), KvError::Exhausted { group: 0, needed: 3, free: 2 });
    let mut b = kv.admit(8).unwrap();
    kv.cover(&mut b, 0, 8).unwrap();
    kv.cover(&mut a, 0, 5).unwrap();
    assert_eq!(kv.cover(&mut a, 5, 5), Err(KvError::Promise { found: 10, promised: 9 }));
    assert_eq!(kv.cover(&mut a, 6, 1), Err(KvError::Gap { position: 6, len: 5 }));
    assert_eq!(kv.cover(&mut a, 0, 9), Err(KvError::StepTokens { found: 9, max: 8 }));
    kv.cover(&mut a, 5, 4).unwrap();
    kv.cover(&mut a, 5, 4).unwrap();
    kv.check_integrity([&a, &b]).unwrap();
    assert!(kv.check_integrity([&a]).is_err(), "a lost sequence goes unnoticed");
    kv.release(a);
    kv.release(b);
    kv.check_integrity([]).unwrap();
}

#[test]
fn impossible_limits_are_refused() {
    let field = |limits: Limits, step| match Kv::new(&limits, step) {
        Err(KvError::Limits { field }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(limits(0, &[]), 1), "block_tokens");
    assert_eq!(field(limits(4, &[]), 0), "max_tokens");
    assert_eq!(field(limits(4, &[(1, Some(0))]), 1), "window");
    assert_eq!(field(Limits { context: 0, ..limits(4, &[]) }, 1), "context");
    assert_eq!(field(Limits { max_outputs: 0, ..limits(4, &[]) }, 1), "max_outputs");
}

#[test]
fn windows_hold_only_what_is_seen() {
    let mut kv = Kv::new(&limits(4, &[(100, None), (3, Some(7))]), 1).unwrap();
    let mut sequence = kv.admit(90).unwrap();
    for position in 0..90 {
        kv.cover(&mut sequence, position, 1).unwrap();
        kv.check_integrity([&sequence]).unwrap();
        let table = &sequence.tables()[1];
        assert_eq!(table.first, (position + 1).saturating_sub(7) / 4);
        assert!(table.blocks.len() <= 3);
    }
    assert_eq!(kv.truncate(&mut sequence, 20), Err(KvError::Window { group: 1, position: 20 }));
    kv.truncate(&mut sequence, 88).unwrap();
    kv.check_integrity([&sequence]).unwrap();
    kv.release(sequence);
}

#[test]
fn forks_share_whole_blocks_and_never_write_them() {
    let mut kv = Kv::new(&limits(4, &[(10, None)]), 16).unwrap();
    let mut a = kv.admit(16).unwrap();
    kv.cover(&mut a, 0, 11).unwrap();
    let mut b = kv.fork(&a, 10, 16).unwrap();
    assert_eq!(b.len(), 8);
    assert_eq!(b.tables()[0].blocks, a.tables()[0].blocks[..2]);
    kv.cover(&mut b, 8, 4).unwrap();
    assert_ne!(b.tables()[0].blocks[2], a.tables()[0].blocks[2]);
    kv.check_integrity([&a, &b]).unwrap();
    kv.truncate(&mut b, 5).unwrap();
    assert_eq!(kv.cover(&mut b, 5, 1), Err(KvError::Shared { group: 0, position: 5 }));
    kv.release(a);
    kv.cover(&mut b, 5, 1).unwrap();
    kv.check_integrity([&b]).unwrap();
    kv.release(b);
    kv.check_integrity([]).unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Admit(usize),
    Grow(usize, usize),
    Truncate(usize, usize),
    Fork(usize, usize),
    Release(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let which = || 0usize..8;
    prop_oneof![
        1 => (0usize..40).prop_map(Op::Admit),
        4 => (which(), 0usize..9).prop_map(|(at, n)| Op::Grow(at, n)),
        1 => (which(), 0usize..40).prop_map(|(at, len)| Op::Truncate(at, len)),
        1 => (which(), 0usize..40).prop_map(|(at, len)| Op::Fork(at, len)),
        1 => which().prop_map(Op::Release),
    ]
}

proptest! {
    /// The same with a cache of prefixes, of sequences of few different tokens.
    #[test]
    fn no_history_breaks_the_cache(
        ops in proptest::collection::vec((op(), 0u32..3), 0..120),
        block_tokens in 1usize..5,
        window in 1usize..12,
        windows_only in any::<bool>(),
    ) {
        let groups = [(25, Some(window)), (60, None)];
        let limits = limits(block_tokens, &groups[..if windows_only { 1 } else { 2 }]);
        let mut kv = Kv::new(&limits, 8).unwrap().with_prefix_cache();
        // Sequences with their tokens, all that they will ever have.
        let mut live: Vec<(Sequence, Vec<TokenId>)> = Vec::new();
        for (op, token) in ops {
            match op {
                Op::Admit(positions) => {
                    let tokens: Vec<TokenId> = (0..48).map(|i| u32::from(i >= 4 * token as usize) * token).collect();
                    let prompt = &tokens[..positions];
                    if let Ok(sequence) = kv.admit_prompt(prompt, 48) {
                        prop_assert!(sequence.len() < positions.max(1) && sequence.len() % block_tokens == 0);
                        live.push((sequence, tokens));
                    }
                }
                Op::Grow(at, n) => if let Some((sequence, tokens)) = live.get_mut(at) {
                    let len = sequence.len();
                    if kv.cover(sequence, len, n).is_ok() {
                        kv.remember(sequence, tokens, len + n);
                    }
                },
                Op::Truncate(at, len) => if let Some((sequence, _)) = live.get_mut(at) {
                    let _ = kv.truncate(sequence, len);
                },
                Op::Fork(at, len) => if let Some((sequence, tokens)) = live.get(at) {
                    let fork = kv.fork(sequence, len, len + 8).ok();
                    let tokens = tokens.clone();
                    live.extend(fork.map(|fork| (fork, tokens)));
                },
                Op::Release(at) => if at < live.len() {
                    kv.release(live.swap_remove(at).0);
                },
            }
            kv.check_integrity(live.iter().map(|(sequence, _)| sequence)).map_err(TestCaseError::fail)?;
        }
        live.drain(..).for_each(|(sequence, _)| kv.release(sequence));
        kv.check_integrity([]).map_err(TestCaseError::fail)?;
        // All of it can be had again: what only the cache has is as good as free.
        let mut all = kv.admit(48).unwrap();
        for at in 0..48 {
            kv.cover(&mut all, at, 1).unwrap();
            kv.check_integrity([&all]).map_err(TestCaseError::fail)?;
        }
        kv.release(all);
    }

    #[test]
    fn no_history_breaks_the_accounts(
        ops in proptest::collection::vec(op(), 0..120),
        block_tokens in 1usize..6,
        window in 1usize..12,
    ) {
        let mut kv = Kv::new(&limits(block_tokens, &[(40, None), (25, Some(window))]), 8).unwrap();
        let mut live: Vec<Sequence> = Vec::new();
        for op in ops {
            match op {
                Op::Admit(positions) => live.extend(kv.admit(positions).ok()),
                Op::Grow(at, n) => if let Some(sequence) = live.get_mut(at) {
                    let len = sequence.len();
                    if kv.cover(sequence, len, n).is_err() {
                        prop_assert_eq!(sequence.len(), len);
                    }
                },
                Op::Truncate(at, len) => if let Some(sequence) = live.get_mut(at) {
                    let _ = kv.truncate(sequence, len);
                },
                Op::Fork(at, len) => if let Some(sequence) = live.get(at) {
                    live.extend(kv.fork(sequence, len, len + 8).ok());
                },
                Op::Release(at) => if at < live.len() {
                    kv.release(live.swap_remove(at));
                },
            }
            kv.check_integrity(&live).map_err(TestCaseError::fail)?;
        }
        live.drain(..).for_each(|sequence| kv.release(sequence));
        kv.check_integrity([]).map_err(TestCaseError::fail)?;
    }

    /// A session's steps, whatever their rows, see the prefix that was written: the fake executor's logits prove it.
    #[test]
    fn sessions_score_every_position(
        tokens in proptest::collection::vec(0u32..32, 1..96),
        rows in proptest::collection::vec(1usize..3, 96),
        step in 1usize..6,
        window in 2usize..12,
    ) {
        let limits = limits(4, &[(24, None), (blocks_needed(Some(window), 96, 16, 4), Some(window))]);
        let mut executor = FakeExecutor::new(limits.clone());
        let mut session = Session::new(&limits).unwrap();
        for round in 0..2 {
            let (mut rest, mut rows) = (&tokens[..], rows.iter());
            while !rest.is_empty() {
                let mut chunks = Vec::new();
                for &n in rows.by_ref().take(step) {
                    let (chunk, after) = rest.split_at(n.min(rest.len()));
                    rest = after;
                    if !chunk.is_empty() {
                        chunks.push((chunk.to_vec(), Want::Logits));
                    }
                }
                let before = session.len();
                if round == 1 {
                    // A step that fails is taken back.
                    let wrong: Vec<_> = chunks.iter().map(|(chunk, _)| (vec![7; chunk.len()], Want::Nothing)).collect();
                    let plan = session.plan(wrong).unwrap();
                    let step = executor.submit(&plan).unwrap();
                    executor.wait(step, &mut StepOutput::default()).unwrap();
                    session.truncate(before).unwrap();
                }
                let plan = session.plan(chunks).unwrap();
                let mut out = StepOutput::default();
                let step = executor.submit(&plan).unwrap();
                executor.wait(step, &mut out).unwrap();
                for (row, out) in plan.rows.iter().zip(out.rows) {
                    let end = row.position + row.tokens.len();
                    prop_assert_eq!(out, RowOutput::Logits(FakeExecutor::logits_after(&tokens[..end], 32)));
                }
            }
            session.reset().unwrap();
        }
    }
}

#[test]
fn sessions_generate_in_flight() {
    let mut executor = FakeExecutor::new(FakeExecutor::small_limits());
    let mut session = Session::new(executor.limits()).unwrap();
    let want = || Want::Token(SampleSpec::GREEDY);
    let mut submit = |executor: &mut FakeExecutor, tokens: Tokens| {
        let row = session.row(tokens, want()).unwrap();
        executor.submit(&StepPlan { rows: vec![row] }).unwrap()
    };
    let mut tokens: Vec<TokenId> = vec![5, 6, 7];
    let mut step = submit(&mut executor, tokens.clone().into());
    let mut out = StepOutput::default();
    for _ in 0..20 {
        let next = submit(&mut executor, Tokens::FromStep { step, row: 0 });
        executor.wait(step, &mut out).unwrap();
        let logits = FakeExecutor::logits_after(&tokens, 32);
        let best =
            (0..32).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap() as TokenId;
        assert_eq!(out.rows, [RowOutput::Token(best)]);
        tokens.push(best);
        step = next;
    }
}
