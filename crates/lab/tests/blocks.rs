//! How many blocks the kernels of products of bytes leave room for, as the ledger has them: on parts that are not here too.

use minfer_cuda::ledger;
use minfer_lab::occupancy::{Block, Multiprocessor};

/// Registers, spills and static shared memory of a kernel, and blocks of it that a multiprocessor holds.
fn of(name: &str, arch: &str, threads: u32, dynamic: u32) -> (u32, u32, u32, u32) {
    let kernels = ledger::parse(include_str!("../../cuda/ledger.toml"));
    let key = format!("{name}.{arch}");
    let found = kernels.get(&key).unwrap_or_else(|| panic!("the ledger has no {key}"));
    let block = Block { threads, registers: found.registers, shared: found.shared + dynamic };
    let sm = Multiprocessor::of(arch).expect("a known architecture");
    (found.registers, found.spills, found.shared, block.occupancy(&sm).0)
}

/// Packed nibbles are what lets two blocks share a multiprocessor with 100 KB, the loop unrolled or not.
#[test]
fn packed_nibbles_leave_room_for_a_second_block() {
    for arch in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120", "sm_121"] {
        for name in ["mmq_nb_q4_k", "mmq_nb_unrolled_q4_k"] {
            let (registers, spills, shared, blocks) = of(name, arch, 256, 0);
            assert!(registers <= 128 && spills == 0 && shared <= 45_056, "{name}.{arch}");
            assert_eq!(blocks, 2, "{name}.{arch}");
        }
    }
    for arch in ["sm_86", "sm_89", "sm_120", "sm_121"] {
        for name in ["mmq_wide_q4_k", "mmq_wide_unrolled_q4_k"] {
            assert_eq!(of(name, arch, 256, 61_440).3, 1, "{name}.{arch}");
        }
    }
}

/// Two blocks of the int8 profile's kernel for many tokens, of Q4_K, on Hopper, and one at least where memory is short.
#[test]
fn tiles_of_bytes_share_a_multiprocessor() {
    for name in ["matmul_byte_tiles_q4_k_n64", "matmul_byte_tiles_q4_k_n64_gated"] {
        assert_eq!(of(name, "sm_90a", 128, 88_576).3, 2, "{name}");
        assert_eq!(of(name, "sm_121", 128, 88_576).3, 1, "{name}");
    }
}
