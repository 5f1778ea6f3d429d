//! `minfer embed`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use minfer::{Embed, Embedding, Llm, Pooling};
use serde::Serialize;

use super::args::{LoadArgs, ModelArgs, VocabularyArgs, open, usage};
use super::run::speed;
use super::terminal::{note, print, read_file, read_stdin, utf8, with_load_bar};

/// Turn texts into vectors
///
/// Each argument is a text; without one each line of a file or of stdin is. The vectors go to stdout in the order of the texts,
/// which are computed together with the same values as alone. A text that the context does not hold is refused.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer embed -m model.gguf 'The sky is blue.' 'Grass is green.'\n  \
    minfer embed -m model.gguf --output jsonl --pooling mean < lines.txt > vectors.jsonl")]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    vocabulary: VocabularyArgs,
    /// A text
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// Read texts from this file, one a line
    #[arg(short, long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// How the hidden states of a text's tokens become its vector: mean, cls (that of the first token), last, or none, which is
    /// a vector for each token; if left out what the model's file says, else mean for an encoder and last for a decoder
    #[arg(long, value_name = "MODE", value_parser = clap::value_parser!(Pooling))]
    pooling: Option<Pooling>,
    /// Leave vectors as long as they come out; otherwise their Euclidean length is 1
    #[arg(long)]
    no_normalize: bool,
    /// What to print
    #[arg(short, long, value_enum, default_value_t = Form::Json)]
    output: Form,
    #[command(flatten)]
    load: LoadArgs,
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One object, in the form of OpenAI's embeddings
    Json,
    /// An object per text and line, as they are computed
    Jsonl,
    /// The values alone, as little-endian floats of four bytes
    Raw,
}

/// The vector of a text, or one for each token.
#[derive(Serialize)]
#[serde(untagged)]
enum Vectors<'a> {
    One(&'a [f32]),
    Each(Vec<&'a [f32]>),
}

/// A text's entry.
#[derive(Serialize)]
struct Entry<'a> {
    object: &'static str,
    index: usize,
    /// Tokens of the text.
    tokens: usize,
    embedding: Vectors<'a>,
}

/// All of the output.
#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    model: &'a str,
    data: Vec<Entry<'a>>,
    usage: Count,
}

#[derive(Serialize)]
struct Count {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        if self.output == Form::Raw && std::io::stdout().is_terminal() {
            return Err(usage("--output raw prints bytes: send them to a file or a program"));
        }
        let texts = self.texts()?;
        let gguf = open(&self.model.model)?;
        let options = self.load.options(&self.vocabulary)?;
        let llm = with_load_bar(|progress| Llm::from_gguf(&gguf, &options, progress))
            .context("cannot load the model")?;
        let start = Instant::now();
        let (embeddings, tokens) = self.embed(&llm, &texts)?;
        let (count, load) = (texts.len(), llm.load_time().as_secs_f64());
        let speed = speed(tokens, start.elapsed());
        if self.output == Form::Json {
            let name = llm.facts().name.as_deref().unwrap_or_default();
            let entry = |(index, embedding)| self.entry(&llm, index, embedding);
            let data = embeddings.iter().enumerate().map(entry).collect();
            let usage = Count { prompt_tokens: tokens, total_tokens: tokens };
            let list = List { object: "list", model: name, data, usage };
            print(serde_json::to_string(&list)? + "\n")?;
        }
        note(&format!("{count} texts, {tokens} tokens, {speed}; load {load:.2} s"));
        Ok(())
    }

    /// The texts, none of them empty.
    fn texts(&self) -> Result<Vec<String>> {
        let (texts, what) = if self.texts.is_empty() {
            let text = match &self.file {
                Some(path) => utf8(read_file(path)?, &path.display().to_string())?,
                None => {
                    let bytes = read_stdin()?
                        .ok_or_else(|| usage("no text: give it as an argument, by --file, or on stdin"))?;
                    utf8(bytes, "the text on stdin")?
                }
            };
            (text.lines().map(str::to_owned).collect(), "line")
        } else {
            (self.texts.clone(), "text")
        };
        if texts.is_empty() {
            return Err(usage("no text: there is no line"));
        }
        if let Some(at) = texts.iter().position(String::is_empty) {
            return Err(usage(format!("{what} {} is empty", at + 1)));
        }
        Ok(texts)
    }

    /// Embeds the texts, and prints those that go out one by one; the others, and the number of tokens.
    fn embed(&self, llm: &Llm, texts: &[String]) -> Result<(Vec<Embedding>, usize)> {
        let options = Embed { pooling: self.pooling, normalize: !self.no_normalize, ..Embed::default() };
        let (mut embeddings, mut tokens) = (Vec::new(), 0);
        for (index, embedding) in llm.embed_each(texts, &options).enumerate() {
            let embedding = embedding.with_context(|| format!("text {}", index + 1))?;
            tokens += embedding.usage().prompt_tokens;
            match self.output {
                Form::Json => embeddings.push(embedding),
                Form::Jsonl => print(serde_json::to_string(&self.entry(llm, index, &embedding))? + "\n")?,
                Form::Raw => {
                    print(embedding.values().iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
                }
            }
        }
        Ok((embeddings, tokens))
    }

    fn entry<'a>(&self, llm: &Llm, index: usize, embedding: &'a Embedding) -> Entry<'a> {
        let each = self.pooling.unwrap_or(llm.pooling()) == Pooling::None;
        Entry {
            object: "embedding",
            index,
            tokens: embedding.usage().prompt_tokens,
            embedding: match each {
                true => Vectors::Each(embedding.vectors().collect()),
                false => Vectors::One(embedding.values()),
            },
        }
    }
}
