//! Replays the corpora of the fuzz targets: seeds and finds.

use std::path::Path;

#[path = "support/walk.rs"]
mod walk;

fn replay(target: &str, walk: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        walk(&std::fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files > 0, "{} is empty", folder.display());
}

#[test]
fn tokenizer_corpus_is_harmless() {
    replay("tokenizer", walk::tokenizer);
}

#[test]
fn template_corpus_is_harmless() {
    replay("template", walk::template);
}

#[test]
fn answer_corpus_is_harmless() {
    replay("answer", walk::answer);
}
