//! The reserve for a full filesystem: space, inodes and directories allocated in advance.
//!
//! A full filesystem refuses to create anything, but history must still be recorded: an unlink
//! moves the inode into a layer, a first write clones the file into an object, the journal grows.
//! These still work on a full disk: a clone into an existing file, a rename into a directory that
//! need not grow, and a write to allocated space. For the rest the **ballast** exists, files of
//! allocated blocks. One is truncated whenever recording history finds no space. The last one is
//! for mounting and freeing: a permanently full disk can be mounted, and checkpoints can be
//! deleted. If inodes are missing, an empty file is removed instead.
//!
//! Invariants: the reserve contains no data, so all of it can be deleted while nothing is mounted;
//! ballast takes up to about a thirtieth of the free space, the inodes up to a thirtieth of the
//! free ones; a filesystem with little space gets no ballast.
//!
//! Locking: `state` is held briefly, never across a call that creates something. One thread refills
//! (the engine's syncer).
//!
//! ```text
//! reserve/ballast-<n>            n = 0 ... 7; allocated blocks without data, or empty after use
//! reserve/file-<n>               an empty file, mode 0600: becomes an object
//! reserve/layer-<n>/objects/     becomes layers/<epoch>
//! ```

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use ckptfs_sys::lock::{Mutex, Rank};
use ckptfs_sys::{self as sys, Access, Errno, RenameMode, SysResult};

const NAME: &[u8] = b"reserve";
/// Number of ballast files.
const SLICES: u32 = 8;
/// Maximum size of a ballast file.
const SLICE_BYTES_MAX: u64 = 1 << 20;
/// Minimum size: a filesystem without space for that gets none.
const SLICE_BYTES_MIN: u64 = 64 << 10;
/// A ballast file takes up to this fraction of the free space.
const SLICE_PART: u64 = 512;
/// Maximum number of empty files.
const FILES: u32 = 64;
/// Maximum number of empty layers.
const LAYERS: u32 = 4;
/// The last ballast file may take up to this fraction.
const LAST_PART: u64 = 64;
/// The empty files and layers take up to this fraction of the free inodes.
const INODES_PART: u64 = 32;
/// A filesystem with less free space counts as full.
const FULL_BYTES: u64 = 4 << 20;
/// Space is short if the free fraction of the filesystem is smaller, within these bounds.
const SHORT_PART: u64 = 64;
const SHORT_BYTES: std::ops::RangeInclusive<u64> = FULL_BYTES..=1 << 30;

/// The reserve of a store. See the module.
#[derive(Debug, Default)]
pub struct Reserve {
    /// `None`: the store is read-only, and has no reserve.
    store: Option<OwnedFd>,
    /// The reserve's directory, once it exists.
    dir: OnceLock<OwnedFd>,
    state: Mutex<ReserveState>,
    /// Time of the last lack of space in seconds since 1970; 0: never.
    refused_s: AtomicI64,
}

/// The purpose for which space is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservePriority {
    /// Recording history. A process that fills the disk causes unlimited work of this kind, so it
    /// never gets the last ballast file.
    ThePast,
    /// Mounting and freeing.
    All,
}

#[derive(Debug, Default)]
struct ReserveState {
    /// The directory has been listed.
    known: bool,
    ballast: BTreeSet<u32>,
    files: BTreeSet<u32>,
    layers: BTreeSet<u32>,
    /// Something was used since the last refill.
    short: bool,
}

impl Reserve {
    /// Creates the reserve for the store in this directory; its own directory is created on first
    /// use.
    pub fn open(store: impl AsFd) -> Reserve {
        let state = ReserveState {
            short: true,
            ..ReserveState::default()
        };
        let store = store.as_fd().try_clone_to_owned().ok();
        Reserve {
            store,
            dir: OnceLock::new(),
            state: Mutex::ranked(Rank::Reserve, state),
            refused_s: AtomicI64::new(0),
        }
    }

    /// Returns the reserve's directory. If it cannot be created on a full filesystem, the next call
    /// retries.
    fn dir(&self) -> Option<&OwnedFd> {
        if let Some(dir) = self.dir.get() {
            return Some(dir);
        }
        let dir = open_dir(self.store.as_ref()?).ok()?;
        Some(self.dir.get_or_init(|| dir))
    }

    /// Runs a call that must not fail for lack of space. On such a failure it releases a part of
    /// the reserve and retries until none is left. The last ballast file is kept for
    /// [`Reserve::with_last_room`].
    pub fn with_room<T, E>(
        &self,
        call: impl FnMut() -> Result<T, E>,
        errno: impl Fn(&E) -> Errno,
    ) -> Result<T, E> {
        self.with_room_for(ReservePriority::ThePast, call, errno)
    }

    /// As [`Reserve::with_room`], with the whole reserve: for mounting and freeing. Such a call
    /// writes only a few records.
    pub fn with_last_room<T, E>(
        &self,
        call: impl FnMut() -> Result<T, E>,
        errno: impl Fn(&E) -> Errno,
    ) -> Result<T, E> {
        self.with_room_for(ReservePriority::All, call, errno)
    }

    /// Returns the time of the last failure for lack of space, in seconds since 1970.
    pub fn refused_s(&self) -> Option<i64> {
        Some(self.refused_s.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    fn with_room_for<T, E>(
        &self,
        whom: ReservePriority,
        mut call: impl FnMut() -> Result<T, E>,
        errno: impl Fn(&E) -> Errno,
    ) -> Result<T, E> {
        loop {
            match call() {
                Err(error) if errno(&error).is_no_room() => {
                    if !self.give_up(whom) {
                        self.refused_s.store(sys::now().sec, Ordering::Relaxed);
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Releases an inode if those are missing, or truncates a ballast file. Returns whether it
    /// released one.
    fn give_up(&self, whom: ReservePriority) -> bool {
        let Some(dir) = self.dir() else { return false };
        self.look(dir);
        (self.lacks_inodes() && self.remove_file(dir)) || self.empty_ballast(dir, whom)
    }

    /// Returns whether all inodes are in use. XFS allocates inodes on demand, so there space is
    /// missing instead.
    fn lacks_inodes(&self) -> bool {
        self.space().is_some_and(|info| {
            info.files > 0 && info.ffree == 0 && sys::fs_name(info.fs_type) != "xfs"
        })
    }

    /// Removes an empty file to free its inode.
    fn remove_file(&self, dir: &OwnedFd) -> bool {
        let number = self.take(|state| &mut state.files);
        number.is_some_and(|number| sys::unlink_at(dir, file_name(number).as_bytes()).is_ok())
    }

    /// Truncates a ballast file, or removes it where a btrfs quota forbids the truncation. Returns
    /// `false` if none is left.
    fn empty_ballast(&self, dir: &OwnedFd, whom: ReservePriority) -> bool {
        loop {
            let there = self.state.lock().ballast.len();
            if whom == ReservePriority::ThePast && there <= 1 {
                return false;
            }
            let Some(number) = self.take(|state| &mut state.ballast) else {
                return false;
            };
            let name = ballast_name(number);
            let emptied = sys::open_file_at(dir, name.as_bytes(), Access::WRITE)
                .and_then(|file| sys::truncate(file, 0))
                .or_else(|errno| match errno.is_no_room() {
                    true => sys::unlink_at(dir, name.as_bytes()),
                    false => Err(errno),
                });
            match emptied {
                Ok(()) => {
                    tracing::warn!(
                        left = number,
                        "the filesystem is full: space held in reserve is given up"
                    );
                    return true;
                }
                Err(errno) => tracing::debug!(%errno, number, "ballast cannot be given up"),
            }
        }
    }

    /// Moves an empty file of the reserve to this name; `false` if none is left.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn take_file(&self, to: impl AsFd, name: &[u8]) -> SysResult<bool> {
        self.take_named(|state| &mut state.files, file_name, to, name)
    }

    /// Moves an empty layer of the reserve to this name; `false` if none is left.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn take_layer(&self, to: impl AsFd, name: &[u8]) -> SysResult<bool> {
        self.take_named(|state| &mut state.layers, layer_name, to, name)
    }

    /// Returns whether any call may fail for lack of space.
    pub fn is_full(&self) -> bool {
        self.space().is_some_and(|info| {
            info.bavail.saturating_mul(u64::from(info.bsize)) < FULL_BYTES
                || (info.files > 0 && info.ffree == 0)
        })
    }

    /// Returns whether free space is below a 64th of the filesystem (4 MiB to 1 GiB). A removal
    /// must then free space, so a capture that no user requested must not retain it.
    pub fn is_short(&self) -> bool {
        self.space().is_some_and(|info| {
            let size = info.blocks.saturating_mul(u64::from(info.frsize));
            let free = info.bavail.saturating_mul(u64::from(info.frsize));
            free < (size / SHORT_PART).clamp(*SHORT_BYTES.start(), *SHORT_BYTES.end())
        })
    }

    fn space(&self) -> Option<sys::FsInfo> {
        sys::statfs_fd(self.store.as_ref()?).ok()
    }

    /// Creates missing parts as far as space allows. One thread calls this periodically.
    pub fn refill(&self) {
        let Some(dir) = self.dir() else { return };
        if !std::mem::take(&mut self.state.lock().short) {
            return;
        }
        self.look(dir);
        if let Err(errno) = self.fill(dir) {
            // Not enough space at present; the next call retries.
            self.state.lock().short = true;
            tracing::debug!(%errno, "the reserve is not full");
        }
    }

    fn fill(&self, dir: &OwnedFd) -> SysResult<()> {
        let info = sys::statfs_fd(dir)?;
        let free = info.bavail.saturating_mul(u64::from(info.bsize));
        let slice = (free / SLICE_PART).min(SLICE_BYTES_MAX) & !4095;
        if slice < SLICE_BYTES_MIN {
            self.fill_last(dir, free)?;
            return Err(Errno::ENOSPC);
        }
        let inodes = if info.files == 0 {
            u32::MAX
        } else {
            u32::try_from(info.ffree / INODES_PART).unwrap_or(u32::MAX)
        };
        for number in self.missing(|state| &mut state.layers, LAYERS.min(inodes / 4)) {
            make_layer(dir, &layer_name(number))?;
            self.state.lock().layers.insert(number);
        }
        for number in self.missing(|state| &mut state.files, FILES.min(inodes / 2)) {
            accept_existing(
                sys::create_file_at(dir, file_name(number).as_bytes(), Access::WRITE, 0o600)
                    .map(drop),
            )?;
            self.state.lock().files.insert(number);
        }
        self.fill_last(dir, free)?;
        for number in self.missing(|state| &mut state.ballast, SLICES) {
            make_ballast(dir, &ballast_name(number), slice)?;
            self.state.lock().ballast.insert(number);
        }
        Ok(())
    }

    /// Creates the last ballast file. XFS needs 400 KiB for a new inode, whatever it uses then.
    fn fill_last(&self, dir: &OwnedFd, free: u64) -> SysResult<()> {
        let bytes = (free / LAST_PART).min(SLICE_BYTES_MAX) & !4095;
        if bytes >= SLICE_BYTES_MIN && !self.missing(|state| &mut state.ballast, 1).is_empty() {
            make_ballast(dir, &ballast_name(0), bytes)?;
            self.state.lock().ballast.insert(0);
        }
        Ok(())
    }

    fn missing(
        &self,
        part: impl Fn(&mut ReserveState) -> &mut BTreeSet<u32>,
        count: u32,
    ) -> Vec<u32> {
        let mut state = self.state.lock();
        let there = part(&mut state);
        (0..count)
            .filter(|number| !there.contains(number))
            .collect()
    }

    fn take(&self, part: impl Fn(&mut ReserveState) -> &mut BTreeSet<u32>) -> Option<u32> {
        let mut state = self.state.lock();
        let number = part(&mut state).pop_last()?;
        state.short = true;
        Some(number)
    }

    fn take_named(
        &self,
        part: impl Fn(&mut ReserveState) -> &mut BTreeSet<u32>,
        called: impl Fn(u32) -> String,
        to: impl AsFd,
        name: &[u8],
    ) -> SysResult<bool> {
        let Some(dir) = self.dir() else {
            return Ok(false);
        };
        self.look(dir);
        while let Some(number) = self.take(&part) {
            match sys::rename_at(
                dir,
                called(number).as_bytes(),
                &to,
                name,
                RenameMode::NoReplace,
            ) {
                Ok(()) => return Ok(true),
                Err(Errno::ENOENT) => {}
                Err(errno) => {
                    part(&mut self.state.lock()).insert(number);
                    return Err(errno);
                }
            }
        }
        Ok(false)
    }

    /// Lists the directory, once.
    fn look(&self, dir: &OwnedFd) {
        if self.state.lock().known {
            return;
        }
        let entries = sys::list_dir(dir).unwrap_or_default();
        let numbered = |prefix: &str| -> BTreeSet<u32> {
            let number = |name: &[u8]| {
                std::str::from_utf8(name)
                    .ok()?
                    .strip_prefix(prefix)?
                    .parse()
                    .ok()
            };
            entries
                .iter()
                .filter_map(|entry| number(&entry.name))
                .collect()
        };
        let mut ballast = numbered("ballast-");
        ballast.retain(|number| {
            sys::stat_at(dir, ballast_name(*number).as_bytes()).is_ok_and(|stat| stat.size > 0)
        });
        let (files, layers) = (numbered("file-"), numbered("layer-"));
        let mut state = self.state.lock();
        if !state.known {
            *state = ReserveState {
                known: true,
                ballast,
                files,
                layers,
                short: state.short,
            };
        }
    }
}

fn ballast_name(number: u32) -> String {
    format!("ballast-{number}")
}

fn file_name(number: u32) -> String {
    format!("file-{number}")
}

fn layer_name(number: u32) -> String {
    format!("layer-{number}")
}

fn open_dir(store: impl AsFd) -> SysResult<OwnedFd> {
    accept_existing(sys::mkdir_at(&store, NAME, 0o700))?;
    sys::open_dir_at(store, NAME)
}

fn accept_existing(made: SysResult<()>) -> SysResult<()> {
    made.or_else(|errno| {
        if errno == Errno::EEXIST {
            Ok(())
        } else {
            Err(errno)
        }
    })
}

fn make_layer(dir: &OwnedFd, name: &str) -> SysResult<()> {
    accept_existing(sys::mkdir_at(dir, name.as_bytes(), 0o700))?;
    accept_existing(sys::mkdir_at(
        sys::open_dir_at(dir, name.as_bytes())?,
        b"objects",
        0o700,
    ))
}

fn make_ballast(dir: &OwnedFd, name: &str, bytes: u64) -> SysResult<()> {
    accept_existing(sys::create_file_at(dir, name.as_bytes(), Access::WRITE, 0o600).map(drop))?;
    let file = sys::open_file_at(dir, name.as_bytes(), Access::WRITE)?;
    match sys::fallocate(&file, 0, 0, bytes) {
        Ok(()) => Ok(()),
        Err(errno) => {
            // Blocks allocated before the failure must be released.
            let _ = sys::truncate(&file, 0);
            Err(errno)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use crate::layout::Layout;

    fn reserve(dir: &std::path::Path) -> (Layout, Reserve) {
        let layout = Layout::open(File::open(dir).unwrap(), true).unwrap();
        let reserve = Reserve::open(layout.dir());
        (layout, reserve)
    }

    fn names(dir: &std::path::Path) -> usize {
        fs::read_dir(dir.join(".ckptfs/reserve")).unwrap().count()
    }

    #[test]
    fn what_fails_for_want_of_space_is_done_again_for_each_slice() {
        let dir = tempfile::tempdir().unwrap();
        let (_layout, reserve) = reserve(dir.path());
        reserve.refill();
        let mut tries = 0;
        let failed: SysResult<()> = reserve.with_room(
            || {
                tries += 1;
                Err(Errno::ENOSPC)
            },
            |errno| *errno,
        );
        assert_eq!((failed, tries), (Err(Errno::ENOSPC), SLICES));
        assert!(
            !reserve.give_up(ReservePriority::ThePast),
            "the last one is not for the past"
        );
        assert!(reserve.give_up(ReservePriority::All) && !reserve.give_up(ReservePriority::All));
        reserve.refill();
        assert!(reserve.give_up(ReservePriority::ThePast));
    }

    #[test]
    fn other_failures_give_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        let (_layout, reserve) = reserve(dir.path());
        reserve.refill();
        let mut tries = 0;
        let failed: SysResult<()> = reserve.with_room(
            || {
                tries += 1;
                Err(Errno::EIO)
            },
            |errno| *errno,
        );
        assert_eq!((failed, tries), (Err(Errno::EIO), 1));
    }

    #[test]
    fn files_and_layers_are_found_again_and_given_once() {
        let dir = tempfile::tempdir().unwrap();
        let (layout, first) = reserve(dir.path());
        first.refill();
        assert_eq!(names(dir.path()), (SLICES + FILES + LAYERS) as usize);
        drop(first);
        let second = Reserve::open(layout.dir());
        for number in 0..FILES {
            assert_eq!(
                second.take_file(layout.tmp_dir().unwrap(), format!("f{number}").as_bytes()),
                Ok(true)
            );
        }
        assert_eq!(
            second.take_file(layout.tmp_dir().unwrap(), b"one more"),
            Ok(false)
        );
        assert_eq!(second.take_layer(layout.layers_dir(), b"7"), Ok(true));
        assert!(dir.path().join(".ckptfs/layers/7/objects").is_dir());
        second.refill();
        assert_eq!(names(dir.path()), (SLICES + FILES + LAYERS) as usize);
    }
}
