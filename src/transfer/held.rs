//! What an export tells, handed on only when it is proven: for a stream, where nothing can be taken back.
//!
//! The content of small files is read to memory and held until the daemon has said that the part it came with was what it should be. Meanwhile the part
//! after it is read, and the daemon puts the one after that together. What is larger is not read: whoever gets it reads it through a view, which proves
//! each read.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, sync_channel};

use super::tar::{Pieces, pieces};
use super::{Feed, regular};
use crate::engine::api::{TreePath, VerbError, VerbResult};
use crate::engine::export::parts::{ExportData, ExportEntry, ExportPart, Refused};
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, SysResult};

/// A larger file is not held.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Bytes of one part that are held; there are two parts at a time.
const PART_BYTES_MAX: usize = 16 << 20;

/// What is in a file.
#[derive(Debug)]
pub enum Content<'a> {
    /// It is no file.
    None,
    /// All of it but the holes.
    Held {
        /// The bytes of the pieces, one after the other.
        bytes: &'a [u8],
        /// Where they are; `None`: there are no holes.
        pieces: Option<&'a Pieces>,
    },
    /// It is to be read elsewhere.
    Large,
}

/// A part whose files were read.
struct Held {
    number: u64,
    entries: Vec<(ExportEntry, Read)>,
    bytes: Vec<u8>,
}

/// What was read of one entry.
enum Read {
    None,
    Held(Range<usize>, Option<Pieces>),
    Large,
}

/// What the daemon answered, and the parts that it was asked to prove.
type Told = VerbResult<(Vec<u64>, ExportPart, Vec<OwnedFd>)>;

/// Hands on every entry that a feed tells, in its order, each when it is proven. Says what could not be.
///
/// # Errors
/// Those of the feed, and those of `each`: then it ends.
pub fn hand_on<E: From<VerbError>>(
    feed: impl Feed,
    mut each: impl FnMut(&ExportEntry, Content<'_>) -> Result<Option<Errno>, E>,
) -> Result<Vec<Refused>, E> {
    let read = Mutex::default();
    std::thread::scope(|scope| {
        let (send, told) = sync_channel(0);
        let asks = std::thread::Builder::new().spawn_scoped(scope, || ask(feed, &read, send));
        asks.map_err(|cause| VerbError { code: "io".into(), message: format!("a thread: {cause}"), hint: None })?;
        let (mut held, mut spare, mut refused) = (Vec::<Held>::new(), Vec::new(), Vec::new());
        for told in told {
            let (proven, part, files) = told?;
            for part_held in held.extract_if(.., |held| proven.contains(&held.number)) {
                spare = hand_on_part(part_held, &part.unproven, &mut refused, &mut each)?;
            }
            let finished = part.finished;
            let part = read_part(part, files, std::mem::take(&mut spare), &mut refused);
            if part.number > 0 {
                read.lock().push(part.number);
                held.push(part);
            }
            if finished {
                break;
            }
        }
        refused.sort_by(|a, b| a.path.cmp(&b.path));
        refused.dedup_by(|a, b| a.path == b.path);
        Ok(refused)
    })
}

/// Asks for one part after the other, each as soon as the one before was taken.
fn ask(mut feed: impl Feed, read: &Mutex<Vec<u64>>, told: SyncSender<Told>) {
    loop {
        let proven = std::mem::take(&mut *read.lock());
        let answer = feed.next(proven.clone()).map(|(part, files)| (proven, part, files));
        let last = answer.as_ref().map_or(true, |(_, part, _)| part.finished);
        if told.send(answer).is_err() || last {
            return;
        }
    }
}

/// Reads the files of a part.
fn read_part(part: ExportPart, files: Vec<OwnedFd>, bytes: Vec<u8>, refused: &mut Vec<Refused>) -> Held {
    let mut held = Held { number: part.part, entries: Vec::with_capacity(part.entries.len()), bytes };
    held.bytes.clear();
    refused.extend(part.refused);
    let mut files = files.into_iter().map(File::from);
    for entry in part.entries {
        let read = match entry.data {
            // The kernel drops descriptors for which this process has no room.
            ExportData::File => files.next().ok_or(Errno::EMFILE).and_then(|file| read_file(&file, entry.size, &mut held.bytes)),
            ExportData::None => Ok(Read::None),
            ExportData::Kept | ExportData::Link(_) => Err(Errno::EIO),
        };
        match read {
            Ok(read) if is_below(&entry.path) => held.entries.push((entry, read)),
            read => refused.push(Refused { path: entry.path, errno: read.err().unwrap_or(Errno::EINVAL).0 }),
        }
    }
    held
}

fn read_file(file: &File, size: u64, bytes: &mut Vec<u8>) -> SysResult<Read> {
    let length = usize::try_from(size).unwrap_or(usize::MAX);
    if size > FILE_BYTES_MAX || bytes.len().saturating_add(length) > PART_BYTES_MAX {
        return Ok(Read::Large);
    }
    regular(file)?;
    let pieces = pieces(file, size)?;
    let from = bytes.len();
    for (offset, length) in pieces.as_deref().unwrap_or(&[(0, size)]) {
        let at = bytes.len();
        bytes.resize(at + usize::try_from(*length).unwrap_or(0), 0);
        let piece = bytes.get_mut(at..).unwrap_or_default();
        // One that is shorter now was changed, and that is found when it is to be proven.
        sys::read_full_at(file, piece, *offset)?;
    }
    Ok(Read::Held(from..bytes.len(), pieces))
}

/// Hands on what is proven of a part, and gives its memory back.
fn hand_on_part<E>(
    held: Held,
    unproven: &[TreePath],
    refused: &mut Vec<Refused>,
    each: &mut impl FnMut(&ExportEntry, Content<'_>) -> Result<Option<Errno>, E>,
) -> Result<Vec<u8>, E> {
    for (entry, read) in held.entries.iter().filter(|(entry, _)| !unproven.contains(&entry.path)) {
        let content = match read {
            Read::None => Content::None,
            Read::Held(range, pieces) => Content::Held { bytes: held.bytes.get(range.clone()).unwrap_or_default(), pieces: pieces.as_ref() },
            Read::Large => Content::Large,
        };
        if let Some(errno) = each(entry, content)? {
            refused.push(Refused { path: entry.path.clone(), errno: errno.0 });
        }
    }
    Ok(held.bytes)
}

/// A path that leads nowhere but below the root.
fn is_below(path: &TreePath) -> bool {
    path.0.is_empty() || path.0.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."))
}
