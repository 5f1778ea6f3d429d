//! The decoder on a device, as a scheduler sees it.

use crate::error::Error;
use crate::plan::{Bound, LoadOptions, Sizes};
use crate::spec::{DecoderSpec, Mask};
use minfer_engine::executor::*;
use minfer_engine::sampling::{self, Scratch};
use minfer_gguf::Gguf;
use minfer_ops::{self as ops, AttentionSpec, Device};
use std::collections::VecDeque;
use std::sync::Arc;

/// One layer on the device.
struct Layer<D: Device> {
    attn_in: D::AttnIn,
    attention: AttentionSpec,
    attn_out: D::AttnOut,
    ffn: D::Ffn,
}

/// A loaded model.
///
/// Steps run when they are waited for, in order; what [`Executor::submit`] does is to check and keep them.
pub struct Model<D: Device> {
    device: D,
    spec: DecoderSpec,
    limits: Limits,
    /// Bytes of a block of each cache group.
    block_bytes: Vec<usize>,
    embedding: D::Embedding,
    layers: Vec<Layer<D>>,
    /// An encoder has none.
    head: Option<D::Head>,
    submitted: u64,
    waiting: VecDeque<(StepId, StepPlan)>,
    /// Plans of finished steps, for their memory.
    spare: Vec<StepPlan>,
    /// Tokens that the last steps sampled, by row.
    sampled: VecDeque<(StepId, Vec<Option<TokenId>>)>,
    step: Step,
}

/// Buffers of a step in progress, kept from one to the next.
#[derive(Default)]
struct Step {
    tokens: Vec<TokenId>,
    /// Rows in `from..to` share a sequence: start of their tokens, number of tokens, position.
    spans: Vec<SpanRows>,
    outputs: Vec<u32>,
    /// How the device draws the token of each output, if it is tokens that the rows want.
    draws: Vec<ops::Draw>,
    /// These tokens.
    chosen: Vec<Option<TokenId>>,
    logits: Vec<f32>,
    hidden: Vec<f32>,
    scratch: Scratch,
    failed: Vec<usize>,
}

struct SpanRows {
    start: usize,
    len: usize,
    position: usize,
    last_row: usize,
}

impl<D: Device> Model<D> {
    /// Loads the model in `gguf` onto `device`. `progress` hears of the bytes of weights done, and of all.
    ///
    /// # Errors
    /// An unsupported architecture, feature, tensor, type or context, by name; a device without the memory, before
    /// anything is loaded.
    pub fn load(
        gguf: &Arc<Gguf>,
        mut device: D,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model<D>, Error> {
        let spec = DecoderSpec::for_context(gguf, options.context.unwrap_or(0))?;
        let sizes = Sizes::of(&spec, options, device.step_tokens())?;
        let bound = Bound::new(gguf, &spec)?;
        bound.check_memory(&spec, &sizes, options, &device)?;
        let total = gguf.tensors().map(|t| t.data().len() as u64).sum();
        let mut done = 0;
        let mut advance = |bytes: usize| {
            done += bytes as u64;
            progress(done, total);
        };
        let Bound { embedding, layers: weights, head } = bound;
        advance(0);
        let bytes = embedding.table.data.len();
        let embedding = device.load_embedding(embedding)?;
        advance(bytes);
        let mut layers = Vec::with_capacity(weights.len());
        for ((stages, kv), layer) in weights.into_iter().zip(&spec.layers) {
            let bytes = stages.bytes();
            layers.push(Layer {
                attn_in: device.load_attn_in(stages.attn_in)?,
                attention: AttentionSpec {
                    heads: layer.heads,
                    scale: layer.attention_scale,
                    soft_cap: layer.attention_cap,
                    causal: layer.mask != Mask::Bidirectional,
                    window: layer.mask.window(),
                    kv,
                },
                attn_out: device.load_attn_out(stages.attn_out)?,
                ffn: device.load_ffn(stages.ffn)?,
            });
            advance(bytes);
        }
        let head = head.map(|head| device.load_head(head, &embedding)).transpose()?;
        device.reserve(&sizes.reserve)?;
        progress(total, total);
        Ok(Model {
            device,
            limits: sizes.limits,
            block_bytes: sizes
                .reserve
                .kv_groups
                .iter()
                .map(|group| group.block_bytes(sizes.reserve.kv_types))
                .collect(),
            embedding,
            layers,
            head,
            spec,
            submitted: 0,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            sampled: VecDeque::new(),
            step: Step::default(),
        })
    }

    /// What the model is.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Where it runs.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The decoder: the whole of it. Whether `chosen` has the token of each output, as `draws` say.
    fn forward(
        &mut self,
        batch: &ops::Batch<'_>,
        draws: &[ops::Draw],
        chosen: &mut [Option<TokenId>],
    ) -> Result<bool, ops::DeviceError> {
        self.device.begin(batch)?;
        self.device.embed(&self.embedding, self.spec.embedding_scale)?;
        for layer in &self.layers {
            self.device.attn_in(&layer.attn_in)?;
            self.device.attention(&layer.attention)?;
            self.device.attn_out(&layer.attn_out)?;
            self.device.ffn(&layer.ffn)?;
        }
        let Some(head) = self.head.as_ref().filter(|_| !batch.outputs.is_empty()) else { return Ok(false) };
        if draws.is_empty() {
            self.device.head(head).map(|()| false)
        } else if draws.iter().all(|draw| draw.temperature == 0.0) {
            self.device.head_argmax(head, chosen)
        } else {
            self.device.head_draw(head, draws, chosen)
        }
    }

    /// Runs a step and takes its results.
    fn run(&mut self, id: StepId, plan: &StepPlan, out: &mut StepOutput) -> Result<(), StepError> {
        let mut step = std::mem::take(&mut self.step);
        let result = self.run_with(id, plan, out, &mut step);
        self.step = step;
        result
    }

    fn run_with(
        &mut self,
        id: StepId,
        plan: &StepPlan,
        out: &mut StepOutput,
        step: &mut Step,
    ) -> Result<(), StepError> {
        self.gather(plan, step)?;
        let views: Vec<Vec<ops::BlockTable<'_>>> = step
            .spans
            .iter()
            .map(|span| {
                let tables = &plan.rows[span.last_row].tables;
                tables.iter().map(|t| ops::BlockTable { first: t.first, blocks: &t.blocks }).collect()
            })
            .collect();
        let spans: Vec<ops::Span<'_>> = step
            .spans
            .iter()
            .zip(&views)
            .map(|(s, tables)| ops::Span { start: s.start, len: s.len, position: s.position, tables })
            .collect();
        let batch = ops::Batch { tokens: &step.tokens, spans: &spans, outputs: &step.outputs };
        let device_error = |error: ops::DeviceError| StepError::Device(error.to_string());
        let outputs = step.outputs.len();
        step.draws.clear();
        let draws = plan.rows.iter().filter(|row| wants_logits(row)).map_while(draw_of);
        step.draws.extend(draws);
        if self.limits.vocab > sampling::MAX_VOCAB || step.draws.len() < outputs {
            step.draws.clear();
        }
        step.chosen.clear();
        step.chosen.resize(outputs, None);
        let found = self.forward(&batch, &step.draws, &mut step.chosen).map_err(device_error)?
            && !step.chosen.contains(&None);
        if !found {
            // What is wrong with the logits is for the sampler to say.
            step.chosen.clear();
        }
        if outputs > 0 && !found {
            step.logits.resize(outputs * self.limits.vocab, 0.0);
            self.device.logits(&mut step.logits).map_err(device_error)?;
        }
        self.hidden(plan, step).map_err(device_error)?;
        self.resolve(id, plan, out, step)
    }

    /// The hidden states that rows want, one row's after the other's.
    fn hidden(&mut self, plan: &StepPlan, step: &mut Step) -> Result<(), ops::DeviceError> {
        step.hidden.clear();
        let mut end = 0;
        for row in &plan.rows {
            end += row.tokens.len();
            let from = step.hidden.len();
            let tokens = end - wanted_states(row)..end;
            step.hidden.resize(from + tokens.len() * self.spec.d_model, 0.0);
            if !tokens.is_empty() {
                self.device.hidden(self.head.as_ref(), tokens, &mut step.hidden[from..])?;
            }
        }
        Ok(())
    }

    /// Tokens, spans and outputs of a plan. A row whose token never came is marked failed and computes token 0.
    fn gather(&self, plan: &StepPlan, step: &mut Step) -> Result<(), StepError> {
        step.tokens.clear();
        step.spans.clear();
        step.outputs.clear();
        step.failed.clear();
        for (i, row) in plan.rows.iter().enumerate() {
            let start = step.tokens.len();
            match &row.tokens {
                Tokens::Ids(ids) => step.tokens.extend_from_slice(ids),
                Tokens::FromStep { step: from, row: from_row } => {
                    let rows = self.sampled.iter().find(|(id, _)| id == from).map(|(_, rows)| rows);
                    let Some(rows) = rows else {
                        return Err(StepError::Device(format!(
                            "row {i} takes its token from a step long past"
                        )));
                    };
                    let token = rows.get(*from_row).copied().flatten();
                    if token.is_none() {
                        step.failed.push(i);
                    }
                    step.tokens.push(token.unwrap_or(0));
                }
            }
            let len = step.tokens.len() - start;
            match step.spans.last_mut() {
                Some(span) if plan.rows[span.last_row].seq == row.seq => {
                    if span.position + span.len != row.position {
                        let what =
                            format!("row {i} at position {} does not follow its sequence", row.position);
                        return Err(StepError::Device(what));
                    }
                    span.len += len;
                    span.last_row = i;
                }
                _ => step.spans.push(SpanRows { start, len, position: row.position, last_row: i }),
            }
            if wants_logits(row) {
                step.outputs.push((step.tokens.len() - 1) as u32);
            }
        }
        Ok(())
    }

    /// What each row wanted, from the logits and hidden states of the outputs.
    fn resolve(
        &mut self,
        id: StepId,
        plan: &StepPlan,
        out: &mut StepOutput,
        step: &mut Step,
    ) -> Result<(), StepError> {
        let (vocab, d_model) = (self.limits.vocab, self.spec.d_model);
        let mut sampled = match self.sampled.len() > MAX_IN_FLIGHT {
            true => self.sampled.pop_front().map(|(_, rows)| rows).unwrap_or_default(),
            false => Vec::new(),
        };
        sampled.clear();
        out.rows.truncate(plan.rows.len());
        out.rows.resize_with(plan.rows.len(), || RowOutput::Nothing);
        let mut what = String::new();
        let (mut output, mut states) = (0, 0);
        for (i, (row, result)) in plan.rows.iter().zip(&mut out.rows).enumerate() {
            sampled.push(None);
            let chosen = step.chosen.get(output).copied().flatten();
            let logits = output * vocab..(output + 1) * vocab;
            let hidden = states * d_model..(states + wanted_states(row)) * d_model;
            output += usize::from(wants_logits(row));
            states += wanted_states(row);
            let failure = if step.failed.contains(&i) {
                Some("the token before it failed".into())
            } else {
                match &row.want {
                    Want::Nothing => {
                        *result = RowOutput::Nothing;
                        None
                    }
                    Want::Token(spec) => {
                        let (logits, scratch) = (step.logits.get(logits), &mut step.scratch);
                        let token = chosen.map(Ok).unwrap_or_else(|| {
                            sampling::sample(logits.unwrap_or_default(), spec, row.mask.as_deref(), scratch)
                        });
                        if let Ok(token) = token {
                            sampled[i] = Some(token);
                            *result = RowOutput::Token(token);
                        }
                        token.err().map(|error| error.to_string())
                    }
                    Want::Logits => {
                        let logits = &step.logits[logits];
                        *result = RowOutput::Logits(refill(result, logits));
                        first_nan(logits).map(|id| format!("the logit of token {id} is NaN{DAMAGED}"))
                    }
                    Want::Embedding | Want::Embeddings => {
                        let hidden = &step.hidden[hidden];
                        *result = RowOutput::Embedding(refill(result, hidden));
                        first_nan(hidden).map(|at| {
                            let channel = at % d_model;
                            format!("channel {channel} of the hidden state is NaN{DAMAGED}")
                        })
                    }
                }
            };
            if let Some(failure) = failure {
                *result = RowOutput::Nothing;
                if !step.failed.contains(&i) {
                    step.failed.push(i);
                }
                what = failure;
            }
        }
        self.sampled.push_back((id, sampled));
        if step.failed.is_empty() {
            return Ok(());
        }
        Err(StepError::Rows { rows: step.failed.clone(), what })
    }
}

/// What a NaN is a sign of.
const DAMAGED: &str = ": the weights may be damaged (`minfer inspect --check` names such)";

/// Refuses what an encoder cannot do.
fn check_whole(plan: &StepPlan) -> Result<(), StepError> {
    let twice = plan.rows.windows(2).any(|rows| rows[0].seq == rows[1].seq);
    if twice || plan.rows.iter().any(|row| row.position != 0) {
        return Err(StepError::Device("the model is an encoder: it takes a text as a whole".into()));
    }
    match plan.rows.iter().any(wants_logits) {
        true => Err(StepError::Device("the model is an encoder: it has hidden states, but no logits".into())),
        false => Ok(()),
    }
}

/// Whether a row needs the head's product.
fn wants_logits(row: &PlanRow) -> bool {
    matches!(row.want, Want::Token(_) | Want::Logits)
}

/// How many of a row's tokens, the last ones, it wants the hidden states of.
fn wanted_states(row: &PlanRow) -> usize {
    match row.want {
        Want::Nothing | Want::Token(_) | Want::Logits => 0,
        Want::Embedding => 1,
        Want::Embeddings => row.tokens.len(),
    }
}

/// Position of the first NaN. Looks for one without branches first: there is hardly ever any.
fn first_nan(values: &[f32]) -> Option<usize> {
    let any = values.chunks(64).any(|chunk| chunk.iter().fold(false, |nan, v| nan | v.is_nan()));
    any.then(|| values.iter().position(|v| v.is_nan())).flatten()
}

/// How a device may choose the token that a row wants, if it may.
fn draw_of(row: &PlanRow) -> Option<ops::Draw> {
    match &row.want {
        Want::Token(spec) if row.mask.is_none() && spec.device_can() => Some(ops::Draw {
            temperature: spec.temperature,
            top_k: spec.top_k,
            top_p: spec.top_p,
            least_weight: spec.least_weight(),
            random: spec.random(),
        }),
        _ => None,
    }
}

/// Takes the memory of an earlier result and fills it with `values`.
fn refill(result: &mut RowOutput, values: &[f32]) -> Vec<f32> {
    let mut memory = match std::mem::replace(result, RowOutput::Nothing) {
        RowOutput::Logits(memory) | RowOutput::Embedding(memory) => memory,
        RowOutput::Nothing | RowOutput::Token(_) => Vec::new(),
    };
    memory.clear();
    memory.extend_from_slice(values);
    memory
}

fn fault(error: ops::DeviceError) -> StepError {
    StepError::Device(error.to_string())
}

impl<D: Device> Executor for Model<D> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<StepId, StepError> {
        if self.waiting.len() >= MAX_IN_FLIGHT {
            return Err(StepError::Device(format!("more than {MAX_IN_FLIGHT} steps in flight")));
        }
        if self.limits.bidirectional {
            check_whole(plan)?;
        }
        let mut own = self.spare.pop().unwrap_or_default();
        own.rows.clone_from(&plan.rows);
        self.submitted += 1;
        let id = StepId(self.submitted);
        self.waiting.push_back((id, own));
        Ok(id)
    }

    fn block_bytes(&self) -> Option<Vec<usize>> {
        Some(self.block_bytes.clone())
    }

    fn read_block(&mut self, group: usize, block: u32, bytes: &mut [u8]) -> Result<(), StepError> {
        self.device.read_block(group, block as usize, bytes).map_err(fault)
    }

    fn write_block(&mut self, group: usize, block: u32, bytes: &[u8]) -> Result<(), StepError> {
        self.device.write_block(group, block as usize, bytes).map_err(fault)
    }

    fn give_up(&mut self, step: StepId) -> bool {
        // A step begins when it is waited for.
        let plan = self.waiting.pop_back_if(|(id, _)| *id == step);
        plan.map(|(_, plan)| self.spare.push(plan)).is_some()
    }

    fn wait(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), StepError> {
        match self.waiting.pop_front() {
            Some((id, plan)) if id == step => {
                let result = self.run(id, &plan, out);
                self.spare.push(plan);
                result
            }
            other => {
                self.waiting.extend(other);
                Err(StepError::Device(format!("step {} was not submitted, or not next", step.0)))
            }
        }
    }
}
