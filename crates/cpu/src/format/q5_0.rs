//! Q5_0: `w = d·(q − 16)`, q of 5 bits. Block: d f16, a 32-bit word with the fifth bits of values 0–31, nibbles as in
//! Q4_0. Group of two blocks: 2 × 32 B d, and for each block 64 B fifth bits and 256 B nibbles.

use super::field::Field;
use super::q4_0::nibbles;
use super::{Block32, Panel};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q5_0;

const D: usize = 0;
const H: usize = 64;
const Q: usize = 128;

impl Panel for Q5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;
    const BLOCKS: usize = 2;
    const GROUP_BYTES: usize = 704;
    const FIELDS: &'static [Field] = &[
        Field::halves(0, D, 1).per_slot(32),
        Field::units(2, H, 1).per_slot(320),
        Field::units(6, Q, 4).per_slot(320),
    ];
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Block32 for Q5_0 {
    const BITS: u32 = 5;
    const MAX: u32 = 31;
    const ZERO: i32 = 16;

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
}
