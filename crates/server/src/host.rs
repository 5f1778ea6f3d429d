//! Where models come from: the boundary between the server and who loads them.

use std::sync::Arc;

use minfer_engine::{Engine, Pooling};
use minfer_tokenizer::{ChatTemplate, Tokenizer};

/// A loaded model.
pub trait Model: Send + Sync {
    /// The name that requests call it by.
    fn id(&self) -> &str;
    /// When it was loaded, in seconds since 1970.
    fn loaded(&self) -> u64;
    /// What computes.
    fn engine(&self) -> &Engine;
    /// Its vocabulary.
    fn tokenizer(&self) -> &Tokenizer;
    /// How conversations are written, if its file says so.
    fn template(&self) -> Option<&ChatTemplate>;
    /// How it makes embeddings of hidden states.
    fn pooling(&self) -> Pooling;
    /// What its file says about itself.
    fn about(&self) -> About;
}

/// What a model's file says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Architecture, as `llama`.
    pub family: String,
    /// Number of parameters.
    pub parameters: u64,
    /// That for people, as `1.2B`.
    pub size: String,
    /// How its weights are stored, as `Q4_K_M`.
    pub quantization: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Values of an embedding.
    pub embedding_width: usize,
}

/// Loaded models by name.
pub trait ModelHost: Send + Sync {
    /// All that requests may name.
    fn list(&self) -> Vec<Arc<dyn Model>>;
    /// The one of a name; of none the only one, or the first. `None` if there is none of that name.
    fn acquire(&self, id: Option<&str>) -> Option<Arc<dyn Model>>;
}

/// One model, which answers to its own name.
pub struct Single(pub Arc<dyn Model>);

impl ModelHost for Single {
    fn list(&self) -> Vec<Arc<dyn Model>> {
        vec![self.0.clone()]
    }

    fn acquire(&self, id: Option<&str>) -> Option<Arc<dyn Model>> {
        id.is_none_or(|id| id == self.0.id()).then(|| self.0.clone())
    }
}
