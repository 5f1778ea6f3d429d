//! Products of many tokens: weights are unpacked to bytes once, 256 values of K at a time, and used by all tokens.
//!
//! Against the tiles of [`super::matmul`], which unpack a unit again for every few tokens, this costs a store and a load
//! of the bytes and keeps the unpacking out of the inner loop: what is left there is a load, the broadcasts and the
//! products. Two panels go side by side where registers allow, so that a broadcast serves two products. The order of
//! every float operation is that of [`super::matmul`], and so are the bits.
//!
//! # Safety
//! As in [`super::matmul`].

use super::matmul::MatMul;
use crate::format::{Block32, Super256};
use crate::simd::{LANES, Simd};

/// Values of K that are unpacked together.
const CHUNK: usize = 256;
/// Tokens whose sums are kept while all of K passes by: a multiple of every tile.
const TOKENS: usize = 120;

/// 256 values of sixteen rows, unpacked: 6 KB.
#[repr(C, align(64))]
pub(crate) struct Unpacked {
    /// 64 units of four K values, each two as [`Gemm::store_units`] lays them.
    pub(crate) q: [[u8; 64]; 64],
    /// K-quants: integer scales. Others: `d` and `m` of eight blocks, as floats.
    pub(crate) scales: [[u32; LANES]; 16],
    /// K-quants: minima (or scales, see [`super::matmul`]), two in a lane.
    pairs: [[u32; LANES]; 8],
    d: [f32; LANES],
    dmin: [f32; LANES],
}

impl Unpacked {
    const EMPTY: Unpacked = Unpacked {
        q: [[0; 64]; 64],
        scales: [[0; LANES]; 16],
        pairs: [[0; LANES]; 8],
        d: [0.0; LANES],
        dmin: [0.0; LANES],
    };
}

/// How a level sums the products of unpacked weights.
///
/// # Safety
/// As for [`Simd`]; activations are valid for the values of K that the weights cover.
pub(crate) trait Gemm: Simd {
    /// Panels side by side: 1 or 2.
    const PANELS: usize;
    /// Tokens of the widest tile.
    const WIDTH: usize = Self::TILE;

    /// Stores two consecutive units, 128 bytes.
    #[inline(always)]
    unsafe fn store_units(p: *mut [u8; 64], first: Self::B, second: Self::B) {
        // SAFETY: passed on.
        unsafe {
            Self::store_bytes(p.cast(), first);
            Self::store_bytes(p.add(1).cast(), second);
        }
    }

    /// `Σ sc·Σ q·a` of a super-block, whose activations start at `a`.
    #[inline(always)]
    unsafe fn sums256<F: Super256, const P: usize, const T: usize>(
        w: &[Unpacked; P],
        a: [*const i8; T],
    ) -> [[Self::I; T]; P] {
        let units = F::SCALED / 4;
        // SAFETY: passed on.
        unsafe {
            let mut s = [[Self::splat_i(0); T]; P];
            for j in 0..256 / F::SCALED {
                let step = Self::units_per_dot(F::MAX);
                let a = a.map(|a| a.add(j * F::SCALED));
                let sums = broadcast::<Self, P, T>(w, j * units, units, a, step, false);
                for p in 0..P {
                    let scale = Self::load_i(w[p].scales[j].as_ptr());
                    for t in 0..T {
                        s[p][t] = Self::add_i(s[p][t], Self::mul_i(sums[p][t], scale));
                    }
                }
            }
            s
        }
    }

    /// `Σ q·a` of the block at place `b`, whose activations start at `a`, with the surplus of [`Simd::dot_signed`] if
    /// codes are signed.
    #[inline(always)]
    unsafe fn sums32<F: Block32, const P: usize, const T: usize>(
        w: &[Unpacked; P],
        b: usize,
        a: [*const i8; T],
    ) -> [[Self::I; T]; P] {
        // SAFETY: passed on.
        unsafe { broadcast::<Self, P, T>(w, 8 * b, 8, a, Self::units_per_dot(F::MAX), F::SIGNED) }
    }
}

/// Sums of `units` units from `first` on, whose activations start at `a`: a broadcast of four of them at a time.
#[inline(always)]
unsafe fn broadcast<S: Simd, const P: usize, const T: usize>(
    w: &[Unpacked; P],
    first: usize,
    units: usize,
    a: [*const i8; T],
    per_dot: usize,
    signed: bool,
) -> [[S::I; T]; P] {
    let step = 1usize << per_dot.min(units).ilog2();
    let mut u = 0;
    // SAFETY: the caller vouches for the ISA and for these units of `a`.
    unsafe {
        let mut sums = [[S::splat_i(0); T]; P];
        while u < units {
            let mut dots = [[S::dot_zero(); T]; P];
            for v in u..u + step {
                let bytes: [S::B; P] = std::array::from_fn(|p| S::load_bytes(w[p].q[first + v].as_ptr()));
                for t in 0..T {
                    let x = a[t].add(4 * v).cast::<i32>().read_unaligned();
                    for p in 0..P {
                        dots[p][t] = if signed {
                            S::dot_signed(dots[p][t], bytes[p], x)
                        } else {
                            S::dot_unsigned(dots[p][t], bytes[p], x)
                        };
                    }
                }
            }
            for p in 0..P {
                for t in 0..T {
                    let sum = S::finish(dots[p][t]);
                    sums[p][t] = if step == units { sum } else { S::add_i(sums[p][t], sum) };
                }
            }
            u += step;
        }
        sums
    }
}

/// Sums of the tokens of a pass.
#[repr(align(64))]
struct Sums([[f32; LANES]; TOKENS]);

/// Runs `$pass::<S, F, P>(job, first panel, first token, tokens)` over panels, in pairs if the level has the registers.
macro_rules! for_panels {
    ($pass:ident, $s:ty, $f:ty, $job:expr) => {
        for first in (0..$job.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min($job.tokens - first);
            let mut p = 0;
            if <$s>::PANELS == 2 {
                while $job.count - p >= 2 {
                    $pass::<$s, $f, 2>($job, p, first, tokens);
                    p += 2;
                }
            }
            while p < $job.count {
                $pass::<$s, $f, 1>($job, p, first, tokens);
                p += 1;
            }
        }
    };
}

/// Calls `$tile::<S, F, P, T>` over `$tokens` tokens, in the widest tiles.
macro_rules! for_tiles {
    ($tile:ident, $s:ty, $f:ty, $p:ident, $tokens:expr, $t:ident, $args:tt) => {
        let mut $t = 0;
        for_tiles!(@ $tile, $s, $f, $p, $tokens, $t, $args, 6, 3, 2, 1);
    };
    (@ $tile:ident, $s:ty, $f:ty, $p:ident, $tokens:expr, $t:ident, $args:tt, $($n:literal),+) => {
        $(
            if $n <= <$s>::WIDTH {
                while $tokens - $t >= $n {
                    for_tiles!(@call $tile, $s, $f, $p, $n, $args);
                    $t += $n;
                }
            }
        )+
    };
    (@call $tile:ident, $s:ty, $f:ty, $p:ident, $n:literal, ($($arg:expr),*)) => {
        $tile::<$s, $f, $p, $n>($($arg),*)
    };
}

/// The K-quants.
///
/// # Safety
/// See [`super::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn super256<S: Gemm, F: Super256>(job: &MatMul) {
    // SAFETY: passed on.
    unsafe { for_panels!(pass256, S, F, job) }
}

/// `tokens` tokens from `first` on, against `P` panels from `panel` on.
#[inline(always)]
unsafe fn pass256<S: Gemm, F: Super256, const P: usize>(
    job: &MatMul,
    panel: usize,
    first: usize,
    tokens: usize,
) {
    let groups = job.k / 256;
    let mut sums: [Sums; P] = [const { Sums([[0.0; LANES]; TOKENS]) }; P];
    let mut unpacked: [Unpacked; P] = [Unpacked::EMPTY; P];
    // SAFETY: passed on; tokens and groups are the job's.
    unsafe {
        for g in 0..groups {
            for p in 0..P {
                unpack256::<S, F>(
                    job.panels.add((panel + p) * job.panel_bytes + g * F::GROUP_BYTES),
                    &mut unpacked[p],
                );
            }
            for_tiles!(tile256, S, F, P, tokens, t, (&unpacked, job, g, first + t, &mut sums, t));
        }
        store::<S, P>(job, panel, first, tokens, &sums);
    }
}

#[inline(always)]
unsafe fn store<S: Simd, const P: usize>(
    job: &MatMul,
    panel: usize,
    first: usize,
    tokens: usize,
    sums: &[Sums; P],
) {
    for t in 0..tokens {
        for p in 0..P {
            // SAFETY: token and panel are the job's.
            unsafe {
                let out = job.out.add((first + t) * job.out_stride + (panel + p) * LANES);
                S::store(out, S::load(sums[p].0[t].as_ptr()));
            }
        }
    }
}

#[inline(always)]
unsafe fn unpack256<S: Gemm, F: Super256>(group: *const u8, to: &mut Unpacked) {
    // SAFETY: the group is whole; the caller vouches for the ISA.
    unsafe {
        for u in (0..64).step_by(2) {
            S::store_units(to.q.as_mut_ptr().add(u), F::unit::<S>(group, u), F::unit::<S>(group, u + 1));
        }
        for j in 0..256 / F::SCALED {
            S::store_i(to.scales[j].as_mut_ptr(), F::scale::<S>(group, j));
        }
        for p in 0..128 / F::SCALED {
            let pair = if F::HAS_MIN {
                S::pair(F::min::<S>(group, 2 * p), F::min::<S>(group, 2 * p + 1))
            } else {
                S::pair(F::scale::<S>(group, 2 * p), F::scale::<S>(group, 2 * p + 1))
            };
            S::store_i(to.pairs[p].as_mut_ptr(), pair);
        }
        S::store(to.d.as_mut_ptr(), F::d::<S>(group));
        S::store(to.dmin.as_mut_ptr(), F::dmin::<S>(group));
    }
}

/// One super-block of `T` tokens and `P` panels; sums of token `t` of the tile are at `at + t`.
#[inline(always)]
unsafe fn tile256<S: Gemm, F: Super256, const P: usize, const T: usize>(
    w: &[Unpacked; P],
    job: &MatMul,
    g: usize,
    token: usize,
    sums: &mut [Sums; P],
    at: usize,
) {
    let groups = job.k / 256;
    // SAFETY: the job's pointers cover super-block `g` of the tile's tokens; the caller vouches for the ISA.
    unsafe {
        let a: [*const i8; T] = std::array::from_fn(|t| job.acts.q.add((token + t) * job.k + 256 * g));
        let s = S::sums256::<F, P, T>(w, a);
        for t in 0..T {
            let words = job.acts.words(F::SCALED, (token + t) * groups + g);
            let da = S::splat(*job.acts.d.add((token + t) * groups + g));
            for p in 0..P {
                let mut m = S::splat_i(0);
                for i in 0..128 / F::SCALED {
                    let word = *words.add(i);
                    m = S::dot_pairs(m, S::load_i(w[p].pairs[i].as_ptr()), word);
                }
                let mut sum = s[p][t];
                if F::ZERO != 0 {
                    sum = S::sub_i(sum, S::mul_i(m, S::splat_i(F::ZERO)));
                }
                let slot = sums[p].0[at + t].as_mut_ptr();
                let mut acc = S::fma(S::to_f(sum), S::mul(S::load(w[p].d.as_ptr()), da), S::load(slot));
                if F::HAS_MIN {
                    acc = S::fnma(S::to_f(m), S::mul(S::load(w[p].dmin.as_ptr()), da), acc);
                }
                S::store(slot, acc);
            }
        }
    }
}

/// The formats with 32-value blocks.
///
/// # Safety
/// See [`super::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn block32<S: Gemm, F: Block32>(job: &MatMul) {
    // SAFETY: passed on.
    unsafe { for_panels!(pass32, S, F, job) }
}

/// As [`pass256`].
#[inline(always)]
unsafe fn pass32<S: Gemm, F: Block32, const P: usize>(
    job: &MatMul,
    panel: usize,
    first: usize,
    tokens: usize,
) {
    let blocks = job.k / 32;
    let mut sums: [Sums; P] = [const { Sums([[0.0; LANES]; TOKENS]) }; P];
    let mut unpacked: [Unpacked; P] = [Unpacked::EMPTY; P];
    // SAFETY: passed on; tokens and blocks are the job's.
    unsafe {
        for start in (0..blocks).step_by(CHUNK / 32) {
            let count = (CHUNK / 32).min(blocks - start);
            for p in 0..P {
                let base = job.panels.add((panel + p) * job.panel_bytes);
                for b in 0..count {
                    let (group, slot) =
                        (base.add((start + b) / F::SLOTS * F::GROUP_BYTES), (start + b) % F::SLOTS);
                    unpack32::<S, F>(group, slot, b, &mut unpacked[p]);
                }
            }
            for_tiles!(
                tile32,
                S,
                F,
                P,
                tokens,
                t,
                (&unpacked, job, start..start + count, first + t, &mut sums, t)
            );
        }
        store::<S, P>(job, panel, first, tokens, &sums);
    }
}

/// Block `slot` of a group, to place `b`.
#[inline(always)]
unsafe fn unpack32<S: Gemm, F: Block32>(group: *const u8, slot: usize, b: usize, to: &mut Unpacked) {
    // SAFETY: the group is whole; the caller vouches for the ISA.
    unsafe {
        for u in (0..8).step_by(2) {
            let (first, second) = (F::unit::<S>(group, slot, u), F::unit::<S>(group, slot, u + 1));
            S::store_units(to.q.as_mut_ptr().add(8 * b + u), first, second);
        }
        S::store(to.scales[2 * b].as_mut_ptr().cast(), F::scale::<S>(group, slot));
        if F::HAS_MIN {
            S::store(to.scales[2 * b + 1].as_mut_ptr().cast(), F::min::<S>(group, slot));
        }
    }
}

/// Blocks `blocks` of `T` tokens and `P` panels; sums of token `t` of the tile are at `at + t`.
#[inline(always)]
unsafe fn tile32<S: Gemm, F: Block32, const P: usize, const T: usize>(
    w: &[Unpacked; P],
    job: &MatMul,
    blocks: std::ops::Range<usize>,
    token: usize,
    sums: &mut [Sums; P],
    at: usize,
) {
    let all = job.k / 32;
    let surplus = F::ZERO + if F::SIGNED { S::SIGNED_SURPLUS } else { 0 };
    // SAFETY: the job's pointers cover these blocks of the tile's tokens; the caller vouches for the ISA.
    unsafe {
        let a: [*const i8; T] = std::array::from_fn(|t| job.acts.q.add((token + t) * job.k));
        let mut acc: [[S::F; T]; P] =
            std::array::from_fn(|p| std::array::from_fn(|t| S::load(sums[p].0[at + t].as_ptr())));
        for (b, block) in blocks.enumerate() {
            let dots = S::sums32::<F, P, T>(w, b, a.map(|a| a.add(32 * block)));
            for t in 0..T {
                let at = (token + t) * all + block;
                let da = S::splat(*job.acts.d.add(at));
                for p in 0..P {
                    let mut sum = dots[p][t];
                    if surplus != 0 {
                        sum = S::sub_i(sum, S::splat_i(surplus * *job.acts.sum.add(at)));
                    }
                    let scale = S::mul(S::load(w[p].scales[2 * b].as_ptr().cast()), da);
                    acc[p][t] = S::fma(S::to_f(sum), scale, acc[p][t]);
                    if F::HAS_MIN {
                        let m = S::load(w[p].scales[2 * b + 1].as_ptr().cast());
                        acc[p][t] = S::fma(m, S::splat(*job.acts.ds.add(at)), acc[p][t]);
                    }
                }
            }
        }
        for p in 0..P {
            for t in 0..T {
                S::store(sums[p].0[at + t].as_mut_ptr(), acc[p][t]);
            }
        }
    }
}
