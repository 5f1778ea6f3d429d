//! GGUF files: reader, validator, writer, and the scalar reference of every ggml block type.
//!
//! GGUF is the file format of models for ggml programs. One file holds everything a program needs to run a model: its
//! hyperparameters, its vocabulary, its chat template and its weights, these laid out so that they can be used from a
//! memory map as they are.
//!
//! # The format
//!
//! All numbers are little-endian. (Big-endian files exist; [`Gguf::open`] refuses them by name.)
//!
//! ```text
//! file     = magic "GGUF", version u32, tensor count u64, key count u64, key*, tensor*, padding, data
//! key      = name string, value type u32, value
//! string   = length u64, bytes
//! array    = element type u32, count u64, elements
//! tensor   = name string, dimension count u32, dimension u64*, element type u32, offset u64
//! ```
//!
//! * **Versions** 2 and 3 are laid out alike; version 1 had 32-bit counts and is refused.
//! * **Keys** are dotted names: `general.architecture` says which family of models the file is of, keys under that
//!   name (`llama.block_count`) are its hyperparameters, and those under `tokenizer.` its vocabulary. Values are
//!   numbers, bools, strings or arrays of these: [`ValueType`] has the ids, [`Metadata`] the access.
//! * **Dimensions** begin with the fastest: a matrix that maps 576 values to 1536 has dimensions `[576, 1536]`, and
//!   its data is 1536 rows of 576. There are at most four.
//! * **Element types** are plain numbers or *blocks* of quantized values ([`GgmlType`], [`quant`]). A row is a whole
//!   number of blocks, so the first dimension is a multiple of the block's length.
//! * **Data** begins at the first multiple of the alignment after the tensor table. The alignment is 32, or the value of
//!   `general.alignment`, a power of two. A tensor's offset counts from there and is a multiple of the alignment too.
//! * **Split models** are several such files, `NAME-00001-of-00003.gguf` and so on, with the keys `split.no`,
//!   `split.count` and `split.tensors.count`. The first has the metadata.
//!
//! # Trust
//!
//! A file is someone else's. Before [`Gguf::open`] returns, every count, length, offset and size has been checked
//! against the file, so that afterwards no accessor can fail on it: nothing overlaps, nothing points outside, no name
//! or key occurs twice, every tensor is whole blocks of a known type. A file that fails a check is refused with an
//! [`Error`] that names the file, the key or tensor, what was expected and what was found; and what is allocated on
//! the way is at most the size of the file plus a constant, whatever its counts claim.
//!
//! What is *not* checked is meaning: whether weights are finite, or the keys of a model make sense together. That is
//! for those who read them.
//!
//! # Use
//!
//! ```
//! use minfer_gguf::{Gguf, GgmlType, Metadata, TensorSpec, dequantize, quantize, to_bytes};
//!
//! // A model of one key and one tensor of two rows.
//! let mut metadata = Metadata::new();
//! metadata.set("general.architecture", "llama");
//! metadata.set("llama.block_count", 2u32);
//! let weights: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
//! let mut blocks = vec![0; GgmlType::Q8_0.bytes_of(64).unwrap()];
//! quantize(GgmlType::Q8_0, &weights, &mut blocks)?;
//! let spec = TensorSpec::new("token_embd.weight", GgmlType::Q8_0, [32, 2]);
//! let bytes = to_bytes(&metadata, &[(spec, &blocks)])?;
//!
//! let model = Gguf::from_bytes(bytes)?; // or Gguf::open(path)
//! assert_eq!(model.metadata().require_u32("llama.block_count")?, 2);
//! let tensor = model.require_tensor("token_embd.weight")?;
//! assert_eq!((tensor.ty(), tensor.dims()), (GgmlType::Q8_0, &[32, 2][..]));
//! let mut values = vec![0.0; tensor.elements() as usize];
//! dequantize(tensor.ty(), tensor.data(), &mut values)?;
//! assert!((values[63] - weights[63]).abs() < 0.01);
//!
//! // Whatever is wrong is named.
//! let error = model.metadata().require_u32("llama.context_length").unwrap_err();
//! assert_eq!(error.to_string(), "<memory>: key \"llama.context_length\" is missing; expected an integer");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source of the format: `docs/gguf.md` of the ggml project, and for what it leaves open the readers in use
//! (`gguf.cpp` of ggml, the Python package `gguf`).

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
pub use gguf::{Gguf, Tensor};
pub use metadata::Metadata;
pub use quant::{QuantError, dequantize, quantize, random_blocks};
pub use shared::SharedBytes;
pub use types::GgmlType;
pub use value::{Array, Strings, Value, ValueType};
pub use writer::{TensorSpec, Writer, to_bytes};
