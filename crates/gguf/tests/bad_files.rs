//! Files that are wrong: each is refused, and the message names what is wrong with it.

use std::path::Path;

use minfer_gguf::{Gguf, Problem};
use proptest::prelude::*;

#[path = "support/raw.rs"]
mod raw;
#[path = "support/walk.rs"]
mod walk;

use raw::{Raw, valid};
use walk::walk;

const HUGE: u64 = 1 << 60;

/// A file of no keys and the tensors of `table`, which has as many entries as `count` says.
fn tensors(count: u64, table: impl FnOnce(Raw) -> Raw) -> Vec<u8> {
    table(Raw::header(3, count, 0)).pad(32).data(256).0
}

/// A file of one key.
fn one_key(key: impl FnOnce(Raw) -> Raw) -> Vec<u8> {
    key(Raw::header(3, 0, 1)).0
}

/// Name of the case, file, and what the message must contain.
type Case = (&'static str, Vec<u8>, &'static [&'static str]);

fn bad_heads() -> Vec<Case> {
    let with_magic = |magic: &[u8]| magic.iter().copied().chain(*b" and then something").collect::<Vec<u8>>();
    vec![
        ("empty", vec![], &["not a GGUF file", "an empty file"]),
        ("three_bytes", b"GGU".to_vec(), &["not a GGUF file", "\"GGU\""]),
        (
            "magic_only",
            b"GGUF".to_vec(),
            &["truncated", "the version", "needs 4 bytes at offset 4, 0 are left"],
        ),
        (
            "37_bytes",
            valid()[..37].to_vec(),
            &["metadata keys", "count of 6", "at most 1", "truncated or damaged"],
        ),
        (
            "text",
            b"this is just some text, long enough to be read".to_vec(),
            &["not a GGUF file", "\"this\""],
        ),
        ("legacy", with_magic(b"tjgg"), &["GGJT file from before GGUF"]),
        ("swapped_magic", with_magic(b"FUGG"), &["byte-swapped"]),
        ("zip", with_magic(b"PK\x03\x04"), &["zip archive"]),
        ("web_page", with_magic(b"<!DOCTYPE html>"), &["a web page"]),
        ("lfs_pointer", with_magic(b"version https://git-lfs.github.com/spec/v1"), &["git-lfs pointer"]),
        ("safetensors", with_magic(b"\x40\0\0\0\0\0\0\0{\"a\""), &["safetensors"]),
        ("version_0", Raw::header(0, 0, 0).0, &["version 0 is not supported", "2 or 3"]),
        (
            "version_1",
            Raw::header(1, 0, 0).0,
            &["version 1 is not supported", "2 or 3", "convert the model again"],
        ),
        ("version_4", Raw::header(4, 0, 0).0, &["version 4 is not supported", "2 or 3"]),
        ("big_endian_3", Raw::header(3u32.swap_bytes(), 0, 0).0, &["big-endian"]),
        ("big_endian_2", Raw::header(2u32.swap_bytes(), 0, 0).0, &["big-endian"]),
        (
            "huge_key_count",
            Raw::header(3, 0, HUGE).data(64).0,
            &["metadata keys", "1152921504606846976", "at most 4"],
        ),
        (
            "huge_tensor_count",
            Raw::header(3, HUGE, 0).data(64).0,
            &["tensors", "1152921504606846976", "at most 2"],
        ),
        ("no_keys_follow", Raw::header(3, 0, 5).0, &["metadata keys", "count of 5", "at most 0"]),
    ]
}

fn bad_keys() -> Vec<Case> {
    let twice = Raw::header(3, 0, 2).key_u32("some.key", 1).key_u32("some.key", 2).0;
    vec![
        (
            "key_past_end",
            one_key(|raw| raw.u64(1000).data(20)),
            &["truncated", "name of key 0", "1000 bytes"],
        ),
        ("key_of_2_60", one_key(|raw| raw.u64(HUGE).data(20)), &["truncated", "name of key 0"]),
        ("key_of_2_64", one_key(|raw| raw.u64(u64::MAX).data(20)), &["truncated", "18446744073709551615"]),
        ("empty_key", one_key(|raw| raw.key_u32("", 1)), &["key 0 has an empty name"]),
        (
            "long_key",
            one_key(|raw| raw.key_u32(&"k".repeat(70_000), 1)),
            &["name of key 0", "70000", "65535"],
        ),
        (
            "key_not_utf8",
            one_key(|raw| raw.string(b"a\xffb").u32(4).u32(1)),
            &["name of key 0", "UTF-8", "a\\xffb"],
        ),
        ("duplicate_key", twice, &["key \"some.key\" occurs twice"]),
        ("value_type_13", one_key(|raw| raw.key("k.x", 13).u64(0)), &["\"k.x\"", "unknown value type 13"]),
        (
            "value_past_end",
            one_key(|raw| raw.key("k.x", 10).u32(1)),
            &["truncated", "\"k.x\"", "needs 8 bytes"],
        ),
        (
            "string_past_end",
            one_key(|raw| raw.key("k.x", 8).u64(99).data(9)),
            &["truncated", "\"k.x\"", "99 bytes"],
        ),
        ("string_of_2_60", one_key(|raw| raw.key("k.x", 8).u64(HUGE).data(9)), &["truncated", "\"k.x\""]),
        ("bool_2", one_key(|raw| raw.key("k.x", 7).bytes(&[2])), &["\"k.x\"", "bool", "found 2"]),
        ("array_of_2_60", one_key(|raw| raw.key_array("k.x", 4, HUGE).data(8)), &["\"k.x\"", "at most 2"]),
        (
            "array_past_end",
            one_key(|raw| raw.key_array("k.x", 1, 9).data(8)),
            &["\"k.x\"", "of 9", "at most 8"],
        ),
        ("array_bool_3", one_key(|raw| raw.key_array("k.x", 7, 2).bytes(&[1, 3])), &["\"k.x\"", "found 3"]),
        ("array_type_99", one_key(|raw| raw.key_array("k.x", 99, 0)), &["\"k.x\"", "unknown value type 99"]),
        (
            "array_nested",
            one_key(|raw| raw.key_array("k.x", 9, 1).u32(4).u64(0)),
            &["\"k.x\"", "arrays of arrays"],
        ),
        ("strings_of_2_60", one_key(|raw| raw.key_array("k.x", 8, HUGE).data(64)), &["\"k.x\"", "at most 8"]),
        (
            "strings_past_end",
            one_key(|raw| raw.key_array("k.x", 8, 2).string(b"fine").u64(50).data(3)),
            &["truncated", "\"k.x\"", "50 bytes"],
        ),
        (
            "alignment_0",
            one_key(|raw| raw.key_u32("general.alignment", 0)),
            &["general.alignment", "found 0"],
        ),
        ("alignment_48", one_key(|raw| raw.key_u32("general.alignment", 48)), &["power of two", "found 48"]),
        (
            "alignment_text",
            one_key(|raw| raw.key("general.alignment", 8).string(b"32")),
            &["general.alignment", "expected an integer", "found string"],
        ),
    ]
}

fn bad_tensors() -> Vec<Case> {
    let one = |dims: &[u64], ty, offset| tensors(1, |raw| raw.tensor("t.w", dims, ty, offset));
    let two = |a: (&str, u64), b: (&str, u64)| {
        tensors(2, |raw| raw.tensor(a.0, &[16], 0, a.1).tensor(b.0, &[16], 0, b.1))
    };
    vec![
        (
            "tensor_name_past_end",
            tensors(1, |raw| raw.u64(9999).data(40)),
            &["truncated", "name of tensor 0"],
        ),
        ("tensor_no_name", tensors(1, |raw| raw.tensor("", &[1], 0, 0)), &["tensor 0 has an empty name"]),
        ("tensor_5_dims", one(&[1; 5], 0, 0), &["\"t.w\"", "at most 4", "found 5"]),
        (
            "tensor_2_31_dims",
            tensors(1, |raw| raw.string(b"t.w").u32(1 << 31).data(20)),
            &["\"t.w\"", "2147483648"],
        ),
        ("tensor_overflow", one(&[1 << 32, 1 << 32], 0, 0), &["\"t.w\"", "overflows", "4294967296"]),
        ("tensor_overflow_hidden", one(&[0, 1 << 40, 1 << 40], 0, 0), &["\"t.w\"", "overflows"]),
        ("tensor_overflow_bytes", one(&[1 << 62], 0, 0), &["\"t.w\"", "overflows"]),
        ("tensor_part_block", one(&[33], 2, 0), &["\"t.w\"", "whole Q4_0 blocks of 32", "rows of 33"]),
        ("tensor_part_row", one(&[16, 2], 2, 0), &["\"t.w\"", "whole Q4_0 blocks of 32", "rows of 16"]),
        ("tensor_misaligned", one(&[4], 0, 8), &["\"t.w\"", "multiple of 32", "found 8"]),
        ("tensor_past_end", one(&[128], 0, 0), &["\"t.w\"", "512 bytes", "end past the file's"]),
        ("tensor_offset_past_end", one(&[4], 0, 1024), &["\"t.w\"", "end past the file's"]),
        ("tensor_offset_2_63", one(&[4], 0, 1 << 63), &["\"t.w\"", "end past the file's"]),
        ("tensor_offset_wraps", one(&[4], 0, u64::MAX - 31), &["\"t.w\"", "end past the file's"]),
        (
            "tensor_in_header",
            Raw::header(3, 1, 0).tensor("t.w", &[0], 0, 0).0,
            &["\"t.w\"", "end past the file's"],
        ),
        (
            "tensors_overlap",
            two(("a", 0), ("b", 32)),
            &["\"b\" at offset 32 overlaps tensor \"a\"", "ends at 64"],
        ),
        ("tensors_overlap_back", two(("a", 32), ("b", 0)), &["\"a\" at offset 32 overlaps tensor \"b\""]),
        ("tensors_same_place", two(("a", 64), ("b", 64)), &["overlaps"]),
        ("duplicate_tensor", two(("a", 0), ("a", 64)), &["tensor \"a\" occurs twice"]),
        ("type_4", one(&[32], 4, 0), &["\"t.w\"", "type 4 is Q4_2", "removed"]),
        ("type_5", one(&[32], 5, 0), &["\"t.w\"", "type 5 is Q4_3", "removed"]),
        ("type_31", one(&[32], 31, 0), &["\"t.w\"", "type 31 is Q4_0_4_4", "use the Q4_0 file"]),
        ("type_32", one(&[32], 32, 0), &["\"t.w\"", "type 32 is Q4_0_4_8", "use the Q4_0 file"]),
        ("type_33", one(&[32], 33, 0), &["\"t.w\"", "type 33 is Q4_0_8_8", "use the Q4_0 file"]),
        ("type_36", one(&[32], 36, 0), &["\"t.w\"", "type 36 is IQ4_NL_4_4", "use the IQ4_NL file"]),
        ("type_37", one(&[32], 37, 0), &["\"t.w\"", "type 37 is IQ4_NL_4_8", "use the IQ4_NL file"]),
        ("type_38", one(&[32], 38, 0), &["\"t.w\"", "type 38 is IQ4_NL_8_8", "use the IQ4_NL file"]),
        ("type_43", one(&[32], 43, 0), &["\"t.w\"", "type 43 is unknown"]),
        ("type_2_32", one(&[32], u32::MAX, 0), &["\"t.w\"", "type 4294967295 is unknown"]),
    ]
}

fn all_cases() -> Vec<Case> {
    [bad_heads(), bad_keys(), bad_tensors()].concat()
}

#[test]
fn bad_files_are_refused_by_name() {
    for (case, bytes, expected) in all_cases() {
        let error = Gguf::from_bytes(bytes).expect_err(case);
        let message = error.to_string();
        for part in [&["<memory>"], expected].concat() {
            assert!(message.contains(part), "{case}: expected \"{part}\" in: {message}");
        }
    }
}

/// The same through a mapped file, with its path in the message.
#[test]
fn bad_files_on_disk_are_refused_by_path() {
    let folder = tempfile::tempdir().unwrap();
    for (case, bytes, expected) in all_cases() {
        let path = folder.path().join(format!("{case}.gguf"));
        std::fs::write(&path, bytes).unwrap();
        let message = Gguf::open(&path).expect_err(case).to_string();
        for part in [&[&*path.to_string_lossy()], expected].concat() {
            assert!(message.contains(part), "{case}: expected \"{part}\" in: {message}");
        }
    }
}

#[test]
fn things_that_are_no_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = Gguf::open(folder.path()).unwrap_err();
    assert!(matches!(*error.problem, Problem::NotAFile { found: "a directory" }), "{error}");
    assert!(error.to_string().contains("a directory"));

    let error = Gguf::open(&folder.path().join("absent.gguf")).unwrap_err();
    assert!(matches!(*error.problem, Problem::Io { action: "open", .. }), "{error}");
    assert!(error.to_string().contains("absent.gguf"));

    #[cfg(unix)]
    {
        let error = Gguf::open(Path::new("/dev/null")).unwrap_err();
        assert!(matches!(*error.problem, Problem::NotAFile { .. }), "{error}");
    }
}

#[test]
fn truncation_anywhere_is_refused() {
    let bytes = valid();
    assert!(walk(&bytes).is_some());
    for end in 0..bytes.len() {
        let error = Gguf::from_bytes(bytes[..end].to_vec()).expect_err(&format!("cut to {end} bytes"));
        let named = matches!(
            *error.problem,
            Problem::Truncated { .. }
                | Problem::NotGguf { .. }
                | Problem::Count { .. }
                | Problem::TensorPastEnd { .. }
        );
        assert!(named, "cut to {end} bytes: {error}");
    }
}

/// Files in `fuzz/corpus/gguf`, seeds and finds of the fuzz target.
#[test]
fn fuzz_corpus_is_harmless() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/gguf");
    let mut opened = 0;
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        opened += usize::from(walk(&bytes).is_some());
        files += 1;
    }
    assert!(files > all_cases().len() && opened >= 3, "{opened} of {files} files could be opened");
}

/// Writes the seeds of the fuzz corpus: every case of this file, and sound ones.
#[test]
#[ignore = "run by hand after a change to the cases"]
fn write_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/gguf");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf/every.gguf");
    for (case, bytes, _) in all_cases().into_iter().filter(|(_, bytes, _)| bytes.len() < 4096) {
        std::fs::write(folder.join(case), bytes).unwrap();
    }
    std::fs::write(folder.join("valid"), valid()).unwrap();
    std::fs::write(folder.join("valid_v2_no_tensors"), Raw::header(2, 0, 1).key_u32("a.b", 7).0).unwrap();
    std::fs::copy(golden, folder.join("valid_every")).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Bytes changed at random: no panic, and whatever opens is consistent.
    #[test]
    fn corrupted_files_are_harmless(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = valid();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        walk(&bytes);
    }

    /// A field of eight bytes replaced by a special number, bytes cut out or put in.
    #[test]
    fn damaged_structure_is_harmless(
        at in any::<prop::sample::Index>(),
        number in prop::sample::select(vec![0, 1, 8, 0xffff_ffff, 1 << 31, HUGE, 1 << 63, u64::MAX - 31, u64::MAX]),
        cut in 0usize..16,
    ) {
        let bytes = valid();
        let at = at.index(bytes.len());
        let mut replaced = bytes.clone();
        let end = (at + 8).min(bytes.len());
        replaced[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
        walk(&replaced);
        let removed: Vec<u8> = [&bytes[..at], &bytes[(at + cut).min(bytes.len())..]].concat();
        walk(&removed);
        let inserted: Vec<u8> = [&bytes[..at], &number.to_le_bytes(), &bytes[at..]].concat();
        walk(&inserted);
    }
}
