//! `minfer inspect`.

use anyhow::Result;
use minfer::check::damaged;
use minfer::cpu::{CpuDevice, CpuOptions, Host};
use minfer::facts::{Facts, human_bytes, human_count};
use minfer::gguf::{self, Gguf};
use minfer::model::{LoadOptions, MemoryPlan, plan_memory};
use minfer::plan_on_gpu;
use minfer::source::Source;
use minfer::tokenizer::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};

use super::args::{open, parse_positive, parse_source};
use super::terminal::{print, printable};

/// Show what a model file is, and whether it would run here
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer inspect model.gguf\n  minfer inspect model.gguf --tensors --json")]
pub(super) struct Args {
    /// Path of a GGUF file, or a source like `pip:smollm2`
    #[arg(value_name = "MODEL", value_parser = parse_source)]
    model: Source,
    /// List the tensors
    #[arg(long)]
    tensors: bool,
    /// List the metadata
    #[arg(long)]
    metadata: bool,
    /// Tokens of context to plan memory for; the model's own, at most 8,192, if left out
    #[arg(short, long, value_name = "N", value_parser = parse_positive)]
    ctx: Option<usize>,
    /// Read all weights, and name tensors with values that are not finite
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let gguf = open(&self.model)?;
        let facts = Facts::of(&gguf);
        let mut device = CpuDevice::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        // As a load would.
        let repacked = device.settle_repack(gguf.tensors().map(|t| t.data().len() as u64).sum());
        let options = LoadOptions { context: self.ctx, ..LoadOptions::default() };
        let plan = plan_memory(&gguf, &device, &options).map_err(|e| e.to_string());
        let vocabulary = Tokenizer::from_gguf(gguf.metadata()).map_err(|e| e.to_string());
        let template =
            ChatTemplate::from_gguf(gguf.metadata()).map(|t| t.is_some()).map_err(|e| e.to_string());
        let reason = plan.as_ref().err().or(vocabulary.as_ref().err());
        let free = Host::detect().memory_available;
        let gpu = plan_on_gpu(&gguf, &options);
        if self.json {
            let mut report = json!({
                "file": facts,
                "format_version": gguf.version(),
                "kernels": facts.kernels(device.isa(), device.numerics()),
                "memory": plan.as_ref().ok().map(memory_json),
                "memory_available": free,
                "repack": repacked,
                "gpu": gpu.as_ref().map(|gpu| match gpu {
                    Ok(gpu) => json!({
                        "name": gpu.name,
                        "memory": memory_json(&gpu.plan),
                        "memory_available": gpu.free,
                    }),
                    Err(why) => json!({ "reason": why.to_string() }),
                }),
                "runs": reason.is_none(),
                "reason": reason,
                "vocabulary": vocabulary.as_ref().ok().map(Tokenizer::vocab_size),
                "vocabulary_error": vocabulary.as_ref().err(),
                "chat_template": template.as_ref().ok(),
                "chat_template_error": template.as_ref().err(),
            });
            if self.tensors {
                report["tensors"] = gguf.tensors().map(|t| json!({
                    "name": t.name(), "type": t.ty().name(), "dims": t.dims(), "bytes": t.data().len(),
                })).collect();
            }
            if self.metadata {
                report["metadata"] = metadata(&gguf).collect();
            }
            if self.check {
                report["damaged"] = damaged(&gguf)
                    .iter()
                    .map(|d| {
                        json!({
                            "tensor": d.tensor, "type": d.ty, "values": d.values, "row": d.first / d.columns,
                            "column": d.first % d.columns,
                        })
                    })
                    .collect();
            }
            return print(format!("{}\n", serde_json::to_string_pretty(&report)?));
        }
        let mut text = describe(&gguf, &facts);
        text += &match &vocabulary {
            Ok(tokenizer) => format!("vocabulary    {} tokens\n", tokenizer.vocab_size()),
            Err(e) => format!("vocabulary    cannot be used: {e}\n"),
        };
        text += &match &template {
            Ok(true) => "template      for chat\n".to_owned(),
            Ok(false) => "template      none: a base model, for `run --raw`\n".to_owned(),
            Err(e) => format!("template      cannot be used: {}\n", e.replace('\n', " ")),
        };
        text += &match (&plan, reason) {
            (Ok(plan), None) if repacked => runs("runs here", plan, free),
            (Ok(plan), None) => {
                let slower = "                weights stay in the file's layout (--repack off), which is slower: memory is short\n";
                runs("runs here", plan, free) + slower
            }
            (_, Some(why)) | (Err(why), None) => format!("runs here     no: {why}\n"),
        };
        text += &match &gpu {
            Some(Ok(gpu)) if vocabulary.is_ok() => runs("on the GPU", &gpu.plan, Some(gpu.free)),
            Some(Err(why)) => format!("on the GPU    no: {why}\n"),
            _ => String::new(),
        };
        if self.metadata {
            text += "\nmetadata\n";
            metadata(&gguf).for_each(|(key, value)| text += &format!("  {key} = {value}\n"));
        }
        if self.tensors {
            text += "\ntensors\n";
            for t in gguf.tensors() {
                let dims = t.dims().iter().map(u64::to_string).collect::<Vec<_>>().join(" × ");
                text +=
                    &format!("  {:<36} {:>8} {:>20} {:>12}\n", t.name(), t.ty().name(), dims, t.data().len());
            }
        }
        if self.check {
            let damaged = damaged(&gguf);
            text += if damaged.is_empty() { "weights       all finite\n" } else { "\ndamaged\n" };
            for d in &damaged {
                let (row, column) = (d.first / d.columns, d.first % d.columns);
                text += &format!(
                    "  {:<36} {:>8} {:>12} values are not finite, the first in row {row}, column {column}\n",
                    d.tensor, d.ty, d.values
                );
            }
        }
        print(printable(&text, &['\n']))
    }
}

fn memory_json(plan: &MemoryPlan) -> Value {
    json!({
        "weights": plan.weights,
        "kv": plan.kv,
        "kv_per_token": plan.kv_per_token,
        "activations": plan.activations,
        "total": plan.total(),
    })
}

fn describe(gguf: &Gguf, facts: &Facts) -> String {
    let known = |value: &Option<String>| match value {
        Some(value) => printable(value, &[]),
        None => "(not named)".to_owned(),
    };
    let mut text = String::new();
    for path in gguf.paths() {
        text += &format!("file          {}\n", path.display());
    }
    text += &format!("format        GGUF v{}, {}\n", gguf.version(), human_bytes(facts.file_bytes));
    text += &format!("name          {}\n", known(&facts.name));
    text += &format!("architecture  {}\n", known(&facts.architecture));
    text += &format!("parameters    {} in {} tensors\n", human_count(facts.parameters), facts.tensors);
    text += &format!("types         {}\n", facts.file_type);
    for (name, share) in &facts.types {
        text += &format!(
            "                {name:<8} {:>4} tensors {:>10} {:>12}\n",
            share.tensors,
            human_count(share.parameters),
            human_bytes(share.bytes)
        );
    }
    if let Some(context) = facts.context {
        text += &format!("context       {context} tokens\n");
    }
    text
}

/// Whether it runs `there`, with how much memory.
fn runs(there: &str, plan: &MemoryPlan, free: Option<u64>) -> String {
    let total = plan.total();
    let verdict = match free {
        Some(free) if free < total => {
            format!("no: {} needed, {} available", human_bytes(total), human_bytes(free))
        }
        Some(free) => format!("yes, with {} of {} available", human_bytes(total), human_bytes(free)),
        None => format!("needs {}", human_bytes(total)),
    };
    format!(
        "{there:<14}{verdict}\n                weights {}, cache {} ({} B per token), activations {}\n",
        human_bytes(plan.weights),
        human_bytes(plan.kv),
        plan.kv_per_token,
        human_bytes(plan.activations)
    )
}

/// Keys and values as JSON; arrays as their type and length.
fn metadata(gguf: &Gguf) -> impl Iterator<Item = (String, Value)> {
    gguf.metadata().iter().map(|(key, value)| (key.to_owned(), as_json(value)))
}

fn as_json(value: &gguf::Value) -> Value {
    if let Some(integer) = value.as_integer() {
        return json!(integer);
    }
    match value {
        gguf::Value::F32(v) => json!(v),
        gguf::Value::F64(v) => json!(v),
        gguf::Value::Bool(v) => json!(v),
        gguf::Value::String(bytes) => json!(String::from_utf8_lossy(bytes)),
        gguf::Value::Array(array) => json!(format!("{} × {}", array.len(), array.element_type())),
        // Integers, all of them caught above.
        other => json!(other.value_type().name()),
    }
}
