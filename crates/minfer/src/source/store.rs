//! What is in the cache, and what came from servers in particular.
//!
//! A model from a server is a folder `NAME-HASH`: its files under their own names, and `source.json`, which says where
//! they came from. It gets that name when all of it has been checked; until then it is `.partial-NAME-HASH`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cache::STAGING;
use super::error::io;
use super::{Cache, NAMED, SourceError};

/// The file that says what a folder is.
const RECORD: &str = "source.json";

/// How the names of unfinished folders begin.
pub(super) const PARTIAL: &str = ".partial-";

/// Characters of a source that a folder's name repeats.
const SHOWN: usize = 80;

/// Something in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The source that it came from; a file's name if that is not known.
    pub name: String,
    /// The file to open; a folder if it is unfinished.
    pub path: PathBuf,
    /// Bytes on the disk.
    pub bytes: u64,
    /// Whether all of it is there. What is unfinished is continued by the next fetch.
    pub complete: bool,
    /// Other names that led to it.
    also: Vec<String>,
    /// What a fetch of it locks.
    key: String,
    /// What it takes up in the cache's directory.
    place: PathBuf,
}

/// A file of a model, as it arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrived {
    /// Its name in the folder.
    pub(super) name: String,
    /// Bytes.
    pub(super) size: u64,
    /// In lower-case hexadecimal.
    pub(super) sha256: String,
}

/// What a folder is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// The one name of the model.
    pub(super) source: String,
    /// Other names that led here.
    #[serde(default)]
    pub(super) also: Vec<String>,
    /// The repository's commit.
    #[serde(default)]
    pub(super) commit: Option<String>,
    /// In the order of parts. Empty as long as the folder is unfinished.
    #[serde(default)]
    pub(super) files: Vec<Arrived>,
}

impl Record {
    fn read(folder: &Path) -> Option<Record> {
        serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()
    }

    /// Puts the record into `folder`, replacing the one that is there as a whole.
    #[cfg_attr(not(feature = "fetch"), allow(dead_code, reason = "only fetching writes records"))]
    pub(super) fn write(&self, folder: &Path) -> Result<(), SourceError> {
        let (path, new) = (folder.join(RECORD), folder.join(format!("{RECORD}.new")));
        let text = serde_json::to_vec_pretty(self).map_err(|e| io("write", &path)(e.into()))?;
        fs::write(&new, text).map_err(io("write", &new))?;
        fs::rename(&new, &path).map_err(io("write", &path))
    }

    fn is_called(&self, name: &str) -> bool {
        self.source == name || self.also.iter().any(|n| n == name)
    }

    /// The first file, if all are there with the sizes that they had.
    fn whole(&self, folder: &Path) -> Option<PathBuf> {
        let there =
            |f: &Arrived| fs::metadata(folder.join(&f.name)).is_ok_and(|m| m.is_file() && m.len() == f.size);
        let first = self.files.first().filter(|_| self.files.iter().all(there))?;
        Some(folder.join(&first.name))
    }
}

/// The name of the folder of a source: readable, and unique by its hash.
#[cfg_attr(not(feature = "fetch"), allow(dead_code, reason = "only fetching makes folders"))]
pub(super) fn folder_name(source: &str) -> String {
    let bare = source.split_once(':').map_or(source, |(_, rest)| rest).trim_matches('/');
    let bare = bare.strip_suffix(".gguf").unwrap_or(bare);
    let mut shown = String::new();
    for c in bare.chars().take(SHOWN) {
        match c {
            '/' => shown += "--",
            _ if c.is_ascii_alphanumeric() || "-_.".contains(c) => shown.push(c),
            _ => shown.push('_'),
        }
    }
    let hash = super::join::hex(&Sha256::digest(source.as_bytes()));
    // A leading dot would hide it.
    format!("{}-{}", shown.trim_start_matches('.'), hash.get(..12).unwrap_or(&hash))
}

impl Cache {
    /// Everything that is here, by name. A cache that does not exist is empty.
    ///
    /// # Errors
    ///
    /// [`SourceError::Io`] if the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, SourceError> {
        let entries = match fs::read_dir(self.dir()) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io("read", self.dir()))?,
        };
        let mut list: Vec<Entry> = entries.flatten().filter_map(|e| self.entry(&e.path())).collect();
        list.sort_by(|a, b| (&a.name, a.complete).cmp(&(&b.name, b.complete)));
        Ok(list)
    }

    /// What a file or folder of the cache is; `None` if it is none of the cache's business.
    fn entry(&self, place: &Path) -> Option<Entry> {
        let file_name = place.file_name()?.to_str()?;
        if place.is_file() {
            if !file_name.ends_with(".gguf") || file_name.starts_with('.') {
                return None;
            }
            let model = NAMED.iter().find(|m| self.path_of(m) == place);
            let bytes = fs::metadata(place).ok()?.len();
            return Some(Entry {
                name: model.map_or_else(|| file_name.to_owned(), |m| format!("pip:{}", m.name)),
                path: place.to_owned(),
                bytes,
                complete: model.is_none_or(|m| m.size == bytes),
                also: vec![file_name.to_owned()],
                key: model.map_or(file_name, |m| m.name).to_owned(),
                place: place.to_owned(),
            });
        }
        if let Some(name) = file_name.strip_prefix(STAGING) {
            return Some(Entry {
                name: format!("pip:{name}"),
                path: place.to_owned(),
                bytes: bytes_below(place),
                complete: false,
                also: Vec::new(),
                key: name.to_owned(),
                place: place.to_owned(),
            });
        }
        let key = file_name.strip_prefix(PARTIAL);
        let record = Record::read(place);
        if key.is_none() && record.is_none() {
            return None;
        }
        let mut record = record.unwrap_or_default();
        if record.source.is_empty() {
            record.source = file_name.to_owned();
        }
        let whole = record.whole(place).filter(|_| key.is_none());
        record.also.push(file_name.to_owned());
        Some(Entry {
            name: record.source,
            complete: whole.is_some(),
            path: whole.unwrap_or_else(|| place.to_owned()),
            bytes: bytes_below(place),
            also: record.also,
            key: key.unwrap_or(file_name).to_owned(),
            place: place.to_owned(),
        })
    }

    /// Deletes what is called `name`: a source, or a name that [`Cache::list`] shows. Gives the bytes that were freed.
    ///
    /// # Errors
    ///
    /// [`SourceError::NotCached`], [`SourceError::Busy`], [`SourceError::Io`].
    pub fn remove(&self, name: &str) -> Result<u64, SourceError> {
        let list = self.list()?;
        let called = |n: &str| {
            n == name || n.strip_prefix("pip:") == Some(name) || n.strip_prefix("hf:") == Some(name)
        };
        let found: Vec<&Entry> =
            list.iter().filter(|e| called(&e.name) || e.also.iter().any(|n| called(n))).collect();
        if found.is_empty() {
            let names: Vec<&str> = list.iter().map(|e| e.name.as_str()).collect();
            let known = match names.is_empty() {
                true => "; it is empty".to_owned(),
                false => format!("; there are {}", names.join(", ")),
            };
            return Err(SourceError::NotCached { name: name.to_owned(), known });
        }
        let mut freed = 0;
        for entry in found {
            let _lock =
                self.try_lock(&entry.key)?.ok_or_else(|| SourceError::Busy { name: entry.name.clone() })?;
            delete(&entry.place)?;
            freed += entry.bytes;
        }
        Ok(freed)
    }

    /// The record and first file of the model that is called `name`, if all of it is here.
    #[cfg_attr(not(feature = "fetch"), allow(dead_code, reason = "only fetching needs the record"))]
    pub(super) fn find(&self, name: &str) -> Option<(Record, PathBuf)> {
        let folders = fs::read_dir(self.dir()).ok()?.flatten().map(|e| e.path());
        folders
            .filter(|f| !f.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.')))
            .filter_map(|folder| {
                let record = Record::read(&folder).filter(|r| r.is_called(name))?;
                let file = record.whole(&folder)?;
                Some((record, file))
            })
            .next()
    }
}

/// Deletes a file or a folder; a folder's record last, so that what an interruption leaves still has a name.
pub(super) fn delete(place: &Path) -> Result<(), SourceError> {
    if place.is_dir() {
        for entry in fs::read_dir(place).map_err(io("read", place))?.flatten() {
            if entry.file_name() != RECORD && entry.path().is_file() {
                fs::remove_file(entry.path()).map_err(io("delete", &entry.path()))?;
            }
        }
        return fs::remove_dir_all(place).map_err(io("delete", place));
    }
    fs::remove_file(place).map_err(io("delete", place))
}

/// Bytes of all files below `dir`; files that vanish meanwhile count as nothing.
pub(super) fn bytes_below(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|e| match e.metadata() {
            Ok(m) if m.is_dir() => bytes_below(&e.path()),
            Ok(m) => m.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, source: &str, also: &[&str], bytes: &[u8], size: u64) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("m.gguf"), bytes).unwrap();
        let file = Arrived { name: "m.gguf".to_owned(), size, sha256: String::new() };
        let also = also.iter().map(|s| (*s).to_owned()).collect();
        Record { source: source.to_owned(), also, commit: None, files: vec![file] }.write(folder).unwrap();
    }

    #[test]
    fn folders_are_named_readably_and_uniquely() {
        let name = folder_name("hf:org/repo/sub dir/m-Q4_0.gguf");
        assert!(name.starts_with("org--repo--sub_dir--m-Q4_0-"), "{name}");
        assert_ne!(folder_name("hf:a/b c"), folder_name("hf:a/b_c"));
        assert!(folder_name("https://h/..").starts_with("h--..-"), "{}", folder_name("https://h/.."));
        assert!(folder_name(&format!("hf:a/{}", "x".repeat(500))).len() < 120);
    }

    #[test]
    fn what_is_there_is_listed_found_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache"));
        assert_eq!(cache.list().unwrap(), []);
        assert!(matches!(cache.remove("x"), Err(SourceError::NotCached { .. })));
        put(&cache.dir().join("a-1"), "hf:a/b/m.gguf", &["hf:a/b"], b"12345", 5);
        put(&cache.dir().join("c-1"), "https://h/m.gguf", &[], b"1234", 5);
        put(&cache.dir().join(".partial-d-1"), "hf:d/e/m.gguf", &[], b"12", 2);
        fs::create_dir(cache.dir().join(".fetching-smollm2")).unwrap();
        fs::create_dir(cache.dir().join("not-ours")).unwrap();
        fs::write(cache.dir().join("own.gguf"), b"1").unwrap();
        fs::write(cache.dir().join("notes.txt"), b"1").unwrap();
        let list = cache.list().unwrap();
        let seen: Vec<(&str, bool)> = list.iter().map(|e| (e.name.as_str(), e.complete)).collect();
        let expected = [
            ("hf:a/b/m.gguf", true),
            ("hf:d/e/m.gguf", false),
            ("https://h/m.gguf", false),
            ("own.gguf", true),
            ("pip:smollm2", false),
        ];
        assert_eq!(seen, expected);
        assert_eq!(cache.find("hf:a/b").unwrap().1, cache.dir().join("a-1/m.gguf"));
        assert_eq!(cache.find("hf:a/b/m.gguf").unwrap().1, cache.dir().join("a-1/m.gguf"));
        assert!(cache.find("https://h/m.gguf").is_none() && cache.find("hf:d/e/m.gguf").is_none());
        // By another name, without the scheme, by the folder's name, by the name of a file.
        for name in ["hf:a/b", "d/e/m.gguf", "c-1", "own.gguf", "smollm2"] {
            cache.remove(name).unwrap();
            let e = cache.remove(name).unwrap_err();
            assert!(matches!(e, SourceError::NotCached { .. }), "{e}");
        }
        assert_eq!(cache.list().unwrap(), []);
        assert!(cache.dir().join("not-ours").exists() && cache.dir().join("notes.txt").exists());
    }

    #[test]
    fn what_is_being_fetched_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        put(&dir.path().join(".partial-a-1"), "hf:a/b/m.gguf", &[], b"12", 2);
        let lock = cache.try_lock("a-1").unwrap().unwrap();
        assert!(matches!(cache.remove("hf:a/b/m.gguf"), Err(SourceError::Busy { .. })));
        drop(lock);
        assert!(cache.remove("hf:a/b/m.gguf").unwrap() > 0);
    }
}
