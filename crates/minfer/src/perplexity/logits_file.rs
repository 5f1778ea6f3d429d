//! Saved logits, in the file format of `llama-perplexity --kl-divergence-base`, so that either program can serve as
//! the other's reference.
//!
//! `_logits_`, then `n_ctx`, `n_vocab`, `n_chunk` as 32-bit little-endian integers, then the tokens of all windows as
//! 32-bit integers, then one record per scored prediction: the step between two levels and the lowest
//! log-probability as `f32`, one 16-bit level per token of the vocabulary, and one level of padding if their number is
//! odd. A log-probability is `lowest + step · level`; what lies more than 16 below the best is raised to that.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use minfer_engine::executor::TokenId;

use super::{Error, Prediction, Task};

const MAGIC: &[u8; 8] = b"_logits_";

/// Range of logits below the best that is kept.
const RANGE: f32 = 16.0;

/// Largest level.
const LEVELS: f32 = 65535.0;

/// Bytes of a record: two floats and an even number of levels.
fn record_bytes(n_vocab: usize) -> usize {
    8 + 2 * n_vocab.next_multiple_of(2)
}

fn error(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::LogitsFile { path: path.display().to_string(), what: what.to_string() }
}

/// Writes saved logits.
pub struct LogitsWriter {
    file: BufWriter<File>,
    path: std::path::PathBuf,
    record: Vec<u8>,
}

impl LogitsWriter {
    /// Creates the file and writes everything but the records.
    ///
    /// # Errors
    ///
    /// [`Error::LogitsFile`].
    pub fn create(path: &Path, task: &Task<'_>, n_vocab: usize) -> Result<Self, Error> {
        let file = File::create(path).map_err(|e| error(path, e))?;
        let mut writer = LogitsWriter {
            file: BufWriter::with_capacity(1 << 20, file),
            path: path.to_owned(),
            record: vec![0; record_bytes(n_vocab)],
        };
        let used = task.windows() * task.n_ctx;
        let numbers = [task.n_ctx, n_vocab, task.windows()];
        let mut head = MAGIC.to_vec();
        for number in numbers {
            let number = u32::try_from(number).map_err(|_| error(path, "more than 2³² of something"))?;
            head.extend(number.to_le_bytes());
        }
        head.extend(task.tokens.iter().take(used).flat_map(|t| t.to_le_bytes()));
        writer.file.write_all(&head).map_err(|e| error(path, e))?;
        Ok(writer)
    }

    /// Writes one record.
    ///
    /// # Errors
    ///
    /// [`Error::LogitsFile`].
    pub fn add(&mut self, prediction: &Prediction<'_>) -> Result<(), Error> {
        let logits = prediction.logits;
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let min = logits.iter().copied().fold(f32::INFINITY, f32::min).max(max - RANGE);
        let step = (max - min) / LEVELS;
        let lowest = f64::from(min) - prediction.log_sum_exp();
        self.record[..4].copy_from_slice(&step.to_le_bytes());
        self.record[4..8].copy_from_slice(&(lowest as f32).to_le_bytes());
        for (bytes, logit) in self.record[8..].chunks_exact_mut(2).zip(logits) {
            let level = if step > 0.0 { ((logit - min) / step).round_ties_even() } else { 0.0 };
            bytes.copy_from_slice(&(level as u16).to_le_bytes());
        }
        self.file.write_all(&self.record).map_err(|e| error(&self.path, e))
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    ///
    /// [`Error::LogitsFile`].
    pub fn finish(mut self) -> Result<(), Error> {
        self.file.flush().map_err(|e| error(&self.path, e))
    }
}

/// Reads saved logits.
pub struct LogitsReader {
    file: BufReader<File>,
    path: std::path::PathBuf,
    n_ctx: usize,
    tokens: Vec<TokenId>,
    record: Vec<u8>,
    log_probs: Vec<f32>,
}

impl LogitsReader {
    /// Opens a file and checks that it is whole and of a model with `n_vocab` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::LogitsFile`].
    pub fn open(path: &Path, n_vocab: usize) -> Result<Self, Error> {
        let bad = |what: String| error(path, what);
        let file = File::open(path).map_err(|e| error(path, e))?;
        let size = file.metadata().map_err(|e| error(path, e))?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut head = [0; 20];
        file.read_exact(&mut head).map_err(|_| bad("not a file of saved logits: too short".into()))?;
        if &head[..8] != MAGIC {
            return Err(bad("not a file of saved logits".into()));
        }
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let (n_ctx, found_vocab, windows) = (number(8), number(12), number(16));
        if found_vocab != n_vocab {
            return Err(bad(format!(
                "saved for a vocabulary of {found_vocab} tokens, the model has {n_vocab}"
            )));
        }
        let task = Task { tokens: &[], n_ctx, bos: None };
        let used = n_ctx as u64 * windows as u64;
        let records = task.scored_per_window() as u128 * windows as u128;
        let expected = 20 + 4 * u128::from(used) + records * record_bytes(n_vocab) as u128;
        if u128::from(size) != expected {
            return Err(bad(format!(
                "{size} bytes, expected {expected} for {windows} windows of {n_ctx} tokens"
            )));
        }
        // Not larger than the file, by the check above.
        let mut bytes = vec![0; 4 * used as usize];
        file.read_exact(&mut bytes).map_err(|e| error(path, e))?;
        let tokens: Vec<TokenId> =
            bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if let Some(token) = tokens.iter().find(|t| **t as usize >= n_vocab) {
            return Err(bad(format!("token {token} is outside of the vocabulary of {n_vocab}")));
        }
        let record = vec![0; record_bytes(n_vocab)];
        Ok(LogitsReader { file, path: path.to_owned(), n_ctx, tokens, record, log_probs: vec![0.0; n_vocab] })
    }

    /// Tokens of a window.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Tokens of all windows.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Log-probabilities of the next prediction.
    ///
    /// # Errors
    ///
    /// [`Error::LogitsFile`].
    pub fn next_log_probs(&mut self) -> Result<&[f32], Error> {
        self.file.read_exact(&mut self.record).map_err(|e| error(&self.path, e))?;
        let float = |at: usize| {
            f32::from_le_bytes([
                self.record[at],
                self.record[at + 1],
                self.record[at + 2],
                self.record[at + 3],
            ])
        };
        let (step, lowest) = (float(0), float(4));
        for (out, level) in self.log_probs.iter_mut().zip(self.record[8..].chunks_exact(2)) {
            *out = lowest + step * f32::from(u16::from_le_bytes([level[0], level[1]]));
        }
        Ok(&self.log_probs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_within_half_a_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        let task = Task { tokens: &[0, 1, 2, 1, 0, 2, 1, 1, 0], n_ctx: 4, bos: None };
        let logits = [[0.5, -3.0, 2.0], [1.0, 1.0, 1.0]];
        let prediction = |i: usize| Prediction { window: i, position: 2, logits: &logits[i], next: 0 };
        let mut writer = LogitsWriter::create(&path, &task, 3).unwrap();
        (0..2).for_each(|i| writer.add(&prediction(i)).unwrap());
        writer.finish().unwrap();
        let mut reader = LogitsReader::open(&path, 3).unwrap();
        assert_eq!((reader.n_ctx(), reader.tokens()), (4, &task.tokens[..8]));
        for (i, row) in logits.iter().enumerate() {
            let total = prediction(i).log_sum_exp();
            let found = reader.next_log_probs().unwrap();
            for (f, l) in found.iter().zip(row) {
                assert!((f64::from(*f) - (f64::from(*l) - total)).abs() < 5.0 / 65535.0, "{f} {l}");
            }
        }
        assert!(reader.next_log_probs().is_err());
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        let task = Task { tokens: &[0, 1, 2, 1], n_ctx: 4, bos: None };
        let mut writer = LogitsWriter::create(&path, &task, 3).unwrap();
        writer.add(&Prediction { window: 0, position: 2, logits: &[0.0, 1.0, 2.0], next: 0 }).unwrap();
        writer.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8], n_vocab| {
            std::fs::write(&path, bytes).unwrap();
            LogitsReader::open(&path, n_vocab).err().expect("must be refused").to_string()
        };
        assert!(refused(&whole, 4).contains("vocabulary of 3"));
        assert!(refused(&whole[..whole.len() - 1], 3).contains("expected 52"));
        assert!(refused(&whole[..10], 3).contains("too short"));
        assert!(refused(b"something else entirely", 3).contains("not a file"));
        let mut absurd = whole.clone();
        absurd[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        absurd[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(refused(&absurd, 3).contains("expected"));
    }
}
