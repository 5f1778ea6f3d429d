//! Tokens that a GPU draws are those of the one specification of sampling, on the host.
//!
//! Runs on a machine with a GPU; elsewhere each test says that nothing was tested.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "figures for --nocapture, and skipped tests")]

use minfer_cuda::{CudaDevice, CudaOptions};
use minfer_engine::sampling::{SampleError, SampleSpec, Scratch, sample};
use minfer_ops::{
    Batch, BlockTable, Device, Draw, GgmlType, HeadSpec, Heads, KvGroup, KvTypes, Linear, Reserve, Span,
    Weight,
};
use std::time::{Duration, Instant};

/// Width of the model that has nothing but an embedding and a head.
const WIDTH: usize = 16;

/// Rows of a step.
const ROWS: usize = 16;

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Uniform in [−1, 1).
    fn one(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }

    /// About normal.
    fn normal(&mut self, size: f32) -> f32 {
        (0..6).map(|_| self.one()).sum::<f32>() * size
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.next() as usize % from.len()]
    }
}

/// A GPU, and a head on it.
struct Scene {
    device: CudaDevice,
    stages: Option<(<CudaDevice as Device>::Embedding, <CudaDevice as Device>::Head)>,
    logits: Vec<f32>,
    scratch: Scratch,
}

fn floats(name: &str, rows: usize, values: &[f32]) -> Weight {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Weight { name: name.into(), ty: GgmlType::F32, rows, cols: WIDTH, data: data.into() }
}

impl Scene {
    fn new() -> Option<Scene> {
        match CudaDevice::new(&CudaOptions::default()) {
            Ok(device) => {
                Some(Scene { device, stages: None, logits: Vec::new(), scratch: Scratch::default() })
            }
            Err(why) => {
                eprintln!("SKIPPED, nothing was tested: {why}");
                None
            }
        }
    }

    /// A head whose logits are `bias · scale`, plus a product of `size` with the token's embedding.
    fn load(&mut self, bias: &[f32], scale: f32, size: f32) {
        let device = &mut self.device;
        let vocab = bias.len();
        let mut numbers = Numbers(vocab as u64);
        let mut matrix = |rows: usize, size: f32| -> Vec<f32> {
            (0..rows * WIDTH).map(|_| numbers.one() * size).collect()
        };
        let table = floats("table", vocab, &matrix(vocab, 1.0));
        let embedding = device.load_embedding(table.into()).expect("a table");
        let proj = Linear { weight: floats("head", vocab, &matrix(vocab, size)), bias: Some(bias.into()) };
        let spec = HeadSpec { norm: None, proj: Some(proj), scale, soft_cap: None };
        let head = device.load_head(spec, &embedding).expect("a head");
        let heads = Heads { q: 1, kv: 1, dim: 16 };
        device
            .reserve(&Reserve {
                max_tokens: ROWS,
                max_outputs: ROWS,
                d_model: WIDTH,
                max_q: 16,
                max_kv: 16,
                max_ff: WIDTH,
                vocab,
                kv_groups: vec![KvGroup { layers: 1, heads, blocks: 1 }],
                kv_types: KvTypes::default(),
            })
            .expect("memory");
        self.stages = Some((embedding, head));
        self.logits = vec![0.0; vocab * ROWS];
    }

    /// Computes logits of as many rows as there are tokens; with `draws` also tokens.
    fn step(&mut self, rows: usize, draws: Option<&[Draw]>) -> Vec<Option<u32>> {
        let tables = [BlockTable { first: 0, blocks: &[0] }];
        let spans = [Span { start: 0, len: rows, position: 0, tables: &tables }];
        let outputs: Vec<u32> = (0..rows as u32).collect();
        let vocab = (self.logits.len() / ROWS) as u32;
        let ids: Vec<u32> = outputs.iter().map(|i| i % vocab).collect();
        let (embedding, head) = self.stages.as_ref().expect("a head");
        self.device.begin(&Batch { tokens: &ids, spans: &spans, outputs: &outputs }).expect("a step");
        self.device.embed(embedding, 1.0).expect("a launch");
        let mut found = vec![Some(u32::MAX); rows];
        match draws {
            Some(draws) => assert!(self.device.head_draw(head, draws, &mut found).expect("tokens")),
            None => self.device.head(head).expect("a launch"),
        }
        found
    }

    /// Draws a token for each of up to [`ROWS`] specs on the GPU.
    fn draw(&mut self, specs: &[SampleSpec]) -> Vec<Option<u32>> {
        let draws: Vec<Draw> = specs
            .iter()
            .map(|spec| {
                assert!(spec.device_can(), "{spec:?}");
                Draw {
                    temperature: spec.temperature,
                    top_k: spec.top_k,
                    top_p: spec.top_p,
                    least_weight: spec.least_weight(),
                    random: spec.random(),
                }
            })
            .collect();
        self.step(specs.len(), Some(&draws))
    }

    /// Compares the GPU's tokens with the host's.
    fn check(&mut self, what: &str, specs: &[SampleSpec]) {
        for specs in specs.chunks(ROWS) {
            let found = self.draw(specs);
            let vocab = self.logits.len() / ROWS;
            self.device.logits(&mut self.logits[..specs.len() * vocab]).expect("logits");
            for (i, (spec, found)) in specs.iter().zip(found).enumerate() {
                let logits = &self.logits[i * vocab..(i + 1) * vocab];
                let expected = match sample(logits, spec, None, &mut self.scratch) {
                    Ok(token) => Some(token),
                    Err(SampleError::Nan { .. } | SampleError::NoCandidate) => None,
                    Err(error) => panic!("{what}, {spec:?}: {error}"),
                };
                assert_eq!(found, expected, "{what}, {vocab} tokens, row {i}: {spec:?}");
            }
        }
    }
}

/// Specs with everything from their ranges, and their borders.
fn specs(numbers: &mut Numbers, count: usize, vocab: usize) -> Vec<SampleSpec> {
    let near = 1.0 - f32::EPSILON / 2.0;
    (0..count)
        .map(|_| {
            let top_ks = [
                0,
                0,
                1,
                2,
                5,
                40,
                1000,
                2048,
                5000,
                vocab as u32 / 2,
                vocab as u32 - 1,
                vocab as u32,
                u32::MAX,
            ];
            let unit = numbers.one().abs();
            SampleSpec {
                temperature: numbers.choose(&[1.0, 0.8, 0.1, 1e-3, 1e-30, 1e-45, 2.0, 10.0, 1e3, 3e38, 0.0]),
                top_k: numbers.choose(&top_ks),
                top_p: numbers.choose(&[1.0, 1.0, 0.95, 0.5, unit, 1e-30, 0.0, near, 0.999]),
                min_p: numbers.choose(&[0.0, 0.0, 0.05, 1e-6, 1e-30, unit, near, 1.0]),
                seed: numbers.next(),
                position: numbers.next(),
                ..SampleSpec::GREEDY
            }
        })
        .collect()
}

/// Kinds of logits: what they are called, the bias, its factor, and the size of the product.
fn kinds(vocab: usize, numbers: &mut Numbers) -> Vec<(&'static str, Vec<f32>, f32, f32)> {
    let mut fill = |f: &mut dyn FnMut(&mut Numbers, usize) -> f32| -> Vec<f32> {
        (0..vocab).map(|id| f(numbers, id)).collect()
    };
    let infinite = f32::INFINITY;
    vec![
        ("plain", fill(&mut |n, _| n.normal(2.0)), 1.0, 0.5),
        ("peaked", fill(&mut |n, id| n.normal(1.0) + if id % 997 == 3 { 15.0 } else { 0.0 }), 1.0, 0.1),
        ("flat", fill(&mut |n, _| n.normal(0.01)), 1.0, 0.0),
        ("few values", fill(&mut |n, _| n.normal(2.0).round()), 1.0, 0.0),
        ("two values", fill(&mut |_, id| (id % 2) as f32), 1.0, 0.0),
        ("equal", vec![7.25; vocab], 1.0, 0.0),
        ("zeros of both signs", fill(&mut |_, id| if id % 3 == 0 { 0.0 } else { -0.0 }), -1.0, 0.0),
        ("subnormal", fill(&mut |n, _| n.normal(1e-41)), 1.0, 0.0),
        ("spread", fill(&mut |n, _| n.normal(1.0) * 10f32.powi(n.next() as i32 % 60 - 30)), 1.0, 0.0),
        ("huge", fill(&mut |n, _| n.normal(3e37)), 1.0, 0.0),
        ("steep", fill(&mut |_, id| -(id as f32)), 1.0, 0.0),
        (
            "at the border of the last bin",
            fill(&mut |n, id| if id == 0 { 31.5 } else { n.normal(0.2) }),
            1.0,
            0.0,
        ),
        (
            "mostly forbidden",
            fill(&mut |n, id| if id % 50 == 0 { n.normal(3.0) } else { -infinite }),
            1.0,
            0.0,
        ),
        ("one left", fill(&mut |_, id| if id == vocab / 2 { -3.0 } else { -infinite }), 1.0, 0.0),
        ("none left", vec![-infinite; vocab], 1.0, 0.0),
        ("infinite", fill(&mut |n, id| if id % 13 == 5 { infinite } else { n.normal(1.0) }), 1.0, 0.0),
        ("NaN", fill(&mut |n, id| if id == vocab - 1 { f32::NAN } else { n.normal(1.0) }), 1.0, 0.0),
    ]
}

fn compare(vocabs: &[usize], each: usize) {
    let Some(mut scene) = Scene::new() else { return };
    let mut numbers = Numbers(11);
    let mut pairs = 0;
    for &vocab in vocabs {
        for (what, bias, scale, size) in kinds(vocab, &mut numbers) {
            scene.load(&bias, scale, size);
            scene.check(what, &specs(&mut numbers, each, vocab));
            pairs += each;
        }
    }
    println!("{pairs} pairs of logits and specs");
}

/// What a checker of memory and races has time for.
#[test]
fn draws_of_small_vocabularies_are_the_samplers() {
    compare(&[2, 2500], ROWS);
}

#[test]
fn draws_are_the_samplers() {
    compare(&[1, 2, 3, 31, 256, 2047, 2049, 10_000], 10 * ROWS);
    compare(&[128_256, 152_064], 4 * ROWS);
}

/// The same launches are a graph; what is asked for is in memory and may differ.
#[test]
fn draws_are_replayed_with_other_specs() {
    let Some(mut scene) = Scene::new() else { return };
    let mut numbers = Numbers(5);
    let bias: Vec<f32> = (0..50_000).map(|_| numbers.normal(2.0)).collect();
    scene.load(&bias, 1.0, 0.5);
    scene.check("replayed", &specs(&mut numbers, 20 * ROWS, bias.len()));
    assert!(scene.device.replayed_steps() >= 18, "no graphs");
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// What a drawn token costs beside a step that leaves its logits on the GPU, and what the host's way costs.
#[test]
#[ignore = "figures, not a test"]
fn cost_of_a_drawn_token() {
    const RUNS: usize = 200;
    let Some(mut scene) = Scene::new() else { return };
    for vocab in [128_256, 152_064] {
        let mut numbers = Numbers(3);
        let bias: Vec<f32> = (0..vocab).map(|_| numbers.normal(2.0)).collect();
        scene.load(&bias, 1.0, 0.0);
        let usual =
            SampleSpec { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..SampleSpec::GREEDY };
        let nucleus = SampleSpec { top_k: 0, min_p: 0.0, ..usual };
        let all = SampleSpec { top_p: 1.0, ..nucleus };
        let flat = SampleSpec { top_k: 50_000, ..usual };
        for (name, spec) in [
            ("greedy", SampleSpec::GREEDY),
            ("usual", usual),
            ("top-p", nucleus),
            ("all", all),
            ("50,000", flat),
        ] {
            let spec_at = |position: usize| SampleSpec { position: position as u64, ..spec };
            let mut on_gpu = Vec::new();
            for run in 0..RUNS {
                let start = Instant::now();
                scene.draw(&[spec_at(run)]);
                on_gpu.push(start.elapsed());
            }
            let (mut bare, mut on_host) = (Vec::new(), Vec::new());
            for run in 0..RUNS {
                let start = Instant::now();
                scene.step(1, None);
                // Waits, and copies next to nothing.
                scene.device.hidden(None, 0..1, &mut [0.0; WIDTH]).expect("a row");
                bare.push(start.elapsed());
                scene.device.logits(&mut scene.logits[..vocab]).expect("logits");
                sample(&scene.logits[..vocab], &spec_at(run), None, &mut scene.scratch).expect("a token");
                on_host.push(start.elapsed());
            }
            let [gpu, bare, host] = [on_gpu, bare, on_host].map(median);
            println!(
                "{vocab} {name}: step {bare:.0} µs, drawn on the GPU {gpu:.0} µs, on the host {host:.0} µs"
            );
        }
    }
}
