//! What a client asks for.

use std::time::Duration;

use crate::constraint::{Begin, Budget, Constraint, ConstraintError};
use crate::executor::{Limits, TokenId};
use crate::sampling::SamplingParams;

/// Most stop strings of a request.
pub const MAX_STOP_STRINGS: usize = 16;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 256;
/// Most banned strings of a request.
pub const MAX_BANNED_STRINGS: usize = 64;
/// Longest banned string, in bytes.
pub const MAX_BANNED_BYTES: usize = 256;
/// Most alternatives reported per token.
pub const MAX_TOP_LOGPROBS: u8 = 20;

/// A prompt to be continued.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// At least one token.
    pub prompt: Vec<TokenId>,
    /// Tokens to generate at most, at least 1; `None` goes on until the model stops or the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What ends the text.
    pub stop: Stop,
    /// Strings that the generated text never has in it, byte for byte, wherever token borders fall. When one is complete, the
    /// text is set back to before the token in which it began, and another one is chosen there: all that are excluded at a place
    /// are no candidates, and all else is as it was, the random number too. Of strings that end together the shortest counts, and
    /// it counts before a stop string that ends there too. [`FinishReason::Banned`](crate::FinishReason::Banned) if that leaves
    /// no token. Tokens that may have to be taken back are not told of until they are certain.
    pub banned: Vec<Vec<u8>>,
    /// Report the log-probability of every token, and of this many of the most probable ones.
    pub logprobs: Option<u8>,
    /// Up to so many tokens are guessed from what has been said before and checked in one step (prompt lookup); 0 guesses
    /// nothing. The text is the same.
    pub lookup: usize,
    /// Up to so many tokens are guessed by the engine's draft model, instead of from what has been said; 0 guesses nothing.
    /// The text is the same.
    pub draft: usize,
    /// What the text has to be. Its tokens are sampled on the host.
    pub constraint: Option<Constraint>,
    /// A part of the text that ends after so many tokens. Until it has ended, tokens are sampled on the host.
    pub budget: Option<Budget>,
    /// Requests with more come first, and are the last to be set back when the cache is full.
    pub priority: i32,
    /// When it ends at the latest, counted from its submission: with what it has by then, if it waits still with nothing.
    pub deadline: Option<Duration>,
}

/// What ends a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stop {
    /// End-of-generation tokens. Their bytes are not part of the text.
    pub tokens: Vec<TokenId>,
    /// Strings that end the text before themselves, wherever token borders fall.
    pub strings: Vec<Vec<u8>>,
}

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A list or string that must have something in it.
    #[error("{field} is empty")]
    Empty {
        /// Which field.
        field: &'static str,
    },
    /// A prompt that the context does not hold.
    #[error("the prompt has {tokens} tokens, the context holds {context}")]
    Prompt {
        /// Its tokens.
        tokens: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// A text to be continued, and a model that cannot.
    #[error("the model is an encoder: it embeds texts, but generates none")]
    Encoder,
    /// Too many items.
    #[error("{field} has {found}, at most {max} are possible")]
    TooLong {
        /// Which field, with the unit counted.
        field: &'static str,
        /// How many.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// A token that the model does not have.
    #[error("{field} has token {id}, the vocabulary has {vocab}")]
    Token {
        /// Which field.
        field: &'static str,
        /// The token.
        id: TokenId,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A list that must ascend and does not.
    #[error("{field} is not in ascending order")]
    Order {
        /// Which field.
        field: &'static str,
    },
    /// A constraint that cannot be honoured.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// Guesses by a model that is not there.
    #[error("draft is {0}, but the engine has no draft model")]
    NoDraft(usize),
    /// Two ways to guess at once.
    #[error("lookup and draft are both given: tokens are guessed in one way or the other")]
    Guesses,
    /// A number out of its range.
    #[error("{field} is {found}, must be {bound}")]
    Range {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: f32,
        /// The range in words.
        bound: &'static str,
    },
}

impl Request {
    /// Checks every field. `positions` is the longest sequence that can be held: [`Limits::context`], or less where
    /// the cache is smaller. Of a constraint only where it begins is: it is compiled when the request is
    /// submitted.
    pub fn validate(&self, limits: &Limits, positions: usize) -> Result<(), RequestError> {
        if limits.bidirectional {
            return Err(RequestError::Encoder);
        }
        check_prompt(&self.prompt, limits, positions)?;
        check_tokens("stop.tokens", &self.stop.tokens, limits)?;
        count("stop.strings", self.stop.strings.len(), MAX_STOP_STRINGS)?;
        for string in &self.stop.strings {
            if string.is_empty() {
                return Err(RequestError::Empty { field: "stop.strings" });
            }
            count("stop.strings bytes", string.len(), MAX_STOP_BYTES)?;
        }
        check_banned(&self.banned)?;
        if self.lookup > 0 && self.draft > 0 {
            return Err(RequestError::Guesses);
        }
        count("logprobs", self.logprobs.unwrap_or(0).into(), MAX_TOP_LOGPROBS.into())?;
        if self.max_tokens == Some(0) {
            return Err(RequestError::Range { field: "max_tokens", found: 0.0, bound: "at least 1" });
        }
        if let Some(Begin::AfterToken(id)) = self.constraint.as_ref().map(|constraint| &constraint.begin)
            && self.stop.tokens.contains(id)
        {
            return Err(ConstraintError::End { id: *id }.into());
        }
        self.sampling.validate(limits.vocab)
    }
}

fn count(field: &'static str, found: usize, max: usize) -> Result<(), RequestError> {
    match found > max {
        true => Err(RequestError::TooLong { field, found, max }),
        false => Ok(()),
    }
}

/// Refuses what [`Request::banned`] cannot be: too many strings, an empty one, one that is too long.
///
/// # Errors
///
/// [`RequestError::TooLong`], [`RequestError::Empty`].
pub fn check_banned(strings: &[impl AsRef<[u8]>]) -> Result<(), RequestError> {
    count("banned strings", strings.len(), MAX_BANNED_STRINGS)?;
    for string in strings.iter().map(AsRef::as_ref) {
        if string.is_empty() {
            return Err(RequestError::Empty { field: "a banned string" });
        }
        count("a banned string, in bytes,", string.len(), MAX_BANNED_BYTES)?;
    }
    Ok(())
}

/// Refuses a prompt without tokens, with unknown ones, or with more than `positions`.
pub(crate) fn check_prompt(
    prompt: &[TokenId],
    limits: &Limits,
    positions: usize,
) -> Result<(), RequestError> {
    if prompt.is_empty() {
        return Err(RequestError::Empty { field: "prompt" });
    }
    if prompt.len() > positions {
        return Err(RequestError::Prompt { tokens: prompt.len(), context: positions });
    }
    check_tokens("prompt", prompt, limits)
}

/// Refuses tokens that the model does not have.
fn check_tokens(field: &'static str, tokens: &[TokenId], limits: &Limits) -> Result<(), RequestError> {
    match tokens.iter().find(|&&id| id as usize >= limits.vocab) {
        Some(&id) => Err(RequestError::Token { field, id, vocab: limits.vocab }),
        None => Ok(()),
    }
}

/// The bytes of every token, as the front end's tokenizer knows them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenTable {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
}

impl TokenTable {
    /// The bytes of a token; none for a special token, nor for one outside the table.
    pub fn bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let start = id.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let range = start.zip(self.ends.get(id).copied());
        range.and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default()
    }
}

/// From the bytes of token 0, 1, 2 …
impl<T: AsRef<[u8]>> FromIterator<T> for TokenTable {
    fn from_iter<I: IntoIterator<Item = T>>(tokens: I) -> Self {
        let mut table = TokenTable::default();
        for token in tokens {
            table.bytes.extend_from_slice(token.as_ref());
            table.ends.push(table.bytes.len());
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeExecutor;

    fn error(change: impl FnOnce(&mut Request)) -> RequestError {
        let limits = FakeExecutor::small_limits();
        let mut request = Request { prompt: vec![1, 2], ..Request::default() };
        assert_eq!(request.validate(&limits, limits.context), Ok(()));
        change(&mut request);
        request.validate(&limits, limits.context).unwrap_err()
    }

    #[test]
    fn every_field_is_checked_and_named() {
        let Limits { vocab, context, .. } = FakeExecutor::small_limits();
        let id = vocab as TokenId;
        assert_eq!(error(|r| r.prompt.clear()), RequestError::Empty { field: "prompt" });
        assert_eq!(
            error(|r| r.prompt = vec![0; context + 1]),
            RequestError::Prompt { tokens: context + 1, context }
        );
        assert_eq!(error(|r| r.prompt.push(id)), RequestError::Token { field: "prompt", id, vocab });
        assert_eq!(
            error(|r| r.stop.tokens.push(id)),
            RequestError::Token { field: "stop.tokens", id, vocab }
        );
        assert_eq!(error(|r| r.stop.strings.push(vec![])), RequestError::Empty { field: "stop.strings" });
        assert_eq!(
            error(|r| r.stop.strings = vec![b"x".to_vec(); 17]),
            RequestError::TooLong { field: "stop.strings", found: 17, max: MAX_STOP_STRINGS }
        );
        assert_eq!(
            error(|r| r.stop.strings.push(vec![b'x'; 257])),
            RequestError::TooLong { field: "stop.strings bytes", found: 257, max: MAX_STOP_BYTES }
        );
        assert_eq!(error(|r| r.banned.push(vec![])), RequestError::Empty { field: "a banned string" });
        assert_eq!(
            error(|r| r.banned.push(vec![b'x'; 257])).to_string(),
            "a banned string, in bytes, has 257, at most 256 are possible"
        );
        assert_eq!(
            error(|r| r.banned = vec![b"x".to_vec(); 65]).to_string(),
            "banned strings has 65, at most 64 are possible"
        );
        assert_eq!(error(|r| (r.lookup, r.draft) = (1, 1)), RequestError::Guesses);
        assert_eq!(
            error(|r| r.logprobs = Some(21)),
            RequestError::TooLong { field: "logprobs", found: 21, max: 20 }
        );
        assert_eq!(error(|r| r.max_tokens = Some(0)).to_string(), "max_tokens is 0, must be at least 1");
    }

    #[test]
    fn sampling_is_checked_and_named() {
        type Set = fn(&mut SamplingParams, f32);
        let fields: [(&str, Set, &[f32]); 7] = [
            ("temperature", |s, x| s.temperature = x, &[-0.1]),
            ("typical_p", |s, x| s.typical_p = x, &[-0.1, 1.1]),
            ("top_p", |s, x| s.top_p = x, &[-0.1, 1.1]),
            ("min_p", |s, x| s.min_p = x, &[-0.1, 1.1]),
            ("repetition_penalty", |s, x| s.repetition_penalty = x, &[-1.0, 0.0]),
            ("frequency_penalty", |s, x| s.frequency_penalty = x, &[-2.1, 2.1]),
            ("presence_penalty", |s, x| s.presence_penalty = x, &[-2.1, 2.1]),
        ];
        for (name, set, bad) in fields {
            for &value in bad.iter().chain(&[f32::NAN, f32::INFINITY]) {
                let RequestError::Range { field, found, .. } = error(|r| set(&mut r.sampling, value)) else {
                    panic!("{name}")
                };
                assert_eq!((field, found.to_bits()), (name, value.to_bits()));
            }
        }
        let id = FakeExecutor::small_limits().vocab as TokenId;
        assert_eq!(
            error(|r| r.sampling.logit_bias = vec![(0, 1.0), (id, 1.0)]),
            RequestError::Token { field: "logit_bias", id, vocab: id as usize }
        );
        for bad in [f32::NAN, f32::INFINITY] {
            let RequestError::Range { field: "logit_bias", .. } =
                error(|r| r.sampling.logit_bias = vec![(0, f32::NEG_INFINITY), (1, bad)])
            else {
                panic!("{bad}")
            };
        }
    }

    #[test]
    fn table_gives_bytes_and_nothing_beyond() {
        let table: TokenTable = ["a", "", "bcd"].into_iter().collect();
        let all: Vec<&[u8]> = (0..4).map(|id| table.bytes(id)).collect();
        assert_eq!(all, [&b"a"[..], b"", b"bcd", b""]);
        assert_eq!(table.bytes(TokenId::MAX), b"");
        assert_eq!(TokenTable::default().bytes(0), b"");
    }
}
