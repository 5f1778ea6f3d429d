//! The thread pool: persistent workers that run a job together.
//!
//! A job is one closure that several workers run at once; they share its work by [`Worker::share`] and meet at
//! [`Worker::barrier`]. Both count work, not workers: a phase is over when all of its ranges are done, whoever did
//! them. A worker whose core was given to another process finds, when it comes back, nothing left of the phases that it
//! missed and goes on; a job that it never entered ends without it. Only a worker that loses its core in the middle of
//! a range delays the others.
//!
//! Who has nothing to do spins for a moment, so that the next stage of the same step finds it awake (an empty job costs
//! a fraction of a microsecond), then sleeps: an idle core is where the system can move the one that is waited for.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker without a job spins before it sleeps.
const IDLE_SPIN: Duration = Duration::from_micros(30);
/// How long a worker spins inside a job for what others are doing.
const WAIT_SPIN: Duration = Duration::from_micros(10);
/// How long a wait inside a job sleeps at a time: each time a core falls idle, the system looks for work to move there.
const NAP: Duration = Duration::from_micros(100);
/// Phases of shared work in one job.
const PHASES: usize = 8;

/// Keeps a value on cache lines of its own.
#[repr(align(128))]
struct Padded<T>(T);

type Job<'a> = dyn Fn(&Worker<'_>) + Sync + 'a;

/// Work shared by the workers of a job.
struct Phase {
    /// First index that nobody has taken.
    next: Padded<AtomicUsize>,
    /// Indices that are done.
    done: Padded<AtomicUsize>,
}

/// Where a worker runs and sleeps.
struct Place {
    /// The core it was last seen on.
    core: AtomicI32,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

struct Shared {
    threads: usize,
    /// More workers than cores: whoever spins may keep the one that is waited for from running.
    crowded: bool,
    /// The number of the job ([`JOB`] each), the workers inside it ([`ENTERED`] each), and whether others may enter
    /// ([`OPEN`]).
    gate: Padded<AtomicU64>,
    /// The job: a pointer to a `&Job` on the caller's stack, valid while the gate is open or counts a worker.
    job: Padded<AtomicUsize>,
    phases: [Phase; PHASES],
    failed: AtomicBool,
    stop: AtomicBool,
    sleepers: Padded<AtomicUsize>,
    /// By worker.
    places: Vec<Padded<Place>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

const OPEN: u64 = 1;
const ENTERED: u64 = 2;
const JOB: u64 = 1 << 32;

/// Workers inside the job.
fn entered(gate: u64) -> u64 {
    gate % JOB / ENTERED
}

/// A pool of `threads` workers, the caller's thread being one of them.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

/// What a worker unwinds with when another one panicked.
struct Abandoned;

/// One worker inside a job.
pub struct Worker<'a> {
    /// Index of the worker, below `count`; 0 is the caller's thread, which is in every job.
    pub id: usize,
    /// Number of workers that may be in the job.
    pub count: usize,
    shared: &'a Shared,
    /// Work of each phase that the next barrier waits for.
    pending: [Cell<usize>; PHASES],
}

impl Worker<'_> {
    fn new(id: usize, shared: &Shared) -> Worker<'_> {
        Worker { id, count: shared.threads, shared, pending: Default::default() }
    }

    /// Shares `0..n` among the workers, first come first served: `work` is called for the ranges that this worker took.
    /// `phase` (below 8) names this piece of work within the job; every worker shares the same phases in the same
    /// order.
    ///
    /// A worker that comes late gets no range. So what `work` needs beforehand, and reads what a later phase of the
    /// job writes, must be done inside of `work`.
    pub fn share(&self, phase: usize, n: usize, cut: Cut, mut work: impl FnMut(Range<usize>)) {
        let Phase { next, done } = &self.shared.phases[phase];
        let mut own = 0;
        loop {
            let range = cut.range(next.0.fetch_add(1, Ordering::Relaxed), n, self.count);
            if range.is_empty() {
                break;
            }
            own += range.len();
            work(range);
        }
        self.pending[phase].set(n);
        if own > 0 && done.0.fetch_add(own, Ordering::SeqCst) + own == n {
            self.shared.wake();
        }
    }

    /// Likewise, index by index.
    pub fn share_each(&self, phase: usize, n: usize, cut: Cut, mut work: impl FnMut(usize)) {
        self.share(phase, n, cut, |range| range.for_each(&mut work));
    }

    /// Waits until all work shared so far is done; what was written by it is visible after.
    pub fn barrier(&self) {
        for (phase, pending) in self.shared.phases.iter().zip(&self.pending) {
            let n = pending.take();
            self.shared.wait(self.id, WAIT_SPIN, Some(NAP), || {
                if self.shared.failed.load(Ordering::Relaxed) {
                    // Another worker panicked and will never finish; its panic is the one that is reported.
                    resume_unwind(Box::new(Abandoned));
                }
                phase.done.0.load(Ordering::SeqCst) >= n
            });
        }
    }
}

/// How shared work is cut into ranges.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// A long range for each worker, two thirds of the work together, then two short ones for each, for whoever is
    /// first.
    Long,
    /// Ranges of that many.
    Every(usize),
}

impl Cut {
    /// The range that is handed out `index`-th to `count` workers: ascending, adjacent, empty once all are out.
    fn range(self, index: usize, n: usize, count: usize) -> Range<usize> {
        let (long, short) = match self {
            Cut::Every(grain) => (0, grain.max(1)),
            Cut::Long if count == 1 => (n, 1),
            Cut::Long => {
                let long = 2 * n / (3 * count);
                (long, (n - long * count).div_ceil(2 * count).max(1))
            }
        };
        let start = |index: usize| {
            let shorts = index.saturating_sub(count).saturating_mul(short);
            (long * index.min(count)).saturating_add(shorts).min(n)
        };
        match long {
            // Without long ranges the short ones begin at once.
            0 => start(index.saturating_add(count))..start(index.saturating_add(count + 1)),
            _ => start(index)..start(index.saturating_add(1)),
        }
    }
}

impl Shared {
    /// Waits until `over`: spins for `spin`, then sleeps, at most `nap` at a time.
    fn wait(&self, id: usize, spin: Duration, nap: Option<Duration>, over: impl Fn() -> bool) {
        if over() {
            return;
        }
        let core = self.note_core(id);
        let others = || self.places.iter().enumerate().filter(|(other, _)| *other != id);
        // Who spins on the core of the one it waits for waits for itself.
        let alone = core < 0 || others().all(|(_, place)| place.0.core.load(Ordering::Relaxed) != core);
        let start = Instant::now();
        while alone && !self.crowded && start.elapsed() < spin {
            for _ in 0..32 {
                std::hint::spin_loop();
                if over() {
                    return;
                }
            }
        }
        let place = &self.places[id].0;
        *place.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        // Either who makes it `over` sees these stores and wakes this thread, or the load in `over` sees it done.
        let _awake = Awake(self, place);
        place.asleep.store(true, Ordering::SeqCst);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        while !over() {
            match nap {
                Some(nap) => std::thread::park_timeout(nap),
                None => std::thread::park(),
            }
        }
        self.note_core(id);
    }

    /// Notes the core that worker `id`, the calling thread, runs on.
    fn note_core(&self, id: usize) -> i32 {
        let (core, noted) = (current_core(), &self.places[id].0.core);
        if noted.load(Ordering::Relaxed) != core {
            noted.store(core, Ordering::Relaxed);
        }
        core
    }

    /// Wakes whoever sleeps; called after what it waits for was stored, in sequential consistency.
    fn wake(&self) {
        if self.sleepers.0.load(Ordering::SeqCst) == 0 {
            return;
        }
        for place in &self.places {
            if place.0.asleep.load(Ordering::SeqCst)
                && let Some(thread) = &*place.0.thread.lock().unwrap_or_else(PoisonError::into_inner)
            {
                thread.unpark();
            }
        }
    }
}

/// The core that the calling thread runs on; negative where that is unknown.
fn current_core() -> i32 {
    #[cfg(target_os = "linux")]
    // SAFETY: no precondition; a negative number is an error.
    unsafe {
        libc::sched_getcpu()
    }
    #[cfg(not(target_os = "linux"))]
    -1
}

/// Takes a sleeper off the list, also when it unwinds.
struct Awake<'a>(&'a Shared, &'a Place);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.1.asleep.store(false, Ordering::SeqCst);
        self.0.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pool {
    /// Starts `threads − 1` workers.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let mut pool = Pool::of(threads.max(1));
        for id in 1..pool.threads() {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("minfer-{id}"));
            pool.handles.push(thread.spawn(move || live(&shared, id))?);
        }
        Ok(pool)
    }

    /// A pool none of whose workers has come yet.
    fn of(threads: usize) -> Pool {
        let counter = || Padded(AtomicUsize::new(0));
        let place = |_| {
            Padded(Place {
                core: AtomicI32::new(-1),
                asleep: AtomicBool::new(false),
                thread: Mutex::new(None),
            })
        };
        let shared = Arc::new(Shared {
            threads,
            crowded: threads > std::thread::available_parallelism().map_or(1, |n| n.get()),
            gate: Padded(AtomicU64::new(0)),
            job: counter(),
            phases: std::array::from_fn(|_| Phase { next: counter(), done: counter() }),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: counter(),
            places: (0..threads).map(place).collect(),
            panic: Mutex::new(None),
        });
        Pool { shared, handles: Vec::new() }
    }

    /// Number of workers.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` on the caller's thread and on every worker that comes before its work is done; returns when all that
    /// came have finished. A panic in any of them is resumed here.
    pub fn run(&mut self, job: impl Fn(&Worker<'_>) + Sync) {
        let shared = &*self.shared;
        for phase in &shared.phases {
            phase.next.0.store(0, Ordering::Relaxed);
            phase.done.0.store(0, Ordering::Relaxed);
        }
        let own = Worker::new(0, shared);
        if shared.threads == 1 {
            return job(&own);
        }
        let job: &Job<'_> = &job;
        // The workers turn the exposed address of the reference back into a pointer.
        shared.job.0.store((&raw const job).expose_provenance(), Ordering::Relaxed);
        shared.note_core(0);
        shared.gate.0.fetch_add(JOB | OPEN, Ordering::SeqCst);
        shared.wake();
        let result = catch_unwind(AssertUnwindSafe(|| job(&own)));
        if result.is_err() {
            shared.fail();
        }
        shared.gate.0.fetch_and(!OPEN, Ordering::SeqCst);
        shared.wait(0, WAIT_SPIN, Some(NAP), || entered(shared.gate.0.load(Ordering::SeqCst)) == 0);
        if shared.failed.swap(false, Ordering::Relaxed) {
            let first = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(panic) = first.or(result.err()) {
                resume_unwind(panic);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Enters the job after the one that the gate showed as `seen`, if there is one that is open.
    fn enter(&self, seen: &mut u64) -> bool {
        let mut gate = self.gate.0.load(Ordering::SeqCst);
        while gate / JOB != *seen && gate & OPEN != 0 {
            let result =
                self.gate.0.compare_exchange_weak(gate, gate + ENTERED, Ordering::SeqCst, Ordering::SeqCst);
            match result {
                Ok(_) => {
                    *seen = gate / JOB;
                    return true;
                }
                Err(now) => gate = now,
            }
        }
        *seen = gate / JOB;
        false
    }
}

/// The life of worker `id`.
fn live(shared: &Shared, id: usize) {
    let mut seen = 0;
    loop {
        shared.wait(id, IDLE_SPIN, None, || {
            shared.gate.0.load(Ordering::SeqCst) / JOB != seen || shared.stop.load(Ordering::SeqCst)
        });
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !shared.enter(&mut seen) {
            continue;
        }
        let address = shared.job.0.load(Ordering::Relaxed);
        // SAFETY: the gate was opened after the address of a `&Job` on the stack of `Pool::run` was stored, and this
        // worker is counted by it: `run` does not return before it has left. Its provenance was exposed there.
        let job: &Job<'_> = unsafe { *std::ptr::with_exposed_provenance::<&Job<'_>>(address) };
        let worker = Worker::new(id, shared);
        shared.note_core(id);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&worker))) {
            if !panic.is::<Abandoned>() {
                shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            shared.fail();
        }
        let gate = shared.gate.0.fetch_sub(ENTERED, Ordering::SeqCst) - ENTERED;
        if entered(gate) == 0 && gate & OPEN == 0 {
            shared.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_order_phases() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads).expect("threads");
            for round in 0..200 {
                let before = AtomicUsize::new(0);
                let ok = AtomicUsize::new(0);
                pool.run(|w| {
                    w.share_each(0, 7, Cut::Every(1), |_| _ = before.fetch_add(1, Ordering::Relaxed));
                    w.share_each(1, 5, Cut::Long, |_| _ = before.fetch_add(1, Ordering::Relaxed));
                    w.barrier();
                    w.share_each(2, 9, Cut::Every(1), |_| {
                        if before.load(Ordering::Relaxed) == 12 {
                            ok.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                    w.barrier();
                });
                assert_eq!(ok.load(Ordering::Relaxed), 9, "round {round}");
            }
        }
    }

    #[test]
    fn a_worker_that_does_not_come_is_not_waited_for() {
        let mut pool = Pool::of(3);
        let sum = AtomicUsize::new(0);
        let job = |w: &Worker<'_>| {
            w.share_each(0, 10, Cut::Every(1), |i| _ = sum.fetch_add(i, Ordering::Relaxed));
            w.barrier();
            w.share_each(1, 10, Cut::Every(3), |i| _ = sum.fetch_add(100 * i, Ordering::Relaxed));
        };
        pool.run(job);
        assert_eq!(sum.swap(0, Ordering::Relaxed), 4545);
        // One that comes between jobs takes part from the next one on.
        let shared = Arc::clone(&pool.shared);
        pool.handles.push(std::thread::spawn(move || live(&shared, 2)));
        for _ in 0..100 {
            pool.run(job);
            assert_eq!(sum.swap(0, Ordering::Relaxed), 4545);
        }
    }

    #[test]
    fn who_waits_long_sleeps_and_is_woken() {
        let mut pool = Pool::new(2).expect("threads");
        for round in 0..20 {
            let late = AtomicBool::new(false);
            pool.run(|w| {
                w.share_each(0, 2, Cut::Every(1), |i| {
                    if i == round % 2 {
                        std::thread::sleep(Duration::from_millis(2));
                        late.store(true, Ordering::Relaxed);
                    }
                });
                w.barrier();
                assert!(late.load(Ordering::Relaxed));
            });
            // Longer than a worker spins for a job.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    #[test]
    fn ranges_cover_everything_once() {
        let mut pool = Pool::new(3).expect("threads");
        for (n, cut) in (0..40).chain([1000]).flat_map(|n| [(n, Cut::Long), (n, Cut::Every(7))]) {
            let seen: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.run(|w| {
                w.share(0, seen.len(), cut, |range| {
                    for i in range {
                        seen[i].fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
            assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{n} {cut:?}");
        }
    }

    #[test]
    fn a_panic_comes_back_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).expect("threads");
        for culprit in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|w| {
                    w.share_each(0, 3, Cut::Every(1), |i| assert!(i != culprit, "culprit"));
                    w.barrier();
                });
            }));
            let panic = result.expect_err("must panic");
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"culprit"), "{culprit}");
            let count = AtomicUsize::new(0);
            pool.run(|w| w.share_each(0, 30, Cut::Every(1), |_| _ = count.fetch_add(1, Ordering::Relaxed)));
            assert_eq!(count.load(Ordering::Relaxed), 30);
        }
    }
}
