//! The Hugging Face hub: how a repository is named, and which of its files a name means.
//!
//! The one place that knows the hub's host and its interface. Sources of facts: the documentation of the hub's
//! interface (`/api/models/{repo}`, `/{repo}/resolve/{revision}/{file}`, the `X-Linked-…` headers of a file kept in
//! Git LFS).
#![cfg_attr(not(feature = "fetch"), allow(dead_code, reason = "only fetching asks the hub"))]

use std::fmt;

use serde::Deserialize;

use super::SourceError;
use super::url::Url;

/// Where the hub is.
pub(super) const ENDPOINT: &str = "https://huggingface.co";

/// Quantizations to take where none was asked for, the best first.
const PREFERRED: [&str; 4] = ["Q4_K_M", "Q4_K_S", "Q4_0", "Q8_0"];

/// Candidates that an error lists.
const LISTED: usize = 12;

/// A model of a repository: `org/repo`, `org/repo:QUANT` or `org/repo/path/of/file.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `org/repo`.
    repo: String,
    which: Which,
}

/// Which file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    /// The only one, or one of [`PREFERRED`].
    Best,
    /// The one whose name says so.
    Quant(String),
    /// This one.
    File(String),
}

impl HubModel {
    /// Reads what follows `hf:`.
    ///
    /// # Errors
    ///
    /// [`SourceError::BadHubName`].
    pub(super) fn parse(given: &str) -> Result<HubModel, SourceError> {
        let bad = || SourceError::BadHubName { given: given.to_owned() };
        let mut parts = given.splitn(3, '/');
        let org = parts.next().filter(|s| is_name(s)).ok_or_else(bad)?;
        let rest = parts.next().ok_or_else(bad)?;
        let file = parts.next();
        let (name, quant) = match (rest.split_once(':'), file) {
            (Some((name, quant)), None) => (name, Some(quant)),
            (None, _) => (rest, None),
            (Some(_), Some(_)) => return Err(bad()),
        };
        let quant_ok = quant.is_none_or(|q| is_name(q) && !q.contains('.'));
        let file_ok = file.is_none_or(|f| {
            f.split('/').all(|p| !p.is_empty() && p != "." && p != ".." && !p.contains(['\\', '\0']))
        });
        if !is_name(name) || !quant_ok || !file_ok {
            return Err(bad());
        }
        let which = match (quant, file) {
            (Some(quant), _) => Which::Quant(quant.to_owned()),
            (_, Some(file)) => Which::File(file.to_owned()),
            _ => Which::Best,
        };
        Ok(HubModel { repo: format!("{org}/{name}"), which })
    }

    /// `org/repo`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The name of one file of the repository, as [`HubModel::parse`] reads it.
    pub(super) fn name_of(&self, file: &str) -> String {
        format!("hf:{}/{file}", self.repo)
    }

    /// Where the list of the repository's files is.
    pub(super) fn listing_url(&self, hub: &Url) -> Url {
        hub.with_path(&format!("api/models/{}", self.repo), "?blobs=true")
    }

    /// Where a file of one commit is.
    pub(super) fn file_url(&self, hub: &Url, commit: &str, file: &str) -> Url {
        hub.with_path(&format!("{}/resolve/{commit}/{file}", self.repo), "")
    }

    /// The files of the model that is meant, in the order of their parts.
    ///
    /// # Errors
    ///
    /// [`SourceError::NoHubFile`] if there is none, several, or not all parts.
    pub(super) fn choose<'a>(&self, listing: &'a Listing) -> Result<Vec<&'a HubFile>, SourceError> {
        let models = models(&listing.siblings);
        let refuse = |why: String, offered: &[Candidate<'_>]| SourceError::NoHubFile {
            repo: self.repo.clone(),
            why,
            offered: offered_text(&self.repo, offered),
        };
        let tagged = |quant: &str| -> Vec<Candidate<'a>> {
            models.iter().filter(|m| has_tag(m.stem, quant)).cloned().collect()
        };
        let found = match &self.which {
            Which::File(file) => {
                // Any part of a split model means all of it.
                models.iter().filter(|m| m.files.iter().any(|f| f.rfilename == *file)).cloned().collect()
            }
            Which::Quant(quant) => tagged(quant),
            Which::Best if models.len() == 1 => models.clone(),
            Which::Best => PREFERRED.iter().map(|q| tagged(q)).find(|m| !m.is_empty()).unwrap_or_default(),
        };
        let model = match found.as_slice() {
            [model] => model,
            [] if models.is_empty() => return Err(refuse("it has no GGUF files".to_owned(), &[])),
            [] => {
                let why = match &self.which {
                    Which::File(file) => format!("it has no GGUF file {file}"),
                    Which::Quant(quant) => format!("none of its GGUF files is of type {quant}"),
                    Which::Best => "it has several models and none is the obvious one".to_owned(),
                };
                return Err(refuse(why, &models));
            }
            several => return Err(refuse("several of its models are meant by that".to_owned(), several)),
        };
        if !model.complete() {
            let why = format!("parts of {} are missing", model.stem);
            return Err(refuse(why, &[]));
        }
        Ok(model.files.clone())
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            Which::Best => write!(f, "hf:{}", self.repo),
            Which::Quant(quant) => write!(f, "hf:{}:{quant}", self.repo),
            Which::File(file) => write!(f, "hf:{}/{file}", self.repo),
        }
    }
}

/// A name of the hub: letters, digits, `-`, `_`, `.`; not only dots.
pub(super) fn is_name(s: &str) -> bool {
    s.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && s.chars().any(|c| c != '.')
}

/// What the hub says about a repository.
#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    /// The commit that the list is of.
    pub(super) sha: String,
    #[serde(default)]
    pub(super) siblings: Vec<HubFile>,
}

/// A file of a repository.
#[derive(Debug, Deserialize)]
pub(super) struct HubFile {
    /// Its path in the repository.
    pub(super) rfilename: String,
    /// Bytes.
    pub(super) size: Option<u64>,
    /// Set if the file is kept in Git LFS.
    pub(super) lfs: Option<Lfs>,
}

/// What Git LFS knows about a file.
#[derive(Debug, Deserialize)]
pub(super) struct Lfs {
    pub(super) sha256: Option<String>,
    pub(super) size: Option<u64>,
}

impl HubFile {
    /// Bytes.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.lfs.as_ref().and_then(|lfs| lfs.size).or(self.size)
    }

    /// The hash of its content, in lower case, if the hub tells it.
    pub(super) fn sha256(&self) -> Option<String> {
        self.lfs.as_ref()?.sha256.as_deref().and_then(sha256_hex)
    }
}

/// A SHA-256 in lower-case hexadecimal, if `text` is one.
pub(super) fn sha256_hex(text: &str) -> Option<String> {
    (text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_ascii_lowercase())
}

/// A model of a listing: one file, or all parts of a split one.
#[derive(Clone)]
struct Candidate<'a> {
    /// Path without `.gguf` and the part's number.
    stem: &'a str,
    /// Number of parts.
    count: u32,
    /// In the order of parts.
    files: Vec<&'a HubFile>,
    numbers: Vec<u32>,
}

impl Candidate<'_> {
    fn complete(&self) -> bool {
        self.numbers.iter().copied().eq(1..=self.count)
    }
}

/// Groups the GGUF files of a repository. Image encoders and importance matrices are no models.
fn models(files: &[HubFile]) -> Vec<Candidate<'_>> {
    let mut models: Vec<Candidate<'_>> = Vec::new();
    let mut sorted: Vec<&HubFile> = files.iter().collect();
    sorted.sort_by(|a, b| a.rfilename.cmp(&b.rfilename));
    for file in sorted {
        let lower = file.rfilename.to_ascii_lowercase();
        if lower.contains("mmproj") || lower.contains("imatrix") {
            continue;
        }
        let Some(stem) = file.rfilename.strip_suffix(".gguf") else { continue };
        let (stem, number, count) = split_part(stem).unwrap_or((stem, 1, 1));
        match models.iter_mut().find(|m| m.stem == stem && m.count == count) {
            Some(model) => {
                model.files.push(file);
                model.numbers.push(number);
            }
            None => models.push(Candidate { stem, count, files: vec![file], numbers: vec![number] }),
        }
    }
    models
}

/// The stem, number and count in `NAME-00002-of-00003`.
pub(super) fn split_part(stem: &str) -> Option<(&str, u32, u32)> {
    let five = |s: &str| (s.len() == 5).then(|| s.parse().ok()).flatten();
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let (number, count) = (five(number)?, five(count)?);
    (1..=count).contains(&number).then_some((name, number, count))
}

/// Whether `quant` stands in a file's name as a word of its own, upper or lower case.
fn has_tag(stem: &str, quant: &str) -> bool {
    let name = stem.rsplit('/').next().unwrap_or(stem).to_ascii_lowercase();
    let quant = quant.to_ascii_lowercase();
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.match_indices(&quant)
        .any(|(at, _)| !name[..at].ends_with(inside) && !name[at + quant.len()..].starts_with(inside))
}

/// The end of an error: what could be asked for.
fn offered_text(repo: &str, models: &[Candidate<'_>]) -> String {
    if models.is_empty() {
        return String::new();
    }
    let mut text = String::from("; there are");
    for model in models.iter().take(LISTED) {
        let name = model.files.first().map_or(model.stem, |f| f.rfilename.as_str());
        text += &format!("\n  hf:{repo}/{name}");
    }
    if models.len() > LISTED {
        text += &format!("\n  and {} more", models.len() - LISTED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let file = |name: &&str| HubFile { rfilename: (*name).to_owned(), size: Some(1), lfs: None };
        Listing { sha: "c".to_owned(), siblings: names.iter().map(file).collect() }
    }

    fn chosen(source: &str, names: &[&str]) -> Result<Vec<String>, String> {
        let model = HubModel::parse(source).unwrap();
        model
            .choose(&listing(names))
            .map(|files| files.iter().map(|f| f.rfilename.clone()).collect())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn names_are_read_and_shown() {
        for good in ["a/b", "a/b:Q4_K_M", "a-1/b.c_d/e f/g.gguf", "a/b:UD-Q4_K_XL"] {
            assert_eq!(HubModel::parse(good).unwrap().to_string(), format!("hf:{good}"));
        }
        for bad in
            ["", "a", "a/", "/b", "a/b:", "a/b/../c", "a/b//c", "../b", "a/..", "a b/c", "a/b:q/c", "a/b/"]
        {
            assert!(HubModel::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_quantization_is_a_word_of_the_name() {
        assert!(
            has_tag("x/Model-1B-Q4_K_M", "q4_k_m") && has_tag("model.Q8_0", "Q8_0") && has_tag("f16", "F16")
        );
        assert!(has_tag("m-UD-Q4_K_XL", "UD-Q4_K_XL"));
        assert!(
            !has_tag("model-Q4_K_M", "Q4_K") && !has_tag("model-bf16", "f16") && !has_tag("Q8_0/a", "Q8_0")
        );
    }

    #[test]
    fn the_model_that_is_meant_is_chosen() {
        let files = ["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-f16.gguf", "m-imatrix.gguf"];
        assert_eq!(chosen("a/b", &files), Ok(vec!["m-Q4_K_M.gguf".to_owned()]));
        assert_eq!(chosen("a/b:q8_0", &files), Ok(vec!["m-Q8_0.gguf".to_owned()]));
        assert_eq!(chosen("a/b/m-Q8_0.gguf", &files), Ok(vec!["m-Q8_0.gguf".to_owned()]));
        assert_eq!(chosen("a/b", &["only-iq1_s.gguf", "x.txt"]), Ok(vec!["only-iq1_s.gguf".to_owned()]));
        let e = chosen("a/b:Q5_0", &files).unwrap_err();
        assert!(e.contains("Q5_0") && e.contains("hf:a/b/m-Q8_0.gguf") && !e.contains("mmproj"), "{e}");
        let e = chosen("a/b", &["m-IQ1_S.gguf", "m-IQ2_S.gguf"]).unwrap_err();
        assert!(e.contains("several") && e.contains("hf:a/b/m-IQ2_S.gguf"), "{e}");
        let e = chosen("a/b:Q8_0", &["m-Q8_0.gguf", "n-Q8_0.gguf"]).unwrap_err();
        assert!(e.contains("several") && e.contains("hf:a/b/n-Q8_0.gguf"), "{e}");
        assert!(chosen("a/b", &["model.safetensors"]).unwrap_err().contains("no GGUF files"));
        assert!(chosen("a/b/none.gguf", &files).unwrap_err().contains("no GGUF file none.gguf"));
    }

    #[test]
    fn a_split_model_is_all_of_its_parts() {
        let parts =
            ["q/m-Q8_0-00001-of-00003.gguf", "q/m-Q8_0-00002-of-00003.gguf", "q/m-Q8_0-00003-of-00003.gguf"];
        let shuffled = [parts[2], "m-Q4_0.gguf", parts[0], parts[1]];
        assert_eq!(chosen("a/b:Q8_0", &shuffled).unwrap(), parts);
        assert_eq!(chosen(&format!("a/b/{}", parts[1]), &shuffled).unwrap(), parts);
        assert!(chosen("a/b", &parts[1..]).unwrap_err().contains("parts of q/m-Q8_0 are missing"));
        assert_eq!(split_part("m-00002-of-00003"), Some(("m", 2, 3)));
        for none in ["m-2-of-3", "m", "m-00004-of-00003", "m-00000-of-00003", "m-0000x-of-00003"] {
            assert_eq!(split_part(none), None, "{none}");
        }
    }
}
