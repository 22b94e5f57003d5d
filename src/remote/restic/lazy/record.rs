//! The origin of a tree mounted from a remote, in its store: `.ckptfs/origin/`.
//!
//! ```text
//! record   JSON: the snapshot and its repository, the name of the remote, and the BLAKE3 hash of the file tree
//! tree     names and attributes (module `tree`)
//! cache/   fetched files (module `cache`)
//! ```
//!
//! The record is written last. It contains no address and no password, because a store may belong
//! to another user.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustic_core::repofile::Node;
use serde::{Deserialize, Serialize};

use super::super::measure::{broken, measure};
use super::super::{PushedSnapshot, Remote, failed, node};
use super::cache::ContentCache;
use super::tree::{SnapshotTree, TreeRow, TreeWriter};
use crate::limits::{self, DEPTH_MAX, Limits};
use ckptfs_api::{CheckpointId, Code, VerbError, VerbResult, hinted};
use ckptfs_store::ids::Slot;
use ckptfs_store::layout::{has_origin, make_origin, open_origin, sync_origin};
use ckptfs_sys::{self as sys, Access, Errno, OpenKind, RenameMode, SysResult, Time};

const RECORD: &[u8] = b"record";
const TREE: &[u8] = b"tree";
const CACHE: &[u8] = b"cache";
/// Size limit of the record, in bytes.
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// Size limit of the tree, in bytes.
const TREE_BYTES_MAX: u64 = 16 << 30;

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginRecord {
    /// The name of the remote at the time of creation.
    pub remote: String,
    /// The ID of the repository.
    pub repository: String,
    /// The ID of the snapshot.
    pub snapshot: String,
    /// The store of the snapshot.
    pub store: String,
    /// The checkpoint there.
    pub checkpoint: CheckpointId,
    /// The hash of the file `tree`, in hexadecimal.
    pub tree: String,
    /// The creation time of the tree: seconds and nanoseconds. No ctime in it is later.
    pub made: (i64, u32),
}

/// The origin in a store.
pub struct StoredOrigin {
    dir: OwnedFd,
    /// Its record.
    pub record: OriginRecord,
}

fn damaged(what: &str) -> VerbError {
    hinted(
        Code::BadStore,
        format!("{what} of the remote that this tree was mounted from is damaged"),
        "what was changed here is in the directory; mount the remote in a new one: ckptfs mount --from REMOTE DIR",
    )
}

pub(super) fn unusable(errno: Errno) -> VerbError {
    hinted(
        Code::Io,
        format!("what the store knows of the remote cannot be used: {errno}"),
        "nothing was changed",
    )
}

/// Reads a whole file of the store.
fn read(dir: &OwnedFd, name: &[u8], max: u64) -> SysResult<Vec<u8>> {
    let file = sys::open_file_at(dir, name, Access::READ)?;
    let stat = sys::stat_fd(&file)?;
    if stat.kind != sys::Kind::File || stat.size > max {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0; usize::try_from(stat.size).map_err(|_| Errno::EINVAL)?];
    let filled = sys::read_full_at(&file, &mut bytes, 0)?;
    bytes.truncate(filled);
    Ok(bytes)
}

/// Writes a file under a temporary name, syncs it, and renames it.
fn write(dir: &OwnedFd, name: &[u8], bytes: &[u8]) -> SysResult<()> {
    let new = [name, b".new"].concat();
    match sys::unlink_at(dir, &new) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    let file = sys::create_file_at(dir, &new, Access::READ_WRITE, 0o600)?;
    sys::write_all_at(&file, bytes, 0)?;
    sys::fsync(&file)?;
    sys::rename_at(dir, &new, dir, name, RenameMode::Replace)
}

impl StoredOrigin {
    /// Returns whether the creation of a tree in the directory `root` was completed.
    pub fn is_there(root: impl AsFd) -> bool {
        open_origin(root).is_ok_and(|dir| sys::stat_at(&dir, RECORD).is_ok())
    }

    /// Reads the origin from the store of the directory `root`; `None`: the tree has no origin.
    ///
    /// # Errors
    /// `bad-store`: it is damaged.
    pub fn of(root: impl AsFd) -> VerbResult<Option<StoredOrigin>> {
        let Ok(dir) = open_origin(&root) else {
            return match has_origin(&root) {
                true => Err(damaged("what the store knew")),
                false => Ok(None),
            };
        };
        let bytes = match read(&dir, RECORD, RECORD_BYTES_MAX) {
            Err(Errno::ENOENT) => {
                return Err(hinted(
                    Code::Unfinished,
                    "mounting it from a remote was not finished",
                    "run the same ckptfs mount --from again",
                ));
            }
            read => read.map_err(|_| damaged("the record"))?,
        };
        let record = serde_json::from_slice(&bytes).map_err(|_| damaged("the record"))?;
        Ok(Some(StoredOrigin { dir, record }))
    }

    pub(super) fn take(self) -> VerbResult<(OriginRecord, SnapshotTree, ContentCache)> {
        let StoredOrigin { dir, record } = self;
        let packed = read(&dir, TREE, TREE_BYTES_MAX).map_err(|_| damaged("the list of names"))?;
        if blake3::hash(&packed).to_hex().as_str() != record.tree {
            return Err(damaged("the list of names"));
        }
        let (sec, nsec) = record.made;
        let tree = SnapshotTree::read(&packed, Time { sec, nsec });
        let tree = tree.map_err(|_| damaged("the list of names"))?;
        match sys::mkdir_at(&dir, CACHE, 0o700) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(unusable(errno)),
        }
        let cache = sys::open_beneath(&dir, CACHE, OpenKind::Dir).map_err(unusable)?;
        Ok((record, tree, ContentCache(cache)))
    }
}

impl Remote {
    /// Returns the ID of the repository, in hexadecimal.
    pub fn id(&self) -> String {
        self.repo.config().id.to_hex().to_string()
    }

    /// Reads the names and attributes of a snapshot, and writes them to the store of the directory
    /// `root`, which has no origin yet. `name`: that of the remote. Durable on return. Returns the
    /// number of names left out because only root can create them.
    ///
    /// # Errors
    /// `remote-failed`; `incomplete`: it contains no tree of ckptfs, or an invalid one.
    pub fn make_origin(self, name: &str, pushed: &PushedSnapshot, root: &File) -> VerbResult<u64> {
        let made = sys::now();
        let repository = self.id();
        let (tree, left_out) = self.names(pushed, made)?;
        let record = OriginRecord {
            remote: name.to_owned(),
            repository,
            snapshot: pushed.snapshot.clone(),
            store: pushed.store.clone(),
            checkpoint: pushed.checkpoint,
            tree: blake3::hash(&tree).to_hex().to_string(),
            made: (made.sec, made.nsec),
        };
        let record = serde_json::to_vec(&record)
            .map_err(|cause| hinted(Code::Internal, cause.to_string(), "report it"))?;
        let dir = make_origin(root).map_err(|cause| unusable(cause.errno()))?;
        write(&dir, TREE, &tree)
            .and_then(|()| write(&dir, RECORD, &record))
            .and_then(|()| Ok(sync_origin(root)?))
            .map_err(unusable)?;
        Ok(left_out)
    }

    fn names(self, pushed: &PushedSnapshot, latest: Time) -> VerbResult<(Vec<u8>, u64)> {
        let broken = |what: &str| broken(pushed, what);
        let repo = self.repo.to_indexed().map_err(failed)?;
        let (root, totals) = measure(&repo, pushed)?;
        let whose = format!("snapshot {}", pushed.snapshot);
        limits::check(
            &whose,
            totals.held,
            Limits::new().names(),
            "bytes of names and attributes",
        )?;
        let (mut written, mut left_out) = (TreeWriter::new(latest).map_err(unusable)?, 0);
        // Open directories: their numbers, and their remaining nodes.
        let mut open: Vec<(Slot, std::vec::IntoIter<Node>)> = Vec::new();
        let (mut next, mut left) = (Some((Slot(0), root)), totals.entries);
        while let Some((up, node)) = next.take().or_else(|| next_of(&mut open)) {
            let changed = || broken("it is not the same as when it was read before");
            left = left.checked_sub(1).ok_or_else(changed)?;
            let name = if up == Slot(0) {
                Vec::new()
            } else {
                node.name().as_bytes().to_vec()
            };
            let Some(entry) = node::to_entry(&node, name) else {
                left_out += 1;
                continue;
            };
            let linked = entry
                .is_linked()
                .then_some((node.meta.device_id, node.meta.inode));
            let subtree = node.subtree.filter(|_| node.is_dir());
            let blobs = node.content.filter(|_| entry.kind == sys::Kind::File);
            let row = TreeRow {
                up: up.0,
                blobs: blobs.unwrap_or_default(),
                entry,
            };
            let slot = match written.add(row, linked) {
                Ok(slot) => slot,
                Err(Errno::EPERM) => {
                    left_out += 1;
                    continue;
                }
                Err(_) => return Err(broken("a name in it cannot be one")),
            };
            if node.node_type == rustic_core::repofile::NodeType::Dir {
                let tree = subtree.ok_or_else(|| broken("a directory has no content"))?;
                if open.len() >= DEPTH_MAX {
                    return Err(broken("its directories are too deep"));
                }
                open.push((
                    slot,
                    repo.get_tree(&tree).map_err(failed)?.nodes.into_iter(),
                ));
            }
        }
        let packed = written.finish().map_err(|errno| match errno {
            Errno::EINVAL => broken("a directory in it has a name twice"),
            errno => unusable(errno),
        })?;
        Ok((packed, left_out))
    }
}

/// Returns the next node of a walk.
fn next_of(open: &mut Vec<(Slot, std::vec::IntoIter<Node>)>) -> Option<(Slot, Node)> {
    while let Some((up, nodes)) = open.last_mut() {
        if let Some(node) = nodes.next() {
            return Some((*up, node));
        }
        open.pop();
    }
    None
}
