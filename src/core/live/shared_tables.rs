//! State that the parts of the live tree share.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::branch_state::BranchState;
pub(super) use super::calls::BlockingCalls;
pub(super) use super::dirs::Dirs;
pub(super) use super::handles::Handles;
pub(super) use super::handover::HandoverLog;
pub(super) use super::hot::HotFiles;
pub(super) use super::locks::Locks;
pub(super) use super::node_table::NodeTable;
pub(super) use super::orphans::OrphanCount;
pub(super) use super::passthrough::Passthrough;
pub(super) use super::recent_unlinks::RecentUnlinks;
use crate::history::timeline::Timeline;
use crate::history::wake::IdleThread;
use ckptfs_sys::{self as sys, Stat};

/// The history, the directories, the locks, and the tables of nodes, handles and hot files. Each
/// part clones the members that it needs.
#[derive(Clone)]
pub(super) struct SharedTables {
    pub(super) timeline: Arc<Timeline>,
    pub(super) root: Arc<OwnedFd>,
    /// A directory on the same filesystem, outside the tree.
    pub(super) staging: Arc<OwnedFd>,
    /// Captures share extents with the live file.
    pub(super) reflink: bool,
    /// The base of a branch.
    pub(super) through: Option<Arc<BranchState>>,
    pub(super) locks: Arc<Locks>,
    pub(super) nodes: Arc<NodeTable>,
    pub(super) dirs: Arc<Dirs>,
    pub(super) hot: Arc<HotFiles>,
    pub(super) handles: Arc<Handles>,
    pub(super) calls: Arc<BlockingCalls>,
    pub(super) handover: Arc<HandoverLog>,
    pub(super) passthrough: Arc<Passthrough>,
    pub(super) orphans: Arc<OrphanCount>,
    pub(super) recent_unlinks: Arc<RecentUnlinks>,
    /// Wakes the sealer.
    pub(super) wake: Arc<IdleThread>,
}

impl SharedTables {
    /// Creates empty tables. `stat` has the attributes of the root.
    pub(super) fn new(
        root: Arc<OwnedFd>,
        staging: Arc<OwnedFd>,
        timeline: Arc<Timeline>,
        reflink: bool,
        through: Option<Arc<BranchState>>,
        stat: &Stat,
    ) -> SharedTables {
        let handover = Arc::<HandoverLog>::default();
        SharedTables {
            timeline,
            root,
            staging,
            reflink,
            through,
            locks: Arc::default(),
            nodes: Arc::new(NodeTable::new(stat, Arc::clone(&handover))),
            dirs: Arc::new(Dirs::new(sys::nofile())),
            hot: Arc::new(HotFiles::new(Arc::clone(&handover))),
            handles: Arc::default(),
            calls: Arc::default(),
            handover,
            passthrough: Arc::new(Passthrough::new(stat.uid)),
            orphans: Arc::new(OrphanCount::new(sys::nofile())),
            recent_unlinks: Arc::default(),
            wake: Arc::default(),
        }
    }
}
