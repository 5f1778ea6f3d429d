//! Every family against `transformers` in float64, on the tiny random models of `tests/golden/families`.
#![allow(clippy::print_stdout, reason = "figures for --nocapture")]

#[path = "families/crowd.rs"]
mod crowd;
#[path = "families/goldens.rs"]
mod goldens;

use goldens::{Golden, context, error, goldens, logits, retyped};
use minfer_cpu::{CpuDevice, CpuOptions, Repack};
use minfer_gguf::{GgmlType, Gguf, quant};
use minfer_model::{KvType, LoadOptions, Model};
use std::sync::Arc;

/// Relative error of a row of logits in float arithmetic; the goldens' README has what float32 itself costs.
const F32_BAR: f64 = 1e-4;

fn load(gguf: &Arc<Gguf>, context: usize, repack: Repack, kv_type: KvType) -> Model<CpuDevice> {
    let device = CpuDevice::new(&CpuOptions { threads: Some(2), isa: None, repack, ..CpuOptions::default() })
        .expect("a device");
    goldens::load(gguf, context, kv_type, device)
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

/// The product of the hidden states with the head, in float64, against the reference's logits.
#[test]
fn hidden_states_are_those_that_the_reference_makes_its_logits_of() {
    for golden in goldens() {
        let file = retyped(&golden.gguf, |_, _| GgmlType::F32);
        let head = file.tensor("output.weight").or(file.tensor("token_embd.weight")).expect("a head");
        let mut weights = vec![0.0f32; head.elements() as usize];
        quant::dequantize(head.ty(), head.data(), &mut weights).expect("floats");
        let mut worst: f64 = 0.0;
        for sequence in golden.sequences.iter().filter(|s| s.ids.len() <= 96) {
            let mut model = load(&file, context(&golden, sequence), Repack::On, KvType::F32);
            let (width, spec) = (model.spec().d_model, model.spec().clone());
            let logits = |hidden: &[f32]| -> Vec<f32> {
                let product = |row: &[f32]| -> f64 {
                    row.iter().zip(hidden).map(|(w, h)| f64::from(*w) * f64::from(*h)).sum()
                };
                let scaled =
                    weights.chunks_exact(width).map(|row| product(row) * f64::from(spec.logit_scale));
                let cap = |l: f64, cap: f32| f64::from(cap) * (l / f64::from(cap)).tanh();
                scaled.map(|l| spec.logit_cap.map_or(l, |c| cap(l, c)) as f32).collect()
            };
            let states = goldens::hidden(&mut model, &sequence.ids, 7);
            for (position, expected) in sequence.positions.iter().zip(&sequence.logits) {
                worst = worst.max(error(&logits(&states[*position * width..][..width]), expected));
            }
        }
        println!("{:20} {worst:.1e}", golden.name);
        assert!(worst < F32_BAR, "{}: {worst:.1e} above {F32_BAR:.0e}", golden.name);
    }
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

#[test]
fn in_a_crowd_each_request_gets_what_it_gets_alone() {
    for golden in goldens() {
        crowd::each_gets_what_it_gets_alone(&golden.name, 4, &|sequences| {
            let cpu = CpuOptions { threads: Some(2), ..CpuOptions::default() };
            let options = LoadOptions {
                context: Some(crowd::CONTEXT),
                max_outputs: 64,
                sequences,
                ..LoadOptions::default()
            };
            let device = CpuDevice::new(&cpu).expect("a device");
            Model::load(&golden.gguf, device, &options, &mut |_, _| {}).expect("memory")
        });
    }
}
