//! Tests with a time limit that is valid only on an idle machine.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

/// Attempts before such a test fails.
const ATTEMPTS: u32 = 3;

/// Runs a test that measures time up to three times, and prints the result of each attempt. A test
/// of progress uses [`super::wait_until`] instead.
pub fn retried(test: impl Fn()) {
    for attempt in 1..=ATTEMPTS {
        let began = Instant::now();
        let Err(why) = catch_unwind(AssertUnwindSafe(&test)) else {
            return say(attempt, began, "passed");
        };
        let text = why.downcast_ref::<String>().map(String::as_str);
        let text = text.or(why.downcast_ref::<&str>().copied());
        say(
            attempt,
            began,
            &format!("failed: {}", text.unwrap_or("a panic")),
        );
        if attempt == ATTEMPTS {
            resume_unwind(why);
        }
    }
}

/// Not `println!`, because the test runner discards that output of a passing test.
fn say(attempt: u32, began: Instant, how: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(
        std::io::stdout().lock(),
        "\nATTEMPT {attempt} of {ATTEMPTS} of {test}, {:.1} s: {how}",
        began.elapsed().as_secs_f64()
    );
}
