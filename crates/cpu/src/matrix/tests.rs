//! Products of every weight type, on every level, against a naive oracle.

use super::*;
use crate::arch::Kernels;
use crate::kernel::amx;
use crate::kernel::matmul::{Layout, RowPlace};
use crate::kernel::vector::{QuantizeJob, SUM_WORDS};
use crate::testing::{
    Rng, first_difference, levels, load, random_weights, relative_error, values, weight, weight_types,
};

/// Rows of the test matrices: two panels and a third of one row.
const ROWS: usize = 33;
/// Tokens of the test inputs: every tile width occurs, and so do leftovers.
const TOKENS: usize = 13;
/// What outputs hold before a product: a NaN that no arithmetic makes.
const POISON: u32 = 0x7fc1_2345;
/// Bound on ‖y − ref‖/‖ref‖ when the reference has the same activations: the rounding of f32 sums.
const SAME_INPUT: f64 = 1e-6;
/// The same in the `fast` profile, against unrounded activations: an NMSE of 1e-7.
const FAST: f64 = 3.1e-4;
/// The same when the reference has the activations before they were rounded to int8, for normal values.
const INT8: f64 = 1.2e-2;

/// Activations in the form that some matrices read, `[tokens][k]`.
struct Inputs {
    x: Vec<f32>,
    q: Vec<i8>,
    d: Vec<f32>,
    ds: Vec<f32>,
    sum: Vec<i32>,
    sum64: Vec<i32>,
    k: usize,
    kind: ActKind,
    layout: Layout,
}

impl Inputs {
    fn new(x: &[f32], k: usize, kind: ActKind, kernels: &Kernels) -> Inputs {
        Inputs::laid(x, k, kind, kernels, Layout::Rows)
    }

    fn laid(x: &[f32], k: usize, kind: ActKind, kernels: &Kernels, layout: Layout) -> Inputs {
        let (n, tokens) = (x.len(), x.len() / k);
        // Room for whole tiles: what lies beyond the input is read, and must not count.
        let plane = layout.bytes(tokens, k);
        let room = plane * if kind == ActKind::Q16x256 { 2 } else { 1 };
        let (q, small) = (vec![0x55; room], room.max(n).div_ceil(16));
        let (d, ds, sum) = (vec![f32::NAN; small], vec![f32::NAN; small], vec![0x5555; small]);
        let sum64 = sum.clone();
        let mut inputs = Inputs { x: x.to_vec(), q, d, ds, sum, sum64, k, kind, layout };
        let (scales, words, quantize) = match kind {
            ActKind::Q8x32 => (k / 32, 1, kernels.quantize32),
            ActKind::Q8x256 => (k.div_ceil(256), SUM_WORDS, kernels.quantize256),
            ActKind::Q16x256 => (k.div_ceil(256), SUM_WORDS, amx::soft::portable::KERNELS.quantize),
            ActKind::F32 => return inputs,
        };
        for t in 0..tokens {
            let RowPlace { start, step, group } = layout.row(t, k);
            let (scale, scale_step) = layout.scales(t, scales);
            let job = QuantizeJob {
                x: inputs.x[t * k..].as_ptr(),
                k,
                q: inputs.q[start..].as_mut_ptr(),
                step,
                group,
                plane,
                scale_step,
                d: inputs.d[scale..].as_mut_ptr(),
                ds: inputs.ds[scale..].as_mut_ptr(),
                sum: inputs.sum[scale * words..].as_mut_ptr(),
                sum64: inputs.sum64[scale * (words / 2)..].as_mut_ptr(),
            };
            // SAFETY: the outputs of row t lie in the vectors; the level is available.
            unsafe { quantize(&job) };
        }
        inputs
    }

    /// From token `t` on.
    fn acts(&self, t: usize) -> Acts {
        let (scales, sums) = match self.kind {
            ActKind::Q8x32 => (self.k / 32, self.k / 32),
            ActKind::Q8x256 | ActKind::Q16x256 => (self.k / 256, self.k / 32),
            ActKind::F32 => (0, 0),
        };
        Acts {
            q: self.q[self.layout.row(t, self.k).start..].as_ptr(),
            layout: self.layout,
            d: self.d[t * scales..].as_ptr(),
            ds: self.ds[t * scales..].as_ptr(),
            sum: self.sum[t * sums..].as_ptr(),
            sum64: self.sum64[t * (sums / 2)..].as_ptr(),
            x: self.x[t * self.k..].as_ptr(),
            x_stride: self.k,
        }
    }
}

/// `[tokens][rows]` of the tokens in `range`, computed by a pool's workers. Every output must be written, those of
/// absent rows with zero, and nothing else.
fn product(matrix: &Matrix, inputs: &Inputs, range: Range<usize>, pool: &mut Pool) -> Vec<f32> {
    let width = matrix.panels() * LANES;
    let (tokens, stride) = (range.len(), width + 5);
    let mut out = vec![f32::from_bits(POISON); tokens * stride];
    let target = Shared(out.as_mut_ptr().cast());
    pool.run(|w| {
        let target = &target;
        let mut scratch = Scratch::default();
        // A single worker takes all panels at once.
        let cut = if w.count == 1 { Cut::Every(matrix.panels()) } else { Cut::Every(1) };
        w.share(0, matrix.panels(), cut, |panels| {
            let out = Out { ptr: target.0.cast(), stride };
            // SAFETY: the inputs are those of the range in the matrix's form; panels are handed out once.
            unsafe { matrix.multiply(panels, inputs.acts(range.start), tokens, out, &mut scratch) };
        });
    });
    let mut result = Vec::new();
    for row in out.chunks_exact(stride) {
        let (written, beyond) = row.split_at(width);
        assert!(written.iter().all(|v| v.to_bits() != POISON), "an output was not written");
        assert!(beyond.iter().all(|v| v.to_bits() == POISON), "written beyond the panels");
        let finite = written[..matrix.rows].iter().all(|v| v.is_finite());
        assert!(!finite || written[matrix.rows..].iter().all(|v| *v == 0.0), "an absent row is not zero");
        result.extend_from_slice(&written[..matrix.rows]);
    }
    result
}

/// Activations as the numerics contract rounds them (int8 per `block`, ties to even), written anew and naively; sixteen bits are
/// held against the values themselves.
fn rounded(x: &[f32], kind: ActKind) -> Vec<f64> {
    let block = match kind {
        ActKind::F32 | ActKind::Q16x256 => return x.iter().map(|v| f64::from(*v)).collect(),
        ActKind::Q8x32 => 32,
        ActKind::Q8x256 => 256,
    };
    let mut out = Vec::new();
    for block in x.chunks(block) {
        let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        for v in block {
            let q = if largest < 1e-35 { 0.0 } else { f64::from((v * (127.0 / largest)).round_ties_even()) };
            assert!(q.abs() <= 127.0);
            out.push(q * f64::from(largest / 127.0));
        }
    }
    out
}

/// `[tokens][rows]`, in double precision.
fn oracle(weights: &[f32], x: &[f64], cols: usize) -> Vec<f64> {
    let dot = |w: &[f32], x: &[f64]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    x.chunks_exact(cols).flat_map(|x| weights.chunks_exact(cols).map(move |w| dot(w, x))).collect()
}

/// Multiplies in every way there is, holds the ways to each other bit by bit, and returns the product.
fn every_way(name: &str, weights: &Weight, x: &[f32], pools: &mut [Pool]) -> (Vec<f32>, ActKind) {
    let mut first: Option<(Vec<f32>, ActKind)> = None;
    for kernels in levels() {
        for pack in [true, false] {
            let matrix = load(weights.clone(), kernels, pack).expect("a matrix");
            let inputs = Inputs::new(x, matrix.cols, matrix.acts(1), kernels);
            let tokens = x.len() / matrix.cols;
            let whole = |pool| (product(&matrix, &inputs, 0..tokens, pool), matrix.acts(1));
            let (reference, _) = first.get_or_insert_with(|| whole(&mut pools[0]));
            let same = |range: Range<usize>, pool: &mut Pool| {
                let found = product(&matrix, &inputs, range.clone(), pool);
                let expected = &reference[range.start * matrix.rows..range.end * matrix.rows];
                if let Some(i) = first_difference(&found, expected) {
                    let (f, e) = (found[i], expected[i]);
                    let threads = pool.threads();
                    panic!(
                        "{name} {} packed {pack}, {threads} threads, {range:?}: {i} is {f}, not {e}",
                        kernels.isa
                    );
                }
            };
            for pool in &mut *pools {
                same(0..tokens, pool);
            }
            // Groupings: every number of tokens from the first on, and every token alone.
            for t in 0..tokens {
                same(0..t + 1, &mut pools[0]);
                same(t..t + 1, &mut pools[0]);
            }
        }
    }
    first.expect("a level")
}

fn pools() -> Vec<Pool> {
    (1..=3).map(|threads| Pool::new(threads).expect("threads")).collect()
}

/// Widths that the type's blocks allow: one block, panels' groups half full, several float segments.
fn widths(ty: GgmlType) -> Vec<usize> {
    let ragged: &[usize] = if ty.block_len() == 1 { &[1, 3, 130, 257] } else { &[] };
    let mut widths: Vec<_> =
        [ty.block_len(), 64, 96, 256, 576, 640, 768].iter().chain(ragged).copied().collect();
    widths.retain(|k| k.is_multiple_of(ty.block_len()));
    widths.sort_unstable();
    widths.dedup();
    widths
}

#[test]
fn every_type_agrees_with_itself_and_with_the_oracle() {
    let (mut pools, mut rng) = (pools(), Rng(1));
    for ty in weight_types() {
        for cols in widths(ty) {
            let name = format!("{ty} {cols}");
            let bytes = random_weights(ty, cols as u64, ROWS, cols);
            let w = values(ty, &bytes);
            let x = rng.normals(TOKENS * cols, 1.5);
            let (y, kind) = every_way(&name, &weight(ty, ROWS, cols, bytes), &x, &mut pools);
            let error = relative_error(&y, &oracle(&w, &rounded(&x, kind), cols));
            assert!(error <= SAME_INPUT, "{name}: {error:.1e}");
            let exact: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            let error = relative_error(&y, &oracle(&w, &exact, cols));
            let bound = if kind == ActKind::F32 { SAME_INPUT } else { INT8 };
            assert!(error <= bound, "{name}: {error:.1e} against unrounded activations");
        }
    }
}

/// More tokens than a pass over unpacked weights holds, and a rest: the bits of each token alone.
#[test]
fn many_tokens() {
    let mut pools = pools();
    for ty in weight_types() {
        let cols = 2 * ty.block_len().max(160);
        let cols = cols.next_multiple_of(ty.block_len());
        let weights = weight(ty, ROWS, cols, random_weights(ty, 11, ROWS, cols));
        let x = Rng(12).normals(253 * cols, 1.0);
        for kernels in levels() {
            let matrix = load(weights.clone(), kernels, true).expect("a matrix");
            let inputs = Inputs::new(&x, cols, matrix.acts(1), kernels);
            let whole = product(&matrix, &inputs, 0..253, &mut pools[1]);
            for t in [0, 5, 119, 120, 239, 240, 252] {
                let alone = product(&matrix, &inputs, t..t + 1, &mut pools[0]);
                let together = &whole[t * ROWS..(t + 1) * ROWS];
                assert_eq!(first_difference(&alone, together), None, "{ty} {} token {t}", kernels.isa);
            }
        }
    }
}

/// The kernels of a tile unit, over a unit in software, against the portable level.
#[test]
fn products_of_a_tile_unit() {
    let mut pools = pools();
    let scalar = crate::arch::kernels(crate::Isa::Scalar);
    let mut seen = 0;
    for (level, soft) in amx::soft::kernels().into_iter().enumerate() {
        for (format, soft) in FORMATS.iter().zip(soft.exact) {
            let Some(soft) = *soft else { continue };
            let ty = format.ty;
            seen += 1;
            let one = ty.block_len().max(32);
            // The last but one is deeper than a pass, those before not whole numbers of tiles where blocks allow it.
            for (cols, tokens) in [(one, 13), (3 * one, 33), (5 * one, 64), (2048 + 3 * one, 97), (one, 515)]
            {
                let weights = weight(ty, ROWS, cols, random_weights(ty, 21, ROWS, cols));
                let mut matrix = load(weights, scalar, true).expect("a matrix");
                let inputs =
                    Inputs::new(&Rng(22).normals(tokens * cols, 1.0), cols, matrix.acts(tokens), scalar);
                let expected = product(&matrix, &inputs, 0..tokens, &mut pools[0]);
                matrix.kernel = soft;
                let layout = Layout::Tiles { tokens };
                let tiled = Inputs::laid(&inputs.x, cols, matrix.acts(tokens), scalar, layout);
                for pool in &mut pools[..2] {
                    let found = product(&matrix, &tiled, 0..tokens, pool);
                    let threads = pool.threads();
                    let what =
                        format!("{ty}, level {level}, {cols} columns, {tokens} tokens, {threads} threads");
                    assert_eq!(first_difference(&found, &expected), None, "{what}");
                }
            }
        }
    }
    assert!(seen >= 8, "{seen} types");
}

/// The forms of the `fast` profile: the same bits with all vectors, within the profile's bound.
#[test]
fn fast_products_of_a_tile_unit() {
    let mut pools = pools();
    let scalar = crate::arch::kernels(crate::Isa::Scalar);
    let levels = amx::soft::kernels();
    let mut seen = 0;
    for (i, ty) in FORMATS.iter().map(|f| f.ty).enumerate() {
        if levels[0].fast[i].is_none() {
            continue;
        }
        seen += 1;
        let one = ty.block_len().max(32);
        for (cols, tokens) in [(one, 13), (3 * one, 33), (576 / one * one, 70), (2048 + 3 * one, 97)] {
            let bytes = random_weights(ty, 23, ROWS, cols);
            let w = values(ty, &bytes);
            let mut matrix = load(weight(ty, ROWS, cols, bytes), scalar, true).expect("a matrix");
            let x = Rng(24).normals(tokens * cols, 1.0);
            let tiled = Inputs::laid(&x, cols, ActKind::Q16x256, scalar, Layout::Tiles { tokens });
            let rounded: Vec<f64> = x.chunks(cols).flat_map(|x| rounded(x, ActKind::Q16x256)).collect();
            let expected = oracle(&w, &rounded, cols);
            let mut first: Option<Vec<f32>> = None;
            for level in &levels {
                matrix.kernel = level.fast[i].expect("a fast form at every level");
                for pool in &mut pools[..2] {
                    let found = product(&matrix, &tiled, 0..tokens, pool);
                    let error = relative_error(&found, &expected);
                    assert!(error < FAST, "{ty}, {cols} columns, {tokens} tokens: {error:e}");
                    let first = first.get_or_insert_with(|| found.clone());
                    assert_eq!(first_difference(&found, first), None, "{ty}, {cols} columns");
                }
            }
        }
    }
    assert!(seen >= 5, "{seen} types");
}

#[test]
fn row_counts_around_a_panel() {
    let (mut pools, mut rng) = (pools(), Rng(2));
    for ty in weight_types() {
        let cols = 512;
        let x = rng.normals(3 * cols, 1.0);
        for rows in [1, 15, 16, 17] {
            let name = format!("{ty} {rows} rows");
            let bytes = random_weights(ty, rows as u64, rows, cols);
            let w = values(ty, &bytes);
            let (y, kind) = every_way(&name, &weight(ty, rows, cols, bytes), &x, &mut pools);
            let error = relative_error(&y, &oracle(&w, &rounded(&x, kind), cols));
            assert!(error <= 2.0 * SAME_INPUT, "{name}: {error:.1e}");
        }
    }
}

/// Inputs that no normal distribution makes, named.
fn unusual_inputs(cols: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut rng = Rng(3);
    let mut make = |f: &mut dyn FnMut(&mut Rng, usize) -> f32| -> Vec<f32> {
        (0..2 * cols).map(|i| f(&mut rng, i)).collect()
    };
    vec![
        ("heavy tails", make(&mut |rng, _| rng.normal() / (rng.normal().abs() + 1e-3))),
        (
            "a channel × 1000",
            make(&mut |rng, i| rng.normal() * if i % cols == 17 % cols { 1000.0 } else { 1.0 }),
        ),
        ("zero blocks", make(&mut |rng, i| if i / 32 % 2 == 0 { 0.0 } else { rng.normal() })),
        ("all zero", make(&mut |_, _| 0.0)),
        ("all one", make(&mut |_, _| 1.0)),
        ("all minus one", make(&mut |_, _| -1.0)),
        ("alternating", make(&mut |_, i| if i % 2 == 0 { 2.0 } else { -2.0 })),
        ("huge", make(&mut |rng, _| 1e18 * rng.normal())),
        ("tiny", make(&mut |rng, _| 1e-22 * rng.normal())),
        ("ties", make(&mut |rng, i| if i % 32 == 0 { 127.0 } else { rng.below(127) as f32 - 63.5 })),
    ]
}

#[test]
fn unusual_activations() {
    let mut pools = pools();
    for format in FORMATS {
        let (ty, cols) = (format.ty, 512);
        let bytes = random_weights(ty, 9, ROWS, cols);
        let w = values(ty, &bytes);
        for (what, x) in unusual_inputs(cols) {
            let name = format!("{ty}, {what}");
            let (y, kind) = every_way(&name, &weight(ty, ROWS, cols, bytes.clone()), &x, &mut pools);
            let error = relative_error(&y, &oracle(&w, &rounded(&x, kind), cols));
            assert!(error <= 5.0 * SAME_INPUT, "{name}: {error:.1e}");
        }
    }
}

/// Offsets of the f16 fields of a packed block type.
fn half_fields(ty: GgmlType) -> &'static [usize] {
    use GgmlType::{
        BF16, F16, F32, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
    };
    match ty {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        F32 | F16 | BF16 | MXFP4 => &[],
        _ => panic!("where are the scales of {ty}?"),
    }
}

/// Makes `scale` the float scale of a block, or its power of two where scales are such.
fn set_scale(ty: GgmlType, block: &mut [u8], scale: half::f16) {
    for at in half_fields(ty) {
        block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
    }
    if ty == GgmlType::MXFP4 {
        block[0] = (scale.to_f32().to_bits() >> 23) as u8;
    }
}

/// Blocks whose codes and integer scales are all `fill`, and whose float scales are `scale`.
fn uniform(ty: GgmlType, rows: usize, cols: usize, fill: u8, scale: half::f16) -> Vec<u8> {
    let mut bytes = vec![fill; rows * ty.bytes_of(cols).expect("whole blocks")];
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        set_scale(ty, block, scale);
    }
    bytes
}

#[test]
fn codes_and_activations_at_their_limits() {
    // 0xff: the largest unsigned code everywhere; 0x80 and 0x7f: the extremes of i8, which Q8_0's codes and Q6_K's
    // scales are. Activations of one magnitude round to ±127: sixteen-bit sums of AVX2 are as large as they get.
    let mut pools = pools();
    for format in FORMATS.iter().filter(|f| f.acts != ActKind::F32) {
        let (ty, cols) = (format.ty, 512);
        for fill in [0xff, 0x80, 0x7f, 0x00] {
            let bytes = uniform(ty, ROWS, cols, fill, half::f16::from_f32(0.01));
            let w = values(ty, &bytes);
            let patterns: [fn(usize) -> f32; 4] = [
                |_| 3.0,
                |_| -3.0,
                |i| if i % 2 == 0 { 3.0 } else { -3.0 },
                |i| if i / 16 % 2 == 0 { 3.0 } else { -3.0 },
            ];
            let x: Vec<f32> = patterns.iter().flat_map(|p| (0..cols).map(p)).collect();
            let (y, kind) =
                every_way(&format!("{ty} of {fill:#x}"), &weight(ty, ROWS, cols, bytes), &x, &mut pools);
            let reference = oracle(&w, &rounded(&x, kind), cols);
            // Token by token: alternating signs cancel, and must do so to the last bit that f32 has of the terms.
            let terms: Vec<f64> = rounded(&x, kind).iter().map(|v| v.abs()).collect();
            let magnitude = oracle(&w.iter().map(|v| v.abs()).collect::<Vec<_>>(), &terms, cols);
            for ((y, r), m) in y.iter().zip(&reference).zip(&magnitude) {
                assert!((f64::from(*y) - r).abs() <= 1e-6 * m, "{ty} of {fill:#x}: {y}, not {r}");
            }
        }
    }
}

#[test]
fn extreme_scales() {
    let (mut pools, mut rng) = (pools(), Rng(4));
    let cols = 512;
    let x = rng.normals(3 * cols, 1.0);
    for format in FORMATS {
        let ty = format.ty;
        for scale in
            [half::f16::MAX, half::f16::MIN, half::f16::from_bits(1), half::f16::ZERO, half::f16::NEG_ZERO]
        {
            let mut bytes = random_weights(ty, 6, ROWS, cols);
            // Every other block of the row, so that extremes meet ordinary blocks.
            for block in bytes.chunks_exact_mut(2 * ty.block_bytes()) {
                set_scale(ty, block, scale);
            }
            let w = values(ty, &bytes);
            let name = format!("{ty} with d = {scale}");
            let (y, kind) = every_way(&name, &weight(ty, ROWS, cols, bytes), &x, &mut pools);
            let error = relative_error(&y, &oracle(&w, &rounded(&x, kind), cols));
            assert!(error <= 2.0 * SAME_INPUT, "{name}: {error:.1e}");
        }
    }
}

/// All of E8M0: from subnormal scales to those that no f16 has.
#[test]
fn every_power_of_two_of_mxfp4() {
    let (mut pools, ty) = (pools(), GgmlType::MXFP4);
    let mut bytes = uniform(ty, 256, 32, 0x21, half::f16::ONE);
    for (e, block) in bytes.chunks_exact_mut(ty.block_bytes()).enumerate() {
        block[0] = e as u8;
    }
    let w = values(ty, &bytes);
    let mut x = vec![0.0; 32];
    x[3] = 1.0;
    let (y, _) = every_way("MXFP4", &weight(ty, 256, 32, bytes), &x, &mut pools);
    for (e, (y, w)) in y.iter().zip(w.chunks_exact(32)).enumerate() {
        // Of a subnormal scale, 1/127 has few bits.
        let bound = f64::from(w[3]) * 1e-6 + 127.0 * f64::from(f32::from_bits(1));
        assert!((f64::from(*y) - f64::from(w[3])).abs() <= bound, "2^({e} − 128): {y}, not {}", w[3]);
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    let mut pool = Pool::new(1).expect("a thread");
    let cols = 512;
    for format in FORMATS {
        let ty = format.ty;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = Rng(5).normals(2 * cols, 1.0);
            x[cols + 77] = bad;
            for kernels in levels() {
                let matrix = load(weight(ty, ROWS, cols, random_weights(ty, 2, ROWS, cols)), kernels, true);
                let matrix = matrix.expect("a matrix");
                let inputs = Inputs::new(&x, cols, matrix.acts(1), kernels);
                let y = product(&matrix, &inputs, 0..2, &mut pool);
                let (fine, hit) = y.split_at(ROWS);
                assert!(fine.iter().all(|v| v.is_finite()), "{ty} {}: {bad} in another token", kernels.isa);
                assert!(hit.iter().all(|v| !v.is_finite()), "{ty} {}: {bad} was lost", kernels.isa);
            }
        }
    }
}

#[test]
fn fast_products_keep_what_is_not_finite() {
    let mut pool = Pool::new(1).expect("a thread");
    let scalar = crate::arch::kernels(crate::Isa::Scalar);
    let (i, ty) = (FORMATS.iter().position(|f| f.ty == GgmlType::Q4_1).expect("a format"), GgmlType::Q4_1);
    for soft in amx::soft::kernels() {
        // Half floats: the scale of a block of row 3, the minimum of one of row 5.
        for bad in [0x7e00u16, 0x7c00] {
            let mut bytes = random_weights(ty, 2, ROWS, 256);
            let row = ty.bytes_of(256).expect("whole blocks");
            bytes[3 * row + 2 * 20..][..2].copy_from_slice(&bad.to_le_bytes());
            bytes[5 * row + 4 * 20 + 2..][..2].copy_from_slice(&bad.to_le_bytes());
            let mut matrix = load(weight(ty, ROWS, 256, bytes), scalar, true).expect("a matrix");
            matrix.kernel = soft.fast[i].expect("a fast form");
            let x = Rng(5).normals(2 * 256, 1.0);
            let tiled = Inputs::laid(&x, 256, ActKind::Q16x256, scalar, Layout::Tiles { tokens: 2 });
            let y = product(&matrix, &tiled, 0..2, &mut pool);
            for (r, v) in y[..ROWS].iter().chain(&y[ROWS..]).enumerate().map(|(r, v)| (r % ROWS, v)) {
                assert_eq!(v.is_finite(), r != 3 && r != 5, "row {r}, {bad:#x}: {v}");
            }
        }
    }
}

#[test]
fn refuses_what_is_no_matrix() {
    let kernels = levels().next().expect("a level");
    let refuse = |ty: GgmlType, rows: usize, cols: usize, bytes: usize| {
        let error = load(weight(ty, rows, cols, vec![0; bytes]), kernels, true).err();
        let Some(DeviceError::Unsupported { tensor, what }) = error else {
            panic!("{ty} {rows} × {cols} in {bytes} bytes: {error:?}");
        };
        assert_eq!(tensor, "test.weight");
        assert!(what.contains(ty.name()), "{what}");
    };
    refuse(GgmlType::Q4_0, 2, 64, 2 * 36 - 1);
    refuse(GgmlType::Q4_0, 2, 64, 2 * 36 + 18);
    refuse(GgmlType::Q4_0, 3, 64, 2 * 36);
    refuse(GgmlType::Q4_0, 2, 48, 2 * 27);
    refuse(GgmlType::Q4_0, 0, 64, 0);
    refuse(GgmlType::Q4_0, 2, 0, 0);
    refuse(GgmlType::F32, 1 << 62, 4, 0);
    refuse(GgmlType::F32, usize::MAX, usize::MAX, 4);
    for ty in [GgmlType::I8, GgmlType::I16, GgmlType::I32, GgmlType::I64] {
        refuse(ty, 2, 32, 2 * 32 * ty.block_bytes());
    }
}

#[test]
fn kernels_are_listed_for_every_weight_type() {
    for isa in crate::Isa::ALL {
        let rows: Vec<_> = kernels(isa, Numerics::Exact).collect();
        assert!(rows.iter().map(|row| row.ty).eq(weight_types()));
        for row in rows {
            let tuned = FORMATS.iter().any(|f| f.ty == row.ty);
            assert_eq!(row.op == "matmul", tuned, "{}", row.id());
        }
    }
}
