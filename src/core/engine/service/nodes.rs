//! Resolution of node ids, and construction of replies.

use super::super::Engine;
use super::super::announce::is_dummy;
use super::super::foreign::{self, is_foreign};
use super::super::listing::BATCH;
use super::super::past::{PAST, PAST_HANDLE, PastNode};
use super::super::request::{
    Attr, Caller, Entry, FOR_EVER, Fh, Listed, LookupResult, Names, NodeId, Opened,
};
use super::super::snapdir::{CONTROL, SNAPDIR};
use crate::live::{CreatedInode, Handle, HandleId, IoMode, Live, NewInode, OpenFlags, opener_word};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::open_flags as libc_flags;
use ckptfs_sys::{self as sys, Errno, Kind, RequesterIds, Stat, SysResult, Xattrs, is_own_xattr};

/// The offset after a listed `.snapshots`: no filesystem uses it.
const AFTER_SNAPDIR: u64 = 1 << 62 | 0x736e_6170;

/// The object of a node id.
pub(super) enum Node {
    Live(Slot),
    Past(PastNode),
    /// `.snapshots`, `.zfs`, or a link in one of them, or `.ckptfs`.
    Control(NodeId),
    /// A name that leads to another filesystem.
    Foreign(NodeId),
}

pub(super) fn name_of(name: &[u8]) -> SysResult<Name> {
    if name.len() > sys::NAME_LEN_MAX {
        Err(Errno::ENAMETOOLONG)
    } else {
        Ok(Name::new(name))
    }
}

pub(in crate::engine) fn open_flags(flags: i32, asker: Option<RequesterIds>) -> OpenFlags {
    // The kernel passes the architecture's values of open(2)'s flags unchanged.
    let access = flags & libc_flags::ACCMODE;
    OpenFlags {
        read: access != libc_flags::WRONLY,
        write: access != libc_flags::RDONLY,
        truncate: flags & libc_flags::TRUNC != 0,
        append: flags & libc_flags::APPEND != 0,
        append_only: false,
        sync: flags & libc_flags::SYNC == libc_flags::SYNC,
        dsync: flags & libc_flags::DSYNC != 0,
        noatime: flags & libc_flags::NOATIME != 0,
        asker,
    }
}

/// The kernel only removes existing names, and locks the directory. A name missing in a resent
/// request was removed by the dead worker.
pub(super) fn removed<T>(result: SysResult<T>, again: bool) -> SysResult<Option<T>> {
    match result {
        Err(Errno::ENOENT) if again => Ok(None),
        result => result.map(Some),
    }
}

pub(super) fn has_content(live: &Live, slot: Slot) -> bool {
    live.inodes.stat(slot).is_ok_and(|stat| stat.size > 0)
}

/// Returns the attributes of a live inode, including an open one without a name.
pub(super) fn live_stat(live: &Live, slot: Slot, fh: Option<Fh>) -> SysResult<Stat> {
    match (live.inodes.stat(slot), fh) {
        (Err(Errno::ESTALE), Some(fh)) if fh.0 & PAST_HANDLE == 0 => Ok(Stat {
            nlink: 0,
            ..sys::stat_fd(&*live.handles.get(HandleId(fh.0))?.file)?
        }),
        (stat, _) => stat,
    }
}

pub(super) fn past_xattrs(engine: &Engine, past: &PastNode) -> SysResult<Xattrs> {
    engine.states.view(past.state()).xattrs(&past.trail)
}

/// Removes internal attributes, and those that only an administrator may see (xattr(7)): the kernel
/// checks access to their values, but not to their names.
pub(super) fn hide_xattrs(names: &mut Vec<Vec<u8>>, caller: Caller) {
    names.retain(|name| !is_own_xattr(name));
    let trusted = |name: &Vec<u8>| name.starts_with(b"trusted.");
    if names.iter().any(trusted) && !sys::may_administer(caller.asker()) {
        names.retain(|name| !trusted(name));
    }
}

impl Engine {
    pub(super) fn node(&self, node: NodeId) -> SysResult<Node> {
        if node.0 & PAST != 0 {
            self.views.past_node(node).map(Node::Past)
        } else if is_dummy(node) {
            Err(Errno::ESTALE)
        } else if is_foreign(node) {
            Ok(Node::Foreign(node))
        } else if node.0 & CONTROL != 0 {
            Ok(Node::Control(node))
        } else {
            self.live.adoption.meet(Slot(node.0));
            Ok(Node::Live(Slot(node.0)))
        }
    }

    /// Returns the live slot of a node to change; views are read-only.
    pub(super) fn writable(&self, node: NodeId) -> SysResult<Slot> {
        match self.node(node)? {
            Node::Live(slot) => Ok(slot),
            Node::Past(_) | Node::Control(_) => Err(Errno::EROFS),
            Node::Foreign(_) => Err(Errno::EXDEV),
        }
    }

    /// Returns the live directory of a name to change; reserved names are rejected.
    pub(super) fn writable_name(&self, parent: NodeId, name: &[u8]) -> SysResult<(Slot, Name)> {
        let slot = self.writable(parent)?;
        if self.serving.is_reserved(parent, name) || self.snapdir.is_zfs(parent, name) {
            return Err(Errno::EPERM);
        }
        Ok((slot, name_of(name)?))
    }

    pub(super) fn live_entry(&self, slot: Slot, generation: u64, stat: Stat) -> Entry {
        let Attr { stat, ttl } = self.live_attr(slot, stat);
        Entry {
            node: NodeId(slot.0),
            generation,
            stat,
            ttl,
        }
    }

    pub(super) fn made(&self, made: &CreatedInode) -> Entry {
        self.live_entry(made.slot, made.generation, made.stat)
    }

    /// Sets the timeout: unlimited, unless the attributes may change without a request.
    pub(super) fn live_attr(&self, slot: Slot, stat: Stat) -> Attr {
        Attr {
            stat: Stat {
                ino: slot.0,
                ..stat
            },
            ttl: self.live.hot.lifetime(slot, &stat).unwrap_or(FOR_EVER),
        }
    }

    /// Returns names of a live directory, with `.snapshots` after those of the root if it is
    /// visible.
    pub(super) fn list_live(&self, node: NodeId, slot: Slot, offset: u64) -> SysResult<Names> {
        if offset == AFTER_SNAPDIR {
            return Ok(Names {
                names: Vec::new(),
                last: true,
            });
        }
        let (entries, last) = self.live.inodes.read_dir(slot.into(), offset, BATCH)?;
        let mut names = Vec::with_capacity(entries.len() + 1);
        for (entry, child) in entries {
            let node = match entry.name.as_slice() {
                b"." => node,
                b".." => self
                    .live
                    .nodes
                    .parent(slot)
                    .map_or(node, |parent| NodeId(parent.0)),
                name if self.serving.is_reserved(NodeId(slot.0), name) => continue,
                _ => NodeId(child.slot.0),
            };
            names.push(Listed {
                name: entry.name,
                node,
                kind: child.kind,
                slot: node.0,
                next: entry.next,
            });
        }
        if last && slot == Slot::ROOT && self.serving.config.snapdir_visible {
            names.push(Listed {
                name: self.serving.snapdir_name().to_vec(),
                node: SNAPDIR,
                kind: Kind::Dir,
                slot: SNAPDIR.0,
                next: AFTER_SNAPDIR,
            });
        }
        Ok(Names { names, last })
    }

    /// Returns the reply to OPEN for a handle.
    pub(super) fn opened(&self, id: HandleId, handle: &Handle) -> Opened {
        let passthrough =
            (handle.io == IoMode::Passthrough).then(|| self.live.hot.backing_file(handle));
        if passthrough.is_some()
            && handle.flags.write
            && handle.flags.read
            && let Some(caches) = self.serving.caches.get()
        {
            // From now on it may be mapped, and stores change its times without a request.
            // Invalidating attributes never blocks.
            caches.forget_attributes(NodeId(handle.slot.0));
        }
        Opened {
            fh: Fh(id.0),
            keep_cache: passthrough.is_none(),
            // If passthrough is used for another user, the mount has no pages of the file cached:
            // this handle bypasses the cache and uses the daemon.
            direct_io: passthrough.is_some() && !self.live.passthrough.is_for(handle.flags.asker),
            no_flush: true,
            passthrough,
            by: handle.by.as_deref().map_or(0, opener_word),
        }
    }

    /// `pid`: the calling thread; 0 if unknown.
    pub(super) fn look_up(&self, pid: u32, parent: NodeId, name: &[u8]) -> SysResult<LookupResult> {
        if self.serving.is_reserved(parent, name) {
            return self.snapdir.lookup_reserved(pid, name);
        }
        if self.snapdir.is_zfs(parent, name) {
            return self.snapdir.zfs();
        }
        match self.node(parent)? {
            Node::Control(dir) => self.snapdir.lookup_control(dir, name),
            Node::Past(dir) => self.views.past_lookup(&dir, &name_of(name)?),
            Node::Foreign(_) => Err(Errno::EXDEV),
            Node::Live(slot) => {
                let (live, name) = (&self.live, &name_of(name)?);
                let look_up = || live.inodes.lookup(slot, name);
                match live.locks.stale_names.looking_up(slot, name, look_up) {
                    Ok((slot, generation, stat)) => {
                        Ok(LookupResult::Found(self.live_entry(slot, generation, stat)))
                    }
                    Err(Errno::ENOENT) => Ok(LookupResult::Absent(FOR_EVER)),
                    Err(Errno::EXDEV) => Ok(LookupResult::Found(foreign::entry(self, slot, name)?)),
                    Err(errno) => Err(errno),
                }
            }
        }
    }
}

/// Returns a new inode of the caller with the attributes of a symbolic link.
pub(super) fn made_by(caller: Caller, kind: Kind) -> NewInode<'static> {
    NewInode {
        kind,
        mode: 0o777,
        umask: 0,
        rdev: 0,
        target: b"",
        uid: caller.uid,
        gid: caller.gid,
        open: None,
        again: caller.again,
    }
}

/// Returns the reply to OPEN in a view, whose content is immutable.
pub(super) fn past_opened(fh: Fh) -> Opened {
    Opened {
        fh,
        keep_cache: true,
        direct_io: false,
        no_flush: true,
        passthrough: None,
        by: 0,
    }
}

/// Returns EPERM for an internal extended attribute.
pub(super) fn check_not_own(name: &[u8]) -> SysResult<()> {
    if is_own_xattr(name) {
        Err(Errno::EPERM)
    } else {
        Ok(())
    }
}
