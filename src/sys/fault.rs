//! Fault injection for system calls: tests make the Nth call fail.
//!
//! Every call of this layer that can fail, and every call that the store makes directly, calls
//! [`check`] first. In a release build it is an empty function, and the rest of this module is not
//! compiled. In a debug build a [`FaultPlan`] can be armed for one thread or for the whole process.
//! A process without a plan pays for reading one thread-local and one atomic.
//!
//! **Locking.** None, because callers may hold any lock.

/// The kind of a call, as far as it determines how the call can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum CallKind {
    Open,
    Create,
    Make,
    Link,
    Rename,
    Unlink,
    Read,
    Write,
    Truncate,
    Clone,
    Copy,
    Allocate,
    Sync,
    SetAttributes,
    SetXattr,
    GetXattr,
    Stat,
    List,
    Probe,
    /// A call of the index's database, whose system calls do not pass through this module.
    Index,
}

impl CallKind {
    /// Returns whether the call may need space, and so can fail for lack of it.
    pub const fn takes_space(self) -> bool {
        match self {
            CallKind::Create
            | CallKind::Make
            | CallKind::Link
            | CallKind::Rename
            | CallKind::Unlink
            | CallKind::Write
            | CallKind::Truncate
            | CallKind::Clone => true,
            CallKind::Copy
            | CallKind::Allocate
            | CallKind::Sync
            | CallKind::SetAttributes
            | CallKind::SetXattr
            | CallKind::Index => true,
            CallKind::Open
            | CallKind::Read
            | CallKind::GetXattr
            | CallKind::Stat
            | CallKind::List
            | CallKind::Probe => false,
        }
    }
}

/// Fails if a plan selects this call.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn check(_: CallKind) -> Result<(), super::Errno> {
    Ok(())
}

/// Returns whether a failing write writes a part first.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn writes_half() -> bool {
    false
}

#[cfg(debug_assertions)]
pub use armed::{
    FaultOutcome, FaultPlan, arm_process, arm_thread, check, disarm_process, disarm_thread,
    writes_half,
};

#[cfg(debug_assertions)]
mod armed {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
    use std::time::Duration;

    use serde::{Deserialize, Serialize};

    use super::CallKind;
    use crate::types::{Errno, SysResult};

    /// Any kind, where a kind is stored as a number.
    const ANY: u8 = u8::MAX;

    /// Which calls fail, and how.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct FaultPlan {
        /// Number of the call that fails, from 1; 0: calls are only counted.
        pub nth: u64,
        /// The error. With ENOSPC only calls that may need space count and fail. 0: the call is
        /// only delayed.
        pub errno: i32,
        /// Only calls of this kind count ([`CallKind`] as a number).
        pub only: Option<u8>,
        /// All later calls fail too.
        pub lasting: bool,
        /// A failing write writes half of its data first.
        pub half: bool,
        /// Delay of the call in milliseconds.
        pub pause_ms: u64,
        /// The process ends at the call, as by `kill -9`.
        #[serde(default)]
        pub kill: bool,
    }

    impl FaultPlan {
        /// Fails the `nth` call, once.
        pub fn nth(nth: u64, errno: Errno) -> FaultPlan {
            FaultPlan {
                nth,
                errno: errno.0,
                only: None,
                lasting: false,
                half: false,
                pause_ms: 0,
                kill: false,
            }
        }

        /// Restricts the plan to calls of this kind.
        pub fn only(self, call: CallKind) -> FaultPlan {
            FaultPlan {
                only: Some(call as u8),
                ..self
            }
        }

        /// Also fails all later calls.
        pub fn lasting(self) -> FaultPlan {
            FaultPlan {
                lasting: true,
                ..self
            }
        }

        /// A failing write writes half of its data first.
        pub fn half(self) -> FaultPlan {
            FaultPlan { half: true, ..self }
        }

        fn counts(&self, call: CallKind) -> bool {
            self.only.is_none_or(|only| only == call as u8)
                && (self.errno != Errno::ENOSPC.0 || call.takes_space())
        }

        fn fails(&self, number: u64) -> bool {
            self.nth > 0 && (number == self.nth || (self.lasting && number > self.nth))
        }
    }

    /// The outcome of a plan.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FaultOutcome {
        /// Calls counted.
        pub calls: u64,
        /// Calls failed.
        pub failed: u64,
        /// Kind of the first failed call; recorded for a thread's plan only.
        pub first: Option<CallKind>,
    }

    thread_local! {
        static HERE: Cell<Option<(FaultPlan, FaultOutcome)>> = const { Cell::new(None) };
        static HALF: Cell<bool> = const { Cell::new(false) };
    }

    static ARMED: AtomicBool = AtomicBool::new(false);
    static NTH: AtomicU64 = AtomicU64::new(0);
    static ERRNO: AtomicI32 = AtomicI32::new(0);
    static ONLY: AtomicU8 = AtomicU8::new(ANY);
    static LASTING: AtomicBool = AtomicBool::new(false);
    static HALVES: AtomicBool = AtomicBool::new(false);
    static PAUSE_MS: AtomicU64 = AtomicU64::new(0);
    static KILL: AtomicBool = AtomicBool::new(false);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    static FAILED: AtomicU64 = AtomicU64::new(0);

    /// Arms a plan for this thread, replacing that of the process.
    pub fn arm_thread(plan: FaultPlan) {
        HERE.set(Some((plan, FaultOutcome::default())));
    }

    /// Ends the plan of this thread and returns its outcome.
    pub fn disarm_thread() -> FaultOutcome {
        HERE.take().map(|(_, seen)| seen).unwrap_or_default()
    }

    /// Arms a plan for all threads without a plan of their own.
    pub fn arm_process(plan: FaultPlan) {
        ARMED.store(false, Ordering::SeqCst);
        NTH.store(plan.nth, Ordering::SeqCst);
        ERRNO.store(plan.errno, Ordering::SeqCst);
        ONLY.store(plan.only.unwrap_or(ANY), Ordering::SeqCst);
        LASTING.store(plan.lasting, Ordering::SeqCst);
        HALVES.store(plan.half, Ordering::SeqCst);
        PAUSE_MS.store(plan.pause_ms, Ordering::SeqCst);
        KILL.store(plan.kill, Ordering::SeqCst);
        CALLS.store(0, Ordering::SeqCst);
        FAILED.store(0, Ordering::SeqCst);
        ARMED.store(true, Ordering::SeqCst);
    }

    /// Ends the plan of the process and returns its outcome.
    pub fn disarm_process() -> FaultOutcome {
        ARMED.store(false, Ordering::SeqCst);
        FaultOutcome {
            calls: CALLS.load(Ordering::SeqCst),
            failed: FAILED.load(Ordering::SeqCst),
            first: None,
        }
    }

    /// Fails if a plan selects this call.
    #[inline]
    pub fn check(call: CallKind) -> SysResult<()> {
        match HERE.try_with(Cell::get) {
            Ok(Some((plan, seen))) => check_thread(call, plan, seen),
            _ if ARMED.load(Ordering::Relaxed) => check_process(call),
            _ => Ok(()),
        }
    }

    fn check_thread(call: CallKind, plan: FaultPlan, mut seen: FaultOutcome) -> SysResult<()> {
        if !plan.counts(call) {
            return Ok(());
        }
        seen.calls += 1;
        let fails = plan.fails(seen.calls);
        if fails {
            seen.failed += 1;
            seen.first.get_or_insert(call);
        }
        HERE.set(Some((plan, seen)));
        if fails { fail(call, &plan) } else { Ok(()) }
    }

    fn check_process(call: CallKind) -> SysResult<()> {
        let only = ONLY.load(Ordering::Relaxed);
        let plan = FaultPlan {
            nth: NTH.load(Ordering::Relaxed),
            errno: ERRNO.load(Ordering::Relaxed),
            only: (only != ANY).then_some(only),
            lasting: LASTING.load(Ordering::Relaxed),
            half: HALVES.load(Ordering::Relaxed),
            pause_ms: PAUSE_MS.load(Ordering::Relaxed),
            kill: KILL.load(Ordering::Relaxed),
        };
        if !plan.counts(call) || !plan.fails(CALLS.fetch_add(1, Ordering::Relaxed) + 1) {
            return Ok(());
        }
        FAILED.fetch_add(1, Ordering::Relaxed);
        fail(call, &plan)
    }

    fn fail(call: CallKind, plan: &FaultPlan) -> SysResult<()> {
        std::thread::sleep(Duration::from_millis(plan.pause_ms));
        if plan.kill {
            let _ = crate::kill(std::process::id().cast_signed(), libc::SIGKILL);
        }
        HALF.set(plan.half && call == CallKind::Write);
        if plan.errno == 0 {
            Ok(())
        } else {
            Err(Errno(plan.errno))
        }
    }

    /// Returns whether the write that just failed must first write half of its data.
    pub fn writes_half() -> bool {
        HALF.replace(false)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_nth_call_fails_and_no_other() {
            arm_thread(FaultPlan::nth(2, Errno::EIO));
            let results: Vec<_> = [CallKind::Stat, CallKind::Open, CallKind::Stat]
                .map(check)
                .into();
            assert_eq!(results, [Ok(()), Err(Errno::EIO), Ok(())]);
            assert_eq!(
                disarm_thread(),
                FaultOutcome {
                    calls: 3,
                    failed: 1,
                    first: Some(CallKind::Open)
                }
            );
            assert_eq!(check(CallKind::Stat), Ok(()));
        }

        #[test]
        fn no_space_fails_what_takes_space() {
            arm_thread(FaultPlan::nth(1, Errno::ENOSPC).lasting());
            let results: Vec<_> = [
                CallKind::Stat,
                CallKind::Write,
                CallKind::Open,
                CallKind::Rename,
            ]
            .map(check)
            .into();
            assert_eq!(
                results,
                [Ok(()), Err(Errno::ENOSPC), Ok(()), Err(Errno::ENOSPC)]
            );
            disarm_thread();
        }
    }
}
