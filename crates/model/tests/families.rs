//! Every family against `transformers` in float64, on the tiny random models of `tests/golden/families`.
#![allow(clippy::print_stdout, reason = "figures for --nocapture")]

use base64::Engine as _;
use minfer_cpu::{CpuDevice, CpuOptions, Repack};
use minfer_engine::Session;
use minfer_engine::executor::{Executor, RowOutput, StepOutput, Want};
use minfer_gguf::{GgmlType, Gguf, TensorSpec, quant};
use minfer_model::{KvType, LoadOptions, Model};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Relative error of a row of logits in float arithmetic; the goldens' README has what float32 itself costs.
const F32_BAR: f64 = 1e-4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families")
}

struct Sequence {
    ids: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
}

struct Golden {
    name: String,
    gguf: Arc<Gguf>,
    sequences: Vec<Sequence>,
}

fn goldens() -> Vec<Golden> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("the folder of goldens")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    names.sort();
    assert!(names.len() >= 21, "{} goldens", names.len());
    names.iter().map(|path| golden(path)).collect()
}

fn golden(path: &Path) -> Golden {
    let json: Value = serde_json::from_slice(&std::fs::read(path).expect("a golden")).expect("JSON");
    let vocab = json["n_vocab"].as_u64().expect("n_vocab") as usize;
    let numbers = |value: &Value| -> Vec<u64> {
        value.as_array().expect("numbers").iter().map(|n| n.as_u64().expect("a number")).collect()
    };
    let sequence = |value: &Value| {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(value["logits"].as_str().expect("logits"))
            .expect("base64");
        let floats: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Sequence {
            ids: numbers(&value["ids"]).into_iter().map(|id| id as u32).collect(),
            positions: numbers(&value["positions"]).into_iter().map(|p| p as usize).collect(),
            logits: floats.chunks_exact(vocab).map(<[f32]>::to_vec).collect(),
        }
    };
    Golden {
        name: json["name"].as_str().expect("a name").to_owned(),
        gguf: Arc::new(Gguf::open(&path.with_extension("gguf")).expect("a model")),
        sequences: json["sequences"].as_array().expect("sequences").iter().map(sequence).collect(),
    }
}

/// The same model with its matrices in the type that `choose` names for their present type and row length.
fn retyped(gguf: &Gguf, choose: impl Fn(GgmlType, usize) -> GgmlType) -> Arc<Gguf> {
    let tensors: Vec<(TensorSpec, Vec<u8>)> = gguf
        .tensors()
        .map(|tensor| {
            let matrix =
                tensor.dims().iter().filter(|d| **d > 1).count() == 2 && !tensor.name().contains("norm");
            let cols = tensor.dims()[0] as usize;
            let ty = if matrix { choose(tensor.ty(), cols) } else { tensor.ty() };
            let mut values = vec![0.0; tensor.elements() as usize];
            quant::dequantize(tensor.ty(), tensor.data(), &mut values).expect("floats");
            let mut bytes = vec![0; ty.bytes_of(values.len()).expect("whole blocks")];
            quant::quantize(ty, &values, &mut bytes).expect("a quantizer");
            (TensorSpec::new(tensor.name(), ty, tensor.dims()), bytes)
        })
        .collect();
    let views: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, data)| (spec.clone(), &data[..])).collect();
    Arc::new(
        Gguf::from_bytes(minfer_gguf::to_bytes(gguf.metadata(), &views).expect("a file")).expect("a model"),
    )
}

/// Context to open a model with: longrope chooses its factors by it.
fn context(golden: &Golden, sequence: &Sequence) -> usize {
    match golden.name.as_str() {
        "phi3-longrope" if sequence.ids.len() <= 256 => 256,
        _ => 512.max(sequence.ids.len().next_multiple_of(512)),
    }
}

fn load(gguf: &Arc<Gguf>, context: usize, repack: Repack, kv_type: KvType) -> Model<CpuDevice> {
    let device = CpuDevice::new(&CpuOptions { threads: Some(2), isa: None, repack }).expect("a device");
    let options = LoadOptions {
        context: Some(context),
        max_tokens: context,
        max_outputs: context,
        kv_type,
        ..LoadOptions::default()
    };
    Model::load(gguf, device, &options, &mut |_, _| {}).expect("a supported model")
}

/// Logits of every position, the sequence fed in pieces of the given sizes (repeated).
fn logits(model: &mut Model<CpuDevice>, ids: &[u32], pieces: &[usize]) -> Vec<Vec<f32>> {
    let mut session = Session::new(model.limits()).expect("a session");
    let (mut out, mut rows, mut rest) = (StepOutput::default(), Vec::new(), ids);
    for size in pieces.iter().cycle() {
        let (piece, later) = rest.split_at((*size).min(rest.len()));
        let plan = session.plan(piece.iter().map(|id| (vec![*id], Want::Logits))).expect("a plan");
        let step = model.submit(&plan).expect("a step");
        model.wait(step, &mut out).expect("results");
        rows.extend(out.rows.iter().map(|row| match row {
            RowOutput::Logits(logits) => logits.clone(),
            other => panic!("{other:?} instead of logits"),
        }));
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    rows
}

fn error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let difference: f64 =
        found.iter().zip(expected).map(|(f, e)| square(f64::from(*f) - f64::from(*e))).sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (difference / norm).sqrt()
}

/// Worst row of all sequences.
fn worst(golden: &Golden, gguf: &Arc<Gguf>, repack: Repack, kv: KvType) -> f64 {
    let mut worst: f64 = 0.0;
    for sequence in &golden.sequences {
        let mut model = load(gguf, context(golden, sequence), repack, kv);
        let found = logits(&mut model, &sequence.ids, &[usize::MAX]);
        for (position, expected) in sequence.positions.iter().zip(&sequence.logits) {
            worst = worst.max(error(&found[*position], expected));
        }
    }
    worst
}

#[test]
fn float_files_agree_with_the_float64_reference() {
    let mut failed = Vec::new();
    for golden in goldens() {
        let f32_file = retyped(&golden.gguf, |_, _| GgmlType::F32);
        let f32_error = worst(&golden, &f32_file, Repack::On, KvType::F32);
        // A file of F16 matrices holds the same numbers; quantized ones have their own bars.
        let own_is_float = golden.gguf.tensors().all(|t| matches!(t.ty(), GgmlType::F32 | GgmlType::F16));
        let own = if own_is_float { worst(&golden, &golden.gguf, Repack::Off, KvType::F32) } else { 0.0 };
        println!("{:20} F32 {f32_error:.1e}  as it is {own:.1e}", golden.name);
        if f32_error.max(own) > F32_BAR {
            failed.push(golden.name.clone());
        }
    }
    assert!(failed.is_empty(), "above {F32_BAR:.0e}: {failed:?}");
}

/// Gate of one product with int8 activations against the exact one, from the kernels' contract.
const PRODUCT_GATE: f64 = 1.2e-2;

/// Worst row of the long sequences: quantized weights and int8 activations against the same weights in float
/// arithmetic, which the test above holds to the outside reference.
fn worst_of_activations(golden: &Golden, quantized: &Arc<Gguf>) -> f64 {
    let exact = retyped(quantized, |_, _| GgmlType::F32);
    let mut worst: f64 = 0.0;
    for sequence in golden.sequences.iter().filter(|s| s.ids.len() <= 96) {
        let context = context(golden, sequence);
        let of = |gguf, kv| logits(&mut load(gguf, context, Repack::On, kv), &sequence.ids, &[usize::MAX]);
        let (found, expected) = (of(quantized, KvType::F16), of(&exact, KvType::F32));
        worst = found.iter().zip(&expected).map(|(f, e)| error(f, e)).fold(worst, f64::max);
    }
    worst
}

#[test]
fn quantized_files_stay_within_their_gates() {
    use GgmlType::*;
    for golden in goldens() {
        // Products follow each other four times a layer (qkv, o, gate and up, down), and once in the head; at worst
        // their errors add up.
        let layers = golden.gguf.tensors().filter(|t| t.name().ends_with("attn_output.weight")).count();
        let gate = PRODUCT_GATE * (4 * layers + 1) as f64;
        for ty in [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K] {
            let files =
                golden.gguf.tensors().filter(|t| t.name().ends_with(".weight") && !t.name().contains("norm"));
            if files.clone().any(|t| !t.dims()[0].is_multiple_of(ty.block_len() as u64)) {
                continue;
            }
            let error = worst_of_activations(&golden, &retyped(&golden.gguf, |_, _| ty));
            println!("{:20} {ty:6} {error:.1e} of {gate:.1e}", golden.name);
            assert!(error < gate, "{} {ty}: {error} above {gate}", golden.name);
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_a_prompt_is_cut() {
    for golden in goldens() {
        let sequence = golden.sequences.iter().max_by_key(|s| s.ids.len().min(100)).expect("a sequence");
        let ids = &sequence.ids[..sequence.ids.len().min(300)];
        let mut model = load(&golden.gguf, context(&golden, sequence), Repack::On, KvType::F16);
        let whole = logits(&mut model, ids, &[usize::MAX]);
        for pieces in [&[1][..], &[7, 1, 30, 2], &[64]] {
            assert!(logits(&mut model, ids, pieces) == whole, "{} in pieces of {pieces:?}", golden.name);
        }
    }
}
