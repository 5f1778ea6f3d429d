//! Writing GGUF files.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::file::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, sizes};
use crate::{Array, Error, GgmlType, Metadata, Problem, Value, split};

/// Version that is written. Version 2 has the same layout.
const VERSION: u32 = 3;

/// Name, type and shape of a tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, unique in the model.
    pub name: String,
    /// Element type.
    pub ty: GgmlType,
    /// Dimensions, the fastest first; at most four. The first is a whole number of blocks.
    pub dims: Vec<u64>,
}

impl TensorSpec {
    /// A tensor of that name, type and shape.
    pub fn new(name: impl Into<String>, ty: GgmlType, dims: impl Into<Vec<u64>>) -> TensorSpec {
        TensorSpec { name: name.into(), ty, dims: dims.into() }
    }

    /// Bytes of its data, or `None` if they are too many.
    pub fn bytes(&self) -> Option<u64> {
        sizes(self.ty, &self.dims).map(|(_, bytes)| bytes)
    }
}

/// Writes a model whose tensors need not fit in memory.
///
/// Header and shapes are given first, then the tensors' bytes in order, in pieces of any size; padding is put in
/// between. A file has a temporary name beside its own until [`Writer::finish`], so a failed or dropped writer leaves
/// nothing behind, and an existing file is replaced whole or not at all.
///
/// ```
/// use minfer_gguf::{Gguf, GgmlType, Metadata, TensorSpec, Writer};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("tiny.gguf");
/// let mut metadata = Metadata::new();
/// metadata.set("general.architecture", "llama");
/// let tensors = [TensorSpec::new("output_norm.weight", GgmlType::F32, [2])];
/// let mut writer = Writer::create(&path, &metadata, &tensors)?;
/// writer.write(&1f32.to_le_bytes())?;
/// writer.write(&2f32.to_le_bytes())?;
/// writer.finish()?;
///
/// let model = Gguf::open(&path)?;
/// assert_eq!(model.metadata().require_str("general.architecture")?, "llama");
/// assert_eq!(model.require_tensor("output_norm.weight")?.dims(), [2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer {
    /// Parts not begun yet.
    waiting: VecDeque<PartPlan>,
    current: Option<OpenPart>,
    /// Files that are complete under their temporary names.
    complete: Vec<TempFile>,
    path: PathBuf,
}

/// One file to be written.
struct PartPlan {
    path: PathBuf,
    layout: Layout,
}

/// Header of a file, and the sizes of what follows it.
struct Layout {
    header: Vec<u8>,
    tensors: VecDeque<Pending>,
}

/// A tensor whose bytes are still to come.
struct Pending {
    name: String,
    left: u64,
    /// Bytes of zero after it.
    padding: u64,
}

struct OpenPart {
    file: BufWriter<File>,
    temp: TempFile,
    tensors: VecDeque<Pending>,
}

impl Writer {
    /// Begins the file at `path`.
    ///
    /// # Errors
    /// [`Problem::Unwritable`] for keys or tensors that a reader would refuse, [`Problem::Io`].
    pub fn create(path: &Path, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Writer, Error> {
        let layout = Layout::new(metadata, tensors).map_err(|problem| Error::new(path, problem))?;
        Writer::start(path, VecDeque::from([PartPlan { path: path.into(), layout }]))
    }

    /// Begins a split model: parts `STEM-00001-of-0000N.gguf` in the folder of `stem`, each with as many tensors as
    /// fit in `part_bytes` of data, and at least one. A model that fits in one part gets that one part.
    ///
    /// # Errors
    /// As [`Writer::create`].
    pub fn create_split(
        stem: &Path,
        metadata: &Metadata,
        tensors: &[TensorSpec],
        part_bytes: u64,
    ) -> Result<Writer, Error> {
        let refuse = |problem| Error::new(stem, problem);
        check_tensors(tensors).map_err(refuse)?;
        let groups = group(tensors, part_bytes);
        let count = groups.len() as u64;
        let name = stem.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut parts = VecDeque::new();
        for (no, group) in groups.into_iter().enumerate() {
            let mut keys = if no == 0 { metadata.clone() } else { Metadata::new() };
            if let Some(alignment) = metadata.get(ALIGNMENT_KEY) {
                keys.set(ALIGNMENT_KEY, alignment.clone());
            }
            let small = |what: &str, number: u64| {
                u16::try_from(number).map_err(|_| refuse(unwritable(what, "too many parts".into())))
            };
            keys.set(split::NO_KEY, small(split::NO_KEY, no as u64)?);
            keys.set(split::COUNT_KEY, small(split::COUNT_KEY, count)?);
            keys.set(split::TENSORS_KEY, tensors.len() as i32);
            let path = stem.with_file_name(split::part_name(name, no as u64, count));
            parts.push_back(PartPlan { path, layout: Layout::new(&keys, group).map_err(refuse)? });
        }
        Writer::start(stem, parts)
    }

    fn start(path: &Path, parts: VecDeque<PartPlan>) -> Result<Writer, Error> {
        let mut writer = Writer { waiting: parts, current: None, complete: Vec::new(), path: path.into() };
        writer.advance()?;
        Ok(writer)
    }

    /// Appends to the data of the tensor that is next in order.
    ///
    /// # Errors
    /// [`Problem::Unwritable`] if `bytes` go beyond the end of that tensor, [`Problem::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        while self.current.as_ref().is_some_and(|part| part.tensors.is_empty()) {
            self.advance()?;
        }
        let next = self
            .current
            .as_mut()
            .and_then(|part| Some((part.tensors.front_mut()?, &mut part.file, &part.temp)));
        let Some((tensor, file, temp)) = next else {
            let problem = unwritable("tensor data", "every tensor has its bytes already".into());
            return if bytes.is_empty() { Ok(()) } else { Err(Error::new(&self.path, problem)) };
        };
        if bytes.len() as u64 > tensor.left {
            let why = format!("{} bytes are left of it, {} were given", tensor.left, bytes.len());
            return Err(Error::new(&self.path, unwritable(&format!("tensor \"{}\"", tensor.name), why)));
        }
        file.write_all(bytes).map_err(|source| temp.failed("write", source))?;
        tensor.left -= bytes.len() as u64;
        self.skip_finished()
    }

    /// Completes the model: everything is on the disk and has its final name.
    ///
    /// # Errors
    /// [`Problem::Unwritable`] if bytes of a tensor are missing, [`Problem::Io`].
    pub fn finish(mut self) -> Result<(), Error> {
        while let Some(part) = &self.current {
            if let Some(tensor) = part.tensors.front() {
                let why = format!("{} of its bytes were not given", tensor.left);
                return Err(Error::new(&self.path, unwritable(&format!("tensor \"{}\"", tensor.name), why)));
            }
            self.advance()?;
        }
        self.complete.drain(..).try_for_each(TempFile::publish)
    }

    /// Completes the open part, and begins the next one if there is one.
    fn advance(&mut self) -> Result<(), Error> {
        if let Some(mut part) = self.current.take() {
            part.file.flush().map_err(|source| part.temp.failed("write", source))?;
            part.file.get_ref().sync_all().map_err(|source| part.temp.failed("write", source))?;
            self.complete.push(part.temp);
        }
        let Some(PartPlan { path, layout }) = self.waiting.pop_front() else { return Ok(()) };
        let (temp, file) = TempFile::create(path)?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&layout.header).map_err(|source| temp.failed("write", source))?;
        self.current = Some(OpenPart { file, temp, tensors: layout.tensors });
        self.skip_finished()
    }

    /// Pads and passes tensors that have all their bytes, among them those of no bytes at all.
    fn skip_finished(&mut self) -> Result<(), Error> {
        let Some(part) = &mut self.current else { return Ok(()) };
        while let Some(tensor) = part.tensors.pop_front_if(|tensor| tensor.left == 0) {
            write_zeros(&mut part.file, tensor.padding)
                .map_err(|source| part.temp.failed("write", source))?;
        }
        Ok(())
    }
}

/// A whole file in memory: what [`Writer`] would write. For tests and small models.
///
/// # Errors
/// As [`Writer::create`]; also if a tensor's data is not of its size.
pub fn to_bytes(metadata: &Metadata, tensors: &[(TensorSpec, &[u8])]) -> Result<Vec<u8>, Error> {
    let refuse = |problem| Error::new("<memory>", problem);
    let specs: Vec<TensorSpec> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let Layout { header: mut bytes, tensors: pending } = Layout::new(metadata, &specs).map_err(refuse)?;
    for ((_, data), tensor) in tensors.iter().zip(pending) {
        if data.len() as u64 != tensor.left {
            let why = format!("expected {} bytes, found {}", tensor.left, data.len());
            return Err(refuse(unwritable(&format!("tensor \"{}\"", tensor.name), why)));
        }
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len() + tensor.padding as usize, 0);
    }
    Ok(bytes)
}

fn unwritable(what: &str, why: String) -> Problem {
    Problem::Unwritable { what: what.to_owned(), why }
}

/// Cuts `tensors` (checked) into runs of at most `part_bytes`, each of one tensor at least; one run if there are none.
fn group(tensors: &[TensorSpec], part_bytes: u64) -> Vec<&[TensorSpec]> {
    let (mut groups, mut begin, mut bytes) = (Vec::new(), 0, 0u64);
    for (index, tensor) in tensors.iter().enumerate() {
        let own = tensor.bytes().unwrap_or(u64::MAX);
        if index > begin && bytes.saturating_add(own) > part_bytes {
            groups.push(&tensors[begin..index]);
            (begin, bytes) = (index, 0);
        }
        bytes = bytes.saturating_add(own);
    }
    groups.push(&tensors[begin..]);
    groups
}

fn check_tensors(tensors: &[TensorSpec]) -> Result<(), Problem> {
    let mut names = HashSet::new();
    for tensor in tensors {
        let what = format!("tensor \"{}\"", tensor.name);
        let refuse = |why: &str| Err(unwritable(&what, why.to_owned()));
        if tensor.name.is_empty() {
            return refuse("it has no name");
        }
        if !names.insert(&tensor.name) {
            return refuse("there are two of this name");
        }
        if tensor.dims.len() > 4 {
            return refuse("it has more than four dimensions");
        }
        let row = tensor.dims.first().copied().unwrap_or(1);
        if !row.is_multiple_of(tensor.ty.block_len() as u64) {
            return refuse(&format!("its rows of {row} values are not whole {} blocks", tensor.ty));
        }
        if tensor.bytes().is_none() {
            return refuse("its size overflows");
        }
    }
    Ok(())
}

impl Layout {
    fn new(metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Layout, Problem> {
        check_tensors(tensors)?;
        let alignment = match metadata.u32(ALIGNMENT_KEY) {
            Ok(None) => DEFAULT_ALIGNMENT,
            Ok(Some(alignment)) if alignment.is_power_of_two() => alignment.into(),
            _ => {
                return Err(unwritable(
                    "key \"general.alignment\"",
                    "it is not a power of two in u32".into(),
                ));
            }
        };
        let mut header = b"GGUF".to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata.iter() {
            if key.is_empty() || key.len() > usize::from(u16::MAX) {
                return Err(unwritable(
                    &format!("key \"{key}\""),
                    "its name has no or too many bytes".into(),
                ));
            }
            put_string(&mut header, key.as_bytes());
            put_value(&mut header, value);
        }
        let mut pending = VecDeque::new();
        let mut offset = 0u64;
        for tensor in tensors {
            put_string(&mut header, tensor.name.as_bytes());
            header.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| header.extend(dim.to_le_bytes()));
            header.extend((tensor.ty as u32).to_le_bytes());
            header.extend(offset.to_le_bytes());
            let overflow = || unwritable(&format!("tensor \"{}\"", tensor.name), "its size overflows".into());
            let left = tensor.bytes().ok_or_else(overflow)?;
            let end = offset.checked_add(left).ok_or_else(overflow)?;
            offset = end.checked_next_multiple_of(alignment).ok_or_else(overflow)?;
            pending.push_back(Pending { name: tensor.name.clone(), left, padding: offset - end });
        }
        header.resize(header.len().next_multiple_of(alignment as usize), 0);
        Ok(Layout { header, tensors: pending })
    }
}

fn put_string(header: &mut Vec<u8>, string: &[u8]) {
    header.extend((string.len() as u64).to_le_bytes());
    header.extend(string);
}

fn put_value(header: &mut Vec<u8>, value: &Value) {
    header.extend((value.value_type() as u32).to_le_bytes());
    match value {
        Value::U8(value) => header.extend(value.to_le_bytes()),
        Value::I8(value) => header.extend(value.to_le_bytes()),
        Value::U16(value) => header.extend(value.to_le_bytes()),
        Value::I16(value) => header.extend(value.to_le_bytes()),
        Value::U32(value) => header.extend(value.to_le_bytes()),
        Value::I32(value) => header.extend(value.to_le_bytes()),
        Value::U64(value) => header.extend(value.to_le_bytes()),
        Value::I64(value) => header.extend(value.to_le_bytes()),
        Value::F32(value) => header.extend(value.to_le_bytes()),
        Value::F64(value) => header.extend(value.to_le_bytes()),
        Value::Bool(value) => header.push((*value).into()),
        Value::String(bytes) => put_string(header, bytes),
        Value::Array(array) => {
            header.extend((array.element_type() as u32).to_le_bytes());
            header.extend((array.len() as u64).to_le_bytes());
            put_elements(header, array);
        }
    }
}

fn put_elements(header: &mut Vec<u8>, array: &Array) {
    match array {
        Array::U8(items) => header.extend(items),
        Array::I8(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::U16(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::I16(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::U32(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::I32(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::U64(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::I64(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::F32(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::F64(items) => header.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::Bool(items) => header.extend(items.iter().map(|&item| u8::from(item))),
        Array::Strings(strings) => strings.iter().for_each(|string| put_string(header, string)),
    }
}

fn write_zeros(file: &mut impl Write, mut count: u64) -> std::io::Result<()> {
    let zeros = [0; 4096];
    while count > 0 {
        let piece = count.min(zeros.len() as u64);
        file.write_all(&zeros[..piece as usize])?;
        count -= piece;
    }
    Ok(())
}

/// A file under a temporary name, removed unless published.
struct TempFile {
    temp: PathBuf,
    path: PathBuf,
    published: bool,
}

impl TempFile {
    /// Where a link leads is replaced, not the link; a device or a pipe is not.
    fn create(path: PathBuf) -> Result<(TempFile, File), Error> {
        let path = fs::canonicalize(&path).unwrap_or(path);
        if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            let source = std::io::Error::other("it exists and is not a regular file");
            return Err(Error::new(&path, Problem::Io { action: "replace", source }));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let temp = path.with_file_name(name);
        let create = |source| Error::new(&path, Problem::Io { action: "create", source });
        let file = File::create(&temp).map_err(create)?;
        Ok((TempFile { temp, path, published: false }, file))
    }

    fn failed(&self, action: &'static str, source: std::io::Error) -> Error {
        Error::new(&self.path, Problem::Io { action, source })
    }

    fn publish(mut self) -> Result<(), Error> {
        fs::rename(&self.temp, &self.path).map_err(|source| self.failed("rename into place", source))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.published {
            // Nobody is left to tell, and a file that stays is only in the way.
            let _ = fs::remove_file(&self.temp);
        }
    }
}
