//! Q2_K: `w = d·sc·q − dmin·m`, q of 2 bits, sc and m of 4 bits per 16. Block of 256: 16 B with sc in the low and m in
//! the high nibble, 64 B crumbs, d f16, dmin f16. Per 128 values: 32 bytes, run s of 32 values at bit 2s. Group of one
//! block: 16 × 16 B sc and m, 32 B d, 32 B dmin, 1024 B crumbs.

use super::field::Field;
use super::{Panel, Super256};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q2K;

const SC: usize = 0;
const D: usize = 256;
const DMIN: usize = 288;
const Q: usize = 320;

impl Panel for Q2K {
    const TYPE: GgmlType = GgmlType::Q2_K;
    const BLOCKS: usize = 1;
    const GROUP_BYTES: usize = 1344;
    const FIELDS: &'static [Field] = &[
        Field::bytes(0, SC, 16),
        Field::units(16, Q, 16),
        Field::halves(80, D, 1),
        Field::halves(82, DMIN, 1),
    ];
}

/// Crumb unit `u` (0–63) of a K-quant's 1024 interleaved bytes.
///
/// # Safety
/// `p` is valid for 1024 bytes; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn crumbs<S: Simd>(p: *const u8, u: usize) -> S::B {
    let (half, s, i) = (u / 32, u / 8 % 4, u % 8);
    // SAFETY: the unit lies within the 1024 bytes.
    unsafe { S::and(S::shr(S::load_bytes(p.add(64 * (8 * half + i))), 2 * s as u32), 3) }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Super256 for Q2K {
    const SCALED: usize = 16;
    const BITS: u32 = 2;
    const MAX: u32 = 3;
    const HAS_MIN: bool = true;
    const D: usize = D;
    const DMIN: usize = DMIN;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe { crumbs::<S>(group.add(Q), u) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, s: usize) -> S::I {
        // SAFETY: see the impl.
        unsafe { S::load_bits(group.add(SC + 16 * s), 0, 0x0f) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(group: *const u8, s: usize) -> S::I {
        // SAFETY: see the impl.
        unsafe { S::load_bits(group.add(SC + 16 * s), 4, 0x0f) }
    }
}
