//! A cache of E4M3, the OCP's eight-bit floating point with four bits of exponent, under a power of two for each head of a
//! token.
//!
//! The power of two only moves the range: 448 is the largest number and what is below 2^-6 loses bits, while biases of keys
//! alone can be in the hundreds and values can all be small. Mantissas, and with them what is lost, are the same under any
//! power of two, so a finer scale than a head's would gain nothing: 2^-15 of a head's largest channel still has all its bits.
//!
//! # Safety
//! A function of an implementation needs what its trait says.

use super::{F32, KvFormat, KvWrite};
use crate::simd::{LANES, Simd};
use half::f16;
use minfer_ops::KV_BLOCK;

/// E4M3 and a scale.
pub(crate) struct FP8;

/// The largest number.
const MOST: f32 = 448.0;
/// The smallest number with all bits of its mantissa.
const LEAST_NORMAL: f32 = 1.0 / 64.0;
/// Single precision's numbers from here on are 2^-9 apart, as E4M3's below [`LEAST_NORMAL`].
const COARSE: f32 = 16384.0;
/// Exponents of scales: `448 · 2^7` and the smallest number, 2^-9, times 2^-15 are halves.
const EXPONENTS: (i32, i32) = (-15, 7);
/// What [`Simd::load_e4m3`] leaves out.
const BIAS: f32 = 256.0;

/// Exponent of the scale of a head whose largest magnitude this is, which is no NaN: the least with `largest ≤ 448 · 2^e`.
fn exponent(largest: f32) -> i32 {
    // 448 is 1.75 · 2^8: a larger mantissa carries.
    let above = (largest.to_bits() + 0x001f_ffff) >> 23;
    (above as i32 - 127 - 8).clamp(EXPONENTS.0, EXPONENTS.1)
}

/// `2^e`, of a normal number.
fn power(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

/// The nearest E4M3, ties to even; what is beyond 448 becomes that, and a NaN too: its scale tells. Without a branch, so that
/// the compiler makes vectors of it.
#[inline(always)]
fn encode(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    let magnitude = if magnitude < MOST { magnitude } else { MOST };
    let small = (magnitude + COARSE).to_bits() - COARSE.to_bits();
    let even = magnitude.to_bits() >> 20 & 1;
    // Exponents of single precision have a bias of 127, those of E4M3 one of 7.
    let normal = ((magnitude.to_bits() + 0x0007_ffff + even) >> 20).wrapping_sub((127 - 7) << 3);
    let code = if magnitude < LEAST_NORMAL { small } else { normal };
    (bits >> 24 & 0x80 | code) as u8
}

/// Codes of a head, and their scale: NaN if there is a NaN among the channels.
#[inline(always)]
unsafe fn quantize<S: Simd>(x: *const f32, dim: usize, mut code: impl FnMut(usize, [u8; LANES])) -> f16 {
    // SAFETY: the caller vouches for the pointer and the ISA.
    unsafe {
        let mut most = S::splat(0.0);
        for d in (0..dim).step_by(LANES) {
            most = S::max_abs(most, S::load(x.add(d)));
        }
        let largest = S::largest(most);
        if largest.is_nan() {
            (0..dim).step_by(LANES).for_each(|d| code(d, [0; LANES]));
            return f16::NAN;
        }
        let e = exponent(largest);
        let inverse = S::splat(power(-e));
        for d in (0..dim).step_by(LANES) {
            let mut scaled = [0f32; LANES];
            S::store(scaled.as_mut_ptr(), S::mul(S::load(x.add(d)), inverse));
            code(d, scaled.map(encode));
        }
        f16::from_f32(power(e))
    }
}

impl KvFormat for FP8 {
    type Read = F32;
    const WIDE_FROM: usize = 0;

    #[inline(always)]
    unsafe fn write_key<S: Simd>(job: &KvWrite) {
        // SAFETY: passed on; a block has its codes first, then the scales.
        unsafe {
            let scale = quantize::<S>(job.x, job.dim, |d, codes| {
                for (i, code) in codes.into_iter().enumerate() {
                    *job.block.add((d + i) * KV_BLOCK + job.slot) = code;
                }
            });
            job.block.add(KV_BLOCK * job.dim).cast::<f16>().add(job.slot).write_unaligned(scale);
        }
    }

    #[inline(always)]
    unsafe fn write_value<S: Simd>(job: &KvWrite) {
        // SAFETY: passed on; a block has its codes first, then the scales.
        unsafe {
            let scale = quantize::<S>(job.x, job.dim, |d, codes| {
                job.block.add(job.slot * job.dim + d).cast::<[u8; LANES]>().write_unaligned(codes);
            });
            job.block.add(KV_BLOCK * job.dim).cast::<f16>().add(job.slot).write_unaligned(scale);
        }
    }

    #[inline(always)]
    unsafe fn widen_keys<S: Simd>(block: *const u8, dim: usize, out: *mut f32) {
        // SAFETY: passed on; a block has its codes first, then the scales.
        unsafe {
            let scales = block.add(KV_BLOCK * dim);
            let mut scale = [S::splat(0.0); KV_BLOCK / LANES];
            for c in 0..KV_BLOCK / LANES {
                scale[c] = S::mul(S::load_f16(scales.add(c * LANES * 2)), S::splat(BIAS));
            }
            for d in 0..dim {
                for c in 0..KV_BLOCK / LANES {
                    let i = d * KV_BLOCK + c * LANES;
                    S::store(out.add(i), S::mul(S::load_e4m3(block.add(i)), scale[c]));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_values<S: Simd>(block: *const u8, dim: usize, out: *mut f32) {
        // SAFETY: passed on; a block has its codes first, then the scales.
        unsafe {
            let scales = block.add(KV_BLOCK * dim);
            let mut few = [0f32; LANES];
            for key in 0..KV_BLOCK {
                if key % LANES == 0 {
                    let scales = S::load_f16(scales.add(key * 2));
                    S::store(few.as_mut_ptr(), S::mul(scales, S::splat(BIAS)));
                }
                let scale = S::splat(few[key % LANES]);
                for i in (key * dim..(key + 1) * dim).step_by(LANES) {
                    S::store(out.add(i), S::mul(S::load_e4m3(block.add(i)), scale));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a code stands for, by the format's table: `2^(e−7) · (1 + m/8)`, and `2^-6 · m/8` of exponent 0.
    fn number(code: u8) -> f64 {
        let (e, m) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
        let magnitude = if e == 0 { 2f64.powi(-6) * m } else { 2f64.powi(e - 7) * (1.0 + m) };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The nearest of all codes, of two the even one.
    fn nearest(x: f64) -> u8 {
        let off = |code: &u8| (number(*code) - x.abs()).abs();
        let best = (0..0x7f).min_by(|a, b| off(a).total_cmp(&off(b)).then((a & 1).cmp(&(b & 1))));
        best.expect("a code") | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn codes_are_the_nearest_ones() {
        assert_eq!((number(0x7e), number(1)), (448.0, 2f64.powi(-9)));
        for code in (0..0x7f).flat_map(|code| [code, code | 0x80]) {
            assert_eq!(encode(number(code) as f32), code, "a number is itself");
        }
        for code in 0..0x7e {
            let middle = ((number(code) + number(code + 1)) / 2.0) as f32;
            for x in [middle.next_down(), middle, middle.next_up()] {
                for x in [x, -x] {
                    assert_eq!(encode(x), nearest(f64::from(x)), "{x}");
                }
            }
        }
        for x in [448.1, 464.0, 1e9, f32::MAX, f32::INFINITY, -1e9] {
            assert_eq!(encode(x), if x < 0.0 { 0xfe } else { 0x7e }, "{x}");
        }
    }

    #[test]
    fn scales_are_the_least_that_hold_the_largest() {
        let holds = |x: f32, e: i32| f64::from(x) <= 448.0 * 2f64.powi(e);
        for e in -15..=7 {
            let most = (448.0 * 2f64.powi(e)) as f32;
            for x in [most.next_down(), most, most.next_up(), most / 2.0, most * 0.51, most * 1.7] {
                let found = exponent(x);
                assert!(holds(x, found) || found == 7, "{x}: {found}");
                assert!(!holds(x, found - 1) || found == -15, "{x}: {found}");
                assert!((-15..=7).contains(&found));
            }
        }
        assert_eq!([0.0, 1e-30, f32::INFINITY, f32::MAX].map(exponent), [-15, -15, 7, 7]);
    }

    #[test]
    fn every_level_reads_what_a_code_stands_for() {
        for isa in crate::detect::Host::levels() {
            let kv = crate::arch::kernels(isa).kv(minfer_ops::KvType::FP8);
            let dim = 32;
            let mut block = vec![0u8; KV_BLOCK * (dim + 2)];
            for (e, size) in [(-15, 1e-3f32), (0, 300.0), (7, 1e9)] {
                let x: Vec<f32> = (0..dim).map(|i| size * (i as f32 / 31.0 - 0.5) * 2.0).collect();
                // SAFETY: a block of 32 channels, and the level is this processor's.
                unsafe {
                    (kv.write_value)(&KvWrite { x: x.as_ptr(), block: block.as_mut_ptr(), slot: 5, dim })
                };
                let scale = f16::from_le_bytes([block[KV_BLOCK * dim + 10], block[KV_BLOCK * dim + 11]]);
                assert_eq!(scale.to_f64(), 2f64.powi(e), "{isa}");
                for (code, x) in block[5 * dim..6 * dim].iter().zip(&x) {
                    assert_eq!(*code, nearest(f64::from(*x) / scale.to_f64()), "{isa}: {x}");
                }
            }
        }
    }
}
