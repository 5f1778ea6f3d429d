//! Any bytes as a GGUF file: opened, and everything in them read.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/gguf/tests/support/walk.rs"]
mod walk;

fuzz_target!(|bytes: &[u8]| {
    walk::walk(bytes);
});
