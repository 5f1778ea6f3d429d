//! The prefix cache: which blocks hold the keys and values of which tokens, whoever computed them.
//!
//! A radix tree whose edges are the tokens of one block. A node stands for all tokens from the beginning to the end of its
//! edge, and has that block of every cache group; of groups with a sliding window only while it is kept. A path is held
//! together by its groups without a window: where a node's block is somebody's, so are those of all nodes above it. So what
//! nobody uses is always found at the leaves, and given up there, what was used longest ago first.

use std::collections::{BTreeSet, HashMap};

use crate::executor::TokenId;

/// A node, by its place in the tree.
pub(super) type NodeId = usize;

/// Where every path begins.
pub(super) const ROOT: NodeId = 0;

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// Of the edge to it.
    tokens: Box<[TokenId]>,
    children: HashMap<Box<[TokenId]>, NodeId>,
    /// One per cache group.
    blocks: Vec<Option<u32>>,
    /// When it was last used; unique, and later than that of every node below.
    used: u64,
    /// Live sequences whose path ends here.
    pins: usize,
    /// Steps after which its blocks are written for sure.
    written_by: u64,
}

/// The tree.
#[derive(Debug)]
pub(super) struct Prefixes {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    /// All nodes but the root, by their last use.
    by_use: BTreeSet<(u64, NodeId)>,
    clock: u64,
}

/// What a node stands for: all tokens up to the end of its edge, and the blocks of those of its edge, one per cache group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// From the beginning.
    pub(crate) tokens: Vec<TokenId>,
    /// Of the last block of them.
    pub(crate) blocks: Vec<Option<u32>>,
    /// Steps after which these are written.
    pub(crate) written_by: u64,
}

/// What is given up: a block of each group that has one.
pub(super) type GivenUp = Vec<(usize, u32)>;

impl Prefixes {
    pub(super) fn new() -> Self {
        let root = Node {
            parent: ROOT,
            tokens: Box::default(),
            children: HashMap::new(),
            blocks: Vec::new(),
            used: 0,
            pins: 0,
            written_by: 0,
        };
        Prefixes { nodes: vec![Some(root)], vacant: Vec::new(), by_use: BTreeSet::new(), clock: 0 }
    }

    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id).and_then(Option::as_ref)
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id).and_then(Option::as_mut)
    }

    /// The nodes along `tokens`, as many whole blocks of them as are known.
    pub(super) fn path(&self, tokens: &[TokenId], block_tokens: usize) -> Vec<NodeId> {
        let mut path = Vec::new();
        let mut at = ROOT;
        for edge in tokens.chunks_exact(block_tokens) {
            let Some(next) = self.child(at, edge) else { break };
            path.push(next);
            at = next;
        }
        path
    }

    /// The node after `tokens` below `at`, if there is one.
    pub(super) fn child(&self, at: NodeId, tokens: &[TokenId]) -> Option<NodeId> {
        self.node(at)?.children.get(tokens).copied()
    }

    /// A new node after `tokens` below `at`.
    pub(super) fn add(&mut self, at: NodeId, tokens: &[TokenId], blocks: Vec<Option<u32>>) -> NodeId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        let node = Node {
            parent: at,
            tokens: tokens.into(),
            children: HashMap::new(),
            blocks,
            used: 0,
            pins: 0,
            written_by: 0,
        };
        self.by_use.insert((0, id));
        self.nodes[id] = Some(node);
        if let Some(parent) = self.node_mut(at) {
            parent.children.insert(tokens.into(), id);
        }
        id
    }

    /// Its block in a group.
    pub(super) fn block(&self, id: NodeId, group: usize) -> Option<u32> {
        self.node(id)?.blocks.get(group).copied().flatten()
    }

    /// Gives it a block that it lacks.
    pub(super) fn set_block(&mut self, id: NodeId, group: usize, block: u32) {
        if let Some(place) = self.node_mut(id).and_then(|node| node.blocks.get_mut(group)) {
            *place = Some(block);
        }
    }

    /// The node above; of the root the root.
    pub(super) fn parent(&self, id: NodeId) -> NodeId {
        self.node(id).map_or(ROOT, |node| node.parent)
    }

    /// A sequence's path ended at `from`, and ends at `to` now.
    pub(super) fn move_pin(&mut self, from: NodeId, to: NodeId) {
        if let Some(node) = self.node_mut(to) {
            node.pins += 1;
        }
        if let Some(node) = self.node_mut(from) {
            // The root's count means nothing.
            node.pins = node.pins.saturating_sub(1);
        }
    }

    /// It and all above it were just used.
    pub(super) fn touch(&mut self, mut id: NodeId) {
        while id != ROOT {
            self.clock += 1;
            let clock = self.clock;
            let Some(node) = self.node_mut(id) else { return };
            let (before, parent) = (std::mem::replace(&mut node.used, clock), node.parent);
            self.by_use.remove(&(before, id));
            self.by_use.insert((clock, id));
            id = parent;
        }
    }

    /// Its blocks are written by the steps up to this one.
    pub(super) fn set_written_by(&mut self, id: NodeId, step: u64) {
        if let Some(node) = self.node_mut(id) {
            node.written_by = node.written_by.max(step);
        }
    }

    /// All that a node stands for.
    pub(super) fn entry(&self, id: NodeId) -> Option<Entry> {
        let node = self.node(id)?;
        let mut edges = Vec::new();
        let mut at = id;
        while at != ROOT {
            let node = self.node(at)?;
            edges.push(&node.tokens);
            at = node.parent;
        }
        let tokens = edges.into_iter().rev().flat_map(|edge| edge.iter().copied()).collect();
        Some(Entry { tokens, blocks: node.blocks.clone(), written_by: node.written_by })
    }

    /// All nodes but the root, what was used longest ago first.
    pub(super) fn by_use(&self) -> impl DoubleEndedIterator<Item = NodeId> + '_ {
        self.by_use.iter().map(|(_, id)| *id)
    }

    /// The node of which a block of group `group`, which `unused` says nobody else has, can be given up: of what was used
    /// longest ago. `windowed` says whether the group has a sliding window.
    pub(super) fn dispensable(
        &self,
        group: usize,
        windowed: bool,
        unused: impl Fn(u32) -> bool,
    ) -> Option<NodeId> {
        self.by_use().find(|&id| {
            self.node(id).is_some_and(|node| {
                let free = node.blocks.get(group).copied().flatten().is_some_and(&unused);
                free && (windowed || (node.children.is_empty() && node.pins == 0))
            })
        })
    }

    /// Gives up the block of group `group` of a [dispensable](Prefixes::dispensable) node, and with it what is of no use without
    /// it.
    pub(super) fn give_up(&mut self, id: NodeId, group: usize, windowed: bool) -> Option<GivenUp> {
        if !windowed {
            return Some(self.remove(id));
        }
        let block = self.node_mut(id)?.blocks[group].take()?;
        let mut given_up = vec![(group, block)];
        // A model that has nothing but windows: a leaf without a block is of no use.
        let mut at = id;
        while at != ROOT
            && let Some(node) = self.node(at)
            && node.children.is_empty()
            && node.pins == 0
            && node.blocks.iter().all(Option::is_none)
        {
            let parent = node.parent;
            given_up.extend(self.remove(at));
            at = parent;
        }
        Some(given_up)
    }

    /// Takes a leaf out.
    fn remove(&mut self, id: NodeId) -> GivenUp {
        let Some(node) = self.nodes[id].take() else { return GivenUp::new() };
        self.by_use.remove(&(node.used, id));
        self.vacant.push(id);
        if let Some(parent) = self.node_mut(node.parent) {
            parent.children.remove(&node.tokens);
        }
        node.blocks.into_iter().enumerate().filter_map(|(group, block)| Some((group, block?))).collect()
    }

    /// Every block of every node: group and number.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let nodes = self.nodes.iter().flatten();
        nodes.flat_map(|node| node.blocks.iter().enumerate().filter_map(|(group, b)| Some((group, (*b)?))))
    }

    /// Checks the tree itself; `pins` are the nodes at which the paths of live sequences end.
    pub(super) fn check(&self, pins: &[NodeId]) -> Result<(), String> {
        let mut seen = 0;
        for (id, node) in self.nodes.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?))) {
            let pinned = pins.iter().filter(|pin| **pin == id).count();
            if id != ROOT && node.pins != pinned {
                return Err(format!("node {id}: {} pins, {pinned} sequences", node.pins));
            }
            let Some(parent) = self.node(node.parent) else { return Err(format!("node {id} has no parent")) };
            if id != ROOT {
                seen += 1;
                if parent.children.get(&node.tokens) != Some(&id) || !self.by_use.contains(&(node.used, id)) {
                    return Err(format!("node {id} is not where it should be"));
                }
                if node.parent != ROOT && parent.used <= node.used {
                    return Err(format!("node {id} was used after its parent"));
                }
            }
        }
        match seen == self.by_use.len() {
            true => Ok(()),
            false => Err(format!("{seen} nodes, {} by use", self.by_use.len())),
        }
    }
}
