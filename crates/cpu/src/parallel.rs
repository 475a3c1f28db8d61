//! Work that the pool's threads share: tasks are handed out one by one, in order.
//!
//! Parallel iterators halve the work again and again, so that a thread that is slowed down by something else
//! keeps what it was given, and a thread that has to wait goes to sleep within microseconds. A training step is
//! hundreds of short regions, so both cost: here a thread takes the next task whenever it is free, and stays
//! awake for a moment after its last one.

use rayon::Yield;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a thread looks for more work before it goes to sleep: longer than what a step does on one thread
/// between two regions, which is about 25 microseconds on average.
const PATIENCE: Duration = Duration::from_micros(300);

/// How often a thread that waits says so to its core before it asks the system for other threads. These are a third of a
/// microsecond together on Zen 5, about as long as asking takes.
const HINTS: usize = 16;

/// Runs `work` on every task, with what `init` makes once for each thread that takes part.
pub(crate) fn for_each_init<T, S>(
    tasks: impl ExactSizeIterator<Item = T> + Send,
    init: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) + Sync,
) {
    let members = tasks.len().min(rayon::current_num_threads());
    if members <= 1 {
        let mut own = init();
        return tasks.for_each(|task| work(&mut own, task));
    }
    let tasks = Mutex::new(tasks);
    // A thread that panics poisons nothing: it holds the lock for `next` alone.
    let next = || tasks.lock().ok()?.next();
    let busy = AtomicUsize::new(0);
    let leader = rayon::current_thread_index();
    let take_part = || {
        let Some(mut task) = next() else { return };
        let _busy = Busy::new(&busy);
        let mut own = init();
        loop {
            work(&mut own, task);
            match next() {
                Some(another) => task = another,
                None => break,
            }
        }
    };
    let member = || {
        let leads = rayon::current_thread_index() == leader;
        // A thread outside of the pool needs a core for itself between its regions. Before the tasks: behind
        // them, the leader might steal it while it waits.
        if leader.is_some() && !leads {
            stay_awake();
        }
        take_part();
        if leads {
            await_others(&busy);
        }
    };
    together(members, &member);
}

/// [`for_each_init`] where a thread needs nothing of its own.
pub(crate) fn for_each<T>(tasks: impl ExactSizeIterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    for_each_init(tasks, || (), |(), task| work(task));
}

/// [`for_each_init`] for tasks that have results, which come in the order of the tasks.
pub(crate) fn map_init<T, S, R: Send>(
    tasks: impl ExactSizeIterator<Item = T> + Send,
    init: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> R + Sync,
) -> Vec<R> {
    let mut results: Vec<Option<R>> = Vec::new();
    results.resize_with(tasks.len(), || None);
    let pairs = tasks.zip(results.iter_mut());
    for_each_init(pairs, init, |own, (task, result)| *result = Some(work(own, task)));
    results.into_iter().flatten().collect()
}

/// [`map_init`] where a thread needs nothing of its own.
pub(crate) fn map<T, R: Send>(
    tasks: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    map_init(tasks, || (), |(), task| work(task))
}

/// Calls `work` so many times, on as many threads as are free.
fn together(times: usize, work: &(impl Fn() + Sync)) {
    match times {
        0 | 1 => work(),
        _ => {
            rayon::join(|| together(times / 2, work), || together(times - times / 2, work));
        }
    }
}

/// Counts a thread that works on tasks.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for the last tasks, which other threads work on, without going to sleep.
fn await_others(busy: &AtomicUsize) {
    let start = Instant::now();
    while busy.load(Ordering::Acquire) > 0 && start.elapsed() < PATIENCE {
        pause();
    }
}

/// Has this thread look for work for a while after the present region.
fn stay_awake() {
    thread_local!(static AWAKE: Arc<AtomicBool> = Arc::default());
    let awake = AWAKE.with(Arc::clone);
    if awake.swap(true, Ordering::Relaxed) {
        return;
    }
    let home = rayon::current_thread_index();
    rayon::spawn(move || {
        let mut idle_since = Instant::now();
        // A thread that has stolen this has better things to do.
        while rayon::current_thread_index() == home && idle_since.elapsed() < PATIENCE {
            match rayon::yield_now() {
                Some(Yield::Executed) => idle_since = Instant::now(),
                _ => pause(),
            }
        }
        awake.store(false, Ordering::Relaxed);
    });
}

/// Lets others have the core, if there are any: first a thread that shares it, then one that waits for it.
fn pause() {
    (0..HINTS).for_each(|_| std::hint::spin_loop());
    std::thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn in_pool<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(work)
    }

    #[test]
    fn every_task_is_done_once_and_results_keep_their_order() {
        for threads in [1, 2, 3, 8] {
            for count in [0, 1, 2, 5, 1000] {
                let squares = in_pool(threads, || {
                    let mut numbers: Vec<usize> = (0..count).collect();
                    for_each(numbers.iter_mut(), |number| *number += 1);
                    map_init(numbers.into_iter(), || (), |(), number| number * number)
                });
                let want: Vec<usize> = (1..=count).map(|number| number * number).collect();
                assert_eq!(squares, want, "{threads} threads");
            }
        }
    }

    #[test]
    fn no_thread_makes_more_than_one_thing_of_its_own() {
        let made = AtomicUsize::new(0);
        let count = |own: &mut usize, _| {
            *own += 1;
            *own
        };
        let init = || {
            made.fetch_add(1, Ordering::Relaxed);
            0
        };
        let done = in_pool(3, || map_init(0..500, init, count));
        let made = made.into_inner();
        assert!((1..=3).contains(&made));
        // Each of them counted its own tasks from one on.
        assert_eq!(done.iter().filter(|&&nth| nth == 1).count(), made);
    }

    #[test]
    fn tasks_may_share_out_work_themselves() {
        let sums = in_pool(2, || {
            let inner = |from: usize| {
                map_init(from..from + 10, || (), |(), n| n).into_iter().sum::<usize>()
            };
            map_init(0..50, || (), |(), from| inner(from))
        });
        let want: Vec<usize> = (0..50).map(|from| 10 * from + 45).collect();
        assert_eq!(sums, want);
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_leaves_a_pool_that_works() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for bad in [0, 7, 99] {
            let failing = || for_each(0..100, |task| assert_ne!(task, bad, "planted"));
            let result = catch_unwind(AssertUnwindSafe(|| pool.install(failing)));
            assert!(result.is_err());
            let sum: usize = pool.install(|| map_init(0..100, || (), |(), n| n)).into_iter().sum();
            assert_eq!(sum, 4950);
        }
    }
}
