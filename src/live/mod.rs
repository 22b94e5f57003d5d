//! The live tree: POSIX operations on the backing directory, which keep the past before they change the present.
//!
//! Every node is named by its slot and found by one of its names, relative to a descriptor of its directory; what is found is verified by its inode
//! number. No path is ever followed, so no link leads out of the tree.
//!
//! **Locking**, in this order, which [`crate::sys::lock`] enforces in debug builds:
//! 1. `freeze_lock`: held for reading by every mutation, for writing by whoever closes the epoch or restores (the freeze);
//! 2. `tree`: held for writing by whatever changes names, for reading by whatever relies on them;
//! 3. a stripe by slot: held while an inode is captured and changed;
//!    under these three nothing is called that may wait for somebody else's process (module `busy`);
//! 4. held for a moment, never across a system call that can wait: `nodes`, then `hot`; and the leaves: `dirs`, `unsettled`, `handles`, `undurable`.

mod advance;
mod attribution;
mod attrs;
mod baseline;
mod busy;
mod capture;
mod closer;
mod cut;
mod data;
mod dedup;
mod dirs;
mod durable;
mod eager;
mod find;
mod hot;
mod idle;
mod kept;
mod mapped;
mod names;
mod nodes;
mod orphans;
mod present;
mod recent_unlinks;
mod recover;
mod remove;
mod restore;
mod sealer;
mod staged;
mod swaps;
mod takeover;
mod told;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use attribution::opener_word;
pub use attrs::Change;
pub use busy::Freeze;
pub use cut::Cut;
pub use data::{Handle, HandleId, OpenFlags};
pub use durable::TreeSync;
pub use find::At;
pub use kept::{Keep, drop_kept};
pub use names::{Made, Make};
pub use nodes::IoMode;
pub use sealer::{HashMode, HashStats};
pub use staged::{STAGED_PREFIX, Staged, Swap, Wanted};
pub use takeover::{Keeper, Legacy, Orphans, Turn};

use crate::history::timeline::Timeline;
use crate::store::ids::Slot;
use crate::sys::lock::{Mutex, MutexGuard, Rank, RwLock};
use crate::sys::{self, Errno, Stat, SysResult};

/// Number of locks that captures are spread over.
const STRIPES: usize = 64;

/// The live tree. See the module.
pub struct Live {
    root: Arc<OwnedFd>,
    staging: Arc<OwnedFd>,
    /// The error of a rename over a directory in which something is.
    not_empty: OnceLock<crate::sys::Errno>,
    device: u64,
    root_ino: u64,
    timeline: Arc<Timeline>,
    /// Lock 1: see the module.
    freeze_lock: RwLock<()>,
    /// It is held for writing.
    frozen: AtomicBool,
    /// Lock 2: see the module.
    pub tree: RwLock<()>,
    /// How many renames have begun and how many have ended, together: odd while one is under way.
    rename_steps: AtomicU64,
    /// Lock 3: see the module.
    stripes: Vec<Mutex<()>>,
    busy: Arc<busy::Busy>,
    nodes: Mutex<nodes::Nodes>,
    dirs: dirs::Dirs,
    handles: data::Handles,
    orphans: orphans::Orphans,
    hot: Mutex<HashMap<Slot, hot::Hot>>,
    prepared: Mutex<cut::Prepared>,
    /// Hot files without a writer that were found in use all the same: to be tried again.
    unsettled: Mutex<VecDeque<Slot>>,
    recent_unlinks: recent_unlinks::RecentUnlinks,
    watch: mapped::Watch,
    callers: attribution::Callers,
    undurable: durable::Undurable,
    sealer: sealer::Sealer,
    idle: idle::Idle,
    shared: dedup::SharedCounts,
    /// Objects that were captured ahead and may be superseded. A leaf.
    ahead_objects: Mutex<HashMap<Slot, Vec<crate::store::ids::ObjectId>>>,
    /// They have what an earlier daemon captured, too.
    knows_ahead: AtomicBool,
    /// Where inodes were found that are to be captured ahead and that the kernel may not know. A leaf.
    found_ahead: Mutex<HashMap<Slot, crate::store::record::Place>>,
    passthrough: AtomicBool,
    /// Of every user's files.
    for_all: AtomicBool,
    /// Whose process this is.
    user: u32,
    /// Whose the top directory is.
    owner: AtomicU32,
    reflink: bool,
    /// How often what was kept for an absence was removed.
    kept_drops: AtomicU64,
    /// What is left to the worker that takes over, if one would.
    legacy: OnceLock<takeover::Legacy>,
    /// What somebody syncs reaches the disk ahead of what was done before (btrfs's tree log).
    syncs_overtake: bool,
}

impl Live {
    /// The tree below `root`, with its history in `timeline`. `staging` is a directory on the same filesystem, outside the tree.
    ///
    /// # Errors
    /// Those of fstat(2) on the two; EXDEV if they are on different filesystems.
    pub fn new(root: Arc<OwnedFd>, staging: OwnedFd, timeline: Arc<Timeline>, reflink: bool) -> SysResult<Live> {
        let stat = sys::stat_fd(&root)?;
        if sys::stat_fd(&staging)?.dev != stat.dev {
            return Err(Errno::EXDEV);
        }
        let filesystem = sys::fs_name(sys::statfs_fd(&root)?.fs_type);
        let mut nodes = nodes::Nodes::default();
        nodes.learn(Slot::ROOT, crate::sys::Kind::Dir, nodes::generation_of(&stat), None, 1);
        Ok(Live {
            root,
            staging: Arc::new(staging),
            not_empty: OnceLock::new(),
            device: stat.dev,
            root_ino: stat.ino,
            timeline,
            freeze_lock: RwLock::ranked(Rank::Freeze, ()),
            frozen: AtomicBool::new(false),
            tree: RwLock::ranked(Rank::Tree, ()),
            rename_steps: AtomicU64::new(0),
            stripes: (0..STRIPES).map(|_| Mutex::ranked(Rank::Stripe, ())).collect(),
            busy: Arc::default(),
            nodes: Mutex::ranked(Rank::Nodes, nodes),
            dirs: dirs::Dirs::new(sys::nofile()),
            handles: data::Handles::default(),
            orphans: orphans::Orphans::new(sys::nofile()),
            hot: Mutex::ranked(Rank::Hot, HashMap::new()),
            prepared: Mutex::default(),
            unsettled: Mutex::new(VecDeque::new()),
            recent_unlinks: recent_unlinks::RecentUnlinks::default(),
            watch: mapped::Watch::default(),
            callers: attribution::Callers::default(),
            undurable: durable::Undurable::default(),
            sealer: sealer::Sealer::default(),
            idle: idle::Idle::default(),
            shared: dedup::SharedCounts::default(),
            ahead_objects: Mutex::default(),
            knows_ahead: AtomicBool::default(),
            found_ahead: Mutex::default(),
            passthrough: AtomicBool::new(false),
            for_all: AtomicBool::new(false),
            user: sys::ids().0,
            owner: AtomicU32::new(stat.uid),
            reflink,
            kept_drops: AtomicU64::new(0),
            legacy: OnceLock::new(),
            syncs_overtake: filesystem == "btrfs" && !sys::host::left_out("overtaken"),
        })
    }

    /// From now on files are opened for the kernel to do their I/O, or no longer.
    /// `for_all`: for every user, see [`Live::passes_through`].
    pub fn set_passthrough(&self, on: bool, for_all: bool) {
        self.passthrough.store(on, Ordering::Relaxed);
        self.for_all.store(for_all, Ordering::Relaxed);
    }

    /// The kernel does the I/O of files opened from now on.
    pub fn passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Relaxed)
    }

    /// The kernel may do the I/O of this user: root, the daemon's user, and the owner of the top directory. While it does, the backing file is locked by a
    /// process that may wait for as long as it likes (see `busy`); any other user's I/O passes the daemon, which has buffers of its own.
    pub fn passes_through(&self, asker: Option<sys::Asker>) -> bool {
        self.passthrough()
            && (self.for_all.load(Ordering::Relaxed)
                || asker.is_none_or(|asker| [0, self.user, self.owner.load(Ordering::Relaxed)].contains(&asker.uid)))
    }

    /// The top directory may have another owner.
    pub(super) fn note_owner(&self, slot: Slot, uid: u32) {
        if slot == Slot::ROOT {
            self.owner.store(uid, Ordering::Relaxed);
        }
    }

    /// Captures share extents with the live file.
    pub fn reflink(&self) -> bool {
        self.reflink
    }

    /// The history of this tree.
    pub fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// Descriptor of the root directory.
    pub fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// Descriptor of the staging directory.
    pub fn staging(&self) -> &Arc<OwnedFd> {
        &self.staging
    }

    /// The slot of an inode by what stat(2) said of it.
    ///
    /// # Errors
    /// EXDEV if it is on another filesystem: something is mounted there, or it is another subvolume.
    pub fn slot_of(&self, stat: &Stat) -> SysResult<Slot> {
        if stat.dev != self.device {
            return Err(Errno::EXDEV);
        }
        Ok(if stat.ino == self.root_ino { Slot::ROOT } else { Slot(stat.ino) })
    }

    /// Takes back look-ups that the kernel has forgotten.
    pub fn forget(&self, slot: Slot, lookups: u64) {
        self.with_unclosed(|nodes| nodes.forget(slot, lookups));
    }

    /// What holds an inode without a name is closed: see `closer`.
    fn close_apart(&self, held: impl Send + 'static) {
        self.with_unclosed(|nodes| nodes.close(held));
    }

    fn with_unclosed(&self, change: impl FnOnce(&mut nodes::Nodes)) {
        let unclosed = {
            let mut nodes = self.nodes.lock();
            change(&mut nodes);
            nodes.take_unclosed()
        };
        drop(unclosed);
    }

    /// The directory that a directory is in, if the kernel was told of it.
    pub fn parent(&self, slot: Slot) -> Option<Slot> {
        self.nodes.lock().get(slot).and_then(|node| node.links().next().map(|place| place.parent))
    }

    /// Whether the tables gave much memory back to the allocator since this was last asked.
    pub fn take_shrunk(&self) -> bool {
        self.nodes.lock().take_shrunk()
    }

    /// The inode lost one of several names a moment ago: what is said of it unasked may overtake the answer that told the kernel.
    pub fn lost_a_name_lately(&self, slot: Slot) -> bool {
        self.recent_unlinks.has(slot)
    }

    /// Number of nodes known to the kernel.
    pub fn known(&self) -> usize {
        self.nodes.lock().count()
    }

    fn stripe(&self, slot: Slot) -> MutexGuard<'_, ()> {
        let index = (slot.0 as usize) % self.stripes.len();
        self.stripes[index].lock()
    }

    /// Does what must not fail for want of space as long as the store has any in reserve.
    pub(super) fn with_room<T>(&self, call: impl FnMut() -> SysResult<T>) -> SysResult<T> {
        self.timeline.store().reserve.with_room(call, |errno| *errno)
    }

    /// An inode that the kernel knows has lost its last name, and nobody has it open.
    pub fn is_dead_and_closed(&self, slot: Slot) -> bool {
        self.nodes.lock().get(slot).is_some_and(|node| node.dead && node.handles() == 0)
    }

    /// Generation and attributes of an inode that has lost its last name and that the kernel knows; counts one look-up.
    pub fn look_up_dead(&self, slot: Slot) -> Option<(u64, Stat)> {
        // Its number is taken for as long as it is held, so it cannot have become another's.
        let held = self.orphan(slot)?;
        let stat = Stat { nlink: 0, ..sys::stat_fd(&held).ok()? };
        let mut nodes = self.nodes.lock();
        let node = nodes.get_mut(slot).filter(|node| node.dead && node.is_known())?;
        node.lookups += 1;
        Some((node.generation, stat))
    }

    /// An inode that the kernel knows has lost its last name.
    pub fn is_dead(&self, slot: Slot) -> bool {
        self.nodes.lock().get(slot).is_some_and(|node| node.dead)
    }
}
