//! Every family on a GPU, on the tiny random models of `tests/golden/families`.
//!
//! Runs on a machine with a GPU; elsewhere each test says that nothing was tested.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "figures for --nocapture, and skipped tests")]

#[path = "families/crowd.rs"]
mod crowd;
#[path = "families/goldens.rs"]
mod goldens;

use goldens::{Golden, context, error, goldens, hidden, load, logits, retyped};
use minfer_cpu::{CpuDevice, CpuOptions, Repack};
use minfer_cuda::{CudaDevice, CudaOptions, Numerics};
use minfer_engine::executor::{Executor, RowOutput, StepOutput, Want};
use minfer_engine::sampling::{SampleSpec, Scratch, sample};
use minfer_engine::session::Session;
use minfer_gguf::{GgmlType, Gguf};
use minfer_model::{KvType, LoadOptions, Model, plan_memory};
use std::sync::Arc;

/// Gate of one product of the `f16` profile against the exact one. A cached key or value is no worse.
const PRODUCT_GATE: f64 = 1.5e-3;

/// The same of the `int8` profile.
const BYTES_GATE: f64 = 1.2e-2;

fn device() -> Option<CudaDevice> {
    device_with(Numerics::F16)
}

fn device_with(numerics: Numerics) -> Option<CudaDevice> {
    match CudaDevice::new(&CudaOptions { numerics: Some(numerics), ..CudaOptions::default() }) {
        Ok(device) => Some(device),
        Err(why) => {
            eprintln!("SKIPPED, nothing was tested: {why}");
            None
        }
    }
}

/// Products follow each other four times a layer (qkv, o, gate and up, down), and once in the head; at worst their
/// errors add up.
fn gate(golden: &Golden) -> f64 {
    PRODUCT_GATE * products(golden) as f64
}

fn products(golden: &Golden) -> usize {
    4 * golden.gguf.tensors().filter(|t| t.name().ends_with("attn_output.weight")).count() + 1
}

#[test]
fn every_family_agrees_with_the_float64_reference() {
    let mut failed = Vec::new();
    for golden in goldens() {
        let gate = gate(&golden);
        let mut worst: f64 = 0.0;
        for sequence in &golden.sequences {
            let Some(device) = device() else { return };
            let mut model = load(&golden.gguf, context(&golden, sequence), KvType::F16, device);
            let found = logits(&mut model, &sequence.ids, &[usize::MAX]);
            for (position, expected) in sequence.positions.iter().zip(&sequence.logits) {
                worst = worst.max(error(&found[*position], expected));
            }
        }
        println!("{:20} {worst:.1e} of {gate:.1e}", golden.name);
        if worst.is_nan() || worst > gate {
            failed.push(golden.name);
        }
    }
    assert!(failed.is_empty(), "above their gates: {failed:?}");
}

/// Worst row of the long sequences: quantized weights on the GPU against the same weights in float arithmetic.
fn worst_of_type(golden: &Golden, quantized: &Arc<Gguf>, numerics: Numerics) -> Option<f64> {
    let exact = retyped(quantized, |_, _| GgmlType::F32);
    let mut worst: f64 = 0.0;
    for sequence in golden.sequences.iter().filter(|s| s.ids.len() <= 96) {
        let context = context(golden, sequence);
        let cpu = CpuOptions { threads: Some(2), isa: None, repack: Repack::On, ..CpuOptions::default() };
        let cpu = CpuDevice::new(&cpu).expect("a device");
        let expected = logits(&mut load(&exact, context, KvType::F32, cpu), &sequence.ids, &[usize::MAX]);
        let mut model = load(quantized, context, KvType::F16, device_with(numerics)?);
        let found = logits(&mut model, &sequence.ids, &[usize::MAX]);
        worst = found.iter().zip(&expected).map(|(f, e)| error(f, e)).fold(worst, f64::max);
    }
    Some(worst)
}

#[test]
fn quantized_files_stay_within_their_gates() {
    use GgmlType::*;
    for golden in goldens() {
        let gate = gate(&golden);
        for ty in [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K] {
            let weights =
                golden.gguf.tensors().filter(|t| t.name().ends_with(".weight") && !t.name().contains("norm"));
            if weights.clone().any(|t| !t.dims()[0].is_multiple_of(ty.block_len() as u64)) {
                continue;
            }
            let quantized = retyped(&golden.gguf, |_, _| ty);
            let Some(error) = worst_of_type(&golden, &quantized, Numerics::F16) else { return };
            println!("{:20} {ty:6} {error:.1e} of {gate:.1e}", golden.name);
            assert!(error < gate, "{} {ty}: {error} above {gate}", golden.name);
        }
    }
}

/// Whether some rows are whole units of tuned types, and what the model is with weights of `ty`.
fn with_units(golden: &Golden, ty: GgmlType) -> Option<Arc<Gguf>> {
    let weights =
        golden.gguf.tensors().filter(|t| t.name().ends_with(".weight") && !t.name().contains("norm"));
    let fits = weights.clone().all(|t| t.dims()[0].is_multiple_of(ty.block_len() as u64));
    let units = weights.clone().any(|t| t.dims().len() == 2 && t.dims()[0].is_multiple_of(256));
    (fits && units).then(|| retyped(&golden.gguf, |_, _| ty))
}

#[test]
fn the_int8_profile_stays_within_its_gates() {
    let mut models = 0;
    for golden in goldens() {
        let gate = BYTES_GATE * products(&golden) as f64;
        for ty in [GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q6_K] {
            let Some(quantized) = with_units(&golden, ty) else { continue };
            let Some(error) = worst_of_type(&golden, &quantized, Numerics::Int8) else { return };
            println!("{:20} {ty:6} {error:.1e} of {gate:.1e}", golden.name);
            assert!(error < gate, "{} {ty}: {error} above {gate}", golden.name);
            models += 1;
        }
    }
    assert!(models >= 3, "only {models} models have rows of whole units");
}

/// Hidden states are near the CPU's of the same weights in float arithmetic, and have the same bits however a text is cut.
#[test]
fn hidden_states_are_near_the_exact_ones_and_keep_their_bits() {
    for golden in goldens() {
        let gate = gate(&golden);
        let exact = retyped(&golden.gguf, |_, _| GgmlType::F32);
        for sequence in golden.sequences.iter().filter(|s| s.ids.len() <= 96) {
            let context = context(&golden, sequence);
            let Some(device) = device() else { return };
            let cpu = CpuDevice::new(&CpuOptions::default()).expect("a device");
            let mut model = load(&golden.gguf, context, KvType::F16, device);
            let width = model.spec().d_model;
            let expected = hidden(&mut load(&exact, context, KvType::F32, cpu), &sequence.ids, usize::MAX);
            let found = hidden(&mut model, &sequence.ids, usize::MAX);
            let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
            let worst = rows.map(|(f, e)| error(f, e)).fold(0.0, f64::max);
            assert!(worst < gate, "{}: {worst:.1e} above {gate:.1e}", golden.name);
            assert!(hidden(&mut model, &sequence.ids, 7) == found, "{}: other bits in pieces", golden.name);
        }
    }
}

/// Weights that are single values: near the exact result, the same bits however a prompt is cut, and in either profile.
#[test]
fn files_of_halves_stay_within_their_gates_and_keep_their_bits() {
    let mut models = 0;
    for golden in goldens() {
        let gate = gate(&golden);
        for ty in [GgmlType::F16, GgmlType::BF16] {
            let halves = retyped(&golden.gguf, |_, _| ty);
            let Some(error) = worst_of_type(&golden, &halves, Numerics::F16) else { return };
            println!("{:20} {ty:6} {error:.1e} of {gate:.1e}", golden.name);
            assert!(error < gate, "{} {ty}: {error} above {gate}", golden.name);
            if with_units(&golden, ty).is_none() {
                continue;
            }
            let sequence = golden.sequences.iter().max_by_key(|s| s.ids.len().min(100)).expect("a sequence");
            let ids = &sequence.ids[..sequence.ids.len().min(300)];
            let mut whole = None;
            for numerics in [Numerics::F16, Numerics::Int8] {
                let Some(device) = device_with(numerics) else { return };
                let mut model = load(&halves, context(&golden, sequence), KvType::F16, device);
                let found = logits(&mut model, ids, &[usize::MAX]);
                let whole = whole.get_or_insert_with(|| found.clone());
                for pieces in [&[usize::MAX][..], &[1], &[7, 1, 30, 2], &[64]] {
                    let same = logits(&mut model, ids, pieces) == *whole;
                    assert!(same, "{} {ty} {numerics}: in pieces of {pieces:?}", golden.name);
                }
            }
            models += 1;
        }
    }
    assert!(models >= 4, "only {models} models have rows of whole units");
}

#[test]
fn bits_do_not_depend_on_how_a_prompt_is_cut() {
    let int8 = goldens().into_iter().filter_map(|golden| {
        let quantized = with_units(&golden, GgmlType::Q8_0)?;
        Some((golden, quantized, Numerics::Int8))
    });
    let f16 = goldens().into_iter().map(|golden| {
        let gguf = Arc::clone(&golden.gguf);
        (golden, gguf, Numerics::F16)
    });
    for (golden, gguf, numerics) in f16.chain(int8) {
        let sequence = golden.sequences.iter().max_by_key(|s| s.ids.len().min(100)).expect("a sequence");
        let ids = &sequence.ids[..sequence.ids.len().min(300)];
        let Some(device) = device_with(numerics) else { return };
        let mut model = load(&gguf, context(&golden, sequence), KvType::F16, device);
        let whole = logits(&mut model, ids, &[usize::MAX]);
        for pieces in [&[1][..], &[7, 1, 30, 2], &[64]] {
            assert!(logits(&mut model, ids, pieces) == whole, "{} in pieces of {pieces:?}", golden.name);
        }
        // Steps of one token are the same launches each time: a graph replays them.
        assert!(model.device().replayed_steps() as usize > ids.len() / 2, "{}: no graphs", golden.name);
        for run in 0..20 {
            assert!(logits(&mut model, ids, &[usize::MAX]) == whole, "{}: run {run}", golden.name);
        }
    }
}

/// Caches of every type that heads can have: near the CPU's with the same type, and the same bits however a prompt is cut.
#[test]
fn caches_of_every_type_are_near_the_cpus_and_keep_their_bits() {
    let mut ran = [0; 3];
    for golden in goldens() {
        let sequence = golden.sequences.iter().max_by_key(|s| s.ids.len().min(100)).expect("a sequence");
        let ids = &sequence.ids[..sequence.ids.len().min(300)];
        let exact = retyped(&golden.gguf, |_, _| GgmlType::F32);
        // What falls on the other side of a rounding is a step of the cache off, up to 1/127 of the largest value.
        for (ran, ty) in ran.iter_mut().zip([KvType::BF16, KvType::Q8_0, KvType::FP8]) {
            let types = minfer_model::KvTypes::same(ty);
            let options = LoadOptions { kv_types: types, ..LoadOptions::default() };
            let Some(device) = device() else { return };
            if plan_memory(&golden.gguf, &device, &options).is_err() {
                continue;
            }
            let context = context(&golden, sequence);
            let mut model = load(&golden.gguf, context, ty, device);
            let whole = logits(&mut model, ids, &[usize::MAX]);
            for pieces in [&[1][..], &[7, 1, 30, 2], &[64]] {
                let same = logits(&mut model, ids, pieces) == whole;
                assert!(same, "{} {}: in pieces of {pieces:?}", golden.name, ty.name());
            }
            let on_cpu = |ty| {
                let cpu =
                    CpuOptions { threads: Some(2), isa: None, repack: Repack::On, ..CpuOptions::default() };
                let cpu = CpuDevice::new(&cpu).expect("a device");
                logits(&mut load(&exact, context, ty, cpu), ids, &[usize::MAX])
            };
            let worst_of = |a: &[Vec<f32>], b: &[Vec<f32>]| {
                a.iter().zip(b).map(|(a, b)| error(a, b)).fold(0.0, f64::max)
            };
            let expected = on_cpu(ty);
            let worst = worst_of(&whole, &expected);
            // A step of fp8 is 1/8 of a value. What differs by one makes more of the next layer's values differ, until the two
            // are as two roundings that know nothing of each other: what the type itself costs, times the root of two.
            let gate = match ty {
                KvType::FP8 => 1.5 * worst_of(&expected, &on_cpu(KvType::F32)),
                _ => 2.0 * gate(&golden),
            };
            println!("{:20} {:5} {worst:.1e} of {gate:.1e}", golden.name, ty.name());
            assert!(worst < gate, "{} {}: {worst:.1e}", golden.name, ty.name());
            *ran += 1;
        }
    }
    assert!(ran[0] >= ran[1] && ran[1] > 0 && ran[2] == ran[1], "{ran:?}");
}

/// Tokens that the device chose as `spec` says for their positions, each fed back, `count` of them after `ids`.
fn generate(
    model: &mut Model<CudaDevice>,
    ids: &[u32],
    count: usize,
    spec: impl Fn(usize) -> SampleSpec,
) -> Vec<u32> {
    let mut session = Session::new(model.limits()).expect("a session");
    let mut out = StepOutput::default();
    let mut next = ids.to_vec();
    (0..count)
        .map(|i| {
            let want = Want::Token(spec(ids.len() + i));
            let plan = session.plan([(std::mem::take(&mut next), want)]).expect("a plan");
            let step = model.submit(&plan).expect("a step");
            model.wait(step, &mut out).expect("results");
            let [RowOutput::Token(token)] = out.rows[..] else { panic!("{:?}", out.rows) };
            next.push(token);
            token
        })
        .collect()
}

#[test]
fn a_hundred_runs_are_the_same_and_choose_as_the_sampler_does() {
    let greedy = |_| SampleSpec::GREEDY;
    let drawn = |position: usize| SampleSpec {
        temperature: 1.5,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.01,
        seed: 7,
        position: position as u64,
        ..SampleSpec::GREEDY
    };
    for golden in goldens() {
        let sequence = golden.sequences.iter().max_by_key(|s| s.ids.len()).expect("a sequence");
        let (ids, more) = (&sequence.ids[..sequence.ids.len().min(16)], 48);
        let Some(device) = device() else { return };
        let mut model = load(&golden.gguf, ids.len() + more, KvType::F16, device);
        for spec in [&greedy as &dyn Fn(usize) -> SampleSpec, &drawn] {
            let first = generate(&mut model, ids, more, spec);
            let all = [ids, &first[..more - 1]].concat();
            let rows = logits(&mut model, &all, &[usize::MAX]);
            let rows = rows[ids.len() - 1..].iter().zip(&first);
            for (position, (logits, token)) in (ids.len()..).zip(rows) {
                let expected = sample(logits, &spec(position), None, &mut Scratch::default());
                assert_eq!(expected, Ok(*token), "{}", golden.name);
            }
            for run in 1..100 {
                assert_eq!(generate(&mut model, ids, more, spec), first, "{}: run {run}", golden.name);
            }
        }
    }
}

#[test]
fn in_a_crowd_each_request_gets_what_it_gets_alone() {
    let int8 = goldens().into_iter().filter_map(|golden| {
        let quantized = with_units(&golden, GgmlType::Q8_0)?;
        Some((golden.name, quantized, Numerics::Int8))
    });
    let tuned = goldens().into_iter().filter_map(|golden| {
        let quantized = with_units(&golden, GgmlType::Q6_K)?;
        Some((golden.name, quantized, Numerics::F16))
    });
    let files = goldens().into_iter().map(|golden| (golden.name, golden.gguf, Numerics::F16));
    for (name, gguf, numerics) in files.chain(tuned).chain(int8) {
        if device().is_none() {
            return;
        }
        crowd::each_gets_what_it_gets_alone(&format!("{name} {numerics}"), 4, &|sequences| {
            let options = LoadOptions {
                context: Some(crowd::CONTEXT),
                max_outputs: 64,
                sequences,
                ..LoadOptions::default()
            };
            let device = device_with(numerics).expect("a GPU");
            Model::load(&gguf, device, &options, &mut |_, _| {}).expect("memory")
        });
    }
}

/// What the plan says is what loading takes, up to what the driver keeps for later allocations.
#[test]
fn the_memory_of_a_model_is_known_before_it_is_loaded() {
    for golden in goldens() {
        let options = LoadOptions { context: Some(64), max_outputs: 64, ..LoadOptions::default() };
        let Some(device) = device() else { return };
        let plan = plan_memory(&golden.gguf, &device, &options).expect("a supported model");
        let free = device.free_memory().expect("a figure");
        let model = Model::load(&golden.gguf, device, &options, &mut |_, _| {}).expect("memory");
        let taken = free - model.device().free_memory().expect("a figure");
        println!("{:20} planned {}, taken {taken}", golden.name, plan.total());
        assert!(taken <= plan.total(), "{}: {taken} of {}", golden.name, plan.total());
    }
}

#[test]
fn what_the_gpu_cannot_cache_is_refused_by_name() {
    let Some(device) = device() else { return };
    let golden = goldens().swap_remove(0);
    let options = minfer_model::LoadOptions {
        kv_types: minfer_model::KvTypes::same(KvType::F32),
        ..Default::default()
    };
    let refused = minfer_model::Model::load(&golden.gguf, device, &options, &mut |_, _| {});
    let why = refused.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(why.contains("keys and values") && why.contains("f32"), "{why}");
}
