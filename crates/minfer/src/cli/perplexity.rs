//! `minfer perplexity`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use minfer::engine::executor::Executor;
use minfer::gguf::Gguf;
use minfer::model::LoadOptions;
use minfer::perplexity::{Divergence, LogitsReader, LogitsWriter, Perplexity, SHORTEST_WINDOW, Task};
use minfer::tokenizer::{EncodeOptions, Tokenizer};
use minfer::{Options, load_model};
use serde_json::{Value, json};

use super::args::{
    CacheArgs, DeviceArgs, ModelArgs, ThreadArgs, VocabularyArgs, open, parse_positive, usage,
};
use super::terminal::{bar, print, read_file, stderr_is_terminal, utf8, with_load_bar};

/// Bytes of logits in one step at most.
const LOGITS_BYTES: usize = 256 << 20;

/// Measure how well a model predicts a text
///
/// By llama.cpp's definition: windows of --ctx tokens, the second half of each is scored. A newline at the end of the
/// file is left out.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer perplexity -m model.gguf -f text.txt\n  \
    minfer perplexity -m model-f16.gguf -f text.txt --kl-save base.kld\n  minfer perplexity -m model-q4.gguf --kl-base base.kld")]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    vocabulary: VocabularyArgs,
    /// The text
    #[arg(short, long, value_name = "FILE", required_unless_present = "kl_base", conflicts_with = "kl_base")]
    file: Option<PathBuf>,
    /// Tokens of a window, at least 4
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = parse_window)]
    ctx: usize,
    /// Compare with the logits in this file, as --kl-save or llama-perplexity wrote them; it has the text too
    #[arg(long, alias = "kl-divergence-base", value_name = "FILE")]
    kl_base: Option<PathBuf>,
    /// Write the logits to this file, to compare others with
    #[arg(long, aliases = ["save-logits", "save-all-logits"], value_name = "FILE", conflicts_with = "kl_base")]
    kl_save: Option<PathBuf>,
    /// Tokens of a step
    #[arg(long = "ub", alias = "ubatch-size", value_name = "N", default_value_t = 512, value_parser = parse_positive)]
    n_ubatch: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let gguf = open(&self.model.model)?;
        self.check_save(&gguf)?;
        let tokenizer = self.vocabulary.model_tokenizer(&gguf)?;
        // The model may have more logits than the vocabulary has tokens: its own number counts.
        let vocab = minfer::model::DecoderSpec::from_gguf(&gguf)?.vocab;
        let mut base = self.kl_base.as_deref().map(|path| LogitsReader::open(path, vocab)).transpose()?;
        let (tokens, n_ctx) = match &base {
            Some(base) => (base.tokens().to_vec(), base.n_ctx()),
            None => (self.text(&tokenizer)?, self.ctx),
        };
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let task = Task { tokens: &tokens, n_ctx, bos };
        let options = Options {
            device: self.device.choice()?,
            cpu: self.device.cpu(&self.threads),
            load: LoadOptions {
                context: Some(n_ctx),
                max_tokens: Some(self.n_ubatch),
                max_outputs: (LOGITS_BYTES / (4 * vocab.max(1))).clamp(1, self.n_ubatch),
                kv_types: self.cache.types(),
                ..LoadOptions::default()
            },
            pre: None,
            disk: None,
        };
        let loaded = with_load_bar(|progress| load_model(&gguf, &options, progress));
        let mut model = loaded.context("cannot load the model")?.model;
        let mut writer = match &self.kl_save {
            Some(path) => Some(LogitsWriter::create(path, &task, model.limits().vocab)?),
            None => None,
        };
        let mut perplexity = Perplexity::default();
        let mut divergence = Divergence::default();
        let total = (task.windows() * task.scored_per_window()) as u64;
        let bar = bar(total, "");
        if stderr_is_terminal() {
            bar.set_style(indicatif::ProgressStyle::with_template(
                "{msg} {wide_bar} {pos}/{len} tokens {eta}",
            )?);
        }
        task.run(&mut model, &mut |prediction| {
            perplexity.0.add(prediction.nll()?);
            if let Some(writer) = &mut writer {
                writer.add(&prediction)?;
            }
            if let Some(base) = &mut base {
                divergence.add(&prediction, base.next_log_probs()?)?;
            }
            bar.set_message(format!("PPL {:.4}", perplexity.value()));
            bar.inc(1);
            Ok(())
        })?;
        bar.finish_and_clear();
        if let Some(writer) = writer {
            writer.finish()?;
        }
        let report = report(&task, &perplexity, base.is_some().then_some(&divergence));
        match self.json {
            true => print(format!("{}\n", serde_json::to_string_pretty(&report)?)),
            false => print(text(&report)),
        }
    }

    /// Refuses to write where something else is read.
    fn check_save(&self, gguf: &Gguf) -> Result<()> {
        let Some(Ok(save)) = self.kl_save.as_ref().map(std::fs::canonicalize) else { return Ok(()) };
        let same = |path: &std::path::Path| path.canonicalize().is_ok_and(|path| path == save);
        if gguf.paths().any(same) || self.file.as_deref().is_some_and(same) {
            return Err(usage("--kl-save names a file that is read: the model or the text"));
        }
        Ok(())
    }

    fn text(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let Some(path) = &self.file else { return Err(usage("no text: give it by --file")) };
        let text = utf8(read_file(path)?, &path.display().to_string())?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false }))
    }
}

/// Tokens of a window: enough for something to be scored.
fn parse_window(given: &str) -> Result<usize, String> {
    match parse_positive(given)? {
        n if n < SHORTEST_WINDOW => {
            Err(format!("a window of {n} tokens is too short to score anything: at least {SHORTEST_WINDOW}"))
        }
        n => Ok(n),
    }
}

fn report(task: &Task<'_>, perplexity: &Perplexity, divergence: Option<&Divergence>) -> Value {
    let mut report = json!({
        "perplexity": perplexity.value(),
        "perplexity_error": perplexity.standard_error(),
        "windows": task.windows(),
        "n_ctx": task.n_ctx,
        "scored_tokens": perplexity.0.count(),
    });
    if let (Some(d), Some(fields)) = (divergence, report.as_object_mut()) {
        let quantiles = d.quantiles();
        fields.insert("base_perplexity".into(), json!(Perplexity(d.nll_base).value()));
        fields.insert("perplexity_ratio".into(), json!(d.perplexity_ratio()));
        fields.insert("perplexity_ratio_error".into(), json!(d.perplexity_ratio_error()));
        fields.insert("ln_perplexity_ratio".into(), json!(d.nll_difference.mean()));
        fields.insert("ln_perplexity_ratio_error".into(), json!(d.nll_difference.standard_error()));
        fields.insert("mean_kld".into(), json!(d.kld.mean()));
        fields.insert("mean_kld_error".into(), json!(d.kld.standard_error()));
        fields.insert("max_kld".into(), json!(quantiles.map(|q| q.max)));
        fields.insert("p999_kld".into(), json!(quantiles.map(|q| q.p999)));
        fields.insert("p99_kld".into(), json!(quantiles.map(|q| q.p99)));
        fields.insert("median_kld".into(), json!(quantiles.map(|q| q.median)));
        fields.insert("rms_p_difference".into(), json!(d.rms_p_difference()));
        fields.insert("same_top".into(), json!(d.same_top_share()));
        fields.insert("same_top_error".into(), json!(d.same_top_error()));
        fields.insert("clear".into(), json!(d.clear));
        fields.insert("same_clear".into(), json!(d.same_clear));
    }
    report
}

/// The report for people.
fn text(report: &Value) -> String {
    let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
    let mut text = format!(
        "PPL = {:.4} ± {:.4} ({} windows of {}, {} tokens scored)\n",
        number("perplexity"),
        number("perplexity_error"),
        report["windows"],
        report["n_ctx"],
        report["scored_tokens"]
    );
    if report.get("mean_kld").is_some() {
        text += &format!("PPL of the base        = {:.4}\n", number("base_perplexity"));
        text += &format!(
            "PPL/PPL of the base    = {:.6} ± {:.6}\n",
            number("perplexity_ratio"),
            number("perplexity_ratio_error")
        );
        text += &format!(
            "ln(PPL/PPL of base)    = {:.6} ± {:.6}\n",
            number("ln_perplexity_ratio"),
            number("ln_perplexity_ratio_error")
        );
        text += &format!(
            "KL divergence, mean    = {:.6} ± {:.6}\n",
            number("mean_kld"),
            number("mean_kld_error")
        );
        text += &format!(
            "  median {:.6}, 99 % {:.6}, 99.9 % {:.6}, max {:.6}\n",
            number("median_kld"),
            number("p99_kld"),
            number("p999_kld"),
            number("max_kld")
        );
        text += &format!("RMS difference of p    = {:.3} %\n", 100.0 * number("rms_p_difference"));
        text += &format!(
            "same most probable     = {:.3} ± {:.3} %\n",
            100.0 * number("same_top"),
            100.0 * number("same_top_error")
        );
        text += &format!(
            "  where the base's leads by 0.5 or more: {} of {}\n",
            report["same_clear"], report["clear"]
        );
    }
    text
}
