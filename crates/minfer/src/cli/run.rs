//! `minfer run`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use minfer::engine::{FinishReason, MAX_TOP_LOGPROBS, check_banned};
use minfer::gguf::Gguf;
use minfer::tokenizer::Tokenizer;
use minfer::{Generate, Generation, Llm, Message, Options, Source, Summary};

use serde_json::{Value, json};

use super::Outcome;
use super::args::{
    DiskArgs, LoadArgs, ModelArgs, SamplingArgs, VocabularyArgs, open, parse_source, parse_tokens, usage,
};
use super::constraint::ConstraintArgs;
use super::interrupt::{interrupted, on_interrupt};
use super::terminal::{note, read_stdin, utf8, with_load_bar};

/// Guesses at a time: a step has results for 16 tokens, one of which is not a guess.
const MOST_GUESSES: i64 = 15;

/// Answer a prompt
///
/// The prompt is put into the model's chat template; the answer is streamed to stdout, a summary goes to stderr.
/// Ctrl-C ends the answer, a second one the program.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer run 'Why is the sky blue?'\n  git diff | minfer run --system 'Write a commit message.'\n  \
    minfer run --raw --temp 0 -n 32 'Once upon a time'"
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    vocabulary: VocabularyArgs,
    /// What to answer; stdin if left out
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// The same as a flag
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", conflicts_with = "prompt")]
    prompt_flag: Option<String>,
    /// Tokens to generate at most; until the model stops or the context is full if left out
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_tokens, allow_negative_numbers = true)]
    n_predict: Option<usize>,
    /// Continue the text of the prompt, without a template
    #[arg(long)]
    raw: bool,
    /// Instructions that precede the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Never have this text, byte for byte (upper and lower case differ), in the answer: where it comes up the answer goes back to
    /// where it began, and on in another way; may be given several times
    #[arg(long, value_name = "TEXT")]
    ban: Vec<String>,
    /// Print a JSON object per token instead of the text: its log-probability, and the N most probable tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=i64::from(MAX_TOP_LOGPROBS)))]
    logprobs: Option<u8>,
    /// Guess up to N tokens from what has been said before, and check them in one step: faster where an answer quotes its
    /// prompt, and the same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    lookup: usize,
    /// A smaller model with the same tokens that guesses for the model, as --lookup does: faster if it is often right, and the same
    /// text; it takes memory of its own
    #[arg(long, value_name = "MODEL", value_parser = parse_source)]
    draft: Option<Source>,
    /// Tokens that --draft guesses at a time at most
    #[arg(long, value_name = "N", default_value_t = 4, requires = "draft",
        value_parser = clap::value_parser!(u8).range(1..=MOST_GUESSES))]
    draft_tokens: u8,
    #[command(flatten)]
    constraint: ConstraintArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    disk: DiskArgs,
    #[command(flatten)]
    load: LoadArgs,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<Outcome> {
        let prompt = self.prompt()?;
        let sampling = self.sampling.params()?;
        if self.stop.iter().any(String::is_empty) {
            return Err(usage("--stop is empty"));
        }
        check_banned(&self.ban).map_err(|error| usage(format!("--ban: {error}")))?;
        if self.draft.is_some() && self.lookup > 0 {
            return Err(usage("--draft and --lookup: tokens are guessed in one way or the other"));
        }
        let constraint = self.constraint.grammar()?;
        let gguf = open(&self.model.model)?;
        let draft = self.draft.as_ref().map(open).transpose().context("cannot open the draft model")?;
        let llm = self.load(&gguf, draft.as_ref())?;
        let tokens = self.tokens(&llm, &prompt)?;
        let options = Generate {
            max_tokens: self.n_predict,
            sampling,
            dry_breakers: self.sampling.dry_breakers(),
            stop: self.stop.clone(),
            banned: self.ban.clone(),
            logprobs: self.logprobs,
            constraint,
            constrain_after: self.constraint.constrain_after.clone(),
            lookup: self.lookup,
            draft: draft.map_or(0, |_| self.draft_tokens.into()),
            ..Generate::default()
        };
        let mut generation = llm.generate(tokens, &options).context("cannot generate")?;
        let canceller = generation.canceller();
        let answering = Arc::new(AtomicBool::new(false));
        on_interrupt({
            let answering = answering.clone();
            move || {
                canceller.cancel();
                if !answering.load(Ordering::Relaxed) {
                    note("stopping after this step of the prompt; once more ends at once");
                }
            }
        })?;
        let streamed = match self.logprobs {
            Some(_) => stream_logprobs(&mut generation, llm.tokenizer(), &answering),
            None => stream(&mut generation, &answering),
        };
        if let Some(summary) = generation.summary() {
            self.summarize(&llm, summary);
        }
        streamed?;
        Ok(if interrupted() { Outcome::Interrupted } else { Outcome::Done })
    }

    /// The prompt, from the argument or stdin. One newline at the end of stdin is the shell's, not the text's.
    fn prompt(&self) -> Result<String> {
        if let Some(prompt) = self.prompt.as_ref().or(self.prompt_flag.as_ref()) {
            return Ok(prompt.clone());
        }
        let bytes = read_stdin()?.ok_or_else(|| usage("no prompt: give it as an argument or on stdin"))?;
        let mut text = utf8(bytes, "the prompt on stdin")?;
        if text.ends_with('\n') {
            text.pop();
        }
        if text.is_empty() {
            return Err(usage("the prompt on stdin is empty"));
        }
        Ok(text)
    }

    fn load(&self, gguf: &Arc<Gguf>, draft: Option<&Arc<Gguf>>) -> Result<Llm> {
        let options = Options { disk: self.disk.config(), ..self.load.options(&self.vocabulary)? };
        let load = |progress: &mut dyn FnMut(u64, u64)| match draft {
            Some(draft) => Llm::with_draft(gguf, draft, &options, progress),
            None => Llm::from_gguf(gguf, &options, progress),
        };
        with_load_bar(load).context("cannot load the model")
    }

    fn tokens(&self, llm: &Llm, prompt: &str) -> Result<Vec<u32>> {
        if self.raw {
            return Ok(llm.text_prompt(prompt));
        }
        if !llm.has_chat_template() {
            note("the model has no chat template: continuing the text as with --raw");
            return Ok(llm.text_prompt(&match &self.system {
                Some(system) => format!("{system}\n\n{prompt}"),
                None => prompt.to_owned(),
            }));
        }
        let system = self.system.iter().map(Message::system);
        let messages: Vec<Message> = system.chain([Message::user(prompt)]).collect();
        Ok(llm.chat_prompt(&messages)?)
    }

    /// Speed and end, on stderr.
    fn summarize(&self, llm: &Llm, summary: &Summary) {
        if summary.reason == FinishReason::Length && self.n_predict.is_none() {
            note(&format!("the context of {} tokens is full: a larger one is given by --ctx", llm.context()));
        }
        if summary.reason == FinishReason::Banned {
            note("the answer ends here: whatever could come next begins a text that --ban excludes");
        }
        let usage = summary.usage;
        // The first token comes out of the prompt's last step.
        let generated = usage.completion_tokens.saturating_sub(1);
        let seed = match self.sampling.temp > 0.0 && self.sampling.seed.is_none() {
            true => format!(", seed {}", summary.seed),
            false => String::new(),
        };
        // How much of a prompt was read that was given up is not known.
        let unread = summary.reason == FinishReason::Cancelled && usage.completion_tokens == 0;
        let prompt = match unread {
            true => "given up".to_owned(),
            false => speed(usage.prompt_tokens, summary.prefill),
        };
        let guesses = match (self.lookup, &self.draft) {
            (0, None) => String::new(),
            _ => format!(", of {} guesses {} right", usage.guessed_tokens, usage.accepted_tokens),
        };
        let cached = match usage.cached_tokens {
            0 => String::new(),
            cached => format!(" ({cached} cached)"),
        };
        note(&format!(
            "prompt {} tokens{cached}, {prompt}; generated {} tokens, {}{guesses}; load {:.2} s{seed}",
            usage.prompt_tokens,
            usage.completion_tokens,
            speed(generated, summary.decode),
            llm.load_time().as_secs_f64(),
        ));
    }
}

/// Tokens per second; `-` where nothing was timed.
pub(super) fn speed(tokens: usize, time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds > 0.0 && tokens > 0 => format!("{:.1} tok/s", tokens as f64 / seconds),
        _ => "- tok/s".to_owned(),
    }
}

/// Writes the text as it comes, and a newline after it.
fn stream(generation: &mut Generation, answering: &AtomicBool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for piece in generation {
        answering.store(true, Ordering::Relaxed);
        out.write_all(piece?.as_bytes())?;
        out.flush()?;
    }
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Writes a JSON object per token. Natural logarithms of the softmax of the model's own logits, before all sampling.
fn stream_logprobs(generation: &mut Generation, tokenizer: &Tokenizer, answering: &AtomicBool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    while let Some(piece) = generation.next_piece() {
        answering.store(true, Ordering::Relaxed);
        let piece = piece?;
        let (Some(id), Some(logprobs)) = (piece.token, piece.logprobs) else { continue };
        let mut line = scored(tokenizer, id, logprobs.chosen);
        line["top"] = logprobs.top.iter().map(|&(id, logprob)| scored(tokenizer, id, logprob)).collect();
        writeln!(out, "{line}")?;
        out.flush()?;
    }
    Ok(())
}

/// A token, its text (U+FFFD for what is not UTF-8) and exact bytes, and its log-probability: `null` for −∞.
fn scored(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    let bytes = tokenizer.token_bytes(id);
    json!({"id": id, "token": String::from_utf8_lossy(&bytes), "bytes": *bytes, "logprob": logprob})
}
