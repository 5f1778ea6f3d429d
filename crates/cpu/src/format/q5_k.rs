//! Q5_K: `w = d·sc·q − dmin·m`, q of 5 bits. Block of 256: d f16, dmin f16, 12 B of scales as in Q4_K, 32 B of fifth
//! bits (bit j of byte l belongs to value 32j + l), 128 B nibbles as in Q4_K. Group of one block: 8 × 16 B sc,
//! 8 × 16 B m, 32 B d, 32 B dmin, 512 B fifth bits, 2048 B nibbles.

use super::field::{Field, Spread};
use super::q4_k::{Q4K, nibbles};
use super::{Panel, Super256};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q5K;

const SC: usize = 0;
const M: usize = 128;
const D: usize = 256;
const DMIN: usize = 288;
const H: usize = 320;
const Q: usize = 832;

impl Panel for Q5K {
    const TYPE: GgmlType = GgmlType::Q5_K;
    const BLOCKS: usize = 1;
    const GROUP_BYTES: usize = 2880;
    const FIELDS: &'static [Field] = &[
        Field::halves(0, D, 1),
        Field::halves(2, DMIN, 1),
        Field::units(16, H, 8),
        Field::units(48, Q, 32),
        Field::spread(0, SC, 8),
        Field::spread(8, M, 8),
    ];

    #[inline(always)]
    fn spread(block: &[u8]) -> Spread {
        Q4K::spread(block)
    }
    #[inline(always)]
    fn gather(spread: &Spread, block: &mut [u8]) {
        Q4K::gather(spread, block);
    }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Super256 for Q5K {
    const SCALED: usize = 32;
    const BITS: u32 = 5;
    const MAX: u32 = 31;
    const HAS_MIN: bool = true;
    const D: usize = D;
    const DMIN: usize = DMIN;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe {
            let high = S::select_bit(S::load_bytes(group.add(H + 64 * (u % 8))), (u / 8) as u32, 0x10);
            S::or(nibbles::<S>(group.add(Q), u), high)
        }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, s: usize) -> S::I {
        // SAFETY: see the impl.
        unsafe { S::load_u8(group.add(SC + 16 * s)) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(group: *const u8, s: usize) -> S::I {
        // SAFETY: see the impl.
        unsafe { S::load_u8(group.add(M + 16 * s)) }
    }
}
