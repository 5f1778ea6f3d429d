//! Q8_0: `w = d·q`, q an i8. Block: d f16, 32 bytes. Group of two blocks: 2 × 32 B d, 2 × 512 B values.

use super::field::Field;
use super::{Block32, Panel};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q8_0;

const D: usize = 0;
const Q: usize = 64;

impl Panel for Q8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;
    const BLOCKS: usize = 2;
    const GROUP_BYTES: usize = 1088;
    const FIELDS: &'static [Field] =
        &[Field::halves(0, D, 1).per_slot(32), Field::units(2, Q, 8).per_slot(512)];
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Block32 for Q8_0 {
    const BITS: u32 = 8;
    const MAX: u32 = 128;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, slot: usize, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe { S::load_bytes(group.add(Q + 512 * slot + 64 * u)) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, slot: usize) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::load_f16(group.add(D + 32 * slot)) }
    }
}
