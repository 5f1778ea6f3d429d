//! The environment variables that minfer reads, all of them. `cargo xtask tidy` refuses any other place.
//!
//! Everything else is a flag: what a command does must be visible in the command. The usual proxy variables
//! (`HTTPS_PROXY` and its kin) are the HTTP client's to read.

use std::path::PathBuf;

/// `$MINFER_CACHE`: where fetched models are kept.
pub fn minfer_cache() -> Option<PathBuf> {
    path("MINFER_CACHE")
}

/// `$XDG_CACHE_HOME`, the user's cache directory by the XDG base directory specification.
pub fn xdg_cache_home() -> Option<PathBuf> {
    path("XDG_CACHE_HOME").filter(|p| p.is_absolute())
}

/// `$HOME`.
pub fn home() -> Option<PathBuf> {
    path("HOME")
}

/// `$MINFER_LOG`: a `tracing` filter, the default of `--log`.
pub fn minfer_log() -> Option<String> {
    std::env::var("MINFER_LOG").ok().filter(|v| !v.is_empty())
}

/// `$HF_TOKEN`: a token of the Hugging Face hub, for private and gated repositories.
pub fn hf_token() -> Option<String> {
    std::env::var("HF_TOKEN").ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
}

/// The program that runs, for what it computes is the same bits within a build only.
pub(crate) fn executable() -> std::io::Result<PathBuf> {
    // There it is found even if it has been replaced since.
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() { Ok(own) } else { std::env::current_exe() }
}

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}
