//! IQ4_XS: `w = d·(sc − 32)·level[q]`, q and levels as in IQ4_NL, sc of 6 bits per 32. Block of 256: d f16, a 16-bit
//! word with the upper two bits of sc, 4 B with their nibbles, 128 B nibbles (per 32 values as in Q4_0). Group of one
//! block: 8 × 16 B sc, 32 B d, 32 B unused, 8 × 256 B nibbles: the 6-bit fields are spread to bytes, 140 B per block
//! instead of 136.
//!
//! Its kernel is that of the types with a float scale per 32: `d·(sc − 32)` has at most 17 significant bits, so an f32
//! holds it exactly.

use super::iq4_nl::levels;
use super::{Block32, Panel, copy_half, copy_unit};
use crate::simd::Simd;
use minfer_gguf::GgmlType;

pub(crate) struct Iq4Xs;

const SC: usize = 0;
const D: usize = 128;
const Q: usize = 192;

impl Panel for Iq4Xs {
    const TYPE: GgmlType = GgmlType::IQ4_XS;
    const BLOCKS: usize = 1;
    const GROUP_BYTES: usize = 2240;

    fn pack(block: &[u8], row: usize, _slot: usize, group: &mut [u8]) {
        let high = u16::from_le_bytes([block[2], block[3]]);
        for j in 0..8 {
            let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
            group[SC + 16 * j + row] = low | ((high >> (2 * j)) as u8 & 3) << 4;
        }
        copy_half(group, D + 2 * row, block, 0);
        for i in 0..32 {
            copy_unit(group, Q + 64 * i + 4 * row, block, 8 + 4 * i);
        }
    }

    fn unpack(group: &[u8], row: usize, _slot: usize, block: &mut [u8]) {
        let sc = |j: usize| group[SC + 16 * j + row];
        let high = (0..8).fold(0, |high, j| high | u16::from(sc(j) >> 4) << (2 * j));
        block[2..4].copy_from_slice(&high.to_le_bytes());
        for i in 0..4 {
            block[4 + i] = (sc(2 * i) & 15) | (sc(2 * i + 1) << 4);
        }
        copy_half(block, 0, group, D + 2 * row);
        for i in 0..32 {
            copy_unit(block, 8 + 4 * i, group, Q + 64 * i + 4 * row);
        }
    }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Block32 for Iq4Xs {
    const BITS: u32 = 8;
    const MAX: u32 = 127;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, slot: usize, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe { levels::<S>(group.add(Q + 256 * slot), u) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, slot: usize) -> S::F {
        // SAFETY: see the impl.
        unsafe {
            let sc = S::sub_i(S::load_u8(group.add(SC + 16 * slot)), S::splat_i(32));
            S::mul(S::load_f16(group.add(D)), S::to_f(sc))
        }
    }
}
