//! A mount namespace of one's own, and a directory in it that shows something else
//! (mount_namespaces(7), user_namespaces(7), overlayfs).

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags};

use super::super::name::check;
use super::super::types::{Errno, SysResult};

/// Puts this process into a mount namespace of its own: whatever it mounts from now on is seen by
/// it and by what it starts, and goes with the last of them. Without the privilege, in a user
/// namespace of its own too, in which the user keeps the number it has; `true` then.
///
/// Only for a process that has one thread. EPERM where neither is permitted, ENOSPC where there are
/// too many.
pub fn private_mounts() -> SysResult<bool> {
    let (uid, gid) = super::super::process::ids();
    let unshare = |flags: libc::c_int| {
        // SAFETY: unshare(2) takes an integer; only namespaces are unshared, nothing that another
        // part of the process relies on.
        check(unsafe { libc::unshare(flags) }).map(|_| ())
    };
    let user = match unshare(libc::CLONE_NEWNS) {
        Ok(()) => false,
        Err(Errno::EPERM) => {
            unshare(libc::CLONE_NEWNS | libc::CLONE_NEWUSER)?;
            true
        }
        Err(errno) => return Err(errno),
    };
    if user {
        // Without the first, an ordinary user may not map a group.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // What is mounted outside is still seen, so that what is inserted there appears here; nothing
    // goes the other way.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags)?;
    Ok(user)
}

/// Shows at `to` what is at `from`.
pub fn mount_bind(from: &Path, to: &Path) -> SysResult<()> {
    Ok(rustix::mount::mount_bind(from, to)?)
}

/// Mounts an empty directory in memory over `at`.
pub fn mount_scratch(at: &Path) -> SysResult<()> {
    Ok(rustix::mount::mount(
        "ckptfs",
        at,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(c"mode=0700"),
    )?)
}

/// Mounts over `at` a directory that begins as `lower` and can be changed: what is changed is put
/// into `upper`, on whose filesystem `work` is, an empty directory. `user`: the caller is
/// privileged in a user namespace only.
///
/// EINVAL where the kernel does not take one of these for an overlay, ENODEV where it knows none.
pub fn mount_overlay(
    at: &Path,
    lower: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    work: BorrowedFd<'_>,
    user: bool,
) -> SysResult<()> {
    let path = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
    // Paths by number have no character that an option would have to escape. Directories of the
    // lower tree can be renamed where the kernel may note it.
    let how = if user { "userxattr" } else { "redirect_dir=on" };
    let options = format!(
        "lowerdir={},upperdir={},workdir={},index=off,metacopy=off,xino=off,{how}",
        path(lower),
        path(upper),
        path(work)
    );
    let options = CString::new(options).map_err(|_| Errno::EINVAL)?;
    Ok(rustix::mount::mount(
        "ckptfs",
        at,
        "overlay",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(options.as_c_str()),
    )?)
}
