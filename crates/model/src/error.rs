//! Why a model does not load.

use crate::plan::MemoryPlan;
use minfer_ops::DeviceError;

/// Why a model does not load. Everything is named: the file, the key or tensor, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file, a key of it or a tensor of it.
    #[error(transparent)]
    File(#[from] minfer_gguf::Error),
    /// An architecture that there is no decoder for.
    #[error("{file}: architecture {found:?} is not supported; supported: {}", supported.join(", "))]
    Architecture {
        /// The file.
        file: String,
        /// `general.architecture`.
        found: String,
        /// What is.
        supported: Vec<&'static str>,
    },
    /// A feature of a known architecture that there is no stage for.
    #[error("{file}: {architecture} with {what} is not supported")]
    Feature {
        /// The file.
        file: String,
        /// The architecture.
        architecture: String,
        /// Which key says so, and what it says.
        what: String,
    },
    /// A key with a value that makes no sense.
    #[error("{file}: key \"{key}\": {what}")]
    Key {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Expected and found.
        what: String,
    },
    /// A tensor whose shape does not fit the metadata.
    #[error("{file}: tensor \"{tensor}\": expected shape {expected:?}, found {found:?}")]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Expected dimensions, innermost first, as the file counts them.
        expected: Vec<u64>,
        /// Found dimensions.
        found: Vec<u64>,
    },
    /// Tensors that the architecture has no use for: computing without them would be wrong.
    #[error("{file}: {architecture} has no use for tensor \"{tensor}\"{}", more(*others))]
    Unexpected {
        /// The file.
        file: String,
        /// The architecture.
        architecture: String,
        /// The first such tensor.
        tensor: String,
        /// How many others there are.
        others: usize,
    },
    /// A context that the model or the machine cannot have.
    #[error("a context of {asked} tokens: {why}")]
    Context {
        /// Tokens asked for.
        asked: usize,
        /// Why not.
        why: String,
    },
    /// A type of the cache that the model's heads do not fit.
    #[error(
        "a cache of {ty} keeps {block} channels of a head together; the model has heads of {dim}: use f16"
    )]
    CacheType {
        /// The type.
        ty: &'static str,
        /// Channels of a head.
        dim: usize,
        /// Channels that the type keeps together.
        block: usize,
    },
    /// A device without the memory.
    #[error(
        "the model does not fit: {} are needed (weights {}, cache for {context} tokens {}, activations {}), {} are free; {}",
        size(plan.total()), size(plan.weights.saturating_sub(plan.mapped)), size(plan.kv), size(plan.activations), size(*free), would_fit(plan, *free, *fits)
    )]
    Memory {
        /// What is needed.
        plan: MemoryPlan,
        /// Tokens of context asked for.
        context: usize,
        /// Bytes that are free.
        free: u64,
        /// Tokens of the largest context that would fit; 0 if none does.
        fits: usize,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn would_fit(plan: &MemoryPlan, free: u64, fits: usize) -> String {
    match fits {
        0 if plan.weights.saturating_sub(plan.mapped) > free => "the weights alone are too large".to_owned(),
        0 if plan.loading.saturating_sub(plan.mapped) > free => {
            format!("loading alone takes {}", size(plan.loading))
        }
        0 => "no context fits".to_owned(),
        context => format!("a context of {context} tokens fits"),
    }
}

/// A number of bytes, for people.
fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

fn more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} others)") }
}
