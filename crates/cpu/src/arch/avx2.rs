//! AVX2 with FMA and F16C: x86-64 since 2013.
//!
//! A sixteen-lane vector is two `ymm`. Byte products go through `vpmaddubsw`, whose pairs stay in 16 bits for as many
//! units as the weights' range allows, then through `vpmaddwd` to 32 bits. [`super::avxvnni`] has the same vectors and
//! other byte products, hence [`ByteDot`].

use crate::detect::Isa;
use crate::kernel::gemm::Gemm;
use crate::simd::Simd;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Two 256-bit registers, and a way to multiply bytes.
#[derive(Clone, Copy)]
pub(crate) struct Ymm<D>(PhantomData<D>);

/// Byte products by way of 16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Maddubs;

pub(crate) type Avx2 = Ymm<Maddubs>;

type F = [__m256; 2];
/// Sixteen `i32`, or 64 bytes.
pub(super) type I = [__m256i; 2];

/// What the levels of [`Ymm`] differ in; each item is the one of [`Simd`] with its name.
///
/// # Safety
/// As [`Simd`].
pub(crate) trait ByteDot: Copy {
    const ISA: Isa;
    const SIGNED_SURPLUS: i32;
    fn units_per_dot(max: u32) -> usize;
    unsafe fn dot_unsigned(acc: I, w: I, a: i32) -> I;
    unsafe fn dot_signed(acc: I, w: I, a: i32) -> I;
    unsafe fn finish(acc: I) -> I;
}

macro_rules! lanes {
    ($f:ident, $($a:expr),+) => { lanes!(@ $f, $(($a)),+) };
    (@ $f:ident, ($a:expr)) => { [$f($a[0]), $f($a[1])] };
    (@ $f:ident, ($a:expr), ($b:expr)) => { [$f($a[0], $b[0]), $f($a[1], $b[1])] };
    (@ $f:ident, ($a:expr), ($b:expr), ($c:expr)) => { [$f($a[0], $b[0], $c[0]), $f($a[1], $b[1], $c[1])] };
}
pub(super) use lanes;

// SAFETY (all functions): the trait's contract says that the CPU has AVX2, FMA and F16C and that pointers are valid
// for the bytes the name implies; all loads and stores are the unaligned forms.
impl<D: ByteDot> Simd for Ymm<D> {
    type F = F;
    type I = I;
    type B = I;
    type Dot = I;

    const ISA: Isa = D::ISA;
    const TILE: usize = 3;
    const FLOAT_TILE: usize = 6;
    const CHAINED: usize = 1;
    const ATTN_ROWS: usize = 1;
    const UNROLLED: bool = true;
    const AHEAD: usize = 8192;
    const SIGNED_SURPLUS: i32 = D::SIGNED_SURPLUS;

    #[inline(always)]
    fn unpacks_once(bits: u32, _k_quant: bool) -> bool {
        bits != 4
    }
    #[inline(always)]
    fn units_per_dot(max: u32) -> usize {
        D::units_per_dot(max)
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // Into the second cache: what is asked for 8 KiB ahead is too much for the first one's miss buffers. Measured.
        // SAFETY: a prefetch of any address is harmless; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: see the impl.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> F {
        // SAFETY: see the impl.
        unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> F {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        // SAFETY: see the impl.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
        }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_add_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_sub_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_mul_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_div_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_max_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_min_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn max_abs(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            let magnitude = _mm256_set1_epi32(i32::MAX);
            let a0 = _mm256_and_si256(_mm256_castps_si256(a[0]), magnitude);
            let a1 = _mm256_and_si256(_mm256_castps_si256(a[1]), magnitude);
            let b0 = _mm256_and_si256(_mm256_castps_si256(b[0]), magnitude);
            let b1 = _mm256_and_si256(_mm256_castps_si256(b[1]), magnitude);
            [_mm256_castsi256_ps(_mm256_max_epi32(a0, b0)), _mm256_castsi256_ps(_mm256_max_epi32(a1, b1))]
        }
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let m = _mm256_max_epi32(_mm256_castps_si256(a[0]), _mm256_castps_si256(a[1]));
            let m = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256::<1>(m));
            let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b01_00_11_10>(m));
            let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b10_11_00_01>(m));
            f32::from_bits(_mm_cvtsi128_si32(m) as u32)
        }
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_fmadd_ps, a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: F, b: F, c: F) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_fnmadd_ps, a, b, c) }
    }
    #[inline(always)]
    unsafe fn zero_below(a: F, b: F, x: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            let below = [_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])];
            lanes!(_mm256_andnot_ps, below, x)
        }
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])]
        }
    }
    #[inline(always)]
    unsafe fn exp2i(n: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                    _mm256_cvtps_epi32(n[0]),
                    bias,
                ))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                    _mm256_cvtps_epi32(n[1]),
                    bias,
                ))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const u32) -> I {
        // SAFETY: see the impl.
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut u32, x: I) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_si256(p.cast(), x[0]);
            _mm256_storeu_si256(p.add(8).cast(), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_add_epi32, a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_sub_epi32, a, b) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_mullo_epi32, a, b) }
    }
    #[inline(always)]
    unsafe fn pair(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe {
            const UPPER: i32 = 0b1010_1010;
            [
                _mm256_blend_epi16::<UPPER>(a[0], _mm256_slli_epi32::<16>(b[0])),
                _mm256_blend_epi16::<UPPER>(a[1], _mm256_slli_epi32::<16>(b[1])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot_pairs(acc: I, a: I, b: i32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let b = [_mm256_set1_epi32(b); 2];
            let products = lanes!(_mm256_madd_epi16, a, b);
            lanes!(_mm256_add_epi32, acc, products)
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm_loadu_si128(p.cast());
            [_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(v))]
        }
    }
    #[inline(always)]
    unsafe fn load_bits(p: *const u8, shift: u32, mask: u8) -> I {
        // SAFETY: see the impl.
        unsafe {
            let (n, mask) = (_mm_cvtsi32_si128(shift as i32), _mm256_set1_epi32(mask.into()));
            let [low, high] = Self::load_u8(p);
            [
                _mm256_and_si256(_mm256_srl_epi32(low, n), mask),
                _mm256_and_si256(_mm256_srl_epi32(high, n), mask),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> I {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm_loadu_si128(p.cast());
            [_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(v))]
        }
    }
    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_cvtepi32_ps, a) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: F) {
        // SAFETY: see the impl.
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> I {
        // SAFETY: see the impl.
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: I) {
        // SAFETY: see the impl.
        unsafe { Self::store_i(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn and(a: I, mask: u8) -> I {
        // SAFETY: see the impl.
        unsafe {
            let m = [_mm256_set1_epi8(mask as i8); 2];
            lanes!(_mm256_and_si256, a, m)
        }
    }
    #[inline(always)]
    unsafe fn or(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe { lanes!(_mm256_or_si256, a, b) }
    }
    #[inline(always)]
    unsafe fn shr(a: I, n: u32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_srl_epi16(a[0], n), _mm256_srl_epi16(a[1], n)]
        }
    }
    #[inline(always)]
    unsafe fn shl(a: I, n: u32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_sll_epi16(a[0], n), _mm256_sll_epi16(a[1], n)]
        }
    }
    #[inline(always)]
    unsafe fn select_bit(a: I, bit: u32, value: u8) -> I {
        // SAFETY: see the impl.
        unsafe {
            let bit = [_mm256_set1_epi8((1u8 << bit) as i8); 2];
            let hit = lanes!(_mm256_and_si256, a, bit);
            let mask = lanes!(_mm256_cmpeq_epi8, hit, bit);
            let value = [_mm256_set1_epi8(value as i8); 2];
            lanes!(_mm256_and_si256, mask, value)
        }
    }
    #[inline(always)]
    unsafe fn spread_bits(words: I, unit: usize, value: u8) -> I {
        // SAFETY: see the impl.
        unsafe {
            // The byte that holds the four bits, copied to all bytes of its lane; then one bit tested per byte.
            let rows = _mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
            let byte = _mm256_set1_epi8((unit / 2) as i8);
            let pick = [_mm256_add_epi8(_mm256_broadcastsi128_si256(rows), byte); 2];
            let bits =
                [_mm256_set1_epi32(if unit.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010u32 as i32 });
                    2];
            let value = [_mm256_set1_epi8(value as i8); 2];
            let spread = lanes!(_mm256_shuffle_epi8, words, pick);
            let hit = lanes!(_mm256_and_si256, spread, bits);
            let mask = lanes!(_mm256_cmpeq_epi8, hit, bits);
            lanes!(_mm256_and_si256, mask, value)
        }
    }
    #[inline(always)]
    unsafe fn lookup(indices: I, table: &[i8; 16]) -> I {
        // SAFETY: see the impl; the table is sixteen bytes.
        unsafe {
            let table = [_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())); 2];
            lanes!(_mm256_shuffle_epi8, table, indices)
        }
    }

    #[inline(always)]
    unsafe fn dot_zero() -> I {
        // SAFETY: see the impl.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn dot_unsigned(acc: I, w: I, a: i32) -> I {
        // SAFETY: see the impl.
        unsafe { D::dot_unsigned(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: I, w: I, a: i32) -> I {
        // SAFETY: see the impl.
        unsafe { D::dot_signed(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn finish(acc: I) -> I {
        // SAFETY: see the impl.
        unsafe { D::finish(acc) }
    }
}

// SAFETY (all functions): the trait's contract says that the CPU has AVX2.
impl ByteDot for Maddubs {
    const ISA: Isa = Isa::Avx2;
    const SIGNED_SURPLUS: i32 = 0;

    #[inline(always)]
    fn units_per_dot(max: u32) -> usize {
        // Two products of at most 127 · max add up in each 16-bit lane per unit.
        (i16::MAX as u32 / (2 * 127 * max)).max(1) as usize
    }
    #[inline(always)]
    unsafe fn dot_unsigned(acc: I, w: I, a: i32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let a = [_mm256_set1_epi32(a); 2];
            let products = lanes!(_mm256_maddubs_epi16, w, a);
            lanes!(_mm256_add_epi16, acc, products)
        }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: I, w: I, a: i32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let a = [_mm256_set1_epi32(a); 2];
            let signed = lanes!(_mm256_sign_epi8, a, w);
            let magnitude = lanes!(_mm256_abs_epi8, w);
            let products = lanes!(_mm256_maddubs_epi16, magnitude, signed);
            lanes!(_mm256_add_epi16, acc, products)
        }
    }
    #[inline(always)]
    unsafe fn finish(acc: I) -> I {
        // SAFETY: see the impl.
        unsafe {
            let ones = [_mm256_set1_epi16(1); 2];
            lanes!(_mm256_madd_epi16, acc, ones)
        }
    }
}

impl<D: ByteDot> Gemm for Ymm<D> {
    const PANELS: usize = 1;
}

super::entry_points!(Avx2, "avx2,fma,f16c");
