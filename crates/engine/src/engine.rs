//! The engine: the thread that owns an executor, and the way to it.

use std::any::Any;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::constraint::{Constrained, Vocabulary};
use crate::embedding::{EmbedRequest, Pool};
use crate::event::{self, Canceller, Event, FinishReason, Source, Timings, Usage};
use crate::executor::{Executor, Limits, MAX_IN_FLIGHT};
use crate::kv::{DiskConfig, KvError};
use crate::request::{Request, RequestError, TokenTable};
use crate::scheduler::{Job, Place, Scheduler};

/// Bounds of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests computed together at most; fewer where the executor's limits are lower.
    pub max_running: usize,
    /// Requests that may wait; further ones are refused.
    pub max_waiting: usize,
    /// Events that a client may leave unread; then its request ends.
    pub event_capacity: usize,
    /// Tokens of one step, which bounds the chunks in which prompts are read; fewer where the executor's limit is
    /// lower. It bounds how long a prompt can hold up those who are generating.
    pub step_tokens: usize,
    /// Steps in flight, 1 to [`MAX_IN_FLIGHT`]. With 2 the host prepares one while the device runs the other, at the
    /// cost of a row computed in vain when a text ends. Results are the same.
    pub in_flight: usize,
    /// Whether what has been computed is kept for later requests that begin with the same tokens, as long as nobody else
    /// needs the memory. Results are the same.
    pub prefix_cache: bool,
    /// Where of it is kept what memory has no room for, and what there is at the end; another engine finds it there.
    pub disk: Option<DiskConfig>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let max_waiting = 256;
        let in_flight = MAX_IN_FLIGHT;
        EngineConfig {
            max_running: 16,
            max_waiting,
            event_capacity: 4096,
            step_tokens: 512,
            in_flight,
            prefix_cache: true,
            disk: None,
        }
    }
}

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A bound that is out of range.
    #[error("{field} is {found}, must be {bound}")]
    Config {
        /// Field of [`EngineConfig`].
        field: &'static str,
        /// Its value.
        found: usize,
        /// The range in words.
        bound: &'static str,
    },
    /// The executor's limits are impossible.
    #[error(transparent)]
    Limits(#[from] KvError),
    /// A folder for the prefix cache without a prefix cache, or of an executor whose blocks cannot be read.
    #[error("nothing can be kept on disk: {0}")]
    NothingToKeep(&'static str),
    /// The folder of the prefix cache.
    #[error("{}", dir.display())]
    Disk {
        /// The folder.
        dir: PathBuf,
        /// What is wrong with it.
        #[source]
        error: std::io::Error,
    },
    /// The executor could not be built.
    #[error(transparent)]
    Executor(Box<dyn Error + Send + Sync>),
    /// A draft model that generates nothing.
    #[error("the draft model is an encoder: it embeds texts, but guesses no tokens")]
    Draft,
    /// Building the executor panicked.
    #[error("building the executor panicked: {0}")]
    Panicked(String),
    /// The system gave no thread.
    #[error("no thread for the engine")]
    Thread(#[source] std::io::Error),
}

/// Why a request is not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// It can never run.
    #[error(transparent)]
    Invalid(#[from] RequestError),
    /// Too many are waiting.
    #[error("the queue is full: {max_waiting} requests are waiting")]
    QueueFull {
        /// The bound.
        max_waiting: usize,
    },
    /// The engine is dead.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}

/// What clients and the thread share.
#[derive(Debug, Default)]
struct Shared {
    /// Places taken in the queue.
    waiting: Arc<AtomicUsize>,
    /// Set by a client: end.
    stop: AtomicBool,
    /// Set by the thread, before anything else of its end can be seen: why it ended.
    ended: OnceLock<String>,
}

impl Shared {
    fn ended(&self) -> String {
        self.ended.get().cloned().unwrap_or_else(|| "its thread is gone".into())
    }
}

/// An executor at work on its own thread. Dropping it cancels every request and joins the thread, as
/// [`Engine::shutdown`] does.
#[derive(Debug)]
pub struct Engine {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    config: EngineConfig,
    limits: Limits,
    capacity: usize,
    vocabulary: Vocabulary,
    /// Whether there is a draft model.
    drafts: bool,
}

/// What an engine computes with.
struct Parts<E> {
    executor: E,
    draft: Option<Box<dyn Executor>>,
}

type Failure = Box<dyn Error + Send + Sync>;

impl Engine {
    /// Starts with an executor.
    pub fn new(
        executor: impl Executor + Send + 'static,
        table: TokenTable,
        config: EngineConfig,
    ) -> Result<Self, StartError> {
        Engine::spawn(move || Ok(executor), table, config)
    }

    /// Starts with an executor that `build` makes on the engine's thread and that never leaves it.
    pub fn spawn<E: Executor>(
        build: impl FnOnce() -> Result<E, Failure> + Send + 'static,
        table: TokenTable,
        config: EngineConfig,
    ) -> Result<Self, StartError> {
        Engine::spawn_parts(move || Ok(Parts { executor: build()?, draft: None }), false, table, config)
    }

    /// Starts with an executor and a draft model, whose tokens are the same as far as both have them, for requests that ask for its
    /// guesses ([`Request::draft`]).
    pub fn with_draft(
        executor: impl Executor + Send + 'static,
        draft: impl Executor + Send + 'static,
        table: TokenTable,
        config: EngineConfig,
    ) -> Result<Self, StartError> {
        if draft.limits().bidirectional {
            return Err(StartError::Draft);
        }
        let parts = move || Ok(Parts { executor, draft: Some(Box::new(draft) as Box<dyn Executor>) });
        Engine::spawn_parts(parts, true, table, config)
    }

    fn spawn_parts<E: Executor>(
        build: impl FnOnce() -> Result<Parts<E>, Failure> + Send + 'static,
        drafts: bool,
        table: TokenTable,
        config: EngineConfig,
    ) -> Result<Self, StartError> {
        config.validate()?;
        let table = Arc::new(table);
        let shared = Arc::new(Shared::default());
        // Every job in it has a place in the queue, so there is always room.
        let (jobs, receiver) = mpsc::sync_channel(config.max_waiting);
        let (ready, started) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name("minfer-engine".into()).spawn({
            let (shared, table, config) = (shared.clone(), table.clone(), config.clone());
            move || match start(build, table, &config) {
                Err(error) => _ = ready.send(Err(error)),
                Ok(scheduler) => {
                    _ = ready.send(Ok((scheduler.limits().clone(), scheduler.capacity())));
                    run(scheduler, receiver, &shared);
                }
            }
        });
        let thread = thread.map_err(StartError::Thread)?;
        let (limits, capacity) =
            started.recv().unwrap_or_else(|_| Err(StartError::Panicked(String::new())))?;
        let vocabulary = Vocabulary::new(table, limits.vocab);
        let (jobs, thread) = (Some(jobs), Some(thread));
        Ok(Engine { jobs, thread, shared, config, limits, capacity, vocabulary, drafts })
    }

    /// Hands a request over. Never waits, but compiles its constraint, if it has one: milliseconds, for the first one of an
    /// engine up to a second more.
    pub fn submit(&self, request: Request) -> Result<Handle, SubmitError> {
        request.validate(&self.limits, self.capacity)?;
        if request.draft > 0 && !self.drafts {
            return Err(RequestError::NoDraft(request.draft).into());
        }
        let constraint = self.vocabulary.state(request.constraint.as_ref(), request.budget.as_ref());
        let constraint = constraint.map_err(RequestError::from)?;
        self.hand_over(request, constraint, None)
    }

    /// Hands a text over to be embedded, as [`Engine::submit`] does to be continued. The two are computed together.
    pub fn embed(&self, request: EmbedRequest) -> Result<Handle, SubmitError> {
        request.validate(&self.limits, self.capacity)?;
        let pool = Pool::new(&request);
        let EmbedRequest { prompt, priority, deadline, .. } = request;
        // Its last token is computed, but none is generated.
        let request = Request { prompt, priority, deadline, max_tokens: Some(1), ..Request::default() };
        self.hand_over(request, None, Some(pool))
    }

    fn hand_over(
        &self,
        request: Request,
        constraint: Option<Constrained>,
        pool: Option<Pool>,
    ) -> Result<Handle, SubmitError> {
        let max_waiting = self.config.max_waiting;
        let full = SubmitError::QueueFull { max_waiting };
        let Some(place) = Place::take(&self.shared.waiting, max_waiting) else {
            return Err(self.shared.ended.get().cloned().map_or(full, SubmitError::Stopped));
        };
        let usage = Usage { prompt_tokens: request.prompt.len(), ..Usage::default() };
        let (sink, source) = event::channel(self.config.event_capacity);
        let canceller = Canceller::default();
        let (submitted, place) = (Instant::now(), Some(place));
        let job = Job { request, constraint, pool, sink, canceller: canceller.clone(), submitted, place };
        let stopped = || SubmitError::Stopped(self.shared.ended());
        match self.jobs.as_ref().ok_or_else(stopped)?.try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(full),
            Err(TrySendError::Disconnected(_)) => return Err(stopped()),
        }
        let shared = self.shared.clone();
        Ok(Handle { source, canceller, shared, usage, finished: false })
    }

    /// What the executor can take.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Tokens of the longest prompt: the context, or less where the cache is smaller.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Cancels every request and waits until the thread has dropped the executor.
    pub fn shutdown(self) {}
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Wakes the thread if it is idle.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported to whom it concerns.
            let _ = thread.join();
        }
    }
}

impl EngineConfig {
    fn validate(&self) -> Result<(), StartError> {
        let fields = [
            ("max_running", self.max_running),
            ("max_waiting", self.max_waiting),
            ("event_capacity", self.event_capacity),
            ("step_tokens", self.step_tokens),
            ("in_flight", self.in_flight),
        ];
        if let Some(&(field, found)) = fields.iter().find(|(_, value)| *value == 0) {
            return Err(StartError::Config { field, found, bound: "at least 1" });
        }
        if self.in_flight > MAX_IN_FLIGHT {
            return Err(StartError::Config { field: "in_flight", found: self.in_flight, bound: "1 or 2" });
        }
        Ok(())
    }
}

fn start<E: Executor>(
    build: impl FnOnce() -> Result<Parts<E>, Failure>,
    table: Arc<TokenTable>,
    config: &EngineConfig,
) -> Result<Scheduler<E>, StartError> {
    let parts =
        catch_unwind(AssertUnwindSafe(build)).map_err(|panic| StartError::Panicked(message(&*panic)))?;
    let Parts { executor, draft } = parts.map_err(StartError::Executor)?;
    let scheduler = Scheduler::new(executor, table, config)?;
    Ok(match draft {
        Some(draft) => scheduler.with_draft(draft)?,
        None => scheduler,
    })
}

/// The thread's life after its start.
fn run<E: Executor>(mut scheduler: Scheduler<E>, jobs: Receiver<Job>, shared: &Shared) {
    let end = catch_unwind(AssertUnwindSafe(|| serve(&mut scheduler, &jobs, shared)));
    let ended = |why| _ = shared.ended.set(why);
    match end {
        Ok(end) => {
            let reason =
                end.as_ref().err().map_or(FinishReason::Cancelled, |what| FinishReason::Error(what.clone()));
            let works = end.is_ok();
            ended(end.err().unwrap_or_else(|| "it was shut down".into()));
            jobs.try_iter().for_each(|job| scheduler.enqueue(job));
            scheduler.finish_all(reason);
            if works {
                scheduler.keep_all();
            }
        }
        // Nothing can be relied on but that the sinks are dropped: each handle then reports why.
        Err(panic) => ended(format!("it panicked: {}", message(&*panic))),
    }
}

fn serve<E: Executor>(
    scheduler: &mut Scheduler<E>,
    jobs: &Receiver<Job>,
    shared: &Shared,
) -> Result<(), String> {
    while !shared.stop.load(Ordering::Relaxed) {
        if scheduler.is_idle() {
            let Ok(job) = jobs.recv() else { return Ok(()) };
            scheduler.enqueue(job);
        }
        jobs.try_iter().for_each(|job| scheduler.enqueue(job));
        scheduler.step()?;
    }
    Ok(())
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// A request under way: an iterator over its [`Event`]s, which ends after [`Event::Finished`], come what may.
/// Dropping it cancels the request.
#[derive(Debug)]
pub struct Handle {
    source: Source,
    canceller: Canceller,
    shared: Arc<Shared>,
    /// What has been seen so far.
    usage: Usage,
    finished: bool,
}

impl Handle {
    /// Asks for the end of the request; it comes within a step, with [`FinishReason::Cancelled`].
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Cancels this request from elsewhere, for example on an interrupt.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

impl Iterator for Handle {
    type Item = Event;

    /// Waits for the next event.
    fn next(&mut self) -> Option<Event> {
        if self.finished {
            return None;
        }
        let event = self.source.recv().unwrap_or_else(|| Event::Finished {
            reason: FinishReason::Error(format!("the engine has stopped: {}", self.shared.ended())),
            rest: Vec::new(),
            usage: self.usage,
            timings: Timings::default(),
        });
        self.usage.completion_tokens += usize::from(matches!(event, Event::Token { .. }));
        self.finished = matches!(event, Event::Finished { .. });
        Some(event)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests;
