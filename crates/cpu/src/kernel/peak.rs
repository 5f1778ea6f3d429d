//! Loops of nothing but a kernel's multiply-adds: the rates that kernels are held against.
//!
//! # Safety
//! A private function needs what the function of this module that calls it needs.

use crate::simd::{LANES, Simd};

/// Bytes of weights that the loops read again and again: they stay in L1.
pub(crate) const PEAK_BYTES: usize = 4096;

/// Multiply-adds of one round of [`dot`] or [`fma`] on a level with tiles of `tile` tokens.
const fn chains(tile: usize) -> usize {
    if tile <= 3 { 6 } else { 12 }
}

/// Products of bytes in a round of [`dot`].
pub(crate) const fn dot_round<S: Simd>() -> usize {
    chains(S::TILE) * 4 * LANES
}

/// Products of floats in a round of [`fma`].
pub(crate) const fn fma_round<S: Simd>() -> usize {
    chains(S::TILE) * LANES
}

/// `rounds` times a dot product into each of some independent sums, one operand a broadcast from memory.
///
/// # Safety
/// `data` is valid for [`PEAK_BYTES`] bytes and written by nobody else; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn dot<S: Simd>(rounds: usize, data: *mut u8) {
    // SAFETY: passed on.
    unsafe { if S::TILE <= 3 { dot_chains::<S, 6>(rounds, data) } else { dot_chains::<S, 12>(rounds, data) } }
}

#[inline(always)]
unsafe fn dot_chains<S: Simd, const N: usize>(rounds: usize, data: *mut u8) {
    // SAFETY: all offsets are below PEAK_BYTES − 64.
    unsafe {
        let mut sums = [S::dot_zero(); N];
        for i in 0..rounds {
            let w = S::load_bytes(data.add(i % 32 * 64));
            let a = data.add(2048 + i % 16 * 64).cast::<i32>();
            for n in 0..N {
                sums[n] = S::dot_unsigned(sums[n], w, a.add(n).read_unaligned());
            }
        }
        let mut all = S::splat_i(0);
        for sum in sums {
            all = S::add_i(all, S::finish(sum));
        }
        S::store(data.cast(), S::to_f(all));
    }
}

/// `rounds` times a fused multiply-add into each of some independent sums, one operand a broadcast from memory.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
pub(crate) unsafe fn fma<S: Simd>(rounds: usize, data: *mut u8) {
    // SAFETY: passed on.
    unsafe { if S::TILE <= 3 { fma_chains::<S, 6>(rounds, data) } else { fma_chains::<S, 12>(rounds, data) } }
}

#[inline(always)]
unsafe fn fma_chains<S: Simd, const N: usize>(rounds: usize, data: *mut u8) {
    // SAFETY: all offsets are below PEAK_BYTES − 64.
    unsafe {
        let mut sums = [S::splat(0.0); N];
        for i in 0..rounds {
            let w = S::load(data.add(i % 32 * 64).cast());
            let a = data.add(2048 + i % 16 * 64).cast::<f32>();
            for n in 0..N {
                sums[n] = S::fma(w, S::splat(a.add(n).read_unaligned()), sums[n]);
            }
        }
        let mut all = S::splat(0.0);
        for sum in sums {
            all = S::add(all, sum);
        }
        S::store(data.cast(), all);
    }
}
