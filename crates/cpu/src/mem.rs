//! Memory for weights, cache and activations: zeroed, page-aligned, on huge pages where it pays, written by many
//! threads at once.

use crate::detect;
use minfer_ops::DeviceError;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Size and alignment of a huge page.
const HUGE: usize = 2 << 20;

/// Plain numbers: every bit pattern is a value.
pub(crate) trait Plain: Copy + Send + Sync + 'static {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// A fixed number of zeroed values in memory of its own. Pages come into being when first written.
pub(crate) struct Buffer<T> {
    start: NonNull<T>,
    len: usize,
    mapping: NonNull<libc::c_void>,
    mapped: usize,
    values: PhantomData<T>,
}

// SAFETY: the buffer owns its memory and holds plain numbers.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: shared access is reading, or writing through `ptr()`, whose users see to disjointness.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// `len` zeros, for `what`.
    ///
    /// # Errors
    /// The machine does not have the memory, or the system refuses it.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Buffer<T>, DeviceError> {
        let refused = |needed: u64| DeviceError::OutOfMemory { what, needed };
        let bytes = len.checked_mul(size_of::<T>()).filter(|b| *b <= isize::MAX as usize - 2 * HUGE);
        let bytes = bytes.ok_or(refused(u64::MAX))?.max(1);
        // The kernel overcommits: without this a model that does not fit would be killed instead of refused.
        if bytes > 64 << 20 && detect::memory_available().is_some_and(|available| bytes as u64 > available) {
            return Err(refused(bytes as u64));
        }
        let huge = bytes >= HUGE;
        let mapped = if huge { bytes.next_multiple_of(HUGE) + HUGE } else { bytes };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let mapping = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if mapping == libc::MAP_FAILED {
            return Err(refused(bytes as u64));
        }
        let mapping = NonNull::new(mapping).ok_or(refused(bytes as u64))?;
        let offset = if huge { mapping.as_ptr().cast::<u8>().align_offset(HUGE) } else { 0 };
        // SAFETY: a huge buffer is mapped with room for the offset.
        let start = unsafe { mapping.byte_add(offset) }.cast::<T>();
        if huge {
            // SAFETY: the range is inside the mapping. Advice only: a refusal costs speed, not correctness.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(Buffer { start, len, mapping, mapped, values: PhantomData })
    }

    /// The values. Nobody writes meanwhile.
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: `len` zero-initialised plain values.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The values, writable.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: `len` zero-initialised plain values, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The first value. May be written through by several threads, each its own part.
    pub(crate) fn ptr(&self) -> *mut T {
        self.start.as_ptr()
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `zeroed` and is not used any more.
        unsafe { libc::munmap(self.mapping.as_ptr(), self.mapped) };
    }
}

/// Rows of floats in a [`Buffer`], shared by the workers of a job: each writes rows or columns that are its own.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    start: *mut f32,
    /// Floats between rows.
    pub(crate) stride: usize,
    rows: usize,
}

// SAFETY: a pointer with a length; `row` is where its users promise disjointness.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    /// The rows of `buffer`, `stride` floats each.
    pub(crate) fn of(buffer: &Buffer<f32>, stride: usize) -> Rows {
        Rows { start: buffer.ptr(), stride, rows: buffer.len().checked_div(stride).unwrap_or(0) }
    }

    /// Row `i`.
    pub(crate) fn ptr(&self, i: usize) -> *mut f32 {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        // SAFETY: row `i` is inside the buffer.
        unsafe { self.start.add(i * self.stride) }
    }

    /// The first `len` values of row `i`.
    ///
    /// # Safety
    /// Nobody else touches these values while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row(&self, i: usize, len: usize) -> &mut [f32] {
        assert!(len <= self.stride, "{len} values of a row of {}", self.stride);
        // SAFETY: the row is inside the buffer; the caller promises that it is alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(i), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_aligned_and_refused() {
        let mut small = Buffer::<f32>::zeroed(3, "test").expect("small");
        small.as_mut_slice()[2] = 1.0;
        assert_eq!(small.as_slice(), [0.0, 0.0, 1.0]);
        let big = Buffer::<u8>::zeroed(3 * HUGE + 5, "test").expect("big");
        assert_eq!(big.ptr().addr() % HUGE, 0);
        assert_eq!((big.len(), big.as_slice()[3 * HUGE + 4]), (3 * HUGE + 5, 0));
        for absurd in [usize::MAX, 1 << 50] {
            let error = Buffer::<f32>::zeroed(absurd, "test").err();
            assert!(matches!(error, Some(DeviceError::OutOfMemory { what: "test", .. })), "{absurd}");
        }
    }
}
