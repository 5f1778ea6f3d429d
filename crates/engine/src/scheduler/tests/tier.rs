//! The second tier of the prefix cache, by the fake executor's own cache: a block that is not what it should be is a panic, or
//! another text.

use std::path::Path;

use super::*;
use crate::kv::DiskConfig;

fn disk(dir: &Path) -> EngineConfig {
    let disk = DiskConfig { dir: dir.to_owned(), bytes: 1 << 20, identity: [1; 32] };
    EngineConfig { disk: Some(disk), step_tokens: 8, ..EngineConfig::default() }
}

/// The cached tokens of requests that run one after the other, in an engine of their own whose texts are checked.
fn cached(limits: &Limits, config: &EngineConfig, requests: &[Request]) -> Vec<usize> {
    let mut bench = Bench::new(FakeExecutor::new(limits.clone()), config.clone());
    let capacity = bench.scheduler.capacity();
    for request in requests {
        bench.submit(request.clone(), 1000);
        bench.run();
    }
    bench.scheduler.finish_all(FinishReason::Cancelled);
    bench.scheduler.keep_all();
    let events = bench.events();
    let usage = |events: &Vec<Event>| match events.last() {
        Some(Event::Finished { usage, .. }) => usage.cached_tokens,
        other => panic!("{other:?}"),
    };
    let cached = events.iter().map(usage).collect();
    for (events, request) in events.into_iter().zip(requests) {
        assert_eq!(outcome(events), oracle(request, 0, capacity));
    }
    cached
}

fn prompt(seed: u32, len: u32) -> Request {
    greedy((0..len).map(|i| (i * i + seed * 7 + i * seed) % 31).collect(), 3)
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn another_engine_goes_on_from_what_one_has_kept() {
    for window in [None, Some(3), Some(7), Some(30)] {
        let dir = tempfile::tempdir().unwrap();
        let groups = [CacheGroup { blocks: 40, window: None }, CacheGroup { blocks: 40, window }];
        let limits = Limits { groups: groups.to_vec(), ..FakeExecutor::small_limits() };
        let config = disk(dir.path());
        let requests = [prompt(1, 30), prompt(2, 17)];
        assert_eq!(cached(&limits, &config, &requests), [0, 0], "{window:?}");
        assert_eq!(cached(&limits, &config, &requests), [28, 16], "{window:?}");
        // Another model has nothing of it, and leaves it there.
        let mut other = config.clone();
        other.disk.as_mut().unwrap().identity = [2; 32];
        assert_eq!(cached(&limits, &other, &requests), [0, 0], "{window:?}");
        assert_eq!(cached(&limits, &config, &requests), [28, 16], "{window:?}");
    }
}

#[test]
fn what_memory_has_no_room_for_comes_back() {
    // A window of three leaves blocks behind that a step in flight is still to write.
    for (window, blocks) in [(7, 8), (3, 4)] {
        let dir = tempfile::tempdir().unwrap();
        let groups = [CacheGroup { blocks: 12, window: None }, CacheGroup { blocks, window: Some(window) }];
        let limits = Limits { groups: groups.to_vec(), ..FakeExecutor::small_limits() };
        let requests: Vec<Request> = (0..6).map(|seed| prompt(seed, 33)).collect();
        let config = disk(dir.path());
        // Memory holds little more than one of them.
        assert_eq!(cached(&limits, &config, &requests), [0; 6], "{window}");
        assert_eq!(cached(&limits, &config, &requests), [32; 6], "{window}");
        let without = EngineConfig { disk: None, ..config };
        let twice = [&requests[..], &requests].concat();
        assert!(cached(&limits, &without, &twice)[..11].iter().all(|&tokens| tokens == 0), "{window}");
    }
}

#[test]
fn a_damaged_file_is_computed_again() {
    let dir = tempfile::tempdir().unwrap();
    let limits = FakeExecutor::small_limits();
    let (config, request) = (disk(dir.path()), [prompt(5, 21)]);
    assert_eq!(cached(&limits, &config, &request), [0]);
    let count = files(dir.path()).len();
    assert!(count >= 5);
    for index in 0..count {
        for at in [0, 9, 20, 60, 100, 150, 250] {
            let file = &files(dir.path())[index];
            let mut bytes = std::fs::read(file).unwrap();
            bytes[at] ^= 1;
            std::fs::write(file, bytes).unwrap();
            let found = cached(&limits, &config, &request);
            assert!(found[0] <= 20 && found[0].is_multiple_of(4));
            assert_eq!(cached(&limits, &config, &request), [20], "it was written again");
        }
    }
}

#[test]
fn crowds_with_little_memory_get_the_texts_of_who_is_alone() {
    let dir = tempfile::tempdir().unwrap();
    let groups = [CacheGroup { blocks: 14, window: None }, CacheGroup { blocks: 14, window: Some(7) }];
    let limits = Limits { groups: groups.to_vec(), ..FakeExecutor::small_limits() };
    for round in 0..6 {
        let mut bench = Bench::new(FakeExecutor::new(limits.clone()), disk(dir.path()));
        let capacity = bench.scheduler.capacity();
        let requests: Vec<Request> =
            (0..24).map(|i| prompt((i * 5 + round) % 7, 6 + (i * 11 + round) % 29)).collect();
        for (i, request) in requests.iter().enumerate() {
            let canceller = bench.submit(request.clone(), 1000);
            for _ in 0..i % 4 {
                bench.step();
            }
            if i % 6 == 5 {
                canceller.cancel();
            }
        }
        bench.run();
        bench.scheduler.finish_all(FinishReason::Cancelled);
        bench.scheduler.keep_all();
        for (i, (outcome, request)) in bench.outcomes().into_iter().zip(&requests).enumerate() {
            if i % 6 != 5 {
                assert_eq!(outcome, oracle(request, 0, capacity), "round {round}, {i}");
            }
        }
    }
    assert!(files(dir.path()).len() > 20);
}
