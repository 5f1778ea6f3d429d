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
