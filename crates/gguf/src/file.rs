//! One file: its bytes, and the checked reading of header, metadata and tensor table.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::cursor::Cursor;
use crate::metadata::{Metadata, text};
use crate::{Error, GgmlType, Problem, error};

/// Most tensors of one file. A mixture of experts with one tensor per expert has some 50,000.
const MAX_TENSORS: u64 = 1 << 17;

/// Most dimensions of a tensor.
const MAX_DIMS: usize = 4;

/// Alignment of tensor data in a file that does not state one.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;

/// The key of a file's alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// The bytes of a file.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }

    /// Gives the memory of the bytes in `range` back, if they are those of a mapped file: they are read again when they
    /// are used again.
    pub(crate) fn forget(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = self
            && range.end <= map.len()
        {
            // SAFETY: the map is one of a file, never written to: pages that are given back hold the file's bytes again
            // when they are touched. Advice only: a refusal costs memory, not correctness.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Maps the file at `path`.
    fn map(path: &Path) -> Result<Bytes, Problem> {
        let io = |action| move |source| Problem::Io { action, source };
        // Asked before opening: opening a pipe would wait for its writer.
        let kind = fs::metadata(path).map_err(io("open"))?;
        if kind.is_dir() {
            return Err(Problem::NotAFile { found: "a directory" });
        }
        if !kind.is_file() {
            return Err(Problem::NotAFile { found: "a pipe or device" });
        }
        let file = File::open(path).map_err(io("open"))?;
        if file.metadata().map_err(io("open"))?.len() == 0 {
            return Ok(Bytes::Owned(Vec::new())); // An empty file cannot be mapped.
        }
        // SAFETY: the map is only ever read. If another process truncates the file meanwhile, reads past its new end
        // raise SIGBUS, and if one writes to it, values change under us: every mmap reader's condition, stated at
        // `Gguf::open`. No length or offset is read from the map after validation.
        let map = unsafe { Mmap::map(&file) }.map_err(io("map"))?;
        Ok(Bytes::Mapped(map))
    }
}

/// Name, shape, type and place of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct TensorInfo {
    pub(crate) name: Box<str>,
    pub(crate) ty: GgmlType,
    pub(crate) n_dims: usize,
    pub(crate) dims: [u64; MAX_DIMS],
    pub(crate) elements: u64,
    /// Which file of a split model.
    pub(crate) part: usize,
    /// Where the data lies in that file.
    pub(crate) range: Range<usize>,
}

/// One file, checked.
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Bytes,
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl Part {
    pub(crate) fn open(path: &Path) -> Result<Part, Error> {
        let bytes = Bytes::map(path).map_err(|problem| Error::new(path, problem))?;
        Part::parse(path, bytes)
    }

    pub(crate) fn parse(path: &Path, bytes: Bytes) -> Result<Part, Error> {
        let header = Header::read(bytes.as_slice(), path).map_err(|problem| Error::new(path, problem))?;
        let Header { version, metadata, tensors } = header;
        Ok(Part { path: path.into(), bytes, version, metadata, tensors })
    }
}

/// Everything before the tensor data.
struct Header {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Header {
    fn read(bytes: &[u8], path: &Path) -> Result<Header, Problem> {
        let mut cursor = Cursor::new(bytes);
        let version = read_version(&mut cursor)?;
        let n_tensors = cursor.u64(|| "the tensor count".into())?;
        let n_keys = cursor.u64(|| "the key count".into())?;
        let metadata = Metadata::read(&mut cursor, n_keys, path)?;
        let alignment = alignment(&metadata)?;
        // A tensor is at least a name's length, a count of dimensions, a type and an offset.
        let n_tensors = cursor.check_count(n_tensors, 8 + 4 + 4 + 8, MAX_TENSORS, || "tensors".into())?;
        let mut entries = Vec::with_capacity(n_tensors);
        for index in 0..n_tensors {
            entries.push(read_tensor(&mut cursor, index)?);
        }
        let tensors = place(entries, cursor.position(), bytes.len() as u64, alignment)?;
        check_names(&tensors)?;
        Ok(Header { version, metadata, tensors })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, Problem> {
    let head = cursor.clone().take(cursor.left().min(32), String::new)?;
    if !head.starts_with(b"GGUF") {
        let found = if head.is_empty() { "an empty file".to_owned() } else { error::describe_magic(head) };
        return Err(Problem::NotGguf { found });
    }
    cursor.take(4, || "the magic".into())?;
    let version = cursor.u32(|| "the version".into())?;
    match version {
        2 | 3 => Ok(version),
        // A version is a small number, so its low half is zero only when its bytes are swapped.
        _ if version != 0 && version & 0xFFFF == 0 => Err(Problem::BigEndian),
        1 => Err(Problem::Version { found: 1, hint: "; convert the model again" }),
        _ => Err(Problem::Version { found: version, hint: "" }),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, Problem> {
    match metadata.u32(ALIGNMENT_KEY) {
        Ok(None) => Ok(DEFAULT_ALIGNMENT),
        Ok(Some(found)) if !found.is_power_of_two() => Err(Problem::Alignment { found }),
        Ok(Some(alignment)) => Ok(alignment.into()),
        Err(error) => Err(*error.problem),
    }
}

/// A tensor table's entry, before its place in the file is known.
struct Entry<'a> {
    name: &'a str,
    ty: GgmlType,
    n_dims: usize,
    dims: [u64; MAX_DIMS],
    elements: u64,
    bytes: u64,
    /// From the start of the data section.
    offset: u64,
}

fn read_tensor<'a>(cursor: &mut Cursor<'a>, index: usize) -> Result<Entry<'a>, Problem> {
    let what = || format!("the name of tensor {index}");
    let name = text(cursor.string(what)?, what)?;
    if name.is_empty() {
        return Err(Problem::EmptyName { what: format!("tensor {index}") });
    }
    let tensor = || name.to_owned();
    let found = cursor.u32(|| format!("the dimension count of tensor \"{name}\""))?;
    let n_dims = found as usize;
    if n_dims > MAX_DIMS {
        return Err(Problem::TensorDims { tensor: tensor(), found });
    }
    let mut dims = [1; MAX_DIMS];
    for dim in &mut dims[..n_dims] {
        *dim = cursor.u64(|| format!("the dimensions of tensor \"{name}\""))?;
    }
    let found = cursor.u32(|| format!("the element type of tensor \"{name}\""))?;
    let offset = cursor.u64(|| format!("the offset of tensor \"{name}\""))?;
    let ty = GgmlType::from_id(found).ok_or_else(|| Problem::TensorType {
        tensor: tensor(),
        found,
        what: error::describe_type_id(found),
    })?;
    if !dims[0].is_multiple_of(ty.block_len() as u64) {
        return Err(Problem::TensorBlocks { tensor: tensor(), ty, found: dims[0] });
    }
    let (elements, bytes) = sizes(ty, &dims)
        .ok_or_else(|| Problem::TensorOverflow { tensor: tensor(), dims: dims[..n_dims].to_vec() })?;
    Ok(Entry { name, ty, n_dims, dims, elements, bytes, offset })
}

/// Elements and bytes of a tensor of whole blocks; `None` if either does not fit in 63 bits.
pub(crate) fn sizes(ty: GgmlType, dims: &[u64]) -> Option<(u64, u64)> {
    // A zero hides the overflow of its neighbours, but not from readers that multiply in another order.
    dims.iter().filter(|&&dim| dim != 0).try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
    let elements: u64 = dims.iter().product();
    let bytes = (elements / ty.block_len() as u64).checked_mul(ty.block_bytes() as u64)?;
    (elements <= i64::MAX as u64 && bytes <= i64::MAX as u64).then_some((elements, bytes))
}

/// Finds the data of every entry in the file: aligned, inside, and shared with no other.
fn place(
    entries: Vec<Entry<'_>>,
    header_end: u64,
    file_bytes: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, Problem> {
    let data_begin = header_end.next_multiple_of(alignment);
    let tensors = entries.iter().map(|entry| {
        let tensor = || entry.name.to_owned();
        if entry.offset % alignment != 0 {
            return Err(Problem::TensorMisaligned { tensor: tensor(), offset: entry.offset, alignment });
        }
        let begin = data_begin.saturating_add(entry.offset);
        let end = begin.checked_add(entry.bytes).filter(|&end| end <= file_bytes);
        let Some(end) = end else {
            return Err(Problem::TensorPastEnd { tensor: tensor(), begin, bytes: entry.bytes, file_bytes });
        };
        Ok(TensorInfo {
            name: entry.name.into(),
            ty: entry.ty,
            n_dims: entry.n_dims,
            dims: entry.dims,
            elements: entry.elements,
            part: 0,
            range: begin as usize..end as usize, // Inside a slice, so both fit.
        })
    });
    let mut placed = Vec::with_capacity(entries.len());
    for tensor in tensors {
        placed.push(tensor?);
    }
    check_overlaps(&placed, data_begin as usize)?;
    Ok(placed)
}

fn check_overlaps(tensors: &[TensorInfo], data_begin: usize) -> Result<(), Problem> {
    let mut by_offset: Vec<u32> = (0..tensors.len() as u32).collect();
    by_offset.retain(|&index| !tensors[index as usize].range.is_empty());
    by_offset.sort_unstable_by_key(|&index| tensors[index as usize].range.start);
    for pair in by_offset.windows(2) {
        let (before, after) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        if after.range.start < before.range.end {
            return Err(Problem::TensorOverlap {
                tensor: after.name.to_string(),
                offset: (after.range.start - data_begin) as u64,
                other: before.name.to_string(),
                other_end: (before.range.end - data_begin) as u64,
            });
        }
    }
    Ok(())
}

fn check_names(tensors: &[TensorInfo]) -> Result<(), Problem> {
    let by_name = sorted_by_name(tensors);
    let twice =
        by_name.windows(2).find(|pair| tensors[pair[0] as usize].name == tensors[pair[1] as usize].name);
    match twice {
        Some(pair) => Err(Problem::DuplicateTensor { tensor: tensors[pair[0] as usize].name.to_string() }),
        None => Ok(()),
    }
}

/// Indices of `tensors`, sorted by name.
pub(crate) fn sorted_by_name(tensors: &[TensorInfo]) -> Vec<u32> {
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
    by_name
}
