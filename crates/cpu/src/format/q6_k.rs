//! Q6_K: `w = d·sc·(q − 32)`, q of 6 bits, sc an i8 per 16. Block of 256: 128 B low nibbles, 64 B upper crumbs, 16 B sc,
//! d f16. Per 128 values: quarter s (32 values) has its nibbles in bytes `32·(s mod 2)…` (low for s < 2, else high) and
//! its crumbs at bit 2s of the 32 crumb bytes. Group of one block, the same size: 2048 B nibbles, 1024 B crumbs,
//! 16 × 16 B sc, 32 B d.

use super::{Panel, Super256, copy_half, copy_unit};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Q6K;

const H: usize = 2048;
const SC: usize = 3072;
const D: usize = 3328;

impl Panel for Q6K {
    const TYPE: GgmlType = GgmlType::Q6_K;
    const BLOCKS: usize = 1;
    const GROUP_BYTES: usize = 3360;

    fn pack(block: &[u8], row: usize, _slot: usize, group: &mut [u8]) {
        for i in 0..32 {
            copy_unit(group, 64 * i + 4 * row, block, 4 * i);
        }
        for i in 0..16 {
            copy_unit(group, H + 64 * i + 4 * row, block, 128 + 4 * i);
            group[SC + 16 * i + row] = block[192 + i];
        }
        copy_half(group, D + 2 * row, block, 208);
    }

    fn unpack(group: &[u8], row: usize, _slot: usize, block: &mut [u8]) {
        for i in 0..32 {
            copy_unit(block, 4 * i, group, 64 * i + 4 * row);
        }
        for i in 0..16 {
            copy_unit(block, 128 + 4 * i, group, H + 64 * i + 4 * row);
            block[192 + i] = group[SC + 16 * i + row];
        }
        copy_half(block, 208, group, D + 2 * row);
    }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Super256 for Q6K {
    const SCALED: usize = 16;
    const MAX: u32 = 63;
    const ZERO: i32 = 32;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, u: usize) -> S::B {
        let (half, s, i) = (u / 32, u / 8 % 4, u % 8);
        // SAFETY: see the impl.
        unsafe {
            let low = S::load_bytes(group.add(64 * (16 * half + 8 * (s % 2) + i)));
            let low = S::and(S::shr(low, (s / 2 * 4) as u32), 0x0f);
            let high = S::load_bytes(group.add(H + 64 * (8 * half + i)));
            let high = S::shl(S::and(S::shr(high, 2 * s as u32), 3), 4);
            S::or(low, high)
        }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, s: usize) -> S::I {
        // SAFETY: see the impl.
        unsafe { S::load_i8(group.add(SC + 16 * s)) }
    }
    #[inline(always)]
    unsafe fn d<S: Simd>(group: *const u8) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::load_f16(group.add(D)) }
    }
}
