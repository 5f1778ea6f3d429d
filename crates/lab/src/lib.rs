//! The laboratory: instruments that a change of a kernel is judged by.
//!
//! - [`sass`] reads the machine code of GPU kernels as `cuobjdump` disassembles it: ours, or those of any other library.
//! - [`census`] counts the instructions of a kernel's hot loop by class and multiply-add, and two kernels' side by side.
//! - [`hazards`] finds registers that a warpgroup's matrix step still reads when something writes them.
//! - [`occupancy`] says what registers and shared memory let a multiprocessor hold, and what one block more would cost.
//! - [`layout`] proves where tensor-core instructions, and our kernels, have the values of their operands.
//! - [`pairs`] judges two variants by interleaved pairs of measurements.
//!
//! Registers and spills are held to `crates/cuda/ledger.toml`, by a test of that crate.

pub mod census;
pub mod hazards;
pub mod layout;
pub mod occupancy;
pub mod pairs;
pub mod sass;
