//! Registers that a warpgroup's matrix step reads while it runs, and that something writes before it was waited for.
//!
//! A step (`HGMMA`) reads its operand A from registers long after it was issued. ptxas counts the operand as read when it is
//! issued, so that a register which is given to another value at once makes wrong results, sometimes. Instructions are
//! looked at in the order of their addresses: a step that is still running when a loop begins again is not followed.

use crate::sass::{Instruction, Kernel};

/// A register of a step in flight, and what writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hazard {
    /// Address of the step.
    pub step: u64,
    /// Address of what writes before the step was waited for.
    pub writer: u64,
    /// The register's number.
    pub register: u32,
}

/// Number of a register, like `R24.reuse`.
fn register(operand: &str) -> Option<u32> {
    operand.split('.').next()?.strip_prefix('R')?.parse().ok()
}

/// First of the four registers of a step's operand A, if it is in registers: the second operand.
fn operand_a(step: &Instruction) -> Option<u32> {
    register(step.operands.get(1)?)
}

/// Registers that an instruction writes.
fn written(instruction: &Instruction) -> std::ops::Range<u32> {
    // What these have in front is read, or no register.
    const READERS: [&str; 8] = ["BAR", "RET", "BRX", "JMX", "NANOSLEEP", "WARPSYNC", "R2P", "HGMMA"];
    let name = instruction.name();
    if READERS.contains(&name) || name.contains("SETP") {
        return 0..0;
    }
    // Predicates may come first: `SHFL.IDX PT, R95, …`.
    let predicate = |operand: &&String| operand.starts_with('P');
    let Some(first) = instruction.operands.iter().find(|o| !predicate(o)).and_then(|o| register(o)) else {
        return 0..0;
    };
    let count = instruction.opcode.split('.').skip(1).map(|part| match part {
        "128" => 4,
        "64" | "WIDE" | "F64" => 2,
        "4" if name == "LDSM" => 4,
        "2" if name == "LDSM" => 2,
        _ => 1,
    });
    first..first + count.max().unwrap_or(1)
}

/// Steps of a kernel whose operand A is in registers.
pub fn steps(kernel: &Kernel) -> usize {
    kernel.code.iter().filter(|i| i.name() == "HGMMA" && operand_a(i).is_some()).count()
}

/// Every write to a register of a step in flight.
pub fn hazards(kernel: &Kernel) -> Vec<Hazard> {
    // Steps in flight, with the number of the group that they belong to, which its last step ends.
    let (mut running, mut groups): (Vec<(usize, u64, u32)>, usize) = (Vec::new(), 0);
    let mut found = Vec::new();
    for instruction in &kernel.code {
        let ends = instruction.operands.iter().any(|o| o == "gsb0");
        if instruction.name() == "HGMMA" {
            running.extend(operand_a(instruction).map(|a| (groups, instruction.address, a)));
            groups += usize::from(ends);
        } else if instruction.opcode.starts_with("WARPGROUP.DEPBAR") {
            let left = instruction.operands.last().and_then(|o| o.strip_prefix("0x")?.parse::<usize>().ok());
            running.retain(|(group, ..)| group + left.unwrap_or(0) >= groups);
        }
        for register in written(instruction) {
            let hit = |(_, step, a): &(usize, u64, u32)| {
                (*a..*a + 4).contains(&register).then_some(Hazard {
                    step: *step,
                    writer: instruction.address,
                    register,
                })
            };
            found.extend(running.iter().filter_map(hit));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sass::parse;

    fn kernel(code: &str) -> Kernel {
        let lines = code.lines().enumerate().map(|(i, line)| format!("/*{i:04x}*/ {line} ;\n"));
        parse(&format!("Function : k\n{}", lines.collect::<String>())).swap_remove(0)
    }

    const STEP: &str = "HGMMA.64x128x16.F32 R24, R88, gdesc[UR20], R24, gsb0";
    const WAIT: &str = "WARPGROUP.DEPBAR.LE gsb0, 0x0";

    #[test]
    fn writes_before_the_wait_are_found() {
        for (writer, registers) in [
            ("F2FP.F16.F32.PACK_AB R88, R1, R2", &[88][..]),
            ("@P0 LDS.128 R84, [R12+UR24]", &[]),
            ("LDS.128 R88, [R12+UR24]", &[88, 89, 90, 91]),
            ("IMAD.WIDE R90, R1, R2, R4", &[90, 91]),
            ("SHFL.IDX PT, R91, R1, R2, 0x1f", &[91]),
            ("LOP3.LUT R92, R88, R89, RZ, 0xc0, !PT", &[]),
            ("ISETP.GE.AND P0, PT, R88, R89, PT", &[]),
            ("STS.128 [R89], R88", &[]),
            ("BAR.SYNC R88, 0x40", &[]),
        ] {
            let found = hazards(&kernel(&format!("{STEP}\n{writer}\n{WAIT}")));
            let found: Vec<u32> = found.into_iter().map(|hazard| hazard.register).collect();
            assert_eq!(found, registers, "{writer}");
            let after = kernel(&format!("{STEP}\n{WAIT}\n{writer}"));
            assert_eq!((hazards(&after), steps(&after)), (Vec::new(), 1), "{writer}");
        }
    }

    #[test]
    fn a_wait_may_leave_groups() {
        let other = "HGMMA.64x128x16.F32 R24, R92, gdesc[UR20], R24, gsb0";
        let writes = "MOV R88, R0\nMOV R92, R0";
        let code = kernel(&format!("{STEP}\n{other}\nWARPGROUP.DEPBAR.LE gsb0, 0x1\n{writes}"));
        assert_eq!(hazards(&code), [Hazard { step: 1, writer: 4, register: 92 }]);
        // Both are one group if only the second one ends it.
        let code = kernel(&format!(
            "{}\n{other}\nWARPGROUP.DEPBAR.LE gsb0, 0x1\n{writes}",
            STEP.replace(", gsb0", "")
        ));
        assert_eq!(hazards(&code).len(), 2);
        let shared = kernel(&format!("HGMMA.64x128x16.F32 R24, gdesc[UR4], R24, gsb0\n{writes}"));
        assert_eq!((hazards(&shared), steps(&shared)), (Vec::new(), 0));
    }
}
