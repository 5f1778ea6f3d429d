//! Architectures: one file each, from metadata keys to a [`DecoderSpec`].

mod gemma3;
mod llama;

use crate::error::Error;
use crate::rope;
use crate::spec::DecoderSpec;
use minfer_gguf::{Gguf, Metadata};
use minfer_ops::{Heads, NormKind, Rope, RopeStyle};
use std::sync::Arc;

/// A family of decoders.
pub struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Reads a file's keys.
    pub(crate) spec: fn(&Keys<'_>) -> Result<DecoderSpec, Error>,
}

/// Every supported architecture.
pub const ARCHITECTURES: &[Architecture] =
    &[Architecture { name: "llama", spec: llama::spec }, Architecture { name: "gemma3", spec: gemma3::spec }];

/// The architecture of a file.
pub(crate) fn find(keys: &Keys<'_>) -> Result<&'static Architecture, Error> {
    ARCHITECTURES.iter().find(|a| a.name == keys.architecture).ok_or_else(|| Error::Architecture {
        file: keys.file(),
        found: keys.architecture.to_owned(),
        supported: ARCHITECTURES.iter().map(|a| a.name).collect(),
    })
}

/// A file's keys as an architecture reads them: `u32("block_count")` is the key `llama.block_count`.
pub(crate) struct Keys<'a> {
    gguf: &'a Gguf,
    pub(crate) architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(gguf: &'a Gguf) -> Result<Keys<'a>, Error> {
        Ok(Keys { gguf, architecture: gguf.metadata().require_str("general.architecture")? })
    }

    fn metadata(&self) -> &'a Metadata {
        self.gguf.metadata()
    }

    /// The file's path, for errors.
    pub(crate) fn file(&self) -> String {
        self.gguf.paths().next().map(|path| path.display().to_string()).unwrap_or_default()
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A key that must be there.
    pub(crate) fn usize(&self, key: &str) -> Result<usize, Error> {
        Ok(self.metadata().require_u32(&self.full(key))? as usize)
    }

    /// A key that may be there.
    pub(crate) fn usize_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        Ok(self.metadata().u32(&self.full(key))?.map_or(default, |v| v as usize))
    }

    /// A key that must be there.
    pub(crate) fn f32(&self, key: &str) -> Result<f32, Error> {
        let value = self.metadata().require_f32(&self.full(key))?;
        if value.is_finite() {
            Ok(value)
        } else {
            Err(self.bad(key, format!("expected a number, found {value}")))
        }
    }

    /// A key that may be there.
    pub(crate) fn f32_opt(&self, key: &str) -> Result<Option<f32>, Error> {
        if self.metadata().contains(&self.full(key)) { self.f32(key).map(Some) } else { Ok(None) }
    }

    /// A key that may be there.
    pub(crate) fn str_opt(&self, key: &str) -> Result<Option<&'a str>, Error> {
        Ok(self.metadata().str(&self.full(key))?)
    }

    /// A number per layer: an array, or one number for all. Bounds the number of layers by what a file could hold.
    pub(crate) fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>, Error> {
        let values = self.metadata().u32_per_layer(&self.full(key), layers)?;
        Ok(values.map(|values| values.into_iter().map(|v| v as usize).collect()))
    }

    /// A key whose value makes no sense.
    pub(crate) fn bad(&self, key: &str, what: String) -> Error {
        Error::Key { file: self.file(), key: self.full(key), what }
    }

    /// Something that this architecture can have and we cannot compute.
    pub(crate) fn unsupported(&self, what: String) -> Error {
        Error::Feature { file: self.file(), architecture: self.architecture.to_owned(), what }
    }

    /// Number of layers; a layer has several tensors, so the file's tensor count bounds it.
    pub(crate) fn layers(&self) -> Result<usize, Error> {
        let layers = self.usize("block_count")?;
        if layers > self.gguf.tensors().len() {
            let what = format!("{layers} layers in a file of {} tensors", self.gguf.tensors().len());
            return Err(self.bad("block_count", what));
        }
        Ok(layers)
    }

    /// Rows of the embedding table.
    pub(crate) fn vocab(&self) -> Result<usize, Error> {
        let table = self.gguf.require_tensor("token_embd.weight")?;
        Ok(table.dims().get(1).copied().unwrap_or(1) as usize)
    }

    /// Heads of every layer: `attention.head_count[_kv]`, `attention.key_length`.
    pub(crate) fn heads(&self, layers: usize, d_model: usize) -> Result<Vec<Heads>, Error> {
        let q = self.per_layer("attention.head_count", layers)?;
        let q = q.ok_or_else(|| self.bad("attention.head_count", "is missing".into()))?;
        let kv = self.per_layer("attention.head_count_kv", layers)?.unwrap_or_else(|| q.clone());
        let default = d_model / q.first().copied().unwrap_or(1).max(1);
        let dim = self.usize_or("attention.key_length", default)?;
        let value = self.usize_or("attention.value_length", dim)?;
        if value != dim {
            return Err(self.unsupported(format!("keys of {dim} and values of {value} channels per head")));
        }
        Ok(q.into_iter().zip(kv).map(|(q, kv)| Heads { q, kv, dim }).collect())
    }

    /// Factors on the rope's frequencies that a file carries as a tensor (llama-3 scaling).
    pub(crate) fn rope_factors(&self) -> Result<Option<Vec<f32>>, Error> {
        let Some(tensor) = self.gguf.tensor("rope_freqs.weight") else { return Ok(None) };
        let mut factors = vec![0.0; tensor.elements() as usize];
        minfer_gguf::quant::dequantize(tensor.ty(), tensor.data(), &mut factors)
            .map_err(|error| self.unsupported(format!("rope_freqs.weight: {error}")))?;
        Ok(Some(factors))
    }

    /// The rope that the file's keys describe, over `dims` channels with base `base`, scaled as `scaling` says.
    pub(crate) fn rope(
        &self,
        style: RopeStyle,
        dims: usize,
        base: f32,
        scaling: &rope::Scaling,
    ) -> Result<Rope, Error> {
        if dims == 0 || !dims.is_multiple_of(2) {
            return Err(self
                .bad("rope.dimension_count", format!("expected an even number of channels, found {dims}")));
        }
        if !(base > 0.0) {
            return Err(self.bad("rope.freq_base", format!("expected a positive number, found {base}")));
        }
        let inv_freq =
            rope::inv_freq(dims, f64::from(base), scaling).map_err(|what| self.unsupported(what))?;
        Ok(Rope { style, inv_freq: Arc::from(inv_freq), magnitude: 1.0 })
    }

    /// Scaling of the rope by the file's `rope.scaling` keys and factors.
    pub(crate) fn rope_scaling(&self) -> Result<rope::Scaling, Error> {
        if let Some(factors) = self.rope_factors()? {
            return Ok(rope::Scaling::Factors(factors));
        }
        let factor = match self.f32_opt("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.f32_opt("rope.scale_linear")?,
        };
        match (self.str_opt("rope.scaling.type")?, factor) {
            (None | Some("none"), None) | (Some("none"), Some(_)) => Ok(rope::Scaling::None),
            (None | Some("linear"), Some(factor)) if factor > 0.0 => {
                Ok(rope::Scaling::Linear(f64::from(factor)))
            }
            (None | Some("linear"), _) => Ok(rope::Scaling::None),
            (Some(other), _) => Err(self.unsupported(format!("rope scaling \"{other}\""))),
        }
    }

    /// RMS norm with the file's epsilon.
    pub(crate) fn rms_norm(&self) -> Result<NormKind, Error> {
        let eps = self.f32("attention.layer_norm_rms_epsilon")?;
        if eps < 0.0 {
            return Err(self.bad(
                "attention.layer_norm_rms_epsilon",
                format!("expected a positive number, found {eps}"),
            ));
        }
        Ok(NormKind::Rms { eps })
    }
}
