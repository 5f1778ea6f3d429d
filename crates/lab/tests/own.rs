//! The census of kernels that were just compiled.
#![cfg(feature = "cuda")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use minfer_lab::census::{Census, Class, loops};
use minfer_lab::hazards::{hazards, steps};
use minfer_lab::sass::{Error, Kernel, of_file};

/// Kernels of one of our sources for Hopper; `None`, and a word about it, on a machine without a disassembler or in a
/// build for other architectures.
fn kernels(module: &str) -> Option<Vec<Kernel>> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("own.fatbin");
    std::fs::write(&file, minfer_cuda::module(module).expect("a module")).expect("a file");
    let all = match of_file(&file, None) {
        Err(Error::NoDisassembler) => Vec::new(),
        all => all.expect("machine code"),
    };
    let hopper: Vec<Kernel> = all.into_iter().filter(|kernel| kernel.arch == "sm_90a").collect();
    if hopper.is_empty() {
        eprintln!("SKIPPED, nothing was tested: no disassembler, or no kernels for sm_90a");
        return None;
    }
    Some(hopper)
}

/// The loops that the source says: eight integer steps of 16 × 8 × 32 for a unit, with one of 16 × 8 × 16 for a type's minima, or two
/// of 16 × 8 × 8; and 16 or 17 of halves, but eight for the shorter units of halves themselves.
#[test]
fn loops_over_a_unit_have_its_tensor_instructions() {
    let integer = |steps: u64| 8 * 4096 + if steps > 8 { 2048 } else { 0 };
    let halves = |steps: u64| steps * 2048;
    type Macs<'a> = &'a dyn Fn(u64) -> u64;
    let kernels_of: [(&str, &str, &[u64], Macs<'_>); 2] = [
        ("decode_int8", "decode_matmul_int8", &[8, 9, 10], &integer),
        ("decode", "decode_matmul", &[8, 16, 17], &halves),
    ];
    for (module, name, steps, macs) in kernels_of {
        let Some(all) = kernels(module) else { return };
        let kernel = all.iter().find(|kernel| kernel.name == name).expect("the kernel");
        let units: Vec<Census> = loops(kernel)
            .into_iter()
            .map(|l| Census::of(kernel, l))
            .filter(|census| census.counts[Class::Tensor as usize] > 0)
            .collect();
        // One for each of the 13 types at least.
        assert!(units.len() >= 13, "{name}: {} loops", units.len());
        for census in &units {
            let tensor = census.counts[Class::Tensor as usize];
            assert!(steps.contains(&tensor), "{name}: {tensor} tensor instructions");
            assert_eq!(census.macs, macs(tensor), "{name}");
            assert_eq!(census.counts[Class::Local as usize], 0, "{name}: spills");
            assert_eq!(census.unknown, [""; 0], "{name}");
        }
    }
}

/// What steps of warpgroups read from registers stays there until they have ended.
#[test]
fn registers_of_steps_in_flight_are_not_written() {
    for (module, of_each) in [("matmul_wgmma", 16), ("attention_wgmma", 4)] {
        let Some(all) = kernels(module) else { return };
        for kernel in all {
            // Units of halves have half the columns of others.
            let least = if kernel.name.starts_with("matmul_wgmma_f16") { of_each / 2 } else { of_each };
            assert!(steps(&kernel) >= least, "{}: {} steps", kernel.name, steps(&kernel));
            assert_eq!(hazards(&kernel), [], "{}", kernel.name);
        }
    }
}
