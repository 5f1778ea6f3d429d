//! What goes wrong with a request, as OpenAI's clients understand it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
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

    pub(crate) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
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
        response
    }
}
