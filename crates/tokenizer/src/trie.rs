//! Token texts as a tree of bytes: all tokens that a text begins with, in one walk.

use crate::vocab::NONE;

/// A tree of bytes. The children of a node are neighbours, in order of their bytes.
pub(crate) struct Trie {
    nodes: Vec<Node>,
}

#[derive(Clone, Copy)]
struct Node {
    /// The first child; the others follow, up to the first child of the next node.
    children: u32,
    /// The token that ends here; `NONE` if none does.
    token: u32,
    /// The byte that leads here.
    byte: u8,
}

impl Trie {
    /// The tree of these texts, which are different and not empty. Their total length is below `u32::MAX`.
    pub(crate) fn new<'t>(texts: impl Iterator<Item = (&'t [u8], u32)>) -> Trie {
        let mut texts: Vec<(&[u8], u32)> = texts.collect();
        texts.sort_unstable_by_key(|(text, _)| *text);
        // Breadth first: each node is a range of the sorted texts that agree in their first `depth` bytes.
        let mut nodes = vec![Node { children: 0, token: NONE, byte: 0 }];
        let mut level = vec![(0, texts.len())];
        let mut first = 0;
        let mut depth = 0;
        while !level.is_empty() {
            let mut next = Vec::new();
            for (node, (mut begin, end)) in (first..).zip(level) {
                if begin < end && texts[begin].0.len() == depth {
                    nodes[node].token = texts[begin].1;
                    begin += 1;
                }
                nodes[node].children = nodes.len() as u32;
                while begin < end {
                    let byte = texts[begin].0[depth];
                    let same = texts[begin..end].partition_point(|(text, _)| text[depth] == byte);
                    nodes.push(Node { children: 0, token: NONE, byte });
                    next.push((begin, begin + same));
                    begin += same;
                }
            }
            first = nodes.len() - next.len();
            level = next;
            depth += 1;
        }
        // The end of the last node's children.
        nodes.push(Node { children: nodes.len() as u32, token: NONE, byte: 0 });
        Trie { nodes }
    }

    /// Lengths and ids of the tokens that `text` begins with, the shortest first.
    pub(crate) fn prefixes<'t>(&'t self, text: &'t [u8]) -> impl Iterator<Item = (usize, u32)> + 't {
        let mut node = 0;
        let mut bytes = (1..).zip(text);
        std::iter::from_fn(move || {
            for (length, byte) in bytes.by_ref() {
                let children = self.nodes[node].children as usize..self.nodes[node + 1].children as usize;
                let first = children.start;
                let children = &self.nodes[children];
                // Most nodes have a child or two; the root and a few others have up to 256.
                let found = match children.len() {
                    0..=8 => children.iter().position(|child| child.byte == *byte)?,
                    _ => children.binary_search_by_key(byte, |child| child.byte).ok()?,
                };
                node = first + found;
                if self.nodes[node].token != NONE {
                    return Some((length, self.nodes[node].token));
                }
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prefixes_are_those_of_the_list(
            texts in proptest::collection::btree_set("[abc]{1,6}", 0..40), text in "[abcd]{0,9}",
        ) {
            let trie = Trie::new((0..).zip(&texts).map(|(id, text)| (text.as_bytes(), id)));
            let mut expected: Vec<_> = (0..).zip(&texts).filter(|(_, known)| text.starts_with(known.as_str()))
                .map(|(id, known)| (known.len(), id)).collect();
            expected.sort_unstable();
            prop_assert_eq!(trie.prefixes(text.as_bytes()).collect::<Vec<_>>(), expected);
        }
    }
}
