//! Making inherited inodes of a branch its own, before they are changed.
//!
//! To copy one up changes nothing that anybody sees but its time of change, which is on record: the
//! inode is made in the staging directory, a clone of what the base has, with its attributes and a
//! mark, and renamed to where it is; every directory above it that is not own comes before it. A
//! kill leaves a file in the staging directory, which the next mount removes, or an own inode that
//! is as in the base.
//!
//! A clone may wait for somebody else's process, which has the file of the parent open. So whatever
//! a call would change is copied up before any lock of the call is taken
//! ([ADR 21](../../docs/adr/0021-waiting-for-others.md)), but for a restore's, which has frozen the
//! tree.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::inodes::{At, at_place};
use super::past::{Captures, Durability, Inodes, Past};
use super::staged::{STAGED_PREFIX, Staged, Staging, Wanted};
use super::tables::{Locks, Tables};
use super::through::{Mark, Through};
use crate::history::attribution::Author;
use crate::history::present::Trail;
use crate::history::timeline::Timeline;
use crate::history::view::Source;
use crate::store::ids::Name;
use crate::store::record::{AttrState, Place};
use crate::sys::{self, Errno, Kind, RenameMode, SetTime, SysResult};

/// How often content is cloned that is captured by the parent meanwhile.
const CLONES_MAX: u32 = 64;

/// Who holds the locks of the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Nobody: they are taken once the copy is made.
    Nothing,
    /// The caller, the freeze lock and the tree for writing.
    All,
}

/// Copies up. See the module.
pub struct CopyUp {
    timeline: Arc<Timeline>,
    reflink: bool,
    locks: Arc<Locks>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
    durability: Arc<Durability>,
    staging: Arc<Staging>,
    copies: AtomicU64,
}

impl CopyUp {
    pub(super) fn new(tables: &Tables, past: &Past, staging: &Arc<Staging>) -> Arc<CopyUp> {
        Arc::new(CopyUp {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            locks: Arc::clone(&tables.locks),
            inodes: Arc::clone(&past.inodes),
            captures: Arc::clone(&past.captures),
            durability: Arc::clone(&past.durability),
            staging: Arc::clone(staging),
            copies: AtomicU64::new(0),
        })
    }

    /// An inode is own when this returns, with every directory above it. The caller holds no lock.
    ///
    /// # Errors
    /// ENOSPC and others of making it; ENAMETOOLONG: of a directory whose path is longer than a
    /// mark has room for; EPERM: a daemon that is not root has no mark for what is neither a file
    /// nor a directory; those of reading the base.
    pub(super) fn own<'a>(&self, at: impl Into<At<'a>>) -> SysResult<()> {
        self.own_all(at.into(), Holds::Nothing)
    }

    /// As [`CopyUp::own`]; the caller holds the freeze lock and the tree for writing.
    pub(super) fn own_in<'a>(&self, at: impl Into<At<'a>>) -> SysResult<()> {
        self.own_all(at.into(), Holds::All)
    }

    /// A directory, and what is at a name of it, are own when this returns. The caller holds no
    /// lock.
    ///
    /// # Errors
    /// As [`CopyUp::own`].
    pub(super) fn own_name(&self, dir: At<'_>, name: &Name) -> SysResult<()> {
        self.own_name_all(dir, name, Holds::Nothing)
    }

    /// As [`CopyUp::own_name`]; the caller holds the freeze lock and the tree for writing.
    pub(super) fn own_name_in(&self, dir: At<'_>, name: &Name) -> SysResult<()> {
        self.own_name_all(dir, name, Holds::All)
    }

    fn own_name_all(&self, dir: At<'_>, name: &Name, holds: Holds) -> SysResult<()> {
        if self.inodes.through().is_none() {
            return Ok(());
        }
        self.own_all(dir, holds)?;
        let Some((child, _)) = self.inodes.stat_child(dir, name)? else {
            return Ok(());
        };
        let trail = at_place(dir.slot).step(name, child.slot);
        self.own_all(At::from(&trail), holds)
    }

    fn own_all(&self, at: At<'_>, holds: Holds) -> SysResult<()> {
        let Some(through) = self.inodes.through() else {
            return Ok(());
        };
        if !through.is_inherited(at.slot) {
            return Ok(());
        }
        for inherited in self.inodes.inherited(at)? {
            self.copy(through, &inherited.place, &inherited.way, holds)?;
        }
        Ok(())
    }

    fn copy(
        &self,
        through: &Through,
        place: &Place,
        way: &Arc<Trail>,
        holds: Holds,
    ) -> SysResult<()> {
        let attr = through.base.view().attr(way)?;
        if attr.stat.kind != Kind::Dir && attr.stat.nlink > 1 {
            // Its other names would lead to the inode of the base.
            return Err(Errno::EMLINK);
        }
        let mark = Mark {
            slot: way.slot,
            btime: attr.stat.btime,
            path: match attr.stat.kind {
                Kind::Dir => way.path(),
                _ => Vec::new(),
            },
        };
        let staged = self.stage(through, way, &attr, &mark)?;
        let placed = match holds {
            Holds::All => self.place(through, place, (&staged, &attr), mark),
            Holds::Nothing => {
                let _changing = self.locks.enter();
                let _tree = self.locks.tree.write();
                self.place(through, place, (&staged, &attr), mark)
            }
        };
        if placed != Ok(true) {
            self.staging.unstage(&staged);
        }
        placed.map(drop)
    }

    /// Makes the copy aside.
    fn stage(
        &self,
        through: &Through,
        way: &Arc<Trail>,
        attr: &AttrState,
        mark: &Mark,
    ) -> SysResult<Staged> {
        let view = through.base.view();
        let mut xattrs = view.xattrs(way)?;
        xattrs.push(mark.xattr(attr.stat.kind)?);
        for _ in 0..CLONES_MAX {
            let (source, file) = match attr.stat.kind {
                Kind::File => view.open(way)?,
                _ => (Source::Empty, None),
            };
            let number = self.copies.fetch_add(1, Ordering::Relaxed);
            let name = Name::new(format!("{STAGED_PREFIX}copy-{number}").as_bytes());
            let staged = self.staging.stage(
                name,
                &Wanted {
                    attr,
                    xattrs: &xattrs,
                    source: file.as_ref(),
                    still: false,
                    times: true,
                },
            );
            // What was captured meanwhile may have changed before it was cloned.
            if source == Source::Live && !view.still_live(way, file.as_ref())? {
                staged
                    .iter()
                    .for_each(|staged| self.staging.unstage(staged));
                continue;
            }
            let staged = staged?;
            if !self.reflink && attr.stat.kind == Kind::File {
                self.staging.sync(&staged)?;
            }
            return Ok(staged);
        }
        Err(Errno::EBUSY)
    }

    /// Puts a copy in place; `false`: somebody else has done so. The caller holds the freeze lock
    /// and the tree for writing.
    fn place(
        &self,
        through: &Through,
        place: &Place,
        (staged, attr): (&Staged, &AttrState),
        mark: Mark,
    ) -> SysResult<bool> {
        let (slot, parent) = (mark.slot, place.parent);
        if !through.is_inherited(slot) {
            return Ok(false);
        }
        let dir = self.inodes.dir(parent)?;
        let before = sys::stat_fd(&dir)?;
        let mut undo = Vec::new();
        self.captures.keep_dir(parent.into(), &dir, &mut undo)?;
        self.captures
            .keep_attr(slot, &attr.stat, attr.target.clone(), &mut undo);
        let trail = at_place(parent).step(&place.name, slot);
        self.captures.keep_homes(At::from(&trail), &mut undo);
        self.timeline
            .epochs
            .record(&Author::default(), undo, Vec::new())?;
        self.durability.order_names()?;
        self.staging
            .put(staged, &dir, &place.name, RenameMode::NoReplace)?;
        through.note_own(staged.ino(), attr.stat.kind, mark);
        // Nothing has changed in the directory.
        sys::utimens_fd(&dir, SetTime::Omit, SetTime::At(before.mtime))?;
        Ok(true)
    }
}
