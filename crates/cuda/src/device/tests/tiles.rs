//! Products on tiles of tokens: the bits of other kernels, for tiles of either shape, joined or not.

use super::*;
use crate::matrix::{Gated, TileShape, tile_products, tile_products_of};

/// More tiles than blocks that take turns at them, last ones that blocks share or that have no memory to be shared in, ragged
/// rows and tokens, every finish: the bits of the kernel that takes fragments.
#[test]
fn tiles_of_either_shape_have_the_bits_of_fragments() {
    let Some(mut device) = device() else { return };
    if !crate::matrix::has_wgmma(&device.gpu.info) {
        return;
    }
    let blocks = device.gpu.info.multiprocessors;
    // K of 4, 2 and 1 segments; a turn of the taller tiles and some, and fewer than a turn.
    let cases: [(usize, usize, usize); 4] =
        [(1027, 2304, blocks + 3), (1027, 1280, 4 * blocks / 3), (40, 2304, 9), (300, 512, 30)];
    for (tokens, cols, tiles) in cases {
        let rows = 192 * tiles.div_ceil(tokens.div_ceil(128)) - 150;
        let memory = Reserve { max_ff: 16384, ..reserve(tokens, cols, SMALL_HEADS, 1) };
        device.reserve(&memory).expect("memory");
        let x = device.gpu.alloc::<f32>(tokens * cols, "test").expect("memory");
        device.gpu.upload(&Numbers(5).heavy(tokens * cols, 1.0), &x).expect("a copy");
        let before = Numbers(6).heavy(tokens * (rows + 2), 1.0);
        for (ty, rows) in [(GgmlType::Q4_K, rows), (GgmlType::Q6_K, rows), (GgmlType::Q8_0, rows + 2)] {
            let linear = tuned_linear(&mut device, ty, rows, cols, Numerics::F16);
            let out = device.gpu.alloc::<f32>(tokens * rows, "test").expect("memory");
            let state = device.state().expect("memory");
            let input = device.input_for(state.normed.input(tokens, cols), &[&linear.matrix]);
            assert!(input.form == Form::Tiles && input.spare.floats == tokens * 16384);
            let find = |finish: Finish, form: Form, spare: Spare, shape: TileShape| {
                device.gpu.upload(&before[..tokens * rows], &out).expect("a copy");
                let input = Input { form, spare, ..input };
                device.prepare(&Source::rows(&x, cols), input).expect("a launch");
                let output = Output { out: at(&out, 0), stride: rows, finish };
                let products = [(&*linear.matrix, linear.bias(), output)];
                match form {
                    Form::Tiles => tile_products_of(device.lane(), &products, input, None, shape),
                    _ => linear.matrix.product(device.lane(), input, linear.bias(), output),
                }
                .expect("a launch");
                bits(&device, &out)
            };
            let logits = Finish::Logits { factor: 0.1, soft_cap: Some(3.0) };
            for finish in [Finish::Store, Finish::Residual { factor: 0.7 }, logits] {
                let expected = find(finish, Form::Fragments, Spare::default(), TileShape::Low);
                for (shape, spare) in [
                    (TileShape::Low, input.spare),
                    (TileShape::Tall, Spare::default()),
                    (TileShape::Tall, input.spare),
                    // What arrived is forgotten.
                    (TileShape::Tall, input.spare),
                    (TileShape::Wide, Spare::default()),
                    (TileShape::Wide, input.spare),
                ] {
                    if shape == TileShape::Wide && !linear.matrix.has_wide_tiles() {
                        continue;
                    }
                    let found = find(finish, Form::Tiles, spare, shape);
                    let differing = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
                    let what = format!("{ty} {rows}×{cols}, {tokens} tokens, {finish:?}, {shape:?}");
                    assert_eq!(differing, 0, "{what}, {} floats to share in", spare.floats);
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
    if !crate::matrix::has_wgmma(&device.gpu.info) {
        return;
    }
    let (tokens, cols) = (150, 1024);
    device.reserve(&reserve(tokens, cols, SMALL_HEADS, 1)).expect("memory");
    for (ty, _) in crate::kernels::QT16_TYPES {
        let linears =
            [200, 128, 40, 200].map(|rows| tuned_linear(&mut device, *ty, rows, cols, Numerics::F16));
        let x = device.gpu.alloc::<f32>(tokens * cols, "test").expect("memory");
        device.gpu.upload(&Numbers(5).heavy(tokens * cols, 1.0), &x).expect("a copy");
        let state = device.state().expect("memory");
        let input = device.input_for(state.normed.input(tokens, cols), &[&linears[0].matrix]);
        assert_eq!(input.form, Form::Tiles);
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
        let wide = linears[0].matrix.has_wide_tiles();
        let shapes = [TileShape::Low, TileShape::Tall, TileShape::Wide];
        for shape in shapes.into_iter().filter(|shape| wide || *shape != TileShape::Wide) {
            tile_products_of(device.lane(), &products, input, None, shape).expect("a launch");
            for ((linear, joined), single) in linears.iter().zip(&joined).zip(&single) {
                device.store(linear, input, single).expect("a launch");
                let (joined, single) = (bits(&device, joined), bits(&device, single));
                assert!(joined == single, "{ty}: {} rows, {shape:?}", linear.matrix.rows);
            }
        }
        let (gate, up) = (&linears[0], &linears[3]);
        let [gates, ups, found, expected] = [(); 4].map(|()| out(gate));
        device.store(gate, input, &gates).expect("a launch");
        device.store(up, input, &ups).expect("a launch");
        let gated_shapes: &[TileShape] =
            if wide { &[TileShape::Tall, TileShape::Wide] } else { &[TileShape::Tall] };
        let cases = [Act::Silu, Act::GeluTanh].into_iter();
        for (activation, shape) in cases.flat_map(|act| gated_shapes.iter().map(move |s| (act, *s))) {
            let most = device.gpu.alloc::<u32>(tokens, "test").expect("memory");
            let gated = Gated { act: activation as i32, most: at(&most, 0) };
            let products = [gate, up].map(|l| (&*l.matrix, l.bias(), to(l, &found)));
            device.gpu.upload(&vec![f32::NAN; tokens * gate.matrix.rows], &found).expect("a copy");
            tile_products_of(device.lane(), &products, input, Some(gated), shape).expect("a launch");
            let source = Source {
                other: at(&ups, 0),
                activation: Some(activation),
                plain: at(&expected, 0),
                ..Source::rows(&gates, gate.matrix.rows)
            };
            let scratch = Input { rows: tokens, ..state.inner.input(tokens, gate.matrix.rows) };
            device.prepare(&source, scratch).expect("a launch");
            let (found, expected) = (bits(&device, &found), bits(&device, &expected));
            assert!(found == expected, "{ty}: {activation:?}, {shape:?}");
            let mut words = vec![0u32; tokens];
            device.gpu.download(&most, &mut words).expect("a copy");
            let rows = found.chunks(gate.matrix.rows);
            let largest: Vec<u32> =
                rows.map(|row| row.iter().map(|b| b & !(1 << 31)).max().unwrap_or(0)).collect();
            assert!(words == largest, "{ty}: {activation:?}, {shape:?}: largest magnitudes");
        }
    }
}

/// The same of tiles of bytes, and their single products against the kernel that takes rows of bytes.
#[test]
fn joined_tiles_of_bytes_have_the_bits_of_single_products() {
    let Some(mut device) = device() else { return };
    let (tokens, cols) = (150, 1024);
    device.reserve(&reserve(tokens, cols, SMALL_HEADS, 1)).expect("memory");
    for (ty, _) in crate::kernels::QT16_TYPES.iter().filter(|(ty, _)| has_codes(*ty)) {
        let linears =
            [200, 128, 40, 200].map(|rows| tuned_linear(&mut device, *ty, rows, cols, Numerics::Int8));
        let x = device.gpu.alloc::<f32>(tokens * cols, "test").expect("memory");
        device.gpu.upload(&Numbers(5).heavy(tokens * cols, 1.0), &x).expect("a copy");
        let state = device.state().expect("memory");
        let input = device.input_for(state.normed.input(tokens, cols), &[&linears[0].matrix]);
        assert_eq!(input.form, Form::ByteTiles);
        let out = |linear: &LoadedLinear| -> Buffer<f32> {
            let out = device.gpu.alloc(tokens * linear.matrix.rows, "test").expect("memory");
            // What is not written stays NaN.
            device.gpu.upload(&vec![f32::NAN; tokens * linear.matrix.rows], &out).expect("a copy");
            out
        };
        let to = |linear: &LoadedLinear, out: &Buffer<f32>| Output {
            out: at(out, 0),
            stride: linear.matrix.rows,
            finish: Finish::Store,
        };
        let rows_of_bytes =
            Input { form: Form::Bytes, together: input.together, ..state.inner.input(tokens, cols) };
        device.prepare(&Source::rows(&x, cols), rows_of_bytes).expect("a launch");
        device.prepare(&Source::rows(&x, cols), input).expect("a launch");
        let (joined, single): (Vec<_>, Vec<_>) = linears[..3].iter().map(|l| (out(l), out(l))).unzip();
        let products: Vec<_> =
            linears.iter().zip(&joined).map(|(l, out)| (&*l.matrix, l.bias(), to(l, out))).collect();
        tile_products(device.lane(), &products, input, None).expect("a launch");
        for ((linear, joined), single) in linears.iter().zip(&joined).zip(&single) {
            device.store(linear, rows_of_bytes, single).expect("a launch");
            let same = bits(&device, joined) == bits(&device, single);
            assert!(same, "{ty}: {} rows", linear.matrix.rows);
        }
        let (gate, up) = (&linears[0], &linears[3]);
        // Where shared memory is short, a gate and its up are launches of their own.
        if !gate.matrix.gates(&up.matrix, input.form, tokens) {
            assert!(device.gpu.info.shared_per_block < 128 << 10, "{ty}");
            continue;
        }
        let [gates, ups, found, expected] = [(); 4].map(|()| out(gate));
        device.store(gate, input, &gates).expect("a launch");
        device.store(up, input, &ups).expect("a launch");
        for activation in [Act::Silu, Act::GeluTanh] {
            let gated = Gated { act: activation as i32, most: 0 };
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
            assert!(bits(&device, &found) == bits(&device, &expected), "{ty}: {activation:?}");
        }
    }
}
