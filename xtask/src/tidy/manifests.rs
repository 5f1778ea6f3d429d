//! Rules about packages: which of ours may depend on which, shared lints, and where dependencies come from.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Our packages and the ones of ours that each may depend on. Tests obey it too.
const ALLOWED: &[(&str, &[&str])] = &[
    ("minfer-gguf", &[]),
    ("minfer-ops", &["minfer-gguf"]),
    ("minfer-tokenizer", &["minfer-gguf"]),
    ("minfer-cpu", &["minfer-gguf", "minfer-ops"]),
    ("minfer-cuda", &["minfer-gguf", "minfer-ops"]),
    ("minfer-engine", &[]),
    ("minfer-server", &["minfer-engine", "minfer-tokenizer"]),
    ("minfer-lab", &["minfer-cuda"]),
    ("minfer-model", &["minfer-gguf", "minfer-ops", "minfer-cpu", "minfer-cuda", "minfer-engine"]),
    (
        "minfer",
        &[
            "minfer-gguf",
            "minfer-ops",
            "minfer-tokenizer",
            "minfer-cpu",
            "minfer-cuda",
            "minfer-engine",
            "minfer-model",
            "minfer-server",
        ],
    ),
    ("xtask", &[]),
];

/// The only source of third-party packages that the lock file may name.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks every manifest of the workspace.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let out = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo")?;
    if !out.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&out.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut complaints = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names = dependencies.iter().filter_map(|d| d["name"].as_str());
        complaints.extend(directions(name, names));
        let path = package["manifest_path"].as_str().unwrap_or_default();
        complaints.extend(lints(name, &std::fs::read_to_string(path).with_context(|| path.to_owned())?));
    }
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?;
    complaints.extend(sources(&lock));
    Ok(complaints)
}

/// Complains about a dependency of `package` on one of ours that [`ALLOWED`] does not list.
fn directions<'a>(package: &str, dependencies: impl Iterator<Item = &'a str>) -> Vec<String> {
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package) else {
        return vec![format!(
            "{package}: not listed in xtask/src/tidy/manifests.rs: say what it may depend on"
        )];
    };
    dependencies
        .filter(|d| ALLOWED.iter().any(|(name, _)| name == d) && !allowed.contains(d))
        .map(|d| format!("{package}: must not depend on {d}"))
        .collect()
}

/// Complains about a manifest without the workspace's lints.
fn lints(package: &str, manifest: &str) -> Option<String> {
    let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
    let shared = lines.windows(2).any(|w| w[0] == "[lints]" && w[1] == "workspace = true");
    (!shared).then(|| format!("{package}: Cargo.toml lacks `[lints]` with `workspace = true`"))
}

/// Complains about a lock file that names another registry, which would not exist elsewhere.
fn sources(lock: &str) -> Vec<String> {
    lock.lines()
        .filter_map(|l| l.trim().strip_prefix("source = "))
        .filter(|s| s.trim_matches('"') != REGISTRY)
        .map(|s| format!("Cargo.lock: source {s}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_enforced() {
        assert!(directions("minfer-engine", ["thiserror"].into_iter()).is_empty());
        assert_eq!(directions("minfer-engine", ["minfer-gguf"].into_iter()).len(), 1);
        assert_eq!(directions("minfer-new", [].into_iter()).len(), 1);
    }

    #[test]
    fn shared_lints_are_required() {
        assert_eq!(lints("a", "[lints]\nworkspace = true\n"), None);
        assert!(lints("a", "[package]\nversion.workspace = true\n").is_some());
    }

    #[test]
    fn other_registries_are_refused() {
        assert!(sources(&format!("source = \"{REGISTRY}\"")).is_empty());
        assert_eq!(sources("source = \"sparse+https://mirror.example/\"").len(), 1);
    }
}
