//! `minfer synth`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use minfer::facts::human_bytes;
use minfer::synth::{Error, Mix, Shape};

use super::Outcome;
use super::args::usage;
use super::interrupt::{interrupted, on_interrupt};
use super::terminal::{bar, note, read_file};

/// Write a model of a known shape with random weights
///
/// For benchmarks on machines without downloads: every weight is a valid random block, the vocabulary works, and what
/// the model says is noise. The file is the same for the same seed.
#[derive(clap::Args)]
#[command(after_help = format!("Example:\n  minfer synth llama-3.2-1b big.gguf --type q4_k_m\n\nShapes: {}\nTypes: {}",
    Shape::names().collect::<Vec<_>>().join(", "), Mix::names().collect::<Vec<_>>().join(", ").to_lowercase()))]
pub(super) struct Args {
    /// Name of a shape, or a JSON file with one
    shape: String,
    /// The file to write; one that is there is replaced
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// Types of the weights
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m")]
    mix: Mix,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<Outcome> {
        let shape = match Shape::known(&self.shape) {
            Some(shape) => shape,
            None if self.shape.ends_with(".json") => {
                let path = PathBuf::from(&self.shape);
                serde_json::from_slice(&read_file(&path)?).with_context(|| self.shape.clone())?
            }
            None => {
                let names = Shape::names().collect::<Vec<_>>().join(", ");
                return Err(usage(format!(
                    "unknown shape '{}': expected a JSON file or {names}",
                    self.shape
                )));
            }
        };
        // The part that is written goes with it.
        on_interrupt(|| {})?;
        let start = Instant::now();
        let bar = bar(0, "writing");
        let mut bytes = 0;
        let written = minfer::synth::write(&self.out, &shape, self.mix, self.seed, &mut |done, total| {
            bytes = total;
            bar.set_length(total);
            bar.set_position(done);
            if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match written {
            Err(Error::Stopped) => return Ok(Outcome::Interrupted),
            written => written?,
        }
        bar.finish_and_clear();
        let seconds = start.elapsed().as_secs_f64();
        note(&format!(
            "{}: {} in {seconds:.1} s ({:.2} GB/s)",
            self.out.display(),
            human_bytes(bytes),
            bytes as f64 / seconds / 1e9
        ));
        Ok(Outcome::Done)
    }
}
