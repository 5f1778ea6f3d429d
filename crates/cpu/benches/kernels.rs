//! Every product kernel × instruction set: GB/s of weights for one token, TOPS for many, and the share of the roof.
//!
//! `cargo bench -p minfer-cpu --bench kernels -- [OPTIONS]`; `--help` lists them. Kernels take turns, round after
//! round, so that a disturbance hits all alike; the figure is the median of the rounds.
//!
//! The roof of a product is the time of its slower resource: weights at the memory's read bandwidth, or multiply-adds
//! at the rate of a loop that does nothing else, both measured at the start.

#![allow(clippy::print_stdout)] // the report

use clap::Parser;
use minfer_cpu::pool::Pool;
use minfer_cpu::probe::{self, PeakRates, Product, ProductSpec};
use minfer_cpu::{Isa, Numerics};
use minfer_gguf::GgmlType;
use serde_json::{Value, json};

#[derive(Parser)]
struct Args {
    /// Levels, by comma [default: all of this machine]
    #[arg(long, value_delimiter = ',')]
    isa: Vec<Isa>,
    /// Numerics profile
    #[arg(long, default_value_t)]
    numerics: Numerics,
    /// Weight types, by comma [default: all that have a kernel of their own]
    #[arg(long = "type", value_delimiter = ',')]
    types: Vec<String>,
    /// Tokens, by comma
    #[arg(long, value_delimiter = ',', default_value = "1,4,512")]
    tokens: Vec<usize>,
    /// Worker threads
    #[arg(short, long, default_value_t = std::thread::available_parallelism().map_or(1, |n| n.get()))]
    threads: usize,
    /// Rounds
    #[arg(short, long, default_value_t = 7)]
    rounds: usize,
    /// md or json
    #[arg(short, long, default_value = "md")]
    output: String,
    /// MiB of weights for products of few tokens: more than the caches hold
    #[arg(long, default_value_t = 128)]
    mib: usize,
    /// Columns of the matrices
    #[arg(long, default_value_t = 4096)]
    cols: usize,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

struct Row {
    spec: ProductSpec,
    id: String,
    activations: &'static str,
    bytes: usize,
    operations: f64,
    seconds: f64,
    roof: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let mut pool = Pool::new(args.threads)?;
    let bandwidth = probe::read_bandwidth(args.threads)?;
    let levels: Vec<Isa> = match args.isa.as_slice() {
        [] => Isa::ALL.into_iter().filter(|isa| isa.available()).collect(),
        asked => asked.to_vec(),
    };
    let types: Vec<GgmlType> = GgmlType::ALL
        .iter()
        .copied()
        .filter(|ty| match args.types.as_slice() {
            [] => minfer_cpu::kernels(Isa::Scalar, Numerics::Exact).any(|k| k.ty == *ty && k.op == "matmul"),
            asked => asked.iter().any(|name| name.eq_ignore_ascii_case(ty.name())),
        })
        .collect();
    let mut rows = Vec::new();
    let mut peaks = Vec::new();
    for isa in levels {
        let peak = probe::peak_rates(isa, &mut pool)?;
        peaks.push((isa, peak));
        for &tokens in &args.tokens {
            rows.extend(measure(&args, isa, &types, tokens, bandwidth, peak, &mut pool)?);
        }
    }
    if args.output == "json" {
        println!("{:#}", report(&args, bandwidth, &peaks, &rows));
    } else {
        print_table(&args, bandwidth, &peaks, &rows);
    }
    Ok(())
}

/// All types at one level and number of tokens, in turns.
fn measure(
    args: &Args,
    isa: Isa,
    types: &[GgmlType],
    tokens: usize,
    bandwidth: f64,
    peak: PeakRates,
    pool: &mut Pool,
) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let mut rows = Vec::new();
    // A few types at a time: each holds its matrix.
    for group in types.chunks(4) {
        let mut products = Vec::new();
        for &ty in group {
            let row_bytes = ty.bytes_of(args.cols).ok_or("columns are no whole blocks")?;
            // Few tokens: bound by memory, so more weights than the caches hold. Many: a matrix of a usual size, fewer
            // rows where a product would take seconds.
            let rows = match tokens {
                0..16 => (args.mib << 20) / row_bytes / 16 * 16,
                _ if isa == Isa::Scalar => 64,
                _ => 1024,
            };
            let spec = ProductSpec { isa, numerics: args.numerics, ty, rows, cols: args.cols, tokens };
            products.push((spec, Product::new(spec, pool)?, Vec::new()));
        }
        for round in 0..=args.rounds {
            for (_, product, times) in &mut products {
                let time = product.run(pool).as_secs_f64();
                // The first round warms up.
                if round > 0 {
                    times.push(time);
                }
            }
        }
        for (spec, product, mut times) in products {
            times.sort_by(f64::total_cmp);
            let kernel = product.kernel().ok_or("a type without a kernel")?;
            let rate = if kernel.activations == "f32" { peak.f32 } else { peak.int8 };
            let roof = (product.weight_bytes() as f64 / bandwidth).max(product.operations() / rate);
            rows.push(Row {
                spec,
                id: kernel.id(),
                activations: kernel.activations,
                bytes: product.weight_bytes(),
                operations: product.operations(),
                seconds: times[times.len() / 2],
                roof,
            });
        }
    }
    Ok(rows)
}

fn print_table(args: &Args, bandwidth: f64, peaks: &[(Isa, PeakRates)], rows: &[Row]) {
    println!("{} threads; memory {:.1} GB/s", args.threads, bandwidth / 1e9);
    for (isa, peak) in peaks {
        println!("{isa}: int8 {:.3} TOPS, f32 {:.3} TFLOPS", peak.int8 / 1e12, peak.f32 / 1e12);
    }
    println!("\n| kernel | activations | tokens | ms | GB/s | TOPS | roof |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    for row in rows {
        println!(
            "| {} | {} | {} | {:.3} | {:.1} | {:.3} | {:.0}% |",
            row.id,
            row.activations,
            row.spec.tokens,
            row.seconds * 1e3,
            row.bytes as f64 / row.seconds / 1e9,
            row.operations / row.seconds / 1e12,
            100.0 * row.roof / row.seconds
        );
    }
}

fn report(args: &Args, bandwidth: f64, peaks: &[(Isa, PeakRates)], rows: &[Row]) -> Value {
    let host = minfer_cpu::Host::detect();
    json!({
        "cpu_info": host.cpu,
        "threads": args.threads,
        "read_bandwidth": bandwidth,
        "peaks": peaks.iter().map(|(isa, peak)| json!({
            "isa": isa.name(), "int8": peak.int8, "f32": peak.f32,
        })).collect::<Vec<_>>(),
        "kernels": rows.iter().map(|row| json!({
            "kernel": row.id, "type": row.spec.ty.name(), "isa": row.spec.isa.name(), "activations": row.activations,
            "rows": row.spec.rows, "cols": row.spec.cols, "tokens": row.spec.tokens,
            "weight_bytes": row.bytes, "seconds": row.seconds,
            "gb_per_s": row.bytes as f64 / row.seconds / 1e9, "tops": row.operations / row.seconds / 1e12,
            "share_of_roof": row.roof / row.seconds,
        })).collect::<Vec<_>>(),
    })
}
