//! Packing loses nothing, whatever the bytes are.

use crate::matrix::{FORMATS, Scratch};
use crate::testing::{Rng, first_difference, levels, load, random_weights, values, weight, weight_types};
use minfer_gguf::GgmlType;

/// Row counts around one and two panels.
const RAGGED: [usize; 5] = [1, 15, 16, 17, 33];

/// Columns of 1, 2, 3 and 5 blocks.
fn widths(ty: GgmlType) -> [usize; 4] {
    [1, 2, 3, 5].map(|blocks| blocks * ty.block_len())
}

/// Bytes of a matrix: of any value at all, or valid blocks.
fn contents(ty: GgmlType, rows: usize, cols: usize) -> [Vec<u8>; 2] {
    let valid = random_weights(ty, 11, rows, cols);
    [Rng(7 + rows as u64).bytes(valid.len()), valid]
}

#[test]
fn unpacking_gives_the_files_bytes_back() {
    for format in FORMATS {
        for cols in widths(format.ty) {
            for rows in 1..=16 {
                for bytes in contents(format.ty, rows, cols) {
                    let row_bytes = bytes.len() / rows;
                    let mut panel = vec![0; format.panel_bytes(cols)];
                    format.pack_panel(&bytes, row_bytes, &mut panel);
                    let mut back = vec![0xaa; bytes.len()];
                    for (row, out) in back.chunks_exact_mut(row_bytes).enumerate() {
                        format.unpack_row(&panel, row, out);
                    }
                    let differing = back.iter().zip(&bytes).filter(|(a, b)| a != b).count();
                    assert_eq!(differing, 0, "{} {rows} × {cols}", format.ty);
                    // Rows that are not there are zeros, which no product can mistake for weights.
                    let mut absent = vec![0xaa; row_bytes];
                    for row in rows..16 {
                        format.unpack_row(&panel, row, &mut absent);
                        assert!(absent.iter().all(|b| *b == 0), "{} row {row} of {rows}", format.ty);
                    }
                }
            }
        }
    }
}

#[test]
fn a_panel_is_no_larger_than_its_group_says() {
    for format in FORMATS {
        let file = 16 * format.ty.bytes_of(2 * 256).expect("whole blocks");
        let panel = format.panel_bytes(2 * 256);
        let growth = match format.ty {
            // The spread of the 6-bit fields.
            GgmlType::Q4_K | GgmlType::Q5_K => 2 * 16 * 4,
            // The same, and up to a whole cache line.
            GgmlType::IQ4_XS => 2 * (16 * 2 + 32),
            // Up to a whole cache line.
            GgmlType::Q3_K | GgmlType::Q6_K => 2 * 32,
            _ => 0,
        };
        assert_eq!(panel, file + growth, "{}", format.ty);
        assert!(growth * 100 <= 3 * file, "{}: {growth} of {file} bytes more", format.ty);
    }
}

#[test]
fn a_row_of_a_matrix_is_the_reference_bit_for_bit() {
    let kernels = levels().next().expect("a level");
    let mut scratch = Scratch::default();
    for ty in weight_types() {
        for cols in widths(ty) {
            for rows in RAGGED {
                let bytes = random_weights(ty, 5, rows, cols);
                let expected = values(ty, &bytes);
                for pack in [true, false] {
                    let matrix =
                        load(weight(ty, rows, cols, bytes.clone()), kernels, pack).expect("a matrix");
                    for (row, expected) in expected.chunks_exact(cols).enumerate() {
                        let mut out = vec![f32::NAN; cols + 3];
                        matrix.row(row, &mut out, &mut scratch);
                        let (out, beyond) = out.split_at(cols);
                        assert_eq!(
                            first_difference(out, expected),
                            None,
                            "{ty} {row} of {rows} × {cols}, {pack}"
                        );
                        assert!(beyond.iter().all(|v| v.is_nan()), "{ty}: written beyond the row");
                    }
                }
            }
        }
    }
}
