//! `minfer serve`.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use minfer::server::{Config, Single};
use minfer::{Llm, Served};

use super::Outcome;
use super::args::{DiskArgs, LoadArgs, ModelArgs, VocabularyArgs, open, parse_positive, usage};
use super::terminal::with_load_bar;

/// Serve a model to programs, over HTTP
///
/// For clients of OpenAI, Anthropic and Ollama: /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings,
/// /v1/models; /v1/messages; /api/chat, /api/generate, /api/embed; besides /tokenize, /detokenize, /apply-template, /props and /health.
/// Requests are computed together; a client that goes has its own cancelled. SIGINT and SIGTERM let requests end that
/// are under way. When it listens, the address is printed to stdout.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer serve -m model.gguf --parallel 4\n  curl http://127.0.0.1:8080/v1/chat/completions -d \
    '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'"
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    vocabulary: VocabularyArgs,
    /// Address to listen on; 0.0.0.0 is every one of this machine
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Name that the model has for clients; that of its file if left out
    #[arg(long, value_name = "NAME")]
    alias: Option<String>,
    /// Conversations of full length that the cache holds; more that are shorter run together too
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_positive)]
    parallel: usize,
    /// A file with API keys, one a line, one of which every request needs
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Seconds that requests under way may go on after SIGINT or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
    #[command(flatten)]
    disk: DiskArgs,
    #[command(flatten)]
    load: LoadArgs,
}

impl Args {
    /// Serves until it is told to end.
    pub(super) fn run(self) -> Result<Outcome> {
        let config = Config {
            address: SocketAddr::new(self.host, self.port),
            api_keys: self.keys()?,
            drain: Duration::from_secs(self.drain),
            ..Config::default()
        };
        let mut options = self.load.options(&self.vocabulary)?;
        options.load.sequences = self.parallel;
        options.disk = self.disk.config();
        let gguf = open(&self.model.model)?;
        let llm = with_load_bar(|progress| Llm::from_gguf(&gguf, &options, progress))
            .context("cannot load the model")?;
        let name = self.alias.unwrap_or_else(|| {
            let file =
                gguf.paths().next().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
            file.map_or_else(|| "model".to_owned(), |stem| stem.into_owned())
        });
        let host = Arc::new(Single(Arc::new(Served::new(name, llm))));
        minfer::server::serve(host, &config, |address| {
            // Who waits for the line has it at once; who closed stdout does without.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "listening on http://{address}").and_then(|()| out.flush());
        })?;
        Ok(Outcome::Done)
    }

    fn keys(&self) -> Result<Vec<String>> {
        let Some(file) = &self.api_key_file else { return Ok(Vec::new()) };
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let keys: Vec<String> =
            text.lines().map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned).collect();
        match keys.is_empty() {
            true => Err(usage(format!("{} has no keys", file.display()))),
            false => Ok(keys),
        }
    }
}
