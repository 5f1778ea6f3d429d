//! Answers that come bit by bit: server-sent events, or JSON objects one a line.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::generation::{Choices, Piece};

/// Events that may wait for a slow client.
const EVENTS: usize = 64;

/// A stream of server-sent events.
pub(crate) struct EventStream(mpsc::Sender<Result<sse::Event, Infallible>>);

impl EventStream {
    /// The stream, and the response that it is.
    pub(crate) fn new() -> (Self, Response) {
        let (sender, receiver) = mpsc::channel(EVENTS);
        let response = Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default());
        (EventStream(sender), response.into_response())
    }

    /// False if the client has gone.
    pub(crate) async fn send(&self, value: &Value) -> bool {
        self.0.send(Ok(sse::Event::default().data(value.to_string()))).await.is_ok()
    }

    /// An event with the name that its `type` is. False if the client has gone.
    pub(crate) async fn send_typed(&self, value: &Value) -> bool {
        let name = value["type"].as_str().unwrap_or_default();
        self.0.send(Ok(sse::Event::default().event(name).data(value.to_string()))).await.is_ok()
    }

    /// The end as OpenAI has it.
    pub(crate) async fn done(&self) {
        let _ = self.0.send(Ok(sse::Event::default().data("[DONE]"))).await;
    }

    /// Waits for the next piece; `None` at the end, or if the client has gone.
    pub(crate) async fn next(&self, choices: &mut Choices) -> Option<Piece> {
        tokio::select! {
            piece = choices.pieces.recv() => piece,
            () = self.0.closed() => None,
        }
    }
}

/// A stream of JSON objects, one a line.
pub(crate) struct LineStream(mpsc::Sender<Bytes>);

impl LineStream {
    /// The stream, and the response that it is.
    pub(crate) fn new() -> (Self, Response) {
        let (sender, receiver) = mpsc::channel(EVENTS);
        let body = Body::from_stream(ReceiverStream::new(receiver).map(Ok::<Bytes, Infallible>));
        let response = ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response();
        (LineStream(sender), response)
    }

    /// False if the client has gone.
    pub(crate) async fn send(&self, value: &Value) -> bool {
        self.0.send(format!("{value}\n").into()).await.is_ok()
    }

    /// Waits for the next piece; `None` at the end, or if the client has gone.
    pub(crate) async fn next(&self, choices: &mut Choices) -> Option<Piece> {
        tokio::select! {
            piece = choices.pieces.recv() => piece,
            () = self.0.closed() => None,
        }
    }
}
