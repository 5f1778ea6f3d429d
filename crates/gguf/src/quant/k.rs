//! Q2_K … Q6_K and Q8_K: 256 values in groups that have small integer scales under one or two float scales.
//!
//! Codes are packed so that a 256-bit register of bytes, shifted and masked, holds codes of consecutive values: 32
//! bytes hold 2-bit codes of four (or nibbles of two) runs of 32 consecutive values, one run per bit position.

use super::{Block, block, f16};
use crate::GgmlType;

block! {
    /// Groups of 16: `x = (d · scale) · q − (dmin · min)`, `q` in 0…3.
    BlockQ2K: Q2_K {
        /// Per group of 16: scale in the low nibble, minimum in the high one.
        scales: [u8; 16],
        /// Codes: 32 bytes for each half of 128 values; bits `2s…2s+1` of byte `i` are value `32s + i` of the half.
        qs: [u8; 64],
        /// Scale of the scales, f16.
        d: [u8; 2],
        /// Scale of the minima, f16.
        dmin: [u8; 2],
    }
}

block! {
    /// Groups of 16: `x = (d · (scale − 32)) · (q − 4)`, `q` in 0…7.
    BlockQ3K: Q3_K {
        /// Third bits: bit `s` of byte `i` is value `32s + i`.
        hmask: [u8; 32],
        /// Lower two bits, as in [`BlockQ2K`].
        qs: [u8; 64],
        /// 6-bit scales, see [`BlockQ3K::scales`].
        scales: [u8; 12],
        /// Scale of the scales, f16.
        d: [u8; 2],
    }
}

block! {
    /// Groups of 32: `x = (d · scale) · q − (dmin · min)`, `q` in 0…15.
    BlockQ4K: Q4_K {
        /// Scale of the scales, f16.
        d: [u8; 2],
        /// Scale of the minima, f16.
        dmin: [u8; 2],
        /// 6-bit scales and minima, see [`scales_and_mins`].
        scales: [u8; 12],
        /// Codes: 32 bytes for each pair of groups, low nibbles the first, high nibbles the second.
        qs: [u8; 128],
    }
}

block! {
    /// Groups of 32: `x = (d · scale) · q − (dmin · min)`, `q` in 0…31.
    BlockQ5K: Q5_K {
        /// Scale of the scales, f16.
        d: [u8; 2],
        /// Scale of the minima, f16.
        dmin: [u8; 2],
        /// 6-bit scales and minima, see [`scales_and_mins`].
        scales: [u8; 12],
        /// Fifth bits: bit `g` of byte `i` is value `i` of group `g`.
        qh: [u8; 32],
        /// Lower four bits, as in [`BlockQ4K`].
        qs: [u8; 128],
    }
}

block! {
    /// Groups of 16: `x = (d · scale) · (q − 32)`, `q` in 0…63.
    BlockQ6K: Q6_K {
        /// Lower four bits: 64 bytes for each half of 128 values, low nibbles the first 64, high nibbles the last.
        ql: [u8; 128],
        /// Upper two bits: 32 bytes for each half, as in [`BlockQ2K`].
        qh: [u8; 64],
        /// Scale per group.
        scales: [i8; 16],
        /// Scale of the scales, f16.
        d: [u8; 2],
    }
}

block! {
    /// `x = d · q`. A format of activations, not of files.
    BlockQ8K: Q8_K {
        /// Scale, f32.
        d: [u8; 4],
        /// Codes in order.
        qs: [i8; 256],
        /// Sum of the codes of each 16, i16.
        bsums: [[u8; 2]; 16],
    }
}

/// The eight 6-bit scales and the eight 6-bit minima of Q4_K and Q5_K.
///
/// The first four of each are the lower six bits of bytes 0…3 (scales) and 4…7 (minima). The last four have their
/// lower four bits in bytes 8…11 (scales in the low nibble), and their upper two in the top bits of bytes 0…7.
pub fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let scale = |i: usize| match i {
        0..4 => packed[i] & 63,
        _ => packed[i + 4] & 15 | packed[i - 4] >> 6 << 4,
    };
    let min = |i: usize| match i {
        0..4 => packed[i + 4] & 63,
        _ => packed[i + 4] >> 4 | packed[i] >> 6 << 4,
    };
    (std::array::from_fn(scale), std::array::from_fn(min))
}

/// The inverse of [`scales_and_mins`].
pub fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] & 63 | scales[i + 4] >> 4 << 6,
        4..8 => mins[i - 4] & 63 | mins[i] >> 4 << 6,
        _ => scales[i - 4] & 15 | mins[i - 4] << 4,
    })
}

/// 2-bit code of value `i` of 256, in the packing of [`BlockQ2K::qs`].
fn two_bits(qs: &[u8; 64], i: usize) -> u8 {
    qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// 4-bit code of value `i` of 256, in the packing of [`BlockQ4K::qs`].
fn four_bits(qs: &[u8; 128], i: usize) -> u8 {
    qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15
}

fn values_256(out: &mut [f32]) -> &mut [f32; 256] {
    out.try_into().expect("a block of 256 values")
}

impl Block for BlockQ2K {
    const TYPE: GgmlType = GgmlType::Q2_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (f16(self.d), f16(self.dmin));
        for (i, out) in values_256(out).iter_mut().enumerate() {
            let packed = self.scales[i / 16];
            let (scale, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
            *out = scale * f32::from(two_bits(&self.qs, i)) - min;
        }
    }
}

/// The sixteen 6-bit scales of Q3_K, as they are stored: 32 more than they mean.
///
/// The lower four bits of scales 0…7 are the low nibbles of bytes 0…7, those of 8…15 the high nibbles; the upper
/// two bits of scale `i` are bits `i / 4 · 2` and on of byte `8 + i % 4`.
pub fn scales_of_16(packed: &[u8; 12]) -> [u8; 16] {
    std::array::from_fn(|i| packed[i % 8] >> (i / 8 * 4) & 15 | (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4)
}

/// The inverse of [`scales_of_16`].
pub fn pack_scales_of_16(scales: &[u8; 16]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..8 => scales[i] & 15 | scales[i + 8] << 4,
        _ => (0..4).fold(0, |packed, j| packed | scales[i - 8 + 4 * j] >> 4 << (2 * j)),
    })
}

impl BlockQ3K {
    /// The sixteen 6-bit scales, with the offset of 32 taken off.
    pub fn scales(&self) -> [i8; 16] {
        scales_of_16(&self.scales).map(|scale| scale as i8 - 32)
    }

    /// The inverse of [`BlockQ3K::scales`].
    pub fn pack_scales(scales: &[i8; 16]) -> [u8; 12] {
        pack_scales_of_16(&scales.map(|scale| (scale + 32) as u8))
    }
}

impl Block for BlockQ3K {
    const TYPE: GgmlType = GgmlType::Q3_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, scales) = (f16(self.d), self.scales());
        for (i, out) in values_256(out).iter_mut().enumerate() {
            let high = self.hmask[i % 32] >> (i / 32) & 1;
            let q = (two_bits(&self.qs, i) | high << 2) as i8 - 4;
            *out = d * f32::from(scales[i / 16]) * f32::from(q);
        }
    }
}

impl Block for BlockQ4K {
    const TYPE: GgmlType = GgmlType::Q4_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (f16(self.d), f16(self.dmin));
        let (scales, mins) = scales_and_mins(&self.scales);
        for (i, out) in values_256(out).iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[i / 32]), dmin * f32::from(mins[i / 32]));
            *out = scale * f32::from(four_bits(&self.qs, i)) - min;
        }
    }
}

impl Block for BlockQ5K {
    const TYPE: GgmlType = GgmlType::Q5_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (f16(self.d), f16(self.dmin));
        let (scales, mins) = scales_and_mins(&self.scales);
        for (i, out) in values_256(out).iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[i / 32]), dmin * f32::from(mins[i / 32]));
            let high = self.qh[i % 32] >> (i / 32) & 1;
            *out = scale * f32::from(four_bits(&self.qs, i) | high << 4) - min;
        }
    }
}

impl Block for BlockQ6K {
    const TYPE: GgmlType = GgmlType::Q6_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        for (i, out) in values_256(out).iter_mut().enumerate() {
            let low = self.ql[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
            let q = (low | two_bits(&self.qh, i) << 4) as i8 - 32;
            *out = d * f32::from(self.scales[i / 16]) * f32::from(q);
        }
    }
}

impl Block for BlockQ8K {
    const TYPE: GgmlType = GgmlType::Q8_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f32::from_le_bytes(self.d);
        for (out, &q) in values_256(out).iter_mut().zip(&self.qs) {
            *out = d * f32::from(q);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_scales_round_trip() {
        let scales = std::array::from_fn(|i| (i * 9 + 1) as u8 & 63);
        let mins = std::array::from_fn(|i| (63 - i * 7) as u8);
        assert_eq!(scales_and_mins(&pack_scales_and_mins(&scales, &mins)), (scales, mins));

        let scales = std::array::from_fn(|i| (i * 4) as i8 - 32);
        let block = BlockQ3K { scales: BlockQ3K::pack_scales(&scales), ..bytemuck::Zeroable::zeroed() };
        assert_eq!(block.scales(), scales);
    }
}
