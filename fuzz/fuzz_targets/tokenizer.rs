//! See `tokenizer` in the module that the corpus is replayed by.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tokenizer/tests/support/walk.rs"]
mod walk;

fuzz_target!(|bytes: &[u8]| {
    walk::tokenizer(bytes);
});
