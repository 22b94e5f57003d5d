//! Counts allocations as Go's `-benchmem` does: all calls of all threads, and the requested bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::shared::stats::Samples;

/// The system's allocator with counters.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

fn count(bytes: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is forwarded unchanged to the system's allocator, which fulfils the contract
// of `GlobalAlloc`; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `dealloc`, and the memory came from the
        // system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller fulfils the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        // SAFETY: the caller fulfils the contract of `realloc`, and the memory came from the
        // system's allocator.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Waits until no thread allocates, which means that earlier work is done, for up to two seconds.
pub fn settle() {
    for _ in 0..40 {
        let before = CALLS.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
        if CALLS.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// Time and allocations of an operation in this process, measured several times.
#[derive(Clone, Debug, Default)]
pub struct Op {
    pub time: Samples,
    pub bytes: Samples,
    pub calls: Samples,
}

impl Op {
    pub fn run<T>(&mut self, call: impl FnOnce() -> T) -> T {
        self.run_many(1, call)
    }

    /// Like [`Op::run`], for a call that performs the operation `times` times.
    pub fn run_many<T>(&mut self, times: usize, call: impl FnOnce() -> T) -> T {
        let (calls, bytes) = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
        let mut took = Samples::default();
        let result = took.time(call);
        let share = |now: u64, before: u64| (now - before) as f64 / times as f64;
        self.calls
            .add_us(share(CALLS.load(Ordering::Relaxed), calls));
        self.bytes
            .add_us(share(BYTES.load(Ordering::Relaxed), bytes));
        self.time.add_us(took.max() / times as f64);
        result
    }
}
