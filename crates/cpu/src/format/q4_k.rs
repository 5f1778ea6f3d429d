//! Q4_K: `w = d·sc·q − dmin·m`, q of 4 bits, sc and m of 6 bits per 32. Block of 256: d f16, dmin f16, 12 B of scales,
//! 128 B nibbles (per 64 values 32 bytes: low nibbles first). Group of one block: 2048 B nibbles, 8 × 16 B sc,
//! 8 × 16 B m, 32 B d, 32 B dmin: the 6-bit fields are spread to bytes, 148 B per block instead of 144.

use super::{Panel, Super256, copy_half, copy_unit};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q4K;

const SC: usize = 2048;
const M: usize = 2176;
const D: usize = 2304;
const DMIN: usize = 2336;

/// The eight scales and eight minima of a Q4_K or Q5_K block, from their 12 bytes: fields 0–3 in the low six bits of
/// bytes 0–3 and 4–7; fields 4–7 in the nibbles of bytes 8–11, their upper two bits on top of the former.
pub(crate) fn expand_scales(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        mins[j] = packed[4 + j] & 63;
        scales[4 + j] = (packed[8 + j] & 15) | (packed[j] >> 6 << 4);
        mins[4 + j] = (packed[8 + j] >> 4) | (packed[4 + j] >> 6 << 4);
    }
    (scales, mins)
}

/// Inverse of [`expand_scales`].
pub(crate) fn collapse_scales(scales: [u8; 8], mins: [u8; 8], packed: &mut [u8]) {
    for j in 0..4 {
        packed[j] = scales[j] | (scales[4 + j] >> 4 << 6);
        packed[4 + j] = mins[j] | (mins[4 + j] >> 4 << 6);
        packed[8 + j] = (scales[4 + j] & 15) | (mins[4 + j] << 4);
    }
}

impl Panel for Q4K {
    const TYPE: GgmlType = GgmlType::Q4_K;
    const BLOCKS: usize = 1;
    const GROUP_BYTES: usize = 2368;

    fn pack(block: &[u8], row: usize, _slot: usize, group: &mut [u8]) {
        copy_half(group, D + 2 * row, block, 0);
        copy_half(group, DMIN + 2 * row, block, 2);
        let (scales, mins) = expand_scales(&block[4..16]);
        for j in 0..8 {
            group[SC + 16 * j + row] = scales[j];
            group[M + 16 * j + row] = mins[j];
        }
        for i in 0..32 {
            copy_unit(group, 64 * i + 4 * row, block, 16 + 4 * i);
        }
    }

    fn unpack(group: &[u8], row: usize, _slot: usize, block: &mut [u8]) {
        copy_half(block, 0, group, D + 2 * row);
        copy_half(block, 2, group, DMIN + 2 * row);
        let scales = std::array::from_fn(|j| group[SC + 16 * j + row]);
        let mins = std::array::from_fn(|j| group[M + 16 * j + row]);
        collapse_scales(scales, mins, &mut block[4..16]);
        for i in 0..32 {
            copy_unit(block, 16 + 4 * i, group, 64 * i + 4 * row);
        }
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
    #[inline(always)]
    unsafe fn d<S: Simd>(group: *const u8) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::load_f16(group.add(D)) }
    }
    #[inline(always)]
    unsafe fn dmin<S: Simd>(group: *const u8) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::load_f16(group.add(DMIN)) }
    }
}
