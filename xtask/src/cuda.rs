//! `cargo xtask cuda-toolkit`, `cuda-ledger`: what the kernels of `crates/cuda` need besides Rust.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The compiler and the disassemblers, as the Python package index has them. nvcc stays at 13.0, as driver 580 takes no
/// newer intermediate code.
const PACKAGES: &[&str] = &[
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-cuobjdump==13.2.51",
    "nvidia-cuda-nvdisasm==13.2.51",
];

/// Where `crates/cuda/build.rs` looks for them, from the repository's root.
const FOLDER: &str = "target/cuda-toolkit";

/// Installs the packages below [`FOLDER`], from the index that the user's pip is configured for.
pub(crate) fn toolkit(root: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    let nvcc = folder.join("nvidia/cu13/bin/nvcc");
    if nvcc.is_file() {
        println!("{} is there; remove {} to install it anew", nvcc.display(), folder.display());
        return Ok(());
    }
    // Unpacked beside its place: a folder that is there is whole.
    let partial = folder.with_extension("partial");
    std::fs::create_dir_all(&partial).with_context(|| partial.display().to_string())?;
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--no-compile", "--upgrade"])
        .args(["--disable-pip-version-check", "--quiet", "--target"])
        .arg(&partial)
        .args(PACKAGES)
        .status()
        .context("cannot run python3 -m pip")?;
    if !status.success() {
        bail!("pip failed; CUDA_HOME or PATH may name another nvcc of CUDA 13.0");
    }
    std::fs::rename(&partial, &folder).with_context(|| folder.display().to_string())?;
    println!("{}", nvcc.display());
    Ok(())
}

/// Compiles the kernels and writes what ptxas says of them to `crates/cuda/ledger.toml`. Architectures that
/// `MINFER_CUDA_ARCHS` leaves out keep their lines.
pub(crate) fn ledger(root: &Path) -> Result<()> {
    let out = Command::new("cargo")
        .args([
            "run",
            "--release",
            "--quiet",
            "-p",
            "minfer-cuda",
            "--features",
            "lab",
            "--example",
            "ledger",
        ])
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !out.status.success() {
        bail!("the kernels do not build");
    }
    let path = root.join("crates/cuda/ledger.toml");
    std::fs::write(&path, &out.stdout).with_context(|| path.display().to_string())?;
    println!("{}: {} kernels", path.display(), out.stdout.iter().filter(|b| **b == b'\n').count());
    Ok(())
}
