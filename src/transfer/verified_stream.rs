//! Buffers an export and forwards only verified content: for a stream, where nothing can be undone.
//!
//! The content of small files is read into memory and held until the daemon has confirmed its part.
//! While one part awaits confirmation, the next is read and the daemon builds the one after that.
//! Larger files are not read here: the consumer reads them through a view, which verifies each
//! read.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, sync_channel};

use super::tar::{Pieces, pieces};
use super::{PartSource, regular};
use ckptfs_api::{
    Code, ExportData, ExportEntry, ExportPart, Refused, TreePath, VerbError, VerbResult,
};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, SysResult};

/// Larger files are not buffered.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Buffer limit of one part, in bytes; up to two parts are buffered.
const PART_BYTES_MAX: usize = 16 << 20;

/// The content of an entry.
#[derive(Debug)]
pub enum BufferedContent<'a> {
    /// The entry is not a file.
    None,
    /// Unchanged since the state that the export refers to; not read.
    Kept,
    /// All bytes except holes.
    Held {
        /// The bytes of the pieces, concatenated.
        bytes: &'a [u8],
        /// Offset and length of each piece; `None`: no holes.
        pieces: Option<&'a Pieces>,
    },
    /// Not read: the file is large, or another of its names was sent before.
    Large,
}

/// A part whose files were read.
struct BufferedPart {
    number: u64,
    is_proven: bool,
    entries: Vec<(ExportEntry, EntryState)>,
    bytes: Vec<u8>,
}

/// The read state of one entry.
enum EntryState {
    None,
    Kept,
    Held(Range<usize>, Option<Pieces>),
    Large,
    /// Verification failed; the entry will be sent again.
    Missing,
    /// Sent again, and verified.
    Again(Box<ResentEntry>),
    /// Moved to its first place, or refused.
    Gone,
}

/// A resent entry and the memory of its content.
type ResentEntry = (ExportEntry, EntryState, Vec<u8>);

/// The daemon's reply and the parts whose confirmation it carries.
type FeedReply = VerbResult<(Vec<u64>, ExportPart, Vec<OwnedFd>)>;

/// Forwards every entry of a feed in the order in which it was first sent, once it is verified. A
/// resent entry takes its original place, and later entries wait for it. Returns the paths that
/// failed.
///
/// # Errors
/// Those of the feed and of `each`; both end the stream.
pub fn hand_on<E: From<VerbError>>(
    feed: impl PartSource,
    mut each: impl FnMut(&ExportEntry, BufferedContent<'_>) -> Result<Option<Errno>, E>,
) -> Result<Vec<Refused>, E> {
    let read = Mutex::default();
    std::thread::scope(|scope| {
        let (send, told) = sync_channel(0);
        let asks = std::thread::Builder::new().spawn_scoped(scope, || ask(feed, &read, send));
        asks.map_err(|cause| VerbError {
            code: Code::Io,
            message: format!("a thread: {cause}"),
            hint: None,
        })?;
        let (mut queue, mut reader) = (Queue::default(), StreamReader::default());
        for told in told {
            let (proven, part, files) = told?;
            queue.confirm(&proven, &part.unproven);
            queue.hand_on(&mut reader.refused, &mut each)?;
            let (finished, refused_before) = (part.finished, reader.refused.len());
            let part = reader.part(part, files, std::mem::take(&mut queue.spare));
            for refused in reader.refused.get(refused_before..).unwrap_or_default() {
                queue.is_refused(&refused.path);
            }
            if part.number > 0 {
                read.lock().push(part.number);
                queue.parts.push_back(part);
            }
            if finished {
                break;
            }
        }
        queue.hand_on(&mut reader.refused, &mut each)?;
        let left = queue.parts.iter().flat_map(|part| &part.entries);
        reader.refused.extend(left.map(|(entry, _)| Refused {
            path: entry.path.clone(),
            errno: Errno::EIO.0,
        }));
        let mut refused = reader.refused;
        refused.sort_by(|a, b| a.path.cmp(&b.path));
        refused.dedup_by(|a, b| a.path == b.path);
        Ok(refused)
    })
}

/// Parts that were read, in order.
#[derive(Default)]
struct Queue {
    parts: VecDeque<BufferedPart>,
    /// The buffer of a forwarded part, for reuse.
    spare: Vec<u8>,
}

impl Queue {
    /// Applies the daemon's verification results.
    fn confirm(&mut self, proven: &[u64], unproven: &[TreePath]) {
        for number in proven {
            let Some(at) = self.parts.iter().position(|part| part.number == *number) else {
                continue;
            };
            let mut again = Vec::new();
            if let Some(part) = self.parts.get_mut(at) {
                part.is_proven = true;
                for (entry, read) in &mut part.entries {
                    let is_unproven = unproven.contains(&entry.path);
                    match (entry.again, is_unproven) {
                        (false, true) => *read = EntryState::Missing,
                        (false, false) => {}
                        // It will be sent once more.
                        (true, true) => *read = EntryState::Gone,
                        (true, false) => {
                            let mut read = std::mem::replace(read, EntryState::Gone);
                            let mut bytes = Vec::new();
                            if let EntryState::Held(range, _) = &mut read {
                                bytes = part.bytes.get(range.clone()).unwrap_or_default().to_vec();
                                *range = 0..bytes.len();
                            }
                            again.push((entry.clone(), read, bytes));
                        }
                    }
                }
            }
            for read in again {
                self.fill(read);
            }
        }
    }

    /// Puts a resent entry in the place of the one that failed verification.
    fn fill(&mut self, again: ResentEntry) {
        let places = self.parts.iter_mut().flat_map(|part| &mut part.entries);
        let place = places
            .filter(|(_, read)| matches!(read, EntryState::Missing))
            .find(|(entry, _)| entry.path == again.0.path);
        if let Some((_, place)) = place {
            *place = EntryState::Again(Box::new(again));
        }
    }

    /// Ends the wait for a path that was refused.
    fn is_refused(&mut self, path: &TreePath) {
        for part in &mut self.parts {
            for (_, read) in part
                .entries
                .iter_mut()
                .filter(|(entry, _)| entry.path == *path)
            {
                if matches!(read, EntryState::Missing) {
                    *read = EntryState::Gone;
                }
            }
        }
    }

    /// Forwards verified parts, up to the first part with a missing entry.
    fn hand_on<E>(
        &mut self,
        refused: &mut Vec<Refused>,
        each: &mut impl FnMut(&ExportEntry, BufferedContent<'_>) -> Result<Option<Errno>, E>,
    ) -> Result<(), E> {
        let waits = |(_, read): &(ExportEntry, EntryState)| matches!(read, EntryState::Missing);
        let is_ready = |part: &BufferedPart| part.is_proven && !part.entries.iter().any(waits);
        while self.parts.front().is_some_and(is_ready) {
            if let Some(part) = self.parts.pop_front() {
                self.spare = hand_on_part(part, refused, each)?;
            }
        }
        Ok(())
    }
}

/// Requests one part after the other, each as soon as the previous one was accepted.
fn ask(mut feed: impl PartSource, read: &Mutex<Vec<u64>>, told: SyncSender<FeedReply>) {
    loop {
        let proven = std::mem::take(&mut *read.lock());
        let answer = feed
            .next(proven.clone())
            .map(|(part, files)| (proven, part, files));
        let last = answer.as_ref().map_or(true, |(_, part, _)| part.finished);
        if told.send(answer).is_err() || last {
            return;
        }
    }
}

/// Reads the content of received parts.
#[derive(Default)]
struct StreamReader {
    refused: Vec<Refused>,
    /// Inodes with several names of which one was read.
    linked: HashSet<u64>,
}

impl StreamReader {
    /// Reads the files of a part; `bytes` is memory to reuse.
    fn part(&mut self, part: ExportPart, files: Vec<OwnedFd>, bytes: Vec<u8>) -> BufferedPart {
        let mut held = BufferedPart {
            number: part.part,
            is_proven: false,
            entries: Vec::with_capacity(part.entries.len()),
            bytes,
        };
        held.bytes.clear();
        self.refused.extend(part.refused);
        let mut files = files.into_iter().map(File::from);
        for entry in part.entries {
            let read = match entry.data {
                // The kernel drops received descriptors beyond this process's RLIMIT_NOFILE.
                ExportData::File => files
                    .next()
                    .ok_or(Errno::EMFILE)
                    .and_then(|file| self.file(&entry, &file, &mut held.bytes)),
                ExportData::None => Ok(EntryState::None),
                ExportData::Kept => Ok(EntryState::Kept),
                ExportData::Link(_) => Err(Errno::EIO),
            };
            match read {
                Ok(read) if is_below(&entry.path) => held.entries.push((entry, read)),
                read => self.refused.push(Refused {
                    path: entry.path,
                    errno: read.err().unwrap_or(Errno::EINVAL).0,
                }),
            }
        }
        held
    }

    fn file(
        &mut self,
        entry: &ExportEntry,
        file: &File,
        bytes: &mut Vec<u8>,
    ) -> SysResult<EntryState> {
        let length = usize::try_from(entry.size).unwrap_or(usize::MAX);
        // A further name becomes a link to the first; if the first was not verified, the consumer
        // reads it through the view.
        let again = entry.is_linked() && !self.linked.insert(entry.inode);
        if again
            || entry.size > FILE_BYTES_MAX
            || bytes.len().saturating_add(length) > PART_BYTES_MAX
        {
            return Ok(EntryState::Large);
        }
        regular(file)?;
        let pieces = pieces(file, entry.size)?;
        let from = bytes.len();
        for (offset, length) in pieces.as_deref().unwrap_or(&[(0, entry.size)]) {
            let at = bytes.len();
            bytes.resize(at + usize::try_from(*length).unwrap_or(0), 0);
            // A short read means that the file changed; verification detects that.
            sys::read_full_at(file, bytes.get_mut(at..).unwrap_or_default(), *offset)?;
        }
        Ok(EntryState::Held(from..bytes.len(), pieces))
    }
}

/// Forwards a part and returns its memory.
fn hand_on_part<E>(
    held: BufferedPart,
    refused: &mut Vec<Refused>,
    each: &mut impl FnMut(&ExportEntry, BufferedContent<'_>) -> Result<Option<Errno>, E>,
) -> Result<Vec<u8>, E> {
    for (entry, read) in &held.entries {
        let (mut entry, mut read, mut bytes) = (entry, read, &held.bytes);
        if let EntryState::Again(again) = read {
            (entry, read, bytes) = (&again.0, &again.1, &again.2);
        }
        let content = match read {
            EntryState::None => BufferedContent::None,
            EntryState::Kept => BufferedContent::Kept,
            EntryState::Held(range, pieces) => BufferedContent::Held {
                bytes: bytes.get(range.clone()).unwrap_or_default(),
                pieces: pieces.as_ref(),
            },
            EntryState::Large => BufferedContent::Large,
            EntryState::Missing | EntryState::Again(_) | EntryState::Gone => continue,
        };
        if let Some(errno) = each(entry, content)? {
            refused.push(Refused {
                path: entry.path.clone(),
                errno: errno.0,
            });
        }
    }
    Ok(held.bytes)
}

/// Reports whether a path stays below the root.
pub fn is_below(path: &TreePath) -> bool {
    path.0.is_empty()
        || path
            .0
            .split(|byte| *byte == b'/')
            .all(|name| !matches!(name, b"" | b"." | b".."))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use ckptfs_api::CheckpointId;
    use ckptfs_sys::Stat;

    /// A feed that returns the given parts and reports the given paths as unproven.
    struct Fake<'a> {
        parts: std::vec::IntoIter<Part>,
        unproven: &'a [(u64, &'a str)],
        /// Parts that were confirmed.
        confirmed: &'a Mutex<Vec<u64>>,
    }

    type Part = (ExportPart, Vec<OwnedFd>);
    type Handed = Vec<(String, Option<String>)>;

    impl PartSource for Fake<'_> {
        fn next(&mut self, done: Vec<u64>) -> VerbResult<Part> {
            let lost = || VerbError {
                code: Code::Lost,
                message: String::new(),
                hint: None,
            };
            let (mut part, files) = self.parts.next().ok_or_else(lost)?;
            let unproven = self
                .unproven
                .iter()
                .filter(|(number, _)| done.contains(number));
            part.unproven = unproven
                .map(|(_, path)| TreePath(path.as_bytes().to_vec()))
                .collect();
            self.confirmed.lock().extend(done);
            Ok((part, files))
        }
    }

    fn part(number: u64, entries: &[(&str, u64, &str)]) -> Part {
        let (mut told, mut files) = (Vec::new(), Vec::new());
        for (path, inode, content) in entries {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(content.as_bytes()).expect("written");
            let stat = Stat {
                nlink: 2,
                ..sys::stat_fd(&file).expect("stat")
            };
            told.push(ExportEntry {
                data: ExportData::File,
                ..ExportEntry::new(path.as_bytes().to_vec(), &stat, *inode, None, Vec::new())
            });
            files.push(OwnedFd::from(file));
        }
        let (removed, refused, unproven, finished) = (Vec::new(), Vec::new(), Vec::new(), false);
        let (checkpoint, store) = (CheckpointId(1), String::new());
        (
            ExportPart {
                run: 1,
                checkpoint,
                from: None,
                store,
                part: number,
                removed,
                entries: told,
                refused,
                unproven,
                total: None,
                finished,
            },
            files,
        )
    }

    fn again((mut part, files): Part) -> Part {
        for entry in &mut part.entries {
            entry.again = true;
        }
        (part, files)
    }

    fn end() -> Part {
        let (part, files) = part(0, &[]);
        (
            ExportPart {
                finished: true,
                ..part
            },
            files,
        )
    }

    fn handed(
        parts: Vec<Part>,
        unproven: &[(u64, &str)],
    ) -> (Result<Vec<Refused>, VerbError>, Handed, Vec<u64>) {
        let confirmed = Mutex::default();
        let mut handed = Vec::new();
        let result = hand_on(
            Fake {
                parts: parts.into_iter(),
                unproven,
                confirmed: &confirmed,
            },
            |entry, content| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let content = if let BufferedContent::Held { bytes, .. } = content {
                    Some(text(bytes))
                } else {
                    None
                };
                handed.push((text(&entry.path.0), content));
                Ok(None)
            },
        );
        let confirmed = confirmed.lock().clone();
        (result, handed, confirmed)
    }

    fn some(path: &str, content: &str) -> (String, Option<String>) {
        (path.to_owned(), Some(content.to_owned()))
    }

    #[test]
    fn what_is_not_proven_is_not_handed_on() {
        let parts = vec![
            part(1, &[("a", 1, "one"), ("b", 2, "changed")]),
            part(2, &[("c", 3, "three")]),
            again(part(3, &[("b", 2, "two")])),
            part(0, &[]),
            part(0, &[]),
            end(),
        ];
        let (result, handed, _) = handed(parts, &[(1, "b")]);
        assert!(result.expect("handed on").is_empty());
        // The resent entry is not buffered: its inode was already seen.
        assert_eq!(
            handed,
            [some("a", "one"), ("b".to_owned(), None), some("c", "three")]
        );
    }

    #[test]
    fn what_was_not_yet_proven_when_the_daemon_went_is_not_handed_on() {
        let (result, handed, confirmed) = handed(
            vec![
                part(1, &[("a", 1, "one")]),
                part(2, &[("b", 2, "two")]),
                part(3, &[("c", 3, "three")]),
            ],
            &[],
        );
        assert_eq!(result.expect_err("the daemon went").code, Code::Lost);
        let proven: Handed = [some("a", "one"), some("b", "two"), some("c", "three")]
            .into_iter()
            .take(confirmed.len())
            .collect();
        assert!(
            handed == proven && !confirmed.contains(&3),
            "{handed:?} {confirmed:?}"
        );
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let strange = part(1, &[("../a", 1, "x"), ("b//c", 2, "x"), ("./d", 3, "x")]);
        let (result, handed, _) = handed(vec![strange, part(0, &[]), end()], &[]);
        assert_eq!((result.expect("handed on").len(), handed.len()), (3, 0));
    }
}
