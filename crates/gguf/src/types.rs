//! Element types of ggml tensors.

macro_rules! ggml_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $len:literal, $bytes:literal;)*) => {
        /// Element type of a tensor: an id in the file, a block of some values, and the block's size.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        #[repr(u32)]
        pub enum GgmlType { $($(#[$doc])* $variant = $id,)* }

        impl GgmlType {
            /// Every type, by ascending id.
            pub const ALL: &'static [GgmlType] = &[$(GgmlType::$variant),*];

            /// The type of an id in a file; `None` for removed and unknown ids.
            pub const fn from_id(id: u32) -> Option<GgmlType> {
                match id { $($id => Some(GgmlType::$variant),)* _ => None }
            }

            /// ggml's name, as people write it.
            pub const fn name(self) -> &'static str {
                match self { $(GgmlType::$variant => $name,)* }
            }

            /// Values of one block.
            pub const fn block_len(self) -> usize {
                match self { $(GgmlType::$variant => $len,)* }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self { $(GgmlType::$variant => $bytes,)* }
            }
        }
    };
}

ggml_types! {
    /// IEEE single.
    F32 = 0, "F32", 1, 4;
    /// IEEE half.
    F16 = 1, "F16", 1, 2;
    /// 4 bits, scale per 32.
    Q4_0 = 2, "Q4_0", 32, 18;
    /// 4 bits, scale and minimum per 32.
    Q4_1 = 3, "Q4_1", 32, 20;
    /// 5 bits, scale per 32.
    Q5_0 = 6, "Q5_0", 32, 22;
    /// 5 bits, scale and minimum per 32.
    Q5_1 = 7, "Q5_1", 32, 24;
    /// 8 bits, scale per 32.
    Q8_0 = 8, "Q8_0", 32, 34;
    /// 8 bits, scale and sum per 32 (activations).
    Q8_1 = 9, "Q8_1", 32, 36;
    /// 2 bits, 4-bit scales and minima per 16.
    Q2_K = 10, "Q2_K", 256, 84;
    /// 3 bits, 6-bit scales per 16.
    Q3_K = 11, "Q3_K", 256, 110;
    /// 4 bits, 6-bit scales and minima per 32.
    Q4_K = 12, "Q4_K", 256, 144;
    /// 5 bits, 6-bit scales and minima per 32.
    Q5_K = 13, "Q5_K", 256, 176;
    /// 6 bits, 8-bit scales per 16.
    Q6_K = 14, "Q6_K", 256, 210;
    /// 8 bits, float scale per 256, sums per 16 (activations).
    Q8_K = 15, "Q8_K", 256, 292;
    /// 2.06 bits, grid of 256.
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    /// 2.31 bits, grid of 512.
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    /// 3.06 bits, grid of 256.
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    /// 1.56 bits, grid of 2048.
    IQ1_S = 19, "IQ1_S", 256, 50;
    /// 4 bits, non-linear levels, scale per 32.
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    /// 3.44 bits, grid of 512.
    IQ3_S = 21, "IQ3_S", 256, 110;
    /// 2.56 bits, grid of 1024.
    IQ2_S = 22, "IQ2_S", 256, 82;
    /// 4 bits, non-linear levels, 6-bit scales per 32.
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    /// Signed integer.
    I8 = 24, "I8", 1, 1;
    /// Signed integer.
    I16 = 25, "I16", 1, 2;
    /// Signed integer.
    I32 = 26, "I32", 1, 4;
    /// Signed integer.
    I64 = 27, "I64", 1, 8;
    /// IEEE double.
    F64 = 28, "F64", 1, 8;
    /// 1.75 bits, grid of 2048.
    IQ1_M = 29, "IQ1_M", 256, 56;
    /// Upper half of an IEEE single.
    BF16 = 30, "BF16", 1, 2;
    /// Ternary, 1.69 bits.
    TQ1_0 = 34, "TQ1_0", 256, 54;
    /// Ternary, 2.06 bits.
    TQ2_0 = 35, "TQ2_0", 256, 66;
    /// FP4 with a power-of-two scale per 32.
    MXFP4 = 39, "MXFP4", 32, 17;
    /// FP4 with an FP8 scale per 16.
    NVFP4 = 40, "NVFP4", 64, 36;
    /// 1 bit, scale per 128.
    Q1_0 = 41, "Q1_0", 128, 18;
    /// 2 bits, scale per 64.
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl GgmlType {
    /// Bytes of `values` consecutive values, or `None` if that is not a whole number of blocks.
    pub const fn bytes_of(self, values: usize) -> Option<usize> {
        if values.is_multiple_of(self.block_len()) {
            (values / self.block_len()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
