//! Machine code of GPU kernels, as `cuobjdump -sass` prints it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Address in the kernel.
    pub address: u64,
    /// Name with its modifiers, like `IMMA.16832.U8.S8`.
    pub opcode: String,
    /// Its operands, like `R24`, `gdesc[UR20]` and `gsb0`.
    pub operands: Vec<String>,
    /// Where it branches to, if it is a branch with a constant target.
    pub target: Option<u64>,
}

impl Instruction {
    /// The name without modifiers.
    pub fn name(&self) -> &str {
        self.opcode.split('.').next().unwrap_or_default()
    }
}

/// A kernel for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name, as the linker knows it.
    pub name: String,
    /// Its architecture, like `sm_90a`; empty if nothing was said of it.
    pub arch: String,
    /// Instructions by ascending address.
    pub code: Vec<Instruction>,
}

/// Why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No disassembler.
    #[error(
        "no cuobjdump in PATH or under target/cuda-toolkit; `cargo xtask cuda-toolkit` installs one there, \
         --cuobjdump names another"
    )]
    NoDisassembler,
    /// It could not be run, or said that it failed.
    #[error("{}: cuobjdump: {what}", file.display())]
    Disassembler {
        /// What was disassembled.
        file: PathBuf,
        /// What went wrong.
        what: String,
    },
    /// A file without kernels.
    #[error("{}: no machine code of GPU kernels in it", file.display())]
    Nothing {
        /// The file.
        file: PathBuf,
    },
}

/// Kernels of a cubin, a fat binary, or a library or program with fat binaries inside. `tool`: the disassembler.
///
/// # Errors
/// The file cannot be read, or has none.
pub fn of_file(file: &Path, tool: Option<&Path>) -> Result<Vec<Kernel>, Error> {
    let failed = |what: String| Error::Disassembler { file: file.to_owned(), what };
    // Its own message about a missing file says nothing of the file.
    std::fs::metadata(file).map_err(|e| failed(e.to_string()))?;
    let installed =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda-toolkit/nvidia/cu13/bin/cuobjdump");
    let tools = match tool {
        Some(tool) => vec![tool.as_os_str()],
        None => vec![OsStr::new("cuobjdump"), installed.as_os_str()],
    };
    for tool in tools {
        match Command::new(tool).arg("-sass").arg(file).output() {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e.to_string())),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                let kernels = parse(&text);
                if kernels.is_empty() && !output.status.success() {
                    let said = String::from_utf8_lossy(&output.stderr);
                    return Err(failed(said.lines().next().unwrap_or("it failed").to_owned()));
                }
                if kernels.is_empty() {
                    return Err(Error::Nothing { file: file.to_owned() });
                }
                return Ok(kernels);
            }
        }
    }
    Err(Error::NoDisassembler)
}

/// Kernels in the disassembler's text.
pub fn parse(text: &str) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut arch = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("arch = ").or_else(|| line.strip_prefix("code for ")) {
            arch = name.to_owned();
        } else if let Some(name) = line.strip_prefix("Function : ") {
            kernels.push(Kernel { name: name.to_owned(), arch: arch.clone(), code: Vec::new() });
        } else if let (Some(kernel), Some(instruction)) = (kernels.last_mut(), instruction(line)) {
            kernel.code.push(instruction);
        }
    }
    kernels.retain(|kernel| !kernel.code.is_empty());
    kernels
}

/// `/*0a10*/ @!P1 IMAD.MOV.U32 R1, RZ, RZ, R2 ; /* 0x… */`
fn instruction(line: &str) -> Option<Instruction> {
    let (address, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let code = rest.split(';').next()?.trim();
    let mut words = code.split_whitespace().skip_while(|word| word.starts_with('@'));
    let opcode = words.next()?.to_owned();
    let starts = opcode.starts_with(|c: char| c.is_ascii_uppercase());
    let number =
        |word: &str| u64::from_str_radix(word.trim_end_matches([')', ',']).strip_prefix("0x")?, 16).ok();
    let operands: Vec<String> = words.map(|word| word.trim_end_matches(',').to_owned()).collect();
    let target = if opcode.starts_with("BRA") { operands.last().and_then(|o| number(o)) } else { None };
    starts.then_some(Instruction { address, opcode, operands, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
Fatbin elf code:
================
arch = sm_90a
	code for sm_90a
		Function : add_up
	.headerflags	@\"EF_CUDA_TEXMODE_UNIFIED\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
                                                                          /* 0x000fe20000000800 */
        /*0010*/              @!P1 IMAD.MOV.U32 R2, RZ, RZ, R3 ;          /* 0x00 */
        /*0020*/                   WARPSYNC.ALL ;                         /* 0x00 */
        /*0030*/               @P0 BRA P2, 0x10 ;                         /* 0x00 */
        /*0040*/                   BRA 0x40;                              /* 0x00 */
		..........
		Function : nothing
";

    #[test]
    fn instructions_have_their_names_and_branches_their_targets() {
        let kernels = parse(TEXT);
        assert_eq!(kernels.len(), 1, "{kernels:?}");
        assert_eq!((kernels[0].name.as_str(), kernels[0].arch.as_str()), ("add_up", "sm_90a"));
        let code: Vec<(u64, &str, Option<u64>)> =
            kernels[0].code.iter().map(|i| (i.address, i.opcode.as_str(), i.target)).collect();
        assert_eq!(
            code,
            [
                (0, "LDC", None),
                (0x10, "IMAD.MOV.U32", None),
                (0x20, "WARPSYNC.ALL", None),
                (0x30, "BRA", Some(0x10)),
                (0x40, "BRA", Some(0x40)),
            ]
        );
        assert_eq!(kernels[0].code[1].name(), "IMAD");
        assert_eq!(kernels[0].code[1].operands, ["R2", "RZ", "RZ", "R3"]);
        assert_eq!(kernels[0].code[0].operands, ["R1", "c[0x0][0x28]"]);
    }

    #[test]
    fn text_that_is_none_has_no_kernels() {
        for text in ["", "Function : x", "/*zz*/ X ;", "/*0000*/", "\0\u{fffd}/*00*/ \u{fffd}"] {
            assert!(parse(text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error_with_its_name() {
        let why = of_file(Path::new("/nowhere/a.cubin"), None).unwrap_err().to_string();
        assert!(why.contains("/nowhere/a.cubin"), "{why}");
    }
}
