//! Copy-up: creation of a branch's own inode from an inherited one, before it is changed.
//!
//! Copy-up changes nothing visible except ctime, which is recorded. The inode is created in the
//! staging directory as a clone of the base's, with its attributes and a mark, and renamed into
//! place. Inherited directories above it are copied up first. A kill leaves either a file in the
//! staging directory, which the next mount removes, or an own inode equal to that of the base.
//!
//! A clone may wait for another user's process that has the parent's file open. Operations
//! therefore copy up before they acquire their locks ([ADR
//! 21](../../docs/adr/0021-waiting-for-others.md)). The exception is a restore, which has frozen
//! the tree. Every change of a branch passes through here or through a freeze, so this is where the
//! work that precedes the first change is done (`first_change`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::branch_state::{BranchState, HIDDEN_PREFIX, OriginMark, bears_mark, tells_mark};
use super::capture_ctx::{CaptureCtx, Captures, Durability, Inodes};
use super::inodes::{InheritedInode, NodeRef, at_place, target_of};
use super::owner_access::{NAMES, lent};
use super::shared_tables::{Locks, SharedTables};
use super::staged::{InodeSpec, STAGED_PREFIX, Staged, Staging};
use crate::history::attribution::Author;
use crate::history::present::Trail;
use crate::history::timeline::Timeline;
use crate::history::view::ContentLocation;
use ckptfs_store::ids::Name;
use ckptfs_store::record::{AttrState, Place};
use ckptfs_sys::{self as sys, Errno, Kind, RenameMode, SetTime, SysResult, wait};

/// Number of attempts to clone content that the parent captures concurrently.
const CLONES_MAX: u32 = 64;

/// Locks of the tree that the caller holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeldLocks {
    /// None: they are acquired once the copy is made.
    Nothing,
    /// The freeze lock, and the tree for writing.
    All,
}

/// Changes names in a directory that its owner, who is not root, may not write. No user has
/// requested this change. After a kill the mode stays changed.
fn writable<T>(dir: &OwnedFd, act: impl Fn() -> SysResult<T>) -> SysResult<T> {
    lent(dir, NAMES, |_| Ok(()), act)
}

/// A copy that is ready to be moved into place.
struct StagedCopy<'a> {
    staged: &'a Staged,
    attr: &'a AttrState,
    mark: OriginMark,
    /// Number of names in the base, if the copy needs a link in the store.
    names: Option<u32>,
}

/// Copies up inherited inodes. See the module.
pub struct CopyUp {
    timeline: Arc<Timeline>,
    reflink: bool,
    locks: Arc<Locks>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
    durability: Arc<Durability>,
    /// `None` if this is not a branch.
    staging: Option<Arc<Staging>>,
    copies: AtomicU64,
}

impl CopyUp {
    pub(super) fn new(tables: &SharedTables, past: &CaptureCtx) -> Arc<CopyUp> {
        let aside = tables.through.as_ref().map(|through| &through.aside);
        Arc::new(CopyUp {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            locks: Arc::clone(&tables.locks),
            inodes: Arc::clone(&past.inodes),
            captures: Arc::clone(&past.captures),
            durability: Arc::clone(&past.durability),
            staging: aside.map(|dir| Staging::new(tables, past, dir)),
            copies: AtomicU64::new(0),
        })
    }

    /// Copies up an inode and all directories above it, where they are inherited. The caller holds
    /// no lock.
    ///
    /// # Errors
    /// ENOSPC and other errors of its creation. ENAMETOOLONG: the path of a directory is too long
    /// for a mark. EPERM: a daemon that is not root cannot mark inodes other than files and
    /// directories. Those of reading the base.
    pub(super) fn own<'a>(&self, at: impl Into<NodeRef<'a>>) -> SysResult<()> {
        self.own_all(at.into(), HeldLocks::Nothing)
    }

    /// As [`CopyUp::own`], for a caller that holds the freeze lock and the tree for writing.
    pub(super) fn own_in<'a>(&self, at: impl Into<NodeRef<'a>>) -> SysResult<()> {
        self.own_all(at.into(), HeldLocks::All)
    }

    /// Copies up a directory and the inode at a name in it, where they are inherited. The caller
    /// holds no lock.
    ///
    /// # Errors
    /// As [`CopyUp::own`]; EPERM: the branch reserves such names.
    pub(super) fn own_name(&self, dir: NodeRef<'_>, name: &Name) -> SysResult<()> {
        self.own_name_all(dir, name, HeldLocks::Nothing)
    }

    /// As [`CopyUp::own_name`], for a caller that holds the freeze lock and the tree for writing.
    pub(super) fn own_name_in(&self, dir: NodeRef<'_>, name: &Name) -> SysResult<()> {
        self.own_name_all(dir, name, HeldLocks::All)
    }

    fn own_name_all(&self, dir: NodeRef<'_>, name: &Name, holds: HeldLocks) -> SysResult<()> {
        let Some(through) = self.inodes.base().through() else {
            return Ok(());
        };
        if name.as_bytes().starts_with(HIDDEN_PREFIX) {
            // The name would be invisible, and the next mount would remove it.
            return Err(Errno::EPERM);
        }
        self.own_all(dir, holds)?;
        let Some(child) = self.inodes.base().child_through(dir, name)? else {
            return Ok(());
        };
        let trail = at_place(dir.slot).step(name, child.slot);
        if through.is_inherited(child.slot) {
            // The copy may be placed at another of its names, one that the kernel has cached.
            self.own_all(NodeRef::from(&trail), holds)?;
        }
        if !self.inodes.base().is_left(dir, name)? {
            return Ok(());
        }
        self.with_locks(holds, || self.link(through, dir, &trail))
    }

    fn with_locks<T>(&self, holds: HeldLocks, act: impl FnOnce() -> T) -> T {
        if holds == HeldLocks::All {
            return act();
        }
        let _changing = self.locks.enter();
        self.locks.count_copy(false);
        let _tree = self.locks.tree.write();
        act()
    }

    /// Creates an own name for an own inode that has this name only in the base. The caller holds
    /// the locks.
    fn link(&self, through: &BranchState, dir: NodeRef<'_>, trail: &Arc<Trail>) -> SysResult<()> {
        let (slot, name) = (trail.slot, &trail.name);
        if !self.inodes.base().is_left(dir, name)? {
            return Ok(());
        }
        let found = self.inodes.find(slot.into())?;
        let (fd, mut undo) = (self.inodes.dir(dir)?, Vec::new());
        let before = sys::stat_fd(&fd)?;
        let target = target_of(&found.stat, &found.dir, &found.name)?;
        self.captures.keep_dir(dir, &fd, &mut undo)?;
        let stat = self.inodes.base().shown(slot, found.stat);
        self.captures.keep_attr(slot, &stat, target, &mut undo);
        self.captures.keep_homes(NodeRef::from(trail), &mut undo);
        let author = Author::default();
        self.timeline.epochs.record(&author, undo, Vec::new())?;
        self.locks.count_copy(true);
        self.durability.order_names(&[slot])?;
        let link = || sys::link_at(&found.dir, found.name.as_bytes(), &fd, name.as_bytes());
        writable(&fd, link)?;
        through.made_own(slot)?;
        sys::utimens_fd(&fd, SetTime::Omit, SetTime::At(before.mtime))
    }

    fn own_all(&self, at: NodeRef<'_>, holds: HeldLocks) -> SysResult<()> {
        let (Some(through), Some(staging)) = (self.inodes.base().through(), &self.staging) else {
            return Ok(());
        };
        if holds == HeldLocks::Nothing {
            self.locks.first_change.pass()?;
        }
        if !through.is_inherited(at.slot) {
            return Ok(());
        }
        // During a rename of a directory above, the inode is not at either path.
        let found = match holds {
            HeldLocks::All => self.inodes.base().inherited(at)?,
            HeldLocks::Nothing => {
                let _tree = self.locks.tree.read();
                self.inodes.base().inherited(at)?
            }
        };
        for inherited in found {
            self.copy((through, staging), &inherited, holds)?;
        }
        Ok(())
    }

    fn copy(
        &self,
        (through, staging): (&BranchState, &Staging),
        InheritedInode { place, way }: &InheritedInode,
        holds: HeldLocks,
    ) -> SysResult<()> {
        let attr = through.base.view().attr(way)?;
        let is_dir = attr.stat.kind == Kind::Dir;
        let mark = OriginMark {
            slot: way.slot,
            btime: attr.stat.btime,
            path: if is_dir { way.path() } else { Vec::new() },
        };
        let stage = || self.stage((through, staging), way, &attr, &mark);
        let staged = match holds {
            HeldLocks::Nothing => stage()?,
            // Remote content was fetched before, or is unavailable now.
            HeldLocks::All => match wait::never(stage) {
                Err(Errno::LATER) => return Err(Errno::EIO),
                staged => staged?,
            },
        };
        // An inode whose mark cannot be read has a link in the store that identifies it.
        let is_linked = attr.stat.nlink > 1 || !tells_mark(attr.stat.kind, attr.stat.mode);
        let copy = StagedCopy {
            names: (!is_dir && is_linked).then_some(attr.stat.nlink),
            staged: &staged,
            attr: &attr,
            mark,
        };
        let placed = self.with_locks(holds, || self.place((through, staging), place, copy));
        if placed != Ok(true) {
            staging.unstage(&staged);
        }
        placed.map(drop)
    }

    /// Creates the copy in the staging directory.
    fn stage(
        &self,
        (through, staging): (&BranchState, &Staging),
        way: &Arc<Trail>,
        attr: &AttrState,
        mark: &OriginMark,
    ) -> SysResult<Staged> {
        let view = through.base.view();
        let mut xattrs = view.xattrs(way)?;
        if bears_mark(attr.stat.kind) {
            xattrs.push(mark.xattr(attr.stat.kind)?);
        }
        for _ in 0..CLONES_MAX {
            let (source, file) = match attr.stat.kind {
                Kind::File => view.open(way)?,
                _ => (ContentLocation::Empty, None),
            };
            let number = self.copies.fetch_add(1, Ordering::Relaxed);
            let name = Name::new(format!("{STAGED_PREFIX}copy-{number}").as_bytes());
            let staged = staging.stage(
                name,
                &InodeSpec {
                    attr,
                    xattrs: &xattrs,
                    source: file.as_ref(),
                    still: false,
                    times: true,
                },
            );
            // If the parent captured the content concurrently, it may have changed before the
            // clone.
            if source == ContentLocation::Live && !view.still_live(way, file.as_ref())? {
                staged.iter().for_each(|staged| staging.unstage(staged));
                continue;
            }
            let staged = staged?;
            if !self.reflink && attr.stat.kind == Kind::File {
                staging.sync(&staged)?;
            }
            return Ok(staged);
        }
        Err(Errno::EBUSY)
    }

    /// Moves a copy into place. Returns `false` if the inode is own already. The caller holds the
    /// freeze lock and the tree for writing.
    fn place(
        &self,
        (through, staging): (&BranchState, &Staging),
        place: &Place,
        copy: StagedCopy<'_>,
    ) -> SysResult<bool> {
        let StagedCopy { staged, attr, .. } = copy;
        let (slot, parent) = (copy.mark.slot, place.parent);
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
        self.captures.keep_homes(NodeRef::from(&trail), &mut undo);
        let author = Author::default();
        self.timeline.epochs.record(&author, undo, Vec::new())?;
        self.locks.count_copy(true);
        self.durability.order_names(&[slot])?;
        if let Some(names) = copy.names {
            let at = (&*through.aside, staged.place().name);
            through.keep_link(slot, names, (at.0, at.1.as_bytes()))?;
        }
        let copied = sys::open_path_at(&*through.aside, staged.place().name.as_bytes())?;
        let put = || staging.put(staged, &dir, &place.name, RenameMode::NoReplace);
        // A move of a directory requires write permission on it, because its `..` changes.
        writable(&copied, || writable(&dir, put)).inspect_err(|_| {
            copy.names
                .into_iter()
                .for_each(|names| through.drop_link(slot, names));
        })?;
        through.note_own(staged.ino(), attr.stat.kind, copy.mark, copy.names);
        through.made_own(slot)?;
        // The visible content of the directory is unchanged.
        sys::utimens_fd(&dir, SetTime::Omit, SetTime::At(before.mtime))?;
        Ok(true)
    }
}
