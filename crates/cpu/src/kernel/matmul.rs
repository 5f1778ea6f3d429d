//! Matrix products: a panel of sixteen weight rows times a tile of tokens.
//!
//! Cost model: a unit of weights (four K values of sixteen rows) is unpacked once and used by every token of the tile;
//! a panel (10–100 KB) stays in L1/L2 while all tokens pass over it.
//!
//! # Safety
//! A private function needs what the function of this module that calls it needs: the CPU has the features of `S`,
//! and pointers are valid as the job says.

use super::amx::BLOCK;
use super::gemm::{self, Gemm};
use crate::format::{Block32, Float, Super256};
use crate::simd::{LANES, Simd};

/// Values of K after which the float formats close a partial sum.
pub(crate) const FLOAT_SEGMENT: usize = 256;

/// How quantized values of several tokens lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[tokens][k]`; scales and sums `[tokens][n]`.
    Rows,
    /// `[k/256][tokens/16][4][16][64]`, as a tile unit loads them: what it reads together lies together. Tokens are
    /// padded to a whole [`BLOCK`](super::amx::BLOCK), k to a multiple of 256. Scales and sums `[n][tokens]`.
    Tiles {
        /// Tokens of the whole input.
        tokens: usize,
    },
}

/// Where the quantized values of a row are.
#[derive(Clone, Copy)]
pub(crate) struct RowPlace {
    /// The first.
    pub(crate) start: usize,
    /// From one run of 64 values to the next, of the same 256.
    pub(crate) step: usize,
    /// From 256 values to the next.
    pub(crate) group: usize,
}

impl Layout {
    /// Where row `t` of `k` values is.
    pub(crate) fn row(self, t: usize, k: usize) -> RowPlace {
        match self {
            Layout::Rows => RowPlace { start: t * k, step: 64, group: 256 },
            Layout::Tiles { tokens } => RowPlace {
                start: t / 16 * 4096 + t % 16 * 64,
                step: 16 * 64,
                group: 256 * tokens.next_multiple_of(BLOCK),
            },
        }
    }

    /// Bytes that `rows` rows of `k` values take, the last of them row `rows - 1`.
    pub(crate) fn bytes(self, rows: usize, k: usize) -> usize {
        match self {
            Layout::Rows => rows * k,
            Layout::Tiles { tokens } => tokens.next_multiple_of(BLOCK) * k.next_multiple_of(256),
        }
    }

    /// Where the first of the `n` scales (or sums) of token `t` is, and the distance to the next.
    pub(crate) fn scales(self, t: usize, n: usize) -> (usize, usize) {
        match self {
            Layout::Rows => (t * n, 1),
            Layout::Tiles { tokens } => (t, tokens),
        }
    }
}

/// Activations of some tokens, as the kernels read them. Token `t` of a field starts at `t · stride` of that field.
#[derive(Clone, Copy)]
pub(crate) struct Acts {
    /// Quantized values.
    pub(crate) q: *const i8,
    /// How they lie. [`Layout::Tiles`] is only given to levels that ask for it.
    pub(crate) layout: Layout,
    /// Scale per 32 (or 256) values.
    pub(crate) d: *const f32,
    /// Scale · sum of the quantized values, per 32.
    pub(crate) ds: *const f32,
    /// Sum of the quantized values, per 32; or the sums of two times 16.
    pub(crate) sum: *const i32,
    /// The sums of two times 32, per 64.
    pub(crate) sum64: *const i32,
    /// The values themselves, `[tokens][x_stride]`.
    pub(crate) x: *const f32,
    /// Elements between tokens of `x`.
    pub(crate) x_stride: usize,
}

impl Acts {
    /// Words of sums per 256 values that belong to scales per `scaled` values: a word for two of them.
    pub(crate) const fn words_per_256(scaled: usize) -> usize {
        128 / scaled
    }

    /// The words of the `i`-th 256 values.
    ///
    /// # Safety
    /// There are so many.
    #[inline(always)]
    pub(crate) unsafe fn words(&self, scaled: usize, i: usize) -> *const i32 {
        let words = if scaled == 32 { self.sum64 } else { self.sum };
        // SAFETY: the caller's promise.
        unsafe { words.add(i * Acts::words_per_256(scaled)) }
    }
}

/// A product: `out[t][16·p + r] = Σ_k w[p][r][k] · a[t][k]` for `panels` panels and `tokens` tokens.
pub(crate) struct MatMul {
    /// First panel.
    pub(crate) panels: *const u8,
    /// Number of panels.
    pub(crate) count: usize,
    /// Bytes of a panel.
    pub(crate) panel_bytes: usize,
    /// Width of the input.
    pub(crate) k: usize,
    /// Input.
    pub(crate) acts: Acts,
    /// Number of tokens.
    pub(crate) tokens: usize,
    /// Output of the first panel and token.
    pub(crate) out: *mut f32,
    /// Elements between tokens of `out`.
    pub(crate) out_stride: usize,
    /// Bytes ahead at which quantized weights are asked for with a single token, or 0.
    pub(crate) ahead: usize,
}

/// The kernel of one format on one ISA.
///
/// # Safety
/// The pointers of the job are valid for what it describes, its output is written by nobody else, and the CPU has the
/// kernel's features.
pub(crate) type MatMulFn = unsafe fn(&MatMul);

/// Calls `$tile::<S, F, T>(panel, job, first token)` for all panels and tokens, in the widest tiles of at most `$max`.
macro_rules! for_tiles {
    ($tile:ident, $s:ty, $f:ty, $job:expr, $max:expr) => {
        for p in 0..$job.count {
            let panel = $job.panels.add(p * $job.panel_bytes);
            let mut t = 0;
            for_tiles!(@ $tile, $s, $f, $job, $max, panel, p, t, 6, 4, 3, 2, 1);
        }
    };
    (@ $tile:ident, $s:ty, $f:ty, $job:expr, $max:expr, $panel:ident, $p:ident, $t:ident, $($n:literal),+) => {
        $(
            if $n <= $max {
                while $job.tokens - $t >= $n {
                    $tile::<$s, $f, $n>($panel, $job, $t, $job.out.add($t * $job.out_stride + $p * LANES));
                    $t += $n;
                }
            }
        )+
    };
}

/// [`MatMulFn`] of the formats with 32-value blocks.
///
/// # Safety
/// See [`MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn block32<S: Gemm, F: Block32>(job: &MatMul) {
    // SAFETY: passed on.
    unsafe {
        if job.tokens >= 2 * S::TILE && S::unpacks_once(F::BITS, false) {
            return gemm::block32::<S, F>(job);
        }
        for_tiles!(tile32, S, F, job, S::TILE)
    }
}

/// Per block: the integer sum of 32 products, then `acc ← fma(sum, dw·da, acc)` and `acc ← fma(m, da·Σa, acc)`.
#[inline(always)]
unsafe fn tile32<S: Simd, F: Block32, const T: usize>(
    panel: *const u8,
    job: &MatMul,
    first: usize,
    out: *mut f32,
) {
    let blocks = job.k / 32;
    let step = 1usize << S::units_per_dot(F::MAX).min(8).ilog2();
    let surplus = F::ZERO + if F::SIGNED { S::SIGNED_SURPLUS } else { 0 };
    // SAFETY: the job's pointers cover `blocks` blocks of T tokens; the caller vouches for the ISA.
    unsafe {
        let q: [*const i8; T] = std::array::from_fn(|t| job.acts.q.add((first + t) * job.k));
        let mut acc = [S::splat(0.0); T];
        for b in 0..blocks {
            let (group, slot) = (panel.add(b / F::SLOTS * F::GROUP_BYTES), b % F::SLOTS);
            if T == 1 && job.ahead > 0 && slot == 0 {
                for line in 0..F::GROUP_BYTES.div_ceil(64) {
                    S::prefetch(group.wrapping_add(job.ahead + 64 * line));
                }
            }
            let mut sums = [S::splat_i(0); T];
            let mut u = 0;
            while u < 8 {
                let mut dots = [S::dot_zero(); T];
                for v in u..u + step {
                    let w = F::unit::<S>(group, slot, v);
                    for t in 0..T {
                        let a = q[t].add(32 * b + 4 * v).cast::<i32>().read_unaligned();
                        dots[t] = if F::SIGNED {
                            S::dot_signed(dots[t], w, a)
                        } else {
                            S::dot_unsigned(dots[t], w, a)
                        };
                    }
                }
                for t in 0..T {
                    sums[t] =
                        if step == 8 { S::finish(dots[t]) } else { S::add_i(sums[t], S::finish(dots[t])) };
                }
                u += step;
            }
            let d = F::scale::<S>(group, slot);
            let m = F::min::<S>(group, slot);
            for t in 0..T {
                let at = (first + t) * blocks + b;
                let mut sum = sums[t];
                if surplus != 0 {
                    sum = S::sub_i(sum, S::splat_i(surplus * *job.acts.sum.add(at)));
                }
                let scale = S::mul(d, S::splat(*job.acts.d.add(at)));
                acc[t] = S::fma(S::to_f(sum), scale, acc[t]);
                if F::HAS_MIN {
                    acc[t] = S::fma(m, S::splat(*job.acts.ds.add(at)), acc[t]);
                }
            }
        }
        for t in 0..T {
            S::store(out.add(t * job.out_stride), acc[t]);
        }
    }
}

/// [`MatMulFn`] of the K-quants.
///
/// # Safety
/// See [`MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn super256<S: Gemm, F: Super256>(job: &MatMul) {
    // SAFETY: passed on.
    unsafe {
        if job.tokens >= 2 * S::TILE && S::unpacks_once(F::BITS, true) {
            return gemm::super256::<S, F>(job);
        }
        for_tiles!(tile256, S, F, job, S::TILE)
    }
}

/// Per super-block: `s = Σ sc·Σ(q−ZERO)·a` and `m = Σ min·Σa` in integers, then `acc ← fma(s, d·da, acc)` and
/// `acc ← acc − m·(dmin·da)`.
///
/// What depends on sums of activations alone goes two scales at a time, as products of `i16` pairs: the minima, and
/// without minima what ZERO adds, as `Σ sc·Σ(q−ZERO)·a = Σ sc·Σq·a − ZERO·Σ sc·Σa`.
#[inline(always)]
unsafe fn tile256<S: Simd, F: Super256, const T: usize>(
    panel: *const u8,
    job: &MatMul,
    first: usize,
    out: *mut f32,
) {
    const { assert!(!F::HAS_MIN || F::ZERO == 0) };
    let groups = job.k / 256;
    let ahead = match T {
        1 if F::SCALED == 32 && S::AHEAD > 0 => S::AHEAD,
        1 => job.ahead,
        _ => 0,
    };
    // SAFETY: the job's pointers cover `groups` super-blocks of T tokens; the caller vouches for the ISA.
    unsafe {
        let q: [*const i8; T] = std::array::from_fn(|t| job.acts.q.add((first + t) * job.k));
        let mut acc = [S::splat(0.0); T];
        for g in 0..groups {
            let group = panel.add(g * F::GROUP_BYTES);
            let a: [*const i8; T] = std::array::from_fn(|t| q[t].add(256 * g));
            let words: [*const i32; T] =
                std::array::from_fn(|t| job.acts.words(F::SCALED, (first + t) * groups + g));
            let (mut s, mut m) = ([S::splat_i(0); T], [S::splat_i(0); T]);
            macro_rules! two_scales {
                ($p:expr) => {{
                    let (j, p) = (2 * $p, $p);
                    if ahead > 0 {
                        let part = F::GROUP_BYTES / (128 / F::SCALED);
                        for line in 0..part.div_ceil(64) {
                            S::prefetch(group.wrapping_add(ahead + part * p + 64 * line));
                        }
                    }
                    add_scaled::<S, F, T>(group, &a, j, &mut s);
                    add_scaled::<S, F, T>(group, &a, j + 1, &mut s);
                    let factors = if F::HAS_MIN {
                        S::pair(F::min::<S>(group, j), F::min::<S>(group, j + 1))
                    } else {
                        S::pair(F::scale::<S>(group, j), F::scale::<S>(group, j + 1))
                    };
                    for t in 0..T {
                        let word = *words[t].add(p);
                        m[t] = S::dot_pairs(m[t], factors, word);
                    }
                }};
            }
            for p in (0..128 / F::SCALED).step_by(4) {
                if S::UNROLLED && F::SCALED == 16 {
                    two_scales!(p);
                    two_scales!(p + 1);
                    two_scales!(p + 2);
                    two_scales!(p + 3);
                } else {
                    for p in p..p + 4 {
                        two_scales!(p);
                    }
                }
            }
            if F::ZERO != 0 {
                for t in 0..T {
                    s[t] = S::sub_i(s[t], S::mul_i(m[t], S::splat_i(F::ZERO)));
                }
            }
            let (d, dmin) = (F::d::<S>(group), F::dmin::<S>(group));
            for t in 0..T {
                let da = S::splat(*job.acts.d.add((first + t) * groups + g));
                acc[t] = S::fma(S::to_f(s[t]), S::mul(d, da), acc[t]);
                if F::HAS_MIN {
                    acc[t] = S::fnma(S::to_f(m[t]), S::mul(dmin, da), acc[t]);
                }
            }
        }
        for t in 0..T {
            S::store(out.add(t * job.out_stride), acc[t]);
        }
    }
}

/// Adds `sc·Σ q·a` of scale `j` to `s`.
#[inline(always)]
unsafe fn add_scaled<S: Simd, F: Super256, const T: usize>(
    group: *const u8,
    a: &[*const i8; T],
    j: usize,
    s: &mut [S::I; T],
) {
    let units = F::SCALED / 4;
    let step = 1usize << S::units_per_dot(F::MAX).min(units).ilog2();
    // SAFETY: passed on.
    unsafe {
        let mut sums = [S::splat_i(0); T];
        let mut u = 0;
        while u < units {
            let mut dots = [S::dot_zero(); T];
            for v in j * units + u..j * units + u + step {
                let w = F::unit::<S>(group, v);
                for t in 0..T {
                    let a = a[t].add(4 * v).cast::<i32>().read_unaligned();
                    dots[t] = S::dot_unsigned(dots[t], w, a);
                }
            }
            for t in 0..T {
                let sum = S::finish(dots[t]);
                sums[t] = if step == units { sum } else { S::add_i(sums[t], sum) };
            }
            u += step;
        }
        let scale = F::scale::<S>(group, j);
        for t in 0..T {
            s[t] = S::add_i(s[t], S::mul_i(sums[t], scale));
        }
    }
}

/// [`MatMulFn`] of the float formats.
///
/// # Safety
/// See [`MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn float<S: Simd, F: Float>(job: &MatMul) {
    // SAFETY: passed on.
    unsafe { for_tiles!(tile_float, S, F, job, S::FLOAT_TILE) }
}

/// Per segment of [`FLOAT_SEGMENT`] values: four chains over `k mod 4`, added as `(c0 + c1) + (c2 + c3)`, then to `acc`.
#[inline(always)]
unsafe fn tile_float<S: Simd, F: Float, const T: usize>(
    panel: *const u8,
    job: &MatMul,
    first: usize,
    out: *mut f32,
) {
    // SAFETY: the job's pointers cover K values of T tokens; the caller vouches for the ISA.
    unsafe {
        let x: [*const f32; T] = std::array::from_fn(|t| job.acts.x.add((first + t) * job.acts.x_stride));
        let mut acc = [S::splat(0.0); T];
        let mut k = 0;
        while k < job.k {
            let end = (k + FLOAT_SEGMENT).min(job.k);
            let mut chains = [[S::splat(0.0); 4]; T];
            if T <= S::CHAINED {
                while k + 4 <= end {
                    for c in 0..4 {
                        let w = F::value::<S>(panel.add((k + c) * F::GROUP_BYTES));
                        for t in 0..T {
                            chains[t][c] = S::fma(w, S::splat(*x[t].add(k + c)), chains[t][c]);
                        }
                    }
                    k += 4;
                }
                for c in 0..end - k {
                    let w = F::value::<S>(panel.add((k + c) * F::GROUP_BYTES));
                    for t in 0..T {
                        chains[t][c] = S::fma(w, S::splat(*x[t].add(k + c)), chains[t][c]);
                    }
                }
            } else {
                // The same chains, one after the other.
                for c in 0..4 {
                    let mut chain = [S::splat(0.0); T];
                    for k in (k + c..end).step_by(4) {
                        let w = F::value::<S>(panel.add(k * F::GROUP_BYTES));
                        for t in 0..T {
                            chain[t] = S::fma(w, S::splat(*x[t].add(k)), chain[t]);
                        }
                    }
                    for t in 0..T {
                        chains[t][c] = chain[t];
                    }
                }
            }
            k = end;
            for t in 0..T {
                let [c0, c1, c2, c3] = chains[t];
                acc[t] = S::add(acc[t], S::add(S::add(c0, c1), S::add(c2, c3)));
            }
        }
        for t in 0..T {
            S::store(out.add(t * job.out_stride), acc[t]);
        }
    }
}
