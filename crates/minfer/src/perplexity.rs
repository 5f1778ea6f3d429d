//! Perplexity, and KL divergence against saved logits, by llama.cpp's definition.
//!
//! The text is cut into windows of `n_ctx` tokens without overlap; what remains at the end is left out. Each window is
//! a sequence of its own, whose first token is replaced by BOS if the model wants one. Tokens of the first half only
//! give context: position `n_ctx / 2` is the first whose prediction of its successor is scored, `n_ctx − 1 − n_ctx/2`
//! predictions per window. The perplexity is e to the mean negative log-likelihood of all of them.

mod divergence;
mod logits_file;

use minfer_engine::executor::{Executor, RowOutput, StepOutput, TokenId, Want};
use minfer_engine::session::Session;

pub use divergence::{Divergence, Quantiles};
pub use logits_file::{LogitsReader, LogitsWriter};

/// Why there is no perplexity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is too short.
    #[error("the text has {tokens} tokens: expected at least {needed}, the window")]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        needed: usize,
    },
    /// The window is too short to score anything, or longer than the model's memory allows.
    #[error("a window of {n_ctx} tokens: expected {SHORTEST_WINDOW} to {capacity}")]
    Window {
        /// Tokens of a window.
        n_ctx: usize,
        /// Longest sequence.
        capacity: usize,
    },
    /// The model failed.
    #[error("window {window}: {what}")]
    Model {
        /// Which window.
        window: usize,
        /// What happened.
        what: String,
    },
    /// A prediction that is no number.
    #[error("window {window}, position {position}: the log-probability is {value}")]
    NotFinite {
        /// Which window.
        window: usize,
        /// Which position of it.
        position: usize,
        /// What was computed.
        value: f64,
    },
    /// A file of saved logits that cannot be read or written, or that belongs to something else.
    #[error("{path}: {what}")]
    LogitsFile {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
}

/// Tokens of a window at least: with fewer nothing, or next to nothing, is scored.
pub const SHORTEST_WINDOW: usize = 4;

/// What to score.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The text.
    pub tokens: &'a [TokenId],
    /// Tokens of a window.
    pub n_ctx: usize,
    /// Takes the place of each window's first token.
    pub bos: Option<TokenId>,
}

/// One scored prediction.
#[derive(Clone, Copy, Debug)]
pub struct Prediction<'a> {
    /// Which window, from 0.
    pub window: usize,
    /// Position within the window of the last token that was read.
    pub position: usize,
    /// One per token of the vocabulary.
    pub logits: &'a [f32],
    /// The token that follows.
    pub next: TokenId,
}

impl Task<'_> {
    /// Number of windows.
    pub fn windows(&self) -> usize {
        self.tokens.len().checked_div(self.n_ctx).unwrap_or(0)
    }

    /// Predictions scored per window.
    pub fn scored_per_window(&self) -> usize {
        self.n_ctx.saturating_sub(1 + self.n_ctx / 2)
    }

    /// Runs the model over the windows and hands out every scored prediction, in order.
    ///
    /// # Errors
    ///
    /// Any [`Error`] except those of files, and whatever `each` returns.
    pub fn run<E: Executor>(
        &self,
        executor: &mut E,
        each: &mut dyn FnMut(Prediction<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let failed = |window, e: &dyn std::fmt::Display| Error::Model { window, what: e.to_string() };
        let limits = executor.limits().clone();
        let mut session = Session::new(&limits).map_err(|e| failed(0, &e))?;
        if self.n_ctx < SHORTEST_WINDOW || self.n_ctx > session.capacity() {
            return Err(Error::Window { n_ctx: self.n_ctx, capacity: session.capacity() });
        }
        if self.windows() == 0 {
            return Err(Error::TooShort { tokens: self.tokens.len(), needed: self.n_ctx });
        }
        let first = self.n_ctx / 2;
        let rows_per_step = limits.max_tokens.min(limits.max_outputs).max(1);
        let mut out = StepOutput::default();
        for (window, text) in self.tokens.chunks_exact(self.n_ctx).enumerate() {
            let mut tokens = text.to_vec();
            tokens[0] = self.bos.unwrap_or(tokens[0]);
            session.reset().map_err(|e| failed(window, &e))?;
            for context in tokens[..first].chunks(limits.max_tokens) {
                let plan =
                    session.plan([(context.to_vec(), Want::Nothing)]).map_err(|e| failed(window, &e))?;
                let step = executor.submit(&plan).map_err(|e| failed(window, &e))?;
                executor.wait(step, &mut out).map_err(|e| failed(window, &e))?;
            }
            // The window's last token predicts nothing that is in the window: it is not computed.
            let mut position = first;
            for scored in tokens[first..self.n_ctx - 1].chunks(rows_per_step) {
                let rows = scored.iter().map(|token| (vec![*token], Want::Logits));
                let plan = session.plan(rows).map_err(|e| failed(window, &e))?;
                let step = executor.submit(&plan).map_err(|e| failed(window, &e))?;
                executor.wait(step, &mut out).map_err(|e| failed(window, &e))?;
                for row in &out.rows {
                    let RowOutput::Logits(logits) = row else {
                        return Err(failed(window, &"the model returned no logits"));
                    };
                    each(Prediction { window, position, logits, next: tokens[position + 1] })?;
                    position += 1;
                }
            }
        }
        Ok(())
    }
}

impl Prediction<'_> {
    /// `ln Σ exp(logit)`, computed around the maximum.
    pub fn log_sum_exp(&self) -> f64 {
        let max = self.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = self.logits.iter().map(|l| f64::from(l - max).exp()).sum();
        f64::from(max) + sum.ln()
    }

    /// Negative log-likelihood of the token that follows.
    ///
    /// # Errors
    ///
    /// [`Error::NotFinite`].
    pub fn nll(&self) -> Result<f64, Error> {
        let logit = self.logits.get(self.next as usize).copied().unwrap_or(f32::NAN);
        let value = self.log_sum_exp() - f64::from(logit);
        if value.is_finite() {
            return Ok(value);
        }
        Err(Error::NotFinite { window: self.window, position: self.position, value: -value })
    }
}

/// Mean and standard error of a growing set of values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    count: u64,
    sum: f64,
    sum_of_squares: f64,
}

impl Mean {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.sum_of_squares += value * value;
    }

    /// Values so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean; NaN of nothing.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Standard error of the mean: `sqrt((mean(x²) − mean(x)²) / (n − 1))`.
    pub fn standard_error(&self) -> f64 {
        let n = self.count as f64;
        ((self.sum_of_squares / n - self.mean().powi(2)).max(0.0) / (n - 1.0)).sqrt()
    }
}

/// Perplexity from the negative log-likelihoods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity(pub Mean);

impl Perplexity {
    /// e to the mean.
    pub fn value(&self) -> f64 {
        self.0.mean().exp()
    }

    /// Its standard error, by the delta method.
    pub fn standard_error(&self) -> f64 {
        self.value() * self.0.standard_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minfer_engine::fake::FakeExecutor;

    /// What the fake model says after a prefix, by running it token by token.
    fn nll_after(prefix: &[TokenId], next: TokenId) -> f64 {
        let mut executor = FakeExecutor::new(FakeExecutor::small_limits());
        let mut session = Session::new(executor.limits()).unwrap();
        let mut out = StepOutput::default();
        for (i, token) in prefix.iter().enumerate() {
            let want = if i + 1 == prefix.len() { Want::Logits } else { Want::Nothing };
            let plan = session.plan([(vec![*token], want)]).unwrap();
            let step = executor.submit(&plan).unwrap();
            executor.wait(step, &mut out).unwrap();
        }
        let RowOutput::Logits(logits) = &out.rows[0] else { panic!("no logits") };
        let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        -(f64::from(logits[next as usize]).exp() / total).ln()
    }

    #[test]
    fn windows_halves_and_bos_are_as_defined() {
        let vocab = FakeExecutor::small_limits().vocab as u32;
        let tokens: Vec<TokenId> = (0..21).map(|i| (i * 7 + 3) % vocab).collect();
        for bos in [None, Some(1)] {
            let task = Task { tokens: &tokens, n_ctx: 8, bos };
            assert_eq!((task.windows(), task.scored_per_window()), (2, 3));
            let mut found = Vec::new();
            let mut executor = FakeExecutor::new(FakeExecutor::small_limits());
            task.run(&mut executor, &mut |p| {
                found.push((p.window, p.position, p.nll()?));
                Ok(())
            })
            .unwrap();
            let mut expected = Vec::new();
            for (window, text) in tokens.chunks_exact(8).enumerate() {
                let mut text = text.to_vec();
                text[0] = bos.unwrap_or(text[0]);
                for position in 4..7 {
                    let nll = nll_after(&text[..=position], text[position + 1]);
                    expected.push((window, position, nll));
                }
            }
            assert_eq!(found.len(), expected.len());
            for (f, e) in found.iter().zip(&expected) {
                assert_eq!((f.0, f.1), (e.0, e.1));
                assert!((f.2 - e.2).abs() < 1e-9, "{f:?} {e:?}");
            }
        }
    }

    #[test]
    fn impossible_windows_are_refused() {
        let mut executor = FakeExecutor::new(FakeExecutor::small_limits());
        let mut run = |tokens: &[TokenId], n_ctx| {
            Task { tokens, n_ctx, bos: None }.run(&mut executor, &mut |_| Ok(())).unwrap_err()
        };
        assert!(matches!(run(&[1; 7], 8), Error::TooShort { tokens: 7, needed: 8 }));
        assert!(matches!(run(&[1; 7], 0), Error::Window { .. }));
        assert!(matches!(run(&[1; 7], 1 << 40), Error::Window { .. }));
    }

    #[test]
    fn mean_and_error_of_known_values() {
        let mut mean = Mean::default();
        for v in [1.0, 2.0, 3.0, 4.0] {
            mean.add(v);
        }
        assert_eq!((mean.count(), mean.mean()), (4, 2.5));
        assert!((mean.standard_error() - (1.25f64 / 3.0).sqrt()).abs() < 1e-12);
        let nan = Prediction { window: 3, position: 5, logits: &[0.0, f32::NAN], next: 0 };
        assert!(matches!(nan.nll(), Err(Error::NotFinite { window: 3, position: 5, .. })));
    }
}
