//! The directory of fetched models.
//!
//! A named model is one file, called after the model and its hash; what came from a server is a folder (see `store`).
//! Everything that is not finished lies in a staging directory beside it; a lock file keeps two processes apart.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::error::io;
use super::{NamedModel, Network, Progress, SourceError, join};
use crate::env;

/// Hexadecimal digits of the hash that a file name shows.
const HASH_DIGITS: usize = 12;

/// How the staging directories of named models begin.
pub(super) const STAGING: &str = ".fetching-";

/// Fetched models on disk.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    #[cfg_attr(not(feature = "fetch"), allow(dead_code, reason = "only fetching has a network"))]
    pub(super) network: Network,
}

impl Cache {
    /// A cache in `dir`, which is created when something is fetched.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Cache { dir: dir.into(), network: Network::default() }
    }

    /// This cache, filled through `network`.
    #[must_use]
    pub fn with_network(self, network: Network) -> Self {
        Cache { network, ..self }
    }

    /// `$MINFER_CACHE`, else `$XDG_CACHE_HOME/minfer`, else `~/.cache/minfer`; filled with the token of `$HF_TOKEN`.
    ///
    /// # Errors
    ///
    /// [`SourceError::NoCacheDir`] if none of the three variables is set.
    pub fn from_env() -> Result<Self, SourceError> {
        env::minfer_cache()
            .or_else(|| env::xdg_cache_home().map(|d| d.join("minfer")))
            .or_else(|| env::home().map(|d| d.join(".cache").join("minfer")))
            .map(|dir| Cache::at(dir).with_network(Network::with_token(env::hf_token())))
            .ok_or(SourceError::NoCacheDir)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file that `model` has, or will have, here.
    pub fn path_of(&self, model: &NamedModel) -> PathBuf {
        let digits = model.sha256.get(..HASH_DIGITS).unwrap_or(model.sha256);
        self.dir.join(format!("{}-{digits}.gguf", model.name))
    }

    /// The file of `model` if it is here. The hash was checked when it came; a size that has changed since makes it
    /// absent.
    pub fn get(&self, model: &NamedModel) -> Option<PathBuf> {
        let path = self.path_of(model);
        std::fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() == model.size).then_some(path)
    }

    /// The file of `model`, fetched first if it is not here: `download` puts its wheels into a directory.
    pub(super) fn get_or_fetch(
        &self,
        model: &'static NamedModel,
        progress: &mut dyn FnMut(Progress),
        download: impl FnOnce(&'static NamedModel, &Path, &mut dyn FnMut(Progress)) -> Result<(), SourceError>,
    ) -> Result<PathBuf, SourceError> {
        if let Some(path) = self.get(model) {
            return Ok(path);
        }
        std::fs::create_dir_all(&self.dir).map_err(io("create", &self.dir))?;
        let _lock = self.lock(model.name, progress)?;
        if let Some(path) = self.get(model) {
            return Ok(path); // another process was faster
        }
        let stage = Stage::new(self.dir.join(format!("{STAGING}{}", model.name)))?;
        download(model, &stage.0, progress)?;
        let joined = stage.0.join("joined.gguf");
        join::join(model, &stage.0, &joined, progress)?;
        let path = self.path_of(model);
        std::fs::rename(&joined, &path).map_err(io("create", &path))?;
        Ok(path)
    }

    /// Waits until no other process fetches what `key` names. The lock ends with the process, however that ends.
    pub(super) fn lock(&self, key: &str, progress: &mut dyn FnMut(Progress)) -> Result<File, SourceError> {
        let (path, file) = self.lock_file(key)?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => progress(Progress::Waiting),
            Err(TryLockError::Error(e)) => return Err(io("lock", &path)(e)),
        }
        file.lock().map_err(io("lock", &path))?;
        Ok(file)
    }

    /// The lock of `key`, or `None` if another process has it.
    pub(super) fn try_lock(&self, key: &str) -> Result<Option<File>, SourceError> {
        let (path, file) = self.lock_file(key)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(io("lock", &path)(e)),
        }
    }

    fn lock_file(&self, key: &str) -> Result<(PathBuf, File), SourceError> {
        let path = self.dir.join(format!(".lock-{key}"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io("create", &path))?;
        Ok((path, file))
    }
}

/// A directory that lives as long as a fetch.
struct Stage(PathBuf);

impl Stage {
    /// Clears what an interrupted fetch left behind, then creates it.
    fn new(dir: PathBuf) -> Result<Self, SourceError> {
        match std::fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io("clear", &dir)(e)),
            _ => {}
        }
        std::fs::create_dir_all(&dir).map_err(io("create", &dir))?;
        Ok(Stage(dir))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next fetch.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::Part;
    use super::*;

    /// "hello, model": the hash is `printf 'hello, model' | sha256sum`.
    static MODEL: NamedModel = NamedModel {
        name: "test",
        about: "",
        parts: &[
            Part { package: "Some-pkg.one", version: "1.0", member: "pkg/data/a.part" },
            Part { package: "other", version: "2.1", member: "b.part" },
        ],
        size: 12,
        sha256: "01a783403405becdf49dc099415fdbdab1eb5f2980d47a46ce59909d0a6fcffe",
    };

    /// The same with a wrong hash, and with a wrong size.
    static OTHER_HASH: NamedModel = NamedModel {
        name: "test",
        about: "",
        parts: MODEL.parts,
        size: 12,
        sha256: "0000000000000000000000000000000000000000000000000000000000000000",
    };
    static OTHER_SIZE: NamedModel =
        NamedModel { name: "test", about: "", parts: MODEL.parts, size: 11, sha256: MODEL.sha256 };

    fn wheel(path: &Path, member: &str, bytes: &[u8]) {
        let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file("decoy.txt", options).unwrap();
        zip.write_all(b"not this").unwrap();
        zip.start_file(member, options).unwrap();
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap();
    }

    fn wheels(_: &'static NamedModel, dir: &Path, _: &mut dyn FnMut(Progress)) -> Result<(), SourceError> {
        wheel(&dir.join("some_pkg_one-1.0-py3-none-any.whl"), "pkg/data/a.part", b"hello, ");
        wheel(&dir.join("other-2.1-py3-none-any.whl"), "b.part", b"model");
        Ok(())
    }

    fn names(cache: &Cache) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(cache.dir())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|n| !n.starts_with(".lock-"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn parts_are_joined_once_and_then_served_from_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("new/cache"));
        assert_eq!(cache.get(&MODEL), None);
        let mut last = None;
        let path = cache.get_or_fetch(&MODEL, &mut |p| last = Some(p), wheels).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hello, model");
        assert_eq!(last, Some(Progress::Unpacking { done: 12, total: 12 }));
        assert_eq!(names(&cache).len(), 1);
        let again = cache.get_or_fetch(&MODEL, &mut |_| {}, |_, _, _| panic!("fetched twice")).unwrap();
        assert_eq!(again, path);
        // A file that was cut later is fetched anew.
        std::fs::write(&path, b"hello").unwrap();
        assert_eq!(cache.get(&MODEL), None);
        cache.get_or_fetch(&MODEL, &mut |_| {}, wheels).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hello, model");
    }

    #[test]
    fn nothing_stays_in_the_cache_when_the_content_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        for (model, what) in [(&OTHER_HASH, "sha256"), (&OTHER_SIZE, "size")] {
            let e = cache.get_or_fetch(model, &mut |_| {}, wheels).unwrap_err();
            assert!(matches!(&e, SourceError::WrongContent { what: w, .. } if *w == what), "{e}");
            assert!(names(&cache).is_empty());
        }
    }

    #[test]
    fn a_failed_or_interrupted_download_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let stale = dir.path().join(".fetching-test");
        std::fs::create_dir(&stale).unwrap();
        std::fs::write(stale.join("other-2.1-py3-none-any.whl"), b"half a wheel").unwrap();
        // The staging directory of a killed process is empty again when the next download starts.
        let e = cache
            .get_or_fetch(&MODEL, &mut |_| {}, |_, dir, _| {
                assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
                Ok(())
            })
            .unwrap_err();
        assert!(matches!(e, SourceError::WheelMissing { package: "Some-pkg.one", .. }), "{e}");
        assert!(names(&cache).is_empty());
        // A wheel that is no zip, and one that lacks the member.
        for (bytes, member) in [(&b"not a zip"[..], None), (&[][..], Some("else"))] {
            let e = cache
                .get_or_fetch(&MODEL, &mut |_| {}, |_, dir, _| {
                    let path = dir.join("some_pkg_one-1.0-py3-none-any.whl");
                    match member {
                        None => std::fs::write(path, bytes).unwrap(),
                        Some(m) => wheel(&path, m, b"hello, "),
                    }
                    Ok(())
                })
                .unwrap_err();
            assert!(matches!(e, SourceError::BadWheel { .. }), "{e}");
            assert!(names(&cache).is_empty());
        }
    }

    #[test]
    fn two_fetches_of_one_model_download_once() {
        let dir = tempfile::tempdir().unwrap();
        let downloads = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let cache = Cache::at(dir.path());
                    let download = |m, d: &Path, p: &mut dyn FnMut(Progress)| {
                        downloads.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(30));
                        wheels(m, d, p)
                    };
                    cache.get_or_fetch(&MODEL, &mut |_| {}, download).unwrap();
                });
            }
        });
        assert_eq!(downloads.load(Ordering::Relaxed), 1);
    }
}
