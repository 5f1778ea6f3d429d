//! Where tensor-core instructions have the values of their operands: the maps of the PTX ISA, as functions, and the
//! comparison of what a GPU was seen to do, and of the kernels' own layouts, with them. Every comparison is exhaustive.
//!
//! A *place* is a value in a register: thread, register, and which half or byte of it.

/// Row and column in an operand.
pub type At = (usize, usize);

/// Quad and thread in the quad of a lane.
const fn quad(lane: usize) -> (usize, usize) {
    (lane % 32 / 4, lane % 4)
}

/// A of `mma.m16n8k16`, halves: row and k of half `half` of register `register` (0 to 3).
pub const fn a_halves(lane: usize, register: usize, half: usize) -> At {
    let (g, t) = quad(lane);
    (g + register % 2 * 8, 2 * t + half + register / 2 * 8)
}

/// B of `mma.m16n8k16`, halves: k and column of half `half` of register `register` (0 or 1).
pub const fn b_halves(lane: usize, register: usize, half: usize) -> At {
    let (g, t) = quad(lane);
    (2 * t + half + register * 8, g)
}

/// A of `mma.m16n8k32`, bytes: row and k of byte `byte` of register `register` (0 to 3).
pub const fn a_bytes(lane: usize, register: usize, byte: usize) -> At {
    let (g, t) = quad(lane);
    (g + register % 2 * 8, 4 * t + byte + register / 2 * 16)
}

/// B of `mma.m16n8k32`, bytes: k and column of byte `byte` of register `register` (0 or 1).
pub const fn b_bytes(lane: usize, register: usize, byte: usize) -> At {
    let (g, t) = quad(lane);
    (4 * t + byte + register * 16, g)
}

/// D of both: row and column of register `register` (0 to 3).
pub const fn d_mma(lane: usize, register: usize) -> At {
    let (g, t) = quad(lane);
    (g + register / 2 * 8, 2 * t + register % 2)
}

/// A of `wgmma.m64nNk16` in registers, halves: row and k. Each warp has sixteen rows.
pub const fn a_wgmma(thread: usize, register: usize, half: usize) -> At {
    let (row, k) = a_halves(thread, register, half);
    (thread / 32 * 16 + row, k)
}

/// D of `wgmma.m64nN`: row and column of register `register` (0 to N / 2 − 1).
pub const fn d_wgmma(thread: usize, register: usize) -> At {
    let (row, column) = d_mma(thread, register % 4);
    (thread / 32 * 16 + row, register / 4 * 8 + column)
}

/// Byte `byte` of rows of 128 bytes, as it lies in shared memory with the swizzle of 128 bytes: the sixteen bytes that it
/// belongs to are exchanged within the row, by the row's number in its group of eight.
pub const fn swizzled(byte: usize) -> usize {
    byte ^ (byte / 128 % 8 * 16)
}

/// Half `half` of register `register` of `ldmatrix.x4`: matrix, row and column, plain or transposed.
pub const fn ldmatrix(lane: usize, register: usize, half: usize, transposed: bool) -> (usize, usize, usize) {
    let (g, t) = quad(lane);
    if transposed { (register, 2 * t + half, g) } else { (register, g, 2 * t + half) }
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Of what.
    pub what: String,
    /// Values compared.
    pub compared: usize,
    /// Those that differ.
    pub mismatches: usize,
}

impl Proof {
    /// A comparison of pairs.
    pub fn of<T: PartialEq>(what: impl Into<String>, pairs: impl Iterator<Item = (T, T)>) -> Proof {
        let mut proof = Proof { what: what.into(), compared: 0, mismatches: 0 };
        for (found, expected) in pairs {
            proof.compared += 1;
            proof.mismatches += usize::from(found != expected);
        }
        proof
    }
}

/// All places of `threads` threads with so many registers of so many parts, in the order of the kernels' slots.
fn places(
    threads: usize,
    registers: usize,
    parts: usize,
) -> impl Iterator<Item = (usize, usize, usize)> + Clone {
    (0..threads * registers * parts).map(move |i| (i / parts / registers, i / parts % registers, i % parts))
}

/// Whether a map has every element of a matrix of `shape` exactly once.
fn onto(what: &str, shape: At, map: impl Iterator<Item = At>) -> Proof {
    let mut seen = vec![0usize; shape.0 * shape.1];
    let mut outside = 0;
    for (row, column) in map {
        match seen.get_mut(row * shape.1 + column) {
            Some(count) if column < shape.1 => *count += 1,
            _ => outside += 1,
        }
    }
    let mut proof = Proof::of(format!("{what}: every element once"), seen.into_iter().map(|n| (n, 1)));
    proof.mismatches += outside;
    proof
}

/// What needs no GPU: that the maps are maps, and that `ldmatrix` gives the fragments it is used for.
pub fn of_maps() -> Vec<Proof> {
    let a16 = || places(32, 4, 2).map(|(l, r, h)| a_halves(l, r, h));
    let b16 = || places(32, 2, 2).map(|(l, r, h)| b_halves(l, r, h));
    let a32 = || places(32, 4, 4).map(|(l, r, b)| a_bytes(l, r, b));
    let wide = |n: usize| places(128, n / 2, 1).map(|(t, r, _)| d_wgmma(t, r));
    // Matrix m of four 8 × 8 in a 16 × 16 tile of A: rows 8 · (m % 2), columns 8 · (m / 2).
    let tile = |(m, row, column): (usize, usize, usize)| (m % 2 * 8 + row, m / 2 * 8 + column);
    let plain = places(32, 4, 2).map(|(l, r, h)| (tile(ldmatrix(l, r, h, false)), a_halves(l, r, h)));
    // Sixteen rows of k by sixteen columns, transposed: two fragments of B beside each other.
    let transposed = places(32, 4, 2).map(|(l, r, h)| {
        let (m, row, column) = ldmatrix(l, r, h, true);
        let (k, n) = b_halves(l, r % 2, h);
        ((m % 2 * 8 + row, m / 2 * 8 + column), (k, r / 2 * 8 + n))
    });
    // A half of ldmatrix is two bytes.
    let bytes = places(32, 4, 4).map(|(l, r, b)| {
        let (m, row, column) = ldmatrix(l, r, b / 2, false);
        ((m % 2 * 8 + row, m / 2 * 16 + 2 * column + b % 2), a_bytes(l, r, b))
    });
    // Eight lanes of a phase read sixteen bytes each, of eight rows at the same column: all 32 banks.
    let banks = (0..8).flat_map(|chunk| {
        let of = move |row: usize| swizzled(row * 128 + chunk * 16) / 16 % 8;
        (0..8).map(move |bank| ((0..8).filter(|&row| of(row) == bank).count(), 1))
    });
    vec![
        onto("A of m16n8k16", (16, 16), a16()),
        onto("B of m16n8k16", (16, 8), b16()),
        onto("A of m16n8k32", (16, 32), a32()),
        onto("B of m16n8k32", (32, 8), places(32, 2, 4).map(|(l, r, b)| b_bytes(l, r, b))),
        onto("D of m16n8", (16, 8), places(32, 4, 1).map(|(l, r, _)| d_mma(l, r))),
        onto("A of wgmma m64k16", (64, 16), places(128, 4, 2).map(|(t, r, h)| a_wgmma(t, r, h))),
        onto("D of wgmma m64n64", (64, 64), wide(64)),
        onto("D of wgmma m64n256", (64, 256), wide(256)),
        Proof::of("ldmatrix of a 16 × 16 tile is A of m16n8k16", plain),
        Proof::of("ldmatrix.trans of 16 rows of k is B of m16n8k16, twice", transposed),
        Proof::of("ldmatrix of 16 rows of 32 bytes is A of m16n8k32", bytes),
        onto("swizzle of 128 bytes", (8, 128), (0..1024).map(swizzled).map(|b| (b / 128, b % 128))),
        Proof::of("eight rows of a swizzled tile are in different banks", banks),
    ]
}

/// Where one place of A and one of B meet: `None` if not at the same k.
type Meets = Option<At>;

/// Compares, for all places of A and of B, where the hardware had the product of the two with where the maps say.
fn meetings(
    what: &str,
    seen: &[i32],
    a: impl Iterator<Item = At>,
    b: impl Iterator<Item = At> + Clone,
    d: impl Fn(usize) -> At,
) -> Proof {
    let expected =
        a.flat_map(|(row, k)| b.clone().map(move |(other, column)| (k == other).then_some((row, column))));
    // -1 is nothing; whatever else is negative is no place.
    let found = seen.iter().map(|&place| match usize::try_from(place) {
        Ok(place) => Ok(Some(d(place))),
        Err(_) if place == -1 => Ok(None),
        Err(_) => Err(place),
    });
    compare(what, found, expected.map(Ok::<Meets, i32>))
}

/// Compares values one by one; one that the other side lacks is a mismatch.
fn compare<T: PartialEq>(
    what: &str,
    found: impl ExactSizeIterator<Item = T>,
    expected: impl Iterator<Item = T>,
) -> Proof {
    let expected: Vec<T> = expected.collect();
    let missing = found.len().abs_diff(expected.len());
    let mut proof = Proof::of(what, found.zip(expected));
    proof.mismatches += missing;
    proof
}

/// `mma.m16n8k16`, as `layout_mma_halves` saw it.
pub fn of_mma_halves(seen: &[i32]) -> Proof {
    let a = places(32, 4, 2).map(|(l, r, h)| a_halves(l, r, h));
    let b = places(32, 2, 2).map(|(l, r, h)| b_halves(l, r, h));
    meetings("mma.m16n8k16 on the GPU: A × B", seen, a, b, |place| d_mma(place / 4, place % 4))
}

/// `mma.m16n8k32`, as `layout_mma_bytes` saw it.
pub fn of_mma_bytes(seen: &[i32]) -> Proof {
    let a = places(32, 4, 4).map(|(l, r, b)| a_bytes(l, r, b));
    let b = places(32, 2, 4).map(|(l, r, b)| b_bytes(l, r, b));
    meetings("mma.m16n8k32 on the GPU: A × B", seen, a, b, |place| d_mma(place / 4, place % 4))
}

/// `ldmatrix`, as `layout_ldmatrix` saw it.
pub fn of_ldmatrix(seen: &[i32]) -> Proof {
    let expected = [false, true].into_iter().flat_map(|transposed| {
        places(32, 4, 1).map(move |(lane, register, _)| {
            let of = |half| {
                let (matrix, row, column) = ldmatrix(lane, register, half, transposed);
                (64 * matrix + 8 * row + column) as i32
            };
            of(0) | of(1) << 16
        })
    });
    compare("ldmatrix on the GPU, plain and transposed", seen.iter().copied(), expected)
}

/// `wgmma` with B along K, as `layout_wgmma` saw it: results are the step of 16 k, times 512, and the place.
pub fn of_wgmma(seen: &[i32]) -> Proof {
    // Half `i` of the tile in shared memory: its column and its k of 64.
    let b = (0..512).map(|i| swizzled(2 * i) / 2).map(|i| (i % 64, i / 64));
    let a = places(128, 4, 2).map(|(t, r, h)| a_wgmma(t, r, h));
    let expected = a.flat_map(|(row, k)| {
        b.clone().map(move |(of_64, column)| (of_64 % 16 == k).then_some((of_64 / 16, row, column)))
    });
    let found = seen.iter().map(|&value| {
        usize::try_from(value).ok().map(|value| {
            let (row, column) = d_wgmma(value % 512 / 4, value % 4);
            (value / 512, row, column)
        })
    });
    compare("wgmma.m64n8k16 on the GPU: A × B along K", found, expected)
}

/// `wgmma` with B across K, as `layout_wgmma_across` saw it.
pub fn of_wgmma_across(seen: &[i32]) -> Proof {
    // Half `i` of the tile in shared memory: its k and its column of 64.
    let b = (0..1024).map(|i| swizzled(2 * i) / 2).map(|i| (i / 64, i % 64));
    let a = places(128, 4, 2).map(|(t, r, h)| a_wgmma(t, r, h));
    meetings("wgmma.m64n64k16 on the GPU: A × B across K", seen, a, b, |place| {
        d_wgmma(place / 32, place % 32)
    })
}

/// The kernels' own formulas, as `layout_formulas` saw them: where a row of a product's input has its values, and which
/// value of a unit of QT16 each nibble is.
pub fn of_formulas(seen: &[i32]) -> Vec<Proof> {
    let (input, unit) = seen.split_at(seen.len().min(256));
    // Thread t of a quad reads 32 bytes of each 64 values: registers 0 and 1 of B of four steps, one after the other.
    let mut expected = [0; 256];
    for (lane, register, half) in places(4, 2, 2) {
        for step in 0..16 {
            let (k, _) = b_halves(lane, register, half);
            expected[step * 16 + k] = (step / 4 * 64 + lane * 16 + step % 4 * 4 + register * 2 + half) as i32;
        }
    }
    let nibbles = places(32, 8, 1).map(|(lane, nibble, _)| {
        let (row, k) = a_halves(lane, nibble % 4, nibble / 4);
        (row * 16 + k) as i32
    });
    vec![
        compare("inputs of products are B of m16n8k16", input.iter().copied(), expected.into_iter()),
        compare("nibbles of QT16 are A of m16n8k16", unit.iter().copied(), nibbles),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maps_are_maps() {
        for proof in of_maps() {
            assert_eq!(proof.mismatches, 0, "{}", proof.what);
            assert!(proof.compared >= 64, "{}", proof.what);
        }
    }

    #[test]
    fn a_map_that_leaves_something_out_is_found() {
        let wrong =
            places(32, 4, 1).map(|(l, r, _)| if (l, r) == (3, 2) { d_mma(3, 1) } else { d_mma(l, r) });
        assert_eq!(onto("wrong", (16, 8), wrong).mismatches, 2);
        assert_eq!(onto("outside", (16, 8), [(16, 0)].into_iter()).mismatches, 129);
    }

    /// What a right GPU would say, from the definition of a product; and one wrong value of it.
    #[test]
    fn what_is_seen_elsewhere_is_a_mismatch() {
        let mut seen = Vec::new();
        for (row, k) in places(32, 4, 2).map(|(l, r, h)| a_halves(l, r, h)) {
            for (other, column) in places(32, 2, 2).map(|(l, r, h)| b_halves(l, r, h)) {
                let at = (0..128).find(|&place| d_mma(place / 4, place % 4) == (row, column));
                seen.push(if k == other { at.map_or(-1, |at| at as i32) } else { -1 });
            }
        }
        assert_eq!(of_mma_halves(&seen).mismatches, 0);
        assert_eq!(of_mma_halves(&seen).compared, 256 * 128);
        let hit = seen.iter().position(|&place| place >= 0).unwrap_or(0);
        seen[hit] ^= 1;
        assert_eq!(of_mma_halves(&seen).mismatches, 1);
        seen[hit] = -2;
        assert_eq!(of_mma_halves(&seen).mismatches, 1);
        seen.push(-1);
        assert_eq!(of_mma_halves(&seen).mismatches, 2);
    }
}
