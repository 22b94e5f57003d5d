//! Content that is kept over an absence: a clone of each file that a checkpoint shows and no layer
//! has, in `.ckptfs/kept`. Where files cannot share extents it is a copy, and of small files only:
//! all copies are on the disk before the first of them counts.
//!
//! It is made when a daemon ends in an orderly way, beside the baseline, for as long as it may
//! take; what differs from the baseline at the next start has its clone cloned (a copy linked) into
//! the layer, as if it had been captured before the change. (To move it would be enough, but for a
//! daemon that is killed before the record of it.) All clones stay, and count at the next end for
//! files that are still the same: a clone is named by slot and time of birth, has the size of its
//! file, and as its time of modification the ctime that its file had. It is set last, so a clone
//! that was cut short counts for nothing.
//!
//! When every file that needs one has a clone, a file named `whole` says so. From then on only what
//! has changed is looked at, until the clones go; without it the tree is gone through at an
//! unmount, as far as the time goes. From the first orderly end on clones are made ahead, in idle
//! time.
//!
//! A clone shares its extents with the file, or with the layer that has them once the file has
//! changed. When a checkpoint was freed, or live files came to share those of others, it may be all
//! that has them: then all clones go.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::nodes::{generation_of, is_same};
use super::past::{Captures, Inodes, Past};
use super::tables::Tables;
use crate::history::timeline::Timeline;
use crate::history::wake::Wake;
use crate::store::baseline::Node;
use crate::store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use crate::store::record::Key;
use crate::sys::{self, Errno, Gently, Kind, Open, RenameMode, SetTime, Stat, SysResult, Time};

const NAME: &[u8] = b"kept";
/// In it: nothing is missing.
const WHOLE: &[u8] = b"whole";
/// What is to go, and did not at once.
const GONE: &[u8] = b"kept.gone";
/// Clones that are removed at once.
const DROP_MAX: usize = 10_000;
/// Bytes of one copy, and of all copies, unless all is to be kept.
const COPY_MAX: u64 = 1 << 20;
const COPIES_MAX: u64 = 64 << 20;
/// Files between two looks at the free space.
const LOOK_EVERY: usize = 256;
/// With less free space, nothing is kept for an absence.
pub(super) const SPACE_KEPT_BYTES: u64 = 256 << 20;

/// How much content an unmount keeps, for it may be changed while nothing is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// What can be cloned in two seconds; where nothing can be cloned, copies of small files, 64
    /// MiB in all.
    #[default]
    Some,
    /// Nothing.
    None,
    /// All that a checkpoint shows and only the tree has, as long as that takes.
    All,
}

impl Keep {
    /// By the word that the setting `umount.keep` has.
    pub fn named(word: &str) -> Option<Keep> {
        match word {
            "some" => Some(Keep::Some),
            "none" => Some(Keep::None),
            "all" => Some(Keep::All),
            _ => None,
        }
    }

    /// How long it may take.
    pub(super) fn time(self) -> Duration {
        match self {
            Keep::Some => Duration::from_secs(2),
            Keep::None => Duration::ZERO,
            Keep::All => Duration::from_secs(24 * 3600),
        }
    }
}

fn name_of(slot: Slot, stat: &Stat) -> String {
    format!("{:x}-{:x}", slot.0, generation_of(stat))
}

/// The clone is of the file as it was.
fn is_of(clone: &Stat, file: &Stat) -> bool {
    clone.kind == Kind::File && clone.mtime == file.ctime && clone.size == file.size
}

/// Makes clones, until the time for it is over.
pub(super) struct Keeper<'a> {
    kept: &'a Kept,
    dir: OwnedFd,
    how: Keep,
    /// `None`: there is all the time.
    until: Option<Instant>,
    /// How often all clones went, by then.
    drops: u64,
    /// Nothing was missing, but for what changed since the baseline that there was then.
    whole: bool,
    /// A checkpoint will show the tree as it is now, if it is changed: what is new in the open
    /// epoch, or changed in it, is kept too.
    all: bool,
    done: RefCell<Done>,
}

#[derive(Default)]
struct Done {
    /// Clones that count.
    used: HashSet<Vec<u8>>,
    /// Clones that may count for nothing any more.
    doubtful: HashSet<Vec<u8>>,
    made: usize,
    left_out: u64,
    /// Something is not kept because no checkpoint shows it yet.
    unseen: bool,
    /// Bytes of the copies that count.
    copied_bytes: u64,
    /// New copies, and the time that each gets once it is on the disk.
    copies: Vec<(String, Time)>,
}

/// The content that is kept for an absence. See the module.
pub struct Kept {
    timeline: Arc<Timeline>,
    reflink: bool,
    wake: Arc<Wake>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
    /// How often all of it was removed.
    drops: AtomicU64,
}

impl Kept {
    pub(super) fn new(tables: &Tables, past: &Past) -> Arc<Kept> {
        Arc::new(Kept {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            wake: Arc::clone(&tables.wake),
            inodes: Arc::clone(&past.inodes),
            captures: Arc::clone(&past.captures),
            drops: AtomicU64::new(0),
        })
    }

    fn kept_dir(&self) -> SysResult<OwnedFd> {
        sys::open_dir_at(self.timeline.store().layout.dir(), NAME)
    }

    /// What keeps so much content. `None`: nothing is to be kept.
    pub(super) fn keeper(&self, how: Keep, all: bool) -> SysResult<Option<Keeper<'_>>> {
        if how == Keep::None {
            return self.drop_all().map(|()| None);
        }
        self.keeper_until(how, Instant::now().checked_add(how.time()), all)
            .map(Some)
    }

    /// What clones ahead, in idle time.
    pub(super) fn keeper_ahead(&self) -> SysResult<Keeper<'_>> {
        self.keeper_until(Keep::All, None, false)
    }

    fn keeper_until(&self, how: Keep, until: Option<Instant>, all: bool) -> SysResult<Keeper<'_>> {
        let drops = self.drops.load(Ordering::SeqCst);
        match sys::mkdir_at(self.timeline.store().layout.dir(), NAME, 0o700) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Keeper {
            kept: self,
            dir: self.kept_dir()?,
            how,
            until,
            all,
            drops,
            whole: self.is_kept_whole(),
            done: RefCell::default(),
        })
    }

    /// Whether all is kept that is to be, but for what changed since the baseline. Of copies that
    /// is not known: together they may be too many.
    pub(super) fn is_kept_whole(&self) -> bool {
        self.reflink
            && self
                .kept_dir()
                .is_ok_and(|dir| sys::stat_at(dir, WHOLE).is_ok())
    }

    /// There may be clones of an earlier daemon, or ours.
    pub(super) fn has_kept(&self) -> bool {
        self.kept_dir().is_ok()
    }

    /// Another baseline is put in place of the one that there was: what changed before it is not to
    /// be looked for any more, and only who has seen to all of that knows that nothing is missing.
    pub(super) fn unsettle_kept(&self) -> SysResult<()> {
        match self.kept_dir() {
            Err(Errno::ENOENT) => Ok(()),
            dir => unlink(dir?, WHOLE),
        }
    }

    /// Brings what a file held when it was last served into the layer of the open epoch. `None`:
    /// there is none, or it is not needed.
    pub(super) fn take_kept(&self, node: &Node) -> SysResult<Option<ObjectId>> {
        let (slot, stat) = (node.child.slot, &node.attr.stat);
        if !self.timeline.epochs.needs(&Key::Data(slot)) || self.timeline.epochs.is_born(slot) {
            return Ok(None);
        }
        let (dir, name) = match self.kept_dir() {
            Err(Errno::ENOENT) => return Ok(None),
            dir => (dir?, name_of(slot, stat)),
        };
        if !sys::stat_at(&dir, name.as_bytes()).is_ok_and(|clone| is_of(&clone, stat)) {
            return Ok(None);
        }
        if self.reflink {
            let clone = sys::open_file_at(&dir, name.as_bytes(), Open::READ)?;
            return self.captures.capture_object(slot, &clone, stat.size);
        }
        let layers = &self.timeline.store().layers;
        let object =
            layers.next_object(self.timeline.epochs.epoch(), slot, ObjectOrigin::Cloned)?;
        let (layer, file) = layers.location(object)?;
        self.captures
            .with_room(|| sys::link_at(&dir, name.as_bytes(), &*layer, file.as_bytes()))?;
        Ok(Some(object))
    }

    /// Removes all clones; of very many the rest goes in idle time. What was to be kept by them is
    /// kept again when this daemon ends.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn drop_all(&self) -> SysResult<()> {
        self.drops.fetch_add(1, Ordering::SeqCst);
        let store = self.timeline.store().layout.dir();
        match sys::rename_at(store, NAME, store, GONE, RenameMode::NoReplace) {
            Err(Errno::ENOENT) => Ok(()),
            // There is a rest of others.
            Err(Errno::EEXIST) => drop_kept(store),
            Err(errno) => Err(errno),
            Ok(()) => {
                if self.drop_rest(DROP_MAX)? {
                    self.wake.epoch_closed();
                }
                Ok(())
            }
        }
    }

    /// Removes so many clones of those that are to go; `true`: there are more.
    pub(super) fn drop_rest(&self, most: usize) -> SysResult<bool> {
        drop_some(self.timeline.store().layout.dir(), GONE, most)
    }
}

/// Removes all clones in this store.
///
/// # Errors
/// Those of unlink(2).
pub fn drop_kept(store: impl AsFd) -> SysResult<()> {
    for name in [NAME, GONE] {
        while drop_some(&store, name, DROP_MAX)? {}
    }
    Ok(())
}

/// Removes so many files of a directory, and it, if nothing is left; `true`: there is more.
fn drop_some(store: impl AsFd, name: &[u8], most: usize) -> SysResult<bool> {
    let dir = match sys::open_dir_at(&store, name) {
        Err(Errno::ENOENT) => return Ok(false),
        dir => dir?,
    };
    let (entries, last) = sys::read_dir(&dir, 0, most)?;
    let mut gently = Gently::default();
    for entry in entries
        .iter()
        .filter(|entry| !matches!(entry.name.as_slice(), b"." | b".."))
    {
        unlink(&dir, &entry.name)?;
        gently.removed(&dir);
    }
    if !last {
        return Ok(true);
    }
    match sys::rmdir_at(&store, name) {
        // Somebody else is at it.
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY) => Ok(false),
        Err(errno) => Err(errno),
    }
}

impl Keeper<'_> {
    /// Keeps the content of a file, if a checkpoint shows it and only the file has it.
    pub(super) fn keep(&self, dir: impl AsFd, name: &Name, node: &Node) {
        self.keep_opened(node, |how| sys::open_file_at(&dir, name.as_bytes(), how));
    }

    /// As [`Keeper::keep`], of a file that a descriptor names.
    pub(super) fn keep_inode(&self, fd: impl AsFd, node: &Node) {
        self.keep_opened(node, |how| sys::reopen(&fd, how));
    }

    fn keep_opened(&self, node: &Node, open: impl Fn(Open) -> SysResult<File>) {
        let (slot, stat) = (node.child.slot, &node.attr.stat);
        if stat.kind != Kind::File || stat.size == 0 {
            return;
        }
        let timeline = &self.kept.timeline;
        if !self.all && (timeline.epochs.is_born(slot) || !timeline.epochs.needs(&Key::Data(slot)))
        {
            self.doubt(node);
            // What is born makes no record by which the next daemon would look at it again, and its
            // first checkpoint shows it.
            self.done.borrow_mut().unseen |= self.until.is_some() && timeline.epochs.is_born(slot);
            return;
        }
        let clone = name_of(slot, stat);
        let there = sys::stat_at(&self.dir, clone.as_bytes());
        let counts = there.as_ref().is_ok_and(|there| is_of(there, stat))
            || self.done.borrow().used.contains(clone.as_bytes());
        if self.fits(stat)
            && (counts || (self.has_time() && self.make(open, stat, &clone, there.is_ok()).is_ok()))
        {
            let mut done = self.done.borrow_mut();
            done.copied_bytes += stat.size;
            done.used.insert(clone.into_bytes());
        } else {
            self.done.borrow_mut().left_out += 1;
        }
    }

    /// The clone of a file that was at a name may count for nothing any more.
    pub(super) fn doubt(&self, node: &Node) {
        if node.child.kind == Kind::File && node.attr.stat.size > 0 {
            self.done
                .borrow_mut()
                .doubtful
                .insert(name_of(node.child.slot, &node.attr.stat).into_bytes());
        }
    }

    /// A clone always does. A copy takes time and space.
    fn fits(&self, stat: &Stat) -> bool {
        let all = self.kept.reflink || self.how == Keep::All;
        all || (stat.size <= COPY_MAX
            && stat.size <= COPIES_MAX.saturating_sub(self.done.borrow().copied_bytes))
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn has_time(&self) -> bool {
        let made = self.done.borrow().made;
        if made.is_multiple_of(LOOK_EVERY)
            && !self
                .kept
                .timeline
                .store()
                .layers
                .free_bytes()
                .is_ok_and(|free| free > SPACE_KEPT_BYTES)
        {
            return false;
        }
        !self.is_over()
    }

    fn make(
        &self,
        open: impl Fn(Open) -> SysResult<File>,
        stat: &Stat,
        clone: &str,
        stale: bool,
    ) -> SysResult<()> {
        self.done.borrow_mut().made += 1;
        if stale {
            sys::unlink_at(&self.dir, clone.as_bytes())?;
        }
        let file = match open(Open {
            noatime: true,
            ..Open::READ
        }) {
            Err(Errno::EPERM) => open(Open::READ),
            file => file,
        }?;
        self.kept
            .captures
            .duplicate(&file, &self.dir, clone.as_bytes(), stat.size, false)?;
        if !is_same(&sys::stat_fd(&file)?, stat) {
            return Err(Errno::EBUSY);
        }
        if self.kept.reflink {
            return self.set_time(clone, stat.ctime);
        }
        self.done
            .borrow_mut()
            .copies
            .push((clone.to_owned(), stat.ctime));
        Ok(())
    }

    /// From now on it counts.
    fn set_time(&self, clone: &str, time: Time) -> SysResult<()> {
        let made = sys::open_file_at(&self.dir, clone.as_bytes(), Open::READ)?;
        sys::utimens_fd(&made, SetTime::Omit, SetTime::At(time))
    }

    /// All of the tree was gone through: removes clones that count for nothing any more. Says how
    /// many files are not kept.
    pub(super) fn finish(self) -> SysResult<u64> {
        let done = self.done.take();
        for entry in sys::list_dir(&self.dir)? {
            if entry.name != WHOLE && !done.used.contains(&entry.name) {
                sys::unlink_at(&self.dir, &entry.name)?;
            }
        }
        self.settle(&done, done.left_out)
    }

    /// What changed was gone through: removes its clones that count for nothing any more, and keeps
    /// what was not kept before. Says how many files are not kept, of so many as there are in the
    /// tree.
    pub(super) fn catch_up(self, files: u64) -> SysResult<u64> {
        let mut left_out = self.done.borrow().left_out;
        if !self.whole {
            (
                self.done.borrow_mut().left_out,
                self.done.borrow_mut().copied_bytes,
            ) = (0, 0);
            let all = self.kept.inodes.each_file(|dir, name, node| {
                self.keep(dir, name, node);
                !self.is_over()
            })?;
            let done = self.done.borrow();
            left_out = if all {
                done.left_out
            } else {
                done.left_out
                    .max(files.saturating_sub(done.used.len() as u64))
                    .max(1)
            };
        }
        let done = self.done.take();
        for name in done.doubtful.difference(&done.used) {
            unlink(&self.dir, name)?;
        }
        self.settle(&done, left_out)
    }

    fn settle(&self, done: &Done, left_out: u64) -> SysResult<u64> {
        if !done.copies.is_empty() {
            // A power cut would leave zeros in what has its size already.
            sys::syncfs(&self.dir)?;
        }
        done.copies
            .iter()
            .try_for_each(|(clone, time)| self.set_time(clone, *time))?;
        if left_out == 0 && !done.unseen && self.drops == self.kept.drops.load(Ordering::SeqCst) {
            match sys::create_file_at(&self.dir, WHOLE, Open::READ_WRITE, 0o600) {
                Ok(_) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(left_out)
    }
}

fn unlink(dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    match sys::unlink_at(dir, name) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
