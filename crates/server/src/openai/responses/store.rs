//! Kept responses: in memory, the oldest making room for new ones.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use serde_json::Value;

use crate::error::ApiError;

/// Most responses that are kept.
const MAX_RESPONSES: usize = 1024;
/// Most bytes of their JSON together.
const MAX_BYTES: usize = 64 << 20;

/// A response, and what it answers.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) response: Value,
    /// Its own input items, without those before them.
    pub(crate) input: Vec<Value>,
}

/// All that are kept. Their ids cannot be guessed; who knows one may read it.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_id: HashMap<String, (Arc<Stored>, usize)>,
    /// Oldest first; some may have been deleted.
    order: VecDeque<String>,
    bytes: usize,
}

impl Kept {
    fn remove(&mut self, id: &str) -> bool {
        let removed = self.by_id.remove(id);
        self.bytes -= removed.as_ref().map_or(0, |(_, bytes)| *bytes);
        removed.is_some()
    }
}

fn unknown(param: &str, id: &str) -> ApiError {
    ApiError {
        param: Some(param.to_owned()),
        ..ApiError::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            format!("no response {id:?} is kept here"),
        )
    }
}

impl Store {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing that could panic is done under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, stored: Stored) {
        let id = stored.response["id"].as_str().unwrap_or_default().to_owned();
        let size = |value: &Value| value.to_string().len();
        let bytes = size(&stored.response) + stored.input.iter().map(size).sum::<usize>();
        let mut kept = self.kept();
        kept.bytes += bytes;
        kept.order.push_back(id.clone());
        kept.by_id.insert(id, (Arc::new(stored), bytes));
        while kept.order.len() > MAX_RESPONSES || kept.bytes > MAX_BYTES {
            let Some(oldest) = kept.order.pop_front() else { break };
            kept.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Stored>, ApiError> {
        self.kept().by_id.get(id).map(|(stored, _)| stored.clone()).ok_or_else(|| unknown("response_id", id))
    }

    pub(crate) fn delete(&self, id: &str) -> Result<(), ApiError> {
        let mut kept = self.kept();
        kept.order.retain(|kept| kept != id);
        match kept.remove(id) {
            true => Ok(()),
            false => Err(unknown("response_id", id)),
        }
    }

    /// All items of a conversation up to the end of a response.
    pub(crate) fn context(&self, id: &str) -> Result<Vec<Value>, ApiError> {
        let kept = self.kept();
        let mut chain = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            let (stored, _) = kept.by_id.get(&id).ok_or_else(|| ApiError {
                code: Some("previous_response_not_found"),
                ..unknown("previous_response_id", &id)
            })?;
            next = stored.response["previous_response_id"].as_str().map(str::to_owned);
            chain.push(stored.clone());
        }
        let output = |stored: &Stored| stored.response["output"].as_array().cloned().unwrap_or_default();
        Ok(chain.iter().rev().flat_map(|stored| stored.input.iter().cloned().chain(output(stored))).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored(id: usize, text: &str) -> Stored {
        Stored { response: json!({"id": id.to_string(), "output": [text]}), input: vec![] }
    }

    #[test]
    fn the_oldest_make_room() {
        let store = Store::default();
        (0..=MAX_RESPONSES).for_each(|id| store.keep(stored(id, "x")));
        assert!(store.get("0").is_err() && store.get("1").is_ok());
        let big = "x".repeat(MAX_BYTES / 3);
        (2000..2003).for_each(|id| store.keep(stored(id, &big)));
        assert!(store.get("2000").is_err() && store.get("2001").is_ok() && store.get("2002").is_ok());
        assert!(store.get("1").is_err());
        store.delete("2001").unwrap();
        store.delete("2002").unwrap();
        assert!(store.delete("2002").is_err());
        assert_eq!(store.kept().bytes, 0);
        assert!(store.kept().order.is_empty());
        // What alone is too much is not kept.
        store.keep(stored(3000, &"x".repeat(MAX_BYTES)));
        assert!(store.get("3000").is_err() && store.kept().bytes == 0);
    }
}
