//! The registry of branches: which there are, where their directories are, and which checkpoint of
//! this store each of them began as.
//!
//! ```text
//! .ckptfs/branches/NAME       a branch, see below
//! .ckptfs/dropped/ID          the directory of a branch that was dropped; ID.gone: it is being removed
//! .ckptfs/dropped/ID.branch   what branches/NAME was
//! .ckptfs/branch              in the store of a branch: whose it is, the same text; written before anything else
//!
//!   ckptfs branch
//!   version 1
//!   state making                   or: made; or: unsynced BOOT MOUNT, see `BranchEntry::unsynced`
//!   name fix-login
//!   id 00112233445566778899aabbccddeeff   of the branch's own store
//!   base 12                        the checkpoint of the parent
//!   since 1                        the checkpoint of the branch that is as the base is
//!   made 1764117933000000000       ns since 1970
//!   depth 1                        how many branches are between it and a tree that is none, and itself
//!   path /srv/project@fix-login    all that follows but the last line feed: any bytes
//! ```
//!
//! Each file is written whole, and durable with its name when [`Registry::register`] returns. Until
//! the branch is on the disk its entry is a symbolic link with that text, which leads nowhere: it is
//! metadata, so it is whole after a power cut, and there if anything is that was done after it
//! ([`Registry::note`]). To drop a branch and to bring it back is in that order too, and no more
//! durable. Locking: none; whoever changes an entry sees to it that nobody else does.

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
use crate::store::error::{StoreError, StoreResult};
use crate::store::ids::CheckpointId;
use crate::sys::fault::{self, Call};
use crate::sys::host;

/// So many branches a tree has at most, those in the trash apart.
pub const BRANCHES_MAX: usize = 1000;
/// So deep branches of branches go.
pub const DEPTH_MAX: u32 = 8;
/// Bytes of a branch's name at most.
const NAME_BYTES_MAX: usize = 64;
/// Names that are listed in a directory of the registry.
const LISTED_MAX: usize = 8 * BRANCHES_MAX;
/// Bytes of an entry at most: a path has 4096 at most.
const ENTRY_BYTES_MAX: u64 = 8192;
const MAGIC: &str = "ckptfs branch";
const VERSION: &str = "1";
/// What the state of a branch begins with that may not be on the disk.
const UNSYNCED: &str = "unsynced ";
const BRANCHES: &str = "branches";
const DROPPED: &str = "dropped";
/// What a directory may have in it when a branch is made there: a file that tells git of it.
pub const DOT_GIT: &[u8] = b".git";
/// The file in a branch's own store.
pub(super) const MARK: &str = "branch";
const ENTRY_SUFFIX: &str = ".branch";
const GONE_SUFFIX: &str = ".gone";

/// What a file of the registry is called while it is written, as [`at::write_whole`] has it.
const UNFINISHED_SUFFIX: &str = ".new";

/// Whether a branch can have this name: it is one component of a path, never hidden, never an
/// option, and no name of a file that is being written.
pub fn is_branch_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && !name.ends_with(UNFINISHED_SUFFIX)
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// A branch, as the registry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchEntry {
    /// What it is called.
    pub name: String,
    /// The store of its directory.
    pub id: StoreId,
    /// The checkpoint of this store that it looks through to.
    pub base: CheckpointId,
    /// The checkpoint of its own store that is as the base is.
    pub since: CheckpointId,
    /// When it was made, nanoseconds since 1970.
    pub made_ns: i64,
    /// 1 for a branch of a tree that is no branch.
    pub depth: u32,
    /// Where its directory is: absolute.
    pub path: PathBuf,
    /// It is whole; else its making was begun, and nobody has been told of it.
    pub made: bool,
    /// It was made, and may not be on the disk: on which mount of the filesystem it was made
    /// ([`host::mount_instance`]). On another one a power cut may have taken its store, in which
    /// nothing is yet: whatever is changed in the branch comes after its entry is durable.
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

/// What the registry has of branches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Those that can be read, by name.
    pub entries: Vec<BranchEntry>,
    /// Files that cannot be understood. What they hold is not known, so nothing is let go.
    pub unreadable: Vec<String>,
}

impl Layout {
    /// The registry of branches.
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
    /// The branches that are registered; none if there never was one.
    ///
    /// # Errors
    /// Those of open(2) and read(2); what a file says that cannot be understood is no error.
    pub fn all(&self) -> StoreResult<Registered> {
        entries_in(self.store, BRANCHES, |file| Some(file.to_owned()))
    }

    /// How many are registered, those that cannot be understood too; no file is opened.
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

    /// Those that were dropped and can be brought back.
    ///
    /// # Errors
    /// As [`Registry::all`].
    pub fn dropped(&self) -> StoreResult<Registered> {
        entries_in(self.store, DROPPED, |file| {
            file.strip_suffix(ENTRY_SUFFIX).map(str::to_owned)
        })
    }

    /// The branch of this name, if it is registered.
    ///
    /// # Errors
    /// `BadBranch`: what the registry says of it cannot be understood. Those of read(2).
    pub fn get(&self, name: &str) -> StoreResult<Option<BranchEntry>> {
        if !is_branch_name(name) {
            return Ok(None);
        }
        let Some(dir) = existing(self.store, BRANCHES)? else {
            return Ok(None);
        };
        read_registered(&dir, name)
    }

    /// Registers a branch, or what has become of it; durable on return, and so is the branch, says
    /// the caller.
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

    /// As [`Registry::register`]; what is noted survives a kill, and a power cut no later than what
    /// is changed after it. A text that is too long for a link is durable on return.
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

    /// Takes a branch out of the registry; its directory is not touched. Durable on return.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn unregister(&self, name: &str) -> StoreResult<()> {
        let Some(dir) = existing(self.store, BRANCHES)? else {
            return Ok(());
        };
        remove_file(&dir, name).map_err(StoreError::io("remove", BRANCHES))
    }

    /// Moves the directory of a branch, `name` in `parent`, into the trash, and then its entry: one
    /// rename each, whatever is in it. Not durable on return; what a kill or a power cut finds
    /// between the two is put right by [`Registry::settle`].
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

    /// Brings a dropped branch back to where it was, `name` in `parent`, which must be free: its
    /// directory first, then its entry. Durable on return: the trash may be emptied next.
    ///
    /// # Errors
    /// EEXIST: there is something of that name. ENOENT: it was freed. Those of rename(2).
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

    /// Ends what a kill has left half done in the trash. `is_at_its_place`: whether the directory
    /// of a branch is where its entry says.
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

    /// Frees a dropped branch for good: its base is held no more when this returns, and of its
    /// directory a descriptor's path is left to be removed with [`Registry::remove_gone`].
    ///
    /// # Errors
    /// Those of rename(2) and unlink(2).
    pub fn free(&self, entry: &BranchEntry) -> StoreResult<()> {
        let Some(dropped) = existing(self.store, DROPPED)? else {
            return Ok(());
        };
        let failed = || StoreError::io("free", DROPPED);
        // That it was dropped is on the disk before the base is let go.
        at::sync_in_order(&dropped).map_err(failed())?;
        let (tree, gone) = (entry.id.to_string(), format!("{}{GONE_SUFFIX}", entry.id));
        match rename_new(&dropped, tree.as_bytes(), &dropped, gone.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed.map_err(failed())?,
        }
        remove_file(&dropped, &format!("{tree}{ENTRY_SUFFIX}")).map_err(failed())?;
        self.merges(entry.id).forget()
    }

    /// When a branch was dropped, nanoseconds since 1970: its entry was moved then.
    pub fn dropped_ns(&self, entry: &BranchEntry) -> i64 {
        let stat = existing(self.store, DROPPED)
            .ok()
            .flatten()
            .and_then(|dir| {
                let name = format!("{}{ENTRY_SUFFIX}", entry.id);
                rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()
            });
        // What is not known is young: it stays.
        stat.map_or(i64::MAX, |stat| stat.st_ctime.saturating_mul(1_000_000_000))
    }

    /// Removes what was freed, but for a store that is not closed within some seconds: the next call
    /// does. This walks it.
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
                // Its engine may be about to be closed still.
                if is_used(&dropped, &name)? {
                    continue;
                }
                let path = host::path_in(dropped.as_fd(), &name)
                    .map_err(|errno| failed()(errno.into()))?;
                // It follows no link below the descriptor.
                std::fs::remove_dir_all(path).map_err(failed())?;
            }
        }
        Ok(())
    }
}

/// The branches that the store in the directory `root` has, without its lock; and those that were
/// dropped.
///
/// # Errors
/// As [`Registry::all`].
pub fn branches_of(root: impl AsFd) -> StoreResult<(Registered, Registered)> {
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

/// As [`read_entry`] of what the registry has, which may be a link: see the module.
fn read_registered(dir: &OwnedFd, file: &str) -> StoreResult<Option<BranchEntry>> {
    match at::read_link(dir, file) {
        Ok(text) => BranchEntry::parse(&text).map(Some).ok_or_else(|| bad(file)),
        // No link.
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
) -> StoreResult<Registered> {
    let mut found = Registered::default();
    let Some(opened) = existing(store, dir)? else {
        return Ok(found);
    };
    let mut names = at::names(&opened).map_err(StoreError::io("list", dir))?;
    names.sort();
    for name in names.into_iter().take(LISTED_MAX) {
        let file = String::from_utf8_lossy(&name).into_owned();
        // What a kill has left while it was written, and never had its name.
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

/// Whether somebody has the store of this tree in the trash, after waiting for a moment.
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
    fault::check(Call::Rename)?;
    let (from, to) = (from.as_fd(), to.as_fd());
    let renamed = rustix::fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE);
    Ok(renamed?)
}

/// The directory that `path`, an absolute one, is in, and its name there.
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

    /// `fix.new` was registered, was taken for what a kill had left of `fix`, and its base was not
    /// held; and to register `fix` again wrote over it.
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
