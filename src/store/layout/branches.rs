//! The registry of branches: their directories, and the checkpoint of this store that each is based
//! on.
//!
//! ```text
//! .ckptfs/branches/NAME       a branch, see below
//! .ckptfs/dropped/ID          the directory of a dropped branch; ID.gone: it is being removed
//! .ckptfs/dropped/ID.branch   the former branches/NAME
//! .ckptfs/branch              in the store of a branch: its entry, the same text; written before anything else
//!
//!   ckptfs branch
//!   version 1
//!   state making                   or: made; or: unsynced BOOT MOUNT, see `BranchEntry::unsynced`
//!   name fix-login
//!   id 00112233445566778899aabbccddeeff   of the branch's own store
//!   base 12                        the checkpoint of the parent
//!   since 1                        the checkpoint of the branch that equals the base
//!   made 1764117933000000000       ns since 1970
//!   depth 1                        number of branches up to a tree that is not a branch, including this one
//!   path /srv/project@fix-login    the rest of the file except its last line feed: any bytes
//! ```
//!
//! Each file is written atomically, and durable with its name when [`Registry::register`] returns.
//! Until the branch is on disk its entry is a dangling symbolic link with that text. A link target
//! is metadata: after a power cut it is complete, and it exists if any later operation does
//! ([`Registry::note`]). Dropping and reviving a branch have the same ordering and durability.
//!
//! Locking: none; the caller serializes changes of an entry.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::super::at;
pub use super::branch_store::{branch_mark, store_id};
use super::{Layout, StoreId, open_trusted, own_dir};
use crate::error::{StoreError, StoreResult};
use ckptfs_api::CheckpointId;
use ckptfs_sys::fault::{self, CallKind};
use ckptfs_sys::host;

/// Maximum number of branches of a tree, without dropped ones.
pub const BRANCHES_MAX: usize = 1000;
/// Maximum nesting depth of branches.
pub const DEPTH_MAX: u32 = 8;
/// Length limit of a branch name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Maximum number of names read from a registry directory.
const LISTED_MAX: usize = 8 * BRANCHES_MAX;
/// Size limit of an entry, in bytes; a path has up to 4096.
const ENTRY_BYTES_MAX: u64 = 8192;
const MAGIC: &str = "ckptfs branch";
const VERSION: &str = "1";
/// Prefix of the state of a branch that may not be on disk.
const UNSYNCED: &str = "unsynced ";
const BRANCHES: &str = "branches";
const DROPPED: &str = "dropped";
/// The only file that the directory of a new branch may contain: it links to a git worktree.
pub const DOT_GIT: &[u8] = b".git";
/// The entry in a branch's own store.
pub(super) const MARK: &str = "branch";
const ENTRY_SUFFIX: &str = ".branch";
const GONE_SUFFIX: &str = ".gone";

/// Suffix of a registry file during a write, as in [`at::write_whole`].
const UNFINISHED_SUFFIX: &str = ".new";

/// Reports whether a branch can have this name: one path component, not hidden, not an option, and
/// not the name of a temporary file.
pub fn is_branch_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && !name.ends_with(UNFINISHED_SUFFIX)
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// A branch in the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchEntry {
    /// Its name.
    pub name: String,
    /// The id of its own store.
    pub id: StoreId,
    /// The checkpoint of this store that it looks through to.
    pub base: CheckpointId,
    /// The checkpoint of its own store that equals the base.
    pub since: CheckpointId,
    /// Creation time, nanoseconds since 1970.
    pub made_ns: i64,
    /// 1 for a branch of a tree that is not a branch.
    pub depth: u32,
    /// The absolute path of its directory.
    pub path: PathBuf,
    /// Creation has finished; otherwise it began and was never acknowledged.
    pub made: bool,
    /// Created but perhaps not on disk: the mount of the filesystem it was created on
    /// ([`host::mount_instance`]). On another mount a power cut may have destroyed its store. That
    /// store has no changes yet, because the first change waits for a durable entry.
    pub unsynced: Option<String>,
}

impl BranchEntry {
    pub(super) fn text(&self) -> Vec<u8> {
        let BranchEntry {
            name,
            id,
            base,
            since,
            made_ns,
            depth,
            path,
            made,
            unsynced,
        } = self;
        let state = match unsynced {
            _ if !made => "making".to_owned(),
            Some(mount) => format!("{UNSYNCED}{mount}"),
            None => "made".to_owned(),
        };
        let mut text = format!(
            "{MAGIC}\nversion {VERSION}\nstate {state}\nname {name}\nid {id}\nbase {}\nsince {}\nmade {made_ns}\ndepth {depth}\npath ",
            base.0, since.0
        )
        .into_bytes();
        text.extend(path.as_os_str().as_bytes());
        text.push(b'\n');
        text
    }

    fn parse(bytes: &[u8]) -> Option<BranchEntry> {
        let mut rest = bytes;
        let mut line = || {
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let (line, after) = rest.split_at_checked(end)?;
            rest = after.get(1..)?;
            std::str::from_utf8(line).ok()
        };
        if line()? != MAGIC {
            return None;
        }
        let mut field = |name: &str| line()?.strip_prefix(name)?.strip_prefix(' ');
        if field("version")? != VERSION {
            return None;
        }
        let (made, unsynced) = match field("state")? {
            "made" => (true, None),
            "making" => (false, None),
            other => (true, Some(other.strip_prefix(UNSYNCED)?.to_owned())),
        };
        let name = field("name")
            .filter(|name| is_branch_name(name))?
            .to_owned();
        let id = StoreId::parse(field("id")?)?;
        let (base, since) = (field("base")?.parse().ok()?, field("since")?.parse().ok()?);
        let (made_ns, depth) = (field("made")?.parse().ok()?, field("depth")?.parse().ok()?);
        let path = rest.strip_prefix(b"path ")?.strip_suffix(b"\n")?;
        let fits = path.starts_with(b"/") && !path.contains(&0) && (1..=DEPTH_MAX).contains(&depth);
        fits.then(|| BranchEntry {
            name,
            id,
            base: CheckpointId(base),
            since: CheckpointId(since),
            made_ns,
            depth,
            path: PathBuf::from(OsString::from_vec(path.to_vec())),
            made,
            unsynced,
        })
    }
}

/// The content of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryContent {
    /// The valid entries, by name.
    pub entries: Vec<BranchEntry>,
    /// Invalid files. Their bases are unknown, so no checkpoint is freed.
    pub unreadable: Vec<String>,
}

impl Layout {
    /// Returns the registry of branches.
    pub fn branches(&self) -> Registry<'_> {
        Registry { store: &self.dir }
    }
}

/// The registry of branches of a store.
#[derive(Clone, Copy, Debug)]
pub struct Registry<'a> {
    /// The directory `.ckptfs`.
    pub(super) store: &'a OwnedFd,
}

impl Registry<'_> {
    /// Returns the registered branches.
    ///
    /// # Errors
    /// Those of open(2) and read(2); an invalid file is not an error.
    pub fn all(&self) -> StoreResult<RegistryContent> {
        entries_in(self.store, BRANCHES, |file| Some(file.to_owned()))
    }

    /// Returns the number of registered branches, including invalid entries; opens no file.
    ///
    /// # Errors
    /// Those of open(2) and getdents(2).
    pub fn count(&self) -> StoreResult<usize> {
        let Some(dir) = existing(self.store, BRANCHES)? else {
            return Ok(0);
        };
        let mut names = at::names(&dir).map_err(StoreError::io("list", BRANCHES))?;
        names.retain(|name| !name.ends_with(UNFINISHED_SUFFIX.as_bytes()));
        Ok(names.len())
    }

    /// Returns the dropped branches that can be revived.
    ///
    /// # Errors
    /// As [`Registry::all`].
    pub fn dropped(&self) -> StoreResult<RegistryContent> {
        entries_in(self.store, DROPPED, |file| {
            file.strip_suffix(ENTRY_SUFFIX).map(str::to_owned)
        })
    }

    /// Returns the branch of this name.
    ///
    /// # Errors
    /// `BadBranch`: its entry is invalid. Those of read(2).
    pub fn get(&self, name: &str) -> StoreResult<Option<BranchEntry>> {
        if !is_branch_name(name) {
            return Ok(None);
        }
        let Some(dir) = existing(self.store, BRANCHES)? else {
            return Ok(None);
        };
        read_registered(&dir, name)
    }

    /// Writes the entry of a branch, durable on return. The caller has made the branch itself
    /// durable.
    ///
    /// # Errors
    /// Those of write(2), fsync(2) and rename(2).
    pub fn register(&self, entry: &BranchEntry) -> StoreResult<()> {
        let dir = own_dir(self.store, BRANCHES)?;
        // The directory itself may be new.
        at::sync_dir(self.store).map_err(StoreError::io("sync", BRANCHES))?;
        let durable = BranchEntry {
            unsynced: None,
            ..entry.clone()
        };
        at::write_whole(&dir, &entry.name, &durable.text())
            .map_err(StoreError::io("write", BRANCHES))
    }

    /// As [`Registry::register`], but ordered instead of durable: the entry survives a kill, and
    /// after a power cut it exists if any later change does. A text too long for a symbolic link is
    /// durable on return.
    ///
    /// # Errors
    /// Those of symlink(2), and as [`Registry::register`].
    pub fn note(&self, entry: &BranchEntry) -> StoreResult<()> {
        let dir = own_dir(self.store, BRANCHES)?;
        let failed = || StoreError::io("write", BRANCHES);
        match at::write_link(&dir, &entry.name, &entry.text()) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NAMETOOLONG) => {
                at::write_whole(&dir, &entry.name, &entry.text()).map_err(failed())
            }
            noted => noted.map_err(failed()),
        }
    }

    /// Removes the entry of a branch, durable on return; its directory stays.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn unregister(&self, name: &str) -> StoreResult<()> {
        let Some(dir) = existing(self.store, BRANCHES)? else {
            return Ok(());
        };
        remove_file(&dir, name).map_err(StoreError::io("remove", BRANCHES))
    }

    /// Moves the directory of a branch, `name` in `parent`, to the trash, then its entry, by one
    /// rename each. Not durable on return; [`Registry::settle`] completes an interrupted move.
    ///
    /// # Errors
    /// EXDEV: the directory is on another filesystem. Those of rename(2).
    pub fn discard(&self, entry: &BranchEntry, parent: impl AsFd, name: &[u8]) -> StoreResult<()> {
        let dropped = own_dir(self.store, DROPPED)?;
        let failed = || StoreError::io("move", DROPPED);
        rename_new(&parent, name, &dropped, entry.id.to_string().as_bytes()).map_err(failed())?;
        self.entry_to_trash(&dropped, entry)
    }

    fn entry_to_trash(&self, dropped: &OwnedFd, entry: &BranchEntry) -> StoreResult<()> {
        let branches = own_dir(self.store, BRANCHES)?;
        let failed = || StoreError::io("move", BRANCHES);
        let to = format!("{}{ENTRY_SUFFIX}", entry.id);
        rename_new(&branches, entry.name.as_bytes(), dropped, to.as_bytes()).map_err(failed())
    }

    /// Moves a dropped branch back to `name` in `parent`, which must be free: first its directory,
    /// then its entry. Durable on return, because the trash may be emptied next.
    ///
    /// # Errors
    /// EEXIST: the name is taken. ENOENT: the branch was freed. Those of rename(2).
    pub fn revive(&self, entry: &BranchEntry, parent: impl AsFd, name: &[u8]) -> StoreResult<()> {
        let dropped = own_dir(self.store, DROPPED)?;
        let failed = || StoreError::io("move", DROPPED);
        rename_new(&dropped, entry.id.to_string().as_bytes(), &parent, name).map_err(failed())?;
        at::sync_dir(&parent).map_err(failed())?;
        self.entry_from_trash(&dropped, entry)
    }

    fn entry_from_trash(&self, dropped: &OwnedFd, entry: &BranchEntry) -> StoreResult<()> {
        let branches = own_dir(self.store, BRANCHES)?;
        let failed = || StoreError::io("move", BRANCHES);
        let from = format!("{}{ENTRY_SUFFIX}", entry.id);
        rename_new(dropped, from.as_bytes(), &branches, entry.name.as_bytes()).map_err(failed())?;
        at::sync_dir(&branches)
            .and_then(|()| at::sync_dir(dropped))
            .map_err(failed())
    }

    /// Completes interrupted moves between registry and trash. `is_at_its_place` reports whether
    /// the directory of a branch is at the path in its entry.
    ///
    /// # Errors
    /// Those of rename(2) and unlink(2).
    pub fn settle(&self, is_at_its_place: impl Fn(&BranchEntry) -> bool) -> StoreResult<()> {
        let Some(dropped) = existing(self.store, DROPPED)? else {
            return Ok(());
        };
        let is_in_trash = |entry: &BranchEntry| {
            at::is_dir(&dropped, entry.id.to_string().as_bytes()).unwrap_or(false)
        };
        for entry in self.all()?.entries {
            if is_in_trash(&entry) {
                self.entry_to_trash(&dropped, &entry)?;
            }
        }
        for entry in self.dropped()?.entries {
            if is_in_trash(&entry) {
                continue;
            }
            if is_at_its_place(&entry) && self.get(&entry.name)?.is_none() {
                self.entry_from_trash(&dropped, &entry)?;
            } else {
                remove_file(&dropped, &format!("{}{ENTRY_SUFFIX}", entry.id))
                    .map_err(StoreError::io("remove", DROPPED))?;
            }
        }
        Ok(())
    }

    /// Frees a dropped branch: its base is released on return, and its directory, renamed to
    /// `ID.gone`, is left to [`Registry::remove_gone`].
    ///
    /// # Errors
    /// Those of rename(2) and unlink(2).
    pub fn free(&self, entry: &BranchEntry) -> StoreResult<()> {
        let Some(dropped) = existing(self.store, DROPPED)? else {
            return Ok(());
        };
        let failed = || StoreError::io("free", DROPPED);
        // The drop must be on disk before the base is released.
        at::sync_in_order(&dropped).map_err(failed())?;
        let (tree, gone) = (entry.id.to_string(), format!("{}{GONE_SUFFIX}", entry.id));
        match rename_new(&dropped, tree.as_bytes(), &dropped, gone.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed.map_err(failed())?,
        }
        remove_file(&dropped, &format!("{tree}{ENTRY_SUFFIX}")).map_err(failed())?;
        self.merges(entry.id).forget()
    }

    /// Returns when a branch was dropped, nanoseconds since 1970: the ctime of its moved entry.
    pub fn dropped_ns(&self, entry: &BranchEntry) -> i64 {
        let stat = existing(self.store, DROPPED)
            .ok()
            .flatten()
            .and_then(|dir| {
                let name = format!("{}{ENTRY_SUFFIX}", entry.id);
                rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()
            });
        // An unknown time counts as recent, so that the branch stays.
        stat.map_or(i64::MAX, |stat| stat.st_ctime.saturating_mul(1_000_000_000))
    }

    /// Removes the directories of freed branches. A store still in use after some seconds is left
    /// to the next call. Walks the directories.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove_gone(&self) -> StoreResult<()> {
        let Some(dropped) = existing(self.store, DROPPED)? else {
            return Ok(());
        };
        let failed = || StoreError::io("remove", DROPPED);
        for name in at::names(&dropped).map_err(failed())? {
            if name.ends_with(GONE_SUFFIX.as_bytes()) {
                let name = String::from_utf8_lossy(&name);
                // Its engine may still be closing.
                if is_used(&dropped, &name)? {
                    continue;
                }
                let path = host::path_in(dropped.as_fd(), &name)
                    .map_err(|errno| failed()(errno.into()))?;
                // Follows no symbolic link below the descriptor.
                std::fs::remove_dir_all(path).map_err(failed())?;
            }
        }
        Ok(())
    }
}

/// Returns the registered and the dropped branches of the store in the directory `root`, without
/// its lock.
///
/// # Errors
/// As [`Registry::all`].
pub fn branches_of(root: impl AsFd) -> StoreResult<(RegistryContent, RegistryContent)> {
    let layout = Layout::open_existing_readonly(root)?;
    let registry = layout.branches();
    Ok((registry.all()?, registry.dropped()?))
}

pub(super) fn existing(parent: impl AsFd, name: &str) -> StoreResult<Option<OwnedFd>> {
    match at::open_dir(&parent, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => open_trusted(&parent, &parent, name).map(Some),
    }
}

pub(super) fn read_entry(dir: &OwnedFd, file: &str) -> StoreResult<Option<BranchEntry>> {
    match at::read_small(dir, file, ENTRY_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if Errno::from_io_error(&error) != Some(Errno::FBIG) => {
            Err(StoreError::io("read", file)(error))
        }
        Err(_) => Err(bad(file)),
        Ok(bytes) => BranchEntry::parse(&bytes)
            .map(Some)
            .ok_or_else(|| bad(file)),
    }
}

/// As [`read_entry`], for a registry entry, which may be a symbolic link; see the module.
fn read_registered(dir: &OwnedFd, file: &str) -> StoreResult<Option<BranchEntry>> {
    match at::read_link(dir, file) {
        Ok(text) => BranchEntry::parse(&text).map(Some).ok_or_else(|| bad(file)),
        // Not a symbolic link.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => read_entry(dir, file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", file)(error)),
    }
}

fn bad(file: &str) -> StoreError {
    StoreError::BadBranch {
        file: file.to_owned(),
    }
}

fn entries_in(
    store: &OwnedFd,
    dir: &str,
    stem: impl Fn(&str) -> Option<String>,
) -> StoreResult<RegistryContent> {
    let mut found = RegistryContent::default();
    let Some(opened) = existing(store, dir)? else {
        return Ok(found);
    };
    let mut names = at::names(&opened).map_err(StoreError::io("list", dir))?;
    names.sort();
    for name in names.into_iter().take(LISTED_MAX) {
        let file = String::from_utf8_lossy(&name).into_owned();
        // A temporary file left by a kill.
        let Some(stem) = stem(&file).filter(|_| !file.ends_with(UNFINISHED_SUFFIX)) else {
            continue;
        };
        match read_registered(&opened, &file) {
            Ok(Some(entry)) if entry.name == stem || entry.id.to_string() == stem => {
                found.entries.push(entry)
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(StoreError::BadBranch { .. }) => found.unreadable.push(file),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn remove_file(dir: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => at::sync_dir(dir),
        Err(errno) => Err(errno.into()),
    }
}

/// Reports whether a process holds the lock of a store in the trash, after waiting for its release.
fn is_used(dropped: &OwnedFd, tree: &str) -> StoreResult<bool> {
    let store = existing(dropped, tree)?.map(|tree| existing(&tree, super::STORE_NAME));
    match store.transpose()?.flatten() {
        Some(store) => match super::take_lock(&store, false) {
            Err(StoreError::Locked) => Ok(true),
            taken => taken.map(|_| false),
        },
        None => Ok(false),
    }
}

/// Renames to a name that must be free.
fn rename_new(from: impl AsFd, name: &[u8], to: impl AsFd, new: &[u8]) -> io::Result<()> {
    fault::check(CallKind::Rename)?;
    let (from, to) = (from.as_fd(), to.as_fd());
    let renamed = rustix::fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE);
    Ok(renamed?)
}

/// Splits an absolute path into its directory and its name.
pub fn parent_and_name(path: &Path) -> Option<(&Path, &[u8])> {
    Some((path.parent()?, path.file_name()?.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &[u8]) -> BranchEntry {
        BranchEntry {
            name: "fix-login".into(),
            id: StoreId([7; 16]),
            base: CheckpointId(12),
            since: CheckpointId(1),
            made_ns: 1_764_117_933_000_000_000,
            depth: 1,
            path: PathBuf::from(OsString::from_vec(path.to_vec())),
            made: true,
            unsynced: None,
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_whatever_bytes_its_path_has() {
        for path in [&b"/a"[..], b"/a b\n/c\npath /d\n", b"/\xff\xfe"] {
            let entry = entry(path);
            assert_eq!(BranchEntry::parse(&entry.text()), Some(entry));
        }
    }

    /// Regression: `fix.new` was mistaken for a temporary file of `fix`, so its base was not held,
    /// and registering `fix` overwrote it.
    #[test]
    fn no_branch_is_called_as_an_entry_that_is_being_written() {
        assert!(is_branch_name("fix.newer") && !is_branch_name("fix.new"));
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        let text = entry(b"/a").text();
        for end in 0..text.len() {
            assert_eq!(BranchEntry::parse(&text[..end]), None, "{end}");
        }
        let whole = String::from_utf8(text).unwrap();
        for (from, to) in [
            ("name fix-login", "name ../etc"),
            ("version 1", "version 2"),
            ("state made", "state "),
            ("depth 1", "depth 9"),
            ("depth 1", "depth 0"),
            ("base 12", "base -1"),
            ("path /a", "path a"),
            ("id 07", "id 0z"),
        ] {
            let changed = whole.replace(from, to);
            assert_ne!(changed, whole);
            assert_eq!(BranchEntry::parse(changed.as_bytes()), None, "{to}");
        }
    }

    #[test]
    fn a_name_is_one_component_and_no_option() {
        assert!(is_branch_name("fix-login") && is_branch_name("A.b_1-2"));
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for bad in ["", ".", "..", ".a", "-a", "a/b", "a b", "a\0", "ä", &long] {
            assert!(!is_branch_name(bad), "{bad:?}");
        }
    }
}
