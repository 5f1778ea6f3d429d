//! How keys and values lie in the cache, by type.
//!
//! A block holds [`KV_BLOCK`] tokens of a head. Keys lie transposed, `[dim][64]`, values `[64][dim]`. A block of `q8_0` has the
//! bytes first, in the same order, then the scales: of keys `[dim / 32][64]`, of values `[64][dim / 32]`. What attention
//! reads is `scale · byte`, a product that is exact in single precision. One of `fp8` has codes, then a scale for each token.
//!
//! # Safety
//! A function of an implementation needs what its trait says.

mod fp8;

pub(crate) use fp8::FP8;

use crate::simd::{LANES, Simd};
use half::f16;
use minfer_ops::KV_BLOCK;

/// A token's key or value of one head, and where it goes.
pub(crate) struct KvWrite {
    /// `[dim]`.
    pub(crate) x: *const f32,
    /// The block, of this head.
    pub(crate) block: *mut u8,
    /// Position within the block.
    pub(crate) slot: usize,
    /// Channels; a multiple of sixteen, and of 32 for `q8_0`.
    pub(crate) dim: usize,
}

/// Type of the cache.
pub(crate) trait KvFormat {
    /// What attention reads: the type itself, or floats if blocks are always widened.
    type Read: KvElem;
    /// Rows from which a block is widened to floats once for all of them.
    const WIDE_FROM: usize;

    /// Writes a key.
    ///
    /// # Safety
    /// Pointers are valid for what the job says, the slot is written by nobody else, and the CPU has the features of `S`.
    unsafe fn write_key<S: Simd>(job: &KvWrite);
    /// Writes a value.
    ///
    /// # Safety
    /// As [`KvFormat::write_key`].
    unsafe fn write_value<S: Simd>(job: &KvWrite);
    /// Keys of a block as floats, `[dim][64]`.
    ///
    /// # Safety
    /// Pointers are valid for a block of `dim` channels; the CPU has the features of `S`.
    unsafe fn widen_keys<S: Simd>(block: *const u8, dim: usize, out: *mut f32);
    /// Values of a block as floats, `[64][dim]`.
    ///
    /// # Safety
    /// As [`KvFormat::widen_keys`].
    unsafe fn widen_values<S: Simd>(block: *const u8, dim: usize, out: *mut f32);
}

/// Plain element type of the cache, read as it lies.
pub(crate) trait KvElem {
    /// Bytes of a value.
    const BYTES: usize;
    /// Sixteen values.
    ///
    /// # Safety
    /// `p` is valid for them; the CPU has the features of `S`.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
    /// Sixteen values, rounded to nearest even.
    ///
    /// # Safety
    /// As [`KvElem::load`].
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F);
}

/// IEEE half precision.
pub(crate) struct F16;
/// bfloat16.
pub(crate) struct BF16;
/// IEEE single precision.
pub(crate) struct F32;

impl KvElem for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { S::store_f16(p.cast(), x) }
    }
}

impl KvElem for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { S::store_bf16(p.cast(), x) }
    }
}

impl KvElem for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { S::store(p.cast(), x) }
    }
}

/// Widening a block pays if its values are read more often than this.
const PLAIN_WIDE_FROM: usize = 9;

impl<E: KvElem> KvFormat for E {
    type Read = E;
    const WIDE_FROM: usize = if E::BYTES < 4 { PLAIN_WIDE_FROM } else { usize::MAX };

    #[inline(always)]
    unsafe fn write_key<S: Simd>(job: &KvWrite) {
        let mut column = [0u8; LANES * 4];
        // SAFETY: passed on.
        unsafe {
            for d in (0..job.dim).step_by(LANES) {
                E::store::<S>(column.as_mut_ptr(), S::load(job.x.add(d)));
                for i in 0..LANES {
                    let to = job.block.add(((d + i) * KV_BLOCK + job.slot) * E::BYTES);
                    std::ptr::copy_nonoverlapping(column.as_ptr().add(i * E::BYTES), to, E::BYTES);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn write_value<S: Simd>(job: &KvWrite) {
        // SAFETY: passed on.
        unsafe {
            for d in (0..job.dim).step_by(LANES) {
                let to = job.block.add((job.slot * job.dim + d) * E::BYTES);
                E::store::<S>(to, S::load(job.x.add(d)));
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_keys<S: Simd>(block: *const u8, dim: usize, out: *mut f32) {
        // SAFETY: passed on.
        unsafe {
            for i in (0..KV_BLOCK * dim).step_by(LANES) {
                S::store(out.add(i), E::load::<S>(block.add(i * E::BYTES)));
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_values<S: Simd>(block: *const u8, dim: usize, out: *mut f32) {
        // SAFETY: passed on.
        unsafe { Self::widen_keys::<S>(block, dim, out) };
    }
}

/// Eight bits: 32 channels of a token share a scale.
pub(crate) struct Q8_0;

/// Channels that share a scale.
const GROUP: usize = 32;

/// The scale of [`GROUP`] channels, and their bytes. The scale is `max |x| / 127` in half precision; bytes are rounded to
/// nearest even by what was stored. A NaN among the channels, or an infinity, makes the scale NaN or infinite.
#[inline(always)]
unsafe fn quantize<S: Simd>(x: *const f32, bytes: *mut i8) -> f16 {
    // SAFETY: the caller vouches for the pointers and the ISA.
    unsafe {
        let (low, high) = (S::load(x), S::load(x.add(LANES)));
        let largest = S::largest(S::max_abs(S::max_abs(low, S::splat(0.0)), high));
        let scale = f16::from_f32(largest / 127.0);
        let stored = scale.to_f32();
        let inverse = if stored > 0.0 { 1.0 / stored } else { 0.0 };
        for (i, x) in [low, high].into_iter().enumerate() {
            // A scale that was rounded down, or far down where halves are coarse, leaves bytes that are too large.
            let x = S::max(S::min(S::mul(x, S::splat(inverse)), S::splat(127.0)), S::splat(-127.0));
            S::store_i8(bytes.add(i * LANES), x);
        }
        scale
    }
}

/// `out = scales · bytes`, sixteen of them.
#[inline(always)]
unsafe fn widen<S: Simd>(bytes: *const u8, scales: S::F, out: *mut f32) {
    // SAFETY: the caller vouches for the pointers and the ISA.
    unsafe { S::store(out, S::mul(S::to_f(S::load_i8(bytes)), scales)) };
}

impl KvFormat for Q8_0 {
    type Read = F32;
    const WIDE_FROM: usize = 0;

    #[inline(always)]
    unsafe fn write_key<S: Simd>(job: &KvWrite) {
        let mut bytes = [0i8; GROUP];
        // SAFETY: passed on; a block has its bytes first, then the scales.
        unsafe {
            let scales = job.block.add(KV_BLOCK * job.dim).cast::<f16>();
            for g in 0..job.dim / GROUP {
                let scale = quantize::<S>(job.x.add(g * GROUP), bytes.as_mut_ptr());
                scales.add(g * KV_BLOCK + job.slot).write_unaligned(scale);
                for (i, byte) in bytes.iter().enumerate() {
                    *job.block.add((g * GROUP + i) * KV_BLOCK + job.slot) = *byte as u8;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn write_value<S: Simd>(job: &KvWrite) {
        // SAFETY: passed on; a block has its bytes first, then the scales.
        unsafe {
            let groups = job.dim / GROUP;
            let scales = job.block.add(KV_BLOCK * job.dim).cast::<f16>();
            for g in 0..groups {
                let to = job.block.add(job.slot * job.dim + g * GROUP);
                let scale = quantize::<S>(job.x.add(g * GROUP), to.cast());
                scales.add(job.slot * groups + g).write_unaligned(scale);
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_keys<S: Simd>(block: *const u8, dim: usize, out: *mut f32) {
        // SAFETY: passed on; a block has its bytes first, then the scales.
        unsafe {
            let scales = block.add(KV_BLOCK * dim);
            for g in 0..dim / GROUP {
                let mut scale = [S::splat(0.0); KV_BLOCK / LANES];
                for c in 0..KV_BLOCK / LANES {
                    scale[c] = S::load_f16(scales.add((g * KV_BLOCK + c * LANES) * 2));
                }
                for d in g * GROUP..(g + 1) * GROUP {
                    for c in 0..KV_BLOCK / LANES {
                        let i = d * KV_BLOCK + c * LANES;
                        widen::<S>(block.add(i), scale[c], out.add(i));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_values<S: Simd>(block: *const u8, dim: usize, out: *mut f32) {
        // SAFETY: passed on; a block has its bytes first, then the scales, of which there are a multiple of sixteen.
        unsafe {
            let scales = block.add(KV_BLOCK * dim);
            let mut few = [0f32; LANES];
            for first in (0..KV_BLOCK * dim / GROUP).step_by(LANES) {
                S::store(few.as_mut_ptr(), S::load_f16(scales.add(first * 2)));
                for (g, scale) in few.iter().enumerate() {
                    let i = (first + g) * GROUP;
                    widen::<S>(block.add(i), S::splat(*scale), out.add(i));
                    widen::<S>(block.add(i + LANES), S::splat(*scale), out.add(i + LANES));
                }
            }
        }
    }
}
