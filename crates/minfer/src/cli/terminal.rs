//! What a person or a pipe sees: data on stdout, everything else on stderr, bars only on a terminal.
#![allow(clippy::print_stderr, reason = "the one place that writes to stderr")]

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use minfer::source::{Progress, Source};

/// Whether stderr goes to a person.
pub(super) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether stdin comes from a person and stdout goes to one.
pub(super) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Text from a file as a terminal may have it: control characters are spelled out, `keep` excepted.
pub(super) fn printable(text: &str, keep: &[char]) -> String {
    let spelled = |c: char| c.is_control() && !keep.contains(&c);
    if !text.contains(spelled) {
        return text.to_owned();
    }
    text.chars().map(|c| if spelled(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Writes a line to stderr.
pub(super) fn note(text: &str) {
    // Nobody can be told that stderr is closed.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes to stdout, all of it at once.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref())?;
    Ok(out.flush()?)
}

/// Whether an error is that of a reader that has gone, as `head` does.
pub(super) fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|c| c.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// All bytes of stdin. `None` if stdin is a terminal, so that nobody sits before a silent program.
pub(super) fn read_stdin() -> Result<Option<Vec<u8>>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).context("cannot read stdin")?;
    Ok(Some(bytes))
}

/// All bytes of a file.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Text from `whence`, as a person names it: what is not UTF-8 is refused, not replaced.
pub(super) fn utf8(bytes: Vec<u8>, whence: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow!("{whence} is not UTF-8: byte {at} is {:#04x}", e.as_bytes().get(at).copied().unwrap_or(0))
    })
}

/// A bar on stderr; invisible if stderr is not a terminal.
pub(super) fn bar(total: u64, what: &str) -> ProgressBar {
    let target =
        if stderr_is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}

/// Runs `load` with a bar that shows the bytes done, and all, that it tells.
pub(super) fn with_load_bar<T>(load: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let bar = bar(0, "loading");
    let loaded = load(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    loaded
}

/// Progress of a fetch.
pub(super) struct FetchBar {
    name: String,
    bar: Option<ProgressBar>,
}

impl FetchBar {
    pub(super) fn new(source: &Source) -> FetchBar {
        FetchBar { name: source.to_string(), bar: None }
    }

    /// Shows what a fetch says; nothing is shown for a model that is in the cache.
    pub(super) fn update(&mut self, progress: Progress) {
        let (what, done, total) = match progress {
            Progress::Waiting => {
                note(&format!("waiting for another minfer that fetches {}", self.name));
                return;
            }
            Progress::Downloading { done, total } => ("fetching", done, total),
            Progress::Checking { done, total } => ("checking", done, total),
            Progress::Unpacking { done, total } => ("unpacking", done, total),
        };
        if self.bar.is_none() && !stderr_is_terminal() {
            note(&format!("fetching {}", self.name));
        }
        let bar = self.bar.get_or_insert_with(|| bar(total, ""));
        bar.set_message(format!("{what} {}", self.name));
        bar.set_length(total.max(done));
        bar.set_position(done);
    }
}

impl Drop for FetchBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
