//! Quantized activations: their forms, and where each row of a batch is written and read.

use crate::kernel::matmul::{Acts, Layout, RowPlace};
use crate::kernel::vector::{QuantizeJob, SUM_WORDS};
use crate::mem::Buffer;
use minfer_ops::DeviceError;

/// The form in which a matrix wants its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActKind {
    /// int8 per 32 values.
    Q8x32,
    /// int8 per 256 values.
    Q8x256,
    /// int16 per 256 values: a plane of high bytes and then one of low ones.
    Q16x256,
    /// The floats themselves.
    F32,
}

/// Quantized activations of some tokens.
pub(crate) struct ActBuffers {
    q: Buffer<i8>,
    d: Buffer<f32>,
    ds: Buffer<f32>,
    sum: Buffer<i32>,
}

impl ActBuffers {
    /// Room for `values` values in all: [`Layout::bytes`] of the widest input.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(values: usize) -> Result<ActBuffers, DeviceError> {
        let scales = values.div_ceil(16);
        Ok(ActBuffers {
            q: Buffer::zeroed(values, "activations")?,
            d: Buffer::zeroed(scales, "activations")?,
            ds: Buffer::zeroed(scales, "activations")?,
            sum: Buffer::zeroed(scales, "activations")?,
        })
    }

    /// Bytes held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.q.len() + 4 * (self.d.len() + self.ds.len() + self.sum.len())
    }

    /// Where row `t` of inputs of width `k` is written in the form of `kind`, from the values `x`.
    pub(crate) fn row(
        &self,
        kind: ActKind,
        k: usize,
        t: usize,
        layout: Layout,
        x: *const f32,
    ) -> QuantizeJob {
        let (scales, words) = match kind {
            ActKind::Q8x256 | ActKind::Q16x256 => (k.div_ceil(256), SUM_WORDS),
            ActKind::Q8x32 | ActKind::F32 => (k / 32, 1),
        };
        let plane = layout.bytes(t + 1, k);
        assert!(plane * if kind == ActKind::Q16x256 { 2 } else { 1 } <= self.q.len());
        let RowPlace { start, step, group } = layout.row(t, k);
        let (scale, scale_step) = layout.scales(t, scales);
        // SAFETY: row `t` of width k lies inside `q`, and the others hold a value per 16 of `q`.
        unsafe {
            QuantizeJob {
                x,
                k,
                q: self.q.ptr().add(start),
                step,
                group,
                plane,
                scale_step,
                d: self.d.ptr().add(scale),
                ds: self.ds.ptr().add(scale),
                sum: self.sum.ptr().add(scale * words),
                // The other half of it.
                sum64: self.sum.ptr().add(self.sum.len() / 2 + scale * (words / 2)),
            }
        }
    }

    /// Rows from `t` on as a kernel reads them; `x` is the first float row, and `x_stride` the floats between rows.
    pub(crate) fn acts(
        &self,
        kind: ActKind,
        k: usize,
        t: usize,
        layout: Layout,
        x: *const f32,
        x_stride: usize,
    ) -> Acts {
        let row = self.row(kind, k, t, layout, x);
        Acts { q: row.q, layout, d: row.d, ds: row.ds, sum: row.sum, sum64: row.sum64, x, x_stride }
    }
}
