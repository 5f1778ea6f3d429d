//! Graphs: launches recorded once, replayed as one.

use super::{Context, Failure, Gpu, call, sys};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// Recorded launches, ready to be replayed.
pub(crate) struct Graph {
    context: Arc<Context>,
    handle: *mut c_void,
}

// SAFETY: used by one thread at a time, with the context current.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `Gpu::end_recording`.
        unsafe { (self.context.driver.cuGraphExecDestroy)(self.handle) };
    }
}

impl Gpu {
    /// From here on launches of this thread are recorded instead of run.
    pub(crate) fn begin_recording(&self) -> Result<(), Failure> {
        // SAFETY: a live stream that is not recording.
        unsafe { call!(self.driver(), cuStreamBeginCapture_v2(self.stream, sys::CAPTURE_THREAD_LOCAL)) }
    }

    /// Ends the recording.
    pub(crate) fn end_recording(&self) -> Result<Graph, Failure> {
        let (mut graph, mut handle) = (null_mut(), null_mut());
        // SAFETY: a stream that records; the recorded graph is freed once it is instantiated.
        unsafe {
            call!(self.driver(), cuStreamEndCapture(self.stream, &raw mut graph))?;
            let made = call!(self.driver(), cuGraphInstantiateWithFlags(&raw mut handle, graph, 0));
            (self.driver().cuGraphDestroy)(graph);
            made?;
        }
        Ok(Graph { context: Arc::clone(&self.context), handle })
    }

    /// Enqueues what was recorded.
    pub(crate) fn replay(&self, graph: &Graph) -> Result<(), Failure> {
        // SAFETY: a live graph; the addresses that it holds are those of buffers that the device keeps.
        unsafe { call!(self.driver(), cuGraphLaunch(graph.handle, self.stream)) }
    }
}
