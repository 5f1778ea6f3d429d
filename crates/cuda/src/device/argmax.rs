//! The largest logit of each output, found on the GPU: `csrc/argmax.cu`.

use super::CudaDevice;
use crate::args::{Address, ArgmaxArgs, at};
use crate::driver::{Buffer, Gpu, Pinned, Shape};
use minfer_ops::{DeviceError, expect_reserved};

/// Threads of a block, and logits that each has on their way at once.
const THREADS: usize = 256;
const BATCH: usize = 8;

/// Memory of the kernel, for each output.
pub(super) struct ArgmaxState {
    /// Zero between steps, as `arrived`.
    rank: Buffer<u64>,
    arrived: Buffer<u32>,
    /// Written by the GPU.
    pub(super) result: Pinned<u64>,
}

impl ArgmaxState {
    pub(super) fn new(gpu: &Gpu, outputs: usize) -> Result<ArgmaxState, DeviceError> {
        let what = "activations";
        Ok(ArgmaxState {
            rank: gpu.alloc(outputs, what)?,
            arrived: gpu.alloc(outputs, what)?,
            result: gpu.pinned(outputs)?,
        })
    }
}

/// The token of a rank (`rank_of` of the kernel), unless it is that of NaN or of −∞.
fn token(rank: u64) -> Option<u32> {
    /// −∞ in the floats' order; NaN of either sign has all ones.
    const LEAST: u32 = !f32::NEG_INFINITY.to_bits();
    let order = (rank >> 32) as u32;
    (order > LEAST && order < u32::MAX).then_some(!(rank as u32))
}

impl CudaDevice {
    /// Enqueues the search in the logits of the step's outputs. Where the ranks go: memory of the GPU, or `None` for the
    /// host.
    pub(super) fn run_argmax(&self, result: Option<Address>) -> Result<(), DeviceError> {
        let state = self.state()?;
        let vocab = state.reserve.vocab;
        let args = ArgmaxArgs {
            logits: at(&state.logits, 0),
            rank: at(&state.argmax.rank, 0),
            arrived: at(&state.argmax.arrived, 0),
            result: result.unwrap_or_else(|| state.argmax.result.address()),
            vocab: vocab as i32,
            unused: 0,
        };
        let blocks = vocab.div_ceil(THREADS * BATCH);
        self.enqueue(self.common.argmax, Shape::new([blocks, state.outputs, 1], THREADS), &args)
    }

    /// Waits, then tells the tokens that [`Self::run_argmax`] or [`Self::run_sample`] left for the host.
    pub(super) fn read_argmax(&self, out: &mut [Option<u32>]) -> Result<(), DeviceError> {
        self.gpu.synchronize()?;
        let state = self.state()?;
        expect_reserved("best tokens asked", state.outputs, out.len())?;
        for (token_of, rank) in out.iter_mut().zip(state.argmax.result.as_slice()) {
            *token_of = token(*rank);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Numbers, device};
    use minfer_ops::{Batch, BlockTable, Device as _, Heads, KvGroup, KvTypes, Reserve, Span};

    /// The sampler's rule: the lowest id of the largest logits; nothing if one is NaN, or if none is above −∞.
    fn rule(logits: &[f32]) -> Option<u32> {
        if logits.iter().any(|l| l.is_nan()) {
            return None;
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|l| *l == largest && largest > f32::NEG_INFINITY);
        first.map(|id| id as u32)
    }

    /// Rows of logits with everything that the rule speaks of, each at the beginning, inside and at the end.
    fn rows(vocab: usize) -> Vec<Vec<f32>> {
        let plain = Numbers(vocab as u64).heavy(vocab, 10.0);
        let places = [0, vocab / 3, vocab / 2, vocab - 1];
        let mut rows = vec![
            plain.clone(),
            plain.iter().map(|l| -l.abs() - 1.0).collect(),
            plain.iter().map(|l| l * 1e-42).collect(),
            vec![f32::NEG_INFINITY; vocab],
            vec![f32::MIN; vocab],
            vec![0.0; vocab],
            vec![-0.0; vocab],
        ];
        let nan = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xff80_0001)];
        for value in [100.0, f32::INFINITY, 1e-45].into_iter().chain(nan) {
            for place in places {
                // Alone above all others, and one of two.
                let mut row = vec![f32::NEG_INFINITY; vocab];
                row[place] = value;
                rows.push(row.clone());
                let mut row = plain.clone();
                row[place] = value;
                row[vocab - 1] = value;
                rows.push(row);
            }
        }
        for place in places {
            let mut row: Vec<f32> = plain.iter().map(|l| -l.abs() - 1.0).collect();
            row[vocab - 1] = 0.0;
            row[place] = -0.0;
            rows.push(row);
        }
        rows
    }

    #[test]
    fn the_largest_logit_is_the_samplers() {
        let Some(mut device) = device() else { return };
        let heads = Heads { q: 1, kv: 1, dim: 16 };
        for vocab in [1, 2, 31, 256, 2049, 152_064] {
            let rows = rows(vocab);
            let outputs = 7;
            device
                .reserve(&Reserve {
                    max_tokens: outputs,
                    max_outputs: outputs,
                    d_model: 64,
                    max_q: 16,
                    max_kv: 16,
                    max_ff: 64,
                    vocab,
                    kv_groups: vec![KvGroup { layers: 1, heads, blocks: 1 }],
                    kv_types: KvTypes::default(),
                })
                .expect("memory");
            let tables = [BlockTable { first: 0, blocks: &[0] }];
            // Ragged at the end: fewer outputs than were reserved. Each is asked twice: the second is a graph.
            for (step, rows) in rows.chunks(outputs).enumerate() {
                let spans = [Span { start: 0, len: rows.len(), position: 0, tables: &tables }];
                let tokens = vec![0; rows.len()];
                let wanted: Vec<u32> = (0..rows.len() as u32).collect();
                for _ in 0..2 {
                    device
                        .begin(&Batch { tokens: &tokens, spans: &spans, outputs: &wanted })
                        .expect("a step");
                    let logits = &device.state().expect("memory").logits;
                    device.gpu.upload(&rows.concat(), logits).expect("a copy");
                    device.run_argmax(None).expect("a launch");
                    device.flush().expect("launches");
                    let mut found = vec![Some(u32::MAX); rows.len()];
                    device.read_argmax(&mut found).expect("results");
                    let expected: Vec<_> = rows.iter().map(|row| rule(row)).collect();
                    assert_eq!(found, expected, "{vocab} tokens, step {step}");
                }
            }
            assert!(device.replayed_steps() > 0, "no graphs");
        }
    }
}
