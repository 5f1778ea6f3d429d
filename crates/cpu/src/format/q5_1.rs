//! Q5_1: `w = d·q + m`, q of 5 bits. Block: d f16, m f16, a 32-bit word with the fifth bits, nibbles as in Q4_0. Group
//! of two blocks: 2 × 32 B d, 2 × 32 B m, and for each block 64 B fifth bits and 256 B nibbles.

use super::field::Field;
use super::q4_0::nibbles;
use super::{Block32, Panel};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q5_1;

const D: usize = 0;
const M: usize = 64;
const H: usize = 128;
const Q: usize = 192;

impl Panel for Q5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;
    const BLOCKS: usize = 2;
    const GROUP_BYTES: usize = 768;
    const FIELDS: &'static [Field] = &[
        Field::halves(0, D, 1).per_slot(32),
        Field::halves(2, M, 1).per_slot(32),
        Field::units(4, H, 1).per_slot(320),
        Field::units(8, Q, 4).per_slot(320),
    ];
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Block32 for Q5_1 {
    const BITS: u32 = 5;
    const MAX: u32 = 31;
    const HAS_MIN: bool = true;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, slot: usize, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe {
            let high = S::spread_bits(S::load_bytes(group.add(H + 320 * slot)), u, 0x10);
            S::or(nibbles::<S>(group.add(Q + 320 * slot), u), high)
        }
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
