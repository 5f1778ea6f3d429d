//! Types of single values: floats and integers.

/// The bfloat16 in two bytes: the upper half of an `f32`.
pub(super) fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// `value` rounded to bfloat16, to nearest even; NaN stays a (quiet) NaN.
pub(super) fn to_bf16(value: f32) -> [u8; 2] {
    half::bf16::from_f32(value).to_le_bytes()
}

/// Converts values of `N` bytes each.
pub(super) fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    for (&bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = convert(bytes);
    }
}

/// Converts to values of `N` bytes each.
pub(super) fn encode<const N: usize>(values: &[f32], out: &mut [u8], convert: impl Fn(f32) -> [u8; N]) {
    for (&value, out) in values.iter().zip(out.as_chunks_mut::<N>().0) {
        *out = convert(value);
    }
}
