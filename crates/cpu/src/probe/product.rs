//! One matrix product, ready to be run again and again: what kernel benchmarks time.

use crate::Numerics;
use crate::arch::{self, Kernels};
use crate::detect::Isa;
use crate::kernel::amx;
use crate::matrix::{ActBuffers, ActKind, KernelRow, Matrix, Out, Scratch, kernels};
use crate::mem::Buffer;
use crate::pool::{Cut, Pool};
use crate::simd::LANES;
use minfer_gguf::{GgmlType, SharedBytes, quant};
use minfer_ops::{DeviceError, Weight};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What to multiply.
#[derive(Clone, Copy, Debug)]
pub struct ProductSpec {
    /// Instruction set.
    pub isa: Isa,
    /// Numerics profile; a type without a faster form has the exact one.
    pub numerics: Numerics,
    /// Type of the weights.
    pub ty: GgmlType,
    /// Rows of the matrix (outputs).
    pub rows: usize,
    /// Columns of the matrix (inputs).
    pub cols: usize,
    /// Tokens.
    pub tokens: usize,
}

/// A random matrix, packed, and random input in the form that its kernel reads.
pub struct Product {
    spec: ProductSpec,
    kernels: &'static Kernels,
    matrix: Matrix,
    x: Buffer<f32>,
    acts: ActBuffers,
    out: Buffer<f32>,
    scratch: Vec<Mutex<Scratch>>,
}

impl Product {
    /// Makes and packs the matrix.
    ///
    /// # Errors
    /// No memory, a level that this CPU lacks, or a shape that the type cannot have.
    pub fn new(spec: ProductSpec, pool: &mut Pool) -> Result<Product, DeviceError> {
        let ProductSpec { isa, numerics, ty, rows, cols, tokens } = spec;
        if !isa.available() {
            return Err(DeviceError::Fault(format!("this CPU has no {isa}")));
        }
        let shape = || DeviceError::Fault(format!("no {rows} × {cols} matrix of {ty} for {tokens} tokens"));
        let bytes = ty.bytes_of(cols).and_then(|row| row.checked_mul(rows)).ok_or_else(shape)?;
        if bytes == 0 || tokens == 0 || cols % 32 != 0 {
            return Err(shape());
        }
        let mut data = vec![0; bytes];
        quant::random_blocks(ty, 1, 0.05, 0, &mut data).map_err(|e| DeviceError::Fault(e.to_string()))?;
        let weight = Weight { name: "probe".into(), ty, rows, cols, data: SharedBytes::from(data) };
        let kernels = arch::kernels(isa);
        let mut matrix = Matrix::load(weight, kernels, true, pool)?;
        if numerics == Numerics::Fast {
            matrix = matrix.fast(kernels);
        }
        let mut x = Buffer::<f32>::zeroed(tokens * cols, "probe")?;
        for (i, v) in x.as_mut_slice().iter_mut().enumerate() {
            // A low-discrepancy sequence in (−1, 1).
            *v = 2.0 * (i as f32 * 0.618_034).fract() - 1.0;
        }
        let product = Product {
            spec,
            kernels,
            x,
            acts: ActBuffers::new(2 * tokens.next_multiple_of(amx::BLOCK) * cols.next_multiple_of(256))?,
            out: Buffer::zeroed(tokens * matrix.panels() * LANES, "probe")?,
            scratch: (0..pool.threads()).map(|_| Mutex::default()).collect(),
            matrix,
        };
        product.quantize();
        Ok(product)
    }

    fn quantize(&self) {
        let ProductSpec { cols, tokens, .. } = self.spec;
        let kind = self.matrix.acts(tokens);
        let quantize = match kind {
            ActKind::Q8x32 => self.kernels.quantize32,
            ActKind::Q8x256 => self.kernels.quantize256,
            ActKind::Q16x256 => match self.kernels.wide {
                Some(wide) => wide.quantize,
                None => return,
            },
            ActKind::F32 => return,
        };
        for t in 0..tokens {
            // SAFETY: row t of the input and of the buffers lies inside them; the level is available.
            unsafe {
                let x = self.x.ptr().add(t * cols);
                quantize(&self.acts.row(kind, cols, t, self.kernels.layout(tokens), x));
            }
        }
    }

    /// The kernel that runs.
    pub fn kernel(&self) -> Option<KernelRow> {
        kernels(self.spec.isa, self.spec.numerics).find(|row| row.ty == self.spec.ty)
    }

    /// Bytes of the weights as they lie in memory: what one pass must read.
    pub fn weight_bytes(&self) -> usize {
        self.matrix.bytes()
    }

    /// Multiplications and additions of one pass.
    pub fn operations(&self) -> f64 {
        2.0 * self.spec.rows as f64 * self.spec.cols as f64 * self.spec.tokens as f64
    }

    /// Runs the product once on all workers of the pool that it was made with.
    pub fn run(&mut self, pool: &mut Pool) -> Duration {
        let ProductSpec { cols, tokens, .. } = self.spec;
        let layout = self.kernels.layout(tokens);
        let acts = self.acts.acts(self.matrix.acts(tokens), cols, 0, layout, self.x.ptr(), cols);
        let panels = self.matrix.panels();
        let (acts, out) = (Shared(acts), Shared(Out { ptr: self.out.ptr(), stride: panels * LANES }));
        let (matrix, scratch) = (&self.matrix, &self.scratch);
        let start = Instant::now();
        pool.run(|w| {
            let (acts, out) = (&acts, &out);
            let mut scratch = scratch[w.id].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            w.share(0, panels, Cut::Long, |range| {
                // SAFETY: the input has the matrix's form and size; the range's columns are this worker's alone.
                unsafe { matrix.multiply(range, acts.0, tokens, out.0, &mut scratch) };
            });
        });
        start.elapsed()
    }
}

/// Pointers into the buffers of a [`Product`].
struct Shared<T>(T);
// SAFETY: inputs are only read during a run, and outputs are written in disjoint columns.
unsafe impl<T> Sync for Shared<T> {}
