//! Deduplication of an import: a file whose content is known shares the extents of a file that has
//! it.
//!
//! Each file is read once to hash it; a file with the same content is cloned instead of copied. A
//! known content is a file whose attributes prove that it is unchanged since it was hashed. They
//! are checked before and after the clone. Files that cannot share extents are copied. Two files
//! never become hard links of one inode, because each may be changed.
//!
//! **Locking.** Two leaves, never held together. The first thread with a new content claims it;
//! threads with the same content wait until the file is created.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::{Hash, ImportRecord, InodeStamp};
use super::scan::join;
use crate::dirs::open_below;
use crate::inode::InodeCreator;
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::{self as sys, Access, Kind, OpenKind, SysResult};

/// Read size. A file of at most this size is written from the buffer if it cannot be cloned.
const BLOCK_BYTES: usize = 1 << 20;

/// A file with a known content.
#[derive(Clone, Debug)]
struct ContentFile {
    root: usize,
    path: Vec<u8>,
    look: InodeStamp,
}

/// The state of a content.
#[derive(Clone, Debug)]
enum ContentState {
    /// A thread is creating the first file with it.
    Claimed,
    /// Files that have it.
    At(Vec<ContentFile>),
}

/// Deduplication counters of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ContentCounts {
    /// Files hashed.
    pub hashed_files: u64,
    /// Contents that no other file had.
    pub new_contents: u64,
    /// Bytes of new contents.
    pub new_bytes: u64,
    /// Files that share the extents of another file of the same import.
    pub duplicate_files: u64,
    /// Bytes of duplicate files.
    pub duplicate_bytes: u64,
    /// Files that share the extents of a file that existed before, in the tree or in another
    /// project.
    pub known_files: u64,
    /// Bytes of known files.
    pub known_bytes: u64,
    /// Duplicate and known files that could not share extents and were copied.
    pub unshared_files: u64,
    /// Bytes of unshared files.
    pub unshared_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hashed: AtomicU64,
    new: [AtomicU64; 2],
    duplicate: [AtomicU64; 2],
    known: [AtomicU64; 2],
    unshared: [AtomicU64; 2],
}

fn count(counter: &[AtomicU64; 2], bytes: u64) {
    counter[0].fetch_add(1, Ordering::Relaxed);
    counter[1].fetch_add(bytes, Ordering::Relaxed);
}

/// The known contents.
#[derive(Debug)]
pub struct ContentIndex {
    /// The source, the tree, then other projects; each the backing directory, not a mount over it.
    roots: Vec<OwnedFd>,
    known: Mutex<HashMap<(Hash, u64), ContentState>>,
    made: Condvar,
    taken: Mutex<HashMap<Vec<u8>, Hash>>,
    counters: Counters,
}

/// Index of the source in `roots`.
const SOURCE: usize = 0;
/// Index of the tree in `roots`.
const TREE: usize = 1;

impl ContentIndex {
    /// Returns an empty set; both roots are open for reading.
    pub fn new(source: OwnedFd, tree: OwnedFd) -> ContentIndex {
        ContentIndex {
            roots: vec![source, tree],
            known: Mutex::default(),
            made: Condvar::default(),
            taken: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Adds the contents recorded for another project, or for the tree if `other` is `None`.
    pub fn learn(&mut self, other: Option<OwnedFd>, record: &ImportRecord) {
        let root = match other {
            Some(root) => {
                self.roots.push(root);
                self.roots.len() - 1
            }
            None => TREE,
        };
        for (dir, names) in &record.dirs {
            for known in names
                .iter()
                .filter(|known| known.kind == Kind::File && known.there.size > 0)
            {
                let Some(hash) = known.hash else { continue };
                self.add(
                    hash,
                    ContentFile {
                        root,
                        path: join(dir, &known.name),
                        look: known.there,
                    },
                );
            }
        }
    }

    /// Adds a file with a known content.
    fn add(&self, hash: Hash, place: ContentFile) {
        let size = place.look.size;
        let mut known = self.known.lock();
        match known
            .entry((hash, size))
            .or_insert_with(|| ContentState::At(Vec::new()))
        {
            // The second place is a fallback if the first file has changed.
            ContentState::At(places) if places.len() < 2 => places.push(place),
            _ => {}
        }
    }

    /// Fills an empty file with the content of another, which has `path` in the source.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn fill(
        &self,
        inodes: &InodeCreator,
        out: &File,
        from: &File,
        path: &[u8],
    ) -> SysResult<()> {
        let stat = sys::stat_fd(from)?;
        let (hash, whole) = read(from)?;
        self.counters.hashed.fetch_add(1, Ordering::Relaxed);
        self.taken.lock().insert(path.to_vec(), hash);
        let key = (hash, stat.size);
        let known = self.known_or_claimed(key);
        if let Some(places) = &known {
            if places.iter().any(|place| self.clone_of(place, out)) {
                let here = places.iter().all(|place| place.root == SOURCE);
                count(
                    if here {
                        &self.counters.duplicate
                    } else {
                        &self.counters.known
                    },
                    stat.size,
                );
                inodes.count_shared(stat.size);
                return Ok(());
            }
            count(&self.counters.unshared, stat.size);
        }
        let sparse = stat.blocks.saturating_mul(512) < stat.size;
        let filled = inodes.fill_plain(out, from, whole.as_deref().filter(|_| !sparse));
        if known.is_none() {
            let place = ContentFile {
                root: SOURCE,
                path: path.to_vec(),
                look: InodeStamp::of(&stat),
            };
            let mut known = self.known.lock();
            if filled.is_ok() {
                known.insert(key, ContentState::At(vec![place]));
                count(&self.counters.new, stat.size);
            } else {
                known.remove(&key);
            }
            drop(known);
            self.made.notify_all();
        }
        filled
    }

    /// Returns the places of a content, or `None` after claiming it for the caller.
    fn known_or_claimed(&self, key: (Hash, u64)) -> Option<Vec<ContentFile>> {
        let mut known = self.known.lock();
        loop {
            match known.get(&key) {
                Some(ContentState::At(places)) => return Some(places.clone()),
                Some(ContentState::Claimed) => self.made.wait(&mut known),
                None => {
                    known.insert(key, ContentState::Claimed);
                    return None;
                }
            }
        }
    }

    /// Clones a file that is unchanged since it was hashed. If the source cannot be cloned, its
    /// copy in the tree can.
    fn clone_of(&self, place: &ContentFile, out: &File) -> bool {
        let try_at = |root: usize, proves: &dyn Fn(&InodeStamp) -> bool| -> SysResult<bool> {
            let Some(root) = self.roots.get(root) else {
                return Ok(false);
            };
            let file = File::from(open_below(root, &place.path, OpenKind::File(Access::READ))?);
            let before = InodeStamp::of(&sys::stat_fd(&file)?);
            if !proves(&before) {
                return Ok(false);
            }
            sys::clone_file(&file, out)?;
            if InodeStamp::of(&sys::stat_fd(&file)?) == before {
                return Ok(true);
            }
            sys::truncate(out, 0)?;
            Ok(false)
        };
        if try_at(place.root, &|look| *look == place.look).unwrap_or(false) {
            return true;
        }
        // The copy has the size and times of the source; a write changes them.
        let made =
            |look: &InodeStamp| (look.size, look.mtime) == (place.look.size, place.look.mtime);
        place.root == SOURCE && try_at(TREE, &made).unwrap_or(false)
    }

    /// Removes and returns the hash of a filled file.
    pub fn take(&self, path: &[u8]) -> Option<Hash> {
        self.taken.lock().remove(path)
    }

    /// Returns the counters.
    pub fn found(&self) -> ContentCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let both = |counter: &[AtomicU64; 2]| (get(&counter[0]), get(&counter[1]));
        let Counters {
            hashed,
            new,
            duplicate,
            known,
            unshared,
        } = &self.counters;
        let ((new_contents, new_bytes), (duplicate_files, duplicate_bytes)) =
            (both(new), both(duplicate));
        let ((known_files, known_bytes), (unshared_files, unshared_bytes)) =
            (both(known), both(unshared));
        ContentCounts {
            hashed_files: get(hashed),
            new_contents,
            new_bytes,
            duplicate_files,
            duplicate_bytes,
            known_files,
            known_bytes,
            unshared_files,
            unshared_bytes,
        }
    }
}

/// Returns the hash of a file, and its content if it is small.
fn read(file: &File) -> SysResult<(Hash, Option<Vec<u8>>)> {
    let mut hasher = blake3::Hasher::new();
    let size = usize::try_from(sys::stat_fd(file)?.size).unwrap_or(usize::MAX);
    // One byte more, so that the first read detects the end.
    let mut block = vec![0; size.saturating_add(1).min(BLOCK_BYTES)];
    let mut offset = 0;
    loop {
        let read = sys::read_full_at(file, &mut block, offset)?;
        hasher.update(block.get(..read).unwrap_or_default());
        offset += read as u64;
        if read < block.len() {
            let hash = *hasher.finalize().as_bytes();
            block.truncate(read);
            return Ok((hash, Some(block).filter(|_| offset == read as u64)));
        }
    }
}

/// Hashes every file of a tree into a record. Unreadable files are omitted and thus not shared.
///
/// # Errors
/// None at present.
pub fn hash_all(
    root: &OwnedFd,
    scan: &super::scan::Scan,
    threads: usize,
) -> SysResult<ImportRecord> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done: Mutex<Vec<(Vec<u8>, Vec<super::record::ImportedName>)>> = Mutex::default();
    let work = || {
        while let Some(dir) = scan.dirs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let files = dir
                .names
                .iter()
                .filter(|found| found.stat.kind == Kind::File && found.stat.size > 0);
            let names = files
                .filter_map(|found| hash_one(root, &dir.path, found))
                .collect();
            done.lock().push((dir.path.clone(), names));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If no thread can be created, this one does all the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let dirs = std::mem::take(&mut *done.lock()).into_iter().collect();
    Ok(ImportRecord {
        device: scan.root.dev,
        root: (InodeStamp::of(&scan.root), InodeStamp::of(&scan.root)),
        dirs,
    })
}

fn hash_one(
    root: &OwnedFd,
    dir: &[u8],
    found: &super::scan::ScanEntry,
) -> Option<super::record::ImportedName> {
    let file =
        File::from(open_below(root, &join(dir, &found.name), OpenKind::File(Access::READ)).ok()?);
    let look = InodeStamp::of(&sys::stat_fd(&file).ok()?);
    let (hash, _) = read(&file).ok()?;
    let same = InodeStamp::of(&sys::stat_fd(&file).ok()?) == look;
    same.then(|| super::record::ImportedName {
        name: found.name.clone(),
        kind: Kind::File,
        source: look,
        there: look,
        hash: Some(hash),
    })
}
