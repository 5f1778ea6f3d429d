//! What the tests on a GPU share.
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use crate::{CudaDevice, CudaOptions, Numerics};

/// The first GPU. Without one the test that asks says so and ends: there is nothing to test.
pub(crate) fn device() -> Option<CudaDevice> {
    match CudaDevice::new(&CudaOptions { numerics: Some(Numerics::F16), ..CudaOptions::default() }) {
        Ok(device) => Some(device),
        Err(why) => {
            eprintln!("SKIPPED, nothing was tested: {why}");
            None
        }
    }
}

/// Numbers that look random, the same in every run: heavy tails, and no bias.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 24) as f32 * 2.0 - 1.0
    }

    /// Products of three uniform numbers, times `size`.
    pub(crate) fn heavy(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| size * 4.0 * self.next() * self.next() * self.next()).collect()
    }
}

/// ‖found − expected‖ / ‖expected‖; NaN is infinite.
pub(crate) fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let difference: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e.powi(2)).sum();
    let error = (difference / norm).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}
