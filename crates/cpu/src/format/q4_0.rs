//! Q4_0: `w = d·(q − 8)`, q of 4 bits. Block: d f16, sixteen bytes whose low nibbles are values 0–15 and high nibbles
//! values 16–31. Group of two blocks: 2 × 32 B d, 2 × 256 B nibbles.

use super::field::Field;
use super::{Block32, Panel};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q4_0;

const D: usize = 0;
pub(crate) const Q: usize = 64;

impl Panel for Q4_0 {
    const TYPE: GgmlType = GgmlType::Q4_0;
    const BLOCKS: usize = 2;
    const GROUP_BYTES: usize = 576;
    const FIELDS: &'static [Field] =
        &[Field::halves(0, D, 1).per_slot(32), Field::units(2, Q, 4).per_slot(256)];
}

/// Nibble unit `u` (0–7) of the 256 bytes at `p`: units 0–3 are low nibbles, 4–7 high nibbles.
///
/// # Safety
/// `p` is valid for 256 bytes; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn nibbles<S: Simd>(p: *const u8, u: usize) -> S::B {
    // SAFETY: u < 8, so the unit lies within the 256 bytes.
    unsafe {
        let raw = S::load_bytes(p.add(64 * (u % 4)));
        S::and(S::shr(raw, (u / 4 * 4) as u32), 0x0f)
    }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Block32 for Q4_0 {
    const BITS: u32 = 4;
    const MAX: u32 = 15;
    const ZERO: i32 = 8;

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
}
