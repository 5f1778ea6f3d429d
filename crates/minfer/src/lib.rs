//! Local LLM inference: load any GGUF, run it fast, prove it right.
//!
//! [`Llm`] is the short way from a model to text; the crates it stands on are re-exported for everything else.
//!
//! ```no_run
//! use minfer::{Generate, Llm, Message, Options};
//!
//! let llm = Llm::load(&"pip:smollm2".parse()?, &Options::default())?;
//! let question = [Message::user("Why is the sky blue?")];
//! for piece in llm.chat(&question, &Generate { max_tokens: Some(64), ..Generate::default() })? {
//!     print!("{}", piece?);
//! }
//! # Ok::<(), minfer::Error>(())
//! ```

pub mod bench;
pub mod chat;
pub mod check;
mod device;
pub mod env;
pub mod facts;
mod llm;
pub mod perplexity;
mod random;
pub mod source;
pub mod synth;
mod vocabulary;

pub use device::{
    AnyModel, DeviceChoice, GpuNumerics, GpuPlan, Loaded, gpu_unavailable, load_model, plan_on_gpu,
};
pub use llm::{
    DryBreakers, Embed, Embedding, Error, Generate, Generation, Llm, Message, Options, PendingEmbedding,
    Piece, Summary,
};
pub use minfer_engine::Pooling;
pub use vocabulary::{model_vocabulary, vocabulary};

pub use minfer_cpu as cpu;
#[cfg(feature = "cuda")]
pub use minfer_cuda as cuda;
pub use minfer_engine as engine;
pub use minfer_gguf as gguf;
pub use minfer_model as model;
pub use minfer_tokenizer as tokenizer;

/// The commit that this program was built from; "unknown" outside of a repository.
pub const BUILD_COMMIT: &str = env!("MINFER_BUILD_COMMIT");

/// Number of commits up to [`BUILD_COMMIT`]; 0 outside of a repository.
pub fn build_number() -> u64 {
    env!("MINFER_BUILD_NUMBER").parse().unwrap_or(0)
}
