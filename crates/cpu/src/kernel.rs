//! Tile kernels: written once, generic over the ISA ([`crate::simd::Simd`]) and, for products, over the weight format.
//!
//! The order of every float operation is fixed here and is the `exact` profile: it depends on K, on the head size and
//! on absolute positions, never on how many tokens or threads take part.

// Tiles are arrays of registers: one index runs through several of them.
#![allow(clippy::needless_range_loop)]

pub(crate) mod amx;
pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod gemm;
pub(crate) mod matmul;
pub(crate) mod peak;
pub(crate) mod vector;
