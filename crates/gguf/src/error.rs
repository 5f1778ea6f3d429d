//! What can be wrong with a file.

use std::path::PathBuf;

use crate::{GgmlType, ValueType};

/// A file that was refused, or a metadata key that is not what its reader needs. Names the file and the problem.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .file.display())]
pub struct Error {
    /// The file; `<memory>` for [`Gguf::from_bytes`](crate::Gguf::from_bytes).
    pub file: PathBuf,
    /// What is wrong with it.
    #[source]
    pub problem: Box<Problem>,
}

impl Error {
    pub(crate) fn new(file: impl Into<PathBuf>, problem: Problem) -> Error {
        Error { file: file.into(), problem: Box::new(problem) }
    }
}

/// The problem of an [`Error`], with what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried: "open", "map", "write", …
        action: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("expected a GGUF file, found {found}")]
    NotAFile {
        /// What the path names.
        found: &'static str,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: expected it to begin with \"GGUF\", found {found}")]
    NotGguf {
        /// The bytes, and what such a file usually is.
        found: String,
    },
    /// The version's bytes are swapped.
    #[error(
        "this GGUF file is big-endian; only little-endian files are supported (the Python package gguf has gguf-convert-endian)"
    )]
    BigEndian,
    /// A version this reader does not know.
    #[error("GGUF version {found} is not supported; expected version 2 or 3{hint}")]
    Version {
        /// The file's version.
        found: u32,
        /// What to do about it, or nothing.
        hint: &'static str,
    },
    /// The file ends inside something.
    #[error("the file is truncated: {what} needs {needed} bytes at offset {offset}, {left} are left")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        needed: u64,
        /// Bytes from there to the end of the file.
        left: u64,
    },
    /// A count that no file of this size, or no sensible file, can hold.
    #[error("{what}: found a count of {found}, but at most {limit} {why}")]
    Count {
        /// What is counted.
        what: String,
        /// The file's count.
        found: u64,
        /// The most that is accepted.
        limit: u64,
        /// Where the limit comes from: the size of the file, or this reader.
        why: &'static str,
    },
    /// A metadata value type that does not exist.
    #[error("key \"{key}\": unknown value type {found}; expected 0 to 12")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The id in the file.
        found: u32,
    },
    /// An array of arrays.
    #[error("key \"{key}\": arrays of arrays are not supported")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A bool that is neither 0 nor 1.
    #[error("key \"{key}\": expected a bool of 0 or 1, found {found}")]
    BadBool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// Text that is not UTF-8.
    #[error("{what} is not valid UTF-8: found {found}")]
    NotUtf8 {
        /// Which text.
        what: String,
        /// Its beginning, escaped.
        found: String,
    },
    /// A key or tensor without a name.
    #[error("{what} has an empty name")]
    EmptyName {
        /// "key 3", "tensor 7".
        what: String,
    },
    /// The same key twice.
    #[error("key \"{key}\" occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// The same tensor twice, in one file or in two parts.
    #[error("tensor \"{tensor}\" occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// `general.alignment` that is no power of two.
    #[error("key \"general.alignment\": expected a power of two, found {found}")]
    Alignment {
        /// The file's value.
        found: u32,
    },
    /// More than four dimensions.
    #[error("tensor \"{tensor}\": expected at most 4 dimensions, found {found}")]
    TensorDims {
        /// The tensor.
        tensor: String,
        /// Its count of dimensions.
        found: u32,
    },
    /// A shape whose size does not fit in 63 bits.
    #[error("tensor \"{tensor}\": the size of shape {dims:?} overflows")]
    TensorOverflow {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A removed or unknown element type.
    #[error("tensor \"{tensor}\": element type {found} {what}")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The id in the file.
        found: u32,
        /// What is known of this id.
        what: &'static str,
    },
    /// Rows that are not whole blocks.
    #[error("tensor \"{tensor}\": expected rows of whole {ty} blocks of {} values, found rows of {found}", ty.block_len())]
    TensorBlocks {
        /// The tensor.
        tensor: String,
        /// Its element type.
        ty: GgmlType,
        /// Its row length.
        found: u64,
    },
    /// Data that does not begin at a multiple of the alignment.
    #[error("tensor \"{tensor}\": expected an offset that is a multiple of {alignment}, found {offset}")]
    TensorMisaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Data past the end of the file.
    #[error(
        "tensor \"{tensor}\": its {bytes} bytes at offset {begin} end past the file's {file_bytes} bytes; the file is truncated or damaged"
    )]
    TensorPastEnd {
        /// The tensor.
        tensor: String,
        /// Where its data begins, from the start of the file.
        begin: u64,
        /// Bytes of its data.
        bytes: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensor \"{tensor}\" at offset {offset} overlaps tensor \"{other}\", which ends at {other_end}")]
    TensorOverlap {
        /// The later tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The earlier tensor.
        other: String,
        /// Where that one ends in the data section.
        other_end: u64,
    },
    /// Parts of a split model that do not belong together, or a part that is missing.
    #[error("split model: {0}")]
    Split(String),
    /// A key that its reader needs.
    #[error("key \"{key}\" is missing; expected {expected}")]
    MissingKey {
        /// The key.
        key: String,
        /// What its reader needs.
        expected: &'static str,
    },
    /// A key of another type, or of a value that does not fit.
    #[error("key \"{key}\": expected {expected}, found {found}")]
    KeyType {
        /// The key.
        key: String,
        /// What its reader needs.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// A tensor that its reader needs.
    #[error("tensor \"{tensor}\" is missing")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// Something given to the writer that no file can hold.
    #[error("cannot write {what}: {why}")]
    Unwritable {
        /// The key or tensor.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

/// What is known of an element type id that [`GgmlType::from_id`] does not have.
pub(crate) fn describe_type_id(id: u32) -> &'static str {
    match id {
        4 => "is Q4_2, which was removed from the format in 2023; convert the model again",
        5 => "is Q4_3, which was removed from the format in 2023; convert the model again",
        31 => "is Q4_0_4_4, a repacked Q4_0 that was removed from the format; use the Q4_0 file",
        32 => "is Q4_0_4_8, a repacked Q4_0 that was removed from the format; use the Q4_0 file",
        33 => "is Q4_0_8_8, a repacked Q4_0 that was removed from the format; use the Q4_0 file",
        36 => "is IQ4_NL_4_4, a repacked IQ4_NL that was removed from the format; use the IQ4_NL file",
        37 => "is IQ4_NL_4_8, a repacked IQ4_NL that was removed from the format; use the IQ4_NL file",
        38 => "is IQ4_NL_8_8, a repacked IQ4_NL that was removed from the format; use the IQ4_NL file",
        _ => "is unknown; the file is damaged, newer than this program, or of a fork with its own types",
    }
}

/// What a file is that begins with `head` and is not GGUF.
pub(crate) fn describe_magic(head: &[u8]) -> String {
    let known = [
        (&b"FUGG"[..], "a byte-swapped GGUF magic"),
        (b"lmgg", "a GGML file from before GGUF; convert the model again"),
        (b"fmgg", "a GGMF file from before GGUF; convert the model again"),
        (b"tjgg", "a GGJT file from before GGUF; convert the model again"),
        (b"algg", "a GGLA adapter from before GGUF; convert it again"),
        (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"version https://git-lfs", "a git-lfs pointer instead of the file it names"),
        (b"<", "a web page"),
        (b"{", "JSON"),
    ];
    let shown = head.get(..4).unwrap_or(head).escape_ascii();
    if head.get(8) == Some(&b'{') {
        return format!("\"{shown}\": a safetensors file");
    }
    match known.iter().find(|(magic, _)| head.starts_with(magic)) {
        Some((_, what)) => format!("\"{shown}\": {what}"),
        None => format!("\"{shown}\""),
    }
}

/// A name of a type for error messages: "array of u32".
pub(crate) fn array_name(element: ValueType) -> String {
    format!("array of {}", element.name())
}
