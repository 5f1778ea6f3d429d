//! Texts that have to be something, with real vocabularies.

use std::path::Path;
use std::sync::Arc;

use minfer::engine::{FinishReason, Grammar, SamplingParams, Stopped};
use minfer::gguf::Gguf;
use minfer::tokenizer::EncodeOptions;
use minfer::{Generate, Llm, Message, Options, Summary};
use serde_json::{Value, json};

use crate::support::{GEMMA3, SMOLLM2, cores, open};

/// What a model answers, or how one that was not tuned for it goes on, and how that went.
fn answer(llm: &Llm, question: &str, options: &Generate) -> (String, Summary) {
    let generation = match llm.has_chat_template() {
        true => llm.chat(&[Message::user(question)], options),
        false => llm.complete(question, options),
    };
    let mut generation = generation.expect("the request is taken");
    let text = generation.by_ref().map(|piece| piece.expect("the generation succeeds")).collect();
    (text, generation.summary().expect("it has ended").clone())
}

fn constrained(grammar: Grammar, seed: u64) -> Generate {
    let sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    Generate { constraint: Some(grammar), sampling, max_tokens: Some(300), ..Generate::default() }
}

#[test]
fn a_schema_holds_on_byte_level_and_on_sentencepiece_vocabularies() {
    let _cores = cores();
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["rot", "grün", "blau"]}, "minItems": 1, "maxItems": 3}},
        "required": ["name", "age", "colours"], "additionalProperties": false});
    for name in [SMOLLM2, GEMMA3] {
        let llm = Llm::from_gguf(&open(name), &Options::default(), &mut |_, _| {}).expect("a model");
        for seed in 0..4 {
            let options = constrained(Grammar::JsonSchema(schema.to_string()), seed);
            let (text, summary) = answer(&llm, "Describe a person as JSON, in German.", &options);
            assert!(matches!(summary.reason, FinishReason::Stop(_)), "{name}: {text}");
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {text}: {e}"));
            assert!(value["name"].as_str().expect("a name").chars().count() <= 20, "{text}");
            assert!((0..=120).contains(&value["age"].as_i64().expect("an age")), "{text}");
            let colours = value["colours"].as_array().expect("colours");
            assert!((1..4).contains(&colours.len()), "{text}");
            let known = [json!("rot"), json!("grün"), json!("blau")];
            assert!(colours.iter().all(|colour| known.contains(colour)), "{text}");
            assert_eq!(value.as_object().expect("an object").len(), 3, "{text}");
            // The seed repeats it, though the prompt is now taken over from the cache.
            assert_eq!(answer(&llm, "Describe a person as JSON, in German.", &options).0, text);
        }
    }
}

#[test]
fn the_constraint_may_begin_after_a_text_or_a_special_token() {
    let _cores = cores();
    let llm = Llm::from_gguf(&open(SMOLLM2), &Options::default(), &mut |_, _| {}).expect("a model");
    let options = Generate {
        constrain_after: Some(".".to_owned()),
        sampling: SamplingParams::greedy(),
        ..constrained(Grammar::Regex(" In short: (yes|no)".to_owned()), 0)
    };
    let (text, summary) = answer(&llm, "Is the sky blue?", &options);
    let (free, short) = text.split_once('.').expect("a sentence");
    assert!(free.len() > 5 && [" In short: yes", " In short: no"].contains(&short), "{text}");
    assert_eq!(summary.reason, FinishReason::Stop(Stopped::Constraint));
    // A special token, which has no text. The model is made to begin with it, and to want it again.
    let start =
        llm.tokenizer().encode("<|im_start|>", EncodeOptions { add_special: false, parse_special: true });
    let after = |text: &str| Generate {
        constrain_after: Some(text.to_owned()),
        constraint: Some(Grammar::Regex("[0-9]{3}".to_owned())),
        sampling: SamplingParams { logit_bias: vec![(start[0], 1000.0)], ..SamplingParams::greedy() },
        ..options.clone()
    };
    let (text, summary) = answer(&llm, "Say yes.", &after("<|im_start|>"));
    assert!(text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit()), "{text}");
    assert_eq!(summary.reason, FinishReason::Stop(Stopped::Constraint));
    for (text, what) in
        [("<|im_start|>yes", "not after \"<|im_start|>yes\""), ("<|im_end|>", "ends the text")]
    {
        let refused = llm.chat(&[Message::user("Say yes.")], &after(text)).err().expect("refused");
        assert!(refused.to_string().contains(what), "{refused}");
    }
}

#[test]
fn every_small_model_keeps_to_a_regular_expression() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families");
    let mut models = 0;
    for entry in std::fs::read_dir(folder).expect("the golden models") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        models += 1;
        let gguf = Arc::new(Gguf::open(&path).expect("a model"));
        let llm = Llm::from_gguf(&gguf, &Options::default(), &mut |_, _| {}).expect("a model");
        for seed in 0..4 {
            let options = constrained(Grammar::Regex("[A-Z]{3}[0-9]{2,5}".to_owned()), seed);
            let text: String =
                llm.complete("HELLO", &options).expect("taken").map(|p| p.expect("text")).collect();
            let (letters, digits) = text.split_at(3);
            assert!(letters.bytes().all(|b| b.is_ascii_uppercase()), "{path:?}: {text}");
            assert!(
                (2..6).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()),
                "{path:?}: {text}"
            );
        }
    }
    assert!(models > 10, "{models}");
}
