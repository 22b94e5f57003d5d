//! Shared parts of the decoders' property tests: number of cases, and limits of memory per call.
//! Tests only.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::strategy::Strategy;
use proptest::test_runner::Config;

/// Cases of a property; `CKPTFS_FUZZ_CASES` overrides it (`make soak`). With the default all
/// properties together take seconds.
const CASES: u32 = 256;

/// Returns the configuration of a property. The output contains the failing case, which becomes a
/// named test; no file is written.
pub fn config() -> Config {
    let told = std::env::var("CKPTFS_FUZZ_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    Config {
        cases: told.unwrap_or(CASES),
        failure_persistence: None,
        ..Config::default()
    }
}

/// Generates bytes from an alphabet: closer to valid input than arbitrary bytes.
pub fn spelled(alphabet: &'static [u8], length_max: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(proptest::sample::select(alphabet), 0..=length_max)
}

thread_local! {
    /// Net bytes allocated by this thread since the counter was last reset.
    static TAKEN: Cell<isize> = const { Cell::new(0) };
    /// Maximum of `TAKEN`.
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// Limit for `TAKEN`.
    static LIMIT: Cell<isize> = const { Cell::new(isize::MAX) };
}

/// Returns the result of `call`, which may have up to `bytes` of memory allocated at a time. Beyond
/// it the process aborts, because a decoder in an endless loop would exhaust the memory.
pub fn within<T>(bytes: usize, call: impl FnOnce() -> T) -> T {
    TAKEN.set(0);
    LIMIT.set(bytes.cast_signed());
    let answer = call();
    LIMIT.set(isize::MAX);
    answer
}

/// Returns the result of `call`, and the maximum number of bytes that this thread allocated during
/// it, relative to the start.
pub fn peak_of<T>(call: impl FnOnce() -> T) -> (T, usize) {
    TAKEN.set(0);
    PEAK.set(0);
    let answer = call();
    (answer, PEAK.get().unsigned_abs())
}

/// The system allocator, with counters.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: isize) {
    // A thread that ends frees memory after its counters are destroyed.
    let _ = TAKEN.try_with(|taken| {
        taken.set(taken.get().saturating_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(taken.get())));
    });
}

// SAFETY: every call is forwarded unchanged to the system allocator; counting accesses only cells
// of this thread and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        if TAKEN
            .try_with(Cell::get)
            .is_ok_and(|taken| LIMIT.try_with(Cell::get).is_ok_and(|limit| taken > limit))
        {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `dealloc`, and `at` came from the system
        // allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[test]
fn memory_is_counted() {
    let ((), peak) = peak_of(|| drop(vec![1_u8; 1 << 20]));
    assert!(((1 << 20)..(2 << 20)).contains(&peak), "{peak}");
    assert!(peak_of(|| 1 + 1).1 == 0);
}
