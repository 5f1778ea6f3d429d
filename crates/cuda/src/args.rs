//! Parameters of the kernels, field by field as the structs of `csrc/` have them. Addresses are of the GPU; 0 is none.

use bytemuck::{Pod, Zeroable};

use crate::driver::Buffer;

/// An address on the GPU.
pub(crate) type Address = u64;

/// Address of value `at` of a buffer.
pub(crate) fn at<T: Pod>(buffer: &Buffer<T>, at: usize) -> Address {
    buffer.address() + (at * size_of::<T>()) as u64
}

/// `enum class Finish`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Finish {
    Store,
    Residual { factor: f32 },
    Logits { factor: f32, soft_cap: Option<f32> },
}

impl Finish {
    /// Its number, factor and soft cap, as kernels take them.
    pub(crate) fn args(self) -> (i32, f32, f32) {
        match self {
            Finish::Store => (0, 1.0, 0.0),
            Finish::Residual { factor } => (1, factor, 0.0),
            Finish::Logits { factor, soft_cap } => (2, factor, soft_cap.unwrap_or(0.0)),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct MatmulArgs {
    pub(crate) w: Address,
    pub(crate) x: Address,
    pub(crate) x_unscale: Address,
    pub(crate) bias: Address,
    pub(crate) out: Address,
    pub(crate) row_bytes: u64,
    pub(crate) rows: i32,
    pub(crate) cols: i32,
    pub(crate) x_stride: i32,
    pub(crate) out_stride: i32,
    pub(crate) tokens: i32,
    pub(crate) segments: i32,
    pub(crate) w_scale: f32,
    pub(crate) w_unscale: f32,
    pub(crate) finish: i32,
    pub(crate) factor: f32,
    pub(crate) soft_cap: f32,
    /// Structs have no padding, so that their bytes can be compared.
    pub(crate) unused: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct TileMatrix {
    pub(crate) w: Address,
    pub(crate) bias: Address,
    pub(crate) out: Address,
    pub(crate) w_scale: f32,
    pub(crate) w_unscale: f32,
    pub(crate) rows: i32,
    pub(crate) tiles: i32,
    pub(crate) out_stride: i32,
    pub(crate) zero: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct TileArgs {
    pub(crate) m: [TileMatrix; 3],
    pub(crate) x: Address,
    pub(crate) x_unscale: Address,
    pub(crate) most: Address,
    pub(crate) cols: i32,
    pub(crate) x_stride: i32,
    pub(crate) tokens: i32,
    pub(crate) segments: i32,
    pub(crate) act: i32,
    pub(crate) finish: i32,
    pub(crate) factor: f32,
    pub(crate) soft_cap: f32,
    pub(crate) tiles: i32,
    pub(crate) turns: i32,
    pub(crate) shared: i32,
    pub(crate) each: i32,
    pub(crate) top: i32,
    pub(crate) beside: i32,
    pub(crate) parts: Address,
    pub(crate) arrived: Address,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct ByteTileMatrix {
    pub(crate) w: Address,
    pub(crate) bias: Address,
    pub(crate) out: Address,
    pub(crate) rows: i32,
    pub(crate) tiles: i32,
    pub(crate) out_stride: i32,
    pub(crate) unused: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct ByteTileArgs {
    pub(crate) m: [ByteTileMatrix; 3],
    pub(crate) x: Address,
    pub(crate) x_unscale: Address,
    pub(crate) cols: i32,
    pub(crate) x_stride: i32,
    pub(crate) tokens: i32,
    pub(crate) segments: i32,
    pub(crate) act: i32,
    pub(crate) finish: i32,
    pub(crate) factor: f32,
    pub(crate) soft_cap: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct EmbedArgs {
    pub(crate) table: Address,
    pub(crate) tokens: Address,
    pub(crate) x: Address,
    pub(crate) clear: Address,
    pub(crate) row_bytes: u64,
    pub(crate) cols: i32,
    pub(crate) scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct BoundArgs {
    pub(crate) w: Address,
    pub(crate) most: Address,
    pub(crate) row_bytes: u64,
    pub(crate) rows: i32,
    pub(crate) cols: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct RepackArgs {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) row_bytes: u64,
    pub(crate) rows: i32,
    pub(crate) cols: i32,
    pub(crate) scale: f32,
    pub(crate) unused: i32,
}

/// `NormArgs` of `csrc/prepare.cuh`; kind 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct NormArgs {
    pub(crate) weight: Address,
    pub(crate) bias: Address,
    pub(crate) eps: f32,
    pub(crate) kind: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct RowArgs {
    pub(crate) x: Address,
    pub(crate) other: Address,
    pub(crate) most: Address,
    pub(crate) plain: Address,
    pub(crate) norm: NormArgs,
    pub(crate) act: i32,
    pub(crate) n: i32,
    pub(crate) together: i32,
    pub(crate) unused: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct PrepareArgs {
    pub(crate) row: RowArgs,
    pub(crate) gather: Address,
    pub(crate) out: Address,
    pub(crate) unscale: Address,
    pub(crate) clear: Address,
    pub(crate) x_stride: i32,
    pub(crate) out_stride: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct DecodeMatrix {
    pub(crate) w: Address,
    pub(crate) bias: Address,
    pub(crate) out: Address,
    pub(crate) w_scale: f32,
    pub(crate) w_unscale: f32,
    pub(crate) rows: i32,
    pub(crate) blocks: i32,
    pub(crate) ty: i32,
    pub(crate) unit_bytes: i32,
    pub(crate) unit_bits: i32,
    pub(crate) unused: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct DecodeArgs {
    pub(crate) m: [DecodeMatrix; 3],
    pub(crate) row: RowArgs,
    pub(crate) most: Address,
    pub(crate) clear: Address,
    pub(crate) gated: i32,
    pub(crate) cols: i32,
    pub(crate) segment_bits: i32,
    pub(crate) split_bits: i32,
    pub(crate) finish: i32,
    pub(crate) act: i32,
    pub(crate) factor: f32,
    pub(crate) soft_cap: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct NormRowsArgs {
    pub(crate) x: Address,
    pub(crate) out: Address,
    pub(crate) norm: NormArgs,
    pub(crate) add: i32,
    pub(crate) factor: f32,
    pub(crate) n: i32,
    pub(crate) x_stride: i32,
    pub(crate) out_stride: i32,
    pub(crate) unused: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct RopeArgs {
    pub(crate) inv_freq: Address,
    pub(crate) position: Address,
    pub(crate) table: Address,
    pub(crate) magnitude: f32,
    pub(crate) pairs: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct Spans {
    pub(crate) span_of: Address,
    pub(crate) position: Address,
    pub(crate) start: Address,
    pub(crate) len: Address,
    pub(crate) first_block: Address,
    pub(crate) table: Address,
    pub(crate) blocks: Address,
    pub(crate) spans: u32,
    pub(crate) groups: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct HeadNormArgs {
    pub(crate) weight: Address,
    pub(crate) bias: Address,
    pub(crate) eps: f32,
    pub(crate) kind: i32,
    /// Values from one head's weights to the next one's; 0 if all share them.
    pub(crate) stride: i32,
    pub(crate) unused: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct HeadsArgs {
    pub(crate) q: Address,
    pub(crate) k: Address,
    pub(crate) v: Address,
    pub(crate) q16: Address,
    pub(crate) q_unscale: Address,
    pub(crate) k_cache: Address,
    pub(crate) v_cache: Address,
    pub(crate) angles: Address,
    pub(crate) q_norm: HeadNormArgs,
    pub(crate) k_norm: HeadNormArgs,
    pub(crate) spans: Spans,
    pub(crate) group: i32,
    pub(crate) q_heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) dim: i32,
    pub(crate) pairs: i32,
    pub(crate) style: i32,
    /// `enum class Kv`.
    pub(crate) k_type: i32,
    pub(crate) v_type: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct AttentionArgs {
    pub(crate) q: Address,
    pub(crate) q_unscale: Address,
    pub(crate) k: Address,
    pub(crate) v: Address,
    pub(crate) out: Address,
    pub(crate) partial_o: Address,
    pub(crate) partial_ml: Address,
    pub(crate) spans: Spans,
    pub(crate) group: i32,
    pub(crate) q_heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) dim: i32,
    pub(crate) scale: f32,
    pub(crate) soft_cap: f32,
    pub(crate) window: i32,
    pub(crate) max_segments: i32,
    /// `enum class Kv`.
    pub(crate) k_type: i32,
    pub(crate) v_type: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct DecodeAttentionArgs {
    pub(crate) heads: HeadsArgs,
    pub(crate) attention: AttentionArgs,
    pub(crate) arrived: Address,
    pub(crate) tokens: i32,
    pub(crate) unused: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct ProbeArgs {
    pub(crate) data: Address,
    pub(crate) sink: Address,
    pub(crate) count: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct ArgmaxArgs {
    pub(crate) logits: Address,
    pub(crate) rank: Address,
    pub(crate) arrived: Address,
    pub(crate) result: Address,
    pub(crate) vocab: i32,
    pub(crate) unused: i32,
}

/// A [`minfer_ops::Draw`].
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct DrawArgs {
    pub(crate) temperature: f32,
    pub(crate) top_k: u32,
    pub(crate) top_p: f32,
    pub(crate) unused: u32,
    pub(crate) least: u64,
    pub(crate) random: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct SampleArgs {
    pub(crate) logits: Address,
    pub(crate) best: Address,
    pub(crate) draws: Address,
    pub(crate) bins: Address,
    pub(crate) found: Address,
    pub(crate) list: Address,
    pub(crate) sums: Address,
    pub(crate) result: Address,
    pub(crate) vocab: i32,
    pub(crate) unused: i32,
}

#[cfg(feature = "lab")]
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct LayoutArgs {
    pub(crate) out: Address,
}

#[cfg(feature = "lab")]
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct MmqArgs {
    pub(crate) w: Address,
    pub(crate) q: Address,
    pub(crate) scales: Address,
    pub(crate) bias: Address,
    pub(crate) out: Address,
    pub(crate) rows: i32,
    pub(crate) cols: i32,
    pub(crate) tokens: i32,
    pub(crate) padded: i32,
    pub(crate) out_stride: i32,
    pub(crate) finish: i32,
    pub(crate) factor: f32,
    pub(crate) soft_cap: f32,
}

#[cfg(feature = "lab")]
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct MmqQuantizeArgs {
    pub(crate) x: Address,
    pub(crate) q: Address,
    pub(crate) scales: Address,
    pub(crate) cols: i32,
    pub(crate) tokens: i32,
    pub(crate) padded: i32,
    pub(crate) unused: i32,
}

#[cfg(feature = "lab")]
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct RateArgs {
    pub(crate) sink: Address,
    pub(crate) turns: i32,
    pub(crate) unused: i32,
}
