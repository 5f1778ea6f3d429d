//! QT16 read back on the host: the proof that the repack of `csrc/qt16.cuh` loses nothing.

use minfer_ops::GgmlType;

/// Rows and columns of a unit.
const ROWS: usize = 16;
const COLS: usize = 256;

/// Row in the unit and column in the k16 step of nibble `n` of a word of lane `lane`.
fn place(lane: usize, n: usize) -> (usize, usize) {
    (lane / 4 + n % 2 * 8, 2 * (lane % 4) + n / 4 + n % 4 / 2 * 8)
}

/// The file's bytes of a matrix in QT16.
pub(crate) fn unpack(ty: GgmlType, packed: &[u8], rows: usize, cols: usize, unit_bytes: usize) -> Vec<u8> {
    let block = ty.block_bytes();
    let units = cols / COLS;
    let mut out = vec![0; rows * units * block];
    for (index, unit) in packed.chunks_exact(unit_bytes).enumerate() {
        let (group, k) = (index / units, index % units);
        for r in (0..ROWS).filter(|r| group * ROWS + r < rows) {
            let to = ((group * ROWS + r) * units + k) * block;
            let to = &mut out[to..to + block];
            match ty {
                GgmlType::Q4_K => q4_k(unit, r, to),
                GgmlType::Q6_K => q6_k(unit, r, to),
                _ => panic!("{ty} has no QT16"),
            }
        }
    }
    out
}

/// Every nibble of row `row`, with its column.
fn nibbles(unit: &[u8], row: usize) -> impl Iterator<Item = (usize, u8)> {
    (0..4 * 32 * 4 * 8).filter_map(move |i| {
        let (slab, lane, step, n) = (i / 1024, i / 32 % 32, i / 8 % 4, i % 8);
        let (r, k) = place(lane, n);
        let byte = unit[slab * 512 + lane * 16 + step * 4 + n / 2];
        (r == row).then_some((slab * 64 + step * 16 + k, byte >> (n % 2 * 4) & 15))
    })
}

fn q4_k(unit: &[u8], row: usize, to: &mut [u8]) {
    to[..16].copy_from_slice(&unit[2048 + row * 16..][..16]);
    for (k, q) in nibbles(unit, row) {
        to[16 + k / 64 * 32 + k % 32] |= q << (k % 64 / 32 * 4);
    }
}

fn q6_k(unit: &[u8], row: usize, to: &mut [u8]) {
    to[192..208].copy_from_slice(&unit[3072 + row * 16..][..16]);
    to[208..].copy_from_slice(&unit[3328 + row * 2..][..2]);
    for (k, q) in nibbles(unit, row) {
        to[k / 128 * 64 + k % 64] |= q << (k % 128 / 64 * 4);
    }
    // Upper bits of register n of a step: `crumb` of the kernels.
    for i in 0..4 * 32 * 4 * 8 {
        let (slab, lane, step, n) = (i / 1024, i / 32 % 32, i / 8 % 4, i % 8);
        let (r, k) = place(lane, n);
        if r == row {
            let k = slab * 64 + step * 16 + k;
            let at = 2048 + slab * 256 + lane * 8 + step / 2 * 4;
            let word = u32::from_le_bytes([unit[at], unit[at + 1], unit[at + 2], unit[at + 3]]);
            let bit = n / 4 * 16 + step % 2 * 8 + n % 4 / 2 * 2 + n % 2 * 4;
            let q = (word >> bit & 3) as u8;
            to[128 + k / 128 * 32 + k % 32] |= q << (k % 128 / 32 * 2);
        }
    }
}
