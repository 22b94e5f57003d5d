//! Order of writes to the disk.
//!
//! XFS and btrfs write metadata in the order of its creation. A clone and its record
//! (`store::journal`) thus reach the disk before the change that they precede, without a sync.
//! Three cases are outside of this order and need explicit syncs.
//!
//! **The tree log of btrfs.** An fsync writes the file ahead of all earlier changes, together with
//! changes of directories that the file had a name in. Therefore:
//!
//! - An fsync of a live file is preceded by a sync of all captures and of the journal.
//! - A passthrough mapping, or a file opened with O_SYNC, can be synced without a request. Its
//!   capture is synced when the file is opened, and the record of each later change of its names
//!   and attributes before the change. The file counts as synced whenever its ctime differs from
//!   that at the last commit.
//! - A rename, link or unlink of an inode that was synced since the last commit (or was logged with
//!   one) updates the log at once (`btrfs_log_new_name`, `btrfs_del_inode_ref_in_log`,
//!   fs/btrfs/tree-log.c). The next fsync of any process writes it. While such an inode may exist,
//!   the record of a change of names is synced before the change.
//! - A sync of a directory deletes removed names from the disk, but does not add the names that the
//!   same inodes got elsewhere. An inode that was linked and then unlinked without a commit in
//!   between would be lost. Such an inode is synced before one of its names is removed.
//! - The log does not include a whiteout, which is another inode. After a rename in a branch the
//!   disk would have the new name alone, and the entry of the base would reappear at the old one. A
//!   rename that leaves a whiteout commits the filesystem first if the log may be in use, and so
//!   does the next sync.
//! - After a merge the tree is synced before the journals, because the next mount reverts recorded
//!   changes that the tree does not have.
//! - A daemon that mounts or takes over has no list of the unsynced captures, links and whiteouts
//!   of its predecessor. Until the first commit of the whole filesystem a sync of any file commits
//!   the filesystem first. The syncer makes that commit within a second; mounts and takeovers do
//!   not wait for it.
//!
//! Two cases remain, because every open would have to wait for the disk. The first is a file that
//! was created since the newest checkpoint, opened for reading and writing, and synced by msync(2).
//! The second is a single write with RWF_SYNC or RWF_DSYNC (pwritev2(2)). The disk may have the new
//! name or content up to a second before its record.
//!
//! **Copied captures** (small files with dirty pages) are data. They are synced before an fsync of
//! the live file. During a sync of the whole tree nothing is copied: the sync guarantees that
//! earlier checkpoints are on the disk, and could miss a concurrent copy.
//!
//! **Without reflink** every capture is a copy, and the live file is overwritten in place. The copy
//! is synced at once.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::shared_tables::{HotFiles, SharedTables};
use crate::history::timeline::Timeline;
use ckptfs_store::ids::{ObjectId, Slot};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Kind, SysResult};

/// Number of captures that are synced individually before a directory; with more, the whole
/// filesystem is synced.
const SYNCED_ONE_BY_ONE_MAX: usize = 16;

/// A sync of the whole tree in progress, during which nothing is copied. See the module.
pub struct TreeSync<'a>(&'a Durability);

impl Drop for TreeSync<'_> {
    fn drop(&mut self) {
        self.0.syncs.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A sync of a file or directory in progress. See the module.
pub(super) struct FileSync<'a>(&'a Durability);

impl Drop for FileSync<'_> {
    fn drop(&mut self) {
        self.0.note_synced();
        self.0.file_syncs.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Captures that may not be on the disk, and events that determine what to sync. See the module.
pub struct Durability {
    timeline: Arc<Timeline>,
    hot: Arc<HotFiles>,
    root: Arc<OwnedFd>,
    reflink: bool,
    /// A sync of a file reaches the disk ahead of earlier changes (btrfs's tree log).
    syncs_overtake: bool,
    /// Captures whose data may not be on the disk. A leaf.
    objects: Mutex<HashMap<Slot, Vec<ObjectId>>>,
    /// Syncs of the whole tree in progress.
    syncs: AtomicU32,
    /// Logical clock of the events below.
    clock: AtomicU64,
    /// Clock at the start of the last successful commit of the whole filesystem; 0 before the
    /// first.
    committed: AtomicU64,
    /// Syncs of files and directories in progress.
    file_syncs: AtomicU32,
    /// Clock at the end of the last sync of a file or directory.
    synced: AtomicU64,
    /// Clock at the last whiteout, before or after its creation.
    hidden: AtomicU64,
    /// Clock at which an inode that a checkpoint can see last got another name. A leaf.
    linked: Mutex<HashMap<Slot, u64>>,
}

impl Durability {
    pub(super) fn new(tables: &SharedTables, syncs_overtake: bool) -> Arc<Durability> {
        // A test that disables this assumes that the previous daemon left nothing unsynced.
        let committed = u64::from(sys::host::left_out("predecessor"));
        Arc::new(Durability {
            timeline: Arc::clone(&tables.timeline),
            hot: Arc::clone(&tables.hot),
            root: Arc::clone(&tables.root),
            reflink: tables.reflink,
            syncs_overtake,
            objects: Mutex::default(),
            syncs: AtomicU32::new(0),
            // The previous daemon may have synced files and made whiteouts.
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

    /// Returns whether an event at this time is not in a commit of the filesystem yet.
    fn is_uncommitted(&self, event: u64) -> bool {
        self.syncs_overtake && event > self.committed.load(Ordering::SeqCst)
    }

    /// Returns whether the first commit of the whole filesystem since the start is needed and
    /// pending.
    pub fn needs_first_commit(&self) -> bool {
        self.is_uncommitted(1)
    }

    /// Records a capture. `copied` means made by reading and writing.
    pub(super) fn note_captured(&self, object: ObjectId, copied: bool) {
        if self.reflink && (copied || self.syncs_overtake) {
            self.objects
                .lock()
                .entry(object.slot)
                .or_default()
                .push(object);
        }
    }

    /// Returns whether small dirty files may be copied, which is faster than a clone.
    pub(super) fn may_copy(&self) -> bool {
        self.syncs.load(Ordering::SeqCst) == 0
    }

    /// Returns the number of files with captures that may not be on the disk.
    pub fn count(&self) -> usize {
        self.objects.lock().len()
    }

    /// Syncs the captures of a live file, before a sync of the file. On btrfs all captures are
    /// synced. A sync of a file that got, changed or lost a name since the last commit also removes
    /// names from the directories of these names (`btrfs_log_all_parents`, fs/btrfs/tree-log.c).
    /// See the module.
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

    /// Syncs all captures on btrfs, before a sync of a directory.
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

    /// Syncs the captures of the open epoch, and their records.
    ///
    /// # Errors
    /// EIO, ENOSPC.
    pub fn make_captured_durable(&self) -> SysResult<()> {
        if self.syncs_overtake {
            return self.make_past_durable();
        }
        // A sync of the last capture includes the earlier ones.
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

    /// Marks a sync of a file or directory as in progress. Dropping the guard records its end.
    pub(super) fn begin_sync(&self) -> FileSync<'_> {
        self.file_syncs.fetch_add(1, Ordering::SeqCst);
        FileSync(self)
    }

    fn note_synced(&self) {
        let now = self.tick();
        self.synced.fetch_max(now, Ordering::SeqCst);
    }

    /// Records that a file can no longer be synced without a request.
    pub(super) fn note_cold(&self, slot: Slot) {
        if self.syncs_overtake && self.hot.may_this_be_synced_unseen(slot) {
            self.note_synced();
        }
    }

    /// Returns whether an inode may have been synced since the last commit of the whole filesystem.
    fn may_be_logged(&self) -> bool {
        self.syncs_overtake
            && (self.file_syncs.load(Ordering::SeqCst) > 0
                || self.is_uncommitted(self.synced.load(Ordering::SeqCst))
                || self.hot.may_be_synced_unseen())
    }

    /// Called before names of these inodes change, after the undo record: syncs the record if the
    /// change could reach the disk before it. See the module.
    ///
    /// # Errors
    /// EIO, ENOSPC: the names must not be changed.
    pub(super) fn order_names(&self, slots: &[Slot]) -> SysResult<()> {
        self.order_change(|| {
            Ok(slots.iter().any(|slot| self.hot.syncs_unseen(*slot)) || self.may_be_logged())
        })
    }

    /// As [`Durability::order_names`], for attributes. Those of an inode reach the disk with its
    /// sync; those of a directory also with a file that had a name in it.
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

    /// Called before a whiteout replaces a name of a branch: ensures that no sync writes only one
    /// of the two changes to the disk. See the module.
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

    /// Called after a whiteout replaced a name of an inode. If the inode can be synced without a
    /// request, the whiteout is on the disk on return.
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

    /// Syncs the tree before the journal is synced with records about the whole tree. The next
    /// mount would otherwise revert changes that only the journal has.
    ///
    /// # Errors
    /// EIO, ENOSPC.
    pub fn order_tree(&self) -> SysResult<()> {
        if !self.syncs_overtake || sys::host::left_out("merged") {
            return Ok(());
        }
        self.sync_filesystem()
    }

    /// Records that an inode got another name.
    pub(super) fn note_linked(&self, slot: Slot) {
        if self.syncs_overtake && !self.timeline.epochs.is_born(slot) {
            let now = self.tick();
            self.linked.lock().insert(slot, now);
        }
    }

    /// Called before one of several names of an inode is removed. A sync of the directory would
    /// delete that name from the disk without adding a recently created other one, and lose an
    /// inode that a checkpoint needs. The inode is therefore synced first. See the module.
    ///
    /// # Errors
    /// EIO, ENOSPC: the name must not be removed.
    pub(super) fn order_links(
        &self,
        slot: Slot,
        kind: Kind,
        fd: impl FnOnce() -> SysResult<Arc<OwnedFd>>,
    ) -> SysResult<()> {
        // Before the first commit, any inode may have a new name.
        let linked = self.linked.lock().get(&slot).copied().unwrap_or(1);
        if !self.is_uncommitted(linked) || sys::host::left_out("links") {
            return Ok(());
        }
        let _sync = self.begin_sync();
        self.make_captures_durable(slot)?;
        let file = if kind == Kind::File {
            sys::reopen(&*fd()?, Access::READ).ok()
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
            // A removed object was not needed.
            if let Some(file) = self.timeline.open_object(*object)? {
                // The kernel reports a failed writeback only once, so no further captures are
                // allowed.
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

    /// Disables copies. Copies in progress must be completed, by a freeze, before the sync begins.
    pub fn prepare_sync(&self) -> TreeSync<'_> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        TreeSync(self)
    }

    /// Syncs the tree, its captures and the journal, and records that all checkpoints made until
    /// `at_ns` are durable. To be called where no request waits for the caller.
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

    /// Returns whether a sync of a file reaches the disk ahead of earlier changes.
    pub(super) fn syncs_overtake(&self) -> bool {
        self.syncs_overtake
    }
}
