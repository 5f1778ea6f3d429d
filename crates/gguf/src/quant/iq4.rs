//! IQ4_NL and IQ4_XS: 4-bit codes of 16 unevenly spaced levels ([`grids::IQ4`]).

use super::simple::{extreme, inverse};
use super::{Block, Quantize, block, f16, grids, to_f16};
use crate::GgmlType;

block! {
    /// 32 values: `x = d · level[q]`.
    BlockIq4Nl: IQ4_NL {
        /// Scale, f16.
        d: [u8; 2],
        /// Codes: low nibbles 0…15, high nibbles 16…31.
        qs: [u8; 16],
    }
}

block! {
    /// 256 values in groups of 32: `x = (d · (scale − 32)) · level[q]`.
    BlockIq4Xs: IQ4_XS {
        /// Scale of the scales, f16.
        d: [u8; 2],
        /// Upper two bits of the scales, a little-endian u16, the first group lowest.
        scales_h: [u8; 2],
        /// Lower four bits of the scales, low nibble first.
        scales_l: [u8; 4],
        /// Per group of 32: codes as in [`BlockIq4Nl`].
        qs: [[u8; 16]; 8],
    }
}

/// Level of value `i` of 32.
fn level(qs: &[u8; 16], i: usize) -> f32 {
    grids::IQ4[usize::from(qs[i % 16] >> (i / 16 * 4) & 15)].into()
}

impl Block for BlockIq4Nl {
    const TYPE: GgmlType = GgmlType::IQ4_NL;

    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 32, "a block of 32 values");
        let d = f16(self.d);
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * level(&self.qs, i);
        }
    }
}

impl BlockIq4Xs {
    /// The eight 6-bit scales, with the offset of 32 taken off.
    pub fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|i| {
            let low = self.scales_l[i / 2] >> (i % 2 * 4) & 15;
            (low | ((high >> (2 * i) & 3) as u8) << 4) as i8 - 32
        })
    }
}

impl Block for BlockIq4Xs {
    const TYPE: GgmlType = GgmlType::IQ4_XS;

    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256, "a block of 256 values");
        let (d, scales) = (f16(self.d), self.scales());
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(scales[i / 32]) * level(&self.qs[i / 32], i % 32);
        }
    }
}

/// The code whose level is closest to `value`.
fn nearest(value: f32) -> u8 {
    let distance = |code: u8| (f32::from(grids::IQ4[usize::from(code)]) - value).abs();
    (0..16).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}

impl Quantize for BlockIq4Nl {
    /// The extreme value gets the extreme level, then the scale is fitted to the codes by least squares.
    fn quantize(values: &[f32]) -> BlockIq4Nl {
        let inverse = inverse(extreme(values) / f32::from(grids::IQ4[0]));
        let codes: [u8; 32] = std::array::from_fn(|i| nearest(values[i] * inverse));
        let (mut product, mut square) = (0.0, 0.0);
        for (&value, &code) in values.iter().zip(&codes) {
            let level = f32::from(grids::IQ4[usize::from(code)]);
            product += value * level;
            square += level * level; // No level is 0.
        }
        BlockIq4Nl { d: to_f16(product / square), qs: std::array::from_fn(|i| codes[i] | codes[i + 16] << 4) }
    }
}
