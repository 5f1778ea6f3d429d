//! Registers, spills and shared memory of every kernel: what ptxas says, and the ledger that it is held to.
//!
//! The ledger (`ledger.toml`) has one line per kernel and architecture, so a change of any of them is a line in a diff.
//! A kernel may use fewer registers than the ledger says, but not more; spills and shared memory are exact.

use std::collections::BTreeMap;

/// What a kernel uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes that a thread stores to local memory because registers ran out.
    pub spills: u32,
    /// Bytes of a thread's stack.
    pub stack: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
}

/// Resources by `<kernel>.<sm>`.
pub type Ledger = BTreeMap<String, Resources>;

/// Reads the output of `ptxas -v`.
pub fn from_ptxas(text: &str) -> Ledger {
    let mut ledger = Ledger::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let mut parts = rest.split('\'');
            current = parts.next().zip(parts.nth(1)).map(|(name, arch)| format!("{name}.{arch}"));
            if let Some(key) = &current {
                ledger.insert(key.clone(), Resources::default());
            }
        }
        let Some(entry) = current.as_ref().and_then(|key| ledger.get_mut(key)) else { continue };
        let number = |what: &str| {
            let before = line.split(what).next().filter(|before| before.len() < line.len())?;
            before.rsplit([' ', ',']).find(|word| !word.is_empty())?.parse::<u32>().ok()
        };
        if line.contains("bytes stack frame") {
            entry.stack = number(" bytes stack frame").unwrap_or_default();
            entry.spills = number(" bytes spill stores").unwrap_or_default();
        }
        if line.contains("Used ") {
            entry.registers = number(" registers").unwrap_or_default();
            entry.shared = number(" bytes smem").unwrap_or_default();
        }
    }
    ledger
}

/// What this build's kernels use.
#[cfg(feature = "cuda")]
pub fn built() -> Ledger {
    from_ptxas(crate::kernels::PTXAS)
}

/// Reads `ledger.toml`: lines `"kernel.sm" = { registers = 1, spills = 0, stack = 0, shared = 0 }`.
pub fn parse(text: &str) -> Ledger {
    let mut ledger = Ledger::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        let field = |name: &str| {
            let digits = value.split(name).nth(1)?.trim_start_matches([' ', '=']);
            digits.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
        };
        let fields = [field("registers"), field("spills"), field("stack"), field("shared")];
        if let [Some(registers), Some(spills), Some(stack), Some(shared)] = fields {
            let key = key.trim().trim_matches('"').to_owned();
            ledger.insert(key, Resources { registers, spills, stack, shared });
        }
    }
    ledger
}

/// The text that [`parse`] reads.
pub fn print(ledger: &Ledger) -> String {
    let line = |(key, r): (&String, &Resources)| {
        let Resources { registers, spills, stack, shared } = r;
        format!(
            "\"{key}\" = {{ registers = {registers}, spills = {spills}, stack = {stack}, shared = {shared} }}\n"
        )
    };
    ledger.iter().map(line).collect()
}

/// What was built and is not as the ledger says. Architectures that were not built are not asked for.
pub fn compare(ledger: &Ledger, built: &Ledger) -> Vec<String> {
    let mut complaints = Vec::new();
    for (key, found) in built {
        match ledger.get(key) {
            None => complaints.push(format!("{key}: not in the ledger")),
            Some(known) => {
                let same = Resources { registers: known.registers, ..*found } == *known;
                if !same || found.registers > known.registers {
                    complaints.push(format!("{key}: {found:?}, the ledger has {known:?}"));
                }
            }
        }
    }
    let arch = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let archs: Vec<String> = built.keys().map(|key| arch(key)).collect();
    let gone = ledger.keys().filter(|key| archs.contains(&arch(key)) && !built.contains_key(*key));
    complaints.extend(gone.map(|key| format!("{key}: in the ledger, but not built")));
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTXAS: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a_q4_k' for 'sm_90a'
ptxas info    : Function properties for a_q4_k
    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 18176 bytes smem
ptxas info    : Compile time = 1.0 ms
ptxas info    : Compiling entry function 'b' for 'sm_80'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
";

    #[test]
    fn what_ptxas_says_is_read() {
        let built = from_ptxas(PTXAS);
        assert_eq!(built["a_q4_k.sm_90a"], Resources { registers: 96, spills: 4, stack: 8, shared: 18176 });
        assert_eq!(built["b.sm_80"], Resources { registers: 32, ..Resources::default() });
        assert_eq!(parse(&print(&built)), built);
    }

    #[test]
    fn more_registers_a_spill_or_a_strange_kernel_are_complaints_and_fewer_registers_are_not() {
        let built = from_ptxas(PTXAS);
        let mut ledger = built.clone();
        assert!(compare(&ledger, &built).is_empty());
        ledger.get_mut("b.sm_80").unwrap().registers = 40;
        assert!(compare(&ledger, &built).is_empty());
        ledger.get_mut("b.sm_80").unwrap().registers = 31;
        ledger.get_mut("a_q4_k.sm_90a").unwrap().spills = 0;
        assert_eq!(compare(&ledger, &built).len(), 2);
        ledger.remove("b.sm_80");
        ledger.insert("gone.sm_80".into(), Resources::default());
        ledger.insert("elsewhere.sm_120".into(), Resources::default());
        assert_eq!(compare(&ledger, &built).len(), 3);
    }
}
