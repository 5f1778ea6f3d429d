//! Opening a file allocates no more than its size plus a constant, whatever it claims.

use std::sync::{Mutex, PoisonError};

use minfer_gguf::Gguf;
use peak_alloc::PeakAlloc;

#[path = "support/raw.rs"]
mod raw;

use raw::{Raw, valid};

/// The system allocator, with a count of what is in use and of the most that was.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// One test at a time, so that a count is of one file.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes that opening `bytes` has in use at most, beside `bytes` itself; and whether it opened.
fn most_in_use(bytes: Vec<u8>) -> (usize, bool) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let opened = Gguf::from_bytes(bytes);
    (ALLOCATOR.peak_usage().saturating_sub(before), opened.is_ok())
}

/// For small files, whose cost is the error message and bookkeeping.
const SMALL: usize = 16 << 10;

#[test]
fn absurd_counts_allocate_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for count in [1 << 20, 1 << 40, 1 << 60, u64::MAX] {
        let key = |raw: Raw| raw.data(64).0;
        let files = [
            Raw::header(3, 0, count).data(64).0,
            Raw::header(3, count, 0).data(64).0,
            key(Raw::header(3, 0, 1).u64(count)),
            key(Raw::header(3, 0, 1).key("k", 8).u64(count)),
            key(Raw::header(3, 0, 1).key_array("k", 0, count)),
            key(Raw::header(3, 0, 1).key_array("k", 8, count)),
            key(Raw::header(3, 0, 1).key_array("k", 12, count)),
            Raw::header(3, 1, 0).tensor("t", &[count], 0, 0).data(64).0,
            Raw::header(3, 1, 0).u64(count).data(64).0,
        ];
        for (index, file) in files.into_iter().enumerate() {
            let size = file.len();
            let (most, opened) = most_in_use(file);
            assert!(!opened, "file {index} with count {count}");
            assert!(most <= size + SMALL, "file {index} with count {count}: {most} bytes in use");
        }
    }
}

#[test]
fn sound_files_cost_their_metadata() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (most, opened) = most_in_use(valid());
    assert!(opened && most <= SMALL, "{most} bytes in use");

    // A vocabulary of 262,144 tokens costs what it takes in the file.
    let tokens = 1 << 18;
    let mut raw = Raw::header(3, 0, 1).key_array("tokenizer.ggml.tokens", 8, tokens);
    for token in 0..tokens {
        raw = raw.string(format!("token {token}").as_bytes());
    }
    let size = raw.0.len();
    let (most, opened) = most_in_use(raw.0);
    assert!(opened && most <= size + SMALL, "{most} bytes in use for {size}");
}

/// Files of as many of the smallest keys and tensors as are accepted: the constant, at its largest.
#[test]
fn many_small_things_cost_a_constant() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const CONSTANT: usize = 32 << 20;
    let keys = 1 << 16;
    let mut raw = Raw::header(3, 0, keys);
    for key in 0..keys {
        raw = raw.key(&format!("{key:x}"), 0).bytes(&[1]);
    }
    let size = raw.0.len();
    let (most, opened) = most_in_use(raw.0);
    assert!(opened && most <= size + CONSTANT, "{most} bytes in use for {size}");

    let count = 1 << 17;
    let mut raw = Raw::header(3, count, 0);
    for tensor in 0..count {
        raw = raw.tensor(&format!("{tensor:x}"), &[0], 0, 0);
    }
    let raw = raw.pad(32);
    let size = raw.0.len();
    let (most, opened) = most_in_use(raw.0);
    assert!(opened && most <= size + CONSTANT, "{most} bytes in use for {size}");

    // One more of either is refused.
    let (most, opened) = most_in_use(Raw::header(3, 0, keys + 1).data(2 << 20).0);
    assert!(!opened && most <= SMALL, "{most} bytes in use");
    let (most, opened) = most_in_use(Raw::header(3, count + 1, 0).data(8 << 20).0);
    assert!(!opened && most <= SMALL, "{most} bytes in use");
}
