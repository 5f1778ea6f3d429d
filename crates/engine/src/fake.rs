//! An executor without a model, for tests: logits are a hash of the token prefix, and every rule of the boundary is
//! asserted, so that a scheduler which passes here asks nothing wrong of a real one.
//!
//! Its cache is real: each slot of each block holds a position and the hash of the prefix up to it. A row reads what
//! its tables say, after all rows of the step have written, as on a device; a lost, shared or stale block shows as a
//! panic or as other tokens.

use std::collections::{HashMap, VecDeque};

use crate::executor::{
    CacheGroup, Executor, Limits, MAX_IN_FLIGHT, PlanRow, RowOutput, SeqId, StepError, StepId, StepOutput,
    StepPlan, TokenId, Tokens, Want,
};
use crate::sampling::{Scratch, sample};

/// Called with a step before it is enqueued, or before its results are given. May fail it, wait, or panic.
pub type Hook = Box<dyn FnMut(StepId, &StepPlan) -> Result<(), StepError> + Send>;

/// What a slot of a block holds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    position: usize,
    /// Hash of the tokens before.
    before: u64,
    /// Hash of the tokens up to this one.
    prefix: u64,
}

/// Bytes of a slot: its position and one more, 0 if it is empty, then both hashes.
const SLOT_BYTES: usize = 24;

/// See [the module](self).
pub struct FakeExecutor {
    limits: Limits,
    /// Per group and block, one slot per position.
    cache: Vec<Vec<Vec<Option<Slot>>>>,
    in_flight: VecDeque<(StepId, StepPlan)>,
    /// What the rows of the step last waited for sampled.
    sampled: (StepId, Vec<Option<TokenId>>),
    next: u64,
    scratch: Scratch,
    on_submit: Hook,
    on_wait: Hook,
    nan_after: Option<TokenId>,
}

impl FakeExecutor {
    /// A full and a sliding-window group of small blocks, 32 tokens, 96 positions.
    pub fn small_limits() -> Limits {
        let groups = [(60, None), (40, Some(7))];
        Limits {
            vocab: 32,
            context: 96,
            max_tokens: 16,
            max_outputs: 8,
            block_tokens: 4,
            groups: groups.map(|(blocks, window)| CacheGroup { blocks, window }).to_vec(),
            bidirectional: false,
        }
    }

    /// An executor with an empty cache.
    pub fn new(limits: Limits) -> Self {
        let block = vec![None; limits.block_tokens];
        let cache = limits.groups.iter().map(|group| vec![block.clone(); group.blocks]).collect();
        FakeExecutor {
            limits,
            cache,
            in_flight: VecDeque::new(),
            sampled: (StepId(0), Vec::new()),
            next: 1,
            scratch: Scratch::default(),
            on_submit: Box::new(|_, _| Ok(())),
            on_wait: Box::new(|_, _| Ok(())),
            nan_after: None,
        }
    }

    /// Calls `hook` in every [`Executor::submit`].
    pub fn on_submit(
        self,
        hook: impl FnMut(StepId, &StepPlan) -> Result<(), StepError> + Send + 'static,
    ) -> Self {
        FakeExecutor { on_submit: Box::new(hook), ..self }
    }

    /// Calls `hook` in every [`Executor::wait`]; it is also the place to hold a step back.
    pub fn on_wait(
        self,
        hook: impl FnMut(StepId, &StepPlan) -> Result<(), StepError> + Send + 'static,
    ) -> Self {
        FakeExecutor { on_wait: Box::new(hook), ..self }
    }

    /// Makes the logits after `token` NaN.
    pub fn nan_after(self, token: TokenId) -> Self {
        FakeExecutor { nan_after: Some(token), ..self }
    }

    /// The logits after a prefix, between −8 and 8: what this executor computes, without an executor.
    pub fn logits_after(prefix: &[TokenId], vocab: usize) -> Vec<f32> {
        logits(prefix.iter().fold(0, |hash, &token| extend(hash, token)), vocab)
    }

    fn check_plan(&self, plan: &StepPlan) {
        let limits = &self.limits;
        let tokens: usize = plan.rows.iter().map(|row| row.tokens.len()).sum();
        let outputs = plan.rows.iter().filter(|row| row.want != Want::Nothing).count();
        assert!((1..=limits.max_tokens).contains(&tokens), "{tokens} tokens in a step");
        assert!(outputs <= limits.max_outputs, "{outputs} outputs in a step");
        let mut last: HashMap<SeqId, (usize, usize)> = HashMap::new();
        let mut writer: HashMap<(usize, u32), SeqId> = HashMap::new();
        for (index, row) in plan.rows.iter().enumerate() {
            let end = row.position + row.tokens.len();
            assert!(!row.tokens.is_empty() && end <= limits.context, "{row:?}");
            if limits.bidirectional {
                let pooled = matches!(row.want, Want::Embedding | Want::Embeddings);
                assert!(row.position == 0 && pooled, "{row:?}");
            }
            if let Some((before, position)) = last.insert(row.seq, (index, end)) {
                assert!(before + 1 == index && position == row.position, "rows of {:?} are torn", row.seq);
            }
            self.check_tokens(&row.tokens);
            assert_eq!(row.tables.len(), limits.groups.len(), "tables of {:?}", row.seq);
            for (group, table) in row.tables.iter().enumerate() {
                let written = row.position / limits.block_tokens..end.div_ceil(limits.block_tokens);
                for logical in written {
                    let owner = writer.entry((group, table.blocks[logical - table.first])).or_insert(row.seq);
                    assert_eq!(*owner, row.seq, "two sequences write one block of group {group}");
                }
            }
        }
        for row in &plan.rows {
            for (group, table) in row.tables.iter().enumerate() {
                let others = table.blocks.iter().filter_map(|&block| writer.get(&(group, block)));
                others.for_each(|&seq| assert_eq!(seq, row.seq, "{:?} sees a block {seq:?} writes", row.seq));
            }
        }
    }

    fn check_tokens(&self, tokens: &Tokens) {
        match tokens {
            Tokens::Ids(ids) => assert!(ids.iter().all(|&id| (id as usize) < self.limits.vocab), "{ids:?}"),
            &Tokens::FromStep { step, row } if step == self.sampled.0 => {
                assert!(row < self.sampled.1.len(), "row {row} of {step:?}");
            }
            Tokens::FromStep { step, row } => {
                let source = self.in_flight.iter().find(|(id, _)| id == step);
                let (_, source) = source.expect("a source neither in flight nor just waited for");
                assert!(matches!(source.rows[*row].want, Want::Token(_)), "the source samples no token");
            }
        }
    }

    /// The ids of a row; `None` if they come from a row that failed.
    fn ids(&self, tokens: &Tokens) -> Option<Vec<TokenId>> {
        match tokens {
            Tokens::Ids(ids) => Some(ids.clone()),
            &Tokens::FromStep { step, row } => {
                assert_eq!(step, self.sampled.0, "steps run in order");
                Some(vec![self.sampled.1[row]?])
            }
        }
    }

    fn slot(&self, row: &PlanRow, group: usize, position: usize) -> (usize, usize) {
        let (table, logical) = (&row.tables[group], position / self.limits.block_tokens);
        let index = logical.checked_sub(table.first).filter(|&index| index < table.blocks.len());
        let index = index.unwrap_or_else(|| panic!("{:?} has no block for position {position}", row.seq));
        (table.blocks[index] as usize, position % self.limits.block_tokens)
    }

    fn read(&self, row: &PlanRow, group: usize, position: usize) -> Slot {
        let (block, offset) = self.slot(row, group, position);
        let slot = self.cache[group][block][offset];
        let slot = slot.unwrap_or_else(|| panic!("{:?}: position {position} was never written", row.seq));
        assert_eq!(slot.position, position, "{:?}: a stale block", row.seq);
        slot
    }

    fn write(&mut self, row: &PlanRow, ids: &[TokenId]) {
        let mut before = match row.position.checked_sub(1) {
            Some(position) => self.read(row, 0, position).prefix,
            None => 0,
        };
        for (position, &id) in (row.position..).zip(ids) {
            let slot = Slot { position, before, prefix: extend(before, id) };
            for group in 0..self.cache.len() {
                let (block, offset) = self.slot(row, group, position);
                self.cache[group][block][offset] = Some(slot);
            }
            before = slot.prefix;
        }
    }

    /// Reads all that the row's tokens see, and returns the hash of the last one's prefix.
    fn attend(&self, row: &PlanRow) -> u64 {
        let end = row.position + row.tokens.len();
        let last = self.read(row, 0, end - 1);
        for (group, spec) in self.limits.groups.iter().enumerate() {
            let seen_from = spec.window.map_or(0, |window| (row.position + 1).saturating_sub(window));
            let mut chain = None;
            for position in seen_from..end {
                let slot = self.read(row, group, position);
                assert!(chain.is_none_or(|prefix| prefix == slot.before), "{:?}: a torn prefix", row.seq);
                chain = Some(slot.prefix);
            }
            assert_eq!(chain, Some(last.prefix), "{:?}: groups disagree", row.seq);
        }
        last.prefix
    }

    /// What this executor computes for the last token of a prefix, without an executor; of a text that is seen whole `prefix`
    /// is all of it, and `position` the token's.
    pub fn hidden_after(prefix: &[TokenId], position: usize) -> [f32; 2] {
        hidden(prefix.iter().fold(0, |hash, &token| extend(hash, token)), position)
    }

    fn output(&mut self, row: &PlanRow, last: TokenId, prefix: u64) -> Result<RowOutput, String> {
        let end = row.position + row.tokens.len();
        let state = |position: usize| match self.limits.bidirectional {
            true => hidden(prefix, position),
            false => hidden(self.read(row, 0, position).prefix, position),
        };
        match row.want {
            Want::Embedding => return Ok(RowOutput::Embedding(state(end - 1).to_vec())),
            Want::Embeddings => {
                return Ok(RowOutput::Embedding((row.position..end).flat_map(state).collect()));
            }
            _ => {}
        }
        let mut logits = logits(prefix, self.limits.vocab);
        if self.nan_after == Some(last) {
            logits.fill(f32::NAN);
        }
        match &row.want {
            Want::Nothing => Ok(RowOutput::Nothing),
            Want::Logits => Ok(RowOutput::Logits(logits)),
            Want::Embedding | Want::Embeddings => Err("not logits".into()),
            Want::Token(spec) => sample(&logits, spec, row.mask.as_deref(), &mut self.scratch)
                .map(RowOutput::Token)
                .map_err(|error| error.to_string()),
        }
    }
}

impl Executor for FakeExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<StepId, StepError> {
        assert!(self.in_flight.len() < MAX_IN_FLIGHT, "too many steps in flight");
        self.check_plan(plan);
        let step = StepId(self.next);
        (self.on_submit)(step, plan)?;
        self.next += 1;
        self.in_flight.push_back((step, plan.clone()));
        Ok(step)
    }

    fn block_bytes(&self) -> Option<Vec<usize>> {
        Some(vec![SLOT_BYTES * self.limits.block_tokens; self.limits.groups.len()])
    }

    fn read_block(&mut self, group: usize, block: u32, bytes: &mut [u8]) -> Result<(), StepError> {
        let writes = |row: &PlanRow| {
            let end = (row.position + row.tokens.len()).div_ceil(self.limits.block_tokens);
            let written = (row.position / self.limits.block_tokens..end).map(|i| i - row.tables[group].first);
            written.into_iter().any(|i| row.tables[group].blocks[i] == block)
        };
        let mut rows = self.in_flight.iter().flat_map(|(_, plan)| &plan.rows);
        assert!(!rows.any(writes), "block {block} of group {group} is read before it is written");
        assert_eq!(bytes.len(), SLOT_BYTES * self.limits.block_tokens);
        for (to, slot) in bytes.chunks_exact_mut(SLOT_BYTES).zip(&self.cache[group][block as usize]) {
            let words = slot.map_or([0; 3], |slot| [slot.position as u64 + 1, slot.before, slot.prefix]);
            to.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        }
        Ok(())
    }

    fn write_block(&mut self, group: usize, block: u32, bytes: &[u8]) -> Result<(), StepError> {
        assert!(self.in_flight.is_empty(), "a block is written while a step is in flight");
        assert_eq!(bytes.len(), SLOT_BYTES * self.limits.block_tokens);
        for (slot, from) in self.cache[group][block as usize].iter_mut().zip(bytes.chunks_exact(SLOT_BYTES)) {
            let mut words = from.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
            let [position, before, prefix] = [(); 3].map(|()| words.next().unwrap_or_default());
            *slot =
                position.checked_sub(1).map(|position| Slot { position: position as usize, before, prefix });
        }
        Ok(())
    }

    fn give_up(&mut self, step: StepId) -> bool {
        self.in_flight.pop_back_if(|(id, _)| *id == step).is_some()
    }

    fn wait(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), StepError> {
        let (oldest, plan) = self.in_flight.pop_front().expect("a step in flight");
        assert_eq!(step, oldest, "steps are waited for in order");
        let (mut failed, mut what) = match (self.on_wait)(step, &plan) {
            Ok(()) => (Vec::new(), String::new()),
            Err(StepError::Rows { rows, what }) => (rows, what),
            Err(error) => return Err(error),
        };
        let ids: Vec<Option<Vec<TokenId>>> = plan.rows.iter().map(|row| self.ids(&row.tokens)).collect();
        for (row, ids) in plan.rows.iter().zip(&ids) {
            self.write(row, ids.as_deref().unwrap_or_default());
        }
        out.rows.clear();
        for (index, (row, ids)) in plan.rows.iter().zip(&ids).enumerate() {
            let result = match ids.as_ref().and_then(|ids| ids.last()) {
                Some(&last) if !failed.contains(&index) => {
                    let prefix = self.attend(row);
                    self.output(row, last, prefix)
                }
                // The script, or the step before, has said why.
                _ => Err(String::new()),
            };
            out.rows.push(result.unwrap_or_else(|error| {
                failed.push(index);
                if what.is_empty() {
                    what = error;
                }
                RowOutput::Nothing
            }));
        }
        let token = |row: &RowOutput| if let RowOutput::Token(id) = row { Some(*id) } else { None };
        self.sampled = (step, out.rows.iter().map(token).collect());
        if failed.is_empty() { Ok(()) } else { Err(StepError::Rows { rows: failed, what }) }
    }
}

/// SplitMix64's finalizer (Steele, Lea, Flood 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

fn extend(prefix: u64, token: TokenId) -> u64 {
    mix(prefix ^ u64::from(token).wrapping_add(1) << 32)
}

fn hidden(prefix: u64, position: usize) -> [f32; 2] {
    [0, 1].map(|i| (mix(prefix ^ mix(position as u64 ^ i << 60)) >> 40) as f32 / 1e6 - 8.0)
}

fn logits(prefix: u64, vocab: usize) -> Vec<f32> {
    (0..vocab as u64).map(|id| (mix(prefix ^ id) >> 48) as f32 / 4096.0 - 8.0).collect()
}
