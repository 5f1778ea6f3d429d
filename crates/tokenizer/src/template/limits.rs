//! What a template may take: it comes with a file from anywhere, and its author may mean harm.

use minijinja::{Error, ErrorKind};

/// Bytes of a template's source. Published ones have less than 30 KiB.
pub(super) const MAX_SOURCE: usize = 128 << 10;

/// Names, literals and signs of a tag. Constants are folded while an expression is compiled, again at each level, so
/// that a long chain would take minutes.
pub(super) const MAX_TOKENS: usize = 4096;

/// Bytes of a rendered conversation, and of each text that is made on the way: some million tokens.
pub(super) const MAX_TEXT: usize = 32 << 20;

/// Instructions (and 64-byte parts of data) that one rendering may cost: ten times the 100,000 or so of a long
/// conversation, and a tenth of a second or so of a template that would never end.
pub(super) const FUEL: u64 = 1_000_000;

/// Bytes of stack, reserved, and committed only as they are touched.
///
/// - Rendering: an instruction nests a value at most one list deeper, so that values are at most [`FUEL`] deep.
///   Comparing, the dearest thing that recurses without a limit of its own, takes 384 bytes a level, and dropping
///   64 (a test below measures both): less than half of the stack.
/// - Compiling: a byte of source nests an expression at most one level deeper, so that a level may take
///   8 KiB at [`MAX_SOURCE`].
pub(super) const STACK: usize = 1 << 30;

/// Runs `work`, with all that it makes and drops, on a thread with a stack of [`STACK`] bytes.
pub(super) fn with_stack<T: Send>(
    work: impl FnOnce() -> Result<T, crate::Error> + Send,
) -> Result<T, crate::Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|source| crate::Error::TemplateThread { bytes: STACK, source })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Refuses a text that has become too long.
pub(super) fn check(bytes: usize) -> Result<(), Error> {
    if bytes <= MAX_TEXT {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("a text of more than {} MiB, which is the limit", MAX_TEXT >> 20),
    ))
}

/// A rendered text within its limit.
#[derive(Default)]
pub(super) struct Rendered(pub(super) Vec<u8>);

impl std::io::Write for Rendered {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        check(self.0.len().saturating_add(bytes.len())).map_err(std::io::Error::other)?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// Optimized frames only: others are larger, and nobody gives them a harmful template.
#[cfg(all(test, not(debug_assertions)))]
mod tests {
    use std::cmp::Ordering;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use minijinja::Value;
    use minijinja::value::{DynObject, Object};

    use super::*;

    static DEEPEST: AtomicUsize = AtomicUsize::new(usize::MAX);

    /// Takes note of how deep the stack is where it is compared and dropped.
    #[derive(Debug)]
    struct Probe;

    #[inline(never)]
    fn here() -> usize {
        let local = 0u8;
        std::hint::black_box(&raw const local) as usize
    }

    impl Object for Probe {
        fn custom_cmp(self: &Arc<Self>, _: &DynObject) -> Option<Ordering> {
            DEEPEST.fetch_min(here(), Relaxed);
            Some(Ordering::Equal)
        }
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            DEEPEST.fetch_min(here(), Relaxed);
        }
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(Value::from_object(Probe), |inner, _| Value::from(vec![inner]))
    }

    #[test]
    fn the_deepest_value_fits_in_the_stack() {
        const LEVELS: usize = 1000;
        let measure = |work: &dyn Fn(Value, Value)| {
            let (a, b) = (nested(LEVELS), nested(LEVELS));
            DEEPEST.store(usize::MAX, Relaxed);
            let top = here();
            work(a, b);
            let deepest = DEEPEST.load(Relaxed);
            assert!(deepest < top, "the probe was reached");
            (top - deepest) / LEVELS
        };
        let costs = [
            measure(&|a, b| assert!(a == b)),
            measure(&|a, b| assert!(a.cmp(&b) == Ordering::Equal)),
            measure(&|a, b| drop((a, b))),
        ];
        for bytes in costs {
            assert!(bytes * (FUEL as usize) < STACK / 4 * 3, "bytes per level: {costs:?}");
        }
    }
}
