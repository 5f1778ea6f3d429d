//! The tiny random models of `tests/golden/families`, with what `transformers` computes for them in float64.

use base64::Engine as _;
use minfer_engine::Session;
use minfer_engine::executor::{Executor, RowOutput, StepOutput, Want};
use minfer_gguf::{GgmlType, Gguf, TensorSpec, quant};
use minfer_model::{KvType, KvTypes, LoadOptions, Model};
use minfer_ops::Device;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// In this repository, or below the current directory of a machine that has the tests but not the repository.
fn folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families");
    if here.is_dir() { here } else { PathBuf::from("tests/golden/families") }
}

pub(crate) struct Sequence {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<usize>,
    pub(crate) logits: Vec<Vec<f32>>,
}

pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) gguf: Arc<Gguf>,
    pub(crate) sequences: Vec<Sequence>,
}

pub(crate) fn goldens() -> Vec<Golden> {
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
pub(crate) fn retyped(gguf: &Gguf, choose: impl Fn(GgmlType, usize) -> GgmlType) -> Arc<Gguf> {
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
pub(crate) fn context(golden: &Golden, sequence: &Sequence) -> usize {
    match golden.name.as_str() {
        "phi3-longrope" if sequence.ids.len() <= 256 => 256,
        _ => 512.max(sequence.ids.len().next_multiple_of(512)),
    }
}

/// Loads a model that computes all its positions in one step, if asked to.
pub(crate) fn load<D: Device>(gguf: &Arc<Gguf>, context: usize, kv_type: KvType, device: D) -> Model<D> {
    let options = LoadOptions {
        context: Some(context),
        max_tokens: Some(context),
        max_outputs: context,
        kv_types: KvTypes::same(kv_type),
        ..LoadOptions::default()
    };
    Model::load(gguf, device, &options, &mut |_, _| {}).expect("a supported model")
}

/// Logits of every position, the sequence fed in pieces of the given sizes (repeated).
pub(crate) fn logits<D: Device>(model: &mut Model<D>, ids: &[u32], pieces: &[usize]) -> Vec<Vec<f32>> {
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

/// Hidden states of every position, one after the other, the sequence fed in pieces of up to `piece` tokens.
pub(crate) fn hidden<D: Device>(model: &mut Model<D>, ids: &[u32], piece: usize) -> Vec<f32> {
    let mut session = Session::new(model.limits()).expect("a session");
    let (mut out, mut states) = (StepOutput::default(), Vec::new());
    for piece in ids.chunks(piece) {
        let plan = session.plan([(piece.to_vec(), Want::Embeddings)]).expect("a plan");
        let step = model.submit(&plan).expect("a step");
        model.wait(step, &mut out).expect("results");
        match &out.rows[..] {
            [RowOutput::Embedding(values)] => states.extend_from_slice(values),
            other => panic!("{other:?} instead of hidden states"),
        }
    }
    states
}

pub(crate) fn error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let difference: f64 =
        found.iter().zip(expected).map(|(f, e)| square(f64::from(*f) - f64::from(*e))).sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (difference / norm).sqrt()
}
