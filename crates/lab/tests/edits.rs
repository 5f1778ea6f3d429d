//! The ledger finds what a careless edit does to a kernel: each is made on a copy of the sources and compiled.
#![cfg(feature = "cuda")]

use std::path::Path;
use std::process::Command;

use minfer_cuda::ledger::{self, Ledger, Resources};

/// What ptxas says of `lab/mmq.cu` for Hopper with `old` replaced by `new`.
fn edited(old: &str, new: &str) -> Ledger {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/csrc");
    let folder = tempfile::tempdir().expect("a folder");
    copy(&sources, folder.path());
    let file = folder.path().join("lab/mmq.cu");
    let text = std::fs::read_to_string(&file).expect("the source");
    assert!(text.contains(old), "the source has no {old:?}");
    std::fs::write(&file, text.replace(old, new)).expect("a file");
    let output = Command::new(minfer_cuda::NVCC)
        .args(["-fatbin", "-O3", "-std=c++17", "-fmad=false", "-Xptxas", "-v"])
        .args(["-gencode", "arch=compute_90a,code=sm_90a"])
        .arg(&file)
        .arg("-o")
        .arg(folder.path().join("out.fatbin"))
        .output()
        .expect("nvcc");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    ledger::from_ptxas(&said)
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            std::fs::create_dir(&to).expect("a folder");
            copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).expect("a file");
        }
    }
}

/// What `minfer-lab ledger --check` would say of the kernels that `built` has.
fn complaints(built: &Ledger) -> Vec<String> {
    let mut known = ledger::parse(include_str!("../../cuda/ledger.toml"));
    known.retain(|key, _| built.contains_key(key));
    ledger::compare(&known, built)
}

const TWO_BLOCKS: &str = "__launch_bounds__(mmq::THREADS, 2)";

#[test]
fn the_sources_are_as_the_ledger_says() {
    let built = edited(TWO_BLOCKS, TWO_BLOCKS);
    assert!(built.contains_key("mmq_nb_unrolled_q4_k.sm_90a"), "{built:?}");
    assert_eq!(complaints(&built), [""; 0]);
}

#[test]
fn an_edit_that_spills_is_found() {
    let built = edited(TWO_BLOCKS, "__launch_bounds__(mmq::THREADS, 4)");
    let Resources { spills, .. } = built["mmq_nb_unrolled_q4_k.sm_90a"];
    assert!(spills > 0, "the edit does not spill");
    assert!(complaints(&built).iter().any(|text| text.starts_with("mmq_nb_unrolled_q4_k.sm_90a")));
}

#[test]
fn an_edit_that_loses_the_second_block_is_found() {
    let built = edited(TWO_BLOCKS, "__launch_bounds__(mmq::THREADS, 1)");
    let Resources { registers, .. } = built["mmq_nb_unrolled_q4_k.sm_90a"];
    assert!(registers > 128, "the edit keeps two blocks");
    assert!(complaints(&built).iter().any(|text| text.starts_with("mmq_nb_unrolled_q4_k.sm_90a")));
}
