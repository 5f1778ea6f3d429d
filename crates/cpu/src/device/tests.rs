//! The device as a whole: random decoders against double precision, and against themselves in every way to run them.

mod decoder;
mod oracle;
mod refusals;

use super::*;
use crate::testing::{first_difference, relative_error};
use decoder::{Decoder, LONG, PLAIN, Runner, Sequence, Shape, quantized_shapes, shapes};

fn options(isa: Isa, threads: usize, repack: Repack) -> CpuOptions {
    CpuOptions { threads: Some(threads), isa: Some(isa), repack, ..CpuOptions::default() }
}

fn best(threads: usize) -> CpuOptions {
    options(Isa::best(), threads, Repack::On)
}

/// The whole prompt in one step.
fn whole(decoder: &Decoder, options: &CpuOptions, tokens: &[u32]) -> Vec<f32> {
    let mut runner = Runner::new(decoder, options, tokens.len());
    let mut sequence = runner.sequence();
    runner.step(&mut [(&mut sequence, tokens)])
}

fn same(what: &str, shape: &Shape, found: &[f32], expected: &[f32]) {
    assert!(expected.iter().all(|v| v.is_finite()), "{}: a NaN leaked", shape.name);
    if let Some(i) = first_difference(found, expected) {
        let (token, of) = (i / shape.vocab, expected.len() / shape.vocab);
        panic!("{}, {what}: token {token} of {of}: {}, not {}", shape.name, found[i], expected[i]);
    }
}

fn all_shapes() -> impl Iterator<Item = Shape> {
    shapes().into_iter().chain(quantized_shapes())
}

/// Errors of the tokens, ascending, and that of all together.
fn errors(shape: &Shape) -> (Vec<f64>, f64) {
    let decoder = Decoder::random(shape);
    let tokens = decoder.prompt(1, LONG);
    let found = whole(&decoder, &best(2), &tokens);
    let expected = oracle::logits(&decoder, &tokens);
    let rows = found.chunks_exact(shape.vocab).zip(expected.chunks_exact(shape.vocab));
    let mut errors: Vec<f64> = rows.map(|(f, e)| relative_error(f, e)).collect();
    errors.sort_by(f64::total_cmp);
    (errors, relative_error(&found, &expected))
}

#[test]
fn agrees_with_double_precision() {
    for shape in shapes() {
        let (errors, all) = errors(&Shape { kv_types: KvTypes::same(KvType::F32), ..shape.clone() });
        let worst = errors[LONG - 1];
        assert!(all <= 1e-5 && worst <= 1e-4, "{}: {all:.1e}, worst {worst:.1e}", shape.name);
    }
}

#[test]
fn agrees_with_double_precision_over_a_cache_of_halves() {
    // A key or value on the edge between two halves may round the other way than the oracle's: tokens that see it
    // are then off by some 1e-4.
    for shape in shapes() {
        let (errors, all) = errors(&Shape { kv_types: KvTypes::same(KvType::F16), ..shape.clone() });
        let (median, worst) = (errors[LONG / 2], errors[LONG - 1]);
        assert!(
            all <= 1e-4 && median <= 3e-5 && worst <= 2e-3,
            "{}: {all:.1e}, median {median:.1e}, worst {worst:.1e}",
            shape.name
        );
    }
}

#[test]
fn agrees_with_double_precision_over_a_cache_of_bfloat16() {
    // As above, and the step across an edge is eight times as long.
    for shape in shapes() {
        let (errors, all) = errors(&Shape { kv_types: KvTypes::same(KvType::BF16), ..shape.clone() });
        let (median, worst) = (errors[LONG / 2], errors[LONG - 1]);
        assert!(
            all <= 8e-4 && median <= 2.4e-4 && worst <= 1.6e-2,
            "{}: {all:.1e}, median {median:.1e}, worst {worst:.1e}",
            shape.name
        );
    }
}

#[test]
fn agrees_with_double_precision_over_a_cache_of_eight_bits() {
    // A step across an edge is up to 1/254 of the largest of 32 channels.
    for types in [(KvType::Q8_0, KvType::Q8_0), (KvType::Q8_0, KvType::F32), (KvType::F32, KvType::Q8_0)] {
        let kv_types = KvTypes { keys: types.0, values: types.1 };
        let fit = |shape: &Shape| kv_types.refused(shape.heads.dim).is_none();
        let shapes: Vec<_> = shapes().into_iter().filter(fit).collect();
        assert!(shapes.len() >= 4);
        for shape in shapes {
            let (errors, all) = errors(&Shape { kv_types, ..shape.clone() });
            let (median, worst) = (errors[LONG / 2], errors[LONG - 1]);
            assert!(
                all <= 8e-4 && median <= 4e-4 && worst <= 1.6e-2,
                "{}, {types:?}: {all:.1e}, median {median:.1e}, worst {worst:.1e}",
                shape.name
            );
        }
    }
}

#[test]
fn agrees_with_double_precision_over_a_cache_of_fp8() {
    // A step across an edge is 16 times as long as one of bfloat16 and has 16 times fewer values near it, whose squares add up:
    // four times as far.
    for types in [(KvType::FP8, KvType::FP8), (KvType::FP8, KvType::F32), (KvType::F32, KvType::FP8)] {
        let kv_types = KvTypes { keys: types.0, values: types.1 };
        let fit = |shape: &Shape| kv_types.refused(shape.heads.dim).is_none();
        let shapes: Vec<_> = shapes().into_iter().filter(fit).collect();
        assert!(shapes.len() >= 4);
        for shape in shapes {
            let (errors, all) = errors(&Shape { kv_types, ..shape.clone() });
            let (median, worst) = (errors[LONG / 2], errors[LONG - 1]);
            assert!(
                all <= 3.2e-3 && median <= 1e-3 && worst <= 6.4e-2,
                "{}, {types:?}: {all:.1e}, median {median:.1e}, worst {worst:.1e}",
                shape.name
            );
        }
    }
}

/// Over a cache of such keys and values, every level's bits in chunks are those of the portable level at once.
fn bits_over(keys: KvType, values: KvType) {
    let heads = Heads { q: 6, kv: 2, dim: 32 };
    let shape = Shape { kv_types: KvTypes { keys, values }, heads, ..PLAIN };
    let decoder = Decoder::random(&shape);
    let tokens = decoder.prompt(3, 300);
    let expected = whole(&decoder, &options(Isa::Scalar, 1, Repack::On), &tokens);
    for isa in Host::levels() {
        let mut runner = Runner::new(&decoder, &options(isa, 2, Repack::On), 300);
        let mut sequence = runner.sequence();
        let found = runner.in_chunks(&mut sequence, &tokens, &[130, 1, 5, 9]);
        same(&format!("{} and {} on {isa}", keys.name(), values.name()), &shape, &found, &expected);
    }
}

#[test]
fn bits_over_every_cache_do_not_depend_on_levels_threads_and_chunks() {
    for ty in KvType::ALL {
        bits_over(ty, ty);
    }
}

/// Blocks that go to the host and back, to others, leave attention with the same bits.
#[test]
fn blocks_are_read_and_written_as_they_lie() {
    for ty in KvType::ALL {
        let heads = Heads { q: 6, kv: 2, dim: 32 };
        let shape = Shape { kv_types: KvTypes { keys: ty, values: KvType::F16 }, heads, ..PLAIN };
        let decoder = Decoder::random(&shape);
        let tokens = decoder.prompt(3, 200);
        let mut runner = Runner::new(&decoder, &best(2), 400);
        let mut sequence = runner.sequence();
        let before = runner.in_chunks(&mut sequence, &tokens[..150], &[150]);
        assert!(runner.move_blocks(&mut sequence) > 0);
        let after = runner.in_chunks(&mut sequence, &tokens[150..], &[50]);
        let expected = whole(&decoder, &best(2), &tokens);
        same(ty.name(), &shape, &[before, after].concat(), &expected);
        let device = &mut runner.device;
        assert!(device.read_block(0, usize::MAX, &mut []).is_err() && device.write_block(9, 0, &[]).is_err());
        assert!(device.read_block(0, 0, &mut [0]).is_err());
    }
}

/// Apart from the test above, which emulated processors run: they are slow.
#[test]
fn bits_over_caches_of_two_types_do_not_depend_on_levels_threads_and_chunks() {
    for (keys, values) in KvType::ALL.into_iter().flat_map(|k| KvType::ALL.map(|v| (k, v))) {
        if keys != values {
            bits_over(keys, values);
        }
    }
}

#[test]
fn quantized_decoders_agree_with_double_precision_as_far_as_int8_goes() {
    for shape in quantized_shapes() {
        let decoder = Decoder::random(&shape);
        let tokens = decoder.prompt(1, 100);
        let found = whole(&decoder, &best(2), &tokens);
        let error = relative_error(&found, &oracle::logits(&decoder, &tokens));
        assert!(error <= 0.05, "{}: {error:.1e}", shape.name);
    }
}

#[test]
fn bits_do_not_depend_on_chunks() {
    // One token at a time and up to eight go by segment, more go by token.
    let ragged = [1, 7, 8, 9, 64, 3, 100, 17, 255, 2];
    for shape in all_shapes() {
        let decoder = Decoder::random(&shape);
        let tokens = decoder.prompt(2, LONG);
        let expected = whole(&decoder, &best(1), &tokens);
        for (what, chunks) in
            [("ragged chunks", &ragged[..]), ("one by one", &[1]), ("by eight", &[8]), ("by nine", &[9])]
        {
            let mut runner = Runner::new(&decoder, &best(1), 255);
            let mut sequence = runner.sequence();
            same(what, &shape, &runner.in_chunks(&mut sequence, &tokens, chunks), &expected);
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_levels_and_packing() {
    for shape in all_shapes() {
        let decoder = Decoder::random(&shape);
        // Two segments: the portable level is slow.
        let tokens = decoder.prompt(3, 300);
        let expected = whole(&decoder, &best(1), &tokens);
        for threads in [2, 3] {
            let what = format!("{threads} threads");
            same(&what, &shape, &whole(&decoder, &best(threads), &tokens), &expected);
            let mut runner = Runner::new(&decoder, &best(threads), 180);
            let mut sequence = runner.sequence();
            let found = runner.in_chunks(&mut sequence, &tokens, &[180, 1, 5, 1, 1, 90, 1, 1, 1, 8, 11]);
            same(&format!("{what} in chunks"), &shape, &found, &expected);
        }
        let levels = Isa::ALL.into_iter().filter(|isa| isa.available()).map(|isa| (isa, Repack::On));
        for (isa, repack) in levels.chain([(Isa::best(), Repack::Off)]) {
            let what = format!("{isa}, {repack:?}");
            same(&what, &shape, &whole(&decoder, &options(isa, 2, repack), &tokens), &expected);
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_rest_of_the_batch() {
    for shape in all_shapes() {
        let decoder = Decoder::random(&shape);
        let prompts = [decoder.prompt(4, 400), decoder.prompt(5, 120), decoder.prompt(6, 30)];
        let expected = prompts.each_ref().map(|tokens| whole(&decoder, &best(1), tokens));
        let mut runner = Runner::new(&decoder, &best(2), 400);
        let mut sequences: [Sequence; 3] = std::array::from_fn(|_| runner.sequence());
        let mut found: [Vec<f32>; 3] = Default::default();
        // Tokens of each sequence by step: prefill beside decode, few tokens, and sequences that sit out.
        for lens in [[310, 20, 1], [1, 1, 1], [8, 0, 5], [1, 5, 2], [75, 93, 20], [3, 1, 1], [2, 0, 0]] {
            let steps: [&[u32]; 3] = std::array::from_fn(|i| &prompts[i][sequences[i].len..][..lens[i]]);
            let mut parts: Vec<_> = sequences.iter_mut().zip(steps).filter(|(_, s)| !s.is_empty()).collect();
            let logits = runner.step(&mut parts);
            let mut rest = &logits[..];
            for (found, len) in found.iter_mut().zip(lens) {
                let (own, others) = rest.split_at(len * shape.vocab);
                found.extend_from_slice(own);
                rest = others;
            }
        }
        for (found, expected) in found.iter().zip(&expected) {
            same("batched", &shape, found, expected);
        }
    }
}

#[test]
fn bits_do_not_depend_on_room_for_partials() {
    let decoder = Decoder::random(&PLAIN);
    let tokens = decoder.prompt(10, LONG);
    let expected = whole(&decoder, &best(1), &tokens);
    let mut runner = Runner::new(&decoder, &best(2), 8);
    // Room for eight tokens of one segment, or for one of three.
    let per_segment = PLAIN.heads.q * crate::kernel::attention::partial_len(PLAIN.heads.dim);
    let room = crate::mem::Buffer::zeroed(8 * per_segment, "partials").expect("memory");
    runner.device.state.as_mut().expect("a state").partials = room;
    let mut sequence = runner.sequence();
    same("by token", &PLAIN, &runner.in_chunks(&mut sequence, &tokens, &[8, 1, 2, 3]), &expected);
}

#[test]
fn bits_do_not_depend_on_blocks_behind_the_window() {
    for shape in all_shapes().filter(|shape| shape.windows[0] != shape.windows[1]) {
        let decoder = Decoder::random(&shape);
        let tokens = decoder.prompt(7, LONG);
        let expected = whole(&decoder, &best(1), &tokens);
        let mut runner = Runner::new(&decoder, &best(2), 100);
        let mut sequence = runner.sequence();
        let (mut found, mut dropped) = (Vec::new(), 0);
        for step in tokens.chunks(37) {
            let (few, many) = step.split_at(step.len() / 4);
            for part in [few, many] {
                found.extend(runner.step(&mut [(&mut sequence, part)]));
                dropped += runner.drop_unseen(&mut sequence);
            }
        }
        assert!(dropped >= 4, "{}: {dropped} blocks were dropped", shape.name);
        same("windowed", &shape, &found, &expected);
    }
}

#[test]
fn a_sequence_with_a_nan_leaves_nothing_behind() {
    // A tied head would see the NaN in every step.
    for mut shape in shapes().into_iter().filter(|shape| !shape.tied) {
        shape.vocab += 1;
        let mut decoder = Decoder::random(&shape);
        let bad = shape.vocab as u32 - 1;
        decoder.embedding.values[bad as usize * shape.d_model] = f32::NAN;
        let bytes = decoder.embedding.values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        decoder.embedding.linear.weight.data = bytes.into();
        let tokens: Vec<u32> = decoder.prompt(8, 90).into_iter().map(|t| t % bad).collect();
        let expected = whole(&decoder, &best(1), &tokens);
        let mut runner = Runner::new(&decoder, &best(2), 90);
        for chunks in [&[90][..], &[1]] {
            let mut sequence = runner.sequence();
            let poisoned = runner.in_chunks(&mut sequence, &[bad; 70], chunks);
            assert!(poisoned.iter().all(|v| v.is_nan()), "{}: a NaN was lost", shape.name);
            runner.release(sequence);
            let mut sequence = runner.sequence();
            same("after a NaN", &shape, &runner.in_chunks(&mut sequence, &tokens, chunks), &expected);
            runner.release(sequence);
        }
    }
}

#[test]
fn outputs_may_be_few_or_none_and_have_a_hidden_state() {
    for shape in [PLAIN, Shape { tied: false, bias: true, ..PLAIN }] {
        let decoder = Decoder::random(&shape);
        let tokens = decoder.prompt(9, 20);
        let expected = whole(&decoder, &best(1), &tokens);
        for threads in 1..=3 {
            let mut runner = Runner::new(&decoder, &best(threads), 20);
            let tables = [BlockTable { first: 0, blocks: &[3] }];
            let spans = [Span { start: 0, len: 20, position: 0, tables: &tables }];
            for outputs in [&[][..], &[19], &[0, 7, 19], &[0]] {
                let logits = runner.run(&Batch { tokens: &tokens, spans: &spans, outputs }).expect("a step");
                for (logits, token) in logits.chunks_exact(shape.vocab).zip(outputs) {
                    same(
                        "some outputs",
                        &shape,
                        logits,
                        &expected[*token as usize * shape.vocab..][..shape.vocab],
                    );
                }
                let hidden = runner.hidden(0..20);
                let head = decoder.head.as_ref().unwrap_or(&decoder.embedding);
                for (output, logits) in outputs.iter().zip(logits.chunks_exact(shape.vocab)) {
                    let hidden = &hidden[*output as usize * shape.d_model..][..shape.d_model];
                    assert_eq!(runner.hidden(*output as usize..*output as usize + 1), hidden);
                    let hidden: Vec<f64> = hidden.iter().map(|v| f64::from(*v)).collect();
                    let error = relative_error(logits, &oracle::linear(head, &hidden));
                    assert!(error < 1e-6, "the hidden state is the head's input: {error:.1e}");
                }
            }
        }
    }
}

#[test]
fn an_empty_step_is_fine() {
    let mut runner = Runner::new(&Decoder::random(&PLAIN), &best(2), 4);
    let logits = runner.run(&Batch { tokens: &[], spans: &[], outputs: &[] }).expect("a step");
    assert!(logits.is_empty());
}
