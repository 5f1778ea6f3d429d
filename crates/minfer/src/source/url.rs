//! The few rules of RFC 3986 that a download needs: what a URL is, and where a redirect leads.
#![cfg_attr(not(feature = "fetch"), allow(dead_code, reason = "only fetching follows redirects"))]

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// An `https` URL, or an `http` URL of this machine. It has no user information and no fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    https: bool,
    /// In lower case; an IPv6 address with its brackets.
    host: String,
    port: u16,
    /// Path and query, percent-encoded; starts with a slash.
    target: String,
}

impl Url {
    /// Reads an absolute URL; a fragment is dropped.
    ///
    /// # Errors
    ///
    /// What is wrong with it, as the end of a sentence.
    pub(super) fn parse(given: &str) -> Result<Url, String> {
        let (scheme, rest) = given.split_once("://").ok_or("it has no scheme")?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            other => return Err(format!("its scheme is {other}, not https")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return Err("it holds a user name: minfer sends no passwords".to_owned());
        }
        let (host, port) = split_port(authority)?;
        let url =
            Url { https, host, port: port.unwrap_or(if https { 443 } else { 80 }), target: clean(target) };
        if !https && !url.is_loopback() {
            return Err("http is for this machine only (127.0.0.1, localhost): use https".to_owned());
        }
        Ok(url)
    }

    /// Where the `Location` header of a reply from here leads (RFC 3986, section 5.2).
    ///
    /// # Errors
    ///
    /// As [`Url::parse`], and for a way from https to http.
    pub(super) fn redirected(&self, location: &str) -> Result<Url, String> {
        let location = location.trim();
        let base = self.target.split('?').next().unwrap_or("/");
        let to = if has_scheme(location) {
            if self.https && location.get(..5).is_some_and(|s| s.eq_ignore_ascii_case("http:")) {
                return Err("it leads from https to http".to_owned());
            }
            Url::parse(location)?
        } else if location.starts_with("//") {
            Url::parse(&format!("{}:{location}", self.scheme()))?
        } else {
            let target = match location.chars().next() {
                None | Some('#') => self.target.clone(),
                Some('/') => location.to_owned(),
                Some('?') => format!("{base}{location}"),
                Some(_) => format!("{}/{location}", base.rsplit_once('/').map_or("", |(folder, _)| folder)),
            };
            Url { target: clean(&target), ..self.clone() }
        };
        Ok(Url { target: without_dots(&to.target), ..to })
    }

    /// This place with another path, which is percent-encoded here.
    pub(super) fn with_path(&self, path: &str, query: &str) -> Url {
        let mut target = String::from("/");
        for byte in path.trim_start_matches('/').bytes() {
            match byte {
                b'/' | b'-' | b'.' | b'_' | b'~' => target.push(byte.into()),
                _ if byte.is_ascii_alphanumeric() => target.push(byte.into()),
                _ => target += &format!("%{byte:02X}"),
            }
        }
        Url { target: target + query, ..self.clone() }
    }

    /// The last part of the path, decoded; may be empty.
    pub(super) fn file_name(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default();
        decoded(path.rsplit('/').next().unwrap_or_default())
    }

    /// This URL with another last part of the path.
    pub(super) fn with_file_name(&self, name: &str) -> Url {
        let (path, query) = match self.target.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (self.target.as_str(), String::new()),
        };
        let folder = decoded(path.rsplit_once('/').map_or("", |(folder, _)| folder));
        self.with_path(&format!("{folder}/{name}"), &query)
    }

    /// Whether scheme, host and port are the same.
    pub(super) fn same_origin(&self, other: &Url) -> bool {
        (self.https, &self.host, self.port) == (other.https, &other.host, other.port)
    }

    /// Whether the host is this machine.
    pub(super) fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self.host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
            || self.host.trim_matches(['[', ']']).parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// For people: without the query, which may hold signatures.
    pub(super) fn shown(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default();
        format!("{}{path}", self.origin())
    }

    /// Scheme, host and port.
    pub(super) fn origin(&self) -> String {
        match (self.https, self.port) {
            (true, 443) | (false, 80) => format!("{}://{}", self.scheme(), self.host),
            (_, port) => format!("{}://{}:{port}", self.scheme(), self.host),
        }
    }

    fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.target)
    }
}

fn split_port(authority: &str) -> Result<(String, Option<u16>), String> {
    let bracket = authority.rfind(']').map_or(0, |i| i + 1);
    let (host, port) = match authority.get(bracket..).and_then(|rest| rest.find(':')) {
        Some(colon) => (&authority[..bracket + colon], &authority[bracket + colon + 1..]),
        None => (authority, ""),
    };
    let port = match port {
        "" => None,
        digits => Some(digits.parse().map_err(|_| format!("'{digits}' is no port"))?),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let v6 = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).map(str::parse::<Ipv6Addr>);
    if !(matches!(v6, Some(Ok(_))) || !host.is_empty() && host.chars().all(plain)) {
        return Err(format!("'{host}' is no host name"));
    }
    Ok((host.to_ascii_lowercase(), port))
}

fn has_scheme(s: &str) -> bool {
    s.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// Path and query as they may be sent: without the fragment, odd bytes encoded, starting with a slash.
fn clean(target: &str) -> String {
    let target = target.split('#').next().unwrap_or_default();
    let mut out = String::new();
    if !target.starts_with('/') {
        out.push('/');
    }
    for byte in target.bytes() {
        match byte {
            0..=0x20 | 0x7f.. | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                out += &format!("%{byte:02X}");
            }
            _ => out.push(byte.into()),
        }
    }
    out
}

/// Takes `.` and `..` out of the path (RFC 3986, section 5.2.4).
fn without_dots(target: &str) -> String {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        match part {
            "." | ".." => {
                if part == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            _ => kept.push(part),
        }
    }
    let path = format!("/{}", kept.join("/"));
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

/// Percent-decoded; what is not UTF-8 is replaced.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        let code = text.get(i + 1..i + 3).filter(|_| byte == b'%');
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                out.push(value);
                i += 3;
            }
            None => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(s: &str) -> Url {
        Url::parse(s).unwrap()
    }

    #[test]
    fn urls_are_read_and_shown() {
        assert_eq!(url("HTTPS://Example.org").to_string(), "https://example.org/");
        assert_eq!(
            url("https://example.org:8443/a b?x=1#f").to_string(),
            "https://example.org:8443/a%20b?x=1"
        );
        assert_eq!(url("https://example.org/a?sig=secret").shown(), "https://example.org/a");
        assert_eq!(url("http://[::1]:80/x").to_string(), "http://[::1]/x");
        assert_eq!(url("https://example.org/a/b%20c.gguf?d/e").file_name(), "b c.gguf");
        assert_eq!(
            url("https://h/a%20b/c.gguf?q").with_file_name("d e").to_string(),
            "https://h/a%20b/d%20e?q"
        );
        assert_eq!(url("https://h/").with_path("a?b/c#d", "?e=1").to_string(), "https://h/a%3Fb/c%23d?e=1");
    }

    #[test]
    fn urls_that_must_not_be_fetched_are_refused() {
        for (bad, why) in [
            ("example.org/a", "scheme"),
            ("ftp://example.org/a", "ftp"),
            ("http://example.org/a", "use https"),
            ("http://127.0.0.1.example.org/a", "use https"),
            ("https://me:word@example.org/a", "user name"),
            ("https://example.org:port/a", "'port' is no port"),
            ("https://example.org:99999/", "no port"),
            ("https:///a", "no host"),
            ("https://[::zz]/a", "no host"),
            ("https://ex ample.org/a", "no host"),
        ] {
            let e = Url::parse(bad).unwrap_err();
            assert!(e.contains(why), "{bad}: {e}");
        }
        for good in ["http://127.0.0.1:8/a", "http://localhost/a", "http://[::1]:5/", "http://127.9.9.9/"] {
            assert!(Url::parse(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn redirects_are_resolved_as_the_standard_says() {
        // Examples of RFC 3986, section 5.4, with https for http.
        let base = url("https://a/b/c/d;p?q");
        for (location, expected) in [
            ("g", "https://a/b/c/g"),
            ("./g", "https://a/b/c/g"),
            ("g/", "https://a/b/c/g/"),
            ("/g", "https://a/g"),
            ("//g", "https://g/"),
            ("?y", "https://a/b/c/d;p?y"),
            ("g?y", "https://a/b/c/g?y"),
            ("", "https://a/b/c/d;p?q"),
            (".", "https://a/b/c/"),
            ("..", "https://a/b/"),
            ("../g", "https://a/b/g"),
            ("../../../g", "https://a/g"),
            ("/./g", "https://a/g"),
            ("g;x=1/../y", "https://a/b/c/y"),
            ("g?y/../x", "https://a/b/c/g?y/../x"),
        ] {
            assert_eq!(base.redirected(location).unwrap().to_string(), expected, "{location}");
        }
    }

    #[test]
    fn a_redirect_never_leaves_https() {
        let base = url("https://example.org/a");
        for bad in ["http://example.org/a", "HTTP://127.0.0.1/a", "ftp://example.org/", "data:text/plain,x"] {
            assert!(base.redirected(bad).is_err(), "{bad}");
        }
        assert!(base.redirected("http://example.org/a").unwrap_err().contains("from https to http"));
        let local = url("http://127.0.0.1:80/a");
        assert!(local.redirected("http://example.org/").unwrap_err().contains("use https"));
        assert!(local.redirected("https://example.org/").is_ok());
    }

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let base = url("https://example.org/a");
        assert!(base.same_origin(&url("https://EXAMPLE.org:443/b")));
        for other in ["https://example.org:444/", "https://cdn.example.org/", "https://example.org.evil.net/"]
        {
            assert!(!base.same_origin(&url(other)), "{other}");
        }
        assert!(!url("http://localhost:443/").same_origin(&url("https://localhost/")));
    }
}
