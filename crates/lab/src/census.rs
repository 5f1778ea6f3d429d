//! What the hot loop of a kernel is made of, for each multiply-add.
//!
//! Counts are static: an instruction of the loop counts once for a turn, even if a branch usually goes around it. They are
//! per warp; a warp's instruction does what its 32 lanes do.

use crate::sass::{Instruction, Kernel};
use std::fmt;

/// What instructions are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Matrix steps of tensor cores.
    Tensor,
    /// Arithmetic in single or double precision.
    Float,
    /// Arithmetic in half precision.
    Half,
    /// Integer and bit arithmetic, comparisons, selections, moves.
    Integer,
    /// Between integers and floats, and between floats.
    Conversion,
    /// Exponentials, reciprocals and what else the special function unit does.
    Special,
    /// Between lanes of a warp.
    Lanes,
    /// Shared memory.
    Shared,
    /// Global and constant memory, and copies from it to shared memory.
    Global,
    /// Local memory: registers that ran out.
    Local,
    /// Branches, barriers and waiting.
    Control,
    /// What is not known here.
    Other,
}

impl Class {
    /// Every class, in the order of tables.
    pub const ALL: [Class; 12] = [
        Class::Tensor,
        Class::Float,
        Class::Half,
        Class::Integer,
        Class::Conversion,
        Class::Special,
        Class::Lanes,
        Class::Shared,
        Class::Global,
        Class::Local,
        Class::Control,
        Class::Other,
    ];

    /// The class of an instruction.
    pub fn of(instruction: &Instruction) -> Class {
        let opcode = instruction.opcode.as_str();
        match instruction.name() {
            "HMMA" | "IMMA" | "BMMA" | "DMMA" | "QMMA" | "OMMA" | "HGMMA" | "IGMMA" | "QGMMA" | "BGMMA" => {
                Class::Tensor
            }
            // Half precision registers as floats: `HADD2.F32`.
            "HADD2" if opcode.contains(".F32") => Class::Conversion,
            "FFMA" | "FMUL" | "FADD" | "FMNMX" | "FSEL" | "FSET" | "FSETP" | "FCHK" | "FSWZADD"
            | "FFMA32I" | "FMUL32I" | "FADD32I" | "DADD" | "DMUL" | "DFMA" | "DSETP" | "FMNMX3" | "FADD2"
            | "FMUL2" | "FFMA2" => Class::Float,
            "HFMA2" | "HMUL2" | "HADD2" | "HMNMX2" | "HSET2" | "HSETP2" | "HFMA2_32I" | "HMUL2_32I"
            | "HADD2_32I" | "HMNMX" => Class::Half,
            "I2F" | "I2FP" | "F2I" | "F2IP" | "F2F" | "F2FP" | "I2I" | "I2IP" | "FRND" => Class::Conversion,
            "MUFU" => Class::Special,
            "SHFL" | "VOTE" | "VOTEU" | "MATCH" | "REDUX" | "MOVM" => Class::Lanes,
            "LDS" | "STS" | "LDSM" | "STSM" | "ATOMS" | "UBLKRED" | "SYNCS" => Class::Shared,
            "LDG" | "STG" | "LDGSTS" | "RED" | "REDG" | "ATOM" | "ATOMG" | "LD" | "ST" | "LDC" | "ULDC"
            | "LDCU" | "UBLKCP" | "UBLKPF" | "UTMALDG" | "UTMASTG" | "UTMAPF" | "CCTL" | "CCTLL" => {
                Class::Global
            }
            "LDL" | "STL" => Class::Local,
            "BRA" | "BRX" | "BRXU" | "JMP" | "CALL" | "RET" | "EXIT" | "BSSY" | "BSYNC" | "BREAK"
            | "WARPSYNC" | "BAR" | "DEPBAR" | "LDGDEPBAR" | "MEMBAR" | "FENCE" | "ERRBAR" | "NOP"
            | "YIELD" | "NANOSLEEP" | "WARPGROUP" | "WARPGROUPSET" | "ACQBULK" | "PREEXIT"
            | "UCGABAR_ARV" | "UCGABAR_WAIT" | "ELECT" | "ENDCOLLECTIVE" | "R2UR" | "USETMAXREG" | "KILL"
            | "BPT" | "ARRIVES" | "BMOV" | "CGAERRBAR" | "UCGABAR_GET" | "UCGABAR_SET" => Class::Control,
            "IMAD" | "IADD" | "IADD3" | "VIADD" | "VIADDMNMX" | "IMNMX" | "VIMNMX" | "VIMNMX3" | "LOP3"
            | "LOP" | "PLOP3" | "SHF" | "SHL" | "SHR" | "LEA" | "PRMT" | "SEL" | "ISETP" | "ISCADD"
            | "IABS" | "POPC" | "FLO" | "BREV" | "BMSK" | "SGXT" | "IDP" | "IDP4A" | "VABSDIFF"
            | "VABSDIFF4" | "MOV" | "MOV32I" | "UMOV" | "CS2R" | "S2R" | "S2UR" | "CS2UR" | "P2R" | "R2P"
            | "UP2UR" | "UR2UP" | "UIADD3" | "UIMAD" | "ULOP3" | "USHF" | "ULEA" | "UPRMT" | "USEL"
            | "UISETP" | "UPLOP3" | "UFLO" | "UPOPC" | "UBREV" | "UBMSK" | "USGXT" | "VHMNMX" | "UIABS"
            | "UVIADD" | "UVIMNMX" | "PSETP" | "QSPC" | "LEPC" | "IMAD32I" | "IADD32I" | "VIADD2" => {
                Class::Integer
            }
            _ => Class::Other,
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Class::Tensor => "tensor",
            Class::Float => "float",
            Class::Half => "half",
            Class::Integer => "integer",
            Class::Conversion => "conversion",
            Class::Special => "special function",
            Class::Lanes => "between lanes",
            Class::Shared => "shared memory",
            Class::Global => "global memory",
            Class::Local => "local memory (spills)",
            Class::Control => "control",
            Class::Other => "other",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Multiply-adds of a warp's tensor instruction: its shape is in the name, `HMMA.16816` or `HGMMA.64x128x16`; the latter is
/// one of four warps.
fn tensor_macs(opcode: &str) -> u64 {
    for part in opcode.split('.').skip(1) {
        let sizes: Vec<u64> = part.split('x').filter_map(|n| n.parse().ok()).collect();
        if let [m, n, k] = sizes[..] {
            return m * n * k / 4;
        }
        // 16 rows and 8 columns in all shapes of these, 8 rows in the oldest.
        match part.strip_prefix("168") {
            Some(k) if k.bytes().all(|b| b.is_ascii_digit()) && !k.is_empty() => {
                return 16 * 8 * k.parse::<u64>().unwrap_or_default();
            }
            _ => {}
        }
        if let Some(k) = part.strip_prefix("88").and_then(|k| k.parse::<u64>().ok()) {
            return 8 * 8 * k;
        }
    }
    0
}

/// Multiply-adds outside of tensor cores: of a warp's fused multiply-adds and dot products.
fn other_macs(instruction: &Instruction) -> u64 {
    match instruction.name() {
        "FFMA" | "DFMA" => 32,
        "HFMA2" => 64,
        "IDP" | "IDP4A" => 128,
        _ => 0,
    }
}

/// A loop of a kernel: instructions `first ..= last` of its code, from the target of a branch back to the branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Number of its first instruction.
    pub first: usize,
    /// Number of its branch.
    pub last: usize,
}

/// Loops of a kernel without another one inside that has tensor instructions: by descending number of these, the shortest
/// first.
pub fn loops(kernel: &Kernel) -> Vec<Loop> {
    let code = &kernel.code;
    let place = |address: u64| code.binary_search_by_key(&address, |i| i.address).ok();
    let back = |(last, instruction): (usize, &Instruction)| {
        let first = place(instruction.target?)?;
        (first < last).then_some(Loop { first, last })
    };
    let all: Vec<Loop> = code.iter().enumerate().filter_map(back).collect();
    let tensor = |l: &Loop| code[l.first..=l.last].iter().filter(|i| Class::of(i) == Class::Tensor).count();
    let within =
        |inner: &Loop, outer: &Loop| inner != outer && outer.first <= inner.first && inner.last <= outer.last;
    // Rare code behind the others jumps back into the middle of a loop: no loop of its own.
    let crosses =
        |l: &Loop, other: &Loop| other.first < l.first && l.first <= other.last && other.last < l.last;
    let mut found: Vec<Loop> = all
        .iter()
        .filter(|l| !all.iter().any(|other| within(other, l) && tensor(other) > 0 || crosses(l, other)))
        .copied()
        .collect();
    found.sort_by_key(|l| (std::cmp::Reverse(tensor(l)), l.last - l.first));
    found
}

/// Instructions of a loop by class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// Name and architecture.
    pub kernel: String,
    /// Instructions of each class, in the order of [`Class::ALL`].
    pub counts: [u64; Class::ALL.len()],
    /// Multiply-adds of a warp in a turn: of tensor cores, if there are any.
    pub macs: u64,
    /// Names of instructions that no class has.
    pub unknown: Vec<String>,
}

impl Census {
    /// Counts a loop.
    pub fn of(kernel: &Kernel, hot: Loop) -> Census {
        let mut census = Census {
            kernel: format!("{}.{}", kernel.name, kernel.arch),
            counts: [0; Class::ALL.len()],
            macs: 0,
            unknown: Vec::new(),
        };
        let (mut tensor, mut other) = (0, 0);
        for instruction in &kernel.code[hot.first..=hot.last] {
            let class = Class::of(instruction);
            census.counts[class as usize] += 1;
            tensor += if class == Class::Tensor { tensor_macs(&instruction.opcode) } else { 0 };
            other += other_macs(instruction);
            let name = instruction.name();
            if class == Class::Other && !census.unknown.iter().any(|known| known == name) {
                census.unknown.push(name.to_owned());
            }
        }
        census.macs = if tensor > 0 { tensor } else { other };
        census
    }

    /// All instructions.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Instructions of a class for 1,000 multiply-adds; `None` if there are none of these.
    pub fn per_thousand(&self, class: Class) -> Option<f64> {
        (self.macs > 0).then(|| 1e3 * self.counts[class as usize] as f64 / self.macs as f64)
    }
}

/// A Markdown table of one or two kernels: instructions of a turn, and for 1,000 multiply-adds; of two, how much more the
/// first one has, and each class's share of that.
pub fn table(own: &Census, other: Option<&Census>) -> String {
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.3}"));
    let sum = |census: &Census| (census.macs > 0).then(|| 1e3 * census.total() as f64 / census.macs as f64);
    let mut text = String::new();
    match other {
        None => {
            text += &format!("| {} | a turn | for 1,000 multiply-adds |\n|---|---|---|\n", own.kernel);
            for class in Class::ALL {
                if own.counts[class as usize] > 0 {
                    let each = number(own.per_thousand(class));
                    text += &format!("| {class} | {} | {each} |\n", own.counts[class as usize]);
                }
            }
            text += &format!("| all | {} | {} |\n", own.total(), number(sum(own)));
        }
        Some(other) => {
            text += &format!(
                "| for 1,000 multiply-adds | {} | {} | difference | share of it |\n|---|---|---|---|---|\n",
                own.kernel, other.kernel
            );
            let all = sum(own).zip(sum(other)).map(|(a, b)| a - b);
            let mut row = |name: &str, a: Option<f64>, b: Option<f64>| {
                let difference = a.zip(b).map(|(a, b)| a - b);
                let share = difference.zip(all).filter(|(_, all)| all.abs() > 1e-9);
                let share = share.map_or("–".to_owned(), |(d, all)| format!("{:.0} %", 100.0 * d / all));
                let difference = difference.map_or("–".to_owned(), |d| format!("{d:+.3}"));
                text += &format!("| {name} | {} | {} | {difference} | {share} |\n", number(a), number(b));
            };
            for class in Class::ALL {
                if own.counts[class as usize] + other.counts[class as usize] > 0 {
                    row(class.name(), own.per_thousand(class), other.per_thousand(class));
                }
            }
            row("all", sum(own), sum(other));
            if let Some((a, b)) = sum(own).zip(sum(other)) {
                let more = 100.0 * (a / b - 1.0);
                text += &format!("\n{more:+.1} % instructions for a multiply-add.\n");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(code: &[(u64, &str, Option<u64>)]) -> Kernel {
        let code = code.iter().map(|&(address, opcode, target)| Instruction {
            address,
            opcode: opcode.to_owned(),
            operands: Vec::new(),
            target,
        });
        Kernel { name: "k".into(), arch: "sm_90a".into(), code: code.collect() }
    }

    #[test]
    fn shapes_of_tensor_instructions_are_in_their_names() {
        for (opcode, macs) in [
            ("HMMA.16816.F32", 2048),
            ("HMMA.1688.F32", 1024),
            ("IMMA.16832.U8.S8", 4096),
            ("IMMA.16816.S8.S8", 2048),
            ("IMMA.8816.S8.S8", 1024),
            ("HGMMA.64x128x16.F32", 32768),
            ("DMMA.884", 256),
            ("HMMA", 0),
        ] {
            assert_eq!(tensor_macs(opcode), macs, "{opcode}");
        }
    }

    #[test]
    fn the_hot_loop_is_the_innermost_with_most_tensor_instructions() {
        let k = kernel(&[
            (0x00, "MOV", None),
            (0x10, "IMAD", None),
            (0x20, "LDS", None),
            (0x30, "IMMA.16832.U8.S8", None),
            (0x40, "IMMA.16832.U8.S8", None),
            (0x50, "BRA", Some(0x20)),
            (0x60, "FFMA", None),
            (0x70, "BRA", Some(0x60)),
            (0x80, "BRA", Some(0x10)),
            (0x90, "BRA", Some(0x90)),
        ]);
        let found = loops(&k);
        assert_eq!(found, [Loop { first: 2, last: 5 }, Loop { first: 6, last: 7 }]);
        let census = Census::of(&k, found[0]);
        assert_eq!((census.macs, census.total()), (8192, 4));
        assert_eq!(census.counts[Class::Tensor as usize], 2);
        // What jumps into the middle of a loop is none.
        let mut code = k.code.clone();
        code.extend([
            Instruction { address: 0xa0, opcode: "NOP".into(), operands: Vec::new(), target: None },
            Instruction { address: 0xb0, opcode: "BRA".into(), operands: Vec::new(), target: Some(0x40) },
        ]);
        assert_eq!(loops(&Kernel { code, ..k.clone() }), found);
        // Without tensor cores the multiply-adds are those of the lanes.
        assert_eq!(Census::of(&k, found[1]).macs, 32);
    }

    #[test]
    fn two_kernels_differ_by_class() {
        let of = |more: usize| {
            let mut code = vec![(0, "HMMA.16816.F32", None)];
            code.extend((0..more).map(|i| (0x10 + 0x10 * i as u64, "LOP3.LUT", None)));
            code.push((0x1000, "BRA", Some(0)));
            let k = kernel(&code);
            Census::of(&k, loops(&k)[0])
        };
        let text = table(&of(6), Some(&of(2)));
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("integer")).collect();
        assert_eq!(rows.len(), 1, "{text}");
        assert!(rows[0].contains("+1.953") && rows[0].contains("100 %"), "{text}");
        assert!(text.contains("+100.0 % instructions"), "{text}");
        // A kernel without multiply-adds has counts alone.
        let k = kernel(&[(0, "NOP", None), (0x10, "BRA", Some(0))]);
        let nothing = Census::of(&k, loops(&k)[0]);
        assert!(table(&nothing, None).contains("| control | 2 | – |"));
    }

    #[test]
    fn what_no_class_has_is_named() {
        let k = kernel(&[(0, "XYZZY.A", None), (0x10, "XYZZY", None), (0x20, "BRA", Some(0))]);
        assert_eq!(Census::of(&k, loops(&k)[0]).unknown, ["XYZZY"]);
    }
}
