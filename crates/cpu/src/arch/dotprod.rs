//! NEON with the dot product of Armv8.2: Cortex-A76 and A55, Neoverse N1, Apple M1, and what came after them.
//!
//! `sdot` multiplies and sums four bytes per lane, which is exactly one unit of a panel. Its unsigned relatives would
//! save nothing: the codes of every format are at most 127 and therefore signed bytes as they are. The intrinsic is not
//! in stable Rust, assembly is. All else is [`super::neon`].

use super::neon::{ByteDot, Neon};
use crate::detect::Isa;
use crate::kernel::gemm::Gemm;
use std::arch::aarch64::*;
use std::arch::asm;

/// Byte products straight to 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Sdot;

// SAFETY (all functions): the trait's contract says that the CPU has `dotprod`.
impl ByteDot for Sdot {
    const ISA: Isa = Isa::Dotprod;

    #[inline(always)]
    unsafe fn dot(mut acc: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
        // SAFETY: the caller vouches for `dotprod`; the instruction reads and writes its operands only.
        unsafe {
            asm!(
                "sdot {acc:v}.4s, {w:v}.16b, {a:v}.16b",
                acc = inout(vreg) acc,
                w = in(vreg) w,
                a = in(vreg) a,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        acc
    }
}

type Dotprod = Neon<Sdot>;

impl Gemm for Dotprod {
    const PANELS: usize = 1;
}

super::entry_points!(Dotprod, "neon,dotprod");
