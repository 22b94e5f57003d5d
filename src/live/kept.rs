//! Content that is kept over an absence: a clone of each file that a checkpoint shows and no layer has, in `.ckptfs/kept`.
//!
//! It is made when a daemon ends in an orderly way, beside the baseline, for as long as it may take; what differs from the baseline at the next start has its
//! clone moved into the layer, as if it had been captured before the change. All other clones stay, and count at the next end for files that are still the
//! same: a clone is named by slot and time of birth, has the size of its file, and as its time of modification the ctime that its file had. It is set last,
//! so a clone that was cut short counts for nothing.
//!
//! A clone shares its extents with the file, or with the layer that has them once the file has changed. When a checkpoint was freed, or live files came to
//! share those of others, it may be all that has them: then all clones go.

use std::cell::RefCell;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::Live;
use super::ahead::{SPACE_KEPT_BYTES, is_same};
use super::nodes::generation_of;
use crate::store::baseline::Node;
use crate::store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use crate::store::record::Key;
use crate::sys::{self, Errno, Kind, Open, RenameMode, SetTime, Stat, SysResult};

const NAME: &[u8] = b"kept";
/// Files between two looks at the free space.
const LOOK_EVERY: usize = 256;

fn name_of(slot: Slot, stat: &Stat) -> String {
    format!("{:x}-{:x}", slot.0, generation_of(stat))
}

/// The clone is of the file as it was.
fn is_of(clone: &Stat, file: &Stat) -> bool {
    clone.kind == Kind::File && clone.mtime == file.ctime && clone.size == file.size
}

/// Makes clones, until the time for it is over.
pub(super) struct Keeper<'a> {
    live: &'a Live,
    dir: OwnedFd,
    until: Instant,
    /// Clones that count.
    used: RefCell<HashSet<Vec<u8>>>,
    made: RefCell<usize>,
    left_out: RefCell<u64>,
}

impl Live {
    fn kept_dir(&self) -> SysResult<OwnedFd> {
        sys::open_dir_at(self.timeline.store().layout.dir(), NAME)
    }

    /// What keeps content for `time` at most. `None`: nothing is kept, because files cannot share extents.
    pub(super) fn keeper(&self, time: Duration) -> SysResult<Option<Keeper<'_>>> {
        if !self.reflink {
            return Ok(None);
        }
        match sys::mkdir_at(self.timeline.store().layout.dir(), NAME, 0o700) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        let (used, made, left_out) = (RefCell::default(), RefCell::default(), RefCell::default());
        Ok(Some(Keeper { live: self, dir: self.kept_dir()?, until: Instant::now() + time, used, made, left_out }))
    }

    /// Moves the clone of a file, as it was when it was last served, into the layer of the open epoch. `None`: there is none, or it is not needed.
    pub(super) fn take_kept(&self, node: &Node) -> SysResult<Option<ObjectId>> {
        let (slot, stat) = (node.child.slot, &node.attr.stat);
        if !self.timeline.needs(&Key::Data(slot)) || self.timeline.is_born(slot) {
            return Ok(None);
        }
        let (dir, name) = match self.kept_dir() {
            Err(Errno::ENOENT) => return Ok(None),
            dir => (dir?, name_of(slot, stat)),
        };
        if !sys::stat_at(&dir, name.as_bytes()).is_ok_and(|clone| is_of(&clone, stat)) {
            return Ok(None);
        }
        let layers = &self.timeline.store().layers;
        let object = layers.next_object(self.timeline.epoch(), slot, ObjectOrigin::Cloned).map_err(|error| error.errno())?;
        let (layer, file) = layers.location(object).map_err(|error| error.errno())?;
        self.with_room(|| sys::rename_at(&dir, name.as_bytes(), &*layer, file.as_bytes(), RenameMode::NoReplace))?;
        self.note_captured(object, false);
        Ok(Some(object))
    }

    /// Removes all clones. What was to be kept by them is kept again when this daemon ends.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn drop_kept(&self) -> SysResult<()> {
        drop_kept(self.timeline.store().layout.dir())
    }
}

/// Removes all clones in this store.
///
/// # Errors
/// Those of unlink(2).
pub fn drop_kept(store: impl AsFd) -> SysResult<()> {
    let there = |removed: SysResult<()>| match removed {
        // Somebody else is at it.
        Err(Errno::ENOENT | Errno::ENOTEMPTY) => Ok(()),
        removed => removed,
    };
    let dir = match sys::open_dir_at(&store, NAME) {
        Err(Errno::ENOENT) => return Ok(()),
        dir => dir?,
    };
    for entry in sys::list_dir(&dir)? {
        there(sys::unlink_at(&dir, &entry.name))?;
    }
    there(sys::rmdir_at(&store, NAME))
}

impl Keeper<'_> {
    /// Keeps the content of a file, if a checkpoint shows it and only the file has it.
    pub(super) fn keep(&self, dir: impl AsFd, name: &Name, node: &Node) {
        let (slot, stat) = (node.child.slot, &node.attr.stat);
        let timeline = &self.live.timeline;
        if stat.kind != Kind::File || stat.size == 0 || timeline.is_born(slot) || !timeline.needs(&Key::Data(slot)) {
            return;
        }
        let clone = name_of(slot, stat);
        let there = sys::stat_at(&self.dir, clone.as_bytes());
        let counts = there.as_ref().is_ok_and(|there| is_of(there, stat));
        if counts || (self.has_time() && self.make(dir, name, stat, &clone, there.is_ok()).is_ok()) {
            self.used.borrow_mut().insert(clone.into_bytes());
        } else {
            *self.left_out.borrow_mut() += 1;
        }
    }

    fn has_time(&self) -> bool {
        let made = *self.made.borrow();
        if made.is_multiple_of(LOOK_EVERY) && !self.live.timeline.store().layers.free_bytes().is_ok_and(|free| free > SPACE_KEPT_BYTES) {
            return false;
        }
        Instant::now() < self.until
    }

    fn make(&self, dir: impl AsFd, name: &Name, stat: &Stat, clone: &str, stale: bool) -> SysResult<()> {
        *self.made.borrow_mut() += 1;
        if stale {
            sys::unlink_at(&self.dir, clone.as_bytes())?;
        }
        let quietly = Open { noatime: true, ..Open::READ };
        let file = match sys::open_file_at(&dir, name.as_bytes(), quietly) {
            Err(Errno::EPERM) => sys::open_file_at(&dir, name.as_bytes(), Open::READ),
            file => file,
        }?;
        let made = sys::clone_to(&file, &self.dir, clone.as_bytes())?;
        if is_same(&sys::stat_fd(&file)?, stat) { sys::utimens_fd(&made, SetTime::Omit, SetTime::At(stat.ctime)) } else { Err(Errno::EBUSY) }
    }

    /// Removes clones that count for nothing any more. Says how many files are not kept.
    pub(super) fn finish(self) -> SysResult<u64> {
        let used = self.used.into_inner();
        for entry in sys::list_dir(&self.dir)? {
            if !used.contains(&entry.name) {
                sys::unlink_at(&self.dir, &entry.name)?;
            }
        }
        Ok(self.left_out.into_inner())
    }
}
