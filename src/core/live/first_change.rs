//! Work that precedes the first change of a tree: a new branch is synced to the disk. After a power
//! cut the branch is complete, or contains no changes that could be lost.

use std::sync::atomic::{AtomicBool, Ordering};

use ckptfs_sys::lock::{Mutex, Rank};
use ckptfs_sys::{SysResult, wait};

/// The work.
type Work = Box<dyn Fn() -> SysResult<()> + Send + Sync>;

/// Blocks changes until the work has been done once.
pub struct FirstChange {
    due: AtomicBool,
    /// Held while the work runs.
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
    /// Requires `work` before the first change. To be called before the tree is served.
    pub fn comes_after(&self, work: impl Fn() -> SysResult<()> + Send + Sync + 'static) {
        *self.work.lock() = Some(Box::new(work));
        self.due.store(true, Ordering::SeqCst);
    }

    /// Does the work unless it is already done; on return it is done. The caller holds no lock of
    /// the tree.
    ///
    /// # Errors
    /// Those of the work: the tree must not be changed, and the next call retries.
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

    /// Cancels the work, at a time when the tree is no longer changed.
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
    use ckptfs_sys::Errno;

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
