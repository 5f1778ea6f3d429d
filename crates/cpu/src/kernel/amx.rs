//! Products of many tokens on a tile unit (AMX-INT8): sixteen tokens × sixteen rows × 64 values of K per instruction.
//!
//! A unit of a panel (four K values of sixteen rows, 64 bytes) is a row of the unit's B operand as it stands, so that
//! sixteen units are a tile. Activations are quantized into tiles of sixteen tokens × 64 values ([`Layout::Tiles`]).
//!
//! *K-quants.* The integer scale is folded into the weight, `w = (q − ZERO)·sc`, and `w` is split exactly into two planes of
//! bytes: the products of q with the two octal digits of sc, or seven bits and the rest. All 256 values of a super-block
//! then add up in the tile unit without a break, and `Σ low·a + 2^SHIFT·Σ high·a` is the integer that the other levels
//! compute, bit for bit.
//!
//! *32-value blocks.* One instruction of half depth per block, then the float step. In the `fast` profile, 256 weights are
//! folded to sixteen bits with one float scale, minima included, and so are the activations: of the four products of
//! bytes, the lowest is left out, and the two in the middle have one sum.
//!
//! Cost model: an instruction takes sixteen cycles whatever its depth. Beside it stand the loads of tiles, which are fast
//! from L1 only: activations of 256 values of K lie together in memory, and [`PANELS`] panels pass over each block of
//! tokens while it is near. What the vector unit does with the sums of one block is strewn between the products of
//! the next, as the processor does not look further ahead than a few of them.
//!
//! # Safety
//! As in [`super::matmul`]; besides, the CPU has the unit that `T` stands for, and the process may use it.

#[cfg(doc)]
use super::matmul::Layout;
use super::matmul::{MatMul, RowPlace};
use crate::simd::{LANES, Simd};

/// Tokens from which products go to the tile unit.
pub(crate) const FROM: usize = 12;
/// Tokens that a kernel takes together at most; what it reads beyond a product's tokens is not used.
pub(crate) const BLOCK: usize = 32;
/// Tokens of a pass: its sums are 32 KB for each panel.
const TOKENS: usize = 512;
/// Values of K of a pass: its activations, 1 MB, stay in L2 while all panels pass by. Half of it where they have two bytes.
const DEPTH: usize = 2048;
/// Bytes of a tile.
const TILE: usize = 1024;
/// Panels that pass over a block of tokens, one after the other, while it is in L1.
const PANELS: usize = 2;

/// Rows and bytes per row of the eight tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
pub(crate) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Sums in registers 0–3, activations in 4 and 5, weights in 6 and 7, of `depth` K values.
    const fn new(depth: u16) -> Shapes {
        let mut shapes =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut t = 0;
        while t < 8 {
            shapes.row_bytes[t] = if t / 2 == 2 { depth } else { 64 };
            shapes.rows[t] = if t >= 6 { (depth / 4) as u8 } else { 16 };
            t += 1;
        }
        shapes
    }

    /// Rows and bytes per row of register `t`.
    #[cfg(test)]
    fn of(&self, t: u8) -> (usize, usize) {
        (usize::from(self.rows[usize::from(t)]), usize::from(self.row_bytes[usize::from(t)]))
    }
}

pub(crate) static FULL: Shapes = Shapes::new(64);
static HALF: Shapes = Shapes::new(32);

/// A unit with eight tile registers.
///
/// # Safety
/// Of all functions but `configure`: shapes were configured. Pointers are valid for the register's rows, which lie 64 bytes
/// apart in memory.
pub(crate) trait Tiles {
    /// Sets the shapes of the registers and zeroes them.
    unsafe fn configure(&mut self, shapes: &'static Shapes);
    /// Gives the registers back.
    unsafe fn release(&mut self);
    /// Zeroes register `T`.
    unsafe fn zero<const T: u8>(&mut self);
    /// Loads the rows of register `T`, `OFFSET` bytes after `p`.
    unsafe fn load<const T: u8, const OFFSET: usize>(&mut self, p: *const u8);
    /// The same for rows that are not loaded again soon, and need not stay near.
    unsafe fn load_once<const T: u8, const OFFSET: usize>(&mut self, p: *const u8);
    /// Stores the rows of register `T`.
    unsafe fn store<const T: u8>(&mut self, p: *mut i32);
    /// `C[m][n] += Σ_k Σ_i A[m][4k + i] · B[k][4n + i]`, signed bytes.
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self);
}

/// What the vector unit does for the tile unit.
///
/// # Safety
/// As [`Simd`].
pub(crate) trait TileVectors: Simd {
    /// `w = (q − zero)·scale` for the bytes of a unit, as `w & 127` and `w >> 7`, 64 bytes each.
    unsafe fn planes(q: Self::B, zero: i32, scale: Self::I, low: *mut u8, high: *mut u8);
    /// `scale & 7` and `scale >> 3`, for scales of six bits.
    unsafe fn digits(scale: Self::I) -> (Self::I, Self::I);
    /// Each byte times its lane's factor: all below 256.
    unsafe fn times(q: Self::B, factor: Self::I) -> Self::B;
    /// The nearest integers, which have sixteen bits, in both halves of their lanes.
    unsafe fn halves(x: Self::F) -> Self::I;
    /// `w = q·2^raise·factor / 2^15 + min` for the signed bytes of a unit, rounded, with the halves of `factor` and `min`; as the
    /// signed bytes of `w = low + 256·high`.
    unsafe fn wide(q: Self::B, raise: u32, factor: Self::I, min: Self::I, low: *mut u8, high: *mut u8);
    /// `q − zero` for each byte.
    unsafe fn centred(q: Self::B, zero: i32) -> Self::B;
    /// `low + 2^SHIFT·high`.
    unsafe fn join<const SHIFT: u32>(low: Self::I, high: Self::I) -> Self::I;
}

/// Integer sums of four tiles.
#[repr(align(64))]
struct Products([[[i32; LANES]; 16]; 4]);

impl Products {
    const EMPTY: Products = Products([[[0; LANES]; 16]; 4]);

    /// Stores register `T`.
    #[inline(always)]
    unsafe fn take<const T: u8>(&mut self, tiles: &mut impl Tiles) {
        // SAFETY: passed on; a tile of sums is sixteen rows of 64 bytes.
        unsafe { tiles.store::<T>(self.0[usize::from(T)].as_mut_ptr().cast()) }
    }
}

/// Sums of 32 tokens that nobody reads.
#[repr(align(64))]
struct Nowhere([[f32; LANES]; 32]);

/// What is between the tile unit and the sums.
struct Room {
    done: Products,
    nowhere: Nowhere,
}

impl Room {
    const EMPTY: Room = Room { done: Products::EMPTY, nowhere: Nowhere([[0.0; LANES]; 32]) };
}

/// Float sums of the tokens of a pass, and one panel.
#[repr(align(64))]
struct Sums([[f32; LANES]; TOKENS]);

impl Sums {
    /// Those of token `t` of panel `p`.
    ///
    /// # Safety
    /// `all` are so many panels'. Only pointers are made of them: sums on their way are written while others are read.
    #[inline(always)]
    unsafe fn row(all: *mut Sums, p: usize, t: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { (&raw mut (*all.add(p)).0[t]).cast() }
    }
}

/// One pass: some tokens, some values of K.
struct Pass<'a> {
    job: &'a MatMul,
    /// First token (a multiple of [`TOKENS`]), and their number.
    first: usize,
    tokens: usize,
    /// First value of K (a multiple of 256), and their number.
    k: usize,
    depth: usize,
}

impl Pass<'_> {
    /// Activations of 256 values of K, from the `256·g`th of the pass on: `[16][64]` a tile.
    #[inline(always)]
    fn tiles(&self, g: usize) -> *const u8 {
        let RowPlace { start, group, .. } = self.job.acts.layout.row(self.first, self.job.k);
        // SAFETY: the job's activations have these values of these tokens.
        unsafe { self.job.acts.q.add(start + (self.k / 256 + g) * group).cast() }
    }

    /// Where scale `s` of the pass (of `per` values each) of its first token is; the next token's is next to it.
    #[inline(always)]
    fn scale(&self, s: usize, per: usize) -> usize {
        let (first, step) = self.job.acts.layout.scales(self.first, self.job.k / per);
        first + (self.k / per + s) * step
    }
}

/// Where sums of sixteen rows are: those of the first token, and the floats from one token's to the next's.
#[derive(Clone, Copy)]
struct Place {
    first: *mut f32,
    step: usize,
}

impl Place {
    /// Zeros, to read from.
    const NOTHING: Place = {
        #[repr(align(64))]
        struct Zeros([f32; LANES]);
        static ZEROS: Zeros = Zeros([0.0; LANES]);
        Place { first: ZEROS.0.as_ptr().cast_mut(), step: 0 }
    };

    /// Those of token `t`.
    #[inline(always)]
    fn row(self, t: usize) -> *mut f32 {
        self.first.wrapping_add(t * self.step)
    }
}

/// Where the sums of a pass are while a part of its values of K is added: they come from the output (or from nothing) and go
/// back to it with the first and the last part, and stay near in between.
#[derive(Clone, Copy)]
struct Ways {
    /// The output of the first panel and token of the pass.
    out: Place,
    /// Tokens whose sums go this way: whole blocks. The output has no room for what is computed beyond the tokens, so the
    /// rest is copied.
    whole: usize,
    /// Whether the pass begins with nothing.
    fresh: bool,
    first: bool,
    last: bool,
}

impl Ways {
    /// Before and after, for the tokens from `t` on of panel `p`; and, if they are not near, which is to be asked for.
    ///
    /// # Safety
    /// See [`Sums::row`].
    #[inline(always)]
    unsafe fn of(self, t: usize, p: usize, near: *mut Sums) -> (Place, Place, Option<Place>) {
        // SAFETY: the caller's promise.
        let near = Place { first: unsafe { Sums::row(near, p, t) }, step: LANES };
        if t >= self.whole {
            return (near, near, None);
        }
        let out = Place { first: self.out.row(t).wrapping_add(p * LANES), step: self.out.step };
        let from = match (self.first, self.fresh) {
            (true, true) => Place::NOTHING,
            (true, false) => out,
            _ => near,
        };
        let far = self.last || self.first && !self.fresh;
        (from, if self.last { out } else { near }, far.then_some(out))
    }
}

/// Runs `$body` for each `PANELS` panels (the first in `$panel`, their number in `$count`) of each pass (`$pass`, `$most` values of
/// K at most), whose sums go the way of `$ways`, in blocks of `$block` tokens. `$finish` completes sums that are still on their way: before the rest is copied here, and at the end by
/// the caller.
/// A macro, as a closure would be compiled without the level's instructions.
macro_rules! for_passes {
    ($s:ty, $job:expr, $most:expr, $block:literal, |$pass:ident, $panel:ident, $count:ident, $ways:ident, $sums:ident| $body:block, $finish:expr) => {
        let mut near = [const { Sums([[0.0; LANES]; TOKENS]) }; PANELS];
        let $sums = near.as_mut_ptr();
        for first in (0..$job.tokens).step_by(TOKENS) {
            for k in (0..$job.k).step_by($most) {
                let (tokens, depth) = (TOKENS.min($job.tokens - first), $most.min($job.k - k));
                let $pass = Pass { job: $job, first, tokens, k, depth };
                for p in (0..$job.count).step_by(PANELS) {
                    let $count = PANELS.min($job.count - p);
                    let out = Place {
                        first: $job.out.add(first * $job.out_stride + p * LANES),
                        step: $job.out_stride,
                    };
                    let whole = tokens / $block * $block;
                    let $ways = Ways { out, whole, fresh: k == 0, first: false, last: false };
                    for t in whole..tokens {
                        for p in 0..$count {
                            let out = out.row(t).add(p * LANES);
                            let so_far = if k == 0 { <$s>::splat(0.0) } else { <$s>::load(out) };
                            <$s>::store(Sums::row($sums, p, t), so_far);
                        }
                    }
                    let $panel = $job.panels.add(p * $job.panel_bytes);
                    $body
                    if whole < tokens {
                        $finish;
                        for t in whole..tokens {
                            for p in 0..$count {
                                let sum = <$s>::load(Sums::row($sums, p, t));
                                <$s>::store(out.row(t).add(p * LANES), sum);
                            }
                        }
                    }
                }
            }
        }
    };
}

mod block32;
#[cfg(test)]
pub(crate) mod soft;
mod super256;

pub(crate) use block32::block32;
pub(crate) use super256::{super256, wide32};
