//! Compiles the kernels: the only place that calls nvcc, and only with the feature `cuda`.
//!
//! Each `csrc/*.cu`, and with the feature `lab` each `csrc/lab/*.cu`, becomes a fat binary of machine code for the
//! architectures of `MINFER_CUDA_ARCHS` (a list like `80,90a,ptx`; `ptx` is code for parts that do not exist yet), which
//! the library embeds. What ptxas says of registers and spills is kept beside them: the ledger is compared with it, on
//! machines without a GPU too.
//!
//! What was compiled stays in `cuda-kernels` beside the profile's other outputs, under a hash of all that it was made of:
//! after a change only the units that include it are compiled, and builds with other features take what is there.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
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
    println!("cargo::rustc-env=MINFER_NVCC={}", nvcc.display());
    Ok(())
}

/// Every translation unit.
fn sources() -> Result<Vec<PathBuf>, String> {
    let mut sources = Vec::new();
    let lab = std::env::var_os("CARGO_FEATURE_LAB").map(|_| "csrc/lab");
    for folder in ["csrc"].into_iter().chain(lab) {
        let entries = std::fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
        sources.extend(
            entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.extension().is_some_and(|e| e == "cu")),
        );
    }
    // The largest first.
    sources.sort_by_key(|p| !p.to_string_lossy().contains("matmul"));
    Ok(sources)
}

/// One unit for all architectures, compiled unless it is there; returns what ptxas said.
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
    command.arg(source);
    let kept = kept(out)?.join(format!("{name}-{:016x}", made_of(&command, source)?));
    let (image, said) = (kept.with_extension("fatbin"), kept.with_extension("txt"));
    let problem = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    // The text is written last: where it is, the image is whole.
    if let Ok(said) = std::fs::read_to_string(&said)
        && std::fs::copy(&image, out.join(format!("{name}.fatbin"))).is_ok()
    {
        return Ok(said);
    }
    let made = out.join(format!("{name}.fatbin"));
    command.arg("-o").arg(&made);
    let result = command.output().map_err(|e| problem(nvcc, e))?;
    let text = String::from_utf8_lossy(&result.stderr).into_owned();
    if !result.status.success() {
        return Err(format!("{} failed on {}\n{text}", nvcc.display(), source.display()));
    }
    // Under names of this process until they are whole: another build may do the same.
    let part = |path: &Path| path.with_extension(format!("part-{}", std::process::id()));
    std::fs::copy(&made, part(&image)).map_err(|e| problem(&image, e))?;
    std::fs::rename(part(&image), &image).map_err(|e| problem(&image, e))?;
    std::fs::write(part(&said), &text).map_err(|e| problem(&said, e))?;
    std::fs::rename(part(&said), &said).map_err(|e| problem(&said, e))?;
    Ok(text)
}

/// Where compiled units stay: `cuda-kernels` of the profile that `out` (`<profile>/build/<package>/out`) belongs to.
fn kept(out: &Path) -> Result<PathBuf, String> {
    let profile = out.ancestors().nth(3).ok_or("OUT_DIR is not where cargo puts it")?;
    let kept = profile.join("cuda-kernels");
    std::fs::create_dir_all(&kept).map_err(|e| format!("{}: {e}", kept.display()))?;
    Ok(kept)
}

/// A hash of all that decides what comes out: the command, the compiler's version, the source and what it includes.
fn made_of(command: &Command, source: &Path) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    let version = Command::new(command.get_program()).arg("--version").output();
    version.map_err(|e| format!("nvcc: {e}"))?.stdout.hash(&mut hasher);
    command.get_args().collect::<Vec<_>>().hash(&mut hasher);
    let (mut seen, mut left) = (BTreeSet::new(), vec![source.to_path_buf()]);
    while let Some(file) = left.pop() {
        let file = file.canonicalize().map_err(|e| format!("{}: {e}", file.display()))?;
        if !seen.insert(file.clone()) {
            continue;
        }
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let includes =
            text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")?.split('"').next());
        let folder = file.parent().unwrap_or(Path::new("."));
        left.extend(includes.map(|name| folder.join(name)));
        text.hash(&mut hasher);
    }
    Ok(hasher.finish())
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
