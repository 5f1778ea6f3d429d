//! The thread pool: persistent workers that a job enters together.
//!
//! A job is one closure run by every worker; inside it, workers meet at [`Worker::barrier`] and share work by
//! [`Worker::chunks`]. Workers spin for a short time after a job, so that the next op of the same step finds them
//! awake (an empty job costs about half a microsecond), then park.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// Spins before a worker parks: about 50 µs.
const SPINS: u32 = 20_000;
/// Spins at a barrier before the core is offered to someone else.
const SPINS_BEFORE_YIELD: u32 = 2_000;
/// Shared counters per job: a job may have that many phases of shared work.
const COUNTERS: usize = 8;

/// Keeps a value on cache lines of its own.
#[repr(align(128))]
struct Padded<T>(T);

type Job<'a> = dyn Fn(&Worker<'_>) + Sync + 'a;

struct Shared {
    threads: usize,
    /// More workers than cores.
    crowded: bool,
    epoch: Padded<AtomicU64>,
    /// The job of the present epoch: a pointer to a `&Job` on the caller's stack, valid until `running` is 0.
    job: Padded<AtomicUsize>,
    running: Padded<AtomicUsize>,
    arrived: Padded<AtomicUsize>,
    generation: Padded<AtomicU32>,
    counters: [Padded<AtomicUsize>; COUNTERS],
    failed: AtomicBool,
    stop: AtomicBool,
    parked: Vec<Padded<AtomicBool>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A pool of `threads` workers, the caller's thread being one of them.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    threads: Vec<Thread>,
}

/// What a worker unwinds with when another one panicked.
struct Abandoned;

/// One worker inside a job.
pub struct Worker<'a> {
    /// Index of the worker, below `count`.
    pub id: usize,
    /// Number of workers.
    pub count: usize,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// Waits until every worker is here; what they wrote before is visible after.
    pub fn barrier(&self) {
        if self.count == 1 {
            return;
        }
        let shared = self.shared;
        let generation = shared.generation.0.load(Ordering::Acquire);
        if shared.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            shared.arrived.0.store(0, Ordering::Relaxed);
            shared.generation.0.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while shared.generation.0.load(Ordering::Acquire) == generation {
            if shared.failed.load(Ordering::Relaxed) {
                // Another worker panicked and will never arrive; its panic is the one that is reported.
                resume_unwind(Box::new(Abandoned));
            }
            relax(&mut spins, shared.crowded);
        }
    }

    /// Shares `0..n` among the workers in ranges of `grain`, first come first served. `phase` (below 8) names this
    /// piece of shared work within the job.
    pub fn chunks(&self, phase: usize, n: usize, grain: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let counter = &self.shared.counters[phase].0;
        let grain = grain.max(1);
        std::iter::from_fn(move || {
            let start = counter.fetch_add(grain, Ordering::Relaxed);
            (start < n).then(|| start..(start + grain).min(n))
        })
    }

    /// A grain for [`Worker::chunks`] that leaves about eight ranges to each worker.
    pub fn grain(&self, n: usize) -> usize {
        if self.count == 1 { n.max(1) } else { n.div_ceil(8 * self.count) }
    }
}

/// Waits a moment. With more workers than cores the one waited for may need this core.
fn relax(spins: &mut u32, crowded: bool) {
    *spins += 1;
    if crowded || *spins > SPINS_BEFORE_YIELD {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl Pool {
    /// Starts `threads − 1` workers.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            threads,
            crowded: threads > std::thread::available_parallelism().map_or(1, |n| n.get()),
            epoch: Padded(AtomicU64::new(0)),
            job: Padded(AtomicUsize::new(0)),
            running: Padded(AtomicUsize::new(0)),
            arrived: Padded(AtomicUsize::new(0)),
            generation: Padded(AtomicU32::new(0)),
            counters: std::array::from_fn(|_| Padded(AtomicUsize::new(0))),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: (1..threads).map(|_| Padded(AtomicBool::new(false))).collect(),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, handles: Vec::new(), threads: Vec::new() };
        for id in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle =
                std::thread::Builder::new().name(format!("minfer-{id}")).spawn(move || work(&shared, id))?;
            pool.threads.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// Number of workers.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` on every worker and returns when all have finished. A panic in any of them is resumed here.
    pub fn run(&mut self, job: impl Fn(&Worker<'_>) + Sync) {
        let shared = &*self.shared;
        for counter in &shared.counters {
            counter.0.store(0, Ordering::Relaxed);
        }
        let own = Worker { id: 0, count: shared.threads, shared };
        if shared.threads == 1 {
            return job(&own);
        }
        let job: &Job<'_> = &job;
        // The workers turn the exposed address of the reference back into a pointer.
        shared.job.0.store((&raw const job).expose_provenance(), Ordering::Relaxed);
        shared.running.0.store(shared.threads - 1, Ordering::Relaxed);
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (thread, parked) in self.threads.iter().zip(&shared.parked) {
            if parked.0.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let result = catch_unwind(AssertUnwindSafe(|| job(&own)));
        if result.is_err() {
            shared.failed.store(true, Ordering::Relaxed);
        }
        let mut spins = 0;
        while shared.running.0.load(Ordering::Acquire) != 0 {
            relax(&mut spins, shared.crowded);
        }
        if shared.failed.swap(false, Ordering::Relaxed) {
            shared.arrived.0.store(0, Ordering::Relaxed);
            let first = shared.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            if let Some(panic) = first.or(result.err()) {
                resume_unwind(panic);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for thread in &self.threads {
            thread.unpark();
        }
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// The life of worker `id`.
fn work(shared: &Shared, id: usize) {
    let mut epoch = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.0.load(Ordering::Acquire) == epoch {
            spins += 1;
            if spins < SPINS && !shared.crowded {
                std::hint::spin_loop();
                continue;
            }
            // Either this store is seen by the caller, who then unparks, or the load below sees its epoch.
            let parked = &shared.parked[id - 1].0;
            parked.store(true, Ordering::SeqCst);
            while shared.epoch.0.load(Ordering::SeqCst) == epoch {
                std::thread::park();
            }
            parked.store(false, Ordering::SeqCst);
        }
        epoch += 1;
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let address = shared.job.0.load(Ordering::Relaxed);
        // SAFETY: the epoch was published after the address of a `&Job` on the stack of `Pool::run`, which does not
        // return before this worker has decremented `running`. Its provenance was exposed there.
        let job: &Job<'_> = unsafe { *std::ptr::with_exposed_provenance::<&Job<'_>>(address) };
        let worker = Worker { id, count: shared.threads, shared };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&worker))) {
            if !panic.is::<Abandoned>() {
                shared.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(panic);
            }
            shared.failed.store(true, Ordering::Relaxed);
        }
        shared.running.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_every_job_and_barriers_order_them() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads).expect("threads");
            for round in 0..200 {
                let before = AtomicUsize::new(0);
                let ok = AtomicUsize::new(0);
                pool.run(|w| {
                    before.fetch_add(1, Ordering::Relaxed);
                    w.barrier();
                    if before.load(Ordering::Relaxed) == threads {
                        ok.fetch_add(1, Ordering::Relaxed);
                    }
                    w.barrier();
                });
                assert_eq!(ok.load(Ordering::Relaxed), threads, "round {round}");
            }
        }
    }

    #[test]
    fn chunks_cover_everything_once() {
        let mut pool = Pool::new(3).expect("threads");
        let seen: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        pool.run(|w| {
            for range in w.chunks(0, seen.len(), 7) {
                for i in range {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn a_panic_comes_back_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).expect("threads");
        for culprit in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|w| {
                    assert!(w.id != culprit, "culprit");
                    w.barrier();
                });
            }));
            let panic = result.expect_err("must panic");
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"culprit"), "{culprit}");
            let count = AtomicUsize::new(0);
            pool.run(|_| _ = count.fetch_add(1, Ordering::Relaxed));
            assert_eq!(count.load(Ordering::Relaxed), 3);
        }
    }
}
