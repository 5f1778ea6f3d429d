//! What the bits of cached keys and values depend on besides tokens, as one hash: the name that a cache on disk has for them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use minfer_gguf::Gguf;
use minfer_ops::KvTypes;
use sha2::{Digest as _, Sha256};

/// Pieces of a tensor that are hashed, and bytes of each.
const PIECES: usize = 16;
const PIECE: usize = 4096;

/// The identity of a model's cache of these types on a device whose kind is `kind`.
///
/// Of the model it hashes all that comes before the tensors (hyperparameters, and each tensor's name, type and shape), the
/// length of its files, and 16 pieces of 4 KiB spread over each tensor; a tensor of up to 64 KiB whole. That is some
/// milliseconds for any model, where all of a large one takes half a minute, and tells models apart that are: training and
/// quantization change every part of the tensors that they change. Of minfer it hashes the executable, as what it computes is
/// the same bits within a build only.
pub(crate) fn identity(gguf: &Gguf, types: KvTypes, kind: &str) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    // Lengths first, so that no two lists of parts are the same bytes.
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(&file_hash(&crate::env::executable()?)?);
    [kind, types.keys.name(), types.values.name()].iter().for_each(|text| part(text.as_bytes()));
    part(&gguf.file_bytes().to_le_bytes());
    for path in gguf.paths() {
        let offsets =
            gguf.tensors().filter(|tensor| tensor.path() == path).map(|tensor| tensor.file_offset());
        let mut header = Vec::new();
        File::open(path)?.take(offsets.min().unwrap_or(u64::MAX)).read_to_end(&mut header)?;
        part(&header);
    }
    for tensor in gguf.tensors() {
        part(tensor.name().as_bytes());
        pieces(tensor.data()).for_each(&mut part);
    }
    Ok(hash.finalize().into())
}

/// Pieces spread over `data`, the first and the last bytes among them.
fn pieces(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = data.len() <= PIECES * PIECE;
    let count = if whole { 1 } else { PIECES };
    (0..count).map(move |i| {
        if whole {
            return data;
        }
        let start = (data.len() - PIECE) / (PIECES - 1) * i;
        let start = if i == PIECES - 1 { data.len() - PIECE } else { start };
        &data[start..start + PIECE]
    })
}

fn file_hash(path: &Path) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_spread_from_the_first_byte_to_the_last() {
        let data: Vec<u8> = (0..1_000_003u32).map(|i| (i % 251) as u8).collect();
        let found: Vec<&[u8]> = pieces(&data).collect();
        assert_eq!(found.len(), PIECES);
        assert_eq!((found[0], found[15]), (&data[..PIECE], &data[data.len() - PIECE..]));
        let starts: Vec<usize> =
            found.iter().map(|piece| piece.as_ptr().addr() - data.as_ptr().addr()).collect();
        assert!(starts.windows(2).all(|pair| (60_000..70_000).contains(&(pair[1] - pair[0]))), "{starts:?}");
        assert_eq!(pieces(&data[..PIECES * PIECE]).collect::<Vec<_>>(), [&data[..PIECES * PIECE]]);
        assert_eq!(pieces(&data[..PIECES * PIECE + 1]).count(), PIECES);
        assert_eq!(pieces(&[]).collect::<Vec<_>>(), [&[] as &[u8]]);
    }
}
