//! TQ1_0, TQ2_0, Q1_0, Q2_0: codes of two, three or four values.

use super::simple::{extreme, inverse};
use super::{Block, Quantize, block, f16, to_f16};
use crate::GgmlType;

block! {
    /// 256 values: `x = d · q`, `q` in −1, 0, 1, five to a byte.
    ///
    /// A byte holds five ternary digits `t` (that is `q + 1`) as the fraction `0.t₀t₁t₂t₃t₄` in base 3, scaled to 256
    /// and rounded up. Multiplying the byte by 3ⁿ, modulo 256, brings digit `n` to the front, and 3/256 of that is the
    /// digit.
    BlockTq1_0: TQ1_0 {
        /// Five digits each: of byte `i < 32`, values `i + 32n`; of byte `32 + i`, values `160 + i + 16n`.
        qs: [u8; 48],
        /// Four digits each: of byte `i`, values `240 + i + 4n`.
        qh: [u8; 4],
        /// Scale, f16.
        d: [u8; 2],
    }
}

block! {
    /// 256 values: `x = d · (q − 1)`, `q` in 0…2; a code of 3 means 2 where it occurs.
    BlockTq2_0: TQ2_0 {
        /// Codes: 32 bytes for each half of 128 values; bits `2s…2s+1` of byte `i` are value `32s + i` of the half.
        qs: [u8; 64],
        /// Scale, f16.
        d: [u8; 2],
    }
}

block! {
    /// 128 values: `x = d` for a 1, `−d` for a 0.
    BlockQ1_0: Q1_0 {
        /// Scale, f16.
        d: [u8; 2],
        /// Bits in order, the first value lowest.
        qs: [u8; 16],
    }
}

block! {
    /// 64 values: `x = d · (q − 1)`, `q` in 0…3.
    BlockQ2_0: Q2_0 {
        /// Scale, f16.
        d: [u8; 2],
        /// 2-bit codes in order, the first value lowest.
        qs: [u8; 16],
    }
}

/// Digit `n` of a byte of TQ1_0, less one.
fn ternary_digit(byte: u8, n: usize) -> i8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    ((u16::from(byte.wrapping_mul(POWERS[n])) * 3) >> 8) as i8 - 1
}

impl BlockTq1_0 {
    /// Byte and digit of value `i`: an index into `qs` followed by `qh`.
    fn place(i: usize) -> (usize, usize) {
        match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + (i - 160) % 16, (i - 160) / 16),
            _ => (48 + i % 4, (i - 240) / 4),
        }
    }
}

impl Block for BlockTq1_0 {
    const TYPE: GgmlType = GgmlType::TQ1_0;

    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256, "a block of 256 values");
        let d = f16(self.d);
        for (i, out) in out.iter_mut().enumerate() {
            let (byte, digit) = BlockTq1_0::place(i);
            let byte = if byte < 48 { self.qs[byte] } else { self.qh[byte - 48] };
            *out = d * f32::from(ternary_digit(byte, digit));
        }
    }
}

impl Block for BlockTq2_0 {
    const TYPE: GgmlType = GgmlType::TQ2_0;

    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256, "a block of 256 values");
        let d = f16(self.d);
        for (i, out) in out.iter_mut().enumerate() {
            let q = self.qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            *out = d * (f32::from(q) - 1.0);
        }
    }
}

impl Block for BlockQ1_0 {
    const TYPE: GgmlType = GgmlType::Q1_0;

    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 128, "a block of 128 values");
        let d = f16(self.d);
        for (i, out) in out.iter_mut().enumerate() {
            *out = if self.qs[i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
        }
    }
}

impl Block for BlockQ2_0 {
    const TYPE: GgmlType = GgmlType::Q2_0;

    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 64, "a block of 64 values");
        let d = f16(self.d);
        for (i, out) in out.iter_mut().enumerate() {
            let q = self.qs[i / 4] >> (i % 4 * 2) & 3;
            *out = d * (f32::from(q) - 1.0);
        }
    }
}

/// Scale and codes of values that are, or are to become, −d, 0 and d: the codes are 0, 1 and 2.
fn ternary(values: &[f32]) -> (f32, impl Fn(usize) -> u8) {
    let d = extreme(values).abs();
    let inverse = inverse(d);
    (d, move |i| ((values[i] * inverse).round() + 1.0) as u8)
}

impl Quantize for BlockTq1_0 {
    fn quantize(values: &[f32]) -> BlockTq1_0 {
        let (d, code) = ternary(values);
        let mut digits = [0u16; 52];
        for i in 0..256 {
            let (byte, digit) = BlockTq1_0::place(i);
            digits[byte] += u16::from(code(i)) * [81, 27, 9, 3, 1][digit];
        }
        // Rounded up, so that the product's carry never loses a digit.
        let bytes = digits.map(|number| (number * 256).div_ceil(243) as u8);
        BlockTq1_0 {
            qs: std::array::from_fn(|i| bytes[i]),
            qh: std::array::from_fn(|i| bytes[48 + i]),
            d: to_f16(d),
        }
    }
}

impl Quantize for BlockTq2_0 {
    fn quantize(values: &[f32]) -> BlockTq2_0 {
        let (d, code) = ternary(values);
        let byte =
            |i: usize| (0..4).fold(0, |byte, s| byte | code(i / 32 * 128 + 32 * s + i % 32) << (2 * s));
        BlockTq2_0 { qs: std::array::from_fn(byte), d: to_f16(d) }
    }
}

impl Quantize for BlockQ1_0 {
    /// The mean magnitude is the least-squares scale of signs.
    fn quantize(values: &[f32]) -> BlockQ1_0 {
        let d = values.iter().map(|value| value.abs()).sum::<f32>() / 128.0;
        let byte = |i: usize| (0..8).fold(0, |byte, bit| byte | u8::from(values[8 * i + bit] >= 0.0) << bit);
        BlockQ1_0 { d: to_f16(d), qs: std::array::from_fn(byte) }
    }
}

impl Quantize for BlockQ2_0 {
    /// The extreme value gets code 3 (twice the scale) or, in a ternary block, 2: whichever errs less.
    fn quantize(values: &[f32]) -> BlockQ2_0 {
        let most = extreme(values);
        let candidates = [most.abs(), most / 2.0, -most].map(|d| {
            let inverse = inverse(d);
            let codes: [u8; 64] =
                std::array::from_fn(|i| ((values[i] * inverse).round() + 1.0).clamp(0.0, 3.0) as u8);
            let error = |i: usize| (values[i] - d * (f32::from(codes[i]) - 1.0)).powi(2);
            ((0..64).map(error).sum::<f32>(), d, codes)
        });
        let [first, rest @ ..] = candidates;
        let (_, d, codes) =
            rest.into_iter().fold(first, |best, next| if next.0 < best.0 { next } else { best });
        let byte = |i: usize| (0..4).fold(0, |byte, s| byte | codes[4 * i + s] << (2 * s));
        BlockQ2_0 { d: to_f16(d), qs: std::array::from_fn(byte) }
    }
}
