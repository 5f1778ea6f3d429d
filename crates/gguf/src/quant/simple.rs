//! Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1: 32 values under one scale.
//!
//! 4-bit codes are stored as two halves: byte `i` has the code of value `i` in its low nibble and that of value
//! `i + 16` in its high one. The fifth bits of Q5 are 32 bits of their own, bit `i` belonging to value `i`.

use super::{Block, Quantize, block, f16, to_f16};
use crate::GgmlType;

block! {
    /// `x = d · (q − 8)`, `q` in 0…15.
    BlockQ4_0: Q4_0 {
        /// Scale, f16.
        d: [u8; 2],
        /// Codes: low nibbles 0…15, high nibbles 16…31.
        qs: [u8; 16],
    }
}

block! {
    /// `x = d · q + m`, `q` in 0…15.
    BlockQ4_1: Q4_1 {
        /// Scale, f16.
        d: [u8; 2],
        /// Minimum, f16.
        m: [u8; 2],
        /// Codes: low nibbles 0…15, high nibbles 16…31.
        qs: [u8; 16],
    }
}

block! {
    /// `x = d · (q − 16)`, `q` in 0…31.
    BlockQ5_0: Q5_0 {
        /// Scale, f16.
        d: [u8; 2],
        /// Fifth bits, a little-endian u32.
        qh: [u8; 4],
        /// Lower four bits: low nibbles 0…15, high nibbles 16…31.
        qs: [u8; 16],
    }
}

block! {
    /// `x = d · q + m`, `q` in 0…31.
    BlockQ5_1: Q5_1 {
        /// Scale, f16.
        d: [u8; 2],
        /// Minimum, f16.
        m: [u8; 2],
        /// Fifth bits, a little-endian u32.
        qh: [u8; 4],
        /// Lower four bits: low nibbles 0…15, high nibbles 16…31.
        qs: [u8; 16],
    }
}

block! {
    /// `x = d · q`.
    BlockQ8_0: Q8_0 {
        /// Scale, f16.
        d: [u8; 2],
        /// Codes in order.
        qs: [i8; 32],
    }
}

block! {
    /// `x = d · q`. A format of activations, not of files: the sum lets a product with a `_1` type add its minimum
    /// once per block.
    BlockQ8_1: Q8_1 {
        /// Scale, f16.
        d: [u8; 2],
        /// `d · Σq`, f16.
        s: [u8; 2],
        /// Codes in order.
        qs: [i8; 32],
    }
}

/// The 32 4-bit codes of `qs`.
fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// The inverse of [`nibbles`], of the lower four bits of each code.
fn pack_nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| codes[i] & 15 | codes[i + 16] << 4)
}

/// The 32 5-bit codes of `qs` and `qh`.
fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let (low, high) = (nibbles(qs), u32::from_le_bytes(qh));
    std::array::from_fn(|i| low[i] | ((high >> i & 1) as u8) << 4)
}

/// The fifth bits of each code.
fn pack_fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    codes.iter().enumerate().fold(0u32, |bits, (i, code)| bits | u32::from(code >> 4) << i).to_le_bytes()
}

/// Writes `convert(code)` for each code.
fn write<T: Copy>(out: &mut [f32], codes: &[T; 32], convert: impl Fn(T) -> f32) {
    let out: &mut [f32; 32] = out.try_into().expect("a block of 32 values");
    *out = codes.map(convert);
}

impl Block for BlockQ4_0 {
    const TYPE: GgmlType = GgmlType::Q4_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        write(out, &nibbles(&self.qs), |q| d * (f32::from(q) - 8.0));
    }
}

impl Block for BlockQ4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (f16(self.d), f16(self.m));
        write(out, &nibbles(&self.qs), |q| d * f32::from(q) + m);
    }
}

impl Block for BlockQ5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        write(out, &five_bits(&self.qs, self.qh), |q| d * (f32::from(q) - 16.0));
    }
}

impl Block for BlockQ5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (f16(self.d), f16(self.m));
        write(out, &five_bits(&self.qs, self.qh), |q| d * f32::from(q) + m);
    }
}

impl Block for BlockQ8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        write(out, &self.qs, |q| d * f32::from(q));
    }
}

impl Block for BlockQ8_1 {
    const TYPE: GgmlType = GgmlType::Q8_1;

    fn dequantize(&self, out: &mut [f32]) {
        let d = f16(self.d);
        write(out, &self.qs, |q| d * f32::from(q));
    }
}

/// `1 / d`, or 0 if that is no number to multiply by.
pub(super) fn inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The value of largest magnitude, the first of equals.
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, &value| if value.abs() > most.abs() { value } else { most })
}

/// Scale and codes of a symmetric type with codes 0…`2·zero − 1`. The extreme value gets code 0, for the codes reach
/// one step further on that side.
fn symmetric(values: &[f32], zero: f32) -> (f32, [u8; 32]) {
    let d = extreme(values) / -zero;
    let inverse = inverse(d);
    (d, std::array::from_fn(|i| (values[i] * inverse + zero).round().clamp(0.0, 2.0 * zero - 1.0) as u8))
}

/// Scale, minimum and codes 0…`top` of a type with a minimum.
fn affine(values: &[f32], top: f32) -> (f32, f32, [u8; 32]) {
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / top;
    let inverse = inverse(d);
    (d, min, std::array::from_fn(|i| ((values[i] - min) * inverse).round().clamp(0.0, top) as u8))
}

/// Scale and codes −127…127.
fn eight_bits(values: &[f32]) -> (f32, [i8; 32]) {
    let d = extreme(values).abs() / 127.0;
    let inverse = inverse(d);
    (d, std::array::from_fn(|i| (values[i] * inverse).round() as i8))
}

impl Quantize for BlockQ4_0 {
    fn quantize(values: &[f32]) -> BlockQ4_0 {
        let (d, codes) = symmetric(values, 8.0);
        BlockQ4_0 { d: to_f16(d), qs: pack_nibbles(&codes) }
    }
}

impl Quantize for BlockQ4_1 {
    fn quantize(values: &[f32]) -> BlockQ4_1 {
        let (d, m, codes) = affine(values, 15.0);
        BlockQ4_1 { d: to_f16(d), m: to_f16(m), qs: pack_nibbles(&codes) }
    }
}

impl Quantize for BlockQ5_0 {
    fn quantize(values: &[f32]) -> BlockQ5_0 {
        let (d, codes) = symmetric(values, 16.0);
        BlockQ5_0 { d: to_f16(d), qh: pack_fifth_bits(&codes), qs: pack_nibbles(&codes) }
    }
}

impl Quantize for BlockQ5_1 {
    fn quantize(values: &[f32]) -> BlockQ5_1 {
        let (d, m, codes) = affine(values, 31.0);
        BlockQ5_1 { d: to_f16(d), m: to_f16(m), qh: pack_fifth_bits(&codes), qs: pack_nibbles(&codes) }
    }
}

impl Quantize for BlockQ8_0 {
    fn quantize(values: &[f32]) -> BlockQ8_0 {
        let (d, qs) = eight_bits(values);
        BlockQ8_0 { d: to_f16(d), qs }
    }
}

impl Quantize for BlockQ8_1 {
    fn quantize(values: &[f32]) -> BlockQ8_1 {
        let (d, qs) = eight_bits(values);
        let sum: i32 = qs.iter().map(|&q| i32::from(q)).sum();
        BlockQ8_1 { d: to_f16(d), s: to_f16(d * sum as f32), qs }
    }
}
