//! Memory of a running device: activations, cache, and the tokens of the step.

use super::argmax::Best;
use crate::Numerics;
use crate::kernel::amx;
use crate::kernel::attention::{partial_len, room_len};
use crate::matrix::{ActBuffers, ActKind, Scratch};
use crate::mem::{Buffer, Rows};
use crate::simd::LANES;
use minfer_ops::*;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Tokens up to which attention is shared among workers by segment instead of by token.
pub(super) const FEW_TOKENS: usize = 8;
/// Query tokens that one worker takes at a time when there are many.
pub(super) const TOKEN_TILE: usize = 16;

/// Floats of partials that are kept at most (64 MiB); a step that needs more shares attention by token.
const MOST_PARTIALS: usize = 16 << 20;

/// One sequence's tokens, tables flattened.
pub(super) struct OwnSpan {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) position: usize,
    /// Per cache group: first logical block, and where its physical blocks lie in [`State::blocks`].
    pub(super) tables: Vec<(usize, Range<usize>)>,
}

/// Keys and values of one cache group: `[layer][block][kv_head][…]`.
pub(super) struct KvStore {
    pub(super) group: KvGroup,
    pub(super) k: Buffer<u8>,
    pub(super) v: Buffer<u8>,
    pub(super) types: KvTypes,
}

impl KvStore {
    /// Bytes between blocks of one layer, of type `ty`.
    pub(super) fn block_stride(&self, ty: KvType) -> usize {
        ty.bytes(self.group.heads.kv * KV_BLOCK, self.group.heads.dim)
    }

    /// Where head `head` of block `block` of layer `layer` begins among entries of type `ty`, in bytes.
    pub(super) fn offset(&self, ty: KvType, layer: usize, block: usize, head: usize) -> usize {
        (layer * self.group.blocks + block) * self.block_stride(ty)
            + head * ty.bytes(KV_BLOCK, self.group.heads.dim)
    }
}

impl KvStore {
    /// Calls `copy` with a block's keys and values of each layer, and where they are among a block's bytes.
    fn each_part(&mut self, block: usize, mut copy: impl FnMut(&mut [u8], Range<usize>)) {
        let KvTypes { keys, values } = self.types;
        let mut at = 0;
        for layer in 0..self.group.layers {
            for (part, ty) in [keys, values].into_iter().enumerate() {
                let (start, len) = (self.offset(ty, layer, block, 0), self.block_stride(ty));
                let cache = if part == 0 { &mut self.k } else { &mut self.v };
                copy(&mut cache.as_mut_slice()[start..start + len], at..at + len);
                at += len;
            }
        }
    }
}

/// Cosines and sines of one rope for the step's tokens: `[token][pair][cos, sin]`.
pub(super) struct RopeTable {
    pub(super) pairs: usize,
    pub(super) table: Buffer<f32>,
}

pub(super) struct State {
    pub(super) reserve: Reserve,
    /// Residual stream, `[tokens][d_model]`; like all rows here padded to whole vectors.
    pub(super) x: Buffer<f32>,
    /// Input of a product: normed rows, one per token (or per worker, for a single token).
    pub(super) input: Buffer<f32>,
    pub(super) q: Buffer<f32>,
    pub(super) k: Buffer<f32>,
    pub(super) v: Buffer<f32>,
    pub(super) attn: Buffer<f32>,
    pub(super) gate: Buffer<f32>,
    pub(super) up: Buffer<f32>,
    /// Product that a post-norm still has to see.
    pub(super) product: Buffer<f32>,
    pub(super) logits: Buffer<f32>,
    /// Softmax partials of attention shared by segment: `[token][q head][segment]`.
    pub(super) partials: Buffer<f32>,
    /// Running partials of a worker: `[worker][TOKEN_TILE · q heads per kv head]`.
    pub(super) states: Buffer<f32>,
    /// What a worker's attention job needs, `[worker][room_len]`.
    pub(super) rooms: Buffer<f32>,
    /// Per 32 values, per 256, and those of the `fast` profile.
    acts: [ActBuffers; 3],
    pub(super) ropes: Vec<RopeTable>,
    pub(super) kv: Vec<KvStore>,
    pub(super) scratch: Vec<Mutex<Scratch>>,
    /// The largest logit of each output that a worker saw: `[worker][output]`.
    best: Vec<Mutex<Vec<Best>>>,
    // The step.
    pub(super) tokens: Vec<u32>,
    pub(super) outputs: Vec<u32>,
    pub(super) spans: Vec<OwnSpan>,
    pub(super) blocks: Vec<u32>,
    /// Span of each token.
    pub(super) span_of: Vec<u32>,
    spare_tables: Vec<Vec<(usize, Range<usize>)>>,
}

/// Sizes of the activations, in values per token unless said otherwise.
struct Sizes {
    rows: usize,
    d_model: usize,
    q: usize,
    kv: usize,
    ff: usize,
    vocab: usize,
    input: usize,
    partials: usize,
    states: usize,
    rooms: usize,
}

impl Sizes {
    fn of(reserve: &Reserve, threads: usize) -> Sizes {
        let pad = |n: usize| n.next_multiple_of(LANES);
        let (d_model, q, ff) = (pad(reserve.d_model), pad(reserve.max_q), pad(reserve.max_ff));
        let rows = reserve.max_tokens.max(threads).max(reserve.max_outputs);
        let mut partials = 0;
        let mut states = 0;
        let mut room = 0;
        for group in &reserve.kv_groups {
            let segments = group.blocks.div_ceil(ATTN_SEGMENT / KV_BLOCK).saturating_add(1);
            let per_row = partial_len(group.heads.dim);
            let per_segment = FEW_TOKENS.min(reserve.max_tokens) * group.heads.q * per_row;
            partials = partials.max(segments.saturating_mul(per_segment).min(MOST_PARTIALS));
            states = states.max(TOKEN_TILE * (group.heads.q / group.heads.kv.max(1)) * per_row);
            room = room.max(room_len(group.heads.dim));
        }
        Sizes {
            rows: if rows < amx::FROM { rows } else { rows.next_multiple_of(amx::BLOCK) },
            d_model,
            q,
            kv: pad(reserve.max_kv),
            ff,
            vocab: pad(reserve.vocab),
            input: d_model.max(q).max(ff).next_multiple_of(256),
            partials,
            states: states * threads,
            rooms: room * threads,
        }
    }
}

/// Planes of each of [`State::acts`].
fn acts_len(numerics: Numerics) -> [usize; 3] {
    [1, 1, if numerics == Numerics::Fast { 2 } else { 0 }]
}

/// Heads of a group's keys, of all its tokens; more than any memory if that overflows.
fn kv_heads(group: &KvGroup) -> usize {
    let factors = [group.blocks, group.heads.kv, KV_BLOCK];
    factors.into_iter().fold(group.layers, usize::saturating_mul)
}

impl State {
    /// [`Device::read_block`].
    pub(super) fn read_block(
        &mut self,
        group: usize,
        block: usize,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.reserve.check_block(group, block, bytes.len())?;
        self.kv[group].each_part(block, |cache, at| bytes[at].copy_from_slice(cache));
        Ok(())
    }

    /// [`Device::write_block`].
    pub(super) fn write_block(
        &mut self,
        group: usize,
        block: usize,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.reserve.check_block(group, block, bytes.len())?;
        self.kv[group].each_part(block, |cache, at| cache.copy_from_slice(&bytes[at]));
        Ok(())
    }

    pub(super) fn bytes(reserve: &Reserve, ropes: &[Rope], threads: usize, numerics: Numerics) -> u64 {
        let s = Sizes::of(reserve, threads);
        let acts: usize = acts_len(numerics).iter().map(|n| n * (s.input / 4 + s.input / 16 * 3)).sum();
        let per_token = 3 * s.d_model + 2 * s.q + 2 * s.kv + 2 * s.ff + acts;
        let ropes: usize = ropes.iter().map(|rope| 2 * rope.inv_freq.len()).sum();
        let floats =
            s.rows * (per_token + ropes) + reserve.max_outputs * s.vocab + s.partials + s.states + s.rooms;
        let kv = reserve.kv_groups.iter().map(|g| reserve.kv_types.bytes(kv_heads(g), g.heads.dim));
        kv.fold(floats * size_of::<f32>(), usize::saturating_add) as u64
    }

    /// Bytes of all buffers.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> u64 {
        let State { x, input, q, k, v, attn, gate, up, product, logits, partials, states, rooms, .. } = self;
        let floats = [x, input, q, k, v, attn, gate, up, product, logits, partials, states, rooms];
        let floats = floats.into_iter().chain(self.ropes.iter().map(|rope| &rope.table)).map(|b| 4 * b.len());
        let acts = self.acts.iter().map(ActBuffers::bytes);
        let kv = self.kv.iter().map(|store| store.k.len() + store.v.len());
        floats.chain(acts).chain(kv).sum::<usize>() as u64
    }

    pub(super) fn new(
        reserve: &Reserve,
        ropes: &[Rope],
        threads: usize,
        numerics: Numerics,
    ) -> Result<State, DeviceError> {
        let s = Sizes::of(reserve, threads);
        let [per_32, per_256, wide] = acts_len(numerics).map(|n| ActBuffers::new(n * s.rows * s.input));
        let floats = |rows: usize, width: usize| Buffer::<f32>::zeroed(rows * width, "activations");
        let kv = |group: &KvGroup| -> Result<KvStore, DeviceError> {
            let (heads, types, dim) = (kv_heads(group), reserve.kv_types, group.heads.dim);
            if let Some(ty) = types.refused(dim) {
                let (name, block) = (ty.name(), ty.block());
                return Err(DeviceError::Fault(format!(
                    "a cache of {name} for heads of {dim} channels, not a multiple of {block}"
                )));
            }
            Ok(KvStore {
                group: *group,
                k: Buffer::zeroed(types.keys.bytes(heads, dim), "KV cache")?,
                v: Buffer::zeroed(types.values.bytes(heads, dim), "KV cache")?,
                types,
            })
        };
        let rope = |rope: &Rope| -> Result<RopeTable, DeviceError> {
            let pairs = rope.inv_freq.len();
            Ok(RopeTable { pairs, table: floats(s.rows, 2 * pairs)? })
        };
        Ok(State {
            x: floats(s.rows, s.d_model)?,
            input: floats(s.rows, s.d_model)?,
            q: floats(s.rows, s.q)?,
            k: floats(s.rows, s.kv)?,
            v: floats(s.rows, s.kv)?,
            attn: floats(s.rows, s.q)?,
            gate: floats(s.rows, s.ff)?,
            up: floats(s.rows, s.ff)?,
            product: floats(s.rows, s.d_model)?,
            logits: floats(reserve.max_outputs, s.vocab)?,
            partials: floats(1, s.partials)?,
            states: floats(1, s.states)?,
            rooms: floats(1, s.rooms)?,
            acts: [per_32?, per_256?, wide?],
            ropes: ropes.iter().map(rope).collect::<Result<_, _>>()?,
            kv: reserve.kv_groups.iter().map(kv).collect::<Result<_, _>>()?,
            scratch: (0..threads).map(|_| Mutex::default()).collect(),
            best: (0..threads).map(|_| Mutex::new(Vec::with_capacity(reserve.max_outputs))).collect(),
            reserve: reserve.clone(),
            tokens: Vec::new(),
            outputs: Vec::new(),
            spans: Vec::new(),
            blocks: Vec::new(),
            span_of: Vec::new(),
            spare_tables: Vec::new(),
        })
    }

    pub(super) fn d_model(&self) -> usize {
        self.reserve.d_model.next_multiple_of(LANES)
    }

    pub(super) fn x_rows(&self) -> Rows {
        Rows::of(&self.x, self.d_model())
    }

    /// Rows of a buffer whose widest row is `width` values.
    pub(super) fn rows(buffer: &Buffer<f32>, width: usize) -> Rows {
        Rows::of(buffer, width.next_multiple_of(LANES))
    }

    /// The quantized activations of a form.
    pub(super) fn act_buffers(&self, kind: ActKind) -> &ActBuffers {
        match kind {
            ActKind::Q8x256 => &self.acts[1],
            ActKind::Q16x256 => &self.acts[2],
            ActKind::Q8x32 | ActKind::F32 => &self.acts[0],
        }
    }

    /// Takes over the tokens of a step.
    pub(super) fn begin(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.reserve.check_batch(batch)?;
        self.tokens.clear();
        self.tokens.extend_from_slice(batch.tokens);
        self.outputs.clear();
        self.outputs.extend_from_slice(batch.outputs);
        self.blocks.clear();
        self.span_of.clear();
        self.spare_tables.extend(self.spans.drain(..).map(|span| span.tables));
        for (i, span) in batch.spans.iter().enumerate() {
            let mut tables = self.spare_tables.pop().unwrap_or_default();
            tables.clear();
            for table in span.tables {
                let start = self.blocks.len();
                self.blocks.extend_from_slice(table.blocks);
                tables.push((table.first, start..self.blocks.len()));
            }
            self.spans.push(OwnSpan { start: span.start, len: span.len, position: span.position, tables });
            self.span_of.extend(std::iter::repeat_n(i as u32, span.len));
        }
        Ok(())
    }

    /// Position of token `t` of the step.
    pub(super) fn position(&self, t: usize) -> usize {
        let span = &self.spans[self.span_of[t] as usize];
        span.position + t - span.start
    }

    /// A worker's own; the lock is never contended.
    pub(super) fn best(&self, worker: usize) -> MutexGuard<'_, Vec<Best>> {
        self.best[worker].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The token with the largest logit of each output.
    pub(super) fn read_argmax(&self, out: &mut [Option<u32>]) -> Result<(), DeviceError> {
        expect_reserved("tokens asked", self.outputs.len(), out.len())?;
        for (slot, out) in out.iter_mut().enumerate() {
            let seen = (0..self.best.len()).filter_map(|worker| self.best(worker).get(slot).copied());
            *out = seen.fold(Best::NONE, Best::or).token();
        }
        Ok(())
    }

    pub(super) fn read_logits(&self, out: &mut [f32]) -> Result<(), DeviceError> {
        expect_reserved("logits asked", self.outputs.len() * self.reserve.vocab, out.len())?;
        let stride = self.reserve.vocab.next_multiple_of(LANES);
        let rows = self.logits.as_slice().chunks_exact(stride);
        for (out, row) in out.chunks_exact_mut(self.reserve.vocab).zip(rows).take(self.outputs.len()) {
            out.copy_from_slice(&row[..self.reserve.vocab]);
        }
        Ok(())
    }
}
