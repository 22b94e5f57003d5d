//! EIO in the log: each that a client gets is told there, with the request, the node and the system
//! call that failed.
//!
//! What a request is about is kept by thread, from when it is decoded until it is answered. The log
//! is on the disk of the tree, and a client can have requests fail at will: so many lines are
//! written in an hour, and the next one says how many were not. Locks: none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::engine::counts::RequestKind as Kind;
use crate::engine::request::NodeId;
use crate::sys::{Errno, cause};

/// Lines in a period, each for the live tree and for the past: what is damaged in the past must not
/// hide what goes wrong now.
const LINES_MAX: u64 = 20;
const PERIOD_S: u64 = 3600;

thread_local! {
    static NODE: Cell<Option<NodeId>> = const { Cell::new(None) };
    static KIND: Cell<Option<Kind>> = const { Cell::new(None) };
}

/// The request that this thread decodes, or serves, is about this node.
pub fn about(node: NodeId) {
    NODE.set(Some(node));
}

/// What it is about, for the thread that is to serve it.
pub fn hand_on() -> Option<NodeId> {
    NODE.take()
}

/// This thread serves such a request; `node`: what it is about, if another thread decoded it.
pub fn begin(kind: Kind, node: Option<NodeId>) {
    KIND.set(Some(kind));
    if node.is_some() {
        NODE.set(node);
    }
    cause::take();
}

/// It is served, or is to be served again by another thread.
pub fn end() {
    KIND.set(None);
}

/// A client is answered with this.
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
        failed = ?cause::take(),
        untold,
        "a request is answered with EIO"
    );
}

/// Seconds since the first was asked for.
fn seconds() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_secs()
}

/// How many lines may still be written. Two threads that begin a period at once may both count.
struct Budget {
    /// The period, from 1.
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

    /// Whether a line may be written, and how many were not since the last.
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
