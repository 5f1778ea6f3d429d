//! The K-quants on a tile unit.
//!
//! # Safety
//! As in [`super`].

use super::*;
use crate::format::Super256;
use crate::kernel::vector::SUM_WORDS;

/// 256 values of sixteen rows, ready for the tile unit.
#[repr(C, align(64))]
struct Weights {
    /// The low and the high plane.
    planes: [[[u8; 64]; 64]; 2],
    /// Minima in pairs.
    pairs: [[u32; LANES]; 8],
    d: [f32; LANES],
    dmin: [f32; LANES],
}

impl Weights {
    const EMPTY: Weights =
        Weights { planes: [[[0; 64]; 64]; 2], pairs: [[0; LANES]; 8], d: [0.0; LANES], dmin: [0.0; LANES] };
}

/// Whether planes are the products with the scale's two octal digits: those of six bits with small codes.
const fn octal<F: Super256>() -> bool {
    F::HAS_MIN && F::MAX * 7 < 128
}

/// The K-quants.
///
/// # Safety
/// See [`crate::kernel::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn super256<S: TileVectors, F: Super256>(job: &MatMul, tiles: &mut impl Tiles) {
    // SAFETY: passed on.
    unsafe {
        tiles.configure(&FULL);
        let mut weights = [Weights::EMPTY; PANELS];
        let mut room = Room::EMPTY;
        for_passes!(S, job, |pass, panel, count, sums| {
            for g in 0..pass.depth / 256 {
                let group = panel.add((pass.k / 256 + g) * F::GROUP_BYTES);
                for p in 0..count {
                    unpack::<S, F>(group.add(p * job.panel_bytes), &mut weights[p]);
                }
                // What is unpacked next: the next super-block, or these of the next panels.
                let next = if g + 1 < pass.depth / 256 {
                    group.wrapping_add(F::GROUP_BYTES)
                } else {
                    panel.wrapping_add(count * job.panel_bytes + pass.k / 256 * F::GROUP_BYTES)
                };
                super_block::<S, F>(&pass, g, &weights[..count], next, tiles, &mut room, &mut sums);
            }
        });
        tiles.release();
    }
}

#[inline(always)]
unsafe fn unpack<S: TileVectors, F: Super256>(group: *const u8, to: &mut Weights) {
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
                S::store_i(to.pairs[p].as_mut_ptr(), pair);
            }
            S::store(to.dmin.as_mut_ptr(), F::dmin::<S>(group));
        }
        S::store(to.d.as_mut_ptr(), F::d::<S>(group));
    }
}

/// Integer sums whose float step is to be made: 32 tokens and a panel.
#[derive(Clone, Copy)]
struct Pending {
    weights: *const Weights,
    sums: *mut f32,
    d: *const f32,
    words: *const i32,
}

/// One super-block of all tokens of a pass, 32 at a time: two tiles of tokens × two planes.
#[inline(always)]
unsafe fn super_block<S: TileVectors, F: Super256>(
    pass: &Pass<'_>,
    g: usize,
    weights: &[Weights],
    next: *const u8,
    tiles: &mut impl Tiles,
    room: &mut Room,
    sums: &mut [Sums; PANELS],
) {
    let (blocks, at) = (pass.tokens.div_ceil(32), pass.scale(g, 256));
    let lines = F::GROUP_BYTES.div_ceil(64).div_ceil(4 * blocks);
    // SAFETY: tiles lie in the activations and in the weights; the rest is passed on.
    unsafe {
        let (mut d, mut words) = (pass.job.acts.d.add(at), pass.job.acts.sum.add(at * SUM_WORDS));
        let mut a = pass.tiles(g);
        let Room { done, nowhere } = room;
        // Before the first products there is nothing to finish; what is there goes nowhere.
        let mut last =
            Pending { weights: &raw const weights[0], sums: nowhere.0.as_mut_ptr().cast(), d, words };
        for b in 0..blocks {
            for (p, w) in weights.iter().enumerate() {
                let next = next.wrapping_add(p * pass.job.panel_bytes);
                let planes = w.planes.as_ptr().cast::<u8>();
                // Each panel asks for a part of the next block's activations.
                let ahead = a.wrapping_add(8 * TILE + p * 8 * TILE / PANELS);
                let constants = Constants::of::<F>(&*last.weights);
                macro_rules! step {
                    ($step:literal) => {
                        for line in (4 * b + $step) * lines..(4 * b + $step + 1) * lines {
                            S::prefetch(next.wrapping_add(64 * line));
                        }
                        let ahead = ahead.wrapping_add($step * 2 * TILE / PANELS);
                        products::<S, F, $step>(a, ahead, planes, tiles, done, last, &constants);
                    };
                }
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                last = Pending { weights: w, sums: sums[p].0[32 * b].as_mut_ptr(), d, words };
            }
            a = a.wrapping_add(8 * TILE);
            (d, words) = (d.wrapping_add(32), words.wrapping_add(32 * SUM_WORDS));
        }
        done.take::<0>(tiles);
        done.take::<1>(tiles);
        done.take::<2>(tiles);
        done.take::<3>(tiles);
        let constants = Constants::of::<F>(&*last.weights);
        macro_rules! rest {
            ($($r:literal)*) => { $(two_rows::<S, F, $r>(done, last, &constants);)* };
        }
        rest!(0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30);
    }
}

/// The `STEP`th sixty-four values of two tiles of tokens and both planes, and between them the float steps of the eight
/// rows of `last` that belong to the step: a product occupies the unit for sixteen cycles, and what the processor
/// looks ahead is short. The first products of a register go into new sums, once the old ones are taken out.
#[inline(always)]
unsafe fn products<S: TileVectors, F: Super256, const STEP: usize>(
    a: *const u8,
    ahead: *const u8,
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
                }
                match STEP {
                    0 => two_rows::<S, F, { $r }>(done, last, w),
                    1 => two_rows::<S, F, { 8 + $r }>(done, last, w),
                    2 => two_rows::<S, F, { 16 + $r }>(done, last, w),
                    _ => two_rows::<S, F, { 24 + $r }>(done, last, w),
                })*
            };
        }
        tiles.load::<4, 0>(a);
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
        tiles.load::<5, 4096>(a);
        renew!(2);
        tiles.dot::<2, 5, 6>();
        rows!(4);
        renew!(3);
        tiles.dot::<3, 5, 7>();
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
    unsafe fn of<F: Super256>(w: &Weights) -> Constants<S> {
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
unsafe fn two_rows<S: TileVectors, F: Super256, const R: usize>(
    done: &Products,
    last: Pending,
    w: &Constants<S>,
) {
    let planes = [0, 1].map(|plane| done.0[R / 16 * 2 + plane][R % 16].as_ptr());
    // SAFETY: the job has this super-block of these tokens; the caller vouches for the ISA.
    unsafe {
        let (slot, d, words) = (last.sums.add(R * LANES), last.d.add(R), last.words.add(R * SUM_WORDS));
        row::<S, F>(planes, w, slot, *d, words);
        row::<S, F>(planes.map(|p| p.add(LANES)), w, slot.add(LANES), *d.add(1), words.add(SUM_WORDS));
    }
}

/// The float step of a token.
#[inline(always)]
unsafe fn row<S: TileVectors, F: Super256>(
    [low, high]: [*const i32; 2],
    w: &Constants<S>,
    slot: *mut f32,
    d: f32,
    words: *const i32,
) {
    // SAFETY: passed on.
    unsafe {
        let (low, high) = (S::load_i(low.cast()), S::load_i(high.cast()));
        let s = if octal::<F>() { S::join::<3>(low, high) } else { S::join::<7>(low, high) };
        let da = S::splat(d);
        let mut acc = S::fma(S::to_f(s), S::mul(w.d, da), S::load(slot));
        if F::HAS_MIN {
            let mut m = S::splat_i(0);
            for i in 0..128 / F::SCALED {
                let word = *words.add(if F::SCALED == 32 { 8 + i } else { i });
                m = S::dot_pairs(m, w.pairs[i], word);
            }
            acc = S::fnma(S::to_f(m), S::mul(w.dmin, da), acc);
        }
        S::store(slot, acc);
    }
}
