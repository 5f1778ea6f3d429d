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

/// Whether something runs that an interrupt is to stop, instead of ending the process.
static STOPPABLE: AtomicBool = AtomicBool::new(false);
/// Set by an interrupt meanwhile.
static STOP: AtomicBool = AtomicBool::new(false);

/// From now on an interrupt stops what runs under [`stoppable`], a second one meanwhile ends the process; one at any
/// other time does too.
pub(super) fn stop_on_interrupt() -> Result<()> {
    ctrlc::set_handler(|| {
        if !STOPPABLE.load(Ordering::SeqCst) || STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(INTERRUPTED.into());
        }
    })
    .context("cannot handle interrupts")
}

/// Runs something that ends soon once its flag is set.
pub(super) fn stoppable<T>(work: impl FnOnce(&AtomicBool) -> T) -> T {
    STOP.store(false, Ordering::SeqCst);
    STOPPABLE.store(true, Ordering::SeqCst);
    let result = work(&STOP);
    STOPPABLE.store(false, Ordering::SeqCst);
    result
}
