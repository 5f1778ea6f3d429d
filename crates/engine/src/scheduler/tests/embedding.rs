//! Texts to be embedded, among those to be continued and alone, against the definition of each pooling mode.

use proptest::prelude::*;

use super::random::{machine, request};
use super::*;
use crate::embedding::{EmbedRequest, Pooling};

/// The vectors of a text, from the hidden states of its tokens.
fn expected(request: &EmbedRequest, bidirectional: bool) -> Vec<f32> {
    let tokens = &request.prompt;
    let state = |at: usize| {
        let seen = if bidirectional { &tokens[..] } else { &tokens[..=at] };
        FakeExecutor::hidden_after(seen, at).map(f64::from)
    };
    let all: Vec<[f64; 2]> = (0..tokens.len()).map(state).collect();
    let mean = |channel: usize| all.iter().map(|state| state[channel]).sum::<f64>() / all.len() as f64;
    let vectors = match request.pooling {
        Pooling::Mean => vec![[mean(0), mean(1)]],
        Pooling::Cls => vec![all[0]],
        Pooling::Last => vec![all[all.len() - 1]],
        Pooling::None => all,
    };
    let scaled = vectors.iter().flat_map(|v| {
        let length = if request.normalize { v[0].hypot(v[1]) } else { 1.0 };
        v.map(|v| v / length)
    });
    scaled.map(|v| v as f32).collect()
}

/// The embedding that a request got, and why it ended.
fn embedding(events: Vec<Event>) -> (Option<Vec<f32>>, FinishReason, usize) {
    let (mut values, mut end, mut cached) = (None, None, 0);
    for event in events {
        assert!(end.is_none(), "an event after the last one");
        match event {
            Event::Started { .. } | Event::Prefill { .. } => assert!(values.is_none()),
            Event::Token { .. } => panic!("a token for a text to be embedded"),
            Event::Embedding { values: found } => assert!(values.replace(found).is_none()),
            Event::Finished { reason, usage, .. } => {
                assert_eq!(usage.completion_tokens, 0);
                (end, cached) = (Some(reason), usage.cached_tokens);
            }
        }
    }
    (values, end.expect("a last event"), cached)
}

fn near(found: &[f32], expected: &[f32]) -> bool {
    let same = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1e-2);
    found.len() == expected.len() && found.iter().zip(expected).all(same)
}

fn embed_request() -> impl Strategy<Value = EmbedRequest> {
    let alike = (0usize..30, proptest::collection::vec(0u32..32, 1..10)).prop_map(|(shared, rest)| {
        (0..shared as u32).map(|i| i * 7 % 32).chain(rest).collect::<Vec<TokenId>>()
    });
    let pooling = proptest::sample::select(Pooling::ALL.to_vec());
    (alike, pooling, any::<bool>(), -1i32..2).prop_map(|(prompt, pooling, normalize, priority)| {
        EmbedRequest { normalize, priority, ..EmbedRequest::new(prompt, pooling) }
    })
}

impl Bench {
    fn embed(&mut self, request: &EmbedRequest) -> Canceller {
        let (prompt, priority) = (request.prompt.clone(), request.priority);
        let job = Request { prompt, priority, max_tokens: Some(1), ..Request::default() };
        self.submit_either(job, Some(Pool::new(request)), 1000)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Company, chunks, a cache that is too small and prefixes of others change no embedding, and no text.
    #[test]
    fn embeddings_and_texts_get_what_they_get_alone(
        arrivals in proptest::collection::vec((embed_request(), request(), 0usize..20, any::<bool>()), 1..10),
        (limits, config) in machine(),
    ) {
        let mut bench = Bench::new(FakeExecutor::new(limits.clone()), config);
        let capacity = bench.scheduler.capacity();
        let fits = |(embed, text, ..): &(EmbedRequest, Request, usize, bool)| {
            embed.validate(&limits, capacity).is_ok() && text.validate(&limits, capacity).is_ok()
        };
        let mut arrivals: Vec<_> = arrivals.into_iter().filter(fits).collect();
        arrivals.sort_by_key(|arrival| arrival.2);
        let mut kinds = Vec::new();
        for turn in 0..20 {
            for (embed, text, _, both) in arrivals.iter().filter(|arrival| arrival.2 == turn) {
                bench.embed(embed);
                kinds.push((embed, None));
                if *both {
                    bench.submit(text.clone(), 1000);
                    kinds.push((embed, Some(text)));
                }
            }
            bench.step();
        }
        bench.run();
        bench.scheduler.kv.check_integrity([]).unwrap();
        for ((embed, text), events) in kinds.into_iter().zip(bench.events()) {
            if let Some(text) = text {
                prop_assert_eq!(outcome(events), oracle(text, text.sampling.seed.unwrap(), capacity));
                continue;
            }
            let (values, reason, _) = embedding(events);
            prop_assert_eq!(reason, FinishReason::Embedded);
            let (found, expected) = (values.unwrap(), expected(embed, false));
            prop_assert!(near(&found, &expected), "{:?} {:?} {:?}", embed, found, expected);
        }
    }

    /// An encoder's texts come whole, whatever else waits, and use nobody's prefix.
    #[test]
    fn an_encoder_gets_its_texts_whole(
        texts in proptest::collection::vec(embed_request(), 1..12),
        max_running in 1usize..6,
        in_flight in 1usize..3,
    ) {
        let limits = Limits { bidirectional: true, max_tokens: 30, ..FakeExecutor::small_limits() };
        let config = EngineConfig { max_running, in_flight, ..EngineConfig::default() };
        let mut bench = Bench::new(FakeExecutor::new(limits.clone()), config);
        let capacity = bench.scheduler.capacity();
        prop_assert_eq!(capacity, 30);
        let texts: Vec<_> = texts.into_iter().filter(|t| t.validate(&limits, capacity).is_ok()).collect();
        texts.iter().for_each(|text| _ = bench.embed(text));
        bench.run();
        bench.scheduler.kv.check_integrity([]).unwrap();
        for (text, events) in texts.iter().zip(bench.events()) {
            let (values, reason, cached) = embedding(events);
            prop_assert_eq!((reason, cached), (FinishReason::Embedded, 0));
            prop_assert!(near(&values.unwrap(), &expected(text, true)), "{:?}", text);
        }
    }
}

/// Only what depends on the last token alone is served by what others have computed.
#[test]
fn prefixes_serve_where_the_mode_allows_it() {
    let prompt: Vec<TokenId> = (0..21).collect();
    let cached = |pooling| {
        let mut bench = Bench::new(FakeExecutor::new(FakeExecutor::small_limits()), EngineConfig::default());
        bench.submit(Request { prompt: prompt.clone(), max_tokens: Some(1), ..Request::default() }, 100);
        bench.run();
        let request = EmbedRequest::new(prompt.clone(), pooling);
        bench.embed(&request);
        bench.run();
        let (values, _, cached) = embedding(bench.events().remove(1));
        assert!(near(&values.unwrap(), &expected(&request, false)));
        cached
    };
    assert_eq!(Pooling::ALL.map(cached), [0, 0, 20, 0]);
}

#[test]
fn an_embedding_can_be_cancelled_and_has_a_deadline() {
    let mut bench = Bench::new(FakeExecutor::new(FakeExecutor::small_limits()), EngineConfig::default());
    let request = EmbedRequest::new((0..32).chain(0..32).collect(), Pooling::Mean);
    let canceller = bench.embed(&request);
    bench.step();
    canceller.cancel();
    let late = Request {
        prompt: vec![1, 2],
        max_tokens: Some(1),
        deadline: Some(Duration::ZERO),
        ..Request::default()
    };
    bench.submit_either(late, Some(Pool::new(&request)), 1000);
    bench.run();
    let ends = bench.events().into_iter().map(|events| {
        let (values, reason, _) = embedding(events);
        assert_eq!(values, None);
        reason
    });
    assert_eq!(ends.collect::<Vec<_>>(), [FinishReason::Cancelled, FinishReason::Deadline]);
}

#[test]
fn an_encoder_continues_no_text() {
    let limits = Limits { bidirectional: true, ..FakeExecutor::small_limits() };
    let request = Request { prompt: vec![1], ..Request::default() };
    assert_eq!(request.validate(&limits, 9).unwrap_err(), crate::RequestError::Encoder);
}
