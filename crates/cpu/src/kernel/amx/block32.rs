//! The formats with 32-value blocks on a tile unit.
//!
//! # Safety
//! As in [`super`].

use super::*;
use crate::format::Block32;

/// 256 values of sixteen rows, ready for the tile unit.
#[repr(C, align(64))]
struct Weights([[u8; 64]; 64]);

/// `d` and `m` of eight blocks of sixteen rows.
#[repr(C, align(64))]
struct Scales([[f32; LANES]; 16]);

/// The formats with 32-value blocks.
///
/// # Safety
/// See [`crate::kernel::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn block32<S: TileVectors, F: Block32>(job: &MatMul, tiles: &mut impl Tiles) {
    // SAFETY: passed on.
    unsafe {
        tiles.configure(&HALF);
        let mut weights = [const { Weights([[0; 64]; 64]) }; PANELS];
        // Those of the values before are still needed: their last products are not finished.
        let mut scales = [const { [const { Scales([[0.0; LANES]; 16]) }; PANELS] }; 2];
        let mut room = Room::EMPTY;
        let mut last = Last::nothing(&scales[0][0], &mut room);
        let mut acc = [S::splat(0.0); 16];
        let mut turn = 0;
        for_passes!(
            S,
            job,
            DEPTH,
            16,
            |pass, panel, count, ways, sums| {
                let groups = pass.depth.div_ceil(256);
                for g in 0..groups {
                    let blocks = 8.min(pass.depth / 32 - 8 * g);
                    for p in 0..count {
                        for b in 0..blocks {
                            let block = pass.k / 32 + 8 * g + b;
                            let group = panel.add(p * job.panel_bytes + block / F::SLOTS * F::GROUP_BYTES);
                            unpack::<S, F>(group, block % F::SLOTS, b, &mut weights[p], &mut scales[turn][p]);
                        }
                    }
                    let ways = Ways { first: g == 0, last: g + 1 == groups, ..ways };
                    let part = Part { pass: &pass, g, blocks, ways };
                    let (weights, scales) = (&weights[..count], &scales[turn]);
                    if blocks == 8 {
                        chunk::<S, F, true>(
                            &part,
                            weights,
                            scales,
                            tiles,
                            &mut room.done,
                            sums,
                            &mut last,
                            &mut acc,
                        );
                    } else {
                        chunk::<S, F, false>(
                            &part,
                            weights,
                            scales,
                            tiles,
                            &mut room.done,
                            sums,
                            &mut last,
                            &mut acc,
                        );
                    }
                    turn = 1 - turn;
                }
            },
            last = finish_all::<S, F>(job, last, tiles, &mut room, &mut acc)
        );
        finish_all::<S, F>(job, last, tiles, &mut room, &mut acc);
        tiles.release();
    }
}

/// Block `slot` of a group, to place `b`.
#[inline(always)]
unsafe fn unpack<S: TileVectors, F: Block32>(
    group: *const u8,
    slot: usize,
    b: usize,
    to: &mut Weights,
    scales: &mut Scales,
) {
    // SAFETY: the group is whole; the caller vouches for the ISA.
    unsafe {
        for u in 0..8 {
            let q = S::centred(F::unit::<S>(group, slot, u), F::ZERO);
            S::store_bytes(to.0[8 * b + u].as_mut_ptr(), q);
        }
        S::store(scales.0[2 * b].as_mut_ptr(), F::scale::<S>(group, slot));
        if F::HAS_MIN {
            S::store(scales.0[2 * b + 1].as_mut_ptr(), F::min::<S>(group, slot));
        }
    }
}

/// Sixteen tokens and a panel, whose second half of products is still in the registers.
#[derive(Clone, Copy)]
struct Last {
    scales: *const Scales,
    blocks: usize,
    to: Place,
    /// Scales of the first block.
    at: usize,
}

impl Last {
    /// Before the first products there is nothing to finish; what is there goes nowhere.
    fn nothing(scales: *const Scales, room: &mut Room) -> Last {
        let to = Place { first: room.nowhere.0.as_mut_ptr().cast(), step: LANES };
        Last { scales, blocks: 0, to, at: 0 }
    }
}

/// 256 values of K, or what is left of them.
#[derive(Clone, Copy)]
struct Part<'a> {
    pass: &'a Pass<'a>,
    /// Its number in the pass.
    g: usize,
    /// Its blocks.
    blocks: usize,
    ways: Ways,
}

/// The float step of block `$b`, whose products are in `$t`.
macro_rules! finish {
    ($acts:expr, $stride:expr, $done:expr, $b:literal, $t:literal, $last:expr, $acc:expr) => {
        if $b < $last.blocks {
            let at = $last.at + $b * $stride;
            finish::<S, F>($acts.d.add(at), $acts.ds.add(at), $b, &$done.0[$t], &*$last.scales, $acc);
        }
    };
}

/// Up to eight blocks (eight if `FULL`) of all tokens of a pass, sixteen tokens and a panel at a time: four products follow each other in
/// the unit, and between them are the float steps of the four before, whose sums stay in registers over eight blocks.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // the unit, what is in it, and what is computed
unsafe fn chunk<S: TileVectors, F: Block32, const FULL: bool>(
    &Part { pass, g, blocks, ways }: &Part<'_>,
    weights: &[Weights],
    scales: &[Scales; PANELS],
    tiles: &mut impl Tiles,
    done: &mut Products,
    sums: *mut Sums,
    last: &mut Last,
    sixteen: &mut [S::F; 16],
) {
    let acts = &pass.job.acts;
    // From the scales of one block to those of the next.
    let stride = acts.layout.scales(0, pass.job.k / 32).1;
    // SAFETY: tiles lie in the activations and in the weights; the rest is passed on.
    unsafe {
        // Takes products out of register `$t`, and makes those of block `$b` of the sixteen tokens at `$a` in it.
        macro_rules! product {
            ($b:expr, $t:literal, $a:expr, $w:expr) => {
                done.take::<$t>(tiles);
                if FULL || $b < blocks {
                    tiles.zero::<$t>();
                    tiles.load::<6, 0>($w.0[8 * $b].as_ptr());
                    tiles.load::<4, 0>($a.add($b / 2 * TILE + $b % 2 * 32));
                    tiles.dot::<$t, 4, 6>();
                }
            };
        }
        let (mut acc, mut before) = (*sixteen, *last);
        let (mut a, mut at) = (pass.tiles(g), pass.scale(8 * g, 32));
        for first in (0..pass.tokens).step_by(16) {
            for (p, w) in weights.iter().enumerate() {
                // The first half, beside the second half of what came before.
                product!(0, 0, a, w);
                finish!(acts, stride, done, 4, 0, before, &mut acc);
                product!(1, 1, a, w);
                finish!(acts, stride, done, 5, 1, before, &mut acc);
                product!(2, 2, a, w);
                finish!(acts, stride, done, 6, 2, before, &mut acc);
                product!(3, 3, a, w);
                finish!(acts, stride, done, 7, 3, before, &mut acc);
                for r in 0..16 {
                    S::store(before.to.row(r), acc[r]);
                }
                let (from, to, far) = ways.of(first, p, sums);
                acc = std::array::from_fn(|r| S::load(from.row(r)));
                if let Some(far) = far {
                    for r in 0..16 {
                        S::prefetch(far.row(r).cast());
                    }
                }
                let this =
                    Last { scales: &raw const scales[p], blocks: if FULL { 8 } else { blocks }, to, at };
                product!(4, 0, a, w);
                finish!(acts, stride, done, 0, 0, this, &mut acc);
                product!(5, 1, a, w);
                finish!(acts, stride, done, 1, 1, this, &mut acc);
                product!(6, 2, a, w);
                finish!(acts, stride, done, 2, 2, this, &mut acc);
                product!(7, 3, a, w);
                finish!(acts, stride, done, 3, 3, this, &mut acc);
                before = this;
            }
            (a, at) = (a.wrapping_add(4 * TILE), at + 16);
        }
        (*sixteen, *last) = (acc, before);
    }
}

/// Makes the float steps of the last products.
#[inline(always)]
unsafe fn finish_all<S: TileVectors, F: Block32>(
    job: &MatMul,
    last: Last,
    tiles: &mut impl Tiles,
    room: &mut Room,
    acc: &mut [S::F; 16],
) -> Last {
    let acts = &job.acts;
    let stride = acts.layout.scales(0, job.k / 32).1;
    // SAFETY: passed on.
    unsafe {
        let done = &mut room.done;
        done.take::<0>(tiles);
        finish!(acts, stride, done, 4, 0, last, acc);
        done.take::<1>(tiles);
        finish!(acts, stride, done, 5, 1, last, acc);
        done.take::<2>(tiles);
        finish!(acts, stride, done, 6, 2, last, acc);
        done.take::<3>(tiles);
        finish!(acts, stride, done, 7, 3, last, acc);
        for r in 0..16 {
            S::store(last.to.row(r), acc[r]);
        }
        Last::nothing(last.scales, room)
    }
}

/// The float step of the block at place `b`, for sixteen tokens.
#[inline(always)]
unsafe fn finish<S: TileVectors, F: Block32>(
    d: *const f32,
    ds: *const f32,
    b: usize,
    product: &[[i32; LANES]; 16],
    w: &Scales,
    acc: &mut [S::F; 16],
) {
    // SAFETY: the job has this block of these tokens; the caller vouches for the ISA.
    unsafe {
        let scale = S::load(w.0[2 * b].as_ptr());
        let m = S::load(w.0[2 * b + 1].as_ptr());
        for r in 0..16 {
            let sum = S::to_f(S::load_i(product[r].as_ptr().cast()));
            acc[r] = S::fma(sum, S::mul(scale, S::splat(*d.add(r))), acc[r]);
            if F::HAS_MIN {
                acc[r] = S::fma(m, S::splat(*ds.add(r)), acc[r]);
            }
        }
    }
}
