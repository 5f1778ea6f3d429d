//! Q4_1: `w = d·q + m`, q of 4 bits. Block: d f16, m f16, nibbles as in Q4_0. Group of two blocks: 2 × 32 B d,
//! 2 × 32 B m, 2 × 256 B nibbles.

use super::field::Field;
use super::q4_0::nibbles;
use super::{Block32, Panel};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q4_1;

const D: usize = 0;
const M: usize = 64;
const Q: usize = 128;

impl Panel for Q4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;
    const BLOCKS: usize = 2;
    const GROUP_BYTES: usize = 640;
    const FIELDS: &'static [Field] = &[
        Field::halves(0, D, 1).per_slot(32),
        Field::halves(2, M, 1).per_slot(32),
        Field::units(4, Q, 4).per_slot(256),
    ];
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Block32 for Q4_1 {
    const BITS: u32 = 4;
    const MAX: u32 = 15;
    const HAS_MIN: bool = true;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, slot: usize, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe { nibbles::<S>(group.add(Q + 256 * slot), u) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, slot: usize) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::load_f16(group.add(D + 32 * slot)) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(group: *const u8, slot: usize) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::load_f16(group.add(M + 32 * slot)) }
    }
}
