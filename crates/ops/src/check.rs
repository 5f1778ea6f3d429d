//! What every device refuses: steps and stages that would make a kernel read or write outside of its memory.

use crate::{AttentionSpec, Batch, DeviceError, Heads, KV_BLOCK, KvGroup, KvSlot, Reserve};

fn fault(what: String) -> Result<(), DeviceError> {
    Err(DeviceError::Fault(what))
}

/// Refuses a size that is not the reserved one.
///
/// # Errors
/// [`DeviceError::Fault`], which names both.
pub fn expect_reserved(what: &str, reserved: usize, found: usize) -> Result<(), DeviceError> {
    if found == reserved { Ok(()) } else { fault(format!("{found} {what}; reserved {reserved}")) }
}

/// Likewise, for an upper bound.
///
/// # Errors
/// [`DeviceError::Fault`], which names both.
pub fn at_most_reserved(what: &str, reserved: usize, found: usize) -> Result<(), DeviceError> {
    expect_reserved(what, reserved, found.max(reserved))
}

impl Reserve {
    /// Refuses a layer that the cache does not have, or has with other heads.
    ///
    /// # Errors
    /// [`DeviceError::Fault`].
    pub fn check_slot(&self, slot: KvSlot, heads: Heads) -> Result<(), DeviceError> {
        at_most_reserved("channels of all query heads", self.max_q, heads.q * heads.dim)?;
        at_most_reserved("channels of all key heads", self.max_kv, heads.kv * heads.dim)?;
        let fits = |group: &KvGroup| {
            let Heads { q, kv, dim } = group.heads;
            slot.layer < group.layers && kv == heads.kv && dim == heads.dim && heads.q <= q
        };
        match self.kv_groups.get(slot.group) {
            Some(group) if fits(group) => Ok(()),
            Some(group) => fault(format!("layer {} of {heads:?} in {group:?}", slot.layer)),
            None => fault(format!("cache group {} of {}", slot.group, self.kv_groups.len())),
        }
    }

    /// Refuses a step that memory was not reserved for, or whose spans and tables make no sense.
    ///
    /// # Errors
    /// [`DeviceError::Fault`].
    pub fn check_batch(&self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        let (tokens, outputs) = (batch.tokens.len(), batch.outputs.len());
        if tokens > self.max_tokens || outputs > self.max_outputs {
            let (t, o) = (self.max_tokens, self.max_outputs);
            return fault(format!("a step of {tokens} tokens and {outputs} outputs; reserved {t} and {o}"));
        }
        if let Some(id) = batch.tokens.iter().find(|id| **id as usize >= self.vocab) {
            return fault(format!("token {id} of a vocabulary of {}", self.vocab));
        }
        if let Some(output) = batch.outputs.iter().find(|o| **o as usize >= tokens) {
            return fault(format!("output {output} of a step of {tokens} tokens"));
        }
        let mut next = 0;
        for span in batch.spans {
            if span.start != next || span.tables.len() != self.kv_groups.len() {
                return fault(format!("a span at token {} with {} tables", span.start, span.tables.len()));
            }
            next = next.saturating_add(span.len);
            for (table, group) in span.tables.iter().zip(&self.kv_groups) {
                let covered = table.first.saturating_add(table.blocks.len()).checked_mul(KV_BLOCK);
                let end = span.position.checked_add(span.len);
                let inside = end.zip(covered).is_some_and(|(end, covered)| end <= covered);
                if !inside || table.first * KV_BLOCK > span.position {
                    return fault(format!("positions {}+{} outside their blocks", span.position, span.len));
                }
                let exist = group.blocks;
                if table.blocks.len() > exist {
                    return fault(format!("{} blocks of a cache of {exist}", table.blocks.len()));
                }
                if let Some(block) = table.blocks.iter().find(|b| **b as usize >= exist) {
                    return fault(format!("block {block} of a cache of {exist} blocks"));
                }
            }
        }
        if next != tokens { fault(format!("spans of {next} tokens in a step of {tokens}")) } else { Ok(()) }
    }
}

impl AttentionSpec {
    /// First position that a query at `position` sees.
    pub fn seen_from(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Refuses a window of nothing, and a span of `len` tokens at `position` whose table begins, with logical block
    /// `first_block`, after the first position that it sees.
    ///
    /// # Errors
    /// [`DeviceError::Fault`].
    pub fn check_window(&self, position: usize, len: usize, first_block: usize) -> Result<(), DeviceError> {
        if self.window == Some(0) {
            return fault("an attention window of no positions".into());
        }
        let (from, kept) = (self.seen_from(position), first_block * KV_BLOCK);
        if len > 0 && from < kept {
            return fault(format!("position {position} sees {from}, kept from {kept} on"));
        }
        Ok(())
    }
}
