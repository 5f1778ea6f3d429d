//! Products on the kernels of `csrc/lab/mmq.cu`: where an experiment asks for them, and for the laboratory.

use super::{Input, Output};
use crate::args::{Address, MmqArgs, MmqQuantizeArgs, at};
use crate::driver::{Buffer, Gpu, Kernel, Shape};
use crate::kernels::{Kernels, name_of};
use crate::prefill::Prefill;
use minfer_ops::{DeviceError, GgmlType};

/// Rows and tokens of a block, and values of a group.
const ROWS: usize = 128;
const TOKENS: usize = 64;
pub(crate) const GROUP: usize = 32;
const THREADS: usize = 256;

/// Bytes of shared memory: of a block that unpacks nibbles into it, and the most that a kernel has that keeps them packed.
const WIDE: usize = 61_440;
const NB: usize = 46_080;

/// A kernel, and its bytes of shared memory beyond those that it has itself.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    kernel: Kernel,
    fixed: usize,
    dynamic: usize,
}

/// Bytes of tokens, and behind them scales with sums, where kernels take them.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    q: Address,
    scales: Address,
    cols: usize,
    tokens: usize,
}

/// A product: `[rows][cols]` in the file's layout at `w` with such an input.
pub(crate) struct Product {
    pub(crate) w: Address,
    pub(crate) rows: usize,
    pub(crate) input: Groups,
    pub(crate) bias: Address,
    pub(crate) output: Output,
}

impl Launch {
    /// The kernel `form` (`nb_unrolled`) for a type.
    pub(crate) fn find(
        gpu: &Gpu,
        kernels: &Kernels,
        form: &str,
        ty: GgmlType,
    ) -> Result<Launch, DeviceError> {
        let kernel = kernels.get("mmq", &format!("mmq_{form}_{}", name_of(ty).unwrap_or_default()))?;
        let (fixed, dynamic) = if form.starts_with("wide") { (0, WIDE) } else { (NB, 0) };
        gpu.allow_shared(kernel, fixed)?;
        Ok(Launch { kernel, fixed, dynamic })
    }

    /// The launch of a product; `blocks`: of a multiprocessor at most, or 0 for as many as fit, which more shared memory than
    /// needed sees to.
    pub(crate) fn of(
        &self,
        gpu: &Gpu,
        product: &Product,
        blocks: usize,
    ) -> Result<(Kernel, Shape, MmqArgs), DeviceError> {
        let all = gpu.info.shared_per_block;
        // More than a share of what a block may have at most is more than a share of what there is.
        let share = if blocks == 0 { 0 } else { (all / (blocks + 1) + 1024).saturating_sub(self.fixed) };
        let dynamic = self.dynamic.max(share);
        if self.fixed + dynamic > all {
            let what = format!("{} bytes of shared memory for a block, of {all}", self.fixed + dynamic);
            return Err(DeviceError::Unsupported { tensor: "an experiment".into(), what });
        }
        let Product { w, rows, input, bias, output } = *product;
        let (finish, factor, soft_cap) = output.finish.args();
        let args = MmqArgs {
            w,
            q: input.q,
            scales: input.scales,
            bias,
            out: output.out,
            rows: rows as i32,
            cols: input.cols as i32,
            tokens: input.tokens as i32,
            padded: input.padded() as i32,
            out_stride: output.stride as i32,
            finish,
            factor,
            soft_cap,
        };
        let grid = [rows.div_ceil(ROWS), input.tokens.div_ceil(TOKENS), 1];
        Ok((self.kernel, Shape::new(grid, THREADS).with_shared(dynamic), args))
    }
}

impl Groups {
    /// What lies at `x`.
    pub(crate) fn at(x: Address, cols: usize, tokens: usize) -> Groups {
        let groups = Groups { q: x, scales: x, cols, tokens };
        Groups { scales: x + (groups.padded() * cols) as Address, ..groups }
    }

    /// Bytes of it.
    pub(crate) fn bytes(cols: usize, tokens: usize) -> usize {
        tokens.next_multiple_of(TOKENS) * (cols + cols / GROUP * 8)
    }

    /// Tokens of whole tiles.
    pub(crate) fn padded(self) -> usize {
        self.tokens.next_multiple_of(TOKENS)
    }

    /// Where its scales begin, in bytes from its own.
    pub(crate) fn scales_at(self) -> usize {
        (self.scales - self.q) as usize
    }

    /// The launch that fills it with values at `from`, `[tokens][cols]`; `together`: 256 of them have one scale. There must be
    /// room for [`Self::bytes`].
    pub(crate) fn fill(
        self,
        kernels: &Kernels,
        from: Address,
        together: bool,
    ) -> Result<(Kernel, Shape, MmqQuantizeArgs), DeviceError> {
        let args = MmqQuantizeArgs {
            x: from,
            q: self.q,
            scales: self.scales,
            cols: self.cols as i32,
            tokens: self.tokens as i32,
            padded: self.padded() as i32,
            unused: 0,
        };
        let kernel = kernels.get("mmq", if together { "mmq_quantize_together" } else { "mmq_quantize" })?;
        let blocks = (self.padded() * self.cols / GROUP).div_ceil(THREADS / 32);
        Ok((kernel, Shape::new([blocks, 1, 1], THREADS), args))
    }
}

/// What a matrix has for an experiment: its rows as they lie in the file, and the kernel for them.
pub(super) struct Experiment {
    blocks: Buffer<u8>,
    launch: Launch,
}

impl Experiment {
    /// What `prefill` takes for a matrix of this type; `None` for the profile's own kernel.
    pub(super) fn of(
        gpu: &Gpu,
        kernels: &Kernels,
        prefill: Prefill,
        ty: GgmlType,
        blocks: Buffer<u8>,
    ) -> Result<Option<Experiment>, DeviceError> {
        if !prefill.is_experiment() {
            return Ok(None);
        }
        let launch = Launch::find(gpu, kernels, &prefill.name().replace('-', "_"), ty)?;
        Ok(Some(Experiment { blocks, launch }))
    }

    /// The launch of the product of a matrix of `rows` and `cols`.
    pub(super) fn product(
        &self,
        gpu: &Gpu,
        [rows, cols]: [usize; 2],
        input: Input,
        bias: Address,
        output: Output,
    ) -> Result<(Kernel, Shape, MmqArgs), DeviceError> {
        let input = Groups::at(input.x, cols, input.rows);
        self.launch.of(gpu, &Product { w: at(&self.blocks, 0), rows, input, bias, output }, 0)
    }
}
