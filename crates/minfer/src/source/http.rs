//! GET with our rules: few redirects and never to plain http, a token that only its own host sees, a limit on silence.

use std::time::Duration;

use ureq::http::HeaderMap;
use ureq::{Agent, Body};

use super::SourceError;
use super::hub::{ENDPOINT, sha256_hex};
use super::network::{Network, Patience, Token};
use super::url::Url;

/// Redirects that are followed.
const MAX_REDIRECTS: usize = 8;

/// Bytes of an answer that is read into memory.
const MAX_TEXT: u64 = 32 << 20;

/// The client.
pub(super) struct Http {
    agent: Agent,
    pub(super) hub: Url,
    token: Option<Token>,
    pub(super) patience: Patience,
}

/// An answer, whatever its status. Its body has not been read.
pub(super) struct Answer {
    pub(super) status: u16,
    /// Where it came from, after redirects.
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// SHA-256 of the file, as the hub says before it redirects.
    pub(super) linked_sha256: Option<String>,
}

impl Answer {
    /// A header's text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    /// How long the server asks to wait. Dates are not understood.
    fn retry_after(&self) -> Option<Duration> {
        self.header("retry-after")?.trim().parse().ok().map(Duration::from_secs)
    }
}

/// What went wrong, and whether to try again.
pub(super) enum Failure {
    /// Another attempt would end the same.
    Final(SourceError),
    /// Another attempt may help.
    Passing {
        why: String,
        /// What the server asks for.
        wait: Option<Duration>,
        /// There was no connection at all.
        offline: bool,
        /// The error if this was the last attempt and nothing had arrived.
        error: Box<SourceError>,
    },
}

impl Http {
    /// A client for `network`.
    pub(super) fn new(network: &Network) -> Result<Http, SourceError> {
        let endpoint = network.hub.as_deref().unwrap_or(ENDPOINT);
        let hub =
            Url::parse(endpoint).map_err(|why| SourceError::BadUrl { given: endpoint.to_owned(), why })?;
        let stall = Some(network.patience.stall);
        let agent = Agent::config_builder()
            .user_agent(concat!("minfer/", env!("CARGO_PKG_VERSION")))
            // Compressed answers have no ranges.
            .accept_encoding("identity")
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(stall)
            .timeout_connect(stall)
            .timeout_recv_response(stall)
            .timeout_per_read(stall)
            .timeout_per_write(stall)
            .build()
            .new_agent();
        Ok(Http { agent, hub, token: network.token.clone(), patience: network.patience })
    }

    /// One GET, redirects followed.
    pub(super) fn get(&self, url: &Url, headers: &[(&str, &str)]) -> Result<Answer, Failure> {
        let mut at = url.clone();
        let mut linked_sha256 = None;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get_once(&at, headers)?;
            let (parts, body) = response.into_parts();
            let text = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok());
            if at.same_origin(&self.hub) {
                let etag = text("x-linked-etag").map(|e| e.trim_start_matches("W/").trim_matches('"'));
                linked_sha256 = linked_sha256.or_else(|| etag.and_then(sha256_hex));
            }
            let status = parts.status.as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Ok(Answer { status, url: at, headers: parts.headers, body, linked_sha256 });
            }
            let bad = |why: String| Failure::Final(SourceError::BadAnswer { url: at.shown(), why });
            let location =
                text("location").ok_or_else(|| bad(format!("status {status} without a new address")))?;
            let to = at.redirected(location).map_err(|why| bad(format!("its redirect is refused: {why}")))?;
            tracing::debug!("{} leads to {}", at.shown(), to.shown());
            at = to;
        }
        let why = format!("more than {MAX_REDIRECTS} redirects, the last to {}", at.shown());
        Err(Failure::Final(SourceError::BadAnswer { url: url.shown(), why }))
    }

    fn get_once(&self, url: &Url, headers: &[(&str, &str)]) -> Result<ureq::http::Response<Body>, Failure> {
        let mut request = self.agent.get(url.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        // A redirect to another host must not carry the token there.
        if let Some(token) = self.token.as_ref().filter(|_| url.same_origin(&self.hub)) {
            request = request.header("authorization", format!("Bearer {}", token.0));
        }
        if url.is_loopback() {
            request = request.config().proxy(None).build();
        }
        request.call().map_err(|e| unreachable(url, e))
    }

    /// The text of an answer.
    pub(super) fn text(&self, url: &Url) -> Result<String, SourceError> {
        let mut retry = Retry::new(self.patience);
        loop {
            let result =
                self.get(url, &[]).and_then(|answer| self.accepted(answer)).and_then(|mut answer| {
                    answer.body.with_config().limit(MAX_TEXT).read_to_string().map_err(|e| {
                        let why = describe(&e);
                        let error = SourceError::BadAnswer { url: url.shown(), why: why.clone() };
                        match e {
                            ureq::Error::Io(_) | ureq::Error::Timeout(_) => {
                                Failure::Passing { why, wait: None, offline: false, error: error.into() }
                            }
                            _ => Failure::Final(error),
                        }
                    })
                });
            match result {
                Ok(text) => return Ok(text),
                Err(Failure::Final(e)) => return Err(e),
                Err(Failure::Passing { why, wait, offline, error }) => {
                    if offline || !retry.again(&why, wait) {
                        return Err(*error);
                    }
                }
            }
        }
    }

    /// The answer if its status is 200 or 206.
    pub(super) fn accepted(&self, answer: Answer) -> Result<Answer, Failure> {
        let passing = match answer.status {
            200 | 206 => return Ok(answer),
            408 | 429 | 500 | 502 | 503 | 504 => true,
            _ => false,
        };
        let status = ureq::http::StatusCode::from_u16(answer.status)
            .map_or_else(|_| answer.status.to_string(), |s| s.to_string());
        let error = SourceError::Refused {
            url: answer.url.shown(),
            hint: self.hint(&answer),
            status: status.clone(),
        };
        match passing {
            true => {
                let why = format!("the server answered {status}");
                Err(Failure::Passing { why, wait: answer.retry_after(), offline: false, error: error.into() })
            }
            false => Err(Failure::Final(error)),
        }
    }

    /// What a user can do about a status.
    fn hint(&self, answer: &Answer) -> String {
        let hub = answer.url.same_origin(&self.hub);
        match (answer.status, hub, self.token.is_some()) {
            (401 | 403, true, false) => ": there is no such repository, or it is private or gated. If it is gated, \
                                         accept its terms on its page, then set HF_TOKEN to a token of yours"
                .to_owned(),
            (401 | 403, true, true) => {
                ": the token in HF_TOKEN has no access to it; a gated repository wants its terms accepted first"
                    .to_owned()
            }
            (401 | 403, false, _) => ": it wants a login, which minfer has none for".to_owned(),
            (404 | 410, ..) => ": check the spelling".to_owned(),
            (429, true, false) => {
                ": too many requests; wait a while, or set HF_TOKEN to be allowed more".to_owned()
            }
            (429, ..) => ": too many requests; wait a while".to_owned(),
            (500.., ..) => ": the fault is the server's; try again later".to_owned(),
            _ => String::new(),
        }
    }
}

/// When to try again.
pub(super) struct Retry {
    patience: Patience,
    failures: u32,
}

impl Retry {
    pub(super) fn new(patience: Patience) -> Retry {
        Retry { patience, failures: 0 }
    }

    /// Things went on: the count starts anew.
    pub(super) fn progressed(&mut self) {
        self.failures = 0;
    }

    /// Attempts that failed since.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a failure; waits and says yes if there is another attempt.
    pub(super) fn again(&mut self, why: &str, wait: Option<Duration>) -> bool {
        self.failures += 1;
        if self.failures >= self.patience.attempts {
            return false;
        }
        let own = self.patience.pause.saturating_mul(1 << (self.failures - 1).min(16));
        let pause = wait.unwrap_or(own).min(self.patience.longest_pause);
        tracing::warn!("{why}: trying again in {:.0} s", pause.as_secs_f64());
        std::thread::sleep(pause);
        true
    }
}

/// No answer at all.
fn unreachable(url: &Url, e: ureq::Error) -> Failure {
    use std::io::ErrorKind;
    let why = describe(&e);
    let error = SourceError::Unreachable { origin: url.origin(), why: why.clone() };
    let offline = match &e {
        // That is a machine without network much more often than a passing fault; a download that has come far waits
        // for it all the same.
        ureq::Error::HostNotFound => true,
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => true,
        ureq::Error::Timeout(_) => false,
        ureq::Error::Io(e) if e.kind() == ErrorKind::InvalidData => return Failure::Final(error),
        // A line that breaks may hold the next time; anything else, a name that does not resolve for one, will not
        // go away in seconds.
        ureq::Error::Io(e) => !matches!(
            e.kind(),
            ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
                | ErrorKind::UnexpectedEof
                | ErrorKind::TimedOut
                | ErrorKind::WouldBlock
                | ErrorKind::Interrupted
        ),
        _ => return Failure::Final(error),
    };
    Failure::Passing { why, wait: None, offline, error: error.into() }
}

/// An error of the connection, for people.
pub(super) fn describe(e: &ureq::Error) -> String {
    match e {
        ureq::Error::HostNotFound => "its name does not resolve; is there a network?".to_owned(),
        ureq::Error::Timeout(_) => "it has been silent for too long".to_owned(),
        // The standard library has no kind of its own for this.
        ureq::Error::Io(e) if e.to_string().contains("lookup address") => {
            describe(&ureq::Error::HostNotFound)
        }
        ureq::Error::Io(e) => e.to_string(),
        e => e.to_string(),
    }
}
