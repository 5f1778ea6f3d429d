//! The thread and its channels.

use std::rc::Rc;

use super::*;
use crate::executor::{StepError, StepId, StepOutput, StepPlan};
use crate::fake::FakeExecutor;
use crate::sampling::SamplingParams;

fn fake() -> FakeExecutor {
    FakeExecutor::new(FakeExecutor::small_limits())
}

fn table() -> TokenTable {
    (0..32u8).map(|id| [b'A' + id]).collect()
}

fn start(executor: FakeExecutor, config: EngineConfig) -> Engine {
    Engine::new(executor, table(), config).unwrap()
}

fn greedy(prompt: &[u32], max_tokens: usize) -> Request {
    let sampling = SamplingParams::greedy();
    Request { prompt: prompt.to_vec(), max_tokens: Some(max_tokens), sampling, ..Request::default() }
}

/// The text and the reason of its end.
fn read(handle: Handle) -> (String, FinishReason) {
    let (mut text, mut end) = (Vec::new(), None);
    for event in handle {
        match event {
            Event::Token { bytes, .. } => text.extend(bytes),
            Event::Finished { reason, .. } => assert_eq!(end.replace(reason), None),
            _ => {}
        }
    }
    (String::from_utf8(text).unwrap(), end.unwrap())
}

/// An engine whose steps wait until the sender gives, or is dropped.
fn gated(config: EngineConfig) -> (Engine, mpsc::Sender<()>) {
    let (gate, opened) = mpsc::channel();
    let wait = move |_: StepId, _: &StepPlan| {
        let _ = opened.recv();
        Ok(())
    };
    // The gate comes last, so that it is dropped, and opened, first should a test fail.
    (start(fake().on_wait(wait), config), gate)
}

#[test]
fn threads_share_an_engine() {
    let engine = start(fake(), EngineConfig { max_running: 3, ..EngineConfig::default() });
    let alone: Vec<_> = (0..8).map(|i| read(engine.submit(greedy(&[i, 1], 20)).unwrap())).collect();
    assert_eq!(alone[0].0.len(), 20);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|i| {
                scope.spawn({
                    let engine = &engine;
                    move || read(engine.submit(greedy(&[i, 1], 20)).unwrap())
                })
            })
            .collect();
        let together: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(together, alone);
    });
}

#[test]
fn the_queue_is_bounded_and_places_come_back() {
    let (engine, gate) = gated(EngineConfig { max_running: 1, max_waiting: 1, ..EngineConfig::default() });
    let mut first = engine.submit(greedy(&[1], 3)).unwrap();
    assert!(matches!(first.next(), Some(Event::Started { prompt_tokens: 1, .. })));
    let second = engine.submit(greedy(&[2], 3)).unwrap();
    let refused = engine.submit(greedy(&[3], 3)).unwrap_err();
    assert_eq!(refused, SubmitError::QueueFull { max_waiting: 1 });
    // The second leaves the queue without ever having run.
    second.cancel();
    gate.send(()).unwrap();
    assert_eq!(read(second), (String::new(), FinishReason::Cancelled));
    let third = engine.submit(greedy(&[3], 3)).unwrap();
    drop(gate);
    assert_eq!(read(first).1, FinishReason::Length);
    assert_eq!(read(third).0.len(), 3);
}

#[test]
fn dropping_a_handle_cancels() {
    let (engine, gate) = gated(EngineConfig { max_running: 1, ..EngineConfig::default() });
    let mut first = engine.submit(greedy(&[1], 90)).unwrap();
    assert!(first.next().is_some());
    let second = engine.submit(greedy(&[2], 1)).unwrap();
    drop(first);
    // Two steps were in flight, one is the second's.
    (0..3).for_each(|_| gate.send(()).unwrap());
    assert_eq!(read(second).0.len(), 1);
}

#[test]
fn invalid_requests_are_refused() {
    let engine = start(fake(), EngineConfig::default());
    let refused = engine.submit(greedy(&[32], 1)).unwrap_err();
    assert_eq!(refused.to_string(), "prompt has token 32, the vocabulary has 32");
    assert_eq!(engine.capacity(), 96);
    assert_eq!(read(engine.submit(greedy(&[1; 96], 9)).unwrap()).0.len(), 1);
    let refused = engine.submit(greedy(&[1; 97], 1)).unwrap_err();
    assert!(matches!(refused, SubmitError::Invalid(RequestError::Prompt { tokens: 97, context: 96 })));
}

#[test]
fn a_draft_model_guesses_for_those_who_ask() {
    let config = EngineConfig::default;
    let plain = read(start(fake(), config()).submit(greedy(&[1, 2], 40)).unwrap());
    let engine = Engine::with_draft(fake(), fake(), table(), config()).unwrap();
    for draft in [0, 3] {
        let handle = engine.submit(Request { draft, ..greedy(&[1, 2], 40) }).unwrap();
        let events: Vec<Event> = handle.collect();
        let Some(Event::Finished { usage, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(usage.guessed_tokens > 0, draft > 0);
        assert_eq!(usage.guessed_tokens, usage.accepted_tokens);
    }
    assert_eq!(read(engine.submit(Request { draft: 3, ..greedy(&[1, 2], 40) }).unwrap()), plain);
    let both = Request { draft: 3, lookup: 3, ..greedy(&[1], 1) };
    assert_eq!(engine.submit(both).unwrap_err(), RequestError::Guesses.into());
    let nobody = start(fake(), config()).submit(Request { draft: 3, ..greedy(&[1], 1) }).unwrap_err();
    assert_eq!(nobody.to_string(), "draft is 3, but the engine has no draft model");
    let encoder = FakeExecutor::new(Limits { bidirectional: true, ..FakeExecutor::small_limits() });
    assert!(matches!(Engine::with_draft(fake(), encoder, table(), config()), Err(StartError::Draft)));
    let zero = FakeExecutor::new(Limits { block_tokens: 0, ..FakeExecutor::small_limits() });
    assert!(matches!(Engine::with_draft(fake(), zero, table(), config()), Err(StartError::Limits(_))));
}

#[test]
fn a_dead_device_ends_everything() {
    let executor =
        fake().on_wait(|step, _| if step.0 < 3 { Ok(()) } else { Err(StepError::Device("melted".into())) });
    let engine = start(executor, EngineConfig { max_running: 1, ..EngineConfig::default() });
    let handles: Vec<_> = (0..3).map_while(|_| engine.submit(greedy(&[1], 90)).ok()).collect();
    let ends: Vec<_> = handles.into_iter().map(read).collect();
    assert_eq!(ends[0].0.len(), 2);
    for (_, reason) in ends {
        assert!(matches!(&reason, FinishReason::Error(what) if what.contains("melted")), "{reason:?}");
    }
    let refused = loop {
        // The thread may not have let go of its channel yet; what it then takes, it ends.
        match engine.submit(greedy(&[1], 1)) {
            Ok(handle) => assert!(matches!(read(handle).1, FinishReason::Error(_))),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, SubmitError::Stopped("melted".into()));
}

#[test]
fn a_panic_hangs_nobody() {
    let engine = start(fake().on_wait(|step, _| panic!("ouch at {}", step.0)), EngineConfig::default());
    let handle = engine.submit(greedy(&[1], 90)).unwrap();
    let (_, reason) = read(handle);
    let expected = "the engine has stopped: it panicked: ouch at 1";
    assert_eq!(reason, FinishReason::Error(expected.into()));
    while let Ok(handle) = engine.submit(greedy(&[1], 90)) {
        assert_eq!(read(handle).1, FinishReason::Error(expected.into()));
    }
    assert_eq!(engine.submit(greedy(&[1], 90)).unwrap_err().to_string(), expected);
}

#[test]
fn shutdown_cancels_and_drops_the_executor() {
    struct Dropped(FakeExecutor, Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
        }
    }
    impl Executor for Dropped {
        fn limits(&self) -> &Limits {
            self.0.limits()
        }
        fn submit(&mut self, plan: &StepPlan) -> Result<StepId, StepError> {
            self.0.submit(plan)
        }
        fn wait(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), StepError> {
            self.0.wait(step, out)
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let (gate, opened) = mpsc::channel::<()>();
    // The first step ends after the shutdown has begun.
    let executor = fake().on_wait(move |_, _| Ok(_ = opened.recv()));
    let engine = Engine::new(Dropped(executor, dropped.clone()), table(), EngineConfig::default()).unwrap();
    let mut handle = engine.submit(greedy(&[1], 90)).unwrap();
    assert!(handle.next().is_some());
    engine.shared.stop.store(true, Ordering::Relaxed);
    drop(gate);
    engine.shutdown();
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(read(handle).1, FinishReason::Cancelled);

    // Idle.
    start(fake(), EngineConfig::default()).shutdown();
}

#[test]
fn an_executor_need_not_be_send() {
    struct Local(FakeExecutor, Rc<()>);
    impl Executor for Local {
        fn limits(&self) -> &Limits {
            self.0.limits()
        }
        fn submit(&mut self, plan: &StepPlan) -> Result<StepId, StepError> {
            assert_eq!(Rc::strong_count(&self.1), 1);
            self.0.submit(plan)
        }
        fn wait(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), StepError> {
            self.0.wait(step, out)
        }
    }
    let engine = Engine::spawn(|| Ok(Local(fake(), Rc::new(()))), table(), EngineConfig::default()).unwrap();
    assert_eq!(read(engine.submit(greedy(&[1], 4)).unwrap()).0.len(), 4);
}

#[test]
fn what_cannot_start_says_why() {
    let spawn = |build: fn() -> Result<FakeExecutor, Box<dyn Error + Send + Sync>>, config| {
        Engine::spawn(build, table(), config).unwrap_err().to_string()
    };
    let config = EngineConfig::default();
    assert_eq!(spawn(|| Err("no such model".into()), config.clone()), "no such model");
    assert_eq!(spawn(|| panic!("boom"), config.clone()), "building the executor panicked: boom");
    let zero = || Ok(FakeExecutor::new(Limits { block_tokens: 0, ..FakeExecutor::small_limits() }));
    assert_eq!(spawn(zero, config.clone()), "the executor's block_tokens is 0");
    let ok = || Ok(fake());
    assert_eq!(
        spawn(ok, EngineConfig { max_waiting: 0, ..config.clone() }),
        "max_waiting is 0, must be at least 1"
    );
    assert_eq!(spawn(ok, EngineConfig { in_flight: 3, ..config.clone() }), "in_flight is 3, must be 1 or 2");
    let nowhere = DiskConfig { dir: "/dev/null/kv".into(), bytes: 1, identity: [0; 32] };
    let disk = EngineConfig { disk: Some(nowhere), ..config };
    assert_eq!(spawn(ok, disk.clone()), "/dev/null/kv");
    let none = EngineConfig { prefix_cache: false, ..disk };
    assert_eq!(spawn(ok, none), "nothing can be kept on disk: there is no prefix cache");
}
