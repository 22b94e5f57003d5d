//! Policies for a thread about to wait for another user's process.
//!
//! A reader of kernel requests must not wait: the call fails with [`Errno::LATER`], and another
//! thread serves the request. A pool thread notifies its pool first, which replaces it during the
//! wait; the number of waiting threads is limited. Other threads wait directly.

use std::cell::RefCell;
use std::sync::Arc;

use super::types::{Errno, SysResult};

/// A pool that replaces waiting threads.
pub trait WaitPool: Send + Sync {
    /// Called before this thread waits. `false`: too many threads wait already.
    fn leave(&self) -> bool;
    /// Called after the wait.
    fn back(&self);
}

#[derive(Clone)]
enum WaitPolicy {
    Freely,
    Never,
    Relieved(Arc<dyn WaitPool>),
}

thread_local! {
    static HOW: RefCell<WaitPolicy> = const { RefCell::new(WaitPolicy::Freely) };
}

/// Runs `work` on a thread that must not wait.
pub fn never<T>(work: impl FnOnce() -> T) -> T {
    /// Restores the policy, also after a panic.
    struct Before(WaitPolicy);
    impl Drop for Before {
        fn drop(&mut self) {
            HOW.replace(self.0.clone());
        }
    }
    let _before = Before(HOW.replace(WaitPolicy::Never));
    work()
}

/// Sets `relief` as the pool that replaces this thread whenever it waits.
pub fn relieved_by(relief: Arc<dyn WaitPool>) {
    HOW.replace(WaitPolicy::Relieved(relief));
}

/// Runs `wait`, which may block, as the policy of this thread permits.
///
/// # Errors
/// LATER: this thread must not wait. EBUSY: too many threads wait.
pub fn aside<T>(wait: impl FnOnce() -> SysResult<T>) -> SysResult<T> {
    match HOW.with_borrow(Clone::clone) {
        WaitPolicy::Never => Err(Errno::LATER),
        WaitPolicy::Freely => wait(),
        WaitPolicy::Relieved(relief) => {
            if !relief.leave() {
                return Err(Errno::EBUSY);
            }
            let waited = wait();
            relief.back();
            waited
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Two(AtomicUsize);
    impl WaitPool for Two {
        fn leave(&self) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst) < 2
        }
        fn back(&self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_must_not_wait_gives_it_back_and_who_may_is_counted() {
        assert_eq!(aside(|| Ok(1)), Ok(1));
        assert_eq!(never(|| aside(|| Ok(1))), Err(Errno::LATER));
        assert_eq!(aside(|| Ok(2)), Ok(2), "afterwards it may again");
        std::thread::spawn(|| {
            relieved_by(Arc::new(Two(AtomicUsize::new(0))));
            assert_eq!(
                aside(|| aside(|| aside(|| Ok(3)))),
                Err(Errno::EBUSY),
                "a third is too many"
            );
        })
        .join()
        .expect("the thread");
    }
}
