//! The stages: order of work and how it is shared.
//!
//! Each stage is one job of the pool. Inside it, products are shared by panels and everything else by tokens (or by
//! heads); a barrier stands where one phase reads what another worker wrote. With a single token every worker that takes
//! part in a product prepares the product's input for itself, which is cheaper than waiting for one who does.

use super::argmax::Best;
use super::state::{RopeTable, State};
use super::{AttnIn, AttnOut, CpuDevice, Embedding, Ffn, Head, LoadedInput, LoadedLinear, LoadedNorm};
use crate::arch::Kernels;
use crate::kernel::cache::KvWrite;
use crate::kernel::matmul::Acts;
use crate::kernel::vector::NormJob;
use crate::matrix::{ActKind, Matrix, Out, Scratch};
use crate::mem::Rows;
use crate::pool::{Cut, Pool, Worker};
use crate::simd::LANES;
use minfer_ops::*;
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// What every phase of a step needs.
struct Step<'a> {
    kernels: &'static Kernels,
    state: &'a State,
    ropes: &'a [Rope],
    tokens: usize,
}

/// Source of a product's input: rows, the row of each slot, and the norm before it.
struct Input<'a> {
    rows: Rows,
    width: usize,
    norm: Option<&'a LoadedNorm>,
    /// Row of slot `i`, if not `i`.
    gather: Option<&'a [u32]>,
    slots: usize,
}

/// A product's input, normed and quantized in the forms `kinds`.
struct Prepared<'a> {
    step: &'a Step<'a>,
    input: Input<'a>,
    kinds: &'a [ActKind],
    x: Rows,
    /// Slot of the first quantized row, and the row of `x` that is the first.
    slot: usize,
    x_row: usize,
    ready: Cell<bool>,
}

impl Prepared<'_> {
    /// What the kernel of `matrix` reads. With a single token, the worker's own copy is made now: inside of a range of
    /// the product, as only a product that is not over keeps others from writing what the copy is made of.
    fn acts(&self, matrix: &Matrix) -> Acts {
        self.make();
        let x = self.x.ptr(self.x_row);
        let (kind, width) = (matrix.acts(self.input.slots), self.input.width);
        let layout = self.step.kernels.layout(self.input.slots);
        self.step.state.act_buffers(kind).acts(kind, width, self.slot, layout, x, self.x.stride)
    }

    fn make(&self) {
        if !self.ready.replace(true) {
            self.step.prepare_row(&self.input, self.kinds, 0, self.x.ptr(self.x_row), self.slot);
        }
    }

    /// Makes the caller's copy even if it takes no range, for those who read row 0 after the job.
    fn keep(&self, w: &Worker<'_>) {
        if w.id == 0 {
            self.make();
        }
    }
}

impl CpuDevice {
    /// The pool, and what its jobs read.
    fn split(&mut self) -> Result<(&mut Pool, Step<'_>), DeviceError> {
        let state = self
            .state
            .as_ref()
            .ok_or_else(|| DeviceError::Fault("a step before memory was reserved".into()))?;
        let step = Step { kernels: self.kernels, state, ropes: &self.ropes, tokens: state.tokens.len() };
        Ok((&mut self.pool, step))
    }

    /// Angles of every rope for the tokens of the step.
    pub(super) fn prepare_ropes(&mut self) -> Result<(), DeviceError> {
        let (pool, step) = self.split()?;
        pool.run(|w| {
            w.share_each(0, step.tokens, Cut::Long, |t| {
                for (rope, table) in step.ropes.iter().zip(&step.state.ropes) {
                    fill_angles(rope, table, t, step.state.position(t));
                }
            });
        });
        Ok(())
    }

    pub(super) fn run_embed(&mut self, stage: &Embedding, scale: f32) -> Result<(), DeviceError> {
        let (pool, step) = self.split()?;
        let (state, table) = (step.state, &*stage.table);
        expect_reserved("columns of the embedding", state.reserve.d_model, table.cols)?;
        if table.rows < state.reserve.vocab {
            let (rows, vocab) = (table.rows, state.reserve.vocab);
            return Err(DeviceError::Fault(format!(
                "an embedding of {rows} rows for a vocabulary of {vocab}"
            )));
        }
        if let Some(positions) = &stage.positions {
            let end = state.spans.iter().map(|span| span.position + span.len).max().unwrap_or(0);
            at_most_reserved("learned positions", positions.rows, end)?;
        }
        let (x, spare) = (state.x_rows(), Rows::of(&state.input, state.d_model()));
        pool.run(|w| {
            let mut scratch = step.scratch(w);
            w.share_each(0, step.tokens, Cut::Long, |t| {
                // SAFETY: row t of both is this worker's.
                let (row, learned) = unsafe { (x.row(t, x.stride), spare.row(t, spare.stride)) };
                table.row(state.tokens[t] as usize, row, &mut scratch);
                row.iter_mut().for_each(|v| *v *= scale);
                if let Some(positions) = &stage.positions {
                    positions.row(state.position(t), learned, &mut scratch);
                    row.iter_mut().zip(&*learned).for_each(|(v, p)| *v += p);
                }
                if let Some(token_type) = &stage.token_type {
                    row.iter_mut().zip(&**token_type).for_each(|(v, t)| *v += t);
                }
                // Norms count on the padding; a step with a NaN may have left one there.
                row[table.cols..].fill(0.0);
                if let Some(norm) = &stage.norm {
                    // SAFETY: a whole row, padded, that is this worker's.
                    unsafe { step.norm(norm, row.as_ptr(), row.as_mut_ptr()) };
                }
            });
        });
        Ok(())
    }

    pub(super) fn run_attn_in(&mut self, stage: &AttnIn) -> Result<(), DeviceError> {
        let (pool, step) = self.split()?;
        let state = step.state;
        state.reserve.check_slot(stage.kv, stage.heads)?;
        expect_reserved("columns of q, k and v", state.reserve.d_model, stage.q.matrix.cols)?;
        if stage.rope.is_some_and(|rope| rope >= state.ropes.len()) {
            return Err(DeviceError::Fault("a stage was loaded after memory was reserved".into()));
        }
        let q = State::rows(&state.q, state.reserve.max_q);
        let k = State::rows(&state.k, state.reserve.max_kv);
        let v = State::rows(&state.v, state.reserve.max_kv);
        pool.run(|w| {
            let products = [(&stage.q, q), (&stage.k, k), (&stage.v, v)];
            let input = step.x_input(stage.norm.as_ref(), stage.q.matrix.cols);
            let kinds = products.map(|(l, _)| l.matrix.acts(step.tokens));
            let input = step.prepare(w, 0, input, &kinds);
            // A feed-forward stage that runs side by side reads it too.
            input.keep(w);
            for (phase, (linear, out)) in products.into_iter().enumerate() {
                step.product(w, 1 + phase, linear, &input, out, |_| {});
            }
            w.barrier();
            let norms = [(stage.q_norm.of_all(), q), (stage.k_norm.of_all(), k)];
            if norms.iter().any(|(norm, _)| norm.is_some()) {
                w.share_each(4, step.tokens, Cut::Every(1), |t| {
                    for (norm, rows) in norms {
                        if let Some(norm) = norm {
                            // SAFETY: the row holds all heads, whose total is the norm's length, and is this worker's.
                            unsafe { step.norm(norm, rows.ptr(t), rows.ptr(t)) };
                        }
                    }
                });
                w.barrier();
            }
            let heads = stage.heads.q + stage.heads.kv;
            let units = step.tokens * heads;
            w.share_each(5, units, Cut::Long, |u| {
                let (t, head) = (u / heads, u % heads);
                if head < stage.heads.q {
                    step.query_head(stage, q.ptr(t), head, t);
                } else {
                    step.key_value_head(stage, k.ptr(t), v.ptr(t), head - stage.heads.q, t);
                }
            });
        });
        Ok(())
    }

    pub(super) fn run_attn_out(&mut self, stage: &AttnOut) -> Result<(), DeviceError> {
        let (pool, step) = self.split()?;
        let reserve = &step.state.reserve;
        expect_reserved("rows of the projection", reserve.d_model, stage.proj.matrix.rows)?;
        at_most_reserved("columns of the projection", reserve.max_q, stage.proj.matrix.cols)?;
        let attn = State::rows(&step.state.attn, reserve.max_q);
        pool.run(|w| {
            let width = stage.proj.matrix.cols;
            let input = Input { rows: attn, width, norm: None, gather: None, slots: step.tokens };
            let kinds = [stage.proj.matrix.acts(step.tokens)];
            let input = step.prepare(w, 0, input, &kinds);
            let norms = [stage.post_norm.as_ref(), stage.stream_norm.as_ref()];
            step.residual(w, 1, &stage.proj, &input, norms, stage.residual_scale);
        });
        Ok(())
    }

    pub(super) fn run_ffn(&mut self, stage: &Ffn) -> Result<(), DeviceError> {
        let (pool, step) = self.split()?;
        let state = step.state;
        expect_reserved("columns of gate and up", state.reserve.d_model, stage.up.matrix.cols)?;
        expect_reserved("rows of down", state.reserve.d_model, stage.down.matrix.rows)?;
        at_most_reserved("columns of down", state.reserve.max_ff, stage.down.matrix.cols)?;
        let gate = State::rows(&state.gate, state.reserve.max_ff);
        let up = State::rows(&state.up, state.reserve.max_ff);
        pool.run(|w| {
            let width = stage.up.matrix.cols;
            let input = match &stage.input {
                LoadedInput::Residual(norm) => step.x_input(norm.as_ref(), width),
                // `attn_in` left it there, and nothing has been normed since.
                LoadedInput::Attention => {
                    let rows = Rows::of(&state.input, state.d_model());
                    Input { rows, width, norm: None, gather: None, slots: step.tokens }
                }
            };
            let kinds =
                [&stage.up, stage.gate.as_ref().unwrap_or(&stage.up)].map(|l| l.matrix.acts(step.tokens));
            let input = step.prepare(w, 0, input, &kinds);
            step.gate_up(w, 1, stage, &input, gate, up);
            w.barrier();
            let width = stage.down.matrix.cols;
            let input = Input { rows: gate, width, norm: None, gather: None, slots: step.tokens };
            let kinds = [stage.down.matrix.acts(step.tokens)];
            let input = step.prepare(w, 2, input, &kinds);
            let norms = [stage.post_norm.as_ref(), stage.stream_norm.as_ref()];
            step.residual(w, 3, &stage.down, &input, norms, stage.residual_scale);
        });
        Ok(())
    }

    /// Logits of the outputs, and if `argmax` the best of each as every worker sees it.
    pub(super) fn run_head(&mut self, stage: &Head, argmax: bool) -> Result<(), DeviceError> {
        let (pool, step) = self.split()?;
        let state = step.state;
        let (matrix, bias) = stage.matrix();
        expect_reserved("columns of the head", state.reserve.d_model, matrix.cols)?;
        expect_reserved("rows of the head", state.reserve.vocab, matrix.rows)?;
        let logits = State::rows(&state.logits, state.reserve.vocab);
        // Not by the workers: one that comes late, when all is done, takes no part in the job.
        for worker in 0..pool.threads() {
            let mut best = state.best(worker);
            best.clear();
            best.resize(if argmax { state.outputs.len() } else { 0 }, Best::NONE);
        }
        pool.run(|w| {
            let slots = state.outputs.len();
            let best = RefCell::new(state.best(w.id));
            let input = Input {
                rows: state.x_rows(),
                width: matrix.cols,
                norm: stage.norm.as_ref(),
                gather: Some(&state.outputs),
                slots,
            };
            let kinds = [matrix.acts(slots)];
            let input = step.prepare(w, 0, input, &kinds);
            step.product_of(w, 1, matrix, &input, logits, slots, |columns| {
                for slot in 0..slots {
                    // SAFETY: these columns are this worker's.
                    let row = unsafe { &mut logits.row(slot, logits.stride)[columns.clone()] };
                    add_bias(row, bias, columns.start);
                    if stage.scale != 1.0 {
                        row.iter_mut().for_each(|v| *v *= stage.scale);
                    }
                    if let Some(cap) = stage.soft_cap {
                        // SAFETY: whole vectors of this worker's columns; kernels are of this CPU.
                        unsafe { (step.kernels.soft_cap)(cap, row.as_mut_ptr(), row.len()) };
                    }
                    if let Some(best) = best.borrow_mut().get_mut(slot) {
                        // The last panel is padded.
                        let real = row.len().min(matrix.rows - columns.start);
                        best.add(&row[..real], columns.start);
                    }
                }
            });
        });
        Ok(())
    }

    /// The hidden state of `tokens` of the step, normed as `head` does.
    pub(super) fn run_hidden(
        &mut self,
        head: Option<&Head>,
        tokens: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let (pool, step) = self.split()?;
        let (state, width) = (step.state, step.state.reserve.d_model);
        at_most_reserved("tokens of the step", step.tokens, tokens.end)?;
        expect_reserved("hidden values asked", tokens.len() * width, out.len())?;
        let norm = head.and_then(|head| head.norm.as_ref());
        expect_reserved("channels of the head's norm", width, norm.map_or(width, |norm| norm.len))?;
        let (x, normed) = (state.x_rows(), Rows::of(&state.input, state.d_model()));
        if let Some(norm) = norm {
            pool.run(|w| {
                w.share_each(0, tokens.len(), Cut::Long, |i| {
                    // SAFETY: rows of the step, whole and padded; row i of the result is this worker's.
                    unsafe { step.norm(norm, x.ptr(tokens.start + i), normed.ptr(i)) };
                });
            });
        }
        for (i, out) in out.chunks_exact_mut(width.max(1)).enumerate() {
            let (rows, row) = if norm.is_some() { (&normed, i) } else { (&x, tokens.start + i) };
            // SAFETY: a row of the step; the workers are done.
            out.copy_from_slice(unsafe { rows.row(row, width) });
        }
        Ok(())
    }
}

impl<'a> Step<'a> {
    fn scratch(&self, w: &Worker<'_>) -> std::sync::MutexGuard<'a, Scratch> {
        // Each worker has its own; the lock is never contended.
        self.state.scratch[w.id].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn x_input<'b>(&self, norm: Option<&'b LoadedNorm>, width: usize) -> Input<'b> {
        Input { rows: self.state.x_rows(), width, norm, gather: None, slots: self.tokens }
    }

    /// The input of a product, in every form that `kinds` asks for.
    fn prepare<'b>(
        &'b self,
        w: &Worker<'_>,
        phase: usize,
        input: Input<'b>,
        kinds: &'b [ActKind],
    ) -> Prepared<'b> {
        let copied = input.norm.is_some() || input.gather.is_some();
        let x = if copied { Rows::of(&self.state.input, self.state.d_model()) } else { input.rows };
        if input.slots == 1 {
            // A copy for each worker; rows that are not normed are only read.
            let x_row = if copied { w.id } else { 0 };
            return Prepared { step: self, input, kinds, x, slot: w.id, x_row, ready: Cell::new(false) };
        }
        w.share_each(phase, input.slots, Cut::Long, |slot| {
            self.prepare_row(&input, kinds, slot, x.ptr(slot), slot);
        });
        w.barrier();
        Prepared { step: self, input, kinds, x, slot: 0, x_row: 0, ready: Cell::new(true) }
    }

    /// Row `index` of the input, normed into `x`, quantized into slot `slot`.
    fn prepare_row(&self, input: &Input<'_>, kinds: &[ActKind], index: usize, x: *mut f32, slot: usize) {
        let from = input.rows.ptr(input.gather.map_or(index, |rows| rows[index] as usize));
        // SAFETY: both rows are whole and padded; row `slot` of the targets is this worker's.
        unsafe {
            match input.norm {
                Some(norm) => self.norm(norm, from, x),
                None if input.gather.is_some() => std::ptr::copy_nonoverlapping(from, x, input.width),
                None => {}
            }
            for (i, kind) in kinds.iter().enumerate() {
                if kinds[..i].contains(kind) {
                    continue;
                }
                let layout = self.kernels.layout(input.slots);
                let job = self.state.act_buffers(*kind).row(*kind, input.width, slot, layout, x);
                match kind {
                    ActKind::Q8x32 => (self.kernels.quantize32)(&job),
                    ActKind::Q8x256 => (self.kernels.quantize256)(&job),
                    // No matrix asks for it where there are no such kernels.
                    ActKind::Q16x256 => self.kernels.wide.into_iter().for_each(|wide| (wide.quantize)(&job)),
                    ActKind::F32 => {}
                }
            }
        }
    }

    /// # Safety
    /// `x` and `out` hold the norm's length, padded.
    unsafe fn norm(&self, norm: &LoadedNorm, x: *const f32, out: *mut f32) {
        let bias = norm.bias.as_ref().map_or(std::ptr::null(), |b| b.as_ptr());
        let job = NormJob { op: norm.op, x, weight: norm.weight.as_ptr(), bias, out, len: norm.len };
        // SAFETY: the caller's promise; the weights are padded; kernels are of this CPU.
        unsafe { (self.kernels.norm)(&job) };
    }

    /// `out = linear · input`, panels shared; `after` sees each range of finished columns on the worker that made it.
    fn product(
        &self,
        w: &Worker<'_>,
        phase: usize,
        linear: &LoadedLinear,
        input: &Prepared<'_>,
        out: Rows,
        after: impl Fn(Range<usize>),
    ) {
        let bias = linear.bias.as_deref();
        self.product_of(w, phase, &linear.matrix, input, out, self.tokens, |columns| {
            if bias.is_some() {
                for t in 0..self.tokens {
                    // SAFETY: these columns are this worker's.
                    add_bias(unsafe { &mut out.row(t, out.stride)[columns.clone()] }, bias, columns.start);
                }
            }
            after(columns);
        });
    }

    #[allow(clippy::too_many_arguments)] // the phase's two halves, product and sharing
    fn product_of(
        &self,
        w: &Worker<'_>,
        phase: usize,
        matrix: &Matrix,
        input: &Prepared<'_>,
        out: Rows,
        slots: usize,
        after: impl Fn(Range<usize>),
    ) {
        if slots == 0 {
            return;
        }
        let mut scratch = self.scratch(w);
        let panels = matrix.panels();
        assert!(panels * LANES <= out.stride, "{panels} panels into rows of {}", out.stride);
        w.share(phase, panels, Cut::Long, |range| {
            let target = Out { ptr: out.ptr(0), stride: out.stride };
            let acts = input.acts(matrix);
            // SAFETY: the input was prepared for this matrix; the range's columns are this worker's alone.
            unsafe { matrix.multiply(range.clone(), acts, slots, target, &mut scratch) };
            after(range.start * LANES..range.end * LANES);
        });
    }

    /// Gate and up together, activated in place: `gate ← act(gate·x) ⊙ up·x`.
    fn gate_up(&self, w: &Worker<'_>, phase: usize, stage: &Ffn, input: &Prepared<'_>, gate: Rows, up: Rows) {
        let mut scratch = self.scratch(w);
        let panels = stage.up.matrix.panels();
        w.share(phase, panels, Cut::Long, |range| {
            let columns = range.start * LANES..range.end * LANES;
            let mut multiply = |linear: &LoadedLinear, out: Rows| {
                let target = Out { ptr: out.ptr(0), stride: out.stride };
                let acts = input.acts(&linear.matrix);
                // SAFETY: the input was prepared for this matrix; the range's columns are this worker's alone.
                unsafe { linear.matrix.multiply(range.clone(), acts, self.tokens, target, &mut scratch) };
                for t in 0..self.tokens {
                    // SAFETY: as above.
                    let row = unsafe { &mut out.row(t, out.stride)[columns.clone()] };
                    add_bias(row, linear.bias.as_deref(), columns.start);
                }
            };
            match &stage.gate {
                Some(linear) => {
                    multiply(linear, gate);
                    multiply(&stage.up, up);
                }
                None => multiply(&stage.up, gate),
            }
            for t in 0..self.tokens {
                // SAFETY: whole vectors of this worker's columns; kernels are of this CPU.
                unsafe {
                    let other = stage
                        .gate
                        .as_ref()
                        .map_or(std::ptr::null(), |_| up.ptr(t).add(columns.start).cast_const());
                    (self.kernels.gated)(stage.act, gate.ptr(t).add(columns.start), other, columns.len());
                }
            }
        });
    }

    /// `x ← stream_norm(x + scale · post_norm(linear · input))`. Uses two phases if there is a norm.
    fn residual(
        &self,
        w: &Worker<'_>,
        phase: usize,
        linear: &LoadedLinear,
        input: &Prepared<'_>,
        [post_norm, stream_norm]: [Option<&LoadedNorm>; 2],
        scale: f32,
    ) {
        let x = self.state.x_rows();
        let product = Rows::of(&self.state.product, x.stride);
        let add = |t: usize, columns: Range<usize>| {
            // SAFETY: these columns of row t are this worker's.
            let (to, from) =
                unsafe { (&mut x.row(t, x.stride)[columns.clone()], &product.row(t, x.stride)[columns]) };
            to.iter_mut().zip(from).for_each(|(to, from)| *to += scale * from);
        };
        if post_norm.is_none() && stream_norm.is_none() {
            return self.product(w, phase, linear, input, product, |columns| {
                (0..self.tokens).for_each(|t| add(t, columns.clone()));
            });
        }
        self.product(w, phase, linear, input, product, |_| {});
        w.barrier();
        w.share_each(phase + 1, self.tokens, Cut::Long, |t| {
            if let Some(norm) = post_norm {
                // SAFETY: row t is this worker's.
                unsafe { self.norm(norm, product.ptr(t), product.ptr(t)) };
            }
            add(t, 0..x.stride);
            if let Some(norm) = stream_norm {
                // SAFETY: as above.
                unsafe { self.norm(norm, x.ptr(t), x.ptr(t)) };
            }
        });
    }

    /// Norm and rope of one query head.
    fn query_head(&self, stage: &AttnIn, q: *mut f32, head: usize, t: usize) {
        let dim = stage.heads.dim;
        // SAFETY: head `head` of row t is this worker's.
        let q = unsafe { std::slice::from_raw_parts_mut(q.add(head * dim), dim) };
        self.norm_and_rotate(stage.q_norm.of_head(head), stage, q, t);
    }

    /// Norm and rope of one key head, and its entries in the cache.
    fn key_value_head(&self, stage: &AttnIn, k: *mut f32, v: *mut f32, head: usize, t: usize) {
        let dim = stage.heads.dim;
        let state = self.state;
        // SAFETY: head `head` of row t is this worker's.
        let k = unsafe { std::slice::from_raw_parts_mut(k.add(head * dim), dim) };
        self.norm_and_rotate(stage.k_norm.of_head(head), stage, k, t);
        let store = &state.kv[stage.kv.group];
        let span = &state.spans[state.span_of[t] as usize];
        let (first, blocks) = &span.tables[stage.kv.group];
        let position = state.position(t);
        let block = state.blocks[blocks.start + position / KV_BLOCK - first] as usize;
        let KvTypes { keys, values } = store.types;
        let at = |ty: KvType| store.offset(ty, stage.kv.layer, block, head);
        assert!(at(keys) + keys.bytes(KV_BLOCK, dim) <= store.k.len());
        assert!(at(values) + values.bytes(KV_BLOCK, dim) <= store.v.len());
        let slot = position % KV_BLOCK;
        // SAFETY: the block of this head lies inside the cache, and this token's entries are written by it alone.
        unsafe {
            let block = store.k.ptr().add(at(keys));
            (self.kernels.kv(keys).write_key)(&KvWrite { x: k.as_ptr(), block, slot, dim });
            let block = store.v.ptr().add(at(values));
            (self.kernels.kv(values).write_value)(&KvWrite { x: v.add(head * dim), block, slot, dim });
        }
    }

    fn norm_and_rotate(&self, norm: Option<&LoadedNorm>, stage: &AttnIn, head: &mut [f32], t: usize) {
        if let Some(norm) = norm {
            // SAFETY: a head is whole vectors long.
            unsafe { self.norm(norm, head.as_ptr(), head.as_mut_ptr()) };
        }
        if let Some(rope) = stage.rope {
            let table = &self.state.ropes[rope];
            let angles = &table.table.as_slice()[t * 2 * table.pairs..][..2 * table.pairs];
            rotate(self.ropes[rope].style, head, angles);
        }
    }
}

fn add_bias(row: &mut [f32], bias: Option<&[f32]>, first: usize) {
    if let Some(bias) = bias {
        // The row is padded, the bias is not.
        row.iter_mut().zip(&bias[first.min(bias.len())..]).for_each(|(v, b)| *v += b);
    }
}

/// `[cos θ, sin θ]` per pair, in double precision before the rounding.
fn fill_angles(rope: &Rope, table: &RopeTable, t: usize, position: usize) {
    let rows = Rows::of(&table.table, 2 * table.pairs);
    // SAFETY: row t is this worker's.
    let row = unsafe { rows.row(t, 2 * table.pairs) };
    for (pair, inv_freq) in row.chunks_exact_mut(2).zip(rope.inv_freq.iter()) {
        let (sin, cos) = (position as f64 * inv_freq).sin_cos();
        pair[0] = cos as f32 * rope.magnitude;
        pair[1] = sin as f32 * rope.magnitude;
    }
}

/// Rotates the pairs of a head by their angles.
fn rotate(style: RopeStyle, head: &mut [f32], angles: &[f32]) {
    let pairs = angles.len() / 2;
    for (i, angle) in angles.chunks_exact(2).enumerate() {
        let (a, b) = match style {
            RopeStyle::Adjacent => (2 * i, 2 * i + 1),
            RopeStyle::Halves => (i, i + pairs),
        };
        let (x, y) = (head[a], head[b]);
        head[a] = x * angle[0] - y * angle[1];
        head[b] = x * angle[1] + y * angle[0];
    }
}
