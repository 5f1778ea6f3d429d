//! Memory of a running device: activations, cache, and the tokens of the step.

use super::LoadedRope;
use super::argmax::ArgmaxState;
use super::sample::{self, SampleState};
use crate::args::{Address, Spans, at};
use crate::driver::{Buffer, Gpu, Pinned, held};
use crate::matrix::{Beside, Form, Input, SPARE_FLAGS, Spare, TILE_TOKENS, UNIT_COLS, UNIT_SUMS};
use minfer_ops::*;
use std::ops::Range;

/// Floats of attention partials at most (256 MiB); a step that needs more walks the segments.
const MOST_PARTIALS: usize = 64 << 20;

/// Query rows (heads of tokens) up to which attention is split by segments.
const SPLIT_ROWS: usize = 1024;

/// Halves of a row of a product's input: columns, padded to whole units, and the sums of their groups (`sum_place` of
/// `csrc/prepare.cuh`).
pub(super) fn row_halves(cols: usize) -> usize {
    cols.div_ceil(UNIT_COLS) * (UNIT_COLS + UNIT_SUMS)
}

/// Inputs of a product, [`Input`]s of up to `width` columns.
pub(super) struct Acts {
    x: Buffer<u16>,
    unscale: Buffer<f32>,
}

impl Acts {
    /// `rows` rows of `cols` columns.
    pub(super) fn input(&self, rows: usize, cols: usize) -> Input {
        Input {
            x: at(&self.x, 0),
            unscale: at(&self.unscale, 0),
            stride: row_halves(cols),
            rows,
            form: Form::Fragments,
            spare: Spare::default(),
            beside: Beside::None,
            together: false,
        }
    }
}

/// Keys and values of one cache group: `[layer][block][kv_head]` of blocks as `csrc/cache.cuh` has them, of f16 and bf16
/// `[KV_BLOCK][dim]`.
pub(super) struct KvStore {
    group: KvGroup,
    types: KvTypes,
    k: Buffer<u8>,
    v: Buffer<u8>,
}

impl KvStore {
    /// Addresses of a layer's keys and values.
    pub(super) fn layer(&self, layer: usize) -> (Address, Address) {
        let (heads, dim) = (layer * self.group.blocks * self.group.heads.kv * KV_BLOCK, self.group.heads.dim);
        (at(&self.k, self.types.keys.bytes(heads, dim)), at(&self.v, self.types.values.bytes(heads, dim)))
    }

    /// A block's keys and values of each layer: the buffer, where they begin there, and where they are among a block's bytes.
    pub(super) fn parts_of(&self, block: usize) -> impl Iterator<Item = (&Buffer<u8>, usize, Range<usize>)> {
        let (heads, dim) = (self.group.heads.kv * KV_BLOCK, self.group.heads.dim);
        let [k_len, v_len] = [self.types.keys, self.types.values].map(|ty| ty.bytes(heads, dim));
        (0..self.group.layers).flat_map(move |layer| {
            let (index, at) = (layer * self.group.blocks + block, layer * (k_len + v_len));
            let keys = (&self.k, index * k_len, at..at + k_len);
            [keys, (&self.v, index * v_len, at + k_len..at + k_len + v_len)]
        })
    }

    /// All keys and all values.
    #[cfg(test)]
    pub(super) fn parts(&self) -> [&Buffer<u8>; 2] {
        [&self.k, &self.v]
    }
}

/// `enum class Kv` of `csrc/cache.cuh`; −1 for what [`check_cache`] refuses.
pub(super) const fn cache_type(ty: KvType) -> i32 {
    match ty {
        KvType::F16 => 0,
        KvType::BF16 => 1,
        KvType::Q8_0 => 2,
        KvType::FP8 => 3,
        KvType::F32 => -1,
    }
}

pub(super) struct State {
    pub(super) reserve: Reserve,
    /// Residual stream, `[tokens][d_model]`.
    pub(super) x: Buffer<f32>,
    /// What norms make of it: a feed-forward stage may read the attention stage's.
    pub(super) normed: Acts,
    /// Every other input of a product.
    pub(super) inner: Acts,
    pub(super) q: Buffer<f32>,
    pub(super) k: Buffer<f32>,
    pub(super) v: Buffer<f32>,
    pub(super) q16: Buffer<u16>,
    pub(super) q_unscale: Buffer<f32>,
    pub(super) attn: Buffer<f32>,
    pub(super) partials: Buffer<f32>,
    /// Blocks that have left a partial, `[tokens][kv_heads]`; zero between steps.
    pub(super) arrived: Buffer<u32>,
    /// Bits of the largest magnitude of gated activations, of even and odd layers.
    pub(super) most: Buffer<u32>,
    /// The same of each token, of a step of many.
    pub(super) token_most: Buffer<u32>,
    pub(super) gate: Buffer<f32>,
    /// Between the product that it is of and the next input: [`State::spare`].
    pub(super) up: Buffer<f32>,
    /// [`Spare::arrived`].
    part_flags: Buffer<u32>,
    /// Product that a post-norm still has to see.
    pub(super) product: Buffer<f32>,
    pub(super) logits: Buffer<f32>,
    /// Angles of each rope.
    pub(super) angles: Vec<Buffer<f32>>,
    pub(super) kv: Vec<KvStore>,
    /// Where the logits of a step with one output arrive.
    pub(super) arrival: Pinned<f32>,
    pub(super) argmax: ArgmaxState,
    pub(super) sample: SampleState,
    step: Buffer<u32>,
    staged: Pinned<u32>,
    layout: Layout,
    // The step.
    pub(super) tokens: usize,
    pub(super) outputs: usize,
    spans: Vec<OwnSpan>,
}

/// A span without its blocks.
pub(super) struct OwnSpan {
    pub(super) len: usize,
    pub(super) position: usize,
    /// First logical block per cache group.
    pub(super) first_blocks: Vec<usize>,
}

/// Where the parts of a step's description begin in its buffer. Blocks come last: their number varies.
#[derive(Clone, Copy)]
struct Layout {
    tokens: usize,
    groups: usize,
    outputs: usize,
}

impl Layout {
    fn position(self) -> usize {
        self.tokens
    }
    fn span_of(self) -> usize {
        2 * self.tokens
    }
    fn start(self) -> usize {
        3 * self.tokens
    }
    fn len(self) -> usize {
        4 * self.tokens
    }
    fn first_block(self) -> usize {
        5 * self.tokens
    }
    fn table(self) -> usize {
        self.first_block() + self.tokens * self.groups
    }
    fn outputs(self) -> usize {
        self.table() + self.tokens * self.groups
    }
    fn blocks(self) -> usize {
        self.outputs() + self.outputs
    }
}

/// Values of every buffer, from which both their sizes and their sum come.
struct Sizes {
    tokens: usize,
    rows: usize,
    d_model: usize,
    normed: usize,
    inner: usize,
    q_heads: usize,
    kv_heads: usize,
    partials: usize,
    step: usize,
}

impl Sizes {
    fn of(reserve: &Reserve) -> Sizes {
        // What fits a row of n columns fits a shorter one.
        let pad = |n: usize| row_halves(n.next_multiple_of(UNIT_COLS));
        let layout = layout(reserve);
        let blocks: usize = reserve.kv_groups.iter().map(|g| g.blocks).sum();
        let mut partials = 0;
        for group in &reserve.kv_groups {
            let segments =
                group.blocks.div_ceil(ATTN_SEGMENT / KV_BLOCK).saturating_add(1).next_power_of_two();
            let rows = SPLIT_ROWS.min(reserve.max_tokens.saturating_mul(group.heads.q));
            let all = segments.saturating_mul(rows).saturating_mul(group.heads.dim + 2);
            partials = partials.max(all.min(MOST_PARTIALS));
        }
        Sizes {
            tokens: reserve.max_tokens,
            // Whole tiles.
            rows: reserve.max_tokens.max(reserve.max_outputs).next_multiple_of(TILE_TOKENS),
            d_model: reserve.d_model,
            normed: pad(reserve.d_model),
            inner: pad(reserve.max_q.max(reserve.max_ff)),
            q_heads: reserve.kv_groups.iter().map(|g| g.heads.q).max().unwrap_or(1),
            kv_heads: reserve.kv_groups.iter().map(|g| g.heads.kv).max().unwrap_or(1),
            partials,
            // A step in which every token is a sequence of its own with all of the cache is more than there is.
            step: layout.blocks().saturating_add(blocks.saturating_mul(reserve.max_tokens.min(64))),
        }
    }
}

fn layout(reserve: &Reserve) -> Layout {
    Layout { tokens: reserve.max_tokens, groups: reserve.kv_groups.len(), outputs: reserve.max_outputs }
}

/// Heads of a group's keys, of all its tokens; more than any memory if that overflows.
fn kv_heads(group: &KvGroup) -> usize {
    let factors = [group.blocks, group.heads.kv, KV_BLOCK];
    factors.into_iter().fold(group.layers, usize::saturating_mul)
}

/// Refuses types of the cache that no kernel reads, and heads that have no whole blocks of them.
pub(super) fn check_cache(reserve: &Reserve) -> Result<(), DeviceError> {
    let KvTypes { keys, values } = reserve.kv_types;
    let refuse = |what| Err(DeviceError::Unsupported { tensor: "keys and values".into(), what });
    if let Some(ty) = [keys, values].into_iter().find(|ty| cache_type(*ty) < 0) {
        return refuse(format!("cached as {}; the GPU caches f16, bf16, q8_0 and fp8", ty.name()));
    }
    for dim in reserve.kv_groups.iter().map(|group| group.heads.dim) {
        if let Some(ty) = reserve.kv_types.refused(dim) {
            return refuse(format!("heads of {dim} channels are no whole blocks of {}", ty.name()));
        }
    }
    Ok(())
}

impl State {
    /// Bytes of all buffers, given the pairs of each rope.
    pub(super) fn bytes(reserve: &Reserve, pairs: &[usize]) -> u64 {
        let s = Sizes::of(reserve);
        let (tokens, outputs) = (s.tokens, reserve.max_outputs);
        let floats = [
            s.rows,
            s.rows,
            tokens * s.d_model,
            tokens * s.d_model,
            tokens * reserve.max_q,
            tokens * reserve.max_q,
            tokens * reserve.max_kv,
            tokens * reserve.max_kv,
            tokens * reserve.max_ff,
            tokens * reserve.max_ff,
            tokens * s.q_heads,
            tokens * s.kv_heads,
            tokens,
            outputs * reserve.vocab,
            s.partials,
            s.step,
            2 * outputs,
            outputs,
            2,
            SPARE_FLAGS,
        ];
        let angles = pairs.iter().map(|pairs| tokens * 2 * pairs);
        let halves = [s.rows * s.normed, s.rows * s.inner, tokens * reserve.max_q];
        let kv = reserve.kv_groups.iter().flat_map(|g| {
            let KvTypes { keys, values } = reserve.kv_types;
            [keys, values].map(|ty| ty.bytes(kv_heads(g), g.heads.dim))
        });
        let buffers = floats.into_iter().chain(angles).map(|n| n.saturating_mul(4));
        let words = sample::sizes(outputs, reserve.vocab).map(|n| n.saturating_mul(8));
        let buffers = buffers.chain(halves.map(|n| n.saturating_mul(2))).chain(words).chain(kv);
        buffers.map(|bytes| held(bytes as u64)).fold(0, u64::saturating_add)
    }

    pub(super) fn new(gpu: &Gpu, reserve: &Reserve, ropes: &[LoadedRope]) -> Result<State, DeviceError> {
        check_cache(reserve)?;
        let pairs: Vec<usize> = ropes.iter().map(|r| r.rope.inv_freq.len()).collect();
        let needed = State::bytes(reserve, &pairs);
        let free = gpu.free_memory()?;
        if needed > free {
            return Err(DeviceError::OutOfMemory { what: "cache and activations", needed });
        }
        let s = Sizes::of(reserve);
        let floats = |rows: usize, width: usize| gpu.alloc::<f32>(rows * width, "activations");
        let acts = |width: usize| -> Result<Acts, DeviceError> {
            Ok(Acts { x: gpu.alloc(s.rows * width, "activations")?, unscale: floats(s.rows, 1)? })
        };
        let kv = |group: &KvGroup| -> Result<KvStore, DeviceError> {
            let (heads, types) = (kv_heads(group), reserve.kv_types);
            let bytes = |ty: KvType| gpu.alloc(ty.bytes(heads, group.heads.dim), "KV cache");
            Ok(KvStore { group: *group, types, k: bytes(types.keys)?, v: bytes(types.values)? })
        };
        Ok(State {
            x: floats(s.tokens, s.d_model)?,
            normed: acts(s.normed)?,
            inner: acts(s.inner)?,
            q: floats(s.tokens, reserve.max_q)?,
            k: floats(s.tokens, reserve.max_kv)?,
            v: floats(s.tokens, reserve.max_kv)?,
            q16: gpu.alloc(s.tokens * reserve.max_q, "activations")?,
            q_unscale: floats(s.tokens, s.q_heads)?,
            attn: floats(s.tokens, reserve.max_q)?,
            partials: floats(1, s.partials)?,
            arrived: gpu.alloc(s.tokens * s.kv_heads, "activations")?,
            most: gpu.alloc(2, "activations")?,
            token_most: gpu.alloc(s.tokens, "activations")?,
            gate: floats(s.tokens, reserve.max_ff)?,
            up: floats(s.tokens, reserve.max_ff)?,
            part_flags: gpu.alloc(SPARE_FLAGS, "activations")?,
            product: floats(s.tokens, s.d_model)?,
            logits: floats(reserve.max_outputs, reserve.vocab)?,
            angles: ropes
                .iter()
                .map(|r| floats(s.tokens, 2 * r.rope.inv_freq.len()))
                .collect::<Result<_, _>>()?,
            kv: reserve.kv_groups.iter().map(kv).collect::<Result<_, _>>()?,
            step: gpu.alloc(s.step, "activations")?,
            staged: gpu.pinned(s.step)?,
            arrival: gpu.pinned(reserve.vocab)?,
            argmax: ArgmaxState::new(gpu, reserve.max_outputs)?,
            sample: SampleState::new(gpu, reserve.max_outputs, reserve.vocab)?,
            layout: layout(reserve),
            reserve: reserve.clone(),
            tokens: 0,
            outputs: 0,
            spans: Vec::new(),
        })
    }

    /// What products may use: `up` is only read by what makes the next input of it.
    pub(super) fn spare(&self) -> Spare {
        Spare { parts: at(&self.up, 0), floats: self.up.len(), arrived: at(&self.part_flags, 0) }
    }

    /// Takes over the tokens of a step and enqueues their description.
    pub(super) fn begin(&mut self, gpu: &Gpu, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.reserve.check_batch(batch)?;
        let all: usize =
            batch.spans.iter().flat_map(|span| span.tables).map(|table| table.blocks.len()).sum();
        let used = self.layout.blocks() + all;
        // The last step's description may still be on its way out of `staged`.
        gpu.synchronize()?;
        if used > self.staged.as_slice().len() {
            let larger = used.next_power_of_two();
            self.staged = gpu.pinned(larger)?;
            self.step = gpu.alloc(larger, "activations")?;
        }
        let at = self.layout;
        let words = self.staged.as_mut_slice();
        words[..batch.tokens.len()].copy_from_slice(batch.tokens);
        words[at.outputs()..][..batch.outputs.len()].copy_from_slice(batch.outputs);
        let mut next_block = 0;
        self.spans.clear();
        for (i, span) in batch.spans.iter().enumerate() {
            words[at.start() + i] = span.start as u32;
            words[at.len() + i] = span.len as u32;
            for t in 0..span.len {
                words[at.position() + span.start + t] = (span.position + t) as u32;
                words[at.span_of() + span.start + t] = i as u32;
            }
            for (group, table) in span.tables.iter().enumerate() {
                words[at.first_block() + i * at.groups + group] = table.first as u32;
                words[at.table() + i * at.groups + group] = next_block as u32;
                words[at.blocks() + next_block..][..table.blocks.len()].copy_from_slice(table.blocks);
                next_block += table.blocks.len();
            }
            let first_blocks = span.tables.iter().map(|table| table.first).collect();
            self.spans.push(OwnSpan { len: span.len, position: span.position, first_blocks });
        }
        self.tokens = batch.tokens.len();
        self.outputs = batch.outputs.len();
        gpu.upload_pinned(&self.staged, used, &self.step)
    }

    /// The step's description, as kernels take it.
    pub(super) fn spans(&self) -> Spans {
        let word = |index: usize| at(&self.step, index);
        let layout = self.layout;
        Spans {
            span_of: word(layout.span_of()),
            position: word(layout.position()),
            start: word(layout.start()),
            len: word(layout.len()),
            first_block: word(layout.first_block()),
            table: word(layout.table()),
            blocks: word(layout.blocks()),
            spans: self.spans.len() as u32,
            groups: layout.groups as u32,
        }
    }

    /// Token ids, and the tokens whose results are wanted.
    pub(super) fn ids_and_outputs(&self) -> (Address, Address) {
        (at(&self.step, 0), at(&self.step, self.layout.outputs()))
    }

    /// The spans of the step.
    pub(super) fn own_spans(&self) -> &[OwnSpan] {
        &self.spans
    }

    /// The most segments that a row of the step sees, as a power of two, given the first position that one sees.
    pub(super) fn segments(&self, seen_from: impl Fn(usize) -> usize) -> usize {
        let segments = |span: &OwnSpan| {
            let last = (span.position + span.len).saturating_sub(1);
            last / ATTN_SEGMENT + 1 - seen_from(span.position) / ATTN_SEGMENT
        };
        self.spans.iter().filter(|s| s.len > 0).map(segments).max().unwrap_or(1).next_power_of_two()
    }

    /// Whether there is room for partials of every row of the step and `segments` each.
    pub(super) fn has_partials(&self, heads: Heads, segments: usize) -> bool {
        let rows = self.tokens * heads.q;
        rows.saturating_mul(segments).saturating_mul(heads.dim + 2) <= self.partials.len()
    }

    /// Segments per row that attention is split into, if it is: few rows, and room for their partials.
    pub(super) fn split(&self, spec: &AttentionSpec) -> Option<usize> {
        let most = self.segments(|position| spec.seen_from(position));
        let few = self.tokens * spec.heads.q <= SPLIT_ROWS;
        (few && self.has_partials(spec.heads, most)).then_some(most)
    }
}
