//! `cargo xtask cross-isa`: the tests of the crates with kernels, on processors that this machine is not.
//!
//! Masking a level in the program does not show that the level below runs without it, nor that a processor without it is
//! recognized. Here the test binaries run under `qemu-user`, which executes only what the named processor has and kills
//! the process at any other instruction. Each processor's levels must be the expected ones, and each test named must
//! have run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Crates whose tests run.
const CRATES: [&str; 2] = ["minfer-gguf", "minfer-cpu"];
const ARM: &str = "aarch64-unknown-linux-gnu";
const ARM_LINKER: &str = "aarch64-linux-gnu-gcc";
/// Debian's place for the C library of its aarch64 cross compiler.
const ARM_LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// Debian's compiler, for machines whose own has no standard library for aarch64.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// The program of minfer-cpu's tests, and the test among them that prints `levels: ` and their names.
const KERNEL_TESTS: &str = "minfer_cpu";
const LEVELS_TEST: &str = "detect::tests::the_best_level_is_the_last_of_those_there_are";

/// A processor to run on.
struct Processor {
    arm: bool,
    /// As `qemu -cpu` knows it.
    name: &'static str,
    /// What `minfer_cpu::Host::levels` must find.
    levels: &'static str,
    /// Parts of the names of minfer-cpu's tests that run here; those of the other crates all run. A processor whose levels
    /// another has too runs fewer.
    tests: &'static [&'static str],
}

/// Kernels one by one; all shapes and levels together; the device's refusals.
const ALL: &[&str] = &[
    "kernel::",
    "matrix::",
    "detect::",
    "device::tests::refusals::",
    "device::tests::bits_over_every_cache_do_not_depend_on_levels_threads_and_chunks",
];

/// Every kernel once: vectors one by one, every type with few tokens and with many, attention.
const EACH: &[&str] = &[
    "kernel::",
    "matrix::tests::row_counts_around_a_panel",
    "matrix::tests::many_tokens",
    "device::tests::bits_over_every_cache_do_not_depend_on_levels_threads_and_chunks",
];

/// Runs nothing of the processor's own: a tile unit in software.
const SKIPPED: &str = "products_of_a_tile_unit";

/// Those that take longest come first.
const PROCESSORS: &[Processor] = &[
    Processor { arm: false, name: "Haswell", levels: "scalar avx2", tests: ALL },
    Processor { arm: true, name: "max", levels: "scalar neon dotprod i8mm", tests: ALL },
    Processor { arm: false, name: "Nehalem", levels: "scalar", tests: EACH },
    Processor { arm: true, name: "cortex-a76", levels: "scalar neon dotprod", tests: EACH },
    Processor { arm: true, name: "cortex-a72", levels: "scalar neon", tests: EACH },
];

/// A program that cargo built.
#[derive(Debug, PartialEq)]
struct Built {
    /// The library or test file that it is the tests of.
    name: String,
    path: PathBuf,
}

/// Builds for both architectures, then runs on every processor.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<()> {
    let processors: Vec<&Processor> =
        PROCESSORS.iter().filter(|p| only.is_none_or(|name| name == p.name)).collect();
    if processors.is_empty() {
        let names: Vec<&str> = PROCESSORS.iter().map(|p| p.name).collect();
        bail!("no processor '{}'; there are {}", only.unwrap_or_default(), names.join(", "));
    }
    let std = arm_std(root);
    check_tools(std.is_some())?;
    let programs = |arm| match processors.iter().any(|p| p.arm == arm) {
        true => build(root, std.as_ref().filter(|_| arm)),
        false => Ok(Vec::new()),
    };
    let (arm, x86) = (programs(true)?, programs(false)?);

    // One emulator on each core; what a program can do in parallel is less.
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(processor) = processors.get(next.fetch_add(1, Ordering::Relaxed)) {
            run_on(processor, root, if processor.arm { &arm } else { &x86 })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..available_parallelism().map_or(1, usize::from).min(processors.len()))
            .map(|_| scope.spawn(work))
            .collect();
        // Every worker is waited for; the first failure is the one reported.
        let results: Vec<Result<()>> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect();
        results.into_iter().collect()
    })
}

/// A compiler that has a standard library for aarch64, and where that is.
struct ArmStd {
    rustc: PathBuf,
    sysroot: PathBuf,
}

/// Looks for it at the compiler in use (`rustup target add`), then beside Debian's compiler, then where `.ci/cross-isa`
/// unpacks the package.
fn arm_std(root: &Path) -> Option<ArmStd> {
    let out = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root).output().ok()?;
    let own = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
    let debian = || PathBuf::from(DEBIAN_RUSTC);
    [
        ArmStd { rustc: "rustc".into(), sysroot: own },
        ArmStd { rustc: debian(), sysroot: "/usr".into() },
        ArmStd { rustc: debian(), sysroot: root.join("target/cross-isa/std/usr") },
    ]
    .into_iter()
    .find(|std| std.sysroot.join("lib/rustlib").join(ARM).is_dir())
}

fn check_tools(arm_std: bool) -> Result<()> {
    let runs =
        |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|out| out.status.success());
    let mut missing = Vec::new();
    for (tool, package) in [
        ("qemu-aarch64-static", "qemu-user-static"),
        ("qemu-x86_64-static", "qemu-user-static"),
        (ARM_LINKER, "gcc-aarch64-linux-gnu and libc6-dev-arm64-cross"),
    ] {
        if !runs(tool) {
            missing.push(format!("{tool} (Debian: {package})"));
        }
    }
    if !arm_std {
        missing.push(format!(
            "Rust's standard library for {ARM} (`rustup target add {ARM}`, or on Debian `.ci/cross-isa`)"
        ));
    }
    if !missing.is_empty() {
        bail!("cross-isa needs what is not installed:\n  {}", missing.join("\n  "));
    }
    Ok(())
}

/// Builds the tests: for aarch64 with `std`, for this machine without. The latter by the README's command, whose programs
/// are there already when it has run.
fn build(root: &Path, std: Option<&ArmStd>) -> Result<Vec<Built>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--release", "--locked"]);
    cargo.args(["--message-format", "json-render-diagnostics"]).current_dir(root);
    if let Some(std) = std {
        cargo.arg("--tests").args(CRATES.iter().flat_map(|name| ["--package", *name]));
        cargo.args(["--target", ARM, "--target-dir", "target/cross-isa/build"]);
        cargo.env("RUSTC", &std.rustc);
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", ARM_LINKER);
        let flags = format!("--sysroot\u{1f}{}", std.sysroot.display());
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags);
    } else {
        cargo.arg("--workspace");
        // What the cargo that runs this task has set; build scripts that ask for it would run again.
        for name in ["NAME", "VERSION_MAJOR", "VERSION_MINOR", "VERSION_PATCH", "VERSION_PRE"] {
            cargo.env_remove(format!("CARGO_PKG_{name}"));
        }
        cargo.env_remove("CARGO_MANIFEST_DIR");
    }
    let start = Instant::now();
    let out = cargo.stderr(std::process::Stdio::inherit()).output().context("cannot run cargo")?;
    if !out.status.success() {
        bail!("cargo build failed ({})", out.status);
    }
    println!("built in {:.0} s", start.elapsed().as_secs_f64());
    built(&String::from_utf8_lossy(&out.stdout))
}

/// The tests of [`CRATES`] in cargo's messages.
fn built(messages: &str) -> Result<Vec<Built>> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| format!("cargo wrote '{line}'"))?;
        let Some(path) = message["executable"].as_str() else { continue };
        // Such as `path+file:///where#minfer-cpu@0.1.0`.
        let package = message["package_id"].as_str().unwrap_or_default();
        if !CRATES.iter().any(|name| package.contains(&format!("#{name}@"))) {
            continue;
        }
        let name = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        programs.push(Built { name, path: path.into() });
    }
    Ok(programs)
}

fn run_on(processor: &Processor, root: &Path, built: &[Built]) -> Result<()> {
    let start = Instant::now();
    let mut passed = 0;
    let kernels =
        built.iter().find(|p| p.name == KERNEL_TESTS).context("minfer-cpu's tests were not built")?;
    let text = emulate(processor, root, &kernels.path, &[LEVELS_TEST, "--nocapture"])?;
    let found = levels(&text).with_context(|| format!("{LEVELS_TEST} did not print the levels:\n{text}"))?;
    if found != processor.levels {
        bail!("{}: has {found}, not {}", processor.name, processor.levels);
    }
    for program in built {
        let filters = if program.name == KERNEL_TESTS { processor.tests } else { &[] };
        let text = emulate(processor, root, &program.path, &[filters, &["--skip", SKIPPED]].concat())?;
        passed += passed_tests(&text, filters)
            .with_context(|| format!("{} on {}", program.name, processor.name))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{}: {}; {passed} tests in {seconds:.0} s", processor.name, processor.levels);
    Ok(())
}

/// Runs a program under `qemu-user` and returns what it wrote.
fn emulate(processor: &Processor, root: &Path, program: &Path, args: &[&str]) -> Result<String> {
    let mut qemu = if processor.arm {
        let mut qemu = Command::new("qemu-aarch64-static");
        qemu.args(["-L", ARM_LIBRARIES]);
        qemu
    } else {
        Command::new("qemu-x86_64-static")
    };
    qemu.args(["-cpu", processor.name])
        .arg(program)
        .args(args)
        .current_dir(root)
        .env("RUST_TEST_THREADS", "1");
    let out = qemu.output().with_context(|| format!("cannot run {qemu:?}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        bail!(
            "{} on {}: {}\n{text}\n{}",
            program.display(),
            processor.name,
            out.status,
            // What qemu says of processor features that it does not emulate is no complaint of the program.
            String::from_utf8_lossy(&out.stderr)
                .lines()
                .filter(|l| !l.contains("TCG doesn't support"))
                .collect::<Vec<_>>()
                .join("\n")
        );
    }
    Ok(text)
}

/// The levels that [`LEVELS_TEST`] printed.
fn levels(text: &str) -> Option<&str> {
    // The harness may not have ended its own line.
    let (_, after) = text.split_once("levels: ")?;
    after.lines().next()
}

/// How many tests passed, of which every filter matched at least one.
fn passed_tests(text: &str, filters: &[&str]) -> Result<usize> {
    let passed: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("test "))
        .filter_map(|line| line.strip_suffix(" ... ok"))
        .collect();
    for filter in filters {
        if !passed.iter().any(|name| name.contains(filter)) {
            bail!("no test '{filter}' ran");
        }
    }
    Ok(passed.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_messages() {
        let messages = r#"{"reason":"compiler-artifact","package_id":"r#half@2","target":{"name":"half"},"executable":null}
{"reason":"compiler-artifact","package_id":"p#minfer-cpu@1","target":{"name":"minfer_cpu"},"executable":"/t/cpu"}
{"reason":"compiler-artifact","package_id":"p#minfer@1","target":{"name":"minfer"},"executable":"/t/minfer"}
{"reason":"build-finished","success":true}"#;
        let expected = [Built { name: "minfer_cpu".into(), path: "/t/cpu".into() }];
        assert_eq!(built(messages).expect("messages"), expected);
        assert!(built("error: no such package").is_err());
    }

    #[test]
    fn a_filter_that_matches_no_test_is_found() {
        let text =
            "running 2 tests\ntest kernel::a ... ok\ntest matrix::b ... ok\ntest matrix::c ... ignored\n";
        assert_eq!(passed_tests(text, &["kernel::", "matrix::"]).ok(), Some(2));
        assert!(passed_tests(text, &["matrix::c"]).is_err());
        assert_eq!(passed_tests("running 0 tests\n", &[]).ok(), Some(0));
    }

    #[test]
    fn levels_are_found_in_the_output() {
        assert_eq!(levels("running 1 test\ntest a ... levels: scalar neon\nok\n"), Some("scalar neon"));
        assert_eq!(levels("running 0 tests\n"), None);
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused() {
        let error = run(Path::new("."), Some("i486")).expect_err("no such processor");
        assert!(error.to_string().contains("cortex-a72"), "{error}");
    }
}
