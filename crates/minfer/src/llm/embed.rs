//! Vectors of texts.

use std::collections::VecDeque;
use std::time::Duration;

use minfer_engine::{Canceller, EmbedRequest, Event, FinishReason, Handle, Pooling, Usage};
use minfer_model::DecoderSpec;
use minfer_tokenizer::EncodeOptions;

use super::{Error, Llm};

/// Texts of [`Llm::embed_each`] that are handed over at a time: enough for full steps, and fewer than may wait.
const AT_A_TIME: usize = 64;

/// How to embed.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// How the hidden states of a text's tokens are pooled; [`Llm::pooling`] if left out.
    pub pooling: Option<Pooling>,
    /// Whether each vector is scaled to a Euclidean length of 1.
    pub normalize: bool,
    /// As [`EmbedRequest::priority`].
    pub priority: i32,
    /// As [`EmbedRequest::deadline`].
    pub deadline: Option<Duration>,
}

impl Default for Embed {
    /// As the model is made for, with length 1.
    fn default() -> Embed {
        Embed { pooling: None, normalize: true, priority: 0, deadline: None }
    }
}

/// A text as vectors: one, or with [`Pooling::None`] one for each token.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    values: Vec<f32>,
    width: usize,
    usage: Usage,
}

impl Embedding {
    /// The values of all vectors, one vector after the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Takes the values out.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// The vectors.
    pub fn vectors(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }

    /// Tokens of the text.
    pub fn usage(&self) -> Usage {
        self.usage
    }
}

/// An embedding on its way. Dropping it cancels the request.
pub struct PendingEmbedding {
    handle: Handle,
    width: usize,
}

impl PendingEmbedding {
    /// Cancels it, from any thread.
    pub fn canceller(&self) -> Canceller {
        self.handle.canceller()
    }

    /// Waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::Generation`]: it was cancelled, or its time was over, or the step failed.
    pub fn wait(mut self) -> Result<Embedding, Error> {
        let mut found = Vec::new();
        for event in self.handle.by_ref() {
            match event {
                Event::Embedding { values } => found = values,
                Event::Finished { reason, usage, .. } => {
                    let what = match reason {
                        FinishReason::Embedded => {
                            return Ok(Embedding { values: found, width: self.width, usage });
                        }
                        FinishReason::Error(what) => what,
                        FinishReason::Deadline => "the text was not embedded before its deadline".to_owned(),
                        _ => "the embedding was cancelled".to_owned(),
                    };
                    return Err(Error::Generation(what));
                }
                Event::Started { .. } | Event::Prefill { .. } | Event::Token { .. } => {}
            }
        }
        Err(Error::Generation("the engine has stopped".to_owned()))
    }
}

impl Llm {
    /// The vector of a text.
    ///
    /// # Errors
    ///
    /// [`Error::Submit`], for a text that the context does not hold; [`Error::Generation`].
    pub fn embed(&self, text: &str, options: &Embed) -> Result<Embedding, Error> {
        self.embed_tokens(self.embed_prompt(text), options)?.wait()
    }

    /// The vectors of many texts, in their order; they are computed together, with the same values as one by one.
    ///
    /// # Errors
    ///
    /// Those of [`Llm::embed`], in the place of the text that has one.
    pub fn embed_each<'a, T: AsRef<str>>(
        &'a self,
        texts: impl IntoIterator<Item = T> + 'a,
        options: &'a Embed,
    ) -> impl Iterator<Item = Result<Embedding, Error>> + 'a {
        let mut submitted =
            texts.into_iter().map(|text| self.embed_tokens(self.embed_prompt(text.as_ref()), options));
        let mut pending = VecDeque::new();
        std::iter::from_fn(move || {
            pending.extend(submitted.by_ref().take(AT_A_TIME - pending.len()));
            pending.pop_front().map(|next: Result<PendingEmbedding, Error>| next?.wait())
        })
    }

    /// Hands tokens over to be embedded; never waits.
    ///
    /// # Errors
    ///
    /// [`Error::Submit`].
    pub fn embed_tokens(&self, prompt: Vec<u32>, options: &Embed) -> Result<PendingEmbedding, Error> {
        let &Embed { pooling, normalize, priority, deadline } = options;
        let pooling = pooling.unwrap_or(self.pooling);
        let request = EmbedRequest { prompt, pooling, normalize, priority, deadline };
        Ok(PendingEmbedding { handle: self.engine.embed(request)?, width: self.embedding_width })
    }

    /// The tokens of a text to be embedded: with the special tokens that the file puts around it, and those in the text parsed.
    pub fn embed_prompt(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: true })
    }

    /// How the model's embeddings are pooled: as its file says, else by the mean of an encoder, and by the last token of a
    /// decoder.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Values of a vector.
    pub fn embedding_width(&self) -> usize {
        self.embedding_width
    }
}

/// A decoder's last token is the only one that has seen the whole text; in an encoder all have.
pub(super) fn pooling_of(spec: &DecoderSpec) -> Pooling {
    spec.pooling.unwrap_or(if spec.bidirectional() { Pooling::Mean } else { Pooling::Last })
}
