//! Kernels on a GPU against double precision, and the profile's promise: the same bits in any company.
#![allow(clippy::print_stdout, reason = "figures for --nocapture")]

mod attention;
mod few;
mod tiles;

use super::decode::Decode;
use super::stages::Source;
use super::*;
use crate::args::Finish;
use crate::kernels::{KERNEL_TYPES, has_codes};
use crate::matrix::{Beside, Form, Input, Layout, Output, Spare, UNIT_BYTES};
use crate::testing::{Numbers, device, error};
use minfer_gguf::quant;

mod prepare;

/// Gate of a product: weights and input in half precision.
const PRODUCT_GATE: f64 = 1.5e-3;

/// Gates of a product with bytes: against the input, if no value dwarfs the others, and against what the bytes stand for.
const BYTES_GATE: f64 = 1.2e-2;
const SAME_BYTES_GATE: f64 = 5e-6;

fn random_weight(ty: GgmlType, rows: usize, cols: usize) -> (Weight, Vec<f32>) {
    let mut data = vec![0; ty.bytes_of(rows * cols).expect("whole blocks")];
    quant::random_blocks(ty, 7 + rows as u64, 0.02, 0, &mut data).expect("whole blocks");
    let mut values = vec![0.0; rows * cols];
    quant::dequantize(ty, &data, &mut values).expect("whole blocks");
    (Weight { name: "w".into(), ty, rows, cols, data: data.into() }, values)
}

fn float_weight(name: &str, rows: usize, cols: usize, values: &[f32]) -> Weight {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Weight { name: name.into(), ty: GgmlType::F32, rows, cols, data: data.into() }
}

fn reserve(tokens: usize, d_model: usize, heads: Heads, blocks: usize) -> Reserve {
    Reserve {
        max_tokens: tokens,
        max_outputs: tokens,
        d_model,
        max_q: heads.q * heads.dim,
        max_kv: heads.kv * heads.dim,
        max_ff: d_model,
        vocab: tokens.max(1),
        kv_groups: vec![KvGroup { layers: 1, heads, blocks }],
        kv_types: KvTypes::default(),
    }
}

const SMALL_HEADS: Heads = Heads { q: 1, kv: 1, dim: 16 };

/// `x · Wᵀ` on the GPU for rows `rows` of `x`, in one product.
fn product(device: &CudaDevice, matrix: &Matrix, x: &[f32], rows: std::ops::Range<usize>) -> Vec<f32> {
    let cols = matrix.cols;
    let state = device.state().expect("reserved memory");
    let values = &x[rows.start * cols..rows.end * cols];
    let from = device.gpu.alloc::<f32>(values.len(), "test").expect("memory");
    device.gpu.upload(values, &from).expect("a copy");
    let input = device.input_for(state.inner.input(rows.len(), cols), &[matrix]);
    let form = match (matrix.takes_bytes(), rows.len()) {
        (true, tokens) if matrix.takes_byte_tiles(tokens) => Form::ByteTiles,
        (true, _) => Form::Bytes,
        (false, tokens) if matrix.takes_tiles(tokens) => Form::Tiles,
        (false, _) => Form::Fragments,
    };
    assert_eq!(input.form, form);
    device.prepare(&Source::rows(&from, cols), input).expect("a launch");
    let out = device.gpu.alloc::<f32>(rows.len() * matrix.rows, "test").expect("memory");
    // What is not written stays NaN.
    device.gpu.upload(&vec![f32::NAN; rows.len() * matrix.rows], &out).expect("a copy");
    let output = Output { out: at(&out, 0), stride: matrix.rows, finish: Finish::Store };
    matrix.product(device.lane(), input, 0, output).expect("a launch");
    let mut found = vec![0.0; rows.len() * matrix.rows];
    device.gpu.download(&out, &mut found).expect("a copy");
    found
}

#[test]
fn embeddings_of_every_type_are_the_references_bits() {
    let Some(mut device) = device() else { return };
    for (ty, name) in KERNEL_TYPES {
        let cols = 3 * ty.block_len().max(32);
        let (weight, values) = random_weight(*ty, 9, cols);
        device.reserve(&reserve(9, cols, SMALL_HEADS, 1)).expect("memory");
        let table = device.matrix(&weight).expect("a matrix");
        let ids = device.gpu.alloc::<u32>(9, "test").expect("memory");
        device.gpu.upload(&[8u32, 0, 3, 1, 2, 7, 6, 5, 4], &ids).expect("a copy");
        let x = device.gpu.alloc::<f32>(9 * cols, "test").expect("memory");
        table
            .embed(
                device.lane(),
                at(&ids, 0),
                9,
                at(&x, 0),
                1.0,
                at(&device.state().expect("memory").most, 0),
            )
            .expect("a launch");
        let mut found = vec![0.0; 9 * cols];
        device.gpu.download(&x, &mut found).expect("a copy");
        for (row, id) in [8, 0, 3, 1, 2, 7, 6, 5, 4].into_iter().enumerate() {
            let (found, expected) = (&found[row * cols..][..cols], &values[id * cols..][..cols]);
            let same = found.iter().zip(expected).all(|(f, e)| f.to_bits() == e.to_bits());
            let first = found.iter().zip(expected).position(|(f, e)| f != e);
            assert!(same, "{name}: row {id} differs from value {first:?} on");
        }
    }
}

/// What the bytes stand for that the int8 profile makes of `rows` rows of `x` for a matrix. Each is half a step from its value
/// at most.
fn as_bytes(device: &CudaDevice, matrix: &Matrix, x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    let stride = state::row_halves(cols);
    let to = device.gpu.alloc::<u16>(rows * stride, "test").expect("memory");
    let unscale = device.gpu.alloc::<f32>(rows, "test").expect("memory");
    let from = device.gpu.alloc::<f32>(x.len(), "test").expect("memory");
    device.gpu.upload(x, &from).expect("a copy");
    let (x_at, unscale_at, form, spare) = (at(&to, 0), at(&unscale, 0), Form::Bytes, Spare::default());
    let together = crate::matrix::together([matrix].into_iter());
    let input =
        Input { x: x_at, unscale: unscale_at, stride, rows, form, together, spare, beside: Beside::None };
    device.prepare(&Source::rows(&from, cols), input).expect("a launch");
    let (mut halves, mut factors) = (vec![0u16; rows * stride], vec![0.0f32; rows]);
    device.gpu.download(&to, &mut halves).expect("a copy");
    device.gpu.download(&unscale, &mut factors).expect("a copy");
    assert!(factors.iter().all(|factor| *factor == 1.0), "a row without a norm has no factor");
    let bytes: &[u8] = bytemuck::cast_slice(&halves);
    let value = |i: usize| -> f32 {
        let (k, step) = (i % cols, i % 16);
        let unit = &bytes[2 * stride * (i / cols) + k / 256 * UNIT_BYTES..][..UNIT_BYTES];
        let place = k % 256 / 32 * 32 + step % 8 / 2 * 8 + k % 32 / 16 * 4 + step % 2 * 2 + step / 8;
        let scale = &unit[256 + k % 256 / 32 * 8..][..4];
        let scale = f32::from_le_bytes(scale.try_into().expect("four bytes"));
        let found = f32::from(unit[place] as i8) * scale;
        assert!(
            (found - x[i]).abs() <= scale * 0.5001,
            "value {i}: {} became {found}, a step is {scale}",
            x[i]
        );
        found
    };
    (0..rows * cols).map(value).collect()
}

/// Every third token of the result for `x` and `values` from `first` on, in double precision.
fn in_double<'a>(
    values: &'a [f32],
    x: &'a [f32],
    [rows, cols]: [usize; 2],
    first: usize,
) -> impl Iterator<Item = (usize, Vec<f64>)> + 'a {
    (first..x.len() / cols).step_by(3).map(move |t| {
        let row = &x[t * cols..(t + 1) * cols];
        let dot = |n: usize| -> f64 {
            let w = &values[n * cols..(n + 1) * cols];
            w.iter().zip(row).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
        };
        (t, (0..rows).map(dot).collect())
    })
}

/// The largest error of a token of `found`, the result for `x` and `values`.
fn worst_error(found: &[f32], values: &[f32], x: &[f32], shape: [usize; 2]) -> f64 {
    let rows = shape[0];
    let errors = in_double(values, x, shape, 0).map(|(t, expected)| {
        let error = error(&found[t * rows..(t + 1) * rows], &expected);
        // Rows of three values can cancel; longer ones cannot.
        if rows < 8 { error / 4.0 } else { error }
    });
    errors.fold(0.0, f64::max)
}

/// The error of `found` where no value of `x` dwarfs the others of its token.
fn ordinary_error(found: &[f32], values: &[f32], x: &[f32], shape: [usize; 2]) -> f64 {
    let rows = shape[0];
    let (tokens, expected): (Vec<usize>, Vec<Vec<f64>>) = in_double(values, x, shape, 1).unzip();
    let found: Vec<f32> = tokens.iter().flat_map(|t| &found[t * rows..(t + 1) * rows]).copied().collect();
    error(&found, &expected.concat())
}

/// Parts of a batch have the bits of the whole.
fn check_company(device: &CudaDevice, matrix: &Matrix, x: &[f32], whole: &[f32], what: &str) {
    let rows = matrix.rows;
    for part in [0..1, 5..8, 3..11, 40..72, 31..70, 90..187, 60..200] {
        let alone = product(device, matrix, x, part.clone());
        let same = alone.iter().zip(&whole[part.start * rows..]).all(|(a, w)| a.to_bits() == w.to_bits());
        assert!(same, "{what}: tokens {part:?} alone differ");
    }
}

#[test]
fn products_of_every_type_agree_with_double_precision_in_any_company() {
    let Some(mut device) = device() else { return };
    device.reserve(&reserve(200, 18944, SMALL_HEADS, 1)).expect("memory");
    for (ty, name) in KERNEL_TYPES {
        let block = ty.block_len().max(8);
        let (mut worst, mut with_bytes, mut same_bytes): (f64, f64, f64) = (0.0, 0.0, 0.0);
        // Less than a tile, ragged tiles, several segments of K, and the last of them short.
        for (rows, cols) in
            [(3, block), (50, 5 * block.max(32)), (17, 2304), (200, 1024), (33, 576), (40, 18944)]
                .into_iter()
                .filter(|(_, cols)| cols % block == 0)
        {
            let (weight, values) = random_weight(*ty, rows, cols);
            let matrix = device.matrix(&weight).expect("a matrix");
            // What products of the type run on.
            let tuned = matrix.tuned(device.lane(), &device.kernels, Numerics::F16).expect("memory");
            let bytes = matrix.tuned(device.lane(), &device.kernels, Numerics::Int8).expect("memory");
            let has_qt16 = crate::kernels::QT16_TYPES.iter().any(|(t, _)| t == ty);
            let fills = 3 * cols.next_multiple_of(256) <= 4 * cols;
            assert_eq!([&tuned, &bytes].map(Option::is_some), [has_qt16 && fills; 2]);
            // Halves are not multiplied with bytes.
            let bytes = bytes.filter(Matrix::takes_bytes);
            assert_eq!(bytes.is_some(), has_qt16 && fills && has_codes(*ty));
            let matrix = match tuned {
                Some(tuned) if tuned.layout() == Layout::Qt16 => tuned,
                _ => matrix,
            };
            assert_eq!(
                matrix.takes_tiles(33),
                matrix.layout() == Layout::Qt16 && crate::matrix::has_wgmma(&device.gpu.info)
            );
            // Tiles of bytes have kernels of every GPU.
            let takes = |tokens| bytes.as_ref().map(|bytes| bytes.takes_byte_tiles(tokens));
            assert_eq!(
                [takes(63), takes(64)],
                bytes.as_ref().map_or([None; 2], |_| [Some(false), Some(true)])
            );
            let tokens = 200;
            let mut x = Numbers(cols as u64).heavy(tokens * cols, 1.0);
            // Massive activations: one channel of every third token.
            x.iter_mut().skip(1).step_by(3 * cols).for_each(|v| *v *= 1000.0);
            let what = format!("{name} {rows}×{cols}");
            let whole = product(&device, &matrix, &x, 0..tokens);
            worst = worst.max(worst_error(&whole, &values, &x, [rows, cols]));
            check_company(&device, &matrix, &x, &whole, &what);
            let Some(matrix) = bytes else { continue };
            let whole = product(&device, &matrix, &x, 0..tokens);
            let stands_for = as_bytes(&device, &matrix, &x, tokens, cols);
            // A massive value alone is √32 / (127 √12), 1.3e-2, from what its group of bytes stands for, or 3.6e-2 from its
            // 256 values.
            with_bytes = with_bytes.max(ordinary_error(&whole, &values, &x, [rows, cols]));
            same_bytes = same_bytes.max(worst_error(&whole, &values, &stands_for, [rows, cols]));
            check_company(&device, &matrix, &x, &whole, &format!("{what}, int8"));
        }
        println!(
            "{name:8} {worst:.1e} of {PRODUCT_GATE:.1e}; int8 {with_bytes:.1e} of {BYTES_GATE:.1e}, \
             {same_bytes:.1e} of {SAME_BYTES_GATE:.1e}"
        );
        assert!(worst < PRODUCT_GATE, "{name}: {worst:.1e}");
        assert!(with_bytes < BYTES_GATE && same_bytes < SAME_BYTES_GATE, "{name}, int8");
    }
}

/// What no number is stays none.
#[test]
fn products_with_bytes_keep_nan_and_infinities() {
    let Some(mut device) = device() else { return };
    device.reserve(&reserve(4, 512, SMALL_HEADS, 1)).expect("memory");
    let (weight, _) = random_weight(GgmlType::Q4_K, 16, 512);
    let matrix = device.matrix(&weight).expect("a matrix");
    let matrix =
        matrix.tuned(device.lane(), &device.kernels, Numerics::Int8).expect("memory").expect("a type");
    let mut x = Numbers(3).heavy(4 * 512, 1.0);
    (x[5], x[512 + 300], x[1024]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let found = product(&device, &matrix, &x, 0..4);
    for (token, values) in found.chunks(16).enumerate() {
        assert!(values.iter().all(|v| v.is_finite() == (token == 3)), "token {token}: {values:?}");
    }
    let zeros = product(&device, &matrix, &[0.0; 512], 0..1);
    assert!(zeros.iter().all(|v| *v == 0.0), "{zeros:?}");
    // Too small for an inverse.
    let small = product(&device, &matrix, &[1e-44; 512], 0..1);
    assert!(small.iter().all(|v| v.abs() < 1e-40), "{small:?}");
}

/// Weights that are single values, seen one by one: halves are what the file has, numbers of BF16 are exact down to 2^-32 of
/// the largest and never off by more than 2^-40 of it, and what no number is stays none, in its row alone.
#[test]
fn single_values_of_any_size_are_what_the_file_has() {
    let Some(mut device) = device() else { return };
    let (rows, cols) = (56, 256);
    device.reserve(&reserve(cols, cols, SMALL_HEADS, 1)).expect("memory");
    // A token for each column.
    let mut x = vec![0.0f32; cols * cols];
    x.iter_mut().step_by(cols + 1).for_each(|v| *v = 1.0);
    let of_f16 = |i: usize| (i * 37 % 0x10000) as u16;
    // Signs and significands of any kind; exponents of any size, and of those that matter below 0.1.
    let of_bf16 = |i: usize| (i * 40503 % 0x10000) as u16;
    let below = |i: usize| ((i * 40503 % 0x80) | ((i % 2) << 15) | ((0x7b - i / 2 % 48) << 7)) as u16;
    let cases: [(GgmlType, &dyn Fn(usize) -> u16); 3] =
        [(GgmlType::F16, &of_f16), (GgmlType::BF16, &of_bf16), (GgmlType::BF16, &below)];
    for (case, (ty, bits)) in cases.into_iter().enumerate() {
        let infinity = if ty == GgmlType::F16 { 0x7c00 } else { 0x7f80 };
        let finite = |bits: u16| if bits & infinity == infinity { bits & !infinity } else { bits };
        let mut words: Vec<u16> = (0..rows * cols).map(|i| finite(bits(i))).collect();
        (words[20 * cols + 3], words[33 * cols + 200], words[50 * cols]) =
            (infinity, infinity | 1 << 15, infinity | 5);
        let data: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut values = vec![0.0f32; rows * cols];
        quant::dequantize(ty, &data, &mut values).expect("whole blocks");
        let file =
            device.matrix(&Weight { name: "w".into(), ty, rows, cols, data: data.into() }).expect("a matrix");
        let tuned =
            file.tuned(device.lane(), &device.kernels, Numerics::F16).expect("memory").expect("a type");
        let most = values.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()));
        let (exact_from, gate) = match ty {
            GgmlType::F16 => (0.0, 0.0),
            _ => (most * 2f32.powi(-32), f64::from(most) * 2f64.powi(-40)),
        };
        for (matrix, tokens) in [(&tuned, 0..cols), (&tuned, 0..8), (&tuned, 7..32), (&file, 0..cols)] {
            let found = product(&device, matrix, &x, tokens.clone());
            let mut exact = 0;
            for (i, found) in found.iter().enumerate() {
                let (k, row) = (tokens.start + i / rows, i % rows);
                let (expected, what) =
                    (values[row * cols + k], format!("case {case}, row {row}, column {k}"));
                if [20, 33, 50].contains(&row) {
                    assert!(!found.is_finite(), "{what}: {found}");
                    continue;
                }
                let near = (f64::from(*found) - f64::from(expected)).abs() <= gate;
                let same = *found == expected;
                assert!(same || (near && expected.abs() < exact_from), "{what}: {found} for {expected}");
                exact += usize::from(same);
            }
            println!("case {case}: {exact} of {} exact", found.len());
        }
    }
}

/// A matrix has the bits of QT16 in the file's layout too, where rows that are no whole units stay.
#[test]
fn products_have_the_same_bits_in_both_layouts() {
    let Some(mut device) = device() else { return };
    device.reserve(&reserve(40, 2304, SMALL_HEADS, 1)).expect("memory");
    let both = crate::kernels::QT16_TYPES.iter().filter(|(ty, _)| ty.block_len() < 256);
    for (ty, _) in both {
        for (rows, cols) in [(16, 256), (50, 2304), (50, 608)] {
            let (weight, _) = random_weight(*ty, rows, cols);
            let file = device.matrix(&weight).expect("a matrix");
            let tuned = file
                .tuned(device.lane(), &device.kernels, Numerics::F16)
                .expect("memory")
                .expect("a tuned type");
            assert_eq!((file.layout(), tuned.layout()), (Layout::File, Layout::Qt16));
            let x = Numbers(cols as u64).heavy(40 * cols, 1.0);
            for tokens in [0..1, 0..9, 0..40] {
                let bits = |matrix| -> Vec<u32> {
                    product(&device, matrix, &x, tokens.clone()).into_iter().map(f32::to_bits).collect()
                };
                let (file, tuned) = (bits(&file), bits(&tuned));
                let first = file.iter().zip(&tuned).position(|(f, t)| f != t);
                assert_eq!(first, None, "{ty} {rows}×{cols}, {tokens:?}");
            }
        }
    }
}

fn bits(device: &CudaDevice, buffer: &Buffer<f32>) -> Vec<u32> {
    let mut values = vec![0.0f32; buffer.len()];
    device.gpu.download(buffer, &mut values).expect("a copy");
    values.into_iter().map(f32::to_bits).collect()
}

/// Random weights in QT16, and a bias.
fn tuned_linear(
    device: &mut CudaDevice,
    ty: GgmlType,
    rows: usize,
    cols: usize,
    numerics: Numerics,
) -> LoadedLinear {
    let (weight, _) = random_weight(ty, rows, cols);
    let matrix = device.matrix(&weight).expect("a matrix");
    let matrix =
        matrix.tuned(device.lane(), &device.kernels, numerics).expect("memory").expect("a tuned type");
    let bias = device.gpu.alloc::<f32>(rows, "test").expect("memory");
    device.gpu.upload(&Numbers(rows as u64).heavy(rows, 1.0), &bias).expect("a copy");
    LoadedLinear { matrix: Arc::new(matrix), bias: Some(bias) }
}

/// A step of one token, so that products may take the kernel for it.
fn begin_one(device: &mut CudaDevice) {
    let tables = [BlockTable { first: 0, blocks: &[0] }];
    let spans = [Span { start: 0, len: 1, position: 0, tables: &tables }];
    device.begin(&Batch { tokens: &[0], spans: &spans, outputs: &[0] }).expect("a step");
}

/// Norm, products, activation and residual of one token in the kernels for one token: the bits of those for many.
#[test]
fn the_kernel_for_one_token_has_the_bits_of_those_for_many() {
    let Some(mut device) = device() else { return };
    device.reserve(&reserve(9, 18944, SMALL_HEADS, 1)).expect("memory");
    for ((ty, _), numerics) in
        crate::kernels::QT16_TYPES.iter().flat_map(|ty| [(ty, Numerics::F16), (ty, Numerics::Int8)])
    {
        let bytes = numerics == Numerics::Int8 && has_codes(*ty);
        // One segment to eight, ragged rows, more row groups than blocks, and K in one block or shared by a cluster.
        let shapes: [(usize, usize); 6] =
            [(17, 256), (48, 576), (40, 1280), (5000, 2048), (48, 3584), (33, 18944)];
        for (rows, cols) in shapes.into_iter().filter(|(_, cols)| cols.is_multiple_of(ty.block_len())) {
            begin_one(&mut device);
            // Nothing is kept for a graph from here on.
            device.flush().expect("launches");
            let first = tuned_linear(&mut device, *ty, rows, cols, numerics);
            let second = tuned_linear(&mut device, *ty, rows + 16, cols, numerics);
            let gate = tuned_linear(&mut device, *ty, rows, cols, numerics);
            let mut numbers = Numbers(cols as u64);
            let mut upload = |len: usize| {
                let buffer = device.gpu.alloc::<f32>(len, "test").expect("memory");
                device.gpu.upload(&numbers.heavy(len, 1.0), &buffer).expect("a copy");
                buffer
            };
            let (x, weight, before) = (upload(cols), upload(cols), upload(rows));
            let norm = LoadedNorm { kind: NormKind::Rms { eps: 1e-5 }, weight, bias: None };
            let out = |len: usize| device.gpu.alloc::<f32>(len, "test").expect("memory");
            let mut values = vec![0.0f32; cols];
            device.gpu.download(&x, &mut values).expect("a copy");
            let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let known = device.gpu.alloc::<u32>(1, "test").expect("memory");
            device.gpu.upload(&[largest.to_bits()], &known).expect("a copy");
            let state = device.state().expect("memory");
            let input = device.input_for(state.inner.input(1, cols), &[&first.matrix]);
            let what = format!("{ty} {rows}×{cols} {numerics}");
            for (case, norm, most) in
                [("norm", Some(&norm), 0), ("plain", None, 0), ("known", None, at(&known, 0))]
            {
                let source = Source { norm, ..Source::rows(&x, cols) };
                device.prepare(&source, input).expect("a launch");
                let source = Source { most, ..source };
                let (one, two) = (out(rows), out(rows + 16));
                let done = device.decode(
                    &[(&first, at(&one, 0)), (&second, at(&two, 0))],
                    &source,
                    Decode::Finish(Finish::Store),
                );
                assert!(done.expect("a launch"), "{what}, {case}: no kernel for one token");
                for (linear, found) in [(&first, &one), (&second, &two)] {
                    let expected = out(found.len());
                    device.store(linear, input, &expected).expect("a launch");
                    assert!(bits(&device, found) == bits(&device, &expected), "{what}, {case}");
                }
                let (sum, expected) = (out(rows), out(rows));
                for buffer in [&sum, &expected] {
                    let mut values = vec![0.0f32; rows];
                    device.gpu.download(&before, &mut values).expect("a copy");
                    device.gpu.upload(&values, buffer).expect("a copy");
                }
                let finish = Finish::Residual { factor: 0.5 };
                device.decode(&[(&first, at(&sum, 0))], &source, Decode::Finish(finish)).expect("a launch");
                let output = Output { out: at(&expected, 0), stride: rows, finish };
                first.matrix.product(device.lane(), input, first.bias(), output).expect("a launch");
                assert!(bits(&device, &sum) == bits(&device, &expected), "{what}, {case}: added");
                // Gates are the next product's input, whose rows are whole octets.
                if most != 0 || !rows.is_multiple_of(8) {
                    continue;
                }
                for activation in [Act::Silu, Act::GeluTanh] {
                    let (gates, ups, found, expected) = (out(rows), out(rows), out(rows), out(rows));
                    let largest = device.gpu.alloc::<u32>(1, "test").expect("memory");
                    let clear = device.gpu.alloc::<u32>(1, "test").expect("memory");
                    device.gpu.upload(&[7u32], &clear).expect("a copy");
                    // The last turn left its own input there.
                    device.prepare(&source, input).expect("a launch");
                    device.store(&gate, input, &gates).expect("a launch");
                    device.store(&first, input, &ups).expect("a launch");
                    let done = device.decode(
                        &[(&gate, at(&found, 0)), (&first, 0)],
                        &source,
                        if bytes {
                            Decode::Gated { activation, most: 0, clear: 0 }
                        } else {
                            Decode::Gated { activation, most: at(&largest, 0), clear: at(&clear, 0) }
                        },
                    );
                    assert!(done.expect("a launch"), "{what}: no gated kernel for one token");
                    let source = Source {
                        other: at(&ups, 0),
                        activation: Some(activation),
                        plain: at(&expected, 0),
                        ..Source::rows(&gates, rows)
                    };
                    device.prepare(&source, state.inner.input(1, rows)).expect("a launch");
                    let found = bits(&device, &found);
                    let expected = bits(&device, &expected);
                    let first = found.iter().zip(&expected).position(|(f, e)| f != e);
                    let differing = first.map(|i| (i, f32::from_bits(found[i]), f32::from_bits(expected[i])));
                    assert_eq!(differing, None, "{what}, {case}: {activation:?}");
                    if bytes {
                        continue;
                    }
                    let most = found.iter().map(|b| b & !(1 << 31)).max();
                    let mut words = [0u32; 2];
                    device.gpu.download(&largest, &mut words[..1]).expect("a copy");
                    device.gpu.download(&clear, &mut words[1..]).expect("a copy");
                    assert_eq!((most, 0), (Some(words[0]), words[1]), "{what}: largest, and what is cleared");
                }
            }
        }
    }
}

/// The number of BF16 that became `half` under a power of two; a panic if none did.
fn as_bf16(half: [u8; 2], scale: f32) -> [u8; 2] {
    let mut value = [0.0f32];
    quant::dequantize(GgmlType::F16, &half, &mut value).expect("a half");
    let bytes = (value[0] / scale).to_le_bytes();
    assert_eq!(bytes[..2], [0, 0], "{half:?} is no number of BF16 times {scale}");
    [bytes[2], bytes[3]]
}

/// The repack loses nothing: every bit of the file's blocks is in QT16, where the layout's definition says.
#[test]
fn the_repack_is_a_permutation_of_bits() {
    let Some(mut device) = device() else { return };
    for (ty, unit_bytes) in crate::kernels::QT16_TYPES {
        let whole = |cols: &usize| cols.is_multiple_of(ty.block_len());
        for (rows, cols) in [(16, 256), (37, 1536), (37, 576)].into_iter().filter(|(_, cols)| whole(cols)) {
            let (weight, _) = random_weight(*ty, rows, cols);
            let matrix = device.matrix(&weight).expect("a matrix");
            let tuned = matrix
                .tuned(device.lane(), &device.kernels, Numerics::F16)
                .expect("memory")
                .expect("a tuned type");
            let mut packed = vec![0u8; tuned.bytes().len()];
            device.gpu.download(tuned.bytes(), &mut packed).expect("a copy");
            let mut unpacked = crate::qt16::unpack(*ty, &packed, rows, cols, *unit_bytes);
            if *ty == GgmlType::BF16 {
                unpacked.as_chunks_mut().0.iter_mut().for_each(|half| *half = as_bf16(*half, matrix.scale()));
            }
            let differing = unpacked.iter().zip(&weight.data[..]).filter(|(a, b)| a != b).count();
            assert_eq!((unpacked.len(), differing), (weight.data.len(), 0), "{ty} {rows}×{cols}");
        }
    }
}
