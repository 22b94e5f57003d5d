//! The names and attributes of a snapshot, in the format of a store.
//!
//! One line of JSON for each name, in the order of the walk, compressed; the hash of the file is in
//! the record. A directory precedes its entries. The author of the snapshot, or damage to the file,
//! may have produced anything: each line is checked when it is added, also before it is written.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};

use rustic_core::DataId;
use serde::{Deserialize, Serialize};

use crate::limits::DEPTH_MAX;
use ckptfs_api::{ExportEntry, STORE_NAME};
use ckptfs_core::history::present::Trail;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child, Place};
use ckptfs_sys::{
    self as sys, Errno, Kind, Protection, Stat, SysResult, Time, Xattrs, is_own_xattr,
};

/// Maximum length of a name in bytes.
const NAME_MAX: usize = 255;
/// The number of the first inode after the root.
const FIRST: u64 = 2;
/// Limit of names in a tree. A directory at many places of a snapshot is one blob: without a limit
/// a few bytes could expand to more names than fit in memory.
const NAMES_MAX: usize = 16 << 20;
/// Size limit of a line in bytes: extended attributes, and the blob IDs of a large file.
const LINE_BYTES_MAX: u64 = 256 << 20;
/// Prefix of names that a tree with a base reserves.
const HIDDEN_PREFIX: &[u8] = b".ckptfs-hidden-";

/// One name.
#[derive(Debug, Serialize, Deserialize)]
pub struct TreeRow {
    /// The number of the directory.
    #[serde(rename = "u")]
    pub up: u64,
    /// The entry. Its path is the name alone. Its inode is that of the first row of the same inode,
    /// or else the next number.
    #[serde(rename = "e")]
    pub entry: ExportEntry,
    /// The blobs of the content.
    #[serde(rename = "b", default, skip_serializing_if = "Vec::is_empty")]
    pub blobs: Vec<DataId>,
}

/// An inode.
#[derive(Debug)]
struct Inode {
    attr: AttrState,
    xattrs: Xattrs,
    /// The first of its names.
    place: Place,
    depth: usize,
    /// The entries of a directory, sorted by [`SnapshotTree::finish`].
    names: Vec<(Name, u32)>,
    blobs: Box<[DataId]>,
}

/// The names and attributes of a snapshot.
#[derive(Debug, Default)]
pub struct SnapshotTree {
    /// In order of their numbers, the root first.
    inodes: Vec<Inode>,
    names: usize,
}

/// Returns the index of a slot in [`SnapshotTree::inodes`].
fn index_of(slot: Slot) -> Option<usize> {
    match slot {
        Slot::ROOT => Some(0),
        Slot(number) => usize::try_from(number.checked_sub(FIRST)?)
            .ok()?
            .checked_add(1),
    }
}

fn slot_of(index: usize) -> Slot {
    match index {
        0 => Slot::ROOT,
        index => Slot(index as u64 - 1 + FIRST),
    }
}

/// Returns the attributes of an entry. `latest`: upper bound of its ctime, because it existed when
/// the tree was created.
fn stat_of(entry: &ExportEntry, slot: Slot, latest: Time) -> Stat {
    let ctime = Time {
        sec: entry.ctime[0],
        nsec: u32::try_from(entry.ctime[1]).unwrap_or(0),
    };
    Stat {
        dev: 0,
        ino: slot.0,
        kind: entry.kind,
        mode: entry.mode & 0o7777,
        nlink: 1,
        uid: entry.uid,
        gid: entry.gid,
        rdev: entry.rdev,
        size: match (entry.kind, &entry.target) {
            (Kind::Symlink, Some(target)) => target.0.len() as u64,
            _ => entry.size,
        },
        blocks: entry.size.div_ceil(512),
        blksize: 4096,
        atime: entry.atime(),
        mtime: entry.mtime(),
        ctime: ctime.min(latest),
        btime: None,
        protection: Protection::None,
    }
}

/// Returns whether a name is valid in a directory.
fn is_name(dir: Slot, name: &[u8]) -> bool {
    let is_ours =
        name.starts_with(HIDDEN_PREFIX) || dir == Slot::ROOT && name == STORE_NAME.as_bytes();
    let is_none = matches!(name, b"" | b"." | b"..")
        || name.len() > NAME_MAX
        || name.contains(&b'/')
        || name.contains(&0);
    !is_ours && !is_none
}

impl SnapshotTree {
    /// Returns the number of the next new inode.
    pub fn next(&self) -> Slot {
        slot_of(self.inodes.len())
    }

    /// Adds a name. `latest`: as [`SnapshotTree::read`].
    ///
    /// # Errors
    /// EINVAL: the row is invalid.
    pub fn add(&mut self, row: TreeRow, latest: Time) -> SysResult<()> {
        let TreeRow { up, entry, blobs } = row;
        let (up, slot) = (Slot(up), Slot(entry.inode));
        let name = Name::new(&entry.path.0);
        let (is_root, is_dir) = (self.inodes.is_empty(), entry.kind == Kind::Dir);
        let index = index_of(slot).ok_or(Errno::EINVAL)?;
        if is_root {
            let fits = slot == Slot::ROOT && is_dir && name.as_bytes().is_empty();
            fits.then_some(()).ok_or(Errno::EINVAL)?;
        }
        let above = index_of(up).filter(|above| *above < self.inodes.len());
        let depth = match above.and_then(|above| self.inodes.get(above)) {
            None if is_root => 0,
            Some(dir) if !is_root && dir.attr.stat.kind == Kind::Dir => dir.depth + 1,
            _ => return Err(Errno::EINVAL),
        };
        let fits = (entry.kind == Kind::Symlink) == entry.target.is_some()
            && i64::try_from(entry.size).is_ok()
            && (is_root || is_name(up, name.as_bytes()) && depth <= DEPTH_MAX);
        fits.then_some(()).ok_or(Errno::EINVAL)?;
        self.names += 1;
        let is_next = index == self.inodes.len() && self.names <= NAMES_MAX;
        match self.inodes.get_mut(index) {
            None if is_next => {
                let stat = stat_of(&entry, slot, latest);
                let target = entry.target.map(|target| target.0);
                let mut xattrs: Xattrs = entry
                    .xattrs
                    .into_iter()
                    .map(|(name, value)| (name.0, value.0))
                    .filter(|(name, _)| !is_own_xattr(name))
                    .collect();
                xattrs.sort();
                self.inodes.push(Inode {
                    attr: AttrState { stat, target },
                    xattrs,
                    place: Place {
                        parent: up,
                        name: name.clone(),
                    },
                    depth,
                    names: Vec::new(),
                    blobs: blobs.into_boxed_slice(),
                });
            }
            // A further name of an inode.
            Some(known)
                if !is_dir && self.names <= NAMES_MAX && known.attr.stat.kind == entry.kind =>
            {
                known.attr.stat.nlink = known.attr.stat.nlink.saturating_add(1);
            }
            _ => return Err(Errno::EINVAL),
        }
        if let Some(dir) = above.and_then(|above| self.inodes.get_mut(above)) {
            let index = u32::try_from(index).map_err(|_| Errno::EINVAL)?;
            dir.names.push((name, index));
        }
        Ok(())
    }

    /// Completes the tree after all names were added.
    ///
    /// # Errors
    /// EINVAL: it has no root, or a directory has a name twice.
    pub fn finish(&mut self) -> SysResult<()> {
        for inode in &mut self.inodes {
            inode.names.sort();
            inode.names.shrink_to_fit();
            if inode.names.windows(2).any(|two| two[0].0 == two[1].0) {
                return Err(Errno::EINVAL);
            }
        }
        if self.inodes.is_empty() {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Reads the output of [`TreeWriter`]. `latest`: upper bound of each ctime.
    ///
    /// # Errors
    /// EINVAL: it is damaged.
    pub fn read(packed: &[u8], latest: Time) -> SysResult<SnapshotTree> {
        let unpacked = zstd::stream::read::Decoder::new(packed).map_err(|_| Errno::EINVAL)?;
        let (mut lines, mut line) = (BufReader::with_capacity(1 << 20, unpacked), Vec::new());
        let mut tree = SnapshotTree::default();
        loop {
            line.clear();
            let read = (&mut lines)
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut line);
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => return Err(Errno::EINVAL),
            }
            let row = serde_json::from_slice(&line).map_err(|_| Errno::EINVAL)?;
            tree.add(row, latest)?;
        }
        tree.finish()?;
        Ok(tree)
    }

    fn inode(&self, slot: Slot) -> SysResult<&Inode> {
        let inode = index_of(slot).and_then(|index| self.inodes.get(index));
        inode.ok_or(Errno::ESTALE)
    }

    fn dir(&self, slot: Slot) -> SysResult<&Inode> {
        let inode = self.inode(slot)?;
        match inode.attr.stat.kind {
            Kind::Dir => Ok(inode),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn child_at(&self, index: u32) -> SysResult<Child> {
        let inode = self.inodes.get(index as usize).ok_or(Errno::EIO)?;
        Ok(Child {
            slot: slot_of(index as usize),
            kind: inode.attr.stat.kind,
        })
    }

    pub fn child(&self, dir: &Trail, name: &Name) -> SysResult<Option<Child>> {
        let names = &self.dir(dir.slot)?.names;
        let found = names.binary_search_by(|(known, _)| known.cmp(name));
        let index = found.ok().and_then(|at| names.get(at));
        index.map(|(_, index)| self.child_at(*index)).transpose()
    }

    pub fn list(&self, dir: &Trail) -> SysResult<Vec<(Name, Child)>> {
        let names = self.dir(dir.slot)?.names.iter();
        names
            .map(|(name, index)| Ok((name.clone(), self.child_at(*index)?)))
            .collect()
    }

    pub fn attr(&self, slot: Slot) -> SysResult<AttrState> {
        Ok(self.inode(slot)?.attr.clone())
    }

    pub fn xattrs(&self, slot: Slot) -> SysResult<Xattrs> {
        Ok(self.inode(slot)?.xattrs.clone())
    }

    pub fn place(&self, slot: Slot) -> Option<Place> {
        let place = &self.inode(slot).ok()?.place;
        (slot != Slot::ROOT).then(|| place.clone())
    }

    /// Returns the size and the blobs of a regular file.
    ///
    /// # Errors
    /// ESTALE; EINVAL: it is not a regular file.
    pub fn content(&self, slot: Slot) -> SysResult<(u64, &[DataId])> {
        let inode = self.inode(slot)?;
        match inode.attr.stat.kind {
            Kind::File => Ok((inode.attr.stat.size, &inode.blobs)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Iterates over the regular files and their sizes, in the order in which they were packed.
    pub fn files(&self) -> impl Iterator<Item = (Slot, u64)> {
        let inodes = self.inodes.iter().enumerate();
        inodes
            .filter(|(_, inode)| inode.attr.stat.kind == Kind::File)
            .map(|(index, inode)| (slot_of(index), inode.attr.stat.size))
    }

    /// Returns a path of an inode for display.
    pub fn path(&self, slot: Slot) -> Vec<u8> {
        let (mut names, mut at) = (Vec::new(), slot);
        while let Some(place) = self.place(at) {
            names.push(place.name.as_bytes().to_vec());
            at = place.parent;
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// The writer of a tree.
pub struct TreeWriter {
    packer: zstd::stream::write::Encoder<'static, Vec<u8>>,
    tree: SnapshotTree,
    latest: Time,
    /// The inodes of hard-linked files, by device and number.
    linked: HashMap<(u64, u64), Slot>,
}

impl TreeWriter {
    /// Creates a writer. `latest`: as [`SnapshotTree::read`].
    ///
    /// # Errors
    /// EIO.
    pub fn new(latest: Time) -> SysResult<TreeWriter> {
        let packer = zstd::stream::write::Encoder::new(Vec::new(), 1);
        Ok(TreeWriter {
            packer: packer.map_err(|_| Errno::EIO)?,
            tree: SnapshotTree::default(),
            latest,
            linked: HashMap::new(),
        })
    }

    /// Adds a name; returns its inode number. `linked`: device and number of an inode with several
    /// names.
    ///
    /// # Errors
    /// EPERM: a device node, unless root mounts; EINVAL: the row is invalid.
    pub fn add(&mut self, mut row: TreeRow, linked: Option<(u64, u64)>) -> SysResult<Slot> {
        if sys::ids().0 != 0 {
            row.entry = row.entry.of_stranger()?;
        }
        let next = self.tree.next();
        let slot = match linked {
            Some(inode) => *self.linked.entry(inode).or_insert(next),
            None => next,
        };
        row.entry.inode = slot.0;
        let mut line = serde_json::to_vec(&row).map_err(|_| Errno::EINVAL)?;
        line.push(b'\n');
        self.tree.add(row, self.latest)?;
        self.packer.write_all(&line).map_err(|_| Errno::EIO)?;
        Ok(slot)
    }

    /// Completes the tree and returns it compressed.
    ///
    /// # Errors
    /// EINVAL: the tree is invalid.
    pub fn finish(mut self) -> SysResult<Vec<u8>> {
        self.tree.finish()?;
        self.packer.finish().map_err(|_| Errno::EIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ckptfs_api::ExportData;
    use ckptfs_api::TreePath;

    const LATEST: Time = Time { sec: 100, nsec: 0 };

    fn row(up: u64, inode: u64, kind: Kind, name: &str) -> TreeRow {
        let entry = ExportEntry {
            path: TreePath(name.as_bytes().to_vec()),
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: if kind == Kind::File { 3 } else { 0 },
            times: [1, 2, 3, 4],
            ctime: [500, 6],
            inode,
            nlink: 1,
            target: (kind == Kind::Symlink).then(|| TreePath(b"to".to_vec())),
            xattrs: vec![
                (TreePath(b"user.b".to_vec()), TreePath(b"1".to_vec())),
                (
                    TreePath(b"user.ckptfs.origin".to_vec()),
                    TreePath(vec![0; 20]),
                ),
            ],
            data: ExportData::None,
            again: false,
        };
        let blobs = Vec::new();
        TreeRow { up, entry, blobs }
    }

    fn tree() -> Vec<u8> {
        let mut written = TreeWriter::new(LATEST).expect("memory");
        for (up, kind, name, linked) in [
            (0, Kind::Dir, "", None),
            (1, Kind::File, "b", Some((1, 7))),
            (1, Kind::Dir, "a", None),
            (3, Kind::File, "b2", Some((1, 7))),
            (3, Kind::Symlink, "l", None),
        ] {
            written.add(row(up, 0, kind, name), linked).expect("fits");
        }
        written.finish().expect("a tree")
    }

    #[test]
    fn what_is_written_is_read() {
        let tree = SnapshotTree::read(&tree(), LATEST).expect("as written");
        let root = Trail::root();
        let names: Vec<_> = tree.list(&root).expect("a directory");
        assert_eq!(
            names
                .iter()
                .map(|(name, _)| name.as_bytes())
                .collect::<Vec<_>>(),
            [b"a", b"b"]
        );
        let dir = root.step(&names[0].0, names[0].1.slot);
        let linked = tree
            .child(&dir, &Name::new(b"b2"))
            .expect("asked")
            .expect("there");
        assert_eq!(linked, names[1].1, "both are one inode");
        let attr = tree.attr(linked.slot).expect("there");
        assert_eq!((attr.stat.nlink, attr.stat.ctime), (2, LATEST));
        assert_eq!(
            tree.xattrs(linked.slot).expect("there").len(),
            1,
            "none of ours"
        );
        assert_eq!(tree.path(linked.slot), b"b");
        assert_eq!(tree.files().count(), 1);
    }

    #[test]
    fn what_cannot_be_is_refused_and_what_is_damaged_is_no_panic() {
        let mut root = SnapshotTree::default();
        root.add(row(0, 1, Kind::Dir, ""), LATEST).expect("a root");
        for bad in [
            row(1, 2, Kind::File, ""),
            row(1, 2, Kind::File, ".."),
            row(1, 2, Kind::File, "a/b"),
            row(1, 2, Kind::Dir, ".ckptfs"),
            row(1, 2, Kind::File, ".ckptfs-hidden-1"),
            row(1, 3, Kind::File, "leaves a number out"),
            row(1, 1, Kind::Dir, "leads to itself"),
            row(2, 2, Kind::File, "is in nothing"),
            row(1, 0, Kind::File, "has no number"),
            row(1, u64::MAX, Kind::File, "has a large one"),
        ] {
            let said = format!("{bad:?}");
            assert_eq!(root.add(bad, LATEST), Err(Errno::EINVAL), "{said}");
        }
        root.add(row(1, 2, Kind::File, "twice"), LATEST)
            .expect("once");
        root.add(row(1, 2, Kind::File, "twice"), LATEST)
            .expect("another name");
        assert_eq!(root.finish(), Err(Errno::EINVAL));
        let whole = tree();
        for at in 0..whole.len() {
            for bit in [1, 0x80] {
                let mut flipped = whole.clone();
                flipped[at] ^= bit;
                let _ = SnapshotTree::read(&flipped, LATEST);
            }
            let _ = SnapshotTree::read(&whole[..at], LATEST);
        }
    }
}
