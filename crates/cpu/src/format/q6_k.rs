//! Q6_K: `w = d·sc·(q − 32)`, q of 6 bits, sc an i8 per 16. Block of 256: 128 B low nibbles, 64 B upper crumbs, 16 B sc,
//! d f16. Per 128 values: quarter s (32 values) has its nibbles in bytes `32·(s mod 2)…` (low for s < 2, else high) and
//! its crumbs at bit 2s of the 32 crumb bytes. Group of one block: 16 × 16 B sc, 32 B d,
//! 32 B unused, and for each half its first eight units of nibbles and its eight units of crumbs in turn, then its other
//! eight units of nibbles.

use super::field::Field;
use super::{Panel, Super256};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q6K;

const SC: usize = 0;
const D: usize = 256;

/// Where nibbles `i` (of sixteen units) of a half lie.
const fn nibbles_at(half: usize, i: usize) -> usize {
    320 + 1536 * half + if i < 8 { 128 * i } else { 512 + 64 * i }
}

/// Where its crumbs `i` (of eight units) lie.
const fn crumbs_at(half: usize, i: usize) -> usize {
    320 + 1536 * half + 128 * i + 64
}

impl Panel for Q6K {
    const TYPE: GgmlType = GgmlType::Q6_K;
    const BLOCKS: usize = 1;
    const GROUP_BYTES: usize = 3392;
    const FIELDS: &'static [Field] = &[
        Field::bytes(192, SC, 16),
        Field::halves(208, D, 1),
        Field::units(0, nibbles_at(0, 0), 8).every(128),
        Field::units(32, nibbles_at(0, 8), 8),
        Field::units(64, nibbles_at(1, 0), 8).every(128),
        Field::units(96, nibbles_at(1, 8), 8),
        Field::units(128, crumbs_at(0, 0), 8).every(128),
        Field::units(160, crumbs_at(1, 0), 8).every(128),
    ];
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Super256 for Q6K {
    const SCALED: usize = 16;
    const BITS: u32 = 6;
    const MAX: u32 = 63;
    const ZERO: i32 = 32;
    const D: usize = D;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, u: usize) -> S::B {
        let (half, s, i) = (u / 32, u / 8 % 4, u % 8);
        // SAFETY: see the impl.
        unsafe {
            let low = S::load_bytes(group.add(nibbles_at(half, 8 * (s % 2) + i)));
            let low = S::and(S::shr(low, (s / 2 * 4) as u32), 0x0f);
            let high = S::load_bytes(group.add(crumbs_at(half, i)));
            let high = S::shl(S::and(S::shr(high, 2 * s as u32), 3), 4);
            S::or(low, high)
        }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, s: usize) -> S::I {
        // SAFETY: see the impl.
        unsafe { S::load_i8(group.add(SC + 16 * s)) }
    }
}
