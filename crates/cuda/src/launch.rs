//! Launches: at once, or kept until the end of a step so that a graph can replay what is the same again.

use crate::driver::{Gpu, Graph, Kernel, Shape};
use bytemuck::Pod;
use minfer_ops::DeviceError;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Graphs that are kept: a step has one for each number of tokens and each power of two of attention segments.
const MOST_GRAPHS: usize = 16;

/// One launch; its parameter lies in [`Launches::words`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Launch {
    kernel: Kernel,
    shape: Shape,
    start: usize,
    len: usize,
}

/// Launches in their order, with their parameters. Two that are equal do the same.
#[derive(Clone, Default, PartialEq, Eq)]
struct Launches {
    list: Vec<Launch>,
    words: Vec<u64>,
}

impl Launches {
    fn clear(&mut self) {
        self.list.clear();
        self.words.clear();
    }

    fn push<A: Pod>(&mut self, kernel: Kernel, shape: Shape, args: &A) {
        let start = self.words.len();
        let len = size_of::<A>().div_ceil(8);
        self.words.resize(start + len, 0);
        bytemuck::cast_slice_mut(&mut self.words[start..])[..size_of::<A>()]
            .copy_from_slice(bytemuck::bytes_of(args));
        self.list.push(Launch { kernel, shape, start, len });
    }

    fn run(&self, gpu: &Gpu) -> Result<(), DeviceError> {
        for launch in &self.list {
            let args = &self.words[launch.start..launch.start + launch.len];
            // SAFETY: `Lane::enqueue` was promised what a launch needs.
            unsafe { gpu.launch(launch.kernel, launch.shape, args)? };
        }
        Ok(())
    }
}

/// A GPU and what is enqueued on it.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) queue: &'a Queue,
}

impl Lane<'_> {
    /// Runs or keeps a launch.
    ///
    /// # Safety
    /// `args` is the kernel's only parameter, what it points to is there until the queue is flushed and the kernel has
    /// run, and the grid is one that the kernel stays inside its memory for. A graph only repeats what is enqueued again.
    pub(crate) unsafe fn enqueue<A: Pod>(
        self,
        kernel: Kernel,
        shape: Shape,
        args: &A,
    ) -> Result<(), DeviceError> {
        let mut inner = self.queue.inner.borrow_mut();
        inner.kept.push(kernel, shape, args);
        if inner.keep {
            return Ok(());
        }
        let result = inner.kept.run(self.gpu);
        inner.kept.clear();
        result
    }
}

/// What a step enqueues.
#[derive(Default)]
pub(crate) struct Queue {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Whether launches are kept until [`Queue::flush`].
    keep: bool,
    kept: Launches,
    /// Steps that ran without a graph: one that comes again is worth recording.
    seen: VecDeque<Launches>,
    graphs: VecDeque<(Launches, Graph)>,
    replays: u64,
}

impl Queue {
    /// From here on launches are kept until [`Queue::flush`], or run at once.
    pub(crate) fn keep(&self, keep: bool) {
        self.inner.borrow_mut().keep = keep;
    }

    /// Runs what was kept: as a graph, if the same was kept before.
    pub(crate) fn flush(&self, gpu: &Gpu) -> Result<(), DeviceError> {
        let inner = &mut *self.inner.borrow_mut();
        inner.keep = false;
        if inner.kept.list.is_empty() {
            return Ok(());
        }
        let mut kept = std::mem::take(&mut inner.kept);
        let result = inner.run(gpu, &kept);
        kept.clear();
        inner.kept = kept;
        result
    }

    /// Steps that were replayed.
    pub(crate) fn replays(&self) -> u64 {
        self.inner.borrow().replays
    }
}

impl Inner {
    fn run(&mut self, gpu: &Gpu, kept: &Launches) -> Result<(), DeviceError> {
        if let Some((_, graph)) = self.graphs.iter().find(|(launches, _)| launches == kept) {
            self.replays += 1;
            return Ok(gpu.replay(graph)?);
        }
        let Some(place) = self.seen.iter().position(|launches| launches == kept) else {
            self.seen.push_front(kept.clone());
            self.seen.truncate(MOST_GRAPHS);
            return kept.run(gpu);
        };
        gpu.begin_recording()?;
        let run = kept.run(gpu);
        // The recording ends in any case, or the stream could not be used again.
        let graph = gpu.end_recording();
        run?;
        let graph = graph?;
        gpu.replay(&graph)?;
        self.replays += 1;
        if let Some(launches) = self.seen.remove(place) {
            self.graphs.push_front((launches, graph));
            self.graphs.truncate(MOST_GRAPHS);
        }
        Ok(())
    }
}
