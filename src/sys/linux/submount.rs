//! Other filesystems inside a directory: mounts that are also shown elsewhere, and btrfs
//! subvolumes. Detached copies of mounts.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::CWD;
use rustix::mount::{MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use super::super::name::{check, last_errno};
use super::super::types::{Errno, SysResult};
use super::handover::{message_pair, receive_message, send_message};
use super::mount::unmount;
use super::open::proc_path;

/// Returns a detached copy of the mount that `what` names, from that directory or file on, with all
/// mounts below (open_tree(2)).
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn copy_mount(what: impl AsFd) -> SysResult<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(what, "", flags)?)
}

/// Attaches a detached mount over the inode of `over` (move_mount(2)).
///
/// # Errors
/// Those of mount(2): ENOTDIR if only one of the two is a directory.
pub fn attach_mount(copy: impl AsFd, over: impl AsFd) -> SysResult<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(copy, "", over, "", flags)?)
}

/// Returns a read-only copy of the mount of a directory, from that directory on, without the mounts
/// below. Every change fails with EROFS; connect(2) to a socket works. No mount table lists it, and
/// it ends with the last descriptor in it. The kernel shows its paths with the directory as `/`.
///
/// Without CAP_SYS_ADMIN a child process in a user namespace makes it (user_namespaces(7)).
///
/// # Errors
/// EPERM if neither is permitted, ENOSYS before Linux 5.12, EINVAL if a locked mount is below.
pub fn copy_read_only(dir: impl AsFd) -> SysResult<OwnedFd> {
    match read_only_mount(dir.as_fd()) {
        Err(Errno::EPERM) => copy_in_child(dir.as_fd()),
        made => made,
    }
}

/// [`copy_read_only`], by the calling process.
fn read_only_mount(dir: BorrowedFd<'_>) -> SysResult<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let copy = rustix::mount::open_tree(dir, "", flags)?;
    let set = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    // `struct mount_attr`: attr_set, attr_clr, propagation, userns_fd.
    let attr = [u64::from(set.bits()), 0, libc::MS_PRIVATE, 0];
    // SAFETY: the path is a string, and the structure of the size passed is read during the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            copy.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    };
    match done {
        0 => Ok(copy),
        _ => Err(last_errno()),
    }
}

/// [`copy_read_only`], by a child process in new namespaces. Its working directory moves with it
/// into the new mount namespace, even if another mount covers it.
fn copy_in_child(dir: BorrowedFd<'_>) -> SysResult<OwnedFd> {
    let (ours, theirs) = message_pair()?;
    let dir = dir.try_clone_to_owned()?;
    let copy = move || -> SysResult<()> {
        rustix::process::fchdir(&dir)?;
        // SAFETY: it takes an integer; the child shares none of this with other threads.
        check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })?;
        send_message(&theirs, b"copy", &[read_only_mount(CWD)?.as_fd()])
    };
    let mut command = Command::new("/");
    // SAFETY: the child makes only system calls between fork and exec, which allocate nothing and
    // take no lock (signal-safety(7)).
    unsafe {
        command.pre_exec(move || Err(copy().err().unwrap_or(Errno::ECANCELED).into()));
    }
    // Nothing is executed: the child ends with the error that the closure returns.
    let why = command.spawn().map(drop).err();
    drop(command);
    let (_, mut copies) = receive_message(&ours, &mut [0; 8])?;
    let failed = why.map_or(Errno::EPERM, Errno::from);
    copies.pop().ok_or(failed)
}

/// Unmounts the mount over a name in a directory, without following a link (umount2(2)).
///
/// # Errors
/// EBUSY while in use, EPERM without CAP_SYS_ADMIN.
pub fn unmount_in(dir: impl AsFd, name: &OsStr) -> SysResult<()> {
    unmount(&Path::new(&proc_path(&dir)).join(name), false)
}

/// `struct btrfs_ioctl_get_subvol_rootref_args` of linux/btrfs.h.
#[repr(C)]
struct RootRefs {
    min_tree: u64,
    refs: [[u64; 2]; 255],
    count: u8,
    align: [u8; 7],
}

/// `struct btrfs_ioctl_ino_lookup_user_args` of linux/btrfs.h.
#[repr(C)]
struct InoLookup {
    dir: u64,
    tree: u64,
    name: [u8; 256],
    path: [u8; 3824],
}

const _: () = assert!(size_of::<RootRefs>() == 4096 && size_of::<InoLookup>() == 4096);

/// `BTRFS_IOC_GET_SUBVOL_ROOTREF`: _IOWR(0x94, 61, 4096 bytes).
const GET_SUBVOL_ROOTREF: u32 = 0xd000_943d;
/// `BTRFS_IOC_INO_LOOKUP_USER`: _IOWR(0x94, 62, 4096 bytes).
const INO_LOOKUP_USER: u32 = 0xd000_943e;

/// Returns the btrfs subvolumes below a directory, as relative paths, without those nested in other
/// subvolumes. Empty on other filesystems.
///
/// # Errors
/// Those of the ioctls; their absence on a filesystem is no error.
pub fn subvolumes_below(dir: impl AsFd) -> SysResult<Vec<PathBuf>> {
    let fd = dir.as_fd().as_raw_fd();
    let mut found = Vec::new();
    let mut refs = RootRefs {
        min_tree: 0,
        refs: [[0; 2]; 255],
        count: 0,
        align: [0; 7],
    };
    loop {
        // SAFETY: the argument is the structure of 4096 bytes that this ioctl reads and writes.
        let got = check(unsafe { libc::ioctl(fd, GET_SUBVOL_ROOTREF as _, &raw mut refs) });
        match got {
            Err(Errno::ENOTTY | Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(Vec::new()),
            Err(errno) if errno != Errno::EOVERFLOW => return Err(errno),
            _ => {}
        }
        let some = refs.refs.get(..usize::from(refs.count)).unwrap_or_default();
        for [tree, dir] in some {
            found.extend(path_of(fd, *tree, *dir)?);
        }
        match (got, some.last()) {
            (Err(_), Some([last, _])) => refs.min_tree = last.saturating_add(1),
            _ => return Ok(found),
        }
    }
}

/// Returns the path of a subvolume below the directory; `None` if it is elsewhere, or the caller
/// lacks search permission.
fn path_of(fd: i32, tree: u64, dir: u64) -> SysResult<Option<PathBuf>> {
    let mut lookup = InoLookup {
        dir,
        tree,
        name: [0; 256],
        path: [0; 3824],
    };
    // SAFETY: the argument is the structure of 4096 bytes that this ioctl reads and writes.
    let found = check(unsafe { libc::ioctl(fd, INO_LOOKUP_USER as _, &raw mut lookup) });
    match found {
        Err(Errno::EACCES | Errno::ENOENT) => return Ok(None),
        found => found?,
    };
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0);
        OsStr::from_bytes(bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default()).to_owned()
    };
    Ok(Some(
        Path::new(&text(&lookup.path)).join(text(&lookup.name)),
    ))
}
