//! Stages from specs: what does not fit together or cannot run is refused here, by name.

use super::stages::Act;
use super::{
    AttnIn, AttnOut, CudaDevice, Embedding, Ffn, Head, LoadedHeadNorm, LoadedInput, LoadedLinear, LoadedNorm,
    LoadedRope,
};
use crate::driver::Buffer;
use crate::matrix::Matrix;
use minfer_ops::*;
use std::sync::Arc;

/// Largest head that attention has a kernel for.
const MAX_HEAD: usize = 256;

/// Channels of a tensor-core step.
const HEAD_STEP: usize = 16;

fn unsupported<T>(tensor: &str, what: String) -> Result<T, DeviceError> {
    Err(DeviceError::Unsupported { tensor: tensor.to_owned(), what })
}

/// Refuses a stage that only encoders have.
fn encoder<T>(weight: &Weight) -> Result<T, DeviceError> {
    unsupported(
        &weight.name,
        "the model is an encoder, and encoders run on the CPU only (--device cpu)".into(),
    )
}

fn expect(tensor: &str, what: &str, expected: usize, found: usize) -> Result<(), DeviceError> {
    if expected == found {
        Ok(())
    } else {
        unsupported(tensor, format!("expected {expected} {what}, found {found}"))
    }
}

/// Whether one table of angles serves both.
pub(super) fn same_rope(a: &Rope, b: &Rope) -> bool {
    a.style == b.style && a.magnitude == b.magnitude && a.inv_freq == b.inv_freq
}

impl CudaDevice {
    pub(super) fn matrix(&mut self, weight: &Weight) -> Result<Matrix, DeviceError> {
        self.gpu.make_current()?;
        Matrix::load(weight, self.lane(), &self.kernels)
    }

    /// A matrix for products.
    fn product_matrix(&mut self, weight: &Weight) -> Result<Matrix, DeviceError> {
        let matrix = self.matrix(weight)?;
        #[cfg_attr(not(feature = "lab"), allow(unused_mut, reason = "experiments change it"))]
        let Some(mut tuned) = matrix.tuned(self.lane(), &self.kernels, self.numerics)? else {
            return Ok(matrix);
        };
        if tuned.takes_bytes() {
            let prefill = self.prefill_of(weight);
            if !self.prompt_kernels.contains(&(weight.ty, prefill)) {
                self.prompt_kernels.push((weight.ty, prefill));
            }
            #[cfg(feature = "lab")]
            tuned.experiment(self.lane(), &self.kernels, prefill, matrix)?;
        }
        Ok(tuned)
    }

    fn vector(&self, values: &[f32]) -> Result<Buffer<f32>, DeviceError> {
        let buffer = self.gpu.alloc(values.len(), "weights")?;
        self.gpu.upload(values, &buffer)?;
        Ok(buffer)
    }

    fn linear(&mut self, linear: &Linear) -> Result<LoadedLinear, DeviceError> {
        if let Some(bias) = &linear.bias {
            expect(&linear.weight.name, "bias values", linear.weight.rows, bias.len())?;
        }
        let matrix = Arc::new(self.product_matrix(&linear.weight)?);
        Ok(LoadedLinear { matrix, bias: linear.bias.as_deref().map(|bias| self.vector(bias)).transpose()? })
    }

    /// A norm of `width` values beside the matrix `tensor`.
    fn norm(
        &self,
        norm: Option<&Norm>,
        width: usize,
        tensor: &str,
    ) -> Result<Option<LoadedNorm>, DeviceError> {
        let Some(norm) = norm else { return Ok(None) };
        expect(tensor, "norm values", width, norm.weight.len())?;
        if let Some(bias) = &norm.bias {
            expect(tensor, "norm bias values", width, bias.len())?;
        }
        Ok(Some(LoadedNorm {
            kind: norm.kind,
            weight: self.vector(&norm.weight)?,
            bias: norm.bias.as_deref().map(|bias| self.vector(bias)).transpose()?,
        }))
    }

    /// The norm of `heads` heads of `dim` channels behind the matrix `tensor`.
    fn head_norm(
        &self,
        norm: Option<&HeadNorm>,
        heads: usize,
        dim: usize,
        tensor: &str,
    ) -> Result<LoadedHeadNorm, DeviceError> {
        let load = |norm, width| self.norm(Some(norm), width, tensor);
        Ok(match norm {
            None => LoadedHeadNorm::None,
            Some(HeadNorm::AllHeads(norm)) => {
                load(norm, heads * dim)?.map_or(LoadedHeadNorm::None, LoadedHeadNorm::All)
            }
            Some(HeadNorm::EachHead(norm)) => {
                let (width, stride) = if norm.weight.len() == dim { (dim, 0) } else { (heads * dim, dim) };
                load(norm, width)?.map_or(LoadedHeadNorm::None, |norm| LoadedHeadNorm::Each(norm, stride))
            }
        })
    }

    fn rope(&mut self, rope: Rope) -> Result<usize, DeviceError> {
        if let Some(known) = self.ropes.iter().position(|loaded| same_rope(&loaded.rope, &rope)) {
            return Ok(known);
        }
        let inv_freq = self.gpu.alloc(rope.inv_freq.len(), "weights")?;
        self.gpu.upload(&rope.inv_freq, &inv_freq)?;
        self.ropes.push(LoadedRope { rope, inv_freq });
        Ok(self.ropes.len() - 1)
    }

    pub(super) fn attn_in_stage(&mut self, spec: AttnInSpec) -> Result<AttnIn, DeviceError> {
        let Heads { q, kv, dim } = spec.heads;
        let (name, width) = (Arc::clone(&spec.q.weight.name), spec.q.weight.cols);
        for (linear, heads) in [(&spec.q, q), (&spec.k, kv), (&spec.v, kv)] {
            expect(&linear.weight.name, "rows", heads.saturating_mul(dim), linear.weight.rows)?;
            expect(&linear.weight.name, "columns", width, linear.weight.cols)?;
        }
        if dim == 0 || dim % HEAD_STEP != 0 || dim > MAX_HEAD || kv == 0 || q == 0 || q % kv != 0 {
            let what = format!(
                "{q} query and {kv} key heads of {dim} channels; the GPU has attention for heads of 16…{MAX_HEAD} \
                 channels in steps of {HEAD_STEP}, query heads a multiple of key heads"
            );
            return unsupported(&name, what);
        }
        if let Some(rope) = &spec.rope
            && 2 * rope.inv_freq.len() > dim
        {
            return unsupported(&name, format!("rope over {} of {dim} channels", 2 * rope.inv_freq.len()));
        }
        self.gpu.make_current()?;
        Ok(AttnIn {
            norm: self.norm(spec.norm.as_ref(), width, &name)?,
            q_norm: self.head_norm(spec.q_norm.as_ref(), q, dim, &name)?,
            k_norm: self.head_norm(spec.k_norm.as_ref(), kv, dim, &spec.k.weight.name)?,
            q: self.linear(&spec.q)?,
            k: self.linear(&spec.k)?,
            v: self.linear(&spec.v)?,
            rope: spec.rope.map(|rope| self.rope(rope)).transpose()?,
            heads: spec.heads,
            kv: spec.kv,
        })
    }

    pub(super) fn embedding_stage(&mut self, spec: &EmbeddingSpec) -> Result<Embedding, DeviceError> {
        if spec.positions.is_some() || spec.token_type.is_some() || spec.norm.is_some() {
            return encoder(&spec.table);
        }
        Ok(Embedding(Arc::new(self.matrix(&spec.table)?)))
    }

    pub(super) fn attn_out_stage(&mut self, spec: AttnOutSpec) -> Result<AttnOut, DeviceError> {
        let weight = &spec.proj.weight;
        if spec.stream_norm.is_some() {
            return encoder(weight);
        }
        self.gpu.make_current()?;
        Ok(AttnOut {
            post_norm: self.norm(spec.post_norm.as_ref(), weight.rows, &weight.name)?,
            proj: self.linear(&spec.proj)?,
            residual_scale: spec.residual_scale,
        })
    }

    pub(super) fn ffn_stage(&mut self, spec: FfnSpec) -> Result<Ffn, DeviceError> {
        let Some(activation) = Act::of(spec.activation).filter(|_| spec.stream_norm.is_none()) else {
            return encoder(&spec.down.weight);
        };
        expect(&spec.down.weight.name, "columns", spec.up.weight.rows, spec.down.weight.cols)?;
        if let Some(gate) = &spec.gate {
            expect(&gate.weight.name, "rows", spec.up.weight.rows, gate.weight.rows)?;
            expect(&gate.weight.name, "columns", spec.up.weight.cols, gate.weight.cols)?;
        }
        self.gpu.make_current()?;
        let width = spec.up.weight.cols;
        Ok(Ffn {
            input: match &spec.input {
                FfnInput::Residual(norm) => {
                    LoadedInput::Residual(self.norm(norm.as_ref(), width, &spec.up.weight.name)?)
                }
                FfnInput::AttentionInput => {
                    self.keeps_normed = true;
                    LoadedInput::Attention
                }
            },
            post_norm: self.norm(spec.post_norm.as_ref(), spec.down.weight.rows, &spec.down.weight.name)?,
            gate: spec.gate.map(|gate| self.linear(&gate)).transpose()?,
            up: self.linear(&spec.up)?,
            down: self.linear(&spec.down)?,
            activation,
            residual_scale: spec.residual_scale,
        })
    }

    pub(super) fn head_stage(&mut self, spec: HeadSpec, embedding: &Embedding) -> Result<Head, DeviceError> {
        self.gpu.make_current()?;
        let (proj, name) = match &spec.proj {
            Some(linear) => (self.linear(linear)?, Arc::clone(&linear.weight.name)),
            None => {
                // Rows are looked up in the file's layout, products have their own.
                let tuned = embedding.0.tuned(self.lane(), &self.kernels, self.numerics)?;
                let matrix = tuned.map_or_else(|| Arc::clone(&embedding.0), Arc::new);
                (LoadedLinear { matrix, bias: None }, "token_embd".into())
            }
        };
        let norm = self.norm(spec.norm.as_ref(), proj.matrix.cols, &name)?;
        Ok(Head { norm, proj, scale: spec.scale, soft_cap: spec.soft_cap })
    }
}
