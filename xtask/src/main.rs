//! Developer tasks, run as `cargo xtask TASK`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command that talks to a developer")]

mod bench;
mod cross;
mod cuda;
mod golden;
mod pack;
mod tidy;
mod wide;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask TASK

  tidy                               check the rules of ARCHITECTURE.md that a program can check
  cross-isa [CPU]                    test the kernels under qemu-user, on x86-64 and aarch64 processors of several ages
  golden                             list the golden data and how each is made again
  wide [BINARY]                      check that instructions beyond x86-64's base are in guarded functions only
  bench record [--machine NAME] [-- BENCH ARGUMENTS]
                                     run `minfer bench -o json` and keep the rows in bench/records/
  bench compare OLD.json NEW.json [--bar PERCENT]
                                     compare two records; fails if a test became slower than the bar (default 3)
  cuda-toolkit                       install nvcc below target/, for builds with --features cuda
  cuda-ledger                        compile the kernels and write their registers and spills to crates/cuda/ledger.toml
  gpu-pack [ARCH]                    make target/gpu-pack for a host with a driver and nothing else (default 90a)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match task(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn task(args: &[&str]) -> Result<()> {
    let root = root()?;
    match args {
        ["tidy"] => tidy::run(&root),
        ["cross-isa"] => cross::run(&root, None),
        ["cross-isa", processor] => cross::run(&root, Some(processor)),
        ["golden"] => golden::run(&root),
        ["wide"] => wide::run(&root, None),
        ["wide", binary] => wide::run(&root, Some(binary)),
        ["bench", "record", rest @ ..] => bench::record(&root, rest),
        ["bench", "compare", rest @ ..] => bench::compare(rest),
        ["cuda-toolkit"] => cuda::toolkit(&root),
        ["gpu-pack"] => pack::run(&root, "90a"),
        ["gpu-pack", arch] => pack::run(&root, arch),
        ["cuda-ledger"] => cuda::ledger(&root),
        ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            Ok(())
        }
        [] => bail!("no task given\n\n{USAGE}"),
        other => bail!("unknown task '{}'\n\n{USAGE}", other.join(" ")),
    }
}

/// The repository's root: the parent of this package.
fn root() -> Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).context("xtask has no parent directory")
}
