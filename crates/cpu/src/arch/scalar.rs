//! Portable implementation: the twin of every other ISA, and the only one some machines have.

use crate::detect::Isa;
use crate::kernel::gemm::Gemm;
use crate::simd::{LANES, Simd};

/// Plain Rust, sixteen lanes at a time.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];

#[inline(always)]
fn map<A: Copy, R>(a: [A; LANES], f: impl Fn(A) -> R) -> [R; LANES] {
    std::array::from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip<A: Copy, B: Copy, R>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> R) -> [R; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

// SAFETY (all functions): no special CPU feature is used; pointers are valid for sixteen elements by the trait's
// contract and are read and written unaligned.
impl Simd for Scalar {
    type F = F;
    type I = I;
    type B = [u8; 64];
    type Dot = I;

    const ISA: Isa = Isa::Scalar;
    const TILE: usize = 4;
    const FLOAT_TILE: usize = 4;
    const CHAINED: usize = 1;
    const ATTN_ROWS: usize = 1;
    const UNROLLED: bool = false;
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
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: see the impl.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        // SAFETY: see the impl.
        unsafe { p.cast::<F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> F {
        // SAFETY: see the impl.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        map(bits, |b| half::f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> F {
        // SAFETY: see the impl.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        map(bits, |b| f32::from_bits(u32::from(b) << 16))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        // SAFETY: see the impl.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(map(x, |v| half::f16::from_f32(v).to_bits())) }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn max_abs(a: F, b: F) -> F {
        zip(a, b, |a, b| f32::from_bits((a.to_bits() & 0x7fff_ffff).max(b.to_bits() & 0x7fff_ffff)))
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        f32::from_bits(a.iter().map(|v| v.to_bits()).max().unwrap_or(0))
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn fnma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn zero_below(a: F, b: F, x: F) -> F {
        std::array::from_fn(|i| if a[i] < b[i] { 0.0 } else { x[i] })
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        map(a, f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn exp2i(n: F) -> F {
        map(n, |n| f32::from_bits((((n as i32) + 127) as u32) << 23))
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_i(p: *const u32) -> I {
        // SAFETY: see the impl.
        unsafe { p.cast::<I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut u32, x: I) {
        // SAFETY: see the impl.
        unsafe { p.cast::<I>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn sub_i(a: I, b: I) -> I {
        zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    unsafe fn mul_i(a: I, b: I) -> I {
        zip(a, b, i32::wrapping_mul)
    }
    #[inline(always)]
    unsafe fn pair(a: I, b: I) -> I {
        zip(a, b, |a, b| (a & 0xffff) | (b << 16))
    }
    #[inline(always)]
    unsafe fn dot_pairs(acc: I, a: I, b: i32) -> I {
        zip(acc, a, |acc, a| acc + i32::from(a as i16) * i32::from(b as i16) + (a >> 16) * (b >> 16))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        // SAFETY: see the impl.
        map(unsafe { p.cast::<[u8; LANES]>().read_unaligned() }, i32::from)
    }
    #[inline(always)]
    unsafe fn load_bits(p: *const u8, shift: u32, mask: u8) -> I {
        // SAFETY: see the impl.
        map(unsafe { p.cast::<[u8; LANES]>().read_unaligned() }, |b| i32::from((b >> shift) & mask))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> I {
        // SAFETY: see the impl.
        map(unsafe { p.cast::<[i8; LANES]>().read_unaligned() }, i32::from)
    }
    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        map(a, |v| v as f32)
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: F) {
        // SAFETY: see the impl.
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(map(x, |v| v.round_ties_even() as i8)) }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> [u8; 64] {
        // SAFETY: see the impl.
        unsafe { p.cast::<[u8; 64]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: [u8; 64]) {
        // SAFETY: see the impl.
        unsafe { p.cast::<[u8; 64]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn and(a: [u8; 64], mask: u8) -> [u8; 64] {
        a.map(|b| b & mask)
    }
    #[inline(always)]
    unsafe fn or(a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn shr(a: [u8; 64], n: u32) -> [u8; 64] {
        a.map(|b| b >> n)
    }
    #[inline(always)]
    unsafe fn shl(a: [u8; 64], n: u32) -> [u8; 64] {
        a.map(|b| b << n)
    }
    #[inline(always)]
    unsafe fn select_bit(a: [u8; 64], bit: u32, value: u8) -> [u8; 64] {
        a.map(|b| if (b >> bit) & 1 == 1 { value } else { 0 })
    }
    #[inline(always)]
    unsafe fn spread_bits(words: [u8; 64], unit: usize, value: u8) -> [u8; 64] {
        std::array::from_fn(|i| {
            let bit = 4 * unit + i % 4;
            if (words[i / 4 * 4 + bit / 8] >> (bit % 8)) & 1 == 1 { value } else { 0 }
        })
    }
    #[inline(always)]
    unsafe fn lookup(indices: [u8; 64], table: &[i8; 16]) -> [u8; 64] {
        indices.map(|i| table[usize::from(i & 15)] as u8)
    }

    #[inline(always)]
    unsafe fn dot_zero() -> I {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn dot_unsigned(acc: I, w: [u8; 64], a: i32) -> I {
        let a = a.to_le_bytes();
        std::array::from_fn(|r| {
            (0..4).fold(acc[r], |s, j| s + i32::from(w[4 * r + j]) * i32::from(a[j] as i8))
        })
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: I, w: [u8; 64], a: i32) -> I {
        let a = a.to_le_bytes();
        std::array::from_fn(|r| {
            (0..4).fold(acc[r], |s, j| s + i32::from(w[4 * r + j] as i8) * i32::from(a[j] as i8))
        })
    }
    #[inline(always)]
    unsafe fn finish(acc: I) -> I {
        acc
    }
}

#[cfg(test)]
// SAFETY (all functions): as for the impl of `Simd`.
impl crate::kernel::amx::TileVectors for Scalar {
    unsafe fn planes(q: [u8; 64], zero: i32, scale: I, low: *mut u8, high: *mut u8) {
        for (i, q) in q.into_iter().enumerate() {
            let w = (i32::from(q as i8) - zero) * scale[i / 4];
            // SAFETY: see the impl.
            unsafe {
                *low.add(i) = (w & 127) as u8;
                *high.add(i) = i8::try_from(w >> 7).expect("thirteen bits") as u8;
            }
        }
    }
    unsafe fn halves(x: F) -> I {
        x.map(|x| i32::from(x.round_ties_even() as i16) & 0xffff | (x.round_ties_even() as i32) << 16)
    }
    unsafe fn wide(q: [u8; 64], raise: u32, factor: I, min: I, low: *mut u8, high: *mut u8) {
        for (i, q) in q.into_iter().enumerate() {
            let (factor, min) = (factor[i / 4] >> 16, min[i / 4] >> 16);
            let product = (i32::from(q as i8) << raise) * factor;
            let w = (((product >> 14) + 1) >> 1) + min;
            // SAFETY: see the impl.
            unsafe {
                *low.add(i) = w as u8;
                *high.add(i) = i8::try_from((w + 128) >> 8).expect("sixteen bits") as u8;
            }
        }
    }
    unsafe fn centred(q: [u8; 64], zero: i32) -> [u8; 64] {
        q.map(|q| q.wrapping_sub(zero as u8))
    }
    unsafe fn digits(scale: I) -> (I, I) {
        (scale.map(|s| s & 7), scale.map(|s| s >> 3))
    }
    unsafe fn times(q: [u8; 64], factor: I) -> [u8; 64] {
        std::array::from_fn(|i| q[i] * u8::try_from(factor[i / 4]).expect("a byte"))
    }
    unsafe fn join<const SHIFT: u32>(low: I, high: I) -> I {
        zip(low, high, |low, high| low + (high << SHIFT))
    }
}

impl Gemm for Scalar {
    const PANELS: usize = 2;
}

super::entry_points!(Scalar);
