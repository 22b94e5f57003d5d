//! Waiting for what must come. A test never sleeps and hopes: it looks again until it sees what it waits for, and where that does
//! not come it says what it waited for and what it saw last.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Seconds for what comes at once on an idle machine. A limit ends a test that hangs and says nothing about speed, so it is long.
pub const WAIT_SECONDS: u64 = 60;
/// The same.
pub const WAIT: Duration = Duration::from_secs(WAIT_SECONDS);

/// How often is looked.
const PAUSE: Duration = Duration::from_millis(5);

/// What a look gives: what was waited for, or the state that was seen instead.
pub trait Look {
    type Found;

    /// # Errors
    /// What was seen instead.
    fn found(self) -> Result<Self::Found, String>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".to_owned())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

impl<T, S: Debug> Look for Result<T, S> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:#?}"))
    }
}

/// `Ok` if the condition is met, otherwise the state by which one can see why not.
pub fn seen<S: Debug>(met: bool, state: S) -> Result<(), S> {
    if met { Ok(()) } else { Err(state) }
}

/// `Ok` if both are the same, otherwise the first, which was found.
pub fn same<S: Debug + PartialEq<T>, T>(found: S, expected: T) -> Result<(), S> {
    seen(found == expected, found)
}

/// Looks until it is found; panics after [`WAIT`] with what was waited for and what was seen last.
#[track_caller]
pub fn wait_until<L: Look>(what: &str, look: impl FnMut() -> L) -> L::Found {
    wait_longer(what, WAIT_SECONDS, look)
}

/// As [`wait_until`], for what takes longer than that on a busy machine.
#[track_caller]
pub fn wait_longer<L: Look>(what: &str, seconds: u64, mut look: impl FnMut() -> L) -> L::Found {
    let (began, mut looks) = (Instant::now(), 0);
    loop {
        looks += 1;
        match look().found() {
            Ok(found) => return found,
            Err(state) => assert!(
                began.elapsed() < Duration::from_secs(seconds),
                "after {seconds} s and {looks} looks still not: {what}; seen: {state}"
            ),
        }
        thread::sleep(PAUSE);
    }
}
