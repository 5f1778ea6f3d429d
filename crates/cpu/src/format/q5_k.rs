//! Q5_K: `w = d·sc·q − dmin·m`, q of 5 bits. Block of 256: d f16, dmin f16, 12 B of scales as in Q4_K, 32 B of fifth
//! bits (bit j of byte l belongs to value 32j + l), 128 B nibbles as in Q4_K. Group of one block: 8 × 16 B sc,
//! 8 × 16 B m, 32 B d, 32 B dmin, 512 B fifth bits, 2048 B nibbles.

use super::q4_k::{collapse_scales, expand_scales, nibbles};
use super::{Panel, Super256, copy_half, copy_unit};
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

    fn pack(block: &[u8], row: usize, _slot: usize, group: &mut [u8]) {
        copy_half(group, D + 2 * row, block, 0);
        copy_half(group, DMIN + 2 * row, block, 2);
        let (scales, mins) = expand_scales(&block[4..16]);
        for j in 0..8 {
            group[SC + 16 * j + row] = scales[j];
            group[M + 16 * j + row] = mins[j];
            copy_unit(group, H + 64 * j + 4 * row, block, 16 + 4 * j);
        }
        for i in 0..32 {
            copy_unit(group, Q + 64 * i + 4 * row, block, 48 + 4 * i);
        }
    }

    fn unpack(group: &[u8], row: usize, _slot: usize, block: &mut [u8]) {
        copy_half(block, 0, group, D + 2 * row);
        copy_half(block, 2, group, DMIN + 2 * row);
        let scales = std::array::from_fn(|j| group[SC + 16 * j + row]);
        let mins = std::array::from_fn(|j| group[M + 16 * j + row]);
        collapse_scales(scales, mins, &mut block[4..16]);
        for j in 0..8 {
            copy_unit(block, 16 + 4 * j, group, H + 64 * j + 4 * row);
        }
        for i in 0..32 {
            copy_unit(block, 48 + 4 * i, group, Q + 64 * i + 4 * row);
        }
    }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Super256 for Q5K {
    const SCALED: usize = 32;
    const BITS: u32 = 5;
    const MAX: u32 = 31;
    const HAS_MIN: bool = true;

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
