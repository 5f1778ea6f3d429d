//! Everything above one model step: requests, scheduling, KV block accounting, sampling.
//!
//! An [`Engine`] owns an [`Executor`](executor::Executor) on a thread of its own. A [`Request`] goes in, [`Event`]s
//! come out; between them the scheduler loop plans steps, has them executed, resolves the results to tokens and
//! applies these. What a request gets is a function of its prompt and parameters alone, whoever else is served.
//!
//! ```
//! use minfer_engine::{Engine, EngineConfig, Event, Request, TokenTable, fake::FakeExecutor};
//!
//! let executor = FakeExecutor::new(FakeExecutor::small_limits());
//! let table: TokenTable = (b'a'..b'z').map(|letter| [letter]).collect();
//! let engine = Engine::new(executor, table, EngineConfig::default())?;
//! let request = Request { prompt: vec![1, 2, 3], max_tokens: Some(5), ..Request::default() };
//! for event in engine.submit(request)? {
//!     if let Event::Token { bytes, .. } = event {
//!         assert!(bytes.len() <= 1);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The engine depends on no other part of minfer: weights, devices and text are beyond its boundaries. What needs an
//! executor but no scheduler (benchmarks, scoring) drives it by a [`Session`].

pub mod constraint;
mod embedding;
mod engine;
mod event;
pub mod executor;
pub mod fake;
pub mod kv;
mod request;
pub mod sampling;
mod scheduler;
pub mod session;
mod stop;

pub use constraint::{Begin, Budget, Constraint, ConstraintError, Grammar};
pub use embedding::{EmbedRequest, Pooling};
pub use engine::{Engine, EngineConfig, Handle, StartError, SubmitError};
pub use event::{Canceller, Event, FinishReason, Stopped, Timings, Usage};
pub use kv::DiskConfig;
pub use request::{
    MAX_BANNED_BYTES, MAX_BANNED_STRINGS, MAX_STOP_BYTES, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS, Request,
    RequestError, Stop, TokenTable, check_banned,
};
pub use sampling::{Logprobs, SamplingParams};
pub use session::Session;
pub use stop::StopMatcher;
