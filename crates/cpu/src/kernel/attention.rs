//! Attention of some query rows over one segment of the cache.
//!
//! A segment is [`ATTN_SEGMENT`] keys at absolute positions. For one query row it yields a softmax partial: the largest
//! score `m`, `l = Σ e^{s−m}` and `o = Σ e^{s−m}·v`. Scores are `Σ_d q[d]·k[d]` in ascending d; `l` adds by lane
//! (key mod 16), then by the tree; `o` adds in ascending key order. [`merge`] adds partials in ascending segment order.
//! All of it is a function of the row's position alone, whoever computes it and beside whatever else.
//!
//! Keys of a block lie transposed, `[head_dim][64]`, so that a lane is a key; values lie `[64][head_dim]`, so that a
//! lane is a channel ([`super::cache`]). Rows that share K and V (the query heads of a group, neighbouring tokens) go
//! together. Keys and values may be of different types: [`scores`] reads the ones, [`values`] the others.
//!
//! # Safety
//! A private function needs what the function of this module that calls it needs: the CPU has the features of `S`,
//! and pointers are valid as the job says.

use super::cache::{F32, KvElem, KvFormat};
use super::vector::tanh;
use crate::simd::{LANES, Simd};
use minfer_ops::{ATTN_SEGMENT, KV_BLOCK};
use std::ops::Range;

/// Keys and values of one layer, head and sequence.
#[derive(Clone, Copy)]
pub(crate) struct KvHead<'a> {
    /// Keys of physical block 0 of this head.
    pub(crate) k: *const u8,
    /// Values, likewise.
    pub(crate) v: *const u8,
    /// Bytes between physical blocks of keys.
    pub(crate) k_stride: usize,
    /// Bytes between physical blocks of values.
    pub(crate) v_stride: usize,
    /// Physical blocks of the sequence.
    pub(crate) blocks: &'a [u32],
    /// Logical block of `blocks[0]`.
    pub(crate) first_block: usize,
    /// Channels; a multiple of sixteen.
    pub(crate) dim: usize,
}

impl KvHead<'_> {
    /// The physical block that holds position `p`.
    #[inline(always)]
    fn block(&self, p: usize) -> usize {
        self.blocks[p / KV_BLOCK - self.first_block] as usize
    }
}

/// One query row and where its running result is.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// `[head_dim]`.
    pub(crate) q: *const f32,
    /// First position that it sees.
    pub(crate) from: usize,
    /// One past the last position that it sees.
    pub(crate) to: usize,
    /// Running [`Partial`] of the row.
    pub(crate) state: *mut f32,
}

/// Floats of a softmax partial: `o[head_dim]`, then m, l, and fourteen unused.
pub(crate) const fn partial_len(dim: usize) -> usize {
    dim + LANES
}

/// Attention over segment `segment`, merged into each row's state by [`scores`] and then [`values`].
pub(crate) struct SegmentJob<'a> {
    pub(crate) kv: KvHead<'a>,
    pub(crate) segment: usize,
    pub(crate) scale: f32,
    /// 0 for none.
    pub(crate) soft_cap: f32,
    /// At most [`ROWS`]; each sees at least one key of the segment.
    pub(crate) rows: &'a [Row],
    /// [`room_len`] floats. [`scores`] leaves the scores there.
    pub(crate) room: *mut f32,
}

/// Rows that share a widened block.
pub(crate) const ROWS: usize = 64;
/// Rows from which a small register file takes several at a time.
const MANY_ROWS: usize = 9;

/// Floats of the room of a job over heads of `dim` channels: scores, then weights `[ROWS][ATTN_SEGMENT]`, results
/// `[ROWS][dim]`, and a block as floats.
pub(crate) const fn room_len(dim: usize) -> usize {
    ROWS * (ATTN_SEGMENT + dim) + KV_BLOCK * dim
}

/// Scores of the segment's keys.
///
/// # Safety
/// Pointers are valid for what the job says, all keys and values that a row sees are written, each state and the room are
/// used by nobody else, and the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd, T: KvFormat>(job: &SegmentJob<'_>) {
    // SAFETY: passed on.
    unsafe {
        let tile = Tile::new(job);
        if job.rows.len() >= T::WIDE_FROM {
            tile.keys::<S, T, F32>(true);
        } else {
            tile.keys::<S, T, T::Read>(false);
        }
    }
}

/// Softmax of the scores, the values' sum, and its merging into each row's state.
///
/// # Safety
/// As [`scores`], which has run.
#[inline(always)]
pub(crate) unsafe fn values<S: Simd, T: KvFormat>(job: &SegmentJob<'_>) {
    // SAFETY: passed on.
    unsafe {
        let tile = Tile::new(job);
        if job.rows.len() >= T::WIDE_FROM {
            tile.values::<S, T, F32>(true);
        } else {
            tile.values::<S, T, T::Read>(false);
        }
    }
}

/// Rows of a segment, block by block.
struct Tile<'a> {
    job: &'a SegmentJob<'a>,
    rows: &'a [Row],
    /// First position of the segment.
    start: usize,
    /// Scores, then weights: `[rows][ATTN_SEGMENT]`.
    weights: *mut f32,
    /// `[rows][dim]`.
    outs: *mut f32,
    /// A block of keys or values, as floats.
    wide: *mut f32,
}

/// Calls `$f::<…, R, C>(r, …)` for all rows: R rows from `r` on, with C vectors of each in registers. Few rows on a small
/// register file go one by one: narrow pieces of several would read the cache with gaps.
macro_rules! for_rows {
    ($tile:ident.$f:ident::<$S:ident, $E:ident>($($arg:expr),*)) => {{
        let most = if $S::ATTN_ROWS >= 4 || $tile.rows.len() >= MANY_ROWS { 4 } else { 1 };
        let mut r = 0;
        while r < $tile.rows.len() {
            let left = ($tile.rows.len() - r).min(most);
            r += if left >= 4 {
                if $S::ATTN_ROWS >= 4 {
                    $tile.$f::<$S, $E, 4, 4>(r, $($arg),*);
                } else {
                    $tile.$f::<$S, $E, 4, 1>(r, $($arg),*);
                }
                4
            } else if left == 3 {
                if $S::ATTN_ROWS >= 4 {
                    $tile.$f::<$S, $E, 3, 4>(r, $($arg),*);
                } else {
                    $tile.$f::<$S, $E, 3, 1>(r, $($arg),*);
                }
                3
            } else if left == 2 {
                if $S::ATTN_ROWS >= 2 {
                    $tile.$f::<$S, $E, 2, 4>(r, $($arg),*);
                } else {
                    $tile.$f::<$S, $E, 2, 2>(r, $($arg),*);
                }
                2
            } else {
                $tile.$f::<$S, $E, 1, 4>(r, $($arg),*);
                1
            };
        }
    }};
}

// SAFETY (all functions): what `segment` needs, and `E` is the type of what is read: the cache's, or floats if widened.
impl<'a> Tile<'a> {
    #[inline(always)]
    unsafe fn new(job: &'a SegmentJob<'a>) -> Tile<'a> {
        debug_assert!(job.rows.len() <= ROWS);
        // SAFETY: the room has this many floats.
        unsafe {
            let outs = job.room.add(ROWS * ATTN_SEGMENT);
            let wide = outs.add(ROWS * job.kv.dim);
            Tile { job, rows: job.rows, start: job.segment * ATTN_SEGMENT, weights: job.room, outs, wide }
        }
    }

    /// Positions, from the segment's start, that row `r` sees.
    #[inline(always)]
    fn seen(&self, r: usize) -> Range<usize> {
        let row = &self.rows[r];
        row.from.max(self.start) - self.start..row.to.min(self.start + ATTN_SEGMENT) - self.start
    }

    #[inline(always)]
    unsafe fn weights(&self, r: usize) -> *mut f32 {
        // SAFETY: there are this many rows.
        unsafe { self.weights.add(r * ATTN_SEGMENT) }
    }

    #[inline(always)]
    unsafe fn out(&self, r: usize) -> *mut f32 {
        // SAFETY: there are this many rows.
        unsafe { self.outs.add(r * self.job.kv.dim) }
    }

    /// Blocks that a row sees.
    #[inline(always)]
    fn blocks(&self) -> Range<usize> {
        let low = (0..self.rows.len()).map(|r| self.seen(r).start).min().unwrap_or(0);
        let high = (0..self.rows.len()).map(|r| self.seen(r).end).max().unwrap_or(0);
        low / KV_BLOCK..high.div_ceil(KV_BLOCK)
    }

    /// Scores of all keys; `W` is the type in which blocks are read: floats if they are widened.
    #[inline(always)]
    unsafe fn keys<S: Simd, T: KvFormat, W: KvElem>(&self, widened: bool) {
        let kv = &self.job.kv;
        // SAFETY: passed on; blocks are whole, whatever their unwritten lanes hold.
        unsafe {
            for block in self.blocks() {
                let mut keys = kv.k.add(kv.block(self.start + block * KV_BLOCK) * kv.k_stride);
                if widened {
                    T::widen_keys::<S>(keys, kv.dim, self.wide);
                    keys = self.wide.cast_const().cast();
                }
                for_rows!(self.block_scores::<S, W>(block, keys));
            }
        }
    }

    /// Everything after the scores.
    #[inline(always)]
    unsafe fn values<S: Simd, T: KvFormat, W: KvElem>(&self, widened: bool) {
        let kv = &self.job.kv;
        let mut sums = [(0f32, 0f32); ROWS];
        // SAFETY: as above; the scores are there.
        unsafe {
            for (r, sums) in sums[..self.rows.len()].iter_mut().enumerate() {
                let Range { start, end } = self.seen(r);
                let weights = &mut *self.weights(r).cast::<[f32; ATTN_SEGMENT]>();
                *sums = softmax::<S>(weights, start, end);
                std::ptr::write_bytes(self.out(r), 0, kv.dim);
            }
            for block in self.blocks() {
                let mut values = kv.v.add(kv.block(self.start + block * KV_BLOCK) * kv.v_stride);
                if widened {
                    T::widen_values::<S>(values, kv.dim, self.wide);
                    values = self.wide.cast_const().cast();
                }
                for_rows!(self.block_values::<S, W>(block, values));
            }
            for (r, (m, l)) in sums[..self.rows.len()].iter().enumerate() {
                merge::<S>(self.rows[r].state, self.out(r), *m, *l, kv.dim);
            }
        }
    }

    /// Scaled (and capped) scores of a block's keys that one of `R` rows sees, and of some that none does.
    #[inline(always)]
    unsafe fn block_scores<S: Simd, E: KvElem, const R: usize, const C: usize>(
        &self,
        first: usize,
        block: usize,
        keys: *const u8,
    ) {
        let at = block * KV_BLOCK;
        let high = (first..first + R).map(|r| self.seen(r).end).max().unwrap_or(0);
        let low = (first..first + R).map(|r| self.seen(r).start).min().unwrap_or(0);
        if high <= at || low >= at + KV_BLOCK {
            return;
        }
        let end = (high - at).min(KV_BLOCK);
        // SAFETY: passed on.
        unsafe {
            let out: [*mut f32; R] = std::array::from_fn(|r| self.weights(first + r).add(at));
            let mut key = 0;
            while key < end {
                let keys = keys.add(key * E::BYTES);
                let out = out.map(|o| o.add(key));
                key += if C >= 4 && end - key > 2 * LANES {
                    self.some_scores::<S, E, R, 4>(first, keys, out);
                    4 * LANES
                } else if C >= 2 && end - key > LANES {
                    self.some_scores::<S, E, R, 2>(first, keys, out);
                    2 * LANES
                } else {
                    self.some_scores::<S, E, R, 1>(first, keys, out);
                    LANES
                };
            }
        }
    }

    /// Scores of `16 · C` keys.
    #[inline(always)]
    unsafe fn some_scores<S: Simd, E: KvElem, const R: usize, const C: usize>(
        &self,
        first: usize,
        keys: *const u8,
        out: [*mut f32; R],
    ) {
        let job = self.job;
        // SAFETY: passed on.
        unsafe {
            let q: [*const f32; R] = std::array::from_fn(|r| self.rows[first + r].q);
            let mut acc = [[S::splat(0.0); C]; R];
            for d in 0..job.kv.dim {
                let mut k = [S::splat(0.0); C];
                for c in 0..C {
                    k[c] = E::load::<S>(keys.add((d * KV_BLOCK + c * LANES) * E::BYTES));
                }
                for r in 0..R {
                    let q = S::splat(*q[r].add(d));
                    for c in 0..C {
                        acc[r][c] = S::fma(q, k[c], acc[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    let mut s = S::mul(acc[r][c], S::splat(job.scale));
                    if job.soft_cap != 0.0 {
                        let cap = S::splat(job.soft_cap);
                        s = S::mul(cap, tanh::<S>(S::div(s, cap)));
                    }
                    S::store(out[r].add(c * LANES), s);
                }
            }
        }
    }

    /// Adds a block's values to `R` rows. Those that all of them see go together; those at the ends, row by row, before
    /// and after: each row still adds its own in ascending order. Rows of one token have no ends.
    #[inline(always)]
    unsafe fn block_values<S: Simd, E: KvElem, const R: usize, const C: usize>(
        &self,
        first: usize,
        block: usize,
        values: *const u8,
    ) {
        let at = block * KV_BLOCK;
        let seen: [Range<usize>; R] = std::array::from_fn(|r| {
            let seen = self.seen(first + r);
            seen.start.clamp(at, at + KV_BLOCK) - at..seen.end.clamp(at, at + KV_BLOCK) - at
        });
        let start = seen.iter().map(|s| s.start).max().unwrap_or(0);
        let end = seen.iter().map(|s| s.end).min().unwrap_or(0).max(start);
        // SAFETY: passed on; every key of the ranges is written.
        unsafe {
            for (r, seen) in seen.iter().enumerate() {
                self.some_values::<S, E, 1, 4>(first + r, at, seen.start..seen.end.min(start), values);
            }
            self.some_values::<S, E, R, C>(first, at, start..end, values);
            for (r, seen) in seen.iter().enumerate() {
                self.some_values::<S, E, 1, 4>(first + r, at, seen.start.max(end)..seen.end, values);
            }
        }
    }

    /// `out[r] += Σ_j p[r][j] · v[j]` for the keys `range` of the block at `at`, in ascending order.
    #[inline(always)]
    unsafe fn some_values<S: Simd, E: KvElem, const R: usize, const C: usize>(
        &self,
        first: usize,
        at: usize,
        range: Range<usize>,
        values: *const u8,
    ) {
        if range.is_empty() {
            return;
        }
        let dim = self.job.kv.dim;
        // SAFETY: passed on; channels go in steps of C vectors, then of one.
        unsafe {
            let mut channel = 0;
            while channel < dim {
                channel += if channel + C * LANES <= dim {
                    self.channels::<S, E, R, C>(first, at, range.clone(), values, channel);
                    C * LANES
                } else {
                    self.channels::<S, E, R, 1>(first, at, range.clone(), values, channel);
                    LANES
                };
            }
        }
    }

    /// [`Tile::some_values`] for `16 · C` channels from `channel` on.
    #[inline(always)]
    unsafe fn channels<S: Simd, E: KvElem, const R: usize, const C: usize>(
        &self,
        first: usize,
        at: usize,
        range: Range<usize>,
        values: *const u8,
        channel: usize,
    ) {
        // SAFETY: passed on.
        unsafe {
            let weights: [*const f32; R] =
                std::array::from_fn(|r| self.weights(first + r).add(at).cast_const());
            let out: [*mut f32; R] = std::array::from_fn(|r| self.out(first + r).add(channel));
            let mut acc = [[S::splat(0.0); C]; R];
            for r in 0..R {
                for c in 0..C {
                    acc[r][c] = S::load(out[r].add(c * LANES));
                }
            }
            for j in range {
                let mut v = [S::splat(0.0); C];
                for c in 0..C {
                    v[c] = E::load::<S>(values.add((j * self.job.kv.dim + channel + c * LANES) * E::BYTES));
                }
                for r in 0..R {
                    let weight = S::splat(*weights[r].add(j));
                    for c in 0..C {
                        acc[r][c] = S::fma(weight, v[c], acc[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    S::store(out[r].add(c * LANES), acc[r][c]);
                }
            }
        }
    }
}

/// Largest supported head size.
pub(crate) const MAX_DIM: usize = 512;

/// Turns the scores `from..to` into `e^{s−m}` and everything else of their vectors into 0; returns (m, l).
#[inline(always)]
unsafe fn softmax<S: Simd>(p: &mut [f32; ATTN_SEGMENT], from: usize, to: usize) -> (f32, f32) {
    let (first, last) = (from / LANES * LANES, to.next_multiple_of(LANES));
    p[first..from].fill(f32::NEG_INFINITY);
    p[to..last].fill(f32::NEG_INFINITY);
    // SAFETY: `first..last` are whole vectors of `p`; the caller vouches for the ISA.
    unsafe {
        let mut largest = S::splat(f32::NEG_INFINITY);
        for i in (first..last).step_by(LANES) {
            largest = S::max(S::load(p.as_ptr().add(i)), largest);
        }
        let mut lanes = [0f32; LANES];
        S::store(lanes.as_mut_ptr(), largest);
        let m = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut l = S::splat(0.0);
        for i in (first..last).step_by(LANES) {
            let e = S::exp(S::sub(S::load(p.as_ptr().add(i)), S::splat(m)));
            l = S::add(l, e);
            S::store(p.as_mut_ptr().add(i), e);
        }
        (m, S::sum(l))
    }
}

/// Adds a partial to a row's state: both are rescaled to the larger maximum. An empty state has `l = 0`.
///
/// # Safety
/// `state` and `o` are partials of `dim` channels; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn merge<S: Simd>(state: *mut f32, o: *const f32, m: f32, l: f32, dim: usize) {
    // SAFETY: passed on.
    unsafe {
        let (state_m, state_l) = (state.add(dim), state.add(dim + 1));
        if *state_l == 0.0 {
            std::ptr::copy_nonoverlapping(o, state, dim);
            (*state_m, *state_l) = (m, l);
            return;
        }
        let top = if m > *state_m { m } else { *state_m };
        let old = S::exp(S::splat(*state_m - top));
        let new = S::exp(S::splat(m - top));
        for i in (0..dim).step_by(LANES) {
            S::store(state.add(i), S::fma(S::load(o.add(i)), new, S::mul(S::load(state.add(i)), old)));
        }
        let l = S::fma(S::splat(l), new, S::mul(S::splat(*state_l), old));
        let mut lanes = [0f32; LANES];
        S::store(lanes.as_mut_ptr(), l);
        (*state_m, *state_l) = (top, lanes[0]);
    }
}

/// `out = o / l` of a finished state.
///
/// # Safety
/// `state` is a partial of `dim` channels, `out` is valid for `dim`; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn finish<S: Simd>(state: *const f32, out: *mut f32, dim: usize) {
    // SAFETY: passed on.
    unsafe {
        let l = S::splat(*state.add(dim + 1));
        for i in (0..dim).step_by(LANES) {
            S::store(out.add(i), S::div(S::load(state.add(i)), l));
        }
    }
}
