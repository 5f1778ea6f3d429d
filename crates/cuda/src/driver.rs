//! The CUDA driver: opened at run time, every call checked, every handle freed.

mod graph;
mod memory;
mod sys;

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use minfer_ops::DeviceError;

pub(crate) use graph::Graph;
pub(crate) use memory::{Buffer, Pinned, held};
use sys::{Driver, Status};

/// Oldest driver interface that the kernels run on: CUDA 13.0 (driver 580).
const NEEDED: i32 = 13000;

/// Oldest compute capability: Ampere.
const OLDEST: (i32, i32) = (8, 0);

/// Why there is no GPU to use, in one line.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// No driver library.
    #[error("no NVIDIA driver: {0}")]
    NoDriver(String),
    /// A driver that is too old.
    #[error("the NVIDIA driver supports CUDA {}.{}; 13.0 (driver 580) is needed", found / 1000, found % 1000 / 10)]
    OldDriver {
        /// What it supports, as 1000 · major + 10 · minor.
        found: i32,
    },
    /// A driver without a GPU, or with fewer than asked for.
    #[error("there is no GPU {asked}, the first of {count} is number 0")]
    NoGpu {
        /// Number asked for.
        asked: usize,
        /// GPUs that exist.
        count: usize,
    },
    /// A GPU that is too old.
    #[error("{name} has compute capability {}.{}; 8.0 (Ampere) is the oldest supported", capability.0, capability.1)]
    OldGpu {
        /// Its name.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// A build without kernels for the GPU.
    #[error("{name} (compute capability {}.{}): this build has kernels for {archs}", capability.0, capability.1)]
    NoKernels {
        /// Its name.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
        /// Architectures of the build.
        archs: &'static str,
    },
    /// The driver failed.
    #[error("{0}")]
    Failed(String),
}

/// A GPU, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its number.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of shared memory that a block may have.
    pub shared_per_block: usize,
    /// Bytes of its memory.
    pub memory: u64,
    /// What the driver supports, as 1000 · major + 10 · minor.
    pub driver: i32,
    /// Why it cannot be used; `None` if it can.
    pub unusable: Option<Unavailable>,
}

impl GpuInfo {
    /// Hopper and later: blocks form clusters, and a kernel may start before the one before has ended.
    pub(crate) fn has_clusters(&self) -> bool {
        self.capability >= (9, 0)
    }
}

/// Blocks of a launch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared: u32,
    /// Blocks of a cluster along x; 1 unless [`GpuInfo::has_clusters`].
    pub(crate) cluster: u32,
}

impl Shape {
    /// Blocks of `block` threads, without dynamic shared memory.
    pub(crate) fn new(grid: [usize; 3], block: usize) -> Shape {
        Shape { grid: grid.map(|n| n as u32), block: block as u32, shared: 0, cluster: 1 }
    }

    pub(crate) fn with_shared(self, bytes: usize) -> Shape {
        Shape { shared: bytes as u32, ..self }
    }
}

/// A call that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    call: &'static str,
    status: Status,
    name: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ({})", self.call, self.name, self.status)
    }
}

impl From<Failure> for DeviceError {
    fn from(failure: Failure) -> DeviceError {
        DeviceError::Fault(failure.to_string())
    }
}

/// Bytes of static shared memory, at most, of kernels that have dynamic.
pub(crate) const STATIC_SHARED: usize = 4096;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: Status = 2;

impl Driver {
    /// Turns a status into a result.
    fn check(&self, call: &'static str, status: Status) -> Result<(), Failure> {
        if status == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: a place for a pointer to a static string.
        let known = unsafe { (self.cuGetErrorName)(status, &raw mut text) } == 0 && !text.is_null();
        let name = if known {
            // SAFETY: the driver's strings are static and end with zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            "unknown".into()
        };
        Err(Failure { call, status, name })
    }
}

/// Calls a driver function and names it if it fails.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $driver.check(stringify!($name), ($driver.$name)($($arg),*))
    };
}
use call;

/// All GPUs.
///
/// # Errors
/// [`Unavailable`], if the driver is missing, too old, or fails.
pub fn gpus() -> Result<Vec<GpuInfo>, Unavailable> {
    let driver = Driver::open()?;
    let mut count = 0;
    // SAFETY: a place for an integer.
    unsafe { call!(driver, cuDeviceGetCount(&raw mut count)) }.map_err(failed)?;
    (0..count).map(|i| info(driver, i)).collect()
}

fn failed(failure: Failure) -> Unavailable {
    Unavailable::Failed(failure.to_string())
}

fn info(driver: &'static Driver, index: c_int) -> Result<GpuInfo, Unavailable> {
    let mut device = 0;
    let mut name = [0u8; 128];
    let mut memory = 0;
    // SAFETY: places for what the calls write; the name ends with zero inside its array.
    unsafe {
        call!(driver, cuDeviceGet(&raw mut device, index)).map_err(failed)?;
        call!(driver, cuDeviceGetName(name.as_mut_ptr().cast(), 127, device)).map_err(failed)?;
        call!(driver, cuDeviceTotalMem_v2(&raw mut memory, device)).map_err(failed)?;
    }
    let attribute = |which: c_int| {
        let mut value = 0;
        // SAFETY: a place for an integer.
        unsafe { call!(driver, cuDeviceGetAttribute(&raw mut value, which, device)) }.map_err(failed)?;
        Ok(value)
    };
    let name =
        CStr::from_bytes_until_nul(&name).map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let capability = (attribute(sys::COMPUTE_CAPABILITY_MAJOR)?, attribute(sys::COMPUTE_CAPABILITY_MINOR)?);
    let unusable = if capability < OLDEST {
        Some(Unavailable::OldGpu { name: name.clone(), capability })
    } else if !crate::kernels::built_for(crate::kernels::ARCHS, capability) {
        Some(Unavailable::NoKernels { name: name.clone(), capability, archs: crate::kernels::ARCHS })
    } else {
        None
    };
    Ok(GpuInfo {
        index: index as usize,
        name,
        capability,
        multiprocessors: attribute(sys::MULTIPROCESSOR_COUNT)? as usize,
        shared_per_block: attribute(sys::MAX_SHARED_PER_BLOCK_OPTIN)? as usize,
        memory: memory as u64,
        driver: driver.version,
        unusable,
    })
}

/// The primary context of a GPU.
struct Context {
    driver: &'static Driver,
    device: c_int,
    handle: *mut c_void,
}

// SAFETY: a context handle may be used from any thread that makes it current, which `Gpu` does.
unsafe impl Send for Context {}
// SAFETY: as above; the driver synchronises.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained by `Gpu::open`, and everything made in it is gone: each holds the context.
        unsafe { (self.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// A GPU in use: its context and one stream.
pub(crate) struct Gpu {
    context: Arc<Context>,
    stream: *mut c_void,
    pub(crate) info: GpuInfo,
}

// SAFETY: the stream is used by one thread at a time, as `Gpu` is not `Sync`, and the context is made current first.
unsafe impl Send for Gpu {}

impl Gpu {
    /// Opens GPU `index` and makes it current on this thread.
    pub(crate) fn open(index: usize) -> Result<Gpu, Unavailable> {
        let driver = Driver::open()?;
        let gpus = gpus()?;
        let count = gpus.len();
        let info = gpus.into_iter().nth(index).ok_or(Unavailable::NoGpu { asked: index, count })?;
        if let Some(why) = info.unusable {
            return Err(why);
        }
        let (mut device, mut handle, mut stream) = (0, null_mut(), null_mut());
        // SAFETY: places for what the calls write; the context is released when it is dropped.
        let context = unsafe {
            call!(driver, cuDeviceGet(&raw mut device, index as c_int)).map_err(failed)?;
            call!(driver, cuDevicePrimaryCtxRetain(&raw mut handle, device)).map_err(failed)?;
            let context = Arc::new(Context { driver, device, handle });
            call!(driver, cuCtxSetCurrent(handle)).map_err(failed)?;
            call!(driver, cuStreamCreate(&raw mut stream, sys::STREAM_NON_BLOCKING)).map_err(failed)?;
            context
        };
        Ok(Gpu { context, stream, info })
    }

    fn driver(&self) -> &'static Driver {
        self.context.driver
    }

    /// Makes the context current on the calling thread.
    pub(crate) fn make_current(&self) -> Result<(), Failure> {
        // SAFETY: a live context.
        unsafe { call!(self.driver(), cuCtxSetCurrent(self.context.handle)) }
    }

    /// Waits for everything enqueued.
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: a live stream.
        unsafe { call!(self.driver(), cuStreamSynchronize(self.stream)) }
    }

    /// Bytes free on the GPU.
    pub(crate) fn free_memory(&self) -> Result<u64, Failure> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for two integers.
        unsafe { call!(self.driver(), cuMemGetInfo_v2(&raw mut free, &raw mut total))? };
        Ok(free as u64)
    }

    /// Loads a module of machine code for this GPU.
    pub(crate) fn module(&self, image: &'static [u8]) -> Result<Module, Failure> {
        let mut handle = null_mut();
        // SAFETY: a whole fat binary, embedded by the build.
        unsafe { call!(self.driver(), cuModuleLoadData(&raw mut handle, image.as_ptr().cast()))? };
        Ok(Module { context: Arc::clone(&self.context), handle })
    }

    /// Lets a kernel have as much shared memory as a block can, less what it has as static memory.
    pub(crate) fn allow_shared(&self, kernel: Kernel, fixed: usize) -> Result<(), Failure> {
        // The limit holds for static and dynamic together.
        let bytes = self.info.shared_per_block.saturating_sub(fixed);
        // SAFETY: a live kernel.
        unsafe { call!(self.driver(), cuFuncSetAttribute(kernel.0, sys::MAX_DYNAMIC_SHARED, bytes as c_int)) }
    }

    /// Clusters of a launch that run at a time, if nothing else does: fewer than their blocks would be without them, as a
    /// cluster lies in one part of the GPU, and cards differ in how many multiprocessors these have.
    pub(crate) fn clusters_at_a_time(&self, kernel: Kernel, shape: Shape) -> Result<usize, Failure> {
        let mut attributes = [sys::LaunchAttribute::cluster(shape.cluster)];
        let config = sys::LaunchConfig {
            grid: [shape.cluster, 1, 1],
            block: [shape.block, 1, 1],
            shared_bytes: shape.shared,
            stream: self.stream,
            attributes: attributes.as_mut_ptr(),
            attribute_count: 1,
        };
        let mut clusters = 0;
        // SAFETY: a live kernel, and a description of a launch that outlives the call.
        unsafe {
            call!(
                self.driver(),
                cuOccupancyMaxActiveClusters(&raw mut clusters, kernel.0, &raw const config)
            )?;
        }
        Ok(clusters.max(0) as usize)
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// `args` is the kernel's only parameter, of the type that it has, and what it points to is there until the kernel
    /// has run; the grid is one that the kernel stays inside its memory for.
    pub(crate) unsafe fn launch(&self, kernel: Kernel, shape: Shape, args: &[u64]) -> Result<(), Failure> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        // On Hopper and later a kernel starts before the one before has ended, and waits for it in `grid_wait`.
        let mut attributes =
            [sys::LaunchAttribute::programmatic(), sys::LaunchAttribute::cluster(shape.cluster)];
        let count = match (self.info.has_clusters(), shape.cluster) {
            (false, _) => 0,
            (true, 1) => 1,
            (true, _) => 2,
        };
        let config = sys::LaunchConfig {
            grid: shape.grid,
            block: [shape.block, 1, 1],
            shared_bytes: shape.shared,
            stream: self.stream,
            attributes: attributes.as_mut_ptr(),
            attribute_count: count,
        };
        let mut parameters = [args.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise; the driver copies the parameter before it returns.
        unsafe {
            call!(
                self.driver(),
                cuLaunchKernelEx(&raw const config, kernel.0, parameters.as_mut_ptr(), null_mut())
            )
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the stream is this one's; work on it is finished first.
        unsafe {
            (self.driver().cuStreamSynchronize)(self.stream);
            (self.driver().cuStreamDestroy_v2)(self.stream);
        }
    }
}

/// Machine code on the GPU.
pub(crate) struct Module {
    context: Arc<Context>,
    handle: *mut c_void,
}

// SAFETY: a handle that any thread with the context may use.
unsafe impl Send for Module {}

/// A kernel of a module that is never unloaded before the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kernel(*mut c_void);

// SAFETY: a handle that any thread with the context may use.
unsafe impl Send for Kernel {}
// SAFETY: as above; the handle is never written.
unsafe impl Sync for Kernel {}

impl Module {
    /// The kernel `name`.
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel, Failure> {
        let mut handle = null_mut();
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: a live module and a string that ends with zero.
        unsafe {
            call!(self.context.driver, cuModuleGetFunction(&raw mut handle, self.handle, name.as_ptr()))?
        };
        Ok(Kernel(handle))
    }

    /// Writes the variable `name`, whose size is that of `bytes`.
    pub(crate) fn set_global(&self, gpu: &Gpu, name: &str, bytes: &[u8]) -> Result<(), DeviceError> {
        let (mut address, mut size) = (0, 0);
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: a live module, places for two integers, a string that ends with zero.
        unsafe {
            call!(
                gpu.driver(),
                cuModuleGetGlobal_v2(&raw mut address, &raw mut size, self.handle, text.as_ptr())
            )?;
        }
        if size != bytes.len() {
            return Err(DeviceError::Fault(format!("{name} has {size} bytes, expected {}", bytes.len())));
        }
        // SAFETY: the variable is `size` bytes, as checked; the copy has ended when `synchronize` returns.
        unsafe {
            call!(gpu.driver(), cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), size, gpu.stream))?
        };
        Ok(gpu.synchronize()?)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `Gpu::module`; kernels of it are dropped with the device that holds it.
        unsafe { (self.context.driver.cuModuleUnload)(self.handle) };
    }
}
