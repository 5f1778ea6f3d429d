//! F32, F16, BF16: one value is one block; a group holds that K of sixteen rows.

use super::field::Field;
use super::{Float, Panel};
use crate::simd::{LANES, Simd};
use minfer_gguf::GgmlType;

macro_rules! float {
    ($name:ident, $bytes:literal, $field:ident, $load:ident) => {
        pub(crate) struct $name;

        impl Panel for $name {
            const TYPE: GgmlType = GgmlType::$name;
            const BLOCKS: usize = 1;
            const GROUP_BYTES: usize = $bytes * LANES;
            const FIELDS: &'static [Field] = &[Field::$field(0, 0, 1)];
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

float!(F32, 4, units, load);
float!(F16, 2, halves, load_f16);
float!(BF16, 2, halves, load_bf16);
