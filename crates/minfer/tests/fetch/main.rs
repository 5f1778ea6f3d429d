//! Fetching models from servers that behave badly in every way that a test can think of. The servers run on
//! 127.0.0.1 within the test; no test leaves this machine.
#![cfg(feature = "fetch")]

mod commands;
mod hub;
mod interrupted;
mod refused;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use minfer::gguf::{GgmlType, Metadata, TensorSpec, Writer};
use minfer::source::{Cache, Network, Patience, Source, SourceError};
use server::Server;

/// Attempts at one point of a file.
const ATTEMPTS: u32 = 5;

/// As little patience as a busy machine allows.
const PATIENCE: Patience = Patience {
    attempts: ATTEMPTS,
    stall: Duration::from_millis(1000),
    pause: Duration::from_millis(1),
    longest_pause: Duration::from_millis(20),
};

/// A small GGUF file; other seeds give other bytes of the same length.
fn model(seed: u8) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("m.gguf");
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let n = 50_000;
    let tensors = [TensorSpec::new("output_norm.weight", GgmlType::F32, [n])];
    let mut writer = Writer::create(&path, &metadata, &tensors).expect("a writer");
    let bytes: Vec<u8> = (0..n * 4).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
    writer.write(&bytes).expect("written");
    writer.finish().expect("written");
    std::fs::read(path).expect("the file is there")
}

/// The two parts of a split model.
fn split_model() -> [Vec<u8>; 2] {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let tensors = ["a", "b"].map(|name| TensorSpec::new(name, GgmlType::F32, [20_000u64]));
    let mut writer =
        Writer::create_split(&dir.path().join("m"), &metadata, &tensors, 80_000).expect("a writer");
    for byte in [1, 2] {
        writer.write(&[byte; 80_000]).expect("written");
    }
    writer.finish().expect("written");
    [1, 2].map(|i| std::fs::read(dir.path().join(format!("m-0000{i}-of-00002.gguf"))).expect("a part"))
}

/// An empty cache.
struct Fixture {
    dir: tempfile::TempDir,
    hub: String,
    token: Option<String>,
}

impl Fixture {
    fn new() -> Fixture {
        // Nothing listens on port 1.
        Fixture {
            dir: tempfile::tempdir().expect("a temporary directory"),
            hub: "http://127.0.0.1:1".to_owned(),
            token: None,
        }
    }

    fn with_hub(server: &Server) -> Fixture {
        Fixture { hub: server.url.clone(), ..Fixture::new() }
    }

    fn cache(&self) -> Cache {
        let network = Network::with_token(self.token.clone()).with_hub(&self.hub, PATIENCE);
        Cache::at(self.dir.path()).with_network(network)
    }

    fn fetch(&self, source: &str) -> Result<PathBuf, SourceError> {
        source.parse::<Source>()?.fetch(&self.cache(), &mut |_| {})
    }

    /// Fetches, and checks that the cache has exactly `expected`.
    fn fetches(&self, source: &str, expected: &[u8]) -> PathBuf {
        let path = self.fetch(source).unwrap_or_else(|e| panic!("{source}: {e}"));
        assert!(std::fs::read(&path).expect("the file is there") == expected, "{source}: other bytes");
        assert!(
            self.cache().list().expect("a list").iter().any(|e| e.complete && e.path == path),
            "{source}"
        );
        assert!(unfinished(self.dir.path()).is_empty(), "{:?}", unfinished(self.dir.path()));
        path
    }

    /// Fails to fetch, and checks that the cache offers nothing. Gives the error's text.
    fn fails(&self, source: &str) -> String {
        let e = self.fetch(source).expect_err(source).to_string();
        self.offers_nothing();
        e
    }

    fn offers_nothing(&self) {
        let list = self.cache().list().expect("a list");
        assert!(list.iter().all(|e| !e.complete), "{list:?}");
    }

    /// Fails to fetch, and checks that nothing at all is left.
    fn fails_without_trace(&self, source: &str) -> String {
        let e = self.fails(source);
        assert_eq!(unfinished(self.dir.path()), Vec::<PathBuf>::new(), "{e}");
        e
    }
}

/// Everything in a cache that is not a finished model, except locks.
fn unfinished(cache: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten().map(|e| e.path());
    entries
        .filter(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with('.') && !name.starts_with(".lock-")
        })
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
