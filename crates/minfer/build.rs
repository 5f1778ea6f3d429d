//! Puts the commit into the binary, for `--version` and bench records. A copy without a repository builds too.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Written by every commit and checkout; a path that does not exist would make every build run this again.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| std::path::Path::new(log).exists());
    if let Some(log) = log {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=9", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let number = git(&["rev-list", "--count", "HEAD"]).unwrap_or_else(|| "0".to_owned());
    println!("cargo::rustc-env=MINFER_BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=MINFER_BUILD_NUMBER={number}");
}

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
