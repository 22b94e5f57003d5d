//! Private mount namespaces, and mounts in them (mount_namespaces(7), user_namespaces(7),
//! overlayfs).

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags};

use super::super::name::check;
use super::super::types::{Errno, SysResult};

/// Moves this process into a new mount namespace: only it and its children see its later mounts,
/// which end with the last of them. Without the privilege it also creates a user namespace, in
/// which the user keeps its ID, and returns `true`.
///
/// Only for a single-threaded process. EPERM if neither is permitted, ENOSPC if the limit of
/// namespaces is reached.
pub fn private_mounts() -> SysResult<bool> {
    let (uid, gid) = super::super::process::ids();
    let unshare = |flags: libc::c_int| {
        // SAFETY: unshare(2) takes an integer; it unshares only namespaces, on which no other part
        // of the process relies.
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
        // Without denying setgroups, an ordinary user may not map a group.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // Later mounts outside propagate into this namespace, but not the reverse.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags)?;
    Ok(user)
}

/// Bind-mounts `from` at `to`.
pub fn mount_bind(from: &Path, to: &Path) -> SysResult<()> {
    Ok(rustix::mount::mount_bind(from, to)?)
}

/// Mounts an empty tmpfs over `at`.
pub fn mount_scratch(at: &Path) -> SysResult<()> {
    Ok(rustix::mount::mount(
        "ckptfs",
        at,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(c"mode=0700"),
    )?)
}

/// Mounts an overlay over `at`, with changes stored in `upper`. `work` is an empty directory on the
/// filesystem of `upper`. `user`: the caller is privileged only in a user namespace.
///
/// EINVAL if the kernel does not accept one of the directories for an overlay, ENODEV if it has no
/// overlayfs.
pub fn mount_overlay(
    at: &Path,
    lower: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    work: BorrowedFd<'_>,
    user: bool,
) -> SysResult<()> {
    let path = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
    // Paths by descriptor number need no escaping. Renaming directories of `lower` requires
    // `redirect_dir`, which `userxattr` excludes.
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
