//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::executor::TokenId;
use minfer_engine::{Logprobs, Request, Usage};
use minfer_tokenizer::{AnswerEvent, Tokenizer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::chat::Effectless;
use super::{Answer, StreamOptions, count, finish_reason, usage};
use crate::App;
use crate::conversation::choices_of;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choices, News, Reading};
use crate::host::Model;
use crate::sampling::Sampling;
use crate::stream::EventStream;

/// Most prompts of a request.
const MAX_PROMPTS: usize = 64;

/// A text, or several, as text or tokens.
#[derive(Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids or a list of such lists"
)]
pub(crate) enum Prompts {
    Text(String),
    Tokens(Vec<TokenId>),
    Texts(Vec<String>),
    Lists(Vec<Vec<TokenId>>),
}

impl Prompts {
    /// Each as tokens, with the special tokens that the model's file puts around a text.
    pub(crate) fn tokens(self, tokenizer: &Tokenizer) -> Vec<Vec<TokenId>> {
        let text = |text: &String| tokenizer.encode_prompt(text);
        match self {
            Prompts::Text(prompt) => vec![text(&prompt)],
            Prompts::Texts(list) => list.iter().map(text).collect(),
            Prompts::Tokens(ids) => vec![ids],
            Prompts::Lists(lists) => lists,
        }
    }
}

/// A request, checked.
struct Completion {
    model: Arc<dyn Model>,
    requests: Vec<Request>,
    /// Choices of each prompt.
    n: usize,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
}

/// What is to be continued, and what is particular to that.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CompletionFields {
    /// The model's name; the only or first one if left out.
    model: Option<String>,
    prompt: Prompts,
    /// Continuations of each prompt.
    n: Option<usize>,
    /// Only as many as `n`.
    best_of: Option<usize>,
    /// Not supported, unless empty.
    suffix: Option<String>,
    /// The prompt is part of the text.
    echo: Option<bool>,
    /// Server-sent events instead of one answer.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Log-probabilities of the tokens, and of so many of the most probable ones.
    logprobs: Option<u8>,
    /// llama.cpp's word for that.
    n_probs: Option<u8>,
}

impl Completion {
    fn parse(app: &App, body: &[u8]) -> Result<Completion, ApiError> {
        let mut fields = Fields::parse(body)?;
        let own: CompletionFields = fields.read()?;
        let sampling: Sampling = fields.read()?;
        fields.read::<Effectless>()?;
        fields.finish()?;
        let model = app.model(own.model.as_deref())?;
        let prompts = own.prompt.tokens(model.tokenizer());
        if !(1..=MAX_PROMPTS).contains(&prompts.len()) {
            let found = format!("has {} prompts, must have 1 to {MAX_PROMPTS}", prompts.len());
            return Err(ApiError::field("prompt", found));
        }
        let mut request = sampling.request(&*model)?;
        request.logprobs = own.logprobs.or(own.n_probs.filter(|&n| n > 0));
        let n = count(own.n)?;
        if own.best_of.is_some_and(|best| best != n) {
            return Err(ApiError::unsupported("best_of"));
        }
        if own.suffix.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported("suffix"));
        }
        if own.echo == Some(true) {
            return Err(ApiError::unsupported("echo"));
        }
        let include_usage = own.stream_options.is_some_and(StreamOptions::include_usage);
        let stream = own.stream.unwrap_or(false);
        let logprobs = request.logprobs.is_some();
        let of = |prompt| choices_of(Request { prompt, ..request.clone() }, n);
        let requests = prompts.into_iter().flat_map(of).collect();
        Ok(Completion { model, requests, n, stream, include_usage, logprobs })
    }
}

/// Answers.
pub(crate) async fn completions(app: App, body: &[u8]) -> Result<Response, ApiError> {
    let mut completion = Completion::parse(&app, body)?;
    let requests = std::mem::take(&mut completion.requests);
    let count = requests.len();
    let reading = || Reading { parser: None, calls: 0 };
    let choices = Choices::start(&completion.model, requests, reading)?;
    match completion.stream {
        true => {
            let (stream, response) = EventStream::new();
            tokio::spawn(streamed(completion, choices, count, stream));
            Ok(response)
        }
        false => whole(completion, choices, count).await,
    }
}

fn text_of(events: Vec<AnswerEvent>) -> String {
    let text = |event| if let AnswerEvent::Content(text) = event { text } else { String::new() };
    events.into_iter().map(text).collect()
}

/// Log-probabilities in the older form: lists.
#[derive(Default)]
struct Lists {
    tokens: Vec<Value>,
    chosen: Vec<Value>,
    top: Vec<Value>,
}

impl Lists {
    fn add(&mut self, tokenizer: &Tokenizer, id: TokenId, logprobs: &Logprobs) {
        let text = |id| String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned();
        self.tokens.push(json!(text(id)));
        self.chosen.push(json!(logprobs.chosen));
        let top: Map<String, Value> = logprobs.top.iter().map(|&(id, p)| (text(id), json!(p))).collect();
        self.top.push(Value::Object(top));
    }

    fn json(self, asked: bool) -> Value {
        match asked {
            true => json!({"tokens": self.tokens, "token_logprobs": self.chosen, "top_logprobs": self.top}),
            false => Value::Null,
        }
    }
}

async fn whole(completion: Completion, mut choices: Choices, count: usize) -> Result<Response, ApiError> {
    let answer = Answer::new("cmpl", "text_completion", &*completion.model);
    let mut texts = vec![String::new(); count];
    let mut lists: Vec<Lists> = (0..count).map(|_| Lists::default()).collect();
    let mut finishes = vec![None; count];
    let mut used = vec![Usage::default(); count];
    while let Some(piece) = choices.pieces.recv().await {
        match piece.news {
            News::Prompt { .. } => {}
            News::Delta { events, logprobs } => {
                texts[piece.choice] += &text_of(events);
                if let Some((id, p)) = logprobs {
                    lists[piece.choice].add(completion.model.tokenizer(), id, &p);
                }
            }
            News::End { reason, usage, .. } => {
                finishes[piece.choice] = Some(finish_reason(&reason)?);
                used[piece.choice] = usage;
            }
        }
    }
    let of = |(index, ((text, lists), finish)): (usize, ((String, Lists), Option<&str>))| json!({"index": index, "text": text, "logprobs": lists.json(completion.logprobs), "finish_reason": finish});
    let list = texts.into_iter().zip(lists).zip(finishes).enumerate().map(of).collect();
    Ok(Json(answer.json(list, Some(usage(&used, completion.n)))).into_response())
}

async fn streamed(completion: Completion, mut choices: Choices, count: usize, stream: EventStream) {
    let answer = Answer::new("cmpl", "text_completion", &*completion.model);
    let chunk = |index: usize, text: String, logprobs: Value, finish: Option<&str>| {
        answer.json(
            json!([{"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}]),
            None,
        )
    };
    let mut used = vec![Usage::default(); count];
    while let Some(piece) = stream.next(&mut choices).await {
        let sent = match piece.news {
            News::Prompt { .. } => true,
            News::Delta { events, logprobs } => {
                let (text, mut lists) = (text_of(events), Lists::default());
                if let Some((id, p)) = &logprobs {
                    lists.add(completion.model.tokenizer(), *id, p);
                }
                let nothing = text.is_empty() && logprobs.is_none();
                nothing || stream.send(&chunk(piece.choice, text, lists.json(logprobs.is_some()), None)).await
            }
            News::End { reason, usage, .. } => {
                used[piece.choice] = usage;
                match finish_reason(&reason) {
                    Ok(finish) => {
                        stream.send(&chunk(piece.choice, String::new(), Value::Null, Some(finish))).await
                    }
                    Err(error) => {
                        stream.send(&error.body()).await;
                        false
                    }
                }
            }
        };
        if !sent {
            return;
        }
    }
    if completion.include_usage {
        stream.send(&answer.json(json!([]), Some(usage(&used, completion.n)))).await;
    }
    stream.done().await;
}
