//! Conversations in files.
//!
//! `{"format": "minfer-chat", "version": 1, "model": …, "settings": …, "messages": […]}`. A reader refuses versions it does
//! not know, and fields too.

use std::io::Write;
use std::path::Path;

use minfer_gguf::Gguf;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Conversation, Settings};
use crate::Message;

const FORMAT: &str = "minfer-chat";
const VERSION: u64 = 1;

/// Longest file that is read: far more than any context holds.
const MAX_BYTES: u64 = 256 << 20;

/// Bytes of each tensor that the fingerprint covers.
const SAMPLE: usize = 4096;

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system says no.
    #[error("cannot {action} {path}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// It is something else.
    #[error("{path} is no chat of minfer: {what}")]
    NotAChat {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// Another version wrote it.
    #[error("{path} has version {found} of the chat format: this minfer reads version {VERSION}")]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u64,
    },
}

/// Which model a conversation was held with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelId {
    /// `general.name`, or the file's name.
    pub name: String,
    /// SHA-256 of every tensor's name, type, shape and first 4,096 bytes: quick for a file of any size, and different for
    /// different weights.
    pub fingerprint: String,
}

impl ModelId {
    /// Of a file.
    pub fn of(gguf: &Gguf) -> ModelId {
        let mut hash = Sha256::new();
        for tensor in gguf.tensors() {
            let data = tensor.data();
            hash.update(format!("{}\0{:?}\0{:?}\0", tensor.name(), tensor.ty(), tensor.dims()));
            hash.update(&data[..data.len().min(SAMPLE)]);
        }
        let named = gguf.metadata().str("general.name").ok().flatten().filter(|name| !name.is_empty());
        let file = || gguf.paths().next().and_then(Path::file_stem).unwrap_or_default().to_string_lossy();
        ModelId {
            name: named.map_or_else(|| file().into_owned(), str::to_owned),
            fingerprint: hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

/// A conversation as it is saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The model.
    pub model: ModelId,
    /// How it answered.
    pub settings: Settings,
    /// What was said.
    pub conversation: Conversation,
}

/// The file, in full.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    format: String,
    version: u64,
    model: ModelId,
    settings: Settings,
    messages: Vec<Message>,
}

/// What every version has.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

impl Record {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// All of [`RecordError`].
    pub fn load(path: &Path) -> Result<Record, RecordError> {
        let io = |error| RecordError::Io { action: "read", path: path.display().to_string(), error };
        let bad = |what: String| RecordError::NotAChat { path: path.display().to_string(), what };
        let metadata = std::fs::metadata(path).map_err(io)?;
        if !metadata.is_file() {
            // Opening a pipe would wait for somebody at its other end.
            return Err(bad("it is no regular file".to_owned()));
        }
        let length = metadata.len();
        if length > MAX_BYTES {
            return Err(bad(format!("{length} bytes, at most {MAX_BYTES} are read")));
        }
        let bytes = std::fs::read(path).map_err(io)?;
        let head: Head = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        if head.format != FORMAT {
            return Err(bad(format!("its format is '{}', expected '{FORMAT}'", head.format)));
        }
        if head.version != VERSION {
            return Err(RecordError::Version { path: path.display().to_string(), found: head.version });
        }
        let form: Form = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        let conversation = Conversation::new(form.messages).map_err(bad)?;
        Ok(Record { model: form.model, settings: form.settings, conversation })
    }

    /// Writes a file, all of it or nothing. One that is there is replaced if it is a chat too.
    ///
    /// # Errors
    ///
    /// [`RecordError::Io`]; [`RecordError::NotAChat`] if another file has that name.
    pub fn save(&self, path: &Path) -> Result<(), RecordError> {
        let io = |error| RecordError::Io { action: "write", path: path.display().to_string(), error };
        if path.exists() {
            match Record::load(path) {
                Ok(_) | Err(RecordError::Version { .. }) => {}
                Err(RecordError::NotAChat { path, what }) => {
                    let what = format!("{what}; it is left as it is");
                    return Err(RecordError::NotAChat { path, what });
                }
                Err(e) => return Err(e),
            }
        }
        let form = Form {
            format: FORMAT.to_owned(),
            version: VERSION,
            model: self.model.clone(),
            settings: self.settings.clone(),
            messages: self.conversation.messages().to_vec(),
        };
        let mut text = serde_json::to_vec_pretty(&form).map_err(|e| io(e.into()))?;
        text.push(b'\n');
        // Beside the file, so that renaming it cannot fail half way.
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.part", std::process::id()));
        let written = std::fs::File::create(&beside)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&beside, path));
        written.map_err(|error| {
            // If it cannot be removed either, the first error is the one to tell.
            let _ = std::fs::remove_file(&beside);
            io(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut conversation = Conversation::default();
        conversation.set_system(Some("s"));
        conversation.ask("q \"1\"\n");
        conversation.answer("a", "thought");
        let model = ModelId { name: "m".into(), fingerprint: "00".into() };
        Record { model, settings: Settings { temp: 0.1, ..Settings::default() }, conversation }
    }

    #[test]
    fn a_saved_chat_comes_back_and_replaces_only_chats() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chat.json");
        record().save(&path).unwrap();
        assert_eq!(Record::load(&path).unwrap(), record());
        let mut longer = record();
        longer.conversation.ask("q2");
        longer.save(&path).unwrap();
        assert_eq!(Record::load(&path).unwrap(), longer);
        let other = dir.path().join("notes.txt");
        std::fs::write(&other, "notes").unwrap();
        let e = record().save(&other).unwrap_err().to_string();
        assert!(e.contains("notes.txt") && e.contains("left as it is"), "{e}");
        assert_eq!(std::fs::read(&other).unwrap(), b"notes");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        let e = record().save(&dir.path().join("no/chat.json")).unwrap_err();
        assert!(matches!(e, RecordError::Io { action: "write", .. }), "{e}");
    }

    #[test]
    fn what_is_no_chat_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        record().save(&path).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        for (from, to, expected) in [
            ("minfer-chat", "other", "its format is 'other'"),
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("\"temp\"", "\"heat\"", "heat"),
            ("\"system\"", "\"tool\"", "'tool'"),
            ("\"messages\"", "\"massages\"", "massages"),
            ("{", "", "x.json"),
        ] {
            std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
            let e = Record::load(&path).unwrap_err().to_string();
            assert!(e.contains(expected) && e.contains("x.json"), "{e}");
        }
        let e = Record::load(&dir.path().join("none.json")).unwrap_err();
        assert!(matches!(e, RecordError::Io { action: "read", .. }), "{e}");
    }
}
