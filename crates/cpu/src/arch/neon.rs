//! NEON: every aarch64.
//!
//! A sixteen-lane vector is four 128-bit registers, so that the register file holds eight of them, as on AVX2. Products
//! of bytes are widened to 16 bits (`smull`), added in pairs (`addp`) and widened again (`sadalp`); the levels above
//! have better ones ([`ByteDot`]).

use crate::detect::Isa;
use crate::kernel::gemm::Gemm;
use crate::simd::Simd;
use std::arch::aarch64::*;
use std::marker::PhantomData;

/// Four 128-bit registers, with the byte products `D`.
#[derive(Clone, Copy)]
pub(crate) struct Neon<D>(PhantomData<D>);

/// The level of every aarch64.
type Plain = Neon<Smull>;

/// Products of bytes.
///
/// # Safety
/// The CPU has the level's features.
pub(crate) trait ByteDot: Copy {
    const ISA: Isa;
    /// Adds to each lane of `acc` the four products of its bytes in `w` with those in `a`. No byte of `a` is −128.
    unsafe fn dot(acc: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t;
}

/// By way of 16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Smull;

// SAFETY (all functions): NEON is part of aarch64.
impl ByteDot for Smull {
    const ISA: Isa = Isa::Neon;

    #[inline(always)]
    unsafe fn dot(acc: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
        // SAFETY: NEON is part of aarch64.
        unsafe {
            let w = vreinterpretq_s8_u8(w);
            let low = vmull_s8(vget_low_s8(w), vget_low_s8(a));
            let high = vmull_high_s8(w, a);
            // Two products, at most 2 · 128 · 127 in magnitude, fit 16 bits.
            vpadalq_s16(acc, vpaddq_s16(low, high))
        }
    }
}

type F = [float32x4_t; 4];
pub(super) type I = [int32x4_t; 4];
pub(super) type B = [uint8x16_t; 4];

/// `f` of each of four registers.
macro_rules! each {
    ($i:ident => $e:expr) => {
        [
            { const $i: usize = 0; $e },
            { const $i: usize = 1; $e },
            { const $i: usize = 2; $e },
            { const $i: usize = 3; $e },
        ]
    };
}

/// Sixteen bytes, zero-extended.
///
/// # Safety
/// None beyond NEON, which is part of aarch64.
#[inline(always)]
unsafe fn widen_u8(v: uint8x16_t) -> I {
    // SAFETY: NEON is part of aarch64.
    unsafe {
        let halves = [vmovl_u8(vget_low_u8(v)), vmovl_high_u8(v)];
        [
            vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(halves[0]))),
            vreinterpretq_s32_u32(vmovl_high_u16(halves[0])),
            vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(halves[1]))),
            vreinterpretq_s32_u32(vmovl_high_u16(halves[1])),
        ]
    }
}

// SAFETY (all functions): NEON is part of aarch64, the trait's contract vouches for what `D` needs and says that pointers are
// valid for the bytes the name implies; NEON loads and stores need no alignment beyond that of an element, and elements
// wider than a byte are accessed through byte pointers where they may be unaligned.
impl<D: ByteDot> Simd for Neon<D> {
    type F = F;
    type I = I;
    type B = B;
    type Dot = I;

    const ISA: Isa = D::ISA;
    const TILE: usize = 3;
    const FLOAT_TILE: usize = 6;
    const CHAINED: usize = 1;
    const ATTN_ROWS: usize = 1;
    const UNROLLED: bool = true;
    const SIGNED_SURPLUS: i32 = 0;

    #[inline(always)]
    fn unpacks_once(_bits: u32, _k_quant: bool) -> bool {
        true
    }
    #[inline(always)]
    fn units_per_dot(_max: u32) -> usize {
        8
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        // SAFETY: see the impl.
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vreinterpretq_f32_u8(vld1q_u8(p.cast::<u8>().add(16 * I)))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        // SAFETY: see the impl.
        unsafe { each!(I => vst1q_u8(p.cast::<u8>().add(16 * I), vreinterpretq_u8_f32(x[I]))) };
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p.add(8 * I))))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> F {
        // SAFETY: see the impl.
        unsafe {
            each!(I => vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p.add(8 * I))))))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        // SAFETY: see the impl.
        unsafe { each!(I => vst1_u8(p.cast::<u8>().add(8 * I), vreinterpret_u8_f16(vcvt_f16_f32(x[I])))) };
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vaddq_f32(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vsubq_f32(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vmulq_f32(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vdivq_f32(a[I], b[I])) }
    }
    // `fmax` and `fmin` keep a NaN of either side and order zeros by sign; the trait asks for a plain choice.
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vbslq_f32(vcgtq_f32(a[I], b[I]), a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vbslq_f32(vcltq_f32(a[I], b[I]), a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn max_abs(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            let magnitude = vdupq_n_u32(u32::MAX >> 1);
            each!(I => {
                let a = vandq_u32(vreinterpretq_u32_f32(a[I]), magnitude);
                let b = vandq_u32(vreinterpretq_u32_f32(b[I]), magnitude);
                vreinterpretq_f32_u32(vmaxq_u32(a, b))
            })
        }
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let a = each!(I => vreinterpretq_u32_f32(a[I]));
            f32::from_bits(vmaxvq_u32(vmaxq_u32(vmaxq_u32(a[0], a[1]), vmaxq_u32(a[2], a[3]))))
        }
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vfmaq_f32(c[I], a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn fnma(a: F, b: F, c: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vfmsq_f32(c[I], a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn zero_below(a: F, b: F, x: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            each!(I => vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x[I]), vcltq_f32(a[I], b[I]))))
        }
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vrndnq_f32(a[I])) }
    }
    #[inline(always)]
    unsafe fn exp2i(n: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            let bias = vdupq_n_s32(127);
            each!(I => vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n[I]), bias))))
        }
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        // SAFETY: see the impl.
        unsafe { [vdupq_n_s32(x); 4] }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const u32) -> I {
        // SAFETY: see the impl.
        unsafe { each!(I => vreinterpretq_s32_u8(vld1q_u8(p.cast::<u8>().add(16 * I)))) }
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut u32, x: I) {
        // SAFETY: see the impl.
        unsafe { each!(I => vst1q_u8(p.cast::<u8>().add(16 * I), vreinterpretq_u8_s32(x[I]))) };
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe { each!(I => vaddq_s32(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn sub_i(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe { each!(I => vsubq_s32(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe { each!(I => vmulq_s32(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn pair(a: I, b: I) -> I {
        // SAFETY: see the impl.
        unsafe { each!(I => vsliq_n_s32::<16>(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn dot_pairs(acc: I, a: I, b: i32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let b = vreinterpretq_s16_s32(vdupq_n_s32(b));
            each!(I => {
                let a = vreinterpretq_s16_s32(a[I]);
                let products = vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
                vaddq_s32(acc[I], products)
            })
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        // SAFETY: see the impl.
        unsafe { widen_u8(vld1q_u8(p)) }
    }
    #[inline(always)]
    unsafe fn load_bits(p: *const u8, shift: u32, mask: u8) -> I {
        // SAFETY: see the impl.
        unsafe {
            let shifted = vshlq_u8(vld1q_u8(p), vdupq_n_s8(-(shift as i8)));
            widen_u8(vandq_u8(shifted, vdupq_n_u8(mask)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> I {
        // SAFETY: see the impl.
        unsafe {
            let v = vld1q_s8(p.cast());
            let halves = [vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v)];
            [
                vmovl_s16(vget_low_s16(halves[0])),
                vmovl_high_s16(halves[0]),
                vmovl_s16(vget_low_s16(halves[1])),
                vmovl_high_s16(halves[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        // SAFETY: see the impl.
        unsafe { each!(I => vcvtq_f32_s32(a[I])) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: F) {
        // SAFETY: see the impl.
        unsafe {
            let words = each!(I => vmovn_s32(vcvtnq_s32_f32(x[I])));
            let low = vmovn_s16(vcombine_s16(words[0], words[1]));
            let high = vmovn_s16(vcombine_s16(words[2], words[3]));
            vst1q_s8(p, vcombine_s8(low, high));
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> B {
        // SAFETY: see the impl.
        unsafe { each!(I => vld1q_u8(p.add(16 * I))) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: B) {
        // SAFETY: see the impl.
        unsafe { each!(I => vst1q_u8(p.add(16 * I), x[I])) };
    }
    #[inline(always)]
    unsafe fn and(a: B, mask: u8) -> B {
        // SAFETY: see the impl.
        unsafe { each!(I => vandq_u8(a[I], vdupq_n_u8(mask))) }
    }
    #[inline(always)]
    unsafe fn or(a: B, b: B) -> B {
        // SAFETY: see the impl.
        unsafe { each!(I => vorrq_u8(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn shr(a: B, n: u32) -> B {
        // SAFETY: see the impl.
        unsafe { each!(I => vshlq_u8(a[I], vdupq_n_s8(-(n as i8)))) }
    }
    #[inline(always)]
    unsafe fn shl(a: B, n: u32) -> B {
        // SAFETY: see the impl.
        unsafe { each!(I => vshlq_u8(a[I], vdupq_n_s8(n as i8))) }
    }
    #[inline(always)]
    unsafe fn select_bit(a: B, bit: u32, value: u8) -> B {
        // SAFETY: see the impl.
        unsafe { each!(I => vandq_u8(vtstq_u8(a[I], vdupq_n_u8(1 << bit)), vdupq_n_u8(value))) }
    }
    #[inline(always)]
    unsafe fn spread_bits(words: B, unit: usize, value: u8) -> B {
        // SAFETY: see the impl.
        unsafe {
            // The byte that holds the four bits, copied to all bytes of its lane; then one bit tested per byte.
            const ROWS: [u8; 16] = [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12];
            let pick = vaddq_u8(vld1q_u8(ROWS.as_ptr()), vdupq_n_u8((unit / 2) as u8));
            let bits = if unit.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010 };
            let bits = vreinterpretq_u8_u32(vdupq_n_u32(bits));
            each!(I => vandq_u8(vtstq_u8(vqtbl1q_u8(words[I], pick), bits), vdupq_n_u8(value)))
        }
    }
    #[inline(always)]
    unsafe fn lookup(indices: B, table: &[i8; 16]) -> B {
        // SAFETY: see the impl; the table is sixteen bytes.
        unsafe {
            let table = vld1q_u8(table.as_ptr().cast());
            each!(I => vqtbl1q_u8(table, indices[I]))
        }
    }

    #[inline(always)]
    unsafe fn dot_zero() -> I {
        // SAFETY: see the impl.
        unsafe { [vdupq_n_s32(0); 4] }
    }
    #[inline(always)]
    unsafe fn dot_unsigned(acc: I, w: B, a: i32) -> I {
        // SAFETY: see the impl. Weights of at most 127 are the same signed.
        unsafe { Self::dot_signed(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: I, w: B, a: i32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let a = vreinterpretq_s8_s32(vdupq_n_s32(a));
            each!(I => D::dot(acc[I], w[I], a))
        }
    }
    #[inline(always)]
    unsafe fn finish(acc: I) -> I {
        acc
    }
}

impl Gemm for Plain {
    const PANELS: usize = 1;
}

super::entry_points!(Plain, "neon");
