//! `layout`, `mmq` and `probe`: what needs a GPU, and says so where there is none.

use std::fmt::Write as _;

#[cfg(feature = "cuda")]
use anyhow::Context as _;
use anyhow::{Result, bail};
use minfer_lab::layout::{self, Proof};
#[cfg(feature = "cuda")]
use minfer_lab::pairs::{Pairs, Verdict};

/// Prove where tensor-core instructions, and our kernels, have the values of their operands
///
/// Every comparison is exhaustive: the maps among each other on any machine; on a GPU each place of one operand against each
/// of the other, and every bit of a unit of each type that is repacked. Exits with 1 if anything differs.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer-lab layout")]
pub(crate) struct LayoutArgs {
    /// Number of the GPU, which has to be there then; the first one, if there is one, if left out
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "N")]
    gpu: Option<usize>,
    /// Only what needs no GPU
    #[cfg(feature = "cuda")]
    #[arg(long)]
    maps: bool,
}

impl LayoutArgs {
    pub(crate) fn run(self) -> Result<String> {
        let mut proofs = layout::of_maps();
        let mut text = String::new();
        #[cfg(feature = "cuda")]
        let left_out = if self.maps { None } else { on_gpu(self.gpu, &mut proofs)? };
        #[cfg(not(feature = "cuda"))]
        let left_out = Some("this build has no GPU: it was made without `--features cuda`".to_owned());
        text += "| what | compared | mismatches |\n| --- | ---: | ---: |\n";
        for Proof { what, compared, mismatches } in &proofs {
            writeln!(text, "| {what} | {compared} | {mismatches} |")?;
        }
        if let Some(why) = left_out {
            writeln!(text, "\nNot on a GPU: {why}")?;
        }
        proofs.retain(|proof| proof.mismatches > 0 || proof.compared == 0);
        if !proofs.is_empty() {
            let names: Vec<&str> = proofs.iter().map(|proof| proof.what.as_str()).collect();
            bail!("{text}\nnot as it should be: {}", names.join("; "));
        }
        Ok(text)
    }
}

/// What a GPU shows, and how it is compared.
#[cfg(feature = "cuda")]
type Comparison = (minfer_cuda::Observed, fn(&[i32]) -> Vec<Proof>);

/// The comparisons that a GPU is looked at for; why some were left out.
#[cfg(feature = "cuda")]
fn on_gpu(gpu: Option<usize>, proofs: &mut Vec<Proof>) -> Result<Option<String>> {
    use minfer_cuda::{CudaDevice, CudaOptions, KERNEL_TYPES, Observed};
    let device = match CudaDevice::new(&CudaOptions { gpu: gpu.unwrap_or(0), ..CudaOptions::default() }) {
        Ok(device) => device,
        Err(why) if gpu.is_some() => bail!("no GPU: {why}"),
        Err(why) => return Ok(Some(why.to_string())),
    };
    let compare: [Comparison; 6] = [
        (Observed::Ldmatrix, |seen| vec![layout::of_ldmatrix(seen)]),
        (Observed::MmaHalves, |seen| vec![layout::of_mma_halves(seen)]),
        (Observed::MmaBytes, |seen| vec![layout::of_mma_bytes(seen)]),
        (Observed::Wgmma, |seen| vec![layout::of_wgmma(seen)]),
        (Observed::WgmmaAcross, |seen| vec![layout::of_wgmma_across(seen)]),
        (Observed::Formulas, layout::of_formulas),
    ];
    let mut left_out = None;
    for (what, compare) in compare {
        match device.observe(what)? {
            Some(seen) => proofs.extend(compare(&seen)),
            None => left_out = Some(format!("{} has no wgmma", device.info().name)),
        }
    }
    for (ty, name) in KERNEL_TYPES {
        let Some(repacked) = device.repack_every_bit(*ty)? else { continue };
        proofs.push(Proof {
            what: format!(
                "{name} to QT16 and back, every bit of a unit (bytes that differ, bits lost or added)"
            ),
            compared: repacked.units,
            mismatches: repacked.differing + repacked.not_one_bit,
        });
    }
    Ok(left_out)
}

/// Compare variants of one product of Q4_K with many tokens, by interleaved pairs
///
/// The experiment of unrolling the loop over groups: with nibbles unpacked in shared memory (wide), which leaves room for
/// fewer blocks, and packed (nb); what was tried with nb besides; and the int8 profile's own kernel (nb2). TFLOP/s.
#[cfg(feature = "cuda")]
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  minfer-lab mmq\n  minfer-lab mmq --first nb --second nb2 --tokens 512")]
pub(crate) struct MmqArgs {
    /// Number of the GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,
    /// Rows of the matrix
    #[arg(long, value_name = "N", default_value_t = 18944, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    rows: u32,
    /// Its columns, a multiple of 256
    #[arg(long, value_name = "N", default_value_t = 3584, value_parser = clap::value_parser!(u32).range(256..=1 << 20))]
    cols: u32,
    /// Tokens
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    tokens: u32,
    /// Pairs
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// A variant, and one that it is compared with; all of the experiment if left out
    #[arg(long, value_name = "VARIANT", requires = "second")]
    first: Option<String>,
    /// See `--first`
    #[arg(long, value_name = "VARIANT", requires = "first")]
    second: Option<String>,
    /// Blocks that share a multiprocessor at most; as many as fit if left out
    #[arg(long, value_name = "N", requires = "first", value_parser = clap::value_parser!(u32).range(1..=8))]
    blocks: Option<u32>,
}

#[cfg(feature = "cuda")]
impl MmqArgs {
    pub(crate) fn run(self) -> Result<String> {
        use minfer_cuda::MmqVariant::{Ahead, Integers, Least, Of};
        use minfer_cuda::Prefill::{Nb, Nb2, NbUnrolled, Wide, WideUnrolled};
        use minfer_cuda::{CudaDevice, CudaOptions};
        let device = CudaDevice::new(&CudaOptions { gpu: self.gpu, ..CudaOptions::default() })?;
        let [rows, cols, tokens] = [self.rows, self.cols, self.tokens].map(|n| n as usize);
        let product = device.mmq_random(rows, cols, tokens)?;
        let flop = 2.0 * rows as f64 * cols as f64 * tokens as f64;
        let named = |name: &str| {
            let found = minfer_cuda::MmqVariant::ALL.into_iter().find(|variant| variant.name() == name);
            let names = minfer_cuda::MmqVariant::ALL.map(minfer_cuda::MmqVariant::name).join(", ");
            found.with_context(|| format!("{name:?} is none of {names}"))
        };
        let all = match (&self.first, &self.second) {
            (Some(first), Some(second)) => {
                let blocks = self.blocks.unwrap_or_default() as usize;
                vec![(named(first)?, named(second)?, blocks)]
            }
            _ => vec![
                (Of(Wide), Of(WideUnrolled), 1),
                (Of(Nb), Of(NbUnrolled), 1),
                (Of(Nb), Of(NbUnrolled), 2),
                (Of(WideUnrolled), Of(NbUnrolled), 0),
                (Of(NbUnrolled), Ahead, 0),
                (Of(NbUnrolled), Least, 0),
                (Of(NbUnrolled), Integers, 0),
                (Of(NbUnrolled), Of(Nb2), 0),
            ],
        };
        let mut text = format!("{}\n\n{}\n", device.info().name, Verdict::HEAD);
        for (first, second, blocks) in all {
            let rate = |variant| -> Result<f64> { Ok(flop / product.seconds(variant, blocks, 8)? / 1e12) };
            for _ in 0..2 {
                rate(first)?;
                rate(second)?;
            }
            let mut pairs = Vec::new();
            for pair in 0..self.pairs {
                // Which one is first alternates.
                let (a, b) = if pair % 2 == 0 {
                    (rate(first)?, rate(second)?)
                } else {
                    let b = rate(second)?;
                    (rate(first)?, b)
                };
                pairs.push((a, b));
            }
            let name = |variant: minfer_cuda::MmqVariant| match blocks {
                0 => variant.name().to_owned(),
                n => format!("{}, {n} a multiprocessor at most", variant.name()),
            };
            let verdict = Pairs { pairs }.verdict().context("no pairs")?;
            writeln!(text, "{}", verdict.row(&name(first), &name(second)))?;
        }
        Ok(text)
    }
}

/// Measure what this GPU can do at most: memory, tensor-core instructions, unpacking, launches
///
/// The roofs that speeds are compared with. The best of ten runs each; clocks are not fixed.
#[cfg(feature = "cuda")]
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer-lab probe")]
pub(crate) struct ProbeArgs {
    /// Number of the GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,
}

#[cfg(feature = "cuda")]
impl ProbeArgs {
    pub(crate) fn run(self) -> Result<String> {
        use minfer_cuda::{CudaDevice, CudaOptions};
        let device = CudaDevice::new(&CudaOptions { gpu: self.gpu, ..CudaOptions::default() })?;
        let mut text = format!("{}\n\n| what | at most | |\n| --- | ---: | --- |\n", device.info().name);
        for rate in device.rates()? {
            writeln!(text, "| {} | {:.3} | {} |", rate.name, rate.value, rate.unit)?;
        }
        Ok(text)
    }
}
