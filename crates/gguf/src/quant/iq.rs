//! IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S: vectors of a codebook.
//!
//! A code picks 8 (IQ1, IQ2) or 4 (IQ3) magnitudes from a table in [`grids`] at once. Signs of 8 values are a byte, or
//! 7 bits of which the eighth follows ([`grids::even_signs`]). 32 values share a scale of 3 or 4 bits, or 16 do.

use super::{Block, block, f16, grids};
use crate::GgmlType;

block! {
    /// 2.0625 bits: 8-bit codes, 7-bit signs, a 4-bit scale per 32.
    BlockIq2Xxs: IQ2_XXS {
        /// Scale, f16.
        d: [u8; 2],
        /// Per 32 values: four codes, then a little-endian u32 of four 7-bit signs and, on top, the scale.
        qs: [[u8; 8]; 8],
    }
}

block! {
    /// 2.3125 bits: 9-bit codes, 7-bit signs, a 4-bit scale per 16.
    BlockIq2Xs: IQ2_XS {
        /// Scale, f16.
        d: [u8; 2],
        /// Per 8 values a little-endian u16: code, then signs on top.
        qs: [[u8; 2]; 32],
        /// Per 32 values: scale of the first 16 in the low nibble, of the last 16 in the high one.
        scales: [u8; 8],
    }
}

block! {
    /// 2.5625 bits: 10-bit codes, 8 signs, a 4-bit scale per 16.
    BlockIq2S: IQ2_S {
        /// Scale, f16.
        d: [u8; 2],
        /// Lower 8 bits of the codes.
        qs: [u8; 32],
        /// Signs, a byte per 8 values.
        signs: [u8; 32],
        /// Per 32 values: upper two bits of four codes.
        qh: [u8; 8],
        /// Per 32 values: scale of the first 16 in the low nibble, of the last 16 in the high one.
        scales: [u8; 8],
    }
}

block! {
    /// 3.0625 bits: 8-bit codes of 4 values, 7-bit signs of 8, a 4-bit scale per 32.
    BlockIq3Xxs: IQ3_XXS {
        /// Scale, f16.
        d: [u8; 2],
        /// Codes, a byte per 4 values.
        qs: [u8; 64],
        /// Per 32 values a little-endian u32: four 7-bit signs and, on top, the scale.
        signs_and_scales: [[u8; 4]; 8],
    }
}

block! {
    /// 3.4375 bits: 9-bit codes of 4 values, 8 signs, a 4-bit scale per 32.
    BlockIq3S: IQ3_S {
        /// Scale, f16.
        d: [u8; 2],
        /// Lower 8 bits of the codes.
        qs: [u8; 64],
        /// Per 32 values: ninth bits of eight codes.
        qh: [u8; 8],
        /// Signs, a byte per 8 values.
        signs: [u8; 32],
        /// Scales, a nibble per 32 values, low nibble first.
        scales: [u8; 4],
    }
}

block! {
    /// 1.5625 bits: 11-bit codes, a 3-bit scale and a shift per 32.
    BlockIq1S: IQ1_S {
        /// Scale, f16.
        d: [u8; 2],
        /// Lower 8 bits of the codes.
        qs: [u8; 32],
        /// Per 32 values a little-endian u16: upper three bits of four codes, the scale, and the sign of the shift.
        qh: [[u8; 2]; 8],
    }
}

block! {
    /// 1.75 bits: 11-bit codes and a shift per 8, a 3-bit scale per 16.
    BlockIq1M: IQ1_M {
        /// Lower 8 bits of the codes.
        qs: [u8; 32],
        /// Per 16 values two nibbles: upper three bits of a code, and the sign of its shift.
        qh: [u8; 16],
        /// Per 64 values a little-endian u16: four 3-bit scales and, on top, a nibble of the f16 scale.
        scales: [[u8; 2]; 4],
    }
}

/// What is added to −1, 0 and 1 in IQ1: an eighth, up or down.
const IQ1_SHIFT: f32 = 0.125;

/// Writes the 8 values `scale · magnitude · sign`; `signs` has 1 for minus, the first value lowest.
fn signed(out: &mut [f32; 8], scale: f32, magnitudes: [u8; 8], signs: u8) {
    for (i, (out, magnitude)) in out.iter_mut().zip(magnitudes).enumerate() {
        // A product with −1 is the other sign bit.
        let sign = u32::from(signs >> i & 1) << 31;
        *out = f32::from_bits((scale * f32::from(magnitude)).to_bits() ^ sign);
    }
}

/// Two codebook entries of four magnitudes.
fn both([a, b, c, d]: [u8; 4], [e, f, g, h]: [u8; 4]) -> [u8; 8] {
    [a, b, c, d, e, f, g, h]
}

/// Runs of 8 values, with their numbers.
fn eights(out: &mut [f32]) -> impl Iterator<Item = (usize, &mut [f32; 8])> {
    assert_eq!(out.len(), 256, "a block of 256 values");
    out.as_chunks_mut::<8>().0.iter_mut().enumerate()
}

impl Block for BlockIq2Xxs {
    const TYPE: GgmlType = GgmlType::IQ2_XXS;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        for (i, out) in eights(out) {
            let [codes @ .., a, b, c, e] = self.qs[i / 4];
            let codes: [u8; 4] = codes;
            let packed = u32::from_le_bytes([a, b, c, e]);
            let scale = d * (0.5 + (packed >> 28) as f32) * 0.25;
            let signs = grids::even_signs((packed >> (i % 4 * 7)) as u8);
            signed(out, scale, grids::IQ2_XXS[usize::from(codes[i % 4])], signs);
        }
    }
}

impl Block for BlockIq2Xs {
    const TYPE: GgmlType = GgmlType::IQ2_XS;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        for (i, out) in eights(out) {
            let packed = u16::from_le_bytes(self.qs[i]);
            let scale = d * (0.5 + f32::from(self.scales[i / 4] >> (i % 4 / 2 * 4) & 15)) * 0.25;
            let signs = grids::even_signs((packed >> 9) as u8);
            signed(out, scale, grids::IQ2_XS[usize::from(packed & 511)], signs);
        }
    }
}

impl Block for BlockIq2S {
    const TYPE: GgmlType = GgmlType::IQ2_S;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        for (i, out) in eights(out) {
            let scale = d * (0.5 + f32::from(self.scales[i / 4] >> (i % 4 / 2 * 4) & 15)) * 0.25;
            let high = usize::from(self.qh[i / 4] >> (i % 4 * 2) & 3);
            let code = usize::from(self.qs[i]) | high << 8;
            signed(out, scale, grids::IQ2_S[code], self.signs[i]);
        }
    }
}

impl Block for BlockIq3Xxs {
    const TYPE: GgmlType = GgmlType::IQ3_XXS;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        for (i, out) in eights(out) {
            let packed = u32::from_le_bytes(self.signs_and_scales[i / 4]);
            let scale = d * (0.5 + (packed >> 28) as f32) * 0.5;
            let signs = grids::even_signs((packed >> (i % 4 * 7)) as u8);
            let [first, second] =
                [self.qs[2 * i], self.qs[2 * i + 1]].map(|code| grids::IQ3_XXS[usize::from(code)]);
            signed(out, scale, both(first, second), signs);
        }
    }
}

impl Block for BlockIq3S {
    const TYPE: GgmlType = GgmlType::IQ3_S;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        for (i, out) in eights(out) {
            let scale = d * f32::from(1 + 2 * (self.scales[i / 8] >> (i % 8 / 4 * 4) & 15));
            let [first, second] = [2 * i, 2 * i + 1].map(|j| {
                let high = usize::from(self.qh[j / 8] >> (j % 8) & 1);
                grids::IQ3_S[usize::from(self.qs[j]) | high << 8]
            });
            signed(out, scale, both(first, second), self.signs[i]);
        }
    }
}

/// Writes the 8 values `scale · (grid + shift)`.
fn shifted(out: &mut [f32; 8], scale: f32, code: usize, minus: bool) {
    let shift = if minus { -IQ1_SHIFT } else { IQ1_SHIFT };
    for (out, &value) in out.iter_mut().zip(&grids::IQ1[code]) {
        *out = scale * (f32::from(value) + shift);
    }
}

impl Block for BlockIq1S {
    const TYPE: GgmlType = GgmlType::IQ1_S;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        for (i, out) in eights(out) {
            let packed = u16::from_le_bytes(self.qh[i / 4]);
            let scale = d * f32::from(2 * (packed >> 12 & 7) + 1);
            let code = usize::from(self.qs[i]) | usize::from(packed >> (i % 4 * 3) & 7) << 8;
            shifted(out, scale, code, packed & 0x8000 != 0);
        }
    }
}

impl BlockIq1M {
    /// The scale of the block, of which every 64 values store four bits.
    pub fn d(&self) -> f32 {
        let bits = (0..4).fold(0, |bits, i| bits | u16::from_le_bytes(self.scales[i]) >> 12 << (4 * i));
        f16(bits.to_le_bytes())
    }
}

impl Block for BlockIq1M {
    const TYPE: GgmlType = GgmlType::IQ1_M;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (i, out) in eights(out) {
            let scales = u16::from_le_bytes(self.scales[i / 8]);
            let scale = d * f32::from(2 * (scales >> (i % 8 / 2 * 3) & 7) + 1);
            let packed = self.qh[i / 2] >> (i % 2 * 4);
            let code = usize::from(self.qs[i]) | usize::from(packed & 7) << 8;
            shifted(out, scale, code, packed & 8 != 0);
        }
    }
}
