//! The machine's own ceilings, measured, and the speed of single kernels: what benchmarks print and are held against.

mod product;

use crate::arch;
use crate::detect::Isa;
use crate::kernel::peak::PEAK_BYTES;
use crate::mem::Buffer;
use crate::pool::{Cut, Pool};
pub use product::{Product, ProductSpec};
use std::hint::black_box;
use std::time::Instant;

/// Bytes per second that `threads` threads read from memory: best of five passes over 256 MiB.
///
/// # Errors
/// No memory or threads to be had.
pub fn read_bandwidth(threads: usize) -> std::io::Result<f64> {
    let mut pool = Pool::new(threads)?;
    let buffer = Buffer::<f32>::zeroed(64 << 20, "bandwidth probe").map_err(std::io::Error::other)?;
    let mut best = 0.0f64;
    let mut buffer = buffer;
    // Zero pages of the kernel are all one page: write before reading.
    buffer.as_mut_slice().iter_mut().enumerate().for_each(|(i, v)| *v = i as f32);
    let values = buffer.as_slice();
    for _ in 0..5 {
        let start = Instant::now();
        pool.run(|w| {
            w.share(0, values.len(), Cut::Every(1 << 20), |range| {
                let mut lanes = [0u32; 64];
                for chunk in values[range].chunks_exact(64) {
                    for (lane, value) in lanes.iter_mut().zip(chunk) {
                        *lane ^= value.to_bits();
                    }
                }
                black_box(lanes);
            });
        });
        best = best.max(size_of_val(values) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Rates of the multiply-adds that products are made of, in operations (two per multiply-add) per second.
#[derive(Clone, Copy, Debug)]
pub struct PeakRates {
    /// Products of bytes, as the quantized types' kernels do them.
    pub int8: f64,
    /// Products of `f32`.
    pub f32: f64,
}

/// The rates of a level on all workers of a pool: best of five runs of some milliseconds.
///
/// # Errors
/// The level that this CPU lacks.
pub fn peak_rates(isa: Isa, pool: &mut Pool) -> std::io::Result<PeakRates> {
    if !isa.available() {
        return Err(std::io::Error::other(format!("this CPU has no {isa}")));
    }
    let peak = &arch::kernels(isa).peak;
    // Slow levels do one product per instruction.
    let rounds = if isa == Isa::Scalar { 2_000 } else { 50_000 };
    let pieces = 8 * pool.threads();
    let mut rate = |kernel: unsafe fn(usize, *mut u8), per_round: usize| {
        let mut best = 0.0f64;
        for _ in 0..5 {
            let start = Instant::now();
            pool.run(|w| {
                w.share_each(0, pieces, Cut::Every(1), |_| {
                    #[repr(align(64))]
                    struct Data([u8; PEAK_BYTES]);
                    let mut data = Data([1; PEAK_BYTES]);
                    // SAFETY: the data is there and this worker's; the level is available.
                    unsafe { kernel(rounds, data.0.as_mut_ptr()) };
                    black_box(data.0[0]);
                });
            });
            let operations = 2.0 * (pieces * rounds * per_round) as f64;
            best = best.max(operations / start.elapsed().as_secs_f64());
        }
        best
    };
    Ok(PeakRates { int8: rate(peak.dot, peak.dot_round), f32: rate(peak.fma, peak.fma_round) })
}
