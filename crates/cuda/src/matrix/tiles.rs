//! Products of tiles of tokens on Hopper: the kernels of `csrc/matmul/wgmma.cuh`, which shape of tile is fastest, how blocks
//! take turns at them, and with what they are launched.

use super::{Address, Gated, Input, Matrix, Output, ROW_TILE, SPARE_FLAGS, Spare, TILE_TOKENS, few};
use crate::args::{TileArgs, TileMatrix, at};
use crate::driver::{Gpu, GpuInfo, Kernel, Shape};
use crate::k_segments;
use crate::kernels::ARCHS;
use minfer_ops::DeviceError;

/// The compute capability whose `wgmma` instructions the kernels are made of.
const WGMMA: (i32, i32) = (9, 0);
/// The type whose kernels multiply with more tokens at a time, by its name in kernels' names.
const WIDE_TYPE: &str = "q6_k";
/// Tokens from which a gate and its up take wide tiles: fewer leave more of the last turn empty than wide ones are faster.
const WIDE_GATED: usize = 4 * TILE_TOKENS + 1;
/// Shared memory of a block, `SHARED` of `csrc/matmul/wgmma.cuh`.
const TILE_SHARED: usize = 227 << 10;

/// What a block of the kernels for tiles has of the result at a time: a warpgroup multiplies for 64 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileShape {
    /// 128 rows and tokens: for products that leave multiprocessors without a tile, or with one tile less than others.
    Low,
    /// 192 rows, 128 tokens: reads an input's tile fewer times, and hides more of what is no multiplication.
    Tall,
    /// 128 rows, 256 tokens: multiplies what it has unpacked with twice as many of them. Only of types that are slow to
    /// unpack.
    Wide,
}

impl TileShape {
    fn rows(self) -> usize {
        match self {
            TileShape::Low | TileShape::Wide => 128,
            TileShape::Tall => 192,
        }
    }

    fn tokens(self) -> usize {
        match self {
            TileShape::Low | TileShape::Tall => TILE_TOKENS,
            TileShape::Wide => 2 * TILE_TOKENS,
        }
    }

    /// A warpgroup for 64 rows, and one that asks for memory.
    fn threads(self) -> usize {
        128 * (1 + self.rows() / 64)
    }

    /// What a value of it costs beside one of a tall tile.
    fn cost(self) -> f32 {
        match self {
            TileShape::Low => 1.1,
            TileShape::Tall => 1.0,
            TileShape::Wide => 0.95,
        }
    }

    /// Tiles of matrices with so many rows, times those of tokens.
    fn tiles(self, rows: impl Iterator<Item = usize>, tokens: usize) -> usize {
        rows.map(|rows| rows.div_ceil(self.rows())).sum::<usize>() * tokens.div_ceil(self.tokens())
    }
}

/// How blocks take turns at tiles: each takes a tile, until fewer are left than there are blocks, and of those so
/// many segments of K each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turns {
    whole: usize,
    shared: usize,
    each: usize,
}

impl Turns {
    /// Blocks share the last tiles, unless they are low, if `spare` is enough.
    fn of(shape: TileShape, tiles: usize, segments: usize, blocks: usize, spare: Spare) -> Turns {
        let (whole, left) = (tiles / blocks, tiles % blocks);
        let shared = left * segments;
        // The sums of a segment: a tile of floats, and a flag for each row group.
        let floats = shared * shape.rows() * shape.tokens();
        let flags = shared * shape.rows() / ROW_TILE;
        let fits =
            shape != TileShape::Low && floats <= spare.floats && flags <= SPARE_FLAGS && spare.arrived != 0;
        Turns { whole, shared, each: if fits { shared.div_ceil(blocks) } else { segments } }
    }

    /// Segments, those of a tile for what a tile costs that is none of them: parts are left, waited for and added.
    fn cost(self, segments: usize) -> f32 {
        let last = match self.each {
            _ if self.shared == 0 => 0.0,
            each if each >= segments => segments as f32,
            each => each as f32 + 1.5,
        };
        (self.whole * segments) as f32 + last
    }
}

/// The fastest shape for products of `tokens` with matrices of so many `rows` and `segments` of K. `wide`: whether there are
/// wide tiles.
fn tile_shape(
    wide: bool,
    rows: impl Iterator<Item = usize> + Clone,
    tokens: usize,
    segments: usize,
    blocks: usize,
    spare: Spare,
) -> TileShape {
    let cost = |shape: TileShape| {
        let tiles = shape.tiles(rows.clone(), tokens);
        let turns = Turns::of(shape, tiles, segments, blocks, spare).cost(segments) / segments as f32;
        turns * (shape.rows() * shape.tokens()) as f32 * shape.cost()
    };
    [TileShape::Tall, TileShape::Low, TileShape::Wide]
        .into_iter()
        .filter(|shape| wide || *shape != TileShape::Wide)
        .min_by(|a, b| cost(*a).total_cmp(&cost(*b)))
        .unwrap_or(TileShape::Tall)
}

/// The kernels of a type: of up to three matrices, and of a gate and its up.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    tall: Kernel,
    low: Kernel,
    gated: Kernel,
    /// Of wide tiles, not gated and gated.
    wide: Option<[Kernel; 2]>,
    few: few::Kernels,
}

impl Kernels {
    /// Whether there are kernels for [`TileShape::Wide`].
    pub(super) fn has_wide(&self) -> bool {
        self.wide.is_some()
    }

    /// The kernel for tiles of a shape, of a gate and its up or not.
    fn of(&self, shape: TileShape, gated: bool) -> Option<Kernel> {
        match (shape, gated) {
            (TileShape::Tall, false) => Some(self.tall),
            (TileShape::Tall, true) => Some(self.gated),
            (TileShape::Low, false) => Some(self.low),
            (TileShape::Low, true) => None,
            (TileShape::Wide, gated) => self.wide.map(|[plain, both]| if gated { both } else { plain }),
        }
    }
}

/// The kernels of a type, on GPUs of compute capability 9.0.
pub(super) fn load(
    gpu: &Gpu,
    kernels: &crate::kernels::Kernels,
    matrix: &Matrix,
    name: &str,
) -> Result<Option<Kernels>, DeviceError> {
    if !has_wgmma(&gpu.info) {
        return Ok(None);
    }
    let get = |form: &str| -> Result<Kernel, DeviceError> {
        let kernel = kernels.get("matmul_wgmma", &format!("matmul_wgmma_{name}{form}"))?;
        gpu.allow_shared(kernel, 0)?;
        Ok(kernel)
    };
    Ok(Some(Kernels {
        tall: get("")?,
        low: get("_low")?,
        gated: get("_gated")?,
        wide: if name == WIDE_TYPE { Some([get("_wide")?, get("_wide_gated")?]) } else { None },
        few: few::load(gpu, kernels, matrix.ty, name, k_segments(matrix.cols))?,
    }))
}

/// Whether a GPU has `wgmma` instructions and this build kernels of them.
pub(crate) fn has_wgmma(info: &GpuInfo) -> bool {
    info.capability == WGMMA && ARCHS.split(',').any(|arch| arch == "90a")
}

/// The launch of products with up to three matrices of one type, or with a gate and its up: `tile_products` of halves, in
/// tiles of the fastest shape.
pub(super) fn launch(
    products: &[(&Matrix, Address, Output)],
    input: Input,
    gated: Option<Gated>,
    multiprocessors: usize,
) -> Result<(Kernel, Shape, TileArgs), DeviceError> {
    if input.rows <= few::MOST {
        let (kernels, args, tiles) = tile_args(products, input, gated, few::ROWS)?;
        let (kernel, shape) = kernels.few.launch(input.rows, tiles);
        return Ok((kernel, shape, args));
    }
    let wide = products.first().and_then(|(first, ..)| first.tiled).is_some_and(|tiled| tiled.has_wide());
    let shape = match (products.first(), gated) {
        (Some((first, ..)), None) => {
            let rows = products.iter().map(|(matrix, ..)| matrix.rows);
            let (segments, spare) = (k_segments(first.cols), spare_for(input, products));
            tile_shape(wide, rows, input.rows, segments, multiprocessors, spare)
        }
        _ if wide && input.rows >= WIDE_GATED => TileShape::Wide,
        _ => TileShape::Tall,
    };
    launch_of(products, input, gated, shape, multiprocessors)
}

/// What `input` has to spare, unless results go there.
fn spare_for(input: Input, products: &[(&Matrix, Address, Output)]) -> Spare {
    let spare = input.spare.parts..input.spare.parts + 4 * input.spare.floats as Address;
    if products.iter().any(|(.., output)| spare.contains(&output.out)) {
        Spare::default()
    } else {
        input.spare
    }
}

/// The same with tiles of a shape, not [`TileShape::Low`] for a gate and its up.
pub(super) fn launch_of(
    products: &[(&Matrix, Address, Output)],
    input: Input,
    gated: Option<Gated>,
    shape: TileShape,
    multiprocessors: usize,
) -> Result<(Kernel, Shape, TileArgs), DeviceError> {
    let (kernels, mut args, tiles) = tile_args(products, input, gated, shape.rows())?;
    let Some(kernel) = kernels.of(shape, gated.is_some()) else {
        return Err(DeviceError::Fault(format!("tiles: no kernel for {shape:?} ones")));
    };
    let tiles = tiles * input.rows.div_ceil(shape.tokens());
    let (segments, spare) = (args.segments as usize, spare_for(input, products));
    let turns = Turns::of(shape, tiles, segments, multiprocessors, spare);
    // Of what is shared every block has its place.
    let blocks = if turns.each < segments { multiprocessors } else { multiprocessors.min(tiles) };
    args.tiles = tiles as i32;
    (args.turns, args.shared, args.each) = (turns.whole as i32, turns.shared as i32, turns.each as i32);
    args.top = (blocks.saturating_sub(1) * turns.each) as i32;
    (args.parts, args.arrived) = (spare.parts, spare.arrived);
    Ok((kernel, Shape::new([blocks, 1, 1], shape.threads()).with_shared(TILE_SHARED), args))
}

/// Of products with tiles of so many rows of a result, half of them a gate's and half its up's: their kernels, their
/// arguments, and how many tiles of rows there are.
fn tile_args(
    products: &[(&Matrix, Address, Output)],
    input: Input,
    gated: Option<Gated>,
    tile_rows: usize,
) -> Result<(Kernels, TileArgs, usize), DeviceError> {
    let fault = |what: &str| Err(DeviceError::Fault(format!("tiles: {what}")));
    let Some((first, _, output)) = products.first() else { return fault("no matrix") };
    let Some(tiled) = first.tiled else { return fault("a matrix without a kernel for them") };
    let tile_rows = if gated.is_some() { tile_rows / 2 } else { tile_rows };
    let (finish, factor, soft_cap) = output.finish.args();
    let mut args = TileArgs {
        x: input.x,
        x_unscale: input.unscale,
        most: gated.map_or(0, |gated| gated.most),
        cols: first.k() as i32,
        x_stride: input.stride as i32,
        tokens: input.rows as i32,
        segments: k_segments(first.cols) as i32,
        beside: input.beside as i32,
        act: gated.map_or(-1, |gated| gated.act),
        finish,
        factor,
        soft_cap,
        ..TileArgs::default()
    };
    let mut tiles = 0;
    for (i, (matrix, bias, output)) in products.iter().enumerate() {
        let same = matrix.ty == first.ty && matrix.cols == first.cols && matrix.tiled.is_some();
        if !same || i >= args.m.len() || (gated.is_some() && matrix.rows != first.rows) {
            return fault("matrices that do not go together");
        }
        let of_matrix = matrix.rows.div_ceil(tile_rows);
        tiles = if gated.is_some() { of_matrix } else { tiles + of_matrix };
        args.m[i] = TileMatrix {
            w: at(&matrix.data, 0),
            bias: *bias,
            out: output.out,
            w_scale: matrix.scale,
            w_unscale: 1.0 / matrix.scale,
            rows: matrix.rows as i32,
            tiles: of_matrix as i32,
            out_stride: output.stride as i32,
            zero: 0,
        };
    }
    Ok((tiled, args, tiles))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 132 multiprocessors, Qwen2.5-7B's matrices.
    #[test]
    fn tiles_are_as_high_as_leaves_least_to_the_last_turn() {
        let (none, spare) = (Spare::default(), Spare { parts: 1 << 20, floats: 1 << 25, arrived: 1 });
        let of = |rows: &[usize], tokens, segments, spare| {
            tile_shape(false, rows.iter().copied(), tokens, segments, 132, spare)
        };
        for spare in [none, spare] {
            // 99 × 16 tiles are 12 turns exactly.
            assert_eq!(of(&[18944], 2048, 4, spare), TileShape::Tall);
            assert_eq!(of(&[3584, 512, 512], 512, 4, spare), TileShape::Tall);
            // 76 tall tiles, which 132 blocks would share unevenly.
            assert_eq!(of(&[3584], 512, 4, spare), TileShape::Low);
            assert_eq!(of(&[3584], 512, 8, spare), TileShape::Low);
        }
        // 25 × 16 tiles are four more than three turns, 19 × 16 are two and 40.
        for (rows, segments) in [(&[3584, 512, 512][..], 4), (&[3584], 8)] {
            assert_eq!(of(rows, 2048, segments, none), TileShape::Low);
            assert_eq!(of(rows, 2048, segments, spare), TileShape::Tall);
        }
        assert_eq!(
            (of(&[3584], 128, 8, none), of(&[3584], 128, 8, spare)),
            (TileShape::Low, TileShape::Tall)
        );
        // Half of a wide tile would be for nobody.
        let wide = |tokens| tile_shape(true, [3584].into_iter(), tokens, 8, 132, spare);
        assert_eq!((wide(2048), wide(128)), (TileShape::Wide, TileShape::Tall));
    }

    #[test]
    fn blocks_share_what_is_left_if_there_is_memory() {
        let spare = |segments: usize| Spare { parts: 1 << 20, floats: segments * 192 * 128, arrived: 1 };
        let turns = |whole, shared, each| Turns { whole, shared, each };
        assert_eq!(Turns::of(TileShape::Tall, 304, 8, 132, spare(320)), turns(2, 320, 3));
        assert_eq!(Turns::of(TileShape::Tall, 304, 8, 132, spare(319)), turns(2, 320, 8));
        assert_eq!(Turns::of(TileShape::Tall, 304, 8, 132, Spare::default()), turns(2, 320, 8));
        assert_eq!(Turns::of(TileShape::Tall, 264, 8, 132, spare(320)), turns(2, 0, 0));
        // Never more than a tile.
        assert_eq!(Turns::of(TileShape::Tall, 131, 8, 132, spare(2000)), turns(0, 1048, 8));
    }
}
