//! Q3_K: `w = d·(sc − 32)·(q − 4)`, q of 3 bits, sc of 6 bits per 16. Block of 256: 32 B third bits (run s of 32 values
//! at bit s), 64 B crumbs as in Q2_K, 12 B of scales, d f16. Group of one block: 2 × 6 × 16 B of scales, 32 B d, 32 B
//! unused, 512 B third bits, 1024 B crumbs.
//!
//! Eight scales are six bytes per row: each byte has one of the first six scales in its low bits, and two bits of the
//! seventh (bytes 0–2) or the eighth (bytes 3–5) above.

use super::field::{Field, Spread};
use super::q2_k::crumbs;
use super::{Panel, Super256};
use crate::simd::Simd;
use minfer_gguf::GgmlType;
use minfer_gguf::quant::k::{pack_scales_of_16, scales_of_16};

pub(crate) struct Q3K;

const SC: usize = 0;
const D: usize = 192;
const H: usize = 256;
const Q: usize = 768;

impl Panel for Q3K {
    const TYPE: GgmlType = GgmlType::Q3_K;
    const BLOCKS: usize = 1;
    const GROUP_BYTES: usize = 1792;
    const FIELDS: &'static [Field] =
        &[Field::units(0, H, 8), Field::units(32, Q, 16), Field::spread(0, SC, 12), Field::halves(108, D, 1)];

    #[inline(always)]
    fn spread(block: &[u8]) -> Spread {
        let scales = scales_of_16(block[96..108].try_into().unwrap_or(&[0; 12]));
        std::array::from_fn(|i| match (i / 6, i % 6) {
            (half @ 0..2, j) => {
                scales[8 * half + j] | (scales[8 * half + 6 + j / 3] >> (2 * (j % 3)) & 3) << 6
            }
            _ => 0,
        })
    }
    #[inline(always)]
    fn gather(spread: &Spread, block: &mut [u8]) {
        let scales = std::array::from_fn(|i| match (&spread[6 * (i / 8)..][..6], i % 8) {
            (bytes, j @ 0..6) => bytes[j] & 63,
            (bytes, j) => (0..3).fold(0, |sc, k| sc | bytes[3 * (j - 6) + k] >> 6 << (2 * k)),
        });
        block[96..108].copy_from_slice(&pack_scales_of_16(&scales));
    }
}

// SAFETY (all functions): offsets lie inside the group that the caller vouches for.
impl Super256 for Q3K {
    const SCALED: usize = 16;
    const BITS: u32 = 3;
    const MAX: u32 = 7;
    const ZERO: i32 = 4;
    const D: usize = D;

    #[inline(always)]
    unsafe fn unit<S: Simd>(group: *const u8, u: usize) -> S::B {
        // SAFETY: see the impl.
        unsafe {
            let high = S::select_bit(S::load_bytes(group.add(H + 64 * (u % 8))), (u / 8) as u32, 4);
            S::or(crumbs::<S>(group.add(Q), u), high)
        }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(group: *const u8, s: usize) -> S::I {
        let (half, j) = (s / 8, s % 8);
        // SAFETY: see the impl.
        unsafe {
            let row = group.add(SC + 96 * half);
            let sc = if j < 6 {
                S::load_bits(row.add(16 * j), 0, 63)
            } else {
                // Two bits of each of three bytes, moved to their places.
                let row = row.add(48 * (j - 6));
                let low = S::add_i(S::load_bits(row, 6, 0x03), S::load_bits(row.add(16), 4, 0x0c));
                S::add_i(low, S::load_bits(row.add(32), 2, 0x30))
            };
            S::sub_i(sc, S::splat_i(32))
        }
    }
}
