//! Types whose weights are folded, 256 values of K at a time, into integers of two planes: the K-quants exactly, the others
//! to sixteen bits in the `fast` profile.
//!
//! # Safety
//! As in [`super`].

use super::*;
use crate::format::{Block32, Super256};
use crate::kernel::matmul::Acts;
use std::marker::PhantomData;

/// 256 values of sixteen rows, ready for the tile unit.
#[repr(C, align(64))]
struct Weights {
    /// The low and the high plane.
    planes: [[[u8; 64]; 64]; 2],
}

impl Weights {
    const EMPTY: Weights = Weights { planes: [[[0; 64]; 64]; 2] };
}

/// What the float steps of 256 values need of sixteen rows.
#[repr(C, align(64))]
struct Scales {
    /// Minima in pairs.
    pairs: [[u32; LANES]; 8],
    d: [f32; LANES],
    dmin: [f32; LANES],
}

impl Scales {
    const EMPTY: Scales = Scales { pairs: [[0; LANES]; 8], d: [0.0; LANES], dmin: [0.0; LANES] };
}

/// How weights become planes.
///
/// # Safety
/// Of `unpack`: the panel has `blocks` blocks of 32 values from the `256·g`th value on; the CPU has the features of `S`.
trait Folded {
    /// Whether there are minima, in [`Scales::pairs`].
    const HAS_MIN: bool;
    /// Values that share a minimum.
    const SCALED: usize = 32;
    /// Words of sums that belong to them, per 256 values.
    const WORDS: usize = Acts::words_per_256(Self::SCALED);
    /// The high plane counts `2^SHIFT`: 3, 7 or 8.
    const SHIFT: u32;
    /// Whether activations have two planes, too ([`quantize_wide`](crate::kernel::vector::quantize_wide)); `SHIFT` is 8 then.
    const WIDE: bool = false;
    /// Values of K of a pass.
    const DEPTH: usize = DEPTH;

    /// Bytes of a panel before the `256·g`th value of K.
    fn bytes_before(g: usize) -> usize;
    unsafe fn unpack<S: TileVectors>(
        panel: *const u8,
        g: usize,
        blocks: usize,
        to: &mut Weights,
        scales: &mut Scales,
    );
}

/// A K-quant.
struct Exact<F>(PhantomData<F>);

/// Whether planes are the products with the scale's two octal digits: those of six bits with small codes.
const fn octal<F: Super256>() -> bool {
    F::HAS_MIN && F::MAX * 7 < 128
}

impl<F: Super256> Folded for Exact<F> {
    const HAS_MIN: bool = F::HAS_MIN;
    const SCALED: usize = F::SCALED;
    const SHIFT: u32 = if octal::<F>() { 3 } else { 7 };

    #[inline(always)]
    fn bytes_before(g: usize) -> usize {
        g * F::GROUP_BYTES
    }

    #[inline(always)]
    unsafe fn unpack<S: TileVectors>(
        panel: *const u8,
        g: usize,
        _blocks: usize,
        to: &mut Weights,
        scales: &mut Scales,
    ) {
        let group = panel.wrapping_add(Self::bytes_before(g));
        let units = F::SCALED / 4;
        let [low, high] = &mut to.planes;
        // SAFETY: the group is whole; the caller vouches for the ISA.
        unsafe {
            for j in 0..256 / F::SCALED {
                let scale = F::scale::<S>(group, j);
                let (ones, eights) = S::digits(scale);
                for u in j * units..(j + 1) * units {
                    let q = F::unit::<S>(group, u);
                    if octal::<F>() {
                        S::store_bytes(low[u].as_mut_ptr(), S::times(q, ones));
                        S::store_bytes(high[u].as_mut_ptr(), S::times(q, eights));
                    } else {
                        S::planes(q, F::ZERO, scale, low[u].as_mut_ptr(), high[u].as_mut_ptr());
                    }
                }
            }
            if F::HAS_MIN {
                for p in 0..128 / F::SCALED {
                    let pair = S::pair(F::min::<S>(group, 2 * p), F::min::<S>(group, 2 * p + 1));
                    S::store_i(scales.pairs[p].as_mut_ptr(), pair);
                }
                S::store(scales.dmin.as_mut_ptr(), F::dmin::<S>(group));
            }
            S::store(scales.d.as_mut_ptr(), F::d::<S>(group));
        }
    }
}

/// A type of 32-value blocks, to sixteen bits: `w ≈ s·W` with one float `s` per row and 256 values, and
/// `W = (q − ZERO)·2^a·f / 2^15 + m`, `f` and `m` integers of sixteen bits per block. Within 2e-4 of the largest |w|.
struct Wide<F>(PhantomData<F>);

/// Smallest `s` of [`Wide`]: its inverse, times what codes are raised by, is a float.
const SMALLEST: f32 = 1e-30;

/// Largest |q − ZERO|.
const fn largest<F: Block32>() -> u32 {
    let above = F::MAX.abs_diff(F::ZERO as u32);
    if F::SIGNED || above > F::ZERO as u32 { above } else { F::ZERO as u32 }
}

/// The `a` of [`Wide`]: codes then have fifteen bits and a sign.
const fn raise<F: Block32>() -> u32 {
    14 - if F::SIGNED { 6 } else { largest::<F>().ilog2() }
}

impl<F: Block32> Folded for Wide<F> {
    const HAS_MIN: bool = false;
    const SHIFT: u32 = 8;
    const WIDE: bool = true;
    const DEPTH: usize = DEPTH / 2;

    #[inline(always)]
    fn bytes_before(g: usize) -> usize {
        8 * g / F::SLOTS * F::GROUP_BYTES
    }

    #[inline(always)]
    unsafe fn unpack<S: TileVectors>(
        panel: *const u8,
        g: usize,
        blocks: usize,
        to: &mut Weights,
        scales: &mut Scales,
    ) {
        let place = |b: usize| {
            let block = 8 * g + b;
            (panel.wrapping_add(block / F::SLOTS * F::GROUP_BYTES), block % F::SLOTS)
        };
        let [low, high] = &mut to.planes;
        // SAFETY: the blocks are there; the caller vouches for the ISA.
        unsafe {
            // The largest that `(q − ZERO)·d + m` can be, and what keeps `f` within sixteen bits; NaN where one is.
            let mut reach = S::splat(0.0);
            for b in 0..blocks {
                let (group, slot) = place(b);
                let d = S::max_abs(F::scale::<S>(group, slot), S::splat(0.0));
                let mut top = S::mul(d, S::splat(largest::<F>() as f32 / 30000.0));
                if F::HAS_MIN {
                    let m = S::max_abs(F::min::<S>(group, slot), S::splat(0.0));
                    top = S::fma(m, S::splat(1.0 / 30000.0), top);
                }
                let factor = S::mul(d, S::splat((1 << (15 - raise::<F>())) as f32 / 32000.0));
                reach = S::max_abs(reach, S::max_abs(top, factor));
            }
            let scale = S::max_abs(reach, S::splat(SMALLEST));
            let inverse = S::div(S::splat(1.0), scale);
            for b in 0..8 {
                if b >= blocks {
                    for u in 8 * b..8 * b + 8 {
                        (low[u], high[u]) = ([0; 64], [0; 64]);
                    }
                    continue;
                }
                let (group, slot) = place(b);
                let unit = S::mul(inverse, S::splat((1 << (15 - raise::<F>())) as f32));
                let factor = S::halves(S::mul(F::scale::<S>(group, slot), unit));
                let min = S::halves(if F::HAS_MIN {
                    S::mul(F::min::<S>(group, slot), inverse)
                } else {
                    S::splat(0.0)
                });
                for u in 0..8 {
                    let q = S::centred(F::unit::<S>(group, slot, u), F::ZERO);
                    let (low, high) = (low[8 * b + u].as_mut_ptr(), high[8 * b + u].as_mut_ptr());
                    S::wide(q, raise::<F>(), factor, min, low, high);
                }
            }
            S::store(scales.d.as_mut_ptr(), scale);
        }
    }
}

/// The K-quants.
///
/// # Safety
/// See [`crate::kernel::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn super256<S: TileVectors, F: Super256>(job: &MatMul, tiles: &mut impl Tiles) {
    // SAFETY: passed on.
    unsafe { folded::<S, Exact<F>>(job, tiles) }
}

/// The formats with 32-value blocks, weights and activations to sixteen bits.
///
/// # Safety
/// See [`crate::kernel::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn wide32<S: TileVectors, F: Block32>(job: &MatMul, tiles: &mut impl Tiles) {
    // SAFETY: passed on.
    unsafe { folded::<S, Wide<F>>(job, tiles) }
}

#[inline(always)]
unsafe fn folded<S: TileVectors, F: Folded>(job: &MatMul, tiles: &mut impl Tiles) {
    // SAFETY: passed on.
    unsafe {
        tiles.configure(&FULL);
        let mut weights = [Weights::EMPTY; PANELS];
        // Those of the super-block before are still needed: its last products are not finished.
        let mut scales = [const { [Scales::EMPTY; PANELS] }; 2];
        let mut turn = 0;
        let mut room = Room::EMPTY;
        let mut pending = Pending::nothing(&scales[0][0], &mut room, job);
        for_passes!(
            S,
            job,
            F::DEPTH,
            32,
            |pass, panel, count, ways, sums| {
                let groups = pass.depth.div_ceil(256);
                for g in 0..groups {
                    let at = pass.k / 256 + g;
                    for p in 0..count {
                        let blocks = 8.min(pass.depth / 32 - 8 * g);
                        let panel = panel.add(p * job.panel_bytes);
                        F::unpack::<S>(panel, at, blocks, &mut weights[p], &mut scales[turn][p]);
                    }
                    // What is unpacked next: the next super-block, or these of the next panels.
                    let next = if g + 1 < groups {
                        panel.wrapping_add(F::bytes_before(at + 1))
                    } else {
                        panel.wrapping_add(count * job.panel_bytes + F::bytes_before(pass.k / 256))
                    };
                    let ways = Ways { first: g == 0, last: g + 1 == groups, ..ways };
                    let part = Part { pass: &pass, g, ways, next };
                    let weights = (&weights[..count], &scales[turn]);
                    pending = super_block::<S, F>(&part, weights, pending, tiles, &mut room, sums);
                    turn = 1 - turn;
                }
            },
            pending = finish::<S, F>(pending, tiles, &mut room, job)
        );
        finish::<S, F>(pending, tiles, &mut room, job);
        tiles.release();
    }
}

/// Integer sums whose float step is to be made: 32 tokens and a panel.
#[derive(Clone, Copy)]
struct Pending {
    scales: *const Scales,
    /// The float sums before the step, and after it.
    from: Place,
    to: Place,
    d: *const f32,
    words: *const i32,
}

impl Pending {
    /// Before the first products there is nothing to finish: what is there goes nowhere.
    fn nothing(scales: *const Scales, room: &mut Room, job: &MatMul) -> Pending {
        let to = Place { first: room.nowhere.0.as_mut_ptr().cast(), step: LANES };
        Pending { scales, from: Place::NOTHING, to, d: job.acts.d, words: job.acts.sum }
    }
}

/// Makes the float steps of the last products.
#[inline(always)]
unsafe fn finish<S: TileVectors, F: Folded>(
    last: Pending,
    tiles: &mut impl Tiles,
    room: &mut Room,
    job: &MatMul,
) -> Pending {
    // SAFETY: passed on.
    unsafe {
        let done = &mut room.done;
        done.take::<0>(tiles);
        done.take::<1>(tiles);
        done.take::<2>(tiles);
        done.take::<3>(tiles);
        let constants = Constants::of::<F>(&*last.scales);
        macro_rules! rest {
            ($($r:literal)*) => { $(two_rows::<S, F, $r>(done, last, &constants);)* };
        }
        rest!(0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30);
        Pending::nothing(last.scales, room, job)
    }
}

/// Activations of 32 tokens.
#[derive(Clone, Copy)]
struct Inputs {
    a: *const u8,
    /// From their high bytes to the low ones.
    low: usize,
    /// What is to be asked for: the next activations, and sums that are not near.
    ahead: *const u8,
    out: Option<Place>,
}

/// A super-block of some panels.
struct Part<'a> {
    pass: &'a Pass<'a>,
    /// Its number in the pass.
    g: usize,
    ways: Ways,
    /// Weights that are to be asked for.
    next: *const u8,
}

/// One super-block of all tokens of a pass, 32 at a time: two tiles of tokens × two planes.
#[inline(always)]
unsafe fn super_block<S: TileVectors, F: Folded>(
    part: &Part<'_>,
    (weights, scales): (&[Weights], &[Scales; PANELS]),
    mut last: Pending,
    tiles: &mut impl Tiles,
    room: &mut Room,
    sums: *mut Sums,
) -> Pending {
    let Part { pass, g, ways, next } = *part;
    let (blocks, at) = (pass.tokens.div_ceil(32), pass.scale(g, 256));
    let lines = F::bytes_before(1).div_ceil(64).div_ceil(4 * blocks);
    // SAFETY: tiles lie in the activations and in the weights; the rest is passed on.
    unsafe {
        let (mut d, mut words) = (pass.job.acts.d.add(at), pass.job.acts.words(F::SCALED, at));
        let mut a = pass.tiles(g);
        let low = pass.job.acts.layout.bytes(pass.job.tokens, pass.job.k);
        let done = &mut room.done;
        for b in 0..blocks {
            for (p, w) in weights.iter().enumerate() {
                let next = next.wrapping_add(p * pass.job.panel_bytes);
                let planes = w.planes.as_ptr().cast::<u8>();
                // Each panel asks for a part of the next block's activations.
                let ahead = a.wrapping_add(8 * TILE + p * 8 * TILE / PANELS);
                let (from, to, out) = ways.of(32 * b, p, sums);
                let constants = Constants::of::<F>(&*last.scales);
                macro_rules! step {
                    ($step:literal) => {
                        for line in (4 * b + $step) * lines..(4 * b + $step + 1) * lines {
                            S::prefetch(next.wrapping_add(64 * line));
                        }
                        products::<S, F, $step>(
                            Inputs { a, low, ahead: ahead.wrapping_add($step * 2 * TILE / PANELS), out },
                            planes,
                            tiles,
                            done,
                            last,
                            &constants,
                        );
                    };
                }
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                last = Pending { scales: &raw const scales[p], from, to, d, words };
            }
            a = a.wrapping_add(8 * TILE);
            (d, words) = (d.wrapping_add(32), words.wrapping_add(32 * F::WORDS));
        }
        last
    }
}

/// The `STEP`th sixty-four values of two tiles of tokens and both planes, and between them the float steps of the eight
/// rows of `last` that belong to the step: a product occupies the unit for sixteen cycles, and what the processor
/// looks ahead is short. The first products of a register go into new sums, once the old ones are taken out.
#[inline(always)]
unsafe fn products<S: TileVectors, F: Folded, const STEP: usize>(
    Inputs { a, low, ahead, out }: Inputs,
    planes: *const u8,
    tiles: &mut impl Tiles,
    done: &mut Products,
    last: Pending,
    w: &Constants<S>,
) {
    // SAFETY: passed on.
    unsafe {
        let (a, planes) = (a.add(STEP * TILE), planes.add(STEP * TILE));
        macro_rules! renew {
            ($c:literal) => {
                if STEP == 0 {
                    done.take::<$c>(tiles);
                    tiles.zero::<$c>();
                }
            };
        }
        macro_rules! rows {
            ($($r:literal)*) => {
                $(for line in $r * 2..$r * 2 + 4 {
                    S::prefetch(ahead.wrapping_add(64 * line));
                    if F::WIDE {
                        S::prefetch(ahead.wrapping_add(low + 64 * line));
                    }
                }
                if let Some(out) = out {
                    S::prefetch(out.row(8 * STEP + $r).cast());
                    S::prefetch(out.row(8 * STEP + $r + 1).cast());
                }
                match STEP {
                    0 => two_rows::<S, F, { $r }>(done, last, w),
                    1 => two_rows::<S, F, { 8 + $r }>(done, last, w),
                    2 => two_rows::<S, F, { 16 + $r }>(done, last, w),
                    _ => two_rows::<S, F, { 24 + $r }>(done, last, w),
                })*
            };
        }
        tiles.load_once::<4, 0>(a);
        tiles.load::<6, 0>(planes);
        renew!(0);
        tiles.dot::<0, 4, 6>();
        if STEP > 0 {
            rows!(0);
        }
        tiles.load::<7, 4096>(planes);
        renew!(1);
        tiles.dot::<1, 4, 7>();
        if STEP == 0 {
            rows!(0);
        }
        rows!(2);
        tiles.load_once::<5, 4096>(a);
        renew!(2);
        tiles.dot::<2, 5, 6>();
        rows!(4);
        renew!(3);
        tiles.dot::<3, 5, 7>();
        if F::WIDE {
            // Low bytes of activations count as the low bytes of weights do.
            let a = a.add(low);
            tiles.load_once::<4, 0>(a);
            tiles.dot::<0, 4, 7>();
            tiles.load_once::<5, 4096>(a);
            tiles.dot::<2, 5, 7>();
        }
        rows!(6);
    }
}

/// What the float steps of a panel need of its weights, in registers.
struct Constants<S: TileVectors> {
    pairs: [S::I; 8],
    d: S::F,
    dmin: S::F,
}

impl<S: TileVectors> Constants<S> {
    #[inline(always)]
    unsafe fn of<F: Folded>(w: &Scales) -> Constants<S> {
        // SAFETY: the caller vouches for the ISA.
        unsafe {
            let pair = |i: usize| if F::HAS_MIN { S::load_i(w.pairs[i].as_ptr()) } else { S::splat_i(0) };
            let pairs = [pair(0), pair(1), pair(2), pair(3), pair(4), pair(5), pair(6), pair(7)];
            Constants { pairs, d: S::load(w.d.as_ptr()), dmin: S::load(w.dmin.as_ptr()) }
        }
    }
}

/// The float steps of tokens `R` and `R + 1`. What lies beyond the tokens of a pass is computed, and not used.
#[inline(always)]
unsafe fn two_rows<S: TileVectors, F: Folded, const R: usize>(
    done: &Products,
    last: Pending,
    w: &Constants<S>,
) {
    let planes = [0, 1].map(|plane| done.0[R / 16 * 2 + plane][R % 16].as_ptr());
    // SAFETY: the job has this super-block of these tokens; the caller vouches for the ISA.
    unsafe {
        let (d, words) = (last.d.add(R), last.words.add(R * F::WORDS));
        row::<S, F>(planes, w, (last.from.row(R).cast_const(), last.to.row(R)), *d, words);
        let places = (last.from.row(R + 1).cast_const(), last.to.row(R + 1));
        row::<S, F>(planes.map(|p| p.add(LANES)), w, places, *d.add(1), words.add(F::WORDS));
    }
}

/// The float step of a token.
#[inline(always)]
unsafe fn row<S: TileVectors, F: Folded>(
    [low, high]: [*const i32; 2],
    w: &Constants<S>,
    (from, to): (*const f32, *mut f32),
    d: f32,
    words: *const i32,
) {
    // SAFETY: passed on.
    unsafe {
        let (low, high) = (S::load_i(low.cast()), S::load_i(high.cast()));
        let s = match F::SHIFT {
            3 => S::join::<3>(low, high),
            7 => S::join::<7>(low, high),
            _ => S::join::<8>(low, high),
        };
        let da = S::splat(d);
        let mut acc = S::fma(S::to_f(s), S::mul(w.d, da), S::load(from));
        if F::HAS_MIN {
            let mut m = S::splat_i(0);
            for i in 0..F::WORDS {
                let word = *words.add(i);
                m = S::dot_pairs(m, w.pairs[i], word);
            }
            acc = S::fnma(S::to_f(m), S::mul(w.dmin, da), acc);
        }
        S::store(to, acc);
    }
}
