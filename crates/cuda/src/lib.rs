//! Stage ops on NVIDIA GPUs.
//!
//! [`CudaDevice`] implements [`minfer_ops::Device`]. Below it, from the outside in: `device/` (stages: which kernels in
//! which order), `matrix` (weights on the GPU and the choice of a kernel for them), `kernels` (the embedded modules),
//! `driver` (the CUDA driver, opened at run time). The kernels are below `csrc/`: `format/` has one header per quant
//! type, kernels are generic over them; `KERNELS.md` lists them, `ledger.toml` has their registers and spills.
//!
//! Without the feature `cuda` only [`ledger`] and [`k_segments`] are here.
//!
//! # Numerics: the `f16` profile
//!
//! - Weights become half precision by one formula per type: `q·s + m` with one rounding, `s` and `m` rounded to half
//!   once, everything times a power of two per tensor that keeps it in range. Codes with a zero `z` are `q·s − z·s`,
//!   `z·s` rounded to half (exact but for the smallest), with one rounding. Q4_K and Q5_K keep
//!   their minima apart: the weight is `q·s` rounded once, and a step of its own per 256 columns adds `Σ m·Σx` over the
//!   groups of 32, each sum of the input as a half and the half of what that lost. Types of
//!   blocks of 32, F16 and BF16 have tuned kernels where rows fill at least three quarters of their whole units of 256
//!   columns, with zeros behind them, and others for the rest, with the same formula and bits.
//! - F16 is taken as it is, and BF16 under the power of two that brings the tensor's largest finite magnitude into
//!   [2^15, 2^16): exact down to 2^-32 of that magnitude, and never off by more than 2^-40 of it. Infinities and NaN stay.
//! - The input of a product is half precision under a power of two per token.
//! - A product is a chain of `m16n8k16` tensor-core steps per segment of K ([`k_segments`]), in single precision;
//!   segments are added in ascending order.
//! - Keys and values are rounded once, when they are cached, as f16, bf16, q8_0 or fp8. What fits no number of the type becomes the
//!   largest that there is. Attention is exact with bf16, over all of its range: queries and weights of keys, halves, are two
//!   bf16 each. A score adds up products with codes of q8_0 for 32 channels at a time, times their scale; a value is the
//!   product of code and scale rounded to half. Numbers of fp8 are halves, and attention is as with these; the scale of a head's
//!   key, a power of two, comes to the score.
//! - Attention takes 256-key segments at absolute positions, each with its own softmax partial, merged in ascending
//!   order.
//! - Norms, softmax sums and everything else are single precision, in an order that the shape fixes.
//!
//! # The `int8` profile
//!
//! As `f16`, but for products on tuned kernels of types with codes. Stages with a matrix that has none, F16 and BF16 among
//! them, are as in `f16`, and so is a feed-forward stage that reads attention's normed input.
//!
//! - The input is bytes under a scale: the largest magnitude over 127, of 256 values where a matrix that reads it is of a type
//!   whose scales are integers times a number of the row (Q2_K to Q6_K, IQ4_XS), else of 32. The factor of a root mean square
//!   norm without bias is applied to the product.
//! - Sums of codes times bytes over a group of the weight's type (16 or 32 columns) are integers, and those of integer scales
//!   times such sums over 256 columns. What follows is single precision: a segment of K is one chain, over its units of 256
//!   columns or over its groups, ascending (`csrc/qt16/integer.cuh`). Segments are added in ascending order.
//!
//! So the bits of a token's keys, values and logits do not depend on the other tokens of a step, and a prompt that is
//! fed whole, in pieces or token by token gives the same. No sum uses float atomics.

pub mod ledger;

#[cfg(feature = "cuda")]
mod args;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod matrix;
mod numerics;
mod prefill;
#[cfg(any(feature = "lab", all(test, feature = "cuda")))]
mod qt16;
#[cfg(all(test, feature = "cuda"))]
mod testing;

#[cfg(feature = "cuda")]
pub use device::{CudaDevice, CudaOptions};
#[cfg(feature = "lab")]
pub use device::{MmqProduct, MmqVariant, Observed, Rate, Repacked};
#[cfg(feature = "cuda")]
pub use driver::{GpuInfo, Unavailable, gpus};
#[cfg(feature = "lab")]
pub use kernels::NVCC;
#[cfg(feature = "cuda")]
pub use kernels::{ARCHS, KERNEL_TYPES, module};
pub use numerics::Numerics;
pub use prefill::Prefill;

/// Number of the K segments of a product with `k` columns: part of the profile, so a function of `k` alone. With K in
/// units of 256, segment `s` begins at unit `s · units / k_segments(k)`, rounded down.
///
/// About 1024 columns each, a power of two, and at most eight: a row's segments are the warps of a block, and adding
/// them costs little.
pub const fn k_segments(k: usize) -> usize {
    let wanted = k.div_ceil(256).div_ceil(4).next_power_of_two();
    if wanted > 8 { 8 } else { wanted }
}
