//! One file from a server to the disk, continued after anything that interrupts it.
//!
//! What has arrived lies in `NAME.part`; beside it, `NAME.json` says what it is a part of: the URL, the server's
//! validator (a strong ETag) and, where known, size and SHA-256. Bytes are added to a part only if the server says, by
//! If-Range or by an ETag that is still the same, that they are of the same file. The finished file is read back from
//! the disk, hashed, and only then given its name.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::SourceError;
use super::error::io;
use super::http::{Answer, Failure, Http, Retry, describe};
use super::store::Arrived;
use super::url::Url;

/// Bytes moved at a time.
const CHUNK: usize = 256 << 10;

/// New bytes after which the count of failed attempts starts anew.
const PROGRESS: u64 = 1 << 20;

/// How often a file may turn out to be another one than before.
const MAX_RESTARTS: u32 = 3;

/// What is to be fetched.
pub(super) struct Wanted {
    pub(super) url: Url,
    /// Its name in the folder.
    pub(super) name: String,
    /// Bytes, if known beforehand.
    pub(super) size: Option<u64>,
    /// In lower-case hexadecimal, if known beforehand.
    pub(super) sha256: Option<String>,
}

/// Steps of a download, in bytes.
pub(super) enum Step {
    /// So many are on the disk, of so many in all (if known).
    Have(u64, Option<u64>),
    /// So many have been read back.
    Checked(u64),
}

/// Fetches a file into `folder`.
///
/// # Errors
///
/// Any [`SourceError`]. The folder then has the part that has arrived, or nothing.
pub(super) fn download(
    http: &Http,
    wanted: &Wanted,
    folder: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<Arrived, SourceError> {
    let mut job = Job::new(http, wanted, folder);
    loop {
        let resumed = job.transfer(progress)?;
        match job.check(progress) {
            Ok(arrived) => return Ok(arrived),
            // Perhaps the two halves were not of one file; from one pour it must be right.
            Err(e @ SourceError::WrongContent { .. }) => {
                job.part.clear()?;
                if !resumed {
                    return Err(e);
                }
                job.restarted("the joined halves are not the file")?;
            }
            Err(e) => return Err(e),
        }
    }
}

/// A download in progress.
struct Job<'a> {
    http: &'a Http,
    wanted: &'a Wanted,
    part: Part,
    /// As the hub said on the way; `wanted`'s if that has one.
    sha256: Option<String>,
    restarts: u32,
}

/// How an attempt ended.
enum End {
    /// All bytes are there.
    Complete,
    /// The part on the disk belongs to another file.
    Stale(&'static str),
}

impl<'a> Job<'a> {
    fn new(http: &'a Http, wanted: &'a Wanted, folder: &Path) -> Job<'a> {
        Job {
            http,
            wanted,
            part: Part::new(folder, &wanted.name),
            sha256: wanted.sha256.clone(),
            restarts: 0,
        }
    }

    /// Gets all bytes onto the disk. Says whether they came in more than one piece.
    fn transfer(&mut self, progress: &mut dyn FnMut(Step)) -> Result<bool, SourceError> {
        let mut retry = Retry::new(self.http.patience);
        let mut best = self.part.resumable(self.wanted)?;
        let mut resumed = best > 0;
        let mut received = false;
        loop {
            let (why, wait, offline, error) = match self.attempt(progress, &mut received) {
                Ok(End::Complete) => return Ok(resumed),
                Ok(End::Stale(why)) => {
                    self.part.clear()?;
                    self.restarted(why)?;
                    resumed = false;
                    continue;
                }
                Err(Failure::Final(e)) => return Err(e),
                Err(Failure::Passing { why, wait, offline, error }) => (why, wait, offline, error),
            };
            let have = self.part.len();
            if have >= best.saturating_add(PROGRESS) {
                best = have;
                retry.progressed();
            }
            if offline && !received || !retry.again(&why, wait) {
                if !received {
                    return Err(*error);
                }
                let url = self.wanted.url.shown();
                return Err(SourceError::Incomplete { url, attempts: retry.failures(), why, kept: have });
            }
            resumed |= have > 0;
        }
    }

    /// Counts a start from nothing.
    fn restarted(&mut self, why: &str) -> Result<(), SourceError> {
        self.restarts += 1;
        if self.restarts > MAX_RESTARTS {
            let why = format!("the file changes while it is fetched ({why})");
            return Err(SourceError::BadAnswer { url: self.wanted.url.shown(), why });
        }
        tracing::warn!("{}: {why}: starting from its beginning", self.wanted.name);
        Ok(())
    }

    /// One request, from where the part ends.
    fn attempt(&mut self, progress: &mut dyn FnMut(Step), received: &mut bool) -> Result<End, Failure> {
        let have = self.part.resumable(self.wanted).map_err(Failure::Final)?;
        if have > 0 && self.wanted.size == Some(have) {
            return Ok(End::Complete);
        }
        let range = format!("bytes={have}-");
        let validator = self.part.note.as_ref().and_then(|n| n.etag.clone());
        let mut headers = Vec::new();
        if have > 0 {
            headers.push(("range", range.as_str()));
            headers.extend(validator.as_deref().map(|etag| ("if-range", etag)));
        }
        let answer = self.http.get(&self.wanted.url, &headers)?;
        let length = header_length(&answer);
        let start = match answer.status {
            416 if have > 0 => {
                return Ok(match content_range(&answer) {
                    Some((_, Some(total))) if total == have && self.wanted.size.is_none() => End::Complete,
                    _ => End::Stale("the server has no such part of it"),
                });
            }
            206 if have > 0 => {
                if let Some(why) = self.part.differs(&answer) {
                    return Ok(End::Stale(why));
                }
                have
            }
            206 => return Err(self.bad("it sent a part of the file although all of it was asked for")),
            _ => 0,
        };
        let answer = self.http.accepted(answer)?;
        let total = match answer.status {
            206 => content_range(&answer)
                .and_then(|(_, total)| total)
                .or(length.and_then(|n| n.checked_add(start))),
            _ => length,
        };
        self.agree_on_size(total)?;
        self.agree_on_hash(&answer)?;
        if start == 0 {
            self.part.begin(Note::new(self.wanted, &answer, total)).map_err(Failure::Final)?;
        }
        let total = total.or(self.wanted.size);
        self.receive(answer, start, total, progress, received)?;
        Ok(End::Complete)
    }

    /// Complains if the server's idea of the size is not ours.
    fn agree_on_size(&self, total: Option<u64>) -> Result<(), Failure> {
        match (total, self.wanted.size) {
            (Some(found), Some(expected)) if found != expected => {
                Err(self.bad(&format!("it has {found} bytes there, expected {expected}")))
            }
            _ => Ok(()),
        }
    }

    /// Takes the hub's word for the hash, and complains if it is not the one that was asked for.
    fn agree_on_hash(&mut self, answer: &Answer) -> Result<(), Failure> {
        match (&answer.linked_sha256, &self.sha256) {
            (Some(found), Some(expected)) if found != expected && self.wanted.sha256.is_some() => {
                Err(self.bad(&format!("its sha256 there is {found}, expected {expected}")))
            }
            (Some(found), _) => {
                self.sha256 = Some(found.clone());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn bad(&self, why: &str) -> Failure {
        Failure::Final(SourceError::BadAnswer { url: self.wanted.url.shown(), why: why.to_owned() })
    }

    /// Moves a body to the disk.
    fn receive(
        &self,
        mut answer: Answer,
        start: u64,
        total: Option<u64>,
        progress: &mut dyn FnMut(Step),
        received: &mut bool,
    ) -> Result<(), Failure> {
        let mut file = self.part.open_at(start).map_err(Failure::Final)?;
        let passing = |why: String| Failure::Passing {
            error: Box::new(SourceError::BadAnswer { url: self.wanted.url.shown(), why: why.clone() }),
            why,
            wait: None,
            offline: false,
        };
        let mut done = start;
        let mut chunk = vec![0; CHUNK];
        let mut body = answer.body.as_reader();
        progress(Step::Have(done, total));
        loop {
            let n = match body.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(passing(format!("the connection broke ({})", describe(&e.into())))),
            };
            *received = true;
            done += n as u64;
            if total.is_some_and(|total| done > total) {
                return Err(
                    self.bad(&format!("it sends more than the {} bytes announced", total.unwrap_or(0)))
                );
            }
            write(&mut file, &chunk[..n], &self.part.path).map_err(Failure::Final)?;
            progress(Step::Have(done, total));
        }
        match total {
            Some(total) if done < total => {
                Err(passing(format!("the connection ended after {done} of {total} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// Reads the finished part back, and gives it its name if it is what was wanted.
    fn check(&self, progress: &mut dyn FnMut(Step)) -> Result<Arrived, SourceError> {
        let (size, sha256) = hash_file(&self.part.path, &mut |n| progress(Step::Checked(n)))?;
        let wrong = |what, expected: String, found: String| SourceError::WrongContent {
            model: self.wanted.name.clone(),
            what,
            expected,
            found,
        };
        if let Some(expected) = self.wanted.size.filter(|&s| s != size) {
            return Err(wrong("size", expected.to_string(), size.to_string()));
        }
        if let Some(expected) = self.sha256.as_ref().filter(|&s| *s != sha256) {
            return Err(wrong("sha256", expected.clone(), sha256));
        }
        self.part.finish()?;
        Ok(Arrived { name: self.wanted.name.clone(), size, sha256 })
    }
}

/// Writes all bytes, or says on which file that failed.
fn write(out: &mut dyn Write, bytes: &[u8], path: &Path) -> Result<(), SourceError> {
    out.write_all(bytes).map_err(io("write", path))
}

/// Size and SHA-256 of a file.
pub(super) fn hash_file(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<(u64, String), SourceError> {
    let mut file = File::open(path).map_err(io("read", path))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut size = 0;
    loop {
        let n = file.read(&mut chunk).map_err(io("read", path))?;
        if n == 0 {
            return Ok((size, super::join::hex(&hash.finalize())));
        }
        hash.update(&chunk[..n]);
        size += n as u64;
        progress(size);
    }
}

/// What a part is a part of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    url: String,
    /// The server's name for this state of the file. Weak ones are not kept: they do not promise equal bytes.
    etag: Option<String>,
    size: Option<u64>,
    sha256: Option<String>,
}

impl Note {
    fn new(wanted: &Wanted, answer: &Answer, total: Option<u64>) -> Note {
        Note {
            url: wanted.url.to_string(),
            etag: answer.header("etag").filter(|e| e.starts_with('"')).map(str::to_owned),
            size: total.or(wanted.size),
            sha256: wanted.sha256.clone(),
        }
    }

    /// Whether bytes may be added to the part. Equal hashes mean equal files wherever they come from; without a hash
    /// it takes the same URL and an ETag that the server can be asked about.
    fn continues(&self, wanted: &Wanted) -> bool {
        let sizes_agree = self.size.is_none() || wanted.size.is_none() || self.size == wanted.size;
        let same = match (&self.sha256, &wanted.sha256) {
            (Some(had), Some(wanted)) => had == wanted,
            (None, None) => self.url == wanted.url.to_string() && self.etag.is_some(),
            _ => false,
        };
        same && sizes_agree
    }
}

/// An unfinished file.
struct Part {
    path: PathBuf,
    note_path: PathBuf,
    target: PathBuf,
    note: Option<Note>,
}

impl Part {
    fn new(folder: &Path, name: &str) -> Part {
        let note_path = folder.join(format!("{name}.json"));
        let note = std::fs::read(&note_path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Part { path: folder.join(format!("{name}.part")), note_path, target: folder.join(name), note }
    }

    /// Bytes on the disk.
    fn len(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |m| m.len())
    }

    /// Bytes that a transfer may continue after; what belongs to something else is deleted.
    fn resumable(&mut self, wanted: &Wanted) -> Result<u64, SourceError> {
        let have = self.len();
        let usable = self.note.as_ref().is_some_and(|n| n.continues(wanted))
            && wanted.size.is_none_or(|size| have <= size);
        if usable {
            return Ok(have);
        }
        self.clear()?;
        Ok(0)
    }

    /// Why a 206 does not continue this part, if it does not.
    fn differs(&self, answer: &Answer) -> Option<&'static str> {
        let note = self.note.as_ref()?;
        let Some((start, total)) = content_range(answer) else {
            return Some("the server does not say which part it sends");
        };
        if start != Some(self.len()) {
            return Some("the server sends another part than asked for");
        }
        if total.is_some() && note.size.is_some() && total != note.size {
            return Some("its size has changed");
        }
        match (&note.etag, answer.header("etag")) {
            (Some(had), Some(has)) if had != has => Some("it has changed on the server"),
            _ => None,
        }
    }

    /// Starts anew: first the old bytes go, then the note changes.
    fn begin(&mut self, note: Note) -> Result<(), SourceError> {
        self.clear()?;
        let text = serde_json::to_vec(&note).map_err(|e| io("write", &self.note_path)(e.into()))?;
        std::fs::write(&self.note_path, text).map_err(io("write", &self.note_path))?;
        self.note = Some(note);
        Ok(())
    }

    fn open_at(&self, start: u64) -> Result<File, SourceError> {
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.path)
            .map_err(io("create", &self.path))?;
        file.set_len(start).map_err(io("write", &self.path))?;
        file.seek(SeekFrom::Start(start)).map_err(io("write", &self.path))?;
        Ok(file)
    }

    /// Deletes everything.
    fn clear(&mut self) -> Result<(), SourceError> {
        self.note = None;
        remove(&self.path)?;
        remove(&self.note_path)
    }

    /// Gives the file its name, once its bytes are on the disk.
    fn finish(&self) -> Result<(), SourceError> {
        let file = File::open(&self.path).map_err(io("read", &self.path))?;
        file.sync_all().map_err(io("write", &self.path))?;
        std::fs::rename(&self.path, &self.target).map_err(io("create", &self.target))?;
        remove(&self.note_path)
    }
}

/// Deletes a file that may not be there.
fn remove(path: &Path) -> Result<(), SourceError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("delete", path)(e)),
        _ => Ok(()),
    }
}

/// `Content-Length`, if it is there and a number.
fn header_length(answer: &Answer) -> Option<u64> {
    answer.header("content-length")?.trim().parse().ok()
}

/// Start and total of `Content-Range: bytes 5-9/10`, `bytes 5-9/*` or `bytes */10`.
fn content_range(answer: &Answer) -> Option<(Option<u64>, Option<u64>)> {
    parse_content_range(answer.header("content-range")?)
}

fn parse_content_range(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let start = match range.trim() {
        "*" => None,
        range => Some(range.split_once('-')?.0.trim().parse().ok()?),
    };
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((start, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(parse_content_range("bytes 5-9/10"), Some((Some(5), Some(10))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((Some(5), None)));
        assert_eq!(parse_content_range("bytes */10"), Some((None, Some(10))));
        for bad in ["", "bytes", "items 5-9/10", "bytes 5/10", "bytes 5-9", "bytes a-9/10", "bytes 5-9/x"] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_full_disk_is_an_error_that_says_what_to_do() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let e = write(&mut Full, b"x", Path::new("a/b.part")).unwrap_err().to_string();
        assert!(e.contains("a/b.part") && e.contains("free some space") && e.contains("minfer rm"), "{e}");
    }

    fn wanted(url: &str, size: Option<u64>, sha256: Option<&str>) -> Wanted {
        let url = Url::parse(url).unwrap();
        Wanted { url, name: "m.gguf".to_owned(), size, sha256: sha256.map(str::to_owned) }
    }

    fn note(url: &str, etag: Option<&str>, size: Option<u64>, sha256: Option<&str>) -> Note {
        let own = |s: Option<&str>| s.map(str::to_owned);
        Note { url: url.to_owned(), etag: own(etag), size, sha256: own(sha256) }
    }

    #[test]
    fn bytes_are_added_only_to_parts_of_the_same_file() {
        let (a, b, etag) = ("https://h/a", "https://h/b", Some("\"1\""));
        let cases = [
            (note(a, etag, Some(9), None), wanted(a, None, None), true),
            (note(a, etag, Some(9), None), wanted(a, Some(9), None), true),
            (note(a, etag, Some(9), None), wanted(a, Some(8), None), false),
            (note(a, None, Some(9), None), wanted(a, None, None), false),
            (note(a, etag, None, None), wanted(b, None, None), false),
            (note(a, None, None, Some("s")), wanted(b, None, Some("s")), true),
            (note(a, etag, None, Some("s")), wanted(a, None, Some("t")), false),
            (note(a, etag, None, None), wanted(a, None, Some("t")), false),
            (note(a, etag, None, Some("s")), wanted(a, None, None), false),
        ];
        for (note, wanted, expected) in cases {
            assert_eq!(note.continues(&wanted), expected, "{note:?}");
        }
        // What may not be continued is gone, and so is what has no note or a broken one.
        let dir = tempfile::tempdir().unwrap();
        for text in [None, Some("{"), Some(r#"{"url":"https://h/b","etag":null,"size":null,"sha256":null}"#)]
        {
            std::fs::write(dir.path().join("m.gguf.part"), b"abc").unwrap();
            if let Some(text) = text {
                std::fs::write(dir.path().join("m.gguf.json"), text).unwrap();
            }
            let mut part = Part::new(dir.path(), "m.gguf");
            assert_eq!(part.resumable(&wanted(a, None, None)).unwrap(), 0);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{text:?}");
        }
    }
}
