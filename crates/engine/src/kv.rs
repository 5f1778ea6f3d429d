//! KV block accounting: which physical blocks hold which positions of which sequence.
//!
//! Numbers only; the memory is the executor's. A sequence is admitted with a promise of positions, so that growing
//! it within the promise never fails; blocks are taken when positions are about to be written, and given back when no
//! token of a coming step can see them any more.
//!
//! With a prefix cache ([`Kv::with_prefix_cache`]) whole blocks outlive their sequence: a later one that begins with the same
//! tokens takes them over ([`Kv::admit_prompt`]). Blocks that only the cache has are as good as free: they are taken when no
//! other is left.

mod disk;
mod prefix;

pub use disk::DiskConfig;
pub(crate) use disk::{Digest, Disk, after};
pub(crate) use prefix::Entry;

use crate::executor::{BlockTable, CacheGroup, Limits, TokenId};
use prefix::{NodeId, Prefixes, ROOT};

/// Why blocks are refused. Every refusal leaves the accounts as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// An executor with impossible limits.
    #[error("the executor's {field} is 0")]
    Limits {
        /// Which limit.
        field: &'static str,
    },
    /// Not enough blocks that nobody has been promised.
    #[error("cache group {group}: {needed} blocks needed, {free} free")]
    Exhausted {
        /// Index of the cache group.
        group: usize,
        /// Blocks asked for.
        needed: usize,
        /// Blocks left.
        free: usize,
    },
    /// More positions than the sequence was promised.
    #[error("{found} positions, only {promised} were promised")]
    Promise {
        /// Positions asked for.
        found: usize,
        /// Positions promised.
        promised: usize,
    },
    /// More tokens in one step than the accounts were made for.
    #[error("{found} tokens in one step, at most {max} are allowed")]
    StepTokens {
        /// Tokens asked for.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// A step that starts behind the end of what has been written.
    #[error("a step at position {position} of a sequence of {len}")]
    Gap {
        /// First position of the step.
        position: usize,
        /// Positions written.
        len: usize,
    },
    /// A sliding window has moved past what a token at `position` would see.
    #[error("cache group {group} no longer holds what position {position} sees")]
    Window {
        /// Index of the cache group.
        group: usize,
        /// Position to go back to.
        position: usize,
    },
    /// A write to a block that another sequence also has.
    #[error("cache group {group}: position {position} is in a shared block")]
    Shared {
        /// Index of the cache group.
        group: usize,
        /// Position to be written.
        position: usize,
    },
}

/// Blocks that a sequence of `positions` tokens holds at most in a group, when no step writes more than `step_tokens`
/// of them. This is exact for full groups; for sliding windows it is the worst alignment to block borders.
pub fn blocks_needed(
    window: Option<usize>,
    positions: usize,
    step_tokens: usize,
    block_tokens: usize,
) -> usize {
    let full = positions.div_ceil(block_tokens);
    // The first token of a step sees `window − 1` positions before those that the step writes.
    let span = window.map(|w| w.saturating_add(step_tokens.min(positions)).saturating_sub(1));
    span.map_or(full, |span| {
        full.min(span.saturating_add(block_tokens - 1).saturating_sub(1) / block_tokens + 1)
    })
}

/// The blocks of one cache group, counted by reference.
#[derive(Debug)]
struct BlockPool {
    spec: CacheGroup,
    /// References per block; 0 is free.
    refs: Vec<u32>,
    /// Free blocks; the one freed last is taken first, while its memory may still be warm.
    free: Vec<u32>,
    /// Blocks promised to live sequences, taken or not.
    promised: usize,
}

impl BlockPool {
    fn new(spec: CacheGroup) -> Self {
        let free = (0..spec.blocks as u32).rev().collect();
        BlockPool { spec, refs: vec![0; spec.blocks], free, promised: 0 }
    }

    fn share(&mut self, block: u32) {
        self.refs[block as usize] += 1;
    }

    fn give_back(&mut self, block: u32) {
        let refs = &mut self.refs[block as usize];
        *refs -= 1;
        if *refs == 0 {
            self.free.push(block);
        }
    }

    /// First position that a token at `position` sees.
    fn seen_from(&self, position: usize) -> usize {
        self.spec.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// What one sequence holds. Give it back with [`Kv::release`]. The default one is promised nothing.
#[derive(Debug, Default)]
#[must_use = "its blocks come back only by Kv::release"]
pub struct Sequence {
    /// Positions written, or about to be by a step that has been planned.
    len: usize,
    /// Positions it may grow to.
    promised: usize,
    /// One per cache group.
    tables: Vec<BlockTable>,
    /// Where its path in the prefix cache ends, and after how many blocks.
    node: NodeId,
    remembered: usize,
}

impl Sequence {
    /// Positions written.
    #[expect(clippy::len_without_is_empty, reason = "a count of positions, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Positions it may grow to.
    pub fn promised(&self) -> usize {
        self.promised
    }

    /// One per cache group.
    pub fn tables(&self) -> &[BlockTable] {
        &self.tables
    }
}

/// The accounts of an executor's cache.
#[derive(Debug)]
pub struct Kv {
    block_tokens: usize,
    step_tokens: usize,
    pools: Vec<BlockPool>,
    prefixes: Option<Prefixes>,
    /// What the prefix cache has given up, if somebody wants to know.
    leaving: Option<Vec<Entry>>,
    /// Steps that have been submitted.
    steps: u64,
}

impl Kv {
    /// Accounts for steps that write at most `step_tokens` tokens of one sequence.
    pub fn new(limits: &Limits, step_tokens: usize) -> Result<Self, KvError> {
        let sizes = [
            ("block_tokens", limits.block_tokens),
            ("context", limits.context),
            ("max_tokens", step_tokens),
            ("max_outputs", limits.max_outputs),
        ];
        if let Some(&(field, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(KvError::Limits { field });
        }
        if limits.groups.iter().any(|group| group.window == Some(0)) {
            return Err(KvError::Limits { field: "window" });
        }
        let pools = limits.groups.iter().copied().map(BlockPool::new).collect();
        Ok(Kv {
            block_tokens: limits.block_tokens,
            step_tokens,
            pools,
            prefixes: None,
            leaving: None,
            steps: 0,
        })
    }

    /// The same accounts, which remember what blocks hold.
    pub fn with_prefix_cache(self) -> Self {
        Kv { prefixes: Some(Prefixes::new()), ..self }
    }

    /// The same accounts, which note what the prefix cache gives up, for [`Kv::take_leaving`].
    pub(crate) fn noting_what_leaves(self) -> Self {
        Kv { leaving: Some(Vec::new()), ..self }
    }

    /// What the prefix cache has given up since it was asked last. The blocks are still as they were, until a step that has been
    /// planned since is submitted.
    pub(crate) fn take_leaving(&mut self) -> Vec<Entry> {
        self.leaving.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// All that the prefix cache has, what was used last first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let nodes =
            self.prefixes.iter().flat_map(|prefixes| prefixes.by_use().rev().map(move |id| (prefixes, id)));
        nodes.filter_map(|(prefixes, id)| prefixes.entry(id))
    }

    /// So many steps have been submitted: what is remembered from now on was written by them.
    pub(crate) fn set_steps(&mut self, submitted: u64) {
        self.steps = submitted;
    }

    /// Whole blocks at the beginning of `prompt`, less its last token, that the prefix cache has, and could have.
    pub(crate) fn known_blocks(&self, prompt: &[TokenId]) -> (usize, usize) {
        let prompt = &prompt[..prompt.len().saturating_sub(1)];
        let known =
            self.prefixes.as_ref().map_or(0, |prefixes| prefixes.path(prompt, self.block_tokens).len());
        (known, prompt.len() / self.block_tokens)
    }

    /// Whether a sequence of `positions` tokens can be admitted.
    pub(crate) fn can_admit(&self, positions: usize) -> bool {
        self.pools.iter().all(|pool| self.need(pool, positions) <= pool.spec.blocks - pool.promised)
    }

    /// Has the prefix cache know the last block of `tokens`, all others of which it knows: takes a block of each group that
    /// `has` one, and says which. `None` if there is none that nobody uses; then nothing has changed.
    pub(crate) fn adopt(&mut self, tokens: &[TokenId], has: &[bool]) -> Option<Vec<Option<u32>>> {
        let (before, edge) = tokens.split_at_checked(tokens.len().checked_sub(self.block_tokens)?)?;
        let prefixes = self.prefixes.as_mut()?;
        let path = prefixes.path(before, self.block_tokens);
        let at = path.last().copied().unwrap_or(ROOT);
        if path.len() * self.block_tokens != before.len() || prefixes.child(at, edge).is_some() {
            return None;
        }
        // Making room must not take the path away.
        prefixes.move_pin(ROOT, at);
        prefixes.touch(at);
        let mut blocks: Vec<Option<u32>> = Vec::new();
        for (group, has) in has.iter().enumerate() {
            let block = if *has { self.take(group).map(Some) } else { Some(None) };
            match block {
                Some(block) => blocks.push(block),
                None => break,
            }
        }
        let whole = blocks.len() == has.len();
        let prefixes = self.prefixes.as_mut()?;
        if whole {
            let node = prefixes.add(at, edge, blocks.clone());
            prefixes.touch(node);
        } else {
            let taken = blocks.iter().enumerate().filter_map(|(group, block)| Some((group, (*block)?)));
            taken.for_each(|(group, block)| self.pools[group].give_back(block));
        }
        prefixes.move_pin(at, ROOT);
        whole.then_some(blocks)
    }

    /// Positions that a sequence alone could have.
    pub fn capacity(&self) -> usize {
        let of = |pool: &BlockPool| match self.need(pool, usize::MAX) <= pool.spec.blocks {
            true => usize::MAX,
            false => pool.spec.blocks.saturating_mul(self.block_tokens),
        };
        self.pools.iter().map(of).min().unwrap_or(usize::MAX)
    }

    /// Begins a sequence of up to `positions` tokens, if the blocks for all of them can be promised.
    pub fn admit(&mut self, positions: usize) -> Result<Sequence, KvError> {
        for (group, pool) in self.pools.iter().enumerate() {
            let (needed, free) = (self.need(pool, positions), pool.spec.blocks - pool.promised);
            if needed > free {
                return Err(KvError::Exhausted { group, needed, free });
            }
        }
        self.promise(positions, |promised, need| promised + need);
        let tables = vec![BlockTable::default(); self.pools.len()];
        Ok(Sequence { promised: positions, tables, ..Sequence::default() })
    }

    /// Lets a sequence grow to `positions` tokens, if the blocks for them can be promised; it never promises less than before.
    pub fn extend(&mut self, sequence: &mut Sequence, positions: usize) -> Result<(), KvError> {
        let positions = positions.max(sequence.promised);
        let more = |pool: &BlockPool| self.need(pool, positions) - self.need(pool, sequence.promised);
        for (group, pool) in self.pools.iter().enumerate() {
            let (needed, free) = (more(pool), pool.spec.blocks - pool.promised);
            if needed > free {
                return Err(KvError::Exhausted { group, needed, free });
            }
        }
        self.promise(sequence.promised, |promised, need| promised - need);
        self.promise(positions, |promised, need| promised + need);
        sequence.promised = positions;
        Ok(())
    }

    /// Begins a sequence of up to `positions` tokens of which `prompt` are the first. [`Sequence::len`] says how many of
    /// them are in the cache already: whole blocks, and never all of the prompt, whose last token has yet to be asked what
    /// comes next.
    pub fn admit_prompt(&mut self, prompt: &[TokenId], positions: usize) -> Result<Sequence, KvError> {
        let mut sequence = self.admit(positions.max(prompt.len()))?;
        let Some(prefixes) = &mut self.prefixes else { return Ok(sequence) };
        let block_tokens = self.block_tokens;
        let path = prefixes.path(&prompt[..prompt.len().saturating_sub(1)], block_tokens);
        // As many blocks of it as leave every window with all that the next position sees.
        let first_of = |pool: &BlockPool, blocks: usize| pool.seen_from(blocks * block_tokens) / block_tokens;
        let usable = (1..=path.len()).rev().find(|&blocks| {
            self.pools.iter().enumerate().all(|(group, pool)| {
                let first = first_of(pool, blocks).min(blocks);
                path[first..blocks].iter().all(|&node| prefixes.block(node, group).is_some())
            })
        });
        let Some(blocks) = usable else { return Ok(sequence) };
        for (group, (pool, table)) in self.pools.iter_mut().zip(&mut sequence.tables).enumerate() {
            table.first = first_of(pool, blocks).min(blocks);
            table.blocks.extend(path[table.first..blocks].iter().filter_map(|&n| prefixes.block(n, group)));
            table.blocks.iter().for_each(|&block| pool.share(block));
        }
        sequence.len = blocks * block_tokens;
        (sequence.node, sequence.remembered) = (path[blocks - 1], blocks);
        prefixes.move_pin(ROOT, sequence.node);
        prefixes.touch(sequence.node);
        Ok(sequence)
    }

    /// Remembers the whole blocks of a sequence's first `computed` positions, whose tokens are `tokens`. Where another
    /// sequence has computed the same, the sequence goes on with that one's blocks, whose bits are the same.
    pub fn remember(&mut self, sequence: &mut Sequence, tokens: &[TokenId], computed: usize) {
        let Some(prefixes) = &mut self.prefixes else { return };
        let whole = computed.min(tokens.len()).min(sequence.len) / self.block_tokens;
        if whole <= sequence.remembered {
            return;
        }
        let mut at = sequence.node;
        for (index, edge) in
            tokens.chunks_exact(self.block_tokens).enumerate().take(whole).skip(sequence.remembered)
        {
            let known = prefixes.child(at, edge);
            let next = known.unwrap_or_else(|| prefixes.add(at, edge, vec![None; self.pools.len()]));
            for (group, (pool, table)) in self.pools.iter_mut().zip(&mut sequence.tables).enumerate() {
                let own = index.checked_sub(table.first).and_then(|place| table.blocks.get_mut(place));
                // A window may have moved past it.
                let Some(own) = own else { continue };
                match prefixes.block(next, group) {
                    Some(block) if block == *own => {}
                    Some(block) => {
                        pool.share(block);
                        pool.give_back(std::mem::replace(own, block));
                    }
                    None => {
                        pool.share(*own);
                        prefixes.set_block(next, group, *own);
                    }
                }
            }
            prefixes.set_written_by(next, self.steps);
            at = next;
        }
        prefixes.move_pin(sequence.node, at);
        prefixes.touch(at);
        (sequence.node, sequence.remembered) = (at, whole);
    }

    /// A block that nobody has: a free one, or one that only the prefix cache has.
    fn take(&mut self, group: usize) -> Option<u32> {
        while self.pools[group].free.is_empty() {
            let (pool, prefixes) = (&self.pools[group], self.prefixes.as_mut()?);
            let windowed = pool.spec.window.is_some();
            let id = prefixes.dispensable(group, windowed, |block| pool.refs[block as usize] == 1)?;
            if let Some(leaving) = &mut self.leaving {
                leaving.extend(prefixes.entry(id));
            }
            let given_up = prefixes.give_up(id, group, windowed)?;
            given_up.into_iter().for_each(|(group, block)| self.pools[group].give_back(block));
        }
        let block = self.pools[group].free.pop()?;
        self.pools[group].refs[block as usize] = 1;
        Some(block)
    }

    /// Prepares a step that writes the positions `start..start + tokens`: drops the blocks that none of its tokens
    /// sees, and takes those that are missing. Asking again for what is covered changes nothing.
    pub fn cover(&mut self, sequence: &mut Sequence, start: usize, tokens: usize) -> Result<(), KvError> {
        let end = start.saturating_add(tokens);
        self.check_cover(sequence, start, tokens, end)?;
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let pool = &mut self.pools[group];
            let first = pool.seen_from(start) / self.block_tokens;
            let unseen = (first - table.first).min(table.blocks.len());
            for block in table.blocks.drain(..unseen) {
                pool.give_back(block);
            }
            table.first = first;
            let missing = end.div_ceil(self.block_tokens).saturating_sub(first + table.blocks.len());
            // The promise: there are always that many.
            let taken = (0..missing).map_while(|_| self.take(group));
            table.blocks.extend(taken);
        }
        sequence.len = end;
        Ok(())
    }

    fn check_cover(
        &self,
        sequence: &Sequence,
        start: usize,
        tokens: usize,
        end: usize,
    ) -> Result<(), KvError> {
        if tokens > self.step_tokens {
            return Err(KvError::StepTokens { found: tokens, max: self.step_tokens });
        }
        if end > sequence.promised {
            return Err(KvError::Promise { found: end, promised: sequence.promised });
        }
        if start > sequence.len {
            return Err(KvError::Gap { position: start, len: sequence.len });
        }
        self.check_back(sequence, start)?;
        for (group, (pool, table)) in self.pools.iter().zip(&sequence.tables).enumerate() {
            let written = table.blocks.iter().skip((start / self.block_tokens).saturating_sub(table.first));
            if written.into_iter().any(|&block| pool.refs[block as usize] > 1) {
                return Err(KvError::Shared { group, position: start });
            }
        }
        Ok(())
    }

    /// Whether every group still has what a token at `position` sees.
    fn check_back(&self, sequence: &Sequence, position: usize) -> Result<(), KvError> {
        for (group, (pool, table)) in self.pools.iter().zip(&sequence.tables).enumerate() {
            if pool.seen_from(position) / self.block_tokens < table.first {
                return Err(KvError::Window { group, position });
            }
        }
        Ok(())
    }

    /// Forgets the positions from `len` on.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) -> Result<(), KvError> {
        if len >= sequence.len {
            return Ok(());
        }
        self.check_back(sequence, len)?;
        for (pool, table) in self.pools.iter_mut().zip(&mut sequence.tables) {
            let kept = len.div_ceil(self.block_tokens).saturating_sub(table.first).min(table.blocks.len());
            for block in table.blocks.drain(kept..) {
                pool.give_back(block);
            }
        }
        sequence.len = len;
        if let Some(prefixes) = &mut self.prefixes {
            let kept = sequence.remembered.min(len / self.block_tokens);
            let node = (kept..sequence.remembered).fold(sequence.node, |node, _| prefixes.parent(node));
            prefixes.move_pin(sequence.node, node);
            (sequence.node, sequence.remembered) = (node, kept);
        }
        Ok(())
    }

    /// The same, so that the positions from there on may be written anew: where their block is others' too, all of it is
    /// forgotten. [`Sequence::len`] says how many positions are left.
    pub fn rewind(&mut self, sequence: &mut Sequence, len: usize) -> Result<(), KvError> {
        let block = len / self.block_tokens;
        let shared = self.pools.iter().zip(&sequence.tables).any(|(pool, table)| {
            let own = block.checked_sub(table.first).and_then(|place| table.blocks.get(place));
            own.is_some_and(|&own| pool.refs[own as usize] > 1)
        });
        self.truncate(sequence, if shared { block * self.block_tokens } else { len })
    }

    /// Begins a sequence that shares the whole blocks of another's first `len` positions; its [`Sequence::len`] says
    /// how many positions those are. Shared blocks are read only; what follows is written to blocks of its own.
    pub fn fork(&mut self, of: &Sequence, len: usize, positions: usize) -> Result<Sequence, KvError> {
        let len = len.min(of.len) / self.block_tokens * self.block_tokens;
        self.check_back(of, len)?;
        let mut fork = self.admit(positions.max(len))?;
        for ((pool, table), from) in self.pools.iter_mut().zip(&mut fork.tables).zip(&of.tables) {
            let whole = (len / self.block_tokens).saturating_sub(from.first).min(from.blocks.len());
            *table = BlockTable { first: from.first, blocks: from.blocks[..whole].to_vec() };
            table.blocks.iter().for_each(|&block| pool.share(block));
        }
        fork.len = len;
        Ok(fork)
    }

    /// Ends a sequence.
    pub fn release(&mut self, sequence: Sequence) {
        for (pool, table) in self.pools.iter_mut().zip(&sequence.tables) {
            table.blocks.iter().for_each(|&block| pool.give_back(block));
        }
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.move_pin(sequence.node, ROOT);
        }
        self.promise(sequence.promised, |promised, need| promised - need);
    }

    fn need(&self, pool: &BlockPool, positions: usize) -> usize {
        blocks_needed(pool.spec.window, positions, self.step_tokens, self.block_tokens)
    }

    fn promise(&mut self, positions: usize, change: impl Fn(usize, usize) -> usize) {
        for index in 0..self.pools.len() {
            let need = self.need(&self.pools[index], positions);
            self.pools[index].promised = change(self.pools[index].promised, need);
        }
    }

    /// Checks the accounts against all sequences that live: every reference is somebody's, what is not referred to is
    /// free exactly once, tables cover what their sequence sees, and no promise is exceeded.
    pub fn check_integrity<'a>(&self, live: impl IntoIterator<Item = &'a Sequence>) -> Result<(), String> {
        let mut refs: Vec<Vec<u32>> = self.pools.iter().map(|pool| vec![0; pool.refs.len()]).collect();
        let mut promised = vec![0; self.pools.len()];
        let mut pins = Vec::new();
        for sequence in live {
            pins.push(sequence.node);
            for (group, table) in sequence.tables.iter().enumerate() {
                let (first, end) = (table.first, table.first + table.blocks.len());
                let seen = self.pools[group].seen_from(sequence.len) / self.block_tokens;
                let need = self.need(&self.pools[group], sequence.promised);
                if first > seen || end < sequence.len.div_ceil(self.block_tokens) || table.blocks.len() > need
                {
                    return Err(format!(
                        "group {group}: blocks {first}..{end}, needs {seen}.. and at most {need}"
                    ));
                }
                promised[group] += need;
                table.blocks.iter().for_each(|&block| refs[group][block as usize] += 1);
            }
        }
        if let Some(prefixes) = &self.prefixes {
            prefixes.check(&pins)?;
            prefixes.blocks().for_each(|(group, block)| refs[group][block as usize] += 1);
        }
        for (group, pool) in self.pools.iter().enumerate() {
            let mut free = pool.free.clone();
            free.sort_unstable();
            let expected = (0..pool.refs.len() as u32).filter(|&block| pool.refs[block as usize] == 0);
            if refs[group] != pool.refs || !free.into_iter().eq(expected) {
                return Err(format!("group {group}: {:?} referred to, {:?} counted", refs[group], pool.refs));
            }
            if promised[group] != pool.promised || pool.promised > pool.spec.blocks {
                return Err(format!(
                    "group {group}: {} promised, {} counted",
                    promised[group], pool.promised
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
