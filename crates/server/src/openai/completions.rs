//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use minfer_engine::executor::TokenId;
use minfer_engine::{Logprobs, Request, Usage};
use minfer_tokenizer::{AnswerEvent, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Answer, EventStream, choices_of, count, finish_reason, include_usage, sampling, usage};
use crate::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choices, News, Reading};
use crate::host::Model;

/// Most prompts of a request.
const MAX_PROMPTS: usize = 64;

/// A prompt, or several, as text or tokens.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Tokens(Vec<TokenId>),
    Texts(Vec<String>),
    Lists(Vec<Vec<TokenId>>),
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

impl Completion {
    fn parse(app: &App, body: &[u8]) -> Result<Completion, ApiError> {
        let mut fields = Fields::parse(body)?;
        let model = app.model(fields.take::<String>("model")?.as_deref())?;
        let text = |text: &String| model.tokenizer().encode_prompt(text);
        let prompts: Vec<Vec<TokenId>> = match fields.need("prompt")? {
            Prompts::Text(prompt) => vec![text(&prompt)],
            Prompts::Texts(list) => list.iter().map(text).collect(),
            Prompts::Tokens(ids) => vec![ids],
            Prompts::Lists(lists) => lists,
        };
        if !(1..=MAX_PROMPTS).contains(&prompts.len()) {
            let found = format!("has {} prompts, must have 1 to {MAX_PROMPTS}", prompts.len());
            return Err(ApiError::field("prompt", found));
        }
        let mut request = sampling::request(&mut fields, &*model)?;
        request.logprobs = fields.take::<u8>("logprobs")?;
        let n = count(fields.take("n")?)?;
        let best_of: Option<usize> = fields.take("best_of")?;
        if best_of.is_some_and(|best| best != n) {
            return Err(ApiError::unsupported("best_of"));
        }
        if fields.take::<String>("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported("suffix"));
        }
        let include_usage = include_usage(&mut fields)?;
        let stream = fields.take("stream")?.unwrap_or(false);
        fields.ignore(&["user", "cache_prompt"]);
        fields.finish()?;
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
            News::Delta { events, logprobs } => {
                texts[piece.choice] += &text_of(events);
                if let Some((id, p)) = logprobs {
                    lists[piece.choice].add(completion.model.tokenizer(), id, &p);
                }
            }
            News::End { reason, usage } => {
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
            News::Delta { events, logprobs } => {
                let (text, mut lists) = (text_of(events), Lists::default());
                if let Some((id, p)) = &logprobs {
                    lists.add(completion.model.tokenizer(), *id, p);
                }
                let nothing = text.is_empty() && logprobs.is_none();
                nothing || stream.send(&chunk(piece.choice, text, lists.json(logprobs.is_some()), None)).await
            }
            News::End { reason, usage } => {
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
