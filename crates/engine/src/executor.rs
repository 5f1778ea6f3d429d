//! The executor boundary: what a scheduler may ask of a model.
//!
//! A step is a set of plan rows. [`Executor::submit`] enqueues one and never waits; [`Executor::wait`] blocks until
//! its results are there. At most [`MAX_IN_FLIGHT`] steps are in flight, so a scheduler can prepare the next step
//! while a device runs the present one; a row whose token is not known yet names the row it comes from.

use crate::sampling::SampleSpec;

/// Steps that may be submitted and not yet waited for.
pub const MAX_IN_FLIGHT: usize = 2;

/// A token id.
pub type TokenId = u32;

/// Identity of a sequence, chosen by the scheduler, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Identity of a submitted step, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub u64);

/// Where the tokens of a row come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Tokens {
    /// Known ids, at least one.
    Ids(Vec<TokenId>),
    /// The one token that row `row` of step `step` samples.
    FromStep {
        /// The earlier step, still in flight or just waited for.
        step: StepId,
        /// Row in that step; its `want` was [`Want::Token`].
        row: usize,
    },
}

impl Tokens {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Tokens::Ids(ids) => ids.len(),
            Tokens::FromStep { .. } => 1,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Tokens {
    fn default() -> Self {
        Tokens::Ids(Vec::new())
    }
}

impl From<Vec<TokenId>> for Tokens {
    fn from(ids: Vec<TokenId>) -> Self {
        Tokens::Ids(ids)
    }
}

/// The blocks of one sequence in one cache group.
#[derive(Debug, Default, PartialEq)]
pub struct BlockTable {
    /// Logical block of `blocks[0]`; not 0 once a sliding-window group has dropped its oldest blocks.
    pub first: usize,
    /// Physical block numbers.
    pub blocks: Vec<u32>,
}

/// By hand for `clone_from`: a scheduler refills the tables of its plan every step without allocating.
impl Clone for BlockTable {
    fn clone(&self) -> Self {
        BlockTable { first: self.first, blocks: self.blocks.clone() }
    }

    fn clone_from(&mut self, source: &Self) {
        self.first = source.first;
        self.blocks.clone_from(&source.blocks);
    }
}

/// What a row's last token should yield.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Want {
    /// Only its KV entries.
    #[default]
    Nothing,
    /// A sampled token.
    Token(SampleSpec),
    /// All logits.
    Logits,
    /// The normed hidden state.
    Embedding,
    /// The normed hidden states of all of the row's tokens.
    Embeddings,
}

/// Tokens of one sequence in a step. Rows of the same sequence are adjacent and ascending in position (one token per
/// row with [`Want::Logits`] is how perplexity scores every position).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanRow {
    /// Whose tokens they are.
    pub seq: SeqId,
    /// The tokens.
    pub tokens: Tokens,
    /// Position of the first one.
    pub position: usize,
    /// One table per cache group of [`Limits::groups`], covering every position the tokens write or see.
    pub tables: Vec<BlockTable>,
    /// Result of the last token.
    pub want: Want,
    /// Allowed tokens of a [`Want::Token`], one bit per id (bit `i % 32` of word `i / 32`); `None` allows all.
    pub mask: Option<Vec<u32>>,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// The rows.
    pub rows: Vec<PlanRow>,
}

/// Result of one row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowOutput {
    /// Of [`Want::Nothing`].
    Nothing,
    /// Of [`Want::Token`].
    Token(TokenId),
    /// Of [`Want::Logits`], one per token of the vocabulary.
    Logits(Vec<f32>),
    /// Of [`Want::Embedding`], one value per channel; of [`Want::Embeddings`] those of one token after the other.
    Embedding(Vec<f32>),
}

/// Results of a step, one per row. Reused between steps so that a steady state allocates nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// One per row of the plan.
    pub rows: Vec<RowOutput>,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// These rows failed (for example by a NaN in the logits); the others have their results.
    #[error("{what}")]
    Rows {
        /// Their places in the plan.
        rows: Vec<usize>,
        /// What happened.
        what: String,
    },
    /// The device failed; no further step will succeed.
    #[error("{0}")]
    Device(String),
}

/// A cache group as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// Physical blocks that exist.
    pub blocks: usize,
    /// Positions a token sees, itself included; `None` is all of them.
    pub window: Option<usize>,
}

/// What an executor can take.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Tokens of one step.
    pub max_tokens: usize,
    /// Rows with a result in one step.
    pub max_outputs: usize,
    /// Tokens of one KV block.
    pub block_tokens: usize,
    /// Cache groups.
    pub groups: Vec<CacheGroup>,
    /// Whether tokens see those after them too. Then a sequence comes whole, as one row of one step, and yields hidden states
    /// only.
    pub bidirectional: bool,
}

/// A model on a device, as a scheduler sees it.
pub trait Executor {
    /// What it can take; constant.
    fn limits(&self) -> &Limits;

    /// Enqueues a step. Never waits for the device. Steps take effect in the order of submission, so a block that one
    /// step still uses may be given to another sequence by the next, and what one step writes may be read by the next,
    /// whoever's it is. After an error nothing has been enqueued.
    fn submit(&mut self, plan: &StepPlan) -> Result<StepId, StepError>;

    /// Waits for a step and takes its results. Steps are waited for in the order of submission. A row that takes its
    /// token from a failed row fails too. After [`StepError::Rows`] `out` has every row, the failed ones as
    /// [`RowOutput::Nothing`].
    fn wait(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), StepError>;

    /// Bytes of a block of each group, keys and values of all its layers; `None` if blocks can be neither read nor written.
    fn block_bytes(&self) -> Option<Vec<usize>> {
        None
    }

    /// Reads a block of a group, all of [`Executor::block_bytes`]. No step in flight writes to it.
    fn read_block(&mut self, group: usize, block: u32, bytes: &mut [u8]) -> Result<(), StepError> {
        let _ = bytes;
        Err(StepError::Device(format!("block {block} of group {group} cannot be read")))
    }

    /// Writes a block that was read here or by another executor of the same kind: steps that are submitted later read the same
    /// bits. No step is in flight.
    fn write_block(&mut self, group: usize, block: u32, bytes: &[u8]) -> Result<(), StepError> {
        let _ = bytes;
        Err(StepError::Device(format!("block {block} of group {group} cannot be written")))
    }

    /// Takes back the step that was submitted last, if it has not begun: then it is as if it had never been submitted, and is
    /// not waited for. False if it has, or the executor cannot.
    fn give_up(&mut self, step: StepId) -> bool {
        let _ = step;
        false
    }
}
