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
    /// Keys of physical block 0 of this head, f16 bits, `[head_dim][64]`.
    pub(crate) k: *const u16,
    /// Values, likewise, `[64][head_dim]`.
    pub(crate) v: *const u16,
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
pub(crate) unsafe fn segment<S: Simd>(job: &SegmentJob<'_>) {
    // SAFETY: passed on.
    unsafe {
        let mut rows = job.rows;
        if S::ATTN_ROWS >= 4 {
            while let Some((four, rest)) = rows.split_first_chunk::<4>() {
                segment_rows::<S, 4>(job, four);
                rows = rest;
            }
            if let Some((two, rest)) = rows.split_first_chunk::<2>() {
                segment_rows::<S, 2>(job, two);
                rows = rest;
            }
        }
        for row in rows {
            segment_rows::<S, 1>(job, std::array::from_ref(row));
        }
    }
}

#[inline(always)]
unsafe fn segment_rows<S: Simd, const R: usize>(job: &SegmentJob<'_>, rows: &[Row; R]) {
    let start = job.segment * ATTN_SEGMENT;
    let from: [usize; R] = std::array::from_fn(|r| rows[r].from.max(start) - start);
    let to: [usize; R] = std::array::from_fn(|r| rows[r].to.min(start + ATTN_SEGMENT) - start);
    let low = *from.iter().min().unwrap_or(&0);
    let high = *to.iter().max().unwrap_or(&0);
    let mut p = [[0f32; ATTN_SEGMENT]; R];
    let mut out = [0f32; MAX_DIM];
    // SAFETY: passed on; `p` holds a segment's scores per row.
    unsafe {
        for block in low / KV_BLOCK..high.div_ceil(KV_BLOCK) {
            scores::<S, R>(
                job,
                rows,
                start + block * KV_BLOCK,
                p.each_mut().map(|p| p[block * KV_BLOCK..].as_mut_ptr()),
            );
        }
        let mut sums = [(0f32, 0f32); R];
        for r in 0..R {
            sums[r] = softmax::<S>(&mut p[r], from[r], to[r], job);
        }
        let joint = *from.iter().max().unwrap_or(&0)..*to.iter().min().unwrap_or(&0);
        if R > 1 && !joint.is_empty() && from.iter().all(|f| *f == from[0]) && to.iter().all(|t| *t == to[0])
        {
            // Rows of one token: their keys are the same.
            let mut outs = [[0f32; MAX_DIM]; R];
            values::<S, R>(
                job,
                start,
                joint,
                p.each_ref().map(|p| p.as_ptr()),
                outs.each_mut().map(|o| o.as_mut_ptr()),
            );
            for r in 0..R {
                merge::<S>(rows[r].state, outs[r].as_ptr(), sums[r].0, sums[r].1, job.kv.dim);
            }
            return;
        }
        if R > 1 && joint.start < joint.end {
            let mut outs = [[0f32; MAX_DIM]; R];
            for r in 0..R {
                values::<S, 1>(job, start, from[r]..joint.start, [p[r].as_ptr()], [outs[r].as_mut_ptr()]);
            }
            values::<S, R>(
                job,
                start,
                joint.clone(),
                p.each_ref().map(|p| p.as_ptr()),
                outs.each_mut().map(|o| o.as_mut_ptr()),
            );
            for r in 0..R {
                values::<S, 1>(job, start, joint.end..to[r], [p[r].as_ptr()], [outs[r].as_mut_ptr()]);
                merge::<S>(rows[r].state, outs[r].as_ptr(), sums[r].0, sums[r].1, job.kv.dim);
            }
            return;
        }
        for r in 0..R {
            out.fill(0.0);
            values::<S, 1>(job, start, from[r]..to[r], [p[r].as_ptr()], [out.as_mut_ptr()]);
            merge::<S>(rows[r].state, out.as_ptr(), sums[r].0, sums[r].1, job.kv.dim);
        }
    }
}

/// Largest supported head size.
pub(crate) const MAX_DIM: usize = 512;

/// Scaled (and capped) scores of the 64 keys of the block at position `at`.
#[inline(always)]
unsafe fn scores<S: Simd, const R: usize>(
    job: &SegmentJob<'_>,
    rows: &[Row; R],
    at: usize,
    out: [*mut f32; R],
) {
    // SAFETY: the block is whole, whatever its unwritten lanes hold; the caller vouches for the rest.
    unsafe {
        let k = job.kv.k.add(job.kv.block(at));
        let mut acc = [[S::splat(0.0); 4]; R];
        for d in 0..job.kv.dim {
            let keys: [S::F; 4] = [
                S::load_f16(k.add(d * KV_BLOCK).cast()),
                S::load_f16(k.add(d * KV_BLOCK + 16).cast()),
                S::load_f16(k.add(d * KV_BLOCK + 32).cast()),
                S::load_f16(k.add(d * KV_BLOCK + 48).cast()),
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
unsafe fn softmax<S: Simd>(
    p: &mut [f32; ATTN_SEGMENT],
    from: usize,
    to: usize,
    _job: &SegmentJob<'_>,
) -> (f32, f32) {
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
unsafe fn values<S: Simd, const R: usize>(
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
                channels::<S, R, 4>(job, start, range.clone(), p, out.map(|o| o.add(c)), c);
                c += 4 * LANES;
            } else {
                channels::<S, R, 1>(job, start, range.clone(), p, out.map(|o| o.add(c)), c);
                c += LANES;
            }
        }
    }
}

/// [`values`] for `16 · C` channels from `channel` on.
#[inline(always)]
unsafe fn channels<S: Simd, const R: usize, const C: usize>(
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
            let block = job.kv.v.add(job.kv.block(start + j) + channel);
            for j in j..end {
                let v = block.add(j % KV_BLOCK * job.kv.dim);
                let mut vs = [S::splat(0.0); C];
                for c in 0..C {
                    vs[c] = S::load_f16(v.add(c * LANES).cast());
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
