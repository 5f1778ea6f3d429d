//! Memory on the GPU, and pages of the host that copies to and from it can use directly.

use super::{Context, Gpu, OUT_OF_MEMORY, call};
use bytemuck::Pod;
use minfer_ops::DeviceError;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

/// `len` values on the GPU.
pub(crate) struct Buffer<T> {
    context: Arc<Context>,
    address: u64,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Values; at least one, so that every buffer has an address.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Address on the GPU.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by `Gpu::alloc`; the driver waits for kernels that may use it.
        unsafe {
            (self.context.driver.cuCtxSetCurrent)(self.context.handle);
            (self.context.driver.cuMemFree_v2)(self.address);
        }
    }
}

/// `len` values of the host that the GPU copies without a detour.
pub(crate) struct Pinned<T> {
    context: Arc<Context>,
    values: *mut T,
    len: usize,
}

// SAFETY: the only owner of plain memory.
unsafe impl<T: Pod + Send> Send for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// Address that the GPU reads and writes it at: the host's own, as on every 64-bit system.
    pub(crate) fn address(&self) -> u64 {
        self.values.addr() as u64
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: `len` values, zeroed when allocated.
        unsafe { std::slice::from_raw_parts(self.values, self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.values, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by `Gpu::pinned`.
        unsafe {
            (self.context.driver.cuCtxSetCurrent)(self.context.handle);
            (self.context.driver.cuMemFreeHost)(self.values.cast());
        }
    }
}

/// What an allocation takes from what is free: the driver gives whole pages of 2 MiB, which only small allocations share.
pub(crate) const fn held(bytes: u64) -> u64 {
    const PAGE: u64 = 2 << 20;
    const SMALL: u64 = 512;
    let unit = if bytes > PAGE / 2 { PAGE } else { SMALL };
    match bytes.checked_next_multiple_of(unit) {
        Some(0) => SMALL,
        Some(held) => held,
        None => u64::MAX,
    }
}

fn check_part(buffer: &Buffer<u8>, at: usize, len: usize) -> Result<(), DeviceError> {
    match at.checked_add(len).is_some_and(|end| end <= buffer.len) {
        true => Ok(()),
        false => Err(DeviceError::Fault(format!("{len} bytes at {at} of a buffer of {}", buffer.len))),
    }
}

impl Gpu {
    /// Memory for `len` values, zeroed: what a kernel does not write must not depend on who had the memory before.
    pub(crate) fn alloc<T: Pod>(&self, len: usize, what: &'static str) -> Result<Buffer<T>, DeviceError> {
        let len = len.max(1);
        let needed = (len as u64).saturating_mul(size_of::<T>() as u64);
        let mut address = 0;
        // SAFETY: a place for an address.
        let status = unsafe {
            (self.driver().cuMemAlloc_v2)(&raw mut address, usize::try_from(needed).unwrap_or(usize::MAX))
        };
        if status == OUT_OF_MEMORY {
            return Err(DeviceError::OutOfMemory { what, needed });
        }
        self.driver().check("cuMemAlloc_v2", status)?;
        let buffer = Buffer { context: Arc::clone(&self.context), address, len, values: PhantomData };
        // SAFETY: `needed` bytes at `address`, as just allocated.
        unsafe { call!(self.driver(), cuMemsetD8Async(address, 0, needed as usize, self.stream))? };
        Ok(buffer)
    }

    /// Memory of the host for `len` values, zeroed.
    pub(crate) fn pinned<T: Pod>(&self, len: usize) -> Result<Pinned<T>, DeviceError> {
        let len = len.max(1);
        let mut pointer = null_mut();
        // SAFETY: a place for a pointer.
        let status = unsafe { (self.driver().cuMemAllocHost_v2)(&raw mut pointer, len * size_of::<T>()) };
        if status == OUT_OF_MEMORY {
            return Err(DeviceError::OutOfMemory {
                what: "pinned host memory",
                needed: (len * size_of::<T>()) as u64,
            });
        }
        self.driver().check("cuMemAllocHost_v2", status)?;
        // SAFETY: `len` values, as just allocated; zero is a value of plain data.
        unsafe { std::ptr::write_bytes(pointer.cast::<T>(), 0, len) };
        Ok(Pinned { context: Arc::clone(&self.context), values: pointer.cast(), len })
    }

    /// Copies `values` to the beginning of `to` and waits.
    pub(crate) fn upload<T: Pod>(&self, values: &[T], to: &Buffer<T>) -> Result<(), DeviceError> {
        self.enqueue_upload(values, to)?;
        Ok(self.synchronize()?)
    }

    /// Copies the first `count` of `values` to the beginning of `to`, in the stream's order. `values` must stay as they
    /// are until then, which their owner sees to by waiting before it writes them again.
    pub(crate) fn upload_pinned<T: Pod>(
        &self,
        values: &Pinned<T>,
        count: usize,
        to: &Buffer<T>,
    ) -> Result<(), DeviceError> {
        self.enqueue_upload(&values.as_slice()[..count], to)
    }

    fn enqueue_upload<T: Pod>(&self, values: &[T], to: &Buffer<T>) -> Result<(), DeviceError> {
        if values.len() > to.len {
            return Err(DeviceError::Fault(format!("{} values into a buffer of {}", values.len(), to.len)));
        }
        let bytes = size_of_val(values);
        // SAFETY: `bytes` fit at `to`, as checked; the callers keep `values` until the copy has ended.
        unsafe {
            call!(
                self.driver(),
                cuMemcpyHtoDAsync_v2(to.address, values.as_ptr().cast(), bytes, self.stream)
            )?
        };
        Ok(())
    }

    /// [`Self::download`] by way of `through`, from where the host copies faster than the driver does out of memory that
    /// it did not give.
    pub(crate) fn download_through<T: Pod>(
        &self,
        from: &Buffer<T>,
        through: &mut Pinned<T>,
        values: &mut [T],
    ) -> Result<(), DeviceError> {
        let each = through.as_slice().len();
        if values.len() > each {
            return self.download(from, values);
        }
        self.download(from, &mut through.as_mut_slice()[..values.len()])?;
        values.copy_from_slice(&through.as_slice()[..values.len()]);
        Ok(())
    }

    /// Copies `bytes` to where they are at `at` in `to`, and waits.
    pub(crate) fn upload_at(&self, bytes: &[u8], to: &Buffer<u8>, at: usize) -> Result<(), DeviceError> {
        check_part(to, at, bytes.len())?;
        // SAFETY: the bytes fit there, as checked, and the copy has ended when `synchronize` returns.
        unsafe {
            let address = to.address + at as u64;
            call!(
                self.driver(),
                cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), self.stream)
            )?
        };
        Ok(self.synchronize()?)
    }

    /// Waits, then copies what is at `at` in `from` to `bytes`.
    pub(crate) fn download_at(
        &self,
        from: &Buffer<u8>,
        at: usize,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        check_part(from, at, bytes.len())?;
        // SAFETY: as many bytes are there, as checked, and the copy has ended when `synchronize` returns.
        unsafe {
            let address = from.address + at as u64;
            call!(
                self.driver(),
                cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, bytes.len(), self.stream)
            )?
        };
        Ok(self.synchronize()?)
    }

    /// Waits, then copies the beginning of `from` to `values`.
    pub(crate) fn download<T: Pod>(&self, from: &Buffer<T>, values: &mut [T]) -> Result<(), DeviceError> {
        if values.len() > from.len {
            return Err(DeviceError::Fault(format!("{} values from a buffer of {}", values.len(), from.len)));
        }
        let bytes = size_of_val(values);
        // SAFETY: `bytes` are at `from`, as checked, and the copy has ended when `synchronize` returns.
        unsafe {
            call!(
                self.driver(),
                cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), from.address, bytes, self.stream)
            )?
        };
        Ok(self.synchronize()?)
    }
}
