//! What goes wrong with a request, as OpenAI's clients understand it.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use minfer_engine::{RequestError, SubmitError};
use serde_json::{Value, json};

/// An error of a request. Nothing of the request's text is in it but names of fields and models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// `type`: whose fault it is.
    pub(crate) kind: &'static str,
    pub(crate) code: Option<&'static str>,
    /// The field.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, kind, code: None, param: None, message: message.into() }
    }

    /// 400.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400, of a field.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let param = param.into();
        let error = ApiError::invalid(format!("{param}: {message}"));
        ApiError { param: Some(param), ..error }
    }

    /// 400, of a field that is not supported, by name.
    pub(crate) fn unsupported(param: &str) -> Self {
        ApiError { code: Some("unsupported_parameter"), ..ApiError::field(param, "is not supported") }
    }

    /// 500.
    pub(crate) fn server(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// As Anthropic's clients understand it.
    pub(crate) fn anthropic(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": self.message}})
    }

    pub(crate) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

/// Which API's clients an error is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    fn of(path: &str) -> Dialect {
        match path {
            "/v1/messages" | "/v1/messages/count_tokens" => Dialect::Anthropic,
            path if path.starts_with("/api/") => Dialect::Ollama,
            _ => Dialect::OpenAi,
        }
    }
}

/// Errors as the clients of the path's API understand them, wherever they arose.
pub(crate) async fn in_dialect(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let mut response = next.run(request).await;
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let body = match dialect {
        Dialect::OpenAi => return response,
        Dialect::Anthropic => error.anthropic(),
        Dialect::Ollama => json!({"error": error.message}),
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body.to_string().into())
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Invalid(RequestError::Prompt { .. }) => {
                ApiError { code: Some("context_length_exceeded"), ..ApiError::invalid(message) }
            }
            SubmitError::Invalid(_) => ApiError::invalid(message),
            SubmitError::QueueFull { .. } => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            }
            SubmitError::Stopped(_) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}
