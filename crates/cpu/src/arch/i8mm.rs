//! The dot product and the matrix product of bytes (`i8mm`, Armv8.6): Neoverse V1 and N2, Cortex-A510, A710 and X2,
//! Apple M2, and what came after them.
//!
//! `smmla` makes the four sums of two rows by two tokens, of eight products each: twice what `sdot` does. Its operands
//! are runs of eight values of K, one of each row and one of each token. So unpacked weights lie as pairs of rows, and
//! tokens go two at a time, a last odd one paired with itself; with few tokens, where weights are not unpacked first,
//! all is [`super::dotprod`]. A register holds rows and tokens crosswise, `[r0·t0, r0·t1, r1·t0, r1·t1]`, and integer
//! scales are applied to it like that; they are set right before floats are made of them.
//!
//! The intrinsic is not in stable Rust, assembly is.

use super::dotprod::Sdot;
use super::neon::{B, ByteDot, I, Neon};
use super::{Kernels, Peak};
use crate::detect::Isa;
use crate::format::{Block32, Super256};
use crate::kernel::gemm::{Gemm, Unpacked};
use std::arch::aarch64::*;
use std::arch::asm;

/// Products of pairs of rows and pairs of tokens, or those of the level below.
#[derive(Clone, Copy)]
pub(crate) struct Smmla;

// SAFETY (all functions): the trait's contract says that the CPU has `dotprod`, as every one of this level has.
impl ByteDot for Smmla {
    const ISA: Isa = Isa::I8mm;

    #[inline(always)]
    unsafe fn dot(acc: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
        // SAFETY: passed on; a CPU of this level has `dotprod`.
        unsafe { Sdot::dot(acc, w, a) }
    }
}

type I8mm = Neon<Smmla>;

/// Token pairs of the widest tile.
const PAIRS: usize = 3;
/// Row pairs that are summed together: half a panel, so that with [`PAIRS`] the sums and scaled sums of a super-block
/// fill 24 of the 32 registers.
const ROW_PAIRS: usize = 4;

/// Activations of a tile, by runs of eight values of K: those of two tokens side by side.
type Runs<const N: usize> = [[[i8; 16]; PAIRS]; N];
/// Sums of half a panel, rows and tokens crosswise.
type Sums = [[int32x4_t; PAIRS]; ROW_PAIRS];

/// `acc + w·aᵀ`, for two rows and two tokens of eight values.
///
/// # Safety
/// The CPU has `i8mm`.
#[inline(always)]
unsafe fn smmla(mut acc: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: the caller vouches for `i8mm`; the instruction reads and writes its operands only.
    unsafe {
        asm!(
            "smmla {acc:v}.4s, {w:v}.16b, {a:v}.16b",
            acc = inout(vreg) acc,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Lays `8 · N` values of `T` tokens as [`Runs`].
///
/// # Safety
/// The tokens have as many values.
#[inline(always)]
unsafe fn runs<const N: usize, const T: usize>(a: [*const i8; T]) -> Runs<N> {
    const { assert!(T <= 2 * PAIRS && N.is_multiple_of(2)) };
    let mut runs = [[[0; 16]; PAIRS]; N];
    for n in (0..N).step_by(2) {
        for p in 0..T.div_ceil(2) {
            // SAFETY: sixteen values from run `n` on are the caller's.
            unsafe {
                let x = vreinterpretq_s64_s8(vld1q_s8(a[2 * p].add(8 * n)));
                let y = vreinterpretq_s64_s8(vld1q_s8(a[(2 * p + 1).min(T - 1)].add(8 * n)));
                vst1q_s8(runs[n][p].as_mut_ptr(), vreinterpretq_s8_s64(vzip1q_s64(x, y)));
                vst1q_s8(runs[n + 1][p].as_mut_ptr(), vreinterpretq_s8_s64(vzip2q_s64(x, y)));
            }
        }
    }
    runs
}

/// Adds the products of `count` runs from `first` of half `half` of a panel's rows.
///
/// # Safety
/// The CPU has `i8mm`; the unpacked weights have these runs (of two units each), and `a` those from its own `from` on.
#[inline(always)]
unsafe fn products<const N: usize, const T: usize>(
    w: &Unpacked,
    half: usize,
    first: usize,
    count: usize,
    a: &Runs<N>,
    from: usize,
) -> Sums {
    // SAFETY: rows of half a panel fill one of the two units of a run.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); PAIRS]; ROW_PAIRS];
        for n in 0..count {
            let tokens: [_; PAIRS] = std::array::from_fn(|p| vld1q_s8(a[from + n][p].as_ptr()));
            let rows = w.q[2 * (first + n) + half].as_ptr().cast::<i8>();
            for r in 0..ROW_PAIRS {
                let w = vld1q_s8(rows.add(16 * r));
                for p in 0..T.div_ceil(2) {
                    sums[r][p] = smmla(sums[r][p], w, tokens[p]);
                }
            }
        }
        sums
    }
}

/// Writes half a panel's sums to the lanes of each token.
///
/// # Safety
/// None beyond NEON.
#[inline(always)]
unsafe fn straighten<const T: usize>(sums: &Sums, half: usize, out: &mut [I; T]) {
    for t in 0..T {
        for i in 0..ROW_PAIRS / 2 {
            let (low, high) = (sums[2 * i][t / 2], sums[2 * i + 1][t / 2]);
            // SAFETY: NEON is part of aarch64.
            out[t][2 * half + i] =
                unsafe { if t % 2 == 0 { vuzp1q_s32(low, high) } else { vuzp2q_s32(low, high) } };
        }
    }
}

// SAFETY (all functions): the trait's contract says that the CPU has `i8mm` and that pointers are valid for what the
// name implies.
impl Gemm for I8mm {
    /// A second would halve the work of laying out activations, an eighth as many `zip` as products, and double the code.
    const PANELS: usize = 1;
    const WIDTH: usize = 2 * PAIRS;

    #[inline(always)]
    unsafe fn store_units(p: *mut [u8; 64], first: B, second: B) {
        for i in 0..4 {
            // SAFETY: see the impl.
            unsafe {
                let (x, y) = (vreinterpretq_u32_u8(first[i]), vreinterpretq_u32_u8(second[i]));
                let p = p.cast::<u8>().add(32 * i);
                vst1q_u8(p, vreinterpretq_u8_u32(vzip1q_u32(x, y)));
                vst1q_u8(p.add(16), vreinterpretq_u8_u32(vzip2q_u32(x, y)));
            }
        }
    }

    #[inline(always)]
    unsafe fn sums256<F: Super256, const P: usize, const T: usize>(
        w: &[Unpacked; P],
        a: [*const i8; T],
    ) -> [[I; T]; P] {
        let per_scale = F::SCALED / 8;
        // SAFETY: see the impl.
        unsafe {
            let a = runs::<32, T>(a);
            let mut out = [[[vdupq_n_s32(0); 4]; T]; P];
            for p in 0..P {
                for half in 0..2 {
                    let mut scaled = [[vdupq_n_s32(0); PAIRS]; ROW_PAIRS];
                    for j in 0..256 / F::SCALED {
                        let n = j * per_scale;
                        let sums = products::<32, T>(&w[p], half, n, per_scale, &a, n);
                        for i in 0..ROW_PAIRS / 2 {
                            let scales = w[p].scales[j][8 * half + 4 * i..].as_ptr().cast::<i32>();
                            let scales = vld1q_s32(scales);
                            for (r, scales) in
                                [(2 * i, vzip1q_s32(scales, scales)), (2 * i + 1, vzip2q_s32(scales, scales))]
                            {
                                for q in 0..T.div_ceil(2) {
                                    scaled[r][q] = vmlaq_s32(scaled[r][q], sums[r][q], scales);
                                }
                            }
                        }
                    }
                    straighten(&scaled, half, &mut out[p]);
                }
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn sums32<F: Block32, const P: usize, const T: usize>(
        w: &[Unpacked; P],
        b: usize,
        a: [*const i8; T],
    ) -> [[I; T]; P] {
        // SAFETY: see the impl.
        unsafe {
            let a = runs::<4, T>(a);
            let mut out = [[[vdupq_n_s32(0); 4]; T]; P];
            for p in 0..P {
                for half in 0..2 {
                    straighten(&products::<4, T>(&w[p], half, 4 * b, 4, &a, 0), half, &mut out[p]);
                }
            }
            out
        }
    }
}

mod all {
    use super::I8mm;
    crate::arch::entry_points!(I8mm, "neon,dotprod,i8mm");
}

/// Independent products of a round of [`peak_dot`].
const CHAINS: usize = 12;

/// `rounds` times a product into each of [`CHAINS`] sums.
///
/// # Safety
/// As [`crate::kernel::peak::dot`], for this level.
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn peak_dot(rounds: usize, data: *mut u8) {
    // SAFETY: all offsets are below `PEAK_BYTES` − 16; the CPU has `i8mm`.
    unsafe {
        let mut sums = [vdupq_n_s32(0); CHAINS];
        for i in 0..rounds {
            let w: [_; 4] = std::array::from_fn(|r| vld1q_s8(data.add(i % 32 * 64 + 16 * r).cast()));
            let a: [_; 3] = std::array::from_fn(|p| vld1q_s8(data.add(2048 + i % 16 * 64 + 16 * p).cast()));
            for c in 0..CHAINS {
                sums[c] = smmla(sums[c], w[c / 3], a[c % 3]);
            }
        }
        let all = sums.into_iter().fold(vdupq_n_s32(0), |all, sum| vaddq_s32(all, sum));
        vst1q_s32(data.cast(), all);
    }
}

pub(crate) static KERNELS: Kernels = Kernels {
    peak: Peak { dot: peak_dot, dot_round: CHAINS * 2 * 2 * 8, ..all::KERNELS.peak },
    ..all::KERNELS
};
