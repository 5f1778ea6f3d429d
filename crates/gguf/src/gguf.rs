//! An opened model.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::file::{Bytes, Part, TensorInfo, sorted_by_name};
use crate::{Error, GgmlType, Metadata, Problem, SharedBytes, split};

/// An opened model: one file, or all parts of a split one.
///
/// Opening maps the files and checks everything that the accessors rely on; tensor data is not touched and is read
/// from the disk when first used. The type is `Send` and `Sync`; share it as `Arc<Gguf>`.
pub struct Gguf {
    parts: Vec<Part>,
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors`, sorted by name.
    by_name: Vec<u32>,
}

impl Gguf {
    /// Opens the model at `path`.
    ///
    /// If the file is a part of a split model (`NAME-00001-of-00003.gguf`, any of them), the other parts are found
    /// beside it and the whole model is opened: metadata is the first part's, tensors are those of all parts.
    ///
    /// The files must not be written to or truncated while the model is open: a read of a page that is gone ends the
    /// process with SIGBUS, as with every memory-mapped file.
    ///
    /// # Errors
    /// An [`Error`] that names the file, the key or tensor, what was expected and what was found. Nothing larger than
    /// the file plus a constant is allocated before the file is known to be sound.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        let part = Part::open(path)?;
        Gguf::assemble(split::open_others(part)?)
    }

    /// Opens one file that is in memory, by the same checks as [`Gguf::open`].
    ///
    /// # Errors
    /// As [`Gguf::open`]; a part of a split model is refused, as its other parts cannot be found.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Gguf, Error> {
        let part = Part::parse(Path::new("<memory>"), Bytes::Owned(bytes))?;
        if split::count(&part)? > 1 {
            let problem = "one part alone was given, as bytes".to_owned();
            return Err(Error::new(&part.path, Problem::Split(problem)));
        }
        Gguf::assemble(vec![part])
    }

    /// Joins the tensor tables of all parts, in order.
    fn assemble(mut parts: Vec<Part>) -> Result<Gguf, Error> {
        let mut tensors = Vec::with_capacity(parts.iter().map(|part| part.tensors.len()).sum());
        for (index, part) in parts.iter_mut().enumerate() {
            let own = std::mem::take(&mut part.tensors);
            tensors.extend(own.into_iter().map(|tensor| TensorInfo { part: index, ..tensor }));
        }
        let by_name = sorted_by_name(&tensors);
        for pair in by_name.windows(2) {
            let (a, b) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
            if a.name == b.name {
                let problem = Problem::DuplicateTensor { tensor: a.name.to_string() };
                return Err(Error::new(&parts[b.part].path, problem));
            }
        }
        Ok(Gguf { parts, tensors, by_name })
    }

    /// Version of the format: 2 or 3. They differ only in byte order rules and are read alike.
    pub fn version(&self) -> u32 {
        self.parts[0].version
    }

    /// Metadata of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.parts[0].metadata
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> + Clone {
        self.tensors.iter().map(|info| self.view(info))
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.find(name).map(|index| self.view(&self.tensors[index]))
    }

    /// The tensor called `name`, which must be there.
    ///
    /// # Errors
    /// [`Problem::MissingTensor`].
    pub fn require_tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        self.tensor(name)
            .ok_or_else(|| self.metadata().error(Problem::MissingTensor { tensor: name.to_owned() }))
    }

    /// The data of the tensor called `name`, keeping this model open.
    pub fn share(self: &Arc<Self>, name: &str) -> Option<SharedBytes> {
        let index = self.find(name)?;
        Some(SharedBytes::tensor(Arc::clone(self), index, self.data_of(index).len()))
    }

    /// Index in `tensors` of the one called `name`.
    fn find(&self, name: &str) -> Option<usize> {
        let name_of = |index: u32| &*self.tensors[index as usize].name;
        let rank = self.by_name.binary_search_by(|&index| name_of(index).cmp(name)).ok()?;
        Some(self.by_name[rank] as usize)
    }

    /// Data of the tensor at `index`.
    pub(crate) fn data_of(&self, index: usize) -> &[u8] {
        self.view(&self.tensors[index]).data
    }

    /// Gives the memory of the bytes in `range` of the tensor at `index` back: see [`SharedBytes::forget`].
    pub(crate) fn forget(&self, index: usize, range: Range<usize>) {
        let tensor = &self.tensors[index];
        let start = tensor.range.start;
        self.parts[tensor.part].bytes.forget(start + range.start..start + range.end);
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.as_slice().len() as u64).sum()
    }

    /// The files, in the order of their parts.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    fn view<'a>(&'a self, info: &'a TensorInfo) -> Tensor<'a> {
        let part = &self.parts[info.part];
        // Checked against this length when the file was opened.
        Tensor { info, data: &part.bytes.as_slice()[info.range.clone()], path: &part.path }
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths: Vec<&PathBuf> = self.parts.iter().map(|part| &part.path).collect();
        f.debug_struct("Gguf")
            .field("paths", &paths)
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

/// A tensor of an open model.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    info: &'a TensorInfo,
    data: &'a [u8],
    path: &'a Path,
}

impl<'a> Tensor<'a> {
    /// Its name, unique in the model: `blk.0.attn_q.weight`.
    pub fn name(&self) -> &'a str {
        &self.info.name
    }

    /// Element type.
    pub fn ty(&self) -> GgmlType {
        self.info.ty
    }

    /// Dimensions, the fastest first: a weight matrix of `rows` × `cols` has `[cols, rows]`. At most four; none for a
    /// scalar. The first is a whole number of blocks of [`Tensor::ty`].
    pub fn dims(&self) -> &'a [u64] {
        &self.info.dims[..self.info.n_dims]
    }

    /// Number of values: the product of the dimensions.
    pub fn elements(&self) -> u64 {
        self.info.elements
    }

    /// The bytes in the file: `elements / block_len · block_bytes`. Aligned in the file, not necessarily in memory.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Where the data begins in [`Tensor::path`]'s file.
    pub fn file_offset(&self) -> u64 {
        self.info.range.start as u64
    }

    /// The file that holds it.
    pub fn path(&self) -> &'a Path {
        self.path
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {:?}", self.name(), self.ty(), self.dims())
    }
}
