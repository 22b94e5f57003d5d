//! Polling for a condition, with one limit. A failure prints the condition and the last state.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a condition that an idle machine meets at once, in seconds. It ends a hanging test
/// and does not measure speed.
pub const WAIT_SECONDS: u64 = 60;
/// [`WAIT_SECONDS`] as a duration.
pub const WAIT: Duration = Duration::from_secs(WAIT_SECONDS);

/// Time between two polls.
const PAUSE: Duration = Duration::from_millis(5);

/// The result of one poll: a value if the condition is met, otherwise the current state.
pub trait PollResult {
    type Found;

    /// # Errors
    /// The state, as text.
    fn found(self) -> Result<Self::Found, String>;
}

impl PollResult for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".to_owned())
    }
}

impl<T> PollResult for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

impl<T, S: Debug> PollResult for Result<T, S> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:#?}"))
    }
}

/// Returns `Ok` if the condition is met, otherwise the state that explains the failure.
pub fn seen<S: Debug>(met: bool, state: S) -> Result<(), S> {
    if met { Ok(()) } else { Err(state) }
}

/// Returns `Ok` if the value is the expected one, otherwise the value.
pub fn same<S: Debug + PartialEq<T>, T>(found: S, expected: T) -> Result<(), S> {
    seen(found == expected, found)
}

/// Repeats `look` until the condition is met, and returns its value. Panics after [`WAIT`] with the
/// condition and the last state.
#[track_caller]
pub fn wait_until<L: PollResult>(what: &str, look: impl FnMut() -> L) -> L::Found {
    wait_longer(what, WAIT_SECONDS, look)
}

/// As [`wait_until`], with another limit, for work that takes longer on a busy machine.
#[track_caller]
pub fn wait_longer<L: PollResult>(
    what: &str,
    seconds: u64,
    mut look: impl FnMut() -> L,
) -> L::Found {
    let (began, mut looks) = (Instant::now(), 0);
    loop {
        looks += 1;
        match look().found() {
            Ok(found) => return found,
            Err(state) => assert!(
                began.elapsed() < Duration::from_secs(seconds),
                "after {seconds} s and {looks} checks still not: {what}; seen: {state}"
            ),
        }
        thread::sleep(PAUSE);
    }
}
