//! Attention of some query rows over one segment of the cache.
//!
//! A segment is [`ATTN_SEGMENT`] keys at absolute positions. For one query row it yields a softmax partial: the largest
//! score `m`, `l = Σ e^{s−m}` and `o = Σ e^{s−m}·v`. Scores are `Σ_d q[d]·k[d]` in ascending d; `l` adds by lane
//! (key mod 16), then by the tree; `o` adds in ascending key order. [`merge`] adds partials in ascending segment order.
//! All of it is a function of the row's position alone, whoever computes it and beside whatever else.
//!
//! Keys of a block lie transposed, `[head_dim][64]`, so that a lane is a key; values lie `[64][head_dim]`, so that a
//! lane is a channel. Rows that share K and V (the query heads of a group, neighbouring tokens) go together.
//!
//! # Safety
//! A private function needs what the function of this module that calls it needs: the CPU has the features of `S`,
//! and pointers are valid as the job says.

use super::vector::tanh;
use crate::simd::{LANES, Simd};
use minfer_ops::{ATTN_SEGMENT, KV_BLOCK};

/// Keys and values of one layer, head and sequence.
#[derive(Clone, Copy)]
pub(crate) struct KvHead<'a> {
    /// Keys of physical block 0 of this head, `[head_dim][64]`.
    pub(crate) k: *const u8,
    /// Values, likewise, `[64][head_dim]`.
    pub(crate) v: *const u8,
    /// Elements between physical blocks.
    pub(crate) block_stride: usize,
    /// Physical blocks of the sequence.
    pub(crate) blocks: &'a [u32],
    /// Logical block of `blocks[0]`.
    pub(crate) first_block: usize,
    /// Channels; a multiple of sixteen.
    pub(crate) dim: usize,
}

impl KvHead<'_> {
    /// Offset of the physical block that holds position `p`.
    #[inline(always)]
    fn block(&self, p: usize) -> usize {
        self.blocks[p / KV_BLOCK - self.first_block] as usize * self.block_stride
    }
}

/// Element type of the cache.
pub(crate) trait KvElem {
    /// Bytes of a value.
    const BYTES: usize;
    /// Sixteen values.
    ///
    /// # Safety
    /// `p` is valid for them; the CPU has the features of `S`.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
    /// Sixteen values, rounded to nearest even.
    ///
    /// # Safety
    /// As [`KvElem::load`].
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F);
}

/// IEEE half precision.
pub(crate) struct F16;
/// bfloat16.
pub(crate) struct BF16;
/// IEEE single precision.
pub(crate) struct F32;

impl KvElem for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { S::store_f16(p.cast(), x) }
    }
}

impl KvElem for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { S::store_bf16(p.cast(), x) }
    }
}

impl KvElem for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { S::store(p.cast(), x) }
    }
}

/// A token's key and value of one head, and where they go.
pub(crate) struct KvWrite {
    pub(crate) key: *const f32,
    pub(crate) value: *const f32,
    /// Keys of the block, of this head.
    pub(crate) k: *mut u8,
    /// Values of the block, of this head.
    pub(crate) v: *mut u8,
    /// Position within the block.
    pub(crate) slot: usize,
    pub(crate) dim: usize,
}

/// # Safety
/// Pointers are valid for what the job says, the slot is written by nobody else, and the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn write<S: Simd, E: KvElem>(job: &KvWrite) {
    let mut column = [0u8; MAX_DIM * 4];
    // SAFETY: passed on.
    unsafe {
        for d in (0..job.dim).step_by(LANES) {
            E::store::<S>(column.as_mut_ptr().add(d * E::BYTES), S::load(job.key.add(d)));
            E::store::<S>(job.v.add((job.slot * job.dim + d) * E::BYTES), S::load(job.value.add(d)));
        }
        for d in 0..job.dim {
            let from = column.as_ptr().add(d * E::BYTES);
            std::ptr::copy_nonoverlapping(from, job.k.add((d * KV_BLOCK + job.slot) * E::BYTES), E::BYTES);
        }
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

/// Attention over segment `segment`, merged into each row's state; rows see at least one key of it.
pub(crate) struct SegmentJob<'a> {
    pub(crate) kv: KvHead<'a>,
    pub(crate) segment: usize,
    pub(crate) scale: f32,
    /// 0 for none.
    pub(crate) soft_cap: f32,
    pub(crate) rows: &'a [Row],
}

/// # Safety
/// Pointers are valid for what the job says, all keys and values that a row sees are written, each state is used by
/// nobody else, and the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn segment<S: Simd, E: KvElem>(job: &SegmentJob<'_>) {
    // SAFETY: passed on.
    unsafe {
        let mut rows = job.rows;
        if S::ATTN_ROWS >= 4 {
            while let Some((four, rest)) = rows.split_first_chunk::<4>() {
                segment_rows::<S, E, 4>(job, four);
                rows = rest;
            }
            if let Some((two, rest)) = rows.split_first_chunk::<2>() {
                segment_rows::<S, E, 2>(job, two);
                rows = rest;
            }
        }
        for row in rows {
            segment_rows::<S, E, 1>(job, std::array::from_ref(row));
        }
    }
}

#[inline(always)]
unsafe fn segment_rows<S: Simd, E: KvElem, const R: usize>(job: &SegmentJob<'_>, rows: &[Row; R]) {
    let start = job.segment * ATTN_SEGMENT;
    let from: [usize; R] = std::array::from_fn(|r| rows[r].from.max(start) - start);
    let to: [usize; R] = std::array::from_fn(|r| rows[r].to.min(start + ATTN_SEGMENT) - start);
    let low = *from.iter().min().unwrap_or(&0);
    let high = *to.iter().max().unwrap_or(&0);
    let mut p = [[0f32; ATTN_SEGMENT]; R];
    // SAFETY: passed on; `p` holds a segment's scores per row.
    unsafe {
        for block in low / KV_BLOCK..high.div_ceil(KV_BLOCK) {
            scores::<S, E, R>(
                job,
                rows,
                start + block * KV_BLOCK,
                p.each_mut().map(|p| p[block * KV_BLOCK..].as_mut_ptr()),
            );
        }
        let mut sums = [(0f32, 0f32); R];
        for r in 0..R {
            sums[r] = softmax::<S>(&mut p[r], from[r], to[r]);
        }
        // Keys that every row sees go together; those at the ends, row by row, before and after: each row still adds
        // its own in ascending order. Rows of one token have no ends.
        let (first, last) = (*from.iter().max().unwrap_or(&0), *to.iter().min().unwrap_or(&0));
        let mut outs = [[0f32; MAX_DIM]; R];
        let alone = |r: usize, range: std::ops::Range<usize>, outs: &mut [[f32; MAX_DIM]; R]| {
            values::<S, E, 1>(job, start, range, [p[r].as_ptr()], [outs[r].as_mut_ptr()]);
        };
        for r in 0..R {
            alone(r, from[r]..to[r].min(first.max(from[r])), &mut outs);
        }
        if first < last {
            let weights = p.each_ref().map(|p| p.as_ptr());
            values::<S, E, R>(job, start, first..last, weights, outs.each_mut().map(|o| o.as_mut_ptr()));
        }
        for r in 0..R {
            alone(r, last.max(first).max(from[r]).min(to[r])..to[r], &mut outs);
            merge::<S>(rows[r].state, outs[r].as_ptr(), sums[r].0, sums[r].1, job.kv.dim);
        }
    }
}

/// Largest supported head size.
pub(crate) const MAX_DIM: usize = 512;

/// Scaled (and capped) scores of the 64 keys of the block at position `at`.
#[inline(always)]
unsafe fn scores<S: Simd, E: KvElem, const R: usize>(
    job: &SegmentJob<'_>,
    rows: &[Row; R],
    at: usize,
    out: [*mut f32; R],
) {
    // SAFETY: the block is whole, whatever its unwritten lanes hold; the caller vouches for the rest.
    unsafe {
        let k = job.kv.k.add(job.kv.block(at) * E::BYTES);
        let mut acc = [[S::splat(0.0); 4]; R];
        for d in 0..job.kv.dim {
            let keys: [S::F; 4] = [
                E::load::<S>(k.add((d * KV_BLOCK) * E::BYTES)),
                E::load::<S>(k.add((d * KV_BLOCK + 16) * E::BYTES)),
                E::load::<S>(k.add((d * KV_BLOCK + 32) * E::BYTES)),
                E::load::<S>(k.add((d * KV_BLOCK + 48) * E::BYTES)),
            ];
            for r in 0..R {
                let q = S::splat(*rows[r].q.add(d));
                for c in 0..4 {
                    acc[r][c] = S::fma(q, keys[c], acc[r][c]);
                }
            }
        }
        for r in 0..R {
            for c in 0..4 {
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

/// `o[r] += Σ_j p[r][j] · v[j]` for the keys `range` of the segment, in ascending order.
#[inline(always)]
unsafe fn values<S: Simd, E: KvElem, const R: usize>(
    job: &SegmentJob<'_>,
    start: usize,
    range: std::ops::Range<usize>,
    p: [*const f32; R],
    out: [*mut f32; R],
) {
    let dim = job.kv.dim;
    // SAFETY: every key of the range is written; channels go in steps of four vectors, then of one.
    unsafe {
        let mut c = 0;
        while c < dim {
            if c + 4 * LANES <= dim {
                channels::<S, E, R, 4>(job, start, range.clone(), p, out.map(|o| o.add(c)), c);
                c += 4 * LANES;
            } else {
                channels::<S, E, R, 1>(job, start, range.clone(), p, out.map(|o| o.add(c)), c);
                c += LANES;
            }
        }
    }
}

/// [`values`] for `16 · C` channels from `channel` on.
#[inline(always)]
unsafe fn channels<S: Simd, E: KvElem, const R: usize, const C: usize>(
    job: &SegmentJob<'_>,
    start: usize,
    range: std::ops::Range<usize>,
    p: [*const f32; R],
    out: [*mut f32; R],
    channel: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; R];
        for r in 0..R {
            for c in 0..C {
                acc[r][c] = S::load(out[r].add(c * LANES));
            }
        }
        let mut j = range.start;
        while j < range.end {
            let end = ((j / KV_BLOCK + 1) * KV_BLOCK).min(range.end);
            let block = job.kv.v.add((job.kv.block(start + j) + channel) * E::BYTES);
            for j in j..end {
                let v = block.add(j % KV_BLOCK * job.kv.dim * E::BYTES);
                let mut vs = [S::splat(0.0); C];
                for c in 0..C {
                    vs[c] = E::load::<S>(v.add(c * LANES * E::BYTES));
                }
                for r in 0..R {
                    let weight = S::splat(*p[r].add(j));
                    for c in 0..C {
                        acc[r][c] = S::fma(weight, vs[c], acc[r][c]);
                    }
                }
            }
            j = end;
        }
        for r in 0..R {
            for c in 0..C {
                S::store(out[r].add(c * LANES), acc[r][c]);
            }
        }
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
