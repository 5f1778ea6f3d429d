//! The HTTP server. Each API dialect is an adapter: JSON to a request of the engine, its events to JSON.
//!
//! The server knows models through [`ModelHost`] and never sees a tensor. Its tasks are asynchronous; everything below is
//! not: the engine is a thread with a queue, and a request's events are read on a thread of their own. A client that goes
//! has its requests cancelled. Nothing of a request is logged.

mod answered;
mod anthropic;
mod auth;
mod calls;
mod conversation;
mod embedding;
mod error;
mod fields;
mod generation;
mod host;
mod ollama;
mod openai;
mod page;
mod sampling;
mod stream;
mod text;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tower_http::catch_panic::CatchPanicLayer;

use auth::Keys;
use error::ApiError;
pub use host::{About, Model, ModelHost, Single};
use openai::responses::store::Store;

/// Bounds and keys of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub address: SocketAddr,
    /// Keys, one of which a request needs; none: no request needs one.
    pub api_keys: Vec<String>,
    /// Longest body of a request, in bytes.
    pub max_body_bytes: usize,
    /// How long requests that are under way may go on when the server ends.
    pub drain: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            api_keys: Vec::new(),
            max_body_bytes: 16 << 20,
            drain: Duration::from_secs(30),
        }
    }
}

/// Why a server ends without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its threads do not start.
    #[error("the server's threads do not start: {0}")]
    Threads(std::io::Error),
    /// It cannot listen.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// Listening ended.
    #[error("listening ended: {0}")]
    Serve(std::io::Error),
}

/// What handlers have.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) host: Arc<dyn ModelHost>,
    keys: Keys,
    pub(crate) responses: Arc<Store>,
}

impl App {
    /// The model that a request names.
    pub(crate) fn model(&self, id: Option<&str>) -> Result<Arc<dyn Model>, ApiError> {
        self.host.acquire(id.filter(|id| !id.is_empty())).ok_or_else(|| ApiError {
            code: Some("model_not_found"),
            param: Some("model".to_owned()),
            ..ApiError::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                format!("there is no model {:?} here", id.unwrap_or_default()),
            )
        })
    }
}

/// Serves until the process is told to end (SIGINT, SIGTERM), then lets requests that are under way end, for so long as
/// [`Config::drain`] says. `listening` hears the address, once there are answers on it.
///
/// # Errors
///
/// [`Error`].
pub fn serve(
    host: Arc<dyn ModelHost>,
    config: &Config,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // One for each request under way; those that wait in the engine's queue are among them.
        .max_blocking_threads(4096)
        .thread_name("minfer-server")
        .enable_all()
        .build()
        .map_err(Error::Threads)?;
    let served = runtime.block_on(async {
        let address = config.address;
        let listener = TcpListener::bind(address).await.map_err(|error| Error::Listen { address, error })?;
        listening(listener.local_addr().map_err(|error| Error::Listen { address, error })?);
        let (ending, mut ended) = tokio::sync::watch::channel(false);
        let server = axum::serve(listener, router(host, config)).with_graceful_shutdown(async move {
            asked_to_end().await;
            tracing::info!("ending: no new requests, those under way go on");
            let _ = ending.send(true);
        });
        let too_long = async {
            let _ = ended.wait_for(|ended| *ended).await;
            tokio::time::sleep(config.drain).await;
        };
        tokio::select! {
            served = server.into_future() => served.map_err(Error::Serve),
            () = too_long => Ok(()),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn asked_to_end() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = interrupt.await;
}

type Body = Result<Bytes, BytesRejection>;
type Answered = Result<Response, ApiError>;

fn bytes(body: Body) -> Result<Bytes, ApiError> {
    body.map_err(|rejection| {
        ApiError::new(rejection.status(), "invalid_request_error", rejection.body_text())
    })
}

fn router(host: Arc<dyn ModelHost>, config: &Config) -> Router {
    let app = App { host, keys: Keys::new(&config.api_keys), responses: Arc::default() };
    let needs_key = Router::new()
        .route("/v1/models", get(async |State(app): State<App>| openai::models(&app)))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/responses", post(responses))
        .route("/v1/responses/{id}", get(response).delete(delete_response))
        .route("/v1/responses/{id}/input_items", get(input_items))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/api/chat", post(ollama_chat))
        .route("/api/generate", post(ollama_generate))
        .route("/api/embed", post(ollama_embed))
        .route("/api/embeddings", post(ollama_embeddings))
        .route("/api/show", post(ollama_show))
        .route("/api/tags", get(async |State(app): State<App>| ollama::tags(&app)))
        .route("/api/version", get(async || ollama::version()))
        .route("/props", get(async |State(app): State<App>| ollama::props(&app)))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .route_layer(middleware::from_fn_with_state(app.clone(), check_key));
    Router::new()
        .route("/health", get(async || axum::Json(serde_json::json!({"status": "ok"}))))
        .merge(page::routes())
        .merge(needs_key)
        .fallback(async || {
            ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", "there is nothing here")
        })
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "not with this method")
        })
        .layer(DefaultBodyLimit::max(config.max_body_bytes))
        .layer(middleware::from_fn_with_state(config.max_body_bytes as u64, check_length))
        .layer(CatchPanicLayer::custom(|_| ApiError::server("a fault of the server").into_response()))
        .layer(middleware::from_fn(error::in_dialect))
        .with_state(app)
}

async fn check_key(State(app): State<App>, request: Request, next: Next) -> Answered {
    app.keys.check(request.headers())?;
    Ok(next.run(request).await)
}

/// Refuses what says that it will be too long before any of it has come.
async fn check_length(State(max): State<u64>, request: Request, next: Next) -> Answered {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length: Option<u64> = length.and_then(|length| length.to_str().ok()?.parse().ok());
    match length {
        Some(length) if length > max => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!("the body has {length} bytes, at most {max} are possible"),
        )),
        _ => Ok(next.run(request).await),
    }
}

async fn model(State(app): State<App>, Path(id): Path<String>) -> Answered {
    openai::model(&app, &id)
}

async fn chat(State(app): State<App>, body: Body) -> Answered {
    openai::chat::completions(app, &bytes(body)?).await
}

async fn completions(State(app): State<App>, body: Body) -> Answered {
    openai::completions::completions(app, &bytes(body)?).await
}

async fn embeddings(State(app): State<App>, body: Body) -> Answered {
    openai::embeddings::embeddings(app, &bytes(body)?).await
}

async fn responses(State(app): State<App>, body: Body) -> Answered {
    openai::responses::create(app, &bytes(body)?).await
}

async fn response(State(app): State<App>, Path(id): Path<String>) -> Answered {
    openai::responses::get(&app, &id)
}

async fn delete_response(State(app): State<App>, Path(id): Path<String>) -> Answered {
    openai::responses::delete(&app, &id)
}

async fn input_items(State(app): State<App>, Path(id): Path<String>, uri: Uri) -> Answered {
    openai::responses::input_items(&app, &id, uri.query().unwrap_or_default())
}

async fn messages(State(app): State<App>, body: Body) -> Answered {
    anthropic::messages(app, &bytes(body)?).await
}

async fn count_tokens(State(app): State<App>, body: Body) -> Answered {
    anthropic::count_tokens(&app, &bytes(body)?)
}

async fn ollama_chat(State(app): State<App>, body: Body) -> Answered {
    ollama::chat(app, &bytes(body)?).await
}

async fn ollama_generate(State(app): State<App>, body: Body) -> Answered {
    ollama::generate(app, &bytes(body)?).await
}

async fn ollama_embed(State(app): State<App>, body: Body) -> Answered {
    ollama::embed_all(app, &bytes(body)?).await
}

async fn ollama_embeddings(State(app): State<App>, body: Body) -> Answered {
    ollama::embed_one(app, &bytes(body)?).await
}

async fn ollama_show(State(app): State<App>, body: Body) -> Answered {
    ollama::show(&app, &bytes(body)?)
}

async fn tokenize(State(app): State<App>, body: Body) -> Answered {
    text::tokenize(&app, &bytes(body)?)
}

async fn detokenize(State(app): State<App>, body: Body) -> Answered {
    text::detokenize(&app, &bytes(body)?)
}

async fn apply_template(State(app): State<App>, body: Body) -> Answered {
    openai::chat::apply_template(&app, &bytes(body)?)
}

#[cfg(test)]
mod tests;
