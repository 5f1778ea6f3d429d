//! The machine's own ceilings, measured, for the share of the roof that benchmarks print.

use crate::mem::Buffer;
use crate::pool::Pool;
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
            w.share(0, values.len(), 1 << 20, |range| {
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
