//! The determinism contract: the bits of a position's logits depend on its prefix alone, not on how the text was cut
//! into steps, on threads, instruction set or layout of the weights.

use minfer::cpu::{CpuOptions, Isa, Repack};
use minfer::perplexity::{Perplexity, Task};
use minfer::tokenizer::{EncodeOptions, Tokenizer};

use crate::support::{GEMMA3, SMOLLM2, cores, golden, ids, load, logits, open};

const TEXT: &str = include_str!("text.txt");

/// The levels of this machine.
fn levels() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available()).collect()
}

fn options(threads: usize, isa: Isa) -> CpuOptions {
    CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() }
}

/// Bits of the logits after `wanted` positions.
fn bits(name: &str, cpu: CpuOptions, tokens: &[u32], chunks: &[usize], wanted: &[usize]) -> Vec<Vec<u32>> {
    let mut model = load(name, cpu, tokens.len().next_multiple_of(64));
    let rows = logits(&mut model, tokens, chunks, wanted);
    rows.iter().map(|row| row.iter().map(|l| l.to_bits()).collect()).collect()
}

#[track_caller]
fn assert_same(expected: &[Vec<u32>], found: &[Vec<u32>], what: &str) {
    assert_eq!(expected.len(), found.len());
    for (i, (e, f)) in expected.iter().zip(found).enumerate() {
        let different = e.iter().zip(f).filter(|(a, b)| a != b).count();
        assert_eq!(different, 0, "{what}: {different} of {} logits differ at output {i}", e.len());
    }
}

fn tokens(name: &str, count: usize) -> Vec<u32> {
    let tokenizer = Tokenizer::from_gguf(open(name).metadata()).expect("the vocabulary is read");
    let ids = tokenizer.encode(TEXT, EncodeOptions { add_special: true, parse_special: false });
    assert!(ids.len() >= count, "{} tokens", ids.len());
    ids[..count].to_vec()
}

fn every_level_gives_the_same_bits(name: &str) {
    let _cores = cores();
    let tokens = tokens(name, 70);
    let wanted = [0, 1, 15, 16, 31, 63, 64, 69];
    let best = Isa::best();
    let expected = bits(name, options(1, best), &tokens, &[70], &wanted);
    for isa in levels() {
        for threads in 1..=(if isa == best { 3 } else { 2 }) {
            let found = bits(name, options(threads, isa), &tokens, &[70], &wanted);
            assert_same(&expected, &found, &format!("{name}, {isa}, {threads} threads"));
        }
    }
    for repack in [Repack::On, Repack::Off] {
        let cpu = CpuOptions { repack, ..options(2, best) };
        let found = bits(name, cpu, &tokens, &[70], &wanted);
        assert_same(&expected, &found, &format!("{name}, repack {repack:?}"));
    }
}

#[test]
fn smollm2_levels_threads_and_layouts() {
    every_level_gives_the_same_bits(SMOLLM2);
}

#[test]
fn gemma_levels_threads_and_layouts() {
    every_level_gives_the_same_bits(GEMMA3);
}

/// Compares steps of the given sizes (the last of which repeats) with one step of up to 512.
fn every_cut_gives_the_same_bits(name: &str, isa: Isa, tokens: &[u32], cuts: &[&[usize]]) {
    let n = tokens.len();
    let wanted: Vec<usize> = [0, 1, 2, 7, 63, 64, 65, 127, 255, 256, 257, 511, 512, 513, n - 1]
        .into_iter()
        .filter(|p| *p < n)
        .collect();
    let expected = bits(name, options(2, isa), tokens, &[512], &wanted);
    for chunks in cuts {
        let found = bits(name, options(2, isa), tokens, chunks, &wanted);
        assert_same(&expected, &found, &format!("{name}, {isa}, steps of {chunks:?}"));
    }
}

const RAGGED: &[usize] = &[1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144];

#[test]
fn smollm2_steps() {
    let _cores = cores();
    let text = tokens(SMOLLM2, 270);
    let cuts = [RAGGED, &[64], &[7, 250, 3], &[245, 1]];
    every_cut_gives_the_same_bits(SMOLLM2, Isa::best(), &text, &cuts);
    every_cut_gives_the_same_bits(SMOLLM2, Isa::best(), &text[..70], &[&[1]]);
    every_cut_gives_the_same_bits(SMOLLM2, Isa::Scalar, &text[..24], &[&[1], &[5, 2]]);
}

#[test]
fn gemma_steps_beyond_the_window() {
    let _cores = cores();
    let long = ids(&golden("reference/gemma3-270m-long.json")["prompt_ids"]);
    let cuts = [RAGGED, &[64], &[511, 1, 1, 30], &[505, 1]];
    every_cut_gives_the_same_bits(GEMMA3, Isa::best(), &long[..540], &cuts);
    every_cut_gives_the_same_bits(GEMMA3, Isa::Scalar, &long[..16], &[&[1], &[5, 2]]);
}

#[test]
fn perplexity_is_the_same_to_the_last_bit() {
    let _cores = cores();
    let gguf = open(SMOLLM2);
    let tokenizer = Tokenizer::from_gguf(gguf.metadata()).expect("the vocabulary is read");
    let tokens = tokenizer.encode(TEXT, EncodeOptions { add_special: true, parse_special: false });
    let task = Task { tokens: &tokens, n_ctx: 64, bos: None };
    assert!(task.windows() >= 5, "{} windows", task.windows());
    let perplexity = |windows: usize, cpu: CpuOptions| {
        let task = Task { tokens: &tokens[..64 * windows], ..task };
        let mut sum = Perplexity::default();
        let mut model = load(SMOLLM2, cpu, 64);
        let run = task.run(&mut model, &mut |prediction| {
            sum.0.add(prediction.nll()?);
            Ok(())
        });
        run.expect("the text is scored");
        sum.value()
    };
    let whole = perplexity(task.windows(), options(2, Isa::best()));
    assert!(whole.is_finite() && (3.0..60.0).contains(&whole), "{whole}");
    assert_eq!(perplexity(task.windows(), options(1, Isa::best())).to_bits(), whole.to_bits());
    let two = perplexity(2, options(2, Isa::best()));
    for isa in levels() {
        assert_eq!(perplexity(2, options(2, isa)).to_bits(), two.to_bits(), "{isa}");
    }
}
