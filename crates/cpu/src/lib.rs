//! Stage ops on the CPU.
//!
//! [`CpuDevice`] implements [`minfer_ops::Device`]. Below it, from the outside in: `device/` (stages: what is computed
//! in which order, and how work is shared among the [`pool`]'s workers), `matrix` (weights packed into panels),
//! `kernel/` (tile kernels, generic over format and ISA), `format/` (one file per quant type), `arch/` (one file per
//! instruction set, chosen at run time).
//!
//! # Numerics: the `exact` profile
//!
//! The bits of a result are the same on every ISA, for any number of threads, and however tokens are grouped:
//! - K-quants: input rounded to int8 per 256 values, integer sums per super-block, one float step per super-block in
//!   K order.
//! - Other tuned quant types: input rounded to int8 per 32 values, integer sum per 32, one float step per 32 in K order.
//! - Floats, and types without a tuned kernel (dequantized): four chains over `k mod 4` per 256 values, added in order.
//! - Norms, softmax and attention: sixteen lanes, fixed trees, 256-key segments at absolute positions.
//!
//! # Numerics: the `fast` profile
//!
//! As `exact`, but with AMX and from 64 tokens on, quant types with 32-value blocks have input and weights rounded to sixteen
//! bits per 256 values: NMSE at most 1e-7 against double precision. Bits depend on how tokens are grouped. Levels without
//! such forms refuse the profile.
//!
//! Bits are the same for one build; between builds, `sin`/`cos` of the system's math library may differ.

mod arch;
pub mod cores;
pub mod detect;
mod device;
mod format;
mod kernel;
mod matrix;
mod mem;
mod numerics;
pub mod pool;
pub mod probe;
mod simd;
#[cfg(test)]
mod testing;

pub use cores::Cores;
pub use detect::{Host, Isa};
pub use device::{CpuDevice, CpuOptions, Repack};
pub use matrix::{KernelRow, kernels};
pub use numerics::{Numerics, UnknownNumerics};
