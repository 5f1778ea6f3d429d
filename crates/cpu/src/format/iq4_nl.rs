//! IQ4_NL: `w = d·level[q]`, q of 4 bits, sixteen uneven levels in −127…113. Block and group as in Q4_0.

use super::field::Field;
use super::q4_0::{self, Q4_0};
use super::{Block32, Panel};
use crate::simd::Simd;
use minfer_gguf::GgmlType;
use minfer_gguf::quant::grids;

pub(crate) struct Iq4Nl;

impl Panel for Iq4Nl {
    const TYPE: GgmlType = GgmlType::IQ4_NL;
    const BLOCKS: usize = Q4_0::BLOCKS;
    const GROUP_BYTES: usize = Q4_0::GROUP_BYTES;
    const FIELDS: &'static [Field] = Q4_0::FIELDS;
}

/// Levels of unit `u` (0–7) of the 256 bytes of nibbles at `p`.
///
/// # Safety
/// `p` is valid for 256 bytes; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn levels<S: Simd>(p: *const u8, u: usize) -> S::B {
    // SAFETY: passed on; a nibble is an index into the table.
    unsafe { S::lookup(q4_0::nibbles::<S>(p, u), &grids::IQ4) }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Block32 for Iq4Nl {
    const BITS: u32 = 8;
    const MAX: u32 = 127;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, slot: usize, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe { levels::<S>(group.add(q4_0::Q + 256 * slot), u) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, slot: usize) -> S::F {
        // SAFETY: the group is laid out as Q4_0's.
        unsafe { Q4_0::scale::<S>(group, slot) }
    }
}
