//! `cargo xtask gpu-pack`: one folder that a GPU host with a driver, and nothing else, can test and measure with.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Bytes that the folder may have: it travels to hosts often.
const MOST: u64 = 30_000_000;

/// What the host runs: tests, then the benchmark rows of models that it makes itself.
const RUN: &str = r#"#!/bin/sh
# usage: ./run.sh [tests|bench]...; everything if nothing is named. Needs an NVIDIA driver, no Rust and no CUDA.
cd "$(dirname "$0")" || exit 1
./minfer doctor | grep '^GPU' || exit 1
[ $# -gt 0 ] || set -- tests bench
for what; do
    case $what in
    tests)
        # Without a GPU that can be used the tests would skip; doctor says why.
        ./minfer doctor | grep -q 'will be used' || exit 1
        ./test-kernels --nocapture --test-threads 1 || exit 1
        ./test-families --nocapture --test-threads 1 || exit 1
        ./test-sampling --nocapture --test-threads 1 || exit 1 ;;
    bench)
        for shape in ${SHAPES:-llama-3.2-1b qwen2.5-7b}; do
            [ -f "$shape.gguf" ] || ./minfer synth "$shape" "$shape.gguf" || exit 1
            ./minfer bench --device cuda -m "$shape.gguf" -p "${PP:-512}" -n "${TG:-128}" -r "${REPEAT:-5}" || exit 1
        done ;;
    *)
        echo "unknown: $what" >&2
        exit 2 ;;
    esac
done
"#;

/// Builds for one architecture into `target/gpu-pack`.
pub(crate) fn run(root: &Path, arch: &str) -> Result<()> {
    let folder = root.join("target/gpu-pack");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let binary = build(root, arch, &["build", "-p", "minfer", "--features", "cuda"], "minfer")?;
    let kernels = ["test", "--no-run", "-p", "minfer-cuda", "--features", "cuda", "--lib"];
    let kernels = build(root, arch, &kernels, "minfer_cuda")?;
    let of_model = |test| {
        let args = ["test", "--no-run", "-p", "minfer-model", "--features", "cuda", "--test", test];
        build(root, arch, &args, test)
    };
    let all = [
        (binary, "minfer"),
        (kernels, "test-kernels"),
        (of_model("cuda")?, "test-families"),
        (of_model("cuda_sampling")?, "test-sampling"),
    ];
    for (from, name) in all {
        let to = folder.join(name);
        let status = Command::new("strip").arg("-o").arg(&to).arg(&from).status();
        if !status.context("cannot run strip")?.success() {
            bail!("strip failed on {}", from.display());
        }
    }
    let goldens = folder.join("tests/golden/families");
    std::fs::create_dir_all(&goldens)?;
    for entry in std::fs::read_dir(root.join("tests/golden/families"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "gguf" || e == "json")
            && let Some(name) = path.file_name()
        {
            std::fs::copy(&path, goldens.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    write_script(&folder.join("run.sh"), RUN)?;
    let size = size_of(&folder)?;
    if size > MOST {
        bail!("{}: {size} bytes, more than {MOST}", folder.display());
    }
    println!("{}: {:.1} MB for sm_{arch}", folder.display(), size as f64 / 1e6);
    Ok(())
}

/// Runs cargo and returns the executable of `target`.
fn build(root: &Path, arch: &str, args: &[&str], target: &str) -> Result<PathBuf> {
    let out = Command::new("cargo")
        .args([args[0], "--release", "--message-format=json"])
        .args(&args[1..])
        .env("MINFER_CUDA_ARCHS", arch)
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !out.status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    let messages = String::from_utf8_lossy(&out.stdout);
    let executables = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    executables
        .filter(|message| message["target"]["name"] == target)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no {target}"))
}

fn write_script(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Bytes of all files below a folder.
fn size_of(folder: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        size += if path.is_dir() { size_of(&path)? } else { std::fs::metadata(&path)?.len() };
    }
    Ok(size)
}
