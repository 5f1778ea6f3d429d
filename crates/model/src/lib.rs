//! From a GGUF file to a model that runs: one decoder, many architectures.
//!
//! An *architecture* is one file under `arch/` that reads metadata into a [`DecoderSpec`]: plain data, enums per layer,
//! resolved once. `bind` fetches the tensors that the spec implies and hands them to a device stage by stage; [`Model`]
//! walks the stages and is the [`minfer_engine::executor::Executor`] that a scheduler drives. Nothing here knows an
//! instruction set, and nothing below here knows an architecture.

mod arch;
mod bind;
mod error;
mod executor;
mod plan;
mod rope;
mod spec;

pub use arch::{ARCHITECTURES, Architecture};
pub use error::Error;
pub use executor::Model;
pub use minfer_ops::{KvType, KvTypes};
pub use plan::{LoadOptions, MemoryPlan, plan_memory};
pub use spec::{Block, DecoderSpec, Ffn, Inputs, LayerSpec, Mask, Norms, QkNorm};
