//! Block types: their layout in memory, and the scalar reference that says what their bytes mean.
//!
//! A quantized tensor is a sequence of *blocks*. A block holds a fixed number of values ([`GgmlType::block_len`]) in a
//! fixed number of bytes ([`GgmlType::block_bytes`]): small integer codes, and scales that turn codes into values.
//! Rows are whole blocks, so a row is a contiguous slice of blocks. The families, each a module with its structs:
//!
//! * [`simple`]: Q4_0 … Q8_1. One float scale per 32 values, and for the `_1` types a minimum: `x = d·q` or `d·q + m`.
//! * [`k`]: Q2_K … Q8_K. 256 values in groups of 16 or 32, whose scales are small integers times one float scale.
//! * [`iq`]: IQ1_S … IQ3_S. Codes index a codebook of 4 or 8 magnitudes at once ([`grids`]); signs are apart.
//! * [`iq4`]: IQ4_NL and IQ4_XS. Codes index 16 unevenly spaced levels.
//! * [`ternary`]: TQ1_0, TQ2_0, Q1_0, Q2_0. Codes of one, two or three values.
//! * [`fp4`]: MXFP4, NVFP4. 4-bit floats under a shared scale that is a power of two or an 8-bit float.
//!
//! [`dequantize`] computes in `f32`, in an order of operations that is part of the definition: for every type that the
//! Python package `gguf` (`gguf.quants`) can dequantize, the results agree with it bit for bit. Kernels are tested
//! against this function.
//!
//! Every field of a block struct is bytes, so that a block may lie at any address of a mapped file; two-byte floats
//! are `[u8; 2]`, read by [`f16()`].

pub mod fp4;
pub mod grids;
pub mod iq;
pub mod iq4;
pub mod k;
pub mod simple;
pub mod ternary;

mod k_encode;
mod plain;
mod random;

use bytemuck::Pod;

use crate::GgmlType;

pub use random::random_blocks;

/// Bytes, values and type that do not go together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantError {
    /// A count of values that is not a whole number of blocks.
    #[error("{ty}: expected a multiple of {} values, found {found}", ty.block_len())]
    Values {
        /// The type.
        ty: GgmlType,
        /// The count.
        found: usize,
    },
    /// A count of bytes that does not hold the values.
    #[error("{ty}: expected {expected} bytes, found {found}")]
    Bytes {
        /// The type.
        ty: GgmlType,
        /// Bytes of the values.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A type that this crate reads but does not write.
    #[error("{ty}: quantizing to this type is not supported")]
    NoQuantizer {
        /// The type.
        ty: GgmlType,
    },
}

/// A block of quantized values, as it lies in a file.
pub trait Block: Pod {
    /// The element type it belongs to.
    const TYPE: GgmlType;

    /// Writes the values of this block to `out`, of [`GgmlType::block_len`] values.
    ///
    /// # Panics
    /// If `out` has another length.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block that values can be rounded to.
pub trait Quantize: Block {
    /// The block closest to `values`, of [`GgmlType::block_len`] values, by this crate's reference method.
    ///
    /// # Panics
    /// If `values` has another length.
    fn quantize(values: &[f32]) -> Self;
}

/// The blocks in `bytes`, or `None` if these are not whole blocks.
pub fn blocks<B: Block>(bytes: &[u8]) -> Option<&[B]> {
    bytemuck::try_cast_slice(bytes).ok()
}

/// The half-precision float in two bytes of a block.
pub fn f16(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}

/// `value` rounded to half precision, to nearest even.
pub(crate) fn to_f16(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_le_bytes()
}

/// Writes the values of `bytes` to `out`.
///
/// Integers and doubles are converted to the nearest `f32`.
///
/// # Errors
/// If `out` is not whole blocks, or `bytes` is not `out.len()` values of `ty`.
pub fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_sizes(ty, bytes.len(), out.len())?;
    match ty {
        GgmlType::F32 => plain::decode(bytes, out, f32::from_le_bytes),
        GgmlType::F16 => plain::decode(bytes, out, f16),
        GgmlType::BF16 => plain::decode(bytes, out, plain::bf16),
        GgmlType::F64 => plain::decode(bytes, out, |bytes| f64::from_le_bytes(bytes) as f32),
        GgmlType::I8 => plain::decode(bytes, out, |bytes| i8::from_le_bytes(bytes).into()),
        GgmlType::I16 => plain::decode(bytes, out, |bytes| i16::from_le_bytes(bytes).into()),
        GgmlType::I32 => plain::decode(bytes, out, |bytes| i32::from_le_bytes(bytes) as f32),
        GgmlType::I64 => plain::decode(bytes, out, |bytes| i64::from_le_bytes(bytes) as f32),
        GgmlType::Q4_0 => decode::<simple::BlockQ4_0>(bytes, out),
        GgmlType::Q4_1 => decode::<simple::BlockQ4_1>(bytes, out),
        GgmlType::Q5_0 => decode::<simple::BlockQ5_0>(bytes, out),
        GgmlType::Q5_1 => decode::<simple::BlockQ5_1>(bytes, out),
        GgmlType::Q8_0 => decode::<simple::BlockQ8_0>(bytes, out),
        GgmlType::Q8_1 => decode::<simple::BlockQ8_1>(bytes, out),
        GgmlType::Q2_K => decode::<k::BlockQ2K>(bytes, out),
        GgmlType::Q3_K => decode::<k::BlockQ3K>(bytes, out),
        GgmlType::Q4_K => decode::<k::BlockQ4K>(bytes, out),
        GgmlType::Q5_K => decode::<k::BlockQ5K>(bytes, out),
        GgmlType::Q6_K => decode::<k::BlockQ6K>(bytes, out),
        GgmlType::Q8_K => decode::<k::BlockQ8K>(bytes, out),
        GgmlType::IQ1_S => decode::<iq::BlockIq1S>(bytes, out),
        GgmlType::IQ1_M => decode::<iq::BlockIq1M>(bytes, out),
        GgmlType::IQ2_XXS => decode::<iq::BlockIq2Xxs>(bytes, out),
        GgmlType::IQ2_XS => decode::<iq::BlockIq2Xs>(bytes, out),
        GgmlType::IQ2_S => decode::<iq::BlockIq2S>(bytes, out),
        GgmlType::IQ3_XXS => decode::<iq::BlockIq3Xxs>(bytes, out),
        GgmlType::IQ3_S => decode::<iq::BlockIq3S>(bytes, out),
        GgmlType::IQ4_NL => decode::<iq4::BlockIq4Nl>(bytes, out),
        GgmlType::IQ4_XS => decode::<iq4::BlockIq4Xs>(bytes, out),
        GgmlType::TQ1_0 => decode::<ternary::BlockTq1_0>(bytes, out),
        GgmlType::TQ2_0 => decode::<ternary::BlockTq2_0>(bytes, out),
        GgmlType::Q1_0 => decode::<ternary::BlockQ1_0>(bytes, out),
        GgmlType::Q2_0 => decode::<ternary::BlockQ2_0>(bytes, out),
        GgmlType::MXFP4 => decode::<fp4::BlockMxfp4>(bytes, out),
        GgmlType::NVFP4 => decode::<fp4::BlockNvfp4>(bytes, out),
    }
    Ok(())
}

/// Rounds `values` to `ty`, into `out`.
///
/// A plain reference method without importance weights: good enough to make test models, not the best that a type
/// can do. Values must be finite and small enough for the type's scales; larger ones saturate or become infinite, as
/// its floats do.
///
/// # Errors
/// If `values` is not whole blocks, `out` is not their size, or the type is one of those that are only read
/// (IQ1 to IQ3).
pub fn quantize(ty: GgmlType, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    check_sizes(ty, out.len(), values.len())?;
    match ty {
        GgmlType::F32 => plain::encode(values, out, f32::to_le_bytes),
        GgmlType::F16 => plain::encode(values, out, to_f16),
        GgmlType::BF16 => plain::encode(values, out, plain::to_bf16),
        GgmlType::F64 => plain::encode(values, out, |value| f64::from(value).to_le_bytes()),
        // `as` saturates.
        GgmlType::I8 => plain::encode(values, out, |value| (value.round_ties_even() as i8).to_le_bytes()),
        GgmlType::I16 => plain::encode(values, out, |value| (value.round_ties_even() as i16).to_le_bytes()),
        GgmlType::I32 => plain::encode(values, out, |value| (value.round_ties_even() as i32).to_le_bytes()),
        GgmlType::I64 => plain::encode(values, out, |value| (value.round_ties_even() as i64).to_le_bytes()),
        GgmlType::Q4_0 => encode::<simple::BlockQ4_0>(values, out),
        GgmlType::Q4_1 => encode::<simple::BlockQ4_1>(values, out),
        GgmlType::Q5_0 => encode::<simple::BlockQ5_0>(values, out),
        GgmlType::Q5_1 => encode::<simple::BlockQ5_1>(values, out),
        GgmlType::Q8_0 => encode::<simple::BlockQ8_0>(values, out),
        GgmlType::Q8_1 => encode::<simple::BlockQ8_1>(values, out),
        GgmlType::Q2_K => encode::<k::BlockQ2K>(values, out),
        GgmlType::Q3_K => encode::<k::BlockQ3K>(values, out),
        GgmlType::Q4_K => encode::<k::BlockQ4K>(values, out),
        GgmlType::Q5_K => encode::<k::BlockQ5K>(values, out),
        GgmlType::Q6_K => encode::<k::BlockQ6K>(values, out),
        GgmlType::Q8_K => encode::<k::BlockQ8K>(values, out),
        GgmlType::IQ4_NL => encode::<iq4::BlockIq4Nl>(values, out),
        GgmlType::TQ1_0 => encode::<ternary::BlockTq1_0>(values, out),
        GgmlType::TQ2_0 => encode::<ternary::BlockTq2_0>(values, out),
        GgmlType::Q1_0 => encode::<ternary::BlockQ1_0>(values, out),
        GgmlType::Q2_0 => encode::<ternary::BlockQ2_0>(values, out),
        GgmlType::MXFP4 => encode::<fp4::BlockMxfp4>(values, out),
        GgmlType::NVFP4 => encode::<fp4::BlockNvfp4>(values, out),
        GgmlType::IQ1_S
        | GgmlType::IQ1_M
        | GgmlType::IQ2_XXS
        | GgmlType::IQ2_XS
        | GgmlType::IQ2_S
        | GgmlType::IQ3_XXS
        | GgmlType::IQ3_S
        | GgmlType::IQ4_XS => return Err(QuantError::NoQuantizer { ty }),
    }
    Ok(())
}

fn check_sizes(ty: GgmlType, bytes: usize, values: usize) -> Result<(), QuantError> {
    let expected = ty.bytes_of(values).ok_or(QuantError::Values { ty, found: values })?;
    if bytes != expected {
        return Err(QuantError::Bytes { ty, expected, found: bytes });
    }
    Ok(())
}

/// `bytes` are whole blocks, `out` their values: checked by the callers.
fn decode<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(B::TYPE.block_len())) {
        block.dequantize(out);
    }
}

fn encode<B: Quantize>(values: &[f32], out: &mut [u8]) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    for (block, values) in blocks.iter_mut().zip(values.chunks_exact(B::TYPE.block_len())) {
        *block = B::quantize(values);
    }
}

/// Declares block structs, with the size that [`GgmlType`] states asserted at compile time.
macro_rules! block {
    ($(#[$doc:meta])* $name:ident: $ty:ident { $($(#[$field_doc:meta])* $field:ident: $field_ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $field_ty,)* }

        const _: () = assert!(size_of::<$name>() == crate::GgmlType::$ty.block_bytes());
        const _: () = assert!(align_of::<$name>() == 1);
    };
}
use block;
