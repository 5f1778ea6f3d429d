//! Products of many tokens on a tile unit (AMX-INT8): sixteen tokens × sixteen rows × 64 values of K per instruction.
//!
//! A unit of a panel (four K values of sixteen rows, 64 bytes) is a row of the unit's B operand as it stands, so that
//! sixteen units are a tile. Activations are quantized into tiles of sixteen tokens × 64 values; rows of them are arranged so
//! first.
//!
//! *K-quants.* The integer scale is folded into the weight, `w = (q − ZERO)·sc`, which has 13 bits with its sign, and `w` is
//! split exactly into two planes of bytes, `w = low + 128·high`. All 256 values of a super-block then add up in the
//! tile unit without a break, and `Σ low·a + 128·Σ high·a` is the integer that the other levels compute, bit for bit.
//!
//! *32-value blocks.* One instruction of half depth per block, then the float step.
//!
//! Cost model: an instruction takes sixteen cycles whatever its depth; what the vector unit does with the sums of one
//! block of tokens runs beside the instructions of the next, so either is waited for, not both.
//!
//! # Safety
//! As in [`super::matmul`]; besides, the CPU has the unit that `T` stands for, and the process may use it.

use super::matmul::{Layout, MatMul};
use super::vector::SUM_WORDS;
use crate::format::{Block32, Super256};
use crate::simd::{LANES, Simd};
use std::cell::RefCell;

/// Tokens from which products go to the tile unit.
pub(crate) const FROM: usize = 12;
/// Tokens that a kernel takes together at most; what it reads beyond a product's tokens is not used.
pub(crate) const BLOCK: usize = 32;
/// Tokens of a pass: its sums are 32 KB.
const TOKENS: usize = 512;
/// Values of K of a pass: its activations, 1 MB, stay in L2 while all panels pass by.
const DEPTH: usize = 2048;
/// Bytes of a tile.
const TILE: usize = 1024;

/// Rows and bytes per row of the eight tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
pub(crate) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Sums in registers 0–3, activations in 4 and 5, weights in 6 and 7, of `depth` K values.
    const fn new(depth: u16) -> Shapes {
        let mut shapes =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut t = 0;
        while t < 8 {
            shapes.row_bytes[t] = if t / 2 == 2 { depth } else { 64 };
            shapes.rows[t] = if t >= 6 { (depth / 4) as u8 } else { 16 };
            t += 1;
        }
        shapes
    }

    /// Rows and bytes per row of register `t`.
    #[cfg(test)]
    fn of(&self, t: u8) -> (usize, usize) {
        (usize::from(self.rows[usize::from(t)]), usize::from(self.row_bytes[usize::from(t)]))
    }
}

pub(crate) static FULL: Shapes = Shapes::new(64);
static HALF: Shapes = Shapes::new(32);

/// A unit with eight tile registers.
///
/// # Safety
/// Of all functions but `configure`: shapes were configured. Pointers are valid for the register's rows at `stride`.
pub(crate) trait Tiles {
    /// Sets the shapes of the registers and zeroes them.
    unsafe fn configure(&mut self, shapes: &'static Shapes);
    /// Gives the registers back.
    unsafe fn release(&mut self);
    /// Zeroes register `T`.
    unsafe fn zero<const T: u8>(&mut self);
    /// Loads the rows of register `T`.
    unsafe fn load<const T: u8>(&mut self, p: *const u8, stride: usize);
    /// Stores the rows of register `T`.
    unsafe fn store<const T: u8>(&mut self, p: *mut i32, stride: usize);
    /// `C[m][n] += Σ_k Σ_i A[m][4k + i] · B[k][4n + i]`, signed bytes.
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self);
}

/// What the vector unit does for the tile unit.
///
/// # Safety
/// As [`Simd`].
pub(crate) trait TileVectors: Simd {
    /// `w = (q − zero)·scale` for the bytes of a unit, as `w & 127` and `w >> 7`, 64 bytes each.
    unsafe fn planes(q: Self::B, zero: i32, scale: Self::I, low: *mut u8, high: *mut u8);
    /// `q − zero` for each byte.
    unsafe fn centred(q: Self::B, zero: i32) -> Self::B;
    /// `low + 128·high`.
    unsafe fn join(low: Self::I, high: Self::I) -> Self::I;
}

/// 256 values of sixteen rows, ready for the tile unit.
#[repr(C, align(64))]
struct Weights {
    /// K-quants: the planes. Others: weights in the first.
    planes: [[[u8; 64]; 64]; 2],
    /// K-quants: minima in pairs. Others: `d` and `m` of eight blocks, as floats.
    vectors: [[u32; LANES]; 16],
    d: [f32; LANES],
    dmin: [f32; LANES],
}

impl Weights {
    const EMPTY: Weights = Weights {
        planes: [[[0; 64]; 64]; 2],
        vectors: [[0; LANES]; 16],
        d: [0.0; LANES],
        dmin: [0.0; LANES],
    };
}

/// Integer sums of four tiles.
#[repr(align(64))]
struct Products([[[i32; LANES]; 16]; 4]);

impl Products {
    const EMPTY: Products = Products([[[0; LANES]; 16]; 4]);

    /// Stores register `T`.
    #[inline(always)]
    unsafe fn take<const T: u8>(&mut self, tiles: &mut impl Tiles) {
        // SAFETY: passed on; a tile of sums is sixteen rows of 64 bytes.
        unsafe { tiles.store::<T>(self.0[usize::from(T)].as_mut_ptr().cast(), 64) }
    }
}

/// Float sums of the tokens of a pass.
#[repr(align(64))]
struct Sums([[f32; LANES]; TOKENS]);

/// One pass: some tokens, some values of K, one panel after the other.
struct Pass<'a> {
    job: &'a MatMul,
    /// First token, and their number.
    first: usize,
    tokens: usize,
    /// First value of K, and their number.
    k: usize,
    depth: usize,
    /// Activations, `[16][64]` a tile: first tile of the pass, and bytes from sixteen tokens to the next.
    a: *const u8,
    a_stride: usize,
}

thread_local! {
    /// Arranged activations.
    static ARRANGED: RefCell<Vec<[u8; TILE]>> = const { RefCell::new(Vec::new()) };
}

/// Runs `$body` for each panel (`$panel`) of each pass (`$pass`), with the sums so far in `$sums`, which are kept in
/// the output between passes. A macro, as a closure would be compiled without the level's instructions.
macro_rules! for_passes {
    ($s:ty, $job:expr, |$pass:ident, $panel:ident, $sums:ident| $body:block) => {
        let mut $sums = Sums([[0.0; LANES]; TOKENS]);
        let mut arranged = ARRANGED.take();
        for first in (0..$job.tokens).step_by(TOKENS) {
            for k in (0..$job.k).step_by(DEPTH) {
                let (tokens, depth) = (TOKENS.min($job.tokens - first), DEPTH.min($job.k - k));
                let (a, a_stride) = match $job.acts.layout {
                    Layout::Tiles { .. } => ($job.acts.q.add(first * $job.k + k * 16).cast(), 16 * $job.k),
                    Layout::Rows => {
                        arrange($job, first..first + tokens, k..k + depth, &mut arranged);
                        (arranged.as_ptr().cast(), depth.div_ceil(64) * TILE)
                    }
                };
                let $pass = Pass { job: $job, first, tokens, k, depth, a, a_stride };
                for p in 0..$job.count {
                    let out = $job.out.add(first * $job.out_stride + p * LANES);
                    for t in 0..tokens {
                        let so_far =
                            if k == 0 { <$s>::splat(0.0) } else { <$s>::load(out.add(t * $job.out_stride)) };
                        <$s>::store($sums.0[t].as_mut_ptr(), so_far);
                    }
                    let $panel = $job.panels.add(p * $job.panel_bytes);
                    $body
                    for t in 0..tokens {
                        <$s>::store(out.add(t * $job.out_stride), <$s>::load($sums.0[t].as_ptr()));
                    }
                }
            }
        }
        ARRANGED.set(arranged);
    };
}

/// Copies activations into tiles; what fills up the last tiles is zero.
#[inline(always)]
unsafe fn arrange(
    job: &MatMul,
    tokens: std::ops::Range<usize>,
    k: std::ops::Range<usize>,
    to: &mut Vec<[u8; TILE]>,
) {
    let steps = k.len().div_ceil(64);
    to.resize((tokens.len().next_multiple_of(BLOCK) / 16) * steps, [0; TILE]);
    for t in 0..tokens.len().next_multiple_of(BLOCK) {
        for step in 0..steps {
            let row = &mut to[t / 16 * steps + step][t % 16 * 64..][..64];
            let values = if t < tokens.len() { (k.len() - 64 * step).min(64) } else { 0 };
            if values < 64 {
                row.fill(0);
            }
            if values > 0 {
                // SAFETY: the job has these values of this token, 32 or 64 of them; the row is 64 bytes.
                unsafe {
                    let from = job.acts.q.add((tokens.start + t) * job.k + k.start + 64 * step);
                    let row = row.as_mut_ptr();
                    if values == 64 {
                        row.cast::<[i8; 64]>().write_unaligned(from.cast::<[i8; 64]>().read_unaligned());
                    } else {
                        row.cast::<[i8; 32]>().write_unaligned(from.cast::<[i8; 32]>().read_unaligned());
                    }
                }
            }
        }
    }
}

/// The K-quants.
///
/// # Safety
/// See [`super::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn super256<S: TileVectors, F: Super256>(job: &MatMul, tiles: &mut impl Tiles) {
    // SAFETY: passed on.
    unsafe {
        tiles.configure(&FULL);
        let (mut weights, mut done) = (Weights::EMPTY, Products::EMPTY);
        for_passes!(S, job, |pass, panel, sums| {
            for g in 0..pass.depth / 256 {
                let group = panel.add((pass.k / 256 + g) * F::GROUP_BYTES);
                unpack256::<S, F>(group, &mut weights);
                group256::<S, F>(&pass, g, &weights, tiles, &mut done, &mut sums);
            }
        });
        tiles.release();
    }
}

#[inline(always)]
unsafe fn unpack256<S: TileVectors, F: Super256>(group: *const u8, to: &mut Weights) {
    let units = F::SCALED / 4;
    let [low, high] = &mut to.planes;
    // SAFETY: the group is whole; the caller vouches for the ISA.
    unsafe {
        for j in 0..256 / F::SCALED {
            let scale = F::scale::<S>(group, j);
            for u in j * units..(j + 1) * units {
                let q = F::unit::<S>(group, u);
                S::planes(q, F::ZERO, scale, low[u].as_mut_ptr(), high[u].as_mut_ptr());
            }
        }
        if F::HAS_MIN {
            for p in 0..128 / F::SCALED {
                let pair = S::pair(F::min::<S>(group, 2 * p), F::min::<S>(group, 2 * p + 1));
                S::store_i(to.vectors[p].as_mut_ptr(), pair);
            }
            S::store(to.dmin.as_mut_ptr(), F::dmin::<S>(group));
        }
        S::store(to.d.as_mut_ptr(), F::d::<S>(group));
    }
}

/// One super-block of all tokens of a pass, 32 at a time: two tiles of tokens × two planes.
#[inline(always)]
unsafe fn group256<S: TileVectors, F: Super256>(
    pass: &Pass<'_>,
    g: usize,
    w: &Weights,
    tiles: &mut impl Tiles,
    done: &mut Products,
    sums: &mut Sums,
) {
    let blocks = pass.tokens.div_ceil(32);
    // SAFETY: tiles lie in the arranged activations and in the weights; the rest is passed on.
    unsafe {
        for b in 0..=blocks {
            // The sums of the block before: each register is taken out just before this block's first product on it,
            // and the sums are worked on between this block's products.
            for s in 0..4 {
                let a = pass.a.add((2 * b * pass.a_stride) + (4 * g + s) * TILE);
                let (low, high) = (w.planes[0][16 * s].as_ptr(), w.planes[1][16 * s].as_ptr());
                if b == blocks {
                    if s == 0 {
                        done.take::<0>(tiles);
                        done.take::<1>(tiles);
                        done.take::<2>(tiles);
                        done.take::<3>(tiles);
                    }
                } else if s == 0 {
                    tiles.load::<4>(a, 64);
                    tiles.load::<6>(low, 64);
                    done.take::<0>(tiles);
                    tiles.zero::<0>();
                    tiles.dot::<0, 4, 6>();
                    tiles.load::<7>(high, 64);
                    done.take::<1>(tiles);
                    tiles.zero::<1>();
                    tiles.dot::<1, 4, 7>();
                    tiles.load::<5>(a.add(pass.a_stride), 64);
                    done.take::<2>(tiles);
                    tiles.zero::<2>();
                    tiles.dot::<2, 5, 6>();
                    done.take::<3>(tiles);
                    tiles.zero::<3>();
                    tiles.dot::<3, 5, 7>();
                } else {
                    tiles.load::<4>(a, 64);
                    tiles.load::<6>(low, 64);
                    tiles.dot::<0, 4, 6>();
                    tiles.load::<7>(high, 64);
                    tiles.dot::<1, 4, 7>();
                    tiles.load::<5>(a.add(pass.a_stride), 64);
                    tiles.dot::<2, 5, 6>();
                    tiles.dot::<3, 5, 7>();
                }
                if b > 0 {
                    let t = 32 * (b - 1) + 8 * s;
                    let rows = pass.tokens.saturating_sub(t).min(8);
                    finish256::<S, F>(pass, g, t..t + rows, &done.0[s / 2 * 2..], s % 2 * 8, w, sums);
                }
            }
        }
    }
}

/// The float step of up to eight tokens of the pass, whose integer sums are rows of two products from `row` on.
#[inline(always)]
unsafe fn finish256<S: TileVectors, F: Super256>(
    pass: &Pass<'_>,
    g: usize,
    tokens: std::ops::Range<usize>,
    products: &[[[i32; LANES]; 16]],
    row: usize,
    w: &Weights,
    sums: &mut Sums,
) {
    let (acts, groups) = (&pass.job.acts, pass.job.k / 256);
    let (first, step) = acts.layout.scales(pass.first + tokens.start, groups);
    let start = first + (pass.k / 256 + g) * step;
    // From one token to the next.
    let stride = acts.layout.scales(1, groups).0;
    // SAFETY: the job has this super-block of these tokens; the caller vouches for the ISA.
    unsafe {
        let (mut low, mut high) = (products[0][row].as_ptr(), products[1][row].as_ptr());
        let (mut d, mut words) = (acts.d.add(start), acts.sum.add(start * SUM_WORDS));
        let mut slot = sums.0.as_mut_ptr().add(tokens.start).cast::<f32>();
        for _ in tokens {
            let s = S::join(S::load_i(low.cast()), S::load_i(high.cast()));
            let da = S::splat(*d);
            let mut acc = S::fma(S::to_f(s), S::mul(S::load(w.d.as_ptr()), da), S::load(slot));
            if F::HAS_MIN {
                let mut m = S::splat_i(0);
                for i in 0..128 / F::SCALED {
                    let word = *words.add(if F::SCALED == 32 { 8 + i } else { i });
                    m = S::dot_pairs(m, S::load_i(w.vectors[i].as_ptr()), word);
                }
                acc = S::fnma(S::to_f(m), S::mul(S::load(w.dmin.as_ptr()), da), acc);
            }
            S::store(slot, acc);
            (low, high, slot) = (low.add(LANES), high.add(LANES), slot.add(LANES));
            (d, words) = (d.wrapping_add(stride), words.wrapping_add(stride * SUM_WORDS));
        }
    }
}

/// The formats with 32-value blocks.
///
/// # Safety
/// See [`super::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn block32<S: TileVectors, F: Block32>(job: &MatMul, tiles: &mut impl Tiles) {
    // SAFETY: passed on.
    unsafe {
        tiles.configure(&HALF);
        let (mut weights, mut done) = (Weights::EMPTY, Products::EMPTY);
        for_passes!(S, job, |pass, panel, sums| {
            let blocks = pass.depth / 32;
            for start in (0..blocks).step_by(8) {
                let count = 8.min(blocks - start);
                for b in 0..count {
                    let block = pass.k / 32 + start + b;
                    let group = panel.add(block / F::SLOTS * F::GROUP_BYTES);
                    unpack32::<S, F>(group, block % F::SLOTS, b, &mut weights);
                }
                chunk32::<S, F>(&pass, start..start + count, &weights, tiles, &mut done, &mut sums);
            }
        });
        tiles.release();
    }
}

/// Block `slot` of a group, to place `b`.
#[inline(always)]
unsafe fn unpack32<S: TileVectors, F: Block32>(group: *const u8, slot: usize, b: usize, to: &mut Weights) {
    // SAFETY: the group is whole; the caller vouches for the ISA.
    unsafe {
        for u in 0..8 {
            let q = S::centred(F::unit::<S>(group, slot, u), F::ZERO);
            S::store_bytes(to.planes[0][8 * b + u].as_mut_ptr(), q);
        }
        S::store(to.vectors[2 * b].as_mut_ptr().cast(), F::scale::<S>(group, slot));
        if F::HAS_MIN {
            S::store(to.vectors[2 * b + 1].as_mut_ptr().cast(), F::min::<S>(group, slot));
        }
    }
}

/// Up to eight blocks of all tokens of a pass, sixteen tokens at a time: their sums stay in registers.
#[inline(always)]
unsafe fn chunk32<S: TileVectors, F: Block32>(
    pass: &Pass<'_>,
    blocks: std::ops::Range<usize>,
    w: &Weights,
    tiles: &mut impl Tiles,
    done: &mut Products,
    sums: &mut Sums,
) {
    let count = blocks.len();
    // SAFETY: tiles lie in the arranged activations and in the weights; the rest is passed on.
    unsafe {
        for first in (0..pass.tokens).step_by(16) {
            let a = pass.a.add(first / 16 * pass.a_stride);
            let slots = sums.0.as_mut_ptr().add(first).cast::<f32>();
            let mut acc: [S::F; 16] = std::array::from_fn(|r| S::load(slots.add(LANES * r)));
            // A product in one register, while the vector unit takes that of the block before in the other.
            for b in 0..=count {
                let tile = |b: usize| a.add((blocks.start + b) / 2 * TILE + (blocks.start + b) % 2 * 32);
                if b < count && b % 2 == 0 {
                    tiles.zero::<0>();
                    tiles.load::<7>(w.planes[0][8 * b].as_ptr(), 64);
                    tiles.load::<4>(tile(b), 64);
                    tiles.dot::<0, 4, 7>();
                    done.take::<0>(tiles);
                } else if b < count {
                    tiles.zero::<1>();
                    tiles.load::<7>(w.planes[0][8 * b].as_ptr(), 64);
                    tiles.load::<5>(tile(b), 64);
                    tiles.dot::<1, 5, 7>();
                    done.take::<1>(tiles);
                }
                if b > 0 {
                    let product = &done.0[(b - 1) % 2];
                    finish32::<S, F>(pass, first, blocks.start + b - 1, b - 1, product, w, &mut acc);
                }
            }
            for r in 0..16 {
                S::store(slots.add(LANES * r), acc[r]);
            }
        }
    }
}

/// The float step of block `block` of the pass, at place `b`, for sixteen tokens of the pass from `first` on.
#[inline(always)]
unsafe fn finish32<S: TileVectors, F: Block32>(
    pass: &Pass<'_>,
    first: usize,
    block: usize,
    b: usize,
    product: &[[i32; LANES]; 16],
    w: &Weights,
    acc: &mut [S::F; 16],
) {
    let (acts, all) = (&pass.job.acts, pass.job.k / 32);
    let (start, step) = acts.layout.scales(pass.first + first, all);
    let start = start + (pass.k / 32 + block) * step;
    // From one token to the next.
    let stride = acts.layout.scales(1, all).0;
    let rows = 16.min(pass.tokens - first);
    let (mut d_row, mut ds_row) = ([0f32; 16], [0f32; 16]);
    // SAFETY: the job has this block of these tokens; the caller vouches for the ISA.
    unsafe {
        let (mut d, mut ds) = (acts.d.add(start), acts.ds.add(start));
        if rows < 16 || stride != 1 {
            for r in 0..rows {
                d_row[r] = *d.add(r * stride);
                ds_row[r] = *ds.add(r * stride);
            }
            (d, ds) = (d_row.as_ptr(), ds_row.as_ptr());
        }
        let scale = S::load(w.vectors[2 * b].as_ptr().cast());
        let m = S::load(w.vectors[2 * b + 1].as_ptr().cast());
        for r in 0..16 {
            let sum = S::to_f(S::load_i(product[r].as_ptr().cast()));
            acc[r] = S::fma(sum, S::mul(scale, S::splat(*d.add(r))), acc[r]);
            if F::HAS_MIN {
                acc[r] = S::fma(m, S::splat(*ds.add(r)), acc[r]);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod soft;
