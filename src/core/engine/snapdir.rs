//! `.snapshots`, the directory that lists the checkpoints, and the reserved names in the root
//! directory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::files::Views;
use super::gmt;
use super::past::{PastNode, PastNodes, ViewEntryKind};
use super::request::{Entry, Listed, LookupResult, NodeId};
use super::serving::ServingEnv;
use crate::history::present::Trail;
use crate::live::Live;
use ckptfs_api::{CheckpointId, CheckpointInfo, Reason};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Child;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Errno, Kind, Stat, SysResult};

/// Set in the number of every control node.
pub(super) const CONTROL: u64 = ckptfs_api::SNAPDIR_INODE;
/// `.snapshots`.
pub(super) const SNAPDIR: NodeId = NodeId(CONTROL);
/// `.ckptfs`: the link through which the verbs find the store below the mount. It leads to a
/// descriptor of this process. The kernel caches link targets, so the link of another worker has
/// another number.
pub(super) fn store_link() -> NodeId {
    NodeId(CONTROL | u64::from(std::process::id()) << 8 | 1)
}
/// `.zfs`, which programs with ZFS support look for. Its only entry, `snapshot`, is a link to
/// `.snapshots`, because the kernel keeps one dentry per directory.
pub(super) const ZFS: NodeId = NodeId(CONTROL | 3);
/// `.zfs/snapshot`.
pub(super) const ZFS_LINK: NodeId = NodeId(CONTROL | 4);
/// Name of that directory, unless the tree has an entry of that name.
pub(super) const ZFS_NAME: &[u8] = b".zfs";
/// Its only entry.
pub(super) const ZFS_LINK_NAME: &[u8] = b"snapshot";
/// Name of the store.
pub(super) const STORE_NAME: &[u8] = b".ckptfs";

/// The extended attribute with the access ACL (acl(5)).
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// The root directory of a view.
const ROOT: Child = Child {
    slot: Slot::ROOT,
    kind: Kind::Dir,
};

/// Links in `.snapshots` that the kernel has looked up: number -> target and lookup count.
#[derive(Default)]
pub(super) struct SnapdirLinks(Mutex<HashMap<NodeId, (String, u64)>>);

impl SnapdirLinks {
    fn learn(&self, node: NodeId, target: CheckpointId) {
        self.0
            .lock()
            .entry(node)
            .or_insert_with(|| (target.to_string(), 0))
            .1 += 1;
    }

    /// Subtracts from the lookup count of a link.
    pub(super) fn forget(&self, node: NodeId, lookups: u64) {
        let mut links = self.0.lock();
        if let Some((_, count)) = links.get_mut(&node) {
            *count = count.saturating_sub(lookups);
            if *count == 0 {
                links.remove(&node);
            }
        }
    }
}

/// Returns the number of a link in `.snapshots`. The kernel caches the target with the inode, so a
/// link to another target (`latest` after the next checkpoint) needs another number.
fn link_node(name: &str, target: CheckpointId) -> NodeId {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&target.0.to_le_bytes())
        .update(name.as_bytes());
    let hash = hasher.finalize();
    let mut low = [0_u8; 8];
    low.copy_from_slice(hash.as_bytes().get(..8).unwrap_or(&[0; 8]));
    NodeId(CONTROL | 1 << 60 | (u64::from_le_bytes(low) >> 8))
}

/// Offsets in `.snapshots`: dots, numbers, `latest`, tags, times. Each is derived from the name, so
/// it remains valid while checkpoints are made and deleted.
const AFTER_DOTS: u64 = 2;
const LATEST: u64 = 1 << 61;
const AFTER_TAGS: u64 = LATEST + (1 << 60) + 1;

pub(super) fn listed(name: impl Into<Vec<u8>>, node: NodeId, kind: Kind, next: u64) -> Listed {
    Listed {
        name: name.into(),
        node,
        kind,
        slot: node.0,
        next,
    }
}

/// `.snapshots`, its links, and the reserved names.
pub(super) struct Snapdir {
    pub(super) live: Arc<Live>,
    serving: Arc<ServingEnv>,
    views: Arc<Views>,
    pub(super) links: SnapdirLinks,
    /// The kernel may have cached a listing of it.
    snapdir_read: AtomicBool,
}

impl Snapdir {
    pub(super) fn new(live: Arc<Live>, serving: Arc<ServingEnv>, views: Arc<Views>) -> Snapdir {
        Snapdir {
            live,
            serving,
            views,
            links: SnapdirLinks::default(),
            // The kernel may have cached a listing before a takeover.
            snapdir_read: AtomicBool::new(true),
        }
    }

    /// Returns the attributes of `.snapshots`. Access is as for the root directory, unless
    /// `--snapdir-mode` is set. The sticky bit applies: in a world-writable tree only the owner of
    /// a checkpoint deletes it.
    pub(super) fn snapdir_stat(&self) -> SysResult<Stat> {
        let root = self.live.inodes.stat(Slot::ROOT)?;
        let count = u32::try_from(self.timeline().catalogue.checkpoint_count()).unwrap_or(u32::MAX);
        Ok(Stat {
            ino: SNAPDIR.0,
            mode: self
                .serving
                .config
                .snapdir_mode
                .unwrap_or(root.mode & 0o1777),
            nlink: count.saturating_add(2),
            size: 0,
            blocks: 0,
            ..root
        })
    }

    /// Returns an extended attribute of `.snapshots`: the ACL of the root directory, because its
    /// mode is used. Without the ACL the group bits, which are its mask, would grant access to a
    /// group that it excludes.
    pub(super) fn snapdir_xattr(&self, name: &[u8]) -> SysResult<Vec<u8>> {
        if name != ACCESS_LIST || self.serving.config.snapdir_mode.is_some() {
            return Err(Errno::NO_XATTR);
        }
        self.live.attrs.get_xattr(Slot::ROOT, name)
    }

    /// Invalidates the attributes of `.snapshots` and `.zfs` after a change of the root directory's
    /// mode, owner or access list.
    pub(super) fn root_changed(&self, slot: Slot) {
        if slot == Slot::ROOT
            && let Some(caches) = self.serving.caches.get()
        {
            caches.forget_attributes(SNAPDIR);
            caches.forget_attributes(ZFS);
        }
    }

    fn link_stat(&self, node: NodeId, target: &[u8]) -> SysResult<Stat> {
        let root = self.live.inodes.stat(Slot::ROOT)?;
        Ok(Stat {
            ino: node.0,
            kind: Kind::Symlink,
            mode: 0o777,
            nlink: 1,
            size: target.len() as u64,
            blocks: 0,
            ..root
        })
    }

    pub(super) fn control_stat(&self, node: NodeId) -> SysResult<Stat> {
        match node {
            SNAPDIR => self.snapdir_stat(),
            // Its contents cannot be modified.
            ZFS => self.snapdir_stat().map(|dir| Stat {
                ino: ZFS.0,
                mode: dir.mode & 0o555,
                nlink: 2,
                ..dir
            }),
            _ => self.link_stat(node, &self.control_link(node)?),
        }
    }

    /// Returns the target of a control link.
    pub(super) fn control_link(&self, node: NodeId) -> SysResult<Vec<u8>> {
        if node == store_link() {
            use std::os::fd::AsRawFd;
            return Ok(format!(
                "/proc/{}/fd/{}",
                std::process::id(),
                self.serving.store_target().as_raw_fd()
            )
            .into_bytes());
        }
        if node == SNAPDIR || node == ZFS {
            return Err(Errno::EINVAL);
        }
        if node == ZFS_LINK {
            return Ok([b"../", self.serving.snapdir_name()].concat());
        }
        self.links
            .0
            .lock()
            .get(&node)
            .map(|(target, _)| target.clone().into_bytes())
            .ok_or(Errno::ESTALE)
    }

    /// Returns the entry of a control node, with a timeout of zero for name and attributes.
    fn control_entry(&self, node: NodeId) -> SysResult<LookupResult> {
        Ok(LookupResult::Found(Entry {
            node,
            generation: 0,
            stat: self.control_stat(node)?,
            ttl: Duration::ZERO,
        }))
    }

    /// Returns whether a name in the root directory leads to `.zfs`, because the tree has no such
    /// entry.
    pub(super) fn is_zfs(&self, parent: NodeId, name: &[u8]) -> bool {
        let own = || {
            let inodes = &self.live.inodes;
            inodes.kind_at(Slot::ROOT, &Name::new(ZFS_NAME)) != Err(Errno::ENOENT)
        };
        parent == NodeId(Slot::ROOT.0) && name == ZFS_NAME && !own()
    }

    /// Looks up `.zfs` in the root directory.
    pub(super) fn zfs(&self) -> SysResult<LookupResult> {
        self.control_entry(ZFS)
    }

    /// Looks up a name in `.snapshots` or `.zfs`.
    pub(super) fn lookup_control(&self, dir: NodeId, name: &[u8]) -> SysResult<LookupResult> {
        match (dir, name) {
            (ZFS, ZFS_LINK_NAME) => self.control_entry(ZFS_LINK),
            (ZFS, _) => Ok(LookupResult::Absent(Duration::ZERO)),
            _ => self.lookup_snapshot(name),
        }
    }

    /// Looks up a reserved name in the root directory.
    pub(super) fn lookup_reserved(&self, pid: u32, name: &[u8]) -> SysResult<LookupResult> {
        if name == STORE_NAME {
            return match self.serving.shows_store_to(pid) {
                true => self.control_entry(store_link()),
                false => Ok(LookupResult::Absent(Duration::ZERO)),
            };
        }
        Ok(LookupResult::Found(Entry {
            node: SNAPDIR,
            generation: 0,
            stat: self.control_stat(SNAPDIR)?,
            ttl: super::request::FOR_EVER,
        }))
    }

    /// Looks up a name in `.snapshots`: a number is a view; a tag is a link to its number, or a
    /// view if mkdir(2) made it; a time is a view.
    fn lookup_snapshot(&self, name: &[u8]) -> SysResult<LookupResult> {
        let Ok(name) = std::str::from_utf8(name) else {
            return Ok(LookupResult::Absent(Duration::ZERO));
        };
        if let Some(id) = self.number(name) {
            return self.view_root(id, ViewEntryKind::Number, 1);
        }
        let id = if name == "latest" {
            self.timeline().catalogue.latest()
        } else {
            self.timeline().catalogue.tagged(name)
        };
        let Some(id) = id else {
            let Some(id) = self.timed(name) else {
                return Ok(LookupResult::Absent(Duration::ZERO));
            };
            let ttl = Duration::ZERO;
            return Ok(match self.view_root(id, ViewEntryKind::Time, 1)? {
                LookupResult::Found(entry) => LookupResult::Found(Entry { ttl, ..entry }),
                absent @ LookupResult::Absent(_) => absent,
            });
        };
        if self.timeline().catalogue.is_directory(id, name) {
            return self.view_root(id, ViewEntryKind::Made, 1);
        }
        let node = link_node(name, id);
        self.links.learn(node, id);
        self.control_entry(node)
    }

    /// Parses a name in `.snapshots` as a time, if the listing by time is enabled.
    pub(super) fn second(&self, name: &str) -> Option<i64> {
        gmt::second(name).filter(|_| self.serving.config.snapdir_times)
    }

    /// Returns the checkpoint of a time, if enabled: the newest of that second. The kernel must not
    /// cache it.
    fn timed(&self, name: &str) -> Option<CheckpointId> {
        self.timeline().catalogue.of_second(self.second(name)?)
    }

    /// Parses the canonical number of a checkpoint, without leading zeros.
    pub(super) fn number(&self, name: &str) -> Option<CheckpointId> {
        let id = CheckpointId(name.parse().ok()?);
        (id.to_string() == name && self.timeline().catalogue.has_checkpoint(id)).then_some(id)
    }

    /// Returns the root of a view. The kernel may cache it, because every path into the view passes
    /// it and [`Snapdir::forget_view`] invalidates it.
    pub(super) fn view_root(
        &self,
        id: CheckpointId,
        door: ViewEntryKind,
        lookups: u64,
    ) -> SysResult<LookupResult> {
        let past = &self.views.past;
        let node = past.learn(id, door, ROOT, Trail::root(), lookups)?;
        Ok(LookupResult::Found(self.views.past_entry(&node)?))
    }

    /// Invalidates the view of a deleted checkpoint in the kernel. Safe in threads that serve
    /// requests: only attributes are invalidated synchronously, which never blocks. The next path
    /// walk requests them, gets ESTALE, repeats the LOOKUP and finds no entry. A concurrent LOOKUP
    /// could still leave the dentry cached, so another thread invalidates the names. That blocks
    /// until the LOOKUP ends, and the rmdir(2) that this call may be part of.
    pub(super) fn forget_view(&self, checkpoint: &CheckpointInfo) {
        let Some(caches) = self.serving.caches.get() else {
            return;
        };
        for door in ViewEntryKind::ALL {
            caches.forget_attributes(PastNodes::number(checkpoint.id, door, ROOT));
        }
        let mut names = vec![checkpoint.id.to_string()];
        if let Reason::Directory { name } = &checkpoint.reason {
            names.push(name.clone());
        }
        let caches = std::sync::Arc::clone(caches);
        let forget = move || {
            names
                .iter()
                .for_each(|name| caches.forget_entry(SNAPDIR, name.as_bytes()))
        };
        if let Err(error) = std::thread::Builder::new()
            .name("forget-view".into())
            .spawn(forget)
        {
            tracing::warn!(%error, "the kernel may remember the name of a deleted checkpoint");
        }
    }

    /// Returns up to `count` names of `.snapshots` after `offset`: dots, numbers, `latest`, tags,
    /// times. The cost depends on the names returned, not on all that exist.
    pub(super) fn list_snapshots(&self, offset: u64, count: usize) -> Vec<Listed> {
        let view = |id: CheckpointId, door: ViewEntryKind| PastNodes::number(id, door, ROOT);
        let link = |name: &str, id: CheckpointId, next: u64| {
            listed(name.to_owned(), link_node(name, id), Kind::Symlink, next)
        };
        let dot =
            |name: &str, node: NodeId, next: u64| listed(name.to_owned(), node, Kind::Dir, next);
        let mut names = vec![
            dot(".", SNAPDIR, 1),
            dot("..", NodeId(Slot::ROOT.0), AFTER_DOTS),
        ];
        if offset < LATEST {
            let after = CheckpointId(offset.saturating_sub(AFTER_DOTS));
            let numbers = self.timeline().catalogue.ids_after(after, count);
            names.extend(numbers.into_iter().map(|id| {
                listed(
                    id.to_string(),
                    view(id, ViewEntryKind::Number),
                    Kind::Dir,
                    AFTER_DOTS.saturating_add(id.0).min(LATEST - 1),
                )
            }));
        }
        if names.len() < count {
            let catalogue = &self.timeline().catalogue;
            let latest = catalogue.latest();
            names.extend(latest.map(|id| link("latest", id, LATEST)));
            let tags = catalogue.tags_after(offset.saturating_sub(LATEST), count);
            names.extend(tags.into_iter().map(|tagged| {
                match (tagged.is_directory, LATEST + tagged.place) {
                    (true, next) => listed(
                        tagged.tag,
                        view(tagged.id, ViewEntryKind::Made),
                        Kind::Dir,
                        next,
                    ),
                    (false, next) => link(&tagged.tag, tagged.id, next),
                }
            }));
        }
        if names.len() < count && self.serving.config.snapdir_times {
            let catalogue = &self.timeline().catalogue;
            // Offsets are the second plus one, so that 0 precedes them all.
            let after = i64::try_from(offset.saturating_sub(AFTER_TAGS)).unwrap_or(i64::MAX) - 1;
            let timed = catalogue.seconds_after(after, gmt::name, count);
            names.extend(timed.into_iter().map(|(second, name, id)| {
                let next = AFTER_TAGS.saturating_add_signed(second) + 1;
                listed(name, view(id, ViewEntryKind::Time), Kind::Dir, next)
            }));
        }
        names.retain(|listed| listed.next > offset);
        names.truncate(count);
        names
    }

    /// Records that the kernel may cache a listing of `.snapshots`.
    pub(super) fn snapdir_was_read(&self) {
        self.snapdir_read.store(true, Ordering::SeqCst);
    }

    /// Invalidates the kernel's listing of `.snapshots`, if it may have one. Not for threads that
    /// serve requests; no lock may be held.
    pub(super) fn snapdir_changed(&self) {
        if !self.snapdir_read.swap(false, Ordering::SeqCst) {
            return;
        }
        let Some(caches) = self.serving.caches.get() else {
            return;
        };
        // To invalidate an entry, the kernel takes the directory's lock, and so waits for listings
        // being added to its cache.
        caches.forget_entry(SNAPDIR, b"latest");
        caches.forget_data(SNAPDIR);
    }
}

impl Views {
    /// Returns ESTALE if the checkpoint of a past node no longer exists.
    pub(super) fn check_kept(&self, node: &PastNode) -> SysResult<()> {
        if self.timeline().catalogue.has_checkpoint(node.checkpoint) {
            Ok(())
        } else {
            Err(Errno::ESTALE)
        }
    }
}
