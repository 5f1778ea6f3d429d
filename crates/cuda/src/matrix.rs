//! Weights on the GPU.

mod byte_tiles;
mod few;
#[cfg(feature = "lab")]
pub(crate) mod mmq;
mod tiles;

#[cfg(test)]
pub(crate) use tiles::TileShape;
pub(crate) use tiles::has_wgmma;

use crate::args::{Address, BoundArgs, DecodeMatrix, EmbedArgs, Finish, MatmulArgs, RepackArgs, at};
use crate::driver::{Buffer, Kernel, Shape};
use crate::k_segments;
use crate::kernels::{Kernels, QT16_TYPES, has_codes, has_integer_scales, name_of, unit_type};
use crate::launch::Lane;
use crate::numerics::Numerics;
#[cfg(feature = "lab")]
use crate::prefill::Prefill;
use minfer_ops::{DeviceError, GgmlType, Weight};

/// Tokens up to which a product takes the kernel for few.
const FEW_TOKENS: usize = 8;
/// Tokens of a block of the kernel for many, and for many as bytes.
const TOKEN_TILE: usize = 32;
const BYTES_TILE: usize = 16;
/// Tokens of an input's tile, `TILE_TOKENS` of `csrc/prepare.cuh`.
pub(crate) const TILE_TOKENS: usize = 128;
/// Rows of a unit, and of a block of the file's layout.
pub(crate) const ROW_TILE: usize = 16;
/// Values that kernels read at a time.
const OCTET: usize = 8;

/// How rows of a product's input lie in memory, `Form` of `csrc/rows.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Halves as fragments.
    Fragments,
    /// Halves as tiles of [`TILE_TOKENS`] rows.
    Tiles,
    /// Bytes, of the int8 profile.
    Bytes,
    /// The same as tiles of [`TILE_TOKENS`] rows.
    ByteTiles,
    /// Bytes with scales by groups, of experiments: [`mmq::Groups`].
    #[cfg(feature = "lab")]
    Groups,
}

impl Form {
    /// Whether rows are bytes, of the int8 profile.
    pub(crate) fn is_bytes(self) -> bool {
        matches!(self, Form::Bytes | Form::ByteTiles)
    }

    /// Whether rows are tiles, which [`tile_products`] takes.
    pub(crate) fn is_tiles(self) -> bool {
        matches!(self, Form::Tiles | Form::ByteTiles)
    }
}

/// The input of a product: rows, each with a factor that its products are multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct Input {
    pub(crate) x: Address,
    pub(crate) unscale: Address,
    /// Halves from one row to the next.
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) form: Form,
    /// Of bytes: whether 256 values have one scale, and not 32.
    pub(crate) together: bool,
    pub(crate) spare: Spare,
    pub(crate) beside: Beside,
}

/// Whether several launches of products of few tokens with one input run beside each other: `enum class Beside`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Beside {
    #[default]
    None,
    /// The first one, which waits for the input.
    First,
    /// One that comes right behind such a one, or behind its like.
    Next,
}

/// Memory that products may use while they run. None of it: addresses of 0.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spare {
    /// So many floats for sums of segments that another block adds.
    pub(crate) parts: Address,
    pub(crate) floats: usize,
    /// [`SPARE_FLAGS`] words that say which are there, zero before and after.
    pub(crate) arrived: Address,
}

/// Words of [`Spare::arrived`].
pub(crate) const SPARE_FLAGS: usize = 1 << 14;

/// Where a product goes.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub(crate) out: Address,
    /// Floats from one token to the next.
    pub(crate) stride: usize,
    pub(crate) finish: Finish,
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Rows of blocks, as in the file.
    File,
    /// Units of 16 rows × 256 columns, `csrc/qt16.cuh`.
    Qt16,
}

/// Columns of a unit of QT16, and the sums that an input has for them (`QT_SUMS`).
pub(crate) const UNIT_COLS: usize = 256;
pub(crate) const UNIT_SUMS: usize = 16;
/// Bytes of the int8 profile's input of a unit (`Q8_UNIT`).
pub(crate) const UNIT_BYTES: usize = UNIT_COLS + UNIT_COLS / 32 * 8;
/// Warps of a block of its kernels, each with a segment of K.
pub(crate) const QT16_WARPS: usize = 8;
/// Codes of types with QT16 are read as q · 2^-24, so scales are times 2^24 and must stay halves: weights go to
/// [2^-6, 2^-5).
const QT16_SCALE: f32 = 1.0 / 8192.0;

/// A matrix, and the kernels for its type and layout.
pub(crate) struct Matrix {
    data: Buffer<u8>,
    ty: GgmlType,
    type_name: &'static str,
    layout: Layout,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    row_bytes: usize,
    /// The power of two that weights are multiplied with before they are rounded to half precision.
    scale: f32,
    /// Products with few and with many tokens; none in the file's layout for types whose every row is in QT16.
    products: Option<[Kernel; 2]>,
    /// Products with tiles of tokens, if there are kernels for them.
    tiled: Option<tiles::Kernels>,
    /// Products with bytes, for few and for many tokens, in the int8 profile.
    bytes: Option<[Kernel; 2]>,
    /// The same with tiles of tokens, if a multiprocessor has the memory for it.
    byte_tiled: Option<byte_tiles::Kernels>,
    /// What prompts take instead, if it was asked for.
    #[cfg(feature = "lab")]
    experiment: Option<mmq::Experiment>,
    embed: Kernel,
}

impl Matrix {
    /// Copies a matrix to the GPU as it lies in the file.
    pub(crate) fn load(weight: &Weight, lane: Lane<'_>, kernels: &Kernels) -> Result<Matrix, DeviceError> {
        let refuse = |what: String| Err(DeviceError::Unsupported { tensor: weight.name.to_string(), what });
        let Some(name) = name_of(weight.ty) else {
            return refuse(format!("type {} has no kernels for the GPU", weight.ty));
        };
        let Weight { rows, cols, .. } = *weight;
        if cols == 0 || rows == 0 || !cols.is_multiple_of(OCTET) {
            return refuse(format!(
                "{rows} rows of {cols} values; rows of a multiple of {OCTET} are supported"
            ));
        }
        if rows > i32::MAX as usize / 2 || cols > i32::MAX as usize / 2 {
            return refuse(format!("{rows} rows of {cols} values: too large"));
        }
        let bytes: &[u8] = &weight.data;
        if weight.ty.bytes_of(cols).is_none_or(|row| row * rows != bytes.len()) {
            return refuse(format!(
                "{} bytes for {rows} rows of {cols} values of {}",
                bytes.len(),
                weight.ty
            ));
        }
        let data = lane.gpu.alloc::<u8>(bytes.len(), "weights")?;
        lane.gpu.upload(bytes, &data)?;
        let row_bytes = weight.row_bytes();
        let has_qt16 = QT16_TYPES.iter().any(|(ty, _)| *ty == weight.ty);
        let bound = kernels.get("weights", &format!("bound_{name}"))?;
        let most = lane.gpu.alloc::<u32>(1, "weights")?;
        let args = BoundArgs {
            w: at(&data, 0),
            most: at(&most, 0),
            row_bytes: row_bytes as u64,
            rows: rows as i32,
            cols: cols as i32,
        };
        // SAFETY: the matrix is `rows` rows of `row_bytes`, as checked; `most` is one value.
        unsafe { lane.enqueue(bound, Shape::new([rows.min(1024), 1, 1], 128), &args)? };
        let mut bits = [0u32];
        lane.gpu.download(&most, &mut bits)?;
        Ok(Matrix {
            data,
            ty: weight.ty,
            type_name: name,
            layout: Layout::File,
            rows,
            cols,
            row_bytes,
            scale: scale_of(weight.ty, f32::from_bits(bits[0])),
            products: match has_qt16 && weight.ty.block_len() == UNIT_COLS {
                true => None,
                false => Some(products(kernels, "file", name, TOKEN_TILE)?),
            },
            tiled: None,
            bytes: None,
            byte_tiled: None,
            #[cfg(feature = "lab")]
            experiment: None,
            embed: kernels.get("weights", &format!("embed_{name}"))?,
        })
    }

    /// The same matrix in QT16, for products in a profile, if its type has tuned kernels and its rows nearly fill units.
    pub(crate) fn tuned(
        &self,
        lane: Lane<'_>,
        kernels: &Kernels,
        numerics: Numerics,
    ) -> Result<Option<Matrix>, DeviceError> {
        let Some((units, unit_bytes)) = units(self.ty, self.rows, self.cols) else { return Ok(None) };
        let Some(name) = name_of(unit_type(self.ty)) else { return Ok(None) };
        let codes = has_codes(self.ty);
        let data = lane.gpu.alloc::<u8>(units * unit_bytes, "weights")?;
        let args = RepackArgs {
            from: at(&self.data, 0),
            to: at(&data, 0),
            row_bytes: self.row_bytes as u64,
            rows: self.rows as i32,
            cols: self.cols as i32,
            scale: self.scale,
            unused: 0,
        };
        let kernel = kernels.get("matmul_qt16", &format!("repack_{}", self.type_name))?;
        // SAFETY: rows of whole blocks, as `load` checked; the target holds all units.
        unsafe { lane.enqueue(kernel, Shape::new([units, 1, 1], 256), &args)? };
        // The original may be dropped when this returns.
        lane.gpu.synchronize()?;
        Ok(Some(Matrix {
            data,
            layout: Layout::Qt16,
            products: Some(products(kernels, "qt16", name, TOKEN_TILE)?),
            tiled: tiles::load(lane.gpu, kernels, self, name)?,
            bytes: match numerics {
                Numerics::Int8 if codes => Some(products(kernels, "int8", name, BYTES_TILE)?),
                _ => None,
            },
            byte_tiled: match numerics {
                Numerics::Int8 if codes => byte_tiles::load(lane.gpu, kernels, self.ty, name, unit_bytes)?,
                _ => None,
            },
            #[cfg(feature = "lab")]
            experiment: None,
            ..*self
        }))
    }

    /// Lets prompts take what `prefill` is for it, as it lies in the file: `original`.
    #[cfg(feature = "lab")]
    pub(crate) fn experiment(
        &mut self,
        lane: Lane<'_>,
        kernels: &Kernels,
        prefill: Prefill,
        original: Matrix,
    ) -> Result<(), DeviceError> {
        self.experiment = mmq::Experiment::of(lane.gpu, kernels, prefill, self.ty, original.data)?;
        Ok(())
    }

    /// The matrix as the kernel for one token takes it whose input has this form, its result at `out`; `None` in another
    /// layout than QT16.
    pub(crate) fn for_decode(
        &self,
        form: Form,
        bias: Address,
        out: Address,
        blocks: usize,
    ) -> Option<DecodeMatrix> {
        if self.layout != Layout::Qt16 {
            return None;
        }
        let ty = QT16_TYPES.iter().position(|(ty, _)| *ty == unit_type(self.ty))?;
        // Units of halves are half as many columns.
        let unit_bits = usize::from(!has_codes(self.ty));
        Some(DecodeMatrix {
            w: at(&self.data, 0),
            bias,
            out,
            w_scale: self.scale,
            w_unscale: self.unscale(form),
            rows: self.rows as i32,
            blocks: blocks as i32,
            ty: ty as i32,
            unit_bytes: (QT16_TYPES[ty].1 >> unit_bits) as i32,
            unit_bits: unit_bits as i32,
            unused: 0,
        })
    }

    /// What undoes the scale of weights in a product: bytes are multiplied with weights as they are.
    fn unscale(&self, form: Form) -> f32 {
        if form.is_bytes() { 1.0 } else { 1.0 / self.scale }
    }

    /// Columns that its products go over: in QT16 those of whole units, zero behind its own.
    pub(crate) fn k(&self) -> usize {
        match self.layout {
            Layout::File => self.cols,
            Layout::Qt16 => self.cols.next_multiple_of(UNIT_COLS),
        }
    }

    /// Whether products with this and `other` may be one launch.
    pub(crate) fn goes_with(&self, other: &Matrix) -> bool {
        self.ty == other.ty && self.cols == other.cols && self.layout == other.layout
    }

    /// Whether products with `tokens` take tiles of them, which only such products do.
    pub(crate) fn takes_tiles(&self, tokens: usize) -> bool {
        self.tiled.is_some() && tokens >= few::FEWEST
    }

    /// Whether there are kernels for [`TileShape::Wide`].
    #[cfg(test)]
    pub(crate) fn has_wide_tiles(&self) -> bool {
        self.tiled.is_some_and(|tiled| tiled.has_wide())
    }

    /// Whether products with bytes are the profile's.
    pub(crate) fn takes_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// Whether products with `tokens` as bytes take tiles of them.
    pub(crate) fn takes_byte_tiles(&self, tokens: usize) -> bool {
        self.byte_tiled.is_some() && tokens >= byte_tiles::MANY
    }

    /// Whether a gate and its up, `other`, of `tokens` tokens in a form of tiles may be one launch.
    pub(crate) fn gates(&self, other: &Matrix, form: Form, tokens: usize) -> bool {
        let has_kernel = match form {
            Form::Tiles => self.tiled.is_some(),
            _ => self.byte_tiled.is_some_and(|kernels| kernels.gate(tokens)),
        };
        has_kernel && self.goes_with(other)
    }

    /// How it lies in memory.
    #[cfg(test)]
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// The power of two that its weights have been multiplied with.
    #[cfg(test)]
    pub(crate) fn scale(&self) -> f32 {
        self.scale
    }

    /// Its bytes.
    #[cfg(any(test, feature = "lab"))]
    pub(crate) fn bytes(&self) -> &Buffer<u8> {
        &self.data
    }

    /// Enqueues `out = W · input` and what follows it. `bias` is an address of `rows` floats, or 0.
    pub(crate) fn product(
        &self,
        lane: Lane<'_>,
        input: Input,
        bias: Address,
        output: Output,
    ) -> Result<(), DeviceError> {
        let (finish, factor, soft_cap) = output.finish.args();
        let args = MatmulArgs {
            w: at(&self.data, 0),
            x: input.x,
            x_unscale: input.unscale,
            bias,
            out: output.out,
            row_bytes: self.row_bytes as u64,
            rows: self.rows as i32,
            cols: self.k() as i32,
            x_stride: input.stride as i32,
            out_stride: output.stride as i32,
            tokens: input.rows as i32,
            segments: k_segments(self.cols) as i32,
            w_scale: self.scale,
            w_unscale: self.unscale(input.form),
            finish,
            factor,
            soft_cap,
            unused: 0,
        };
        let groups = self.rows.div_ceil(ROW_TILE);
        let blocks = match self.layout {
            Layout::File => groups,
            // Row groups share a block if their segments leave warps.
            Layout::Qt16 => groups.div_ceil(QT16_WARPS / k_segments(self.cols)),
        };
        let products = match input.form {
            Form::Tiles | Form::ByteTiles => {
                return tile_products(lane, &[(self, bias, output)], input, None);
            }
            #[cfg(feature = "lab")]
            Form::Groups => {
                let Some(experiment) = &self.experiment else {
                    return Err(DeviceError::Fault("an experiment that was not loaded".into()));
                };
                let (kernel, shape, args) =
                    experiment.product(lane.gpu, [self.rows, self.cols], input, bias, output)?;
                // SAFETY: the matrix is as loaded, the input has room for whole tiles, the output `input.rows` rows.
                return unsafe { lane.enqueue(kernel, shape, &args) };
            }
            Form::Fragments => self.products,
            Form::Bytes => self.bytes,
        };
        let Some([few, many]) = products else {
            let what = format!("no kernel for a product with {} in {:?}", self.ty, self.layout);
            return Err(DeviceError::Fault(format!("{what}, input as {:?}", input.form)));
        };
        let (kernel, tokens) = match input.rows {
            0..=FEW_TOKENS => (few, 1),
            rows if input.form == Form::Bytes => (many, rows.div_ceil(BYTES_TILE)),
            rows => (many, rows.div_ceil(TOKEN_TILE)),
        };
        // SAFETY: the matrix is as loaded; input and output have `input.rows` rows, which stages take from the reserved
        // buffers after checking widths.
        unsafe { lane.enqueue(kernel, Shape::new([blocks, tokens, 1], 256), &args)? };
        Ok(())
    }

    /// Enqueues `x = rows of tokens · scale` for `count` tokens; `clear`: two words that become zero.
    pub(crate) fn embed(
        &self,
        lane: Lane<'_>,
        tokens: Address,
        count: usize,
        x: Address,
        scale: f32,
        clear: Address,
    ) -> Result<(), DeviceError> {
        if self.layout != Layout::File {
            return Err(DeviceError::Fault("an embedding in the layout of products".into()));
        }
        let args = EmbedArgs {
            table: at(&self.data, 0),
            tokens,
            x,
            clear,
            row_bytes: self.row_bytes as u64,
            cols: self.cols as i32,
            scale,
        };
        // SAFETY: token ids are below the vocabulary, which the table has rows for; `x` has `count` rows.
        unsafe { lane.enqueue(self.embed, Shape::new([count, 1, 1], 128), &args)? };
        Ok(())
    }
}

/// Whether rows of bytes for all of `matrices` have one scale for 256 values: if it is so for one of them.
pub(crate) fn together<'a>(mut matrices: impl Iterator<Item = &'a Matrix>) -> bool {
    matrices.any(|matrix| has_integer_scales(matrix.ty))
}

/// The form of `rows` rows that products with all of `matrices` take: bytes, tiles, or both, if they all take these.
pub(crate) fn form_for<'a>(rows: usize, matrices: impl Iterator<Item = &'a Matrix> + Clone) -> Form {
    #[cfg(feature = "lab")]
    if rows >= byte_tiles::MANY && matrices.clone().all(|matrix| matrix.experiment.is_some()) {
        return Form::Groups;
    }
    if matrices.clone().all(|matrix| matrix.takes_byte_tiles(rows)) {
        Form::ByteTiles
    } else if matrices.clone().all(Matrix::takes_bytes) {
        Form::Bytes
    } else if matrices.clone().all(|matrix| matrix.takes_tiles(rows)) {
        Form::Tiles
    } else {
        Form::Fragments
    }
}

/// Units of QT16 that a matrix has, and the bytes of one; `None` if it stays in the file's layout: rows that would grow by
/// more than a third.
fn units(ty: GgmlType, rows: usize, cols: usize) -> Option<(usize, usize)> {
    let (_, bytes) = QT16_TYPES.iter().find(|(tuned, _)| *tuned == ty)?;
    let units = cols.div_ceil(UNIT_COLS);
    (3 * UNIT_COLS * units <= 4 * cols).then(|| (rows.div_ceil(ROW_TILE) * units, *bytes))
}

/// Bytes of a matrix in QT16, if products take it there.
pub(crate) fn tuned_bytes(weight: &Weight) -> Option<u64> {
    let (units, bytes) = units(weight.ty, weight.rows, weight.cols)?;
    Some((units as u64).saturating_mul(bytes as u64))
}

/// What a gate and its up become: the number of an activation, and where the bits of each token's largest magnitude go,
/// zero before.
#[derive(Clone, Copy)]
pub(crate) struct Gated {
    pub(crate) act: i32,
    pub(crate) most: Address,
}

/// Enqueues products of tiles with up to three matrices of one type, each with its bias and output, which finish alike;
/// or with a gate and its up of one shape, whose first output is `act(gate) · up`.
pub(crate) fn tile_products(
    lane: Lane<'_>,
    products: &[(&Matrix, Address, Output)],
    input: Input,
    gated: Option<Gated>,
) -> Result<(), DeviceError> {
    if input.form == Form::ByteTiles {
        let (kernel, shape, args) = byte_tiles::launch(products, input, gated)?;
        // SAFETY: the matrices are as loaded, outputs have `input.rows` rows, which stages take from the reserved buffers
        // after checking widths, and inputs have room for whole tiles.
        return unsafe { lane.enqueue(kernel, shape, &args) };
    }
    let (kernel, shape, args) = tiles::launch(products, input, gated, lane.gpu.info.multiprocessors)?;
    // SAFETY: as above; what the input has to spare is nobody's while the product runs.
    unsafe { lane.enqueue(kernel, shape, &args) }
}

/// The same with tiles of a shape.
#[cfg(test)]
pub(crate) fn tile_products_of(
    lane: Lane<'_>,
    products: &[(&Matrix, Address, Output)],
    input: Input,
    gated: Option<Gated>,
    shape: TileShape,
) -> Result<(), DeviceError> {
    let multiprocessors = lane.gpu.info.multiprocessors;
    let (kernel, shape, args) = tiles::launch_of(products, input, gated, shape, multiprocessors)?;
    // SAFETY: as above.
    unsafe { lane.enqueue(kernel, shape, &args) }
}

/// The kernels for products with few tokens, and with many in blocks of `tile`.
fn products(kernels: &Kernels, layout: &str, name: &str, tile: usize) -> Result<[Kernel; 2], DeviceError> {
    let of = |tokens: usize| {
        kernels.get(&format!("matmul_{layout}"), &format!("matmul_{layout}_{name}_n{tokens}"))
    };
    Ok([of(FEW_TOKENS)?, of(tile)?])
}

/// The power of two that weights of a type are multiplied with before they are rounded to half precision, their finite
/// magnitudes up to `most`. Halves are taken as they are. Of BF16, with eight bits of a half's eleven, none is rounded
/// down to 2^-32 of the largest, and none by more than 2^-40 of it. Others stay far from the end of half precision's range, as
/// more is added to them, and small ones far from its beginning.
fn scale_of(ty: GgmlType, most: f32) -> f32 {
    match ty {
        GgmlType::F16 => 1.0,
        GgmlType::BF16 => power_of_two(most, 15),
        _ if QT16_TYPES.iter().any(|(tuned, _)| *tuned == ty) => power_of_two(most, 7) * QT16_SCALE,
        _ => power_of_two(most, 7),
    }
}

/// The power of two that brings `most` into [2^exponent, 2^(exponent + 1)), or 2^113 if that is less: neither it nor what it
/// is multiplied with leaves single precision's range.
fn power_of_two(most: f32, exponent: i32) -> f32 {
    if !most.is_finite() || most < f32::MIN_POSITIVE {
        return 1.0;
    }
    let of_most = (most.to_bits() >> 23) as i32 - 127;
    f32::from_bits((((exponent - of_most).clamp(-113, 113) + 127) << 23) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_scaled_by_powers_of_two_into_range() {
        for most in [1e-29f32, 0.001, 0.5, 1.0, 1.999, 3.0, 1e4, 1e30] {
            for exponent in [7, 15] {
                let (scaled, low) = (most * power_of_two(most, exponent), 2f32.powi(exponent));
                assert!((low..2.0 * low).contains(&scaled), "{most} becomes {scaled}");
            }
        }
        assert!([0.0, f32::INFINITY, f32::NAN].iter().all(|most| power_of_two(*most, 7) == 1.0));
    }

    #[test]
    fn halves_are_taken_as_they_are_and_bf16_fills_their_range() {
        assert_eq!([1e-7, 1.0, 65504.0].map(|most| scale_of(GgmlType::F16, most)), [1.0; 3]);
        // The largest number of bf16, and what its scale undoes, stay finite.
        let most = f32::from_bits(0x7f7f_0000);
        let scale = scale_of(GgmlType::BF16, most);
        assert!(most * scale == 65280.0 && (1.0 / scale).is_finite(), "{scale}");
    }
}
