//! Attribute timeout of files that may be mapped.
//!
//! The kernel marks size and times stale after each write that it passes through
//! (`fuse_passthrough_end_write` in fs/fuse/passthrough.c, from Linux 6.12; passthrough requires
//! 6.13). It does not see stores through mappings, which change only the times. The timeout is
//! therefore an eighth of the period in which no store was seen, up to one second. [ADR
//! 24](../../docs/adr/0024-attributes-of-open-files.md) has the costs and benefits.

use std::time::{Duration, Instant};

use ckptfs_sys::Time;

/// Longest timeout, and therefore the longest delay until the time of a store is visible.
const MAX: Duration = Duration::from_secs(1);
/// Shortest timeout. The kernel counts in ticks of up to 10 ms, so a shorter one would have no
/// effect.
const MIN: Duration = Duration::from_millis(10);
/// Divisor of the period without a store.
const PART: u32 = 8;

/// Times and timeout of the last reply to the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttrTimeout {
    /// Start of the period in which no store was seen.
    quiet: Instant,
    /// mtime and ctime of the last reply.
    times: Option<(Time, Time)>,
    /// End of the timeout; `None` if the kernel was to cache nothing. The kernel's own timeout
    /// starts slightly later and is rounded up to a tick.
    until: Option<Instant>,
}

impl AttrTimeout {
    /// The state of a file that was just opened in a way that permits mapping.
    pub fn nothing(now: Instant) -> AttrTimeout {
        AttrTimeout {
            quiet: now,
            times: None,
            until: None,
        }
    }

    /// Returns how long the kernel may cache these times.
    ///
    /// A request within the timeout means that the kernel has seen a write or read, which explains
    /// a change of the times. A change that is found after the timeout may be a store.
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
        let mut told = AttrTimeout::nothing(opened);
        let lives: Vec<Duration> = [0, 79, 80, 800, 8000, 80_000]
            .map(|at| told.tell(opened + ms(at), times(1)))
            .into();
        assert_eq!(lives, [ms(0), ms(0), ms(10), ms(100), MAX, MAX]);
    }

    #[test]
    fn a_time_that_a_write_explains_changes_nothing_and_any_other_makes_the_kernel_ask_each_time() {
        let opened = Instant::now();
        let mut told = AttrTimeout::nothing(opened);
        assert_eq!(told.tell(opened + ms(8000), times(1)), MAX);
        // Within the second: the kernel has seen a write, or it would not ask.
        assert_eq!(told.tell(opened + ms(8001), times(2)), MAX);
        assert_eq!(told.tell(opened + ms(9000), times(3)), MAX);
        // After the timeout the cause is unknown.
        assert_eq!(told.tell(opened + ms(10_000), times(4)), ms(0));
        assert_eq!(told.tell(opened + ms(10_001), times(5)), ms(0));
        // Without a timeout, it is unknown whether the kernel has seen the write that changed the
        // times.
        assert_eq!(told.tell(opened + ms(10_079), times(6)), ms(0));
        assert_eq!(told.tell(opened + ms(10_080), times(7)), ms(10));
    }
}
