//! `minfer pull`, `list` and `rm`, and what the terminal shows.

use std::process::{Command, Output};

use super::server::Reply;
use super::*;

fn minfer(cache: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minfer"));
    command.args(args).env("MINFER_CACHE", cache).env_remove("MINFER_LOG").env_remove("HF_TOKEN");
    command.output().expect("the binary runs")
}

fn succeeds(cache: &Path, args: &[&str]) -> String {
    let output = minfer(cache, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn fails(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn models_are_pulled_listed_used_and_removed() {
    let bytes = model(1);
    let server = Server::of_file(bytes.clone());
    let fixture = Fixture::new();
    let cache = fixture.dir.path();
    let url = server.model();
    assert_eq!(succeeds(cache, &["list"]), "");
    let path = succeeds(cache, &["pull", &url]);
    assert_eq!(std::fs::read(path.trim_end()).expect("the file is there"), bytes);
    let list = succeeds(cache, &["list"]);
    assert!(list.starts_with(&url) && list.lines().count() == 1 && !list.contains("unfinished"), "{list}");
    let report: serde_json::Value =
        serde_json::from_str(&succeeds(cache, &["list", "--json"])).expect("JSON");
    let entry = &report["models"][0];
    assert_eq!((entry["name"].as_str(), entry["complete"].as_bool()), (Some(url.as_str()), Some(true)));
    assert_eq!(entry["path"].as_str(), Some(path.trim_end()));
    assert!(entry["bytes"].as_u64() >= Some(bytes.len() as u64));
    assert!(succeeds(cache, &["inspect", &url]).contains("llama"));
    assert_eq!(server.requests().len(), 1);
    succeeds(cache, &["rm", &url]);
    assert_eq!(succeeds(cache, &["list"]), "");
    let text = fails(&minfer(cache, &["rm", &url]));
    assert!(text.contains("nothing in the cache is named") && text.contains("it is empty"), "{text}");
}

#[test]
fn what_goes_wrong_is_one_sentence() {
    let server = Server::start(|_, _| Reply::new(404, ""));
    let fixture = Fixture::new();
    let text = fails(&minfer(fixture.dir.path(), &["inspect", &server.model()]));
    assert!(text.ends_with("check the spelling\n") && text.contains("404 Not Found"), "{text}");
    let text = fails(&minfer(fixture.dir.path(), &["run", "-m", "http://127.0.0.1:1/m.gguf", "x"]));
    assert!(text.contains("cannot reach http://127.0.0.1:1"), "{text}");
}

/// A limit on the size of files stands in for a full disk: both are errors of a write.
#[test]
#[cfg(unix)]
fn a_full_disk_is_said_and_the_next_attempt_continues() {
    let bytes = model(2);
    let server = Server::of_file(bytes.clone());
    let fixture = Fixture::new();
    let script =
        format!("trap '' XFSZ; ulimit -f 100; exec {} pull {}", env!("CARGO_BIN_EXE_minfer"), server.model());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("MINFER_CACHE", fixture.dir.path());
    let text = fails(&command.output().expect("sh runs"));
    assert!(text.contains("cannot write") && text.contains("free some space"), "{text}");
    fixture.offers_nothing();
    let list = succeeds(fixture.dir.path(), &["list"]);
    assert!(list.contains(&server.model()) && list.contains("unfinished"), "{list}");
    succeeds(fixture.dir.path(), &["pull", &server.model()]);
    fixture.fetches(&server.model(), &bytes);
    let start = server.requests().last().and_then(|r| r.start());
    assert!(start.is_some_and(|s| s > 0 && s < bytes.len()), "{start:?}");
}

/// A killed process leaves a part that the next one continues.
#[test]
fn a_killed_fetch_is_continued() {
    let bytes = model(3);
    let sent = bytes.clone();
    let server = Server::start(move |request, n| {
        let reply = Reply::file(request, &sent, "\"1\"");
        if n == 0 { reply.stalled(120_000) } else { reply }
    });
    let fixture = Fixture::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_minfer"))
        .args(["pull", &server.model()])
        .env("MINFER_CACHE", fixture.dir.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let there = || fixture.cache().list().is_ok_and(|l| l.first().is_some_and(|e| e.bytes > 120_000));
    for _ in 0..3000 {
        if there() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // While it runs, it cannot be removed.
    let text = fails(&minfer(fixture.dir.path(), &["rm", &server.model()]));
    assert!(text.contains("is being fetched by another minfer"), "{text}");
    child.kill().expect("killed");
    child.wait().expect("ended");
    fixture.offers_nothing();
    fixture.fetches(&server.model(), &bytes);
    assert_eq!(server.requests()[1].start(), Some(120_000));
}
