//! One layer of an image: a compressed tar of a whole tree, or of its changes.
//!
//! A removed entry is a whiteout, an empty file `.wh.NAME` in its directory. A directory that
//! replaces another contains `.wh..wh..opq`, which hides the contents of the former one. A layer
//! may be unpacked into a separate directory without the layers below. It therefore includes all
//! directories above its entries, with their attributes, and each file is complete even if only its
//! mode changed.
//!
//! Equal trees yield equal bytes: names are sorted, and the layer contains nothing that reading
//! changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::OwnedFd;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{HashingIo, bare, in_scratch, scratch};
use ckptfs_api::{Code, ExportEntry, Refused, TreePath, VerbError, VerbResult, hinted, io_error};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, SysResult};
use ckptfs_transfer::dirs::{open_below, split};
use ckptfs_transfer::tar::Stream;
use ckptfs_transfer::verified_stream::{self, BufferedContent, is_below};
use ckptfs_transfer::{PartSource, Sink};

/// Prefix of the names of whiteouts.
pub const WHITEOUT: &[u8] = b".wh.";
/// Hides all entries of the lower layers in a directory.
pub const OPAQUE: &[u8] = b".wh..wh..opq";

/// Size of the write buffer.
const BUFFER_BYTES: usize = 256 << 10;

/// A layer to push.
#[derive(Debug)]
pub struct Layer {
    /// The compressed tar.
    pub file: File,
    /// Digest of the file.
    pub digest: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// Digest of the uncompressed tar.
    pub diff_id: String,
    /// Counts of included and excluded objects.
    pub count: LayerCounts,
}

/// Counts of included and excluded objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerCounts {
    /// Inodes, hard links, parent directories and whiteouts.
    pub entries: u64,
    /// Sockets, which a layer cannot contain.
    pub sockets: u64,
    /// Files whose other hard links are in lower layers; they become copies.
    pub parted: u64,
    /// Extended attributes whose name the format cannot represent.
    pub xattrs: u64,
}

type Packed = HashingIo<GzEncoder<HashingIo<BufWriter<File>>>>;

/// The writer of a layer.
struct LayerWriter<'a> {
    stream: Stream<Packed>,
    /// The checkpoint's tree (`O_PATH`).
    view: &'a OwnedFd,
    /// Hard-linked inodes: first path, link count, and names in the layer.
    linked: HashMap<u64, (Vec<u8>, u32, u32)>,
    count: LayerCounts,
}

/// Writes a layer with the whole tree of a feed. Returns the paths that could not be read.
///
/// # Errors
/// Errors of the feed and of the scratch file; `bad-name`.
pub fn whole(
    feed: impl PartSource,
    view: &OwnedFd,
    progress: &dyn Fn(u64),
) -> VerbResult<(Layer, Vec<Refused>)> {
    let mut writer = LayerWriter::new(view)?;
    let refused = verified_stream::hand_on(feed, |entry, content| {
        let done = writer.entry(entry, &content);
        progress(writer.count.entries);
        done
    })?;
    Ok((writer.finish()?, refused))
}

/// Collects the changes of a difference. They are read only when it is complete, through the view,
/// which verifies each read.
#[derive(Debug, Default)]
pub struct LayerChanges(Mutex<CollectedChanges>);

#[derive(Debug, Default)]
struct CollectedChanges {
    removed: BTreeSet<Vec<u8>>,
    entries: BTreeMap<Vec<u8>, ExportEntry>,
}

impl Sink for LayerChanges {
    type Hand = ();

    fn remove(&self, path: &[u8]) -> SysResult<()> {
        if path.is_empty() || !is_below(&TreePath(path.to_vec())) {
            return Err(Errno::EINVAL);
        }
        self.0.lock().removed.insert(path.to_vec());
        Ok(())
    }

    fn entry(&self, _hand: &mut (), entry: ExportEntry, _file: Option<File>) -> SysResult<()> {
        if !is_below(&entry.path) {
            return Err(Errno::EINVAL);
        }
        self.0.lock().entries.insert(entry.path.0.clone(), entry);
        Ok(())
    }
}

impl LayerChanges {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        let told = self.0.lock();
        told.removed.is_empty() && told.entries.is_empty()
    }

    /// Writes a layer with the changes.
    ///
    /// # Errors
    /// As [`whole`]; errors of reading.
    pub fn layer(self, view: &OwnedFd, progress: &dyn Fn(u64)) -> VerbResult<Layer> {
        let CollectedChanges { removed, entries } = std::mem::take(&mut *self.0.lock());
        let mut paths: BTreeSet<&[u8]> = BTreeSet::from([b"".as_slice()]);
        for path in removed.iter().chain(entries.keys()) {
            let mut path = path.as_slice();
            paths.insert(path);
            while let Some((above, _)) = split(path) {
                paths.insert(above);
                path = above;
            }
        }
        let mut writer = LayerWriter::new(view)?;
        for path in paths {
            let told = entries.get(path).filter(|entry| entry.kind != Kind::Socket);
            if let Some(entry) = told {
                writer.one(entry)?;
            } else if !removed.contains(path) {
                if entries.contains_key(path) {
                    writer.count.sockets += 1;
                    continue;
                }
                writer.above(path)?;
            }
            if removed.contains(path) {
                match told {
                    None => writer.hide(path, false)?,
                    Some(entry) if entry.kind == Kind::Dir => writer.hide(path, true)?,
                    // It replaces the former entry.
                    Some(_) => {}
                }
            }
            progress(writer.count.entries);
        }
        writer.finish()
    }
}

impl<'a> LayerWriter<'a> {
    fn new(view: &'a OwnedFd) -> VerbResult<LayerWriter<'a>> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, scratch()?);
        let packed = GzEncoder::new(HashingIo::new(file), Compression::default());
        Ok(LayerWriter {
            stream: Stream::layer(HashingIo::new(packed)),
            view,
            linked: HashMap::new(),
            count: LayerCounts::default(),
        })
    }

    fn finish(self) -> VerbResult<Layer> {
        let LayerWriter {
            stream,
            linked,
            mut count,
            ..
        } = self;
        count.parted = linked
            .values()
            .filter(|(_, names, here)| here < names)
            .count() as u64;
        let ended = || -> io::Result<Layer> {
            let (packed, diff_id, _) = stream.finish()?.finish();
            let (file, digest, size) = packed.finish()?.finish();
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            Ok(Layer {
                file,
                digest,
                size,
                diff_id,
                count,
            })
        };
        ended().map_err(|cause| in_scratch(&cause))
    }

    /// Adds an entry of a difference, read through the view.
    fn one(&mut self, entry: &ExportEntry) -> VerbResult<()> {
        let content = match entry.kind {
            Kind::File if entry.size > 0 => BufferedContent::Large,
            _ => BufferedContent::None,
        };
        match self.entry(entry, &content)? {
            None => Ok(()),
            Some(errno) => Err(io_error(shown(&entry.path.0), errno)),
        }
    }

    /// Adds an unchanged directory above a change.
    fn above(&mut self, path: &[u8]) -> VerbResult<()> {
        let read = || -> SysResult<ExportEntry> {
            let fd = open_below(self.view, path, OpenKind::Path)?;
            let stat = sys::stat_fd(&fd)?;
            let xattrs = sys::all_xattrs(&fd)?;
            Ok(ExportEntry::new(
                path.to_vec(),
                &stat,
                stat.ino,
                None,
                xattrs,
            ))
        };
        let entry = read().map_err(|errno| io_error(shown(path), errno))?;
        self.one(&entry)
    }

    /// Hides a path of the lower layers, or with `below` the contents of that directory.
    fn hide(&mut self, path: &[u8], below: bool) -> VerbResult<()> {
        let Some((above, name)) = split(path) else {
            return Ok(());
        };
        let at = if below {
            [path, b"/", OPAQUE].concat()
        } else {
            let name = [WHITEOUT, name].concat();
            if above.is_empty() {
                name
            } else {
                [above, b"/", &name].concat()
            }
        };
        let entry = bare(Kind::File, 0o600);
        self.count.entries += 1;
        let written = self
            .stream
            .entry(&in_layer(&at), &entry, None, &BufferedContent::None, None);
        written.map_err(|cause| in_scratch(&cause))
    }

    /// Adds one entry with its content; returns an error number if it cannot be read.
    fn entry(
        &mut self,
        entry: &ExportEntry,
        content: &BufferedContent<'_>,
    ) -> VerbResult<Option<Errno>> {
        if entry.kind == Kind::Socket {
            self.count.sockets += 1;
            return Ok(None);
        }
        refuse_whiteout(&entry.path.0)?;
        let path = in_layer(&entry.path.0);
        let linked = self.linked.get(&entry.inode).filter(|_| entry.is_linked());
        let large = match content {
            BufferedContent::Large | BufferedContent::Kept if linked.is_none() => {
                match self.open(&entry.path.0) {
                    Ok(file) => Some(file),
                    Err(errno) => return Ok(Some(errno)),
                }
            }
            _ => None,
        };
        let strange = entry
            .xattrs
            .iter()
            .filter(|(name, _)| linked.is_none() && name.0.contains(&b'='))
            .count();
        let without = (strange > 0).then(|| {
            let mut without = entry.clone();
            without.xattrs.retain(|(name, _)| !name.0.contains(&b'='));
            without
        });
        let first = linked.map(|(first, ..)| first.as_slice());
        let written = self.stream.entry(
            &path,
            without.as_ref().unwrap_or(entry),
            first,
            content,
            large.as_ref(),
        );
        written.map_err(|cause| broken(&entry.path.0, large.is_some(), &cause))?;
        if entry.is_linked() {
            let linked = self
                .linked
                .entry(entry.inode)
                .or_insert((path, entry.nlink, 0));
            linked.2 += 1;
        }
        self.count.xattrs += strange as u64;
        self.count.entries += 1;
        Ok(None)
    }

    fn open(&self, path: &[u8]) -> SysResult<File> {
        let fd = open_below(self.view, path, OpenKind::Path)?;
        match sys::stat_fd(&fd)?.kind {
            Kind::File => sys::reopen(&fd, Access::READ),
            // Opening a FIFO would block.
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Returns the error for a failed write or read. The two are not distinguished, but only a large
/// file is read during a write.
fn broken(path: &[u8], reads: bool, cause: &io::Error) -> VerbError {
    let full = matches!(
        cause.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    );
    if reads && !full {
        let cause = io::Error::new(cause.kind(), cause.to_string());
        return io_error(shown(path), cause);
    }
    in_scratch(cause)
}

/// Returns a path in the form used in a layer.
fn in_layer(path: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        b".".to_vec()
    } else {
        [b"./", path].concat()
    }
}

/// Returns a path for display.
fn shown(path: &[u8]) -> String {
    if path.is_empty() {
        ".".to_owned()
    } else {
        String::from_utf8_lossy(path).into_owned()
    }
}

/// Rejects a name that would be interpreted as a whiteout.
fn refuse_whiteout(path: &[u8]) -> VerbResult<()> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if name.starts_with(WHITEOUT) {
        return Err(hinted(
            Code::BadName,
            format!(
                "{} cannot be in an image: a name that begins with .wh. says there that something is removed",
                shown(path)
            ),
            "rename it and make another checkpoint, or push to a repository of restic's format",
        ));
    }
    Ok(())
}

/// Returns an error if parts of the tree could not be read: nothing is pushed then.
pub fn refused(refused: &[Refused]) -> VerbResult<()> {
    let Some(first) = refused.first() else {
        return Ok(());
    };
    let (path, errno) = (shown(&first.path.0), Errno(first.errno));
    let more = match refused.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let message = format!("nothing was pushed: {path}: {errno}{more}");
    Err(if errno == Errno::ENODATA {
        hinted(
            Code::Dropped,
            message,
            "a retention rule has dropped the content: push a later checkpoint",
        )
    } else {
        hinted(
            Code::Incomplete,
            message,
            "ckptfs status and ckptfs verify show what cannot be read",
        )
    })
}

/// Reads a compressed layer from an offset.
///
/// # Errors
/// Errors of read(2); the layer is shorter.
pub fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    if sys::read_full_at(file, buffer, offset)? == buffer.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
