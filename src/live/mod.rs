//! The live tree: POSIX operations on the backing directory. Each operation records the old state
//! in the history before it changes the tree.
//!
//! A node is identified by its slot and located by one of its names, relative to a descriptor of
//! the parent directory; the inode number of the result is verified. No path is followed, so no
//! symbolic link leads out of the tree.
//!
//! **Lock order**, enforced in debug builds by [`crate::sys::lock`]:
//! 1. The freeze lock: held for reading by every mutation, for writing (the freeze) while an epoch
//!    is closed or a restore is applied.
//! 2. `tree`: held for writing by changes of names, for reading by operations that rely on names.
//! 3. A stripe by slot: held while an inode is captured and changed. Under these three no call is
//!    made that may wait for another user's process (module `busy`).
//! 4. The node table, then the table of hot files, each held only briefly and never across a system
//!    call that can wait. Then the leaf locks, which are documented as leaves.
//!
//! **Authorship.** A [`Change`] is created where a request or verb begins and is passed down to the
//! code that modifies and records. It carries the author, and the blocking work that must finish
//! before a retry.
//!
//! **Parts.** [`Live`] constructs the parts and has no logic. Each part has private state and
//! depends only on the parts listed before it:
//! - The locks (`locks`) and tables (`tables`): nodes known to the kernel, open and hot files,
//!   calls in flight, state for the next worker.
//! - The prerequisites of every change (`past`): finding an inode ([`Inodes`]), capturing it
//!   (`Captures`), waiting for other processes without a lock ([`Busy`]), ordering of disk writes
//!   ([`Durability`]), and attribution to processes ([`Writers`]).
//! - Changes of attributes ([`Attrs`]), names ([`Removal`], [`Names`]) and content ([`Files`]), and
//!   those of a restore ([`Staging`], [`Swaps`]).
//! - Checkpoints: [`Settling`], [`Mapped`], [`Cuts`].
//! - Absences: saved content ([`Kept`]), detection of changes ([`Baselines`]), and idle-time
//!   preparation ([`Idle`]).
//! - Other idle-time work: [`Eager`], [`Sharing`], [`Sealer`].
//! - Recovery after a crash ([`Recovery`]), and takeover by the next worker ([`Adoption`]).

mod attribution;
mod attrs;
mod baseline;
mod busy;
mod calls;
mod capture;
mod change;
mod closer;
mod copy_up;
mod cut;
mod data;
mod dedup;
mod dirs;
mod durable;
mod eager;
mod first_change;
mod handles;
mod hot;
mod idle;
mod inodes;
mod kept;
mod legacy;
mod lent;
mod locks;
mod mapped;
mod names;
mod nodes;
mod orphans;
mod passthrough;
mod past;
mod recent_unlinks;
mod recover;
mod remove;
mod sealer;
mod settle;
mod staged;
mod stale_names;
mod swaps;
mod table;
mod tables;
mod takeover;
mod through;
mod told;
mod xattrs;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use attribution::{Writers, opener_word};
pub use attrs::{Attrs, NewAttrs};
pub use baseline::Baselines;
pub use busy::Busy;
pub use calls::Calls;
pub use change::Change;
pub use cut::Cuts;
pub use data::Files;
pub use dedup::Sharing;
pub use durable::Durability;
pub use eager::Eager;
pub use handles::{Handle, HandleId, Handles, OpenFlags};
pub use hot::HotFiles;
pub use idle::Idle;
pub use inodes::{At, Inodes};
pub use kept::{Keep, Kept, drop_kept};
pub use legacy::{Handover, Keeper, Legacy, Orphans, Turn};
pub use locks::{Freeze, Locks};
pub use mapped::Mapped;
pub use names::{Made, Make, Names};
pub use nodes::IoMode;
pub use passthrough::Passthrough;
pub use recent_unlinks::RecentUnlinks;
pub use recover::Recovery;
pub use remove::Removal;
pub use sealer::{HashMode, Sealer};
pub use settle::Settling;
pub use staged::{STAGED_PREFIX, Staged, Staging, Swap, Wanted};
pub use stale_names::Forgetting;
pub use swaps::Swaps;
pub use table::NodeTable;
pub use takeover::Adoption;

use copy_up::CopyUp;
use past::Past;
use tables::Tables;
use through::Through;

use crate::history::base::Base;
use crate::history::timeline::Timeline;
use crate::sys::{self, Errno, SysResult};

/// The live tree, as its parts. See the module.
pub struct Live {
    timeline: Arc<Timeline>,
    root: Arc<OwnedFd>,
    staging: Arc<OwnedFd>,
    reflink: bool,
    /// The locks, and the counters of changes.
    pub locks: Arc<Locks>,
    /// State for the worker that takes over.
    pub handover: Arc<Handover>,
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
    pub calls: Arc<Calls>,
    /// Finds inodes by slot, and reads their attributes.
    pub inodes: Arc<Inodes>,
    /// Order of writes to the disk.
    pub durability: Arc<Durability>,
    /// Authors of requests, and the processes that have files open for writing.
    pub writers: Arc<Writers>,
    /// Freezes the tree, and waits for other processes without a lock.
    pub busy: Arc<Busy>,
    /// Files with daemon I/O that may be mapped for writing.
    pub mapped: Arc<Mapped>,
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
    pub kept: Arc<Kept>,
    /// The baseline: the tree at the end of the last mount.
    pub baselines: Arc<Baselines>,
    /// Idle-time preparation for an absence.
    pub idle: Arc<Idle>,
    /// Captures files ahead of their first change.
    pub eager: Arc<Eager>,
    /// Shares the extents of identical content.
    pub sharing: Arc<Sharing>,
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
        let through = base.map(|base| Through::new(base, tmp()?)).transpose()?;
        let tables = Tables::new(root, Arc::new(staging), timeline, reflink, through, &stat);
        let past = Past::new(&tables, &stat)?;
        let settling = Settling::new(&tables, &past);
        let mapped = Mapped::new(&tables);
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
        let kept = Kept::new(&tables, &past);
        let baselines = Baselines::new(&tables, &past, &kept, &attrs);
        past.inodes.base().begin_branch()?;
        let idle = Idle::new(&tables, &baselines, &kept);
        let eager = Eager::new(&tables, &past);
        let sharing = Sharing::new(&tables);
        Ok(Live {
            cuts: Cuts::new(&tables, &past),
            staged,
            swaps: Swaps::new(&tables, &past, &copies, &removal, &names),
            sealer: Sealer::new(&tables, &past, &eager, &idle, &sharing),
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
            eager,
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
