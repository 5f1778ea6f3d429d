//! The public interface: a model from a source, text out of it.

mod embed;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use minfer_cpu::CpuOptions;
use minfer_engine::executor::Executor;
use minfer_engine::{
    Begin, Canceller, Constraint, DiskConfig, Engine, EngineConfig, Event, FinishReason, Grammar, Handle,
    Logprobs, Pooling, Request, RequestError, SamplingParams, StartError, Stop, SubmitError, TokenTable,
    Usage,
};
use minfer_gguf::Gguf;
use minfer_model::{DecoderSpec, LoadOptions};
use minfer_tokenizer::{Characters, ChatTemplate, EncodeOptions, TemplateInput, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::device::{DeviceChoice, Loaded, load_models};
use crate::facts::Facts;
use crate::identity::identity;
use crate::source::{Cache, Source, SourceError};
use crate::vocabulary::model_vocabulary;

pub use embed::{Embed, Embedding, PendingEmbedding};

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No model file.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A model file that cannot be read.
    #[error(transparent)]
    Gguf(#[from] minfer_gguf::Error),
    /// A model that cannot be loaded.
    #[error(transparent)]
    Model(#[from] minfer_model::Error),
    /// What was asked of the CPU and it does not have.
    #[error("{0}")]
    Cpu(String),
    /// A GPU that was asked for and cannot be used.
    #[error("no GPU: {0}")]
    Gpu(String),
    /// A vocabulary that cannot be used.
    #[error("{file}: {error}")]
    Vocabulary {
        /// The file.
        file: String,
        /// Why.
        error: minfer_tokenizer::Error,
    },
    /// An embedding without rows for all tokens.
    #[error("{file}: tensor \"{tensor}\" has {rows} rows for a vocabulary of {tokens} tokens")]
    Rows {
        /// The file.
        file: String,
        /// The embedding.
        tensor: String,
        /// Its rows.
        rows: u64,
        /// Tokens of the vocabulary.
        tokens: u64,
    },
    /// A draft model of another vocabulary.
    #[error(
        "the draft model cannot guess for the model: its token {id} is {draft:?}, the model's is {token:?}"
    )]
    DraftVocabulary {
        /// The first token that differs.
        id: u32,
        /// What it is for the draft model.
        draft: String,
        /// What it is for the model.
        token: String,
    },
    /// A model and a draft model without the memory for both.
    #[error(
        "the model and its draft do not fit: {} and {} are needed, {} are free; a smaller context needs less",
        gib(*needed), gib(*draft), gib(*free)
    )]
    DraftMemory {
        /// Bytes of the model.
        needed: u64,
        /// Bytes of the draft model.
        draft: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// What a cache on disk would be named after cannot be read.
    #[error("no cache on disk: {0}")]
    Identity(std::io::Error),
    /// A template that cannot be used, or that refuses a conversation.
    #[error(transparent)]
    Tokenizer(#[from] minfer_tokenizer::Error),
    /// The engine does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The engine does not take the request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A conversation, and a model that has no template for one.
    #[error("the model has no chat template: it continues text, but does not answer")]
    NoChatTemplate,
    /// A conversation that the context does not hold.
    #[error("the conversation has {tokens} tokens, the context holds {context}")]
    ContextFull {
        /// Its tokens, up to the beginning of the answer.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// A setting that is out of range.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A text that a constraint cannot begin after.
    #[error("a constraint can begin after one special token or after text without any, not after {0:?}")]
    ConstrainAfter(String),
    /// The generation broke off.
    #[error("{0}")]
    Generation(String),
}

/// How to load a model.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What runs the model.
    pub device: DeviceChoice,
    /// The CPU's threads, instruction set and weight layout.
    pub cpu: CpuOptions,
    /// Context, size of a step, number of sequences.
    pub load: LoadOptions,
    /// The pre-tokenizer rule, instead of the one that the file names.
    pub pre: Option<String>,
    /// Where keys and values of prompts are kept for later: what memory has no room for, and all at the end.
    pub disk: Option<DiskCache>,
}

/// A folder for keys and values. Several processes, models and builds may share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    /// The folder; made if it is not there.
    pub dir: PathBuf,
    /// Bytes of all of it, at most.
    pub bytes: u64,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`, or what else the model's template knows.
    pub role: String,
    /// What was said.
    pub content: String,
    /// What the model reasoned before it said so; templates know what to do with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl Message {
    fn new(role: &str, content: String) -> Message {
        Message { role: role.to_owned(), content, reasoning_content: None }
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content.into())
    }

    /// Instructions that precede a conversation.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content.into())
    }

    /// An answer of the model.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content.into())
    }
}

/// How to generate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generate {
    /// Tokens at most; `None` goes on until the model stops or the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that no repetition goes past, for [`SamplingParams::dry`]: tokens that have one of them in them, and special ones, are
    /// added to its breakers.
    pub dry_breakers: DryBreakers,
    /// Strings that end the text before themselves.
    pub stop: Vec<String>,
    /// Strings that the text never has in it, byte for byte: where one is complete, the text goes back to where it began, as in
    /// [`Request::banned`]. Nothing of it is ever shown.
    pub banned: Vec<String>,
    /// Report the log-probability of every token, and of this many of the most probable ones.
    pub logprobs: Option<u8>,
    /// What the text has to be.
    pub constraint: Option<Grammar>,
    /// The constraint begins after the first occurrence of this text, or special token: that with which a model ends its
    /// reasoning, for example. Before that the text is free, but cannot end.
    pub constrain_after: Option<String>,
    /// As [`Request::lookup`].
    pub lookup: usize,
    /// As [`Request::draft`], for a model that was loaded by [`Llm::with_draft`].
    pub draft: usize,
    /// As [`Request::priority`].
    pub priority: i32,
    /// As [`Request::deadline`].
    pub deadline: Option<Duration>,
}

/// Texts that end a repetition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DryBreakers(pub Vec<String>);

impl Default for DryBreakers {
    /// The usual ones: a new line, a colon, a quotation mark, an asterisk.
    fn default() -> DryBreakers {
        DryBreakers(["\n", ":", "\"", "*"].map(str::to_owned).to_vec())
    }
}

impl DryBreakers {
    /// Adds the tokens to what repetitions cost, if they cost anything.
    pub(crate) fn add_to(&self, sampling: &mut SamplingParams, tokenizer: &Tokenizer) {
        if sampling.dry.multiplier == 0.0 {
            return;
        }
        let breakers = &mut sampling.dry.breakers;
        breakers.extend(tokenizer.special_or_with(&self.0));
        breakers.sort_unstable();
        breakers.dedup();
    }
}

/// A loaded model with its vocabulary. Shareable; requests of several threads are computed together.
pub struct Llm {
    engine: Engine,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    facts: Facts,
    pooling: Pooling,
    embedding_width: usize,
    load_time: Duration,
}

impl Llm {
    /// Fetches (if need be) and loads a model.
    ///
    /// # Errors
    ///
    /// [`Error::Source`] and all of [`Llm::from_gguf`].
    pub fn load(source: &Source, options: &Options) -> Result<Llm, Error> {
        let path = match source {
            Source::Path(path) => source.fetch(&Cache::at(path), &mut |_| {})?,
            _ => source.fetch(&Cache::from_env()?, &mut |_| {})?,
        };
        Llm::from_gguf(&Arc::new(Gguf::open(&path)?), options, &mut |_, _| {})
    }

    /// Loads a model from an open file. `progress` hears the bytes of weights done, and of all.
    ///
    /// # Errors
    ///
    /// [`Error::Vocabulary`], [`Error::Rows`], [`Error::Tokenizer`], [`Error::Model`], [`Error::Start`].
    pub fn from_gguf(
        gguf: &Arc<Gguf>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Llm, Error> {
        Llm::from_files(gguf, None, options, progress)
    }

    /// The same with a draft model, a smaller one of the same vocabulary, that guesses tokens for requests that ask for it
    /// ([`Generate::draft`]): the model checks several of its guesses in one step, and the text is the same. It runs on the same
    /// device, with a cache of its own. One of the vocabularies may have more tokens than the other, at its end.
    ///
    /// # Errors
    ///
    /// All of [`Llm::from_gguf`] for either file; [`Error::DraftVocabulary`], [`Error::DraftMemory`].
    pub fn with_draft(
        gguf: &Arc<Gguf>,
        draft: &Arc<Gguf>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Llm, Error> {
        Llm::from_files(gguf, Some(draft), options, progress)
    }

    fn from_files(
        gguf: &Arc<Gguf>,
        draft: Option<&Arc<Gguf>>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Llm, Error> {
        let start = Instant::now();
        let tokenizer = model_vocabulary(gguf, options.pre.as_deref())?;
        for warning in tokenizer.warnings() {
            tracing::info!("vocabulary: {warning}");
        }
        if let Some(draft) = draft {
            check_draft(&tokenizer, draft, options)?;
        }
        let template = ChatTemplate::from_gguf(gguf.metadata())?;
        let (Loaded { model, repacked }, draft) = load_models(gguf, draft, options, progress)?;
        tracing::info!(device = model.describe(), repacked, "model loaded");
        // How many run together is for the cache to say: it holds `sequences` of full length, or more that are shorter.
        let disk = options.disk.as_ref().map(|disk| -> Result<DiskConfig, Error> {
            let identity =
                identity(gguf, options.load.kv_types, &model.cache_kind()).map_err(Error::Identity)?;
            Ok(DiskConfig { dir: disk.dir.clone(), bytes: disk.bytes, identity })
        });
        let step_tokens = model.limits().max_tokens;
        let config = EngineConfig { step_tokens, disk: disk.transpose()?, ..EngineConfig::default() };
        let (pooling, embedding_width) = (embed::pooling_of(model.spec()), model.spec().d_model);
        let table = token_table(&tokenizer);
        let engine = match draft {
            Some(draft) => Engine::with_draft(model, draft, table, config)?,
            None => Engine::new(model, table, config)?,
        };
        let (facts, load_time) = (Facts::of(gguf), start.elapsed());
        Ok(Llm { engine, tokenizer, template, facts, pooling, embedding_width, load_time })
    }

    /// Answers a conversation.
    ///
    /// # Errors
    ///
    /// [`Error::NoChatTemplate`], [`Error::Tokenizer`] if the template refuses the messages, [`Error::Submit`].
    pub fn chat(&self, messages: &[Message], options: &Generate) -> Result<Generation, Error> {
        self.generate(self.chat_prompt(messages)?, options)
    }

    /// Continues a text.
    ///
    /// # Errors
    ///
    /// [`Error::Submit`].
    pub fn complete(&self, text: &str, options: &Generate) -> Result<Generation, Error> {
        self.generate(self.text_prompt(text), options)
    }

    /// Continues a prompt of tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Submit`], [`Error::ConstrainAfter`].
    pub fn generate(&self, prompt: Vec<u32>, options: &Generate) -> Result<Generation, Error> {
        let stop = Stop {
            tokens: self.tokenizer.end_of_generation(),
            strings: options.stop.iter().map(|s| s.clone().into_bytes()).collect(),
        };
        let mut sampling = options.sampling.clone();
        options.dry_breakers.add_to(&mut sampling, &self.tokenizer);
        let request = Request {
            prompt,
            max_tokens: options.max_tokens,
            sampling,
            stop,
            banned: options.banned.iter().map(|string| string.clone().into_bytes()).collect(),
            logprobs: options.logprobs,
            lookup: options.lookup,
            draft: options.draft,
            constraint: self.constraint(options)?,
            budget: None,
            priority: options.priority,
            deadline: options.deadline,
        };
        let handle = self.engine.submit(request)?;
        Ok(Generation { handle, characters: Characters::default(), seed: 0, summary: None })
    }

    /// The constraint as the engine takes it.
    fn constraint(&self, options: &Generate) -> Result<Option<Constraint>, Error> {
        let Some(grammar) = options.constraint.clone() else { return Ok(None) };
        let begin = match &options.constrain_after {
            None => Begin::Now,
            Some(text) => {
                let parsed = EncodeOptions { add_special: false, parse_special: true };
                let ids = self.tokenizer.encode(text, parsed);
                match ids[..] {
                    [id] if self.tokenizer.is_special(id) => Begin::AfterToken(id),
                    _ if ids.iter().any(|&id| self.tokenizer.is_special(id)) => {
                        return Err(Error::ConstrainAfter(text.clone()));
                    }
                    _ => Begin::AfterText(text.clone()),
                }
            }
        };
        Ok(Some(Constraint { grammar, begin }))
    }

    /// The tokens of a conversation, up to the beginning of the answer.
    ///
    /// # Errors
    ///
    /// [`Error::NoChatTemplate`], [`Error::Tokenizer`] if the template refuses the messages.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        let template = self.template.as_ref().ok_or(Error::NoChatTemplate)?;
        Ok(self.text_prompt(&render(template, &self.tokenizer, messages)?))
    }

    /// The tokens of a text to be continued: with the BOS that the file asks for, but once, and never with EOS.
    pub fn text_prompt(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_prompt(text)
    }

    /// Whether the file has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    pub(crate) fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What the file is.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Tokens that the context holds.
    pub fn context(&self) -> usize {
        self.engine.capacity()
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }
}

/// A number of bytes, for people.
fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

/// Refuses a draft model whose tokens are not the model's, as far as both have them, and one that is an encoder.
fn check_draft(tokenizer: &Tokenizer, draft: &Gguf, options: &Options) -> Result<(), Error> {
    let drafts = model_vocabulary(draft, options.pre.as_deref())?;
    let of = |tokenizer: &Tokenizer, id| {
        let kind = if tokenizer.is_special(id) { " (special)" } else { "" };
        format!("{}{kind}", tokenizer.piece(id).unwrap_or_default())
    };
    for id in 0..tokenizer.vocab_size().min(drafts.vocab_size()) as u32 {
        if of(tokenizer, id) != of(&drafts, id) {
            let (draft, token) = (of(&drafts, id), of(tokenizer, id));
            return Err(Error::DraftVocabulary { id, draft, token });
        }
    }
    match DecoderSpec::from_gguf(draft)?.bidirectional() {
        true => Err(StartError::Draft.into()),
        false => Ok(()),
    }
}

/// A seed that nobody has seen before.
pub(crate) fn new_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// The text of a conversation, up to the beginning of the answer.
pub(crate) fn render(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
) -> Result<String, Error> {
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.piece(id)).unwrap_or_default().into_owned();
    let input = TemplateInput {
        messages: serde_json::to_value(messages).unwrap_or_default(),
        add_generation_prompt: true,
        bos: text(tokenizer.bos()),
        eos: text(tokenizer.eos()),
        ..TemplateInput::default()
    };
    Ok(template.render(&input)?)
}

/// The bytes of every token as text has them: none for special tokens.
fn token_table(tokenizer: &Tokenizer) -> TokenTable {
    let bytes =
        |id: u32| if tokenizer.is_special(id) { Default::default() } else { tokenizer.token_bytes(id) };
    (0..tokenizer.vocab_size() as u32).map(bytes).collect()
}

/// A step of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The text that is now certain: whole characters, often none.
    pub text: String,
    /// The token that was generated; `None` at the end, if text was left.
    pub token: Option<u32>,
    /// If [`Generate::logprobs`] asked for them.
    pub logprobs: Option<Logprobs>,
}

/// Text on its way: an iterator over pieces of whole characters. Dropping it cancels the request.
pub struct Generation {
    handle: Handle,
    characters: Characters,
    seed: u64,
    summary: Option<Summary>,
}

/// How a generation went.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Time from the start of the prompt to the first token.
    pub prefill: Duration,
    /// Time from the first token to the end.
    pub decode: Duration,
    /// The seed that repeats it.
    pub seed: u64,
}

impl Generation {
    /// Cancels it, from any thread; it then ends as if the model had stopped.
    pub fn canceller(&self) -> Canceller {
        self.handle.canceller()
    }

    /// How it went, once it has ended.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }
}

impl Generation {
    /// Waits for the next token; `None` at the end. The iterator gives the same text, without the tokens.
    pub fn next_piece(&mut self) -> Option<Result<Piece, Error>> {
        loop {
            match self.handle.next()? {
                Event::Started { seed, .. } => self.seed = seed,
                Event::Prefill { .. } | Event::Embedding { .. } => {}
                Event::Token { id, bytes, logprobs } => {
                    let text = self.characters.push(&bytes);
                    return Some(Ok(Piece { text, token: Some(id), logprobs }));
                }
                Event::Finished { reason, rest, usage, timings } => {
                    let failure = match &reason {
                        FinishReason::Error(what) => Some(Error::Generation(what.clone())),
                        FinishReason::SlowReader(events) => {
                            Some(Error::Generation(format!("cancelled: {events} events were left unread")))
                        }
                        _ => None,
                    };
                    let (prefill, decode) = (timings.prefill, timings.decode);
                    self.summary = Some(Summary { reason, usage, prefill, decode, seed: self.seed });
                    if let Some(failure) = failure {
                        return Some(Err(failure));
                    }
                    let text = self.characters.push(&rest) + &self.characters.finish();
                    return (!text.is_empty()).then_some(Ok(Piece { text, token: None, logprobs: None }));
                }
            }
        }
    }
}

impl Iterator for Generation {
    type Item = Result<String, Error>;

    /// Waits for more text; `None` at the end.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_piece()? {
                Ok(piece) if piece.text.is_empty() => {}
                piece => return Some(piece.map(|piece| piece.text)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_shared_and_what_it_gives_is_sent() {
        fn shared<T: Send + Sync>() {}
        fn sent<T: Send>() {}
        shared::<Llm>();
        sent::<Generation>();
        sent::<PendingEmbedding>();
    }
}
