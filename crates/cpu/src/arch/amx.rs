//! AMX-INT8: Intel servers since Sapphire Rapids (2023).
//!
//! Products of many tokens go to the tile unit; everything else is the AVX-512 VNNI level. The intrinsics are not
//! stable, assembly is. Registers are configured when a product begins and released when it ends, so that a thread
//! that sleeps or is switched has no tile state to be saved.

use super::vnni::{self, Vnni, float};
use super::{Kernels, Peak, WideKernels, matmul_table};
use crate::detect::Isa;
use crate::format::{Block32, Super256, with_formats};
use crate::kernel::amx::{self, Shapes, TileVectors, Tiles};
use crate::kernel::matmul::{Layout, MatMul};
use crate::kernel::vector::{self, QuantizeJob};
use std::arch::asm;
use std::arch::x86_64::*;

/// The tile unit.
pub(crate) struct Unit;

// SAFETY (all functions): the CPU has AMX-TILE and AMX-INT8, and the system lets the process use them.
impl Tiles for Unit {
    #[inline(always)]
    unsafe fn configure(&mut self, shapes: &'static Shapes) {
        // SAFETY: see the impl; shapes are 64 bytes in palette 1's form.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, preserves_flags, readonly)) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {
        // SAFETY: see the impl.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) }
    }
    #[inline(always)]
    unsafe fn zero<const T: u8>(&mut self) {
        // SAFETY: see the impl.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, preserves_flags, nomem)) }
    }
    #[inline(always)]
    unsafe fn load<const T: u8, const OFFSET: usize>(&mut self, p: *const u8) {
        // SAFETY: see the impl; the caller vouches for the rows.
        unsafe {
            asm!(
                "tileloadd tmm{t}, [{p} + {s}*1 + {o}]",
                t = const T, p = in(reg) p, s = in(reg) 64usize, o = const OFFSET,
                options(nostack, preserves_flags, readonly)
            );
        }
    }
    #[inline(always)]
    unsafe fn load_once<const T: u8, const OFFSET: usize>(&mut self, p: *const u8) {
        // SAFETY: see the impl; the caller vouches for the rows.
        unsafe {
            asm!(
                "tileloaddt1 tmm{t}, [{p} + {s}*1 + {o}]",
                t = const T, p = in(reg) p, s = in(reg) 64usize, o = const OFFSET,
                options(nostack, preserves_flags, readonly)
            );
        }
    }
    #[inline(always)]
    unsafe fn store<const T: u8>(&mut self, p: *mut i32) {
        // SAFETY: see the impl; the caller vouches for the rows.
        unsafe {
            asm!(
                "tilestored [{p} + {s}*1], tmm{t}",
                t = const T, p = in(reg) p, s = in(reg) 64usize,
                options(nostack, preserves_flags)
            );
        }
    }
    #[inline(always)]
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: see the impl.
        unsafe {
            asm!(
                "tdpbssd tmm{c}, tmm{a}, tmm{b}",
                c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem)
            );
        }
    }
}

// SAFETY (all functions): as for the impl of `Simd`.
impl TileVectors for Vnni {
    #[inline(always)]
    unsafe fn planes(q: __m512i, zero: i32, scale: __m512i, low: *mut u8, high: *mut u8) {
        // SAFETY: see the impl.
        unsafe {
            let q = _mm512_sub_epi8(q, _mm512_set1_epi8(zero as i8));
            let scale = _mm512_or_si512(
                _mm512_and_si512(scale, _mm512_set1_epi32(0xffff)),
                _mm512_slli_epi32::<16>(scale),
            );
            let even = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(q)), scale);
            let odd = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(q), scale);
            let seven = _mm512_set1_epi16(127);
            let (low_even, low_odd) = (_mm512_and_si512(even, seven), _mm512_and_si512(odd, seven));
            _mm512_storeu_si512(low.cast(), _mm512_or_si512(low_even, _mm512_slli_epi16::<8>(low_odd)));
            let high_even = _mm512_and_si512(_mm512_srai_epi16::<7>(even), _mm512_set1_epi16(255));
            let high_odd = _mm512_slli_epi16::<8>(_mm512_srai_epi16::<7>(odd));
            _mm512_storeu_si512(high.cast(), _mm512_or_si512(high_even, high_odd));
        }
    }
    #[inline(always)]
    unsafe fn digits(scale: __m512i) -> (__m512i, __m512i) {
        // SAFETY: see the impl.
        unsafe { (_mm512_and_si512(scale, _mm512_set1_epi32(7)), _mm512_srli_epi32::<3>(scale)) }
    }
    #[inline(always)]
    unsafe fn times(q: __m512i, factor: __m512i) -> __m512i {
        // SAFETY: see the impl. Two bytes at once: the lower product does not reach the upper byte.
        unsafe { _mm512_mullo_epi16(q, _mm512_or_si512(factor, _mm512_slli_epi32::<16>(factor))) }
    }
    #[inline(always)]
    unsafe fn halves(x: __m512) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let x = _mm512_cvtps_epi32(x);
            _mm512_mask_blend_epi16(0xaaaa_aaaa, x, _mm512_slli_epi32::<16>(x))
        }
    }
    #[inline(always)]
    unsafe fn wide(q: __m512i, raise: u32, factor: __m512i, min: __m512i, low: *mut u8, high: *mut u8) {
        const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
        // SAFETY: see the impl. Shifting a pair of bytes up by eight or more leaves the lower one alone.
        unsafe {
            let even = _mm512_sll_epi16(q, _mm_cvtsi32_si128(raise as i32));
            let odd = _mm512_maskz_mov_epi8(ODD, q);
            let odd = _mm512_sll_epi16(odd, _mm_cvtsi32_si128(raise as i32 - 8));
            let even = _mm512_add_epi16(_mm512_mulhrs_epi16(even, factor), min);
            let odd = _mm512_add_epi16(_mm512_mulhrs_epi16(odd, factor), min);
            let lows = _mm512_mask_blend_epi8(ODD, even, _mm512_slli_epi16::<8>(odd));
            _mm512_storeu_si512(low.cast(), lows);
            let up = _mm512_set1_epi16(128);
            let (even, odd) = (_mm512_add_epi16(even, up), _mm512_add_epi16(odd, up));
            let highs = _mm512_mask_blend_epi8(ODD, _mm512_srli_epi16::<8>(even), odd);
            _mm512_storeu_si512(high.cast(), highs);
        }
    }
    #[inline(always)]
    unsafe fn centred(q: __m512i, zero: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_epi8(q, _mm512_set1_epi8(zero as i8)) }
    }
    #[inline(always)]
    unsafe fn join<const SHIFT: u32>(low: __m512i, high: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi32(low, _mm512_slli_epi32::<SHIFT>(high)) }
    }
}

macro_rules! entry {
    ($name:ident, $bound:path, $rows:ident) => {
        // SAFETY: the contract of the kernel it is named after; the CPU has the level's features.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn $name<F: $bound>(job: &MatMul) {
            // SAFETY: the caller keeps the kernel's contract.
            unsafe {
                match job.acts.layout {
                    Layout::Rows => vnni::$rows::<F>(job),
                    Layout::Tiles { .. } => amx::$name::<Vnni, F>(job, &mut Unit),
                }
            }
        }
    };
}
entry!(block32, Block32, block32);
entry!(super256, Super256, super256);
entry!(wide32, Block32, block32);

// SAFETY: as of the entries above.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn quantize_wide(job: &QuantizeJob) {
    // SAFETY: the caller keeps the kernel's contract.
    unsafe { vector::quantize_wide::<Vnni>(job) }
}

/// Types without a wider form.
macro_rules! none {
    ($format:ty) => {
        None
    };
}

macro_rules! wide_table {
    (block32: [$($b:ty),*] super256: [$($s:ty),*] float: [$($f:ty),*]) => {
        &[$(Some(wide32::<$b>),)* $(none!($s),)* $(none!($f),)*]
    };
}

/// Four independent products of tiles a round, and nothing else.
///
/// # Safety
/// As [`crate::kernel::peak::dot`], for this level.
unsafe fn peak_dot(rounds: usize, data: *mut u8) {
    let mut unit = Unit;
    // SAFETY: two tiles of 1 KB lie in the data; the CPU has the unit.
    unsafe {
        unit.configure(&amx::FULL);
        unit.load::<4, 0>(data);
        unit.load::<7, 1024>(data);
        for _ in 0..rounds {
            unit.dot::<0, 4, 7>();
            unit.dot::<1, 4, 7>();
            unit.dot::<2, 4, 7>();
            unit.dot::<3, 4, 7>();
        }
        unit.store::<0>(data.cast());
        unit.release();
    }
}

/// Tokens from which 32-value blocks are folded in the `fast` profile. Measured.
const WIDE_FROM: usize = 64;

static WIDE: WideKernels =
    WideKernels { matmul: with_formats!(wide_table), from: WIDE_FROM, quantize: quantize_wide };

/// Measured on Emerald Rapids: +9 to +39 % of a small model's tokens per second with 32-value blocks, +56 % of a larger one's
/// with K-quants. Zen 4, whose processors have no tiles, loses 10 to 24 % by it.
const AHEAD: usize = 4096;

pub(crate) static KERNELS: Kernels = Kernels {
    isa: Isa::Amx,
    matmul: with_formats!(matmul_table),
    tiles_from: amx::FROM,
    ahead: AHEAD,
    wide: Some(&WIDE),
    peak: Peak { dot: peak_dot, dot_round: 4 * 16 * 16 * 64, ..vnni::KERNELS.peak },
    ..vnni::KERNELS
};
