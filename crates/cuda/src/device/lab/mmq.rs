//! Products of Q4_K with many tokens, each in the variants of `csrc/lab/mmq.cu` and as the int8 profile has it.

use super::super::CudaDevice;
use super::super::stages::Source;
use super::super::state::row_halves;
use crate::args::{Finish, MmqArgs, MmqQuantizeArgs, at};
use crate::driver::{Buffer, Kernel, Shape};
use crate::matrix::{Form, Input, Matrix, Output, Spare};
use crate::numerics::Numerics;
use minfer_gguf::quant;
use minfer_ops::{DeviceError, GgmlType, Weight};
use std::time::Instant;

/// Rows and tokens of a block of the variants, columns of a tile, and values of a group.
const ROWS: usize = 128;
const TOKENS: usize = 64;
const COLS: usize = 256;
const GROUP: usize = 32;
const THREADS: usize = 256;

/// Bytes of shared memory of the variants that unpack nibbles into it, and of those that keep them packed.
const WIDE: usize = 61_440;
const NB: usize = 45_056;

/// A kernel for the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmqVariant {
    /// Nibbles are unpacked into shared memory.
    Wide,
    /// The same with the loop over groups unrolled.
    WideUnrolled,
    /// Nibbles stay packed in shared memory.
    Nb,
    /// The same with the loop over groups unrolled.
    NbUnrolled,
    /// The int8 profile's own kernel.
    Nb2,
}

impl MmqVariant {
    /// All of them.
    pub const ALL: [MmqVariant; 5] =
        [MmqVariant::Wide, MmqVariant::WideUnrolled, MmqVariant::Nb, MmqVariant::NbUnrolled, MmqVariant::Nb2];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            MmqVariant::Wide => "wide",
            MmqVariant::WideUnrolled => "wide-unrolled",
            MmqVariant::Nb => "nb",
            MmqVariant::NbUnrolled => "nb-unrolled",
            MmqVariant::Nb2 => "nb2",
        }
    }

    /// Its kernel in `csrc/lab/mmq.cu`, and bytes of shared memory, static and dynamic.
    fn kernel(self) -> Option<(&'static str, usize, usize)> {
        match self {
            MmqVariant::Wide => Some(("mmq_wide", 0, WIDE)),
            MmqVariant::WideUnrolled => Some(("mmq_wide_unrolled", 0, WIDE)),
            MmqVariant::Nb => Some(("mmq_nb", NB, 0)),
            MmqVariant::NbUnrolled => Some(("mmq_nb_unrolled", NB, 0)),
            MmqVariant::Nb2 => None,
        }
    }
}

/// A product, and its input in the forms that the variants take.
pub struct MmqProduct<'a> {
    device: &'a CudaDevice,
    blocks: Buffer<u8>,
    tuned: Matrix,
    bytes: Buffer<u8>,
    scales: Buffer<f32>,
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

    /// A product of a matrix of Q4_K, `weight`, with `x`, tokens of as many values as it has columns.
    fn mmq_product(&self, weight: &Weight, x: &[f32]) -> Result<MmqProduct<'_>, DeviceError> {
        let Weight { rows, cols, .. } = *weight;
        let refuse = |what: String| Err(DeviceError::Unsupported { tensor: weight.name.to_string(), what });
        if weight.ty != GgmlType::Q4_K || cols == 0 || !cols.is_multiple_of(COLS) {
            return refuse(format!("{cols} columns of {}: whole blocks of Q4_K are expected", weight.ty));
        }
        if x.is_empty() || !x.len().is_multiple_of(cols) {
            return refuse(format!("{} values of input for {cols} columns", x.len()));
        }
        self.gpu.make_current()?;
        for (kernel, fixed, _) in MmqVariant::ALL.into_iter().filter_map(MmqVariant::kernel) {
            self.gpu.allow_shared(self.kernels.get("mmq", kernel)?, fixed)?;
        }
        let what = "the laboratory";
        let tokens = x.len() / cols;
        let padded = tokens.next_multiple_of(2 * TOKENS);
        let Some(tuned) = Matrix::load(weight, self.lane(), &self.kernels)?.tuned(
            self.lane(),
            &self.kernels,
            Numerics::Int8,
        )?
        else {
            return refuse("no tuned kernels".into());
        };
        let from = self.gpu.alloc::<f32>(x.len(), what)?;
        self.gpu.upload(x, &from)?;
        let product = MmqProduct {
            device: self,
            blocks: self.gpu.alloc(weight.data.len(), what)?,
            tuned,
            bytes: self.gpu.alloc(padded * cols, what)?,
            scales: self.gpu.alloc(2 * padded * cols / GROUP, what)?,
            own: self.gpu.alloc(padded * row_halves(cols), what)?,
            unscale: self.gpu.alloc(padded, what)?,
            out: self.gpu.alloc(tokens * rows, what)?,
            rows,
            cols,
            tokens,
        };
        self.gpu.upload(&weight.data[..], &product.blocks)?;
        let args = MmqQuantizeArgs {
            x: at(&from, 0),
            q: at(&product.bytes, 0),
            scales: at(&product.scales, 0),
            cols: cols as i32,
            tokens: tokens as i32,
            padded: padded as i32,
            unused: 0,
        };
        let groups = (padded * cols / GROUP).div_ceil(THREADS / 32);
        self.enqueue(self.kernels.get("mmq", "mmq_quantize")?, Shape::new([groups, 1, 1], THREADS), &args)?;
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
        Input { x, unscale, stride: row_halves(self.cols), rows: self.tokens, form, spare: Spare::default() }
    }

    /// Enqueues it; `blocks`: of a multiprocessor at most, or 0 for as many as fit, which more shared memory than needed
    /// sees to. Without effect on the profile's own kernel.
    ///
    /// # Errors
    /// A multiprocessor has no memory for it, or the driver fails.
    pub fn enqueue(&self, variant: MmqVariant, blocks: usize) -> Result<(), DeviceError> {
        let device = self.device;
        let Some((kernel, fixed, needed)) = variant.kernel() else {
            let output = Output { out: at(&self.out, 0), stride: self.rows, finish: Finish::Store };
            return self.tuned.product(device.lane(), self.input(), 0, output);
        };
        let kernel: Kernel = device.kernels.get("mmq", kernel)?;
        let all = device.gpu.info.shared_per_block;
        // More than a share of what a block may have at most is more than a share of what there is.
        let share = if blocks == 0 { 0 } else { (all / (blocks + 1) + 1024).saturating_sub(fixed) };
        let dynamic = needed.max(share);
        if fixed + dynamic > all {
            let what = format!("{} bytes of shared memory for a block, of {all}", fixed + dynamic);
            return Err(DeviceError::Unsupported { tensor: variant.name().into(), what });
        }
        let args = MmqArgs {
            w: at(&self.blocks, 0),
            q: at(&self.bytes, 0),
            scales: at(&self.scales, 0),
            out: at(&self.out, 0),
            rows: self.rows as i32,
            cols: self.cols as i32,
            tokens: self.tokens as i32,
            padded: self.tokens.next_multiple_of(2 * TOKENS) as i32,
        };
        let grid = [self.rows.div_ceil(ROWS), self.tokens.div_ceil(TOKENS), 1];
        device.enqueue(kernel, Shape::new(grid, THREADS).with_shared(dynamic), &args)
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

    /// What the variants but the profile's own multiply: values of the tokens' bytes, `[tokens][cols]`.
    ///
    /// # Errors
    /// The driver fails.
    pub fn quantized(&self) -> Result<Vec<f32>, DeviceError> {
        let padded = self.tokens.next_multiple_of(2 * TOKENS);
        let (mut bytes, mut scales) = (vec![0u8; padded * self.cols], vec![0.0f32; self.scales.len()]);
        self.device.gpu.download(&self.bytes, &mut bytes)?;
        self.device.gpu.download(&self.scales, &mut scales)?;
        let value = |i: usize| {
            let (token, group) = (i / self.cols, i % self.cols / GROUP);
            f32::from(bytes[i] as i8) * scales[2 * (group * padded + token)]
        };
        Ok((0..self.tokens * self.cols).map(value).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Numbers, device, error};

    /// All variants of the experiment have the same bits, and those that they should have; the profile's own its error.
    #[test]
    fn variants_of_the_experiment_have_the_same_bits() {
        let Some(device) = device() else { return };
        for (rows, cols, tokens) in [(128, 256, 64), (200, 1024, 70), (3, 512, 1), (257, 3584, 130)] {
            let mut data = vec![0; GgmlType::Q4_K.bytes_of(rows * cols).expect("whole blocks")];
            quant::random_blocks(GgmlType::Q4_K, rows as u64, 0.02, 0, &mut data).expect("whole blocks");
            let mut values = vec![0.0; rows * cols];
            quant::dequantize(GgmlType::Q4_K, &data, &mut values).expect("whole blocks");
            let weight = Weight { name: "w".into(), ty: GgmlType::Q4_K, rows, cols, data: data.into() };
            let x = Numbers(7).heavy(tokens * cols, 1.0);
            let product = device.mmq_product(&weight, &x).expect("memory");
            let in_double = |x: &[f32]| -> Vec<f64> {
                let dot = |(token, row): (usize, usize)| -> f64 {
                    let pairs = values[row * cols..][..cols].iter().zip(&x[token * cols..]);
                    pairs.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
                };
                (0..tokens * rows).map(|i| dot((i / rows, i % rows))).collect()
            };
            let (truth, same) = (in_double(&x), in_double(&product.quantized().expect("a copy")));
            let wide = product.result(MmqVariant::Wide).expect("a launch");
            let (from_truth, from_same) = (error(&wide, &truth), error(&wide, &same));
            assert!(
                from_truth < 1.2e-2 && from_same < 5e-6,
                "{rows}×{cols}: {from_truth:.1e}, {from_same:.1e}"
            );
            for variant in [MmqVariant::WideUnrolled, MmqVariant::Nb, MmqVariant::NbUnrolled] {
                let found = product.result(variant).expect("a launch");
                let differing = found.iter().zip(&wide).filter(|(f, w)| f.to_bits() != w.to_bits()).count();
                assert_eq!(differing, 0, "{rows}×{cols}, {tokens} tokens: {}", variant.name());
            }
            let own = product.result(MmqVariant::Nb2).expect("a launch");
            assert!(error(&own, &truth) < 1.2e-2, "{rows}×{cols}, {tokens} tokens: nb2");
        }
    }
}
