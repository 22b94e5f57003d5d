//! One layer of an image: a packed tar of a whole tree, or of what is not as it was.
//!
//! What is gone is told by a whiteout, an empty file `.wh.NAME` in the directory that had it; a
//! directory that is another one than before by `.wh..wh..opq` in it, so that nothing of the former
//! shows through. Whoever unpacks a layer may do so into a directory of its own, without those
//! below, so every directory above what it holds is in it too, with its attributes; and a file is in
//! it whole, also where only its mode was changed.
//!
//! The same tree gives the same bytes: names are sorted, and nothing is in it that reading changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::OwnedFd;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Hashing, bare, in_scratch, scratch};
use crate::engine::api::{Code, TreePath, VerbError, VerbResult, hinted, io_error};
use crate::engine::export::parts::{ExportEntry, Refused};
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, Open, OpenKind, SysResult};
use crate::transfer::held::{self, Content, is_below};
use crate::transfer::place::{open_below, split};
use crate::transfer::tar::Stream;
use crate::transfer::{Feed, Sink};

/// Begins the names of whiteouts.
pub const WHITEOUT: &[u8] = b".wh.";
/// Hides everything that the layers below have in a directory.
pub const OPAQUE: &[u8] = b".wh..wh..opq";

/// What is written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// A layer that was made.
#[derive(Debug)]
pub struct Layer {
    /// It, packed.
    pub file: File,
    /// Of the file.
    pub digest: String,
    /// Bytes of the file.
    pub size: u64,
    /// Digest of what is packed.
    pub diff_id: String,
    /// What is in it, and what is not.
    pub count: Count,
}

/// What is in a layer, and what is not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Inodes and further names of them, directories above included, and whiteouts.
    pub entries: u64,
    /// Sockets, which a layer cannot hold.
    pub sockets: u64,
    /// Files that have further names in layers below, of which they are copies now.
    pub parted: u64,
    /// Extended attributes whose name the format cannot hold.
    pub xattrs: u64,
}

type Packed = Hashing<GzEncoder<Hashing<BufWriter<File>>>>;

/// A layer that is written.
struct Writer<'a> {
    stream: Stream<Packed>,
    /// The checkpoint's tree (`O_PATH`).
    view: &'a OwnedFd,
    /// Where in it an inode with several names is, how many names it has, and how many are in it.
    linked: HashMap<u64, (Vec<u8>, u32, u32)>,
    count: Count,
}

/// Makes a layer of a whole tree that a feed tells. Says what could not be told.
///
/// # Errors
/// Those of the feed and of the scratch file; `bad-name`.
pub fn whole(
    feed: impl Feed,
    view: &OwnedFd,
    progress: &dyn Fn(u64),
) -> VerbResult<(Layer, Vec<Refused>)> {
    let mut writer = Writer::new(view)?;
    let refused = held::hand_on(feed, |entry, content| {
        let done = writer.entry(entry, &content);
        progress(writer.count.entries);
        done
    })?;
    Ok((writer.finish()?, refused))
}

/// What is not as it was, as a difference tells it. Nothing of it is read before all is told: then
/// it is read through the view, which proves each read.
#[derive(Debug, Default)]
pub struct Changes(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    removed: BTreeSet<Vec<u8>>,
    entries: BTreeMap<Vec<u8>, ExportEntry>,
}

impl Sink for Changes {
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

impl Changes {
    /// Nothing is another than it was.
    pub fn is_empty(&self) -> bool {
        let told = self.0.lock();
        told.removed.is_empty() && told.entries.is_empty()
    }

    /// Makes a layer of them.
    ///
    /// # Errors
    /// As [`whole`]; what cannot be read.
    pub fn layer(self, view: &OwnedFd, progress: &dyn Fn(u64)) -> VerbResult<Layer> {
        let Told { removed, entries } = std::mem::take(&mut *self.0.lock());
        let mut paths: BTreeSet<&[u8]> = BTreeSet::from([b"".as_slice()]);
        for path in removed.iter().chain(entries.keys()) {
            let mut path = path.as_slice();
            paths.insert(path);
            while let Some((above, _)) = split(path) {
                paths.insert(above);
                path = above;
            }
        }
        let mut writer = Writer::new(view)?;
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
                    // It takes the place of what was there.
                    Some(_) => {}
                }
            }
            progress(writer.count.entries);
        }
        writer.finish()
    }
}

impl<'a> Writer<'a> {
    fn new(view: &'a OwnedFd) -> VerbResult<Writer<'a>> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, scratch()?);
        let packed = GzEncoder::new(Hashing::new(file), Compression::default());
        Ok(Writer {
            stream: Stream::layer(Hashing::new(packed)),
            view,
            linked: HashMap::new(),
            count: Count::default(),
        })
    }

    fn finish(self) -> VerbResult<Layer> {
        let Writer {
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

    /// An entry of a difference, read through the view.
    fn one(&mut self, entry: &ExportEntry) -> VerbResult<()> {
        let content = match entry.kind {
            Kind::File if entry.size > 0 => Content::Large,
            _ => Content::None,
        };
        match self.entry(entry, &content)? {
            None => Ok(()),
            Some(errno) => Err(io_error(shown(&entry.path.0), errno)),
        }
    }

    /// A directory that is as it was, above something that is not.
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

    /// Hides what the layers below have at a path, or in the directory there.
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
            .entry(&in_layer(&at), &entry, None, &Content::None, None);
        written.map_err(|cause| in_scratch(&cause))
    }

    /// One entry, with its content; gives why it cannot be read.
    fn entry(&mut self, entry: &ExportEntry, content: &Content<'_>) -> VerbResult<Option<Errno>> {
        if entry.kind == Kind::Socket {
            self.count.sockets += 1;
            return Ok(None);
        }
        refuse_whiteout(&entry.path.0)?;
        let path = in_layer(&entry.path.0);
        let linked = self.linked.get(&entry.inode).filter(|_| entry.is_linked());
        let large = match content {
            Content::Large | Content::Kept if linked.is_none() => match self.open(&entry.path.0) {
                Ok(file) => Some(file),
                Err(errno) => return Ok(Some(errno)),
            },
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
            Kind::File => sys::reopen(&fd, Open::READ),
            // Opened, a FIFO would keep us.
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Between reading a file and writing the layer nothing tells which one failed, but that only a
/// large file is read meanwhile.
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

/// A path as it is in a layer.
fn in_layer(path: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        b".".to_vec()
    } else {
        [b"./", path].concat()
    }
}

/// A path as a person reads it.
fn shown(path: &[u8]) -> String {
    if path.is_empty() {
        ".".to_owned()
    } else {
        String::from_utf8_lossy(path).into_owned()
    }
}

/// A name that would be taken for a whiteout.
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

/// Something of the tree could not be told, so nothing of it is pushed.
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

/// Reads a packed layer from an offset.
///
/// # Errors
/// Those of read(2); it is shorter.
pub fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    if sys::read_full_at(file, buffer, offset)? == buffer.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
