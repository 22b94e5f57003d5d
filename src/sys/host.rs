//! Calls for a daemon and its command line: standard descriptors, priorities, paths by descriptor.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::types::{Errno, SysResult};

/// Nice value of the threads that serve the control socket (nice(2)): a user waits for a
/// checkpoint, but not for each step of a build.
const CONTROL_NICE: i32 = -10;

/// Flags of a descriptor that only names a directory.
#[cfg(target_os = "linux")]
const DIR_PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const DIR_PATH_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Returns a path for `name` in the directory `dir`. It is short enough for unix(7) addresses,
/// resolves no directory above, and also works below a mount.
#[cfg(target_os = "linux")]
pub fn path_in(dir: BorrowedFd<'_>, name: &str) -> SysResult<PathBuf> {
    Ok(PathBuf::from(format!(
        "/proc/self/fd/{}/{name}",
        dir.as_raw_fd()
    )))
}

/// Returns a path for `name` in the directory `dir` (`F_GETPATH`).
#[cfg(not(target_os = "linux"))]
pub fn path_in(dir: BorrowedFd<'_>, name: &str) -> SysResult<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let path = rustix::fs::getpath(dir)?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())).join(name))
}

/// Returns the bytes allocated to unlinked files that this process has open, of those whose paths
/// satisfy `fits`. 0 if the system does not list open files.
pub fn removed_but_open(fits: impl Fn(&[u8]) -> bool) -> u64 {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
    {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let path = target.as_os_str().as_bytes().strip_suffix(b" (deleted)");
        if path.is_some_and(&fits)
            && let Ok(file) = std::fs::metadata(entry.path())
            && file.nlink() == 0
        {
            found.insert((file.dev(), file.ino()), file.blocks() * 512);
        }
    }
    found.values().sum()
}

/// Opens the directory at `path`, following links, without requiring read permission (`O_PATH`).
pub fn open_dir_path(path: &Path) -> SysResult<OwnedFd> {
    Ok(rustix::fs::openat(
        CWD,
        path,
        DIR_PATH_FLAGS,
        Mode::empty(),
    )?)
}

/// As [`open_dir_path`], but fails with ENOTDIR or ELOOP if the last component of `path` is a link.
pub fn open_dir_itself(path: &Path) -> SysResult<OwnedFd> {
    Ok(rustix::fs::openat(
        CWD,
        path,
        DIR_PATH_FLAGS | OFlags::NOFOLLOW,
        Mode::empty(),
    )?)
}

/// As [`open_dir_path`], for `name` in `dir`; a link is followed.
pub fn open_dir_in(dir: impl AsFd, name: &str) -> SysResult<OwnedFd> {
    Ok(rustix::fs::openat(
        dir,
        name,
        DIR_PATH_FLAGS,
        Mode::empty(),
    )?)
}

/// Checks that `path` exists, without following a link in the last component. It avoids opening the
/// file and requesting its attributes where possible. The errors are those of open(2).
pub fn look_at(path: &Path) -> SysResult<()> {
    #[cfg(target_os = "linux")]
    return Ok(rustix::fs::openat(
        CWD,
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map(drop)?);
    #[cfg(not(target_os = "linux"))]
    return Ok(rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(drop)?);
}

/// Opens the file `name` in `dir` for appending, and creates it (mode 0600) if it does not exist.
/// It never follows a link and opens only regular files.
///
/// Errors: ELOOP for a link, EINVAL for other kinds of inodes and for a file with several names,
/// because appending would change it elsewhere.
pub fn open_log(dir: impl AsFd, name: &str) -> SysResult<std::fs::File> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::openat(
        dir,
        name,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?);
    let stat = rustix::fs::fstat(&file)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile
        || stat.st_nlink != 1
    {
        return Err(Errno::EINVAL);
    }
    Ok(file)
}

/// Returns the size in bytes of `name` in `dir`, without following a link; 0 if it does not exist.
pub fn size_in(dir: impl AsFd, name: &str) -> u64 {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
}

/// Returns whether `dir` has an entry `name`.
pub fn holds(dir: impl AsFd, name: &str) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Sets the permission bits of `name` in `dir`, following a link.
pub fn chmod_in(dir: impl AsFd, name: &str, mode: u32) -> SysResult<()> {
    Ok(rustix::fs::chmodat(
        dir,
        name,
        super::name::permissions(mode),
        AtFlags::empty(),
    )?)
}

/// Raises the priority of the calling thread, and of threads that it starts later. Best effort,
/// because it requires a privilege.
pub fn raise_priority() {
    // A failure costs only some microseconds of latency on a busy machine.
    let _ = rustix::process::setpriority_process(None, CONTROL_NICE);
}

/// Marks all inherited descriptors above 2 close-on-exec.
pub fn close_on_exec() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: close_range(2) takes integers only, and with this flag closes nothing now. If it
        // fails (before Linux 5.11), descriptors stay inheritable as before.
        unsafe {
            libc::syscall(
                libc::SYS_close_range,
                3_u32,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
    }
    #[cfg(not(target_os = "linux"))]
    for fd in 3..256 {
        // SAFETY: fcntl(2) with F_SETFD takes integers only; an unused number returns EBADF.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Makes descriptor 0, 1 or 2 a duplicate of `to` (dup2(2)); EINVAL for other numbers.
pub fn redirect_stdio(number: i32, to: impl AsFd) -> SysResult<()> {
    if !(0..=2).contains(&number) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: no Rust value owns the standard descriptors, and `to` is borrowed through the call.
    match unsafe { libc::dup2(to.as_fd().as_raw_fd(), number) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}

/// Returns the ID of the mount that `path` is on, following links, without a request to the
/// filesystem (statx(2), since Linux 5.8).
#[cfg(target_os = "linux")]
pub fn mount_id(path: &Path) -> SysResult<u64> {
    use rustix::fs::StatxFlags;
    let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::ENOSYS);
    }
    Ok(stat.stx_mnt_id)
}

/// Not supported: ENOSYS.
#[cfg(not(target_os = "linux"))]
pub fn mount_id(_path: &Path) -> SysResult<u64> {
    Err(Errno::ENOSYS)
}

/// Returns whether two threads of a process share the tables of descriptors, mappings and
/// directories (kcmp(2)). They differ after unshare(2), and if the first thread has ended. True if
/// kcmp(2) fails.
#[cfg(target_os = "linux")]
pub fn same_tables(one: u32, other: u32) -> bool {
    /// `KCMP_VM`, `KCMP_FILES` and `KCMP_FS` of linux/kcmp.h.
    const TABLES: [libc::c_int; 3] = [1, 2, 3];
    // SAFETY: kcmp(2) takes integers only; these types access no descriptor.
    TABLES
        .into_iter()
        .all(|table| unsafe { libc::syscall(libc::SYS_kcmp, one, other, table, 0, 0) } <= 0)
}

/// Not supported: true.
#[cfg(not(target_os = "linux"))]
pub fn same_tables(_one: u32, _other: u32) -> bool {
    true
}

/// Returns a unique name of the mount that `dir` is on: boot ID and unique mount ID (Linux 6.8),
/// which no earlier or later mount shares. Data written through this mount is visible to later
/// processes, whatever happened to the writer. Through another mount only data that reached the
/// disk is. `None` if the kernel does not report the ID.
#[cfg(target_os = "linux")]
pub fn mount_instance(dir: impl std::os::fd::AsFd) -> Option<String> {
    use rustix::fs::StatxFlags;
    /// `STATX_MNT_ID_UNIQUE` of linux/stat.h.
    const MNT_ID_UNIQUE: u32 = 0x4000;
    let wanted = StatxFlags::from_bits_retain(MNT_ID_UNIQUE);
    let stat = rustix::fs::statx(dir, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    (stat.stx_mask & MNT_ID_UNIQUE != 0).then(|| format!("{} {}", boot.trim(), stat.stx_mnt_id))
}

/// Not supported.
#[cfg(not(target_os = "linux"))]
pub fn mount_instance(_dir: impl std::os::fd::AsFd) -> Option<String> {
    None
}

/// Returns whether a test disables `step`, to show its purpose: named in `CKPTFS_UNSAFE_FOR_TESTS`,
/// only in a debug build.
pub fn left_out(step: &str) -> bool {
    cfg!(debug_assertions)
        && std::env::var("CKPTFS_UNSAFE_FOR_TESTS")
            .is_ok_and(|steps| steps.split(',').any(|named| named == step))
}

/// Returns the kernel's release, such as `6.18.1`.
pub fn kernel_release() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    read.map(|release| release.trim().to_owned())
        .unwrap_or_default()
}

/// Returns the listening socket passed by a service manager (sd_listen_fds(3)): the first one,
/// once.
pub fn activated_listener() -> Option<std::os::unix::net::UnixListener> {
    use std::os::fd::FromRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    const FIRST: i32 = 3;
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let ours = number("LISTEN_PID") == Some(std::process::id())
        && number("LISTEN_FDS").is_some_and(|count| count > 0);
    if !ours || TAKEN.swap(true, Ordering::SeqCst) {
        return None;
    }
    // SAFETY: fcntl(2) with F_SETFD takes integers only; an unused number returns EBADF.
    if unsafe { libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return None;
    }
    // SAFETY: the variables name this process, so the service manager has put the descriptor there.
    // It is taken once, so it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(FIRST) };
    Some(fd.into())
}
