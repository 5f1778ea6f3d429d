//! Tokens drawn on the GPU: `csrc/sample.cu`.

use super::CudaDevice;
use crate::args::{DrawArgs, SampleArgs, at};
use crate::driver::{Buffer, Gpu, Pinned, Shape};
use minfer_ops::{DeviceError, Draw, expect_reserved};

/// Threads of a block, and the tokens that it looks at: `THREADS` and `TILE` of the kernels.
const THREADS: usize = 512;
const TILE: usize = 4 * THREADS;
/// Words of `struct Found`.
const FOUND: usize = 3;

/// Memory of the kernels, for each output.
pub(super) struct SampleState {
    best: Buffer<u64>,
    /// Zero between steps, as most of `found`.
    bins: Buffer<u64>,
    found: Buffer<u64>,
    list: Buffer<u64>,
    sums: Buffer<u64>,
    /// Read by the GPU.
    draws: Pinned<DrawArgs>,
}

/// Words of the GPU's buffers, in their order.
pub(super) fn sizes(outputs: usize, vocab: usize) -> [usize; 5] {
    [1, TILE, FOUND, TILE, vocab.div_ceil(TILE)].map(|each| outputs.saturating_mul(each))
}

impl SampleState {
    pub(super) fn new(gpu: &Gpu, outputs: usize, vocab: usize) -> Result<SampleState, DeviceError> {
        let [best, bins, found, list, sums] = sizes(outputs, vocab);
        let words = |len| gpu.alloc(len, "activations");
        Ok(SampleState {
            best: words(best)?,
            bins: words(bins)?,
            found: words(found)?,
            list: words(list)?,
            sums: words(sums)?,
            draws: gpu.pinned(outputs)?,
        })
    }
}

impl CudaDevice {
    /// Enqueues the draws from the logits of the step's outputs. No step before reads what is asked now: its tokens were
    /// waited for.
    pub(super) fn run_sample(&mut self, draws: &[Draw]) -> Result<(), DeviceError> {
        let Some(state) = &mut self.state else {
            return Err(DeviceError::Fault("draws before memory was reserved".into()));
        };
        expect_reserved("draws asked", state.outputs, draws.len())?;
        let vocab = state.reserve.vocab;
        for (to, draw) in state.sample.draws.as_mut_slice().iter_mut().zip(draws) {
            *to = DrawArgs {
                temperature: draw.temperature,
                // To keep all is to keep no fewer than there are.
                top_k: if draw.top_k as usize >= vocab { 0 } else { draw.top_k },
                top_p: draw.top_p,
                unused: 0,
                least: draw.least_weight,
                random: draw.random,
            };
        }
        let state = self.state()?;
        let sample = &state.sample;
        let args = SampleArgs {
            logits: at(&state.logits, 0),
            best: at(&sample.best, 0),
            draws: sample.draws.address(),
            bins: at(&sample.bins, 0),
            found: at(&sample.found, 0),
            list: at(&sample.list, 0),
            sums: at(&sample.sums, 0),
            result: state.argmax.result.address(),
            vocab: vocab as i32,
            unused: 0,
        };
        self.run_argmax(Some(args.best))?;
        let shape = Shape::new([vocab.div_ceil(TILE), state.outputs, 1], THREADS);
        self.enqueue(self.common.sample_bins, shape, &args)?;
        self.enqueue(self.common.sample_draw, shape, &args)
    }
}
