//! Products of tiles of tokens as bytes: the kernels of `csrc/matmul/byte_tiles.cuh`, which one takes how many tokens, and
//! with what.

use super::{Gated, Input, Matrix, Output, ROW_TILE};
use crate::args::{Address, ByteTileArgs, ByteTileMatrix, at};
use crate::driver::{Gpu, Kernel, Shape};
use crate::k_segments;
use crate::kernels::has_integer_scales;
use minfer_ops::{DeviceError, GgmlType};

/// Tokens from which tiles are taken; tokens up to which a block has few of them; tokens of a block then, and of more.
pub(super) const MANY: usize = 64;
const FEW: usize = 128;
const TOKENS: [usize; 2] = [32, 64];
/// Threads of a block, and rows of the result that it has.
const THREADS: usize = 128;
const ROWS: usize = 128;

/// The kernel for up to three matrices, and of a gate and its up; shared memory and tokens of a block.
#[derive(Clone, Copy)]
struct Tiled {
    products: Kernel,
    gated: Option<Kernel>,
    shared: usize,
    tokens: usize,
}

/// The kernels of a type: for few tokens, and, if a multiprocessor has the memory for it, for more.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    few: Tiled,
    more: Option<Tiled>,
}

impl Kernels {
    /// The kernels for so many tokens.
    fn of(&self, tokens: usize) -> Tiled {
        if tokens > FEW { self.more.unwrap_or(self.few) } else { self.few }
    }

    /// Whether there is one for a gate and its up of so many tokens.
    pub(super) fn gate(&self, tokens: usize) -> bool {
        self.of(tokens).gated.is_some()
    }
}

/// Bytes of shared memory of a block for `tokens`, `SHARED` of the kernels.
fn shared(ty: GgmlType, unit_bytes: usize, tokens: usize) -> usize {
    use GgmlType::{Q2_K, Q3_K, Q4_1, Q4_K, Q5_1, Q5_K, Q6_K};
    let groups = ROWS / ROW_TILE;
    // Scales, and sums of tokens, are of pairs of groups: of 32 values, or two of 16.
    let sets = if matches!(ty, Q2_K | Q3_K | Q6_K) { 2 } else { 1 };
    let minima = matches!(ty, Q4_K | Q5_K | Q4_1 | Q5_1 | Q2_K);
    let integer = has_integer_scales(ty);
    // What minima are times, and integers.
    let of_rows = if integer { 4 * ROW_TILE * (1 + usize::from(minima)) } else { 0 };
    // Minima of a lane; a token's scales, and its sums.
    let (of_lane, scales, sums) = if integer { (8 * sets, 4, 32) } else { (16, 4 * 8, 64) };
    let (of_minima, sums) = if minima { (32 * of_lane, sums) } else { (0, 0) };
    let tables = groups * (16 * sets * 32 + of_minima + of_rows);
    let of_tokens = tokens * (4 * 64 + scales + sums);
    2 * (groups * unit_bytes + of_tokens + tables)
}

/// The kernels of a type, whose units have so many bytes; `None` where there is not enough shared memory.
pub(super) fn load(
    gpu: &Gpu,
    kernels: &crate::kernels::Kernels,
    ty: GgmlType,
    name: &str,
    unit_bytes: usize,
) -> Result<Option<Kernels>, DeviceError> {
    let of = |tokens: usize| -> Result<Option<Tiled>, DeviceError> {
        let shared = shared(ty, unit_bytes, tokens);
        if shared > gpu.info.shared_per_block {
            return Ok(None);
        }
        let get = |form: &str| -> Result<Kernel, DeviceError> {
            let kernel =
                kernels.get("matmul_byte_tiles", &format!("matmul_byte_tiles_{name}_n{tokens}{form}"))?;
            gpu.allow_shared(kernel, 0)?;
            Ok(kernel)
        };
        let gated = if tokens == TOKENS[1] { Some(get("_gated")?) } else { None };
        Ok(Some(Tiled { products: get("")?, gated, shared, tokens }))
    };
    let more = of(TOKENS[1])?;
    Ok(of(TOKENS[0])?.map(|few| Kernels { few, more }))
}

/// The launch of products with up to three matrices of one type, or with a gate and its up: `tile_products` of bytes.
pub(super) fn launch(
    products: &[(&Matrix, Address, Output)],
    input: Input,
    gated: Option<Gated>,
) -> Result<(Kernel, Shape, ByteTileArgs), DeviceError> {
    let fault = |what: &str| Err(DeviceError::Fault(format!("tiles of bytes: {what}")));
    let Some((first, _, output)) = products.first() else { return fault("no matrix") };
    let Some(tiled) = first.byte_tiled.map(|kernels| kernels.of(input.rows)) else {
        return fault("a matrix without a kernel for them");
    };
    let kernel = if gated.is_some() { tiled.gated } else { Some(tiled.products) };
    let Some(kernel) = kernel else { return fault("a gate and its up without a kernel for both") };
    let (finish, factor, soft_cap) = output.finish.args();
    let mut args = ByteTileArgs {
        x: input.x,
        x_unscale: input.unscale,
        cols: first.k() as i32,
        x_stride: input.stride as i32,
        tokens: input.rows as i32,
        segments: k_segments(first.cols) as i32,
        act: gated.map_or(-1, |gated| gated.act),
        finish,
        factor,
        soft_cap,
        ..ByteTileArgs::default()
    };
    let mut tiles = 0;
    for (i, (matrix, bias, output)) in products.iter().enumerate() {
        let same = first.goes_with(matrix) && matrix.byte_tiled.is_some();
        if !same || i >= args.m.len() || (gated.is_some() && matrix.rows != first.rows) {
            return fault("matrices that do not go together");
        }
        let of_matrix = matrix.rows.div_ceil(if gated.is_some() { ROWS / 2 } else { ROWS });
        tiles = if gated.is_some() { of_matrix } else { tiles + of_matrix };
        args.m[i] = ByteTileMatrix {
            w: at(&matrix.data, 0),
            bias: *bias,
            out: output.out,
            rows: matrix.rows as i32,
            tiles: of_matrix as i32,
            out_stride: output.stride as i32,
            unused: 0,
        };
    }
    let shape = Shape::new([input.rows.div_ceil(tiled.tokens), tiles, 1], THREADS).with_shared(tiled.shared);
    Ok((kernel, shape, args))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{QT16_TYPES, has_codes};

    /// Every type with codes has a kernel where a block may have 99 KB, and twice that much is room for two blocks of more
    /// tokens on Hopper.
    #[test]
    fn every_type_fits_where_shared_memory_is_short() {
        for (ty, unit_bytes) in QT16_TYPES.iter().filter(|(ty, _)| has_codes(*ty)) {
            let [few, more] = TOKENS.map(|tokens| shared(*ty, *unit_bytes, tokens));
            assert!(few <= 99 << 10, "{ty}: {few}");
            assert!(2 * (more + 1024) <= 228 << 10, "{ty}: {more}");
        }
        assert_eq!(shared(GgmlType::Q4_K, 2304, TOKENS[1]), 88_576);
    }
}
