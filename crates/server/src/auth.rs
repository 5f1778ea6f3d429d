//! API keys.

use axum::http::{HeaderMap, StatusCode, header};
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// Keys, as digests: so none is in memory as it is, and comparing tells nothing of its length.
#[derive(Clone, Default)]
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Keys(keys.iter().map(|key| Sha256::digest(key).into()).collect())
    }

    /// Whether a request has one of the keys, as `Authorization: Bearer` or `x-api-key`; without keys every request may.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let bearer =
            headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let key = bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()));
        let digest: [u8; 32] = Sha256::digest(key.unwrap_or_default()).into();
        // All keys and all bytes are looked at, whatever was found.
        let same = |known: &[u8; 32]| known.iter().zip(&digest).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0;
        let found = self.0.iter().fold(false, |found, known| found | same(known));
        match found && key.is_some() {
            true => Ok(()),
            false => Err(ApiError {
                code: Some("invalid_api_key"),
                ..ApiError::new(
                    StatusCode::UNAUTHORIZED,
                    "authentication_error",
                    "the API key is missing or not one of the server's",
                )
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_keys_open() {
        let keys = Keys::new(&["one".to_owned(), "two".to_owned()]);
        let with = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
        };
        for (headers, opens) in [
            (with("authorization", "Bearer two"), true),
            (with("x-api-key", "one"), true),
            (with("authorization", "Bearer three"), false),
            (with("authorization", "two"), false),
            (with("authorization", "Bearer "), false),
            (HeaderMap::new(), false),
        ] {
            assert_eq!(keys.check(&headers).is_ok(), opens, "{headers:?}");
        }
        assert!(Keys::default().check(&HeaderMap::new()).is_ok());
    }
}
