//! The formats with 32-value blocks on a tile unit.
//!
//! # Safety
//! As in [`super`].

use super::*;
use crate::format::Block32;

/// 256 values of sixteen rows, ready for the tile unit.
#[repr(C, align(64))]
struct Weights {
    q: [[u8; 64]; 64],
    /// `d` and `m` of eight blocks.
    scales: [[f32; LANES]; 16],
}

impl Weights {
    const EMPTY: Weights = Weights { q: [[0; 64]; 64], scales: [[0.0; LANES]; 16] };
}

/// The formats with 32-value blocks.
///
/// # Safety
/// See [`crate::kernel::matmul::MatMulFn`].
#[inline(always)]
pub(crate) unsafe fn block32<S: TileVectors, F: Block32>(job: &MatMul, tiles: &mut impl Tiles) {
    // SAFETY: passed on.
    unsafe {
        tiles.configure(&HALF);
        let mut weights = [Weights::EMPTY; PANELS];
        let mut room = Room::EMPTY;
        for_passes!(S, job, DEPTH, |pass, panel, count, sums| {
            for g in 0..pass.depth.div_ceil(256) {
                let blocks = 8.min(pass.depth / 32 - 8 * g);
                for (p, w) in weights[..count].iter_mut().enumerate() {
                    for b in 0..blocks {
                        let block = pass.k / 32 + 8 * g + b;
                        let group = panel.add(p * job.panel_bytes + block / F::SLOTS * F::GROUP_BYTES);
                        unpack::<S, F>(group, block % F::SLOTS, b, w);
                    }
                }
                if blocks == 8 {
                    chunk::<S, F, true>(&pass, g, blocks, &weights[..count], tiles, &mut room, &mut sums);
                } else {
                    chunk::<S, F, false>(&pass, g, blocks, &weights[..count], tiles, &mut room, &mut sums);
                }
            }
        });
        tiles.release();
    }
}

/// Block `slot` of a group, to place `b`.
#[inline(always)]
unsafe fn unpack<S: TileVectors, F: Block32>(group: *const u8, slot: usize, b: usize, to: &mut Weights) {
    // SAFETY: the group is whole; the caller vouches for the ISA.
    unsafe {
        for u in 0..8 {
            let q = S::centred(F::unit::<S>(group, slot, u), F::ZERO);
            S::store_bytes(to.q[8 * b + u].as_mut_ptr(), q);
        }
        S::store(to.scales[2 * b].as_mut_ptr(), F::scale::<S>(group, slot));
        if F::HAS_MIN {
            S::store(to.scales[2 * b + 1].as_mut_ptr(), F::min::<S>(group, slot));
        }
    }
}

/// Sixteen tokens and a panel, whose second half of products is still in the registers.
#[derive(Clone, Copy)]
struct Last {
    weights: *const Weights,
    sums: *mut f32,
    /// Scales of the first block.
    at: usize,
}

/// Up to eight blocks (eight if `FULL`) of all tokens of a pass, sixteen tokens and a panel at a time: four products follow each other in
/// the unit, and between them are the float steps of the four before, whose sums stay in registers over eight blocks.
#[inline(always)]
unsafe fn chunk<S: TileVectors, F: Block32, const FULL: bool>(
    pass: &Pass<'_>,
    g: usize,
    blocks: usize,
    weights: &[Weights],
    tiles: &mut impl Tiles,
    room: &mut Room,
    sums: &mut [Sums; PANELS],
) {
    let acts = &pass.job.acts;
    let Room { done, nowhere } = room;
    // From the scales of one block to those of the next.
    let stride = acts.layout.scales(0, pass.job.k / 32).1;
    // SAFETY: tiles lie in the activations and in the weights; the rest is passed on.
    unsafe {
        // The float step of block `$b`, whose products are in `$t`.
        macro_rules! finish {
            ($b:expr, $t:literal, $last:ident, $acc:ident) => {
                if FULL || $b < blocks {
                    let at = $last.at + $b * stride;
                    finish::<S, F>(
                        acts.d.add(at),
                        acts.ds.add(at),
                        $b,
                        &done.0[$t],
                        &*$last.weights,
                        &mut $acc,
                    );
                }
            };
        }
        // Takes products out of register `$t`, and makes those of block `$b` of the sixteen tokens at `$a` in it.
        macro_rules! product {
            ($b:expr, $t:literal, $a:expr, $w:expr) => {
                done.take::<$t>(tiles);
                if FULL || $b < blocks {
                    tiles.zero::<$t>();
                    tiles.load::<6, 0>($w.q[8 * $b].as_ptr());
                    tiles.load::<4, 0>($a.add($b / 2 * TILE + $b % 2 * 32));
                    tiles.dot::<$t, 4, 6>();
                }
            };
        }
        let mut acc = [S::splat(0.0); 16];
        let (mut a, mut at) = (pass.tiles(g), pass.scale(8 * g, 32));
        // Before the first products there is nothing to finish; what is there goes nowhere.
        let mut last = Last { weights: &raw const weights[0], sums: nowhere.0.as_mut_ptr().cast(), at };
        for first in (0..pass.tokens).step_by(16) {
            for (p, w) in weights.iter().enumerate() {
                // The first half, beside the second half of what came before.
                product!(0, 0, a, w);
                finish!(4, 0, last, acc);
                product!(1, 1, a, w);
                finish!(5, 1, last, acc);
                product!(2, 2, a, w);
                finish!(6, 2, last, acc);
                product!(3, 3, a, w);
                finish!(7, 3, last, acc);
                for r in 0..16 {
                    S::store(last.sums.add(LANES * r), acc[r]);
                }
                let this = Last { weights: w, sums: sums[p].0[first].as_mut_ptr(), at };
                acc = std::array::from_fn(|r| S::load(this.sums.add(LANES * r)));
                product!(4, 0, a, w);
                finish!(0, 0, this, acc);
                product!(5, 1, a, w);
                finish!(1, 1, this, acc);
                product!(6, 2, a, w);
                finish!(2, 2, this, acc);
                product!(7, 3, a, w);
                finish!(3, 3, this, acc);
                last = this;
            }
            (a, at) = (a.wrapping_add(4 * TILE), at + 16);
        }
        done.take::<0>(tiles);
        finish!(4, 0, last, acc);
        done.take::<1>(tiles);
        finish!(5, 1, last, acc);
        done.take::<2>(tiles);
        finish!(6, 2, last, acc);
        done.take::<3>(tiles);
        finish!(7, 3, last, acc);
        for r in 0..16 {
            S::store(last.sums.add(LANES * r), acc[r]);
        }
    }
}

/// The float step of the block at place `b`, for sixteen tokens.
#[inline(always)]
unsafe fn finish<S: TileVectors, F: Block32>(
    d: *const f32,
    ds: *const f32,
    b: usize,
    product: &[[i32; LANES]; 16],
    w: &Weights,
    acc: &mut [S::F; 16],
) {
    // SAFETY: the job has this block of these tokens; the caller vouches for the ISA.
    unsafe {
        let scale = S::load(w.scales[2 * b].as_ptr());
        let m = S::load(w.scales[2 * b + 1].as_ptr());
        for r in 0..16 {
            let sum = S::to_f(S::load_i(product[r].as_ptr().cast()));
            acc[r] = S::fma(sum, S::mul(scale, S::splat(*d.add(r))), acc[r]);
            if F::HAS_MIN {
                acc[r] = S::fma(m, S::splat(*ds.add(r)), acc[r]);
            }
        }
    }
}
