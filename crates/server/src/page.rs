//! The chat page: files that are in the binary, and need no other. It talks to the server as every client does.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// What a browser may do for the page: run its scripts, show its styles and talk to this server, nothing else. There is no
/// way from a text to a script: none may stand in the page, and the browser refuses markup from strings.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

struct File {
    name: &'static str,
    bytes: &'static [u8],
    kind: &'static str,
    /// `ETag`: browsers ask whether theirs is still the one, and are seldom sent it again.
    tag: String,
}

impl File {
    fn new(name: &'static str, bytes: &'static [u8]) -> File {
        let kind = match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        };
        let digest: String = Sha256::digest(bytes)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        File { name, bytes, kind, tag: format!("\"{digest}\"") }
    }

    fn respond(&'static self, request: &HeaderMap) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.kind)),
            (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (header::ETAG, HeaderValue::from_str(&self.tag).expect("digits and quotes")),
            ("cross-origin-opener-policy".parse().expect("a name"), HeaderValue::from_static("same-origin")),
            (
                "cross-origin-resource-policy".parse().expect("a name"),
                HeaderValue::from_static("same-origin"),
            ),
        ];
        if has(request, &self.tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, self.bytes).into_response()
    }
}

/// Whether a browser has the file of a tag already.
fn has(request: &HeaderMap, tag: &str) -> bool {
    let known = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known.flat_map(|list| list.split(',')).any(|one| one.trim().trim_start_matches("W/") == tag)
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        vec![$(File::new($name, include_bytes!(concat!("../page/", $name)))),*]
    };
}

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    files![
        "index.html",
        "icon.svg",
        "base.css",
        "layout.css",
        "message.css",
        "theme.js",
        "main.js",
        "api.js",
        "blocks.js",
        "composer.js",
        "conversation.js",
        "dialogs.js",
        "dom.js",
        "generation.js",
        "highlight.js",
        "inline.js",
        "key.js",
        "markdown.js",
        "message.js",
        "settings.js",
        "shortcuts.js",
        "sidebar.js",
        "sse.js",
        "store.js",
        "transcript.js",
    ]
});

/// `/`, and below `/page/` what it consists of. Nobody needs a key for them: the page asks for one.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(async |headers: HeaderMap| file(&headers, "index.html"))).route(
        "/page/{name}",
        get(async |Path(name): Path<String>, headers: HeaderMap| file(&headers, &name)),
    )
}

fn file(request: &HeaderMap, name: &str) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => file.respond(request),
        None => ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", "there is nothing here")
            .into_response(),
    }
}

#[cfg(test)]
mod tests;
