//! Answers that are no model.

use super::server::{Length, Reply};
use super::*;

#[test]
fn every_status_has_an_answer_that_helps() {
    for (status, words, tries) in [
        (401, "wants a login", 1),
        (403, "wants a login", 1),
        (404, "check the spelling", 1),
        (410, "check the spelling", 1),
        (418, "answered 418", 1),
        (429, "too many requests", ATTEMPTS),
        (500, "the fault is the server's", ATTEMPTS),
        (503, "503 Service Unavailable", ATTEMPTS),
        (206, "a part of the file although all of it", 1),
        (416, "416 Range Not Satisfiable", 1),
        (204, "answered 204", 1),
    ] {
        let server = Server::start(move |_, _| Reply::new(status, if status == 204 { "" } else { "sorry" }));
        let e = Fixture::new().fails_without_trace(&server.model());
        assert!(e.contains(words) && e.contains(&server.url), "{status}: {e}");
        assert_eq!(server.requests().len(), tries as usize, "{status}");
    }
}

#[test]
fn a_server_that_recovers_is_enough() {
    let bytes = model(1);
    for status in [408, 429, 500, 502, 503, 504] {
        let sent = bytes.clone();
        let server = Server::start(move |request, n| match n {
            // An hour is more than our patience.
            0 => Reply::new(status, "").with("Retry-After", "3600"),
            _ => Reply::file(request, &sent, "\"1\""),
        });
        Fixture::new().fetches(&server.model(), &bytes);
    }
}

#[test]
fn an_error_in_the_middle_keeps_what_is_there() {
    let bytes = model(2);
    let sent = bytes.clone();
    let server = Server::start(move |request, n| match n {
        0 => Reply::file(request, &sent, "\"1\"").cut(70_000),
        1 => Reply::new(404, ""),
        _ => Reply::file(request, &sent, "\"1\""),
    });
    let fixture = Fixture::new();
    let e = fixture.fails(&server.model());
    assert!(e.contains("404 Not Found"), "{e}");
    fixture.fetches(&server.model(), &bytes);
    assert_eq!(server.requests()[2].start(), Some(70_000));
}

#[test]
fn redirects_are_followed() {
    let bytes = model(3);
    let other = Server::of_file(bytes.clone());
    let target = other.model();
    let sent = bytes.clone();
    let server = Server::start(move |request, _| match request.path.as_str() {
        "/models/relative.gguf" => Reply::redirect("../files/./b.gguf?x=1"),
        "/models/rooted.gguf" => Reply::redirect("/files/b.gguf?x=1"),
        "/models/absolute.gguf" => Reply::redirect(&target),
        "/models/twice.gguf" => Reply::redirect("rooted.gguf"),
        "/files/b.gguf?x=1" => Reply::file(request, &sent, "\"1\""),
        _ => Reply::new(404, ""),
    });
    for name in ["relative", "rooted", "absolute", "twice"] {
        let path = Fixture::new().fetches(&format!("{}/models/{name}.gguf", server.url), &bytes);
        // The name is the one that was asked for.
        assert_eq!(path.file_stem().and_then(|n| n.to_str()), Some(name));
    }
}

#[test]
fn redirects_that_lead_nowhere_are_refused() {
    for (to, words) in [
        ("m.gguf", "more than 8 redirects"),
        ("http://example.org/m.gguf", "its redirect is refused: http is for this machine only"),
        ("ftp://example.org/m.gguf", "its scheme is ftp"),
        ("https://user:word@example.org/m.gguf", "user name"),
        ("https://", "no host name"),
    ] {
        let server = Server::start(move |_, _| Reply::redirect(to));
        let e = Fixture::new().fails_without_trace(&server.model());
        assert!(e.contains(words), "{to}: {e}");
    }
    let server = Server::start(|_, _| Reply::new(302, ""));
    let e = Fixture::new().fails_without_trace(&server.model());
    assert!(e.contains("302 without a new address"), "{e}");
}

#[test]
fn lies_about_the_length_are_noticed() {
    let bytes = model(4);
    // More announced than sent.
    let sent = bytes.clone();
    let server = Server::start(move |_, _| {
        Reply::new(200, sent.clone()).with("ETag", "\"1\"").length(Length::Claimed(sent.len() + 1))
    });
    let e = Fixture::new().fails(&server.model());
    assert!(e.contains("gave up after") && e.contains("connection"), "{e}");
    // Less announced than there is.
    let sent = bytes.clone();
    let server =
        Server::start(move |_, _| Reply::new(200, sent.clone()).length(Length::Claimed(sent.len() - 1)));
    let e = Fixture::new().fails_without_trace(&server.model());
    assert!(e.contains("not a usable GGUF file"), "{e}");
    // A length that is no number.
    let server = Server::start(move |_, _| {
        Reply::new(200, bytes.clone()).length(Length::Unsaid).with("Content-Length", "many")
    });
    Fixture::new().fails_without_trace(&server.model());
}

#[test]
fn what_is_no_model_is_not_kept() {
    for page in
        [&b"<html>Please log in</html>"[..], b"", b"GGUF", b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"]
    {
        let server = Server::start(move |request, _| Reply::file(request, page, "\"1\""));
        let e = Fixture::new().fails_without_trace(&server.model());
        assert!(e.contains("not a usable GGUF file") && e.contains(&server.model()), "{e}");
    }
}

#[test]
fn other_bytes_than_the_hash_are_not_kept() {
    let bytes = model(5);
    let server = Server::of_file(bytes.clone());
    let fixture = Fixture::new();
    let wrong = format!("{}#sha256={}", server.model(), sha256(&model(6)));
    let e = fixture.fails_without_trace(&wrong);
    assert!(e.contains("sha256") && e.contains(&sha256(&bytes)) && e.contains("deleted"), "{e}");
    // Nor is a file taken for right that came without a hash before.
    fixture.fetches(&server.model(), &bytes);
    let e = fixture.fetch(&wrong).expect_err("a wrong hash").to_string();
    assert!(e.contains("sha256"), "{e}");
    let right = format!("{}#sha256={}", server.model(), sha256(&bytes).to_uppercase());
    fixture.fetches(&right, &bytes);
}

#[test]
fn no_server_and_no_network_are_said() {
    let e = Fixture::new().fails_without_trace("http://127.0.0.1:1/m.gguf");
    assert!(e.contains("cannot reach http://127.0.0.1:1") && e.contains("needs no network"), "{e}");
    let e = Fixture::new().fails_without_trace("hf:a/b");
    assert!(e.contains("cannot reach http://127.0.0.1:1"), "{e}");
}

#[test]
fn what_does_not_speak_http_or_tls_is_an_error() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(b"220 mail.example.org ESMTP\r\n\r\n");
        }
    });
    for scheme in ["http", "https"] {
        let e = Fixture::new().fails_without_trace(&format!("{scheme}://{address}/m.gguf"));
        assert!(e.contains(&format!("cannot reach {scheme}://127.0.0.1")), "{e}");
    }
}
