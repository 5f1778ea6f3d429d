//! A weight matrix on the CPU: packed into panels, or left in the file and packed panel by panel when used.

mod acts;

pub(crate) use acts::{ActBuffers, ActKind};

use crate::Numerics;
use crate::arch::{self, Kernels};
use crate::format::field::{pack_panel, unpack_row};
use crate::format::{Panel, with_formats};
use crate::kernel::matmul::{Acts, MatMul, MatMulFn};
use crate::mem::Buffer;
use crate::pool::{Cut, Pool, Worker};
use crate::simd::LANES;
use minfer_gguf::{GgmlType, SharedBytes, quant};
use minfer_ops::{DeviceError, Weight};
use std::ops::Range;
use std::sync::Arc;

/// A packed format, as data.
pub(crate) struct Format {
    pub(crate) ty: GgmlType,
    pub(crate) acts: ActKind,
    blocks: usize,
    group_bytes: usize,
    pack: fn(&[u8], usize, &mut [u8]),
    unpack: fn(&[u8], usize, &mut [u8]),
}

const fn describe<P: Panel>(acts: ActKind) -> Format {
    Format {
        ty: P::TYPE,
        acts,
        blocks: P::BLOCKS,
        group_bytes: P::GROUP_BYTES,
        pack: pack_panel::<P>,
        unpack: unpack_row::<P>,
    }
}

macro_rules! format_table {
    (block32: [$($b:ty),*] super256: [$($s:ty),*] float: [$($f:ty),*]) => {
        &[
            $(describe::<$b>(ActKind::Q8x32),)*
            $(describe::<$s>(ActKind::Q8x256),)*
            $(describe::<$f>(ActKind::F32),)*
        ]
    };
}

/// Every packed format, in the order of [`Kernels::matmul`].
pub(crate) static FORMATS: &[Format] = with_formats!(format_table);

/// Index in [`FORMATS`] of the format whose kernel multiplies dequantized panels.
fn f32_format() -> usize {
    FORMATS.iter().position(|f| f.ty == GgmlType::F32).unwrap_or(0)
}

impl Format {
    /// Bytes of a panel of `cols` columns.
    pub(crate) fn panel_bytes(&self, cols: usize) -> usize {
        (cols / self.ty.block_len()).div_ceil(self.blocks) * self.group_bytes
    }

    /// Packs up to sixteen rows into a zeroed panel.
    pub(crate) fn pack_panel(&self, rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
        (self.pack)(rows, row_bytes, panel);
    }

    /// The file's bytes of one row of a panel.
    pub(crate) fn unpack_row(&self, panel: &[u8], row: usize, out: &mut [u8]) {
        (self.unpack)(panel, row, out);
    }
}

/// Columns that are dequantized at a time: whole blocks of every type.
const DEQUANTIZED: usize = 256;

/// Whether a matrix can be of this type: integers are tables of something else.
fn is_weight(ty: GgmlType) -> bool {
    !matches!(ty, GgmlType::I8 | GgmlType::I16 | GgmlType::I32 | GgmlType::I64)
}

/// Where the weights are.
enum Data {
    /// Panels of [`FORMATS`]`[format]`.
    Packed { panels: Buffer<u8>, format: usize },
    /// The file's rows; panels of the format are made on the fly (`None`: dequantized to f32).
    Rows { bytes: SharedBytes, format: Option<usize> },
}

/// A loaded matrix of `rows` × `cols`.
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    ty: GgmlType,
    row_bytes: usize,
    data: Data,
    kernel: MatMulFn,
    /// The faster form for many tokens, if the profile has one, and the tokens from which it is used.
    wide: Option<MatMulFn>,
    wide_from: usize,
    /// [`MatMul::ahead`].
    ahead: usize,
    interleave: unsafe fn(*const f32, usize, usize, *mut f32),
}

/// A worker's room for one panel made on the fly, and for sixteen rows of [`DEQUANTIZED`] columns.
#[derive(Default)]
pub(crate) struct Scratch {
    panel: Vec<u8>,
    values: Vec<f32>,
}

impl Matrix {
    /// Loads a matrix, packed into panels if `pack` and the type has a format.
    ///
    /// # Errors
    /// No memory, bytes that are not that many values, or integers.
    pub(crate) fn load(
        weight: Weight,
        kernels: &Kernels,
        pack: bool,
        pool: &mut Pool,
    ) -> Result<Matrix, DeviceError> {
        let format = FORMATS.iter().position(|f| f.ty == weight.ty);
        let unsupported = |what: String| DeviceError::Unsupported { tensor: weight.name.to_string(), what };
        let row_bytes = weight.ty.bytes_of(weight.cols).unwrap_or(0);
        let whole = weight.rows.checked_mul(row_bytes) == Some(weight.data.len());
        if weight.rows == 0 || row_bytes == 0 || !whole {
            let (rows, cols) = (weight.rows, weight.cols);
            return Err(unsupported(format!(
                "{rows} × {cols} values of {} in {} bytes",
                weight.ty,
                weight.data.len()
            )));
        }
        if !is_weight(weight.ty) {
            return Err(unsupported(format!("{} is no type of weights", weight.ty)));
        }
        let kernel = kernels.matmul[format.unwrap_or_else(f32_format)];
        let (rows, cols, ty) = (weight.rows, weight.cols, weight.ty);
        let data = match format {
            Some(format) if pack => {
                let panels = pack_all(&weight, row_bytes, &FORMATS[format], pool)?;
                // The pages of the file that were read for it are memory of this process, too.
                weight.data.forget();
                Data::Packed { panels, format }
            }
            _ => Data::Rows { bytes: weight.data, format },
        };
        let interleave = kernels.interleave;
        let wide_from = usize::MAX;
        let ahead = kernels.ahead;
        Ok(Matrix { rows, cols, ty, row_bytes, data, kernel, wide: None, wide_from, ahead, interleave })
    }

    /// With the faster form of the type, if the level has one.
    pub(crate) fn fast(mut self, kernels: &Kernels) -> Matrix {
        if let (Some(wide), Some(format)) = (kernels.wide, self.format()) {
            (self.wide, self.wide_from) = (wide.matmul[format], wide.from);
        }
        self
    }

    /// The form of input that the kernel for so many tokens reads.
    pub(crate) fn acts(&self, tokens: usize) -> ActKind {
        match self.format() {
            _ if self.wide(tokens).is_some() => ActKind::Q16x256,
            Some(format) => FORMATS[format].acts,
            None => ActKind::F32,
        }
    }

    /// The faster form, if it is used for so many tokens.
    fn wide(&self, tokens: usize) -> Option<MatMulFn> {
        self.wide.filter(|_| tokens >= self.wide_from)
    }

    fn format(&self) -> Option<usize> {
        match self.data {
            Data::Packed { format, .. } => Some(format),
            Data::Rows { format, .. } => format,
        }
    }

    /// Bytes of the weights as they lie in memory.
    pub(crate) fn bytes(&self) -> usize {
        match &self.data {
            Data::Packed { panels, .. } => panels.as_slice().len(),
            Data::Rows { bytes, .. } => bytes.len(),
        }
    }

    /// Number of panels.
    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// `out[t][16·p + r] = W · a[t]` for the panels in `range`; rows beyond the matrix are written as zeros
    /// (NaN for a token whose input is not finite).
    ///
    /// # Safety
    /// `acts` holds `tokens` inputs of `cols` values in the form of [`Matrix::acts`], and `out` has `tokens` rows of
    /// `stride ≥ 16 · panels` floats of which columns `16 · range` belong to the caller.
    pub(crate) unsafe fn multiply(
        &self,
        range: Range<usize>,
        acts: Acts,
        tokens: usize,
        out: Out,
        scratch: &mut Scratch,
    ) {
        let job = |panels: *const u8, count: usize, panel_bytes: usize, first: usize| MatMul {
            panels,
            count,
            panel_bytes,
            k: self.cols,
            acts,
            tokens,
            // SAFETY: column 16 · first is inside the row.
            out: unsafe { out.ptr.add(first * LANES) },
            out_stride: out.stride,
            ahead: self.ahead,
        };
        let kernel = self.wide(tokens).unwrap_or(self.kernel);
        match &self.data {
            Data::Packed { panels, format } => {
                let bytes = FORMATS[*format].panel_bytes(self.cols);
                let start = &panels.as_slice()[range.start * bytes..range.end * bytes];
                // SAFETY: the panels are there; the rest is the caller's promise. The kernel is of the device's ISA.
                unsafe { kernel(&job(start.as_ptr(), range.len(), bytes, range.start)) };
            }
            Data::Rows { bytes, format } => {
                for p in range {
                    let rows = p * LANES..((p + 1) * LANES).min(self.rows);
                    let rows = &bytes[rows.start * self.row_bytes..rows.end * self.row_bytes];
                    match format {
                        Some(format) => {
                            let format = &FORMATS[*format];
                            scratch.panel.clear();
                            scratch.panel.resize(format.panel_bytes(self.cols), 0);
                            format.pack_panel(rows, self.row_bytes, &mut scratch.panel);
                        }
                        None => self.dequantize_panel(rows, scratch),
                    }
                    // SAFETY: as above, with one panel.
                    unsafe { kernel(&job(scratch.panel.as_ptr(), 1, 0, p)) };
                }
            }
        }
    }

    /// A panel of floats, `[cols][16]`, in the scratch; absent rows are zero. [`DEQUANTIZED`] columns at a time, whose
    /// rows and panel stay in the nearest cache.
    fn dequantize_panel(&self, rows: &[u8], scratch: &mut Scratch) {
        let Scratch { panel, values } = scratch;
        panel.resize(4 * LANES * self.cols, 0);
        values.clear();
        values.resize(LANES * DEQUANTIZED, 0.0);
        for start in (0..self.cols).step_by(DEQUANTIZED) {
            let len = DEQUANTIZED.min(self.cols - start);
            let bytes = self.bytes_before(start)..self.bytes_before(start + len);
            for (row, out) in rows.chunks_exact(self.row_bytes).zip(values.chunks_exact_mut(DEQUANTIZED)) {
                self.dequantize(&row[bytes.clone()], &mut out[..len]);
            }
            let panel = &mut panel[4 * LANES * start..4 * LANES * (start + len)];
            // SAFETY: sixteen rows of DEQUANTIZED values, of which `len` go to the panel's part of that size; the
            // function is of the device's ISA and takes any alignment.
            unsafe { (self.interleave)(values.as_ptr(), DEQUANTIZED, len, panel.as_mut_ptr().cast()) };
        }
    }

    /// Bytes of a row before column `k`, where a block starts.
    fn bytes_before(&self, k: usize) -> usize {
        k / self.ty.block_len() * self.ty.block_bytes()
    }

    fn dequantize(&self, bytes: &[u8], out: &mut [f32]) {
        // Sizes and type were checked at load.
        let result = quant::dequantize(self.ty, bytes, out);
        debug_assert!(result.is_ok(), "{result:?}");
    }

    /// Row `row`, dequantized, into the first `cols` values of `out`.
    pub(crate) fn row(&self, row: usize, out: &mut [f32], scratch: &mut Scratch) {
        let out = &mut out[..self.cols];
        match &self.data {
            Data::Packed { panels, format } => {
                let format = &FORMATS[*format];
                let bytes = format.panel_bytes(self.cols);
                let panel = &panels.as_slice()[row / LANES * bytes..][..bytes];
                scratch.panel.resize(self.row_bytes, 0);
                format.unpack_row(panel, row % LANES, &mut scratch.panel[..self.row_bytes]);
                self.dequantize(&scratch.panel[..self.row_bytes], out);
            }
            Data::Rows { bytes, .. } => {
                self.dequantize(&bytes[row * self.row_bytes..][..self.row_bytes], out)
            }
        }
    }
}

/// Where a product goes: the first row, and the floats between rows.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub(crate) ptr: *mut f32,
    pub(crate) stride: usize,
}

/// Packs all rows, panels shared among the workers (each page is first touched by one that packs into it).
fn pack_all(
    weight: &Weight,
    row_bytes: usize,
    format: &Format,
    pool: &mut Pool,
) -> Result<Buffer<u8>, DeviceError> {
    let count = weight.rows.div_ceil(LANES);
    let bytes = format.panel_bytes(weight.cols);
    let buffer = Buffer::<u8>::zeroed(count * bytes, "packed weights")?;
    let data: &[u8] = &weight.data;
    let target = Arc::new(Shared(buffer.ptr()));
    pool.run(|w: &Worker<'_>| {
        w.share_each(0, count, Cut::Long, |p| {
            let rows = p * LANES..((p + 1) * LANES).min(weight.rows);
            // SAFETY: panel `p` lies inside the buffer and is this worker's alone.
            let panel = unsafe { std::slice::from_raw_parts_mut(target.0.add(p * bytes), bytes) };
            format.pack_panel(&data[rows.start * row_bytes..rows.end * row_bytes], row_bytes, panel);
        });
    });
    Ok(buffer)
}

/// A pointer that workers share.
struct Shared(*mut u8);
// SAFETY: its users write disjoint panels.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A kernel that exists: an op for a weight type on an ISA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRow {
    /// The stage op's inner operation.
    pub op: &'static str,
    /// Weight type.
    pub ty: GgmlType,
    /// Level it is built for.
    pub isa: crate::Isa,
    /// Form of the activations.
    pub activations: &'static str,
}

impl KernelRow {
    /// The kernel's id, as it stands in traces and benchmark rows.
    pub fn id(&self) -> String {
        format!("{}_{}_{}", self.op, self.ty.name().to_lowercase(), self.isa)
    }
}

/// Every kernel of a level in a profile: tuned types by their format, all others dequantized. Where the profile has a faster form
/// for many tokens, it is that one.
pub fn kernels(isa: crate::Isa, numerics: Numerics) -> impl Iterator<Item = KernelRow> {
    let wide = arch::kernels(isa).wide.filter(|_| numerics == Numerics::Fast);
    GgmlType::ALL.iter().copied().filter(|ty| is_weight(*ty)).map(move |ty| {
        let format = FORMATS.iter().position(|f| f.ty == ty);
        let (op, activations) = match format.map(|f| FORMATS[f].acts) {
            _ if format.is_some_and(|f| wide.is_some_and(|wide| wide.matmul[f].is_some())) => {
                ("matmul_wide", "int16/256")
            }
            Some(ActKind::Q8x32) => ("matmul", "int8/32"),
            Some(ActKind::Q8x256) => ("matmul", "int8/256"),
            Some(ActKind::Q16x256 | ActKind::F32) => ("matmul", "f32"),
            None => ("matmul_dequant", "f32"),
        };
        KernelRow { op, ty, isa, activations }
    })
}

#[cfg(test)]
mod tests;
