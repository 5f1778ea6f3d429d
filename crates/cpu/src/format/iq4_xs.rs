//! IQ4_XS: `w = d·(sc − 32)·level[q]`, q and levels as in IQ4_NL, sc of 6 bits per 32. Block of 256: d f16, a 16-bit
//! word with the upper two bits of sc, 4 B with their nibbles, 128 B nibbles (per 32 values as in Q4_0). Group of one
//! block: 8 × 16 B sc, 32 B d, 32 B unused, 8 × 256 B nibbles: the 6-bit fields are spread to bytes, 140 B per block
//! instead of 136.
//!
//! Its kernel is that of the types with a float scale per 32: `d·(sc − 32)` has at most 17 significant bits, so an f32
//! holds it exactly.

use super::field::{Field, Spread};
use super::iq4_nl::levels;
use super::{Block32, Panel};
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
    const FIELDS: &'static [Field] =
        &[Field::halves(0, D, 1), Field::units(8, Q, 32), Field::spread(0, SC, 8)];

    #[inline(always)]
    fn spread(block: &[u8]) -> Spread {
        let high = u16::from_le_bytes([block[2], block[3]]);
        std::array::from_fn(|j| match j {
            0..8 => (block[4 + j / 2] >> (j % 2 * 4) & 15) | ((high >> (2 * j)) as u8 & 3) << 4,
            _ => 0,
        })
    }
    #[inline(always)]
    fn gather(spread: &Spread, block: &mut [u8]) {
        let high = (0..8).fold(0, |high, j| high | u16::from(spread[j] >> 4) << (2 * j));
        block[2..4].copy_from_slice(&high.to_le_bytes());
        for i in 0..4 {
            block[4 + i] = (spread[2 * i] & 15) | (spread[2 * i + 1] << 4);
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
