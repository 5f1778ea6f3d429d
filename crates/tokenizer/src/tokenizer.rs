//! The tokenizer of a file.

use std::borrow::Cow;

use minfer_gguf::Metadata;
use rustc_hash::FxHashSet;

use crate::added::{Added, Fragment, Strip};
use crate::bpe::Bpe;
use crate::merge::Merger;
use crate::pre::{Bos, Rule};
use crate::source::{ADD_BOS, ADD_EOS, BOS_ID, EOS_ID};
use crate::spm::{self, Spm};
use crate::unigram::Unigram;
use crate::vocab::{Attr, Vocab};
use crate::wpm::Wpm;
use crate::{Detokenizer, Error, SpecialIds, VocabSource, special, utf8};

/// Values of `tokenizer.ggml.model` that [`Tokenizer`] knows.
const MODELS: [&str; 6] = ["gpt2", "gemma4", "whitespace", "llama", "bert", "t5"];

/// A longer text is encoded in parts of this size: positions within a part fit 32 bits.
const MAX_PART: usize = 1 << 30;

/// Text to token ids and back. Immutable once built, so one may serve all threads.
pub struct Tokenizer {
    pub(crate) vocab: Vocab,
    model: Model,
    added: Added,
    ids: SpecialIds,
    end_of_generation: FxHashSet<u32>,
    add_bos: bool,
    add_eos: bool,
    /// What ends a text: EOS, or SEP of WordPiece.
    end: Option<u32>,
    /// Each text begins with a space, and so does text after a special token.
    pub(crate) space_prefix: bool,
    warnings: Vec<String>,
}

enum Model {
    Bpe(Bpe),
    Spm(Spm),
    Wpm(Wpm),
    Unigram(Unigram),
}

/// `tokenizer.ggml.model`, with what it implies.
#[derive(Clone, Copy)]
enum Kind {
    Bpe(&'static Rule),
    Spm,
    Wpm,
    Unigram,
}

/// What the caller knows better than the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides<'a> {
    /// The pre-tokenizer rule, instead of `tokenizer.ggml.pre`.
    pub pre: Option<&'a str>,
}

/// How to read a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add BOS and EOS as the file says.
    pub add_special: bool,
    /// Let text that spells a control token be that token. Leave it off for text that is not trusted.
    pub parse_special: bool,
}

/// What becomes of control tokens in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// They are not part of the text.
    Hide,
    /// They are spelled out.
    Show,
}

impl Tokenizer {
    /// The tokenizer that a file describes. Needs no tensors: files that hold only a vocabulary will do.
    pub fn from_gguf(metadata: &Metadata) -> Result<Tokenizer, Error> {
        Tokenizer::from_gguf_with(metadata, Overrides::default())
    }

    /// Like [`from_gguf`](Self::from_gguf), with `overrides`.
    pub fn from_gguf_with(metadata: &Metadata, overrides: Overrides<'_>) -> Result<Tokenizer, Error> {
        let mut source = VocabSource::from_gguf(metadata)?;
        if let Some(pre) = overrides.pre {
            source.pre = Some(pre.to_owned());
        }
        Tokenizer::new(&source)
    }

    /// The tokenizer of a vocabulary.
    pub fn new(source: &VocabSource<'_>) -> Result<Tokenizer, Error> {
        let mut warnings = Vec::new();
        let kind = kind(source, &mut warnings)?;
        let mut vocab = Vocab::new(source)?;
        let mut ids = checked_ids(source, &vocab, kind, &mut warnings)?;
        let resolved = special::resolve(&mut vocab, &mut ids);
        for id in resolved.retyped {
            let text = String::from_utf8_lossy(vocab.text(id));
            warnings.push(format!("token {id} {text:?} is typed as text, but is taken as a control token"));
        }
        let adds = |wanted: Option<bool>, default, id: Option<u32>, flag, key| match (wanted, id) {
            (Some(true), None) => Err(Error::MissingSpecial { flag, key }),
            _ => Ok(wanted.unwrap_or(default) && id.is_some()),
        };
        let (bos, eos, add_space_prefix) = match kind {
            Kind::Bpe(rule) => (rule.bos, false, false),
            Kind::Spm => (Bos::UnlessFileDenies, false, source.add_space_prefix.unwrap_or(true)),
            Kind::Wpm => (Bos::Always, true, true),
            Kind::Unigram => (Bos::IfFileSays, true, source.add_space_prefix.unwrap_or(false)),
        };
        if bos == Bos::Always && source.add_bos == Some(false) {
            warnings.push(format!("\"{ADD_BOS}\" is false, but this model does not work without it"));
        }
        let wanted = if bos == Bos::Always { Some(true) } else { source.add_bos };
        let add_bos = adds(wanted, bos != Bos::IfFileSays, ids.bos, ADD_BOS, BOS_ID)?;
        let end = if matches!(kind, Kind::Wpm) { ids.sep } else { ids.eos };
        let wanted = if matches!(kind, Kind::Wpm) { Some(true) } else { source.add_eos };
        let add_eos = adds(wanted, eos, end, ADD_EOS, EOS_ID)?;
        let added = Added::new(&vocab, strips(source, &vocab))?;
        let model = match kind {
            Kind::Bpe(rule) => Model::Bpe(Bpe::new(source, &vocab, rule)?),
            Kind::Spm => Model::Spm(Spm::new(&vocab, ids.unk)),
            Kind::Wpm => Model::Wpm(Wpm::new(source, &vocab, ids.unk)?),
            Kind::Unigram => Model::Unigram(Unigram::new(source, &vocab, ids.unk)?),
        };
        Ok(Tokenizer {
            model,
            added,
            ids,
            end_of_generation: resolved.end_of_generation,
            add_bos,
            add_eos,
            end,
            space_prefix: add_space_prefix,
            warnings,
            vocab,
        })
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        self.encode_bytes(text.as_bytes(), options)
    }

    /// Ids of a text to be continued, special tokens in it parsed: with the BOS that the file asks for, but once, as a chat
    /// template may have it already, and never with EOS.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        let mut ids = self.encode(text, EncodeOptions { add_special: false, parse_special: true });
        if let Some(bos) = self.bos().filter(|_| self.adds_bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// The tokens of bytes that may not be valid UTF-8. SentencePiece vocabularies spell what is no character in
    /// bytes; the other models read it as U+FFFD (as in llama.cpp).
    pub fn encode_bytes(&self, text: &[u8], options: EncodeOptions) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 4 + 2);
        let mut merger = Merger::default();
        if let (true, Some(bos)) = (options.add_special && self.add_bos, self.ids.bos) {
            out.push(bos);
        }
        let mut after_special = true;
        self.added.split(text, options.parse_special, |fragment| match fragment {
            Fragment::Token(id) => {
                out.push(id);
                after_special = true;
            }
            Fragment::Text(text) => {
                for part in parts(text) {
                    let prefix = self.space_prefix && after_special;
                    self.encode_text(part, prefix, &mut merger, &mut out);
                    after_special = false;
                }
            }
        });
        if let (true, Some(eos)) = (options.add_special && self.add_eos, self.end) {
            out.push(eos);
        }
        out
    }

    fn encode_text(&self, text: &[u8], prefix: bool, merger: &mut Merger, out: &mut Vec<u32>) {
        match &self.model {
            Model::Bpe(bpe) if bpe.composes() => {
                bpe.encode(&self.vocab, &utf8::read(text).nfc(), merger, out)
            }
            Model::Bpe(bpe) => bpe.encode(&self.vocab, &utf8::read(text), merger, out),
            Model::Wpm(wpm) => wpm.encode(&utf8::read(text).shape, out),
            Model::Unigram(unigram) => unigram.encode(&self.vocab, text, out),
            Model::Spm(spm) => spm.encode(&self.vocab, text, prefix, merger, out),
        }
    }

    /// The text of `ids`, in bytes: a model may stop within a character. The space that [`encode`](Self::encode) puts
    /// before a text is taken off again. Ids beyond the vocabulary, which a model with padded logits may produce, have
    /// no text.
    pub fn decode(&self, ids: &[u32], special: Special) -> Vec<u8> {
        let mut text = Vec::with_capacity(ids.len() * 4);
        let mut at_start = self.space_prefix;
        for &id in ids {
            self.append_text(id, special, &mut at_start, &mut text);
        }
        text
    }

    /// Appends the text of one token. `at_start` is true until the first token that is text, if a space belongs there.
    pub(crate) fn append_text(&self, id: u32, special: Special, at_start: &mut bool, text: &mut Vec<u8>) {
        if self.is_special(id) {
            if special == Special::Show {
                text.extend_from_slice(self.vocab.text(id));
            }
            return;
        }
        let bytes = self.token_bytes(id);
        text.extend_from_slice(if *at_start { bytes.strip_prefix(b" ").unwrap_or(&bytes) } else { &bytes });
        *at_start &= bytes.is_empty();
    }

    /// Turns ids into text as they come, whole characters only.
    pub fn detokenizer(&self, special: Special) -> Detokenizer<'_> {
        Detokenizer::new(self, special)
    }

    /// The bytes that a token adds to a text: the alphabet of byte-pair encoding undone, `▁` a space, `<0xNN>` a byte.
    /// Special and added tokens are their own text; unused tokens and ids beyond the vocabulary have none.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let attr = self.vocab.attr(id);
        let text = self.vocab.text(id);
        if attr.any(Attr::CONTROL.with(Attr::UNKNOWN).with(Attr::USER_DEFINED)) {
            return Cow::Borrowed(text);
        }
        if attr.any(Attr::NORMAL) {
            return Cow::Owned(match &self.model {
                Model::Bpe(bpe) => bpe.plain(text),
                Model::Spm(_) | Model::Wpm(_) | Model::Unigram(_) => spm::unescape(text),
            });
        }
        match self.vocab.byte(id) {
            Some(byte) if attr.any(Attr::BYTE) => Cow::Owned(vec![byte]),
            _ => Cow::Borrowed(&[]),
        }
    }

    /// The token as the vocabulary spells it (`Ġhello`, `▁hello`, `<0x0A>`); `None` beyond the vocabulary.
    pub fn piece(&self, id: u32) -> Option<Cow<'_, str>> {
        self.vocab.contains(id).then(|| String::from_utf8_lossy(self.vocab.text(id)))
    }

    /// The token that the vocabulary spells like this.
    pub fn token_id(&self, piece: &str) -> Option<u32> {
        self.vocab.id(piece.as_bytes())
    }

    /// Number of tokens. A model may have more logits than that.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Every special token that the file names or that is known by its text.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.ids
    }

    /// Begin of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// What [`EncodeOptions::add_special`] adds at the end, if it does: EOS, or WordPiece's separator.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// Whether [`EncodeOptions::add_special`] adds BOS.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether [`EncodeOptions::add_special`] adds [`end`](Self::end).
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether a token is hidden by [`Special::Hide`]: a control token, or the unknown token; but not the parts of an
    /// answer's form that gpt-oss spells in control tokens.
    pub fn is_special(&self, id: u32) -> bool {
        let attr = self.vocab.attr(id);
        attr.any(Attr::CONTROL.with(Attr::UNKNOWN)) && !attr.any(Attr::SHOWN)
    }

    /// Whether a token is a control token, by its type or its text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.attr(id).any(Attr::CONTROL)
    }

    /// Whether a token ends a generation: EOS, end of turn, end of message, and tokens known by their text.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.contains(&id)
    }

    /// The tokens that end a generation, ascending.
    pub fn end_of_generation(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.end_of_generation.iter().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Ids, ascending, of special tokens and of those that have one of the texts in them; empty texts are in none.
    pub fn special_or_with(&self, texts: &[String]) -> Vec<u32> {
        let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).filter(|text| !text.is_empty()).collect();
        let fits = |id: &u32| {
            let bytes = self.token_bytes(*id);
            let has = |text: &&[u8]| bytes.windows(text.len()).any(|window| window == *text);
            self.is_special(*id) || texts.iter().any(has)
        };
        (0..self.vocab_size() as u32).filter(fits).collect()
    }

    /// What in the file's vocabulary was odd, and what was made of it. For the load log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("tokens", &self.vocab.len())
            .field("ids", &self.ids)
            .finish_non_exhaustive()
    }
}

/// The model that a file names.
fn kind(source: &VocabSource<'_>, warnings: &mut Vec<String>) -> Result<Kind, Error> {
    match (source.model.as_str(), &source.pre) {
        ("llama", _) => Ok(Kind::Spm),
        ("bert", _) => Ok(Kind::Wpm),
        ("t5", _) => Ok(Kind::Unigram),
        ("gemma4", _) => Ok(Kind::Bpe(Rule::named("gemma4")?)),
        ("gpt2" | "whitespace", Some(name)) => Ok(Kind::Bpe(Rule::named(name)?)),
        ("gpt2" | "whitespace", None) => {
            warnings.push("the file names no pre-tokenizer rule; \"default\" is used".to_owned());
            Ok(Kind::Bpe(Rule::named("default")?))
        }
        (found, _) => Err(Error::UnsupportedModel { found: found.to_owned(), supported: MODELS.join(", ") }),
    }
}

/// The special ids within the vocabulary, with the model's defaults for those that the file does not name. Ids beyond
/// the vocabulary occur in published files (padding, mostly), and are dropped with a warning; but not those that begin
/// or end a text, without which answers would be wrong or endless.
fn checked_ids(
    source: &VocabSource<'_>,
    vocab: &Vocab,
    kind: Kind,
    warnings: &mut Vec<String>,
) -> Result<SpecialIds, Error> {
    let mut ids = source.ids;
    for (name, id) in ids.named() {
        if let Some(beyond) = id.filter(|id| !vocab.contains(*id)) {
            let tokens = vocab.len();
            if matches!(name, "bos" | "eos" | "eot" | "eom") {
                return Err(Error::SpecialBeyond { name, id: beyond, tokens });
            }
            warnings.push(format!(
                "the {name} token {beyond} is beyond the vocabulary of {tokens} and is ignored"
            ));
            *id = None;
        }
    }
    // llama.cpp's defaults: SentencePiece's own, BERT's and T5's; Falcon's `<|endoftext|>`, which is a comma in other
    // vocabularies.
    let none = SpecialIds::default();
    let defaults = match kind {
        Kind::Spm => SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), ..none },
        Kind::Wpm => SpecialIds {
            bos: Some(101),
            unk: Some(100),
            sep: Some(102),
            pad: Some(0),
            mask: Some(103),
            ..none
        },
        Kind::Unigram => SpecialIds { eos: Some(1), unk: Some(2), pad: Some(0), ..none },
        Kind::Bpe(_) if vocab.attr(11).any(Attr::CONTROL) => {
            SpecialIds { bos: Some(11), eos: Some(11), ..none }
        }
        Kind::Bpe(_) => none,
    };
    let within = |id: &u32| vocab.contains(*id);
    ids.bos = ids.bos.or(defaults.bos.filter(within));
    ids.eos = ids.eos.or(defaults.eos.filter(within));
    ids.unk = ids.unk.or(defaults.unk.filter(within));
    ids.sep = ids.sep.or(defaults.sep.filter(within));
    ids.pad = ids.pad.or(defaults.pad.filter(within));
    ids.mask = ids.mask.or(defaults.mask.filter(within));
    Ok(ids)
}

/// White space that goes with special tokens. No file says it; models are known by name, as in llama.cpp.
fn strips(source: &VocabSource<'_>, vocab: &Vocab) -> impl Fn(u32) -> Strip {
    let name = source.name.to_lowercase();
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    let of = |text: &str| vocab.id(text.as_bytes());
    let keeps = [of("<unk>"), of("<s>"), of("<|endoftext|>")];
    let pre = source.pre.as_deref().unwrap_or_default();
    let lstrip =
        ["jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert"].iter().any(|known| pre.contains(known))
            || ["nomic-bert-moe", "jina-bert-v3"].iter().any(|known| source.architecture.contains(known));
    let mask = if lstrip {
        of("<mask>")
    } else if name.contains("modern-bert") {
        of("[MASK]")
    } else {
        None
    };
    move |id| Strip { before: mask == Some(id), after: phi3 && !lstrip && !keeps.contains(&Some(id)) }
}

/// `text` in parts of at most [`MAX_PART`] bytes, cut between characters.
fn parts(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let mut end = text.len().min(MAX_PART);
        if end < text.len() {
            while end > MAX_PART - 4 && text[end] & 0xC0 == 0x80 {
                end -= 1;
            }
        }
        let (part, rest) = text.split_at(end);
        text = rest;
        Some(part)
    })
}
