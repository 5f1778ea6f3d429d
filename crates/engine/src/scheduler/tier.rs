//! What the scheduler does for the prefix cache's second tier, a folder: blocks that are given up go there before a step
//! overwrites them, and prompts that begin with what is there get it back before they are computed.

use crate::executor::{Executor, StepError, TokenId};
use crate::kv::{Digest, Disk, Entry, Kv, after};

/// The second tier.
pub(super) struct Tier {
    disk: Disk,
    block_tokens: usize,
    /// Which groups have a sliding window: a block of these may be missing.
    windowed: Vec<bool>,
}

/// Blocks of a prompt that the folder may have, after those that are in memory.
pub(super) struct Wanted {
    /// Blocks in memory, and of the prompt.
    known: usize,
    all: usize,
    /// Digest of the tokens in memory.
    before: Digest,
}

impl Tier {
    pub(super) fn new(disk: Disk, block_tokens: usize, windowed: Vec<bool>) -> Tier {
        Tier { disk, block_tokens, windowed }
    }

    /// What the folder has of a prompt and memory does not, if anything.
    pub(super) fn wants(&self, kv: &Kv, prompt: &[TokenId]) -> Option<Wanted> {
        let (known, all) = kv.known_blocks(prompt);
        let mut edges = prompt.chunks_exact(self.block_tokens).take(all);
        let before = edges.by_ref().take(known).fold(self.disk.root(), |before, edge| after(&before, edge));
        let next = edges.next()?;
        self.disk.has(&after(&before, next)).then_some(Wanted { known, all, before })
    }

    /// Brings it back. No step is in flight.
    pub(super) fn restore<E: Executor>(
        &self,
        kv: &mut Kv,
        executor: &mut E,
        prompt: &[TokenId],
        wanted: &Wanted,
    ) -> Result<(), String> {
        let mut before = wanted.before;
        let mut restored = Vec::new();
        for index in wanted.known..wanted.all {
            let end = (index + 1) * self.block_tokens;
            let edge = &prompt[index * self.block_tokens..end];
            let Some(contents) = self.disk.load(&before, edge) else { break };
            let has: Vec<bool> = contents.iter().map(Option::is_some).collect();
            if has.iter().zip(&self.windowed).any(|(has, windowed)| !has && !windowed) {
                break;
            }
            let Some(blocks) = kv.adopt(&prompt[..end], &has) else { break };
            // Before anything is written over it.
            self.save(kv, executor, u64::MAX)?;
            for (group, (block, bytes)) in blocks.iter().zip(&contents).enumerate() {
                if let (Some(block), Some(bytes)) = (block, bytes) {
                    executor.write_block(group, *block, bytes).map_err(text)?;
                }
            }
            before = after(&before, edge);
            restored.push(before);
        }
        // What is of no use without the ones before is to go first.
        restored.iter().rev().for_each(|end| self.disk.touch(end));
        Ok(())
    }

    /// Keeps what the prefix cache has given up, of what steps up to number `done` have written.
    pub(super) fn save<E: Executor>(&self, kv: &mut Kv, executor: &mut E, done: u64) -> Result<(), String> {
        for entry in kv.take_leaving() {
            if entry.written_by <= done {
                self.keep(executor, &entry, false)?;
            }
        }
        Ok(())
    }

    /// Keeps all that is in memory, as much as fits: what was used last is written last. No step is in flight.
    pub(super) fn save_all<E: Executor>(
        &self,
        kv: &mut Kv,
        executor: &mut E,
        done: u64,
    ) -> Result<(), String> {
        self.save(kv, executor, done)?;
        let block: u64 = self.disk.sizes().iter().map(|size| *size as u64).sum();
        let most = (self.disk.bytes() / block.max(1)).try_into().unwrap_or(usize::MAX);
        let entries: Vec<Entry> = kv.entries().filter(|entry| entry.written_by <= done).take(most).collect();
        entries.iter().rev().try_for_each(|entry| self.keep(executor, entry, true))
    }

    fn keep<E: Executor>(&self, executor: &mut E, entry: &Entry, wait: bool) -> Result<(), String> {
        let mut edges = entry.tokens.chunks_exact(self.block_tokens);
        let Some(edge) = edges.next_back() else { return Ok(()) };
        let before = edges.fold(self.disk.root(), |before, edge| after(&before, edge));
        let end = after(&before, edge);
        if self.disk.has(&end) {
            self.disk.touch(&end);
            return Ok(());
        }
        let blocks = entry.blocks.iter().zip(self.disk.sizes()).enumerate().map(|(group, (block, size))| {
            let Some(block) = block else { return Ok(None) };
            let mut bytes = vec![0; *size];
            executor.read_block(group, *block, &mut bytes).map_err(text)?;
            Ok(Some(bytes))
        });
        self.disk.store(before, edge, blocks.collect::<Result<_, String>>()?, wait);
        Ok(())
    }
}

fn text(error: StepError) -> String {
    error.to_string()
}
