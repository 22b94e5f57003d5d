//! The mount table, and unmounting.

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::args::MountPoint;
use super::super::name::{check, check_retry};
use super::super::types::{Errno, SysResult};

/// Spare entries for mounts added between counting and listing.
const SPARE_MOUNTS: usize = 16;

/// Returns all mounts (getfsstat(2)), without waiting for filesystems that may hang (`MNT_NOWAIT`).
/// IDs are positions in the list.
pub fn mounts() -> SysResult<Vec<MountPoint>> {
    // SAFETY: without a buffer the call only counts.
    let count = check(unsafe { libc::getfsstat(std::ptr::null_mut(), 0, libc::MNT_NOWAIT) })?;
    let capacity = usize::try_from(count).map_err(|_| Errno::EIO)? + SPARE_MOUNTS;
    let mut list: Vec<libc::statfs> = Vec::with_capacity(capacity);
    let len = libc::c_int::try_from(capacity * size_of::<libc::statfs>())
        .map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the buffer has room for `len` bytes and lives through the call.
    let filled = check(unsafe { libc::getfsstat(list.as_mut_ptr(), len, libc::MNT_NOWAIT) })?;
    let filled = usize::try_from(filled)
        .map_err(|_| Errno::EIO)?
        .min(capacity);
    // SAFETY: the kernel has filled `filled` records, and the buffer has room for them.
    unsafe { list.set_len(filled) };
    Ok(list
        .iter()
        .zip(0..)
        .map(|(info, id)| point_of(info, id))
        .collect())
}

/// Returns the device of the filesystem mounted at `at`.
///
/// # Errors
/// ENOENT: no mount is there. Those of getfsstat(2).
pub fn device_at(at: &Path) -> SysResult<u64> {
    let table = mounts()?;
    let mount = table.iter().rev().find(|mount| mount.at == at);
    mount.map(|mount| mount.dev).ok_or(Errno::ENOENT)
}

/// Returns the mounts that satisfy `wanted`; all processes share one table.
pub fn mounts_of_all(wanted: impl Fn(&MountPoint) -> bool) -> SysResult<Vec<(u32, MountPoint)>> {
    Ok(mounts()?
        .into_iter()
        .filter(wanted)
        .map(|mount| (0, mount))
        .collect())
}

/// Returns no mounts: the system has one table.
pub fn mounts_of_others(
    _dev: u64,
    _wanted: impl Fn(&MountPoint) -> bool,
) -> SysResult<Vec<(u32, MountPoint)>> {
    Ok(Vec::new())
}

/// Not supported: ENOSYS.
pub fn fuse_abort_file(_minor: u32) -> SysResult<File> {
    Err(Errno::ENOSYS)
}

/// Returns no mount points, because the table does not name parent mounts.
pub fn mount_points_on(_dev: u64) -> SysResult<BTreeSet<PathBuf>> {
    Ok(BTreeSet::new())
}

fn point_of(info: &libc::statfs, id: u64) -> MountPoint {
    MountPoint {
        id,
        parent: 0,
        dev: u64::from(device_of(&info.f_fsid)),
        root: PathBuf::from("/"),
        at: PathBuf::from(OsString::from_vec(text(&info.f_mntonname))),
        read_only: info.f_flags & libc::MNT_RDONLY as u32 != 0,
        fs_type: String::from_utf8_lossy(&text(&info.f_fstypename)).into_owned(),
        source: String::from_utf8_lossy(&text(&info.f_mntfromname)).into_owned(),
        owner: text(&info.f_fstypename)
            .windows(4)
            .any(|part| part == b"fuse")
            .then_some(info.f_owner),
    }
}

/// Returns the mount of the inode of `fd`, and whether the inode is its root (fstatfs(2),
/// `F_GETPATH`).
pub fn mount_of(fd: impl AsFd) -> SysResult<(MountPoint, bool)> {
    // SAFETY: the record of integers and byte arrays is valid if zeroed.
    let mut info: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is borrowed, and the record is writable, through the call.
    check_retry(|| unsafe { libc::fstatfs(fd.as_fd().as_raw_fd(), &raw mut info) })?;
    let mount = point_of(&info, 0);
    let path = rustix::fs::getpath(&fd)?;
    let is_root = path.as_bytes() == mount.at.as_os_str().as_bytes();
    Ok((mount, is_root))
}

/// The device in a filesystem ID: its first word (statfs(2)).
fn device_of(fsid: &libc::fsid_t) -> u32 {
    let words: *const libc::fsid_t = fsid;
    // SAFETY: `fsid_t` is two 32-bit integers (sys/_types/_fsid_t.h), whose field libc keeps
    // private; the first is read.
    unsafe { words.cast::<u32>().read() }
}

/// The bytes of a C string in a fixed field.
fn text(field: &[libc::c_char]) -> Vec<u8> {
    field
        .iter()
        .take_while(|&&byte| byte != 0)
        .map(|&byte| byte as u8)
        .collect()
}

/// Unmounts the mount at `path`. macOS has no lazy unmount: `lazy` unmounts even while in use
/// (`MNT_FORCE`). EBUSY while in use, EPERM for other users' mounts.
pub fn unmount(path: &Path, lazy: bool) -> SysResult<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let flags = if lazy { libc::MNT_FORCE } else { 0 };
    // SAFETY: the path lives, with its NUL, through the call.
    check_retry(|| unsafe { libc::unmount(path.as_ptr(), flags) }).map(drop)
}

/// Unmounts through umount(8). Errors: ENOENT if it is missing, EBUSY while in use, EPERM
/// otherwise.
pub fn fusermount_unmount(path: &Path, lazy: bool) -> SysResult<()> {
    let mut command = Command::new("/sbin/umount");
    let output = command
        .args(lazy.then_some("-f"))
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(if message.contains("busy") {
        Errno::EBUSY
    } else {
        Errno::EPERM
    })
}
