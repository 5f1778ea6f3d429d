//! `cargo xtask wide`: no instruction beyond x86-64's base outside of the functions that run-time dispatch guards.
//!
//! One such instruction in common code (by a flag, a dependency, or a kernel inlined where it should not be) makes the
//! binary die on the machines that lack it, and tests on newer machines never notice. So the release binary is
//! disassembled, and each function's instructions are held against what its place allows: a level of `minfer-cpu` its
//! own features and no later ones, a few dependencies that look at the CPU themselves, all else nothing. Whether the
//! guards are right in turn is what tests on older (emulated) processors show.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Extensions of x86-64, as far as encodings tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ext {
    /// SSE3 to SSE4.2, AES, SHA and others of their time, in legacy encoding.
    Sse4,
    /// BMI1 and BMI2: general registers, VEX encoding.
    Bmi,
    /// AVX, AVX2, FMA, F16C: vectors, VEX encoding.
    Avx,
    /// AVX-VNNI: dot products in VEX encoding.
    AvxVnni,
    /// EVEX encoding, and mask registers.
    Avx512,
    /// Tiles.
    Amx,
}

use Ext::{Amx, Avx, Avx512, AvxVnni, Bmi, Sse4};

/// Where functions may have which extensions, by the start of their names, and why.
const ALLOWED: &[(&str, &[Ext], &str)] = &[
    ("minfer_cpu::arch::avx2::", &[Sse4, Avx], "taken from the table of levels"),
    ("minfer_cpu::arch::avxvnni::", &[Sse4, Avx, AvxVnni], "taken from the table of levels"),
    ("minfer_cpu::arch::vnni::", &[Sse4, Avx, Avx512], "taken from the table of levels"),
    ("minfer_cpu::arch::amx::", &[Sse4, Avx, Avx512, Amx], "taken from the table of levels"),
    ("minfer_cpu::detect::amx::", &[Amx], "tries tiles once CPUID and the kernel offer them"),
    ("memchr::arch::x86_64::", &[Sse4, Avx], "memchr asks std_detect"),
    ("aho_corasick::packed::teddy::builder::x86_64::", &[Sse4, Avx], "aho-corasick asks std_detect"),
    ("httparse::simd::avx2::", &[Sse4, Avx], "httparse asks std_detect"),
    ("httparse::simd::sse42::", &[Sse4], "httparse asks std_detect"),
    ("crc32fast::specialized::", &[Sse4, Avx, Avx512], "crc32fast asks std_detect"),
    ("sha2::sha256::x86::", &[Sse4], "sha2 asks cpufeatures"),
    ("half::binary16::arch::x86::", &[Avx], "half asks std_detect"),
    ("compiler_builtins::math::libm_math::arch::x86::", &[Avx], "fma of compiler-builtins asks CPUID"),
    // ring's assembly, with its internal labels; ring asks CPUID at first use.
    ("ring_core_", &[Sse4, Bmi, Avx], "ring asks CPUID"),
    ("_aesni_", &[Sse4, Avx], "ring asks CPUID"),
    ("_vpaes_", &[Sse4], "ring asks CPUID"),
    ("__bn_", &[Sse4, Bmi], "ring asks CPUID"),
    ("__ecp_nistz256_", &[Sse4, Bmi], "ring asks CPUID"),
    ("mulx4x_internal", &[Sse4, Bmi], "ring asks CPUID"),
    ("process_extra_in_trailer", &[Sse4], "ring asks CPUID"),
];

/// The intrinsics, where they were not inlined: what counts is who calls them.
const INTRINSICS: &str = "core::core_arch::";

/// Where generic functions pass calls on, as `map` of an array does with an intrinsic: what counts is who calls those.
const CORE: &str = "core::";

/// Disassembles the binary, which is built first if none is named, and fails if a function has what it may not.
pub(crate) fn run(root: &Path, binary: Option<&str>) -> Result<()> {
    let binary = match binary {
        Some(path) => PathBuf::from(path),
        None => build(root)?,
    };
    let mut objdump = Command::new("objdump")
        .args(["--disassemble", "--demangle", "--wide"])
        .arg(&binary)
        .stdout(Stdio::piped())
        .spawn()
        .context(
            "cannot run objdump; it comes with gcc or clang's linker (Debian: apt-get install binutils)",
        )?;
    let out = objdump.stdout.take().context("objdump has no output")?;
    let mut scan = Scan::default();
    for line in BufReader::new(out).lines() {
        scan.line(&line.context("output of objdump")?);
    }
    let status = objdump.wait()?;
    if !status.success() {
        bail!("objdump {}: {status}", binary.display());
    }
    let complaints = scan.complaints()?;
    for complaint in &complaints {
        println!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("wide: {} functions have instructions that nothing guards", complaints.len());
    }
    let guarded = scan.functions.values().filter(|f| !f.found.is_empty()).count();
    println!("wide: {} functions, {guarded} of them beyond x86-64's base and guarded", scan.functions.len());
    Ok(())
}

/// Builds `minfer` and returns its path.
fn build(root: &Path) -> Result<PathBuf> {
    let out = Command::new(env!("CARGO"))
        .args(["build", "--release", "--package", "minfer", "--message-format=json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !out.status.success() {
        bail!("cargo build: {}", out.status);
    }
    let messages = String::from_utf8(out.stdout).context("messages of cargo")?;
    let executable = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    executable.context("cargo built no executable")
}

/// A function. Names may come more than once: types are not always in them.
#[derive(Debug, Default)]
struct Function {
    name: String,
    /// Extensions, each with an instruction that needs it.
    found: BTreeMap<Ext, String>,
    /// Addresses of the functions of [`CORE`] that it calls.
    calls: BTreeSet<u64>,
}

/// A disassembly, as it is read.
#[derive(Default)]
struct Scan {
    x86_64: bool,
    /// By address.
    functions: BTreeMap<u64, Function>,
    current: u64,
}

impl Scan {
    /// Takes a line of `objdump --disassemble --demangle --wide`.
    fn line(&mut self, line: &str) {
        if line.ends_with("file format elf64-x86-64") {
            self.x86_64 = true;
        } else if let Some((address, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <"))
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            self.current = address;
            self.functions.insert(address, Function { name: name.to_owned(), ..Function::default() });
        }
        // "address:", bytes, instruction.
        let mut fields = line.split('\t');
        let (Some(_), Some(bytes), Some(text)) = (fields.next(), fields.next(), fields.next()) else {
            return;
        };
        let Some(function) = self.functions.get_mut(&self.current) else { return };
        if let Some(ext) = extension(bytes, text) {
            function.found.entry(ext).or_insert_with(|| text.trim_end().to_owned());
        }
        if let Some((before, target)) = text.split_once(" <")
            && target.starts_with(CORE)
            && let Some(address) = before.split(' ').next_back()
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            function.calls.insert(address);
        }
    }

    /// Extensions of each function, with those of the functions of [`CORE`] that it calls.
    fn needs(&self) -> BTreeMap<u64, BTreeMap<Ext, String>> {
        let mut needs: BTreeMap<_, _> = self.functions.iter().map(|(at, f)| (*at, f.found.clone())).collect();
        loop {
            let mut changed = false;
            for (at, function) in &self.functions {
                for callee in &function.calls {
                    let more = needs.get(callee).cloned().unwrap_or_default();
                    let all = needs.entry(*at).or_default();
                    let before = all.len();
                    more.into_iter().for_each(|(ext, text)| _ = all.entry(ext).or_insert(text));
                    changed |= all.len() > before;
                }
            }
            if !changed {
                return needs;
            }
        }
    }

    /// Functions that have what their places do not allow.
    fn complaints(&self) -> Result<Vec<String>> {
        if !self.x86_64 {
            bail!("wide: no x86-64 binary");
        }
        if !self.functions.values().any(|f| place(&f.name).starts_with("minfer_cpu::arch::avx2::")) {
            bail!("wide: no function of minfer_cpu::arch::avx2; is the binary stripped?");
        }
        let called: BTreeSet<u64> = self.functions.values().flat_map(|f| f.calls.iter().copied()).collect();
        let needs = self.needs();
        let mut complaints = Vec::new();
        for (at, function) in &self.functions {
            let name = &function.name;
            let passes_on = name.starts_with(CORE) && function.found.is_empty() && called.contains(at);
            if passes_on || name.starts_with(INTRINSICS) {
                continue;
            }
            let allowed =
                ALLOWED.iter().find(|(start, ..)| place(name).starts_with(start)).map_or(&[][..], |a| a.1);
            if let Some((ext, text)) = needs[at].iter().find(|(ext, _)| !allowed.contains(ext)) {
                complaints.push(format!("{name}: {ext:?}, as in `{text}`"));
            }
        }
        Ok(complaints)
    }
}

/// The path of a function: `<T as Trait>::f` is where `T` is.
fn place(name: &str) -> &str {
    name.trim_start_matches(['<', '&'])
}

/// The extension that an instruction needs, from its bytes as far as they tell.
fn extension(bytes: &str, text: &str) -> Option<Ext> {
    // Segment and address size prefixes; no other may precede VEX and EVEX.
    let opcode =
        bytes.split(' ').find(|byte| !matches!(*byte, "26" | "2e" | "36" | "3e" | "64" | "65" | "67"));
    let mnemonic = text.split(' ').find(|word| !is_prefix(word))?.trim_end();
    let vector = |registers: &[&str]| registers.iter().any(|register| text.contains(register));
    match opcode? {
        "62" => Some(Avx512),
        "c4" | "c5" if vector(&["%tmm"]) || mnemonic.contains("tile") => Some(Amx),
        "c4" | "c5" if mnemonic.starts_with('k') => Some(Avx512),
        "c4" | "c5" if mnemonic.starts_with("vpdp") => Some(AvxVnni),
        "c4" | "c5" if mnemonic.starts_with('v') => Some(Avx),
        "c4" | "c5" => Some(Bmi),
        // FMA4 and XOP of a few processors of AMD; never to be seen.
        "8f" if mnemonic.starts_with("vp") => Some(Avx),
        _ => is_later_legacy(mnemonic).then_some(Sse4),
    }
}

/// What objdump writes before a mnemonic.
fn is_prefix(word: &str) -> bool {
    const PREFIXES: &[&str] =
        &["", "lock", "rep", "repz", "repnz", "data16", "addr32", "bnd", "notrack", "xacquire"];
    PREFIXES.contains(&word)
        || word.starts_with('{')
        || word.starts_with("rex")
        || (word.len() == 2 && word.ends_with('s'))
}

/// Whether an instruction in legacy encoding came after SSE2. `tzcnt` is left out: older processors run it as `bsf`,
/// and compilers use that. So is `xgetbv`, which detection asks after CPUID.
fn is_later_legacy(mnemonic: &str) -> bool {
    const STARTS: &[&str] = &[
        "addsubp",
        "haddp",
        "hsubp",
        "lddqu",
        "movddup",
        "movshdup",
        "movsldup", // SSE3
        "pabs",
        "palignr",
        "phadd",
        "phsub",
        "pmaddubsw",
        "pmulhrsw",
        "pshufb",
        "psign", // SSSE3
        "blend",
        "dpp",
        "extractps",
        "insertps",
        "movntdqa",
        "mpsadbw",
        "packusdw",
        "pblend",
        "pcmpeqq",
        "pextrb",
        "pextrd",
        "pextrq",
        "phminposuw",
        "pinsrb",
        "pinsrd",
        "pinsrq",
        "pmaxsb",
        "pmaxsd",
        "pmaxud",
        "pmaxuw",
        "pminsb",
        "pminsd",
        "pminud",
        "pminuw",
        "pmovsx",
        "pmovzx",
        "pmuldq",
        "pmulld",
        "ptest",
        "roundp",
        "rounds", // SSE4.1
        "crc32",
        "pcmpestr",
        "pcmpgtq",
        "pcmpistr", // SSE4.2
        "adcx",
        "adox",
        "aesdec",
        "aesenc",
        "aesimc",
        "aeskeygen",
        "gf2p8",
        "lzcnt",
        "movbe",
        "pclmul",
        "popcnt",
        "rdrand",
        "rdseed",
        "sha1",
        "sha256",
    ];
    STARTS.iter().any(|start| mnemonic.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "minfer:     file format elf64-x86-64\n\n0000000000001000 <minfer_cpu::arch::avx2::entry::norm>:\n    \
                        1000:\tc5 fc 58 c1          \tvaddps %ymm1,%ymm0,%ymm0\n";

    /// The complaints about the usual and, after it, a function with these lines.
    fn complaints(function: &str, lines: &[&str]) -> Vec<String> {
        let mut scan = Scan::default();
        let body: String = lines.iter().map(|line| format!("    2000:\t{line}\n")).collect();
        format!("{HEAD}\n0000000000002000 <{function}>:\n{body}").lines().for_each(|line| scan.line(line));
        scan.complaints().expect("a disassembly")
    }

    #[test]
    fn wide_instructions_in_common_code_are_found() {
        for (line, ext) in [
            ("c5 fc 58 c1          \tvaddps %ymm1,%ymm0,%ymm0", Avx),
            ("c5 fa 10 07          \tvmovss (%rdi),%xmm0", Avx),
            ("62 f1 7c 48 58 c1    \tvaddps %zmm1,%zmm0,%zmm0", Avx512),
            ("62 f1 fe 28 6f 07    \tvmovdqu64 (%rdi),%ymm0", Avx512),
            ("c5 f8 92 c8          \tkmovw  %eax,%k1", Avx512),
            ("c4 e2 75 50 c2       \t{vex} vpdpbusd %ymm2,%ymm1,%ymm0", AvxVnni),
            ("c4 e2 73 5e c2       \ttdpbssd %tmm1,%tmm2,%tmm0", Amx),
            ("c4 e2 78 49 07       \tldtilecfg (%rdi)", Amx),
            ("c4 e2 f3 f6 c2       \tmulx   %rdx,%rcx,%rax", Bmi),
            ("66 0f 38 00 c1       \tpshufb %xmm1,%xmm0", Sse4),
            ("f3 0f b8 c7          \tpopcnt %edi,%eax", Sse4),
            ("65 c5 fc 10 00       \tvmovups %gs:(%rax),%ymm0", Avx),
        ] {
            let found = complaints("minfer::cli::run", &["55                   \tpush   %rbp", line]);
            assert_eq!(found.len(), 1, "{line}");
            assert!(found[0].starts_with(&format!("minfer::cli::run: {ext:?}, as in `")), "{found:?}");
        }
    }

    #[test]
    fn the_base_is_free() {
        for line in [
            "0f 58 c1             \taddps  %xmm1,%xmm0",
            "66 0f ef c0          \tpxor   %xmm0,%xmm0",
            "f0 48 0f b1 0f       \tlock cmpxchg %rcx,(%rdi)",
            "f3 0f bc c7          \ttzcnt  %edi,%eax",
            "f3 48 ab             \trep stos %rax,%es:(%rdi)",
            "0f 00 e0             \tverr   %ax",
            "e8 00 00 00 00       \tcall   3000 <minfer::main>",
        ] {
            assert_eq!(complaints("minfer::cli::run", &[line]), [""; 0], "{line}");
        }
    }

    #[test]
    fn a_level_has_no_later_levels_instructions() {
        let vnni = "62 f2 75 48 50 c2    \tvpdpbusd %zmm2,%zmm1,%zmm0";
        let avx_vnni = "c4 e2 75 50 c2       \t{vex} vpdpbusd %ymm2,%ymm1,%ymm0";
        let avx = "c5 fc 58 c1          \tvaddps %ymm1,%ymm0,%ymm0";
        let refused = |level: &str, line| {
            !complaints(&format!("minfer_cpu::arch::{level}::entry::gated"), &[line]).is_empty()
        };
        let levels = ["scalar", "avx2", "avxvnni", "vnni"];
        assert_eq!(levels.map(|level| refused(level, avx)), [true, false, false, false]);
        assert_eq!(levels.map(|level| refused(level, avx_vnni)), [true, true, false, true]);
        assert_eq!(levels.map(|level| refused(level, vnni)), [true, true, true, false]);
        assert!(!complaints("<minfer_cpu::kernel::Tile as Clone>::clone", &[avx]).is_empty());
        assert!(complaints("<memchr::arch::x86_64::avx2::One as Clone>::clone", &[avx]).is_empty());
    }

    #[test]
    fn an_intrinsic_belongs_to_its_caller() {
        const MAP: &str = "core::array::<impl [T; N]>::map";
        const LOAD: &str = "core::core_arch::x86::avx::_mm256_loadu_ps";
        let scan = |caller: &str, map_is_called: bool| {
            let callee = if map_is_called { format!("3000 <{MAP}>") } else { "5000 <minfer::f>".to_owned() };
            let text = format!(
                "{HEAD}\n0000000000002000 <{caller}>:\n    2000:\te8 00 00 00 00       \tcall   {callee}\n\n\
                 0000000000003000 <{MAP}>:\n    3000:\te9 00 00 00 00       \tjmp    4000 <{LOAD}>\n\n\
                 0000000000004000 <{LOAD}>:\n    4000:\tc5 fc 10 07          \tvmovups (%rdi),%ymm0\n"
            );
            let mut scan = Scan::default();
            text.lines().for_each(|line| scan.line(line));
            scan.complaints().expect("a disassembly")
        };
        assert_eq!(scan("minfer::cli::run", true), ["minfer::cli::run: Avx, as in `vmovups (%rdi),%ymm0`"]);
        assert_eq!(scan("memchr::arch::x86_64::find", true), [""; 0]);
        assert_eq!(scan("minfer::cli::run", false), [format!("{MAP}: Avx, as in `vmovups (%rdi),%ymm0`")]);
    }

    #[test]
    fn what_tells_nothing_is_refused() {
        assert!(Scan::default().complaints().is_err(), "nothing disassembled");
        let mut stripped = Scan::default();
        let text = "minfer:     file format elf64-x86-64\n\n0000000000001000 <.text>:\n";
        text.lines().for_each(|line| stripped.line(line));
        assert!(stripped.complaints().is_err(), "no names");
    }
}
