//! Small random decoders of many shapes, and a runner that steps them through [`Device`] over a paged cache whose
//! blocks lie in scrambled order among garbage.

use super::super::*;
use crate::testing::{Rng, random_weights, values, weight};

/// Layers of every decoder here.
pub(super) const LAYERS: usize = 2;
/// Tokens of a test sequence: past 64, 256 and 512.
pub(super) const LONG: usize = 530;

/// Norms of q and k.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum HeadNorms {
    None,
    /// Over each head, with one weight for all.
    Shared,
    /// Over each head, with weights of its own.
    Own,
    /// Over all heads together.
    All,
}

/// What a decoder is made of.
#[derive(Clone)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) d_model: usize,
    pub(super) heads: Heads,
    pub(super) d_ff: usize,
    pub(super) vocab: usize,
    /// Types of the matrices, in turn.
    pub(super) types: &'static [GgmlType],
    pub(super) norm: NormKind,
    pub(super) pre_norm: bool,
    pub(super) post_norm: bool,
    pub(super) head_norms: HeadNorms,
    /// Attention and feed-forward side by side.
    pub(super) parallel: bool,
    /// Of matrices and norms.
    pub(super) bias: bool,
    pub(super) rope: Option<(RopeStyle, usize)>,
    pub(super) windows: [Option<usize>; LAYERS],
    pub(super) soft_cap: Option<f32>,
    pub(super) logit_cap: Option<f32>,
    pub(super) gate: bool,
    pub(super) activation: Activation,
    pub(super) tied: bool,
    pub(super) embed_scale: f32,
    pub(super) residual_scale: f32,
    pub(super) logit_scale: f32,
    pub(super) kv_types: KvTypes,
}

/// The plainest: what the others differ from.
pub(super) const PLAIN: Shape = Shape {
    name: "grouped queries 3:1 of 16 channels, adjacent rope, tied head",
    d_model: 48,
    heads: Heads { q: 6, kv: 2, dim: 16 },
    d_ff: 80,
    vocab: 40,
    types: &[GgmlType::F32],
    norm: NormKind::Rms { eps: 1e-5 },
    pre_norm: true,
    post_norm: false,
    head_norms: HeadNorms::None,
    parallel: false,
    bias: false,
    rope: Some((RopeStyle::Adjacent, 16)),
    windows: [None, None],
    soft_cap: None,
    logit_cap: None,
    gate: true,
    activation: Activation::Silu,
    tied: true,
    embed_scale: 1.0,
    residual_scale: 1.0,
    logit_scale: 1.0,
    kv_types: KvTypes::same(KvType::F16),
};

/// Shapes that occur in the field, with f32 weights.
pub(super) fn shapes() -> Vec<Shape> {
    vec![
        PLAIN,
        Shape {
            name: "biases, split rope, heads of 64, own head",
            heads: Heads { q: 2, kv: 2, dim: 64 },
            bias: true,
            rope: Some((RopeStyle::Halves, 64)),
            tied: false,
            ..PLAIN
        },
        Shape {
            name: "q and k norm per head of 256, window, post-norms, gelu, scaled embedding",
            heads: Heads { q: 2, kv: 1, dim: 256 },
            post_norm: true,
            head_norms: HeadNorms::Shared,
            rope: Some((RopeStyle::Halves, 256)),
            windows: [Some(100), None],
            activation: Activation::GeluTanh,
            embed_scale: 6.9,
            ..PLAIN
        },
        Shape {
            name: "heads of 128, soft caps, window of a whole segment",
            heads: Heads { q: 4, kv: 2, dim: 128 },
            post_norm: true,
            rope: Some((RopeStyle::Halves, 128)),
            windows: [None, Some(256)],
            soft_cap: Some(5.0),
            logit_cap: Some(8.0),
            activation: Activation::GeluTanh,
            ..PLAIN
        },
        Shape {
            name: "norm of all heads together, no norm before, heads of 80",
            d_model: 64,
            heads: Heads { q: 2, kv: 2, dim: 80 },
            pre_norm: false,
            post_norm: true,
            head_norms: HeadNorms::All,
            rope: Some((RopeStyle::Halves, 80)),
            ..PLAIN
        },
        Shape {
            name: "one key head, norm of all heads together",
            heads: Heads { q: 5, kv: 1, dim: 32 },
            head_norms: HeadNorms::All,
            rope: Some((RopeStyle::Adjacent, 32)),
            residual_scale: 0.3,
            logit_scale: 0.25,
            ..PLAIN
        },
        Shape {
            name: "layer norm of 41 channels, partial rope, no gate, ragged widths",
            d_model: 41,
            heads: Heads { q: 3, kv: 3, dim: 48 },
            d_ff: 75,
            vocab: 37,
            norm: NormKind::Layer { eps: 1e-5 },
            bias: true,
            rope: Some((RopeStyle::Halves, 20)),
            gate: false,
            activation: Activation::GeluTanh,
            tied: false,
            ..PLAIN
        },
        Shape { name: "no rope, both layers windowed", rope: None, windows: [Some(70), Some(1)], ..PLAIN },
        Shape {
            name: "attention and feed-forward side by side, norms of each head's own, cache of f32",
            d_model: 40,
            norm: NormKind::Layer { eps: 1e-5 },
            parallel: true,
            head_norms: HeadNorms::Own,
            kv_types: KvTypes::same(KvType::F32),
            ..PLAIN
        },
    ]
}

/// Quantized shapes: all tuned types and one that is not.
pub(super) fn quantized_shapes() -> Vec<Shape> {
    use GgmlType::{
        BF16, F16, IQ3_S, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
    };
    let wide = Shape {
        name: "K-quants and others mixed",
        d_model: 256,
        heads: Heads { q: 4, kv: 2, dim: 64 },
        d_ff: 512,
        types: &[
            Q6_K, Q4_K, Q5_K, Q8_0, IQ4_XS, Q4_1, Q5_0, Q4_K, Q5_1, Q4_0, Q3_K, F16, BF16, IQ3_S, Q2_K,
            IQ4_NL,
        ],
        rope: Some((RopeStyle::Halves, 64)),
        windows: [None, Some(128)],
        bias: true,
        ..PLAIN
    };
    let legacy = Shape {
        name: "blocks of 32, width 96",
        d_model: 96,
        heads: Heads { q: 3, kv: 1, dim: 32 },
        d_ff: 160,
        vocab: 50,
        types: &[Q8_0, Q4_1, Q5_0, Q5_1, Q4_0, IQ4_NL, MXFP4],
        rope: Some((RopeStyle::Adjacent, 32)),
        tied: false,
        ..PLAIN
    };
    vec![wide, legacy]
}

/// A random matrix, its values, and its bias.
pub(super) struct RandomLinear {
    pub(super) linear: Linear,
    pub(super) values: Vec<f32>,
}

pub(super) struct Layer {
    pub(super) norm: Option<Norm>,
    pub(super) q: RandomLinear,
    pub(super) k: RandomLinear,
    pub(super) v: RandomLinear,
    pub(super) q_norm: Option<Norm>,
    pub(super) k_norm: Option<Norm>,
    pub(super) proj: RandomLinear,
    pub(super) post_norm: Option<Norm>,
    pub(super) ffn_norm: Option<Norm>,
    pub(super) gate: Option<RandomLinear>,
    pub(super) up: RandomLinear,
    pub(super) down: RandomLinear,
    pub(super) ffn_post_norm: Option<Norm>,
}

/// A random decoder of some shape.
pub(super) struct Decoder {
    pub(super) shape: Shape,
    pub(super) embedding: RandomLinear,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Norm,
    pub(super) head: Option<RandomLinear>,
}

/// Makes matrices and norms, types in turn.
struct Maker<'a> {
    shape: &'a Shape,
    rng: Rng,
    made: usize,
}

impl Maker<'_> {
    fn linear(&mut self, rows: usize, cols: usize, bias: bool) -> RandomLinear {
        let ty = self.shape.types[self.made % self.shape.types.len()];
        self.made += 1;
        let bytes = if ty == GgmlType::F32 {
            let values = self.rng.normals(rows * cols, (cols as f32).powf(-0.5));
            values.iter().flat_map(|v| v.to_le_bytes()).collect()
        } else {
            random_weights(ty, self.rng.next(), rows, cols)
        };
        let values = values(ty, &bytes);
        let bias = bias.then(|| self.rng.normals(rows, 0.2).into());
        RandomLinear { linear: Linear { weight: weight(ty, rows, cols, bytes), bias }, values }
    }

    fn norm(&mut self, wanted: bool, width: usize) -> Option<Norm> {
        let weight: Vec<f32> = self.rng.normals(width, 0.2).iter().map(|v| 1.0 + v).collect();
        let bias = (self.shape.bias && self.shape.norm != (NormKind::Rms { eps: 1e-5 }))
            .then(|| self.rng.normals(width, 0.1).into());
        wanted.then(|| Norm { kind: self.shape.norm, weight: weight.into(), bias })
    }

    fn layer(&mut self) -> Layer {
        let Shape { d_model, heads, d_ff, bias, pre_norm, post_norm, gate, head_norms, .. } = *self.shape;
        let (q, kv) = (heads.q * heads.dim, heads.kv * heads.dim);
        let norm_width = |all: usize| if head_norms == HeadNorms::Shared { heads.dim } else { all };
        let normed = head_norms != HeadNorms::None;
        Layer {
            norm: self.norm(pre_norm, d_model),
            q: self.linear(q, d_model, bias),
            k: self.linear(kv, d_model, bias),
            v: self.linear(kv, d_model, bias),
            q_norm: self.norm(normed, norm_width(q)),
            k_norm: self.norm(normed, norm_width(kv)),
            proj: self.linear(d_model, q, bias),
            post_norm: self.norm(post_norm, d_model),
            ffn_norm: self.norm(pre_norm, d_model),
            gate: gate.then(|| self.linear(d_ff, d_model, bias)),
            up: self.linear(d_ff, d_model, bias),
            down: self.linear(d_model, d_ff, bias),
            ffn_post_norm: self.norm(post_norm, d_model),
        }
    }
}

impl Decoder {
    pub(super) fn random(shape: &Shape) -> Decoder {
        let mut maker = Maker { shape, rng: Rng(shape.d_model as u64 + shape.heads.dim as u64), made: 0 };
        Decoder {
            embedding: maker.linear(shape.vocab, shape.d_model, false),
            layers: (0..LAYERS).map(|_| maker.layer()).collect(),
            norm: maker.norm(true, shape.d_model).expect("a norm"),
            head: (!shape.tied).then(|| maker.linear(shape.vocab, shape.d_model, shape.bias)),
            shape: shape.clone(),
        }
    }

    pub(super) fn rope(&self) -> Option<Rope> {
        let (style, width) = self.shape.rope?;
        let inv_freq = (0..width / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / width as f64)).collect();
        Some(Rope { style, inv_freq, magnitude: 1.1 })
    }

    pub(super) fn attention(&self, layer: usize) -> AttentionSpec {
        let heads = self.shape.heads;
        AttentionSpec {
            heads,
            scale: (heads.dim as f32).powf(-0.5) * 1.5,
            soft_cap: self.shape.soft_cap,
            causal: true,
            window: self.shape.windows[layer],
            kv: self.slot(layer),
        }
    }

    /// Layers of different windows are groups of their own.
    fn slot(&self, layer: usize) -> KvSlot {
        let [a, b] = self.shape.windows;
        if a == b { KvSlot { group: 0, layer } } else { KvSlot { group: layer, layer: 0 } }
    }

    /// Random tokens.
    pub(super) fn prompt(&self, seed: u64, n: usize) -> Vec<u32> {
        let mut rng = Rng(seed);
        (0..n).map(|_| rng.below(self.shape.vocab) as u32).collect()
    }
}

/// A decoder loaded into a device, and the free blocks of its cache.
pub(super) struct Runner {
    pub(super) device: CpuDevice,
    pub(super) vocab: usize,
    embed_scale: f32,
    embedding: Embedding,
    layers: Vec<(AttnIn, AttentionSpec, AttnOut, Ffn)>,
    head: Head,
    /// By group.
    free: Vec<Vec<u32>>,
}

/// A sequence: its blocks by group, and its length.
#[derive(Clone, Default)]
pub(super) struct Sequence {
    tables: Vec<(usize, Vec<u32>)>,
    pub(super) len: usize,
}

/// A byte that makes a NaN of a cached value of any type.
const NAN_BYTE: u8 = 0xff;

impl Runner {
    /// Everything that can be read before it is written is a NaN.
    pub(super) fn new(decoder: &Decoder, options: &CpuOptions, max_tokens: usize) -> Runner {
        let mut device = CpuDevice::new(options).expect("a device");
        let shape = &decoder.shape;
        let embedding =
            device.load_embedding(decoder.embedding.linear.weight.clone().into()).expect("an embedding");
        let layers = decoder.layers.iter().enumerate();
        let layers = layers.map(|(i, layer)| load_layer(&mut device, decoder, i, layer)).collect();
        let spec = HeadSpec {
            norm: Some(decoder.norm.clone()),
            proj: decoder.head.as_ref().map(|h| h.linear.clone()),
            scale: shape.logit_scale,
            soft_cap: shape.logit_cap,
        };
        let head = device.load_head(spec, &embedding).expect("a head");
        let groups = if shape.windows[0] == shape.windows[1] { 1 } else { LAYERS };
        let blocks = 2 * LONG.div_ceil(KV_BLOCK) + 5;
        let group = KvGroup { layers: LAYERS / groups, heads: shape.heads, blocks };
        let reserve = Reserve {
            max_tokens,
            max_outputs: max_tokens,
            d_model: shape.d_model,
            max_q: shape.heads.q * shape.heads.dim,
            max_kv: shape.heads.kv * shape.heads.dim,
            max_ff: shape.d_ff,
            vocab: shape.vocab,
            kv_groups: vec![group; groups],
            kv_types: shape.kv_types,
        };
        device.reserve(&reserve).expect("memory");
        let state = device.state.as_mut().expect("a state");
        for store in &mut state.kv {
            store.k.as_mut_slice().fill(NAN_BYTE);
            store.v.as_mut_slice().fill(NAN_BYTE);
        }
        let State { x, input, q, k, v, attn, gate, up, product, logits, partials, states, rooms, .. } = state;
        for buffer in [x, input, q, k, v, attn, gate, up, product, logits, partials, states, rooms] {
            buffer.as_mut_slice().fill(f32::NAN);
        }
        let mut rng = Rng(99);
        let scrambled = |_| {
            let mut order: Vec<u32> = (0..blocks as u32).collect();
            (1..blocks).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
            order
        };
        let free = (0..groups).map(scrambled).collect();
        Runner { device, vocab: shape.vocab, embed_scale: shape.embed_scale, embedding, layers, head, free }
    }

    pub(super) fn sequence(&self) -> Sequence {
        Sequence { tables: vec![(0, Vec::new()); self.free.len()], len: 0 }
    }

    /// One step in which each sequence takes its tokens; the logits of all tokens, `[tokens][vocab]`.
    pub(super) fn step(&mut self, parts: &mut [(&mut Sequence, &[u32])]) -> Vec<f32> {
        for (sequence, tokens) in parts.iter_mut() {
            let blocks = (sequence.len + tokens.len()).div_ceil(KV_BLOCK);
            for ((first, table), free) in sequence.tables.iter_mut().zip(&mut self.free) {
                while *first + table.len() < blocks {
                    table.push(free.pop().expect("a free block"));
                }
            }
        }
        let tables: Vec<Vec<BlockTable<'_>>> = parts
            .iter()
            .map(|(s, _)| {
                s.tables.iter().map(|(first, blocks)| BlockTable { first: *first, blocks }).collect()
            })
            .collect();
        let mut start = 0;
        let mut spans = Vec::new();
        for ((sequence, tokens), tables) in parts.iter().zip(&tables) {
            spans.push(Span { start, len: tokens.len(), position: sequence.len, tables });
            start += tokens.len();
        }
        let tokens: Vec<u32> = parts.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let outputs: Vec<u32> = (0..start as u32).collect();
        let logits = self.run(&Batch { tokens: &tokens, spans: &spans, outputs: &outputs }).expect("a step");
        for (sequence, tokens) in parts.iter_mut() {
            sequence.len += tokens.len();
        }
        logits
    }

    pub(super) fn run(&mut self, batch: &Batch<'_>) -> Result<Vec<f32>, DeviceError> {
        let device = &mut self.device;
        device.begin(batch)?;
        device.embed(&self.embedding, self.embed_scale)?;
        for (attn_in, attention, attn_out, ffn) in &self.layers {
            device.attn_in(attn_in)?;
            device.attention(attention)?;
            device.attn_out(attn_out)?;
            device.ffn(ffn)?;
        }
        device.head(&self.head)?;
        let mut logits = vec![f32::NAN; batch.outputs.len() * self.vocab];
        device.logits(&mut logits)?;
        let mut best = vec![Some(u32::MAX); batch.outputs.len()];
        assert!(device.head_argmax(&self.head, &mut best)?, "the CPU finds the largest logit itself");
        for (logits, best) in logits.chunks_exact(self.vocab).zip(best) {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let first = logits.iter().position(|l| *l == largest).map(|id| id as u32);
            assert_eq!(best, first.filter(|_| logits.iter().all(|l| !l.is_nan())));
        }
        Ok(logits)
    }

    /// The normed hidden state of tokens of the last step.
    pub(super) fn hidden(&mut self, tokens: std::ops::Range<usize>) -> Vec<f32> {
        let width = self.device.state().expect("memory was reserved").reserve.d_model;
        let mut out = vec![f32::NAN; tokens.len() * width];
        self.device.hidden(Some(&self.head), tokens, &mut out).expect("hidden");
        out
    }

    /// A sequence's tokens, cut into steps of the lengths in `chunks` (over and over).
    pub(super) fn in_chunks(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        chunks: &[usize],
    ) -> Vec<f32> {
        let mut logits = Vec::new();
        let (mut rest, mut lengths) = (tokens, chunks.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*lengths.next().expect("a length")));
            logits.extend(self.step(&mut [(sequence, now)]));
            rest = later;
        }
        logits
    }

    /// Gives back the blocks that no later token sees, and fills them with NaN.
    pub(super) fn drop_unseen(&mut self, sequence: &mut Sequence) -> usize {
        let mut dropped = 0;
        for (_, attention, _, _) in &self.layers {
            let Some(window) = attention.window else { continue };
            let seen_from = (sequence.len + 1).saturating_sub(window) / KV_BLOCK;
            let (first, blocks) = &mut sequence.tables[attention.kv.group];
            for block in blocks.drain(..(seen_from - *first).min(blocks.len())) {
                let state = self.device.state.as_mut().expect("a state");
                let store = &mut state.kv[attention.kv.group];
                for layer in 0..store.group.layers {
                    let KvTypes { keys, values } = store.types;
                    for (ty, buffer) in [(keys, 0), (values, 1)] {
                        let start = store.offset(ty, layer, block as usize, 0);
                        let range = start..start + store.block_stride(ty);
                        let buffer = if buffer == 0 { &mut store.k } else { &mut store.v };
                        buffer.as_mut_slice()[range].fill(NAN_BYTE);
                    }
                }
                self.free[attention.kv.group].insert(0, block);
                dropped += 1;
            }
            *first = seen_from.max(*first);
        }
        dropped
    }

    /// Moves a sequence's blocks to others by way of the host, and fills the former with NaN; says how many.
    pub(super) fn move_blocks(&mut self, sequence: &mut Sequence) -> usize {
        let mut moved = 0;
        for (group, (_, blocks)) in sequence.tables.iter_mut().enumerate() {
            let state = self.device.state.as_ref().expect("a state");
            let mut bytes = vec![0; state.reserve.kv_groups[group].block_bytes(state.reserve.kv_types)];
            for block in blocks {
                let to = self.free[group].pop().expect("a block");
                self.device.read_block(group, *block as usize, &mut bytes).expect("a block");
                self.device.write_block(group, to as usize, &bytes).expect("a block");
                let nan = vec![NAN_BYTE; bytes.len()];
                self.device.write_block(group, *block as usize, &nan).expect("a block");
                self.free[group].insert(0, std::mem::replace(block, to));
                moved += 1;
            }
        }
        moved
    }

    /// Gives all blocks back.
    pub(super) fn release(&mut self, sequence: Sequence) {
        for ((_, blocks), free) in sequence.tables.into_iter().zip(&mut self.free) {
            free.extend(blocks);
        }
    }
}

fn load_layer(
    device: &mut CpuDevice,
    decoder: &Decoder,
    index: usize,
    layer: &Layer,
) -> (AttnIn, AttentionSpec, AttnOut, Ffn) {
    let residual_scale = decoder.shape.residual_scale;
    let head_norm = |norm: &Option<Norm>| {
        norm.clone().map(|norm| match decoder.shape.head_norms {
            HeadNorms::All => HeadNorm::AllHeads(norm),
            _ => HeadNorm::EachHead(norm),
        })
    };
    let attn_in = AttnInSpec {
        norm: layer.norm.clone(),
        q: layer.q.linear.clone(),
        k: layer.k.linear.clone(),
        v: layer.v.linear.clone(),
        q_norm: head_norm(&layer.q_norm),
        k_norm: head_norm(&layer.k_norm),
        rope: decoder.rope(),
        heads: decoder.shape.heads,
        kv: decoder.slot(index),
    };
    let attn_out = AttnOutSpec {
        proj: layer.proj.linear.clone(),
        post_norm: layer.post_norm.clone(),
        stream_norm: None,
        residual_scale,
    };
    let ffn = FfnSpec {
        input: if decoder.shape.parallel {
            FfnInput::AttentionInput
        } else {
            FfnInput::Residual(layer.ffn_norm.clone())
        },
        gate: layer.gate.as_ref().map(|g| g.linear.clone()),
        up: layer.up.linear.clone(),
        down: layer.down.linear.clone(),
        activation: decoder.shape.activation,
        post_norm: layer.ffn_post_norm.clone(),
        stream_norm: None,
        residual_scale,
    };
    (
        device.load_attn_in(attn_in).expect("a stage"),
        decoder.attention(index),
        device.load_attn_out(attn_out).expect("a stage"),
        device.load_ffn(ffn).expect("a stage"),
    )
}
