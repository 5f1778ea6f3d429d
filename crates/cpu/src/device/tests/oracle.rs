//! The decoder in double precision, straightforwardly: all tokens at once, layer by layer, no cache.

use super::decoder::{Decoder, HeadNorms, Layer, RandomLinear};
use half::f16;
use minfer_ops::*;
use std::sync::Arc;

pub(super) fn linear(l: &RandomLinear, x: &[f64]) -> Vec<f64> {
    let bias = |i: usize| l.linear.bias.as_ref().map_or(0.0, |b| f64::from(b[i]));
    let rows = l.values.chunks_exact(l.linear.weight.cols).enumerate();
    rows.map(|(i, row)| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + bias(i)).collect()
}

fn norm(norm: Option<&Norm>, x: &[f64]) -> Vec<f64> {
    let Some(norm) = norm else { return x.to_vec() };
    let n = x.len() as f64;
    let (mean, eps) = match norm.kind {
        NormKind::Rms { eps } => (0.0, eps),
        NormKind::Layer { eps } => (x.iter().sum::<f64>() / n, eps),
    };
    let root = (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + f64::from(eps)).sqrt();
    let bias = |i: usize| norm.bias.as_ref().map_or(0.0, |b| f64::from(b[i]));
    x.iter().enumerate().map(|(i, v)| (v - mean) / root * f64::from(norm.weight[i]) + bias(i)).collect()
}

fn rotate(rope: &Rope, head: &mut [f64], position: usize) {
    let pairs = rope.inv_freq.len();
    for (i, frequency) in rope.inv_freq.iter().enumerate() {
        let (a, b) = match rope.style {
            RopeStyle::Adjacent => (2 * i, 2 * i + 1),
            RopeStyle::Halves => (i, i + pairs),
        };
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (x, y) = (head[a], head[b]);
        head[a] = (x * cos - y * sin) * f64::from(rope.magnitude);
        head[b] = (x * sin + y * cos) * f64::from(rope.magnitude);
    }
}

/// Norm and rope of all heads in `x`.
fn heads(decoder: &Decoder, weights: Option<&Norm>, x: Vec<f64>, position: usize) -> Vec<f64> {
    let dim = decoder.shape.heads.dim;
    let kind = decoder.shape.head_norms;
    let whole = if kind == HeadNorms::All { norm(weights, &x) } else { x };
    let mut out = Vec::new();
    for (i, head) in whole.chunks_exact(dim).enumerate() {
        let own = |values: &Arc<[f32]>| values[i * dim..(i + 1) * dim].into();
        let mut head = match (kind, weights) {
            (HeadNorms::Shared, weights) => norm(weights, head),
            (HeadNorms::Own, Some(Norm { kind, weight, bias })) => {
                norm(Some(&Norm { kind: *kind, weight: own(weight), bias: bias.as_ref().map(own) }), head)
            }
            _ => head.to_vec(),
        };
        if let Some(rope) = decoder.rope() {
            rotate(&rope, &mut head, position);
        }
        out.extend(head);
    }
    out
}

fn cap(x: f64, cap: Option<f32>) -> f64 {
    cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
}

/// What the cache keeps.
fn stored(ty: KvType, dim: usize, x: Vec<f64>) -> Vec<f64> {
    match ty {
        KvType::F16 => x.into_iter().map(|v| f16::from_f64(v).to_f64()).collect(),
        KvType::BF16 => x.into_iter().map(|v| half::bf16::from_f64(v).to_f64()).collect(),
        KvType::F32 => x,
        KvType::Q8_0 => x.chunks(32).flat_map(stored_q8_0).collect(),
        KvType::FP8 => x.chunks(dim).flat_map(stored_fp8).collect(),
    }
}

/// 32 channels as bytes with a scale of half precision.
fn stored_q8_0(x: &[f64]) -> Vec<f64> {
    let largest = x.iter().fold(0f64, |m, v| m.max(v.abs()));
    let scale = f16::from_f64(largest / 127.0).to_f64();
    let byte = |v: &f64| if scale > 0.0 { (v / scale).round_ties_even().clamp(-127.0, 127.0) } else { 0.0 };
    x.iter().map(|v| scale * byte(v)).collect()
}

/// A head as E4M3, numbers of four bits down to 2^-9, with the power of two that brings its largest channel up to 448.
fn stored_fp8(x: &[f64]) -> Vec<f64> {
    let largest = x.iter().fold(0f64, |m, v| m.max(v.abs()));
    let scale = (-15..7).map(|e| 2f64.powi(e)).find(|scale| largest <= 448.0 * scale).unwrap_or(128.0);
    let number = |v: &f64| {
        let v = (v / scale).clamp(-448.0, 448.0);
        let step = 2f64.powi(v.abs().log2().floor().max(-6.0) as i32 - 3);
        (v / step).round_ties_even() * step
    };
    x.iter().map(|v| scale * number(v)).collect()
}

fn attention(
    spec: &AttentionSpec,
    q: &[f64],
    keys: &[Vec<f64>],
    values: &[Vec<f64>],
    position: usize,
) -> Vec<f64> {
    let Heads { q: q_heads, kv, dim } = spec.heads;
    let from = spec.window.map_or(0, |w| (position + 1).saturating_sub(w));
    let mut out = Vec::new();
    for head in 0..q_heads {
        let (q, kv_head) = (&q[head * dim..][..dim], head / (q_heads / kv));
        let score = |key: &Vec<f64>| {
            let dot: f64 = q.iter().zip(&key[kv_head * dim..][..dim]).map(|(q, k)| q * k).sum();
            cap(dot * f64::from(spec.scale), spec.soft_cap)
        };
        let scores: Vec<f64> = keys[from..=position].iter().map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = vec![0.0; dim];
        for (weight, value) in weights.iter().zip(&values[from..=position]) {
            sum.iter_mut().zip(&value[kv_head * dim..][..dim]).for_each(|(s, v)| *s += weight / total * v);
        }
        out.extend(sum);
    }
    out
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => unreachable!("no decoder here has it"),
        Activation::GeluTanh => {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
    }
}

/// Of the normed input.
fn feed_forward(decoder: &Decoder, layer: &Layer, x: &[f64]) -> Vec<f64> {
    let up = linear(&layer.up, x);
    let act = |v: &f64| activate(decoder.shape.activation, *v);
    let hidden: Vec<f64> = match &layer.gate {
        Some(gate) => linear(gate, x).iter().map(act).zip(&up).map(|(g, u)| g * u).collect(),
        None => up.iter().map(act).collect(),
    };
    norm(layer.ffn_post_norm.as_ref(), &linear(&layer.down, &hidden))
}

fn add(x: &mut [f64], scale: f32, y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += f64::from(scale) * y);
}

/// Logits of all tokens of a sequence, `[tokens][vocab]`.
pub(super) fn logits(decoder: &Decoder, tokens: &[u32]) -> Vec<f64> {
    let shape = &decoder.shape;
    let row = |token: &u32| &decoder.embedding.values[*token as usize * shape.d_model..][..shape.d_model];
    let scaled =
        |token: &u32| row(token).iter().map(|v| f64::from(*v) * f64::from(shape.embed_scale)).collect();
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(scaled).collect();
    for (i, layer) in decoder.layers.iter().enumerate() {
        let (mut qs, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let inputs: Vec<_> = xs.iter().map(|x| norm(layer.norm.as_ref(), x)).collect();
        for (position, x) in inputs.iter().enumerate() {
            qs.push(heads(decoder, layer.q_norm.as_ref(), linear(&layer.q, x), position));
            keys.push(stored(
                shape.kv_types.keys,
                shape.heads.dim,
                heads(decoder, layer.k_norm.as_ref(), linear(&layer.k, x), position),
            ));
            values.push(stored(shape.kv_types.values, shape.heads.dim, linear(&layer.v, x)));
        }
        let spec = decoder.attention(i);
        for (position, x) in xs.iter_mut().enumerate() {
            let attended = attention(&spec, &qs[position], &keys, &values, position);
            add(x, shape.residual_scale, &norm(layer.post_norm.as_ref(), &linear(&layer.proj, &attended)));
            let input =
                if shape.parallel { inputs[position].clone() } else { norm(layer.ffn_norm.as_ref(), x) };
            let fed = feed_forward(decoder, layer, &input);
            add(x, shape.residual_scale, &fed);
        }
    }
    let head = decoder.head.as_ref().unwrap_or(&decoder.embedding);
    let logits = xs.iter().flat_map(|x| linear(head, &norm(Some(&decoder.norm), x)));
    logits.map(|l| cap(l * f64::from(shape.logit_scale), shape.logit_cap)).collect()
}
