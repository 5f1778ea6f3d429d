//! What registers and shared memory let a multiprocessor hold.
//!
//! Limits by compute capability: CUDA C++ Programming Guide, "Compute Capabilities"; registers are given to a warp in
//! units of 256, shared memory to a block in units of 128 bytes, after 1,024 that the system takes.

use std::fmt;

/// Limits of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Warps at a time.
    pub warps: u32,
    /// Blocks at a time.
    pub blocks: u32,
    /// Bytes of shared memory for all blocks.
    pub shared: u32,
    /// Bytes of shared memory for one block.
    pub shared_per_block: u32,
}

/// 32-bit registers of a multiprocessor, on all of them.
const REGISTERS: u32 = 65536;
/// Registers are given to warps in units of these, warps to schedulers four at a time.
const REGISTER_UNIT: u32 = 256;
const SCHEDULERS: u32 = 4;
/// Bytes of shared memory that a block costs beyond its own, and the unit they are given in.
const SYSTEM_SHARED: u32 = 1024;
const SHARED_UNIT: u32 = 128;
/// Registers of a thread at most.
const MOST_REGISTERS: u32 = 255;

impl Multiprocessor {
    /// That of an architecture like `sm_90a`.
    pub fn of(arch: &str) -> Option<Multiprocessor> {
        let kib = |warps, blocks, shared: u32| Multiprocessor {
            warps,
            blocks,
            shared: shared << 10,
            shared_per_block: (shared - 1) << 10,
        };
        let digits = arch.strip_prefix("sm_")?.trim_end_matches(['a', 'f']);
        Some(match digits {
            "80" => kib(64, 32, 164),
            "86" => kib(48, 16, 100),
            "87" => kib(48, 16, 164),
            "89" => kib(48, 24, 100),
            "90" => kib(64, 32, 228),
            "100" | "103" => kib(64, 32, 228),
            "120" | "121" => kib(48, 24, 100),
            _ => return None,
        })
    }
}

/// A kernel's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Threads.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory, static and dynamic.
    pub shared: u32,
}

/// What keeps one more block away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Registers.
    Registers,
    /// Shared memory.
    Shared,
    /// Warps.
    Warps,
    /// Blocks.
    Blocks,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Registers => "registers",
            Limit::Shared => "shared memory",
            Limit::Warps => "warps",
            Limit::Blocks => "blocks",
        })
    }
}

impl Block {
    /// Blocks that a multiprocessor holds by each of its limits.
    pub fn fits(&self, sm: &Multiprocessor) -> [(Limit, u32); 4] {
        let warps = self.threads.div_ceil(32).max(1);
        let of_warp = (self.registers.max(1) * 32).next_multiple_of(REGISTER_UNIT);
        // A scheduler has its own quarter of the registers.
        let warps_by_registers = REGISTERS / SCHEDULERS / of_warp * SCHEDULERS;
        let shared = (self.shared + SYSTEM_SHARED).next_multiple_of(SHARED_UNIT);
        let by_shared = if self.shared > sm.shared_per_block { 0 } else { sm.shared / shared };
        [
            (Limit::Registers, warps_by_registers / warps),
            (Limit::Shared, by_shared),
            (Limit::Warps, sm.warps / warps),
            (Limit::Blocks, sm.blocks),
        ]
    }

    /// Blocks that a multiprocessor holds, and what keeps one more away.
    pub fn occupancy(&self, sm: &Multiprocessor) -> (u32, Limit) {
        let least = self.fits(sm).into_iter().min_by_key(|(_, blocks)| *blocks);
        let (limit, blocks) = least.unwrap_or((Limit::Blocks, 0));
        (blocks, limit)
    }

    /// Registers of a thread with which `blocks` fit; `None` if no number does.
    pub fn registers_for(&self, blocks: u32) -> Option<u32> {
        let warps = self.threads.div_ceil(32).max(1) * blocks.max(1);
        let of_warp = REGISTERS / SCHEDULERS / warps.div_ceil(SCHEDULERS) / REGISTER_UNIT * REGISTER_UNIT;
        (of_warp >= 32).then_some((of_warp / 32).min(MOST_REGISTERS))
    }

    /// Bytes of shared memory with which `blocks` fit.
    pub fn shared_for(&self, blocks: u32, sm: &Multiprocessor) -> u32 {
        let each = sm.shared / blocks.max(1) / SHARED_UNIT * SHARED_UNIT;
        each.saturating_sub(SYSTEM_SHARED).min(sm.shared_per_block)
    }

    /// What this block means for a multiprocessor, and what one more would cost, in words.
    pub fn explain(&self, sm: &Multiprocessor) -> String {
        let (blocks, limit) = self.occupancy(sm);
        let warps = blocks * self.threads.div_ceil(32);
        let Block { threads, registers, shared } = self;
        let mut text = format!(
            "{threads} threads × {registers} registers, {shared} B of shared memory a block\n{blocks} blocks a \
             multiprocessor: {warps} of {} warps, {:.1} a scheduler; {limit} keep the next one away\n",
            sm.warps,
            f64::from(warps) / f64::from(SCHEDULERS),
        );
        for (limit, blocks) in self.fits(sm) {
            text += &format!("  {limit} alone: {blocks}\n");
        }
        let next = blocks + 1;
        if next > sm.blocks || next * self.threads.div_ceil(32) > sm.warps {
            text += "no change of registers or shared memory brings one more\n";
            return text;
        }
        let mut costs = Vec::new();
        match self.registers_for(next) {
            Some(most) if most < *registers => {
                costs.push(format!("at most {most} registers, {} less", registers - most));
            }
            Some(_) => {}
            None => costs.push("fewer registers than there can be".to_owned()),
        }
        let most = self.shared_for(next, sm);
        if most < *shared {
            costs.push(format!("at most {most} B of shared memory, {} less", shared - most));
        }
        text += &format!("{next} blocks: {}\n", costs.join("; "));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_of_the_campaigns_kernel_fit_where_its_pages_say() {
        // 123 registers, 256 threads and 45,056 B on a part with 100 KiB; 177 registers would cost the second block.
        let sm = Multiprocessor::of("sm_121").expect("known");
        let block = Block { threads: 256, registers: 123, shared: 45056 };
        assert_eq!(block.occupancy(&sm).0, 2);
        let more = Block { registers: 177, ..block };
        assert_eq!(more.occupancy(&sm), (1, Limit::Registers));
        assert_eq!(more.registers_for(2), Some(128));
        assert!(more.explain(&sm).contains("at most 128 registers, 49 less"), "{}", more.explain(&sm));
        let wide = Block { shared: 98 << 10, ..block };
        assert_eq!(wide.occupancy(&sm), (1, Limit::Shared));
        assert_eq!(Block { shared: 100 << 10, ..block }.occupancy(&sm), (0, Limit::Shared));
    }

    #[test]
    fn registers_with_which_blocks_fit_are_those_with_which_they_do() {
        for arch in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"] {
            let sm = Multiprocessor::of(arch).expect("known");
            for threads in [32, 96, 128, 256, 320, 512, 1024] {
                for blocks in 1..=sm.warps / (threads / 32) {
                    let block = |registers| Block { threads, registers, shared: 0 };
                    let Some(most) = block(0).registers_for(blocks) else { continue };
                    let fits = |registers| block(registers).fits(&sm)[0].1;
                    assert!(fits(most) >= blocks, "{arch} {threads} × {blocks}: {most} registers do not fit");
                    assert!(
                        most == 255 || fits(most + 1) < blocks,
                        "{arch} {threads} × {blocks}: {most} + 1 fit"
                    );
                }
            }
        }
        assert_eq!(Multiprocessor::of("sm_52"), None);
    }
}
