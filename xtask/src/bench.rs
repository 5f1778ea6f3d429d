//! `cargo xtask bench`: records of `minfer bench`, kept per machine, and their comparison.
//!
//! A record is the JSON of `minfer bench -o json`, unchanged: commit, processor, settings and every sample are in
//! each row. Two records are only worth comparing if they are of one machine and one sitting.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Percent by which a test may become slower before `compare` fails, unless `--bar` says otherwise.
const DEFAULT_BAR: f64 = 3.0;

/// Runs `minfer bench -o json` and writes `bench/records/<machine>/<time>-<commit>.json`.
pub(crate) fn record(root: &Path, args: &[&str]) -> Result<()> {
    let (options, bench_args) = match args.iter().position(|a| *a == "--") {
        Some(i) => (&args[..i], &args[i + 1..]),
        None => (args, &[][..]),
    };
    let machine = match options {
        [] => None,
        ["--machine", name] => Some(slug(name)),
        other => bail!("bench record: unknown arguments '{}'", other.join(" ")),
    };
    let out = Command::new("cargo")
        .args(["run", "--quiet", "--release", "--package", "minfer", "--", "bench", "-o", "json"])
        .args(bench_args)
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !out.status.success() {
        bail!("minfer bench failed ({})", out.status);
    }
    let rows = rows(&out.stdout).context("output of minfer bench")?;
    let first = &rows[0];
    let field = |name: &str| first[name].as_str().with_context(|| format!("no field {name}"));
    let machine = match machine {
        Some(name) => name,
        None => format!("{}-{}t", slug(field("cpu_info")?), first["n_threads"]),
    };
    let folder = root.join("bench/records").join(&machine);
    std::fs::create_dir_all(&folder)?;
    let time = field("test_time")?.replace(':', "");
    let path = folder.join(format!("{}-{}.json", slug(&time), field("build_commit")?));
    std::fs::write(&path, &out.stdout)?;
    println!("{}", path.strip_prefix(root).unwrap_or(&path).display());
    Ok(())
}

/// Prints both speeds and their ratio per test; fails if one became slower than the bar.
pub(crate) fn compare(args: &[&str]) -> Result<()> {
    let (old, new, bar) = match args {
        [old, new] => (old, new, DEFAULT_BAR),
        [old, new, "--bar", bar] => (old, new, bar.parse().with_context(|| format!("--bar {bar}"))?),
        other => {
            bail!("bench compare: expected OLD.json NEW.json [--bar PERCENT], found '{}'", other.join(" "))
        }
    };
    let read = |path: &str| rows(&std::fs::read(path)?).with_context(|| path.to_owned());
    let (old, new) = (read(old)?, read(new)?);
    let mut slower = Vec::new();
    let mut matched = 0;
    println!("| test | old t/s | new t/s | new/old |\n| --- | ---: | ---: | ---: |");
    for row in &new {
        let Some(before) = old.iter().find(|o| key(o) == key(row)) else { continue };
        matched += 1;
        let (a, b) = (speed(before)?, speed(row)?);
        let ratio = b / a;
        println!("| {} | {a:.2} | {b:.2} | {ratio:.3} |", label(row));
        if ratio < 1.0 - bar / 100.0 {
            slower.push(label(row));
        }
    }
    if matched == 0 {
        bail!("the two records have no test in common");
    }
    if !slower.is_empty() {
        bail!("slower by more than {bar} %: {}", slower.join(", "));
    }
    Ok(())
}

/// The rows of a record, at least one.
fn rows(json: &[u8]) -> Result<Vec<Value>> {
    match serde_json::from_slice(json)? {
        Value::Array(rows) if !rows.is_empty() => Ok(rows),
        _ => bail!("expected an array of rows"),
    }
}

/// What makes two rows the same test.
fn key(row: &Value) -> (Vec<&Value>, bool) {
    let fields = [
        "cpu_info",
        "model_type",
        "model_size",
        "n_batch",
        "n_ubatch",
        "n_threads",
        "type_k",
        "type_v",
        "n_prompt",
        "n_gen",
        "n_depth",
    ];
    // Older records have no greedy tests.
    (fields.iter().map(|f| &row[*f]).collect(), is_greedy(row))
}

fn is_greedy(row: &Value) -> bool {
    row["greedy"].as_bool().unwrap_or(false)
}

fn speed(row: &Value) -> Result<f64> {
    row["avg_ts"].as_f64().filter(|v| *v > 0.0).context("a row without avg_ts")
}

/// The test's name as llama-bench writes it, with the model.
fn label(row: &Value) -> String {
    let n = |f: &str| row[f].as_u64().unwrap_or(0);
    let test = match (n("n_prompt"), n("n_gen")) {
        (p, 0) => format!("pp{p}"),
        (0, g) => format!("tg{g}"),
        (p, g) => format!("pp{p}+tg{g}"),
    };
    let depth = match n("n_depth") {
        0 => String::new(),
        d => format!(" @ d{d}"),
    };
    let greedy = if is_greedy(row) && n("n_gen") > 0 { " greedy" } else { "" };
    format!("{} {test}{greedy}{depth}", row["model_type"].as_str().unwrap_or("?"))
}

/// A text as a file name: lower case, runs of anything else as one dash.
fn slug(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
    }
    out.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, speed: f64) -> String {
        let path = dir.join(name);
        let row = serde_json::json!([{"model_type": "m", "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": speed}]);
        std::fs::write(&path, row.to_string()).expect("a temporary file");
        path.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn a_slower_test_fails_the_comparison() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (old, same, slow) =
            (write(dir.path(), "a", 100.0), write(dir.path(), "b", 98.0), write(dir.path(), "c", 90.0));
        assert!(compare(&[&old, &same]).is_ok());
        assert!(compare(&[&old, &same, "--bar", "1"]).is_err());
        let e = compare(&[&old, &slow]).expect_err("10 % slower");
        assert!(e.to_string().contains("m pp512"), "{e}");
        std::fs::write(dir.path().join("e"), "[]").expect("a temporary file");
        assert!(compare(&[&old, dir.path().join("e").to_str().expect("UTF-8")]).is_err());
    }

    #[test]
    fn slugs_are_file_names() {
        assert_eq!(slug("AMD EPYC 9B14 (2x)"), "amd-epyc-9b14-2x");
    }
}
