//! Rounding values to Q2_K … Q6_K and Q8_K.
//!
//! In three steps, each the best for the step before: a real scale (and minimum) per group that fits its values in
//! the least squares, searched over a few step sizes; the small integer scales of the groups under the block's float
//! scales; the codes under the scales as they will be read.

use super::k::{
    BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockQ8K, pack_scales_and_mins, scales_and_mins,
};
use super::simple::{extreme, inverse};
use super::{Quantize, f16, to_f16};

/// Step sizes to try, as a fraction of the range that the codes are stretched or shrunk by.
const STRETCH: std::ops::RangeInclusive<i32> = -8..=8;

fn squared_error(values: &[f32], approximation: impl Fn(f32) -> f32) -> f32 {
    values.iter().map(|&value| (approximation(value) - value).powi(2)).sum()
}

/// The code of `value` among 0…`top`, for `value ≈ scale · code − min`.
fn affine_code(value: f32, scale: f32, min: f32, top: f32) -> f32 {
    ((value + min) * inverse(scale)).round().clamp(0.0, top)
}

/// Scale and minimum (both at least 0) with `values ≈ scale · code − min`, codes 0…`top`.
fn fit_affine(values: &[f32], top: f32) -> (f32, f32) {
    let low = values.iter().copied().fold(0.0, f32::min);
    let high = values.iter().copied().fold(0.0, f32::max);
    let error = |&(scale, min): &(f32, f32)| {
        squared_error(values, |value| scale * affine_code(value, scale, min, top) - min)
    };
    let first = ((high - low) / top, -low);
    let candidates = STRETCH.map(|step| {
        let scale = (high - low) / (top + step as f32 * top.sqrt() / 16.0);
        let codes: Vec<f32> = values.iter().map(|&value| affine_code(value, scale, -low, top)).collect();
        least_squares(values, &codes)
    });
    let best = candidates
        .map(|fit| (error(&fit), fit))
        .fold((error(&first), first), |best, next| if next.0 < best.0 { next } else { best });
    best.1
}

/// Scale and minimum, not negative, that fit `values ≈ scale · codes − min` best.
fn least_squares(values: &[f32], codes: &[f32]) -> (f32, f32) {
    let n = values.len() as f32;
    let (sum_v, sum_c): (f32, f32) = (values.iter().sum(), codes.iter().sum());
    let sum_cc: f32 = codes.iter().map(|code| code * code).sum();
    let sum_vc: f32 = values.iter().zip(codes).map(|(value, code)| value * code).sum();
    let determinant = n * sum_cc - sum_c * sum_c;
    let scale = (n * sum_vc - sum_v * sum_c) * inverse(determinant);
    let min = (scale * sum_c - sum_v) / n;
    if min >= 0.0 && scale >= 0.0 { (scale, min) } else { ((sum_vc * inverse(sum_cc)).max(0.0), 0.0) }
}

/// The code of `value` among −`half`…`half − 1`, for `value ≈ scale · code`.
fn symmetric_code(value: f32, scale: f32, half: f32) -> f32 {
    (value * inverse(scale)).round().clamp(-half, half - 1.0)
}

/// The scale, of either sign, with `values ≈ scale · code`, codes −`half`…`half − 1`.
fn fit_symmetric(values: &[f32], half: f32) -> f32 {
    let most = extreme(values);
    let error = |scale: f32| squared_error(values, |value| scale * symmetric_code(value, scale, half));
    let first = most / -half;
    let candidates = STRETCH.map(|step| {
        let scale = most / -(half + step as f32 * half.sqrt() / 16.0);
        let (mut product, mut square) = (0.0, 0.0);
        for &value in values {
            let code = symmetric_code(value, scale, half);
            product += value * code;
            square += code * code;
        }
        product * inverse(square)
    });
    let best = candidates
        .map(|scale| (error(scale), scale))
        .fold((error(first), first), |best, next| if next.0 < best.0 { next } else { best });
    best.1
}

/// A float scale, as stored, and integers 0…`top` that times it give `values` (not negative).
fn small_integers<const N: usize>(values: &[f32; N], top: f32) -> ([u8; 2], [u8; N]) {
    let stored = to_f16(values.iter().copied().fold(0.0, f32::max) / top);
    let inverse = inverse(f16(stored));
    (stored, values.map(|value| (value * inverse).round().clamp(0.0, top) as u8))
}

/// A float scale, as stored, and integers −`half`…`half − 1` that times it give `values`.
fn small_signed<const N: usize>(values: &[f32; N], half: f32) -> ([u8; 2], [i8; N]) {
    let stored = to_f16(extreme(values) / -half);
    let inverse = inverse(f16(stored));
    (stored, values.map(|value| (value * inverse).round().clamp(-half, half - 1.0) as i8))
}

/// Packs 2-bit codes in the order of `BlockQ2K::qs`.
fn pack_two_bits(codes: &[u8; 256]) -> [u8; 64] {
    let byte =
        |i: usize| (0..4).fold(0, |byte, s| byte | (codes[i / 32 * 128 + 32 * s + i % 32] & 3) << (2 * s));
    std::array::from_fn(byte)
}

/// Packs the lower four bits of codes in the order of `BlockQ4K::qs`.
fn pack_four_bits(codes: &[u8; 256]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let first = i / 32 * 64 + i % 32;
        codes[first] & 15 | codes[first + 32] << 4
    })
}

/// Packs bit `bit` of codes in the order of `BlockQ5K::qh`.
fn pack_one_bit(codes: &[u8; 256], bit: u32) -> [u8; 32] {
    std::array::from_fn(|i| (0..8).fold(0, |byte, s| byte | (codes[32 * s + i] >> bit & 1) << s))
}

fn groups<const N: usize, const WIDTH: usize, T>(values: &[f32], fit: impl Fn(&[f32]) -> T) -> [T; N] {
    std::array::from_fn(|group| fit(&values[WIDTH * group..WIDTH * (group + 1)]))
}

impl Quantize for BlockQ2K {
    fn quantize(values: &[f32]) -> BlockQ2K {
        let fits: [_; 16] = groups::<16, 16, _>(values, |values| fit_affine(values, 3.0));
        let (d, scales) = small_integers(&fits.map(|fit| fit.0), 15.0);
        let (dmin, mins) = small_integers(&fits.map(|fit| fit.1), 15.0);
        let codes = std::array::from_fn(|i| {
            let (scale, min) = (f16(d) * f32::from(scales[i / 16]), f16(dmin) * f32::from(mins[i / 16]));
            affine_code(values[i], scale, min, 3.0) as u8
        });
        let scales = std::array::from_fn(|i| scales[i] | mins[i] << 4);
        BlockQ2K { scales, qs: pack_two_bits(&codes), d, dmin }
    }
}

impl Quantize for BlockQ3K {
    fn quantize(values: &[f32]) -> BlockQ3K {
        let fits = groups::<16, 16, _>(values, |values| fit_symmetric(values, 4.0));
        let (d, scales) = small_signed(&fits, 32.0);
        let codes = std::array::from_fn(|i| {
            (symmetric_code(values[i], f16(d) * f32::from(scales[i / 16]), 4.0) + 4.0) as u8
        });
        let (hmask, qs) = (pack_one_bit(&codes, 2), pack_two_bits(&codes));
        BlockQ3K { hmask, qs, scales: BlockQ3K::pack_scales(&scales), d }
    }
}

/// Scales and codes 0…`top` of Q4_K and Q5_K.
struct ScaledMins {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [u8; 12],
    codes: [u8; 256],
}

impl ScaledMins {
    fn quantize(values: &[f32], top: f32) -> ScaledMins {
        let fits: [_; 8] = groups::<8, 32, _>(values, |values| fit_affine(values, top));
        let (d, scales) = small_integers(&fits.map(|fit| fit.0), 63.0);
        let (dmin, mins) = small_integers(&fits.map(|fit| fit.1), 63.0);
        let packed = pack_scales_and_mins(&scales, &mins);
        debug_assert_eq!(scales_and_mins(&packed), (scales, mins));
        let codes = std::array::from_fn(|i| {
            let (scale, min) = (f16(d) * f32::from(scales[i / 32]), f16(dmin) * f32::from(mins[i / 32]));
            affine_code(values[i], scale, min, top) as u8
        });
        ScaledMins { d, dmin, scales: packed, codes }
    }
}

impl Quantize for BlockQ4K {
    fn quantize(values: &[f32]) -> BlockQ4K {
        let ScaledMins { d, dmin, scales, codes } = ScaledMins::quantize(values, 15.0);
        BlockQ4K { d, dmin, scales, qs: pack_four_bits(&codes) }
    }
}

impl Quantize for BlockQ5K {
    fn quantize(values: &[f32]) -> BlockQ5K {
        let ScaledMins { d, dmin, scales, codes } = ScaledMins::quantize(values, 31.0);
        BlockQ5K { d, dmin, scales, qh: pack_one_bit(&codes, 4), qs: pack_four_bits(&codes) }
    }
}

impl Quantize for BlockQ6K {
    fn quantize(values: &[f32]) -> BlockQ6K {
        let fits = groups::<16, 16, _>(values, |values| fit_symmetric(values, 32.0));
        let (d, scales) = small_signed(&fits, 128.0);
        let codes: [u8; 256] = std::array::from_fn(|i| {
            (symmetric_code(values[i], f16(d) * f32::from(scales[i / 16]), 32.0) + 32.0) as u8
        });
        let ql = std::array::from_fn(|i| {
            let first = i / 64 * 128 + i % 64;
            codes[first] & 15 | codes[first + 64] << 4
        });
        BlockQ6K { ql, qh: pack_two_bits(&codes.map(|code| code >> 4)), scales, d }
    }
}

impl Quantize for BlockQ8K {
    fn quantize(values: &[f32]) -> BlockQ8K {
        let d = extreme(values).abs() / 127.0;
        let inverse = inverse(d);
        let qs: [i8; 256] = std::array::from_fn(|i| (values[i] * inverse).round() as i8);
        let bsums = std::array::from_fn(|group| {
            let sum: i16 = qs[16 * group..16 * (group + 1)].iter().map(|&q| i16::from(q)).sum();
            sum.to_le_bytes()
        });
        BlockQ8K { d: d.to_le_bytes(), qs, bsums }
    }
}
