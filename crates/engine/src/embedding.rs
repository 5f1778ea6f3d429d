//! Embeddings: hidden states of a text, pooled to vectors.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::executor::{Limits, TokenId, Want};
use crate::request::{RequestError, check_prompt};

/// How the hidden states of a text's tokens become its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
    /// They are not pooled: a vector for each token.
    None,
}

impl Pooling {
    /// Every mode.
    pub const ALL: [Pooling; 4] = [Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::None];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
            Pooling::None => "none",
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Pooling::ALL.into_iter().find(|pooling| pooling.name() == name);
        found.ok_or_else(|| format!("expected mean, cls, last or none, found '{name}'"))
    }
}

/// A text to be embedded.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedRequest {
    /// Its tokens, at least one.
    pub prompt: Vec<TokenId>,
    /// How its hidden states are pooled.
    pub pooling: Pooling,
    /// Whether each vector is scaled to a Euclidean length of 1. One of zeros stays as it is.
    pub normalize: bool,
    /// As [`Request::priority`](crate::Request::priority).
    pub priority: i32,
    /// As [`Request::deadline`](crate::Request::deadline).
    pub deadline: Option<Duration>,
}

impl EmbedRequest {
    /// An embedding of length 1.
    pub fn new(prompt: Vec<TokenId>, pooling: Pooling) -> Self {
        EmbedRequest { prompt, pooling, normalize: true, priority: 0, deadline: None }
    }

    /// Checks every field. `positions` is the longest text that can be held.
    pub fn validate(&self, limits: &Limits, positions: usize) -> Result<(), RequestError> {
        check_prompt(&self.prompt, limits, positions)
    }
}

/// The embedding of a text that is being read. Sums are in double precision and in the order of positions, so they do not
/// depend on how the text is cut into steps.
#[derive(Debug)]
pub(crate) struct Pool {
    pooling: Pooling,
    normalize: bool,
    /// Positions whose hidden states are in it.
    done: usize,
    /// Of [`Pooling::Mean`].
    sum: Vec<f64>,
    /// Of the other modes: the vectors so far.
    values: Vec<f32>,
}

impl Pool {
    pub(crate) fn new(request: &EmbedRequest) -> Self {
        let EmbedRequest { pooling, normalize, .. } = *request;
        Pool { pooling, normalize, done: 0, sum: Vec::new(), values: Vec::new() }
    }

    /// How many of the first of `tokens` tokens need not be computed, if the cache has them.
    pub(crate) fn dispensable(&self, tokens: usize) -> usize {
        match self.pooling {
            Pooling::Last => tokens,
            Pooling::Cls | Pooling::Mean | Pooling::None => self.done,
        }
    }

    /// What a row of the positions `start..end` should yield, of a text of `len` tokens.
    pub(crate) fn want(&self, start: usize, end: usize, len: usize) -> Want {
        match self.pooling {
            Pooling::Mean | Pooling::None => Want::Embeddings,
            Pooling::Cls if start == 0 => Want::Embeddings,
            Pooling::Last if end == len => Want::Embedding,
            Pooling::Cls | Pooling::Last => Want::Nothing,
        }
    }

    /// Takes over what a row of the positions `start..end` yielded: a vector, or one for each position. Those that it has
    /// already, as the text had to be set back, are left out. Returns the embedding, its vectors one after the other, once
    /// there is no more to come for a text of `len` tokens.
    pub(crate) fn add(&mut self, start: usize, end: usize, values: &[f32], len: usize) -> Option<Vec<f32>> {
        match self.pooling {
            Pooling::Last => self.values = values.to_vec(),
            Pooling::Cls => self.values = values[..values.len() / (end - start)].to_vec(),
            Pooling::Mean | Pooling::None => {
                let width = values.len() / (end - start);
                let rest = &values[(self.done.clamp(start, end) - start) * width..];
                if self.pooling == Pooling::None {
                    self.values.extend_from_slice(rest);
                } else {
                    self.sum.resize(width, 0.0);
                    for row in rest.chunks_exact(width.max(1)) {
                        self.sum.iter_mut().zip(row).for_each(|(sum, v)| *sum += f64::from(*v));
                    }
                }
            }
        }
        self.done = self.done.max(end);
        // What comes after the first token of a decoder does not change it.
        (end == len || self.pooling == Pooling::Cls).then(|| self.finish())
    }

    fn finish(&mut self) -> Vec<f32> {
        let mut values = std::mem::take(&mut self.values);
        let mut width = values.len();
        match self.pooling {
            Pooling::Mean => {
                values = self.sum.iter().map(|sum| (sum / self.done as f64) as f32).collect();
                width = values.len();
            }
            Pooling::None => width /= self.done.max(1),
            Pooling::Cls | Pooling::Last => {}
        }
        if self.normalize {
            values.chunks_exact_mut(width.max(1)).for_each(normalize);
        }
        values
    }
}

/// Scales a vector to a Euclidean length of 1, unless it is 0.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three tokens of two channels, in rows that overlap as after a setting back.
    fn pooled(pooling: Pooling, normalize: bool) -> Vec<f32> {
        let states = [3.0, 4.0, 0.0, 0.0, 6.0, 8.0];
        let mut pool = Pool::new(&EmbedRequest { normalize, ..EmbedRequest::new(vec![0; 3], pooling) });
        let rows = [(0, 1), (0, 2), (1, 3)];
        let mut embeddings = rows.into_iter().filter_map(|(start, end)| match pool.want(start, end, 3) {
            Want::Embeddings => pool.add(start, end, &states[2 * start..2 * end], 3),
            Want::Embedding => pool.add(start, end, &states[2 * end - 2..2 * end], 3),
            _ => None,
        });
        embeddings.next().unwrap()
    }

    #[test]
    fn each_mode_is_what_it_says() {
        assert_eq!(pooled(Pooling::Mean, false), [3.0, 4.0]);
        assert_eq!(pooled(Pooling::Mean, true), [0.6, 0.8]);
        assert_eq!(pooled(Pooling::Cls, false), [3.0, 4.0]);
        assert_eq!(pooled(Pooling::Last, false), [6.0, 8.0]);
        assert_eq!(pooled(Pooling::Last, true), [0.6, 0.8]);
        assert_eq!(pooled(Pooling::None, false), [3.0, 4.0, 0.0, 0.0, 6.0, 8.0]);
        assert_eq!(pooled(Pooling::None, true), [0.6, 0.8, 0.0, 0.0, 0.6, 0.8]);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        assert!(Pooling::ALL.into_iter().all(|pooling| pooling.to_string().parse() == Ok(pooling)));
        assert!("rank".parse::<Pooling>().unwrap_err().contains("found 'rank'"));
    }
}
