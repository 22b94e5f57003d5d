//! What the properties of the decoders share: how many cases, and how much memory a call takes. In
//! tests only.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::strategy::Strategy;
use proptest::test_runner::Config;

/// Cases of a property unless `CKPTFS_FUZZ_CASES` says otherwise (`make soak`): all of them
/// together take seconds.
const CASES: u32 = 256;

/// How a property is run. A case that failed is in the output, and becomes a named test; no file is
/// written.
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

/// Bytes that are all among these: closer to what a parser wants than any bytes.
pub fn spelled(alphabet: &'static [u8], length_max: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(proptest::sample::select(alphabet), 0..=length_max)
}

thread_local! {
    /// Bytes that this thread has taken and not given back since it was last asked.
    static TAKEN: Cell<isize> = const { Cell::new(0) };
    /// The most of them.
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// The most that there may be.
    static LIMIT: Cell<isize> = const { Cell::new(isize::MAX) };
}

/// What `call` gives, which may take so many bytes of memory at once; more, and the process is
/// aborted: who goes in circles takes all there is.
pub fn within<T>(bytes: usize, call: impl FnOnce() -> T) -> T {
    TAKEN.set(0);
    LIMIT.set(bytes.cast_signed());
    let answer = call();
    LIMIT.set(isize::MAX);
    answer
}

/// What `call` gives, and how many bytes of memory this thread had at most meanwhile, more than
/// before.
pub fn peak_of<T>(call: impl FnOnce() -> T) -> (T, usize) {
    TAKEN.set(0);
    PEAK.set(0);
    let answer = call();
    (answer, PEAK.get().unsigned_abs())
}

/// The system's allocator, counting.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: isize) {
    // A thread that ends frees after its counters are gone.
    let _ = TAKEN.try_with(|taken| {
        taken.set(taken.get().saturating_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(taken.get())));
    });
}

// SAFETY: every call is handed to the system's allocator as it came; counting touches two cells of
// this thread and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        if TAKEN
            .try_with(Cell::get)
            .is_ok_and(|taken| LIMIT.try_with(Cell::get).is_ok_and(|limit| taken > limit))
        {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `dealloc`, and `at` came from the system's
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
