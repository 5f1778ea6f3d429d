//! Products of few tokens on Hopper: the kernels of `csrc/matmul/few.cuh`, and with what they are launched.

use super::{ROW_TILE, UNIT_COLS, UNIT_SUMS};
use crate::driver::{Gpu, Kernel, Shape};
use crate::kernels::{QT16_TYPES, has_codes};
use minfer_ops::{DeviceError, GgmlType};

/// Tokens that the kernels are for, at most.
const TOKENS: [usize; 3] = [8, 16, 32];
/// Tokens from which there are such kernels, and up to which.
pub(super) const FEWEST: usize = 2;
pub(super) const MOST: usize = TOKENS[TOKENS.len() - 1];
/// Rows of a block, and its threads.
pub(super) const ROWS: usize = 128;
const THREADS: usize = 288;

/// The kernel for a number of tokens, a cluster of its blocks, and how many of these run at a time.
#[derive(Clone, Copy)]
struct Few {
    kernel: Kernel,
    cluster: Shape,
    clusters: usize,
}

/// The kernels of a type.
#[derive(Clone, Copy)]
pub(super) struct Kernels([Few; TOKENS.len()]);

impl Kernels {
    /// The kernel for `tokens`, and its launch for so many tiles of rows: no more clusters than run at a time take turns.
    pub(super) fn launch(&self, tokens: usize, tiles: usize) -> (Kernel, Shape) {
        let at = TOKENS.iter().position(|most| tokens <= *most).unwrap_or(TOKENS.len() - 1);
        let Few { kernel, cluster, clusters } = self.0[at];
        let [segments, y, z] = cluster.grid;
        (kernel, Shape { grid: [segments * tiles.min(clusters) as u32, y, z], ..cluster })
    }
}

/// The kernels of a type of units, which `name` stands for, and so many segments of K.
pub(super) fn load(
    gpu: &Gpu,
    kernels: &crate::kernels::Kernels,
    ty: GgmlType,
    name: &str,
    segments: usize,
) -> Result<Kernels, DeviceError> {
    let of = |tokens: usize| -> Result<Few, DeviceError> {
        let kernel = kernels.get("matmul_few", &format!("matmul_few_{name}_n{tokens}"))?;
        gpu.allow_shared(kernel, 0)?;
        let cluster = Shape::new([segments, 1, 1], THREADS).with_shared(shared(ty, tokens));
        let cluster = Shape { cluster: segments as u32, ..cluster };
        let clusters = gpu.clusters_at_a_time(kernel, cluster)?.max(1);
        Ok(Few { kernel, cluster, clusters })
    };
    let [first, second, third] = TOKENS.map(of);
    Ok(Kernels([first?, second?, third?]))
}

/// Shared memory of a block, `SHARED` of `csrc/matmul/few.cuh`.
fn shared(ty: GgmlType, tokens: usize) -> usize {
    const WHOLE: usize = 227 << 10;
    const HALF: usize = (228 << 10) / 2 - 1024;
    let minima = matches!(ty, GgmlType::Q4_K | GgmlType::Q5_K);
    let unit_bytes = QT16_TYPES.iter().find(|(known, _)| *known == ty).map_or(0, |(_, bytes)| *bytes);
    // Units of halves are half as many columns.
    let each = if has_codes(ty) { 1 } else { 2 };
    // A stage has a unit's tokens, or those of 128 columns.
    let columns = if tokens < 32 { UNIT_COLS / each } else { 128 };
    let of_tokens = tokens * (2 * columns + if minima { 2 * UNIT_SUMS } else { 0 });
    let of_weights = ROWS / ROW_TILE * unit_bytes / each;
    let token_stages = if tokens == 8 { 4 } else { 3 };
    // Accumulators of 8 tokens, 512 bytes of each warp.
    let parts = if tokens == 8 { 16 } else { tokens } * 512;
    let others = token_stages * of_tokens + 2 * parts + 256;
    let room = if others + 2 * of_weights <= HALF { HALF } else { WHOLE };
    others + ((room - others) / of_weights).min(3) * of_weights
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `csrc/matmul/few.cuh` asserts of the same types.
    #[test]
    fn blocks_have_the_memory_that_kernels_take() {
        let of = [(GgmlType::Q4_K, 8), (GgmlType::Q4_K, 32), (GgmlType::Q8_0, 32), (GgmlType::BF16, 16)];
        assert_eq!(of.map(|(ty, tokens)| shared(ty, tokens)), [89_344, 97_536, 162_048, 94_464]);
    }
}
