//! AVX-VNNI: the byte products of AVX-512 VNNI in 256-bit registers with VEX encoding, on processors that have no
//! AVX-512 (Intel Alder Lake, Sierra Forest and later, AMD Zen 5). All else is [`super::avx2`].

use super::avx2::{ByteDot, I, Ymm, lanes};
use crate::detect::Isa;
use std::arch::x86_64::*;

/// Byte products straight to 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Dpbusd;

pub(crate) type AvxVnni = Ymm<Dpbusd>;

// SAFETY (all functions): the trait's contract says that the CPU has AVX2 and AVX-VNNI.
impl ByteDot for Dpbusd {
    const ISA: Isa = Isa::AvxVnni;
    const SIGNED_SURPLUS: i32 = 128;

    #[inline(always)]
    fn units_per_dot(_max: u32) -> usize {
        8
    }
    #[inline(always)]
    unsafe fn dot_unsigned(acc: I, w: I, a: i32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let a = [_mm256_set1_epi32(a); 2];
            lanes!(_mm256_dpbusd_avx_epi32, acc, w, a)
        }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: I, w: I, a: i32) -> I {
        // SAFETY: see the impl.
        unsafe {
            let top = [_mm256_set1_epi8(i8::MIN); 2];
            Self::dot_unsigned(acc, lanes!(_mm256_xor_si256, w, top), a)
        }
    }
    #[inline(always)]
    unsafe fn finish(acc: I) -> I {
        acc
    }
}

super::entry_points!(AvxVnni, "avx2,fma,f16c,avxvnni");
