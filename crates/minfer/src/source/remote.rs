//! Models from servers: which files, fetched into a folder that becomes visible when all of it has been checked.

use std::fs;
use std::path::{Path, PathBuf};

use minfer_gguf::Gguf;

use super::download::{Step, Wanted, download, hash_file};
use super::error::io;
use super::http::Http;
use super::hub::{HubModel, Listing, split_part};
use super::store::{Arrived, PARTIAL, Record, delete, folder_name};
use super::{Cache, Progress, SourceError, WebModel};

/// What is to be fetched.
struct Plan {
    /// The model's one name.
    name: String,
    commit: Option<String>,
    files: Vec<Wanted>,
}

/// The model's first file; fetched first if it is not in the cache.
pub(super) fn hub_model(
    model: &HubModel,
    cache: &Cache,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf, SourceError> {
    let asked = model.to_string();
    if let Some((_, path)) = cache.find(&asked) {
        return Ok(path);
    }
    let http = Http::new(&cache.network)?;
    let url = model.listing_url(&http.hub);
    let text = http.text(&url)?;
    let listing: Listing = serde_json::from_str(&text).map_err(|e| SourceError::BadAnswer {
        url: url.shown(),
        why: format!("its list of files is not understood: {e}"),
    })?;
    let files = model.choose(&listing)?;
    let name = files.first().map_or_else(|| asked.clone(), |f| model.name_of(&f.rfilename));
    let wanted = |f: &&super::hub::HubFile| Wanted {
        url: model.file_url(&http.hub, &listing.sha, &f.rfilename),
        name: file_name(f.rfilename.rsplit('/').next().unwrap_or_default()),
        size: f.bytes(),
        sha256: f.sha256(),
    };
    let plan = Plan { name, commit: Some(listing.sha.clone()), files: files.iter().map(wanted).collect() };
    plan.fetch(&http, &asked, cache, progress)
}

/// The file that a URL leads to; fetched first if it is not in the cache.
pub(super) fn web_model(
    model: &WebModel,
    cache: &Cache,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf, SourceError> {
    let name = model.url.to_string();
    let hash_agrees =
        |r: &Record| model.sha256.is_none() || r.files.first().map(|f| &f.sha256) == model.sha256.as_ref();
    if let Some((_, path)) = cache.find(&name).filter(|(record, _)| hash_agrees(record)) {
        return Ok(path);
    }
    let last = model.url.file_name();
    let stem = last.strip_suffix(".gguf").unwrap_or(&last);
    let mut files = Vec::new();
    match split_part(stem).filter(|(_, _, count)| *count > 1) {
        Some(_) if model.sha256.is_some() => {
            let why = "one sha256 cannot stand for all parts of a split model".to_owned();
            return Err(SourceError::BadUrl { given: model.to_string(), why });
        }
        Some((stem, _, count)) => {
            for number in 1..=count {
                let part = format!("{stem}-{number:05}-of-{count:05}.gguf");
                let url = model.url.with_file_name(&part);
                files.push(Wanted { url, name: file_name(&part), size: None, sha256: None });
            }
        }
        None => files.push(Wanted {
            url: model.url.clone(),
            name: file_name(&last),
            size: None,
            sha256: model.sha256.clone(),
        }),
    }
    let http = Http::new(&cache.network)?;
    Plan { name: name.clone(), commit: None, files }.fetch(&http, &name, cache, progress)
}

/// A name for a file in the cache, near the one that a server gave: no folder, not hidden, ending in `.gguf`.
fn file_name(given: &str) -> String {
    let stem = given.strip_suffix(".gguf").unwrap_or(given);
    let plain = |c: char| if c.is_control() || "/\\:".contains(c) { '_' } else { c };
    let mut name: String = stem.chars().map(plain).collect();
    while name.len() > 200 {
        name.pop();
    }
    if name.is_empty() || name.starts_with('.') {
        name.insert_str(0, "model");
    }
    name + ".gguf"
}

impl Plan {
    fn fetch(
        &self,
        http: &Http,
        asked: &str,
        cache: &Cache,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PathBuf, SourceError> {
        let folder_name = folder_name(&self.name);
        fs::create_dir_all(cache.dir()).map_err(io("create", cache.dir()))?;
        let _lock = cache.lock(&folder_name, progress)?;
        let folder = cache.dir().join(&folder_name);
        if let Some((mut record, path)) = cache.find(&self.name).filter(|(r, _)| self.agrees(r)) {
            // It came under another name, or another process was faster.
            if record.source != asked && !record.also.iter().any(|n| n == asked) {
                record.also.push(asked.to_owned());
                record.write(&folder)?;
            }
            return Ok(path);
        }
        let partial = cache.dir().join(format!("{PARTIAL}{folder_name}"));
        fs::create_dir_all(&partial).map_err(io("create", &partial))?;
        let also = if asked == self.name { Vec::new() } else { vec![asked.to_owned()] };
        let mut record =
            Record { source: self.name.clone(), also, commit: self.commit.clone(), files: Vec::new() };
        record.write(&partial)?;
        record.files = self.download(http, &partial, progress).inspect_err(|_| forget_if_empty(&partial))?;
        self.check_format(&partial)?;
        record.write(&partial)?;
        if folder.exists() {
            delete(&folder)?; // cut or replaced by someone: it was not found above
        }
        fs::rename(&partial, &folder).map_err(io("create", &folder))?;
        let first = record.files.first().map_or("", |f| f.name.as_str());
        Ok(folder.join(first))
    }

    /// Whether what is in the cache has the hashes that are asked for.
    fn agrees(&self, record: &Record) -> bool {
        self.commit.is_some()
            || self
                .files
                .iter()
                .zip(&record.files)
                .all(|(w, f)| w.sha256.as_ref().is_none_or(|s| *s == f.sha256))
    }

    /// Every file into `folder`; those that arrived in an earlier attempt are only hashed.
    fn download(
        &self,
        http: &Http,
        folder: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Arrived>, SourceError> {
        let all = self.files.iter().try_fold(0u64, |sum, f| sum.checked_add(f.size?));
        let mut before = 0;
        let mut arrived = Vec::new();
        for wanted in &self.files {
            let mut last_total = 0;
            let mut step = |step: Step| match step {
                Step::Have(done, total) => {
                    last_total = all.or(total.map(|t| t.saturating_add(before))).unwrap_or(0);
                    progress(Progress::Downloading { done: before + done, total: last_total });
                }
                Step::Checked(done) => {
                    let total = all.unwrap_or(last_total.max(before + done));
                    progress(Progress::Checking { done: before + done, total });
                }
            };
            let file = match already_there(wanted, folder, &mut step)? {
                Some(file) => file,
                None => download(http, wanted, folder, &mut step)?,
            };
            before += file.size;
            arrived.push(file);
        }
        Ok(arrived)
    }

    /// Nothing that is no model is kept: a page of a login, a file that was cut before it got to the server.
    fn check_format(&self, folder: &Path) -> Result<(), SourceError> {
        let Some(first) = self.files.first() else { return Ok(()) };
        let path = folder.join(&first.name);
        match Gguf::open(&path) {
            Ok(gguf) if gguf.paths().len() == self.files.len() => Ok(()),
            result => {
                let why = match result {
                    Ok(gguf) => format!("it has {} parts, not {}", gguf.paths().len(), self.files.len()),
                    Err(e) => e.to_string().replace(&format!("{}/", folder.display()), ""),
                };
                delete(folder)?;
                Err(SourceError::NotGguf { url: first.url.shown(), why })
            }
        }
    }
}

/// A file of an earlier attempt, if its hash says that it is the wanted one.
fn already_there(
    wanted: &Wanted,
    folder: &Path,
    step: &mut dyn FnMut(Step),
) -> Result<Option<Arrived>, SourceError> {
    let path = folder.join(&wanted.name);
    let (Some(expected), true) = (&wanted.sha256, path.is_file()) else { return Ok(None) };
    let (size, sha256) = hash_file(&path, &mut |n| step(Step::Checked(n)))?;
    if sha256 != *expected {
        return Ok(None);
    }
    Ok(Some(Arrived { name: wanted.name.clone(), size, sha256 }))
}

/// An unfinished folder that holds nothing but its record is of no use to anyone.
fn forget_if_empty(partial: &Path) {
    if fs::read_dir(partial).is_ok_and(|entries| entries.count() <= 1) {
        // What cannot be removed now is removed by `minfer rm`.
        let _ = fs::remove_dir_all(partial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_cache_have_harmless_names() {
        for (given, expected) in [
            ("m-Q4_0.gguf", "m-Q4_0.gguf"),
            ("download", "download.gguf"),
            ("", "model.gguf"),
            ("..", "model...gguf"),
            (".hidden.gguf", "model.hidden.gguf"),
            ("a/b\\c\u{0}d", "a_b_c_d.gguf"),
            ("source.json", "source.json.gguf"),
        ] {
            assert_eq!(file_name(given), expected);
        }
        assert!(file_name(&"ä".repeat(400)).len() <= 205);
    }
}
