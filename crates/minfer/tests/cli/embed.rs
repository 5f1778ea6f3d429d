//! `minfer embed`.

use serde_json::Value;

use crate::{check_failure, fails, run, run_with_input, stderr, stdout, succeeds, tiny_model};

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("an array").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|v| v * v).sum::<f64>().sqrt()
}

#[test]
fn every_form_has_the_same_values() {
    let texts = ["The sky is blue.", "Grass is green, and so are frogs."];
    let output = run(&["embed", "-m", tiny_model(), texts[0], texts[1]]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("2 texts"), "{}", stderr(&output));
    let json: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let data = json["data"].as_array().expect("data");
    assert_eq!(data.len(), 2);
    let vectors: Vec<Vec<f64>> = data.iter().map(|entry| floats(&entry["embedding"])).collect();
    assert!(vectors.iter().all(|v| v.len() == 256 && (length(v) - 1.0).abs() < 1e-6));
    assert_ne!(vectors[0], vectors[1]);
    let total: u64 = data.iter().map(|entry| entry["tokens"].as_u64().expect("tokens")).sum();
    assert_eq!(json["usage"]["prompt_tokens"], total);

    let lines = texts.join("\n") + "\n";
    let output = run_with_input(&["embed", "-m", tiny_model(), "-o", "jsonl"], lines.as_bytes());
    let entries: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(&entries, data);

    let output = run_with_input(&["embed", "-m", tiny_model(), "-o", "raw"], lines.as_bytes());
    let raw: Vec<f64> =
        output.stdout.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect();
    let same = |(a, b): (&f64, &f64)| (*a as f32).to_bits() == (*b as f32).to_bits();
    assert!(raw.len() == 512 && raw.iter().zip(vectors.concat().iter()).all(same));
}

#[test]
fn modes_and_lengths_are_what_was_asked_for() {
    let vectors = |args: &[&str]| {
        let all = [&["embed", "-m", tiny_model(), "--no-normalize", "one two three"], args].concat();
        let json: Value = serde_json::from_str(&succeeds(&all)).expect("JSON");
        json["data"][0]["embedding"].clone()
    };
    let each = vectors(&["--pooling", "none"]);
    let each: Vec<Vec<f64>> = each.as_array().expect("an array").iter().map(floats).collect();
    assert!(each.len() > 2 && each.iter().all(|v| v.len() == 256));
    assert!((length(&each[0]) - 1.0).abs() > 1e-3, "normalized all the same");
    assert_eq!(floats(&vectors(&["--pooling", "cls"])), each[0]);
    assert_eq!(floats(&vectors(&["--pooling", "last"])), each[each.len() - 1]);
    assert_eq!(vectors(&[]), vectors(&["--pooling", "last"]));
    let mean = floats(&vectors(&["--pooling", "mean"]));
    for (channel, found) in mean.iter().enumerate() {
        let expected = each.iter().map(|v| v[channel]).sum::<f64>() / each.len() as f64;
        assert!((found - expected).abs() < 1e-6, "channel {channel}: {found}, expected {expected}");
    }
}

/// A golden encoder: its file says how it pools.
fn encoder(name: &str) -> String {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/encoders").join(name);
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn encoders_embed_and_do_nothing_else() {
    for (name, width, pooling) in [("bert.gguf", 64, "cls"), ("nomic-bert.gguf", 96, "mean")] {
        let path = encoder(name);
        let vector = |args: &[&str]| {
            let json: Value = serde_json::from_str(&succeeds(
                &[&["embed", "-m", &path, "the sky is blue."], args].concat(),
            ))
            .expect("JSON");
            assert_eq!(json["data"][0]["tokens"], 7, "[CLS] and [SEP] around five words");
            floats(&json["data"][0]["embedding"])
        };
        let own = vector(&[]);
        assert_eq!(own.len(), width);
        assert_eq!(own, vector(&["--pooling", pooling]));
        assert_ne!(own, vector(&["--pooling", "last"]));
        let text = fails(&["run", "-m", &path, "--raw", "the sky"], 1);
        assert!(text.contains("the model is an encoder"), "{text}");
        let text = fails(&["embed", "-m", &path, &"sky ".repeat(400)], 1);
        assert!(text.contains("402 tokens, the context holds 320"), "{text}");
        assert!(succeeds(&["inspect", &path]).contains(name.trim_end_matches(".gguf")));
        for command in ["bench", "perplexity"] {
            let file = encoder("bert.json");
            let args: &[&str] = if command == "bench" {
                &["-p", "8", "-n", "0", "-r", "1"]
            } else {
                &["--ctx", "64", "-f", &file]
            };
            let text = fails(&[&[command, "-m", &path], args].concat(), 1);
            assert!(text.contains("the model is an encoder"), "{text}");
        }
    }
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    let long = "word ".repeat(300);
    let text = fails(&["embed", "-m", tiny_model(), &long], 1);
    assert!(text.contains("text 1: the prompt has ") && text.contains("the context holds 256"), "{text}");
    assert!(fails(&["embed", "-m", tiny_model(), ""], 2).contains("text 1 is empty"));
    assert!(fails(&["embed", "-m", tiny_model()], 2).contains("no text"));
    assert!(fails(&["embed", "--pooling", "rank", "x"], 2).contains("mean, cls, last or none"));
    let output = run_with_input(&["embed", "-m", tiny_model()], b"one\n\nthree\n");
    assert!(check_failure(&output, 2, "an empty line").contains("line 2 is empty"));
    let output = run_with_input(&["embed", "-m", tiny_model()], b"\xff\n");
    assert!(check_failure(&output, 1, "no UTF-8").contains("UTF-8"));
}
