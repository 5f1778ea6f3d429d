//! Blocks of random bytes that are valid and have values of a chosen size.

use super::{QuantError, fp4, k, simple, to_f16};
use crate::GgmlType;

/// Fills `out` with blocks `first…` of an endless random tensor of type `ty`, whose values have a root mean square of
/// about `rms`.
///
/// The bytes are a function of `ty`, `seed`, `rms` and the number of the block alone, so a large tensor can be made in
/// pieces, in any order and on any number of threads. Codes are uniform and independent. Scale fields are finite, vary
/// by a quarter from block to block, and are chosen so that values have the stated size and (for types with minima) a
/// mean near zero; derived fields (the sums of Q8_1 and Q8_K) are right. Every code of a type occurs, also those that
/// quantizers avoid (−128 in Q8_0). Single floats are uniform in ±√3·`rms`, and integers are that, rounded.
///
/// `rms` should be of the order that real tensors have (weights: 0.01 to 0.1): scales are f16 or narrower, and MXFP4
/// and NVFP4 have the coarsest. A thread makes some 2 to 5 GB/s of quantized blocks.
///
/// # Errors
/// [`QuantError::Bytes`] if `out` is not whole blocks.
pub fn random_blocks(
    ty: GgmlType,
    seed: u64,
    rms: f32,
    first: u64,
    out: &mut [u8],
) -> Result<(), QuantError> {
    let size = ty.block_bytes();
    if !out.len().is_multiple_of(size) {
        let expected = out.len().next_multiple_of(size);
        return Err(QuantError::Bytes { ty, expected, found: out.len() });
    }
    match ty {
        GgmlType::F32 => plain_values(seed, rms, first, out, f32::to_le_bytes),
        GgmlType::F16 => plain_values(seed, rms, first, out, to_f16),
        GgmlType::BF16 => plain_values(seed, rms, first, out, super::plain::to_bf16),
        GgmlType::F64 => plain_values(seed, rms, first, out, |value| f64::from(value).to_le_bytes()),
        GgmlType::I8 => plain_values(seed, rms, first, out, |value| (value.round() as i8).to_le_bytes()),
        GgmlType::I16 => plain_values(seed, rms, first, out, |value| (value.round() as i16).to_le_bytes()),
        GgmlType::I32 => plain_values(seed, rms, first, out, |value| (value.round() as i32).to_le_bytes()),
        GgmlType::I64 => plain_values(seed, rms, first, out, |value| (value.round() as i64).to_le_bytes()),
        _ => {
            let scales = Scales::new(ty, rms);
            for (index, block) in out.chunks_exact_mut(size).enumerate() {
                let mut stream = Stream::new(seed, first + index as u64);
                let choice = stream.next();
                stream.fill(block);
                scales.set(block, choice);
            }
        }
    }
    Ok(())
}

/// Values of single-value types, uniform with root mean square `rms` in steps of 2⁻¹⁵ of their range: four values
/// share a word of the stream.
fn plain_values<const N: usize>(
    seed: u64,
    rms: f32,
    first: u64,
    out: &mut [u8],
    convert: impl Fn(f32) -> [u8; N],
) {
    let step = rms * 3f32.sqrt() / 32_768.0;
    let mut word = 0;
    for (i, value) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        let index = first + i as u64;
        let lane = index % 4;
        if lane == 0 || i == 0 {
            word = Stream::new(seed, index / 4).next();
        }
        let uniform = f32::from((word >> (16 * lane)) as i16) + 0.5;
        *value = convert(uniform * step);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014), started anew for every block.
struct Stream(u64);

impl Stream {
    fn new(seed: u64, block: u64) -> Stream {
        // Blocks' counters start far apart, by an odd factor, so that streams do not run into each other.
        Stream(mix(seed ^ mix(block.wrapping_mul(0xd1b5_4a32_d192_ed03))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.next().to_le_bytes();
        }
        rest.copy_from_slice(&self.next().to_le_bytes()[..rest.len()]);
    }
}

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Values of a scale that blocks choose from.
const CHOICES: usize = 64;

/// Scale fields to choose from.
struct Scales {
    ty: GgmlType,
    /// f16 scales, spread by a quarter around the one that gives the wanted size.
    d: [[u8; 2]; CHOICES],
    /// f16 scales of minima that cancel the mean of the codes.
    min: [[u8; 2]; CHOICES],
    /// f32 scales (Q8_K).
    wide: [[u8; 4]; CHOICES],
    /// E8M0 (MXFP4) or UE4M3 (NVFP4) scales.
    narrow: [u8; CHOICES],
}

impl Scales {
    fn new(ty: GgmlType, rms: f32) -> Scales {
        let base = rms / unit_rms(ty);
        // From 1 − s to 1 + s, with a mean square of 1 to the third digit.
        let d: [f32; CHOICES] =
            std::array::from_fn(|i| base * 0.99 * (0.75 + 0.5 * (i as f32 + 0.5) / CHOICES as f32));
        let narrow = match ty {
            GgmlType::MXFP4 => narrow_scales(base, fp4::e8m0_half, 254),
            GgmlType::NVFP4 => narrow_scales(base, fp4::ue4m3_half, 0x7e),
            _ => [0; CHOICES],
        };
        let ratio = min_ratio(ty);
        Scales {
            ty,
            d: d.map(to_f16),
            min: d.map(|d| to_f16(d * ratio)),
            wide: d.map(f32::to_le_bytes),
            narrow,
        }
    }

    /// Puts the scale fields of number `choice` into a block of random bytes.
    fn set(&self, block: &mut [u8], choice: u64) {
        let index = choice as usize % CHOICES;
        let (d, min) = (self.d[index], self.min[index]);
        let end = block.len();
        match self.ty {
            // f16 first.
            GgmlType::Q4_0
            | GgmlType::Q5_0
            | GgmlType::Q8_0
            | GgmlType::IQ1_S
            | GgmlType::IQ2_XXS
            | GgmlType::IQ2_XS
            | GgmlType::IQ2_S
            | GgmlType::IQ3_XXS
            | GgmlType::IQ3_S
            | GgmlType::IQ4_NL
            | GgmlType::IQ4_XS
            | GgmlType::Q1_0
            | GgmlType::Q2_0 => put(&mut block[..2], d),
            // Scale and minimum first. The minimum of Q4_1 and Q5_1 is added, the others' subtracted.
            GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => {
                put(&mut block[..2], d);
                put(&mut block[2..4], min);
            }
            GgmlType::Q2_K => {
                put(&mut block[80..82], d);
                put(&mut block[82..84], min);
            }
            // f16 last.
            GgmlType::Q3_K | GgmlType::Q6_K | GgmlType::TQ1_0 => put(&mut block[end - 2..], d),
            GgmlType::TQ2_0 => {
                // A code of 3 becomes 1, so that codes are ternary and their mean is zero.
                block[..64].iter_mut().for_each(|byte| *byte &= !((*byte & *byte >> 1 & 0x55) << 1));
                put(&mut block[64..], d);
            }
            GgmlType::IQ1_M => {
                let d = u16::from_le_bytes(d);
                for (i, scales) in block[48..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let packed = u16::from_le_bytes(*scales) & 0x0fff | (d >> (4 * i) & 15) << 12;
                    *scales = packed.to_le_bytes();
                }
            }
            GgmlType::MXFP4 => block[0] = self.narrow[index],
            GgmlType::NVFP4 => {
                for (group, scale) in block[..4].iter_mut().enumerate() {
                    *scale = self.narrow[(choice >> (8 * group)) as usize % CHOICES];
                }
            }
            GgmlType::Q8_1 => {
                let block: &mut simple::BlockQ8_1 = bytemuck::from_bytes_mut(block);
                let sum: i32 = block.qs.iter().map(|&q| i32::from(q)).sum();
                block.d = d;
                block.s = to_f16(super::f16(d) * sum as f32);
            }
            GgmlType::Q8_K => {
                let block: &mut k::BlockQ8K = bytemuck::from_bytes_mut(block);
                block.d = self.wide[index];
                for (sum, codes) in block.bsums.iter_mut().zip(block.qs.as_chunks::<16>().0) {
                    *sum = codes.iter().map(|&q| i16::from(q)).sum::<i16>().to_le_bytes();
                }
            }
            GgmlType::F32
            | GgmlType::F16
            | GgmlType::BF16
            | GgmlType::F64
            | GgmlType::I8
            | GgmlType::I16
            | GgmlType::I32
            | GgmlType::I64 => {}
        }
    }
}

fn put<const N: usize>(field: &mut [u8], bytes: [u8; N]) {
    field.copy_from_slice(&bytes);
}

/// Scale codes 0…`top` whose values `decode` gives, mixed of the two around `base` so that the mean square is
/// `base`'s.
fn narrow_scales(base: f32, decode: impl Fn(u8) -> f32, top: u8) -> [u8; CHOICES] {
    let below = (0..=top).rfind(|&code| decode(code) <= base).unwrap_or(0);
    let above = (below + 1).min(top);
    let [low, high] = [below, above].map(|code| decode(code).powi(2));
    let share = if high > low { (base * base - low) / (high - low) } else { 0.0 };
    std::array::from_fn(|i| if (i as f32 + 0.5) < share * CHOICES as f32 { above } else { below })
}

/// Mean of the squares of `low…=high`.
fn mean_square(low: i32, high: i32) -> f32 {
    (low..=high).map(|value| (value * value) as f32).sum::<f32>() / (high - low + 1) as f32
}

/// The `min` field as a multiple of `d` that makes the mean zero: the mean of the codes, where scales and minima
/// are integers of one range.
fn min_ratio(ty: GgmlType) -> f32 {
    match ty {
        GgmlType::Q4_1 => -7.5,
        GgmlType::Q5_1 => -15.5,
        GgmlType::Q2_K => 1.5,
        GgmlType::Q4_K => 7.5,
        GgmlType::Q5_K => 15.5,
        _ => 0.0,
    }
}

/// Root mean square of the values of a block of random bytes with `d` 1 (and the minimum of [`min_ratio`]).
fn unit_rms(ty: GgmlType) -> f32 {
    // Of scale · q − ratio · min, all three independent and uniform from 0.
    let with_min = |scale_top: i32, code_top: i32| {
        let (scale, square) = (scale_top as f32 / 2.0, mean_square(0, scale_top));
        let mean = code_top as f32 / 2.0;
        (square * mean_square(0, code_top) - 2.0 * mean * mean * scale * scale + mean * mean * square).sqrt()
    };
    // Of grid magnitudes under the scale (½ + s) · factor, s in 0…15: a mean square of (½ + s) of 85.25.
    let iq = |grid: &mut dyn Iterator<Item = u8>, factor: f32| {
        let (count, sum) =
            grid.fold((0, 0), |(count, sum), m| (count + 1, sum + u32::from(m) * u32::from(m)));
        (sum as f32 / count as f32 * 85.25).sqrt() * factor
    };
    let levels =
        |levels: &[i8; 16]| (levels.iter().map(|&level| f32::from(level).powi(2)).sum::<f32>() / 16.0).sqrt();
    use super::grids;
    match ty {
        GgmlType::Q4_0 => mean_square(-8, 7).sqrt(),
        GgmlType::Q5_0 => mean_square(-16, 15).sqrt(),
        GgmlType::Q4_1 => (mean_square(0, 15) - 7.5 * 7.5).sqrt(),
        GgmlType::Q5_1 => (mean_square(0, 31) - 15.5 * 15.5).sqrt(),
        GgmlType::Q8_0 | GgmlType::Q8_1 | GgmlType::Q8_K => mean_square(-128, 127).sqrt(),
        GgmlType::Q2_K => with_min(15, 3),
        GgmlType::Q4_K => with_min(63, 15),
        GgmlType::Q5_K => with_min(63, 31),
        GgmlType::Q3_K => (mean_square(-32, 31) * mean_square(-4, 3)).sqrt(),
        GgmlType::Q6_K => (mean_square(-128, 127) * mean_square(-32, 31)).sqrt(),
        GgmlType::IQ2_XXS => iq(&mut grids::IQ2_XXS.into_iter().flatten(), 0.25),
        GgmlType::IQ2_XS => iq(&mut grids::IQ2_XS.into_iter().flatten(), 0.25),
        GgmlType::IQ2_S => iq(&mut grids::IQ2_S.into_iter().flatten(), 0.25),
        GgmlType::IQ3_XXS => iq(&mut grids::IQ3_XXS.into_iter().flatten(), 0.5),
        // 1 + 2s is twice ½ + s.
        GgmlType::IQ3_S => iq(&mut grids::IQ3_S.into_iter().flatten(), 2.0),
        // Three levels and the shift, under 1 + 2s with s in 0…7: a mean square of 85.
        GgmlType::IQ1_S | GgmlType::IQ1_M => ((0.5942 + 0.0156) * 85.0f32).sqrt(),
        GgmlType::IQ4_NL => levels(&grids::IQ4),
        GgmlType::IQ4_XS => levels(&grids::IQ4) * mean_square(-32, 31).sqrt(),
        GgmlType::TQ1_0 => mean_square(-1, 1).sqrt(),
        GgmlType::TQ2_0 => 0.5f32.sqrt(),
        GgmlType::Q1_0 => 1.0,
        GgmlType::Q2_0 => mean_square(-1, 2).sqrt(),
        GgmlType::MXFP4 | GgmlType::NVFP4 => levels(&grids::FP4_DOUBLED),
        GgmlType::F32
        | GgmlType::F16
        | GgmlType::BF16
        | GgmlType::F64
        | GgmlType::I8
        | GgmlType::I16
        | GgmlType::I32
        | GgmlType::I64 => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::dequantize;
    use super::*;

    #[test]
    fn values_have_the_stated_size() {
        for &ty in GgmlType::ALL {
            let rms = if ty.name().starts_with('I') && ty.block_len() == 1 { 40.0 } else { 0.05 };
            let values = 256 * 256;
            let mut bytes = vec![0; ty.bytes_of(values).unwrap()];
            random_blocks(ty, 7, rms, 0, &mut bytes).unwrap();
            let mut out = vec![0.0; values];
            dequantize(ty, &bytes, &mut out).unwrap();
            let found = (out.iter().map(|x| f64::from(x * x)).sum::<f64>() / values as f64).sqrt() as f32;
            assert!((found / rms - 1.0).abs() < 0.06, "{ty}: expected about {rms}, found {found}");
            let mean = out.iter().map(|&x| f64::from(x)).sum::<f64>() as f32 / values as f32;
            assert!(mean.abs() < 0.5 * rms, "{ty}: mean {mean}");
        }
    }

    #[test]
    fn pieces_make_the_whole() {
        for &ty in GgmlType::ALL {
            let size = ty.block_bytes();
            let mut whole = vec![0; 8 * size];
            random_blocks(ty, 1, 0.02, 0, &mut whole).unwrap();
            let mut part = vec![0; 3 * size];
            random_blocks(ty, 1, 0.02, 5, &mut part).unwrap();
            assert_eq!(part, whole[5 * size..], "{ty}");
            random_blocks(ty, 2, 0.02, 5, &mut part).unwrap();
            let (other, same) = (&part, &whole[5 * size..]);
            assert!(
                ty == GgmlType::I8 || ty.name().starts_with('I') && ty.block_len() == 1 || other != same,
                "{ty}"
            );
        }
        assert!(random_blocks(GgmlType::Q4_0, 1, 0.02, 0, &mut [0; 17]).is_err());
    }
}
