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
    let share = buffer.len() / threads.max(1);
    let mut best = 0.0f64;
    let mut buffer = buffer;
    // Zero pages of the kernel are all one page: write before reading.
    buffer.as_mut_slice().iter_mut().enumerate().for_each(|(i, v)| *v = i as f32);
    let values = buffer.as_slice();
    for _ in 0..5 {
        let start = Instant::now();
        pool.run(|w| {
            let own = &values[w.id * share..(w.id + 1) * share];
            let mut lanes = [0u32; 64];
            for chunk in own.chunks_exact(64) {
                for (lane, value) in lanes.iter_mut().zip(chunk) {
                    *lane ^= value.to_bits();
                }
            }
            black_box(lanes);
        });
        let bytes = (share * threads.max(1) * size_of::<f32>()) as f64;
        best = best.max(bytes / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
