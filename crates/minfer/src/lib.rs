//! Local LLM inference: load any GGUF, run it fast, prove it right.

pub mod env;
pub mod source;
