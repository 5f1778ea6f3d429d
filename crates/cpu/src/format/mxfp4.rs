//! MXFP4: `w = 2^(e − 128)·fp4[q]`, q of 4 bits, fp4 the doubled values of E2M1 (−12…12), e the exponent of an E8M0
//! scale. Block: e, sixteen bytes of nibbles as in Q4_0. Group of four blocks: 4 × 16 B e, 4 × 256 B nibbles.
//!
//! Codes become `fp4 + 12`, which is unsigned: products then need no sign on AVX2 and no surplus on AVX-512.

use super::field::Field;
use super::q4_0::nibbles;
use super::{Block32, Panel};
use crate::simd::Simd;
use minfer_gguf::GgmlType;
use minfer_gguf::quant::grids;

pub(crate) struct Mxfp4;

const E: usize = 0;
const Q: usize = 64;

/// The doubled values, raised to be unsigned.
const RAISED: [i8; 16] = {
    let mut table = grids::FP4_DOUBLED;
    let mut i = 0;
    while i < 16 {
        table[i] += Mxfp4::ZERO as i8;
        i += 1;
    }
    table
};

impl Panel for Mxfp4 {
    const TYPE: GgmlType = GgmlType::MXFP4;
    const BLOCKS: usize = 4;
    const GROUP_BYTES: usize = 1088;
    const FIELDS: &'static [Field] =
        &[Field::bytes(0, E, 1).per_slot(16), Field::units(1, Q, 4).per_slot(256)];
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Block32 for Mxfp4 {
    const BITS: u32 = 5;
    const MAX: u32 = 24;
    const ZERO: i32 = 12;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, slot: usize, u: usize) -> S::B {
        // SAFETY: see the impl; a nibble is an index into the table.
        unsafe { S::lookup(nibbles::<S>(group.add(Q + 256 * slot), u), &RAISED) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, slot: usize) -> S::F {
        // SAFETY: see the impl.
        unsafe {
            // Two powers of two, as the lowest two exponents are those of subnormal numbers.
            let n = S::to_f(S::sub_i(S::load_u8(group.add(E + 16 * slot)), S::splat_i(128)));
            let normal = S::max(n, S::splat(-126.0));
            S::mul(S::exp2i(normal), S::exp2i(S::sub(n, normal)))
        }
    }
}
