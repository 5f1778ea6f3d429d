//! What the machine offers: instruction sets, cores, memory.

mod amx;
mod memory;

use crate::cores::Cores;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Instruction set levels that there are kernels for, from the plainest on. A level needs all of its features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// x86-64 AVX2, FMA, F16C.
    Avx2,
    /// The same with AVX-VNNI.
    AvxVnni,
    /// x86-64 AVX-512 F, BW, DQ, VL and VNNI.
    Vnni,
    /// The same with AMX-INT8 for products of many tokens.
    Amx,
    /// aarch64 NEON, which every aarch64 has.
    Neon,
    /// aarch64 NEON with the dot product of Armv8.2.
    Dotprod,
    /// The same with the matrix product of bytes of Armv8.6 for products of many tokens.
    I8mm,
}

impl Isa {
    /// All levels, ascending.
    pub const ALL: [Isa; 8] =
        [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Vnni, Isa::Amx, Isa::Neon, Isa::Dotprod, Isa::I8mm];

    /// Whether this machine has the level (asked of the CPU itself, once; never of its model name).
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Vnni.available() && amx::usable().is_ok(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => Isa::Neon.available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => Isa::Dotprod.available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            _ => false,
        }
    }

    /// The best level of this machine.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Isa::Scalar)
    }

    /// The level's name, as `--isa` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Vnni => "vnni",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::Dotprod => "dotprod",
            Isa::I8mm => "i8mm",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no [`Isa`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set `{0}`; known: {known}", known = Isa::ALL.map(Isa::name).join(", "))]
pub struct UnknownIsa(pub String);

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

/// The machine, as far as it matters here.
#[derive(Clone, Debug)]
pub struct Host {
    /// The CPU's name, for people; nothing is decided by it.
    pub cpu: String,
    /// What this process may use of the processors.
    pub cores: Cores,
    /// Bytes of memory that can be had without swapping, if known.
    pub memory_available: Option<u64>,
    /// Bytes of memory, if known.
    pub memory_total: Option<u64>,
    /// The kernel's setting of transparent huge pages: `always`, `madvise` or `never`, if known.
    pub huge_pages: Option<String>,
    /// Available levels, ascending.
    pub isas: Vec<Isa>,
    /// Why there is no AMX level, if there is none.
    pub amx_refused: Option<&'static str>,
}

impl Host {
    /// Looks.
    pub fn detect() -> Host {
        let meminfo = read("/proc/meminfo");
        Host {
            cpu: field(&read("/proc/cpuinfo"), "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: Cores::detect(),
            memory_available: memory_available(),
            memory_total: kilobytes(&meminfo, "MemTotal"),
            huge_pages: bracketed(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            isas: Host::levels(),
            amx_refused: amx_refused(),
        }
    }

    /// Available levels, ascending.
    pub fn levels() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.available()).collect()
    }
}

/// Why there is no AMX level, if there is none.
pub(crate) fn amx_refused() -> Option<&'static str> {
    amx::usable().err()
}

/// Bytes of memory that can be had now, if known.
pub(crate) fn memory_available() -> Option<u64> {
    memory::available(Path::new("/"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The chosen word of a list like `always [madvise] never`.
fn bracketed(text: &str) -> Option<String> {
    let start = text.find('[')?;
    let end = text[start..].find(']')? + start;
    Some(text[start + 1..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   12 kB\n";
        assert_eq!(kilobytes(meminfo, "MemAvailable"), Some(12 * 1024));
        assert_eq!(kilobytes(meminfo, "Absent"), None);
        assert_eq!(bracketed("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(bracketed(""), None);
    }

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        assert_eq!("mmx".parse::<Isa>(), Err(UnknownIsa("mmx".into())));
    }

    /// `cargo xtask cross-isa` reads what this prints, and knows what it must be.
    #[test]
    #[allow(clippy::print_stdout, reason = "read by a program")]
    fn the_best_level_is_the_last_of_those_there_are() {
        let levels = Host::levels();
        println!("levels: {}", levels.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(" "));
        assert_eq!(levels.first(), Some(&Isa::Scalar));
        assert_eq!(levels.last(), Some(&Isa::best()));
        assert!(levels.is_sorted());
    }
}
