//! `cargo xtask tidy`: the rules of the repository that a program can check.
//!
//! Every check is a function from text to complaints, with a test that shows it complaining.

mod manifests;
mod rust;
mod text;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Lines from which a file is reported (not refused): longer ones exist where they read better.
const LONG_FILE: usize = 600;

/// Bytes from which a file is refused: data that large is fetched or generated, not committed.
const LARGE_FILE: usize = 1_000_000;

/// Runs every check, prints all complaints, fails if there are any.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut complaints = manifests::check(root)?;
    let mut long = Vec::new();
    let files = files(root)?;
    for path in &files {
        let bytes = std::fs::read(root.join(path)).with_context(|| path.clone())?;
        if bytes.len() > LARGE_FILE {
            complaints.push(format!("{path}: {} bytes, more than {LARGE_FILE}", bytes.len()));
        }
        if path.ends_with("mod.rs") {
            complaints.push(format!("{path}: name it after its module: foo.rs beside foo/"));
        }
        let Ok(content) = String::from_utf8(bytes) else { continue };
        complaints.extend(text::forbidden(path, &content));
        if path.ends_with(".md") {
            complaints.extend(text::links(path, &content, &|target| root.join(target).exists()));
        }
        if path.ends_with(".rs") {
            complaints.extend(rust::check(path, &content));
            let lines = content.lines().count();
            if lines > LONG_FILE {
                long.push(format!("{path}: {lines} lines"));
            }
        }
    }
    complaints.extend(text::goldens_have_makers(&files));
    for line in long {
        println!("note: {line}");
    }
    for complaint in &complaints {
        println!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("tidy: {} complaints", complaints.len());
    }
    println!("tidy: {} files in order", files.len());
    Ok(())
}

/// Paths of all files that are in the repository or about to be, relative to its root.
fn files(root: &Path) -> Result<Vec<String>> {
    let out = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !out.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let list = String::from_utf8(out.stdout).context("a file name that is not UTF-8")?;
    // A file deleted from the tree but not yet from the index is listed and not there.
    Ok(list.split('\0').filter(|p| root.join(p).is_file()).map(str::to_owned).collect())
}
