//! A model as the server knows it.

use std::time::{SystemTime, UNIX_EPOCH};

use minfer_engine::{Engine, Pooling};
use minfer_server::About;
use minfer_tokenizer::{ChatTemplate, Tokenizer};

use crate::llm::Llm;

/// A loaded model with the name that it has for clients.
pub struct Served {
    id: String,
    loaded: u64,
    llm: Llm,
}

impl Served {
    /// A model that was loaded now.
    pub fn new(id: String, llm: Llm) -> Served {
        let loaded = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Served { id, loaded, llm }
    }
}

impl minfer_server::Model for Served {
    fn id(&self) -> &str {
        &self.id
    }

    fn loaded(&self) -> u64 {
        self.loaded
    }

    fn engine(&self) -> &Engine {
        self.llm.engine()
    }

    fn tokenizer(&self) -> &Tokenizer {
        self.llm.tokenizer()
    }

    fn template(&self) -> Option<&ChatTemplate> {
        self.llm.template()
    }

    fn pooling(&self) -> Pooling {
        self.llm.pooling()
    }

    fn about(&self) -> About {
        let facts = self.llm.facts();
        About {
            family: facts.architecture.clone().unwrap_or_default(),
            parameters: facts.parameters,
            size: facts.size_label.clone(),
            quantization: facts.file_type.clone(),
            bytes: facts.file_bytes,
            embedding_width: self.llm.embedding_width(),
        }
    }
}
