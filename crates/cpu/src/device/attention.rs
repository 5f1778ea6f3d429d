//! The attention stage: how query rows and segments are shared among workers.
//!
//! Many tokens: a worker takes a tile of tokens of one key head and walks all segments. Few tokens: a worker takes one
//! segment of one key head, and partials are merged afterwards. The bits are the same, as the partials and the order
//! of their merging are.

use super::CpuDevice;
use super::state::{FEW_TOKENS, OwnSpan, State, TOKEN_TILE};
use crate::arch::Kernels;
use crate::kernel::attention::{KvHead, ROWS, Row, SegmentJob, partial_len};
use crate::mem::Rows;
use crate::pool::{Cut, Worker};
use minfer_ops::*;

struct Attention<'a> {
    kernels: &'static Kernels,
    state: &'a State,
    spec: &'a AttentionSpec,
    q: Rows,
    out: Rows,
}

/// Segments that a token sees.
struct Seen {
    from: usize,
    to: usize,
}

impl Seen {
    /// Of token `t` of the step, which is of `span`.
    fn of(spec: &AttentionSpec, span: &OwnSpan, t: usize) -> Seen {
        let position = span.position + t - span.start;
        let to = if spec.causal { position + 1 } else { span.position + span.len };
        Seen { from: spec.seen_from(position), to }
    }

    fn segments(&self) -> std::ops::Range<usize> {
        self.from / ATTN_SEGMENT..self.to.div_ceil(ATTN_SEGMENT)
    }
}

impl CpuDevice {
    pub(super) fn run_attention(&mut self, spec: &AttentionSpec) -> Result<(), DeviceError> {
        let state = self
            .state
            .as_ref()
            .ok_or_else(|| DeviceError::Fault("a step before memory was reserved".into()))?;
        state.reserve.check_slot(spec.kv, spec.heads)?;
        for span in &state.spans {
            let (first_block, _) = span.tables[spec.kv.group];
            spec.check_window(span.position, span.len, first_block)?;
        }
        let width = state.reserve.max_q;
        let attention = Attention {
            kernels: self.kernels,
            state,
            spec,
            q: State::rows(&state.q, width),
            out: State::rows(&state.attn, width),
        };
        let most = attention.most_segments();
        let partials = state.tokens.len() * spec.heads.q * most * partial_len(spec.heads.dim);
        let few = state.tokens.len() <= FEW_TOKENS && partials <= state.partials.len();
        self.pool.run(|w| if few { attention.by_segment(w, most) } else { attention.by_tokens(w) });
        Ok(())
    }
}

impl Attention<'_> {
    fn group(&self) -> usize {
        self.spec.heads.q / self.spec.heads.kv
    }

    fn kv_head<'a>(&'a self, span: &'a OwnSpan, head: usize) -> KvHead<'a> {
        let store = &self.state.kv[self.spec.kv.group];
        let (first_block, blocks) = &span.tables[self.spec.kv.group];
        let KvTypes { keys, values } = store.types;
        let at = |ty| store.offset(ty, self.spec.kv.layer, 0, head);
        KvHead {
            // SAFETY: the layer's head begins inside the cache.
            k: unsafe { store.k.ptr().add(at(keys)) },
            // SAFETY: as above.
            v: unsafe { store.v.ptr().add(at(values)) },
            k_stride: store.block_stride(keys),
            v_stride: store.block_stride(values),
            blocks: &self.state.blocks[blocks.clone()],
            first_block: *first_block,
            dim: self.spec.heads.dim,
        }
    }

    /// The row of query head `head` of token `t`, with its state at `state`.
    fn row(&self, t: usize, head: usize, seen: &Seen, state: *mut f32) -> Row {
        // SAFETY: the head lies inside row t.
        let q = unsafe { self.q.ptr(t).add(head * self.spec.heads.dim) };
        Row { q, from: seen.from, to: seen.to, state }
    }

    /// Attention of `rows` over a segment, by worker `w`.
    fn run_segment(&self, w: &Worker<'_>, kv: KvHead<'_>, segment: usize, rows: &[Row]) {
        let (scale, soft_cap) = (self.spec.scale, self.spec.soft_cap.unwrap_or(0.0));
        let room = Rows::of(&self.state.rooms, self.state.rooms.len() / w.count).ptr(w.id);
        let KvTypes { keys, values } = self.state.kv[self.spec.kv.group].types;
        for rows in rows.chunks(ROWS) {
            let job = SegmentJob { kv, segment, scale, soft_cap, rows, room };
            // SAFETY: tables cover what the rows see (checked at `begin`), it was written by `attn_in`, and the states
            // and the room are this worker's.
            unsafe {
                (self.kernels.kv(keys).scores)(&job);
                (self.kernels.kv(values).values)(&job);
            }
        }
    }

    fn finish(&self, state: *const f32, t: usize, head: usize) {
        let dim = self.spec.heads.dim;
        // SAFETY: a finished state of this worker; head `head` of row t is its own.
        unsafe { (self.kernels.finish)(state, self.out.ptr(t).add(head * dim), dim) };
    }

    fn by_tokens(&self, w: &Worker<'_>) {
        let (group, dim) = (self.group(), self.spec.heads.dim);
        let per_row = partial_len(dim);
        let states = Rows::of(&self.state.states, self.state.states.len() / w.count);
        let tiles = |span: &OwnSpan| span.len.div_ceil(TOKEN_TILE);
        let total: usize = self.state.spans.iter().map(tiles).sum();
        let mut rows = Vec::with_capacity(TOKEN_TILE * group);
        w.share_each(0, total * self.spec.heads.kv, Cut::Every(1), |task| {
            let (mut tile, kv_head) = (task / self.spec.heads.kv, task % self.spec.heads.kv);
            let mut spans = self.state.spans.iter();
            // Tiles are numbered through all spans.
            let span = loop {
                match spans.next() {
                    Some(span) if tile < tiles(span) => break span,
                    Some(span) => tile -= tiles(span),
                    None => return,
                }
            };
            let first = tile * TOKEN_TILE;
            let count = TOKEN_TILE.min(span.len - first);
            let state = |i: usize, h: usize| {
                // SAFETY: a worker's row of states holds TOKEN_TILE · group partials.
                unsafe { states.ptr(w.id).add((i * group + h) * per_row) }
            };
            for (i, h) in (0..count).flat_map(|i| (0..group).map(move |h| (i, h))) {
                // SAFETY: `l` of this worker's partial: empty.
                unsafe { *state(i, h).add(dim + 1) = 0.0 };
            }
            let seen = |i: usize| Seen::of(self.spec, span, span.start + first + i);
            let segments = seen(0).segments().start..seen(count - 1).segments().end;
            for segment in segments {
                rows.clear();
                for i in (0..count).filter(|i| seen(*i).segments().contains(&segment)) {
                    let t = span.start + first + i;
                    rows.extend((0..group).map(|h| self.row(t, kv_head * group + h, &seen(i), state(i, h))));
                }
                self.run_segment(w, self.kv_head(span, kv_head), segment, &rows);
            }
            for (i, h) in (0..count).flat_map(|i| (0..group).map(move |h| (i, h))) {
                self.finish(state(i, h), span.start + first + i, kv_head * group + h);
            }
        });
    }

    fn seen(&self, t: usize) -> Seen {
        Seen::of(self.spec, &self.state.spans[self.state.span_of[t] as usize], t)
    }

    /// Segments of the token that sees most.
    fn most_segments(&self) -> usize {
        (0..self.state.tokens.len()).map(|t| self.seen(t).segments().len()).max().unwrap_or(0)
    }

    /// There is room for `most` partials of each token and head.
    fn by_segment(&self, w: &Worker<'_>, most: usize) {
        let (group, dim) = (self.group(), self.spec.heads.dim);
        let per_row = partial_len(dim);
        let heads = self.spec.heads;
        let tokens = self.state.tokens.len();
        assert!(tokens * heads.q * most * per_row <= self.state.partials.len());
        let partial = |t: usize, head: usize, n: usize| {
            // SAFETY: inside the partials, by the assertion.
            unsafe { self.state.partials.ptr().add(((t * heads.q + head) * most + n) * per_row) }
        };
        let mut rows = Vec::with_capacity(group);
        w.share_each(0, tokens * heads.kv * most, Cut::Every(1), |task| {
            let (t, kv_head, n) = (task / (heads.kv * most), task / most % heads.kv, task % most);
            let seen = self.seen(t);
            let segments = seen.segments();
            if n >= segments.len() {
                return;
            }
            rows.clear();
            for h in kv_head * group..(kv_head + 1) * group {
                // SAFETY: `l` of a partial that only this task writes: empty.
                unsafe { *partial(t, h, n).add(dim + 1) = 0.0 };
                rows.push(self.row(t, h, &seen, partial(t, h, n)));
            }
            let span = &self.state.spans[self.state.span_of[t] as usize];
            self.run_segment(w, self.kv_head(span, kv_head), segments.start + n, &rows);
        });
        w.barrier();
        w.share_each(1, tokens * heads.q, Cut::Every(1), |task| {
            let (t, head) = (task / heads.q, task % heads.q);
            let state = partial(t, head, 0);
            for n in 1..self.seen(t).segments().len() {
                let other = partial(t, head, n);
                // SAFETY: whole partials, written before the barrier; this row's are this worker's now.
                unsafe { (self.kernels.merge)(state, other, *other.add(dim), *other.add(dim + 1), dim) };
            }
            self.finish(state, t, head);
        });
    }
}
