//! Tensor data that keeps its file open.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::Gguf;

/// Bytes of a tensor, or of some of its rows, that keep what they lie in alive. Cheap to clone.
///
/// It lets a device keep weights where they are, in the mapped file, without a lifetime.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Owner,
    range: Range<usize>,
}

#[derive(Clone)]
enum Owner {
    Tensor { gguf: Arc<Gguf>, index: usize },
    Memory(Arc<[u8]>),
}

impl SharedBytes {
    pub(crate) fn tensor(gguf: Arc<Gguf>, index: usize, len: usize) -> SharedBytes {
        SharedBytes { owner: Owner::Tensor { gguf, index }, range: 0..len }
    }

    /// The bytes in `range` of these.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn slice(&self, range: Range<usize>) -> SharedBytes {
        assert!(range.start <= range.end && range.end <= self.range.len(), "slice outside the shared bytes");
        let range = self.range.start + range.start..self.range.start + range.end;
        SharedBytes { owner: self.owner.clone(), range }
    }

    /// Gives the memory of bytes that will hardly be read again back to the system: those of a mapped file are read from
    /// it again if they are. Others stay.
    pub fn forget(&self) {
        if let Owner::Tensor { gguf, index } = &self.owner {
            gguf.forget(*index, self.range.clone());
        }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::Tensor { gguf, index } => &gguf.data_of(*index)[self.range.clone()],
            Owner::Memory(bytes) => &bytes[self.range.clone()],
        }
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> SharedBytes {
        SharedBytes { range: 0..bytes.len(), owner: Owner::Memory(bytes.into()) }
    }
}
