//! The tokenizer's part of a file's metadata, as plain data.
//!
//! Key names: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> and llama.cpp's `llama-arch.cpp`.

use std::borrow::Cow;

use minfer_gguf::{Array, Metadata, Strings, Value};

use crate::Error;

/// Everything a [`Tokenizer`](crate::Tokenizer) is built from. Nothing but this module reads GGUF metadata.
#[derive(Clone, Debug)]
pub struct VocabSource<'a> {
    /// `tokenizer.ggml.model`: `gpt2`, `llama`, `bert`, `t5`, …
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer rule of byte-pair encoding.
    pub pre: Option<String>,
    /// Token texts, by id.
    pub tokens: &'a Strings,
    /// Score of each token; a higher one merges first (SPM), or makes a spelling likelier (Unigram).
    pub scores: Option<Cow<'a, [f32]>>,
    /// Type of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Cow<'a, [i32]>>,
    /// `left right`, best first (BPE).
    pub merges: Option<&'a Strings>,
    /// Ids of the special tokens that the file names.
    pub ids: SpecialIds,
    /// Begin each text with BOS.
    pub add_bos: Option<bool>,
    /// End each text with EOS.
    pub add_eos: Option<bool>,
    /// Begin each text with a space (SPM, Unigram).
    pub add_space_prefix: Option<bool>,
    /// A run of spaces is one (Unigram).
    pub remove_extra_whitespaces: Option<bool>,
    /// What SentencePiece replaces before it looks for tokens (Unigram).
    pub charsmap: Option<Cow<'a, [u8]>>,
    /// Make text lower-case (WordPiece).
    pub lowercase: Option<bool>,
    /// Take accents off (WordPiece).
    pub strip_accents: Option<bool>,
    /// `general.architecture`: some are known by it to strip white space before `<mask>`.
    pub architecture: String,
    /// `general.name`: phi-3 is known by it to strip white space after special tokens.
    pub name: String,
}

/// Ids of special tokens. In a [`VocabSource`] they are as the file has them; a tokenizer holds only ids within its
/// vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The field's standard names.
pub struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub sep: Option<u32>,
    pub pad: Option<u32>,
    pub mask: Option<u32>,
    /// Fill in the middle: prefix, suffix, middle, padding, repository, file separator.
    pub fim_pre: Option<u32>,
    pub fim_suf: Option<u32>,
    pub fim_mid: Option<u32>,
    pub fim_pad: Option<u32>,
    pub fim_rep: Option<u32>,
    pub fim_sep: Option<u32>,
}

impl SpecialIds {
    /// Each id with the end of its metadata key, for the ones that can be named in a file.
    pub(crate) fn named(&mut self) -> [(&'static str, &mut Option<u32>); 14] {
        [
            ("bos", &mut self.bos),
            ("eos", &mut self.eos),
            ("eot", &mut self.eot),
            ("eom", &mut self.eom),
            ("unknown", &mut self.unk),
            ("seperator", &mut self.sep), // The format's own spelling.
            ("padding", &mut self.pad),
            ("mask", &mut self.mask),
            ("fim_pre", &mut self.fim_pre),
            ("fim_suf", &mut self.fim_suf),
            ("fim_mid", &mut self.fim_mid),
            ("fim_pad", &mut self.fim_pad),
            ("fim_rep", &mut self.fim_rep),
            ("fim_sep", &mut self.fim_sep),
        ]
    }
}

pub(crate) const MODEL: &str = "tokenizer.ggml.model";
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(crate) const SCORES: &str = "tokenizer.ggml.scores";
pub(crate) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(crate) const MERGES: &str = "tokenizer.ggml.merges";
pub(crate) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
pub(crate) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(crate) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
pub(crate) const BOS_ID: &str = "tokenizer.ggml.bos_token_id";
pub(crate) const EOS_ID: &str = "tokenizer.ggml.eos_token_id";

impl<'a> VocabSource<'a> {
    /// Reads a file's metadata.
    pub fn from_gguf(metadata: &'a Metadata) -> Result<VocabSource<'a>, Error> {
        let missing = |key| Error::MissingKey { key, model: "?".to_owned() };
        let model = metadata.str(MODEL)?.ok_or_else(|| missing(MODEL))?.to_owned();
        let mut ids = SpecialIds::default();
        for (name, id) in ids.named() {
            *id = metadata.u32(&format!("tokenizer.ggml.{name}_token_id"))?;
        }
        // Older files name the three by what they are for.
        for (name, id) in
            [("prefix", &mut ids.fim_pre), ("suffix", &mut ids.fim_suf), ("middle", &mut ids.fim_mid)]
        {
            if let Some(old) = metadata.u32(&format!("tokenizer.ggml.{name}_token_id"))? {
                *id = Some(old);
            }
        }
        Ok(VocabSource {
            model,
            pre: metadata.str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: metadata.strings(TOKENS)?.ok_or_else(|| missing(TOKENS))?,
            scores: metadata.f32s(SCORES)?.map(Cow::from),
            token_types: metadata.i32s(TOKEN_TYPE)?.map(Cow::from),
            merges: metadata.strings(MERGES)?,
            ids,
            add_bos: metadata.bool(ADD_BOS)?,
            add_eos: metadata.bool(ADD_EOS)?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: metadata.bool("tokenizer.ggml.remove_extra_whitespaces")?,
            charsmap: charsmap(metadata)?,
            lowercase: metadata.bool("tokenizer.ggml.normalizer.lowercase")?,
            strip_accents: metadata.bool("tokenizer.ggml.normalizer.strip_accents")?,
            architecture: metadata.str("general.architecture")?.unwrap_or_default().to_owned(),
            name: metadata.str("general.name")?.unwrap_or_default().to_owned(),
        })
    }
}

/// The map's bytes; some files have them as signed ones.
fn charsmap(metadata: &Metadata) -> Result<Option<Cow<'_, [u8]>>, Error> {
    Ok(match metadata.get(CHARSMAP) {
        None => None,
        Some(Value::Array(Array::U8(bytes))) => Some(Cow::Borrowed(bytes)),
        Some(Value::Array(Array::I8(bytes))) => Some(bytes.iter().map(|byte| byte.cast_unsigned()).collect()),
        Some(_) => {
            return Err(Error::BadCharsmap {
                key: CHARSMAP,
                bytes: 0,
                detail: "it is not an array of bytes",
            });
        }
    })
}
