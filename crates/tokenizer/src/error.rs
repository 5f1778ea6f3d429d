//! What can go wrong with a vocabulary or a template.

/// A vocabulary or chat template that was refused, with what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key is of the wrong type or out of range.
    #[error(transparent)]
    Metadata(#[from] minfer_gguf::Error),
    /// A key that this tokenizer model cannot do without is not there.
    #[error("the file has no \"{key}\", which a tokenizer of model \"{model}\" needs")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
        /// `tokenizer.ggml.model`, or `?` where that is the missing key.
        model: String,
    },
    /// `tokenizer.ggml.model` is not one of ours.
    #[error("tokenizer model \"{found}\" is not supported; supported: {supported}")]
    UnsupportedModel {
        /// What the file says.
        found: String,
        /// The known names, by comma.
        supported: String,
    },
    /// `tokenizer.ggml.pre`, or the rule asked for instead, is not in the table.
    #[error("pre-tokenizer rule \"{found}\" is not known; known (choose one with --pre): {supported}")]
    UnsupportedPre {
        /// What the file or the caller says.
        found: String,
        /// The known names, by comma.
        supported: String,
    },
    /// An array is shorter than the vocabulary.
    #[error("\"{key}\" has {found} entries for {expected} tokens")]
    ShortArray {
        /// The metadata key.
        key: &'static str,
        /// Entries it has.
        found: usize,
        /// Tokens of the vocabulary.
        expected: usize,
    },
    /// The vocabulary has no token, or more (or longer ones) than 32-bit ids and offsets can name.
    #[error("a vocabulary of {tokens} tokens and {bytes} bytes of text is not supported")]
    VocabularySize {
        /// Number of tokens.
        tokens: usize,
        /// Bytes of all their texts.
        bytes: usize,
    },
    /// Two tokens have the same text, so a text would have two encodings.
    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their text.
        text: String,
    },
    /// A merge is not two parts with a space between.
    #[error("merge {index} is {merge:?}: expected two parts separated by a space")]
    BadMerge {
        /// Its place in `tokenizer.ggml.merges`.
        index: usize,
        /// Its text.
        merge: String,
    },
    /// The normalization map of a Unigram vocabulary is damaged.
    #[error("\"{key}\" of {bytes} bytes is damaged: {detail}")]
    BadCharsmap {
        /// The metadata key.
        key: &'static str,
        /// Its length.
        bytes: usize,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// The file wants a special token added to each text, but does not say which.
    #[error("\"{flag}\" is true, but the file names no such token within its vocabulary (\"{key}\")")]
    MissingSpecial {
        /// The flag, for instance `tokenizer.ggml.add_bos_token`.
        flag: &'static str,
        /// The key that should hold the id.
        key: &'static str,
    },
    /// A token that begins or ends texts is none of the vocabulary's.
    #[error("\"tokenizer.ggml.{name}_token_id\" is {id}, but the vocabulary has {tokens} tokens")]
    SpecialBeyond {
        /// Which.
        name: &'static str,
        /// What the file says.
        id: u32,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
    /// The special tokens are too many or too long to search for.
    #[error("cannot search text for the special tokens of this vocabulary")]
    SpecialTokens(#[source] aho_corasick::BuildError),
    /// A chat template is far larger than any should be.
    #[error("the chat template has {found} bytes; the limit is {limit}")]
    TemplateSize {
        /// Its bytes.
        found: usize,
        /// The most that are taken.
        limit: usize,
    },
    /// The system has no thread with a stack for the chat template.
    #[error(
        "no thread with a stack of {bytes} bytes for the chat template, of which only what is used is taken; a limit of address \
         space (ulimit -v) must leave room for it"
    )]
    TemplateThread {
        /// Bytes of stack asked for.
        bytes: usize,
        /// Why not.
        source: std::io::Error,
    },
    /// A chat template does not parse.
    #[error("chat template, line {line}: {detail}, in `{construct}`")]
    TemplateSyntax {
        /// Line, from 1.
        line: usize,
        /// That line of the template.
        construct: String,
        /// What is wrong.
        detail: String,
    },
    /// A chat template failed on this conversation.
    #[error("chat template, line {line}: {detail}, in `{construct}`")]
    TemplateRender {
        /// Line, from 1.
        line: usize,
        /// That line of the template.
        construct: String,
        /// What is wrong.
        detail: String,
    },
    /// The chat template itself refused the conversation, by `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
}
