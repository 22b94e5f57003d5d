//! What must be on the disk before something else may be.
//!
//! XFS and btrfs bring metadata to the disk in the order in which it was made: a clone and the
//! record of it (`store::journal`) come before the change that they were made for, without any
//! sync. Three things are outside of that order, and are made durable first:
//! - **btrfs** brings a file that an application syncs to the disk by itself, ahead of everything
//!   that was done before (its tree log), and with it the changes of directories that the file had a
//!   name in. So before an fsync of a live file all captures are synced, and the journal. A mapping
//!   that the kernel serves by itself is synced without a request, and so is what is written to a
//!   file opened with O_SYNC: there the capture is synced when the file is opened, the record of
//!   each later change of its names and attributes before the change, and the file counts as synced
//!   whenever its ctime is not the one of the last commit. A rename, a link or an unlink of an inode
//!   that was synced since the last commit (or was logged with one that was) changes that log at once
//!   (`btrfs_log_new_name`, `btrfs_del_inode_ref_in_log`, fs/btrfs/tree-log.c), and is on the disk
//!   with the next fsync of any process. So while there may be such an inode, the record of a change of names is synced before
//!   the change. A directory that is synced takes the names that were removed from it from the
//!   disk, but does not bring names that the same inodes got elsewhere: one that was linked and
//!   then unlinked, where nothing was committed in between, is lost. So before one of its names
//!   goes, such an inode is synced. Nor does it bring a whiteout, which is another inode: the file
//!   of a branch that was renamed was on the disk under its new name alone, and at the old one the
//!   base was seen again. So a rename that leaves one, in a branch, finds nothing in the log of what
//!   was synced before, and the next sync brings all that was done.
//!   And after a merge the tree is synced before the journals are, for the next mount takes back
//!   what the journal tells of and the tree has not.
//!   A daemon that takes over, or mounts, has no list of the captures, links and whiteouts of the
//!   daemon before it that are not on the disk. Until the first commit of the whole filesystem it
//!   assumes the worst of each file: a sync commits the filesystem first. The syncer makes that
//!   commit within a second, so that mounts and takeovers do not wait for it.
//!
//!   Two cases are left, for which every open would have to wait for the disk: a file that was
//!   created since the newest checkpoint, opened for reading and writing, and synced by msync(2); and
//!   a single write with RWF_SYNC or RWF_DSYNC (pwritev2(2)). The disk may have the new name, or the
//!   new content, up to a second before the record of it.
//! - a **copied** capture (a small file with dirty pages) is data. It is synced before an fsync of
//!   the live file; and while the whole tree is synced nothing is copied, for the sync promises
//!   that checkpoints made before are on the disk, and may have passed by the copy.
//! - **without reflink** every capture is a copy, and the live file is overwritten in place: the
//!   copy is synced at once.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::tables::{HotFiles, Tables};
use crate::history::timeline::Timeline;
use crate::store::ids::{ObjectId, Slot};
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, Open, SysResult};

/// Captures that are synced one by one before a directory is; of more the whole filesystem is
/// synced.
const SYNCED_ONE_BY_ONE_MAX: usize = 16;

/// A sync of the whole tree is under way: nothing is copied. See the module.
pub struct TreeSync<'a>(&'a Durability);

impl Drop for TreeSync<'_> {
    fn drop(&mut self) {
        self.0.syncs.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A file or a directory is being synced. See the module.
pub(super) struct FileSync<'a>(&'a Durability);

impl Drop for FileSync<'_> {
    fn drop(&mut self) {
        self.0.note_synced();
        self.0.file_syncs.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What was captured and may not be on the disk, and what is synced because of it. See the module.
pub struct Durability {
    timeline: Arc<Timeline>,
    hot: Arc<HotFiles>,
    root: Arc<OwnedFd>,
    reflink: bool,
    /// What somebody syncs reaches the disk ahead of what was done before (btrfs's tree log).
    syncs_overtake: bool,
    /// Captures whose data may not be on the disk. A leaf.
    objects: Mutex<HashMap<Slot, Vec<ObjectId>>>,
    /// Syncs of the whole tree under way.
    syncs: AtomicU32,
    /// Counts the events below.
    clock: AtomicU64,
    /// The clock when the last successful commit of the whole filesystem began; 0 before the first.
    committed: AtomicU64,
    /// Syncs of files and directories under way.
    file_syncs: AtomicU32,
    /// The clock when the last sync of a file or directory ended.
    synced: AtomicU64,
    /// The clock when the last whiteout was about to be made, or was made.
    hidden: AtomicU64,
    /// When an inode that a checkpoint can see last got another name. A leaf.
    linked: Mutex<HashMap<Slot, u64>>,
}

impl Durability {
    pub(super) fn new(tables: &Tables, syncs_overtake: bool) -> Arc<Durability> {
        // A test that leaves this out assumes that the daemon before left nothing.
        let committed = u64::from(sys::host::left_out("predecessor"));
        Arc::new(Durability {
            timeline: Arc::clone(&tables.timeline),
            hot: Arc::clone(&tables.hot),
            root: Arc::clone(&tables.root),
            reflink: tables.reflink,
            syncs_overtake,
            objects: Mutex::default(),
            syncs: AtomicU32::new(0),
            // The daemon before may have synced and hidden anything.
            clock: AtomicU64::new(1),
            committed: AtomicU64::new(committed),
            file_syncs: AtomicU32::new(0),
            synced: AtomicU64::new(1),
            hidden: AtomicU64::new(1),
            linked: Mutex::default(),
        })
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether something that happened at this time is not in a commit of the filesystem yet.
    fn is_uncommitted(&self, event: u64) -> bool {
        self.syncs_overtake && event > self.committed.load(Ordering::SeqCst)
    }

    /// Whether the whole filesystem was never committed since this daemon began, where that matters.
    pub fn needs_first_commit(&self) -> bool {
        self.is_uncommitted(1)
    }

    /// A version was captured. `copied`: by reading and writing.
    pub(super) fn note_captured(&self, object: ObjectId, copied: bool) {
        if self.reflink && (copied || self.syncs_overtake) {
            self.objects
                .lock()
                .entry(object.slot)
                .or_default()
                .push(object);
        }
    }

    /// Small dirty files may be copied, which is quicker than to clone them.
    pub(super) fn may_copy(&self) -> bool {
        self.syncs.load(Ordering::SeqCst) == 0
    }

    /// Number of files with captures that may not be on the disk.
    pub fn count(&self) -> usize {
        self.objects.lock().len()
    }

    /// Before the content of a live file may be on the disk because somebody syncs it: what was
    /// captured of it is. Where a sync can overtake what was done before, everything that was
    /// captured is: a sync of a file that got, changed or lost a name since the last commit also
    /// brings names that were removed from the directories of these names (`btrfs_log_all_parents`,
    /// fs/btrfs/tree-log.c). See the module.
    ///
    /// # Errors
    /// EIO, ENOSPC: the file must not be synced.
    pub(super) fn make_captures_durable(&self, slot: Slot) -> SysResult<()> {
        if self.syncs_overtake {
            return self.make_past_durable();
        }
        let objects = self.objects.lock().get(&slot).cloned().unwrap_or_default();
        if objects.is_empty() {
            return Ok(());
        }
        self.sync_objects(&objects)?;
        self.timeline.store().journal.sync()?;
        self.forget_durable(&HashMap::from([(slot, objects)]));
        Ok(())
    }

    /// Before names may be on the disk because somebody syncs a directory: everything that was
    /// captured is, where a sync can overtake it.
    ///
    /// # Errors
    /// As [`Durability::make_captures_durable`].
    pub(super) fn make_past_durable(&self) -> SysResult<()> {
        if !self.syncs_overtake {
            return Ok(());
        }
        self.make_whiteouts_durable()?;
        let objects = self.objects.lock().clone();
        if objects.values().map(Vec::len).sum::<usize>() > SYNCED_ONE_BY_ONE_MAX {
            self.sync_filesystem()?;
        } else {
            objects
                .values()
                .try_for_each(|objects| self.sync_objects(objects))?;
        }
        self.timeline.store().journal.sync()?;
        self.forget_durable(&objects);
        Ok(())
    }

    /// What was captured in the open epoch is on the disk, and its records are.
    ///
    /// # Errors
    /// EIO, ENOSPC.
    pub fn make_captured_durable(&self) -> SysResult<()> {
        if self.syncs_overtake {
            return self.make_past_durable();
        }
        // With the last of them all are that came before.
        let last = self
            .timeline
            .epochs
            .data_records()
            .into_iter()
            .filter_map(|(_, data)| data.object)
            .max_by_key(|object| object.serial);
        self.sync_objects(last.as_slice())?;
        self.timeline.store().journal.sync().map_err(Errno::from)
    }

    /// A file or a directory is about to be synced. It was, when the guard is dropped.
    pub(super) fn begin_sync(&self) -> FileSync<'_> {
        self.file_syncs.fetch_add(1, Ordering::SeqCst);
        FileSync(self)
    }

    fn note_synced(&self) {
        let now = self.tick();
        self.synced.fetch_max(now, Ordering::SeqCst);
    }

    /// No process can sync a file without a request any more.
    pub(super) fn note_cold(&self, slot: Slot) {
        if self.syncs_overtake && self.hot.may_this_be_synced_unseen(slot) {
            self.note_synced();
        }
    }

    /// Whether an inode may have been synced since the last commit of the whole filesystem.
    fn may_be_logged(&self) -> bool {
        self.syncs_overtake
            && (self.file_syncs.load(Ordering::SeqCst) > 0
                || self.is_uncommitted(self.synced.load(Ordering::SeqCst))
                || self.hot.may_be_synced_unseen())
    }

    /// Before names of these inodes change, of which something was recorded: the record is on the
    /// disk where the change could be without it. See the module.
    ///
    /// # Errors
    /// EIO, ENOSPC: the names must not be changed.
    pub(super) fn order_names(&self, slots: &[Slot]) -> SysResult<()> {
        self.order_change(|| {
            Ok(slots.iter().any(|slot| self.hot.syncs_unseen(*slot)) || self.may_be_logged())
        })
    }

    /// The same of attributes. The disk gets those of an inode when it is synced, and those of a
    /// directory also with a file that had a name in it.
    ///
    /// # Errors
    /// EIO, ENOSPC: the attributes must not be changed.
    pub(super) fn order_attributes(&self, slot: Slot, fd: &OwnedFd) -> SysResult<()> {
        self.order_change(|| {
            let is_dir = sys::stat_fd(fd)?.kind == Kind::Dir;
            let synced = self.hot.syncs_unseen(slot) || is_dir && self.hot.any_syncs_unseen();
            Ok(synced && !self.timeline.epochs.is_born(slot))
        })
    }

    fn order_change(&self, overtakes: impl FnOnce() -> SysResult<bool>) -> SysResult<()> {
        if !self.syncs_overtake || sys::host::left_out("logged") || !overtakes()? {
            return Ok(());
        }
        self.timeline.store().journal.sync().map_err(Errno::from)
    }

    /// Before a name of a branch goes where a whiteout comes: no sync brings the one to the disk
    /// without the other. See the module.
    ///
    /// # Errors
    /// EIO, ENOSPC: the name must not be changed.
    pub(super) fn order_whiteout(&self) -> SysResult<()> {
        if !self.syncs_overtake || sys::host::left_out("whiteouts") {
            return Ok(());
        }
        if self.may_be_logged() {
            self.sync_filesystem()?;
        }
        self.note_whiteout();
        Ok(())
    }

    /// A whiteout was made in place of a name of an inode. Of one that can be synced without a
    /// request, it is on the disk on return.
    pub(super) fn whiteout_made(&self, slot: Slot) {
        self.note_whiteout();
        if self.syncs_overtake
            && self.hot.syncs_unseen(slot)
            && let Err(errno) = self.sync_filesystem()
        {
            tracing::warn!(%errno, slot = slot.0, "a name that was removed may come back after a power cut");
        }
    }

    fn note_whiteout(&self) {
        let now = self.tick();
        self.hidden.fetch_max(now, Ordering::SeqCst);
    }

    fn make_whiteouts_durable(&self) -> SysResult<()> {
        if self.is_uncommitted(self.hidden.load(Ordering::SeqCst)) {
            self.sync_filesystem()?;
        }
        Ok(())
    }

    /// Before the journal is synced because of what it tells of all of the tree: that is on the
    /// disk where the journal would be there without it, and the next mount would take it back.
    ///
    /// # Errors
    /// EIO, ENOSPC.
    pub fn order_tree(&self) -> SysResult<()> {
        if !self.syncs_overtake || sys::host::left_out("merged") {
            return Ok(());
        }
        self.sync_filesystem()
    }

    /// An inode got another name.
    pub(super) fn note_linked(&self, slot: Slot) {
        if self.syncs_overtake && !self.timeline.epochs.is_born(slot) {
            let now = self.tick();
            self.linked.lock().insert(slot, now);
        }
    }

    /// Before one of several names of an inode is removed: one that stays is on the disk where a
    /// sync of the directory would take the removed one from the disk alone, and with it an inode
    /// that a checkpoint needs. See the module.
    ///
    /// # Errors
    /// EIO, ENOSPC: the name must not be removed.
    pub(super) fn order_links(
        &self,
        slot: Slot,
        kind: Kind,
        fd: impl FnOnce() -> SysResult<Arc<OwnedFd>>,
    ) -> SysResult<()> {
        // Before the first commit any inode may have got a name.
        let linked = self.linked.lock().get(&slot).copied().unwrap_or(1);
        if !self.is_uncommitted(linked) || sys::host::left_out("links") {
            return Ok(());
        }
        let _sync = self.begin_sync();
        self.make_captures_durable(slot)?;
        let file = if kind == Kind::File {
            sys::reopen(&*fd()?, Open::READ).ok()
        } else {
            None
        };
        let Some(file) = file else {
            return self.sync_filesystem();
        };
        sys::fsync(&file)?;
        self.linked.lock().remove(&slot);
        Ok(())
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> SysResult<()> {
        for object in objects {
            // One that is gone was not needed.
            if let Some(file) = self.timeline.open_object(*object)? {
                // What a failed sync has lost is not told a second time: nothing more is kept that
                // may be lost too.
                sys::fsync(file).inspect_err(|_| self.timeline.store().journal.latch())?;
            }
        }
        Ok(())
    }

    fn sync_filesystem(&self) -> SysResult<()> {
        let began = self.clock.load(Ordering::SeqCst);
        let ctimes = if self.syncs_overtake {
            self.hot.before_commit()
        } else {
            Vec::new()
        };
        sys::syncfs(&self.root).inspect_err(|_| self.timeline.store().journal.latch())?;
        self.committed.fetch_max(began, Ordering::SeqCst);
        self.hot.note_committed(&ctimes);
        self.linked.lock().retain(|_, linked| *linked > began);
        Ok(())
    }

    fn forget_durable(&self, durable: &HashMap<Slot, Vec<ObjectId>>) {
        let mut objects = self.objects.lock();
        for (slot, done) in durable {
            if let Some(left) = objects.get_mut(slot) {
                left.retain(|object| !done.contains(object));
                if left.is_empty() {
                    objects.remove(slot);
                }
            }
        }
    }

    /// From now on nothing is copied. What is under way must have ended, by a freeze, before the
    /// sync begins.
    pub fn prepare_sync(&self) -> TreeSync<'_> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        TreeSync(self)
    }

    /// Makes the tree, what was captured of it, and the journal durable, and notes that every
    /// checkpoint made up to `at_ns` is. Nobody waits for it.
    ///
    /// # Errors
    /// EIO, ENOSPC of any file of the filesystem.
    pub fn sync_tree(&self, _prepared: &TreeSync<'_>, at_ns: i64) -> SysResult<()> {
        let objects = self.objects.lock().clone();
        self.sync_filesystem()?;
        let store = self.timeline.store();
        store.journal.sync()?;
        self.forget_durable(&objects);
        store.layout.note_synced(at_ns).map_err(Errno::from)
    }

    /// What somebody syncs reaches the disk ahead of what was done before.
    pub(super) fn syncs_overtake(&self) -> bool {
        self.syncs_overtake
    }
}
