//! What a model will hold on a device, told before any of it is loaded.

use crate::{
    AttnInSpec, AttnOutSpec, EmbeddingSpec, FfnInput, FfnSpec, HeadNorm, HeadSpec, Linear, Norm, Rope, Weight,
};

/// Something that a device will be asked to load.
#[derive(Clone, Copy)]
pub enum Holding<'a> {
    /// A matrix whose rows are looked up.
    Table(&'a Weight),
    /// A matrix for products.
    Matrix(&'a Weight),
    /// A table that is loaded already, for products too.
    Tied(&'a Weight),
    /// So many floats: a bias, or a norm's weights.
    Vector(usize),
    /// A rope; of several that are the same a device needs one.
    Rope(&'a Rope),
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What the loaded weights hold.
    pub weights: u64,
    /// What of them stays in the pages of the file: when memory is short the system takes those back by itself.
    pub mapped: u64,
    /// The most that loading holds at a time: a device may need a tensor twice while it rearranges it.
    pub loading: u64,
    /// Cache and activations.
    pub reserved: u64,
}

impl Memory {
    /// The most that is held at a time, beside the pages of the file.
    pub fn needed(&self) -> u64 {
        self.loading.max(self.weights.saturating_add(self.reserved)).saturating_sub(self.mapped)
    }
}

fn linear<'a>(linear: &'a Linear, tell: &mut dyn FnMut(Holding<'a>)) {
    tell(Holding::Matrix(&linear.weight));
    if let Some(bias) = &linear.bias {
        tell(Holding::Vector(bias.len()));
    }
}

fn norm<'a>(norm: Option<&Norm>, tell: &mut dyn FnMut(Holding<'a>)) {
    if let Some(norm) = norm {
        tell(Holding::Vector(norm.weight.len()));
        if let Some(bias) = &norm.bias {
            tell(Holding::Vector(bias.len()));
        }
    }
}

impl EmbeddingSpec {
    /// Tells what the stage holds.
    pub fn holdings<'a>(&'a self, tell: &mut dyn FnMut(Holding<'a>)) {
        tell(Holding::Table(&self.table));
        if let Some(positions) = &self.positions {
            tell(Holding::Table(positions));
        }
        if let Some(token_type) = &self.token_type {
            tell(Holding::Vector(token_type.len()));
        }
        norm(self.norm.as_ref(), tell);
    }
}

impl AttnInSpec {
    /// Tells what the stage holds.
    pub fn holdings<'a>(&'a self, tell: &mut dyn FnMut(Holding<'a>)) {
        norm(self.norm.as_ref(), tell);
        for head_norm in [&self.q_norm, &self.k_norm].into_iter().flatten() {
            let (HeadNorm::EachHead(of_heads) | HeadNorm::AllHeads(of_heads)) = head_norm;
            norm(Some(of_heads), tell);
        }
        [&self.q, &self.k, &self.v].into_iter().for_each(|l| linear(l, tell));
        if let Some(rope) = &self.rope {
            tell(Holding::Rope(rope));
        }
    }
}

impl AttnOutSpec {
    /// Tells what the stage holds.
    pub fn holdings<'a>(&'a self, tell: &mut dyn FnMut(Holding<'a>)) {
        norm(self.post_norm.as_ref(), tell);
        norm(self.stream_norm.as_ref(), tell);
        linear(&self.proj, tell);
    }
}

impl FfnSpec {
    /// Tells what the stage holds.
    pub fn holdings<'a>(&'a self, tell: &mut dyn FnMut(Holding<'a>)) {
        if let FfnInput::Residual(of_input) = &self.input {
            norm(of_input.as_ref(), tell);
        }
        norm(self.post_norm.as_ref(), tell);
        norm(self.stream_norm.as_ref(), tell);
        self.gate.iter().chain([&self.up, &self.down]).for_each(|l| linear(l, tell));
    }
}

impl HeadSpec {
    /// Tells what the stage holds; `table` is the embedding's.
    pub fn holdings<'a>(&'a self, table: &'a Weight, tell: &mut dyn FnMut(Holding<'a>)) {
        match &self.proj {
            Some(proj) => linear(proj, tell),
            None => tell(Holding::Tied(table)),
        }
        norm(self.norm.as_ref(), tell);
    }
}
