//! The Hugging Face hub, as a server on this machine plays it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::server::{Reply, Request};
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A repository: file names and their content.
type Files = Vec<(&'static str, Vec<u8>)>;

fn listing(files: &Files) -> Value {
    let sibling = |(name, bytes): &(&str, Vec<u8>)| {
        json!({"rfilename": name, "size": bytes.len(), "blobId": "x",
            "lfs": {"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134}})
    };
    json!({"id": "org/repo", "sha": COMMIT, "siblings": files.iter().map(sibling).collect::<Vec<_>>()})
}

/// The hub's answers for `org/repo`; files are sent by a server of their own, as the hub has it.
fn answer(request: &Request, files: &Files, cdn: &str) -> Reply {
    if request.path == "/api/models/org/repo?blobs=true" {
        return Reply::new(200, listing(files).to_string());
    }
    let found = files.iter().find(|(name, _)| request.path == format!("/org/repo/resolve/{COMMIT}/{name}"));
    match found {
        Some((name, bytes)) => Reply::redirect(&format!("{cdn}/{name}?signature=s3cret"))
            .with("X-Linked-Etag", &format!("\"{}\"", sha256(bytes)))
            .with("X-Linked-Size", &bytes.len().to_string()),
        None => Reply::new(404, "Entry not found"),
    }
}

fn cdn_answer(request: &Request, files: &Files) -> Reply {
    let found = files.iter().find(|(name, _)| request.path == format!("/{name}?signature=s3cret"));
    found.map_or_else(
        || Reply::new(404, ""),
        |(name, bytes)| Reply::file(request, bytes, &format!("\"{name}\"")),
    )
}

/// The hub and the server that it redirects to.
fn hub(files: Files) -> (Server, Server) {
    let files = Arc::new(files);
    let content = Arc::clone(&files);
    let cdn = Server::start(move |request, _| cdn_answer(request, &content));
    let url = cdn.url.clone();
    (Server::start(move |request, _| answer(request, &files, &url)), cdn)
}

#[test]
fn the_right_file_of_a_repository_is_fetched_once() {
    let (q4, q8) = (model(1), model(2));
    let (hub, cdn) = hub(vec![
        ("README.md", b"#".to_vec()),
        ("m-Q4_K_M.gguf", q4.clone()),
        ("sub/m-Q8_0.gguf", q8.clone()),
    ]);
    let fixture = Fixture::with_hub(&hub);
    let path = fixture.fetches("hf:org/repo", &q4);
    // Other names of the same file need the listing once, and then nothing.
    for name in ["hf:org/repo:q4_k_m", "hf:org/repo/m-Q4_K_M.gguf", "hf:org/repo:q4_k_m", "hf:org/repo"] {
        assert_eq!(fixture.fetches(name, &q4), path);
    }
    assert_eq!((hub.requests().len(), cdn.requests().len()), (3, 1));
    fixture.fetches("hf:org/repo/sub/m-Q8_0.gguf", &q8);
    let names: Vec<String> = fixture.cache().list().expect("a list").into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["hf:org/repo/m-Q4_K_M.gguf", "hf:org/repo/sub/m-Q8_0.gguf"]);
    // By any of its names it can go.
    fixture.cache().remove("hf:org/repo").expect("removed");
    assert_eq!(fixture.cache().list().expect("a list").len(), 1);
}

#[test]
fn what_a_repository_has_not_is_answered_with_what_it_has() {
    let (hub, _cdn) =
        hub(vec![("m-Q4_K_M.gguf", model(1)), ("m-Q8_0.gguf", model(2)), ("mmproj.gguf", model(3))]);
    let fixture = Fixture::with_hub(&hub);
    for source in ["hf:org/repo:IQ1_S", "hf:org/repo/n.gguf"] {
        let e = fixture.fails_without_trace(source);
        assert!(e.contains("hf:org/repo/m-Q8_0.gguf") && !e.contains("mmproj"), "{e}");
    }
    let e = fixture.fails_without_trace("hf:org/none");
    assert!(e.contains("404 Not Found") && e.contains("/api/models/org/none"), "{e}");
}

#[test]
fn a_token_goes_to_the_hub_and_nowhere_else() {
    let (hub, cdn) = hub(vec![("m.gguf", model(1))]);
    let fixture = Fixture { token: Some("hf_secret".to_owned()), ..Fixture::with_hub(&hub) };
    fixture.fetches("hf:org/repo", &model(1));
    assert!(hub.requests().iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));
    assert_eq!(cdn.requests().len(), 1);
    assert!(cdn.requests().iter().all(|r| r.header("authorization").is_none()));
    // Nor to a server that a URL names, even if that leads to the hub and away again.
    let other = Server::of_file(model(2));
    fixture.fetches(&other.model(), &model(2));
    assert!(other.requests().iter().all(|r| r.header("authorization").is_none()));
    assert!(!format!("{:?}", fixture.cache()).contains("hf_secret"));
    // Without one, none is sent.
    let fixture = Fixture::with_hub(&hub);
    let before = hub.requests().len();
    fixture.fetches("hf:org/repo", &model(1));
    assert!(hub.requests()[before..].iter().all(|r| r.header("authorization").is_none()));
}

#[test]
fn closed_repositories_say_what_opens_them() {
    for status in [401, 403] {
        let hub = Server::start(move |_, _| Reply::new(status, "{\"error\":\"gated\"}"));
        let e = Fixture::with_hub(&hub).fails_without_trace("hf:org/repo");
        assert!(e.contains("private or gated") && e.contains("set HF_TOKEN"), "{e}");
        let fixture = Fixture { token: Some("t".to_owned()), ..Fixture::with_hub(&hub) };
        let e = fixture.fails_without_trace("hf:org/repo");
        assert!(e.contains("the token in HF_TOKEN has no access"), "{e}");
    }
}

#[test]
fn a_listing_that_makes_no_sense_is_an_error() {
    for text in
        ["", "<html>", "[]", "{\"sha\": 5}", "{\"siblings\": []}", "{\"sha\":\"a\",\"siblings\":[{}]}"]
    {
        let hub = Server::start(move |_, _| Reply::new(200, text));
        let e = Fixture::with_hub(&hub).fails_without_trace("hf:org/repo");
        assert!(e.contains("its list of files is not understood"), "{text}: {e}");
    }
    let hub = Server::start(|_, _| Reply::new(200, "{\"sha\":\"a\",\"siblings\":[]}"));
    let e = Fixture::with_hub(&hub).fails_without_trace("hf:org/repo");
    assert!(e.contains("it has no GGUF files"), "{e}");
    // A cut one is asked for again.
    let files: Files = vec![("m.gguf", model(1))];
    let content = files.clone();
    let cdn = Server::start(move |request, _| cdn_answer(request, &content));
    let hub = Server::start(move |request, n| {
        let reply = answer(request, &files, &cdn.url);
        if n == 0 { reply.cut(20) } else { reply }
    });
    Fixture::with_hub(&hub).fetches("hf:org/repo", &model(1));
}

#[test]
fn names_from_the_hub_do_not_leave_the_cache() {
    let bytes = model(1);
    for name in ["../../../evil.gguf", "/evil.gguf", "..\\evil.gguf", "a/.gguf"] {
        let sent = bytes.clone();
        let hub = Server::start(move |request, _| match request.path.as_str() {
            "/api/models/org/repo?blobs=true" => {
                Reply::new(200, listing(&vec![(name, sent.clone())]).to_string())
            }
            _ => Reply::file(request, &sent, "\"1\""),
        });
        let fixture = Fixture::with_hub(&hub);
        let path = fixture.fetches("hf:org/repo", &bytes);
        let inside = path.strip_prefix(fixture.dir.path()).expect("in the cache");
        assert_eq!(inside.components().count(), 2, "{name}: {}", inside.display());
        assert!(inside.components().all(|c| matches!(c, std::path::Component::Normal(_))), "{name}");
    }
}

#[test]
fn other_bytes_than_the_hub_promises_are_not_kept() {
    let (right, wrong) = (model(1), model(2));
    assert_eq!(right.len(), wrong.len());
    let files: Files = vec![("m.gguf", right)];
    let cdn = Server::start(move |request, _| Reply::file(request, &wrong, "\"1\""));
    let hub = Server::start(move |request, _| answer(request, &files, &cdn.url));
    let e = Fixture::with_hub(&hub).fails_without_trace("hf:org/repo");
    assert!(e.contains("sha256") && e.contains(&sha256(&model(1))) && e.contains(&sha256(&model(2))), "{e}");
    assert!(!e.contains("s3cret"), "{e}");
}

#[test]
fn a_hub_that_contradicts_itself_is_not_believed() {
    let bytes = model(1);
    for kind in 0..2 {
        let files: Files = vec![("m.gguf", bytes.clone())];
        let sent = bytes.clone();
        let hub = Server::start(move |request, _| match (request.path.starts_with("/api/"), kind) {
            (true, _) => answer(request, &files, ""),
            (_, 0) => {
                Reply::file(request, &sent, "\"1\"").with("X-Linked-Etag", &format!("\"{}\"", "0".repeat(64)))
            }
            _ => Reply::file(request, &sent[1..], "\"1\""),
        });
        let e = Fixture::with_hub(&hub).fails_without_trace("hf:org/repo");
        assert!(e.contains(["its sha256 there is 000", "bytes there, expected"][kind]), "{e}");
    }
}

#[test]
fn the_hash_of_a_url_on_the_hub_is_checked_too() {
    let (right, wrong) = (model(1), model(2));
    let cdn = Server::start(move |request, _| Reply::file(request, &wrong, "\"1\""));
    let hub = Server::start(move |_, _| {
        Reply::redirect(&cdn.url).with("X-Linked-Etag", &format!("\"{}\"", sha256(&right)))
    });
    let source = format!("{}/org/repo/resolve/main/m.gguf", hub.url);
    let e = Fixture::with_hub(&hub).fails_without_trace(&source);
    assert!(e.contains("sha256"), "{e}");
}

#[test]
fn a_broken_download_is_continued_without_an_etag() {
    // The hash says that it is the same file.
    let bytes = model(1);
    let files: Files = vec![("m.gguf", bytes.clone())];
    let sent = bytes.clone();
    let cdn = Server::start(move |request, n| match request.start() {
        Some(start) => Reply::part(&sent, start),
        None if n == 0 => Reply::new(200, sent.clone()).cut(60_000),
        None => Reply::new(500, ""),
    });
    let url = cdn.url.clone();
    let hub = Server::start(move |request, _| answer(request, &files, &url));
    Fixture::with_hub(&hub).fetches("hf:org/repo", &bytes);
    assert_eq!(cdn.requests()[1].start(), Some(60_000));
}

#[test]
fn finished_parts_of_a_split_model_are_not_fetched_again() {
    let [a, b] = split_model();
    let files: Files = vec![("q/m-00001-of-00002.gguf", a.clone()), ("q/m-00002-of-00002.gguf", b)];
    let content = files.clone();
    let cdn = Server::start(move |request, n| match n {
        1 => Reply::new(404, ""),
        _ => cdn_answer(request, &content),
    });
    let url = cdn.url.clone();
    let hub = Server::start(move |request, _| answer(request, &files, &url));
    let fixture = Fixture::with_hub(&hub);
    let e = fixture.fails("hf:org/repo");
    assert!(e.contains("m-00002-of-00002.gguf") && !e.contains("s3cret"), "{e}");
    let path = fixture.fetches("hf:org/repo", &a);
    assert_eq!(minfer::gguf::Gguf::open(&path).expect("a model").paths().len(), 2);
    let paths: Vec<String> = cdn.requests().iter().map(|r| r.path.clone()).collect();
    assert_eq!(paths.iter().filter(|p| p.contains("00001")).count(), 1, "{paths:?}");
}
