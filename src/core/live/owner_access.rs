//! Temporary permissions for a daemon that runs as an ordinary user. Root can read and change any
//! inode. An ordinary owner is limited by the mode, but can change the mode.
//!
//! Only the owner's permission bits are set, for the duration of one operation. If the daemon is
//! killed in between, they remain set. If the mode was recorded before, `status` reports the change
//! and a restore reverts it.

use std::os::fd::AsFd;

use ckptfs_sys::{self as sys, Errno, Stat, SysResult};

/// Owner read.
pub(super) const READ: u32 = 0o400;
/// Owner read and write.
pub(super) const CONTENT: u32 = 0o600;
/// Owner write and search: look up and change names in a directory.
pub(super) const NAMES: u32 = 0o300;
/// All owner permissions.
pub(super) const ALL: u32 = 0o700;

/// Returns the mode that grants the owner these permissions. Returns `None` if the owner has them
/// already, or if this process is root or not the owner.
pub(super) fn lending(stat: &Stat, bits: u32) -> Option<u32> {
    let uid = sys::own_user();
    (uid != 0 && stat.uid == uid && stat.mode & bits != bits).then_some(stat.mode | bits)
}

/// Runs an operation on an inode. On EACCES, adds the missing owner permissions, retries, and
/// resets the mode. `first` is called before the mode changes.
///
/// # Errors
/// Those of the operation and of `first`.
pub(super) fn lent<T>(
    fd: impl AsFd,
    bits: u32,
    first: impl FnOnce(&Stat) -> SysResult<()>,
    mut act: impl FnMut() -> SysResult<T>,
) -> SysResult<T> {
    let done = act();
    if !matches!(done, Err(Errno::EACCES)) {
        return done;
    }
    let stat = sys::stat_fd(&fd)?;
    let Some(mode) = lending(&stat, bits) else {
        return done;
    };
    first(&stat)?;
    sys::chmod_fd(&fd, mode)?;
    let done = act();
    sys::chmod_fd(&fd, stat.mode)?;
    done
}
