//! The second tier of the prefix cache: a folder of files, each with the keys and values of one block of tokens.
//!
//! A file is named after the SHA-256 of all that its bits depend on: [`DiskConfig::identity`], then the tokens from the
//! beginning to the end of its block, block by block. So files of different models, builds and types live side by side and
//! never meet, and so do processes: what two of them write under one name is the same. A file is written under a name of its
//! own, then renamed; whoever reads it checks its own SHA-256 first. What is not whole, or not what its name says, is removed
//! with a warning, and as if it had never been.
//!
//! ```text
//! magic "minferKV", version u32, groups u32, identity [32], digest of the tokens before [32],
//! tokens u32, their ids u32…, bytes of each group u64… (0: it has none), these bytes, SHA-256 of all of it [32]
//! ```
//! All numbers are little-endian. When a file was last used is its time of modification; the folder is kept below
//! [`DiskConfig::bytes`] by removing what was used longest ago.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use crate::executor::TokenId;

const MAGIC: &[u8; 8] = b"minferKV";
const VERSION: u32 = 1;
const EXTENSION: &str = "kv";
/// What a process that ended while it wrote leaves behind has this extension, and is removed after so long.
const UNFINISHED: &str = "tmp";
const UNFINISHED_STEM: &str = "minfer-block-";
const UNFINISHED_AFTER: Duration = Duration::from_secs(3600);
/// Blocks that wait to be written at most, and bytes of them. Further ones are not kept: the device goes on.
const QUEUE: usize = 4096;
const QUEUE_BYTES: u64 = 256 << 20;

/// A folder for what the prefix cache gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The folder; made if it is not there.
    pub dir: PathBuf,
    /// Bytes of all files of the cache in it, at most.
    pub bytes: u64,
    /// A hash of all that the bits of keys and values depend on besides tokens: model, build, device, numerics, types of the
    /// cache.
    pub identity: [u8; 32],
}

/// SHA-256.
pub(crate) type Digest = [u8; 32];

/// Keys and values of a block of tokens, of each group that has them.
pub(crate) type Blocks = Vec<Option<Vec<u8>>>;

/// The folder.
#[derive(Debug)]
pub(crate) struct Disk {
    config: DiskConfig,
    /// Bytes of a block of each group.
    sizes: Vec<usize>,
    entries: Option<SyncSender<Entry>>,
    /// Bytes of the blocks that wait.
    waiting: Arc<AtomicU64>,
    writer: Option<JoinHandle<()>>,
}

/// A block on its way to the folder.
struct Entry {
    before: Digest,
    tokens: Vec<TokenId>,
    blocks: Blocks,
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.blocks.iter().flatten().map(|block| block.len() as u64).sum()
    }
}

/// Why a file is of no use.
#[derive(Debug, PartialEq, thiserror::Error)]
enum Damage {
    #[error("it is shorter or longer than it says")]
    Length,
    #[error("it is no file of this cache")]
    Magic,
    #[error("it has version {0}, this is {VERSION}")]
    Version(u32),
    #[error("its checksum does not match")]
    Checksum,
    #[error("it is another model's, another build's, or of other tokens")]
    Foreign,
}

impl Disk {
    /// Opens the folder for blocks of so many bytes of each group.
    pub(crate) fn open(config: DiskConfig, sizes: Vec<usize>) -> io::Result<Disk> {
        fs::create_dir_all(&config.dir)?;
        // Now is when somebody reads what is wrong with it.
        let probe = config.dir.join(unfinished_name());
        File::create(&probe)?;
        fs::remove_file(&probe)?;
        let (entries, queue) = mpsc::sync_channel(QUEUE);
        let waiting = Arc::new(AtomicU64::new(0));
        let writer = std::thread::Builder::new().name("minfer-cache".into()).spawn({
            let (config, waiting) = (config.clone(), waiting.clone());
            move || write_all(&config, &queue, &waiting)
        })?;
        Ok(Disk { config, sizes, entries: Some(entries), waiting, writer: Some(writer) })
    }

    /// The digest of no tokens.
    pub(crate) fn root(&self) -> Digest {
        digest([b"minfer prefix".as_slice(), &self.config.identity])
    }

    /// Bytes of a block of each group.
    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Bytes that the folder may have.
    pub(crate) fn bytes(&self) -> u64 {
        self.config.bytes
    }

    /// Whether there is a file for the tokens of a digest.
    pub(crate) fn has(&self, end: &Digest) -> bool {
        self.path(end).is_file()
    }

    fn path(&self, end: &Digest) -> PathBuf {
        self.config.dir.join(name(end))
    }

    /// The blocks of `tokens` after those of `before`; `None` if there is no file, or none that can be used.
    pub(crate) fn load(&self, before: &Digest, tokens: &[TokenId]) -> Option<Blocks> {
        let path = self.path(&after(before, tokens));
        let most = file_len(tokens.len(), self.sizes.iter().map(|size| *size as u64), self.sizes.len());
        let bytes = match read_up_to(&path, most) {
            Ok(bytes) => bytes,
            // Another process may have removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("{}: {error}; what it holds is computed again", path.display());
                return None;
            }
        };
        match parse(&bytes, &self.config.identity, before, tokens, &self.sizes) {
            Ok(blocks) => Some(blocks),
            Err(damage) => {
                tracing::warn!("{}: {damage}; it is removed, and computed again", path.display());
                // If that fails it is found wrong again.
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// The files of these digests were just used.
    pub(crate) fn touch(&self, end: &Digest) {
        // Only the order of removal depends on it.
        let _ = File::open(self.path(end)).and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Keeps a block. If too many are being written it waits, or if `wait` is false does not keep it.
    pub(crate) fn store(&self, before: Digest, tokens: &[TokenId], blocks: Blocks, wait: bool) {
        let Some(entries) = &self.entries else { return };
        let entry = Entry { before, tokens: tokens.to_vec(), blocks };
        while self.waiting.load(Ordering::Relaxed) > QUEUE_BYTES {
            if !wait {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = entry.bytes();
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        // The writer ends only after its sender.
        let sent = if wait { entries.send(entry).is_ok() } else { entries.try_send(entry).is_ok() };
        if !sent {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Disk {
    /// Waits until all is written.
    fn drop(&mut self) {
        self.entries = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// The digest of tokens that end with `tokens` after those of `before`.
pub(crate) fn after(before: &Digest, tokens: &[TokenId]) -> Digest {
    let mut hash = Sha256::new_with_prefix(before);
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().into()
}

fn digest<const N: usize>(parts: [&[u8]; N]) -> Digest {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

fn name(end: &Digest) -> String {
    let hex: String = end.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.{EXTENSION}")
}

/// Whether a file that the cache wrote is whole, by its name; `None` of all other files.
fn is_own(path: &Path) -> Option<bool> {
    let (stem, extension) = (path.file_stem()?.to_str()?, path.extension()?.to_str()?);
    match extension {
        EXTENSION if stem.len() == 64 && stem.bytes().all(|b| b.is_ascii_hexdigit()) => Some(true),
        UNFINISHED if stem.starts_with(UNFINISHED_STEM) => Some(false),
        _ => None,
    }
}

/// A name that no other process or thread uses.
fn unfinished_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{UNFINISHED_STEM}{}-{count}.{UNFINISHED}", std::process::id())
}

/// Bytes of a file with blocks of `sizes`.
fn file_len(tokens: usize, sizes: impl Iterator<Item = u64>, groups: usize) -> u64 {
    let header = 8 + 4 + 4 + 32 + 32 + 4 + 4 * tokens as u64 + 8 * groups as u64;
    sizes.fold(header + 32, u64::saturating_add)
}

fn read_up_to(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One more, so that what is too long is seen to be.
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The header of a file: all before the bytes of its blocks.
fn header(identity: &Digest, before: &Digest, tokens: &[TokenId], sizes: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(file_len(tokens.len(), std::iter::empty(), sizes.len()) as usize);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(sizes.len() as u32).to_le_bytes());
    bytes.extend_from_slice(identity);
    bytes.extend_from_slice(before);
    bytes.extend_from_slice(&(tokens.len() as u32).to_le_bytes());
    tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
    sizes.iter().for_each(|size| bytes.extend_from_slice(&size.to_le_bytes()));
    bytes
}

/// The blocks of a file that is to hold `tokens` after `before`.
fn parse(
    bytes: &[u8],
    identity: &Digest,
    before: &Digest,
    tokens: &[TokenId],
    sizes: &[usize],
) -> Result<Blocks, Damage> {
    if bytes.first_chunk() != Some(MAGIC) {
        return Err(Damage::Magic);
    }
    let version = bytes[8..].first_chunk().map(|v| u32::from_le_bytes(*v)).ok_or(Damage::Length)?;
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let (content, checksum) = bytes.split_last_chunk::<32>().ok_or(Damage::Length)?;
    if digest([content]) != *checksum {
        return Err(Damage::Checksum);
    }
    // What is right for its checksum differs only if somebody renamed it.
    let len = file_len(tokens.len(), std::iter::empty(), sizes.len()) as usize - 32;
    let (found, mut rest) = content.split_at_checked(len).ok_or(Damage::Foreign)?;
    let counts =
        found[len - 8 * sizes.len()..].chunks_exact(8).map(|c| c.try_into().map_or(0, u64::from_le_bytes));
    let counts: Vec<u64> = counts.collect();
    if found != header(identity, before, tokens, &counts) {
        return Err(Damage::Foreign);
    }
    let blocks = counts.iter().zip(sizes).map(|(&count, &size)| {
        if count == 0 {
            return Ok(None);
        }
        let (block, after) =
            rest.split_at_checked(size).filter(|_| count == size as u64).ok_or(Damage::Foreign)?;
        rest = after;
        Ok(Some(block.to_vec()))
    });
    let blocks = blocks.collect::<Result<Blocks, Damage>>()?;
    if rest.is_empty() { Ok(blocks) } else { Err(Damage::Foreign) }
}

/// The writer's life.
fn write_all(config: &DiskConfig, queue: &Receiver<Entry>, waiting: &AtomicU64) {
    let mut works = true;
    // Bytes that may be written until it is time to look at the folder, in which others write too.
    let mut left = 0;
    for entry in queue {
        let bytes = entry.bytes();
        let write = |left: &mut u64| -> io::Result<()> {
            write(config, &entry)?;
            *left = match left.checked_sub(bytes) {
                Some(left) => left,
                None => trim(config)? / 2,
            };
            Ok(())
        };
        if works && let Err(error) = write(&mut left) {
            tracing::warn!("{}: {error}; the cache writes nothing more there", config.dir.display());
            works = false;
        }
        waiting.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn write(config: &DiskConfig, entry: &Entry) -> io::Result<()> {
    let path = config.dir.join(name(&after(&entry.before, &entry.tokens)));
    let sizes: Vec<u64> = entry.blocks.iter().map(|b| b.as_ref().map_or(0, |b| b.len() as u64)).collect();
    if path.is_file() || file_len(entry.tokens.len(), sizes.iter().copied(), sizes.len()) > config.bytes {
        return Ok(());
    }
    let mut bytes = header(&config.identity, &entry.before, &entry.tokens, &sizes);
    entry.blocks.iter().flatten().for_each(|block| bytes.extend_from_slice(block));
    let checksum = digest([&bytes]);
    bytes.extend_from_slice(&checksum);
    let unfinished = config.dir.join(unfinished_name());
    let written = write_file(&unfinished, &bytes).and_then(|()| fs::rename(&unfinished, &path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    // The file system's own clock may be too coarse for the order of files.
    file.set_modified(SystemTime::now())
}

/// Removes what others left unfinished and, if there is more than fits, what was used longest ago, until there is some room
/// again; says how many bytes still fit.
fn trim(config: &DiskConfig) -> io::Result<u64> {
    let now = SystemTime::now();
    let mut files = Vec::new();
    for file in fs::read_dir(&config.dir)? {
        let path = file?.path();
        let Some(whole) = is_own(&path) else { continue };
        // Others remove files too.
        let Ok(meta) = fs::metadata(&path) else { continue };
        let used = meta.modified().unwrap_or(now);
        if whole {
            files.push((used, meta.len(), path));
        } else if now.duration_since(used).is_ok_and(|age| age > UNFINISHED_AFTER) {
            let _ = fs::remove_file(&path);
        }
    }
    files.sort_unstable();
    let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
    let most = if total > config.bytes { config.bytes - config.bytes / 16 } else { config.bytes };
    for (_, len, path) in files {
        if total <= most {
            break;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => total -= len,
        }
    }
    Ok(config.bytes.saturating_sub(total))
}

#[cfg(test)]
mod tests;
