//! What the laboratory asks of a GPU: where it has the values of its fragments, and what it can do at most.

mod mmq;

use super::CudaDevice;
use crate::args::{LayoutArgs, RateArgs, at};
use crate::driver::Shape;
use crate::kernels::{QT16_TYPES, unit_type};
use crate::matrix::{Matrix, has_wgmma};
use crate::numerics::Numerics;
use crate::qt16;
use minfer_ops::{DeviceError, GgmlType, Weight};
use std::time::Instant;

pub use mmq::{MmqProduct, MmqVariant};

/// What is looked at: a kernel of `csrc/lab/layout.cu`, which says what its results are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Registers of `ldmatrix`, plain and transposed.
    Ldmatrix,
    /// `mma.m16n8k16` of halves: places of A × places of B.
    MmaHalves,
    /// `mma.m16n8k32` of bytes: places of A × places of B.
    MmaBytes,
    /// `wgmma.m64n8k16` with A in registers: places of A × halves of B in shared memory, along K.
    Wgmma,
    /// `wgmma.m64n64k16` with A in registers: places of A × halves of B in shared memory, across K.
    WgmmaAcross,
    /// The formulas of the kernels: `fragment_place`, and rows and columns of the nibbles of QT16.
    Formulas,
}

impl Observed {
    /// Kernel, blocks, threads of a block, results of a block.
    fn shape(self) -> (&'static str, usize, usize, usize) {
        match self {
            Observed::Ldmatrix => ("layout_ldmatrix", 1, 32, 256),
            Observed::MmaHalves => ("layout_mma_halves", 256, 32, 128),
            Observed::MmaBytes => ("layout_mma_bytes", 512, 32, 256),
            Observed::Wgmma => ("layout_wgmma", 1024, 128, 512),
            Observed::WgmmaAcross => ("layout_wgmma_across", 1024, 128, 1024),
            Observed::Formulas => ("layout_formulas", 1, 256, 512),
        }
    }
}

/// What came of repacking every single bit of a unit of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repacked {
    /// Units, one for each bit of the file's blocks, and one of zeros.
    pub units: usize,
    /// Bytes that read back differ from the file's.
    pub differing: usize,
    /// Units that have more or fewer bits set than the file's blocks, once what a unit of zeros has is taken away.
    pub not_one_bit: usize,
}

/// A rate that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Of what.
    pub name: &'static str,
    /// How much of it.
    pub value: f64,
    /// In which unit.
    pub unit: &'static str,
}

/// A kernel of `csrc/lab/rates.cu`: its blocks for each multiprocessor, turns, and what a block does in a turn.
struct Work {
    name: &'static str,
    kernel: &'static str,
    blocks: usize,
    turns: usize,
    of_block: f64,
    unit: &'static str,
}

const WORKS: [Work; 5] = [
    Work {
        name: "mma.sync m16n8k16, halves, sums in single precision",
        kernel: "rate_mma_halves",
        blocks: 2,
        turns: 8000,
        of_block: 8.0 * 16.0 * (2 * 16 * 8 * 16) as f64,
        unit: "TFLOP/s",
    },
    Work {
        name: "mma.sync m16n8k32, bytes",
        kernel: "rate_mma_bytes",
        blocks: 2,
        turns: 8000,
        of_block: 8.0 * 16.0 * (2 * 16 * 8 * 32) as f64,
        unit: "TOP/s",
    },
    Work {
        name: "wgmma m64n128k16, halves, A in registers",
        kernel: "rate_wgmma",
        blocks: 1,
        turns: 2000,
        of_block: 2.0 * 16.0 * (2 * 64 * 128 * 16) as f64,
        unit: "TFLOP/s",
    },
    Work {
        name: "nibbles to bytes by shift and mask, order by parity",
        kernel: "rate_nibbles_shift",
        blocks: 2,
        turns: 20000,
        of_block: 256.0 * 8.0 * 8.0,
        unit: "T values/s",
    },
    Work {
        name: "nibbles to bytes by shift, mask and prmt, order of the file",
        kernel: "rate_nibbles_prmt",
        blocks: 2,
        turns: 20000,
        of_block: 256.0 * 8.0 * 8.0,
        unit: "T values/s",
    },
];

/// Kernels that do nothing, one after the other.
const LAUNCHES: usize = 1000;

impl CudaDevice {
    /// The kernel's results, block after block; `None` where the GPU has no such instruction.
    ///
    /// # Errors
    /// No memory, or the driver fails.
    pub fn observe(&self, what: Observed) -> Result<Option<Vec<i32>>, DeviceError> {
        let wgmma = matches!(what, Observed::Wgmma | Observed::WgmmaAcross);
        if wgmma && !has_wgmma(&self.gpu.info) {
            return Ok(None);
        }
        self.gpu.make_current()?;
        let (name, blocks, threads, results) = what.shape();
        let mut values = vec![0i32; blocks * results];
        let out = self.gpu.alloc::<i32>(values.len(), "the laboratory")?;
        let kernel = self.kernels.get("layout", name)?;
        self.enqueue(kernel, Shape::new([blocks, 1, 1], threads), &LayoutArgs { out: at(&out, 0) })?;
        self.gpu.download(&out, &mut values)?;
        Ok(Some(values))
    }

    /// Repacks, for every bit of a unit's blocks in the file, a unit with that bit alone, and reads it back. As packing
    /// only moves bits, or inverts them, that is all that it can do.
    ///
    /// # Errors
    /// No memory, or the driver fails.
    pub fn repack_every_bit(&self, ty: GgmlType) -> Result<Option<Repacked>, DeviceError> {
        // BF16 becomes halves: that is no packing.
        let tuned = QT16_TYPES.iter().find(|(known, _)| *known == ty && unit_type(ty) == ty);
        let Some((_, unit_bytes)) = tuned else { return Ok(None) };
        self.gpu.make_current()?;
        let (rows, cols) = (qt16::ROWS, qt16::COLS);
        let of_unit = ty.bytes_of(rows * cols).unwrap_or_default();
        let units = 8 * of_unit + 1;
        let mut file = vec![0u8; units * of_unit];
        for (bit, unit) in file.chunks_exact_mut(of_unit).take(8 * of_unit).enumerate() {
            unit[bit / 8] = 1 << (bit % 8);
        }
        let weight = Weight { name: ty.name().into(), ty, rows: units * rows, cols, data: file.into() };
        let matrix = Matrix::load(&weight, self.lane(), &self.kernels)?;
        let Some(tuned) = matrix.tuned(self.lane(), &self.kernels, Numerics::F16)? else { return Ok(None) };
        let mut packed = vec![0u8; tuned.bytes().len()];
        self.gpu.download(tuned.bytes(), &mut packed)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = units.div_ceil(threads);
        let zeros = &packed[(units - 1) * unit_bytes..];
        let (differing, not_one_bit) = std::thread::scope(|scope| {
            let parts = packed.chunks(share * unit_bytes).zip(weight.data.chunks(share * of_unit));
            let check = |(packed, file): (&[u8], &[u8])| {
                let back = qt16::unpack(ty, packed, packed.len() / unit_bytes * rows, cols, *unit_bytes);
                let differing = back.iter().zip(file).filter(|(a, b)| a != b).count();
                let bits =
                    |unit: &[u8]| unit.iter().zip(zeros).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
                let ones = |unit: &[u8]| unit.iter().map(|b| b.count_ones()).sum::<u32>();
                let units = packed.chunks(*unit_bytes).zip(file.chunks(of_unit));
                (differing, units.filter(|(unit, file)| bits(unit) != ones(file)).count())
            };
            let workers: Vec<_> = parts.map(|part| scope.spawn(move || check(part))).collect();
            let results = workers.into_iter().map(|w| w.join().unwrap_or((usize::MAX / 2, 0)));
            results.fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
        });
        Ok(Some(Repacked { units, differing, not_one_bit }))
    }

    /// The GPU's own ceilings, each the best of several runs: memory, instructions, launches.
    ///
    /// # Errors
    /// No memory, or the driver fails.
    pub fn rates(&self) -> Result<Vec<Rate>, DeviceError> {
        let bandwidth = self.read_bandwidth()?;
        let mut rates = vec![Rate { name: "reading memory", value: bandwidth / 1e12, unit: "TB/s" }];
        let sink = self.gpu.alloc::<u32>(1, "the laboratory")?;
        for work in &WORKS {
            if work.kernel == "rate_wgmma" && !has_wgmma(&self.gpu.info) {
                continue;
            }
            let blocks = work.blocks * self.gpu.info.multiprocessors;
            let kernel = self.kernels.get("rates", work.kernel)?;
            let args = RateArgs { sink: at(&sink, 0), turns: work.turns as i32, unused: 0 };
            let seconds = self.best(&|| self.enqueue(kernel, Shape::new([blocks, 1, 1], 256), &args))?;
            let done = work.of_block * (blocks * work.turns) as f64;
            rates.push(Rate { name: work.name, value: done / seconds / 1e12, unit: work.unit });
        }
        for (name, kernel) in [
            ("a kernel that does nothing, in a graph", "rate_launch"),
            ("the same where the next one may start early", "rate_launch_early"),
        ] {
            let kernel = self.kernels.get("rates", kernel)?;
            let args = RateArgs { sink: at(&sink, 0), turns: 0, unused: 0 };
            let seconds = self.best(&|| {
                self.queue.keep(true);
                let shape = Shape::new([self.gpu.info.multiprocessors, 1, 1], 128);
                let enqueued = (0..LAUNCHES).try_for_each(|_| self.enqueue(kernel, shape, &args));
                // The first of these runs it, the second records it, those that count replay.
                enqueued.and(self.queue.flush(&self.gpu))
            })?;
            rates.push(Rate { name, value: 1e6 * seconds / LAUNCHES as f64, unit: "µs" });
        }
        Ok(rates)
    }

    /// Seconds of the fastest of ten runs.
    fn best(&self, run: &dyn Fn() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        let mut best = f64::INFINITY;
        for _ in 0..10 {
            self.gpu.synchronize()?;
            let start = Instant::now();
            run()?;
            self.gpu.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok(best)
    }
}
