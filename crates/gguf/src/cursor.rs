//! Reading a byte slice front to back, with every read checked against what is left.

use crate::Problem;

/// A position in a file's bytes.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes not read yet.
    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `count` bytes. `what` is called only to name them in an error.
    pub(crate) fn take(&mut self, count: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], Problem> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(count).ok().and_then(|count| rest.get(..count)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(Problem::Truncated {
                what: what(),
                offset: self.at as u64,
                needed: count,
                left: rest.len() as u64,
            }),
        }
    }

    /// The next `N` bytes as an array.
    pub(crate) fn array<const N: usize>(
        &mut self,
        what: impl FnOnce() -> String,
    ) -> Result<[u8; N], Problem> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(crate) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A GGUF string: length as u64, then that many bytes.
    pub(crate) fn string(&mut self, what: impl Fn() -> String) -> Result<&'a [u8], Problem> {
        let length = self.u64(|| format!("the length of {}", what()))?;
        self.take(length, what)
    }

    /// A count of things that take at least `min_bytes` each: refused if they cannot fit in what is left, or exceed
    /// `cap`. After this check a buffer for `count` things may be allocated.
    pub(crate) fn check_count(
        &self,
        count: u64,
        min_bytes: u64,
        cap: u64,
        what: impl FnOnce() -> String,
    ) -> Result<usize, Problem> {
        let fitting = self.left() / min_bytes;
        let (limit, why) = if fitting <= cap {
            (fitting, "fit in the rest of the file, which is truncated or damaged")
        } else {
            (cap, "are supported")
        };
        if count > limit {
            return Err(Problem::Count { what: what(), found: count, limit, why });
        }
        // No more than the bytes of a slice, so it fits.
        Ok(count as usize)
    }
}
