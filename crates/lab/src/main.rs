//! `minfer-lab`: the laboratory's command line.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line")]

mod ab;
mod gpu;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use minfer_cuda::ledger;
use minfer_lab::census::{Census, Loop, loops, table};
use minfer_lab::hazards::hazards;
use minfer_lab::occupancy::{Block, Multiprocessor};
use minfer_lab::sass::{self, Kernel};

/// Instruments that a change of a kernel is judged by
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Census(CensusArgs),
    Ledger(LedgerArgs),
    Layout(gpu::LayoutArgs),
    #[cfg(feature = "cuda")]
    Mmq(gpu::MmqArgs),
    #[cfg(feature = "cuda")]
    Probe(gpu::ProbeArgs),
    Ab(ab::Args),
}

/// Count the instructions of a kernel's hot loop by class, of two kernels side by side
///
/// The hot loop is the innermost one with the most tensor-core instructions. Counts are static: what a turn usually goes
/// around is counted too.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  minfer-lab census decode.fatbin --kernel decode_matmul --loops\n  \
    minfer-lab census our.fatbin --kernel mmq_nb_q4_k --against libggml-cuda.so --other mul_mat_q")]
struct CensusArgs {
    /// A cubin, a fat binary, or a library or program with kernels inside
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// FILE is the name of a source file of ours, like decode, whose embedded kernels are meant
    #[cfg(feature = "cuda")]
    #[arg(long)]
    own: bool,
    /// Part of the kernel's name; names are listed if it is left out
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Its architecture, like sm_90a, if the file has several
    #[arg(long, value_name = "SM")]
    arch: Option<String>,
    /// Which loop, as `--loops` numbers them
    #[arg(long = "loop", value_name = "N", default_value_t = 0)]
    which: usize,
    /// List the kernel's loops
    #[arg(long)]
    loops: bool,
    /// Another file with a kernel to compare with
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Part of that kernel's name; the same as the first one's if left out
    #[arg(long, value_name = "NAME")]
    other: Option<String>,
    /// Which of its loops
    #[arg(long, value_name = "N", default_value_t = 0)]
    other_loop: usize,
    /// The disassembler
    #[arg(long, value_name = "PATH")]
    cuobjdump: Option<PathBuf>,
}

/// Show registers, spills and shared memory of our kernels, and what they mean
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  minfer-lab ledger decode\n  minfer-lab ledger --explain decode_matmul.sm_90a --threads 256 \
    --shared 44000"
)]
struct LedgerArgs {
    /// Part of kernels' names, as `<kernel>.<sm>`
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Say what a kernel's registers and shared memory let a multiprocessor hold, and what one block more would cost
    #[arg(long, value_name = "KERNEL.SM", conflicts_with = "name")]
    explain: Option<String>,
    /// Threads of its block
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Bytes of its dynamic shared memory
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    shared: u32,
    /// Compare it with the kernels of this build
    #[cfg(feature = "cuda")]
    #[arg(long)]
    check: bool,
}

/// What `ledger.toml` has.
const LEDGER: &str = include_str!("../../cuda/ledger.toml");

/// The one kernel of a file that was asked for.
fn kernel(all: Vec<Kernel>, name: &str, arch: Option<&str>, file: &std::path::Path) -> Result<Kernel> {
    let fits = |kernel: &Kernel| arch.is_none_or(|arch| kernel.arch == arch);
    let exact = all.iter().any(|kernel| kernel.name == name && fits(kernel));
    let mut found: Vec<Kernel> = all
        .into_iter()
        .filter(|kernel| fits(kernel) && if exact { kernel.name == name } else { kernel.name.contains(name) })
        .collect();
    match found.len() {
        1 => Ok(found.swap_remove(0)),
        0 => bail!("{}: no kernel with {name:?} in its name", file.display()),
        count => {
            let list: Vec<String> =
                found.iter().take(12).map(|kernel| format!("  {}.{}", kernel.name, kernel.arch)).collect();
            bail!("{}: {count} kernels fit {name:?}, name one:\n{}", file.display(), list.join("\n"))
        }
    }
}

/// Loop number `which` of a kernel.
fn hot(kernel: &Kernel, which: usize) -> Result<Loop> {
    let found = loops(kernel);
    let count = found.len();
    found
        .get(which)
        .copied()
        .with_context(|| format!("{}.{}: there is no loop {which}, only {count}", kernel.name, kernel.arch))
}

impl CensusArgs {
    /// The kernels that FILE says.
    fn kernels(&self) -> Result<Vec<Kernel>> {
        #[cfg(feature = "cuda")]
        if self.own {
            let name = self.file.to_string_lossy();
            let image = minfer_cuda::module(&name)
                .with_context(|| format!("no kernels of {name:?} in this build"))?;
            let mut file =
                tempfile::Builder::new().suffix(".fatbin").tempfile().context("a temporary file")?;
            file.write_all(image).context("a temporary file")?;
            return Ok(sass::of_file(file.path(), self.cuobjdump.as_deref())?);
        }
        Ok(sass::of_file(&self.file, self.cuobjdump.as_deref())?)
    }

    fn run(self) -> Result<String> {
        let all = self.kernels()?;
        let Some(name) = &self.kernel else {
            return Ok(all
                .iter()
                .map(|kernel| {
                    format!("{}.{}: {} instructions\n", kernel.name, kernel.arch, kernel.code.len())
                })
                .collect());
        };
        let arch = self.arch.as_deref();
        let own = kernel(all, name, arch, &self.file)?;
        if self.loops {
            let line = |(i, l): (usize, &Loop)| {
                let census = Census::of(&own, *l);
                let (from, to) = (own.code[l.first].address, own.code[l.last].address);
                format!(
                    "{i}: {from:#x} to {to:#x}, {} instructions, {} of tensor cores, {} multiply-adds\n",
                    census.total(),
                    census.counts[0],
                    census.macs
                )
            };
            return Ok(loops(&own).iter().enumerate().map(line).collect());
        }
        let census = Census::of(&own, hot(&own, self.which)?);
        let other = match &self.against {
            None => None,
            Some(file) => {
                let all = sass::of_file(file, self.cuobjdump.as_deref())?;
                let other = kernel(all, self.other.as_deref().unwrap_or(name), arch, file)?;
                Some(Census::of(&other, hot(&other, self.other_loop)?))
            }
        };
        let mut text = table(&census, other.as_ref());
        for hazard in hazards(&own) {
            text += &format!(
                "\nR{} is written at {:#x} while the step at {:#x} reads it\n",
                hazard.register, hazard.writer, hazard.step
            );
        }
        for census in [Some(&census), other.as_ref()].into_iter().flatten() {
            if !census.unknown.is_empty() {
                text += &format!("\n{}: of no known class: {}\n", census.kernel, census.unknown.join(", "));
            }
        }
        Ok(text)
    }
}

impl LedgerArgs {
    fn run(self) -> Result<String> {
        let kernels = ledger::parse(LEDGER);
        #[cfg(feature = "cuda")]
        if self.check {
            let complaints = ledger::compare(&kernels, &ledger::built());
            if !complaints.is_empty() {
                bail!("the kernels of this build are not as the ledger says:\n{}", complaints.join("\n"));
            }
            return Ok(format!("{} kernels are as the ledger says\n", ledger::built().len()));
        }
        let Some(key) = &self.explain else {
            let part = self.name.as_deref().unwrap_or_default();
            let some: ledger::Ledger = kernels.into_iter().filter(|(key, _)| key.contains(part)).collect();
            if some.is_empty() {
                bail!("the ledger has no kernel with {part:?} in its name");
            }
            return Ok(ledger::print(&some));
        };
        let resources = kernels.get(key).with_context(|| format!("the ledger has no {key:?}"))?;
        let arch = key.rsplit('.').next().unwrap_or_default();
        let sm = Multiprocessor::of(arch).with_context(|| format!("the limits of {arch:?} are not known"))?;
        let block = Block {
            threads: self.threads,
            registers: resources.registers,
            shared: resources.shared.saturating_add(self.shared),
        };
        let mut text = format!("{key}\n{}", block.explain(&sm));
        if resources.spills > 0 {
            text += &format!("{} B a thread are spilled\n", resources.spills);
        }
        Ok(text)
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Census(args) => args.run(),
        Command::Ledger(args) => args.run(),
        Command::Layout(args) => args.run(),
        #[cfg(feature = "cuda")]
        Command::Mmq(args) => args.run(),
        #[cfg(feature = "cuda")]
        Command::Probe(args) => args.run(),
        Command::Ab(args) => args.run(),
    };
    let written = result.and_then(|text| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough.
        Err(why) if is_broken_pipe(&why) => ExitCode::SUCCESS,
        Err(why) => {
            // Not `eprintln!`, which panics where stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: {why:#}");
            ExitCode::FAILURE
        }
    }
}
