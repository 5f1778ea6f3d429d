//! Texts to vectors, for whichever dialect asks.

use std::sync::Arc;

use minfer_engine::executor::TokenId;
use minfer_engine::{Canceller, EmbedRequest, Event, FinishReason, Handle, Timings};

use crate::error::ApiError;
use crate::host::Model;

/// Most texts of a request.
pub(crate) const MAX_TEXTS: usize = 2048;
/// Texts that are handed over at a time: enough for full steps, and fewer than may wait.
const AT_A_TIME: usize = 32;

/// Vectors of length 1, one for each text.
pub(crate) struct Embedded {
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Of all texts.
    pub(crate) tokens: usize,
    /// Of the last text.
    pub(crate) timings: Timings,
}

/// Cancels what is under way when the client has gone.
struct UnderWay(Vec<Canceller>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.iter().for_each(Canceller::cancel);
    }
}

/// Embeds texts. `at` is their field.
pub(crate) async fn embed(
    model: &Arc<dyn Model>,
    texts: Vec<Vec<TokenId>>,
    at: &str,
) -> Result<Embedded, ApiError> {
    if !(1..=MAX_TEXTS).contains(&texts.len()) {
        let found = format!("has {} texts, must have 1 to {MAX_TEXTS}", texts.len());
        return Err(ApiError::field(at, found));
    }
    if let Some(index) = texts.iter().position(Vec::is_empty) {
        return Err(ApiError::field(at, format!("text {index} has no tokens")));
    }
    let mut all =
        Embedded { vectors: Vec::with_capacity(texts.len()), tokens: 0, timings: Timings::default() };
    let mut texts = texts.into_iter();
    loop {
        let requests = texts.by_ref().take(AT_A_TIME).map(|text| EmbedRequest::new(text, model.pooling()));
        let handles: Vec<Handle> =
            requests.map(|request| model.engine().embed(request)).collect::<Result<_, _>>()?;
        if handles.is_empty() {
            return Ok(all);
        }
        let under_way = UnderWay(handles.iter().map(Handle::canceller).collect());
        let waited =
            tokio::task::spawn_blocking(move || handles.into_iter().map(wait).collect::<Result<Vec<_>, _>>());
        let found = waited.await.map_err(|error| ApiError::server(error.to_string()))??;
        drop(under_way);
        for (vector, tokens, timings) in found {
            all.vectors.push(vector);
            all.tokens += tokens;
            all.timings = timings;
        }
    }
}

fn wait(handle: Handle) -> Result<(Vec<f32>, usize, Timings), ApiError> {
    let mut vector = Vec::new();
    for event in handle {
        match event {
            Event::Embedding { values } => vector = values,
            Event::Finished { reason: FinishReason::Embedded, usage, timings, .. } => {
                return Ok((vector, usage.prompt_tokens, timings));
            }
            Event::Finished { reason: FinishReason::Error(what), .. } => return Err(ApiError::server(what)),
            Event::Started { .. } | Event::Prefill { .. } | Event::Token { .. } | Event::Finished { .. } => {}
        }
    }
    Err(ApiError::server("the text was not embedded: the server is shutting down"))
}

/// The first `dimensions` values of a vector of so many, at length 1 again.
pub(crate) fn shorten(vector: &mut Vec<f32>, dimensions: usize) {
    vector.truncate(dimensions);
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_shorter_vector_has_length_one() {
        let mut vector = vec![3.0, 4.0, 12.0];
        super::shorten(&mut vector, 2);
        assert_eq!(vector, [0.6, 0.8]);
    }
}
