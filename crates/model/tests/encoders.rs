//! Encoders against float64, on the tiny random models of `tests/golden/encoders`.
#![allow(clippy::print_stdout, reason = "figures for --nocapture")]

#[expect(dead_code, reason = "shared with the tests of decoders")]
#[path = "families/goldens.rs"]
mod goldens;

use base64::Engine as _;
use goldens::{error, retyped};
use minfer_cpu::{CpuDevice, CpuOptions, Isa, Repack};
use minfer_engine::Session;
use minfer_engine::executor::{Executor, RowOutput, StepOutput, StepPlan, Want};
use minfer_gguf::{GgmlType, Gguf};
use minfer_model::{KvType, KvTypes, LoadOptions, Model};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Relative error of a row of hidden states in float arithmetic.
const F32_BAR: f64 = 1e-4;

struct Sequence {
    ids: Vec<u32>,
    positions: Vec<usize>,
    hidden: Vec<f32>,
}

struct Golden {
    name: String,
    width: usize,
    gguf: Arc<Gguf>,
    sequences: Vec<Sequence>,
}

fn goldens() -> [Golden; 2] {
    ["bert", "nomic-bert"].map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/golden/encoders")
            .join(format!("{name}.json"));
        let json: Value = serde_json::from_slice(&std::fs::read(&path).expect("a golden")).expect("JSON");
        let numbers = |value: &Value| -> Vec<usize> {
            value
                .as_array()
                .expect("numbers")
                .iter()
                .map(|n| n.as_u64().expect("a number") as usize)
                .collect()
        };
        let sequence = |value: &Value| {
            let text = value["hidden"].as_str().expect("hidden");
            let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
            Sequence {
                ids: numbers(&value["ids"]).into_iter().map(|id| id as u32).collect(),
                positions: numbers(&value["positions"]),
                hidden: bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            }
        };
        Golden {
            name: name.to_owned(),
            width: json["width"].as_u64().expect("width") as usize,
            gguf: Arc::new(Gguf::open(&path.with_extension("gguf")).expect("a model")),
            sequences: json["sequences"].as_array().expect("sequences").iter().map(sequence).collect(),
        }
    })
}

fn load(gguf: &Arc<Gguf>, cpu: CpuOptions, kv: KvType, sequences: usize) -> Model<CpuDevice> {
    let device = CpuDevice::new(&cpu).expect("a device");
    let options = LoadOptions { kv_types: KvTypes::same(kv), sequences, ..LoadOptions::default() };
    Model::load(gguf, device, &options, &mut |_, _| {}).expect("a supported model")
}

fn run(model: &mut Model<CpuDevice>, plan: &StepPlan) -> Result<Vec<Vec<f32>>, String> {
    let mut out = StepOutput::default();
    let step = model.submit(plan).map_err(|error| error.to_string())?;
    model.wait(step, &mut out).expect("results");
    let states = out.rows.into_iter().map(|row| match row {
        RowOutput::Embedding(values) => values,
        other => panic!("{other:?} instead of hidden states"),
    });
    Ok(states.collect())
}

/// Hidden states of a text, which is alone in its step.
fn hidden(model: &mut Model<CpuDevice>, ids: &[u32]) -> Vec<f32> {
    let mut session = Session::new(model.limits()).expect("a session");
    let plan = session.plan([(ids.to_vec(), Want::Embeddings)]).expect("a plan");
    run(model, &plan).expect("a step").remove(0)
}

fn threads(threads: usize) -> CpuOptions {
    CpuOptions { threads: Some(threads), repack: Repack::On, ..CpuOptions::default() }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn hidden_states_agree_with_the_float64_reference() {
    for golden in goldens() {
        let exact = retyped(&golden.gguf, |_, _| GgmlType::F32);
        let (mut worst, mut turned) = (0.0f64, 0.0f64);
        for sequence in &golden.sequences {
            let floats = hidden(&mut load(&exact, threads(2), KvType::F32, 1), &sequence.ids);
            let halves = hidden(&mut load(&golden.gguf, threads(2), KvType::F16, 1), &sequence.ids);
            for (position, expected) in
                sequence.positions.iter().zip(sequence.hidden.chunks_exact(golden.width))
            {
                let row = |states: &[f32]| states[*position * golden.width..][..golden.width].to_vec();
                worst = worst.max(error(&row(&floats), expected));
                turned = turned.max(1.0 - cosine(&row(&halves), expected));
            }
        }
        println!("{:12} F32 {worst:.1e}; F16, with a cache of F16: 1 - cosine {turned:.1e}", golden.name);
        assert!(worst < F32_BAR, "{}: {worst:.1e} above {F32_BAR:.0e}", golden.name);
        assert!(turned < 1e-4, "{}: 1 - cosine is {turned:.1e}", golden.name);
    }
}

#[test]
fn bits_depend_on_the_text_alone() {
    for golden in goldens() {
        for sequence in &golden.sequences {
            let expected = hidden(&mut load(&golden.gguf, threads(1), KvType::F16, 1), &sequence.ids);
            let same = |cpu: CpuOptions, what: &str| {
                let found = hidden(&mut load(&golden.gguf, cpu, KvType::F16, 1), &sequence.ids);
                assert!(found == expected, "{}, {} tokens: {what}", golden.name, sequence.ids.len());
            };
            same(threads(2), "2 threads");
            same(threads(3), "3 threads");
            same(CpuOptions { repack: Repack::Off, ..threads(2) }, "weights left in the file");
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                same(CpuOptions { isa: Some(isa), ..threads(2) }, isa.name());
            }
        }
    }
}

/// Texts side by side in a step, one of them short enough for the kernels of few tokens when it is alone.
#[test]
fn company_changes_nothing() {
    use minfer_engine::{EmbedRequest, Engine, EngineConfig, Event, Pooling, TokenTable};
    for golden in goldens() {
        let model = load(&golden.gguf, threads(2), KvType::F16, 3);
        let engine = Engine::new(model, TokenTable::default(), EngineConfig::default()).expect("an engine");
        let embed = |ids: &[u32]| {
            let request = EmbedRequest { normalize: false, ..EmbedRequest::new(ids.to_vec(), Pooling::None) };
            engine.embed(request).expect("it fits")
        };
        let texts = golden.sequences.iter().cycle().take(12);
        let handles: Vec<_> = texts.clone().map(|sequence| embed(&sequence.ids)).collect();
        for (handle, sequence) in handles.into_iter().zip(texts) {
            let found = handle.into_iter().find_map(|event| match event {
                Event::Embedding { values } => Some(values),
                _ => None,
            });
            let expected = hidden(&mut load(&golden.gguf, threads(2), KvType::F16, 1), &sequence.ids);
            assert!(found == Some(expected), "{}, {} tokens", golden.name, sequence.ids.len());
        }
        let error = engine.embed(EmbedRequest::new(vec![5; 321], Pooling::Mean)).expect_err("it is too long");
        assert!(error.to_string().contains("321 tokens, the context holds 320"), "{error}");
    }
}

#[test]
fn what_an_encoder_cannot_do_is_refused() {
    let [golden, _] = goldens();
    let mut model = load(&golden.gguf, threads(1), KvType::F16, 1);
    assert!(model.limits().bidirectional && model.limits().max_tokens == 320);
    let mut session = Session::new(model.limits()).expect("a session");
    let plan = session.plan([(vec![1, 2], Want::Logits)]).expect("a plan");
    assert!(run(&mut model, &plan).expect_err("no logits").contains("no logits"));
    let plan = session.plan([(vec![3], Want::Embedding)]).expect("a plan");
    assert!(run(&mut model, &plan).expect_err("the rest of a text").contains("as a whole"));
    // Shorter steps are shorter texts.
    let options = LoadOptions { max_tokens: Some(100), ..LoadOptions::default() };
    let device = CpuDevice::new(&threads(1)).expect("a device");
    let model = Model::load(&golden.gguf, device, &options, &mut |_, _| {}).expect("a supported model");
    assert_eq!((model.limits().context, model.limits().max_tokens), (100, 100));
}
