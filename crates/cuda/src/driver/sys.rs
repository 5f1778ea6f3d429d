//! The driver's functions that minfer uses, as `cuda.h` of CUDA 13.0 declares them, found in the library at run time.
//!
//! Statuses stay integers: a newer driver may return one that this list does not know. A missing function is an error,
//! not a panic.

#![allow(non_snake_case, reason = "the driver's names")]

use super::{NEEDED, Unavailable};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

/// `CUresult`; 0 is success.
pub(super) type Status = c_int;
type Handle = *mut c_void;
type Address = u64;

/// `CU_DEVICE_ATTRIBUTE_*`.
pub(super) const MULTIPROCESSOR_COUNT: c_int = 16;
pub(super) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub(super) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
pub(super) const MAX_SHARED_PER_BLOCK_OPTIN: c_int = 97;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub(super) const MAX_DYNAMIC_SHARED: c_int = 8;
/// `CU_STREAM_NON_BLOCKING`.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub(super) const CAPTURE_THREAD_LOCAL: c_int = 1;

/// `CUlaunchConfig`.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *mut LaunchAttribute,
    pub(super) attribute_count: c_uint,
}

/// `CUlaunchAttribute`: an id, and a union of 64 bytes.
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    id: c_int,
    unused: c_int,
    value: [c_int; 16],
}

impl LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`, allowed.
    pub(super) fn programmatic() -> LaunchAttribute {
        let mut value = [0; 16];
        value[0] = 1;
        LaunchAttribute { id: 6, unused: 0, value }
    }

    /// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`: clusters of `blocks` blocks along x.
    pub(super) fn cluster(blocks: u32) -> LaunchAttribute {
        let mut value = [0; 16];
        value[..3].copy_from_slice(&[blocks as c_int, 1, 1]);
        LaunchAttribute { id: 4, unused: 0, value }
    }
}

macro_rules! driver {
    ($($name:ident: fn($($arg:ty),*);)*) => {
        /// The functions, and what version of the interface the driver has.
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Status,)*
            pub(super) version: i32,
            _library: Library,
        }

        impl Driver {
            fn load() -> Result<Driver, Unavailable> {
                // SAFETY: the driver's library has no initialisation with requirements.
                let library = unsafe { Library::new(LIBRARY) }.map_err(|e| Unavailable::NoDriver(e.to_string()))?;
                // SAFETY: each symbol is a function of this signature by the driver's documentation.
                unsafe {
                    $(let $name = *library
                        .get::<unsafe extern "C" fn($($arg),*) -> Status>(concat!(stringify!($name), "\0").as_bytes())
                        .map_err(|_| Unavailable::NoDriver(concat!("it has no ", stringify!($name)).to_owned()))?;)*
                    let mut driver = Driver { $($name,)* version: 0, _library: library };
                    let status = (driver.cuInit)(0);
                    driver.check("cuInit", status).map_err(super::failed)?;
                    let status = (driver.cuDriverGetVersion)(&raw mut driver.version);
                    driver.check("cuDriverGetVersion", status).map_err(super::failed)?;
                    if driver.version < NEEDED {
                        return Err(Unavailable::OldDriver { found: driver.version });
                    }
                    Ok(driver)
                }
            }
        }
    };
}

#[cfg(windows)]
const LIBRARY: &str = "nvcuda.dll";
#[cfg(not(windows))]
const LIBRARY: &str = "libcuda.so.1";

driver! {
    cuInit: fn(c_uint);
    cuDriverGetVersion: fn(*mut c_int);
    cuGetErrorName: fn(Status, *mut *const c_char);
    cuDeviceGetCount: fn(*mut c_int);
    cuDeviceGet: fn(*mut c_int, c_int);
    cuDeviceGetName: fn(*mut c_char, c_int, c_int);
    cuDeviceGetAttribute: fn(*mut c_int, c_int, c_int);
    cuDeviceTotalMem_v2: fn(*mut usize, c_int);
    cuDevicePrimaryCtxRetain: fn(*mut Handle, c_int);
    cuDevicePrimaryCtxRelease_v2: fn(c_int);
    cuCtxSetCurrent: fn(Handle);
    cuMemGetInfo_v2: fn(*mut usize, *mut usize);
    cuMemAlloc_v2: fn(*mut Address, usize);
    cuMemFree_v2: fn(Address);
    cuMemAllocHost_v2: fn(*mut *mut c_void, usize);
    cuMemFreeHost: fn(*mut c_void);
    cuMemcpyHtoDAsync_v2: fn(Address, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync_v2: fn(*mut c_void, Address, usize, Handle);
    cuMemsetD8Async: fn(Address, u8, usize, Handle);
    cuModuleLoadData: fn(*mut Handle, *const c_void);
    cuModuleUnload: fn(Handle);
    cuModuleGetFunction: fn(*mut Handle, Handle, *const c_char);
    cuModuleGetGlobal_v2: fn(*mut Address, *mut usize, Handle, *const c_char);
    cuFuncSetAttribute: fn(Handle, c_int, c_int);
    cuLaunchKernelEx: fn(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
    cuOccupancyMaxActiveClusters: fn(*mut c_int, Handle, *const LaunchConfig);
    cuStreamCreate: fn(*mut Handle, c_uint);
    cuStreamDestroy_v2: fn(Handle);
    cuStreamSynchronize: fn(Handle);
    cuStreamBeginCapture_v2: fn(Handle, c_int);
    cuStreamEndCapture: fn(Handle, *mut Handle);
    cuGraphInstantiateWithFlags: fn(*mut Handle, Handle, c_ulonglong);
    cuGraphLaunch: fn(Handle, Handle);
    cuGraphExecDestroy: fn(Handle);
    cuGraphDestroy: fn(Handle);
}

impl Driver {
    /// The driver, initialised once for the process.
    pub(super) fn open() -> Result<&'static Driver, Unavailable> {
        static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)
    }
}
