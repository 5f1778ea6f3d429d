//! `minfer bench`.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};
use clap::ValueEnum;
use minfer::bench::{Batched, BatchedRow, BatchedTest, Bench, Chosen, Format, Machine, Report, Row, Test};
use minfer::cpu::{CpuOptions, Host, probe};
use minfer::facts::Facts;
use minfer::gguf::Gguf;
use minfer::model::LoadOptions;
use minfer::source::Source;
use minfer::tokenizer::Tokenizer;
use minfer::{AnyModel, Loaded, Options, load_model};

use super::args::{
    CacheArgs, DeviceArgs, KvArg, NumericsArg, RepackArg, open, parse_positive, parse_source, usage,
};
use super::terminal::{note, stderr_is_terminal, with_load_bar};

/// Measure the speed of a model
///
/// The tests and columns of llama-bench: `pp512` reads a prompt of 512 tokens, `tg128` generates 128. Values that are
/// lists by comma are combined. `roof` is the share of the speed at which generation would read every weight once per
/// token at the memory bandwidth of this machine, measured before the tests. With -npl the tests and columns are those of
/// llama-batched-bench: so many sequences at once, each with -p tokens of prompt and -n generated ones.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer bench -m model.gguf -p 512 -n 128 -d 0,4096 -o md\n  minfer bench -m model.gguf -npl 1,8,32"
)]
pub(super) struct Args {
    /// Models, by comma: paths of GGUF files, or sources like `pip:smollm2`
    #[arg(short, long, value_name = "MODEL", value_delimiter = ',', default_values_t = [Source::default()], value_parser = parse_source)]
    model: Vec<Source>,
    /// Prompt tokens; 0 leaves the test out
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_values_t = [512])]
    n_prompt: Vec<usize>,
    /// Generated tokens; 0 leaves the test out
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_values_t = [128])]
    n_gen: Vec<usize>,
    /// Prompt and generated tokens of a test of both, like `512,128`; may be given several times
    #[arg(long = "pg", value_name = "PP,TG", value_parser = parse_pair)]
    pg: Vec<(usize, usize)>,
    /// Sequences at once (-npl): their prompts are read, then each step generates a token for all of them
    #[arg(long = "npl", alias = "n-parallel", value_name = "B", value_delimiter = ',', value_parser = parse_positive,
        conflicts_with_all = ["pg", "n_depth", "greedy"])]
    npl: Vec<usize>,
    /// Tokens in the context before the test
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_values_t = [0])]
    n_depth: Vec<usize>,
    /// Let generated tokens come with the most probable next one, as with `run --temp 0`, and not with logits as in
    /// llama-bench
    #[arg(long)]
    greedy: bool,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = parse_positive)]
    repetitions: usize,
    /// Tokens handed over at a time
    #[arg(short, long = "batch-size", value_name = "N", value_delimiter = ',', default_values_t = [2048], value_parser = parse_positive)]
    batch: Vec<usize>,
    /// Tokens computed at a time (-ub)
    #[arg(long = "ub", alias = "ubatch-size", value_name = "N", value_delimiter = ',', default_values_t = [512], value_parser = parse_positive)]
    ubatch: Vec<usize>,
    /// Threads; one for each fast physical core that the process may use if left out (`minfer doctor` tells)
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = parse_positive)]
    threads: Vec<usize>,
    #[command(flatten)]
    cache: CacheArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Md)]
    output: Output,
    /// Print JSON: the same as `-o json`
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Show which test runs on stderr
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// [`Format`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A Markdown table
    Md,
    /// A JSON array
    Json,
    /// A JSON object per line
    Jsonl,
    /// Comma-separated values
    Csv,
}

impl From<Output> for Format {
    fn from(output: Output) -> Format {
        match output {
            Output::Md => Format::Markdown,
            Output::Json => Format::Json,
            Output::Jsonl => Format::JsonLines,
            Output::Csv => Format::Csv,
        }
    }
}

/// `512,128`.
fn parse_pair(given: &str) -> Result<(usize, usize), String> {
    let (pp, tg) = given.split_once(',').ok_or("expected two numbers by comma")?;
    Ok((parse_positive(pp)?, parse_positive(tg)?))
}

/// What needs a model loaded anew.
#[derive(Clone, Copy)]
struct Setting {
    threads: usize,
    batch: usize,
    ubatch: usize,
    bandwidth: Option<f64>,
}

impl Args {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output.into() }
    }

    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        if !self.npl.is_empty() {
            return self.run_batched();
        }
        let tests = self.tests();
        if tests.is_empty() {
            return Err(usage("no tests: all of -p, -n and --pg are 0 or absent"));
        }
        let host = Host::detect();
        let threads = self.threads(&host);
        let mut report = Report::new(std::io::stdout(), self.format(), &self.chosen());
        for source in &self.model {
            let gguf = open(source)?;
            for &threads in &threads {
                let bandwidth = probe::read_bandwidth(threads).ok();
                for &batch in &self.batch {
                    for &ubatch in &self.ubatch {
                        let setting = Setting { threads, batch, ubatch, bandwidth };
                        self.bench(&gguf, source, setting, &tests, &host, &mut report)?;
                    }
                }
            }
        }
        Ok(report.finish()?)
    }

    /// Numbers of threads to measure with.
    fn threads(&self, host: &Host) -> Vec<usize> {
        if self.threads.is_empty() { vec![host.cores.threads()] } else { self.threads.clone() }
    }

    /// What the table shows because it was asked for.
    fn chosen(&self) -> Vec<Chosen> {
        let all = [
            (Chosen::Isa, self.device.isa.is_some()),
            (Chosen::Repack, self.device.repack != RepackArg::Auto),
            (Chosen::Numerics, self.device.numerics != NumericsArg::Auto),
            (Chosen::TypeK, self.cache.ctk != KvArg::F16),
            (Chosen::TypeV, self.cache.ctv != KvArg::F16),
            #[cfg(feature = "cuda")]
            (Chosen::Kernels, !self.device.kernels.is_empty()),
        ];
        all.into_iter().filter_map(|(column, chosen)| chosen.then_some(column)).collect()
    }

    /// All combinations of tests and depths.
    fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for &n_depth in &self.n_depth {
            let prompts = self.n_prompt.iter().map(|p| (*p, 0));
            let generations = self.n_gen.iter().map(|g| (0, *g));
            for (n_prompt, n_gen) in prompts.chain(generations).chain(self.pg.iter().copied()) {
                if n_prompt + n_gen > 0 {
                    tests.push(Test { n_prompt, n_gen, n_depth, greedy: self.greedy });
                }
            }
        }
        tests
    }

    /// All combinations of models, prompts, generations and numbers of sequences.
    fn run_batched(&self) -> Result<()> {
        let threads = self.threads(&Host::detect());
        let mut tests = Vec::new();
        for &n_prompt in &self.n_prompt {
            for &n_gen in self.n_gen.iter().filter(|n_gen| n_prompt + **n_gen > 0) {
                tests.extend(self.npl.iter().map(|&parallel| BatchedTest { n_prompt, n_gen, parallel }));
            }
        }
        let Some(context) = tests.iter().map(BatchedTest::context).max() else {
            return Err(usage("no tests: -p and -n are 0"));
        };
        let parallel = self.npl.iter().copied().max().unwrap_or(1);
        let mut report = Report::batched(std::io::stdout(), self.format());
        for source in &self.model {
            let gguf = open(source)?;
            for &n_threads in &threads {
                for (&batch, &ubatch) in
                    self.batch.iter().flat_map(|b| self.ubatch.iter().map(move |u| (b, u)))
                {
                    // A step has room for a token of every sequence.
                    let n_batch = batch.min(ubatch).max(parallel);
                    let load = LoadOptions {
                        context: Some(context),
                        max_tokens: Some(n_batch),
                        max_outputs: parallel,
                        sequences: parallel,
                        kv_types: self.cache.types(),
                    };
                    let mut model = self.load(&gguf, n_threads, load)?.model;
                    let n_gpu_layers = if model.cpu().is_some() { 0 } else { 99 };
                    let mut batched = Batched::new(&mut model, n_batch);
                    for &test in &tests {
                        let (prompt, generation) = batched.run(test, self.repetitions)?;
                        report.row(&BatchedRow {
                            test,
                            n_batch,
                            n_threads,
                            n_gpu_layers,
                            prompt,
                            generation,
                        })?;
                    }
                }
            }
        }
        Ok(report.finish()?)
    }

    fn load(&self, gguf: &Arc<Gguf>, threads: usize, load: LoadOptions) -> Result<Loaded> {
        let options = Options {
            device: self.device.choice()?,
            cpu: CpuOptions {
                threads: Some(threads),
                isa: self.device.isa,
                repack: self.device.repack.into(),
                numerics: self.device.numerics.into(),
            },
            load,
            pre: None,
            disk: None,
        };
        with_load_bar(|progress| load_model(gguf, &options, progress)).context("cannot load the model")
    }

    fn bench(
        &self,
        gguf: &Arc<Gguf>,
        source: &Source,
        setting: Setting,
        tests: &[Test],
        host: &Host,
        report: &mut Report<std::io::Stdout, Row>,
    ) -> Result<()> {
        let chunk = setting.batch.min(setting.ubatch);
        let load = LoadOptions {
            context: tests.iter().map(Test::context).max(),
            max_tokens: Some(chunk),
            max_outputs: 1,
            kv_types: self.cache.types(),
            ..LoadOptions::default()
        };
        let mut loaded = self.load(gguf, setting.threads, load)?;
        // A file without a vocabulary can be benchmarked too.
        let tokenizer = Tokenizer::from_gguf(gguf.metadata()).ok();
        let bos = tokenizer.and_then(|t| t.bos().filter(|_| t.adds_bos()));
        let facts = Facts::of(gguf);
        let (machine, kernels) = machine(&loaded.model, &facts, host, setting);
        let mut bench = Bench::new(&mut loaded.model, chunk, bos)?;
        for &test in tests {
            let time = SystemTime::now();
            let samples = bench.run(test, self.repetitions, &mut |repetition| {
                if self.progress || (stderr_is_terminal() && self.output != Output::Md) {
                    let run = repetition
                        .map_or("warm-up".to_owned(), |r| format!("{}/{}", r + 1, self.repetitions));
                    note(&format!("{}: {run}", test.label()));
                }
            })?;
            report.row(&Row {
                test,
                filename: source.to_string(),
                facts: facts.clone(),
                n_batch: setting.batch,
                n_ubatch: setting.ubatch,
                n_threads: setting.threads,
                repack: loaded.repacked,
                type_k: self.cache.ctk.name(),
                type_v: self.cache.ctv.name(),
                kernels: kernels.clone(),
                time,
                samples,
                machine: machine.clone(),
            })?;
        }
        Ok(())
    }
}

/// Where the rows come from, and the kernels that ran.
fn machine(model: &AnyModel, facts: &Facts, host: &Host, setting: Setting) -> (Machine, Vec<String>) {
    let machine = Machine {
        cpu: host.cpu.clone(),
        gpu: String::new(),
        backend: "CPU".to_owned(),
        isa: String::new(),
        numerics: "",
        read_bandwidth: setting.bandwidth,
    };
    match model {
        AnyModel::Cpu(model) => {
            let (isa, numerics) = (model.device().isa(), model.device().numerics());
            let machine = Machine { isa: isa.to_string(), numerics: numerics.name(), ..machine };
            (machine, facts.kernels(isa, numerics))
        }
        #[cfg(feature = "cuda")]
        AnyModel::Cuda(model) => {
            let device = model.device();
            let (major, minor) = device.info().capability;
            let machine = Machine {
                gpu: device.info().name.clone(),
                backend: "CUDA".to_owned(),
                isa: format!("sm_{major}{minor}"),
                numerics: device.numerics().name(),
                read_bandwidth: device.read_bandwidth().ok(),
                ..machine
            };
            (machine, device.kernels_of_types(&facts.matrix_types))
        }
    }
}
