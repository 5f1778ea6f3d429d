//! What a fetch from a server needs to know beforehand.
#![cfg_attr(not(feature = "fetch"), allow(dead_code, reason = "only fetching reads it"))]

use std::fmt;
use std::time::Duration;

/// How long to wait for a server, and how often to try.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Patience {
    /// Attempts at one point of a file.
    pub attempts: u32,
    /// Silence after which a connection counts as dead.
    pub stall: Duration,
    /// Before the second attempt; doubled before every further one.
    pub pause: Duration,
    /// The longest pause, also if a server asks for more.
    pub longest_pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            attempts: 5,
            stall: Duration::from_secs(30),
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
        }
    }
}

/// A secret that is not printed.
#[derive(Clone)]
pub(super) struct Token(pub(super) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// How models are fetched from servers: which hub, with which token.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub(super) token: Option<Token>,
    /// Another hub than the known one.
    pub(super) hub: Option<String>,
    pub(super) patience: Patience,
}

impl Network {
    /// With a token for private and gated repositories of the hub. It is sent to the hub's own host only.
    pub fn with_token(token: Option<String>) -> Network {
        Network { token: token.map(Token), ..Network::default() }
    }

    /// Another hub and less patience, for tests.
    #[doc(hidden)]
    pub fn with_hub(self, endpoint: &str, patience: Patience) -> Network {
        Network { hub: Some(endpoint.to_owned()), patience, ..self }
    }
}
