//! GGUF files: reader, validator, writer, and the scalar reference of every ggml block type.
mod cursor;
mod error;
mod file;
mod gguf;
mod metadata;
pub mod quant;
mod shared;
mod split;
mod types;
mod value;
mod writer;

pub use error::{Error, Problem};
pub use file::TensorInfo;
pub use gguf::{Gguf, Tensor};
pub use metadata::Metadata;
pub use quant::{QuantError, dequantize, quantize, random_blocks};
pub use shared::SharedBytes;
pub use types::GgmlType;
pub use value::{Array, Strings, Value, ValueType};
pub use writer::{TensorSpec, Writer, to_bytes};
