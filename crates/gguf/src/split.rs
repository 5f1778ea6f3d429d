//! Models split into several files: `NAME-00001-of-00003.gguf` and its siblings.
//!
//! Every part is a GGUF file with the keys `split.no` (from 0), `split.count` and `split.tensors.count` (of the whole
//! model). The first part carries the model's metadata; the others carry those three keys and their tensors.

use std::path::{Path, PathBuf};

use crate::file::Part;
use crate::{Error, Problem};

/// Key of the number of a part, from 0.
pub(crate) const NO_KEY: &str = "split.no";
/// Key of the count of parts.
pub(crate) const COUNT_KEY: &str = "split.count";
/// Key of the count of tensors of all parts.
pub(crate) const TENSORS_KEY: &str = "split.tensors.count";

/// The file name of part `no` (from 0) of `count`.
pub(crate) fn part_name(stem: &str, no: u64, count: u64) -> String {
    format!("{stem}-{:05}-of-{count:05}.gguf", no + 1)
}

/// The stem, number (from 0) and count in a part's file name.
fn parse_name(name: &str) -> Option<(&str, u64, u64)> {
    let number = |digits: &str| {
        let all_digits = digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
        if all_digits { digits.parse::<u64>().ok() } else { None }
    };
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    Some((stem, number(no)?.checked_sub(1)?, number(count)?))
}

/// How many parts the model of this file has: 1 if it is whole.
pub(crate) fn count(part: &Part) -> Result<u64, Error> {
    Ok(part.metadata.u64(COUNT_KEY)?.unwrap_or(1))
}

/// Opens the siblings of `part`, and returns all parts in order.
pub(crate) fn open_others(part: Part) -> Result<Vec<Part>, Error> {
    let count = count(&part)?;
    if count <= 1 {
        return Ok(vec![part]);
    }
    let no = part.metadata.require_u64(NO_KEY)?;
    if no >= count {
        let problem = format!("expected {NO_KEY} below {COUNT_KEY} {count}, found {no}");
        return Err(Error::new(&part.path, Problem::Split(problem)));
    }
    let paths = part_paths(&part.path, no, count)?;
    let mut given = Some(part);
    let mut parts = Vec::new();
    for (index, path) in paths.enumerate() {
        let part = match given.take_if(|_| index as u64 == no) {
            Some(part) => part,
            None => open_sibling(&path, index as u64, count)?,
        };
        parts.push(part);
    }
    check_tensor_count(&parts)?;
    Ok(parts)
}

/// Paths of all parts, from the path of one of them.
fn part_paths(path: &Path, no: u64, count: u64) -> Result<impl Iterator<Item = PathBuf> + use<>, Error> {
    let refuse = |problem: String| Error::new(path, Problem::Split(problem));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((stem, name_no, name_count)) = parse_name(name) else {
        let example = part_name("NAME", no, count);
        return Err(refuse(format!(
            "this is part {} of {count}, so its name must end as in {example}",
            no + 1
        )));
    };
    if (name_no, name_count) != (no, count) {
        return Err(refuse(format!(
            "the file name says part {} of {name_count}, the file's keys say part {} of {count}",
            name_no + 1,
            no + 1,
        )));
    }
    let (path, stem) = (path.to_owned(), stem.to_owned());
    Ok((0..count).map(move |no| path.with_file_name(part_name(&stem, no, count))))
}

fn open_sibling(path: &Path, no: u64, count: u64) -> Result<Part, Error> {
    if !path.exists() {
        let problem = format!("part {} of {count} is missing; expected it here, beside the others", no + 1);
        return Err(Error::new(path, Problem::Split(problem)));
    }
    let part = Part::open(path)?;
    let found = (part.metadata.require_u64(NO_KEY)?, part.metadata.require_u64(COUNT_KEY)?);
    if found != (no, count) {
        let problem =
            format!("expected {NO_KEY} {no} and {COUNT_KEY} {count}, found {} and {}", found.0, found.1);
        return Err(Error::new(path, Problem::Split(problem)));
    }
    Ok(part)
}

fn check_tensor_count(parts: &[Part]) -> Result<(), Error> {
    let found: u64 = parts.iter().map(|part| part.tensors.len() as u64).sum();
    for part in parts {
        let expected = part.metadata.require_u64(TENSORS_KEY)?;
        if expected != found {
            let problem =
                format!("{TENSORS_KEY}: expected {expected} tensors, found {found} in {} parts", parts.len());
            return Err(Error::new(&part.path, Problem::Split(problem)));
        }
    }
    Ok(())
}
