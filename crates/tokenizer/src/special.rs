//! Special tokens that a file does not declare: found by their text, as llama.cpp (b11434) does it.
//!
//! Converters often leave a chat model's control tokens typed as normal text, or do not say which token ends a turn.
//! The names below are facts of published vocabularies.

use rustc_hash::FxHashSet;

use crate::SpecialIds;
use crate::vocab::{Attr, Vocab};

/// A special token that may be found by its text, and the texts it is known by, best first. llama.cpp takes whichever
/// its hash table yields first; the order here makes it a rule.
type Known = (fn(&mut SpecialIds) -> &mut Option<u32>, &'static [&'static str]);

const KNOWN: [Known; 8] = [
    (
        |ids| &mut ids.eot,
        &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
    ),
    (|ids| &mut ids.eom, &["<|eom_id|>"]),
    (
        |ids| &mut ids.fim_pre,
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        |ids| &mut ids.fim_suf,
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        |ids| &mut ids.fim_mid,
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (|ids| &mut ids.fim_pad, &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (|ids| &mut ids.fim_rep, &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    (|ids| &mut ids.fim_sep, &["<|file_sep|>"]),
];

/// Texts that end a generation in any vocabulary that has them.
const END_OF_GENERATION: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Parts of gpt-oss's output protocol (harmony) that its reader must see. llama.cpp makes them user-defined tokens,
/// which would let text that is not trusted contain them.
const ALWAYS_SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// What [`resolve`] found.
pub(crate) struct Resolved {
    pub(crate) end_of_generation: FxHashSet<u32>,
    /// Tokens that became control tokens by their text.
    pub(crate) retyped: Vec<u32>,
}

/// Completes `ids` by text, corrects the types in `vocab`, and collects the tokens that end a generation.
pub(crate) fn resolve(vocab: &mut Vocab, ids: &mut SpecialIds) -> Resolved {
    let html = html_tag(vocab); // By the file's own types, before any is corrected.
    let mut retyped = Vec::new();
    let mut make_control = |vocab: &mut Vocab, id: u32| {
        let attr = &mut vocab.attrs[id as usize];
        if !attr.any(Attr::CONTROL) {
            *attr = attr.with(Attr::CONTROL);
            retyped.push(id);
        }
    };
    for (field, names) in KNOWN {
        let id = field(ids);
        if id.is_none()
            && let Some(found) = names.iter().find_map(|name| vocab.id(name.as_bytes()))
        {
            *id = Some(found);
            make_control(vocab, found);
        }
    }
    for id in vocab.ids() {
        let attr = vocab.attr(id);
        if attr.any(Attr::CONTROL) && vocab.text(id).windows(6).any(|part| part == b"unused") {
            vocab.attrs[id as usize] = attr.with(Attr::UNUSED);
        }
    }
    let mut ends: FxHashSet<u32> = [ids.fim_pad, ids.fim_rep, ids.fim_sep].into_iter().flatten().collect();
    for name in END_OF_GENERATION {
        if let Some(id) = vocab.id(name.as_bytes()).filter(|id| Some(*id) != html) {
            ends.insert(id);
            make_control(vocab, id);
        }
    }
    for name in ALWAYS_SHOWN {
        if let Some(id) = vocab.id(name.as_bytes()) {
            vocab.attrs[id as usize] = vocab.attr(id).with(Attr::SHOWN);
        }
    }
    ends.extend([ids.eos, ids.eot, ids.eom].into_iter().flatten());
    drop_exceptions(vocab, &mut ends);
    Resolved { end_of_generation: ends, retyped }
}

/// `</s>`, if it is HTML and ends nothing: a file with another end that it types as one types this as text (gemma,
/// plamo, qwen, phi-3). llama.cpp knows the first two by other tokens, and takes the tag as an end in the others.
fn html_tag(vocab: &Vocab) -> Option<u32> {
    let tag = vocab.id(b"</s>").filter(|id| !vocab.attr(*id).any(Attr::CONTROL))?;
    let is_typed =
        |name: &&str| vocab.id(name.as_bytes()).is_some_and(|id| vocab.attr(id).any(Attr::CONTROL));
    END_OF_GENERATION.iter().chain(&["<|plamo:eos|>"]).any(is_typed).then_some(tag)
}

/// Vocabularies in which a name of the list means something else.
fn drop_exceptions(vocab: &mut Vocab, ends: &mut FxHashSet<u32>) {
    let end = |name: &str| vocab.id(name.as_bytes()).filter(|id| ends.contains(id));
    // gpt-oss and solar-open: `<|end|>` ends a message, after which the model goes on.
    let call = end("<|call|>").or(end("<|calls|>"));
    let goes_on = (end("<|return|>").is_some() || end("<|flush|>").is_some()) && call.is_some();
    if let Some(id) = end("<|end|>").filter(|_| goes_on) {
        ends.remove(&id);
        vocab.attrs[id as usize] = vocab.attr(id).with(Attr::SHOWN);
    }
}
