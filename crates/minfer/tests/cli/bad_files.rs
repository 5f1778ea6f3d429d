//! Files that are not what they should be: exit code 1, one line that names the file, quickly.

use std::time::{Duration, Instant};

use super::*;

fn refused(path: &Path, args: &[&str]) -> String {
    let start = Instant::now();
    let text = fails(args, 1);
    // Far more than it takes; a refusal that first reads or allocates gigabytes would take longer.
    assert!(start.elapsed() < Duration::from_secs(20), "{args:?}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("minfer: ") && text.contains(path.to_str().expect("UTF-8")), "{text}");
    text
}

#[test]
fn missing_files_are_named() {
    let path = Path::new("no/such/model.gguf");
    for args in [
        &["inspect", "no/such/model.gguf"][..],
        &["run", "-m", "no/such/model.gguf", "x"],
        &["bench", "-m", "no/such/model.gguf"],
        &["tokenize", "-m", "no/such/model.gguf", "x"],
    ] {
        assert!(refused(path, args).contains("no such file"));
    }
    let text = fails(&["perplexity", "-m", tiny_model(), "-f", "no/text.txt"], 1);
    assert!(text.contains("no/text.txt"), "{text}");
}

#[test]
fn broken_models_are_refused_by_every_command() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let whole = std::fs::read(tiny_model()).expect("the model is there");
    let mut counts = whole.clone();
    counts[8..24].copy_from_slice(&[0x10; 16]);
    let mut overlap = whole.clone();
    let name = b"blk.1.ffn_down.weight";
    let at = overlap.windows(name.len()).position(|w| w == name).expect("the tensor is there") + name.len();
    // Number of dimensions, two dimensions, type; then the offset.
    overlap[at + 4 + 16 + 4..][..8].copy_from_slice(&0u64.to_le_bytes());
    let cases: [(&str, &[u8]); 8] = [
        ("empty", b""),
        ("text", b"This is a text file, and not at all a model of anything."),
        ("37-bytes", &whole[..37]),
        ("half-header", &whole[..whole.len().min(3000)]),
        ("no-data", &whole[..whole.len() / 2]),
        ("one-byte-short", &whole[..whole.len() - 1]),
        ("absurd-counts", &counts),
        ("overlap", &overlap),
    ];
    for (name, bytes) in cases {
        let path = dir.path().join(format!("{name}.gguf"));
        std::fs::write(&path, bytes).expect("a temporary file");
        let model = path.to_str().expect("UTF-8");
        refused(&path, &["inspect", model]);
        refused(&path, &["run", "-m", model, "x"]);
        refused(&path, &["tokenize", "-m", model, "x"]);
    }
    let folder = dir.path().to_str().expect("UTF-8");
    refused(dir.path(), &["inspect", folder]);
}

#[test]
fn a_context_that_the_model_cannot_have_is_refused() {
    let text = fails(&["run", "-m", tiny_model(), "-c", "100000", "x"], 1);
    assert!(text.contains("100000") && text.contains("256"), "{text}");
    let text = fails(&["bench", "-m", tiny_model(), "-p", "300", "-n", "0", "-r", "1"], 1);
    assert!(text.contains("300"), "{text}");
}

#[test]
fn text_that_is_not_utf8_is_refused_with_its_first_wrong_byte() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("text.txt");
    std::fs::write(&path, b"caf\xe9 au lait").expect("a file");
    let name = path.to_str().expect("UTF-8");
    for args in [["tokenize", "-m", tiny_model(), "-f", name], ["perplexity", "-m", tiny_model(), "-f", name]]
    {
        let text = refused(&path, &args);
        assert!(text.contains("byte 3 is 0xe9"), "{text}");
    }
    let output = run_with_input(&["tokenize", "-m", tiny_model()], b"\xff");
    let text = check_failure(&output, 1, "stdin");
    assert!(text.contains("stdin") && text.contains("byte 0"), "{text}");
}

#[test]
fn an_embedding_without_rows_for_all_tokens_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut bytes = std::fs::read(tiny_model()).expect("the model is there");
    let name = b"token_embd.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).expect("the tensor is there") + name.len();
    // Number of dimensions, columns, rows.
    bytes[at + 4 + 8..][..8].copy_from_slice(&1000u64.to_le_bytes());
    let path = dir.path().join("short.gguf");
    std::fs::write(&path, bytes).expect("a file");
    let model = path.to_str().expect("UTF-8");
    for args in [&["run", "-m", model, "x"][..], &["chat", "-m", model]] {
        let text = refused(&path, args);
        assert!(text.contains("1000 rows for a vocabulary of 1024 tokens"), "{text}");
    }
}

#[test]
fn an_error_about_the_vocabulary_names_the_file() {
    let path = Path::new(tiny_model());
    for args in [
        &["run", "-m", tiny_model(), "--pre", "nonsense", "x"][..],
        &["tokenize", "-m", tiny_model(), "--pre", "nonsense", "x"],
    ] {
        let text = refused(path, args);
        assert!(text.contains("nonsense"), "{text}");
    }
}

/// Keys and values of two tebibytes; what fits is said, and fits.
#[test]
fn a_cache_that_the_memory_does_not_hold_is_refused_before_anything_is_loaded() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let shape = dir.path().join("shape.json");
    let json = serde_json::json!({"name": "wide", "family": "llama", "n_layer": 4, "d_model": 64, "d_ff": 64,
        "n_head": 16, "n_head_kv": 16, "head_dim": 64, "n_vocab": 512, "n_ctx": 1 << 26, "rope_base": 10000, "tied": true});
    std::fs::write(&shape, json.to_string()).expect("the shape is written");
    let model = dir.path().join("wide.gguf");
    let (shape, model) = (shape.to_str().expect("UTF-8"), model.to_str().expect("UTF-8"));
    succeeds(&["synth", shape, model, "--type", "f16"]);
    let most = (1 << 26).to_string();
    for more in [&[][..], &["--repack", "off"]] {
        let args = ["run", "-m", model, "--ctk", "f32", "--ctv", "f32", "-c", &most, "x"];
        let text = fails(&[&args[..], more].concat(), 1);
        assert!(text.contains("2048.00 GiB") && text.contains("tokens fits"), "{text}");
    }
}

#[test]
fn a_weight_that_is_not_finite_is_named() {
    let (dir, whole) = (tempfile::tempdir().expect("a temporary directory"), Path::new(tiny_model()));
    let at = {
        let gguf = minfer::gguf::Gguf::open(whole).expect("the model");
        gguf.tensor("blk.1.ffn_norm.weight").expect("the tensor is there").file_offset() as usize + 4 * 7
    };
    let mut bytes = std::fs::read(whole).expect("the model is there");
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = dir.path().join("nan.gguf");
    std::fs::write(&path, bytes).expect("a file");
    let model = path.to_str().expect("UTF-8");
    let text = fails(&["run", "-m", model, "--raw", "--device", "cpu", "x"], 1);
    assert!(text.contains("is NaN") && text.contains("inspect --check"), "{text}");
    let text = succeeds(&["inspect", model, "--check"]);
    assert!(text.contains("blk.1.ffn_norm.weight") && text.contains("row 0, column 7"), "{text}");
    assert!(succeeds(&["inspect", tiny_model(), "--check"]).contains("all finite"));
}
