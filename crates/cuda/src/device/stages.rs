//! The stages: which kernels run, in which order. Everything is enqueued on one stream; nothing waits here. The launches
//! of a step of few tokens are kept until its end, where a graph replays them if the same were there before.

use super::decode::Decode;
use super::state::{State, cache_type};
use super::{
    AttnIn, AttnOut, CudaDevice, Ffn, Head, LoadedHeadNorm, LoadedInput, LoadedLinear, LoadedNorm,
    kind_and_eps,
};
use crate::args::*;
use crate::driver::{Buffer, Kernel, STATIC_SHARED, Shape};
use crate::matrix::{Beside, Form, Gated, Input, Matrix, Output, Spare, form_for, tile_products, together};
use bytemuck::Pod;
use minfer_ops::*;
use std::ops::Range;

/// Rows of query heads in a block of attention.
pub(super) const ROW_TILE: usize = 16;

/// Rows up to which blocks share them, if they can, and the values that a block then has about.
const FEW_ROWS: usize = 128;
const PART_VALUES: usize = 4096;

/// Threads of a block of the row kernels, of the head and attention kernels, and of the merge of partials.
const ROW_THREADS: usize = 256;
const HEAD_THREADS: usize = 128;
const HEAD_WARPS: usize = 4;
const PLAIN_HEAD_THREADS: usize = 256;
const MERGE_THREADS: usize = 256;

/// Rows of query heads and threads of a block of attention of many tokens.
const ATTENTION_TILE_ROWS: usize = 128;
const ATTENTION_TILE_THREADS: usize = 256;

/// Bytes of `struct Shared` of `csrc/attention_tile.cu` for heads of `dim` channels cached in `ty`, which the compiler checks
/// there.
const fn attention_tile_shared(dim: usize, ty: KvType) -> usize {
    let (queries, ring) = (2 * ATTENTION_TILE_ROWS * dim, 4 * ty.bytes(KV_BLOCK, dim));
    queries + ring + 4 * dim / 2 * ATTENTION_TILE_THREADS
}

/// Threads of a block of `csrc/attention_wgmma.cu`.
const ATTENTION_WGMMA_THREADS: usize = 384;

/// Rows of its tile: of large heads two warpgroups share 64.
const fn attention_wgmma_rows(dim: usize) -> usize {
    if dim > 128 { 64 } else { ATTENTION_TILE_ROWS }
}

/// Bytes of its `struct Shared`, which the compiler checks there.
const fn attention_wgmma_shared(dim: usize) -> usize {
    let channels = dim.next_multiple_of(64);
    let stages = match channels {
        64 => 8,
        128 => 6,
        _ => 3,
    };
    2 * attention_wgmma_rows(dim) * channels + stages * (2 * 2 * KV_BLOCK * channels + 16) + 40
}

/// A kernel with a tile of rows in a block.
struct AttentionTile {
    kernel: Kernel,
    rows: usize,
    threads: usize,
    shared: usize,
}

/// What [`CudaDevice::prepare`] reads.
pub(super) struct Source<'a> {
    pub(super) x: Address,
    /// Multiplies the activation of `x`.
    pub(super) other: Address,
    /// Row of `x` for each row of the result.
    pub(super) gather: Address,
    /// Where the values go before they are rounded, if anywhere.
    pub(super) plain: Address,
    /// Bits of the largest magnitude of each row, if a kernel before found them.
    pub(super) most: Address,
    pub(super) norm: Option<&'a LoadedNorm>,
    pub(super) activation: Option<Act>,
    pub(super) width: usize,
}

/// Activations that kernels have: their `enum class Act`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Silu = 0,
    GeluTanh = 1,
}

impl Act {
    /// If they have it.
    pub(super) fn of(activation: Activation) -> Option<Act> {
        match activation {
            Activation::Silu => Some(Act::Silu),
            Activation::GeluTanh => Some(Act::GeluTanh),
            Activation::Gelu => None,
        }
    }
}

impl Source<'_> {
    pub(super) fn rows(x: &Buffer<f32>, width: usize) -> Self {
        Source { x: at(x, 0), other: 0, gather: 0, plain: 0, most: 0, norm: None, activation: None, width }
    }

    pub(super) fn args(&self) -> RowArgs {
        RowArgs {
            x: self.x,
            other: self.other,
            most: self.most,
            plain: self.plain,
            norm: LoadedNorm::args(self.norm),
            act: self.activation.map_or(-1, |act| act as i32),
            n: self.width as i32,
            ..RowArgs::default()
        }
    }
}

impl CudaDevice {
    /// Enqueues a kernel of this crate.
    pub(super) fn enqueue<A: Pod>(&self, kernel: Kernel, shape: Shape, args: &A) -> Result<(), DeviceError> {
        // SAFETY: the callers below pass the kernel's own struct with addresses of reserved buffers, after checking
        // that stages have the sizes that memory was reserved for.
        unsafe { self.lane().enqueue(kernel, shape, args) }
    }

    /// Fills `to` with a product's input.
    pub(super) fn prepare(&self, source: &Source<'_>, to: Input) -> Result<(), DeviceError> {
        self.prepare_and_clear(source, to, 0)
    }

    /// The same; `clear`: as many words as rows that become zero, or 0.
    fn prepare_and_clear(&self, source: &Source<'_>, to: Input, clear: Address) -> Result<(), DeviceError> {
        let args = PrepareArgs {
            row: RowArgs { together: i32::from(to.together), ..source.args() },
            gather: source.gather,
            out: to.x,
            unscale: to.unscale,
            clear,
            x_stride: source.width as i32,
            out_stride: to.stride as i32,
        };
        let simple = source.activation.is_none() && source.other == 0 && source.plain == 0;
        let of_tiles = |[any, rms, plain]: [Kernel; 3]| match source.norm {
            None if simple => plain,
            Some(norm) if simple && norm.bias.is_none() && kind_and_eps(norm.kind).0 == 1 => rms,
            _ => any,
        };
        let kernel = match to.form {
            Form::Fragments => self.common.prepare_rows,
            Form::Tiles => of_tiles(self.common.prepare_tiles),
            Form::Bytes => self.common.prepare_bytes,
            Form::ByteTiles => of_tiles(self.common.prepare_byte_tiles),
            #[cfg(feature = "lab")]
            Form::Groups => return self.prepare_groups(source, to),
        };
        // Few rows leave multiprocessors without one, and nothing has to be found out of the whole.
        let apart = kernel == self.common.prepare_tiles[2] && source.most != 0 && to.rows <= FEW_ROWS;
        let parts = if apart { source.width.div_ceil(PART_VALUES) } else { 1 };
        self.enqueue(kernel, Shape::new([to.rows, parts, 1], ROW_THREADS), &args)
    }

    /// The same for an experiment: values become bytes in a kernel of its own.
    #[cfg(feature = "lab")]
    fn prepare_groups(&self, source: &Source<'_>, to: Input) -> Result<(), DeviceError> {
        let state = self.state()?;
        let simple = source.norm.is_none() && source.activation.is_none() && source.gather == 0;
        let values = match source.plain {
            0 if simple => source.x,
            // As wide as the residual stream; or in the place of what is read.
            0 if source.norm.is_some() => at(&state.product, 0),
            0 => at(&state.up, 0),
            plain => plain,
        };
        if values != source.x {
            // Where the bytes will be, fragments are in nobody's way.
            let own = Source { plain: values, norm: source.norm, ..*source };
            self.prepare(&own, Input { form: Form::Fragments, ..to })?;
        }
        let groups = crate::matrix::mmq::Groups::at(to.x, source.width, to.rows);
        let (kernel, shape, args) = groups.fill(&self.kernels, values, false)?;
        self.enqueue(kernel, shape, &args)
    }

    /// `input` for products with all of `matrices`, in the form that they take.
    pub(super) fn input_for(&self, input: Input, matrices: &[&Matrix]) -> Input {
        let spare = self.state.as_ref().map_or(Spare::default(), State::spare);
        let form = form_for(input.rows, matrices.iter().copied());
        Input { form, together: together(matrices.iter().copied()), spare, ..input }
    }

    pub(super) fn store(
        &self,
        linear: &LoadedLinear,
        input: Input,
        out: &Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let output = Output { out: at(out, 0), stride: linear.matrix.rows, finish: Finish::Store };
        linear.matrix.product(self.lane(), input, linear.bias(), output)
    }

    /// Products of one input, in as few launches as their types allow.
    fn store_all(&self, products: &[(&LoadedLinear, &Buffer<f32>)], input: Input) -> Result<(), DeviceError> {
        if !input.form.is_tiles() {
            return products.iter().try_for_each(|(linear, out)| self.store(linear, input, out));
        }
        let mut rest: Vec<_> = products
            .iter()
            .map(|(linear, out)| {
                let output = Output { out: at(out, 0), stride: linear.matrix.rows, finish: Finish::Store };
                (&*linear.matrix, linear.bias(), output)
            })
            .collect();
        let mut beside = Beside::First;
        while let Some((first, ..)) = rest.first().copied() {
            let (launch, later): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|(matrix, ..)| first.goes_with(matrix));
            if beside == Beside::First && later.is_empty() {
                beside = Beside::None;
            }
            tile_products(self.lane(), &launch, Input { beside, ..input }, None)?;
            beside = Beside::Next;
            rest = later;
        }
        Ok(())
    }

    /// `out ← norm(x)`, or `out ← out + factor · norm(x)`, for every token.
    fn norm_rows(
        &self,
        norm: &LoadedNorm,
        x: &Buffer<f32>,
        width: usize,
        out: &Buffer<f32>,
        factor: Option<f32>,
    ) -> Result<(), DeviceError> {
        let args = NormRowsArgs {
            x: at(x, 0),
            out: at(out, 0),
            norm: LoadedNorm::args(Some(norm)),
            add: i32::from(factor.is_some()),
            factor: factor.unwrap_or(1.0),
            n: width as i32,
            x_stride: width as i32,
            out_stride: width as i32,
            unused: 0,
        };
        self.enqueue(self.common.norm_rows, Shape::new([self.state()?.tokens, 1, 1], ROW_THREADS), &args)
    }

    /// `x ← x + scale · post_norm(linear · source)`.
    fn residual(
        &self,
        linear: &LoadedLinear,
        source: &Source<'_>,
        post_norm: Option<&LoadedNorm>,
        scale: f32,
    ) -> Result<(), DeviceError> {
        let state = self.state()?;
        let width = state.reserve.d_model;
        let (out, finish) = match post_norm {
            None => (at(&state.x, 0), Finish::Residual { factor: scale }),
            Some(_) => (at(&state.product, 0), Finish::Store),
        };
        if !self.decode(&[(linear, out)], source, Decode::Finish(finish))? {
            let input = self.input_for(state.inner.input(state.tokens, source.width), &[&linear.matrix]);
            self.prepare(source, input)?;
            linear.matrix.product(
                self.lane(),
                input,
                linear.bias(),
                Output { out, stride: width, finish },
            )?;
        }
        match post_norm {
            None => Ok(()),
            Some(norm) => self.norm_rows(norm, &state.product, width, &state.x, Some(scale)),
        }
    }

    /// Angles of every rope for the tokens of the step.
    pub(super) fn run_ropes(&self) -> Result<(), DeviceError> {
        let state = self.state()?;
        for (loaded, table) in self.ropes.iter().zip(&state.angles) {
            let args = RopeArgs {
                inv_freq: at(&loaded.inv_freq, 0),
                position: state.spans().position,
                table: at(table, 0),
                magnitude: loaded.rope.magnitude,
                pairs: loaded.rope.inv_freq.len() as i32,
            };
            self.enqueue(self.common.rope_angles, Shape::new([state.tokens, 1, 1], HEAD_THREADS), &args)?;
        }
        Ok(())
    }

    pub(super) fn run_embed(&self, table: &Matrix, scale: f32) -> Result<(), DeviceError> {
        let state = self.state()?;
        expect_reserved("columns of the embedding", state.reserve.d_model, table.cols)?;
        expect_reserved("rows of the embedding", state.reserve.vocab, table.rows.min(state.reserve.vocab))?;
        let (ids, _) = state.ids_and_outputs();
        table.embed(self.lane(), ids, state.tokens, at(&state.x, 0), scale, at(&state.most, 0))
    }

    pub(super) fn run_attn_in(&self, stage: &AttnIn) -> Result<(), DeviceError> {
        let state = self.state()?;
        let (width, heads) = (stage.q.matrix.cols, stage.heads);
        state.reserve.check_slot(stage.kv, heads)?;
        expect_reserved("columns of q, k and v", state.reserve.d_model, width)?;
        if stage.rope.is_some_and(|rope| rope >= state.angles.len()) {
            return Err(DeviceError::Fault("a stage was loaded after memory was reserved".into()));
        }
        let source = Source { norm: stage.norm.as_ref(), ..Source::rows(&state.x, width) };
        let products = [(&stage.q, &state.q), (&stage.k, &state.k), (&stage.v, &state.v)];
        let stored = products.map(|(linear, out)| (linear, at(out, 0)));
        if self.keeps_normed || !self.decode(&stored, &source, Decode::Finish(Finish::Store))? {
            let mut input = state.normed.input(state.tokens, width);
            // A feed-forward stage that reads this too does not know of other forms.
            if !self.keeps_normed {
                input = self.input_for(input, &products.map(|(linear, _)| &*linear.matrix));
            }
            self.prepare(&source, input)?;
            self.store_all(&products, input)?;
        }
        for (norm, values, heads) in [(&stage.q_norm, &state.q, heads.q), (&stage.k_norm, &state.k, heads.kv)]
        {
            if let LoadedHeadNorm::All(norm) = norm {
                self.norm_rows(norm, values, heads * stage.heads.dim, values, None)?;
            }
        }
        let each = |norm: &LoadedHeadNorm| match norm {
            LoadedHeadNorm::Each(norm, stride) => {
                let (kind, eps) = kind_and_eps(norm.kind);
                let bias = norm.bias.as_ref().map_or(0, |b| at(b, 0));
                HeadNormArgs {
                    weight: at(&norm.weight, 0),
                    bias,
                    eps,
                    kind,
                    stride: *stride as i32,
                    unused: 0,
                }
            }
            LoadedHeadNorm::None | LoadedHeadNorm::All(_) => HeadNormArgs::default(),
        };
        let (k_cache, v_cache) = state.kv[stage.kv.group].layer(stage.kv.layer);
        let rope = stage.rope.map(|rope| (&self.ropes[rope].rope, at(&state.angles[rope], 0)));
        let args = HeadsArgs {
            q: at(&state.q, 0),
            k: at(&state.k, 0),
            v: at(&state.v, 0),
            q16: at(&state.q16, 0),
            q_unscale: at(&state.q_unscale, 0),
            k_cache,
            v_cache,
            angles: rope.map_or(0, |(_, angles)| angles),
            q_norm: each(&stage.q_norm),
            k_norm: each(&stage.k_norm),
            spans: state.spans(),
            group: stage.kv.group as i32,
            q_heads: heads.q as i32,
            kv_heads: heads.kv as i32,
            dim: heads.dim as i32,
            pairs: rope.map_or(0, |(rope, _)| rope.inv_freq.len() as i32),
            style: rope.map_or(0, |(rope, _)| match rope.style {
                RopeStyle::Adjacent => 1,
                RopeStyle::Halves => 2,
            }),
            k_type: cache_type(state.reserve.kv_types.keys),
            v_type: cache_type(state.reserve.kv_types.values),
        };
        if self.decodes_attention(heads)? {
            self.pending.set(Some(args));
            return Ok(());
        }
        let f16 = state.reserve.kv_types == KvTypes::same(KvType::F16);
        let none = HeadNormArgs::default().kind;
        let plain = f16
            && [64, 128].contains(&heads.dim)
            && args.q_norm.kind == none
            && args.k_norm.kind == none
            && rope.is_none_or(|(rope, _)| 2 * rope.inv_freq.len() == heads.dim);
        if let Some(kernel) = self.common.finish_heads_plain
            && plain
        {
            return self.enqueue(kernel, Shape::new([state.tokens, 1, 1], PLAIN_HEAD_THREADS), &args);
        }
        let grid = [(heads.q + 2 * heads.kv).div_ceil(HEAD_WARPS), state.tokens, 1];
        let kernel = if f16 { self.common.finish_heads } else { self.common.finish_heads_any };
        self.enqueue(kernel, Shape::new(grid, HEAD_THREADS), &args)
    }

    pub(super) fn run_attention(&self, spec: &AttentionSpec) -> Result<(), DeviceError> {
        let state = self.state()?;
        let heads = spec.heads;
        if !spec.causal {
            return Err(DeviceError::Fault("attention of an encoder".into()));
        }
        state.reserve.check_slot(spec.kv, heads)?;
        for span in state.own_spans() {
            spec.check_window(span.position, span.len, span.first_blocks[spec.kv.group])?;
        }
        let pending = self.pending.take();
        let split = match pending {
            Some(_) => Some(state.segments(|position| spec.seen_from(position))),
            None => state.split(spec),
        };
        let (k, v) = state.kv[spec.kv.group].layer(spec.kv.layer);
        let args = AttentionArgs {
            q: at(&state.q16, 0),
            q_unscale: at(&state.q_unscale, 0),
            k,
            v,
            out: at(&state.attn, 0),
            partial_o: at(&state.partials, 0),
            partial_ml: at(&state.partials, state.tokens * heads.q * heads.dim * split.unwrap_or(0)),
            spans: state.spans(),
            group: spec.kv.group as i32,
            q_heads: heads.q as i32,
            kv_heads: heads.kv as i32,
            dim: heads.dim as i32,
            scale: spec.scale,
            soft_cap: spec.soft_cap.unwrap_or(0.0),
            window: spec.window.map_or(0, |window| i32::try_from(window).unwrap_or(i32::MAX)),
            max_segments: split.unwrap_or(1) as i32,
            k_type: cache_type(state.reserve.kv_types.keys),
            v_type: cache_type(state.reserve.kv_types.values),
        };
        if let Some(own) = pending {
            return self.decode_attention(own, args);
        }
        let size = [64, 128, 256].iter().position(|d| heads.dim <= *d);
        let Some(size) = size else {
            return Err(DeviceError::Fault(format!("attention heads of {} channels", heads.dim)));
        };
        let tiles = |rows: usize| -> usize {
            let of = |span: &super::state::OwnSpan| (span.len * heads.q / heads.kv).div_ceil(rows);
            state.own_spans().iter().map(of).sum()
        };
        if split.is_none()
            && let Some(tile) = self.attention_of_many(spec, state.reserve.kv_types)
        {
            let shape = Shape::new([heads.kv, tiles(tile.rows), 1], tile.threads);
            return self.enqueue(tile.kernel, shape.with_shared(tile.shared), &args);
        }
        let f16 = state.reserve.kv_types == KvTypes::same(KvType::F16);
        let tiles = tiles(ROW_TILE);
        match split {
            Some(segments) => {
                let grid = [segments, heads.kv, tiles];
                let kernels = if f16 { self.common.attention_split } else { self.common.attention_split_any };
                self.enqueue(kernels[size], Shape::new(grid, HEAD_THREADS), &args)?;
                let merge = Shape::new([heads.q, state.tokens, 1], MERGE_THREADS);
                self.enqueue(self.common.attention_merge, merge, &args)
            }
            None => {
                let shape = Shape::new([1, heads.kv, tiles], HEAD_THREADS);
                let kernels = if f16 { self.common.attention_walk } else { self.common.attention_walk_any };
                self.enqueue(kernels[size], shape, &args)
            }
        }
    }

    /// The kernel with a tile of rows in a block, if there is one for this attention.
    fn attention_of_many(&self, spec: &AttentionSpec, types: KvTypes) -> Option<AttentionTile> {
        let (common, dim, ty) = (&self.common, spec.heads.dim, types.keys);
        if types.values != ty {
            return None;
        }
        // The faster one takes the largest score before it is scaled.
        if let Some(kernels) = &common.attention_wgmma
            && let Some((_, kernel)) = kernels.iter().find(|(d, _)| *d == dim)
            && ty == KvType::F16
            && spec.soft_cap.is_none()
            && spec.scale > 0.0
        {
            let (rows, shared) = (attention_wgmma_rows(dim), attention_wgmma_shared(dim));
            return Some(AttentionTile { kernel: *kernel, rows, threads: ATTENTION_WGMMA_THREADS, shared });
        }
        let (.., kernel) = common.attention_tile.iter().find(|(d, t, _)| *d == dim && *t == ty)?;
        let shared = attention_tile_shared(dim, ty);
        let fits = shared + STATIC_SHARED <= self.gpu.info.shared_per_block;
        let (kernel, rows) = (*kernel, ATTENTION_TILE_ROWS);
        fits.then_some(AttentionTile { kernel, rows, threads: ATTENTION_TILE_THREADS, shared })
    }

    pub(super) fn run_attn_out(&self, stage: &AttnOut) -> Result<(), DeviceError> {
        let state = self.state()?;
        let width = stage.proj.matrix.cols;
        expect_reserved("rows of the projection", state.reserve.d_model, stage.proj.matrix.rows)?;
        at_most_reserved("columns of the projection", state.reserve.max_q, width)?;
        let source = Source::rows(&state.attn, width);
        self.residual(&stage.proj, &source, stage.post_norm.as_ref(), stage.residual_scale)
    }

    pub(super) fn run_ffn(&self, stage: &Ffn) -> Result<(), DeviceError> {
        let state = self.state()?;
        let (width, inner) = (stage.up.matrix.cols, stage.down.matrix.cols);
        expect_reserved("columns of gate and up", state.reserve.d_model, width)?;
        expect_reserved("rows of down", state.reserve.d_model, stage.down.matrix.rows)?;
        at_most_reserved("columns of down", state.reserve.max_ff, inner)?;
        let scale = stage.residual_scale;
        let norm = match &stage.input {
            LoadedInput::Residual(norm) => Some(norm.as_ref()),
            LoadedInput::Attention => None,
        };
        if let (Some(norm), Some(gate)) = (norm, &stage.gate) {
            let source = Source { norm, ..Source::rows(&state.x, width) };
            let products = [(gate, at(&state.gate, 0)), (&stage.up, 0)];
            // Where the largest magnitude is collected, and what is cleared for the next stage; bytes do without.
            let bytes = form_for(1, [&*gate.matrix, &*stage.up.matrix].into_iter()) == Form::Bytes;
            let turn = self.gated.get() % 2;
            let (most, clear) =
                if bytes { (0, 0) } else { (at(&state.most, turn), at(&state.most, 1 - turn)) };
            let gated = Decode::Gated { activation: stage.activation, most, clear };
            if self.decode(&products, &source, gated)? {
                self.gated.set(self.gated.get() + usize::from(!bytes));
                let source = Source { most, ..Source::rows(&state.gate, inner) };
                return self.residual(&stage.down, &source, stage.post_norm.as_ref(), scale);
            }
        }
        let mut input = state.normed.input(state.tokens, width);
        if let Some(norm) = norm {
            let gate = stage.gate.as_ref().unwrap_or(&stage.up);
            input = self.input_for(input, &[&gate.matrix, &stage.up.matrix]);
            let clear = if input.form == Form::Tiles { at(&state.token_most, 0) } else { 0 };
            self.prepare_and_clear(&Source { norm, ..Source::rows(&state.x, width) }, input, clear)?;
        }
        if let Some(gate) = &stage.gate
            && input.form.is_tiles()
            && gate.matrix.gates(&stage.up.matrix, input.form, input.rows)
        {
            // Bytes do without the largest magnitude.
            let most = if input.form == Form::Tiles { at(&state.token_most, 0) } else { 0 };
            let output = Output { out: at(&state.gate, 0), stride: inner, finish: Finish::Store };
            let products = [gate, &stage.up].map(|linear| (&*linear.matrix, linear.bias(), output));
            let gated = Gated { act: stage.activation as i32, most };
            tile_products(self.lane(), &products, input, Some(gated))?;
            let source = Source { most, ..Source::rows(&state.gate, inner) };
            return self.residual(&stage.down, &source, stage.post_norm.as_ref(), scale);
        }
        self.store(&stage.up, input, &state.up)?;
        let (x, other) = match &stage.gate {
            Some(gate) => {
                self.store(gate, input, &state.gate)?;
                (&state.gate, at(&state.up, 0))
            }
            None => (&state.up, 0),
        };
        let source = Source { other, activation: Some(stage.activation), ..Source::rows(x, inner) };
        self.residual(&stage.down, &source, stage.post_norm.as_ref(), scale)
    }

    pub(super) fn run_head(&self, stage: &Head) -> Result<(), DeviceError> {
        let state = self.state()?;
        let (matrix, width) = (&stage.proj.matrix, stage.proj.matrix.cols);
        expect_reserved("columns of the head", state.reserve.d_model, width)?;
        expect_reserved("rows of the head", state.reserve.vocab, matrix.rows)?;
        let (_, gather) = state.ids_and_outputs();
        let input = self.input_for(state.normed.input(state.outputs, width), &[matrix]);
        let source = Source { gather, norm: stage.norm.as_ref(), ..Source::rows(&state.x, width) };
        let finish = Finish::Logits { factor: stage.scale, soft_cap: stage.soft_cap };
        let out = at(&state.logits, 0);
        // The only token of a step is its only output.
        let one = state.outputs == 1 && state.tokens == 1;
        if !one || !self.decode(&[(&stage.proj, out)], &source, Decode::Finish(finish))? {
            self.prepare(&source, input)?;
            let output = Output { out, stride: matrix.rows, finish };
            matrix.product(self.lane(), input, stage.proj.bias(), output)?;
        }
        Ok(())
    }

    /// The hidden state of `tokens` of the step, normed as `head` does. Nothing of the step is waiting to be flushed.
    pub(super) fn run_hidden(
        &self,
        head: Option<&Head>,
        tokens: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let state = self.state()?;
        let width = state.reserve.d_model;
        at_most_reserved("tokens of the step", state.tokens, tokens.end)?;
        expect_reserved("hidden values asked", tokens.len() * width, out.len())?;
        if tokens.is_empty() {
            return Ok(());
        }
        if let Some(head) = head {
            expect_reserved("columns of the head", width, head.proj.matrix.cols)?;
        }
        let args = NormRowsArgs {
            x: at(&state.x, tokens.start * width),
            out: at(&state.product, 0),
            norm: LoadedNorm::args(head.and_then(|head| head.norm.as_ref())),
            add: 0,
            factor: 1.0,
            n: width as i32,
            x_stride: width as i32,
            out_stride: width as i32,
            unused: 0,
        };
        self.enqueue(self.common.norm_rows, Shape::new([tokens.len(), 1, 1], ROW_THREADS), &args)?;
        self.gpu.download(&state.product, out)
    }
}
