//! Tensors by name: from a spec to the stages' weights, every tensor of the file used or refused.

use crate::error::Error;
use crate::spec::{Block, DecoderSpec, LayerSpec, Norms, QkNorm};
use minfer_gguf::{Gguf, quant};
use minfer_ops::*;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// Fetches tensors of a file and remembers which.
pub(crate) struct Binder<'a> {
    gguf: &'a Arc<Gguf>,
    spec: &'a DecoderSpec,
    used: HashSet<String>,
}

/// Weights of one layer.
pub(crate) struct LayerWeights {
    pub(crate) attn_in: AttnInSpec,
    pub(crate) attn_out: AttnOutSpec,
    pub(crate) ffn: FfnSpec,
}

impl LayerWeights {
    /// Bytes of the layer's matrices.
    pub(crate) fn bytes(&self) -> usize {
        let Self { attn_in, attn_out, ffn } = self;
        [&attn_in.q, &attn_in.k, &attn_in.v, &attn_out.proj, &ffn.up, &ffn.down]
            .into_iter()
            .chain(&ffn.gate)
            .map(|linear| linear.weight.data.len())
            .sum()
    }
}

/// Tensors that only change how `DecoderSpec` was read.
const READ_ELSEWHERE: &[&str] =
    &["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

impl<'a> Binder<'a> {
    pub(crate) fn new(gguf: &'a Arc<Gguf>, spec: &'a DecoderSpec) -> Binder<'a> {
        Binder { gguf, spec, used: READ_ELSEWHERE.iter().map(|name| (*name).to_owned()).collect() }
    }

    fn file(&self) -> String {
        self.gguf.paths().next().map(|path| path.display().to_string()).unwrap_or_default()
    }

    /// The tensor `name`, which must have these dimensions (innermost first).
    fn tensor(&mut self, name: &str, dims: &[usize]) -> Result<minfer_gguf::Tensor<'a>, Error> {
        let tensor = self.gguf.require_tensor(name)?;
        let found = tensor.dims();
        // Trailing dimensions of 1 say nothing.
        let significant = found.iter().rposition(|d| *d != 1).map_or(0, |last| last + 1);
        let expected: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        let wanted = expected.iter().rposition(|d| *d != 1).map_or(0, |last| last + 1);
        if found[..significant] != expected[..wanted] {
            let (tensor, found) = (name.to_owned(), found.to_vec());
            return Err(Error::Shape { file: self.file(), tensor, expected, found });
        }
        self.used.insert(name.to_owned());
        Ok(tensor)
    }

    fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// A matrix of `rows` × `cols`.
    pub(crate) fn weight(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, Error> {
        let ty = self.tensor(name, &[cols, rows])?.ty();
        let data = self.gguf.share(name).ok_or_else(|| Error::Shape {
            file: self.file(),
            tensor: name.to_owned(),
            expected: vec![cols as u64, rows as u64],
            found: Vec::new(),
        })?;
        Ok(Weight { name: name.into(), ty, rows, cols, data })
    }

    /// A vector, as floats.
    fn vector(&mut self, name: &str, len: usize) -> Result<Arc<[f32]>, Error> {
        self.flat_vector(name, &[len])
    }

    /// A tensor of these dimensions, as floats in the file's order.
    fn flat_vector(&mut self, name: &str, dims: &[usize]) -> Result<Arc<[f32]>, Error> {
        let tensor = self.tensor(name, dims)?;
        let mut values = vec![0.0; dims.iter().product()];
        quant::dequantize(tensor.ty(), tensor.data(), &mut values)
            .map_err(|error| DeviceError::Unsupported { tensor: name.to_owned(), what: error.to_string() })?;
        Ok(values.into())
    }

    /// The first row, of `cols` values, of a matrix of any number of rows, as floats.
    fn first_row(&mut self, name: &str, cols: usize) -> Result<Arc<[f32]>, Error> {
        let rows = self.gguf.require_tensor(name)?.elements() as usize / cols;
        let all = self.flat_vector(name, &[cols, rows.max(1)])?;
        Ok(all[..cols].into())
    }

    /// `<name>.weight`, and `<name>.bias` where the file has one.
    fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Result<Linear, Error> {
        let weight = self.weight(&format!("{name}.weight"), rows, cols)?;
        let bias = format!("{name}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, rows)?) } else { None };
        Ok(Linear { weight, bias })
    }

    /// The norm `<name>.weight` over `len` channels.
    fn norm(&mut self, name: &str, len: usize) -> Result<Norm, Error> {
        let weight = self.vector(&format!("{name}.weight"), len)?;
        let bias = format!("{name}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, len)?) } else { None };
        Ok(Norm { kind: self.spec.norm, weight, bias })
    }

    /// The embedding.
    pub(crate) fn embedding(&mut self) -> Result<EmbeddingSpec, Error> {
        let DecoderSpec { vocab, d_model, context, inputs, .. } = *self.spec;
        let table = self.weight("token_embd.weight", vocab, d_model)?;
        let positions = inputs.positions.then(|| self.weight("position_embd.weight", context, d_model));
        Ok(EmbeddingSpec {
            table,
            positions: positions.transpose()?,
            token_type: if inputs.token_types {
                Some(self.first_row("token_types.weight", d_model)?)
            } else {
                None
            },
            norm: if inputs.norm { Some(self.norm("token_embd_norm", d_model)?) } else { None },
        })
    }

    /// The head, if there is one; without an own matrix it shares the embedding's.
    pub(crate) fn head(&mut self) -> Result<Option<HeadSpec>, Error> {
        let (vocab, d_model) = (self.spec.vocab, self.spec.d_model);
        if !self.spec.head {
            return Ok(None);
        }
        let proj =
            if self.has("output.weight") { Some(self.linear("output", vocab, d_model)?) } else { None };
        Ok(Some(HeadSpec {
            norm: Some(self.norm("output_norm", d_model)?),
            proj,
            scale: self.spec.logit_scale,
            soft_cap: self.spec.logit_cap,
        }))
    }

    /// A part of a tensor that holds several matrices one above the other, or the tensor `name` of its own.
    fn part(
        &mut self,
        fused: &str,
        rows: Range<usize>,
        of: usize,
        name: &str,
        cols: usize,
    ) -> Result<Linear, Error> {
        if !self.has(&format!("{fused}.weight")) {
            return self.linear(name, rows.len(), cols);
        }
        let whole = self.linear(fused, of, cols)?;
        Ok(Linear {
            weight: whole.weight.slice_rows(rows.clone()),
            bias: whole.bias.map(|bias| bias[rows].into()),
        })
    }

    /// The norm of q or k in front of `width` channels.
    fn head_norm(
        &mut self,
        kind: QkNorm,
        name: &str,
        dim: usize,
        width: usize,
    ) -> Result<Option<HeadNorm>, Error> {
        let dims = self.gguf.tensor(&format!("{name}.weight")).map_or(0, |t| t.elements() as usize);
        Ok(match kind {
            QkNorm::None => None,
            QkNorm::AllHeads => Some(HeadNorm::AllHeads(self.norm(name, width)?)),
            QkNorm::PerHead if dims != width || dim == width => {
                Some(HeadNorm::EachHead(self.norm(name, dim)?))
            }
            QkNorm::PerHead => {
                let weight = self.flat_vector(&format!("{name}.weight"), &[dim, width / dim])?;
                Some(HeadNorm::EachHead(Norm { kind: self.spec.norm, weight, bias: None }))
            }
        })
    }

    /// Layer `i`, whose cache is at `kv`.
    pub(crate) fn layer(&mut self, i: usize, layer: &LayerSpec, kv: KvSlot) -> Result<LayerWeights, Error> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let (d_model, heads, ff) = (self.spec.d_model, layer.heads, layer.ffn.width);
        let (q_width, kv_width) = (heads.q * heads.dim, heads.kv * heads.dim);
        let all = q_width + 2 * kv_width;
        let (k_rows, v_rows) = (q_width..q_width + kv_width, q_width + kv_width..all);
        let qkv = name("attn_qkv");
        let mut norm = |wanted: bool, part: &str| wanted.then(|| self.norm(&name(part), d_model)).transpose();
        let pre = matches!(layer.norms, Norms::Pre | Norms::PreAndPost);
        let post = matches!(layer.norms, Norms::Post | Norms::PreAndPost);
        let stream = layer.norms == Norms::Stream;
        let attn_norm = norm(pre, "attn_norm")?;
        let input = match layer.block {
            Block::Sequential => FfnInput::Residual(norm(pre, "ffn_norm")?),
            Block::Parallel => FfnInput::AttentionInput,
        };
        let (post_attention, post_ffn) = (norm(post, "post_attention_norm")?, norm(post, "post_ffw_norm")?);
        let attention_stream = norm(stream, "attn_output_norm")?;
        let ffn_stream = norm(stream, "layer_output_norm")?;
        // Gate and up may share the tensor `ffn_up`, gate first.
        let fused = layer.ffn.gated && !self.has(&name("ffn_gate.weight"));
        let (gate_rows, up_rows, rows) = if fused { (0..ff, ff..2 * ff, 2 * ff) } else { (0..ff, 0..ff, ff) };
        let gate = if fused { name("ffn_up") } else { name("ffn_gate") };
        Ok(LayerWeights {
            attn_in: AttnInSpec {
                norm: attn_norm,
                q: self.part(&qkv, 0..q_width, all, &name("attn_q"), d_model)?,
                k: self.part(&qkv, k_rows, all, &name("attn_k"), d_model)?,
                v: self.part(&qkv, v_rows, all, &name("attn_v"), d_model)?,
                q_norm: self.head_norm(layer.qk_norm, &name("attn_q_norm"), heads.dim, q_width)?,
                k_norm: self.head_norm(layer.qk_norm, &name("attn_k_norm"), heads.dim, kv_width)?,
                rope: layer.rope.clone(),
                heads,
                kv,
            },
            attn_out: AttnOutSpec {
                proj: self.linear(&name("attn_output"), d_model, q_width)?,
                post_norm: post_attention,
                stream_norm: attention_stream,
                residual_scale: layer.residual_scale,
            },
            ffn: FfnSpec {
                input,
                gate: match layer.ffn.gated {
                    true => Some(self.part(&gate, gate_rows, rows, &gate, d_model)?),
                    false => None,
                },
                up: self.part(&name("ffn_up"), up_rows, rows, &name("ffn_up"), d_model)?,
                down: self.linear(&name("ffn_down"), d_model, ff)?,
                activation: layer.ffn.activation,
                post_norm: post_ffn,
                stream_norm: ffn_stream,
                residual_scale: layer.residual_scale,
            },
        })
    }

    /// Refuses a file with tensors that nothing asked for.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let mut left = self.gguf.tensors().map(|t| t.name()).filter(|name| !self.used.contains(*name));
        match left.next() {
            None => Ok(()),
            Some(first) => Err(Error::Unexpected {
                file: self.file(),
                architecture: self.spec.architecture.clone(),
                tensor: first.to_owned(),
                others: left.count(),
            }),
        }
    }
}
