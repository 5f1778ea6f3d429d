//! Steps of single tokens: products that make their input on the spot, and attention with what comes before and after
//! it in one kernel. The kernels of `csrc/decode.cuh` and `csrc/decode_attention.cu`; what they do not know is left to
//! the others, whose bits are the same.

use super::stages::{Act, ROW_TILE, Source};
use super::state::OwnSpan;
use super::{CudaDevice, LoadedLinear};
use crate::args::*;
use crate::driver::{Failure, Gpu, Kernel, STATIC_SHARED, Shape};
use crate::k_segments;
use crate::matrix::{self, Form, QT16_WARPS, UNIT_BYTES, UNIT_COLS, UNIT_SUMS, form_for, together};
use minfer_ops::*;

/// Units of a warp that are on their way or at hand, `DEPTH` of the kernel.
const DEPTH: usize = 2;
/// Bytes that copies want to agree within, and those of a unit's place, `LINE` and `place_bytes` of the kernel.
const LINE: usize = 128;
const fn place_bytes(unit: usize) -> usize {
    unit.next_multiple_of(LINE) + if unit.is_multiple_of(LINE) { 0 } else { LINE }
}
/// Threads of a block of products, and how many of these a multiprocessor holds.
const THREADS: usize = 256;
const BLOCKS: usize = 2;
/// Blocks of a cluster that share K where the input's scale is known: each makes its part of the input. The first is the
/// faster one, if all clusters run at a time: one that waits for another to end doubles the product's time.
pub(super) const SPLITS: [usize; 2] = [4, 2];

/// Clusters of a kernel for products that run at a time, for each of [`SPLITS`].
pub(super) fn clusters(gpu: &Gpu, kernel: Kernel) -> Result<[usize; 2], Failure> {
    if !gpu.info.has_clusters() {
        return Ok([0; 2]);
    }
    let shared = gpu.info.shared_per_block / BLOCKS - STATIC_SHARED;
    let of = |split: usize| {
        let shape = Shape::new([split, 1, 1], THREADS).with_shared(shared);
        gpu.clusters_at_a_time(kernel, Shape { cluster: split as u32, ..shape })
    };
    Ok([of(SPLITS[0])?, of(SPLITS[1])?])
}

/// What becomes of products.
#[derive(Clone, Copy)]
pub(super) enum Decode {
    Finish(Finish),
    /// Two products, and `activation` of the first times the second.
    Gated {
        activation: Act,
        /// Collects the bits of the largest magnitude, zero before; or 0.
        most: Address,
        /// Becomes zero; or 0.
        clear: Address,
    },
}

/// Bytes of `struct Shared` of `csrc/decode_attention.cuh`, and of the scratch, which the compiler checks there.
const fn attention_struct(dim: usize) -> usize {
    if dim > 128 { 9216 } else { 5120 }
}
const ATTENTION_SCRATCH: usize = 8192;

/// Channels of the heads that it is made for.
pub(super) const ATTENTION_HEADS: [usize; 3] = [64, 128, 256];

/// Bytes of `struct WalkShared` of `csrc/decode_walk.cuh`, and threads of its blocks.
pub(super) const fn walk_shared(dim: usize) -> usize {
    let (warps, rows, halves, floats) = (4, 16, 2, 4);
    let cache = 2 * halves * ATTN_SEGMENT * dim;
    let sums = floats * warps * rows * (dim + 8);
    let queries = 2 * halves * (rows * (dim + 8) + 2 * dim);
    cache + sums + queries + 2 * floats * rows * (1 + 2 * warps) + floats * warps * dim
}
const WALK_THREADS: usize = 256;

/// A kernel for attention of single tokens: threads of its blocks, and their shared memory for heads of `dim` channels.
#[derive(Clone, Copy)]
struct AttentionShape {
    threads: usize,
    shared: usize,
}

impl AttentionShape {
    /// For contexts of few segments, whose latency counts, and heads whose segments fit a block.
    const fn short(dim: usize) -> AttentionShape {
        let shared = attention_struct(dim) + ATTENTION_SCRATCH + 2 * ATTN_SEGMENT * 2 * dim;
        AttentionShape { threads: 320, shared }
    }

    /// For contexts of more segments than multiprocessors: two blocks share one.
    const fn deep(dim: usize) -> AttentionShape {
        let shared = attention_struct(dim) + ATTENTION_SCRATCH + 2 * ATTN_SEGMENT * (dim + 64);
        AttentionShape { threads: 256, shared }
    }

    /// The one that needs least memory for a cache of a type.
    const fn of(ty: KvType, dim: usize) -> AttentionShape {
        match ty {
            KvType::Q8_0 | KvType::FP8 => AttentionShape::coded(ty, dim),
            _ => AttentionShape::deep(dim),
        }
    }

    /// A cache of codes: a head per warp, `CODED_SCRATCH` of the kernel, and all of a segment, `CODED_AREA`.
    const fn coded(ty: KvType, dim: usize) -> AttentionShape {
        let threads = 128;
        let heads = threads / 32 * 4 * dim;
        let shared = attention_struct(dim) + heads + KvTypes::same(ty).bytes(ATTN_SEGMENT, dim);
        AttentionShape { threads, shared }
    }
}

impl CudaDevice {
    /// Enqueues products of the step's only token with up to three matrices, results at the addresses. False if it has
    /// no kernel for them: nothing is enqueued then.
    pub(super) fn decode(
        &self,
        products: &[(&LoadedLinear, Address)],
        source: &Source<'_>,
        what: Decode,
    ) -> Result<bool, DeviceError> {
        let state = self.state()?;
        let plain_norm =
            source.norm.is_none_or(|norm| norm.bias.is_none() && matches!(norm.kind, NormKind::Rms { .. }));
        let row = source.args();
        if state.tokens != 1 || !plain_norm || row.act >= 0 || row.other != 0 {
            return Ok(false);
        }
        let info = &self.gpu.info;
        let (cols, gated) = (source.width, matches!(what, Decode::Gated { .. }));
        let segments = k_segments(cols);
        let matrices = products.iter().map(|(linear, _)| &*linear.matrix);
        let form = form_for(1, matrices.clone());
        let bytes = form == Form::Bytes;
        // A part of a row is enough for a block if nothing has to be found out of the whole.
        let apart = source.norm.is_none() && (bytes || source.most != 0);
        let (split, most_blocks) = match apart && info.has_clusters() && segments == QT16_WARPS {
            true => self.split(products),
            false => (1, BLOCKS * info.multiprocessors),
        };
        let slots = QT16_WARPS / (segments / split);
        let mut args = DecodeArgs::default();
        let mut place = 0;
        for (i, (linear, out)) in products.iter().enumerate() {
            let groups = linear.matrix.rows.div_ceil(matrix::ROW_TILE);
            let blocks = match (gated, i) {
                (true, 0) => (2 * groups).div_ceil(slots.max(2)),
                (true, _) => 0,
                (false, _) => groups.div_ceil(slots),
            };
            let matrix = linear.matrix.for_decode(form, linear.bias(), *out, blocks.min(most_blocks));
            let Some(matrix) = matrix else {
                return Ok(false);
            };
            if linear.matrix.cols != cols || (gated && i > 0 && matrix.ty != args.m[0].ty) {
                return Ok(false);
            }
            place = place.max(place_bytes(matrix.unit_bytes as usize));
            args.m[i] = matrix;
        }
        let part = cols.div_ceil(UNIT_COLS).div_ceil(split);
        let input_bytes = if bytes { UNIT_BYTES } else { 2 * (UNIT_COLS + UNIT_SUMS) };
        let shared = (part * input_bytes).next_multiple_of(LINE) + QT16_WARPS * DEPTH * place;
        if shared + STATIC_SHARED > info.shared_per_block {
            return Ok(false);
        }
        args.row = RowArgs { together: i32::from(together(matrices)), ..row };
        args.cols = cols.next_multiple_of(UNIT_COLS) as i32;
        args.segment_bits = segments.ilog2() as i32;
        args.split_bits = split.ilog2() as i32;
        args.gated = i32::from(gated);
        match what {
            Decode::Finish(finish) => (args.finish, args.factor, args.soft_cap) = finish.args(),
            Decode::Gated { activation, most, clear } => {
                args.act = activation as i32;
                args.most = most;
                args.clear = clear;
            }
        }
        let blocks: i32 = args.m.iter().map(|m| m.blocks).sum();
        let shape = Shape::new([blocks as usize * split, 1, 1], THREADS).with_shared(shared);
        let kernel = if bytes { self.common.decode_matmul_int8 } else { self.common.decode_matmul };
        self.enqueue(kernel, Shape { cluster: split as u32, ..shape }, &args)?;
        Ok(true)
    }

    /// Blocks of a cluster for products with all segments of K, and how many clusters take turns at them at most.
    fn split(&self, products: &[(&LoadedLinear, Address)]) -> (usize, usize) {
        let groups = products.iter().map(|(linear, _)| linear.matrix.rows.div_ceil(matrix::ROW_TILE));
        let pairs = SPLITS.into_iter().zip(self.common.decode_clusters);
        // A cluster has as many row groups at a time as blocks: a block's warps are its segments of them.
        let fits = |(split, most): &(usize, usize)| {
            groups.clone().map(|groups| groups.div_ceil(*split)).sum::<usize>() <= *most
        };
        let (split, most) = pairs.clone().find(fits).unwrap_or((SPLITS[0], self.common.decode_clusters[0]));
        (split, most.max(1))
    }

    /// Whether attention of the step finishes q, k and v itself: one token per sequence, and heads it is made for.
    pub(super) fn decodes_attention(&self, heads: Heads) -> Result<bool, DeviceError> {
        let state = self.state()?;
        let KvTypes { keys, values } = state.reserve.kv_types;
        Ok(ATTENTION_HEADS.contains(&heads.dim)
            && keys == values
            && heads.q / heads.kv <= ROW_TILE
            && state.own_spans().iter().all(|span| span.len == 1)
            && state.has_partials(heads, state.segments(|_| 0))
            && AttentionShape::of(keys, heads.dim).shared <= self.gpu.info.shared_per_block)
    }

    /// Enqueues attention of single tokens, for which [`Self::decodes_attention`] was true.
    pub(super) fn decode_attention(
        &self,
        heads: HeadsArgs,
        attention: AttentionArgs,
    ) -> Result<(), DeviceError> {
        let state = self.state()?;
        let arrived = at(&state.arrived, 0);
        let args = DecodeAttentionArgs { heads, attention, arrived, tokens: state.tokens as i32, unused: 0 };
        if let Some(kernel) = self.walk_kernel(&attention)? {
            let items = state.tokens * attention.kv_heads as usize;
            let blocks = items.min(self.gpu.info.multiprocessors);
            let shape = Shape::new([blocks, 1, 1], WALK_THREADS);
            return self.enqueue(kernel, shape.with_shared(walk_shared(attention.dim as usize)), &args);
        }
        let (segments, heads) = (attention.max_segments as usize, attention.kv_heads as usize);
        let (dim, info) = (attention.dim as usize, &self.gpu.info);
        let short = AttentionShape::short(dim);
        let many = segments * heads * state.tokens > info.multiprocessors;
        let deep = many || dim > 128 || short.shared > info.shared_per_block;
        let common = &self.common;
        let (AttentionShape { threads, shared }, kernels) = match state.reserve.kv_types.keys {
            ty @ KvType::Q8_0 => (AttentionShape::of(ty, dim), common.decode_attention_q8_0),
            ty @ KvType::FP8 => (AttentionShape::of(ty, dim), common.decode_attention_fp8),
            ty @ KvType::BF16 => (AttentionShape::of(ty, dim), common.decode_attention_bf16),
            _ if deep => (AttentionShape::deep(dim), common.decode_attention_deep),
            _ => (short, common.decode_attention),
        };
        let kernel =
            ATTENTION_HEADS.iter().zip(kernels).find(|(d, _)| **d == dim).and_then(|(_, kernel)| kernel);
        let Some(kernel) = kernel else {
            return Err(DeviceError::Fault(format!("no attention of a token with heads of {dim} channels")));
        };
        let shape = Shape::new([segments, heads, state.tokens], threads).with_shared(shared);
        self.enqueue(kernel, shape, &args)
    }

    /// The kernel whose blocks have all segments of a token's key head, if it is for this cache and there are enough such
    /// tokens: else blocks have a segment each.
    fn walk_kernel(&self, attention: &AttentionArgs) -> Result<Option<Kernel>, DeviceError> {
        let state = self.state()?;
        let kernels = match state.reserve.kv_types.keys {
            KvType::F16 => &self.common.decode_walk[0],
            KvType::BF16 => &self.common.decode_walk[1],
            _ => return Ok(None),
        };
        let window = if attention.window > 0 { attention.window as usize } else { usize::MAX };
        let segments = |span: &OwnSpan| {
            let from = (span.position + 1).saturating_sub(window);
            span.position / ATTN_SEGMENT + 1 - from / ATTN_SEGMENT
        };
        let (most, all) =
            state.own_spans().iter().map(segments).fold((0, 0), |(most, all), n| (most.max(n), all + n));
        // The block with the longest keys takes hardly longer than all would if they had as many each.
        let worth = 5 * all * attention.kv_heads as usize >= 4 * most * self.gpu.info.multiprocessors;
        let of = |dim: usize| {
            ATTENTION_HEADS.iter().zip(kernels).find(|(d, _)| **d == dim).and_then(|(_, kernel)| *kernel)
        };
        Ok(of(attention.dim as usize).filter(|_| worth))
    }
}
