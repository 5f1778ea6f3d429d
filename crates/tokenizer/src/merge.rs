//! Joining neighbours in order of priority: what BPE and SPM have in common.
//!
//! A word is a row of pieces. As long as there is one, the pair of neighbours with the smallest key is joined, the
//! leftmost first among equals. Words of a few pieces take a scan per join; long ones a linked list and a queue, which
//! keeps a 10 MB word at n log n.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use crate::vocab::NONE;

/// A part of a word: bytes `start..end` of the text, and the symbol that stands for them (`NONE` if none does).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) symbol: u32,
}

/// What two neighbours become, and how urgent that is: a smaller key joins first. The key is below `u32::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    pub(crate) key: u32,
    pub(crate) symbol: u32,
}

const NO_JOIN: Join = Join { key: NONE, symbol: NONE };

/// Up to this many pieces the scan is faster than the queue.
const SHORT: usize = 32;

/// Joins words; holds the memory that words have in common.
#[derive(Default)]
pub(crate) struct Merger {
    /// The word: filled by the caller, and the result.
    pub(crate) pieces: Vec<Piece>,
    links: Vec<Link>,
    queue: MergeQueue,
}

/// A piece of a long word: its neighbours, and what it and the right one may become.
#[derive(Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
    join: Join,
}

impl Merger {
    /// Joins `pieces` until `join` finds no pair of neighbours to join. Their number is below `u32::MAX`.
    pub(crate) fn merge(&mut self, join: impl Fn(Piece, Piece) -> Option<Join>) {
        if self.pieces.len() <= SHORT { self.merge_short(join) } else { self.merge_long(join) }
    }

    fn merge_short(&mut self, join: impl Fn(Piece, Piece) -> Option<Join>) {
        let pieces = &mut self.pieces;
        let at = |pieces: &[Piece], left: usize| match pieces.get(left..left + 2) {
            Some(&[left, right]) => join(left, right).unwrap_or(NO_JOIN),
            _ => NO_JOIN,
        };
        let mut joins = [NO_JOIN; SHORT];
        for (left, join) in joins.iter_mut().enumerate().take(pieces.len()) {
            *join = at(pieces, left);
        }
        while let Some((left, best)) =
            joins[..pieces.len()].iter().enumerate().min_by_key(|(_, join)| join.key)
        {
            if best.key == NONE {
                break;
            }
            let symbol = best.symbol;
            joins.copy_within(left + 1..pieces.len(), left);
            let right = pieces.remove(left + 1);
            pieces[left] = Piece { start: pieces[left].start, end: right.end, symbol };
            joins[left] = at(pieces, left);
            if let Some(previous) = left.checked_sub(1) {
                joins[previous] = at(pieces, previous);
            }
        }
    }

    fn merge_long(&mut self, join: impl Fn(Piece, Piece) -> Option<Join>) {
        let Merger { pieces, links, queue } = self;
        queue.clear();
        links.clear();
        let last = pieces.len() - 1;
        links.extend((0..pieces.len()).map(|here| {
            let join = pieces.get(here + 1).and_then(|&right| join(pieces[here], right)).unwrap_or(NO_JOIN);
            Link {
                previous: here.checked_sub(1).map_or(NONE, |previous| previous as u32),
                next: if here < last { here as u32 + 1 } else { NONE },
                join,
            }
        }));
        for (here, link) in links.iter().enumerate() {
            queue.push(link.join.key, here as u32);
        }
        while let Some((key, left)) = queue.pop() {
            let Link { previous, next: right, join: Join { key: current, symbol } } = links[left as usize];
            // An entry whose pair has since changed. If the pair that is there now has the same key, this is its turn.
            if current != key {
                continue;
            }
            let next = links[right as usize].next;
            pieces[left as usize].end = pieces[right as usize].end;
            pieces[left as usize].symbol = symbol;
            links[right as usize].join = NO_JOIN;
            links[left as usize].next = next;
            if next != NONE {
                links[next as usize].previous = left;
            }
            for (left, right) in [(previous, left), (left, next)] {
                if left == NONE {
                    continue;
                }
                let found = if right == NONE {
                    NO_JOIN
                } else {
                    join(pieces[left as usize], pieces[right as usize]).unwrap_or(NO_JOIN)
                };
                links[left as usize].join = found;
                queue.push(found.key, left);
            }
        }
        // Keep the pieces that are still in the list.
        let (mut kept, mut here) = (0, 0u32);
        while here != NONE {
            pieces[kept] = pieces[here as usize];
            kept += 1;
            here = links[here as usize].next;
        }
        pieces.truncate(kept);
    }
}

/// A priority queue of (key, position), the smallest first. Keys repeat a lot and positions mostly arrive in order, so
/// each key has a list that is sorted once when its turn comes: a join costs a few nanoseconds instead of a walk
/// through a heap of the whole text.
#[derive(Default)]
struct MergeQueue {
    buckets: FxHashMap<u32, Bucket>,
    /// The keys of `buckets`.
    keys: BinaryHeap<Reverse<u32>>,
    /// The bucket being emptied, taken out of `buckets`.
    current: Option<(u32, Bucket)>,
}

#[derive(Default)]
struct Bucket {
    /// Sorted, once `open`.
    positions: Vec<u32>,
    taken: usize,
    open: bool,
    /// Positions that came after the bucket was opened.
    late: BinaryHeap<Reverse<u32>>,
}

impl Bucket {
    fn push(&mut self, position: u32) {
        if self.open {
            self.late.push(Reverse(position));
        } else {
            self.positions.push(position);
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let first = self.positions.get(self.taken).copied();
        match (first, self.late.peek().copied()) {
            (Some(first), Some(Reverse(late))) if late < first => self.late.pop().map(|late| late.0),
            (Some(first), _) => {
                self.taken += 1;
                Some(first)
            }
            (None, _) => self.late.pop().map(|late| late.0),
        }
    }
}

impl MergeQueue {
    fn clear(&mut self) {
        self.buckets.clear();
        self.keys.clear();
        self.current = None;
    }

    /// Adds an entry; the key `NONE` is no entry.
    fn push(&mut self, key: u32, position: u32) {
        if key == NONE {
            return;
        }
        match &mut self.current {
            Some((current, bucket)) if *current == key => bucket.push(position),
            _ => match self.buckets.entry(key) {
                Entry::Occupied(bucket) => bucket.into_mut().push(position),
                Entry::Vacant(slot) => {
                    slot.insert(Bucket::default()).push(position);
                    self.keys.push(Reverse(key));
                }
            },
        }
    }

    fn pop(&mut self) -> Option<(u32, u32)> {
        loop {
            let next = self.keys.peek().map(|key| key.0);
            if let Some((key, mut bucket)) = self.current.take() {
                if next.is_some_and(|next| next < key) {
                    // A more urgent key came up; this one waits as it is.
                    self.buckets.insert(key, bucket);
                    self.keys.push(Reverse(key));
                } else if let Some(position) = bucket.pop() {
                    self.current = Some((key, bucket));
                    return Some((key, position));
                } else {
                    continue;
                }
            }
            let Reverse(key) = self.keys.pop()?;
            let mut bucket = self.buckets.remove(&key)?;
            if !bucket.open {
                bucket.positions.sort_unstable();
                bucket.open = true;
            }
            self.current = Some((key, bucket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word for word: the smallest key joins first, the leftmost among equals.
    fn naive(pieces: &[Piece], join: impl Fn(Piece, Piece) -> Option<Join>) -> Vec<Piece> {
        let mut pieces = pieces.to_vec();
        loop {
            let best = (0..pieces.len().saturating_sub(1))
                .filter_map(|left| Some((join(pieces[left], pieces[left + 1])?, left)))
                .min_by_key(|(join, left)| (join.key, *left));
            let Some((join, left)) = best else { return pieces };
            let right = pieces.remove(left + 1);
            pieces[left] = Piece { end: right.end, symbol: join.symbol, ..pieces[left] };
        }
    }

    /// A random set of joins: keys repeat, and later joins may be more urgent than the ones that made them possible.
    fn random_join(seed: u32) -> impl Fn(Piece, Piece) -> Option<Join> + Copy {
        move |left, right| {
            let mixed =
                (left.symbol.wrapping_mul(0x9E37_79B9) ^ right.symbol.wrapping_mul(0x85EB_CA6B) ^ seed)
                    .wrapping_mul(0xC2B2_AE35);
            let length = right.end - left.start;
            (mixed >> 29 != 0 && length < 40)
                .then_some(Join { key: mixed >> 8 & 15, symbol: (mixed >> 16 & 7) + 8 * length })
        }
    }

    fn pieces(symbols: &[u32]) -> Vec<Piece> {
        (0..).zip(symbols).map(|(start, &symbol)| Piece { start, end: start + 1, symbol }).collect()
    }

    proptest! {
        #[test]
        fn both_ways_follow_the_definition(
            symbols in proptest::collection::vec(0u32..4, 1..150), seed in any::<u32>(),
        ) {
            let word = pieces(&symbols);
            let join = random_join(seed);
            let expected = naive(&word, join);
            let mut long = Merger { pieces: word.clone(), ..Merger::default() };
            long.merge_long(join);
            prop_assert_eq!(&long.pieces, &expected);
            if word.len() <= SHORT {
                let mut short = Merger { pieces: word, ..Merger::default() };
                short.merge_short(join);
                prop_assert_eq!(&short.pieces, &expected);
            }
        }

        #[test]
        fn the_queue_is_a_priority_queue(steps in proptest::collection::vec((0u32..6, 0u32..50, 0usize..3), 0..200)) {
            let (mut queue, mut heap) = (MergeQueue::default(), BinaryHeap::new());
            for (key, position, pops) in steps {
                queue.push(key, position);
                heap.push(Reverse((key, position)));
                for _ in 0..pops {
                    prop_assert_eq!(queue.pop(), heap.pop().map(|entry| entry.0));
                }
            }
            while let Some(Reverse(entry)) = heap.pop() {
                prop_assert_eq!(queue.pop(), Some(entry));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }
}
