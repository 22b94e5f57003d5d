//! Bulk replacement: many staged inodes are moved into place behind one journal append.
//!
//! One thread changes the names. The kernel serializes all renames between directories
//! (`s_vfs_rename_mutex`, acquired by `lock_rename` in fs/namei.c), and after a crash only the
//! renames behind the last append can be incomplete. Another thread reads the state of the next
//! places ahead. The caller has frozen the tree, so only earlier swaps can change it.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use super::branch_state::hides;
use super::capture_ctx::{CaptureCtx, Captures, Durability, Inodes};
use super::change::ChangeCtx;
use super::copy_up::CopyUp;
use super::handover::KernelRequest;
use super::inodes::NodeRef;
use super::names::Names;
use super::remove::{EntryTarget, Removal, UnlinkFate};
use super::shared_tables::{Locks, NodeTable, OrphanCount, SharedTables};
use super::staged::Swap;
use crate::history::timeline::Timeline;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Key, NameTouch, Place, Record, Undo};
use ckptfs_sys::{self as sys, Errno, Kind, RenameMode, Stat, SysResult, Xattrs};

/// Maximum number of inodes replaced behind one append. It bounds the inodes that recovery must
/// examine after a crash.
const AT_ONCE_MAX: usize = 128;
/// Approximate size of their records; the journal would sync larger appends
/// (`store::journal::tail`).
const BYTES_AT_ONCE: usize = 96 << 10;
/// Approximate size of the records of one swap, without names and extended attributes.
const SWAP_BYTES: usize = 400;

/// A swap whose records are collected.
struct PreparedSwap<'a> {
    source: EntryTarget<'a>,
    target: Option<(EntryTarget<'a>, UnlinkFate)>,
    held: Option<Arc<OwnedFd>>,
    to: &'a Place,
}

/// State of a place, read ahead.
struct PlaceState {
    dir: Arc<OwnedFd>,
    found: Option<PlaceInode>,
}

/// The inode at the place, and data needed before it is replaced; fields that could not be read
/// ahead are empty.
struct PlaceInode {
    stat: Stat,
    slot: Slot,
    xattrs: OnceCell<Xattrs>,
    fd: OnceCell<Arc<OwnedFd>>,
}

impl PlaceInode {
    /// Returns the inode as the target of a replacement.
    fn target<'a>(
        &self,
        parent: NodeRef<'a>,
        dir: &'a Arc<OwnedFd>,
        name: &'a Name,
    ) -> EntryTarget<'a> {
        let (xattrs, fd) = (self.xattrs.clone(), self.fd.clone());
        EntryTarget::known(parent, dir, name, self.stat, self.slot).seen(xattrs, fd)
    }
}

/// Moves staged inodes into place.
pub struct Swaps {
    timeline: Arc<Timeline>,
    staging: Arc<OwnedFd>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    orphans: Arc<OrphanCount>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
    captures: Arc<Captures>,
    removal: Arc<Removal>,
    names: Arc<Names>,
    copies: Arc<CopyUp>,
}

impl Swaps {
    pub(super) fn new(
        tables: &SharedTables,
        past: &CaptureCtx,
        copies: &Arc<CopyUp>,
        removal: &Arc<Removal>,
        names: &Arc<Names>,
    ) -> Swaps {
        Swaps {
            timeline: Arc::clone(&tables.timeline),
            staging: Arc::clone(&tables.staging),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            orphans: Arc::clone(&tables.orphans),
            inodes: Arc::clone(&past.inodes),
            durability: Arc::clone(&past.durability),
            captures: Arc::clone(&past.captures),
            removal: Arc::clone(removal),
            names: Arc::clone(names),
            copies: Arc::clone(copies),
        }
    }

    /// Moves adopted inodes, each different, into place in order, and captures replaced inodes that
    /// the history needs. Many share one append. Returns the inode that each has replaced. After
    /// `kill -9` a prefix of the renames has happened, as with individual renames.
    ///
    /// # Errors
    /// Those of rename(2); ENOSPC or EIO if a capture failed. Some inodes are then in place, and
    /// the others in the staging directory.
    pub fn put_in_place(&self, change: &ChangeCtx, swaps: &[Swap]) -> SysResult<Vec<Option<Slot>>> {
        for Swap { to, .. } in swaps {
            self.copies.own_name_in(to.parent.into(), &to.name)?;
        }
        let mut replaced = Vec::with_capacity(swaps.len());
        let mut parts = swaps.chunks(AT_ONCE_MAX).peekable();
        let mut ahead = parts.peek().map(|first| self.look_at(first));
        while let (Some(part), Some(sights)) = (parts.next(), ahead.take()) {
            let next = parts.peek().copied();
            ahead = thread::scope(|scope| {
                let looks = next.and_then(|next| {
                    thread::Builder::new()
                        .name("look".to_owned())
                        .spawn_scoped(scope, || self.look_at(next))
                        .ok()
                });
                self.put_part(change, part, &sights, &mut replaced)?;
                // If the thread could not be started, this one reads ahead.
                let seen = looks.map_or_else(
                    || Ok(next.map(|next| self.look_at(next))),
                    |looks| looks.join().map(Some),
                );
                seen.map_err(|_| Errno::EIO)
            })?;
        }
        Ok(replaced)
    }

    fn look_at(&self, swaps: &[Swap]) -> Vec<SysResult<PlaceState>> {
        swaps.iter().map(|swap| self.sight(&swap.to)).collect()
    }

    fn sight(&self, to: &Place) -> SysResult<PlaceState> {
        let (dir, name) = (self.inodes.dir(to.parent)?, to.name.as_bytes());
        let stat = match sys::stat_at(&dir, name) {
            Err(Errno::ENOENT) => return Ok(PlaceState { dir, found: None }),
            Ok(stat) if self.inodes.base().through().is_some() && hides(&stat) => {
                return Ok(PlaceState { dir, found: None });
            }
            stat => stat?,
        };
        let slot = self.inodes.slot_of(&stat)?;
        let found = PlaceInode {
            stat: self.inodes.base().shown(slot, stat),
            slot,
            xattrs: OnceCell::new(),
            fd: OnceCell::new(),
        };
        // Errors are ignored: the data is read again when it is needed.
        if stat.kind != Kind::Dir && self.timeline.epochs.needs(&Key::Xattrs(found.slot)) {
            let _ = sys::all_xattrs_at(&dir, name).map(|xattrs| found.xattrs.set(xattrs));
        }
        if self
            .nodes
            .lock()
            .get(found.slot)
            .is_some_and(|node| node.is_known())
            && self.orphans.has_room(2 * AT_ONCE_MAX)
        {
            let _ = sys::open_path_at(&dir, name).map(|fd| found.fd.set(Arc::new(fd)));
        }
        Ok(PlaceState {
            dir,
            found: Some(found),
        })
    }

    /// Makes all of these swaps, using their states read ahead.
    fn put_part(
        &self,
        change: &ChangeCtx,
        swaps: &[Swap],
        sights: &[SysResult<PlaceState>],
        replaced: &mut Vec<Option<Slot>>,
    ) -> SysResult<()> {
        let begun = replaced.len();
        while let Some((rest, sights)) = swaps
            .get(replaced.len() - begun..)
            .zip(sights.get(replaced.len() - begun..))
            .filter(|(rest, _)| !rest.is_empty())
        {
            let before = replaced.len();
            self.put_some(change, rest, sights, replaced)?;
            if replaced.len() == before {
                // The target is a directory, or a file with other names: an individual rename.
                let Some(Swap { staged, to }) = rest.first() else {
                    break;
                };
                let from = staged.place();
                let (from, to) = (
                    (NodeRef::from(from.parent), &from.name),
                    (NodeRef::from(to.parent), &to.name),
                );
                replaced.push(self.names.rename_in(
                    change,
                    from,
                    to,
                    RenameMode::Replace,
                    KernelRequest::default(),
                )?);
            }
        }
        Ok(())
    }

    /// Makes as many of these swaps as fit one append.
    fn put_some(
        &self,
        change: &ChangeCtx,
        swaps: &[Swap],
        sights: &[SysResult<PlaceState>],
        replaced: &mut Vec<Option<Slot>>,
    ) -> SysResult<()> {
        self.keep_dirs(change, swaps, sights)?;
        let _renaming = self.locks.begin_rename();
        let (mut ready, mut undo, mut more, mut bytes) =
            (Vec::with_capacity(swaps.len()), Vec::new(), Vec::new(), 0);
        for (swap, sight) in swaps.iter().zip(sights) {
            let known = undo.len();
            let Some(next) = self.prepare_swap(
                change,
                swap,
                sight.as_ref().map_err(|errno| *errno)?,
                (&mut undo, &mut more),
            )?
            else {
                break;
            };
            bytes += SWAP_BYTES
                + 4 * swap.to.name.as_bytes().len()
                + undo.iter().skip(known).map(xattr_bytes).sum::<usize>();
            ready.push(next);
            if bytes > BYTES_AT_ONCE {
                break;
            }
        }
        if ready.is_empty() {
            return Ok(());
        }
        self.timeline.epochs.record(&change.author, undo, more)?;
        for (at, swap) in ready.iter().enumerate() {
            if let Err(errno) = self.swap(swap) {
                // The swaps after it were not made.
                let left = ready
                    .iter()
                    .skip(at + 1)
                    .filter_map(|swap| swap.target.as_ref());
                left.filter(|(_, fate)| matches!(fate, UnlinkFate::Move(_)))
                    .for_each(|(target, _)| self.removal.take_back(target.slot));
                return Err(errno);
            }
            replaced.push(swap.target.as_ref().map(|(target, _)| target.slot));
        }
        Ok(())
    }

    /// Records each target directory once.
    fn keep_dirs(
        &self,
        change: &ChangeCtx,
        swaps: &[Swap],
        sights: &[SysResult<PlaceState>],
    ) -> SysResult<()> {
        let (mut undo, mut kept) = (Vec::new(), HashSet::new());
        for (swap, sight) in swaps.iter().zip(sights) {
            if kept.insert(swap.to.parent) {
                self.captures.keep_dir(
                    NodeRef::from(swap.to.parent),
                    &sight.as_ref().map_err(|errno| *errno)?.dir,
                    &mut undo,
                )?;
            }
        }
        if undo.is_empty() {
            Ok(())
        } else {
            self.timeline
                .epochs
                .record(&change.author, undo, Vec::new())
        }
    }

    /// Collects the records of one swap. Returns `None` if the target needs an individual rename.
    fn prepare_swap<'a>(
        &'a self,
        change: &ChangeCtx,
        swap: &'a Swap,
        PlaceState { dir, found }: &'a PlaceState,
        (undo, more): (&mut Vec<Undo>, &mut Vec<Record>),
    ) -> SysResult<Option<PreparedSwap<'a>>> {
        let (parent, to) = (NodeRef::from(swap.to.parent), &swap.to);
        let source = EntryTarget::known(
            NodeRef::from(Slot::STAGING),
            &self.staging,
            &swap.staged.name,
            *swap.staged.stat,
            self.inodes.slot_of(&swap.staged.stat)?,
        );
        let target = found
            .as_ref()
            .map(|found| found.target(parent, dir, &to.name));
        // A file that had other names when it was read may have lost them since.
        if target.as_ref().is_some_and(|target| {
            target.stat.kind == Kind::Dir || !target.is_last() || target.slot == source.slot
        }) {
            return Ok(None);
        }
        let _stripe = target.as_ref().map(|target| self.locks.stripe(target.slot));
        if let Some(target) = &target {
            self.removal.removal_first(change, target)?;
        }
        self.captures.keep_entry(
            to.parent,
            &to.name,
            target.as_ref().map(EntryTarget::child),
            undo,
        );
        self.timeline
            .processes
            .touch_moved(&change.author, source.slot, false);
        self.timeline
            .processes
            .touch_name(&change.author, to.parent, &to.name, NameTouch::Moved);
        let Some(target) = target else {
            return Ok(Some(PreparedSwap {
                source,
                target: None,
                held: None,
                to,
            }));
        };
        self.timeline
            .processes
            .touch_gone(&change.author, target.slot);
        let fate = self.removal.plan_unlink(&target, undo, more)?;
        if let UnlinkFate::Move(object) = fate {
            more.push(Record::Replacing {
                slot: target.slot,
                place: source.place(),
                object,
                whiteout: false,
            });
        }
        let held = self.removal.hold(&target, fate)?;
        Ok(Some(PreparedSwap {
            source,
            target: Some((target, fate)),
            held,
            to,
        }))
    }

    /// Makes a recorded swap.
    fn swap(
        &self,
        PreparedSwap {
            source,
            target,
            held,
            to,
        }: &PreparedSwap<'_>,
    ) -> SysResult<()> {
        let Some((target, fate)) = target else {
            let dir = self.inodes.dir(to.parent)?;
            self.durability.order_names(&[source.slot])?;
            let how = match self.inodes.base().is_hidden(&dir, &to.name)? {
                true => RenameMode::Replace,
                false => RenameMode::NoReplace,
            };
            self.captures.with_room(|| {
                sys::rename_home(
                    source.dir,
                    source.name.as_bytes(),
                    &*dir,
                    to.name.as_bytes(),
                    how,
                )
            })?;
            self.nodes
                .lock()
                .move_link(source.slot, &source.place(), to);
            return Ok(());
        };
        let _stripe = self.locks.stripe(target.slot);
        self.names
            .replace_recorded(source, target, *fate, held.clone(), RenameMode::Replace)
    }
}

/// Returns the size of extended attributes in a record.
fn xattr_bytes(undo: &Undo) -> usize {
    if let Undo::Xattrs { before, .. } = undo {
        before
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    } else {
        0
    }
}
