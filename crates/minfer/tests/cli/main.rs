//! The command line as scripts see it: exit codes, streams, and what is said about bad input. No network, no real
//! model: what needs a model uses a small synthetic one.

mod bad_files;
mod chat;
mod commands;
mod disk;
mod embed;
mod signals;
mod sources;
mod usage;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The binary, with an empty cache and a stdin that is empty and no terminal.
fn minfer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minfer"));
    command.env("MINFER_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty-cache"));
    command.env_remove("MINFER_LOG").stdin(Stdio::null());
    command
}

/// Runs `minfer` with `args`.
fn run(args: &[&str]) -> Output {
    minfer().args(args).output().expect("the binary runs")
}

/// Runs `minfer` with `args` and `input` on stdin.
fn run_with_input(args: &[&str], input: &[u8]) -> Output {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), input).expect("a temporary file");
    let stdin = std::fs::File::open(file.path()).expect("a temporary file");
    minfer().args(args).stdin(stdin).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("stderr is UTF-8")
}

/// stdout of a run that must succeed.
fn succeeds(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

/// stderr of a run that must fail: with `code`, nothing on stdout, no panic, no colour.
fn fails(args: &[&str], code: i32) -> String {
    check_failure(&run(args), code, &format!("{args:?}"))
}

fn check_failure(output: &Output, code: i32, what: &str) -> String {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{what}: {text}");
    assert!(output.stdout.is_empty(), "{what}: stdout {:?}", stdout(output));
    assert!(!text.is_empty() && !text.contains("panicked") && !text.contains('\u{1b}'), "{what}: {text}");
    text
}

/// A small synthetic model: two layers, a context of 256 tokens.
fn tiny_model() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| synthetic("tiny", 256))
}

/// The same model with room for 65,536 tokens.
fn endless_model() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| synthetic("endless", 1 << 16))
}

fn synthetic(name: &str, n_ctx: usize) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let shape = folder.join(format!("{name}-{}.json", std::process::id()));
    let json = serde_json::json!({"name": name, "family": "llama", "n_layer": 2, "d_model": 256, "d_ff": 512,
        "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_vocab": 1024, "n_ctx": n_ctx, "rope_base": 10000,
        "tied": true});
    std::fs::write(&shape, json.to_string()).expect("the shape is written");
    let path = folder.join(format!("{name}.gguf"));
    succeeds(&["synth", shape.to_str().expect("UTF-8"), path.to_str().expect("UTF-8"), "--seed", "7"]);
    std::fs::remove_file(shape).expect("the shape is there");
    path.to_str().expect("UTF-8").to_owned()
}
