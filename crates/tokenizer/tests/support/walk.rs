//! What the fuzz targets do with any bytes. Their corpora are replayed by `tests/fuzz_corpus.rs`.
#![allow(dead_code)] // Each user takes a part.

use std::sync::OnceLock;

use minfer_gguf::{Array, Metadata, Strings, Value};
use minfer_tokenizer::{
    AnswerEvent, AnswerFormat, AnswerParser, ChatTemplate, EncodeOptions, Special, TemplateInput, Tokenizer,
};

const PARSE: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const FULL: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };
const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

fn strings(items: &[String]) -> Value {
    Value::Array(Array::Strings(items.iter().map(String::as_bytes).collect::<Strings>()))
}

/// A vocabulary of 256 bytes or byte tokens, some words, and a special token of each kind.
fn metadata(model: &str, pre: &str) -> Metadata {
    let as_it_is =
        ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "mmbert", "whitespace"].contains(&pre);
    let of_bytes = model == "gpt2" && !as_it_is;
    let mut tokens =
        ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "<tool>", "<|im_end|>"].map(str::to_owned).to_vec();
    let mut types = vec![2i32, 3, 3, 3, 3, 4, 1];
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100..;
    for byte in 0..256 {
        let code = if printable(byte) { byte } else { next.next().unwrap_or(0) };
        let letter = char::from_u32(code).unwrap_or_default().to_string();
        tokens.push(if of_bytes { letter } else { format!("<0x{byte:02X}>") });
        types.push(if of_bytes { 1 } else { 6 });
    }
    let space = if of_bytes { "Ġ" } else { "▁" };
    let merges = [
        ("a", "a"),
        ("aa", "aa"),
        ("l", "l"),
        ("h", "e"),
        ("he", "ll"),
        ("hell", "o"),
        (space, "w"),
        ("1", "2"),
    ];
    let singles =
        ["a", "b", "l", "h", "e", "o", "w", "1", "2", "語", "ll", space, "\n", "\n\n", "▁hello", "▁a", "é"];
    let words =
        singles.map(str::to_owned).into_iter().chain(merges.map(|(left, right)| format!("{left}{right}")));
    for word in words {
        if !tokens.contains(&word) {
            tokens.push(word);
            types.push(1);
        }
    }
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32) / 7.0).collect();
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", Value::string(model));
    metadata.set("tokenizer.ggml.pre", Value::string(pre));
    metadata.set("tokenizer.ggml.tokens", strings(&tokens));
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.scores", scores);
    metadata.set("tokenizer.ggml.merges", strings(&merges.map(|(left, right)| format!("{left} {right}"))));
    for (key, id) in
        [("unknown", 0u32), ("bos", 1), ("eos", 2), ("seperator", 2), ("padding", 3), ("mask", 4)]
    {
        metadata.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    metadata
}

/// Every rule, and the other models.
fn tokenizers() -> &'static [Tokenizer] {
    static TOKENIZERS: OnceLock<Vec<Tokenizer>> = OnceLock::new();
    TOKENIZERS.get_or_init(|| {
        let rules = minfer_tokenizer::supported_pre_tokenizers().map(|pre| metadata("gpt2", pre));
        let others = [("llama", ""), ("bert", ""), ("t5", ""), ("whitespace", "whitespace")];
        let others = others.map(|(model, pre)| metadata(model, pre));
        let mut spaced = metadata("t5", "");
        spaced.set("tokenizer.ggml.add_space_prefix", true);
        spaced.set("tokenizer.ggml.remove_extra_whitespaces", true);
        let all = rules.chain(others).chain([spaced]);
        all.map(|metadata| Tokenizer::from_gguf(&metadata).expect("these vocabularies are sound")).collect()
    })
}

/// The first byte chooses a tokenizer; the rest is a text, and ids.
pub(crate) fn tokenizer(bytes: &[u8]) {
    let Some((first, text)) = bytes.split_first() else { return };
    let tokenizers = tokenizers();
    let tokenizer = &tokenizers[usize::from(*first) % tokenizers.len()];
    for options in [PLAIN, PARSE, FULL] {
        let ids = tokenizer.encode_bytes(text, options);
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        check_decoding(tokenizer, &ids);
    }
    let ids: Vec<u32> = text.iter().map(|byte| u32::from(*byte) * 2).collect();
    check_decoding(tokenizer, &ids);
    if *first == 0xFF {
        // The text as a normalization map, and as what it normalizes.
        let mut mapped = metadata("t5", "");
        mapped.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(text.into())));
        if let Ok(tokenizer) = Tokenizer::from_gguf(&mapped) {
            tokenizer.encode_bytes(text, PLAIN);
        }
    }
}

fn check_decoding(tokenizer: &Tokenizer, ids: &[u32]) {
    for special in [Special::Hide, Special::Show] {
        let mut detokenizer = tokenizer.detokenizer(special);
        let mut text = String::new();
        for id in ids {
            text.push_str(detokenizer.push(*id));
        }
        text.push_str(&detokenizer.finish());
        assert_eq!(text, String::from_utf8_lossy(&tokenizer.decode(ids, special)));
    }
}

/// A template, and after a zero byte the messages as JSON.
pub(crate) fn template(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (source, messages) = text.split_once('\0').unwrap_or((&text, ""));
    let _ = AnswerFormat::of_template(source);
    let Ok(template) = ChatTemplate::new(source) else { return };
    let usual = r#"[{"role":"user","content":"Hi <&>"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5,null]}}}]}]"#;
    let messages =
        serde_json::from_str(messages).or_else(|_| serde_json::from_str(usual)).unwrap_or_default();
    let input = TemplateInput {
        messages,
        tools: Some(serde_json::json!([{ "function": { "name": "f" } }])),
        add_generation_prompt: true,
        bos: "<s>".into(),
        eos: "</s>".into(),
        now: "2024-07-26T12:00:00+00:00[+00:00]".parse().ok(),
        ..TemplateInput::default()
    };
    let _ = template.render(&input);
}

/// The first byte chooses a form, the second the length of the pieces; the rest is an answer.
pub(crate) fn answer(bytes: &[u8]) {
    let [form, length, text @ ..] = bytes else { return };
    let formats = [
        AnswerFormat::Hermes,
        AnswerFormat::QwenXml,
        AnswerFormat::Llama3,
        AnswerFormat::Mistral,
        AnswerFormat::Gemma,
        AnswerFormat::Granite,
        AnswerFormat::DeepSeek,
        AnswerFormat::Harmony,
    ];
    let format = formats[usize::from(*form) % formats.len()];
    let text = String::from_utf8_lossy(text);
    let tools = serde_json::json!([{ "function": { "name": "f", "parameters": { "properties": { "s": { "type": "string" } } } } }]);
    let parse = |length: usize| {
        let mut parser = AnswerParser::new(format, Some(&tools), if form & 8 != 0 { "<think>" } else { "" });
        let mut events = Vec::new();
        let mut rest = &*text;
        while !rest.is_empty() {
            let end = rest.ceil_char_boundary(length.min(rest.len()));
            let (piece, after) = rest.split_at(end);
            parser.push(piece).into_iter().for_each(|event| add(&mut events, event));
            rest = after;
        }
        parser.finish().into_iter().for_each(|event| add(&mut events, event));
        events
    };
    assert_eq!(parse(usize::MAX), parse(usize::from(*length % 16) + 1));
}

/// Joins deltas.
fn add(events: &mut Vec<AnswerEvent>, event: AnswerEvent) {
    match (events.last_mut(), &event) {
        (Some(AnswerEvent::Content(last)), AnswerEvent::Content(more)) => last.push_str(more),
        (Some(AnswerEvent::Reasoning(last)), AnswerEvent::Reasoning(more)) => last.push_str(more),
        (
            Some(AnswerEvent::ToolCall { arguments, .. }),
            AnswerEvent::ToolCall { name: None, arguments: more, .. },
        ) => {
            arguments.push_str(more);
        }
        _ => events.push(event),
    }
}
