//! Downloads that do not come in one piece.

use super::server::{Length, Reply};
use super::*;

#[test]
fn a_file_is_fetched_once() {
    let bytes = model(1);
    let server = Server::of_file(bytes.clone());
    let fixture = Fixture::new();
    let path = fixture.fetches(&server.model(), &bytes);
    assert_eq!(fixture.fetches(&server.model(), &bytes), path);
    assert_eq!(path.file_name().and_then(|n| n.to_str()), Some("m.gguf"));
    assert_eq!(server.requests().len(), 1);
    // One that was cut later is fetched anew.
    std::fs::write(&path, b"GGUF").expect("written");
    fixture.offers_nothing();
    fixture.fetches(&server.model(), &bytes);
}

#[test]
fn progress_ends_at_the_whole() {
    let bytes = model(1);
    let server = Server::of_file(bytes.clone());
    let fixture = Fixture::new();
    let mut seen = Vec::new();
    let source: Source = server.model().parse().expect("a source");
    source.fetch(&fixture.cache(), &mut |p| seen.push(p)).expect("fetched");
    let n = bytes.len() as u64;
    assert!(seen.contains(&minfer::source::Progress::Downloading { done: n, total: n }), "{seen:?}");
    assert_eq!(seen.last(), Some(&minfer::source::Progress::Checking { done: n, total: n }));
}

#[test]
fn a_cut_and_a_stalled_download_are_continued() {
    for stalls in [false, true] {
        let bytes = model(2);
        let half = bytes.len() / 2;
        let sent = bytes.clone();
        let server = Server::start(move |request, n| {
            let reply = Reply::file(request, &sent, "\"1\"");
            match n {
                0 if stalls => reply.stalled(half),
                0 => reply.cut(half),
                _ => reply,
            }
        });
        Fixture::new().fetches(&server.model(), &bytes);
        let requests = server.requests();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[0].header("range"), None);
        assert_eq!(requests[1].start(), Some(half), "stalls: {stalls}");
        assert_eq!(requests[1].header("if-range"), Some("\"1\""));
    }
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let server = Server::start(|_, _| Reply::new(200, "x").length(Length::Claimed(9)).stalled(0));
    let e = Fixture::new().fails(&server.model());
    assert!(e.contains("silent"), "{e}");
    assert_eq!(server.requests().len(), ATTEMPTS as usize);
}

#[test]
fn what_a_failed_fetch_has_got_is_used_by_the_next() {
    let bytes = model(3);
    let third = bytes.len() / 3;
    let sent = bytes.clone();
    let server = Server::start(move |request, n| {
        let reply = Reply::file(request, &sent, "\"1\"");
        match n {
            0 => reply.cut(third),
            _ if n < ATTEMPTS as usize => reply.cut(0),
            _ => reply,
        }
    });
    let fixture = Fixture::new();
    let e = fixture.fails(&server.model());
    assert!(
        e.contains(&format!("{third} bytes are kept"))
            && e.contains(&format!("gave up after {ATTEMPTS} attempts")),
        "{e}"
    );
    let list = fixture.cache().list().expect("a list");
    assert_eq!((list.len(), list[0].name.as_str()), (1, server.model().as_str()));
    assert!(list[0].bytes >= third as u64);
    fixture.fetches(&server.model(), &bytes);
    assert_eq!(server.requests().last().and_then(|r| r.start()), Some(third));
}

#[test]
fn a_file_that_has_changed_is_fetched_from_its_beginning() {
    // A good server answers 200 to If-Range with another ETag; a bad one sends the rest of the new file.
    for good in [true, false] {
        let (old, new) = (model(4), model(5));
        let half = old.len() / 2;
        let sent = new.clone();
        let server = Server::start(move |request, n| match n {
            0 => Reply::file(request, &old, "\"old\"").cut(half),
            1 if !good => Reply::part(&sent, half).with("ETag", "\"new\""),
            _ => Reply::file(request, &sent, "\"new\""),
        });
        Fixture::new().fetches(&server.model(), &new);
    }
}

#[test]
fn halves_of_two_files_are_noticed_by_the_hash() {
    let (old, new) = (model(6), model(7));
    let half = old.len() / 2;
    let sent = new.clone();
    // Says nothing that would give it away.
    let server = Server::start(move |request, n| match n {
        0 => Reply::new(200, old.clone()).cut(half),
        1 => Reply::part(&sent, request.start().unwrap_or(0)),
        _ => Reply::new(200, sent.clone()),
    });
    let fixture = Fixture::new();
    fixture.fetches(&format!("{}#sha256={}", server.model(), sha256(&new)), &new);
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn a_file_that_changes_all_the_time_is_given_up() {
    let server = Server::start(|request, n| {
        let bytes = model(n as u8);
        let start = request.start().unwrap_or(0);
        let reply = if start > 0 { Reply::part(&bytes, start) } else { Reply::new(200, bytes).cut(50_000) };
        reply.with("ETag", &format!("\"{n}\""))
    });
    let e = Fixture::new().fails(&server.model());
    assert!(e.contains("changes while it is fetched"), "{e}");
}

#[test]
fn a_server_without_ranges_is_asked_for_all_of_it() {
    let bytes = model(8);
    for etag in [Some("\"1\""), Some("W/\"1\""), None] {
        let sent = bytes.clone();
        let server = Server::start(move |_, n| {
            let reply = Reply::new(200, sent.clone());
            let reply = if let Some(etag) = etag { reply.with("ETag", etag) } else { reply };
            if n == 0 { reply.cut(90_000) } else { reply }
        });
        Fixture::new().fetches(&server.model(), &bytes);
        // Without a strong ETag nobody could say whether the rest belongs to what is there.
        let expected = (etag == Some("\"1\"")).then_some(90_000);
        assert_eq!(server.requests()[1].start(), expected, "{etag:?}");
    }
}

#[test]
fn a_server_that_sends_another_range_is_not_believed() {
    let bytes = model(9);
    let half = bytes.len() / 2;
    for kind in 0..3 {
        let sent = bytes.clone();
        let server = Server::start(move |request, n| match (n, kind) {
            (0, _) => Reply::file(request, &sent, "\"1\"").cut(half),
            (1, 0) => Reply::part(&sent, half - 7).with("ETag", "\"1\""),
            (1, 1) => Reply::new(206, &sent[half..]).with("ETag", "\"1\""),
            (1, _) => Reply::new(206, &sent[half..])
                .with("ETag", "\"1\"")
                .with("Content-Range", &format!("bytes {half}-9999999/10000000")),
            _ => Reply::file(request, &sent, "\"1\""),
        });
        Fixture::new().fetches(&server.model(), &bytes);
        assert_eq!(server.requests()[2].start(), None, "{kind}");
    }
}

#[test]
fn a_range_behind_the_end_means_complete_or_changed() {
    // All bytes came, but the server had announced more.
    let bytes = model(10);
    let sent = bytes.clone();
    let server = Server::start(move |request, n| match n {
        0 => Reply::file(request, &sent, "\"1\"").length(Length::Claimed(sent.len() + 10)),
        _ => Reply::file(request, &sent, "\"1\""),
    });
    Fixture::new().fetches(&server.model(), &bytes);
    assert_eq!(server.requests().len(), 2);
    // The file has become shorter; the server does not know If-Range.
    let sent = bytes.clone();
    let server = Server::start(move |request, n| match (n, request.start()) {
        (0, _) => Reply::new(200, vec![7; sent.len() * 2]).with("ETag", "\"1\"").cut(sent.len() + 100),
        (_, Some(_)) => Reply::new(416, "").with("Content-Range", &format!("bytes */{}", sent.len())),
        _ => Reply::new(200, sent.clone()).with("ETag", "\"2\""),
    });
    Fixture::new().fetches(&server.model(), &bytes);
}

#[test]
fn a_body_without_a_length_is_taken_if_it_is_whole() {
    let bytes = model(11);
    for length in [Length::Chunked, Length::Unsaid] {
        let sent = bytes.clone();
        let server = Server::start(move |_, _| Reply::new(200, sent.clone()).length(length));
        Fixture::new().fetches(&server.model(), &bytes);
    }
    // A cut in chunks is seen by HTTP, one without any length by the format.
    let sent = bytes.clone();
    let server = Server::start(move |_, n| {
        let reply = Reply::new(200, sent.clone()).length(Length::Chunked);
        if n == 0 { reply.cut(90_000) } else { reply }
    });
    Fixture::new().fetches(&server.model(), &bytes);
    let server = Server::start(move |_, _| Reply::new(200, bytes.clone()).length(Length::Unsaid).cut(90_000));
    let e = Fixture::new().fails_without_trace(&server.model());
    assert!(e.contains("not a usable GGUF file") && e.contains("deleted"), "{e}");
}

#[test]
fn two_fetches_of_one_file_download_once() {
    let bytes = model(12);
    let server = Server::of_file(bytes.clone());
    let fixture = Fixture::new();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| fixture.fetch(&server.model()).expect("fetched"));
        }
    });
    fixture.fetches(&server.model(), &bytes);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_split_model_is_fetched_with_all_of_its_parts() {
    let parts = split_model();
    let first = parts[0].clone();
    let server = Server::start(move |request, _| match request.path.as_str() {
        "/m-00001-of-00002.gguf" => Reply::file(request, &parts[0], "\"a\""),
        "/m-00002-of-00002.gguf" => Reply::file(request, &parts[1], "\"b\""),
        _ => Reply::new(404, ""),
    });
    // The second part leads to the model as well; the first one is what is opened.
    for part in [1, 2] {
        let fixture = Fixture::new();
        let path = fixture.fetches(&format!("{}/m-0000{part}-of-00002.gguf", server.url), &first);
        assert_eq!(minfer::gguf::Gguf::open(&path).expect("a model").paths().len(), 2);
    }
}
