//! For how long the kernel may believe what it was told of a file that may be mapped.
//!
//! The kernel itself knows of every write that it passes on, and asks anew for size and times after
//! it (`fuse_passthrough_end_write` in fs/fuse/passthrough.c, from Linux 6.12 on; passthrough is
//! for 6.13 and later only). What it does not know of are stores through mappings, which move times
//! and nothing else. So attributes may be believed for a while: for an eighth of the time for which
//! no store was seen, and a second at most. [ADR
//! 24](../../docs/adr/0024-attributes-of-open-files.md) has what that costs and gives.

use std::time::{Duration, Instant};

use crate::sys::Time;

/// The longest that attributes are believed, and so the latest that the time of a store is seen.
const MAX: Duration = Duration::from_secs(1);
/// The least: the kernel counts in ticks of up to 10 ms, and what is believed for less is not
/// believed at all.
const MIN: Duration = Duration::from_millis(10);
/// The part of the time without a store for which they are.
const PART: u32 = 8;

/// What the kernel was told last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// Since when no store was seen.
    quiet: Instant,
    /// mtime and ctime.
    times: Option<(Time, Time)>,
    /// Until when it believes them, if it was to believe them at all. It counts from a little later
    /// on, and up to the next tick.
    until: Option<Instant>,
}

impl Told {
    /// The file can be mapped from now on.
    pub fn nothing(now: Instant) -> Told {
        Told {
            quiet: now,
            times: None,
            until: None,
        }
    }

    /// How long the kernel may believe these times. It asks within the time that it was given only
    /// because it knows itself that something was written (or read): what has moved then is
    /// explained. What has moved when that time is over may be a store.
    pub fn tell(&mut self, now: Instant, times: (Time, Time)) -> Duration {
        let moved = self
            .times
            .replace(times)
            .is_some_and(|before| before != times);
        if moved && self.until.is_some_and(|until| until <= now) {
            self.quiet = now;
        }
        let life = (now.saturating_duration_since(self.quiet) / PART).min(MAX);
        let life = if life < MIN { Duration::ZERO } else { life };
        self.until = (!life.is_zero()).then(|| now + life);
        life
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn times(at: i64) -> (Time, Time) {
        (Time { sec: at, nsec: 0 }, Time { sec: at, nsec: 1 })
    }

    #[test]
    fn a_file_that_rests_is_believed_for_longer_and_longer_and_a_second_at_most() {
        let opened = Instant::now();
        let mut told = Told::nothing(opened);
        let lives: Vec<Duration> = [0, 79, 80, 800, 8000, 80_000]
            .map(|at| told.tell(opened + ms(at), times(1)))
            .into();
        assert_eq!(lives, [ms(0), ms(0), ms(10), ms(100), MAX, MAX]);
    }

    #[test]
    fn a_time_that_a_write_explains_changes_nothing_and_any_other_makes_the_kernel_ask_each_time() {
        let opened = Instant::now();
        let mut told = Told::nothing(opened);
        assert_eq!(told.tell(opened + ms(8000), times(1)), MAX);
        // Within the second: the kernel knows of a write, or it would not ask.
        assert_eq!(told.tell(opened + ms(8001), times(2)), MAX);
        assert_eq!(told.tell(opened + ms(9000), times(3)), MAX);
        // After it: who knows.
        assert_eq!(told.tell(opened + ms(10_000), times(4)), ms(0));
        assert_eq!(told.tell(opened + ms(10_001), times(5)), ms(0));
        // Nothing was to be believed, so of what moves meanwhile nobody knows whether the kernel
        // had known of it.
        assert_eq!(told.tell(opened + ms(10_079), times(6)), ms(0));
        assert_eq!(told.tell(opened + ms(10_080), times(7)), ms(10));
    }
}
