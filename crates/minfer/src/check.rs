//! Looking for damaged weights: values that are not finite, which make every answer fail.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use minfer_gguf::{Gguf, Tensor, quant};

/// A tensor with values that are not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The tensor's name.
    pub tensor: String,
    /// Its type.
    pub ty: &'static str,
    /// How many of its values are NaN or infinite.
    pub values: u64,
    /// Where the first of them is, counted in the order of the file.
    pub first: u64,
    /// Values of a row.
    pub columns: u64,
}

/// Every tensor of a file with values that are not finite, in the file's order. Dequantizes all weights, on as many threads
/// as there are processors.
pub fn damaged(gguf: &Gguf) -> Vec<Damaged> {
    let tensors: Vec<Tensor<'_>> = gguf.tensors().collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tensors.len()) {
            scope.spawn(|| {
                while let Some(tensor) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(damaged) = damage(tensor) {
                        found.lock().unwrap_or_else(|e| e.into_inner()).push(damaged);
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(|e| e.into_inner());
    found.sort_by_key(|d| tensors.iter().position(|t| t.name() == d.tensor));
    found
}

fn damage(tensor: &Tensor<'_>) -> Option<Damaged> {
    let ty = tensor.ty();
    // Whole blocks of every type.
    let mut values = vec![0.0; 256 * ty.block_len()];
    let (mut count, mut first, mut at) = (0, None, 0);
    for bytes in tensor.data().chunks(256 * ty.block_bytes()) {
        let values = &mut values[..bytes.len() / ty.block_bytes() * ty.block_len()];
        // Sizes were checked when the file was opened.
        quant::dequantize(ty, bytes, values).ok()?;
        for (i, value) in values.iter().enumerate() {
            if !value.is_finite() {
                count += 1;
                first.get_or_insert(at + i as u64);
            }
        }
        at += values.len() as u64;
    }
    let columns = tensor.dims().first().copied().unwrap_or(1).max(1);
    first.map(|first| Damaged {
        tensor: tensor.name().to_owned(),
        ty: ty.name(),
        values: count,
        first,
        columns,
    })
}
