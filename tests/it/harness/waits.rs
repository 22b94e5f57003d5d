//! A wait that fails prints the condition and the last state. A test that measures time has three
//! attempts.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::timing_retries::retried;
use crate::common::wait::{same, seen, wait_longer, wait_until};

/// Returns the text of the panic of `work`.
fn said(work: impl FnOnce()) -> String {
    let why = catch_unwind(AssertUnwindSafe(work)).expect_err("it panics");
    *why.downcast::<String>().expect("a text")
}

#[test]
fn a_wait_prints_the_last_state() {
    let looks = Cell::new(0);
    let look = || {
        looks.set(looks.get() + 1);
        looks.get()
    };
    wait_until("three checks", || same(look(), 3));
    assert_eq!(wait_until("a value", || Some(look())), 4);
    let what = said(|| wait_longer("it has ended", 0, || seen(false, ("state", look()))));
    assert!(
        what.contains("still not: it has ended; seen: ") && what.contains("\"state\",\n    5"),
        "{what}"
    );
}

#[test]
fn a_test_that_measures_time_has_three_attempts() {
    let attempts = Cell::new(0);
    let passes_at = |attempt: u32| {
        attempts.set(attempts.get() + 1);
        assert!(attempts.get() >= attempt, "attempt {}", attempts.get());
    };
    retried(|| passes_at(3));
    assert_eq!(attempts.get(), 3);
    assert_eq!(said(|| retried(|| passes_at(10))), "attempt 6");
}
