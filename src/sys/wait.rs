//! What a thread does before it waits for somebody else's process.
//!
//! A thread that serves everybody must not: it gives the work back ([`Errno::LATER`]), and it is
//! done by another. One of a pool tells the pool first, so that another takes its place meanwhile;
//! but there are only so many who may wait. Other threads just wait.

use std::cell::RefCell;
use std::sync::Arc;

use super::types::{Errno, SysResult};

/// Who takes the place of threads that wait.
pub trait Relief: Send + Sync {
    /// This thread is about to wait; `false`: too many do.
    fn leave(&self) -> bool;
    /// It has waited.
    fn back(&self);
}

#[derive(Clone)]
enum How {
    Freely,
    Never,
    Relieved(Arc<dyn Relief>),
}

thread_local! {
    static HOW: RefCell<How> = const { RefCell::new(How::Freely) };
}

/// Runs `work`, which must not wait.
pub fn never<T>(work: impl FnOnce() -> T) -> T {
    /// Also after a panic that somebody catches.
    struct Before(How);
    impl Drop for Before {
        fn drop(&mut self) {
            HOW.replace(self.0.clone());
        }
    }
    let _before = Before(HOW.replace(How::Never));
    work()
}

/// From now on `relief` takes the place of this thread whenever it waits.
pub fn relieved_by(relief: Arc<dyn Relief>) {
    HOW.replace(How::Relieved(relief));
}

/// Waits with `wait`.
///
/// # Errors
/// LATER: not on this thread. EBUSY: too many wait.
pub fn aside<T>(wait: impl FnOnce() -> SysResult<T>) -> SysResult<T> {
    match HOW.with_borrow(Clone::clone) {
        How::Never => Err(Errno::LATER),
        How::Freely => wait(),
        How::Relieved(relief) => {
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
    impl Relief for Two {
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
