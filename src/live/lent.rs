//! Rights that the daemon of an ordinary user lends itself: root's reads and changes whatever there
//! is, the owner's only what the mode allows, and the owner may change the mode.
//!
//! Only the owner's own bits are set, for as long as something takes. A kill in between leaves them
//! set; where the mode was recorded before, `status` names that and a restore takes it back.

use std::os::fd::AsFd;

use crate::sys::{self, Errno, Stat, SysResult};

/// The owner may read.
pub(super) const READ: u32 = 0o400;
/// The owner may read and write.
pub(super) const CONTENT: u32 = 0o600;
/// The owner may find names in a directory, and change them.
pub(super) const NAMES: u32 = 0o300;
/// The owner may do everything.
pub(super) const ALL: u32 = 0o700;

/// The mode with which the owner of an inode, who is this process and not root, has these rights;
/// `None`: it has them, or cannot have them.
pub(super) fn lending(stat: &Stat, bits: u32) -> Option<u32> {
    let uid = sys::own_user();
    (uid != 0 && stat.uid == uid && stat.mode & bits != bits).then_some(stat.mode | bits)
}

/// Does something to an inode, and where the mode forbids it to its owner, once more with these
/// rights; `first` is called before they are lent.
///
/// # Errors
/// Those of what is done, and of `first`.
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
