//! Changes of the wall clock.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::super::process::now;
use super::super::types::{Errno, SysResult};

/// Expiry of the timer in seconds from now: effectively never.
const NEVER_S: i64 = 3_000_000_000;

/// Detects that the wall clock was set, forwards or back (`TFD_TIMER_CANCEL_ON_SET` of
/// timerfd_create(2)). A suspend of the machine also counts.
#[derive(Debug)]
pub struct ClockWatch {
    timer: OwnedFd,
    was_set: AtomicBool,
}

impl ClockWatch {
    /// Starts watching.
    ///
    /// # Errors
    /// Those of timerfd_create(2), timerfd_settime(2).
    pub fn begin() -> SysResult<ClockWatch> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let at = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
        let never = Itimerspec {
            it_interval: at(0),
            it_value: at(now().sec.saturating_add(NEVER_S)),
        };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&timer, flags, &never)?;
        Ok(ClockWatch {
            timer,
            was_set: AtomicBool::new(false),
        })
    }

    /// Returns whether the clock was set since the start.
    pub fn was_set(&self) -> bool {
        // The kernel reports it once.
        let read = rustix::io::read(&self.timer, &mut [0; 8]).map_err(Errno::from);
        if read != Err(Errno::EAGAIN) {
            self.was_set.store(true, Ordering::SeqCst);
        }
        self.was_set.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_nobody_sets_was_not_set() {
        let watch = ClockWatch::begin().expect("timer");
        assert!(!watch.was_set() && !watch.was_set());
    }
}
