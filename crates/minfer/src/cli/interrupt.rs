//! Ctrl-C: the first one asks, the second one ends.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use super::INTERRUPTED;

static INTERRUPTED_ONCE: AtomicBool = AtomicBool::new(false);

/// Calls `stop` on the first SIGINT, SIGTERM or SIGHUP, from a thread of its own; ends the process on the second.
/// Before this is called, the first one ends the process too.
pub(super) fn on_interrupt(stop: impl Fn() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(move || {
        if INTERRUPTED_ONCE.swap(true, Ordering::SeqCst) {
            std::process::exit(INTERRUPTED.into());
        }
        stop();
    })
    .context("cannot handle interrupts")
}

/// Whether there was one.
pub(super) fn interrupted() -> bool {
    INTERRUPTED_ONCE.load(Ordering::SeqCst)
}
