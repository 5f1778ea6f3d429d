//! Architectures: one file each, from metadata keys to a [`DecoderSpec`].

mod bert;
mod command_r;
mod gemma2;
mod gemma3;
mod glm4;
mod granite;
mod llama;
mod nomic_bert;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod smollm3;
mod starcoder2;

use crate::error::Error;
use crate::rope;
use crate::spec::{Block, DecoderSpec, Ffn, Inputs, LayerSpec, Mask, Norms, QkNorm};
use minfer_engine::Pooling;
use minfer_gguf::{Gguf, Metadata, Value};
use minfer_ops::{Activation, Heads, NormKind, Rope, RopeStyle};
use std::sync::Arc;

/// A family of decoders.
pub struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Reads a file's keys.
    pub(crate) spec: fn(&Keys<'_>) -> Result<DecoderSpec, Error>,
}

/// Every supported architecture.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "llama", spec: llama::spec },
    Architecture { name: "gemma2", spec: gemma2::spec },
    Architecture { name: "gemma3", spec: gemma3::spec },
    Architecture { name: "qwen2", spec: qwen2::spec },
    Architecture { name: "qwen3", spec: qwen3::spec },
    Architecture { name: "phi3", spec: phi3::spec },
    Architecture { name: "olmo2", spec: olmo2::spec },
    Architecture { name: "granite", spec: granite::spec },
    Architecture { name: "smollm3", spec: smollm3::spec },
    Architecture { name: "command-r", spec: command_r::spec },
    Architecture { name: "starcoder2", spec: starcoder2::spec },
    Architecture { name: "glm4", spec: glm4::spec },
    Architecture { name: "bert", spec: bert::spec },
    Architecture { name: "nomic-bert", spec: nomic_bert::spec },
];

/// Base of rope frequencies where a file names none.
const DEFAULT_ROPE_BASE: f32 = 10_000.0;

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
    /// Longest sequence that the model is opened for; 0 for its own.
    context: usize,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(gguf: &'a Gguf, context: usize) -> Result<Keys<'a>, Error> {
        Ok(Keys { gguf, architecture: gguf.metadata().require_str("general.architecture")?, context })
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

    /// Whether the file has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.metadata().contains(&self.full(key))
    }

    /// Whether the file has this tensor.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
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

    /// Channels of a head.
    pub(crate) fn head_dim(&self) -> Result<usize, Error> {
        let heads = self.per_layer("attention.head_count", self.layers()?)?;
        let default =
            self.usize("embedding_length")? / heads.and_then(|q| q.first().copied()).unwrap_or(1).max(1);
        let dim = self.usize_or("attention.key_length", default)?;
        let value = self.usize_or("attention.value_length", dim)?;
        if value != dim {
            return Err(self.unsupported(format!("keys of {dim} and values of {value} channels per head")));
        }
        Ok(dim)
    }

    /// The decoder that the keys all families share describe, with the layers that `layer` makes of the plain ones:
    /// pre-norms, full attention without rope, a gated SiLU, every scale 1.
    pub(crate) fn decoder(
        &self,
        norm: NormKind,
        layer: impl Fn(usize, LayerSpec) -> LayerSpec,
    ) -> Result<DecoderSpec, Error> {
        let (layers, dim) = (self.layers()?, self.head_dim()?);
        let required =
            |key: &str| self.per_layer(key, layers)?.ok_or_else(|| self.bad(key, "is missing".into()));
        let q = required("attention.head_count")?;
        let kv = self.per_layer("attention.head_count_kv", layers)?.unwrap_or_else(|| q.clone());
        let widths = required("feed_forward_length")?;
        let plain = |((q, kv), width)| LayerSpec {
            heads: Heads { q, kv, dim },
            mask: Mask::Full,
            rope: None,
            qk_norm: QkNorm::None,
            attention_scale: 1.0 / (dim as f32).sqrt(),
            attention_cap: None,
            norms: Norms::Pre,
            block: Block::Sequential,
            ffn: Ffn { width, activation: Activation::Silu, gated: true },
            residual_scale: 1.0,
        };
        Ok(DecoderSpec {
            architecture: self.architecture.to_owned(),
            d_model: self.usize("embedding_length")?,
            vocab: self.vocab()?,
            context: self.usize("context_length")?,
            norm,
            embedding_scale: 1.0,
            inputs: Inputs::default(),
            head: true,
            layers: q
                .into_iter()
                .zip(kv)
                .zip(widths)
                .map(plain)
                .enumerate()
                .map(|(i, l)| layer(i, l))
                .collect(),
            logit_scale: 1.0,
            logit_cap: None,
            pooling: self.pooling()?,
        })
    }

    /// The encoder that the keys all families share describe: [`Keys::decoder`] with every token seeing all, norms of the residual
    /// stream, and no head.
    pub(crate) fn encoder(&self, layer: impl Fn(LayerSpec) -> LayerSpec) -> Result<DecoderSpec, Error> {
        if self.metadata().bool(&self.full("attention.causal"))?.unwrap_or(false) {
            return Err(self.unsupported("causal attention".into()));
        }
        let decoder = self.decoder(self.layer_norm()?, |_, plain| {
            layer(LayerSpec { mask: Mask::Bidirectional, norms: Norms::Stream, ..plain })
        })?;
        let inputs =
            Inputs { positions: false, token_types: self.has_tensor("token_types.weight"), norm: true };
        Ok(DecoderSpec { inputs, head: false, ..decoder })
    }

    /// How the file's embeddings are pooled: `enum llama_pooling_type` of llama.cpp.
    fn pooling(&self) -> Result<Option<Pooling>, Error> {
        if !self.has("pooling_type") {
            return Ok(None);
        }
        match self.usize("pooling_type")? {
            0 => Ok(Some(Pooling::None)),
            1 => Ok(Some(Pooling::Mean)),
            2 => Ok(Some(Pooling::Cls)),
            3 => Ok(Some(Pooling::Last)),
            4 => Err(self.unsupported("pooling type 4 (rank): a reranker".into())),
            other => Err(self.bad("pooling_type", format!("expected 0 to 3, found {other}"))),
        }
    }

    /// The window of sliding layers, and whether each layer slides: by the file's pattern (a number n: all but every
    /// nth layer; or one boolean per layer), else by `pattern`, the family's own n.
    pub(crate) fn sliding(&self, window: Option<usize>, pattern: usize) -> Result<Vec<Mask>, Error> {
        let layers = self.layers()?;
        let window = match (self.usize_or("attention.sliding_window", 0)?, window) {
            (0, None) => return Ok(vec![Mask::Full; layers]),
            (0, Some(default)) => default,
            (window, _) => window,
        };
        let key = self.full("attention.sliding_window_pattern");
        let slides: Vec<bool> = match self.metadata().get(&key) {
            Some(Value::Array(_)) => {
                let flags = self.metadata().bools(&key)?.unwrap_or_default();
                if flags.len() != layers {
                    let what = format!("expected {layers} values, found {}", flags.len());
                    return Err(self.bad("attention.sliding_window_pattern", what));
                }
                flags.to_vec()
            }
            _ => {
                let n = self.usize_or("attention.sliding_window_pattern", pattern)?.max(1);
                (0..layers).map(|i| i % n < n - 1).collect()
            }
        };
        Ok(slides.into_iter().map(|slides| if slides { Mask::Sliding(window) } else { Mask::Full }).collect())
    }

    /// Factors on the rope's frequencies that a file carries as a tensor.
    fn rope_factors(&self, name: &str) -> Result<Option<Vec<f32>>, Error> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        let mut factors = vec![0.0; tensor.elements() as usize];
        minfer_gguf::quant::dequantize(tensor.ty(), tensor.data(), &mut factors)
            .map_err(|error| self.unsupported(format!("{name}: {error}")))?;
        Ok(Some(factors))
    }

    /// The rope that the file's keys describe, over its first `rope.dimension_count` channels.
    pub(crate) fn file_rope(&self, style: RopeStyle) -> Result<Rope, Error> {
        let base = self.f32_opt("rope.freq_base")?.unwrap_or(DEFAULT_ROPE_BASE);
        self.rope(style, base, &self.rope_scaling()?)
    }

    /// A rope with this base and scaling.
    pub(crate) fn rope(&self, style: RopeStyle, base: f32, scaling: &rope::Scaling) -> Result<Rope, Error> {
        let head = self.head_dim()?;
        let dims = self.usize_or("rope.dimension_count", head)?;
        if dims > head {
            let what = format!("expected at most the {head} channels of a head, found {dims}");
            return Err(self.bad("rope.dimension_count", what));
        }
        if dims == 0 || !dims.is_multiple_of(2) {
            return Err(self
                .bad("rope.dimension_count", format!("expected an even number of channels, found {dims}")));
        }
        if base.is_nan() || base <= 0.0 {
            return Err(self.bad("rope.freq_base", format!("expected a positive number, found {base}")));
        }
        let inv_freq =
            rope::inv_freq(dims, f64::from(base), scaling).map_err(|what| self.unsupported(what))?;
        let magnitude = scaling.magnitude() * self.f32_opt("rope.scaling.attn_factor")?.unwrap_or(1.0);
        Ok(Rope { style, inv_freq: Arc::from(inv_freq), magnitude })
    }

    /// Scaling of the rope, by the file's keys and tensors. Llama-3's and longrope's show as tensors alone; longrope has
    /// two, and the one for long contexts serves every position of a model opened with one.
    pub(crate) fn rope_scaling(&self) -> Result<rope::Scaling, Error> {
        if let Some(factors) = self.rope_factors("rope_freqs.weight")? {
            return Ok(rope::Scaling::Factors(factors));
        }
        let original =
            self.usize_or("rope.scaling.original_context_length", self.usize("context_length")?)?;
        let set =
            if self.context > original { "rope_factors_long.weight" } else { "rope_factors_short.weight" };
        if let Some(factors) = self.rope_factors(set)? {
            return Ok(rope::Scaling::Factors(factors));
        }
        let factor = match self.f32_opt("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.f32_opt("rope.scale_linear")?.unwrap_or(0.0),
        };
        // Converters write 0 for no factor.
        let factor = (factor != 0.0).then_some(factor);
        if let Some(factor) = factor.filter(|factor| *factor < 0.0) {
            return Err(
                self.bad("rope.scaling.factor", format!("expected a positive number, found {factor}"))
            );
        }
        match (self.str_opt("rope.scaling.type")?, factor) {
            (Some("none") | Some("linear") | Some("yarn") | None, None) | (Some("none"), _) => {
                Ok(rope::Scaling::None)
            }
            (None | Some("linear"), Some(factor)) => Ok(rope::Scaling::Linear(f64::from(factor))),
            (Some("yarn"), Some(factor)) => Ok(rope::Scaling::Yarn(rope::Yarn {
                factor: f64::from(factor),
                original: original as f64,
                beta_fast: f64::from(self.f32_opt("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0)),
                beta_slow: f64::from(self.f32_opt("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0)),
                magnitude: self.f32_opt("rope.scaling.yarn_attn_factor")?,
            })),
            (Some(other), _) => Err(self.unsupported(format!("rope scaling \"{other}\""))),
        }
    }

    /// RMS norm with the file's epsilon.
    pub(crate) fn rms_norm(&self) -> Result<NormKind, Error> {
        Ok(NormKind::Rms { eps: self.epsilon("attention.layer_norm_rms_epsilon")? })
    }

    /// Layer norm with the file's epsilon.
    pub(crate) fn layer_norm(&self) -> Result<NormKind, Error> {
        Ok(NormKind::Layer { eps: self.epsilon("attention.layer_norm_epsilon")? })
    }

    fn epsilon(&self, key: &str) -> Result<f32, Error> {
        let eps = self.f32(key)?;
        if eps < 0.0 {
            return Err(self.bad(key, format!("expected a positive number, found {eps}")));
        }
        Ok(eps)
    }

    /// A scale that is not 1 only where the file has it; 0 stands for absent.
    pub(crate) fn scale_or(&self, key: &str, default: f32) -> Result<f32, Error> {
        Ok(self.f32_opt(key)?.filter(|scale| *scale != 0.0).unwrap_or(default))
    }
}
