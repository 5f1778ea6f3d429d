//! Conversations in a terminal: one model, one sequence, turn by turn.
//!
//! A [`Chat`] keeps the keys and values of the last turn. The next one is rendered as a whole by the model's own
//! template and compared with what is kept, token by token: only what differs is computed. A position's bits depend on
//! the tokens before it alone, so the answer is the one that a fresh start would give.

mod conversation;
mod record;
mod settings;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use minfer_engine::executor::{Executor, Limits, RowOutput, StepError, StepOutput, Want};
use minfer_engine::sampling::Scratch;
use minfer_engine::{SamplingParams, Session, StopMatcher};
use minfer_gguf::Gguf;
use minfer_tokenizer::{AnswerEvent, AnswerFormat, AnswerParser, Characters, ChatTemplate, Tokenizer};

use crate::llm::{self, render};
use crate::{AnyModel, Error, Loaded, Options, load_model, model_vocabulary};

pub use conversation::Conversation;
pub use record::{ModelId, Record, RecordError};
pub use settings::{OnFull, Settings, parse_bias};

/// A conversation as the model reads it: text and tokens, up to the beginning of the answer.
type Prompt = (String, Vec<u32>);

/// A model in conversation.
pub struct Chat {
    model: AnyModel,
    session: Session,
    /// The tokens whose keys and values the session holds.
    kept: Vec<u32>,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    /// End-of-generation tokens.
    ends: Vec<u32>,
    id: ModelId,
    load_time: Duration,
    out: StepOutput,
    scratch: Scratch,
}

/// News of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text of the model's reasoning.
    Reasoning(&'a str),
    /// Text for the user.
    Text(&'a str),
    /// So many of the oldest exchanges were dropped to make room.
    Dropped(usize),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model, or a stop string, ended it.
    Stop,
    /// [`Settings::max_tokens`].
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The user.
    Cancelled,
}

/// An answer, and how it came about.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The text for the user.
    pub content: String,
    /// The model's reasoning; empty if there was none.
    pub reasoning: String,
    /// Why it ended.
    pub end: End,
    /// Tokens of the conversation before it.
    pub prompt_tokens: usize,
    /// Of these, tokens that were kept from the turn before.
    pub reused_tokens: usize,
    /// Tokens of the answer, an end-of-generation token included.
    pub generated_tokens: usize,
    /// Time up to the first token.
    pub prefill: Duration,
    /// Time from there.
    pub decode: Duration,
    /// The seed that repeats it.
    pub seed: u64,
}

impl Chat {
    /// Loads a model from an open file. `progress` hears the bytes of weights done, and of all.
    ///
    /// # Errors
    ///
    /// [`Error::NoChatTemplate`], before anything is loaded; [`Error::Vocabulary`], [`Error::Rows`],
    /// [`Error::Tokenizer`], [`Error::Model`].
    pub fn from_gguf(
        gguf: &Arc<Gguf>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Chat, Error> {
        let start = Instant::now();
        let template = ChatTemplate::from_gguf(gguf.metadata())?.ok_or(Error::NoChatTemplate)?;
        let tokenizer = model_vocabulary(gguf, options.pre.as_deref())?;
        let Loaded { model, .. } = load_model(gguf, options, progress)?;
        let session = Session::new(model.limits()).map_err(failed)?;
        Ok(Chat {
            session,
            kept: Vec::new(),
            ends: tokenizer.end_of_generation(),
            tokenizer,
            template,
            id: ModelId::of(gguf),
            load_time: start.elapsed(),
            out: StepOutput::default(),
            scratch: Scratch::default(),
            model,
        })
    }

    /// Which model it is.
    pub fn id(&self) -> &ModelId {
        &self.id
    }

    /// Tokens that the context holds.
    pub fn context(&self) -> usize {
        self.session.capacity()
    }

    /// Tokens whose keys and values are kept.
    pub fn kept_tokens(&self) -> usize {
        self.kept.len()
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// What the model can take.
    pub fn limits(&self) -> &Limits {
        self.model.limits()
    }

    /// Tokens of a conversation, up to the beginning of the answer.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if the template refuses the messages.
    pub fn count(&self, conversation: &Conversation) -> Result<usize, Error> {
        Ok(self.prompt(conversation)?.1.len())
    }

    /// Answers a conversation that ends with a message of the user; `each` hears of the answer as it comes, and ends it
    /// by a break, as `cancel` does from elsewhere. The conversation itself changes only by exchanges that
    /// [`OnFull::Drop`] drops. `attempt` is added to the seed.
    ///
    /// # Errors
    ///
    /// [`Error::ContextFull`], [`Error::Tokenizer`] if the template refuses the messages, [`Error::Request`],
    /// [`Error::Generation`].
    pub fn answer(
        &mut self,
        conversation: &mut Conversation,
        (settings, attempt): (&Settings, u64),
        cancel: &AtomicBool,
        each: &mut dyn FnMut(Part<'_>) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        settings.validate(self.limits(), self.context())?;
        let mut sampling = settings.sampling();
        settings.dry_breakers.add_to(&mut sampling, &self.tokenizer);
        let seed = sampling.seed.unwrap_or_else(llm::new_seed).wrapping_add(attempt);
        sampling.seed = Some(seed);
        let (text, tokens) = self.fitting_prompt(conversation, settings.on_full, each)?;
        let format = AnswerFormat::of_template(self.template.source());
        let mut answer = Answering {
            prompt_tokens: tokens.len(),
            tokens,
            stop: StopMatcher::new(&settings.stop_bytes()),
            characters: Characters::default(),
            parser: AnswerParser::new(format, None, &text),
            content: String::new(),
            reasoning: String::new(),
            each,
        };
        let reused_tokens = self.rewind(&answer.tokens)?;
        let (prompt_tokens, start) = (answer.prompt_tokens, Instant::now());
        let (mut first_token, mut mu) = (None, sampling.mirostat.first());
        let mut generated_tokens = 0;
        let end = loop {
            if answer.tokens.len() > self.context() && !self.make_room(conversation, settings, &mut answer)? {
                break End::ContextFull;
            }
            let next = self.next_token(&answer.tokens, (&sampling, &mut mu), cancel)?;
            let Some(id) = next else { break End::Cancelled };
            first_token.get_or_insert_with(Instant::now);
            generated_tokens += 1;
            if self.ends.contains(&id) {
                break End::Stop;
            }
            answer.tokens.push(id);
            match answer.push(&self.tokenizer.token_bytes(id)) {
                ControlFlow::Break(end) => break end,
                ControlFlow::Continue(()) if settings.max_tokens == Some(generated_tokens) => {
                    break End::MaxTokens;
                }
                ControlFlow::Continue(()) => {}
            }
        };
        let now = Instant::now();
        let first_token = first_token.unwrap_or(now);
        let (content, reasoning) = answer.finish();
        Ok(Answer {
            content,
            reasoning,
            end,
            prompt_tokens,
            reused_tokens,
            generated_tokens,
            prefill: first_token - start,
            decode: now - first_token,
            seed,
        })
    }

    fn prompt(&self, conversation: &Conversation) -> Result<Prompt, Error> {
        let text = render(&self.template, &self.tokenizer, conversation.messages())?;
        let tokens = self.tokenizer.encode_prompt(&text);
        Ok((text, tokens))
    }

    /// The prompt, after dropping what it takes to make it fit.
    fn fitting_prompt(
        &self,
        conversation: &mut Conversation,
        on_full: OnFull,
        each: &mut dyn FnMut(Part<'_>) -> ControlFlow<()>,
    ) -> Result<Prompt, Error> {
        let context = self.context();
        let prompt = self.prompt(conversation)?;
        if prompt.1.len() <= context {
            return Ok(prompt);
        }
        let full = Error::ContextFull { tokens: prompt.1.len(), context };
        if on_full == OnFull::Stop {
            return Err(full);
        }
        match self.drop_oldest(conversation, 0)? {
            Some((dropped, prompt)) => {
                let _ = each(Part::Dropped(dropped));
                Ok(prompt)
            }
            None => Err(full),
        }
    }

    /// Drops the oldest exchanges until a quarter of the context is free beside the prompt and `generated` tokens, so
    /// that not every token drops another; at least until they fit. `None`, and nothing dropped, if that is impossible.
    fn drop_oldest(
        &self,
        conversation: &mut Conversation,
        generated: usize,
    ) -> Result<Option<(usize, Prompt)>, Error> {
        let context = self.context();
        let mut shorter = conversation.clone();
        let mut dropped = 0;
        let mut fits = None;
        while shorter.drop_oldest(1) == 1 {
            dropped += 1;
            let prompt = self.prompt(&shorter)?;
            let needed = prompt.1.len() + generated;
            if needed <= context {
                fits = Some((dropped, prompt, shorter.clone()));
            }
            if needed <= context - context / 4 {
                break;
            }
        }
        Ok(fits.map(|(dropped, prompt, shorter)| {
            *conversation = shorter;
            (dropped, prompt)
        }))
    }

    /// Makes room in the middle of an answer, if that is what the user wants and possible.
    fn make_room(
        &self,
        conversation: &mut Conversation,
        settings: &Settings,
        answer: &mut Answering<'_>,
    ) -> Result<bool, Error> {
        if settings.on_full == OnFull::Stop {
            return Ok(false);
        }
        let generated = answer.tokens.split_off(answer.prompt_tokens);
        let room = self.drop_oldest(conversation, generated.len())?;
        let found = room.is_some();
        if let Some((dropped, (_, tokens))) = room {
            let _ = (answer.each)(Part::Dropped(dropped));
            answer.prompt_tokens = tokens.len();
            answer.tokens = tokens;
        }
        answer.tokens.extend(generated);
        Ok(found)
    }

    /// Forgets what is kept beyond the beginning of `tokens`; says how many tokens remain. The last one does not: it is
    /// computed in any case, as its logits are wanted.
    fn rewind(&mut self, tokens: &[u32]) -> Result<usize, Error> {
        let common = self.kept.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let len = common.min(tokens.len().saturating_sub(1));
        if self.session.truncate(len).is_err() {
            // A sliding window has moved past it.
            self.forget()?;
        }
        self.kept.truncate(len);
        Ok(self.kept.len())
    }

    /// Computes what is not kept of `tokens`, and samples the one that follows; `None` if cancelled. `mu` is mirostat's.
    fn next_token(
        &mut self,
        tokens: &[u32],
        (sampling, mu): (&SamplingParams, &mut Option<f64>),
        cancel: &AtomicBool,
    ) -> Result<Option<u32>, Error> {
        self.rewind(tokens)?;
        let seed = sampling.seed.unwrap_or_default();
        let spec = sampling.spec(seed, tokens.len());
        let last = if sampling.device_can() { Want::Token(spec) } else { Want::Logits };
        while self.kept.len() < tokens.len() {
            if cancel.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let end = tokens.len().min(self.kept.len() + self.model.limits().max_tokens);
            let want = if end == tokens.len() { last.clone() } else { Want::Nothing };
            if let Err(e) = self.step(&tokens[self.kept.len()..end], want) {
                self.forget()?;
                return Err(e);
            }
        }
        match self.out.rows.first() {
            Some(RowOutput::Token(id)) => Ok(Some(*id)),
            Some(RowOutput::Logits(logits)) => {
                let id = sampling.choose(logits, (seed, tokens), mu, None, &mut self.scratch);
                Ok(Some(id.map_err(failed)?))
            }
            _ => Err(Error::Generation("the model returned no token".to_owned())),
        }
    }

    fn step(&mut self, tokens: &[u32], want: Want) -> Result<(), Error> {
        let plan = self.session.plan([(tokens.to_vec(), want)]).map_err(failed)?;
        let computed: Result<(), StepError> =
            self.model.submit(&plan).and_then(|step| self.model.wait(step, &mut self.out));
        computed.map_err(failed)?;
        self.kept.extend_from_slice(tokens);
        Ok(())
    }

    /// Begins an empty sequence.
    fn forget(&mut self) -> Result<(), Error> {
        self.kept.clear();
        self.session.reset().map_err(failed)
    }
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::Generation(e.to_string())
}

/// An answer on its way: tokens → bytes → stop strings → characters → reasoning and text.
struct Answering<'a> {
    /// The prompt and what has been generated.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    stop: StopMatcher,
    characters: Characters,
    parser: AnswerParser,
    content: String,
    reasoning: String,
    each: &'a mut dyn FnMut(Part<'_>) -> ControlFlow<()>,
}

impl Answering<'_> {
    /// Adds the bytes of a token; breaks at a stop string, or if whoever listens has enough.
    fn push(&mut self, bytes: &[u8]) -> ControlFlow<End> {
        let (bytes, stopped) = self.stop.push(bytes);
        let text = self.characters.push(&bytes);
        let events = self.parser.push(&text);
        if self.tell(events).is_break() {
            return ControlFlow::Break(End::Cancelled);
        }
        if stopped.is_some() { ControlFlow::Break(End::Stop) } else { ControlFlow::Continue(()) }
    }

    fn tell(&mut self, events: Vec<AnswerEvent>) -> ControlFlow<()> {
        for event in events {
            let part = match &event {
                AnswerEvent::Content(text) => {
                    self.content.push_str(text);
                    Part::Text(text)
                }
                AnswerEvent::Reasoning(text) => {
                    self.reasoning.push_str(text);
                    Part::Reasoning(text)
                }
                // No tools are offered, so none are called.
                AnswerEvent::ToolCall { .. } => continue,
            };
            (self.each)(part)?;
        }
        ControlFlow::Continue(())
    }

    /// Content and reasoning, with what was withheld.
    fn finish(mut self) -> (String, String) {
        let held = self.stop.finish();
        let text = self.characters.push(&held) + &self.characters.finish();
        let mut events = self.parser.push(&text);
        let spent = AnswerParser::new(AnswerFormat::Hermes, None, "");
        events.extend(std::mem::replace(&mut self.parser, spent).finish());
        // The answer is over, whatever the listener says.
        let _ = self.tell(events);
        (self.content, self.reasoning)
    }
}
