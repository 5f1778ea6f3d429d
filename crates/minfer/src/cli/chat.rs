//! `minfer chat`.

mod command;
mod input;

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use minfer::Error;
use minfer::chat::{Answer, Chat, Conversation, End, OnFull, Part, Record, Settings};

use super::args::{LoadArgs, ModelArgs, SamplingArgs, VocabularyArgs, open, parse_tokens};
use super::interrupt::{stop_on_interrupt, stoppable};
use super::terminal::{is_interactive, note, with_load_bar};
use super::{Outcome, chain};
use command::{COMMANDS, Command};
use input::Input;

/// Talk with a model
///
/// A line is a message; one that ends with \ goes on, and so does everything between two """. Commands begin with
/// /: /help lists them. Ctrl-C stops an answer, at the prompt it leaves. Without a terminal every line of stdin is
/// taken in the same way, answers go to stdout and everything else to stderr.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer chat --system 'Answer in one sentence.'\n  minfer chat --resume holiday.json\n  \
    printf 'Hello\\n/stats\\n' | minfer chat --temp 0"
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    vocabulary: VocabularyArgs,
    /// Instructions that precede the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Go on with a conversation that /save saved, with its settings
    #[arg(long, value_name = "FILE", conflicts_with_all = ["system", "n_predict", "stop", "on_full", "temp", "top_k",
        "typical_p", "top_p", "min_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent",
        "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_breakers", "logit_bias", "repeat_penalty", "frequency_penalty", "presence_penalty",
        "repeat_last_n", "samplers", "mirostat", "mirostat_tau", "mirostat_eta", "seed"])]
    resume: Option<PathBuf>,
    /// Tokens of an answer at most; until the model stops or the context is full if left out
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_tokens, allow_negative_numbers = true)]
    n_predict: Option<usize>,
    /// End an answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// What to do when the context is full
    #[arg(long, value_enum, default_value_t = OnFullArg::Stop)]
    on_full: OnFullArg,
    /// Do not keep what is typed for the next time
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// [`OnFull`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnFullArg {
    /// End the answer and say so
    Stop,
    /// Drop the oldest exchanges and say so
    Drop,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<Outcome> {
        let resumed = self.resume.as_deref().map(Record::load).transpose()?;
        let settings = self.settings()?;
        let chat = self.load()?;
        let mut talk = Talk {
            conversation: Conversation::default(),
            settings,
            file: self.resume.clone(),
            last: None,
            attempt: 0,
            many_lines: false,
            interactive: is_interactive(),
            failures: 0,
            chat,
        };
        talk.settings.validate(talk.chat.limits(), talk.chat.context())?;
        talk.conversation.set_system(self.system.as_deref());
        if let Some(record) = resumed {
            talk.take(record)?;
        }
        stop_on_interrupt()?;
        let mut input = Input::new(talk.interactive, !self.no_history);
        if talk.interactive {
            note(&format!(
                "{}, a context of {} tokens. /help lists the commands, Ctrl-D leaves.",
                talk.chat.id().name,
                talk.chat.context()
            ));
        }
        talk.run(&mut input)?;
        // A script must be able to tell.
        if !talk.interactive && talk.failures > 0 {
            bail!("{} of the lines failed", talk.failures);
        }
        Ok(Outcome::Done)
    }

    fn load(&self) -> Result<Chat> {
        let gguf = open(&self.model.model)?;
        let options = self.load.options(&self.vocabulary)?;
        match with_load_bar(|progress| Chat::from_gguf(&gguf, &options, progress)) {
            Err(Error::NoChatTemplate) => Err(anyhow!(
                "{} has no chat template: it continues text, but does not answer. Continue a text with `minfer run --raw \
                 -m {} 'Once upon a time'`, or take a model that was tuned for chat (often named -Instruct or -it)",
                self.model.model,
                self.model.model
            )),
            chat => chat.context("cannot load the model"),
        }
    }

    fn settings(&self) -> Result<Settings> {
        Ok(Settings {
            max_tokens: self.n_predict,
            stop: self.stop.clone(),
            on_full: match self.on_full {
                OnFullArg::Stop => OnFull::Stop,
                OnFullArg::Drop => OnFull::Drop,
            },
            dry_breakers: self.sampling.dry_breakers(),
            ..Settings::of(&self.sampling.params()?)
        })
    }
}

/// Whether to go on.
enum Next {
    Line,
    Leave,
}

/// The state of the command.
struct Talk {
    chat: Chat,
    conversation: Conversation,
    settings: Settings,
    /// Where it was saved last.
    file: Option<PathBuf>,
    last: Option<Answer>,
    /// How often the present message was answered before.
    attempt: u64,
    /// Every message goes on up to an empty line.
    many_lines: bool,
    interactive: bool,
    /// Messages and commands that failed.
    failures: usize,
}

impl Talk {
    fn run(&mut self, input: &mut Input) -> Result<()> {
        while let Some(text) = input.read(self.many_lines)? {
            match self.line(&text) {
                Ok(Next::Line) => {}
                Ok(Next::Leave) => break,
                Err(e) if super::terminal::is_broken_pipe(&e) => return Err(e),
                Err(e) => {
                    self.failures += 1;
                    note(&format!("minfer: {}", chain(&e)));
                }
            }
        }
        Ok(())
    }

    /// Does what a line says.
    fn line(&mut self, text: &str) -> Result<Next> {
        if text.starts_with('/') {
            return self.command(text.parse().map_err(|e: String| anyhow!(e))?);
        }
        let message = input::message(text);
        if message.trim().is_empty() {
            return Ok(Next::Line);
        }
        if self.conversation.ask(message).is_some() {
            note("(the message before had no answer: it is replaced)");
        }
        self.attempt = 0;
        self.answer()?;
        Ok(Next::Line)
    }

    fn command(&mut self, command: Command) -> Result<Next> {
        match command {
            Command::Exit => return Ok(Next::Leave),
            Command::Help => help(),
            Command::New => {
                self.conversation.clear();
                note("a new conversation");
            }
            Command::System(text) => self.system(text.as_deref()),
            Command::Regen => self.regenerate()?,
            Command::Undo => match self.conversation.undo() {
                Some(message) => note(&format!("taken back: {}", first_line(&message.content))),
                None => bail!("there is nothing to take back"),
            },
            Command::Drop(n) => self.drop_oldest(n)?,
            Command::Save(path) => self.save(path)?,
            Command::Load(path) => {
                self.take(Record::load(&path)?)?;
                self.file = Some(path);
            }
            Command::Set(None) => {
                for (name, value) in self.settings.named() {
                    let value = if value.is_null() { "none".to_owned() } else { value.to_string() };
                    note(&format!("{name:18} {value}"));
                }
            }
            Command::Set(Some((name, value))) => {
                let settings = self.settings.with(&name, &value).map_err(|e| anyhow!(e))?;
                settings.validate(self.chat.limits(), self.chat.context())?;
                self.settings = settings;
            }
            Command::Stats => self.stats()?,
            Command::Multi => {
                self.many_lines = !self.many_lines;
                note(match self.many_lines {
                    true => "a message goes on up to an empty line; /multi ends this",
                    false => "a message is one line again",
                });
            }
        }
        Ok(Next::Line)
    }

    fn system(&mut self, text: Option<&str>) {
        self.conversation.set_system(text);
        note(match text {
            Some(_) => "set, from the beginning of the conversation on",
            None => "there is no system prompt",
        });
    }

    fn regenerate(&mut self) -> Result<()> {
        // Only an answer that was given makes the next one another.
        let answered = !self.conversation.is_pending();
        if !self.conversation.retract() {
            bail!("there is no message to answer");
        }
        self.attempt += u64::from(answered);
        self.answer()
    }

    fn drop_oldest(&mut self, n: usize) -> Result<()> {
        let dropped = self.conversation.drop_oldest(n);
        if dropped == 0 {
            bail!("there is no exchange before the last one: /undo takes that back, /new begins anew");
        }
        note(&format!("dropped {}: {}", exchanges(dropped), self.room()?));
        Ok(())
    }

    fn save(&mut self, path: Option<PathBuf>) -> Result<()> {
        let Some(path) = path.or_else(|| self.file.clone()) else { bail!("/save where? /save FILE") };
        let record = Record {
            model: self.chat.id().clone(),
            settings: self.settings.clone(),
            conversation: self.conversation.clone(),
        };
        record.save(&path)?;
        note(&format!("saved {} to {}", exchanges(self.conversation.exchanges()), path.display()));
        self.file = Some(path);
        Ok(())
    }

    /// Goes on with a saved conversation.
    fn take(&mut self, record: Record) -> Result<()> {
        record.settings.validate(self.chat.limits(), self.chat.context())?;
        if record.model != *self.chat.id() {
            note(&format!("held with {}, goes on with {}", record.model.name, self.chat.id().name));
        }
        self.conversation = record.conversation;
        self.settings = record.settings;
        self.attempt = 0;
        note(&format!("{}: {}", exchanges(self.conversation.exchanges()), self.room()?));
        Ok(())
    }

    /// How full the context is, in words.
    fn room(&self) -> Result<String> {
        let tokens = match self.conversation.messages().is_empty() {
            true => 0,
            false => self.chat.count(&self.conversation)?,
        };
        Ok(format!("{tokens} of {} tokens", self.chat.context()))
    }

    fn stats(&self) -> Result<()> {
        note(&format!("conversation  {}, {}", exchanges(self.conversation.exchanges()), self.room()?));
        note(&format!(
            "model         {}, loaded in {:.2} s",
            self.chat.id().name,
            self.chat.load_time().as_secs_f64()
        ));
        if let Some(last) = &self.last {
            let computed = last.prompt_tokens.saturating_sub(last.reused_tokens);
            note(&format!(
                "last prompt   {} tokens: {} kept, {computed} computed, {}",
                last.prompt_tokens,
                last.reused_tokens,
                super::run::speed(computed, last.prefill)
            ));
            // The first token comes out of the prompt's last step.
            let generated = last.generated_tokens.saturating_sub(1);
            note(&format!(
                "last answer   {} tokens, {}, seed {}",
                last.generated_tokens,
                super::run::speed(generated, last.decode),
                last.seed
            ));
        }
        Ok(())
    }

    /// Answers the message that waits.
    fn answer(&mut self) -> Result<()> {
        let mut out = Out::new(self.interactive);
        let Talk { chat, conversation, settings, attempt, .. } = self;
        let answer = stoppable(|stop| {
            chat.answer(conversation, (settings, *attempt), stop, &mut |part| out.part(part))
        });
        out.end()?;
        let answer = match answer {
            Err(Error::ContextFull { tokens, context }) => bail!(
                "the context is full: the conversation has {tokens} tokens, {context} fit. {}",
                self.advice("/regen then answers")
            ),
            answer => answer?,
        };
        match answer.end {
            End::Stop | End::MaxTokens => {}
            End::Cancelled => note("(stopped)"),
            End::ContextFull => {
                self.failures += 1;
                note(&format!(
                    "minfer: the context of {} tokens is full: the answer is cut off. {}",
                    self.chat.context(),
                    self.advice("/regen then answers anew")
                ));
            }
        }
        // Of an answer that was stopped before it began nothing is kept: its message waits.
        if answer.end != End::Cancelled || !answer.content.is_empty() {
            self.conversation.answer(answer.content.as_str(), &answer.reasoning);
        }
        self.last = Some(answer);
        Ok(())
    }

    /// What to do about a full context.
    fn advice(&self, after: &str) -> String {
        match self.conversation.exchanges() {
            0 | 1 => "Begin anew with /new, or start with a larger --ctx".to_owned(),
            n => format!(
                "Make room with /drop N (there are {n} exchanges; {after}), begin anew with /new, or start with a larger \
                 --ctx; with --on-full drop this happens by itself"
            ),
        }
    }
}

fn help() {
    for (usage, about) in COMMANDS {
        note(&format!("{usage:18} {about}"));
    }
    note(
        "A line that ends with \\ goes on, and so does everything between two \"\"\". A message that begins with / needs a space before it.",
    );
}

fn exchanges(n: usize) -> String {
    if n == 1 { "1 exchange".to_owned() } else { format!("{n} exchanges") }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Where an answer goes: text to stdout, and on a terminal the reasoning too, dimmed.
struct Out {
    interactive: bool,
    reasoning: bool,
    /// Whether there is text, and the character it ends with.
    last: Option<char>,
    error: Option<std::io::Error>,
}

impl Out {
    fn new(interactive: bool) -> Out {
        Out { interactive, reasoning: false, last: None, error: None }
    }

    fn part(&mut self, part: Part<'_>) -> ControlFlow<()> {
        let written = match part {
            Part::Dropped(n) => {
                note(&format!(
                    "(the context was full: the oldest {} dropped)",
                    if n == 1 { "exchange was".to_owned() } else { format!("{n} exchanges were") }
                ));
                Ok(())
            }
            Part::Reasoning(_) if !self.interactive => Ok(()),
            Part::Reasoning(text) => self.write(text, true),
            Part::Text(text) => self.write(text, false),
        };
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                self.error = Some(e);
                ControlFlow::Break(())
            }
        }
    }

    fn write(&mut self, text: &str, reasoning: bool) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if reasoning && !self.reasoning {
            out.write_all(b"\x1b[2m")?;
        }
        if !reasoning && self.reasoning {
            out.write_all(b"\x1b[0m\n")?;
        }
        self.reasoning = reasoning;
        self.last = text.chars().last().or(self.last);
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Ends the line.
    fn end(mut self) -> Result<()> {
        if let Some(e) = self.error.take() {
            return Err(e.into());
        }
        let mut out = std::io::stdout().lock();
        if self.reasoning {
            out.write_all(b"\x1b[0m")?;
        }
        // A terminal's next prompt begins a line in any case; a script gets exactly one newline more.
        if !(self.interactive && matches!(self.last, None | Some('\n'))) {
            out.write_all(b"\n")?;
        }
        Ok(out.flush()?)
    }
}

/// The file that keeps what was typed.
fn history_file() -> Option<PathBuf> {
    let cache = minfer::source::Cache::from_env().ok()?;
    std::fs::create_dir_all(cache.dir()).ok()?;
    Some(Path::join(cache.dir(), "chat-history"))
}
