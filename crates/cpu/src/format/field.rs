//! Packing by table: where each field of a block lies in a group, for both directions.

use super::Panel;
use crate::simd::LANES;

/// Small scales and minima of a block, a byte each, that the file packs tighter.
pub(crate) type Spread = [u8; 16];

/// Elements that lie one after the other in a block, and in a group in the row's lane of as many vectors.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    /// Offset of the first element in the block, or in its [`Spread`].
    from: usize,
    /// Whether it is in the spread.
    spread: bool,
    /// Offset of the first vector in the group, for slot 0.
    to: usize,
    /// Bytes of an element: 1, 2 or 4.
    width: usize,
    /// Number of elements.
    count: usize,
    /// Bytes between vectors.
    step: usize,
    /// Bytes between slots.
    slot: usize,
}

impl Field {
    const fn new(from: usize, to: usize, width: usize, count: usize) -> Field {
        Field { from, spread: false, to, width, count, step: LANES * width, slot: 0 }
    }
    /// Bytes from offset `from` of the block to vectors of sixteen bytes at `to`.
    pub(crate) const fn bytes(from: usize, to: usize, count: usize) -> Field {
        Field::new(from, to, 1, count)
    }
    /// The same with two-byte floats.
    pub(crate) const fn halves(from: usize, to: usize, count: usize) -> Field {
        Field::new(from, to, 2, count)
    }
    /// The same with units of four bytes.
    pub(crate) const fn units(from: usize, to: usize, count: usize) -> Field {
        Field::new(from, to, 4, count)
    }
    /// Bytes of [`Panel::spread`].
    pub(crate) const fn spread(from: usize, to: usize, count: usize) -> Field {
        Field { spread: true, ..Field::new(from, to, 1, count) }
    }
    /// With `step` bytes between vectors.
    pub(crate) const fn every(self, step: usize) -> Field {
        Field { step, ..self }
    }
    /// With `slot` bytes between the blocks of a group.
    pub(crate) const fn per_slot(self, slot: usize) -> Field {
        Field { slot, ..self }
    }

    /// Calls `copy(offset in the block, offset in the group)` for every element of a row.
    #[inline(always)]
    fn each(&self, row: usize, slot: usize, mut copy: impl FnMut(usize, usize)) {
        let to = self.to + slot * self.slot + row * self.width;
        for i in 0..self.count {
            copy(self.from + i * self.width, to + i * self.step);
        }
    }

    #[inline(always)]
    fn pack(&self, block: &[u8], row: usize, slot: usize, group: &mut [u8]) {
        match self.width {
            1 => self.each(row, slot, |from, to| group[to] = block[from]),
            2 => self.each(row, slot, |from, to| copy::<2>(group, to, block, from)),
            _ => self.each(row, slot, |from, to| copy::<4>(group, to, block, from)),
        }
    }

    #[inline(always)]
    fn unpack(&self, group: &[u8], row: usize, slot: usize, block: &mut [u8]) {
        match self.width {
            1 => self.each(row, slot, |from, to| block[from] = group[to]),
            2 => self.each(row, slot, |from, to| copy::<2>(block, from, group, to)),
            _ => self.each(row, slot, |from, to| copy::<4>(block, from, group, to)),
        }
    }
}

#[inline(always)]
fn copy<const N: usize>(dst: &mut [u8], to: usize, src: &[u8], from: usize) {
    dst[to..to + N].copy_from_slice(&src[from..from + N]);
}

/// Does the same with each [`Panel::FIELDS`] of a type. Unrolled, so that every field's numbers are constants: in a loop,
/// types with four fields and more were packed at a third of the speed.
macro_rules! for_fields {
    ($panel:ty, $field:ident, $do:expr) => {
        const { assert!(<$panel>::FIELDS.len() <= 8) };
        for_fields!(@ $panel, $field, $do, 0, 1, 2, 3, 4, 5, 6, 7);
    };
    (@ $panel:ty, $field:ident, $do:expr, $($n:literal),+) => {
        $(
            if $n < <$panel>::FIELDS.len() {
                let $field = const { <$panel>::FIELDS[if $n < <$panel>::FIELDS.len() { $n } else { 0 }] };
                $do;
            }
        )+
    };
}

/// Packs up to sixteen rows of `row_bytes` into a zeroed panel, row after row: read from memory, the file's order
/// is faster than that of the groups.
pub(crate) fn pack_panel<P: Panel>(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    for (row, blocks) in rows.chunks_exact(row_bytes).enumerate() {
        for (b, block) in blocks.chunks_exact(P::TYPE.block_bytes()).enumerate() {
            let group = &mut panel[b / P::BLOCKS * P::GROUP_BYTES..][..P::GROUP_BYTES];
            let slot = b % P::BLOCKS;
            let spread = P::spread(block);
            for_fields!(P, field, {
                field.pack(if field.spread { &spread } else { block }, row, slot, group);
            });
        }
    }
}

/// The file's bytes of one row of a panel, bit for bit.
pub(crate) fn unpack_row<P: Panel>(panel: &[u8], row: usize, out: &mut [u8]) {
    for (b, block) in out.chunks_exact_mut(P::TYPE.block_bytes()).enumerate() {
        let group = &panel[b / P::BLOCKS * P::GROUP_BYTES..][..P::GROUP_BYTES];
        let slot = b % P::BLOCKS;
        let mut spread = Spread::default();
        for_fields!(P, field, {
            field.unpack(group, row, slot, if field.spread { &mut spread } else { &mut *block });
        });
        P::gather(&spread, block);
    }
}
