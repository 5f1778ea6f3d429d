//! Embeddings of a decoder: the same bits alone, in company, and in steps of any size.

use minfer::model::LoadOptions;
use minfer::{Embed, Generate, Llm, Options, Pooling};

use crate::support::{GEMMA3, SMOLLM2, cores, open};

fn load(name: &str, step: Option<usize>) -> Llm {
    let load = LoadOptions { max_tokens: step, context: Some(640), ..LoadOptions::default() };
    let options = Options { load, ..Options::default() };
    Llm::from_gguf(&open(name), &options, &mut |_, _| {}).expect("the model is loaded")
}

#[test]
fn company_and_steps_change_nothing() {
    let _cores = cores();
    let text = include_str!("text.txt");
    let texts =
        [&text[..900], "The sky is blue.", &text[..905], "Der Himmel ist blau.", "def f(x): return x"];
    for name in [SMOLLM2, GEMMA3] {
        let (whole, pieces) = (load(name, None), load(name, Some(48)));
        for pooling in Pooling::ALL {
            let options = Embed { pooling: Some(pooling), ..Embed::default() };
            let alone: Vec<_> = texts
                .iter()
                .map(|text| whole.embed(text, &options).expect("it fits").into_values())
                .collect();
            let busy = pieces.complete("Once upon a time", &Generate::default()).expect("it is taken");
            let together: Vec<_> = pieces.embed_each(texts, &options).collect();
            drop(busy);
            for (found, expected) in together.into_iter().zip(&alone) {
                let found = found.expect("it fits");
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert!(bits(found.values()) == bits(expected), "{name}, {pooling}");
                let vectors = if pooling == Pooling::None { found.usage().prompt_tokens } else { 1 };
                assert_eq!(found.vectors().len(), vectors);
            }
        }
    }
}

#[test]
fn a_text_that_does_not_fit_is_refused_with_the_numbers() {
    let _cores = cores();
    let llm = load(SMOLLM2, None);
    let error = llm.embed(&"word ".repeat(800), &Embed::default()).expect_err("it is too long");
    assert!(error.to_string().contains("801 tokens, the context holds 640"), "{error}");
}
