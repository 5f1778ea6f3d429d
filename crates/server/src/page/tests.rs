//! The files of the page, and how they are sent.

use axum::body::{HttpBody, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};

use super::{FILES, file};

fn text(name: &str) -> &'static str {
    let file = FILES.iter().find(|file| file.name == name).expect(name);
    std::str::from_utf8(file.bytes).expect("UTF-8")
}

fn scripts() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.name).filter(|name| name.ends_with(".js"))
}

/// Lines without the comments that are lines of their own.
fn lines(name: &str) -> impl Iterator<Item = &'static str> {
    text(name).lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn every_file_of_the_folder_is_served() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
    let mut there: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .filter(|name| !matches!(name.as_str(), "tests" | "package.json"))
        .collect();
    let mut served: Vec<&str> = FILES.iter().map(|file| file.name).collect();
    there.sort_unstable();
    served.sort_unstable();
    assert_eq!(served, there);
}

#[test]
fn files_are_sent_with_their_type_and_what_the_browser_may_do() {
    for (name, kind) in [
        ("index.html", "text/html"),
        ("main.js", "text/javascript"),
        ("base.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ] {
        let response = file(&HeaderMap::new(), name);
        let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(header("content-type").starts_with(kind), "{name}: {}", header("content-type"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        let policy = header("content-security-policy");
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.split("; ").any(|found| found == rule), "{rule} in {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert_eq!(response.into_body().size_hint().exact(), Some(text(name).len() as u64));
    }
    assert_eq!(file(&HeaderMap::new(), "../src/lib.rs").status(), StatusCode::NOT_FOUND);
    assert_eq!(file(&HeaderMap::new(), "package.json").status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_a_browser_has_is_not_sent_again() {
    let tag = file(&HeaderMap::new(), "main.js").headers()[header::ETAG].clone();
    let with =
        |value: String| HeaderMap::from_iter([(header::IF_NONE_MATCH, value.parse().expect("a value"))]);
    let tag = tag.to_str().expect("text");
    for known in [tag.to_owned(), format!("W/{tag}"), format!("\"x\", {tag}")] {
        let response = file(&with(known), "main.js");
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(response.headers()[header::ETAG], tag);
        assert!(to_bytes(response.into_body(), 1).await.expect("a body").is_empty());
    }
    // Another file's.
    assert_eq!(file(&with(tag.to_owned()), "dom.js").status(), StatusCode::OK);
}

#[test]
fn the_page_asks_nobody_else() {
    for file in FILES.iter() {
        // The name of SVG's language, which no browser fetches.
        let text = text(file.name).replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for sign in ["://", "url(", "@import", "src=\"//", "href=\"//"] {
            assert!(!text.contains(sign), "{} contains {sign}", file.name);
        }
    }
    // What it does ask for is there.
    let page = text("index.html");
    let wanted = page.split(['"']).filter_map(|part| part.strip_prefix("page/"));
    let imported = scripts().flat_map(|name| lines(name).filter_map(|line| line.split("from \"./").nth(1)));
    for name in wanted.chain(imported.map(|rest| rest.trim_end_matches("\";"))) {
        assert!(FILES.iter().any(|file| file.name == name), "{name}");
    }
}

#[test]
fn no_text_can_become_a_script() {
    let ways = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "srcdoc",
        "DOMParser",
        "createContextualFragment",
        "setHTML",
        "eval(",
        "new Function",
        "javascript:",
        "createElement(\"script",
    ];
    for name in scripts() {
        for line in lines(name) {
            for way in ways {
                assert!(!line.contains(way), "{name}: {line}");
            }
        }
    }
    let page = text("index.html");
    assert!(!page.contains("style=") && !page.contains("<style") && !page.contains("javascript:"));
    let handler = |word: &str| word.starts_with("on") && word.contains("=\"");
    assert!(!page.split_whitespace().any(handler));
    // Scripts are files of their own.
    assert!(page.match_indices("<script").all(|(at, _)| page[at..].starts_with("<script src=\"page/")));
}
