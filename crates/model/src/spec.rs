//! What a decoder is, as data. An encoder is one too: its tokens see later ones, and it has no head.

use crate::arch::{self, Keys};
use crate::error::Error;
use minfer_engine::Pooling;
use minfer_gguf::Gguf;
use minfer_ops::{Activation, Heads, NormKind, Rope};

/// A decoder: embedding, layers, head. Everything is resolved from metadata at load; devices never see a key.
#[derive(Clone, Debug)]
pub struct DecoderSpec {
    /// `general.architecture`.
    pub architecture: String,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Longest context that the model was trained for.
    pub context: usize,
    /// What every norm computes.
    pub norm: NormKind,
    /// Factor on the embedding.
    pub embedding_scale: f32,
    /// What is added to a token's embedding, and the norm after it.
    pub inputs: Inputs,
    /// Whether there is a head. Without one there are hidden states only.
    pub head: bool,
    /// The layers.
    pub layers: Vec<LayerSpec>,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// `l ← cap · tanh(l / cap)` on the logits.
    pub logit_cap: Option<f32>,
    /// How embeddings are pooled, if the file says so.
    pub pooling: Option<Pooling>,
}

/// What becomes of a token's embedding before the first layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// A learned vector for each position is added.
    pub positions: bool,
    /// The vector of the first type of tokens is added.
    pub token_types: bool,
    /// The sum is normed.
    pub norm: bool,
}

/// A cache group: heads and mask of its layers, and how many there are.
type Group = (Heads, Mask, usize);

/// One layer: attention, then feed-forward, each around the residual stream.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// Heads.
    pub heads: Heads,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Rotation of q and k.
    pub rope: Option<Rope>,
    /// Norm of q and k before rope.
    pub qk_norm: QkNorm,
    /// Factor on q·k.
    pub attention_scale: f32,
    /// `s ← cap · tanh(s / cap)` on the scores.
    pub attention_cap: Option<f32>,
    /// Where the norms around attention and feed-forward are.
    pub norms: Norms,
    /// How attention and feed-forward follow each other.
    pub block: Block,
    /// The feed-forward stage.
    pub ffn: Ffn,
    /// Factor on what is added to the residual stream.
    pub residual_scale: f32,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All earlier ones.
    Full,
    /// The last so many positions, its own included.
    Sliding(usize),
    /// All keys of the text, later ones too.
    Bidirectional,
}

impl Mask {
    /// Positions that a query sees, if they are bounded.
    pub fn window(self) -> Option<usize> {
        if let Mask::Sliding(window) = self { Some(window) } else { None }
    }
}

/// Norm of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Over each head; one weight for all heads, or one for each, as the file has it.
    PerHead,
    /// Over all heads together.
    AllHeads,
}

/// Where the norms around attention and feed-forward are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// Before each.
    Pre,
    /// Before each, and on the result of each.
    PreAndPost,
    /// On the result of each.
    Post,
    /// On the residual stream after each.
    Stream,
}

/// How attention and feed-forward follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// The feed-forward stage sees what attention added.
    Sequential,
    /// Both see the same normed input: `x + attention(norm(x)) + ffn(norm(x))`.
    Parallel,
}

/// A dense feed-forward stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ffn {
    /// Inner width.
    pub width: usize,
    /// Activation: of the gate, if there is one.
    pub activation: Activation,
    /// Whether the activation gates a second projection.
    pub gated: bool,
}

impl DecoderSpec {
    /// Reads the spec from a file's metadata, by its architecture.
    ///
    /// # Errors
    /// An unknown architecture or feature, by name; a missing or senseless key.
    pub fn from_gguf(gguf: &Gguf) -> Result<DecoderSpec, Error> {
        DecoderSpec::for_context(gguf, 0)
    }

    /// The spec of a model opened for sequences of `context` tokens (0 for its own context): some ropes depend on it.
    ///
    /// # Errors
    /// As [`DecoderSpec::from_gguf`].
    pub fn for_context(gguf: &Gguf, context: usize) -> Result<DecoderSpec, Error> {
        let keys = Keys::new(gguf, context)?;
        let architecture = arch::find(&keys)?;
        let spec = (architecture.spec)(&keys)?;
        spec.check(&keys)?;
        Ok(spec)
    }

    /// Refuses sizes that no stage could compute with, before any tensor is looked at.
    fn check(&self, keys: &Keys<'_>) -> Result<(), Error> {
        for layer in &self.layers {
            let Heads { q, kv, dim } = layer.heads;
            if q == 0 || kv == 0 || dim == 0 || !q.is_multiple_of(kv) {
                let what = format!("{q} query heads and {kv} key heads of {dim} channels");
                return Err(keys.bad("attention.head_count", what));
            }
            if layer.block == Block::Parallel && matches!(layer.norms, Norms::Post | Norms::Stream) {
                // Attention and feed-forward share the input that the norm before them makes.
                return Err(keys.unsupported("parallel stages without a norm before them".into()));
            }
            if let Mask::Sliding(0) = layer.mask {
                return Err(keys.bad("attention.sliding_window", "expected at least 1, found 0".into()));
            }
            if layer.ffn.width == 0 {
                return Err(keys.bad("feed_forward_length", "expected at least 1, found 0".into()));
            }
        }
        for (key, size) in [("embedding_length", self.d_model), ("context_length", self.context)] {
            if size == 0 {
                return Err(keys.bad(key, "expected at least 1, found 0".into()));
            }
        }
        if self.layers.is_empty() {
            return Err(keys.bad("block_count", "expected at least 1, found 0".into()));
        }
        Ok(())
    }

    /// Whether tokens see later ones, so that a text has to come whole.
    pub fn bidirectional(&self) -> bool {
        self.layers.iter().any(|layer| layer.mask == Mask::Bidirectional)
    }

    /// Distinct cache groups: layers with the same heads and mask share block tables. Returns the groups, and group
    /// and place of every layer.
    pub(crate) fn cache_groups(&self) -> (Vec<Group>, Vec<(usize, usize)>) {
        let mut groups: Vec<Group> = Vec::new();
        let mut places = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let same = |g: &Group| g.0 == layer.heads && g.1 == layer.mask;
            let group = groups.iter().position(same).unwrap_or_else(|| {
                groups.push((layer.heads, layer.mask, 0));
                groups.len() - 1
            });
            places.push((group, groups[group].2));
            groups[group].2 += 1;
        }
        (groups, places)
    }
}
