//! Local LLM inference: load any GGUF, run it fast, prove it right.

pub mod bench;
pub mod env;
pub mod facts;
pub mod perplexity;
mod random;
pub mod source;
pub mod synth;

/// The commit that this program was built from; "unknown" outside of a repository.
pub const BUILD_COMMIT: &str = env!("MINFER_BUILD_COMMIT");

/// Number of commits up to [`BUILD_COMMIT`]; 0 outside of a repository.
pub fn build_number() -> u64 {
    env!("MINFER_BUILD_NUMBER").parse().unwrap_or(0)
}
