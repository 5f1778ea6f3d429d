//! MXFP4 and NVFP4: 4-bit floats (E2M1: a sign, two bits of exponent, one of mantissa) under a shared scale.
//!
//! The magnitudes of E2M1 are 0, ½, 1, 1½, 2, 3, 4 and 6. Code tables hold them doubled ([`grids::FP4_DOUBLED`]) and
//! scales are halved, which changes nothing in exact powers of two.
//!
//! Sources: OCP Microscaling Formats (MX) 1.0 for MXFP4 and E8M0; NVIDIA's NVFP4 for a UE4M3 scale per 16.

use super::simple::extreme;
use super::{Block, Quantize, block, grids};
use crate::GgmlType;

block! {
    /// 32 values: `x = 2^(e − 127) · fp4[q]`.
    BlockMxfp4: MXFP4 {
        /// Exponent of the scale, E8M0.
        e: u8,
        /// Codes: low nibbles 0…15, high nibbles 16…31.
        qs: [u8; 16],
    }
}

block! {
    /// 64 values in groups of 16: `x = scale · fp4[q]`. Files have a further scale per tensor, a tensor of its own.
    BlockNvfp4: NVFP4 {
        /// Scale per group, UE4M3.
        d: [u8; 4],
        /// Per group: codes, low nibbles 0…7, high nibbles 8…15.
        qs: [[u8; 8]; 4],
    }
}

/// Half of the power of two that is the E8M0 scale `e`: 2^(e − 128).
pub const fn e8m0_half(e: u8) -> f32 {
    match e {
        // Below the smallest normal number.
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits((e as u32 - 1) << 23),
    }
}

/// Half of the UE4M3 float `x` (four bits of exponent with bias 7, three of mantissa, no sign). Its one NaN is 0 here,
/// as in ggml; the unused top bit is ignored.
pub fn ue4m3_half(x: u8) -> f32 {
    let (exponent, mantissa) = (x >> 3 & 15, f32::from(x & 7));
    match (x, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 1024.0,
        // 2^(exponent − 8), which is normal.
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((u32::from(exponent) + 119) << 23),
    }
}

impl Block for BlockMxfp4 {
    const TYPE: GgmlType = GgmlType::MXFP4;

    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 32, "a block of 32 values");
        let d = e8m0_half(self.e);
        for (i, out) in out.iter_mut().enumerate() {
            let code = self.qs[i % 16] >> (i / 16 * 4) & 15;
            *out = d * f32::from(grids::FP4_DOUBLED[usize::from(code)]);
        }
    }
}

impl Block for BlockNvfp4 {
    const TYPE: GgmlType = GgmlType::NVFP4;

    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 64, "a block of 64 values");
        for (i, out) in out.iter_mut().enumerate() {
            let d = ue4m3_half(self.d[i / 16]);
            let code = self.qs[i / 16][i % 8] >> (i % 16 / 8 * 4) & 15;
            *out = d * f32::from(grids::FP4_DOUBLED[usize::from(code)]);
        }
    }
}

/// The code closest to `value` in half-steps, and the squared error.
fn nearest(value: f32) -> (u8, f32) {
    let error = |code: u8| (f32::from(grids::FP4_DOUBLED[usize::from(code)]) - value).powi(2);
    let best = (0..16).min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap_or(0);
    (best, error(best))
}

/// The codes of `values` under half-scale `d`, and the squared error in their units.
fn codes<const N: usize>(values: &[f32], d: f32) -> ([u8; N], f32) {
    let mut total = 0.0;
    let codes = std::array::from_fn(|i| {
        let (code, error) = nearest(if d > 0.0 { values[i] / d } else { 0.0 });
        total += error * d * d;
        code
    });
    (codes, total)
}

impl Quantize for BlockMxfp4 {
    /// The exponent that puts the extreme value between 4 and 8 (of which 6 is the most), or the next, whichever errs
    /// less.
    fn quantize(values: &[f32]) -> BlockMxfp4 {
        let exponent = (extreme(values).abs().to_bits() >> 23) as i32 - 2;
        let [near, next] = [exponent, exponent + 1].map(|e| {
            let e = e.clamp(0, 254) as u8;
            (e, codes::<32>(values, e8m0_half(e)))
        });
        let (e, (codes, _)) = if next.1.1 < near.1.1 { next } else { near };
        BlockMxfp4 { e, qs: std::array::from_fn(|i| codes[i] | codes[i + 16] << 4) }
    }
}

impl Quantize for BlockNvfp4 {
    /// Each group takes the scale closest to a sixth of its extreme value.
    fn quantize(values: &[f32]) -> BlockNvfp4 {
        let mut block = BlockNvfp4 { d: [0; 4], qs: [[0; 8]; 4] };
        for (group, values) in values.as_chunks::<16>().0.iter().enumerate() {
            let target = extreme(values).abs() / 12.0;
            let distance = |scale: u8| (ue4m3_half(scale) - target).abs();
            let scale = (0..0x7f).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap_or(0);
            let (codes, _) = codes::<16>(values, ue4m3_half(scale));
            block.d[group] = scale;
            block.qs[group] = std::array::from_fn(|i| codes[i] | codes[i + 8] << 4);
        }
        block
    }
}
