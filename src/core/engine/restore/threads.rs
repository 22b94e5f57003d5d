//! Runs many small jobs, each a few system calls, in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ckptfs_sys::{Errno, SysResult};

/// The filesystem has one log, so more threads would wait for each other.
const THREADS_MAX: usize = 4;

/// Runs all jobs, with several threads if the number of jobs is at least `many`. Returns the
/// results in any order, and the first error. After an error the remaining jobs are not started.
pub(in crate::engine) fn each<J: Sync, R: Send>(
    jobs: &[J],
    (name, many): (&str, usize),
    work: impl Fn(&J) -> SysResult<R> + Sync,
) -> (Vec<R>, SysResult<()>) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            match work(job) {
                Ok(result) => done.push(result),
                Err(errno) => {
                    next.store(jobs.len(), Ordering::Relaxed);
                    return (done, Err(errno));
                }
            }
        }
        (done, Ok(()))
    };
    let threads = if jobs.len() < many {
        1
    } else {
        thread::available_parallelism()
            .map_or(1, usize::from)
            .min(THREADS_MAX)
    };
    thread::scope(|scope| {
        // If a thread cannot be created, the others do its work.
        let others = (1..threads).filter_map(|_| {
            thread::Builder::new()
                .name(name.to_owned())
                .spawn_scoped(scope, work)
                .ok()
        });
        let others: Vec<_> = others.collect();
        let (mut all, mut failed) = work();
        for other in others {
            let (done, result) = other
                .join()
                .unwrap_or_else(|_| (Vec::new(), Err(Errno::EIO)));
            all.extend(done);
            failed = failed.and(result);
        }
        (all, failed)
    })
}

/// Runs two functions in parallel, or one after the other if no thread can be created.
pub(in crate::engine) fn both<A: Send, B>(
    name: &str,
    first: impl Fn() -> SysResult<A> + Sync,
    second: impl FnOnce() -> SysResult<B>,
) -> SysResult<(A, B)> {
    thread::scope(|scope| {
        let beside = thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, &first);
        let second = second();
        let first = beside.map_or_else(
            |_| first(),
            |beside| beside.join().unwrap_or(Err(Errno::EIO)),
        );
        Ok((first?, second?))
    })
}
