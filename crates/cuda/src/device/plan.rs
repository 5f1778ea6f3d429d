//! Memory that a model will take, from its tensors' shapes and types: nothing of it needs a GPU.

use super::load::same_rope;
use super::state::{State, check_cache};
use crate::driver::held;
use crate::matrix::tuned_bytes;
use minfer_ops::{DeviceError, Holding, Memory, Reserve, Rope, Weight};

/// What the driver takes for itself once steps run: kernels that come to the GPU when they are first launched, and
/// graphs.
const WORKING: u64 = 64 << 20;

/// [`minfer_ops::Device::memory`] of a GPU. `keeps`: whether a matrix stays there as it lies in the file too.
pub(super) fn memory(
    holdings: &[Holding<'_>],
    reserve: &Reserve,
    keeps: impl Fn(&Weight) -> bool,
) -> Result<Memory, DeviceError> {
    check_cache(reserve)?;
    let (mut weights, mut loading) = (0u64, 0u64);
    let mut ropes: Vec<&Rope> = Vec::new();
    for holding in holdings {
        // What stays, and what beside it goes again when the tensor is loaded.
        let (stays, goes) = match holding {
            Holding::Table(weight) => (held(weight.data.len() as u64), 0),
            Holding::Matrix(weight) => {
                let file = held(weight.data.len() as u64);
                match tuned_bytes(weight) {
                    None => (file, 0),
                    Some(tuned) if keeps(weight) => (held(tuned).saturating_add(file), 0),
                    Some(tuned) => (held(tuned), file),
                }
            }
            Holding::Tied(weight) => (tuned_bytes(weight).map_or(0, held), 0),
            Holding::Vector(len) => (held(4 * *len as u64), 0),
            Holding::Rope(rope) if ropes.iter().any(|known| same_rope(known, rope)) => (0, 0),
            Holding::Rope(rope) => {
                ropes.push(rope);
                (held(8 * rope.inv_freq.len() as u64), 0)
            }
        };
        weights = weights.saturating_add(stays);
        loading = loading.max(weights.saturating_add(goes));
    }
    let pairs: Vec<usize> = ropes.iter().map(|rope| rope.inv_freq.len()).collect();
    let reserved = State::bytes(reserve, &pairs).saturating_add(WORKING);
    Ok(Memory { weights, mapped: 0, loading, reserved })
}

#[cfg(test)]
mod tests {
    use super::*;
    use minfer_ops::{GgmlType, Heads, KvGroup, KvType, KvTypes, RopeStyle};

    const MIB: u64 = 1 << 20;

    fn memory(holdings: &[Holding<'_>], reserve: &Reserve) -> Result<Memory, DeviceError> {
        super::memory(holdings, reserve, |_| false)
    }

    fn weight(ty: GgmlType, rows: usize, cols: usize) -> Weight {
        let bytes = ty.bytes_of(rows * cols).expect("whole blocks");
        Weight { name: "w".into(), ty, rows, cols, data: vec![0; bytes].into() }
    }

    fn reserve(blocks: usize, kv_types: KvTypes) -> Reserve {
        let heads = Heads { q: 4, kv: 2, dim: 64 };
        Reserve {
            max_tokens: 1,
            max_outputs: 1,
            d_model: 256,
            max_q: 256,
            max_kv: 128,
            max_ff: 256,
            vocab: 1000,
            kv_groups: vec![KvGroup { layers: 3, heads, blocks }],
            kv_types,
        }
    }

    #[test]
    fn tensors_are_counted_as_they_will_lie_on_the_gpu() {
        let cache = reserve(1, KvTypes::default());
        let of = |holdings: &[Holding<'_>]| memory(holdings, &cache).expect("a cache of f16");
        // 16 × 256 values of Q4_K are 144 bytes a row in the file and one unit on the GPU; rows are whole units.
        let (k, odd) = (weight(GgmlType::Q4_K, 16_000, 256), weight(GgmlType::Q4_K, 16_001, 256));
        assert_eq!(k.data.len(), 1000 * 2304);
        let one = of(&[Holding::Matrix(&k)]);
        assert_eq!((one.weights, one.loading), (4 * MIB, 8 * MIB));
        assert_eq!(tuned_bytes(&k), Some(1000 * 2304));
        assert_eq!(tuned_bytes(&odd), Some(1001 * 2304));
        // Experiments read the file's layout.
        let both = super::memory(&[Holding::Matrix(&k)], &cache, |_| true).expect("a cache of f16");
        assert_eq!((both.weights, both.loading), (8 * MIB, 8 * MIB));
        // Rows that are no whole units, and types that have none, stay in the file's layout.
        let short = weight(GgmlType::Q8_0, 10_000, 320);
        let float = weight(GgmlType::F32, 10_000, 256);
        assert_eq!((tuned_bytes(&short), tuned_bytes(&float)), (None, None));
        // Halves do not grow but to whole units.
        let half = |cols| tuned_bytes(&weight(GgmlType::BF16, 10_000, cols));
        assert_eq!([256, 576, 320].map(half), [Some(5_120_000), Some(15_360_000), None]);
        for matrix in [&short, &float] {
            let stays = of(&[Holding::Matrix(matrix)]);
            assert_eq!((stays.weights, stays.loading), (held(matrix.data.len() as u64), stays.weights));
        }
        // A table that the head shares lies there twice if products have their own layout.
        let tied = of(&[Holding::Table(&k), Holding::Tied(&k)]);
        assert_eq!((tied.weights, tied.loading), (8 * MIB, 8 * MIB));
        let tied = of(&[Holding::Table(&short), Holding::Tied(&short)]);
        assert_eq!(tied.weights, held(short.data.len() as u64));
        // What goes again counts where it is largest.
        let both = of(&[Holding::Matrix(&float), Holding::Matrix(&k)]);
        assert_eq!((both.weights, both.loading), (14 * MIB, 18 * MIB));
    }

    #[test]
    fn ropes_count_once_and_vectors_share_pages() {
        let cache = reserve(1, KvTypes::default());
        let rope = |magnitude| Rope { style: RopeStyle::Halves, inv_freq: vec![1.0; 32].into(), magnitude };
        let (first, second) = (rope(1.0), rope(2.0));
        let of = |holdings: &[Holding<'_>]| memory(holdings, &cache).expect("a cache of f16");
        let none = of(&[]);
        let one = of(&[Holding::Rope(&first), Holding::Rope(&first), Holding::Vector(100)]);
        let two = of(&[Holding::Rope(&first), Holding::Rope(&second), Holding::Vector(129)]);
        assert_eq!((none.weights, one.weights, two.weights), (0, 1024, 2048));
        assert_eq!((one.reserved - none.reserved, two.reserved - none.reserved), (512, 1024));
    }

    #[test]
    fn the_cache_is_counted_and_what_there_is_no_memory_for_does_not_overflow() {
        let of = |blocks| memory(&[], &reserve(blocks, KvTypes::default())).expect("a cache of f16");
        // 3 layers × 2 heads × 64 channels × 64 tokens × 2 bytes are 48 KiB a block, for keys and for values.
        let more = of(8192 + 1024).reserved - of(8192).reserved;
        assert!((2 * 48 * MIB..2 * 48 * MIB + 8 * MIB).contains(&more), "{more}");
        assert!(of(usize::MAX / 2).needed() >= u64::MAX / 4);
        // 17 bits for 16 of values in q8_0, 16 for those of keys in bf16.
        let types = KvTypes { keys: KvType::BF16, values: KvType::Q8_0 };
        let of = |blocks| memory(&[], &reserve(blocks, types)).expect("a cache of two types").reserved;
        let more = of(16 * 8192) - of(8 * 8192);
        let expected = 8 * 8192 * (48 << 10) / 32 * (32 + 17);
        assert!((expected..expected + 48 * MIB).contains(&more), "{more} of {expected}");
        // 66 bytes for the 64 channels of a head in fp8.
        let of = |blocks| {
            memory(&[], &reserve(blocks, KvTypes::same(KvType::FP8))).expect("a cache of fp8").reserved
        };
        let more = of(16 * 8192) - of(8 * 8192);
        let expected = 8 * 8192 * (48 << 10) / 64 * 66;
        assert!((expected..expected + 48 * MIB).contains(&more), "{more} of {expected}");
        let refused = |types: KvTypes, dim: usize| {
            let mut reserve = reserve(1, types);
            reserve.kv_groups[0].heads.dim = dim;
            matches!(memory(&[], &reserve), Err(DeviceError::Unsupported { .. }))
        };
        assert!(refused(KvTypes::same(KvType::F32), 64) && refused(KvTypes::same(KvType::Q8_0), 80));
        assert!(refused(KvTypes::same(KvType::FP8), 80) && !refused(KvTypes::same(KvType::FP8), 96));
        assert!(!refused(KvTypes::same(KvType::Q8_0), 96) && !refused(KvTypes::same(KvType::BF16), 80));
    }

    #[test]
    fn allocations_are_whole_pages_or_share_them() {
        assert_eq!([0, 1, 512, 513].map(held), [512, 512, 512, 1024]);
        assert_eq!([MIB, MIB + 1, 2 * MIB, 2 * MIB + 1].map(held), [MIB, 2 * MIB, 2 * MIB, 4 * MIB]);
        assert_eq!(held(u64::MAX), u64::MAX);
    }
}
