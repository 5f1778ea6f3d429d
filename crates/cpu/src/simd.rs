//! The vector vocabulary of the tile kernels.
//!
//! A kernel is written once, generic over [`Simd`]; each instruction set supplies this trait in one file under
//! `arch/`. A vector has sixteen lanes on every ISA (one weight row per lane, or one key, or one channel), so that the
//! order of every float operation, and with it every bit of the result, is the same everywhere.
//!
//! All functions are `#[inline(always)]` and become the ISA's instructions inside the `#[target_feature]` entry points
//! of `arch/<isa>.rs`, the only places from which they are called.

use crate::detect::Isa;

/// Lanes of a vector: weight rows of a panel.
pub(crate) const LANES: usize = 16;

/// Sixteen-lane vectors of one instruction set.
///
/// # Safety
/// Every function requires that the CPU has the ISA's features, and that pointers are valid for the bytes that the
/// name implies (unaligned is fine).
pub(crate) trait Simd: Copy {
    /// Sixteen `f32`.
    type F: Copy;
    /// Sixteen `i32`.
    type I: Copy;
    /// Sixty-four bytes: four consecutive K values of each of sixteen rows.
    type B: Copy;
    /// Sums of products of bytes, before they are widened to `i32`.
    type Dot: Copy;

    /// The level that these vectors need.
    const ISA: Isa;
    /// Token columns of a GEMM tile that fit the register file.
    const TILE: usize;
    /// Token columns of a tile of the float formats, whose chains go one after the other if need be.
    const FLOAT_TILE: usize;
    /// Tokens whose four float chains fit the register file side by side.
    const CHAINED: usize;
    /// Rows of an attention tile that fit the register file.
    const ATTN_ROWS: usize;
    /// Whether the loop over the scales of a super-block is unrolled where shifts depend on it.
    const UNROLLED: bool;

    /// Bytes ahead at which the weights of K-quants with scales per 32 are asked for with a single token; 0 leaves it to the
    /// level. Measured.
    const AHEAD: usize = 0;

    /// What [`Simd::dot_signed`] adds to each weight.
    const SIGNED_SURPLUS: i32;

    /// Whether, with many tokens, weights with codes of `bits` bits are better unpacked once for all tokens
    /// ([`crate::kernel::gemm`]) than in each tile ([`crate::kernel::matmul`]). Measured; the bits are the same.
    fn unpacks_once(bits: u32, k_quant: bool) -> bool;
    /// Units (of four K values) that a [`Simd::Dot`] can take before it must be finished, for weights `0..=max`.
    fn units_per_dot(max: u32) -> usize;

    /// Asks for a cache line; any address will do.
    #[inline(always)]
    fn prefetch(_p: *const u8) {}

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn load_f16(p: *const u8) -> Self::F;
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// Rounds to nearest even.
    unsafe fn store_f16(p: *mut u16, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// The larger; `b` where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `max(|a|, |b|)`, NaN where either is: magnitudes compared as integers, in which NaN is the largest.
    unsafe fn max_abs(a: Self::F, b: Self::F) -> Self::F;
    /// The largest lane of non-negative lanes, NaN if there is one.
    unsafe fn largest(a: Self::F) -> f32;
    /// `a · b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c − a · b`, rounded once.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a < b { 0 } else { x }`.
    unsafe fn zero_below(a: Self::F, b: Self::F, x: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `2^n` for integral `n` in −126…127.
    unsafe fn exp2i(n: Self::F) -> Self::F;

    unsafe fn splat_i(x: i32) -> Self::I;
    unsafe fn load_i(p: *const u32) -> Self::I;
    unsafe fn store_i(p: *mut u32, x: Self::I);
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn mul_i(a: Self::I, b: Self::I) -> Self::I;
    /// The lower halves of `a` and `b` in one lane, that of `a` below.
    unsafe fn pair(a: Self::I, b: Self::I) -> Self::I;
    /// Adds to each lane the products of the lane's two `i16` in `a` with the two in `b`.
    unsafe fn dot_pairs(acc: Self::I, a: Self::I, b: i32) -> Self::I;
    /// Sixteen bytes, zero-extended.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// Sixteen bytes, each shifted right by `shift` < 8 and masked, zero-extended.
    unsafe fn load_bits(p: *const u8, shift: u32, mask: u8) -> Self::I;
    /// Sixteen bytes, sign-extended.
    unsafe fn load_i8(p: *const u8) -> Self::I;
    unsafe fn to_f(a: Self::I) -> Self::F;
    /// To the nearest integers, ties to even, stored as `i8`; inputs lie in −128…127.
    unsafe fn store_i8(p: *mut i8, x: Self::F);

    unsafe fn load_bytes(p: *const u8) -> Self::B;
    unsafe fn store_bytes(p: *mut u8, x: Self::B);
    unsafe fn and(a: Self::B, mask: u8) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// Each byte shifted right by `n` < 8; its upper `n` bits are undefined, so mask them.
    unsafe fn shr(a: Self::B, n: u32) -> Self::B;
    /// Each byte shifted left by `n`, which must not push a set bit out.
    unsafe fn shl(a: Self::B, n: u32) -> Self::B;
    /// `value` in the bytes whose bit `bit` is set, 0 in the others.
    unsafe fn select_bit(a: Self::B, bit: u32, value: u8) -> Self::B;
    /// One 32-bit word per lane; byte `j` of the lane becomes `value` if bit `4 · unit + j` of the word is set, else 0.
    unsafe fn spread_bits(words: Self::B, unit: usize, value: u8) -> Self::B;

    /// The entry of `table` at each byte, which is below 16.
    unsafe fn lookup(indices: Self::B, table: &[i8; 16]) -> Self::B;

    unsafe fn dot_zero() -> Self::Dot;
    /// Adds the products of unsigned weights (at most 127) with the four `i8` in `a`.
    unsafe fn dot_unsigned(acc: Self::Dot, w: Self::B, a: i32) -> Self::Dot;
    /// Adds the products of `w + SIGNED_SURPLUS`, for signed weights `w`, with the four `i8` in `a`.
    unsafe fn dot_signed(acc: Self::Dot, w: Self::B, a: i32) -> Self::Dot;
    unsafe fn finish(acc: Self::Dot) -> Self::I;

    /// Sixteen E4M3 numbers, 2^-8 of each: bits of a half, whose exponent has another bias. Not of the codes of NaN.
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self::F {
        // SAFETY: `halves` are sixteen; the caller vouches for the ISA and for `p`.
        unsafe {
            let codes = p.cast::<[i8; LANES]>().read_unaligned();
            let halves = codes.map(|code| (i16::from(code) << 7) as u16 & 0xbfff);
            Self::load_f16(halves.as_ptr().cast())
        }
    }

    /// Rounds to nearest even.
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, x: Self::F) {
        let mut v = [0f32; LANES];
        // SAFETY: `v` holds sixteen floats; the caller vouches for the ISA and for `p`.
        unsafe {
            Self::store(v.as_mut_ptr(), x);
            let bits = v.map(|x| half::bf16::from_f32(x).to_bits());
            std::ptr::copy_nonoverlapping(bits.as_ptr().cast::<u8>(), p.cast(), 2 * LANES);
        }
    }

    /// Sum of the lanes by the fixed tree: lane `i` with `i + 8`, then `+ 4`, `+ 2`, `+ 1`.
    #[inline(always)]
    unsafe fn sum(x: Self::F) -> f32 {
        let mut v = [0f32; LANES];
        // SAFETY: `v` holds sixteen floats; the caller vouches for the ISA.
        unsafe { Self::store(v.as_mut_ptr(), x) };
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] += v[i + half];
            }
        }
        v[0]
    }

    /// `e^x`: Cody–Waite reduction to |r| ≤ ln2/2 and a degree-6 polynomial (minimax for the relative error, 4e-9), within
    /// 1 ulp; 0 below −87.3 (the range of normal results), at most e^88.
    #[inline(always)]
    unsafe fn exp(x: Self::F) -> Self::F {
        // SAFETY: lane-wise arithmetic; the caller vouches for the ISA.
        unsafe {
            let low = Self::splat(-87.3);
            let c = Self::min(Self::splat(88.0), Self::max(low, x));
            let n = Self::round(Self::mul(c, Self::splat(std::f32::consts::LOG2_E)));
            // ln 2 in two parts, the first with trailing zeros, so that n · hi is exact.
            let r = Self::fnma(n, Self::splat(0.693_359_4), c);
            let r = Self::fnma(n, Self::splat(-2.121_944_4e-4), r);
            let mut p = Self::splat(1.381_453_9e-3);
            for k in [8.368_745e-3, 4.166_839e-2, 0.166_665_21, 0.499_999_94, 1.0, 1.0] {
                p = Self::fma(p, r, Self::splat(k));
            }
            Self::zero_below(x, low, Self::mul(p, Self::exp2i(n)))
        }
    }
}
