//! What the GPU itself can do.

use super::CudaDevice;
use crate::args::{ProbeArgs, at};
use crate::driver::Shape;
use crate::kernels::{QT16_TYPES, has_codes, name_of, unit_type};
use crate::matrix::has_wgmma;
use crate::numerics::Numerics;
use minfer_ops::{DeviceError, GgmlType};
use std::time::Instant;

/// Bytes read at a time: far more than any cache.
const BYTES: u64 = 4 << 30;

/// Blocks of 256 threads for each multiprocessor: the best of those tried on an H200.
const BLOCKS: usize = 64;

impl CudaDevice {
    /// Bytes per second that kernels read from the GPU's memory: the best of several passes over 4 GiB, or over half of
    /// what is free.
    ///
    /// # Errors
    /// No memory for it, or the driver fails.
    pub fn read_bandwidth(&self) -> Result<f64, DeviceError> {
        self.gpu.make_current()?;
        let bytes = BYTES.min(self.gpu.free_memory()? / 2);
        let data = self.gpu.alloc::<u8>(bytes as usize, "the bandwidth's measurement")?;
        let sink = self.gpu.alloc::<u32>(1, "the bandwidth's measurement")?;
        let args = ProbeArgs { data: at(&data, 0), sink: at(&sink, 0), count: bytes / 16 };
        let kernel = self.kernels.get("probe", "probe_read")?;
        let blocks = BLOCKS * self.gpu.info.multiprocessors;
        let mut best = f64::INFINITY;
        self.gpu.synchronize()?;
        for _ in 0..8 {
            let start = Instant::now();
            // Four at a time: the time of a launch is no part of it.
            for _ in 0..4 {
                self.enqueue(kernel, Shape::new([blocks, 1, 1], 256), &args)?;
            }
            self.gpu.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64() / 4.0);
        }
        Ok(bytes as f64 / best)
    }

    /// Names of the product kernels that matrices of these types run on: tokens by tokens, and many at once; of the latter
    /// those of the int8 profile that loaded matrices take.
    pub fn kernels_of_types(&self, types: &[GgmlType]) -> Vec<String> {
        let wgmma = has_wgmma(&self.gpu.info);
        let of = |ty: &GgmlType| {
            let tuned = QT16_TYPES.iter().any(|(t, _)| t == ty);
            let int8 = self.numerics == Numerics::Int8 && has_codes(*ty);
            let layouts: &[&str] = match tuned {
                true if int8 => &["int8"],
                true if wgmma => &["qt16", "wgmma"],
                true => &["qt16"],
                false => &["file"],
            };
            let Some(name) = name_of(if tuned { unit_type(*ty) } else { *ty }) else { return Vec::new() };
            let prompts =
                self.prompt_kernels.iter().filter(|(t, _)| t == ty).map(|(_, prefill)| match prefill {
                    prefill if prefill.is_experiment() => {
                        format!("mmq_{}_{name}", prefill.name().replace('-', "_"))
                    }
                    _ => format!("matmul_byte_tiles_{name}"),
                });
            layouts.iter().map(|layout| format!("matmul_{layout}_{name}")).chain(prompts).collect::<Vec<_>>()
        };
        types.iter().flat_map(of).collect()
    }
}
