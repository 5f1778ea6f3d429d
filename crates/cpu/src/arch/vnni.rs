//! AVX-512 (F, BW, DQ, VL) with VNNI: servers since 2019, Zen 4 and later.
//!
//! A sixteen-lane vector is one `zmm`; `vpdpbusd` multiplies and sums four bytes per lane. Its first operand is
//! unsigned, so signed weights enter as `w + 128` and the surplus is taken off at the end.

use crate::detect::Isa;
use crate::kernel::gemm::Gemm;
use crate::simd::Simd;
use std::arch::asm;
use std::arch::x86_64::*;

/// One 512-bit register.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

/// Adds to each lane the products of two pairs of `i16`. Assembly, as the compiler makes two instructions of most of
/// these where several follow each other.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dpwssd(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let mut sum = acc;
    // SAFETY: registers only; the function has the instruction's features.
    unsafe {
        asm!(
            "vpdpwssd {sum}, {a}, {b}",
            sum = inout(zmm_reg) sum, a = in(zmm_reg) a, b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

// SAFETY (all functions): the trait's contract says that the CPU has AVX-512 F/BW/DQ/VL/VNNI and that pointers are
// valid for the bytes the name implies; all loads and stores are the unaligned forms.
impl Simd for Vnni {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    type Dot = __m512i;

    const ISA: Isa = Isa::Vnni;
    const TILE: usize = 6;
    const FLOAT_TILE: usize = 4;
    const CHAINED: usize = 4;
    const ATTN_ROWS: usize = 4;
    const UNROLLED: bool = true;
    const SIGNED_SURPLUS: i32 = 128;

    #[inline(always)]
    fn unpacks_once(_bits: u32, k_quant: bool) -> bool {
        k_quant
    }
    #[inline(always)]
    fn units_per_dot(_max: u32) -> usize {
        8
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a hint; addresses are not checked.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: __m512) {
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max_abs(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let magnitude = _mm512_set1_epi32(i32::MAX);
            let a = _mm512_and_si512(_mm512_castps_si512(a), magnitude);
            let b = _mm512_and_si512(_mm512_castps_si512(b), magnitude);
            _mm512_castsi512_ps(_mm512_max_epi32(a, b))
        }
    }
    #[inline(always)]
    unsafe fn largest(a: __m512) -> f32 {
        // SAFETY: see the impl.
        unsafe { f32::from_bits(_mm512_reduce_max_epi32(_mm512_castps_si512(a)) as u32) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn zero_below(a: __m512, b: __m512, x: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_maskz_mov_ps(!_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), x) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn exp2i(n: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const u32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut u32, x: __m512i) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_mullo_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn pair(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_mask_blend_epi16(0xaaaa_aaaa, a, _mm512_slli_epi32::<16>(b)) }
    }
    #[inline(always)]
    unsafe fn dot_pairs(acc: __m512i, a: __m512i, b: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { dpwssd(acc, a, _mm512_set1_epi32(b)) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bits(p: *const u8, shift: u32, mask: u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let shifted = _mm512_srl_epi32(Self::load_u8(p), _mm_cvtsi32_si128(shift as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi32(mask.into()))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn to_f(a: __m512i) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: __m512) {
        // SAFETY: see the impl.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))) }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: __m512i) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, mask: u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(mask as i8)) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m512i, n: u32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn shl(a: __m512i, n: u32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn select_bit(a: __m512i, bit: u32, value: u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let set = _mm512_test_epi8_mask(a, _mm512_set1_epi8((1u8 << bit) as i8));
            _mm512_maskz_set1_epi8(set, value as i8)
        }
    }
    #[inline(always)]
    unsafe fn spread_bits(words: __m512i, unit: usize, value: u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            // The byte that holds the four bits, copied to all bytes of its lane; then one bit tested per byte.
            let rows = _mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
            let byte = _mm512_set1_epi8((unit / 2) as i8);
            let pick = _mm512_add_epi8(_mm512_broadcast_i32x4(rows), byte);
            let bits = if unit.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010u32 as i32 };
            let set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(words, pick), _mm512_set1_epi32(bits));
            _mm512_maskz_set1_epi8(set, value as i8)
        }
    }
    #[inline(always)]
    unsafe fn lookup(indices: __m512i, table: &[i8; 16]) -> __m512i {
        // SAFETY: see the impl; the table is sixteen bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    unsafe fn dot_zero() -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn dot_unsigned(acc: __m512i, w: __m512i, a: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(a)) }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: __m512i, w: __m512i, a: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let raised = _mm512_xor_si512(w, _mm512_set1_epi8(i8::MIN));
            _mm512_dpbusd_epi32(acc, raised, _mm512_set1_epi32(a))
        }
    }
    #[inline(always)]
    unsafe fn finish(acc: __m512i) -> __m512i {
        acc
    }
}

impl Gemm for Vnni {
    const PANELS: usize = 2;
}

super::entry_points!(Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");
pub(super) use entry::{block32, float, super256};
