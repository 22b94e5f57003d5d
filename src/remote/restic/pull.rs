//! Pulls a snapshot into a tree.
//!
//! It produces the parts of an export from a snapshot, so that the same
//! [`Writer`](ckptfs_transfer::write::Writer) creates the tree: below a descriptor, without
//! following symbolic links. Every blob is verified by its hash; a snapshot is trusted no more than
//! a tar stream.

use std::collections::HashMap;
use std::fs::File;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use bytes::Bytes;
use rustic_core::repofile::Node;
use rustic_core::{DataId, IndexedFullStatus, Repository, RusticResult};
use sha2::{Digest, Sha256};

use super::backend::CheckedBackend;
use super::existing::{self, ExistingTree};
use super::measure::{Totals, broken, measure};
use super::{PushedSnapshot, Remote, failed, node};
use crate::limits::{self, CRYPT_BYTES, DEPTH_MAX, Limits};
use ckptfs_api::{ExportData, ExportEntry, ExportPart, Refused, TreePath, VerbResult};
use ckptfs_store::layout::STORE_NAME;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, Kind};
use ckptfs_transfer::{PartSource, is_zeros};

/// Limit of entries in one part, and approximate limit of the bytes of its files.
const ENTRIES_MAX: usize = 64;
const PART_BYTES_MAX: u64 = 8 << 20;
/// A larger file is not assembled in memory.
const MEMORY_BYTES_MAX: u64 = 8 << 20;
/// Size of a block of zeros that becomes a hole.
pub(super) const HOLE_BYTES: usize = 4096;

/// A snapshot being read.
pub struct SnapshotReader {
    repo: Repository<IndexedFullStatus>,
    watched: Arc<CheckedBackend>,
    walk: Mutex<SnapshotWalk>,
    dest: OwnedFd,
    /// Existing files at the destination, if they may be of this tree.
    there: Option<ExistingTree>,
    pushed: PushedSnapshot,
}

/// The position in the tree.
#[derive(Default)]
struct SnapshotWalk {
    /// Open directories: path and remaining nodes.
    open: Vec<(Vec<u8>, std::vec::IntoIter<Node>)>,
    root: Option<Node>,
    /// Remaining entries, of the number measured before.
    left: u64,
    parts: u64,
    /// The inodes of hard-linked files, by device and number.
    inodes: HashMap<(u64, u64), u64>,
}

impl Remote {
    /// Begins to read a snapshot. `dest`: the destination of the tree. `there`: an existing tree,
    /// whose files are compared with those of the snapshot by hashes; equal content of any name is
    /// not fetched.
    ///
    /// # Errors
    /// `remote-failed`; `incomplete` if the snapshot contains no tree of ckptfs, or does not fit on
    /// the filesystem.
    pub fn read(
        self,
        pushed: &PushedSnapshot,
        dest: OwnedFd,
        there: Option<OwnedFd>,
    ) -> VerbResult<SnapshotReader> {
        let repo = self.repo.to_indexed().map_err(failed)?;
        let (root, totals) = measure(&repo, pushed)?;
        let Totals { entries, paths, .. } = totals;
        limits::check(
            "the snapshot",
            paths,
            Limits::new().names(),
            "bytes of paths of directories",
        )?;
        // With an existing tree, the number of new inodes is not yet known.
        if there.is_none() && !limits::has_room(&dest, 0, entries) {
            return Err(limits::no_room());
        }
        let walk = SnapshotWalk {
            root: Some(root),
            left: entries,
            ..SnapshotWalk::default()
        };
        Ok(SnapshotReader {
            repo,
            watched: self.watched,
            walk: Mutex::new(walk),
            dest,
            there: there.map(ExistingTree::new),
            pushed: pushed.clone(),
        })
    }
}

/// The share of one thread in reading a snapshot.
pub struct SnapshotFeed(pub Arc<SnapshotReader>);

impl PartSource for SnapshotFeed {
    fn next(&mut self, _done: Vec<u64>) -> VerbResult<(ExportPart, Vec<OwnedFd>)> {
        self.0.part()
    }
}

impl SnapshotReader {
    fn part(&self) -> VerbResult<(ExportPart, Vec<OwnedFd>)> {
        let mut part = ExportPart {
            run: 1,
            checkpoint: self.pushed.checkpoint,
            from: None,
            store: self.pushed.store.clone(),
            part: 0,
            removed: Vec::new(),
            entries: Vec::new(),
            refused: Vec::new(),
            unproven: Vec::new(),
            total: None,
            finished: false,
        };
        let nodes = {
            let mut walk = self.walk.lock();
            let nodes = self.nodes(&mut walk, &mut part.refused)?;
            walk.parts += 1;
            part.part = walk.parts;
            nodes
        };
        part.finished = nodes.is_empty() && part.refused.is_empty();
        let mut files = Vec::new();
        for (mut entry, node) in nodes {
            if entry.kind == Kind::File {
                match self.content(&entry, node.content.as_deref().unwrap_or_default()) {
                    Ok(None) => entry.data = ExportData::Kept,
                    Ok(Some(file)) => {
                        entry.data = ExportData::File;
                        files.push(OwnedFd::from(file));
                    }
                    Err(ReadFailure::Failed(error)) => return Err(error),
                    Err(ReadFailure::Refused(errno)) => {
                        part.refused.push(Refused {
                            path: entry.path,
                            errno: errno.0,
                        });
                        continue;
                    }
                }
            }
            part.entries.push(entry);
        }
        Ok((part, files))
    }

    /// Returns the next nodes of the walk, with their entries.
    fn nodes(
        &self,
        walk: &mut SnapshotWalk,
        refused: &mut Vec<Refused>,
    ) -> VerbResult<Vec<(ExportEntry, Node)>> {
        let (mut nodes, mut bytes) = (Vec::new(), 0);
        if let Some(root) = walk.root.take() {
            self.enter(walk, Vec::new(), &root, refused);
            nodes.extend(node::to_entry(&root, Vec::new()).map(|entry| (entry, root)));
        }
        while nodes.len() < ENTRIES_MAX && bytes < PART_BYTES_MAX && refused.len() < ENTRIES_MAX {
            let Some((dir, left)) = walk.open.last_mut() else {
                break;
            };
            let Some(node) = left.next() else {
                walk.open.pop();
                continue;
            };
            let changed = || {
                broken(
                    &self.pushed,
                    "it is not the same as when it was read before",
                )
            };
            walk.left = walk.left.checked_sub(1).ok_or_else(changed)?;
            let name = node.name().as_bytes().to_vec();
            let path = if dir.is_empty() {
                name.clone()
            } else {
                [dir, b"/".as_slice(), &name].concat()
            };
            let is_own = dir.is_empty() && name == STORE_NAME.as_bytes();
            if matches!(name.as_slice(), b"" | b"." | b"..") || name.contains(&b'/') || is_own {
                refused.push(Refused {
                    path: TreePath(path),
                    errno: Errno::EINVAL.0,
                });
                continue;
            }
            let Some(mut entry) = node::to_entry(&node, path.clone()) else {
                continue;
            };
            if entry.is_linked() {
                let next = walk.inodes.len() as u64 + 1;
                let key = (node.meta.device_id, node.meta.inode);
                entry.inode = *walk.inodes.entry(key).or_insert(next);
            }
            bytes += entry.size;
            if node.is_dir() {
                self.enter(walk, path, &node, refused);
            }
            nodes.push((entry, node));
        }
        Ok(nodes)
    }

    fn enter(
        &self,
        walk: &mut SnapshotWalk,
        path: Vec<u8>,
        dir: &Node,
        refused: &mut Vec<Refused>,
    ) {
        let tree = dir.subtree.map(|tree| self.repo.get_tree(&tree));
        match tree {
            Some(Ok(tree)) if walk.open.len() < DEPTH_MAX => {
                walk.open.push((path, tree.nodes.into_iter()));
            }
            _ => refused.push(Refused {
                path: TreePath(path),
                errno: Errno::EIO.0,
            }),
        }
    }

    /// Returns the content of a file; `None`: the destination has the same file.
    fn content(&self, entry: &ExportEntry, blobs: &[DataId]) -> Result<Option<File>, ReadFailure> {
        if let Some(there) = &self.there {
            if there.has(entry, blobs, &self.repo).unwrap_or(false) {
                return Ok(None);
            }
            if let Some(elsewhere) = there.find(entry, blobs, &self.repo) {
                return Ok(Some(elsewhere));
            }
        }
        let earlier = self.there.as_ref().and_then(|there| there.earlier(entry));
        let in_memory = entry.size <= MEMORY_BYTES_MAX;
        let out = sys::unnamed_file((!in_memory).then_some(&self.dest))?;
        let (mut at, mut last) = (0, None);
        for id in blobs {
            let length = blob_length(&self.repo, id)
                .filter(|length| *length <= entry.size.saturating_sub(at))
                .ok_or(Errno::EIO)?;
            // A long hole repeats the same blob.
            let blob: Bytes = match last.take() {
                Some((known, blob)) if known == *id => blob,
                _ => self.blob(id, earlier.as_ref(), (at, length))?,
            };
            if !limits::has_room(&self.dest, length, 1) {
                return Err(ReadFailure::Failed(limits::no_room()));
            }
            for piece in blob.chunks(HOLE_BYTES) {
                // Blocks of zeros are left as holes; the file is extended at the end.
                if !is_zeros(piece) {
                    sys::write_all_at(&out, piece, at)?;
                }
                at += piece.len() as u64;
            }
            last = Some((*id, blob));
        }
        if at != entry.size {
            return Err(ReadFailure::Refused(Errno::EIO));
        }
        sys::truncate(&out, entry.size)?;
        Ok(Some(out))
    }

    /// Returns a verified blob. `earlier`: a file that may contain it at this offset.
    fn blob(
        &self,
        id: &DataId,
        earlier: Option<&File>,
        place: (u64, u64),
    ) -> Result<Bytes, ReadFailure> {
        if let Some(known) = earlier.and_then(|file| existing::piece(file, id, place).ok()?) {
            return Ok(known.into());
        }
        let blob = blob(&self.repo, &self.watched, id)
            .map_err(|cause| ReadFailure::Failed(failed(cause)))?;
        match is_hash(id, &blob) {
            true => Ok(blob),
            false => Err(ReadFailure::Refused(Errno::EIO)),
        }
    }
}

/// Fetches a blob without verifying its hash.
pub(super) fn blob(
    repo: &Repository<IndexedFullStatus>,
    watched: &CheckedBackend,
    id: &DataId,
) -> RusticResult<Bytes> {
    let entry = repo.get_index_entry(id)?;
    let place = entry.location;
    let unpacked = place.uncompressed_length.map(NonZero::get);
    watched.blob(&entry.pack, (place.offset, place.length), unpacked)
}

/// Returns the size of a blob from the index; `None`: not in the index. Reading the blob allocates
/// that much memory, so callers first check that it fits in the file.
pub(super) fn blob_length(repo: &Repository<IndexedFullStatus>, id: &DataId) -> Option<u64> {
    let known = repo.get_index_entry(id).ok()?.location;
    let stored = u64::from(known.length).saturating_sub(CRYPT_BYTES);
    let unpacked = known.uncompressed_length;
    Some(unpacked.map_or(stored, |length| length.get().into()))
}

/// The reason why a file was not read.
enum ReadFailure {
    /// The following files cannot be read either.
    Failed(ckptfs_api::VerbError),
    Refused(Errno),
}

impl From<Errno> for ReadFailure {
    fn from(errno: Errno) -> ReadFailure {
        ReadFailure::Refused(errno)
    }
}

/// Returns whether the ID of a blob is the SHA-256 of its content.
pub(super) fn is_hash(id: &DataId, blob: &[u8]) -> bool {
    *id.to_hex() == *hash(blob)
}

/// Returns the hash of a blob, in hexadecimal.
pub(super) fn hash(blob: &[u8]) -> String {
    let hash = Sha256::digest(blob);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
