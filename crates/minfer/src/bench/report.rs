//! Results in llama-bench's columns and field names, plus the kernels that ran and the share of the machine's roof.

use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use super::Test;
use crate::facts::{Facts, human_bytes, human_count};

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A table.
    Markdown,
    /// One array of objects.
    Json,
    /// One object per line.
    JsonLines,
    /// A header and a line per row.
    Csv,
}

/// What all rows of a run have in common.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The GPU's name; empty if none runs the model.
    pub gpu: String,
    /// Device that runs the model.
    pub backend: String,
    /// Instruction set level in use.
    pub isa: String,
    /// Numerics profile in use.
    pub numerics: &'static str,
    /// Bytes per second that the threads read from memory, if it was measured.
    pub read_bandwidth: Option<f64>,
}

/// One test's result.
#[derive(Clone, Debug)]
pub struct Row {
    /// The test.
    pub test: Test,
    /// Path of the model, as given.
    pub filename: String,
    /// The model.
    pub facts: Facts,
    /// Logical batch.
    pub n_batch: usize,
    /// Tokens of a step.
    pub n_ubatch: usize,
    /// Threads.
    pub n_threads: usize,
    /// Whether weights were repacked at load.
    pub repack: bool,
    /// Type of cached keys.
    pub type_k: &'static str,
    /// Type of cached values.
    pub type_v: &'static str,
    /// Kernels that ran, by id.
    pub kernels: Vec<String>,
    /// When it began.
    pub time: SystemTime,
    /// Duration of each repetition.
    pub samples: Vec<Duration>,
    /// The machine.
    pub machine: Machine,
}

impl Row {
    /// Tokens per second of each repetition.
    fn speeds(&self) -> Vec<f64> {
        let tokens = (self.test.n_prompt + self.test.n_gen) as f64;
        self.samples.iter().map(|d| tokens / d.as_secs_f64()).collect()
    }

    /// Share of the roof that the mean speed reaches, 0 to 1: the speed at which generation would read every weight
    /// once per token at the measured bandwidth. Only generation has this roof.
    fn roof_share(&self) -> Option<f64> {
        let bandwidth = self.machine.read_bandwidth.filter(|_| self.test.n_prompt == 0)?;
        let (mean, _) = mean_and_deviation(&self.speeds());
        Some(mean * self.facts.bytes_per_token as f64 / bandwidth)
    }
}

/// What a report has a line for.
pub trait Record {
    /// All fields, by the names that llama.cpp's tool has.
    fn fields(&self) -> Map<String, Value>;
}

impl Record for Row {
    /// In llama-bench's order; those of features that minfer has none of have their neutral value.
    fn fields(&self) -> Map<String, Value> {
        let nanoseconds: Vec<u64> = self.samples.iter().map(|d| d.as_nanos() as u64).collect();
        let (avg_ns, stddev_ns) =
            mean_and_deviation(&nanoseconds.iter().map(|n| *n as f64).collect::<Vec<_>>());
        let speeds = self.speeds();
        let (avg_ts, stddev_ts) = mean_and_deviation(&speeds);
        let fields = [
            ("build_commit", json!(crate::BUILD_COMMIT)),
            ("build_number", json!(crate::build_number())),
            ("cpu_info", json!(self.machine.cpu)),
            ("gpu_info", json!(self.machine.gpu)),
            ("backends", json!(self.machine.backend)),
            ("model_filename", json!(self.filename)),
            ("model_type", json!(self.facts.model_type())),
            ("model_size", json!(self.facts.tensor_bytes)),
            ("model_n_params", json!(self.facts.parameters)),
            ("n_batch", json!(self.n_batch)),
            ("n_ubatch", json!(self.n_ubatch)),
            ("n_threads", json!(self.n_threads)),
            ("cpu_mask", json!("0x0")),
            ("cpu_strict", json!(false)),
            ("poll", json!(0)),
            ("type_k", json!(self.type_k)),
            ("type_v", json!(self.type_v)),
            // llama-bench's number for all of them.
            ("n_gpu_layers", json!(if self.machine.gpu.is_empty() { 0 } else { 99 })),
            ("n_cpu_moe", json!(0)),
            ("split_mode", json!("none")),
            ("main_gpu", json!(0)),
            ("no_kv_offload", json!(false)),
            ("flash_attn", json!(true)),
            ("devices", json!("none")),
            ("tensor_split", json!("0.00")),
            ("tensor_buft_overrides", json!("none")),
            ("load_mode", json!("mmap")),
            ("lazy_mode", json!("none")),
            ("embeddings", json!(false)),
            ("no_op_offload", json!(0)),
            ("no_host", json!(false)),
            ("repack", json!(self.repack)),
            ("fit_target", json!(0)),
            ("fit_min_ctx", json!(0)),
            ("n_prompt", json!(self.test.n_prompt)),
            ("n_gen", json!(self.test.n_gen)),
            ("n_depth", json!(self.test.n_depth)),
            ("test_time", json!(rfc3339(self.time))),
            ("avg_ns", json!(avg_ns.round() as u64)),
            ("stddev_ns", json!(stddev_ns.round() as u64)),
            ("avg_ts", json!(avg_ts)),
            ("stddev_ts", json!(stddev_ts)),
            ("greedy", json!(self.test.greedy)),
            ("isa", json!(self.machine.isa)),
            ("numerics", json!(self.machine.numerics)),
            ("kernels", json!(self.kernels)),
            ("read_bandwidth", json!(self.machine.read_bandwidth)),
            ("bytes_per_token", json!(self.facts.bytes_per_token)),
            ("roof_share", json!(self.roof_share())),
            ("samples_ns", json!(nanoseconds)),
            ("samples_ts", json!(speeds)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Mean and sample standard deviation (0 of fewer than two values).
pub(super) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    (mean, (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt())
}

/// `2026-11-30T12:34:56Z`, in the proleptic Gregorian calendar.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in 400-year eras of 146,097 days; a year that starts in March ends with the leap day.
    let days = day + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A column that the table has if what it shows was chosen, like llama-bench's; every other format has all fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Instruction set level.
    Isa,
    /// Whether weights were repacked.
    Repack,
    /// Numerics profile.
    Numerics,
    /// Type of cached keys.
    TypeK,
    /// Type of cached values.
    TypeV,
    /// Kernels that ran.
    Kernels,
}

/// A column of a table: name, width (negative for left-aligned), and what a row has there.
pub(super) type Column<R> = (&'static str, i32, fn(&R) -> String);

impl Chosen {
    fn column(self) -> Column<Row> {
        match self {
            Chosen::Isa => ("isa", -10, |row| row.machine.isa.clone()),
            Chosen::Repack => ("repack", 6, |row| u8::from(row.repack).to_string()),
            Chosen::Numerics => ("numerics", -8, |row| row.machine.numerics.to_owned()),
            Chosen::TypeK => ("type_k", 6, |row| row.type_k.to_owned()),
            Chosen::TypeV => ("type_v", 6, |row| row.type_v.to_owned()),
            Chosen::Kernels => ("kernels", -20, |row| row.kernels.join(" ")),
        }
    }
}

/// What every table begins with.
const MODEL: [Column<Row>; 5] = [
    ("model", -30, |row| row.facts.model_type()),
    ("size", 10, |row| human_bytes(row.facts.tensor_bytes)),
    ("params", 10, |row| human_count(row.facts.parameters)),
    ("backend", -10, |row| row.machine.backend.clone()),
    ("threads", 7, |row| row.n_threads.to_string()),
];

/// What every table ends with.
const RESULT: [Column<Row>; 3] = [
    ("roof", 6, |row| {
        row.roof_share().map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", 100.0 * share))
    }),
    ("test", 15, |row| row.test.label()),
    ("t/s", 20, |row| {
        let (mean, deviation) = mean_and_deviation(&row.speeds());
        format!("{mean:.2} ± {deviation:.2}")
    }),
];

/// Prints rows as they come.
pub struct Report<W, R> {
    out: W,
    format: Format,
    columns: Vec<Column<R>>,
    rows: usize,
}

impl<W: Write> Report<W, Row> {
    /// A report with no rows. Nothing is printed before the first one, so a run that fails early prints nothing.
    /// A table shows `chosen` too.
    pub fn new(out: W, format: Format, chosen: &[Chosen]) -> Self {
        let chosen: Vec<Column<Row>> = chosen.iter().map(|chosen| chosen.column()).collect();
        Report::of(out, format, [&MODEL[..], &chosen, &RESULT].concat())
    }
}

impl<W: Write, R: Record> Report<W, R> {
    /// A report whose table has these columns.
    pub(super) fn of(out: W, format: Format, columns: Vec<Column<R>>) -> Self {
        Report { out, format, columns, rows: 0 }
    }

    /// Prints what comes before the first row.
    fn head(&mut self) -> std::io::Result<()> {
        match self.format {
            Format::Markdown => {
                line(&mut self.out, self.columns.iter().map(|(name, width, _)| pad(name, *width)))?;
                let rules = self.columns.iter().map(|(_, width, _)| {
                    let dashes = "-".repeat(width.unsigned_abs() as usize - 1);
                    format!("{dashes}{}", if *width > 0 { ':' } else { '-' })
                });
                line(&mut self.out, rules)
            }
            Format::Json => write!(self.out, "["),
            Format::JsonLines | Format::Csv => Ok(()),
        }
    }

    /// Prints a row.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn row(&mut self, row: &R) -> std::io::Result<()> {
        if self.rows == 0 {
            self.head()?;
        }
        match self.format {
            Format::Markdown => {
                line(&mut self.out, self.columns.iter().map(|(_, width, cell)| pad(&cell(row), *width)))?;
            }
            Format::Json => {
                let comma = if self.rows > 0 { "," } else { "" };
                write!(self.out, "{comma}\n  {}", Value::Object(row.fields()))?;
            }
            Format::JsonLines => writeln!(self.out, "{}", Value::Object(row.fields()))?,
            Format::Csv => {
                let mut fields = row.fields();
                fields.retain(|name, _| !name.starts_with("samples_"));
                if self.rows == 0 {
                    writeln!(self.out, "{}", fields.keys().cloned().collect::<Vec<_>>().join(","))?;
                }
                writeln!(self.out, "{}", fields.values().map(csv).collect::<Vec<_>>().join(","))?;
            }
        }
        self.rows += 1;
        self.out.flush()
    }

    /// Prints what comes after the rows.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn finish(mut self) -> std::io::Result<()> {
        if self.rows == 0 {
            self.head()?;
        }
        if self.format == Format::Json {
            writeln!(self.out, "\n]")?;
        }
        self.out.flush()
    }
}

/// `text` in a field of `width` characters, to the left if negative.
fn pad(text: &str, width: i32) -> String {
    let n = width.unsigned_abs() as usize;
    if width < 0 { format!("{text:<n$}") } else { format!("{text:>n$}") }
}

fn line(out: &mut impl Write, cells: impl Iterator<Item = String>) -> std::io::Result<()> {
    writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "))
}

/// A value as a CSV field: always in quotes, as llama-bench does it.
fn csv(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn row() -> Row {
        Row {
            test: Test { n_prompt: 0, n_gen: 100, n_depth: 0, greedy: false },
            filename: "a \"b\".gguf".into(),
            facts: Facts {
                architecture: Some("llama".into()),
                name: None,
                size_label: "135M".into(),
                file_type: "Q4_1".into(),
                parameters: 134_515_008,
                tensor_bytes: 96_000_000,
                file_bytes: 98_362_432,
                tensors: 272,
                context: None,
                bytes_per_token: 100_000_000,
                matrix_types: Vec::new(),
                types: BTreeMap::new(),
            },
            n_batch: 2048,
            n_ubatch: 512,
            n_threads: 2,
            repack: true,
            type_k: "f16",
            type_v: "f16",
            kernels: vec!["gemv.q4_1.avx2".into(), "gemm.q4_1.avx2".into()],
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(951_827_696),
            samples: vec![Duration::from_secs(1), Duration::from_secs(2)],
            machine: Machine {
                cpu: "Some CPU".into(),
                gpu: String::new(),
                backend: "CPU".into(),
                isa: "avx2".into(),
                numerics: "exact",
                read_bandwidth: Some(20e9),
            },
        }
    }

    fn printed(format: Format, rows: usize) -> String {
        let mut bytes = Vec::new();
        let mut report = Report::new(&mut bytes, format, &[]);
        (0..rows).for_each(|_| report.row(&row()).unwrap());
        report.finish().unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn times_are_calendar_times() {
        let at = |s| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(at(1_796_040_000), "2026-11-30T12:00:00Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59Z");
    }

    #[test]
    fn json_has_statistics_and_samples() {
        let rows: Value = serde_json::from_str(&printed(Format::Json, 2)).unwrap();
        let first = &rows[0];
        assert_eq!(rows.as_array().unwrap().len(), 2);
        assert_eq!(first["avg_ns"], 1_500_000_000u64);
        assert_eq!(first["stddev_ns"], 707_106_781u64);
        assert_eq!(first["avg_ts"], 75.0);
        assert_eq!(first["samples_ts"], json!([100.0, 50.0]));
        assert_eq!(first["roof_share"], 0.375);
        assert_eq!(first["test_time"], "2000-02-29T12:34:56Z");
        let lines = printed(Format::JsonLines, 2);
        assert!(lines.lines().all(|l| serde_json::from_str::<Value>(l).unwrap() == *first));
        assert_eq!(serde_json::from_str::<Value>(&printed(Format::Json, 0)).unwrap(), json!([]));
    }

    #[test]
    fn the_table_lines_up() {
        let table = printed(Format::Markdown, 1);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|l| l.chars().count() == lines[0].chars().count()));
        assert!(lines[2].contains("| llama 135M Q4_1 "), "{}", lines[2]);
        assert!(lines[2].contains("38% |"), "{}", lines[2]);
        assert!(lines[2].ends_with("tg100 |        75.00 ± 35.36 |"), "{}", lines[2]);
    }

    #[test]
    fn what_was_chosen_has_a_column() {
        let mut bytes = Vec::new();
        let mut report = Report::new(&mut bytes, Format::Markdown, &[Chosen::Isa, Chosen::TypeV]);
        report.row(&row()).unwrap();
        report.finish().unwrap();
        let table = String::from_utf8(bytes).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines.iter().all(|l| l.chars().count() == lines[0].chars().count()));
        assert!(lines[0].contains("| threads | isa        | type_v |   roof |"), "{}", lines[0]);
        assert!(lines[2].contains("|       2 | avx2       |    f16 |    38% |"), "{}", lines[2]);
    }

    #[test]
    fn csv_quotes_everything_and_names_every_column() {
        let csv = printed(Format::Csv, 2);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("build_commit,build_number,cpu_info") && !lines[0].contains("samples"));
        assert!(
            lines[1].contains("\"a \"\"b\"\".gguf\"")
                && lines[1].contains("\"gemv.q4_1.avx2 gemm.q4_1.avx2\"")
        );
    }
}
