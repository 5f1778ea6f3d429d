//! Compares token ids with those of another implementation, and measures.
//!
//! ```text
//! check_golden MODEL.gguf GOLDEN.json                 # {"cases": [{"text" | "hex", "ids", "plain"?}]}
//! check_golden MODEL.gguf CASES.inp CASES.out         # llama.cpp's models/ggml-vocab-*.gguf.{inp,out}
//! check_golden MODEL.gguf --time TEXT [--ids FILE]    # load and encoding time; ids to FILE, by line
//! ```
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use minfer_gguf::Gguf;
use minfer_tokenizer::{EncodeOptions, Tokenizer};

const PARSE: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

struct Case {
    text: Vec<u8>,
    options: EncodeOptions,
    ids: Vec<u32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [model, arguments @ ..] = &arguments[..] else { return Err("usage: see the source".into()) };
    let start = Instant::now();
    let file = Gguf::open(Path::new(model))?;
    let read = start.elapsed();
    let tokenizer = Tokenizer::from_gguf(file.metadata())?;
    let built = start.elapsed() - read;
    for warning in tokenizer.warnings() {
        println!("warning: {warning}");
    }
    match arguments {
        ["--time", text, ids @ ..] => {
            println!(
                "{} tokens: file read in {read:.1?}, tokenizer built in {built:.1?}",
                tokenizer.vocab_size()
            );
            let text = std::fs::read(text)?;
            let start = Instant::now();
            let tokens = tokenizer.encode_bytes(&text, PARSE);
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{} bytes, {} tokens, {:.0} ms, {:.1} MB/s",
                text.len(),
                tokens.len(),
                seconds * 1e3,
                text.len() as f64 / seconds / 1e6
            );
            if let ["--ids", path] = ids {
                std::fs::write(path, tokens.iter().map(|id| format!("{id}\n")).collect::<String>())?;
            }
            Ok(())
        }
        [golden] => report(&tokenizer, &json_cases(&std::fs::read_to_string(golden)?)?),
        [inputs, outputs] => report(
            &tokenizer,
            &text_cases(&std::fs::read_to_string(inputs)?, &std::fs::read_to_string(outputs)?)?,
        ),
        _ => Err("usage: see the source".into()),
    }
}

fn json_cases(golden: &str) -> Result<Vec<Case>, Box<dyn Error>> {
    let golden: serde_json::Value = serde_json::from_str(golden)?;
    let ids = |value: &serde_json::Value| -> Option<Vec<u32>> {
        value.as_array()?.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let mut cases = Vec::new();
    for row in golden["cases"].as_array().ok_or("no cases")? {
        let text = match (row["text"].as_str(), row["hex"].as_str()) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (_, Some(hex)) => (0..hex.len() / 2)
                .map(|byte| u8::from_str_radix(&hex[2 * byte..2 * byte + 2], 16))
                .collect::<Result<_, _>>()?,
            _ => return Err("a case without a text".into()),
        };
        let parsed = ids(&row["ids"]).ok_or("a case without ids")?;
        let plain = ids(&row["plain"]).unwrap_or_else(|| parsed.clone());
        cases.push(Case { text: text.clone(), options: PARSE, ids: parsed });
        cases.push(Case { text, options: PLAIN, ids: plain });
    }
    Ok(cases)
}

fn text_cases(inputs: &str, outputs: &str) -> Result<Vec<Case>, Box<dyn Error>> {
    let texts = inputs.split("\n__ggml_vocab_test__\n");
    let case = |(text, line): (&str, &str)| -> Result<Case, Box<dyn Error>> {
        let ids = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        Ok(Case { text: text.as_bytes().to_vec(), options: PLAIN, ids })
    };
    texts.zip(outputs.lines()).map(case).collect()
}

fn report(tokenizer: &Tokenizer, cases: &[Case]) -> Result<(), Box<dyn Error>> {
    let mut wrong = 0;
    for Case { text, options, ids } in cases {
        let found = tokenizer.encode_bytes(text, *options);
        if found != *ids {
            wrong += 1;
            println!("{:?}\n  expected {ids:?}\n  found    {found:?}", String::from_utf8_lossy(text));
        }
    }
    println!("{} of {} cases equal", cases.len() - wrong, cases.len());
    if wrong > 0 || cases.is_empty() { Err("not equal".into()) } else { Ok(()) }
}
