//! GGUF files: reader, validator, writer, and the scalar reference of every ggml block type.
mod types;

pub use types::GgmlType;
