//! Weight formats: how a quant type lies in a panel, and how a kernel takes numbers out of it.
//!
//! A *panel* is sixteen rows of a matrix, interleaved so that one vector lane is one row: sixty-four consecutive bytes
//! hold four K values (a *unit*) of each of the sixteen rows. A panel is a sequence of *groups* along K. Packed bits
//! stay packed; scales are stored lane by lane. Fields of a group lie in the order in which a kernel first touches
//! them, and groups are whole cache lines: read from memory, Q5_K and Q6_K are three times as fast for it, as the
//! hardware's prefetcher then sees one ascending stream. Packing loses nothing: [`field::unpack_row`] gives the file's bytes back.
//!
//! One file per quant type. The tile kernels are generic over the three traits below and live in `kernel/`.

pub(crate) mod field;
pub(crate) mod float;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
pub(crate) mod mxfp4;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;

use crate::simd::Simd;
use field::{Field, Spread};
use minfer_gguf::GgmlType;

/// How a type is packed into groups, see [`field`].
pub(crate) trait Panel: 'static {
    /// The type.
    const TYPE: GgmlType;
    /// Blocks of the file, per row, in one group.
    const BLOCKS: usize;
    /// Bytes of a group: `BLOCKS` blocks of sixteen rows.
    const GROUP_BYTES: usize;

    /// Where each field of a block lies in a group.
    const FIELDS: &'static [Field];

    /// Scales that the file packs tighter than bytes, for [`Field::spread`].
    #[inline(always)]
    fn spread(_block: &[u8]) -> Spread {
        Spread::default()
    }
    /// The inverse: puts them into a block.
    #[inline(always)]
    fn gather(_spread: &Spread, _block: &mut [u8]) {}
}

/// Types with one float scale per 32 values: `w = d·(q − ZERO) [+ m]`. A block, here, is 32 values, whatever the file's
/// blocks are.
///
/// # Safety
/// Of all functions: `group` points to a whole group, and the CPU has the features of `S`.
pub(crate) trait Block32: Panel {
    /// Blocks of 32 values, per row, in one group.
    const SLOTS: usize = Self::BLOCKS * Self::TYPE.block_len() / 32;
    /// Bits of a `q`.
    const BITS: u32;
    /// Largest `q` (largest magnitude, if signed).
    const MAX: u32;
    /// Whether `q` is an `i8`.
    const SIGNED: bool = false;
    /// Subtracted from `q`.
    const ZERO: i32 = 0;
    /// Whether there is an `m`.
    const HAS_MIN: bool = false;

    /// `q` of K values `4u..4u+4` of block `slot`.
    unsafe fn unit<S: Simd>(group: *const u8, slot: usize, u: usize) -> S::B;
    /// `d` of block `slot`.
    unsafe fn scale<S: Simd>(group: *const u8, slot: usize) -> S::F;
    /// `m` of block `slot`.
    #[inline(always)]
    unsafe fn min<S: Simd>(_group: *const u8, _slot: usize) -> S::F {
        // SAFETY: the caller vouches for the ISA.
        unsafe { S::splat(0.0) }
    }
}

/// K-quants, 256 values with integer scales per group of 16 or 32: `w = d·sc·(q − ZERO) [− dmin·m]`.
///
/// # Safety
/// Of all functions: `group` points to a whole group, and the CPU has the features of `S`.
pub(crate) trait Super256: Panel {
    /// Values that share an integer scale.
    const SCALED: usize;
    /// Bits of a `q`.
    const BITS: u32;
    /// Largest `q`.
    const MAX: u32;
    /// Subtracted from `q`.
    const ZERO: i32 = 0;
    /// Whether there are `dmin` and `m`.
    const HAS_MIN: bool = false;
    /// Offset of the sixteen `d` in a group.
    const D: usize;
    /// Offset of the sixteen `dmin`, if there are any.
    const DMIN: usize = 0;

    /// `q` of K values `4u..4u+4`.
    unsafe fn unit<S: Simd>(group: *const u8, u: usize) -> S::B;
    /// Integer scale `s`.
    unsafe fn scale<S: Simd>(group: *const u8, s: usize) -> S::I;
    /// Integer minimum `s`.
    #[inline(always)]
    unsafe fn min<S: Simd>(_group: *const u8, _s: usize) -> S::I {
        // SAFETY: the caller vouches for the ISA.
        unsafe { S::splat_i(0) }
    }
    /// `d`.
    #[inline(always)]
    unsafe fn d<S: Simd>(group: *const u8) -> S::F {
        // SAFETY: the group is whole; the caller vouches for the ISA.
        unsafe { S::load_f16(group.add(Self::D)) }
    }
    /// `dmin`, 0 if there is none.
    #[inline(always)]
    unsafe fn dmin<S: Simd>(group: *const u8) -> S::F {
        // SAFETY: as above.
        unsafe { if Self::HAS_MIN { S::load_f16(group.add(Self::DMIN)) } else { S::splat(0.0) } }
    }
}

/// Types whose values are floats.
///
/// # Safety
/// `group` points to a whole group, and the CPU has the features of `S`.
pub(crate) trait Float: Panel {
    /// The value of each row at this K.
    unsafe fn value<S: Simd>(group: *const u8) -> S::F;
}

/// Calls a macro with every packed type, by the trait its kernel needs.
macro_rules! with_formats {
    ($macro:ident) => {
        $macro! {
            block32: [crate::format::q4_0::Q4_0, crate::format::q4_1::Q4_1, crate::format::q5_0::Q5_0, crate::format::q5_1::Q5_1, crate::format::q8_0::Q8_0, crate::format::iq4_nl::Iq4Nl, crate::format::iq4_xs::Iq4Xs, crate::format::mxfp4::Mxfp4]
            super256: [crate::format::q2_k::Q2K, crate::format::q3_k::Q3K, crate::format::q4_k::Q4K, crate::format::q5_k::Q5K, crate::format::q6_k::Q6K]
            float: [crate::format::float::F32, crate::format::float::F16, crate::format::float::BF16]
        }
    };
}
pub(crate) use with_formats;

#[cfg(test)]
mod tests;
