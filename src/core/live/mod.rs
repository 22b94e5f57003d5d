//! The live tree: POSIX operations on the backing directory, which keep the past before they change
//! the present.
//!
//! Every node is named by its slot and found by one of its names, relative to a descriptor of its
//! directory; what is found is verified by its inode number. No path is ever followed, so no link
//! leads out of the tree.
//!
//! **Locking**, in this order, which [`ckptfs_sys::lock`] enforces in debug builds:
//! 1. the freeze lock: held for reading by every mutation, for writing by whoever closes the epoch
//!    or restores (the freeze);
//! 2. `tree`: held for writing by whatever changes names, for reading by whatever relies on them;
//! 3. a stripe by slot: held while an inode is captured and changed; under these three nothing is
//!    called that may wait for somebody else's process (module `busy`);
//! 4. held for a moment, never across a system call that can wait: the table of nodes, then that of
//!    hot files; and the leaves, which say so.
//!
//! **Who asks.** A [`ChangeCtx`] is made where a request or a verb begins, and is passed down to
//! what changes something and to what records it: for whom that is, and what must be waited for.
//!
//! **Parts.** [`Live`] makes them and hands them out, and does nothing by itself. Each has its
//! state to itself, and knows only those before it:
//! - the locks (`locks`) and the tables (`tables`): the nodes that the kernel knows, files that are
//!   open or hot, calls under way, what a worker leaves to the next;
//! - what each change needs to keep the past (`past`): an inode is found ([`Inodes`]) and captured
//!   (`Captures`), nobody is waited for with a lock held ([`LockWaits`]), what must be on the disk
//!   first is ([`Durability`]), and it is known who asks ([`WriterTable`]);
//! - the changes: of attributes ([`Attrs`]), of names ([`Removal`], [`Names`]), of content
//!   ([`Files`]), and a restore's ([`Staging`], [`Swaps`]);
//! - the checkpoint's: [`Settling`], [`MappedWatch`], [`Cuts`];
//! - an absence: what is kept for it ([`SavedContent`]), what it changed ([`BaselineUpdate`]), and
//!   what is done ahead ([`AbsencePrep`]);
//! - what is done when the machine has nothing else to do ([`OnlineDedup`], [`Sealer`]);
//! - after a crash: [`Recovery`], and [`Adoption`] by the next worker.

mod attr_timeout;
mod attribution;
mod attrs;
mod baseline;
mod branch_state;
mod calls;
mod capture;
mod capture_ctx;
mod change;
mod closer;
mod copy_up;
mod cut;
mod data;
mod dedup;
mod dirs;
mod durable;
mod first_change;
mod handles;
mod handover;
mod hot;
mod idle;
mod inodes;
mod lock_waits;
mod locks;
mod mapped;
mod names;
mod node_table;
mod nodes;
mod orphans;
mod owner_access;
mod passthrough;
mod recent_unlinks;
mod recover;
mod remove;
mod saved_content;
mod sealer;
mod settle;
mod shared_tables;
mod staged;
mod stale_names;
mod swaps;
mod takeover;
mod xattrs;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::history::base::Base;
use crate::history::timeline::Timeline;
pub use attribution::{WriterTable, opener_word};
pub use attrs::{AttrChange, Attrs};
pub use baseline::BaselineUpdate;
use branch_state::BranchState;
pub use calls::BlockingCalls;
use capture_ctx::CaptureCtx;
pub use change::ChangeCtx;
use ckptfs_sys::{self as sys, Errno, SysResult};
use copy_up::CopyUp;
pub use cut::Cuts;
pub use data::Files;
pub use dedup::OnlineDedup;
pub use durable::Durability;
pub use handles::{Handle, HandleId, Handles, OpenFlags};
pub use handover::{FdKeeper, HandoverLog, HandoverState, KeptFds, KernelRequest};
pub use hot::HotFiles;
pub use idle::AbsencePrep;
pub use inodes::{Inodes, NodeRef};
pub use lock_waits::LockWaits;
pub use locks::{Freeze, Locks};
pub use mapped::MappedWatch;
pub use names::{CreatedInode, Names, NewInode};
pub use node_table::NodeTable;
pub use nodes::IoMode;
pub use passthrough::Passthrough;
pub use recent_unlinks::RecentUnlinks;
pub use recover::Recovery;
pub use remove::Removal;
pub use saved_content::{SavedContent, drop_kept};
pub use sealer::{Sealer, SealerMode};
pub use settle::Settling;
use shared_tables::SharedTables;
pub use staged::{InodeSpec, STAGED_PREFIX, Staged, Staging, Swap};
pub use stale_names::PendingInvalidation;
pub use swaps::Swaps;
pub use takeover::Adoption;

/// The live tree, as its parts. See the module.
pub struct Live {
    timeline: Arc<Timeline>,
    root: Arc<OwnedFd>,
    staging: Arc<OwnedFd>,
    reflink: bool,
    /// The locks, and the counters of changes.
    pub locks: Arc<Locks>,
    /// State for the worker that takes over.
    pub handover: Arc<HandoverLog>,
    /// Nodes known to the kernel.
    pub nodes: Arc<NodeTable>,
    /// Inodes that recently lost one of several names. Attributes sent with a directory listing may
    /// overtake the reply that reported the removal.
    pub recent_unlinks: Arc<RecentUnlinks>,
    /// Decides which files use passthrough I/O.
    pub passthrough: Arc<Passthrough>,
    /// Open handles.
    pub handles: Arc<Handles>,
    /// Files that the kernel may write to without a request.
    pub hot: Arc<HotFiles>,
    /// Calls in flight that may wait for another user's process.
    pub calls: Arc<BlockingCalls>,
    /// Finds inodes by slot, and reads their attributes.
    pub inodes: Arc<Inodes>,
    /// Order of writes to the disk.
    pub durability: Arc<Durability>,
    /// Authors of requests, and the processes that have files open for writing.
    pub writers: Arc<WriterTable>,
    /// Freezes the tree, and waits for other processes without a lock.
    pub busy: Arc<LockWaits>,
    /// Files with daemon I/O that may be mapped for writing.
    pub mapped: Arc<MappedWatch>,
    /// Captures hot files at one instant for a checkpoint.
    pub cuts: Arc<Cuts>,
    /// Detects hot files that no process can write to any more.
    pub settling: Arc<Settling>,
    /// Changes attributes.
    pub attrs: Arc<Attrs>,
    /// Unlinks names.
    pub removal: Arc<Removal>,
    /// Creates, links and renames.
    pub names: Arc<Names>,
    /// Creates inodes in the staging directory.
    pub staged: Arc<Staging>,
    /// Moves staged inodes into place.
    pub swaps: Swaps,
    /// Opens, reads, writes and closes files.
    pub files: Files,
    /// Content saved for an absence.
    pub kept: Arc<SavedContent>,
    /// The baseline: the tree at the end of the last mount.
    pub baselines: Arc<BaselineUpdate>,
    /// Idle-time preparation for an absence.
    pub idle: Arc<AbsencePrep>,
    /// Shares the extents of identical content.
    pub sharing: Arc<OnlineDedup>,
    /// Hashes captured objects.
    pub sealer: Arc<Sealer>,
    /// Recovery after an unclean end of a daemon.
    pub recovery: Recovery,
    /// Takeover from a worker that died.
    pub adoption: Adoption,
}

impl Live {
    /// Creates the live tree below `root`, with its history in `timeline`. `staging` is a directory
    /// on the same filesystem, outside the tree. `base` is the lower tree of a branch: it provides
    /// all inodes that the branch has not changed.
    ///
    /// # Errors
    /// Those of fstat(2) on the two directories; EXDEV if they are on different filesystems.
    pub fn new(
        root: Arc<OwnedFd>,
        staging: OwnedFd,
        timeline: Arc<Timeline>,
        reflink: bool,
        base: Option<Arc<Base>>,
    ) -> SysResult<Live> {
        let stat = sys::stat_fd(&root)?;
        if sys::stat_fd(&staging)?.dev != stat.dev {
            return Err(Errno::EXDEV);
        }
        let tmp = || Ok::<_, Errno>(timeline.store().layout.tmp_dir()?);
        let through = base
            .map(|base| BranchState::new(base, tmp()?))
            .transpose()?;
        let tables = SharedTables::new(root, Arc::new(staging), timeline, reflink, through, &stat);
        let past = CaptureCtx::new(&tables, &stat)?;
        let settling = Settling::new(&tables, &past);
        let mapped = MappedWatch::new(&tables);
        let staged = Staging::new(&tables, &past, &tables.staging);
        let copies = CopyUp::new(&tables, &past);
        let attrs = Attrs::new(&tables, &past, &copies);
        let removal = Removal::new(&tables, &past, &copies);
        let names = Names::new(&tables, &past, &copies, &removal);
        let files = Files::new((
            (&tables, &past, &copies),
            (&settling, &mapped),
            (&attrs, &names, &removal),
        ));
        let kept = SavedContent::new(&tables, &past);
        let baselines = BaselineUpdate::new(&tables, &past, &kept, &attrs);
        past.inodes.base().begin_branch()?;
        let idle = AbsencePrep::new(&tables, &baselines, &kept);
        let sharing = OnlineDedup::new(&tables);
        Ok(Live {
            cuts: Cuts::new(&tables, &past),
            staged,
            swaps: Swaps::new(&tables, &past, &copies, &removal, &names),
            sealer: Sealer::new(&tables, &idle, &sharing),
            recovery: Recovery::new(&tables, &past, &removal),
            adoption: Adoption::new(&tables, &past),
            timeline: tables.timeline,
            root: tables.root,
            staging: tables.staging,
            reflink: tables.reflink,
            locks: tables.locks,
            handover: tables.handover,
            nodes: tables.nodes,
            recent_unlinks: tables.recent_unlinks,
            passthrough: tables.passthrough,
            handles: tables.handles,
            hot: tables.hot,
            calls: tables.calls,
            inodes: past.inodes,
            durability: past.durability,
            writers: past.writers,
            busy: past.busy,
            mapped,
            settling,
            attrs,
            removal,
            names,
            files,
            kept,
            baselines,
            idle,
            sharing,
        })
    }

    /// Returns whether captures share extents with the live file.
    pub fn reflink(&self) -> bool {
        self.reflink
    }

    /// Returns the history of this tree.
    pub fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// Returns the descriptor of the root directory.
    pub fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// Returns the descriptor of the staging directory.
    pub fn staging(&self) -> &Arc<OwnedFd> {
        &self.staging
    }
}
