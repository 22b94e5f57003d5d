//! Unpacks the layers of an image into a tree.
//!
//! First all layers are read, the lowest first, but only names and attributes are stored: hidden
//! entries are discarded, and invalid ones are found before anything is created. Then each layer is
//! read again, and its visible entries go to a [`Writer`], which creates them below a directory and
//! follows no symbolic link.
//!
//! Any user who can write to the registry may have created the image. Unless it is declared as
//! trusted, everything that grants privileges is left out: set-id bits, devices, and extended
//! attributes that only the system or root sets. A store is always left out, because a mount would
//! trust it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use super::layer::{OPAQUE, WHITEOUT};
use super::untar::{self, Untar};
use super::{HashingIo, bare, in_scratch, scratch};
use crate::limits::{self, IMAGE_DEPTH_MAX, IMAGE_ENTRY_BYTES, Limits};
use ckptfs_api::{
    Code, ExportData, ExportEntry, Refused, STORE_NAME, TreePath, VerbError, VerbResult, error,
};
use ckptfs_sys::{self as sys, Errno, Kind, SysResult, is_own_xattr};
use ckptfs_transfer::dirs::{DirCache, split};
use ckptfs_transfer::is_zeros;
use ckptfs_transfer::write::Writer;

/// Size of the buffers.
const CHUNK_BYTES: usize = 256 << 10;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// The compression of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerCompression {
    /// Uncompressed.
    None,
    /// gzip.
    Gzip,
    /// zstd.
    Zstd,
}

/// A layer as fetched from the registry.
#[derive(Debug)]
pub struct PackedLayer {
    /// The file.
    pub file: File,
    /// Its compression.
    pub packing: LayerCompression,
    /// Digest of the uncompressed tar.
    pub diff_id: String,
}

/// Counts of objects of an image that are left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeftOutCounts {
    /// Devices.
    pub devices: u64,
    /// Files whose set-id bits were removed.
    pub set_ids: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Paths of a store.
    pub store: u64,
}

/// An inode, and its layer and entry number there.
struct Inode {
    layer: usize,
    entry_number: u64,
    entry: ExportEntry,
}

/// The tree of an image.
#[derive(Default)]
pub struct ImageTree {
    inodes: Vec<Inode>,
    names: BTreeMap<Vec<u8>, usize>,
    trusted: bool,
    read: u64,
    limits: Limits,
    /// Memory in use, in bytes.
    held: u64,
    /// Directories whose lower entries were hidden by the layer, and which contain entries of that
    /// layer. They are not searched again for each whiteout of the layer.
    hidden: HashMap<Vec<u8>, usize>,
    /// Objects left out.
    pub left: LeftOutCounts,
}

type Unpacked<'a> = Untar<HashingIo<Box<dyn Read + 'a>>>;

impl PackedLayer {
    /// Opens the layer at its beginning.
    fn open(&self) -> io::Result<Unpacked<'_>> {
        let mut file = &self.file;
        file.rewind()?;
        let packed = BufReader::with_capacity(CHUNK_BYTES, file);
        let unpacked: Box<dyn Read + '_> = match self.packing {
            LayerCompression::None => Box::new(packed),
            LayerCompression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            LayerCompression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(packed)?),
        };
        Ok(Untar::new(HashingIo::new(unpacked)))
    }
}

impl ImageTree {
    /// Reads all layers to their end, the lowest first. `progress` receives the number of entries.
    ///
    /// # Errors
    /// `remote-failed`: a layer does not match its digest, or is invalid.
    pub fn read(
        layers: &[PackedLayer],
        trusted: bool,
        progress: &dyn Fn(u64),
    ) -> VerbResult<ImageTree> {
        let mut tree = ImageTree {
            trusted,
            ..ImageTree::default()
        };
        for (number, layer) in layers.iter().enumerate() {
            let read = tree.add(number, layer, progress);
            let diff_id = read.map_err(|cause| in_layer(number, &cause.to_string()))?;
            if diff_id != layer.diff_id {
                let why = format!(
                    "what is packed in it is {diff_id} and not {}",
                    layer.diff_id
                );
                return Err(in_layer(number, &why));
            }
        }
        Ok(tree)
    }

    /// Reads one layer; returns the digest of its uncompressed tar.
    fn add(
        &mut self,
        layer: usize,
        packed: &PackedLayer,
        progress: &dyn Fn(u64),
    ) -> io::Result<String> {
        let mut from = packed.open()?;
        let mut entry_number = 0;
        while let Some(entry) = from.advance()? {
            self.take(layer, entry_number, entry)
                .map_err(io::Error::other)?;
            entry_number += 1;
            self.read += 1;
            within(self.read, self.limits.entries(), "entries").map_err(io::Error::other)?;
            progress(self.read);
        }
        let (_, diff_id, _) = from.into_inner().finish();
        Ok(diff_id)
    }

    fn take(
        &mut self,
        layer: usize,
        entry_number: u64,
        entry: untar::TarEntry,
    ) -> Result<(), String> {
        let path = path_of(&entry.name)?;
        let depth = path.split(|byte| *byte == b'/').count() as u64;
        if depth > IMAGE_DEPTH_MAX {
            return Err(format!(
                "the image has more than {IMAGE_DEPTH_MAX} directories within each other"
            ));
        }
        let name = split(&path).map_or(b"".as_slice(), |(_, name)| name);
        if name == OPAQUE {
            let (dir, _) = split(&path).unwrap_or_default();
            let gone = self.lower_below(dir, layer)?;
            return self.forget(gone, layer);
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            // `.wh..wh.plnk` and similar names are internal to an old storage driver.
            if !hidden.starts_with(WHITEOUT) {
                let above = path.get(..path.len() - name.len()).unwrap_or_default();
                self.hide(&path_of(&[above, hidden].concat())?, layer)?;
            }
            return Ok(());
        }
        if path.split(|byte| *byte == b'/').next() == Some(STORE_NAME.as_bytes()) {
            self.left.store += 1;
            return Ok(());
        }
        let Some(kind) = entry.kind else {
            let to = path_of(&entry.link)?;
            let inode = self.names.get(&to).copied();
            let inode = inode.filter(|inode| self.kind(*inode) != Some(Kind::Dir));
            // Hard links to an entry that was left out are left out.
            return match inode {
                Some(inode) => self.put(layer, path, inode),
                None if self.left.devices > 0 || self.left.store > 0 => Ok(()),
                None => Err(format!(
                    "{} is a link to {}, which is not there",
                    shown(&path),
                    shown(&to)
                )),
            };
        };
        let Some(entry) = self.believed(kind, entry) else {
            // The former entry no longer exists.
            return self.hide(&path, usize::MAX);
        };
        if kind == Kind::Dir
            && let Some(inode) = self
                .names
                .get(&path)
                .and_then(|inode| self.inodes.get_mut(*inode))
            && inode.entry.kind == Kind::Dir
        {
            (inode.entry, inode.layer) = (entry, layer);
            return Ok(());
        }
        let inode = self.push(Inode {
            layer,
            entry_number,
            entry,
        })?;
        self.put(layer, path, inode)
    }

    /// Returns the entry to create; `None`: it is left out.
    fn believed(&mut self, kind: Kind, told: untar::TarEntry) -> Option<ExportEntry> {
        let mut mode = told.mode;
        if !self.trusted {
            if matches!(kind, Kind::CharDev | Kind::BlockDev) {
                self.left.devices += 1;
                return None;
            }
            if mode & SET_ID != 0 && kind != Kind::Dir {
                self.left.set_ids += 1;
                mode &= !SET_ID;
            }
        }
        let mut xattrs = told.xattrs;
        let all = xattrs.len();
        xattrs.retain(|(name, _)| {
            let harmless = name.0.starts_with(b"user.") || name.0.starts_with(b"system.posix_acl_");
            !is_own_xattr(&name.0) && (self.trusted || harmless)
        });
        self.left.xattrs += (all - xattrs.len()) as u64;
        let times = [told.mtime.sec, i64::from(told.mtime.nsec)];
        Some(ExportEntry {
            uid: told.uid,
            gid: told.gid,
            rdev: told.rdev,
            size: told.size,
            times: [times[0], times[1], times[0], times[1]],
            target: (kind == Kind::Symlink).then_some(TreePath(told.link)),
            xattrs,
            ..bare(kind, mode)
        })
    }

    /// Adds an inode; returns its number.
    fn push(&mut self, inode: Inode) -> Result<usize, String> {
        let entry = &inode.entry;
        let target = entry.target.as_ref().map_or(0, |target| target.0.len());
        let xattrs = entry.xattrs.iter();
        let xattrs: usize = xattrs
            .map(|(name, value)| name.0.len() + value.0.len())
            .sum();
        self.hold(target + xattrs)?;
        self.inodes.push(inode);
        Ok(self.inodes.len() - 1)
    }

    fn insert(&mut self, path: Vec<u8>, inode: usize) -> Result<(), String> {
        self.hold(path.len())?;
        self.names.insert(path, inode);
        Ok(())
    }

    /// Accounts for memory. Removed entries still count, because they exist until the removal is
    /// complete.
    fn hold(&mut self, bytes: usize) -> Result<(), String> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.held = self
            .held
            .saturating_add(bytes)
            .saturating_add(IMAGE_ENTRY_BYTES);
        within(
            self.held,
            self.limits.names(),
            "bytes of names and attributes",
        )
    }

    fn kind(&self, inode: usize) -> Option<Kind> {
        self.inodes.get(inode).map(|inode| inode.entry.kind)
    }

    /// Gives an inode a name, replacing any existing entry.
    fn put(&mut self, layer: usize, path: Vec<u8>, inode: usize) -> Result<(), String> {
        if path.is_empty() && self.kind(inode) != Some(Kind::Dir) {
            return Err("its root is no directory".to_owned());
        }
        self.make_above(layer, &path)?;
        if !path.is_empty() {
            let gone = self.lower_below(&path, usize::MAX)?;
            self.forget(gone, layer)?;
        }
        self.insert(path, inode)
    }

    /// Adds the directories above a path that the image lacks.
    fn make_above(&mut self, layer: usize, path: &[u8]) -> Result<(), String> {
        let mut at = path;
        while let Some((above, _)) = split(at) {
            match self.names.get(above).and_then(|inode| self.kind(*inode)) {
                Some(Kind::Dir) => return Ok(()),
                // Through a symbolic link the layer would write elsewhere.
                Some(_) => {
                    return Err(format!(
                        "{} is below {}, which is no directory",
                        shown(path),
                        shown(above)
                    ));
                }
                None if above.is_empty() => return Ok(()),
                None => {}
            }
            let inode = self.push(nameless_dir(layer))?;
            self.insert(above.to_vec(), inode)?;
            at = above;
        }
        Ok(())
    }

    /// Hides a path of the lower layers, and everything below it.
    fn hide(&mut self, path: &[u8], layer: usize) -> Result<(), String> {
        if path.is_empty() {
            return Err("it removes its own root".to_owned());
        }
        let own = self
            .names
            .get_key_value(path)
            .map(|(name, inode)| (name.clone(), *inode));
        let mut gone = self.lower_below(path, layer)?;
        gone.extend(
            own.filter(|(_, inode)| self.is_lower(*inode, layer))
                .map(|(name, _)| name),
        );
        self.forget(gone, layer)
    }

    fn is_lower(&self, inode: usize, layer: usize) -> bool {
        self.inodes
            .get(inode)
            .is_none_or(|inode| inode.layer < layer)
    }

    /// Returns the entries of the lower layers below a path.
    fn lower_below(&mut self, path: &[u8], layer: usize) -> Result<Vec<Vec<u8>>, String> {
        let mut at = Some(path);
        while let Some(dir) = at {
            if self.hidden.get(dir) == Some(&layer) {
                return Ok(Vec::new());
            }
            at = split(dir).map(|(above, _)| above);
        }
        let mut has_own = false;
        let lower = self.below(path).filter(|(_, inode)| {
            let is_lower = self.is_lower(*inode, layer);
            has_own |= !is_lower;
            is_lower
        });
        let lower = lower.map(|(name, _)| name.clone()).collect();
        if has_own {
            self.hold(path.len())?;
            self.hidden.insert(path.to_vec(), layer);
        }
        Ok(lower)
    }

    fn below(&self, path: &[u8]) -> impl Iterator<Item = (&Vec<u8>, usize)> {
        let prefix = if path.is_empty() {
            Vec::new()
        } else {
            [path, b"/"].concat()
        };
        self.names
            .range(prefix.clone()..)
            .take_while(move |(name, _)| name.starts_with(&prefix))
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, inode)| (name, *inode))
    }

    /// Removes names. A lower directory that contains entries of this layer stays, with default
    /// attributes.
    fn forget(&mut self, gone: Vec<Vec<u8>>, layer: usize) -> Result<(), String> {
        for name in &gone {
            self.names.remove(name);
        }
        for name in gone {
            if self.below(&name).next().is_some() {
                let inode = self.push(nameless_dir(layer))?;
                self.insert(name, inode)?;
            }
        }
        Ok(())
    }

    /// Creates the tree in a directory. Returns the paths that could not be created.
    ///
    /// # Errors
    /// `remote-failed`, also if the filesystem would become full; errors of the scratch file.
    pub fn write(
        &self,
        layers: &[PackedLayer],
        (dest, writer): (&OwnedFd, &Writer),
        progress: &dyn Fn(u64),
    ) -> VerbResult<Vec<Refused>> {
        let mut names: HashMap<usize, Vec<&[u8]>> = HashMap::new();
        for (path, inode) in &self.names {
            names.entry(*inode).or_default().push(path);
        }
        let mut making = TreeCreation {
            writer,
            parent: DirCache::default(),
            refused: Vec::new(),
            made: 0,
        };
        let mut contents: Vec<HashMap<u64, usize>> = vec![HashMap::new(); layers.len()];
        for inode_number in self.names.values() {
            let Some(inode) = self.inodes.get(*inode_number) else {
                continue;
            };
            if inode.entry.kind == Kind::File && inode.entry.size > 0 {
                if let Some(layer) = contents.get_mut(inode.layer) {
                    layer.insert(inode.entry_number, *inode_number);
                }
            } else if let Some(paths) = names.remove(inode_number) {
                making.inode(*inode_number, &inode.entry, &paths, None);
                progress(making.made);
            }
        }
        let mut whole = scratch()?;
        for (number, (packed, wanted)) in layers.iter().zip(&contents).enumerate() {
            let failed = |cause: io::Error| in_layer(number, &cause.to_string());
            let mut from = packed.open().map_err(failed)?;
            let mut entry_number = 0;
            while let Some(_entry) = from.advance().map_err(failed)? {
                let inode_number = wanted.get(&entry_number).copied();
                entry_number += 1;
                let Some((inode_number, inode)) =
                    inode_number.and_then(|number| Some((number, self.inodes.get(number)?)))
                else {
                    continue;
                };
                fill(&mut from, &mut whole, inode.entry.size)
                    .map_err(|cause| in_scratch(&cause))?;
                let blocks = whole.metadata().map_or(0, |found| found.blocks());
                if !limits::has_room(dest, blocks.saturating_mul(512), 1) {
                    return Err(limits::no_room());
                }
                let paths = names.remove(&inode_number).unwrap_or_default();
                making.inode(inode_number, &inode.entry, &paths, Some(&whole));
                progress(making.made);
            }
        }
        Ok(making.refused)
    }
}

/// The state of the creation.
struct TreeCreation<'a> {
    writer: &'a Writer,
    parent: DirCache,
    refused: Vec<Refused>,
    made: u64,
}

impl TreeCreation<'_> {
    /// Creates an inode with all its names.
    fn inode(
        &mut self,
        number: usize,
        entry: &ExportEntry,
        paths: &[&[u8]],
        content: Option<&File>,
    ) {
        for path in paths {
            let entry = ExportEntry {
                path: TreePath(path.to_vec()),
                inode: number as u64,
                nlink: u32::try_from(paths.len()).unwrap_or(u32::MAX),
                data: if content.is_some() {
                    ExportData::File
                } else {
                    ExportData::None
                },
                ..entry.clone()
            };
            let made: SysResult<()> = self.writer.put(&mut self.parent, entry, content);
            if let Err(Errno(errno)) = made {
                self.refused.push(Refused {
                    path: TreePath(path.to_vec()),
                    errno,
                });
            }
            self.made += 1;
        }
    }
}

/// Writes the content to a file, with holes for zeros.
fn fill(from: &mut impl Read, file: &mut File, size: u64) -> io::Result<()> {
    file.set_len(0)?;
    file.set_len(size)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < size {
        let most = usize::try_from(size - offset)
            .unwrap_or(usize::MAX)
            .min(CHUNK_BYTES);
        let bytes = chunk.get_mut(..most).ok_or(io::ErrorKind::UnexpectedEof)?;
        from.read_exact(bytes)?;
        if !is_zeros(bytes) {
            if !limits::has_room(&*file, most as u64, 0) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            sys::write_all_at(&*file, bytes, offset)?;
        }
        offset += most as u64;
    }
    Ok(())
}

/// Returns a directory for which the image has no entry.
fn nameless_dir(layer: usize) -> Inode {
    Inode {
        layer,
        entry_number: u64::MAX,
        entry: bare(Kind::Dir, 0o755),
    }
}

/// Converts a name in a layer to a path of the tree; empty for the root.
fn path_of(name: &[u8]) -> Result<Vec<u8>, String> {
    let mut path: Vec<u8> = Vec::with_capacity(name.len());
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(format!("{} leads out of it", shown(name))),
            part if part.contains(&0) => return Err(format!("{} is no name", shown(name))),
            part => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
        }
    }
    Ok(path)
}

/// Compares a number with a limit.
fn within(number: u64, most: u64, what: &str) -> Result<(), String> {
    match number <= most {
        true => Ok(()),
        false => Err(format!(
            "the image has more than {most} {what} (CKPTFS_REMOTE_MEMORY raises the limit)"
        )),
    }
}

fn shown(path: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(path).chars().take(300).collect();
    text.escape_debug().to_string()
}

fn in_layer(number: usize, why: &str) -> VerbError {
    error(
        Code::RemoteFailed,
        format!(
            "layer {} of the image cannot be unpacked: {why}",
            number + 1
        ),
    )
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
