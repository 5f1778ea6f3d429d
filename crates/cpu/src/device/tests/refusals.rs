//! What the device refuses.

use super::decoder::{Decoder, PLAIN, Runner};
use super::*;
use crate::testing::weight;

fn message(result: Result<impl Sized, DeviceError>) -> String {
    match result.err() {
        Some(DeviceError::Fault(what)) => what,
        Some(DeviceError::Unsupported { tensor, what }) => {
            assert_eq!(tensor, "test.weight");
            what
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_level_without_faster_forms_refuses_them() {
    let options = CpuOptions { numerics: Numerics::Fast, ..options(Isa::Scalar, 1, Repack::On) };
    let what = message(CpuDevice::new(&options));
    assert!(what.contains("numerics fast") && what.contains("scalar") && what.contains("amx"), "{what}");
}

#[test]
fn levels_that_are_not_there() {
    assert_eq!(choose(None, &[Isa::Scalar, Isa::Avx2]).ok(), Some(Isa::Avx2));
    assert_eq!(choose(Some(Isa::Scalar), &[Isa::Scalar, Isa::Avx2]).ok(), Some(Isa::Scalar));
    let what = message(choose(Some(Isa::Vnni), &[Isa::Scalar, Isa::Avx2]));
    assert_eq!(what, "this CPU has no vnni; it has scalar, avx2");
    for isa in Isa::ALL {
        let device = CpuDevice::new(&options(isa, 1, Repack::On));
        assert_eq!(device.as_ref().ok().map(CpuDevice::isa), isa.available().then_some(isa));
        if let Err(error) = device {
            assert!(error.to_string().contains(isa.name()), "{error}");
        }
    }
}

#[test]
fn a_step_without_memory() {
    let mut device = CpuDevice::new(&best(1)).expect("a device");
    let batch = Batch { tokens: &[], spans: &[], outputs: &[] };
    assert!(message(device.begin(&batch)).contains("before memory was reserved"));
    assert!(message(device.logits(&mut [])).contains("before memory was reserved"));
}

#[test]
fn bad_batches() {
    // 10 tokens, 10 outputs, 40 rows of the embedding, one group of 23 blocks.
    let mut runner = Runner::new(&Decoder::random(&PLAIN), &best(1), 10);
    let blocks = runner.device.state.as_ref().expect("a state").kv[0].group.blocks;
    let table = BlockTable { first: 0, blocks: &[3, 1] };
    let good = Span { start: 0, len: 4, position: 62, tables: &[table] };
    let mut refuse = |tokens: &[u32], spans: &[Span<'_>], outputs: &[u32], why: &str| {
        let what = message(runner.device.begin(&Batch { tokens, spans, outputs }));
        assert!(what.contains(why), "`{what}` does not say `{why}`");
        // And nothing of it has been taken over.
        runner.device.begin(&Batch { tokens: &[1; 4], spans: &[good], outputs: &[3] }).expect("a good batch");
    };
    refuse(&[0; 11], &[Span { len: 11, position: 0, ..good }], &[], "11 tokens");
    refuse(&[0; 4], &[good], &[0; 11], "11 outputs");
    refuse(&[0, 1, 40, 2], &[good], &[], "token 40 of a vocabulary of 40");
    refuse(&[0; 4], &[good], &[4], "output 4 of a step of 4");
    refuse(&[0; 4], &[], &[], "spans of 0 tokens");
    refuse(&[0; 5], &[good], &[], "spans of 4 tokens in a step of 5");
    refuse(&[0; 3], &[good], &[], "spans of 4 tokens in a step of 3");
    refuse(&[0; 4], &[Span { start: 1, ..good }], &[], "a span at token 1");
    refuse(&[0; 8], &[good, Span { start: 3, ..good }], &[], "a span at token 3");
    refuse(&[0; 4], &[Span { tables: &[], ..good }], &[], "0 tables");
    refuse(&[0; 4], &[Span { tables: &[table; 2], ..good }], &[], "2 tables");
    refuse(&[0; 4], &[Span { position: 125, ..good }], &[], "outside their blocks");
    refuse(&[0; 4], &[Span { position: usize::MAX - 1, ..good }], &[], "outside their blocks");
    let late = [BlockTable { first: 1, blocks: &[3, 1] }];
    refuse(&[0; 4], &[Span { tables: &late, ..good }], &[], "outside their blocks");
    let absurd = [BlockTable { first: usize::MAX / 2, blocks: &[3, 1] }];
    refuse(&[0; 4], &[Span { tables: &absurd, ..good }], &[], "outside their blocks");
    let absent = [0, blocks as u32];
    let tables = [BlockTable { first: 0, blocks: &absent }];
    refuse(
        &[0; 4],
        &[Span { tables: &tables, ..good }],
        &[],
        &format!("block {blocks} of a cache of {blocks}"),
    );
    let many = vec![0; blocks + 1];
    let tables = [BlockTable { first: 0, blocks: &many }];
    refuse(&[0; 4], &[Span { tables: &tables, ..good }], &[], &format!("{} blocks", blocks + 1));
}

#[test]
fn attention_that_sees_dropped_blocks() {
    let decoder = Decoder::random(&PLAIN);
    let mut runner = Runner::new(&decoder, &best(1), 10);
    let tables = [BlockTable { first: 1, blocks: &[3, 1] }];
    let spans = [Span { start: 0, len: 2, position: 130, tables: &tables }];
    let batch = Batch { tokens: &[1, 2], spans: &spans, outputs: &[] };
    assert!(message(runner.run(&batch)).contains("position 130 sees 0, kept from 64 on"));
    let seen = |runner: &mut Runner, window: usize| {
        runner.device.attention(&AttentionSpec { window: Some(window), ..decoder.attention(0) })
    };
    assert!(seen(&mut runner, 67).is_ok());
    assert!(message(seen(&mut runner, 68)).contains("sees 63"));
    assert!(message(seen(&mut runner, 0)).contains("window of no positions"));
}

#[test]
fn results_of_another_size() {
    let mut runner = Runner::new(&Decoder::random(&PLAIN), &best(1), 10);
    let tables = [BlockTable { first: 0, blocks: &[3] }];
    let spans = [Span { start: 0, len: 2, position: 0, tables: &tables }];
    runner.run(&Batch { tokens: &[1, 2], spans: &spans, outputs: &[1] }).expect("a step");
    assert!(message(runner.device.logits(&mut [0.0; 41])).contains("41 logits asked; reserved 40"));
    let mut hidden = |tokens, out: &mut [f32]| message(runner.device.hidden(None, tokens, out));
    assert!(hidden(1..2, &mut [0.0; 96]).contains("96 hidden values asked; reserved 48"));
    assert!(hidden(1..3, &mut [0.0; 96]).contains("3 tokens of the step; reserved 2"));
}

fn linear(rows: usize, cols: usize) -> Linear {
    Linear { weight: weight(GgmlType::F32, rows, cols, vec![0; 4 * rows * cols]), bias: None }
}

fn norm(len: usize) -> Option<Norm> {
    Some(Norm { kind: NormKind::Rms { eps: 1e-5 }, weight: vec![1.0; len].into(), bias: None })
}

fn attn_in() -> AttnInSpec {
    AttnInSpec {
        norm: norm(48),
        q: linear(96, 48),
        k: linear(32, 48),
        v: linear(32, 48),
        q_norm: norm(16).map(HeadNorm::EachHead),
        k_norm: norm(16).map(HeadNorm::EachHead),
        rope: Some(Rope { style: RopeStyle::Adjacent, inv_freq: vec![1.0; 8].into(), magnitude: 1.0 }),
        heads: Heads { q: 6, kv: 2, dim: 16 },
        kv: KvSlot { group: 0, layer: 0 },
    }
}

#[test]
fn attention_stages_whose_parts_do_not_fit() {
    let mut device = CpuDevice::new(&best(1)).expect("a device");
    assert!(device.load_attn_in(attn_in()).is_ok());
    let mut refuse = |spec: AttnInSpec, why: &str| {
        let what = message(device.load_attn_in(spec));
        assert!(what.contains(why), "`{what}` does not say `{why}`");
    };
    refuse(AttnInSpec { q: linear(80, 48), ..attn_in() }, "expected 96 rows, found 80");
    refuse(AttnInSpec { k: linear(96, 48), ..attn_in() }, "expected 32 rows, found 96");
    refuse(AttnInSpec { v: linear(16, 48), ..attn_in() }, "expected 32 rows, found 16");
    refuse(AttnInSpec { k: linear(32, 64), ..attn_in() }, "expected 48 columns, found 64");
    refuse(AttnInSpec { norm: norm(64), ..attn_in() }, "expected 48 norm values, found 64");
    refuse(
        AttnInSpec { q_norm: norm(17).map(HeadNorm::EachHead), ..attn_in() },
        "expected 96 norm values, found 17",
    );
    refuse(
        AttnInSpec { k_norm: norm(96).map(HeadNorm::AllHeads), ..attn_in() },
        "expected 32 norm values, found 96",
    );
    let short = Norm { bias: Some(vec![0.0; 47].into()), ..norm(48).expect("a norm") };
    refuse(AttnInSpec { norm: Some(short), ..attn_in() }, "expected 48 norm bias values, found 47");
    let biased = Linear { bias: Some(vec![0.0; 31].into()), ..linear(32, 48) };
    refuse(AttnInSpec { v: biased, ..attn_in() }, "expected 32 bias values, found 31");
    let wide = Rope { style: RopeStyle::Halves, inv_freq: vec![1.0; 9].into(), magnitude: 1.0 };
    refuse(AttnInSpec { rope: Some(wide), ..attn_in() }, "rope over 18 of 16 channels");
    for (heads, q, kv) in [
        (Heads { q: 4, kv: 2, dim: 24 }, 96, 48),
        (Heads { q: 3, kv: 2, dim: 16 }, 48, 32),
        (Heads { q: 1, kv: 1, dim: 528 }, 528, 528),
        (Heads { q: 6, kv: 0, dim: 16 }, 96, 0),
        (Heads { q: 6, kv: 2, dim: 0 }, 0, 0),
        (Heads { q: 0, kv: 2, dim: 16 }, 0, 32),
    ] {
        let (q, k, v) = (linear(q, 48), linear(kv, 48), linear(kv, 48));
        refuse(AttnInSpec { heads, q, k, v, q_norm: None, k_norm: None, ..attn_in() }, "channels");
    }
}

#[test]
fn other_stages_whose_parts_do_not_fit() {
    let mut device = CpuDevice::new(&best(1)).expect("a device");
    let spec =
        AttnOutSpec { proj: linear(48, 96), post_norm: norm(96), stream_norm: None, residual_scale: 1.0 };
    assert!(message(device.load_attn_out(spec)).contains("expected 48 norm values, found 96"));
    let ffn = || FfnSpec {
        input: FfnInput::Residual(norm(48)),
        gate: Some(linear(80, 48)),
        up: linear(80, 48),
        down: linear(48, 80),
        activation: Activation::Silu,
        post_norm: norm(48),
        stream_norm: norm(48),
        residual_scale: 1.0,
    };
    assert!(device.load_ffn(ffn()).is_ok());
    let mut refuse = |spec: FfnSpec, why: &str| {
        let what = message(device.load_ffn(spec));
        assert!(what.contains(why), "`{what}` does not say `{why}`");
    };
    refuse(FfnSpec { gate: Some(linear(96, 48)), ..ffn() }, "expected 80 rows, found 96");
    refuse(FfnSpec { gate: Some(linear(80, 64)), ..ffn() }, "expected 48 columns, found 64");
    refuse(FfnSpec { down: linear(48, 96), ..ffn() }, "expected 80 columns, found 96");
    refuse(FfnSpec { input: FfnInput::Residual(norm(80)), ..ffn() }, "expected 48 norm values, found 80");
    refuse(FfnSpec { post_norm: norm(80), ..ffn() }, "expected 48 norm values, found 80");
    refuse(FfnSpec { stream_norm: norm(80), ..ffn() }, "expected 48 norm values, found 80");
    let table = || EmbeddingSpec::from(linear(40, 48).weight);
    for (spec, why) in [
        (EmbeddingSpec { positions: Some(linear(7, 32).weight), ..table() }, "expected 48 columns, found 32"),
        (
            EmbeddingSpec { token_type: Some([0.0; 40].into()), ..table() },
            "48 values of the token type, found 40",
        ),
        (EmbeddingSpec { norm: norm(40), ..table() }, "expected 48 norm values, found 40"),
    ] {
        let what = message(device.load_embedding(spec));
        assert!(what.contains(why), "`{what}` does not say `{why}`");
    }
    let embedding = device.load_embedding(linear(40, 48).weight.into()).expect("an embedding");
    for proj in [None, Some(linear(40, 48))] {
        let spec = HeadSpec { norm: norm(40), proj, scale: 1.0, soft_cap: None };
        let error = device.load_head(spec, &embedding).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("expected 48 norm values, found 40"), "{error}");
    }
}

#[test]
fn stages_that_memory_was_not_reserved_for() {
    let mut runner = Runner::new(&Decoder::random(&PLAIN), &best(1), 4);
    let device = &mut runner.device;
    device.begin(&Batch { tokens: &[], spans: &[], outputs: &[] }).expect("a batch");
    for (rows, cols, why) in [(40, 64, "64 columns of the embedding; reserved 48"), (39, 48, "39 rows")] {
        let table = device.load_embedding(linear(rows, cols).weight.into()).expect("an embedding");
        assert!(message(device.embed(&table, 1.0)).contains(why));
        let spec = HeadSpec { norm: None, proj: None, scale: 1.0, soft_cap: None };
        let head = device.load_head(spec, &table).expect("a head");
        assert!(message(device.head(&head)).contains("of the head; reserved"));
    }
    let plain = || AttnInSpec { rope: None, ..attn_in() };
    let few = Heads { q: 3, kv: 1, dim: 16 };
    let stages = [
        (attn_in(), "after memory was reserved"),
        (
            AttnInSpec { norm: None, q: linear(96, 64), k: linear(32, 64), v: linear(32, 64), ..plain() },
            "reserved 48",
        ),
        (AttnInSpec { kv: KvSlot { group: 1, layer: 0 }, ..plain() }, "cache group 1 of 1"),
        (AttnInSpec { kv: KvSlot { group: 0, layer: 2 }, ..plain() }, "layer 2"),
        (
            AttnInSpec { heads: few, q: linear(48, 48), k: linear(16, 48), v: linear(16, 48), ..plain() },
            "kv: 1",
        ),
    ];
    for (spec, why) in stages {
        let stage = device.load_attn_in(spec).expect("a stage");
        let what = message(device.attn_in(&stage));
        assert!(what.contains(why), "`{what}` does not say `{why}`");
    }
    let heads = Heads { q: 8, kv: 2, dim: 16 };
    let spec = AttentionSpec {
        heads,
        scale: 1.0,
        soft_cap: None,
        causal: true,
        window: None,
        kv: KvSlot { group: 0, layer: 0 },
    };
    assert!(message(device.attention(&spec)).contains("128 channels of all query heads; reserved 96"));
    for (rows, cols, why) in
        [(64, 96, "64 rows of the projection"), (48, 128, "128 columns of the projection")]
    {
        let spec =
            AttnOutSpec { proj: linear(rows, cols), post_norm: None, stream_norm: None, residual_scale: 1.0 };
        let stage = device.load_attn_out(spec).expect("a stage");
        assert!(message(device.attn_out(&stage)).contains(why));
    }
    for (d_model, d_ff, out) in [(64, 80, 48), (48, 96, 48), (48, 80, 64)] {
        let spec = FfnSpec {
            input: FfnInput::Residual(None),
            gate: None,
            up: linear(d_ff, d_model),
            down: linear(out, d_ff),
            activation: Activation::Silu,
            post_norm: None,
            stream_norm: None,
            residual_scale: 1.0,
        };
        let stage = device.load_ffn(spec).expect("a stage");
        assert!(message(device.ffn(&stage)).contains("; reserved"));
    }
}

#[test]
fn reserves_the_bytes_that_it_says() {
    let runner = Runner::new(&Decoder::random(&PLAIN), &best(3), 33);
    let state = runner.device.state.as_ref().expect("a state");
    assert_eq!(runner.device.reserve_bytes(&state.reserve), state.held_bytes());
    let mut absurd = state.reserve.clone();
    absurd.kv_groups[0].blocks = usize::MAX / 1000;
    let mut device = CpuDevice::new(&best(1)).expect("a device");
    let error = device.reserve(&absurd).err();
    assert!(
        matches!(error, Some(DeviceError::OutOfMemory { what: "KV cache", needed: u64::MAX })),
        "{error:?}"
    );
}
