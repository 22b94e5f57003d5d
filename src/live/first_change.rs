//! What is done before anything is changed in a tree for the first time: a branch that was made a
//! moment ago is brought to the disk. A power cut finds it there, or with nothing in it that could
//! be lost.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::lock::{Mutex, Rank};
use crate::sys::{SysResult, wait};

/// Does it, and knows whether it was done.
type Work = Box<dyn Fn() -> SysResult<()> + Send + Sync>;

/// Has whoever would change something wait until that is done, once.
pub struct FirstChange {
    due: AtomicBool,
    /// Held while it is done.
    work: Mutex<Option<Work>>,
}

impl Default for FirstChange {
    fn default() -> FirstChange {
        FirstChange {
            due: AtomicBool::new(false),
            work: Mutex::ranked(Rank::FirstChange, None),
        }
    }
}

impl FirstChange {
    /// From now on nothing is changed before `work` was done. To be called before the tree is
    /// served.
    pub fn comes_after(&self, work: impl Fn() -> SysResult<()> + Send + Sync + 'static) {
        *self.work.lock() = Some(Box::new(work));
        self.due.store(true, Ordering::SeqCst);
    }

    /// It is done when this returns, by this call or another. The caller holds no lock of the tree.
    ///
    /// # Errors
    /// Those of the work: nothing may be changed, and the next call tries again.
    pub fn pass(&self) -> SysResult<()> {
        if !self.due.load(Ordering::SeqCst) {
            return Ok(());
        }
        wait::aside(|| {
            let mut work = self.work.lock();
            work.as_ref().map_or(Ok(()), |work| work())?;
            *work = None;
            self.due.store(false, Ordering::SeqCst);
            Ok(())
        })
    }

    /// Nothing waits any more, whether it was done or not: nobody changes the tree any more.
    pub fn forget(&self) {
        *self.work.lock() = None;
        self.due.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::sys::Errno;

    #[test]
    fn it_is_done_once_and_again_as_long_as_it_fails() {
        let first = FirstChange::default();
        assert_eq!(first.pass(), Ok(()));
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        first.comes_after(move || match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Err(Errno::ENOSPC),
            _ => Ok(()),
        });
        assert_eq!(first.pass(), Err(Errno::ENOSPC));
        assert_eq!((first.pass(), first.pass()), (Ok(()), Ok(())));
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        assert_eq!(Arc::strong_count(&calls), 1, "what it held is let go");
    }
}
