//! Compiles the kernels: the only place that calls nvcc, and only with the feature `cuda`.
//!
//! Each `csrc/*.cu` becomes a fat binary of machine code for the architectures of `MINFER_CUDA_ARCHS` (a list like
//! `80,90a,ptx`; `ptx` is code for parts that do not exist yet), which the library embeds. What ptxas says of registers
//! and spills is kept beside them: the ledger is compared with it, on machines without a GPU too.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Architectures built when nobody asks for others, and intermediate code for later ones.
const ARCHS: &str = "80,86,89,90a,120,121,ptx";

/// The architecture of the intermediate code: what runs on every later part.
const PTX: &str = "80";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            println!("cargo::error={}", what.replace('\n', " | "));
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    for name in ["MINFER_CUDA_ARCHS", "CUDA_HOME", "PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=csrc");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let archs = std::env::var("MINFER_CUDA_ARCHS").unwrap_or_else(|_| ARCHS.to_owned());
    let archs = archs.split(',').map(str::trim).filter(|a| !a.is_empty()).collect::<Vec<_>>();
    let nvcc = find_nvcc()?;
    let sources = sources()?;
    // Two at a time: the largest takes most of the time anyway.
    let results = std::thread::scope(|scope| {
        let (nvcc, out, archs, sources) = (&nvcc, &out, &archs, &sources);
        let half = |which: usize| {
            let mine = sources.iter().skip(which).step_by(2);
            mine.map(|source| compile(nvcc, source, out, archs)).collect::<Result<Vec<_>, _>>()
        };
        let other = scope.spawn(move || half(1));
        let mine = half(0);
        let other = other.join().unwrap_or_else(|_| Err("a thread of the build script failed".to_owned()));
        mine.and_then(|mut mine| {
            other.map(|other| {
                mine.extend(other);
                mine
            })
        })
    })?;
    let mut table = String::from("&[\n");
    let mut names = sources.iter().filter_map(|s| s.file_stem()?.to_str()).collect::<Vec<_>>();
    names.sort_unstable();
    for name in names {
        table +=
            &format!("    ({name:?}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\"))),\n");
    }
    table += "]\n";
    let write =
        |file: &str, text: &str| std::fs::write(out.join(file), text).map_err(|e| format!("{file}: {e}"));
    write("modules.rs", &table)?;
    write("ptxas.txt", &results.concat())?;
    println!("cargo::rustc-env=MINFER_CUDA_ARCHS={}", archs.join(","));
    Ok(())
}

/// Every translation unit.
fn sources() -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir("csrc").map_err(|e| format!("csrc: {e}"))?;
    let mut sources: Vec<PathBuf> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "cu"))
        .collect();
    // The largest first.
    sources.sort_by_key(|p| !p.to_string_lossy().contains("matmul"));
    Ok(sources)
}

/// Compiles one unit for all architectures; returns what ptxas said.
fn compile(nvcc: &Path, source: &Path, out: &Path, archs: &[&str]) -> Result<String, String> {
    let name = source.file_stem().and_then(|s| s.to_str()).ok_or("a source without a name")?;
    let mut command = Command::new(nvcc);
    command.args([
        "-fatbin",
        "-O3",
        "-std=c++17",
        "-fmad=false",
        "-Xptxas",
        "-v",
        "-Xfatbin",
        "-compress-all",
    ]);
    // Two compilations for a source at a time, where there are several architectures.
    command.args(["--threads", "2"]);
    for arch in archs {
        let pair = match *arch {
            "ptx" => format!("arch=compute_{PTX},code=compute_{PTX}"),
            arch => format!("arch=compute_{arch},code=sm_{arch}"),
        };
        command.args(["-gencode", &pair]);
    }
    command.arg(source).arg("-o").arg(out.join(format!("{name}.fatbin")));
    let result = command.output().map_err(|e| format!("{}: {e}", nvcc.display()))?;
    let said = String::from_utf8_lossy(&result.stderr).into_owned();
    if !result.status.success() {
        return Err(format!("{} failed on {}\n{said}", nvcc.display(), source.display()));
    }
    Ok(said)
}

/// `$CUDA_HOME/bin`, then `PATH`, then what `cargo xtask cuda-toolkit` installed.
fn find_nvcc() -> Result<PathBuf, String> {
    let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda-toolkit/nvidia/cu13/bin");
    let mut folders = home.into_iter().chain(path.unwrap_or_default()).chain([own]);
    folders.find_map(|folder| Some(folder.join("nvcc")).filter(|nvcc| nvcc.is_file())).ok_or_else(|| {
        "feature \"cuda\": no nvcc in CUDA_HOME, in PATH, or under target/cuda-toolkit; `cargo xtask cuda-toolkit` \
         installs one there"
            .to_owned()
    })
}
