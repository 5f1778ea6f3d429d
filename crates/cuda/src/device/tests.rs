//! Kernels on a GPU against double precision, and the profile's promise: the same bits in any company.
#![allow(clippy::print_stdout, reason = "figures for --nocapture")]

use super::decode::Decode;
use super::stages::Source;
use super::*;
use crate::args::Finish;
use crate::kernels::KERNEL_TYPES;
use crate::matrix::{Gated, Input, Layout, Output, tile_products};
use crate::testing::{Numbers, device, error};
use minfer_gguf::quant;

/// Gate of a product: weights and input in half precision.
const PRODUCT_GATE: f64 = 1.5e-3;

/// Gate of attention: q, k, v and weights of keys in half precision.
const ATTENTION_GATE: f64 = 1e-3;

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
    assert_eq!(input.tiles, matrix.takes_tiles(rows.len()));
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

#[test]
fn products_of_every_type_agree_with_double_precision_in_any_company() {
    let Some(mut device) = device() else { return };
    device.reserve(&reserve(200, 18944, SMALL_HEADS, 1)).expect("memory");
    for (ty, name) in KERNEL_TYPES {
        let block = ty.block_len().max(8);
        let mut worst: f64 = 0.0;
        // Less than a tile, ragged tiles, several segments of K, and the last of them short.
        for (rows, cols) in [(3, block), (50, 5 * block.max(32)), (17, 2304), (200, 1024), (40, 18944)] {
            let (weight, values) = random_weight(*ty, rows, cols);
            let matrix = device.matrix(&weight).expect("a matrix");
            // What products of the type run on.
            let tuned = matrix.tuned(device.lane(), &device.kernels).expect("memory");
            let has_qt16 = crate::kernels::QT16_TYPES.iter().any(|(t, _)| t == ty);
            assert_eq!(tuned.is_some(), has_qt16 && cols % 256 == 0);
            let matrix = match tuned {
                Some(tuned) if tuned.layout() == Layout::Qt16 => tuned,
                _ => matrix,
            };
            assert_eq!(
                matrix.takes_tiles(33),
                matrix.layout() == Layout::Qt16 && device.gpu.info.capability == crate::matrix::WGMMA
            );
            let tokens = 200;
            let mut x = Numbers(cols as u64).heavy(tokens * cols, 1.0);
            // Massive activations: one channel of every third token.
            x.iter_mut().skip(1).step_by(3 * cols).for_each(|v| *v *= 1000.0);
            let whole = product(&device, &matrix, &x, 0..tokens);
            for t in (0..tokens).step_by(3) {
                let row = &x[t * cols..(t + 1) * cols];
                let dot = |n: usize| -> f64 {
                    let w = &values[n * cols..(n + 1) * cols];
                    w.iter().zip(row).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
                };
                let expected: Vec<f64> = (0..rows).map(dot).collect();
                // Rows of three values can cancel; longer ones cannot.
                let found = error(&whole[t * rows..(t + 1) * rows], &expected);
                worst = worst.max(if rows < 8 { found / 4.0 } else { found });
            }
            for part in [0..1, 5..8, 3..11, 40..72, 31..70, 60..200] {
                let alone = product(&device, &matrix, &x, part.clone());
                let same =
                    alone.iter().zip(&whole[part.start * rows..]).all(|(a, w)| a.to_bits() == w.to_bits());
                assert!(same, "{name} {rows}×{cols}: tokens {part:?} alone differ");
            }
        }
        println!("{name:8} {worst:.1e} of {PRODUCT_GATE:.1e}");
        assert!(worst < PRODUCT_GATE, "{name}: {worst:.1e}");
    }
}

/// A matrix has the bits of QT16 in the file's layout too, where rows that are no whole units stay.
#[test]
fn products_have_the_same_bits_in_both_layouts() {
    let Some(mut device) = device() else { return };
    device.reserve(&reserve(9, 2304, SMALL_HEADS, 1)).expect("memory");
    let both = crate::kernels::QT16_TYPES.iter().filter(|(ty, _)| ty.block_len() < 256);
    for (ty, _) in both {
        for (rows, cols) in [(16, 256), (50, 2304)] {
            let (weight, _) = random_weight(*ty, rows, cols);
            let file = device.matrix(&weight).expect("a matrix");
            let tuned = file.tuned(device.lane(), &device.kernels).expect("memory").expect("a tuned type");
            assert_eq!((file.layout(), tuned.layout()), (Layout::File, Layout::Qt16));
            let x = Numbers(cols as u64).heavy(9 * cols, 1.0);
            for tokens in [0..1, 0..9] {
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
fn tuned_linear(device: &mut CudaDevice, ty: GgmlType, rows: usize, cols: usize) -> LoadedLinear {
    let (weight, _) = random_weight(ty, rows, cols);
    let matrix = device.matrix(&weight).expect("a matrix");
    let matrix = matrix.tuned(device.lane(), &device.kernels).expect("memory").expect("a tuned type");
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
    for (ty, _) in crate::kernels::QT16_TYPES {
        // One segment to eight, ragged rows, more row groups than blocks, and K in one block or shared by a cluster.
        for (rows, cols) in [(17, 256), (40, 1280), (5000, 2048), (48, 3584), (33, 18944)] {
            begin_one(&mut device);
            // Nothing is kept for a graph from here on.
            device.flush().expect("launches");
            let first = tuned_linear(&mut device, *ty, rows, cols);
            let second = tuned_linear(&mut device, *ty, rows + 16, cols);
            let gate = tuned_linear(&mut device, *ty, rows, cols);
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
            let input = state.inner.input(1, cols);
            let what = format!("{ty} {rows}×{cols}");
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
                for activation in [Activation::Silu, Activation::GeluTanh] {
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
                        Decode::Gated { activation, most: at(&largest, 0), clear: at(&clear, 0) },
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

/// Several products in one launch, and a gate with its up, on tiles of tokens: the bits of single products and of the
/// kernel that applies the activation.
#[test]
fn joined_tiles_have_the_bits_of_single_products() {
    let Some(mut device) = device() else { return };
    if device.gpu.info.capability != crate::matrix::WGMMA {
        return;
    }
    let (tokens, cols) = (150, 1024);
    device.reserve(&reserve(tokens, cols, SMALL_HEADS, 1)).expect("memory");
    for (ty, _) in crate::kernels::QT16_TYPES {
        // Rows of whole tiles and ragged ones; of a gated product, rows of 64 make a tile.
        let linears = [200, 128, 40, 200].map(|rows| tuned_linear(&mut device, *ty, rows, cols));
        let x = device.gpu.alloc::<f32>(tokens * cols, "test").expect("memory");
        device.gpu.upload(&Numbers(5).heavy(tokens * cols, 1.0), &x).expect("a copy");
        let state = device.state().expect("memory");
        let input = device.input_for(state.normed.input(tokens, cols), &[&linears[0].matrix]);
        assert!(input.tiles);
        device.prepare(&Source::rows(&x, cols), input).expect("a launch");
        let out = |linear: &LoadedLinear| -> Buffer<f32> {
            device.gpu.alloc(tokens * linear.matrix.rows, "test").expect("memory")
        };
        let to = |linear: &LoadedLinear, out: &Buffer<f32>| Output {
            out: at(out, 0),
            stride: linear.matrix.rows,
            finish: Finish::Store,
        };
        let (joined, single): (Vec<_>, Vec<_>) = linears[..3].iter().map(|l| (out(l), out(l))).unzip();
        let products: Vec<_> =
            linears.iter().zip(&joined).map(|(l, out)| (&*l.matrix, l.bias(), to(l, out))).collect();
        tile_products(device.lane(), &products, input, None).expect("a launch");
        for ((linear, joined), single) in linears.iter().zip(&joined).zip(&single) {
            device.store(linear, input, single).expect("a launch");
            assert!(bits(&device, joined) == bits(&device, single), "{ty}: {} rows", linear.matrix.rows);
        }
        let (gate, up) = (&linears[0], &linears[3]);
        let [gates, ups, found, expected] = [(); 4].map(|()| out(gate));
        device.store(gate, input, &gates).expect("a launch");
        device.store(up, input, &ups).expect("a launch");
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let most = device.gpu.alloc::<u32>(tokens, "test").expect("memory");
            let gated = Gated { act: super::stages::activation_number(activation), most: at(&most, 0) };
            let products = [gate, up].map(|l| (&*l.matrix, l.bias(), to(l, &found)));
            tile_products(device.lane(), &products, input, Some(gated)).expect("a launch");
            let source = Source {
                other: at(&ups, 0),
                activation: Some(activation),
                plain: at(&expected, 0),
                ..Source::rows(&gates, gate.matrix.rows)
            };
            let scratch = Input { rows: tokens, ..state.inner.input(tokens, gate.matrix.rows) };
            device.prepare(&source, scratch).expect("a launch");
            let (found, expected) = (bits(&device, &found), bits(&device, &expected));
            assert!(found == expected, "{ty}: {activation:?}");
            let mut words = vec![0u32; tokens];
            device.gpu.download(&most, &mut words).expect("a copy");
            let rows = found.chunks(gate.matrix.rows);
            let largest: Vec<u32> =
                rows.map(|row| row.iter().map(|b| b & !(1 << 31)).max().unwrap_or(0)).collect();
            assert!(words == largest, "{ty}: {activation:?}: largest magnitudes");
        }
    }
}

/// The repack loses nothing: every bit of the file's blocks is in QT16, where the layout's definition says.
#[test]
fn the_repack_is_a_permutation_of_bits() {
    let Some(mut device) = device() else { return };
    for (ty, unit_bytes) in crate::kernels::QT16_TYPES {
        for (rows, cols) in [(16, 256), (37, 1536)] {
            let (weight, _) = random_weight(*ty, rows, cols);
            let matrix = device.matrix(&weight).expect("a matrix");
            let tuned = matrix.tuned(device.lane(), &device.kernels).expect("memory").expect("a tuned type");
            let mut packed = vec![0u8; tuned.bytes().len()];
            device.gpu.download(tuned.bytes(), &mut packed).expect("a copy");
            let unpacked = crate::qt16::unpack(*ty, &packed, rows, cols, *unit_bytes);
            let differing = unpacked.iter().zip(&weight.data[..]).filter(|(a, b)| a != b).count();
            assert_eq!((unpacked.len(), differing), (weight.data.len(), 0), "{ty} {rows}×{cols}");
        }
    }
}

/// Attention of random tokens with a device that has just computed q, k and v of them.
struct Scene {
    device: CudaDevice,
    embedding: Embedding,
    attn_in: AttnIn,
    spec: AttentionSpec,
    width: usize,
}

/// Blocks of sequence `i`, in an order that is not ascending.
fn blocks_of(sequence: usize, count: usize, each: usize) -> Vec<u32> {
    (0..count).map(|b| (sequence * each + (each - 1 - b)) as u32).collect()
}

impl Scene {
    fn new(heads: Heads, window: Option<usize>, soft_cap: Option<f32>, tokens: usize) -> Option<Scene> {
        let mut device = device()?;
        let d_model = 64;
        let mut numbers = Numbers(3);
        let linear = |name: &str, rows: usize, numbers: &mut Numbers| Linear {
            weight: float_weight(name, rows, d_model, &numbers.heavy(rows * d_model, 0.5)),
            bias: None,
        };
        let kv = KvSlot { group: 0, layer: 0 };
        let attn_in = device
            .load_attn_in(AttnInSpec {
                norm: None,
                q: linear("q", heads.q * heads.dim, &mut numbers),
                k: linear("k", heads.kv * heads.dim, &mut numbers),
                v: linear("v", heads.kv * heads.dim, &mut numbers),
                q_norm: None,
                k_norm: None,
                rope: None,
                heads,
                kv,
            })
            .expect("a stage");
        let table = float_weight("table", tokens, d_model, &numbers.heavy(tokens * d_model, 1.0));
        let embedding = device.load_embedding(table).expect("a table");
        device.reserve(&reserve(tokens, d_model, heads, 4 * tokens.div_ceil(KV_BLOCK))).expect("memory");
        let scale = 1.0 / (heads.dim as f32).sqrt();
        let spec = AttentionSpec { heads, scale, soft_cap, window, kv };
        Some(Scene { device, embedding, attn_in, spec, width: heads.q * heads.dim })
    }

    /// Runs spans of (sequence, position, tokens); returns the results of all tokens.
    fn run(&mut self, spans: &[(usize, usize, &[u32])]) -> Vec<f32> {
        let each = self.device.state().expect("memory").reserve.kv_groups[0].blocks / 2;
        let tables: Vec<Vec<u32>> = spans
            .iter()
            .map(|(sequence, position, ids)| {
                blocks_of(*sequence, (position + ids.len()).div_ceil(KV_BLOCK), each)
            })
            .collect();
        let views: Vec<[BlockTable<'_>; 1]> =
            tables.iter().map(|blocks| [BlockTable { first: 0, blocks }]).collect();
        let mut start = 0;
        let mut own = Vec::new();
        let mut tokens = Vec::new();
        for ((_, position, ids), tables) in spans.iter().zip(&views) {
            own.push(Span { start, len: ids.len(), position: *position, tables });
            start += ids.len();
            tokens.extend_from_slice(ids);
        }
        let device = &mut self.device;
        device.begin(&Batch { tokens: &tokens, spans: &own, outputs: &[] }).expect("a step");
        device.embed(&self.embedding, 1.0).expect("a launch");
        device.attn_in(&self.attn_in).expect("a launch");
        device.attention(&self.spec).expect("a launch");
        device.flush().expect("launches");
        let mut out = vec![0.0; tokens.len() * self.width];
        device.gpu.download(&device.state().expect("memory").attn, &mut out).expect("a copy");
        out
    }

    /// The same of one sequence in double precision, from the q, k and v that the last step left behind.
    fn oracle(&self, tokens: usize) -> Vec<f64> {
        let state = self.device.state().expect("memory");
        let heads = self.spec.heads;
        let read = |buffer: &Buffer<f32>, width: usize| {
            let mut values = vec![0.0; tokens * width];
            self.device.gpu.download(buffer, &mut values).expect("a copy");
            values.into_iter().map(f64::from).collect::<Vec<f64>>()
        };
        let kv_width = heads.kv * heads.dim;
        let (q, k, v) = (read(&state.q, self.width), read(&state.k, kv_width), read(&state.v, kv_width));
        let mut out = vec![0.0; tokens * self.width];
        for (t, h) in (0..tokens).flat_map(|t| (0..heads.q).map(move |h| (t, h))) {
            let kv_head = h / (heads.q / heads.kv);
            let keys: Vec<usize> = (self.spec.seen_from(t)..=t).collect();
            let score = |key: &usize| -> f64 {
                let q = &q[t * self.width + h * heads.dim..][..heads.dim];
                let k = &k[key * kv_width + kv_head * heads.dim..][..heads.dim];
                let s = q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(self.spec.scale);
                self.spec.soft_cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for c in 0..heads.dim {
                let at = |key: &usize| v[key * kv_width + kv_head * heads.dim + c];
                let mixed: f64 = keys.iter().zip(&weights).map(|(key, w)| w * at(key)).sum();
                out[t * self.width + h * heads.dim + c] = mixed / sum;
            }
        }
        out
    }
}

/// Head counts and sizes, windows and caps; prompts cross a segment's border and end inside a block.
const SCENES: &[(Heads, Option<usize>, Option<f32>)] = &[
    (Heads { q: 8, kv: 2, dim: 64 }, None, None),
    (Heads { q: 7, kv: 1, dim: 128 }, None, None),
    (Heads { q: 12, kv: 2, dim: 128 }, Some(150), Some(20.0)),
    (Heads { q: 16, kv: 4, dim: 64 }, Some(70), None),
    (Heads { q: 4, kv: 4, dim: 96 }, Some(100), None),
    (Heads { q: 2, kv: 1, dim: 256 }, None, Some(30.0)),
    (Heads { q: 6, kv: 2, dim: 80 }, Some(300), Some(5.0)),
    (Heads { q: 4, kv: 2, dim: 16 }, Some(1), None),
    (Heads { q: 40, kv: 1, dim: 192 }, None, None),
];

#[test]
fn attention_agrees_with_double_precision() {
    for (heads, window, soft_cap) in SCENES {
        let tokens = 333;
        let Some(mut scene) = Scene::new(*heads, *window, *soft_cap, tokens) else { return };
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let found = scene.run(&[(0, 0, &ids)]);
        let expected = scene.oracle(tokens);
        let rows = found.chunks(heads.dim).zip(expected.chunks(heads.dim));
        let worst = rows.map(|(f, e)| error(f, e)).fold(0.0, f64::max);
        let whole = error(&found, &expected);
        println!("{heads:?} {window:?} {soft_cap:?}: {whole:.1e}, worst row {worst:.1e}");
        assert!(whole < ATTENTION_GATE, "{heads:?} {window:?} {soft_cap:?}: {whole:.1e}");
        assert!(worst < 8.0 * ATTENTION_GATE, "{heads:?} {window:?} {soft_cap:?}: worst row {worst:.1e}");
    }
}

#[test]
fn attention_has_the_same_bits_in_any_company() {
    for (heads, window, soft_cap) in SCENES {
        let tokens = 333;
        let Some(mut scene) = Scene::new(*heads, *window, *soft_cap, tokens) else { return };
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let whole = scene.run(&[(0, 0, &ids)]);
        let width = scene.width;
        let mut check = |spans: &[(usize, usize, &[u32])], of: usize, skip: usize| {
            let found = scene.run(spans);
            let (_, position, ids) = spans[of];
            let found = &found[skip * width..][..ids.len() * width];
            let same = found.iter().zip(&whole[position * width..]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{heads:?} {window:?}: {} tokens at {position}", ids.len());
        };
        // In ragged pieces, then token by token over a segment's border, then beside another sequence.
        for (from, to) in [(0, 1), (1, 8), (8, 200), (200, 250), (250, 333)] {
            check(&[(0, from, &ids[from..to])], 0, 0);
        }
        for t in 250..262 {
            check(&[(0, t, &ids[t..t + 1])], 0, 0);
        }
        check(&[(1, 0, &ids[40..140]), (0, 300, &ids[300..333])], 1, 100);
    }
}
