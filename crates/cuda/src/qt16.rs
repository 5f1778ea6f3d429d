//! QT16 read back on the host: the proof that the repack of `csrc/qt16.cuh` loses nothing.

use minfer_ops::GgmlType;

/// Rows and columns of a unit.
pub(crate) const ROWS: usize = 16;
pub(crate) const COLS: usize = 256;

/// Row in the unit and column in the k16 step of nibble `n` of a word of lane `lane`.
fn place(lane: usize, n: usize) -> (usize, usize) {
    (lane / 4 + n % 2 * 8, 2 * (lane % 4) + n / 4 + n % 4 / 2 * 8)
}

/// The file's bytes of a matrix in QT16; of BF16 the halves that they became.
pub(crate) fn unpack(ty: GgmlType, packed: &[u8], rows: usize, cols: usize, unit_bytes: usize) -> Vec<u8> {
    // Bytes of a row of a unit in the file.
    let block = ty.block_bytes() * (COLS / ty.block_len());
    let units = cols.div_ceil(COLS);
    let mut out = vec![0; rows * units * block];
    for (index, unit) in packed.chunks_exact(unit_bytes).enumerate() {
        let (group, k) = (index / units, index % units);
        for r in (0..ROWS).filter(|r| group * ROWS + r < rows) {
            let to = ((group * ROWS + r) * units + k) * block;
            let to = &mut out[to..to + block];
            match ty {
                GgmlType::Q2_K => q2_k(unit, r, to),
                GgmlType::Q3_K => q3_k(unit, r, to),
                GgmlType::Q4_K => q4_k(unit, r, to),
                GgmlType::Q5_K => q5_k(unit, r, to),
                GgmlType::Q6_K => q6_k(unit, r, to),
                GgmlType::IQ4_XS => iq4_xs(unit, r, to),
                GgmlType::Q8_0 => q8_0(unit, r, to),
                GgmlType::F16 | GgmlType::BF16 => halves(unit, r, to),
                _ if ty.block_len() == 32 => blocks_of_32(ty, unit, r, to),
                _ => panic!("{ty} has no QT16"),
            }
        }
    }
    // Rows without what fills up their last unit.
    out.chunks_exact(units * block).flat_map(|row| &row[..block * cols / COLS]).copied().collect()
}

/// Slab, lane, step and register of every value of row `row`, with its column.
fn values(row: usize) -> impl Iterator<Item = ([usize; 4], usize)> {
    (0..4 * 32 * 4 * 8).filter_map(move |i| {
        let (slab, lane, step, n) = (i / 1024, i / 32 % 32, i / 8 % 4, i % 8);
        let (r, k) = place(lane, n);
        (r == row).then_some(([slab, lane, step, n], slab * 64 + step * 16 + k))
    })
}

/// Which byte of the two words of a step value `n` is where codes are bytes: `byte_value` of the kernels, reversed.
fn byte_of(n: usize) -> usize {
    n % 4 / 2 * 4 + n % 2 + n / 4 * 2
}

/// Codes of row `row` with their columns, from each kind of plane of `csrc/qt16/planes.cuh`.
fn nibbles(plane: &[u8], row: usize) -> impl Iterator<Item = (usize, u8)> {
    values(row).map(|([slab, lane, step, n], k)| {
        let byte = plane[slab * 512 + lane * 16 + step * 4 + n / 2];
        (k, byte >> (n % 2 * 4) & 15)
    })
}

fn levels(plane: &[u8], row: usize) -> impl Iterator<Item = (usize, u8)> {
    values(row).map(|([slab, lane, step, n], k)| {
        let byte = plane[slab * 512 + lane * 16 + step * 4 + byte_of(n) / 2];
        (k, byte >> (n % 2 * 4) & 15)
    })
}

fn bytes(plane: &[u8], row: usize) -> impl Iterator<Item = (usize, u8)> {
    values(row).map(|([slab, lane, step, n], k)| {
        (k, plane[slab * 1024 + step / 2 * 512 + lane * 16 + step % 2 * 8 + byte_of(n)])
    })
}

fn pairs(plane: &[u8], row: usize) -> impl Iterator<Item = (usize, u8)> {
    values(row).map(|([slab, lane, step, n], k)| {
        let bit = n / 4 * 16 + step % 2 * 8 + n % 4 / 2 * 2 + n % 2 * 4;
        let word = slab / 2 * 512 + lane * 16 + slab % 2 * 8 + step / 2 * 4;
        (k, plane[word + bit / 8] >> (bit % 8) & 3)
    })
}

fn single_bits(plane: &[u8], row: usize) -> impl Iterator<Item = (usize, u8)> {
    values(row).map(|([slab, lane, step, n], k)| {
        let bit = n / 4 * 16 + step % 2 * 2 + n % 4 / 2 + step / 2 * 8 + n % 2 * 4;
        (k, plane[lane * 16 + slab * 4 + bit / 8] >> (bit % 8) & 1)
    })
}

/// Where the file has value `k` of 256 in two bits, or in four: byte and bit.
fn two_bits(k: usize) -> (usize, usize) {
    (k / 128 * 32 + k % 32, k % 128 / 32 * 2)
}

fn four_bits(k: usize) -> (usize, usize) {
    (k / 64 * 32 + k % 32, k % 64 / 32 * 4)
}

fn q2_k(unit: &[u8], row: usize, to: &mut [u8]) {
    for (k, q) in pairs(unit, row) {
        let (byte, bit) = two_bits(k);
        to[16 + byte] |= q << bit;
    }
    to[..16].copy_from_slice(&unit[1024 + row * 16..][..16]);
    to[80..].copy_from_slice(&unit[1280 + row * 4..][..4]);
}

fn q3_k(unit: &[u8], row: usize, to: &mut [u8]) {
    for (k, q) in pairs(unit, row) {
        let (byte, bit) = two_bits(k);
        to[32 + byte] |= q << bit;
    }
    for (k, q) in single_bits(&unit[1024..], row) {
        to[k % 32] |= q << (k / 32);
    }
    to[96..108].copy_from_slice(&unit[1536 + row * 12..][..12]);
    to[108..].copy_from_slice(&unit[1728 + row * 2..][..2]);
}

fn q4_k(unit: &[u8], row: usize, to: &mut [u8]) {
    for (k, q) in nibbles(unit, row) {
        let (byte, bit) = four_bits(k);
        to[16 + byte] |= q << bit;
    }
    to[..16].copy_from_slice(&unit[2048 + row * 16..][..16]);
}

fn q5_k(unit: &[u8], row: usize, to: &mut [u8]) {
    for (k, q) in nibbles(unit, row) {
        let (byte, bit) = four_bits(k);
        to[48 + byte] |= q << bit;
    }
    for (k, q) in single_bits(&unit[2048..], row) {
        to[16 + k % 32] |= q << (k / 32);
    }
    to[..16].copy_from_slice(&unit[2560 + row * 16..][..16]);
}

fn q6_k(unit: &[u8], row: usize, to: &mut [u8]) {
    for (k, q) in nibbles(unit, row) {
        to[k / 128 * 64 + k % 64] |= q << (k % 128 / 64 * 4);
    }
    for (k, q) in pairs(&unit[2048..], row) {
        let (byte, bit) = two_bits(k);
        to[128 + byte] |= q << bit;
    }
    to[192..208].copy_from_slice(&unit[3072 + row * 16..][..16]);
    to[208..].copy_from_slice(&unit[3328 + row * 2..][..2]);
}

fn iq4_xs(unit: &[u8], row: usize, to: &mut [u8]) {
    for (k, q) in levels(unit, row) {
        to[8 + k / 32 * 16 + k % 16] |= q << (k % 32 / 16 * 4);
    }
    to[..8].copy_from_slice(&unit[2048 + row * 8..][..8]);
}

/// `head` bytes in front of a block's codes in each of the blocks of `len` bytes of row `row`.
fn heads(meta: &[u8], row: usize, to: &mut [u8], head: usize, len: usize) {
    for group in 0..8 {
        to[group * len..][..head].copy_from_slice(&meta[(row * 8 + group) * head..][..head]);
    }
}

fn q8_0(unit: &[u8], row: usize, to: &mut [u8]) {
    for (k, q) in bytes(unit, row) {
        to[k / 32 * 34 + 2 + k % 32] = q ^ 128;
    }
    heads(&unit[4096..], row, to, 2, 34);
}

/// Values as halves, the registers of a step side by side.
fn halves(units: &[u8], row: usize, to: &mut [u8]) {
    for (i, half) in units.chunks_exact(2).enumerate() {
        let (step, lane, n) = (i / 256, i / 8 % 32, i % 8 / 2 + i % 2 * 4);
        let (r, k) = place(lane, n);
        if r == row {
            to[2 * (step * 16 + k)..][..2].copy_from_slice(half);
        }
    }
}

/// Types of 4 and 5 bits in blocks of 32: what scales a block, fifth bits, nibbles.
fn blocks_of_32(ty: GgmlType, unit: &[u8], row: usize, to: &mut [u8]) {
    let len = ty.block_bytes();
    let fifth = if matches!(ty, GgmlType::Q5_0 | GgmlType::Q5_1) { 4 } else { 0 };
    let head = len - 16 - fifth;
    let codes: Vec<(usize, u8)> = match ty {
        GgmlType::IQ4_NL | GgmlType::MXFP4 => levels(unit, row).collect(),
        _ => nibbles(unit, row).collect(),
    };
    for (k, q) in codes {
        to[k / 32 * len + head + fifth + k % 16] |= q << (k % 32 / 16 * 4);
    }
    if fifth > 0 {
        for (k, q) in single_bits(&unit[2048..], row) {
            to[k / 32 * len + head + k % 32 / 8] |= q << (k % 8);
        }
    }
    heads(&unit[2048 + 128 * fifth..], row, to, head, len);
}
