//! Products of Q4_K or Q4_1 with many tokens, each in the variants of `csrc/lab/mmq.cu` and as the int8 profile has it.

use super::super::CudaDevice;
use super::super::stages::Source;
use super::super::state::row_halves;
use crate::args::{Finish, at};
use crate::driver::Buffer;
use crate::matrix::mmq::{GROUP, Groups, Launch, Product};
use crate::matrix::{Beside, Form, Input, Matrix, Output, Spare, together};
use crate::numerics::Numerics;
use crate::prefill::Prefill;
use minfer_gguf::quant;
use minfer_ops::{DeviceError, GgmlType, Weight};
use std::time::Instant;

/// A kernel for the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmqVariant {
    /// One that prompts may take too.
    Of(Prefill),
    /// nb, unrolled; raw words are read a pair of groups ahead.
    Ahead,
    /// nb, unrolled; minima are a tensor-core step of their own.
    Least,
    /// nb, unrolled; a token has one scale for 256 values, and scales of groups are integers.
    Integers,
}

impl MmqVariant {
    /// All of them.
    pub const ALL: [MmqVariant; 8] = [
        MmqVariant::Of(Prefill::Wide),
        MmqVariant::Of(Prefill::WideUnrolled),
        MmqVariant::Of(Prefill::Nb),
        MmqVariant::Of(Prefill::NbUnrolled),
        MmqVariant::Of(Prefill::Nb2),
        MmqVariant::Ahead,
        MmqVariant::Least,
        MmqVariant::Integers,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            MmqVariant::Of(prefill) => prefill.name(),
            MmqVariant::Ahead => "nb-ahead",
            MmqVariant::Least => "nb-least",
            MmqVariant::Integers => "nb-integers",
        }
    }

    /// Whether the profile's own kernel is meant.
    fn is_own(self) -> bool {
        matches!(self, MmqVariant::Of(prefill) if !prefill.is_experiment())
    }
}

/// A product, and its input in the forms that the variants take.
pub struct MmqProduct<'a> {
    device: &'a CudaDevice,
    ty: GgmlType,
    blocks: Buffer<u8>,
    tuned: Matrix,
    /// With a scale for each group, and for 256 values.
    groups: [Buffer<u8>; 2],
    own: Buffer<u16>,
    unscale: Buffer<f32>,
    out: Buffer<f32>,
    rows: usize,
    cols: usize,
    tokens: usize,
}

impl CudaDevice {
    /// A product of random numbers: a matrix of Q4_K with `rows` and `cols`, and `tokens`.
    ///
    /// # Errors
    /// As [`MmqProduct::enqueue`], and columns that are no whole blocks.
    pub fn mmq_random(&self, rows: usize, cols: usize, tokens: usize) -> Result<MmqProduct<'_>, DeviceError> {
        let ty = GgmlType::Q4_K;
        let mut data = vec![0; ty.bytes_of(rows * cols).unwrap_or_default()];
        let random = quant::random_blocks(ty, 1, 0.02, 0, &mut data);
        random.map_err(|error| DeviceError::Fault(error.to_string()))?;
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 * 2.0 - 1.0
        };
        let x: Vec<f32> = (0..tokens * cols).map(|_| next()).collect();
        self.mmq_product(&Weight { name: "random".into(), ty, rows, cols, data: data.into() }, &x)
    }

    /// A product of a matrix, `weight`, with `x`, tokens of as many values as it has columns.
    fn mmq_product(&self, weight: &Weight, x: &[f32]) -> Result<MmqProduct<'_>, DeviceError> {
        let Weight { rows, cols, ty, .. } = *weight;
        let refuse = |what: String| Err(DeviceError::Unsupported { tensor: weight.name.to_string(), what });
        if !matches!(ty, GgmlType::Q4_K | GgmlType::Q4_1) || cols == 0 || !cols.is_multiple_of(ty.block_len())
        {
            return refuse(format!("{cols} columns of {ty}: whole blocks of Q4_K or Q4_1 are expected"));
        }
        if x.is_empty() || !x.len().is_multiple_of(cols) {
            return refuse(format!("{} values of input for {cols} columns", x.len()));
        }
        self.gpu.make_current()?;
        let what = "the laboratory";
        let tokens = x.len() / cols;
        let matrix = Matrix::load(weight, self.lane(), &self.kernels)?;
        let Some(tuned) = matrix.tuned(self.lane(), &self.kernels, Numerics::Int8)? else {
            return refuse("no tuned kernels".into());
        };
        let from = self.gpu.alloc::<f32>(x.len(), what)?;
        self.gpu.upload(x, &from)?;
        let bytes = Groups::bytes(cols, tokens);
        let tiles = tokens.next_multiple_of(crate::matrix::TILE_TOKENS);
        let product = MmqProduct {
            device: self,
            ty,
            blocks: self.gpu.alloc(weight.data.len(), what)?,
            tuned,
            groups: [self.gpu.alloc(bytes, what)?, self.gpu.alloc(bytes, what)?],
            own: self.gpu.alloc(tiles * row_halves(cols), what)?,
            unscale: self.gpu.alloc(tiles, what)?,
            out: self.gpu.alloc(tokens * rows, what)?,
            rows,
            cols,
            tokens,
        };
        self.gpu.upload(&weight.data[..], &product.blocks)?;
        for together in [false, true] {
            if together && !cols.is_multiple_of(256) {
                continue;
            }
            let (kernel, shape, args) =
                product.groups(together).fill(&self.kernels, at(&from, 0), together)?;
            self.enqueue(kernel, shape, &args)?;
        }
        self.prepare(&Source::rows(&from, cols), product.input())?;
        // `from` goes.
        self.gpu.synchronize()?;
        Ok(product)
    }
}

impl MmqProduct<'_> {
    /// Of the int8 profile.
    fn input(&self) -> Input {
        let tiles = self.tuned.takes_byte_tiles(self.tokens);
        let form = if tiles { Form::ByteTiles } else { Form::Bytes };
        let (x, unscale) = (at(&self.own, 0), at(&self.unscale, 0));
        Input {
            x,
            unscale,
            stride: row_halves(self.cols),
            rows: self.tokens,
            form,
            spare: Spare::default(),
            beside: Beside::None,
            together: together([&self.tuned].into_iter()),
        }
    }

    /// Of the variants: those of groups, or of 256 values with one scale.
    fn groups(&self, together: bool) -> Groups {
        Groups::at(at(&self.groups[usize::from(together)], 0), self.cols, self.tokens)
    }

    /// Enqueues it; `blocks`: of a multiprocessor at most, or 0 for as many as fit, which more shared memory than needed
    /// sees to. Without effect on the profile's own kernel.
    ///
    /// # Errors
    /// A multiprocessor has no memory for it, there is no such kernel for the type, or the driver fails.
    pub fn enqueue(&self, variant: MmqVariant, blocks: usize) -> Result<(), DeviceError> {
        let device = self.device;
        let output = Output { out: at(&self.out, 0), stride: self.rows, finish: Finish::Store };
        if variant.is_own() {
            return self.tuned.product(device.lane(), self.input(), 0, output);
        }
        let form = variant.name().replace('-', "_");
        let launch = Launch::find(&device.gpu, &device.kernels, &form, self.ty)?;
        let input = self.groups(variant == MmqVariant::Integers);
        let product = Product { w: at(&self.blocks, 0), rows: self.rows, input, bias: 0, output };
        let (kernel, shape, args) = launch.of(&device.gpu, &product, blocks)?;
        device.enqueue(kernel, shape, &args)
    }

    /// Seconds of one of `launches`, one after the other.
    ///
    /// # Errors
    /// As [`Self::enqueue`].
    pub fn seconds(&self, variant: MmqVariant, blocks: usize, launches: usize) -> Result<f64, DeviceError> {
        let gpu = &self.device.gpu;
        gpu.synchronize()?;
        let start = Instant::now();
        for _ in 0..launches.max(1) {
            self.enqueue(variant, blocks)?;
        }
        gpu.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / launches.max(1) as f64)
    }

    /// The result of a variant, `[tokens][rows]`; what it does not write is NaN.
    ///
    /// # Errors
    /// As [`Self::enqueue`].
    pub fn result(&self, variant: MmqVariant) -> Result<Vec<f32>, DeviceError> {
        let mut values = vec![f32::NAN; self.tokens * self.rows];
        self.device.gpu.upload(&values, &self.out)?;
        self.enqueue(variant, 0)?;
        self.device.gpu.download(&self.out, &mut values)?;
        Ok(values)
    }

    /// What a variant but the profile's own multiplies: values of the tokens' bytes, `[tokens][cols]`.
    ///
    /// # Errors
    /// The driver fails.
    pub fn quantized(&self, variant: MmqVariant) -> Result<Vec<f32>, DeviceError> {
        let together = variant == MmqVariant::Integers;
        let (groups, from) = (self.groups(together), &self.groups[usize::from(together)]);
        let mut bytes = vec![0u8; from.len()];
        self.device.gpu.download(from, &mut bytes)?;
        let (q, scales) = bytes.split_at(groups.scales_at());
        let scales: &[f32] = bytemuck::cast_slice(scales);
        let value = |i: usize| {
            let (token, group) = (i / self.cols, i % self.cols / GROUP);
            f32::from(q[i] as i8) * scales[2 * (group * groups.padded() + token)]
        };
        Ok((0..self.tokens * self.cols).map(value).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Numbers, device, error};

    /// Wide and nb, unrolled or not, have the same bits on any shape, and nb's other forms those bytes' product too. That is
    /// near to the product with the values, where there are enough outputs to tell.
    #[test]
    fn variants_of_the_experiment_have_the_same_bits() {
        let Some(device) = device() else { return };
        let shapes =
            [(128, 256, 64), (200, 1024, 70), (3, 512, 1), (257, 3584, 130)].map(|s| (GgmlType::Q4_K, s));
        let others = [(40, 576, 70), (129, 2304, 65)].map(|s| (GgmlType::Q4_1, s));
        for (ty, (rows, cols, tokens)) in shapes.into_iter().chain(others) {
            let what = format!("{ty}, {rows}×{cols}, {tokens} tokens");
            let mut data = vec![0; ty.bytes_of(rows * cols).expect("whole blocks")];
            quant::random_blocks(ty, rows as u64, 0.02, 0, &mut data).expect("whole blocks");
            let mut values = vec![0.0; rows * cols];
            quant::dequantize(ty, &data, &mut values).expect("whole blocks");
            let weight = Weight { name: "w".into(), ty, rows, cols, data: data.into() };
            let x = Numbers(7).heavy(tokens * cols, 1.0);
            let product = device.mmq_product(&weight, &x).expect("memory");
            let in_double = |x: &[f32]| -> Vec<f64> {
                let dot = |(token, row): (usize, usize)| -> f64 {
                    let pairs = values[row * cols..][..cols].iter().zip(&x[token * cols..]);
                    pairs.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
                };
                (0..tokens * rows).map(|i| dot((i / rows, i % rows))).collect()
            };
            let truth = in_double(&x);
            let near = |variant: MmqVariant, found: &[f32]| {
                let same = in_double(&product.quantized(variant).expect("a copy"));
                let from_same = error(found, &same);
                assert!(from_same < 5e-6, "{what}: {}: {from_same:.1e} from its bytes", variant.name());
            };
            let near_truth = |variant: MmqVariant, found: &[f32]| {
                let from_truth = error(found, &truth);
                let counts = rows * tokens >= 1000;
                assert!(!counts || from_truth < 1.2e-2, "{what}: {}: {from_truth:.1e}", variant.name());
            };
            let wide = product.result(MmqVariant::Of(Prefill::Wide)).expect("a launch");
            near(MmqVariant::Of(Prefill::Wide), &wide);
            near_truth(MmqVariant::Of(Prefill::Wide), &wide);
            for asked in [Prefill::WideUnrolled, Prefill::Nb, Prefill::NbUnrolled] {
                let taken = MmqVariant::Of(asked.of((8, 0), ty, cols));
                let found = product.result(taken).expect("a launch");
                let differing = found.iter().zip(&wide).filter(|(f, w)| f.to_bits() != w.to_bits()).count();
                assert_eq!(differing, 0, "{what}: {}", taken.name());
            }
            if ty == GgmlType::Q4_K {
                for variant in [MmqVariant::Ahead, MmqVariant::Least, MmqVariant::Integers] {
                    let found = product.result(variant).expect("a launch");
                    near(variant, &found);
                    near_truth(variant, &found);
                }
            }
            near_truth(
                MmqVariant::Of(Prefill::Nb2),
                &product.result(MmqVariant::Of(Prefill::Nb2)).expect("a launch"),
            );
        }
    }
}
