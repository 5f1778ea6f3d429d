//! Synthetic models: files of a known shape with random weights, for benchmarks on machines without downloads.

mod mix;
mod shape;
mod vocabulary;

pub use mix::{Mix, Role};
pub use shape::{Family, Shape};
