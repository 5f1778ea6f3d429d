//! Products of few tokens on Hopper: the bits of the kernels for any number.

use super::*;
use crate::matrix::{Gated, tile_products};

/// A product's input and the linears that it is for, rows of each unlike the others but for the last: the first one's.
struct Case {
    linears: [LoadedLinear; 4],
    x: Buffer<f32>,
    tokens: usize,
    cols: usize,
}

impl Case {
    fn new(device: &mut CudaDevice, ty: GgmlType, rows: usize, cols: usize, tokens: usize) -> Case {
        let linears = [rows, 40, rows + 130, rows].map(|r| tuned_linear(device, ty, r, cols, Numerics::F16));
        let x = device.gpu.alloc::<f32>(tokens * cols, "test").expect("memory");
        device.gpu.upload(&Numbers(5).heavy(tokens * cols, 1.0), &x).expect("a copy");
        Case { linears, x, tokens, cols }
    }

    /// The input in a form.
    fn input(&self, device: &CudaDevice, form: Form) -> Input {
        let state = device.state().expect("memory");
        let input = Input { form, ..state.normed.input(self.tokens, self.cols) };
        device.prepare(&Source::rows(&self.x, self.cols), input).expect("a launch");
        input
    }

    /// Room for a result, with numbers that a finish may add to.
    fn out(&self, device: &CudaDevice, linear: &LoadedLinear) -> Buffer<f32> {
        let len = self.tokens * linear.matrix.rows;
        let out = device.gpu.alloc(len, "test").expect("memory");
        device.gpu.upload(&Numbers(6).heavy(len, 1.0), &out).expect("a copy");
        out
    }

    /// Bits of the products with `linears` in one launch, or one by one.
    fn products(
        &self,
        device: &CudaDevice,
        linears: &[LoadedLinear],
        form: Form,
        finish: Finish,
    ) -> Vec<Vec<u32>> {
        let input = self.input(device, form);
        let outs: Vec<_> = linears.iter().map(|linear| self.out(device, linear)).collect();
        let products = linears.iter().zip(&outs).map(|(linear, out)| {
            let output = Output { out: at(out, 0), stride: linear.matrix.rows, finish };
            (&*linear.matrix, linear.bias(), output)
        });
        if form == Form::Tiles {
            let products: Vec<_> = products.collect();
            tile_products(device.lane(), &products, input, None).expect("a launch");
        } else {
            products.for_each(|(m, bias, out)| m.product(device.lane(), input, bias, out).expect("a launch"));
        }
        outs.iter().map(|out| bits(device, out)).collect()
    }

    /// Bits of an activation of the first linear times the last one, and of each token's largest magnitude.
    fn gated(&self, device: &CudaDevice, form: Form, activation: Act) -> (Vec<u32>, Vec<u32>) {
        let [gate, .., up] = &self.linears;
        let found = self.out(device, gate);
        let output =
            |out: &Buffer<f32>| Output { out: at(out, 0), stride: gate.matrix.rows, finish: Finish::Store };
        let input = self.input(device, form);
        if form == Form::Tiles {
            let most = device.gpu.alloc::<u32>(self.tokens, "test").expect("memory");
            let gated = Gated { act: activation as i32, most: at(&most, 0) };
            let products = [gate, up].map(|l| (&*l.matrix, l.bias(), output(&found)));
            tile_products(device.lane(), &products, input, Some(gated)).expect("a launch");
            let mut words = vec![0u32; self.tokens];
            device.gpu.download(&most, &mut words).expect("a copy");
            return (bits(device, &found), words);
        }
        let (gates, ups) = (self.out(device, gate), self.out(device, up));
        for (linear, to) in [(gate, &gates), (up, &ups)] {
            linear.matrix.product(device.lane(), input, linear.bias(), output(to)).expect("a launch");
        }
        let source = Source {
            other: at(&ups, 0),
            activation: Some(activation),
            plain: at(&found, 0),
            ..Source::rows(&gates, gate.matrix.rows)
        };
        let state = device.state().expect("memory");
        device.prepare(&source, state.inner.input(self.tokens, gate.matrix.rows)).expect("a launch");
        let found = bits(device, &found);
        let rows = found.chunks(gate.matrix.rows);
        let most = rows.map(|row| row.iter().map(|b| b & !(1 << 31)).max().unwrap_or(0)).collect();
        (found, most)
    }
}

/// Products of several types with one input, launched beside each other: the bits of the same one after the other.
#[test]
fn products_beside_each_other_have_their_own_bits() {
    let Some(mut device) = device() else { return };
    if !crate::matrix::has_wgmma(&device.gpu.info) {
        return;
    }
    let cols = 3584;
    device.reserve(&reserve(32, cols, SMALL_HEADS, 1)).expect("memory");
    let types = [GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q8_0];
    for tokens in [3, 8, 16, 29] {
        let cases = types.map(|ty| Case::new(&mut device, ty, 4000, cols, tokens));
        let input = cases[0].input(&device, Form::Tiles);
        let find = |besides: [Beside; 3]| {
            let outs: Vec<_> = cases.iter().map(|case| case.out(&device, &case.linears[0])).collect();
            for ((case, out), beside) in cases.iter().zip(&outs).zip(besides) {
                let linear = &case.linears[0];
                let output = Output { out: at(out, 0), stride: linear.matrix.rows, finish: Finish::Store };
                let product = [(&*linear.matrix, linear.bias(), output)];
                tile_products(device.lane(), &product, Input { beside, ..input }, None).expect("a launch");
            }
            outs.iter().map(|out| bits(&device, out)).collect::<Vec<_>>()
        };
        let alone = find([Beside::None; 3]);
        for _ in 0..10 {
            assert!(find([Beside::First, Beside::Next, Beside::Next]) == alone, "{tokens} tokens");
        }
    }
}

/// Single products with every finish, three in one launch, and a gate with its up: the bits of the kernel that takes
/// fragments, for every number of tokens' kernel, one segment to eight, ragged rows and more tiles than clusters.
#[test]
fn few_tokens_have_the_bits_of_fragments() {
    let Some(mut device) = device() else { return };
    if !crate::matrix::has_wgmma(&device.gpu.info) {
        return;
    }
    let shapes: [(usize, usize, &[usize]); 5] = [
        (200, 576, &[2, 17]),
        (72, 1280, &[8, 32]),
        (18_000, 3584, &[5]),
        (134, 3584, &[3, 9, 16, 31]),
        (264, 18944, &[7, 12, 32]),
    ];
    device.reserve(&reserve(32, 18944, SMALL_HEADS, 1)).expect("memory");
    for (ty, _) in crate::kernels::QT16_TYPES {
        for (rows, cols, tokens) in
            shapes.into_iter().filter(|(_, cols, _)| cols.is_multiple_of(ty.block_len()))
        {
            // One type is enough for what takes long.
            if rows > 1000 && *ty != GgmlType::Q4_K {
                continue;
            }
            for tokens in tokens.iter().copied() {
                let case = Case::new(&mut device, *ty, rows, cols, tokens);
                let what = format!("{ty} {rows}×{cols}, {tokens} tokens");
                let finishes = [
                    Finish::Store,
                    Finish::Residual { factor: 0.7 },
                    Finish::Logits { factor: 0.1, soft_cap: Some(3.0) },
                ];
                for finish in finishes {
                    let find = |form| case.products(&device, &case.linears[..3], form, finish);
                    assert!(find(Form::Tiles) == find(Form::Fragments), "{what}: {finish:?}");
                }
                // Gates are the next product's input, whose rows are whole octets.
                if !rows.is_multiple_of(8) {
                    continue;
                }
                for activation in [Act::Silu, Act::GeluTanh] {
                    let find = |form| case.gated(&device, form, activation);
                    assert!(find(Form::Tiles) == find(Form::Fragments), "{what}: {activation:?}");
                }
            }
        }
    }
}
