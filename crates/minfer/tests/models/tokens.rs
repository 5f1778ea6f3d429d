//! Token ids and chat prompts against llama.cpp's.

use std::collections::HashSet;

use minfer::tokenizer::{ChatTemplate, EncodeOptions, Special, TemplateInput, Tokenizer};
use serde_json::Value;

use crate::support::{GEMMA3, SMOLLM2, golden, ids, open};

/// Bytes of a case: JSON text, or hexadecimal where they are no text.
fn bytes(case: &Value) -> Vec<u8> {
    if let Some(text) = case["text"].as_str() {
        return text.as_bytes().to_vec();
    }
    let hex = case["hex"].as_str().expect("text or hex").as_bytes();
    let digit = |c: u8| char::from(c).to_digit(16).expect("a hexadecimal digit") as u8;
    hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Texts that are read differently without special tokens, on purpose, with our ids.
type Deviations<'a> = &'a [(&'a str, &'a [u32])];

fn check(model: &str, file: &str, deviations: Deviations<'_>) {
    let gguf = open(model);
    let tokenizer = Tokenizer::from_gguf(gguf.metadata()).expect("the vocabulary is read");
    let spelled: HashSet<Vec<u8>> =
        (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_bytes(id).into_owned()).collect();
    let data = golden(file);
    let cases = data["cases"].as_array().expect("cases");
    assert!(cases.len() > 100, "{} cases", cases.len());
    for case in cases {
        let text = bytes(case);
        let expected = ids(&case["ids"]);
        let parsed = EncodeOptions { add_special: false, parse_special: true };
        assert_eq!(tokenizer.encode_bytes(&text, parsed), expected, "{case}");
        let ours = deviations.iter().find(|(text, _)| case["text"] == **text).map(|(_, ids)| ids.to_vec());
        let plain = ours.unwrap_or_else(|| case.get("plain").map_or(expected, ids));
        let unparsed = EncodeOptions { add_special: false, parse_special: false };
        assert_eq!(tokenizer.encode_bytes(&text, unparsed), plain, "{case}");
        // What was encoded without special tokens comes back, if it was text.
        if let Ok(text) = std::str::from_utf8(&text)
            && !plain.iter().any(|id| tokenizer.is_special(*id))
            && can_come_back(&spelled, text)
        {
            let back = tokenizer.decode(&plain, Special::Show);
            assert_eq!(String::from_utf8_lossy(&back), text, "{case}");
        }
    }
}

/// Whether decoding can tell what was encoded: SentencePiece spells a space as `▁`, and a `▁` too; SmolLM2's vocabulary
/// lacks tokens for eight bytes, and drops them.
fn can_come_back(spelled: &HashSet<Vec<u8>>, text: &str) -> bool {
    !text.contains('▁') && text.bytes().all(|byte| spelled.contains(&[byte][..]))
}

#[test]
fn smollm2_tokens_are_the_references() {
    check(SMOLLM2, "tokenizer/smollm2.json", &[]);
}

#[test]
fn gemma_tokens_are_the_references() {
    // llama.cpp takes `</s>` for a control token by its text. In gemma it is the HTML tag, as `<s>` is, and the model's
    // own tokenizer takes it as text.
    check(GEMMA3, "tokenizer/gemma3-270m.json", &[("<s></s>", &[203, 212])]);
}

#[test]
fn smollm2_prompts_are_the_references() {
    let gguf = open(SMOLLM2);
    let tokenizer = Tokenizer::from_gguf(gguf.metadata()).expect("the vocabulary is read");
    let template = ChatTemplate::from_gguf(gguf.metadata()).expect("it compiles").expect("it is there");
    let prompts = golden("reference/prompts.json");
    let reference = golden("reference/smollm2.json");
    let prompts = prompts[SMOLLM2].as_array().expect("prompts");
    let reference = reference["prompts"].as_array().expect("prompts");
    assert_eq!(prompts.len(), reference.len());
    for (prompt, expected) in prompts.iter().zip(reference) {
        let turns = prompt["turns"].as_array().expect("turns");
        let system = prompt.get("system").map(|text| serde_json::json!({"role": "system", "content": text}));
        let turns = turns.iter().map(|t| serde_json::json!({"role": t[0], "content": t[1]}));
        let messages = system.into_iter().chain(turns).collect();
        let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
        let text = template.render(&input).expect("it renders");
        assert_eq!(Some(text.as_str()), expected["prompt"].as_str());
        let found = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: true });
        assert_eq!(found, ids(&expected["prompt_ids"]));
    }
    assert!(ChatTemplate::from_gguf(open(GEMMA3).metadata()).expect("no error").is_none());
}
