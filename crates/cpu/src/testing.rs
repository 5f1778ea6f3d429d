//! What the tests of this crate share: random numbers, measures of error, loading of matrices.

use crate::arch::{self, Kernels};
use crate::detect::Isa;
use crate::matrix::Matrix;
use crate::pool::Pool;
use minfer_gguf::{GgmlType, SharedBytes, quant};
use minfer_ops::{DeviceError, Weight};

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in (0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal (Box–Muller).
    pub(crate) fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    /// `n` standard normals times `scale`.
    pub(crate) fn normals(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| scale * self.normal()).collect()
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// ‖found − expected‖ / ‖expected‖; 0 if both are zero.
pub(crate) fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let off: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    let all: f64 = expected.iter().map(|e| e * e).sum();
    if off == 0.0 { 0.0 } else { (off / all).sqrt() }
}

/// Index of the first value whose bits differ.
pub(crate) fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}

/// The levels of this machine and their kernels, the portable one first.
pub(crate) fn levels() -> impl Iterator<Item = &'static Kernels> {
    Isa::ALL.into_iter().filter(|isa| isa.available()).map(arch::kernels)
}

/// Types of weights: all but the integers.
pub(crate) fn weight_types() -> impl Iterator<Item = GgmlType> {
    use GgmlType::{I8, I16, I32, I64};
    GgmlType::ALL.iter().copied().filter(|ty| !matches!(ty, I8 | I16 | I32 | I64))
}

/// The values of some blocks, by the reference.
pub(crate) fn values(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_len()];
    quant::dequantize(ty, bytes, &mut out).expect("whole blocks");
    out
}

/// Random blocks for `rows` × `cols` values.
pub(crate) fn random_weights(ty: GgmlType, seed: u64, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = vec![0; rows * ty.bytes_of(cols).expect("whole blocks")];
    quant::random_blocks(ty, seed, 0.05, 0, &mut bytes).expect("whole blocks");
    bytes
}

pub(crate) fn weight(ty: GgmlType, rows: usize, cols: usize, bytes: Vec<u8>) -> Weight {
    Weight { name: "test.weight".into(), ty, rows, cols, data: SharedBytes::from(bytes) }
}

pub(crate) fn load(weight: Weight, kernels: &Kernels, pack: bool) -> Result<Matrix, DeviceError> {
    Matrix::load(weight, kernels, pack, &mut Pool::new(2).expect("threads"))
}
