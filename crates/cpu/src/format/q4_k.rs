//! Q4_K: `w = d·sc·q − dmin·m`, q of 4 bits, sc and m of 6 bits per 32. Block of 256: d f16, dmin f16, 12 B of scales,
//! 128 B nibbles (per 64 values 32 bytes: low nibbles first). Group of one block: 2048 B nibbles, 8 × 16 B sc,
//! 8 × 16 B m, 32 B d, 32 B dmin: the 6-bit fields are spread to bytes, 148 B per block instead of 144.

use super::field::{Field, Spread};
use super::{Panel, Super256};
use crate::simd::Simd;
use minfer_gguf::GgmlType;
use minfer_gguf::quant::k::{pack_scales_and_mins, scales_and_mins};

pub(crate) struct Q4K;

const SC: usize = 2048;
const M: usize = 2176;
const D: usize = 2304;
const DMIN: usize = 2336;

impl Panel for Q4K {
    const TYPE: GgmlType = GgmlType::Q4_K;
    const BLOCKS: usize = 1;
    const GROUP_BYTES: usize = 2368;
    const FIELDS: &'static [Field] = &[
        Field::halves(0, D, 1),
        Field::halves(2, DMIN, 1),
        Field::units(16, 0, 32),
        Field::spread(0, SC, 8),
        Field::spread(8, M, 8),
    ];

    /// Scales, then minima, of the twelve bytes that start at byte 4.
    #[inline(always)]
    fn spread(block: &[u8]) -> Spread {
        let packed = block[4..16].try_into().unwrap_or(&[0; 12]);
        let (scales, mins) = scales_and_mins(packed);
        std::array::from_fn(|i| if i < 8 { scales[i] } else { mins[i - 8] })
    }
    #[inline(always)]
    fn gather(spread: &Spread, block: &mut [u8]) {
        let (scales, mins) = (std::array::from_fn(|i| spread[i]), std::array::from_fn(|i| spread[8 + i]));
        block[4..16].copy_from_slice(&pack_scales_and_mins(&scales, &mins));
    }
}

/// Nibble unit `u` (0–63) of a K-quant's 2048 interleaved bytes.
///
/// # Safety
/// `p` is valid for 2048 bytes; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn nibbles<S: Simd>(p: *const u8, u: usize) -> S::B {
    let (sub, i) = (u / 8, u % 8);
    // SAFETY: the unit lies within the 2048 bytes.
    unsafe {
        let raw = S::load_bytes(p.add(64 * (sub / 2 * 8 + i)));
        S::and(S::shr(raw, (sub % 2 * 4) as u32), 0x0f)
    }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Super256 for Q4K {
    const SCALED: usize = 32;
    const BITS: u32 = 4;
    const MAX: u32 = 15;
    const HAS_MIN: bool = true;
    const D: usize = D;
    const DMIN: usize = DMIN;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe { nibbles::<S>(group, u) }
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
