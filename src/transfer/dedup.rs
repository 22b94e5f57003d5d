//! Deduplication across projects: each holder lists its contents and opens its files for reading,
//! and the caller shares extents between them.
//!
//! No daemon opens a path in another project's mount or writes another project's store. The kernel
//! compares the bytes ([`ckptfs_store::extents`]). Sharing requires the rights of the files' owner,
//! or root.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::Serialize;

use super::dirs::open_below;
use super::walk::Walk;
use ckptfs_api::{Code, Content, ExcludeReason, ExcludedFile, TreePath, VerbError, VerbResult};
use ckptfs_core::engine::dedup::{Count, why_of};
use ckptfs_store::dedup::{DedupFiles, DedupGroup, DedupOutcome, DedupStep};
use ckptfs_store::hash::{HashPool, hash_file};
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, SysResult};

/// The part of a store with file content: captured objects.
const LAYERS: &[u8] = b".ckptfs/layers/";
const STORE: &[u8] = b".ckptfs";

/// A source of files to deduplicate.
pub trait DedupSource {
    /// Returns the sizes of all its files.
    ///
    /// # Errors
    /// A message for the user.
    fn sizes(&mut self) -> VerbResult<Vec<u64>>;

    /// Returns at least the contents that have one of these sizes.
    ///
    /// # Errors
    /// As [`DedupSource::sizes`].
    fn contents(&mut self, sizes: &HashSet<u64>) -> VerbResult<Vec<Content>>;

    /// Opens one of the files by its number.
    ///
    /// # Errors
    /// ENOENT if it no longer exists; those of openat2(2).
    fn open(&mut self, number: u64) -> SysResult<File>;
}

/// A directory that no daemon serves, with the versions in its store if it has one.
pub struct UnservedDir {
    root: OwnedFd,
    threads: usize,
    min_size: u64,
    /// Include the tree, not only the versions in its store.
    live: bool,
    /// Path and size of each file to hash.
    found: Vec<(Vec<u8>, u64)>,
    /// Paths of hashed files, by number.
    paths: Vec<Vec<u8>>,
    /// Files that could not be read.
    pub left_out: Vec<ExcludedFile>,
    /// Files examined.
    pub looked: Count,
    /// Files hashed.
    pub hashed: Count,
}

impl UnservedDir {
    /// Returns a holder for the files in `root`; reads nothing yet.
    pub fn new(root: OwnedFd, live: bool, threads: usize, min_size: u64) -> UnservedDir {
        let min_size = min_size.max(1);
        UnservedDir {
            root,
            threads,
            min_size,
            live,
            found: Vec::new(),
            paths: Vec::new(),
            left_out: Vec::new(),
            looked: Count::default(),
            hashed: Count::default(),
        }
    }

    fn leave_out(&mut self, path: &[u8], why: ExcludeReason, errno: Option<Errno>) {
        let error = errno.map(|errno| errno.to_string());
        self.left_out.push(ExcludedFile {
            path: TreePath(path.to_vec()),
            captured: is_object(path),
            why,
            error,
        });
    }

    fn open_path(&self, path: &[u8]) -> SysResult<File> {
        let quietly = Access {
            noatime: true,
            ..Access::READ
        };
        let opened = match open_below(&self.root, path, OpenKind::File(quietly)) {
            Err(Errno::EPERM) => open_below(&self.root, path, OpenKind::File(Access::READ)),
            opened => opened,
        };
        opened.map(File::from)
    }
}

fn failed(errno: Errno) -> VerbError {
    VerbError {
        code: Code::Io,
        message: format!("the directory cannot be read: {errno}"),
        hint: None,
    }
}

fn is_object(path: &[u8]) -> bool {
    path.starts_with(LAYERS)
}

/// Reports whether a path is user content, not an internal file of a store.
fn is_content(path: &[u8], live: bool) -> bool {
    match path
        .split(|byte| *byte == b'/')
        .position(|name| name == STORE)
    {
        None => live,
        // A nested store belongs to another project.
        Some(0) => is_object(path),
        Some(_) => false,
    }
}

impl DedupSource for UnservedDir {
    fn sizes(&mut self) -> VerbResult<Vec<u64>> {
        let mut inodes = HashSet::new();
        let root = self
            .root
            .try_clone()
            .map_err(|cause| failed(cause.into()))?;
        let mut walk = Walk::new(root).map_err(failed)?;
        while let Some(next) = walk.next() {
            match next {
                Ok((entry, _))
                    if entry.kind == Kind::File
                        && entry.size > 0
                        && is_content(&entry.path.0, self.live)
                        && inodes.insert(entry.inode) =>
                {
                    self.looked.add(entry.size);
                    if entry.size < self.min_size {
                        self.leave_out(&entry.path.0, ExcludeReason::TooSmall, None);
                    } else {
                        self.found.push((entry.path.0, entry.size));
                    }
                }
                Ok(_) => {}
                Err(unread) => {
                    self.leave_out(&unread.path, why_of(unread.errno), Some(unread.errno))
                }
            }
        }
        Ok(self.found.iter().map(|(_, size)| *size).collect())
    }

    fn contents(&mut self, sizes: &HashSet<u64>) -> VerbResult<Vec<Content>> {
        let mut found = std::mem::take(&mut self.found);
        found.retain(|(_, size)| sizes.contains(size));
        let hashers = HashPool::new(self.threads);
        let mut contents = Vec::new();
        for (path, size) in found {
            let hashed = self
                .open_path(&path)
                .and_then(|file| hash_file(&file, &hashers, false, |_| true));
            match hashed {
                Ok(Some((found, hash))) if found == size => {
                    self.hashed.add(size);
                    let (number, captured) = (self.paths.len() as u64, is_object(&path));
                    contents.push(Content::new(
                        number,
                        size,
                        &hash,
                        TreePath(path.clone()),
                        captured,
                    ));
                    self.paths.push(path);
                }
                Ok(_) => self.leave_out(&path, ExcludeReason::Differs, None),
                Err(errno) => self.leave_out(&path, why_of(errno), Some(errno)),
            }
        }
        Ok(contents)
    }

    fn open(&mut self, number: u64) -> SysResult<File> {
        let path = usize::try_from(number)
            .ok()
            .and_then(|number| self.paths.get(number))
            .ok_or(Errno::ENOENT)?;
        self.open_path(path)
    }
}

/// The result for one holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DedupResult {
    /// Files whose content another holder has.
    pub common: Count,
    /// Files that now share extents with another holder, and did not before.
    pub shared: Count,
    /// Bytes freed by that, unless something else references the extents.
    pub freed_bytes: u64,
    /// Number of files left out, by reason.
    pub left: BTreeMap<ExcludeReason, u64>,
    /// The files left out.
    pub left_out: Vec<ExcludedFile>,
}

/// The files of all holders, numbered consecutively.
struct FileTable<'a> {
    holders: Vec<&'a mut dyn DedupSource>,
    files: Vec<(usize, Content)>,
    /// Device number of the first file.
    device: Option<u64>,
}

impl FileTable<'_> {
    /// Returns groups of file numbers with equal size and hash, smallest size first: files of
    /// several holders, or several files of one holder in `alone`.
    fn same(&self, alone: &[usize]) -> Vec<(u64, Vec<usize>)> {
        let mut groups: BTreeMap<(u64, &str), Vec<(usize, usize)>> = BTreeMap::new();
        for (number, (holder, content)) in self.files.iter().enumerate() {
            let group = groups.entry((content.size, &content.hash)).or_default();
            group.push((number, *holder));
        }
        let several = |group: &Vec<(usize, usize)>| {
            let holders: HashSet<usize> = group.iter().map(|(_, holder)| *holder).collect();
            group.len() > 1
                && (holders.len() > 1 || holders.iter().any(|holder| alone.contains(holder)))
        };
        groups
            .into_iter()
            .filter(|(_, group)| several(group))
            .map(|((size, _), group)| (size, group.into_iter().map(|(number, _)| number).collect()))
            .collect()
    }
}

impl DedupFiles for FileTable<'_> {
    fn open(&mut self, number: usize) -> SysResult<Arc<File>> {
        let (holder, content) = self.files.get(number).ok_or(Errno::ENOENT)?;
        let file = self
            .holders
            .get_mut(*holder)
            .ok_or(Errno::ENOENT)?
            .open(content.number)?;
        // Equal extent addresses on two filesystems are unrelated.
        let device = sys::stat_fd(&file)?.dev;
        if *self.device.get_or_insert(device) != device {
            Err(Errno::EXDEV)
        } else {
            Ok(Arc::new(file))
        }
    }
}

/// Shares extents between equal files of several holders, or of one holder in `alone`. Calls `told`
/// with the numbers of finished and of all files. Returns the result for each holder.
///
/// # Errors
/// As [`DedupSource::contents`].
pub fn share(
    holders: Vec<&mut dyn DedupSource>,
    alone: &[usize],
    dry_run: bool,
    mut told: impl FnMut(u64, u64),
) -> VerbResult<Vec<DedupResult>> {
    if let Err(errno) = sys::set_thread_io_idle() {
        tracing::debug!(%errno, "sharing is not idle");
    }
    let mut all = FileTable {
        holders,
        files: Vec::new(),
        device: None,
    };
    let (mut seen, mut sizes) = (HashSet::new(), HashSet::new());
    for holder in &mut all.holders {
        // Only files of equal size can have equal content.
        sizes.extend(
            holder
                .sizes()?
                .into_iter()
                .filter(|size| !seen.insert(*size)),
        );
    }
    for (number, holder) in all.holders.iter_mut().enumerate() {
        all.files.extend(
            holder
                .contents(&sizes)?
                .into_iter()
                .map(|content| (number, content)),
        );
    }
    let groups = all.same(alone);
    let total = groups.iter().map(|(_, numbers)| numbers.len() as u64).sum();
    let mut got = vec![DedupResult::default(); all.holders.len()];
    let mut done = 0;
    for (size, numbers) in groups.into_iter().rev() {
        let mut same = DedupGroup::new(size, numbers, dry_run);
        loop {
            match same.step(&mut all) {
                DedupStep::Some => {}
                DedupStep::All => break,
                DedupStep::Fate(number, fate) => {
                    done += 1;
                    told(done, total);
                    if let Some((holder, content)) = all.files.get(number)
                        && let Some(got) = got.get_mut(*holder)
                    {
                        got.note(content, fate);
                    }
                }
            }
        }
    }
    Ok(got)
}

impl DedupResult {
    fn note(&mut self, content: &Content, fate: DedupOutcome) {
        self.common.add(content.size);
        let left = match fate {
            DedupOutcome::Source | DedupOutcome::Already | DedupOutcome::Unplaced => return,
            DedupOutcome::Shared { freed } | DedupOutcome::Linked { freed } => {
                self.shared.add(content.size);
                self.freed_bytes = self.freed_bytes.saturating_add(freed);
                return;
            }
            DedupOutcome::Differs => (ExcludeReason::Differs, None),
            DedupOutcome::Failed(errno) => (why_of(errno), Some(errno)),
        };
        *self.left.entry(left.0).or_insert(0) += 1;
        let error = left.1.map(|errno| errno.to_string());
        self.left_out.push(ExcludedFile {
            path: content.path.clone(),
            captured: content.captured,
            why: left.0,
            error,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_store_only_objects_are_content() {
        let content = |path: &[u8], live| is_content(path, live);
        assert!(content(b"a/b", true) && !content(b"a/b", false));
        assert!(content(b".ckptfs/layers/1/objects/2-0.c", false));
        for path in [
            &b".ckptfs/journal/00000001"[..],
            b".ckptfs/format",
            b"sub/.ckptfs/layers/1/objects/2-0.c",
            b"sub/.ckptfs/lock",
        ] {
            assert!(!content(path, true), "{path:?}");
        }
        assert!(content(b"sub/.ckptfs2/x", true));
    }

    /// Two directories without a store, on any filesystem: only equal files are shared, and no
    /// content changes.
    #[test]
    fn what_two_directories_have_in_common_is_found_and_stays() {
        let temp = tempfile::tempdir().expect("directory");
        let make = |name: &str, files: &[(&str, &[u8])]| {
            let dir = temp.path().join(name);
            std::fs::create_dir(&dir).expect("mkdir");
            files
                .iter()
                .for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).expect("write"));
            UnservedDir::new(sys::open_root(&dir).expect("open"), true, 1, 0)
        };
        let (one, two) = (vec![1_u8; 20_000], vec![2_u8; 20_000]);
        let mut a = make("a", &[("x", &one), ("own", &[3; 10])]);
        let mut b = make("b", &[("y", &one), ("z", &two)]);
        let got = share(vec![&mut a, &mut b], &[0, 1], false, |_, _| {}).expect("share");
        assert_eq!(
            got.iter().map(|got| got.common.files).collect::<Vec<_>>(),
            [1, 1]
        );
        for (path, bytes) in [("a/x", &one), ("b/y", &one), ("b/z", &two)] {
            assert_eq!(&std::fs::read(temp.path().join(path)).expect("read"), bytes);
        }
    }
}
