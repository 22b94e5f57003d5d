//! Content that is kept over an absence: a clone of each file that a checkpoint shows and no layer has, in `.ckptfs/kept`. Where files cannot share extents
//! it is a copy, and of small files only: all copies are on the disk before the first of them counts.
//!
//! It is made when a daemon ends in an orderly way, beside the baseline, for as long as it may take; what differs from the baseline at the next start has its
//! clone cloned (a copy linked) into the layer, as if it had been captured before the change. (To move it would be enough, but for a daemon that is killed
//! before the record of it.) All clones stay, and count at the next end for files that are still the same: a clone is named by slot and time of birth, has
//! the size of its file, and as its time of modification the ctime that its file had. It is set last, so a clone that was cut short counts for nothing.
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
use crate::sys::{self, Errno, Kind, Open, SetTime, Stat, SysResult, Time};

const NAME: &[u8] = b"kept";
/// Bytes of one copy, and of all copies, unless all is to be kept.
const COPY_MAX: u64 = 1 << 20;
const COPIES_MAX: u64 = 64 << 20;
/// Files between two looks at the free space.
const LOOK_EVERY: usize = 256;

/// How much content an unmount keeps, for it may be changed while nothing is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// What can be cloned in two seconds; where nothing can be cloned, copies of small files, 64 MiB in all.
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
    live: &'a Live,
    dir: OwnedFd,
    how: Keep,
    until: Instant,
    /// A checkpoint will show the tree as it is now, if it is changed: what is new in the open epoch, or changed in it, is kept too.
    all: bool,
    done: RefCell<Done>,
}

#[derive(Default)]
struct Done {
    /// Clones that count.
    used: HashSet<Vec<u8>>,
    made: usize,
    left_out: u64,
    /// Bytes of the copies that count.
    copied_bytes: u64,
    /// New copies, and the time that each gets once it is on the disk.
    copies: Vec<(String, Time)>,
}

impl Live {
    fn kept_dir(&self) -> SysResult<OwnedFd> {
        sys::open_dir_at(self.timeline.store().layout.dir(), NAME)
    }

    /// What keeps so much content. `None`: nothing is to be kept.
    pub(super) fn keeper(&self, how: Keep, all: bool) -> SysResult<Option<Keeper<'_>>> {
        if how == Keep::None {
            return self.drop_kept().map(|()| None);
        }
        match sys::mkdir_at(self.timeline.store().layout.dir(), NAME, 0o700) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Some(Keeper { live: self, dir: self.kept_dir()?, how, all, until: Instant::now() + how.time(), done: RefCell::default() }))
    }

    /// Brings what a file held when it was last served into the layer of the open epoch. `None`: there is none, or it is not needed.
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
        if self.reflink {
            let clone = sys::open_file_at(&dir, name.as_bytes(), Open::READ)?;
            return self.capture_object(slot, &clone, stat.size);
        }
        let layers = &self.timeline.store().layers;
        let object = layers.next_object(self.timeline.epoch(), slot, ObjectOrigin::Cloned).map_err(|error| error.errno())?;
        let (layer, file) = layers.location(object).map_err(|error| error.errno())?;
        self.with_room(|| sys::link_at(&dir, name.as_bytes(), &*layer, file.as_bytes()))?;
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
        let shown = self.all || (!timeline.is_born(slot) && timeline.needs(&Key::Data(slot)));
        if stat.kind != Kind::File || stat.size == 0 || !shown {
            return;
        }
        let clone = name_of(slot, stat);
        let there = sys::stat_at(&self.dir, clone.as_bytes());
        let counts = there.as_ref().is_ok_and(|there| is_of(there, stat));
        if self.fits(stat) && (counts || (self.has_time() && self.make(dir, name, stat, &clone, there.is_ok()).is_ok())) {
            let mut done = self.done.borrow_mut();
            done.copied_bytes += stat.size;
            done.used.insert(clone.into_bytes());
        } else {
            self.done.borrow_mut().left_out += 1;
        }
    }

    /// A clone always does. A copy takes time and space.
    fn fits(&self, stat: &Stat) -> bool {
        let all = self.live.reflink || self.how == Keep::All;
        all || (stat.size <= COPY_MAX && stat.size <= COPIES_MAX.saturating_sub(self.done.borrow().copied_bytes))
    }

    fn has_time(&self) -> bool {
        let made = self.done.borrow().made;
        if made.is_multiple_of(LOOK_EVERY) && !self.live.timeline.store().layers.free_bytes().is_ok_and(|free| free > SPACE_KEPT_BYTES) {
            return false;
        }
        Instant::now() < self.until
    }

    fn make(&self, dir: impl AsFd, name: &Name, stat: &Stat, clone: &str, stale: bool) -> SysResult<()> {
        self.done.borrow_mut().made += 1;
        if stale {
            sys::unlink_at(&self.dir, clone.as_bytes())?;
        }
        let quietly = Open { noatime: true, ..Open::READ };
        let file = match sys::open_file_at(&dir, name.as_bytes(), quietly) {
            Err(Errno::EPERM) => sys::open_file_at(&dir, name.as_bytes(), Open::READ),
            file => file,
        }?;
        self.live.duplicate(&file, &self.dir, clone.as_bytes(), stat.size, false)?;
        if !is_same(&sys::stat_fd(&file)?, stat) {
            return Err(Errno::EBUSY);
        }
        if self.live.reflink {
            return self.set_time(clone, stat.ctime);
        }
        self.done.borrow_mut().copies.push((clone.to_owned(), stat.ctime));
        Ok(())
    }

    /// From now on it counts.
    fn set_time(&self, clone: &str, time: Time) -> SysResult<()> {
        let made = sys::open_file_at(&self.dir, clone.as_bytes(), Open::READ)?;
        sys::utimens_fd(&made, SetTime::Omit, SetTime::At(time))
    }

    /// Removes clones that count for nothing any more. Says how many files are not kept.
    pub(super) fn finish(self) -> SysResult<u64> {
        let done = self.done.take();
        for entry in sys::list_dir(&self.dir)? {
            if !done.used.contains(&entry.name) {
                sys::unlink_at(&self.dir, &entry.name)?;
            }
        }
        if !done.copies.is_empty() {
            // A power cut would leave zeros in what has its size already.
            sys::syncfs(&self.dir)?;
        }
        done.copies.iter().try_for_each(|(clone, time)| self.set_time(clone, *time))?;
        Ok(done.left_out)
    }
}
