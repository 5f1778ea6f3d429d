//! Local LLM inference: load any GGUF, run it fast, prove it right.
//!
//! [`Llm`] is a loaded model with its vocabulary. It answers conversations, continues texts and turns texts into vectors; it is
//! `Send` and `Sync`, and what several threads ask of it is computed together. Nothing is global: each [`Llm`] has its own engine,
//! which ends when it is dropped, and the environment is read for the place of the cache only ([`env`]).
//!
//! # Answers
//!
//! ```no_run
//! use minfer::{Generate, Llm, Message, Options};
//!
//! let llm = Llm::load(&"pip:smollm2".parse()?, &Options::default())?;
//! let question = [Message::user("Why is the sky blue?")];
//! for piece in llm.chat(&question, &Generate { max_tokens: Some(64), ..Generate::default() })? {
//!     print!("{}", piece?);
//! }
//! # Ok::<(), minfer::Error>(())
//! ```
//!
//! A [`Generation`] is an iterator over text as it comes, in whole characters; dropping it cancels the request, and a
//! [`Canceller`] does from any thread. [`Generation::next_piece`] gives the tokens and log-probabilities too, and
//! [`Generation::summary`] says how it went. [`Generate`] has the sampling, stop and banned strings, a constraint on
//! the text ([`Grammar`]), guesses that make it faster ([`Llm::with_draft`]), a priority and a deadline.
//!
//! ```no_run
//! use minfer::{Generate, Grammar, Llm, Message, Options, SamplingParams};
//!
//! let llm = Llm::load(&"model.gguf".parse()?, &Options::default())?;
//! let messages = [Message::system("Answer in one word."), Message::user("Is the sky blue?")];
//! let options = Generate {
//!     sampling: SamplingParams::greedy(),
//!     constraint: Some(Grammar::Regex("yes|no".into())),
//!     ..Generate::default()
//! };
//! let mut generation = llm.chat(&messages, &options)?;
//! let answer: String = generation.by_ref().collect::<Result<_, _>>()?;
//! println!("{answer}, by {:?}", generation.summary().map(|summary| summary.usage));
//! # Ok::<(), minfer::Error>(())
//! ```
//!
//! # Vectors
//!
//! ```no_run
//! use minfer::{Embed, Llm, Options, Pooling};
//!
//! let llm = Llm::load(&"model.gguf".parse()?, &Options::default())?;
//! let sky = llm.embed("The sky is blue.", &Embed::default())?;
//! assert_eq!(sky.values().len(), llm.embedding_width());
//! // Many texts are computed together; one that does not fit is an error in its place.
//! let options = Embed { pooling: Some(Pooling::Mean), ..Embed::default() };
//! for vector in llm.embed_each(["Grass is green.", "Snow is white."], &options) {
//!     println!("{:?}", vector?.values());
//! }
//! # Ok::<(), minfer::Error>(())
//! ```
//!
//! # All of it, on a model of random weights
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use minfer::synth::{self, Shape};
//! use minfer::{Embed, Generate, Llm, Message, Options, SamplingParams, Source};
//!
//! let shape = Shape { n_layer: 2, n_vocab: 1024, n_ctx: 256, ..Shape::known("smollm2-135m").ok_or("no such shape")? };
//! let path = std::env::temp_dir().join(format!("minfer-example-{}.gguf", std::process::id()));
//! synth::write(&path, &shape, "q4_k_m".parse()?, 7, &mut |_, _| ControlFlow::Continue(()))?;
//! let llm = Llm::load(&Source::Path(path.clone()), &Options::default())?;
//!
//! let greedy = Generate { max_tokens: Some(8), sampling: SamplingParams::greedy(), ..Generate::default() };
//! let text = |prompt| -> Result<String, minfer::Error> { llm.complete(prompt, &greedy)?.collect() };
//! let alone = text("Once upon a time")?;
//! // Other threads, and other requests, change nothing.
//! let together = std::thread::scope(|scope| {
//!     let others = ["a", "b", "c"].map(|prompt| scope.spawn(move || text(prompt)));
//!     let together = text("Once upon a time");
//!     others.into_iter().for_each(|other| assert!(other.join().is_ok()));
//!     together
//! })?;
//! assert_eq!(together, alone);
//!
//! let mut answer = llm.chat(&[Message::user("Hello")], &greedy)?;
//! answer.canceller().cancel();
//! while let Some(piece) = answer.next_piece() {
//!     print!("{}", piece?.text);
//! }
//! assert!(answer.summary().is_some());
//!
//! let vector = llm.embed("Hello", &Embed::default())?;
//! let length: f32 = vector.values().iter().map(|v| v * v).sum();
//! assert!((length - 1.0).abs() < 1e-5);
//! # drop(answer);
//! # drop(llm);
//! # std::fs::remove_file(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is stable
//!
//! The names at the root of this crate are the library: [`Llm`], [`Options`] and what is reached from them. They follow semantic
//! versioning; errors may grow (they are `non_exhaustive`), and structs of options are meant to be filled up with
//! `..Default::default()`. The modules ([`chat`], [`bench`], [`synth`], …) are what the `minfer` command is made of, and the
//! re-exported crates ([`engine`], [`model`], [`gguf`], …) what the library stands on: public, documented, and free to change
//! with any version.

pub mod bench;
pub mod chat;
pub mod check;
mod device;
pub mod env;
pub mod facts;
mod identity;
mod llm;
pub mod perplexity;
mod random;
mod served;
pub mod source;
pub mod synth;
mod vocabulary;

pub use device::{
    AnyModel, DeviceChoice, GpuNumerics, GpuPlan, Loaded, gpu_unavailable, load_model, plan_on_gpu,
};
pub use llm::{
    DiskCache, DryBreakers, Embed, Embedding, Error, Generate, Generation, Llm, Message, Options,
    PendingEmbedding, Piece, Summary,
};
pub use minfer_cpu::CpuOptions;
pub use minfer_engine::{Canceller, FinishReason, Grammar, Logprobs, Pooling, SamplingParams, Usage};
pub use minfer_model::LoadOptions;
pub use served::Served;
pub use source::Source;
pub use vocabulary::{model_vocabulary, vocabulary};

pub use minfer_cpu as cpu;
#[cfg(feature = "cuda")]
pub use minfer_cuda as cuda;
pub use minfer_engine as engine;
pub use minfer_gguf as gguf;
pub use minfer_model as model;
pub use minfer_server as server;
pub use minfer_tokenizer as tokenizer;

/// The commit that this program was built from; "unknown" outside of a repository.
pub const BUILD_COMMIT: &str = env!("MINFER_BUILD_COMMIT");

/// Number of commits up to [`BUILD_COMMIT`]; 0 outside of a repository.
pub fn build_number() -> u64 {
    env!("MINFER_BUILD_NUMBER").parse().unwrap_or(0)
}
