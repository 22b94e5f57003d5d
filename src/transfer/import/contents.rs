//! The same content once: files that hold what is known to be held by another get its extents.
//!
//! A file is read once, to be hashed, and what is known is cloned instead of it. What is known is a
//! file whose attributes prove that it still holds what was hashed: they are looked at before the
//! clone is made, and after. Where files cannot share extents they are copied: two files in a tree
//! are never made one, for each may be changed.
//!
//! **Locking.** Two leaves, never both. A thread that hashes a content first claims it, and whoever
//! has the same waits until it is made.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::{Hash, Record, Trace};
use super::scan::join;
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::{self, Kind, Open, OpenKind, SysResult};
use crate::transfer::inode::Inodes;
use crate::transfer::place::open_below;

/// Bytes that are read at once; a file of at most so many is written from what was read, where it
/// is not cloned.
const BLOCK_BYTES: usize = 1 << 20;

/// A file that holds a known content.
#[derive(Clone, Debug)]
struct Place {
    root: usize,
    path: Vec<u8>,
    look: Trace,
}

/// What is known of a content.
#[derive(Clone, Debug)]
enum Known {
    /// A thread makes the first file with it.
    Claimed,
    /// Files that hold it.
    At(Vec<Place>),
}

/// What was found, in files and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Found {
    /// Files that were hashed.
    pub hashed_files: u64,
    /// Contents that nobody had.
    pub new_contents: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Files that hold what another of the same import holds, and got its extents.
    pub duplicate_files: u64,
    /// Their bytes.
    pub duplicate_bytes: u64,
    /// Files that hold what was there before, in the tree or in another project, and got its
    /// extents.
    pub known_files: u64,
    /// Their bytes.
    pub known_bytes: u64,
    /// Files of both kinds that could not share extents, and were copied.
    pub unshared_files: u64,
    /// Their bytes.
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

/// Known contents.
#[derive(Debug)]
pub struct Contents {
    /// The source, the tree, then other projects; each the directory itself, not what is mounted
    /// over it.
    roots: Vec<OwnedFd>,
    known: Mutex<HashMap<(Hash, u64), Known>>,
    made: Condvar,
    taken: Mutex<HashMap<Vec<u8>, Hash>>,
    counters: Counters,
}

/// Index of the source among the roots.
const SOURCE: usize = 0;
/// Index of the tree.
const TREE: usize = 1;

impl Contents {
    /// Nothing is known yet. Roots are open for reading.
    pub fn new(source: OwnedFd, tree: OwnedFd) -> Contents {
        Contents {
            roots: vec![source, tree],
            known: Mutex::default(),
            made: Condvar::default(),
            taken: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// What a record tells of another project is known, or (`None`) of the tree itself.
    pub fn learn(&mut self, other: Option<OwnedFd>, record: &Record) {
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
                    Place {
                        root,
                        path: join(dir, &known.name),
                        look: known.there,
                    },
                );
            }
        }
    }

    /// A file of another project is known to hold this.
    fn add(&self, hash: Hash, place: Place) {
        let size = place.look.size;
        let mut known = self.known.lock();
        match known
            .entry((hash, size))
            .or_insert_with(|| Known::At(Vec::new()))
        {
            // A second place for when the first was changed.
            Known::At(places) if places.len() < 2 => places.push(place),
            _ => {}
        }
    }

    /// Gives an empty file the content of another, which is at `path` in the source.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn fill(&self, inodes: &Inodes, out: &File, from: &File, path: &[u8]) -> SysResult<()> {
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
            let place = Place {
                root: SOURCE,
                path: path.to_vec(),
                look: Trace::of(&stat),
            };
            let mut known = self.known.lock();
            if filled.is_ok() {
                known.insert(key, Known::At(vec![place]));
                count(&self.counters.new, stat.size);
            } else {
                known.remove(&key);
            }
            drop(known);
            self.made.notify_all();
        }
        filled
    }

    /// Where a content is; `None`: nobody has it, and the caller is the one who makes it.
    fn known_or_claimed(&self, key: (Hash, u64)) -> Option<Vec<Place>> {
        let mut known = self.known.lock();
        loop {
            match known.get(&key) {
                Some(Known::At(places)) => return Some(places.clone()),
                Some(Known::Claimed) => self.made.wait(&mut known),
                None => {
                    known.insert(key, Known::Claimed);
                    return None;
                }
            }
        }
    }

    /// Clones a file that still holds what was hashed. Where the source cannot be cloned, what was
    /// made of it can.
    fn clone_of(&self, place: &Place, out: &File) -> bool {
        let try_at = |root: usize, proves: &dyn Fn(&Trace) -> bool| -> SysResult<bool> {
            let Some(root) = self.roots.get(root) else {
                return Ok(false);
            };
            let file = File::from(open_below(root, &place.path, OpenKind::File(Open::READ))?);
            let before = Trace::of(&sys::stat_fd(&file)?);
            if !proves(&before) {
                return Ok(false);
            }
            sys::clone_file(&file, out)?;
            if Trace::of(&sys::stat_fd(&file)?) == before {
                return Ok(true);
            }
            sys::truncate(out, 0)?;
            Ok(false)
        };
        if try_at(place.root, &|look| *look == place.look).unwrap_or(false) {
            return true;
        }
        // What was made of it has its size and its times: whoever writes to it changes them.
        let made = |look: &Trace| (look.size, look.mtime) == (place.look.size, place.look.mtime);
        place.root == SOURCE && try_at(TREE, &made).unwrap_or(false)
    }

    /// The hash of a file that was filled.
    pub fn take(&self, path: &[u8]) -> Option<Hash> {
        self.taken.lock().remove(path)
    }

    /// What was found.
    pub fn found(&self) -> Found {
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
        Found {
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

/// The hash of a file, and its content if that is small.
fn read(file: &File) -> SysResult<(Hash, Option<Vec<u8>>)> {
    let mut hasher = blake3::Hasher::new();
    let size = usize::try_from(sys::stat_fd(file)?.size).unwrap_or(usize::MAX);
    // One more, so that the end is seen with the first read.
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

/// Hashes every file of a tree, as a record tells it. What cannot be read is left out: it is merely
/// not shared.
///
/// # Errors
/// None at the moment.
pub fn hash_all(root: &OwnedFd, scan: &super::scan::Scan, threads: usize) -> SysResult<Record> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done: Mutex<Vec<(Vec<u8>, Vec<super::record::Known>)>> = Mutex::default();
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
            // Without another thread this one does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let dirs = std::mem::take(&mut *done.lock()).into_iter().collect();
    Ok(Record {
        device: scan.root.dev,
        root: (Trace::of(&scan.root), Trace::of(&scan.root)),
        dirs,
    })
}

fn hash_one(
    root: &OwnedFd,
    dir: &[u8],
    found: &super::scan::Found,
) -> Option<super::record::Known> {
    let file =
        File::from(open_below(root, &join(dir, &found.name), OpenKind::File(Open::READ)).ok()?);
    let look = Trace::of(&sys::stat_fd(&file).ok()?);
    let (hash, _) = read(&file).ok()?;
    let same = Trace::of(&sys::stat_fd(&file).ok()?) == look;
    same.then(|| super::record::Known {
        name: found.name.clone(),
        kind: Kind::File,
        source: look,
        there: look,
        hash: Some(hash),
    })
}
