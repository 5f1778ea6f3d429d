//! `minfer doctor`.

use anyhow::Result;
use minfer::cpu::{Host, Isa, Numerics, kernels, probe};
use minfer::facts::human_bytes;
use minfer::source::{Cache, NAMED};
use serde_json::{Value, json};

use super::terminal::print;

/// Show what this machine offers, what would be used, and why not more
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer doctor\n  minfer doctor --json")]
pub(super) struct Args {
    /// List every kernel
    #[arg(long)]
    kernels: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let host = Host::detect();
        let cache = Cache::from_env();
        let bandwidth = probe::read_bandwidth(host.cores.threads()).ok();
        if self.json {
            let report = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "build_commit": minfer::BUILD_COMMIT,
                "cpu": host.cpu,
                "cores": host.cores.parallelism,
                "threads": host.cores.threads(),
                "processors": json!({
                    "online": host.cores.online, "allowed": host.cores.allowed,
                    "physical": host.cores.physical, "fast": host.cores.fast, "quota": host.cores.quota,
                }),
                "isa": Isa::best().name(),
                "isas": Isa::ALL.map(|isa| json!({"name": isa.name(), "available": isa.available()})),
                "memory_total": host.memory_total,
                "memory_available": host.memory_available,
                "huge_pages": host.huge_pages,
                "read_bandwidth": bandwidth,
                "architectures": minfer::model::ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>(),
                "cache": cache.as_ref().ok().map(|c| c.dir().display().to_string()),
                "gpu": gpu_report(),
                "kernels": kernels(Isa::best(), Numerics::Exact).map(|k| json!({
                    "id": k.id(), "op": k.op, "type": k.ty.name(), "activations": k.activations,
                })).collect::<Value>(),
            });
            return print(format!("{}\n", serde_json::to_string_pretty(&report)?));
        }
        let mut text = format!("minfer        {} ({})\n", env!("CARGO_PKG_VERSION"), minfer::BUILD_COMMIT);
        text += &machine(&host, bandwidth);
        text += &format!(
            "models        {}\n",
            minfer::model::ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ")
        );
        text += &self.kernel_table();
        match cache {
            Ok(cache) => {
                text += &format!("cache         {}\n", cache.dir().display());
                for model in NAMED {
                    let state = if cache.get(model).is_some() { "here" } else { "not fetched" };
                    text +=
                        &format!("                pip:{:<14} {:<12} {}\n", model.name, state, model.about);
                }
            }
            Err(e) => text += &format!("cache         {e}\n"),
        }
        print(text)
    }

    /// Kernels of the chosen level: which types have one of their own.
    fn kernel_table(&self) -> String {
        let isa = Isa::best();
        if self.kernels {
            let mut text = String::from("kernels\n");
            for k in kernels(isa, Numerics::Exact) {
                text += &format!("                {:<28} activations {}\n", k.id(), k.activations);
            }
            return text;
        }
        let names = |tuned: bool| {
            let of_kind = kernels(isa, Numerics::Exact).filter(|k| (k.op == "matmul") == tuned);
            of_kind.map(|k| k.ty.name()).collect::<Vec<_>>().join(" ")
        };
        format!(
            "kernels       tuned for {isa}: {}\n                dequantized, slower: {}\n",
            names(true),
            names(false)
        )
    }
}

fn machine(host: &Host, bandwidth: Option<f64>) -> String {
    let best = Isa::best();
    let mut text = format!("processor     {}\n", host.cpu);
    text += &format!("threads       {} will be used: {}\n", host.cores.threads(), host.cores);
    text += &format!("instructions  {best} will be used\n");
    for isa in Isa::ALL {
        let why = match isa {
            _ if isa == best => "in use",
            _ if isa.available() => "available, slower; --isa takes it",
            Isa::Amx => host.amx_refused.unwrap_or("not on this processor"),
            _ => "not on this processor",
        };
        text += &format!("                {:<8} {why}\n", isa.name());
    }
    let bytes = |value: Option<u64>| value.map_or_else(|| "unknown".to_owned(), human_bytes);
    text += &format!(
        "memory        {} available of {}; huge pages: {}\n",
        bytes(host.memory_available),
        bytes(host.memory_total),
        host.huge_pages.as_deref().unwrap_or("unknown")
    );
    if host.huge_pages.as_deref() == Some("never") {
        text += "                huge pages are off: large weights would gain from madvise or always\n";
    }
    match bandwidth {
        Some(rate) => {
            text +=
                &format!("                {:.1} GB/s read by {} threads\n", rate / 1e9, host.cores.threads())
        }
        None => text += "                bandwidth could not be measured\n",
    }
    text + &gpu_text()
}

/// One line per GPU, or why there is none.
fn gpu_text() -> String {
    let mut text = String::new();
    #[cfg(feature = "cuda")]
    for gpu in minfer::cuda::gpus().unwrap_or_default() {
        let (major, minor) = gpu.capability;
        let driver = format!("{}.{}", gpu.driver / 1000, gpu.driver % 1000 / 10);
        text += &format!(
            "GPU {:<9} {}, compute capability {major}.{minor}, {} multiprocessors, {}; driver for CUDA {driver}\n",
            gpu.index,
            gpu.name,
            gpu.multiprocessors,
            human_bytes(gpu.memory)
        );
        text += &match gpu.unusable {
            None => {
                let numerics = minfer::cuda::Numerics::of(gpu.capability);
                format!("                will be used, with --numerics {numerics}; --device cpu does not\n")
            }
            Some(why) => format!("                not used: {why}\n"),
        };
    }
    #[cfg(feature = "cuda")]
    if !text.is_empty() {
        text += &format!("                kernels for {}\n", minfer::cuda::ARCHS);
    }
    if text.is_empty() {
        text = format!("GPU           none: {}\n", minfer::gpu_unavailable().unwrap_or_default());
    }
    text
}

/// The same for programs.
fn gpu_report() -> Value {
    #[cfg(feature = "cuda")]
    let gpus = minfer::cuda::gpus().unwrap_or_default();
    #[cfg(feature = "cuda")]
    let gpus = gpus.iter().map(|gpu| {
        json!({
            "index": gpu.index,
            "name": gpu.name,
            "compute_capability": format!("{}.{}", gpu.capability.0, gpu.capability.1),
            "multiprocessors": gpu.multiprocessors,
            "memory": gpu.memory,
            "driver_cuda": gpu.driver,
            "numerics": minfer::cuda::Numerics::of(gpu.capability).name(),
            "unusable": gpu.unusable.as_ref().map(ToString::to_string),
        })
    });
    #[cfg(not(feature = "cuda"))]
    let gpus = std::iter::empty::<Value>();
    json!({ "gpus": gpus.collect::<Value>(), "unavailable": minfer::gpu_unavailable() })
}
