//! Logging of EIO: each EIO sent to a client is logged with the request, the node and the failed
//! system call.
//!
//! The node of a request is stored per thread, from decoding to the reply. Lines per hour are
//! limited, because the log is on the disk of the tree and a client can cause failures at will. The
//! next line reports the number of suppressed ones. Locks: none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ckptfs_core::engine::counts::RequestKind as Kind;
use ckptfs_core::engine::request::NodeId;
use ckptfs_sys::{Errno, last_eio};

/// Maximum number of lines in a period, for the live tree and for the past separately, so that
/// damage in the past does not hide current failures.
const LINES_MAX: u64 = 20;
const PERIOD_S: u64 = 3600;

thread_local! {
    static NODE: Cell<Option<NodeId>> = const { Cell::new(None) };
    static KIND: Cell<Option<Kind>> = const { Cell::new(None) };
}

/// Sets the node of the request that this thread decodes or executes.
pub fn about(node: NodeId) {
    NODE.set(Some(node));
}

/// Takes the node, for the thread that will execute the request.
pub fn hand_on() -> Option<NodeId> {
    NODE.take()
}

/// Starts a request on this thread; `node` is its node if another thread decoded it.
pub fn begin(kind: Kind, node: Option<NodeId>) {
    KIND.set(Some(kind));
    if node.is_some() {
        NODE.set(node);
    }
    last_eio::take();
}

/// Ends a request on this thread, which is complete or goes to another thread.
pub fn end() {
    KIND.set(None);
}

/// Logs an error sent to a client, if it is EIO.
pub fn note(errno: Errno) {
    if errno != Errno::EIO {
        return;
    }
    static BUDGETS: [Budget; 2] = [const { Budget::new() }; 2];
    let node = NODE.get();
    let is_live = node.is_none_or(NodeId::is_live);
    let Some(untold) = BUDGETS[usize::from(is_live)].spend(seconds()) else {
        return;
    };
    tracing::warn!(
        request = KIND.get().map_or("unknown", Kind::name),
        node = node.map_or(0, |node| node.0),
        failed = ?last_eio::take(),
        untold,
        "a request is answered with EIO"
    );
}

/// Seconds since the first call.
fn seconds() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_secs()
}

/// Limit of lines per period. Two threads that start a period at once may both reset the count.
struct Budget {
    /// The number of the period, from 1.
    period: AtomicU64,
    told: AtomicU64,
    untold: AtomicU64,
}

impl Budget {
    const fn new() -> Budget {
        Budget {
            period: AtomicU64::new(0),
            told: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Returns the number of lines suppressed since the last one if a line may be written, else
    /// `None`.
    fn spend(&self, now_s: u64) -> Option<u64> {
        let period = now_s / PERIOD_S + 1;
        if self.period.swap(period, Ordering::Relaxed) != period {
            self.told.store(0, Ordering::Relaxed);
        }
        if self.told.fetch_add(1, Ordering::Relaxed) < LINES_MAX {
            Some(self.untold.swap(0, Ordering::Relaxed))
        } else {
            self.untold.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_are_written_in_a_period() {
        let budget = Budget::new();
        let told = (0..100).filter(|_| budget.spend(5).is_some()).count() as u64;
        assert_eq!(told, LINES_MAX);
        assert_eq!(budget.spend(PERIOD_S), Some(100 - LINES_MAX));
        assert_eq!(budget.spend(PERIOD_S), Some(0));
    }
}
