//! Pipes that close and interrupts.

use std::io::Read;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn a_reader_that_has_gone_is_no_error() {
    for args in [&["inspect", tiny_model(), "--tensors"][..], &["run", "-m", tiny_model(), "-n", "20", "x"]] {
        let mut child = minfer()
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        drop(child.stdout.take());
        let mut text = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut text).expect("UTF-8");
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{args:?}: {status}: {text}");
        assert!(!text.contains("roken pipe") && !text.contains("minfer:"), "{args:?}: {text}");
    }
}

pub(super) fn send(signal: &str, pid: u32) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs");
    assert!(status.success());
}

#[test]
fn an_interrupt_ends_the_answer_with_a_summary() {
    // Greedy, this model never ends its answer; 65,536 tokens take far longer than the signal.
    let mut child = minfer()
        .args(["run", "-m", endless_model(), "-c", "65536", "--temp", "0", "-t", "1", "--raw", "x"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut first = [0; 1];
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut first).expect("text arrives");
    send("-INT", child.id());
    let start = Instant::now();
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("it ends");
    let mut text = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut text).expect("UTF-8");
    let status = child.wait().expect("it ends");
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("generated"), "{text}");
}

#[test]
fn an_interrupt_of_synth_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("big.gguf");
    let files = || std::fs::read_dir(dir.path()).expect("the directory").count();
    let mut child = minfer()
        .args(["synth", "llama-3.1-8b"])
        .arg(&out)
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let start = Instant::now();
    while files() == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    send("-TERM", child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(files(), 0);
}
