//! `minfer-lab ab`.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use minfer_lab::pairs::{Pairs, Verdict};
use regex_automata::meta::Regex;

/// Measure two commands by interleaved pairs
///
/// Both are warmed up, then take turns; which goes first alternates. The figures hold for this sitting: only the ratio is
/// to be written down beside others.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer-lab ab --first 'old/minfer bench -m m.gguf -p 0 -o csv' \
    --second 'new/minfer bench -m m.gguf -p 0 -o csv' --metric '([0-9.]+) ± '")]
pub(crate) struct Args {
    /// A command for the shell
    #[arg(long, value_name = "COMMAND")]
    first: String,
    /// Another one
    #[arg(long, value_name = "COMMAND")]
    second: String,
    /// What is measured: the number in the first group of a regular expression, in what the command prints; the time that
    /// it takes, in seconds, if left out
    #[arg(long, value_name = "REGEX")]
    metric: Option<String>,
    /// Pairs
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Runs of either before that
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=100))]
    warm_up: u32,
}

/// One run: its figure.
fn measure(command: &str, metric: Option<&Regex>) -> Result<f64> {
    let start = Instant::now();
    let output = Command::new("sh").args(["-c", command]).output().context("cannot run sh")?;
    let seconds = start.elapsed().as_secs_f64();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed, {}: {}", output.status, said.lines().last().unwrap_or("it said nothing"));
    }
    let Some(metric) = metric else { return Ok(seconds) };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut groups = metric.create_captures();
    metric.captures(text.as_bytes(), &mut groups);
    let number = groups.get_group(1).and_then(|span| text.get(span.range()));
    let number = number.with_context(|| format!("{command:?} printed nothing that --metric matches"))?;
    let value: f64 = number.replace(',', "").parse().with_context(|| format!("{number:?} is no number"))?;
    if !value.is_finite() || value <= 0.0 {
        bail!("{command:?} printed {number}, which has no ratio");
    }
    Ok(value)
}

/// Clocks, power and temperature of GPUs, if there is a tool that says them.
fn state() -> Option<String> {
    let query = "--query-gpu=name,pstate,clocks.sm,clocks.mem,power.draw,temperature.gpu";
    let output = Command::new("nvidia-smi").args([query, "--format=csv,noheader"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

impl Args {
    pub(crate) fn run(self) -> Result<String> {
        let metric = self.metric.as_deref().map(Regex::new).transpose().context("--metric")?;
        if metric.as_ref().is_some_and(|metric| metric.captures_len() < 2) {
            bail!("--metric has no group: put parentheses around the number");
        }
        let commands = [self.first.as_str(), self.second.as_str()];
        for _ in 0..self.warm_up {
            for command in commands {
                measure(command, metric.as_ref())?;
            }
        }
        let before = state();
        let mut pairs = Vec::new();
        for pair in 0..self.pairs {
            let mut figures = [0.0; 2];
            for turn in 0..2 {
                let which = ((pair + turn) % 2) as usize;
                figures[which] = measure(commands[which], metric.as_ref())?;
            }
            eprintln!("{}/{}: {:.4}, {:.4}", pair + 1, self.pairs, figures[0], figures[1]);
            pairs.push((figures[0], figures[1]));
        }
        let verdict = Pairs { pairs }.verdict().context("no pairs")?;
        let mut text =
            format!("{}\n{}\n", Verdict::HEAD, verdict.row(&cell(&self.first), &cell(&self.second)));
        for (when, state) in [("before", before), ("after", state())] {
            if let Some(state) = state {
                text += &format!("\nGPU {when}: {}", state.replace('\n', "; "));
            }
        }
        text += if text.ends_with('\n') { "" } else { "\n" };
        Ok(text)
    }
}

/// A command in a table.
fn cell(command: &str) -> String {
    format!("`{}`", command.replace('|', "\\|").replace('\n', " "))
}
