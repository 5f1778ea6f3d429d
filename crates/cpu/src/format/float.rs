//! F32, F16, BF16: one value is one block; a group holds that K of sixteen rows.

use super::{Float, Panel};
use crate::simd::{LANES, Simd};
use minfer_gguf::GgmlType;

macro_rules! float {
    ($name:ident, $bytes:literal, $load:ident) => {
        pub(crate) struct $name;

        impl Panel for $name {
            const TYPE: GgmlType = GgmlType::$name;
            const BLOCKS: usize = 1;
            const GROUP_BYTES: usize = $bytes * LANES;

            fn pack(block: &[u8], row: usize, _slot: usize, group: &mut [u8]) {
                group[$bytes * row..$bytes * (row + 1)].copy_from_slice(&block[..$bytes]);
            }

            fn unpack(group: &[u8], row: usize, _slot: usize, block: &mut [u8]) {
                block[..$bytes].copy_from_slice(&group[$bytes * row..$bytes * (row + 1)]);
            }
        }

        // SAFETY (all functions): the trait's contract.
        impl Float for $name {
            #[inline(always)]
            unsafe fn value<S: Simd>(group: *const u8) -> S::F {
                // SAFETY: the caller vouches for a whole group and for the ISA.
                unsafe { S::$load(group.cast()) }
            }
        }
    };
}

float!(F32, 4, load);
float!(F16, 2, load_f16);
float!(BF16, 2, load_bf16);
