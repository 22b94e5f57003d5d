//! Calls that a daemon and its command line need: standard descriptors, priorities, paths by
//! descriptor.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::types::{Errno, SysResult};

/// How much the threads that serve the socket are preferred (nice(2)): a checkpoint is awaited by
/// somebody, a build is not.
const CONTROL_NICE: i32 = -10;

/// Flags of a descriptor that only names a directory.
#[cfg(target_os = "linux")]
const DIR_PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const DIR_PATH_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// A path, short and without any directory walked, for `name` in the directory `dir`: fit for
/// unix(7) addresses, and right below a mount too.
#[cfg(target_os = "linux")]
pub fn path_in(dir: BorrowedFd<'_>, name: &str) -> SysResult<PathBuf> {
    Ok(PathBuf::from(format!(
        "/proc/self/fd/{}/{name}",
        dir.as_raw_fd()
    )))
}

/// A path for `name` in the directory `dir` (`F_GETPATH`).
#[cfg(not(target_os = "linux"))]
pub fn path_in(dir: BorrowedFd<'_>, name: &str) -> SysResult<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let path = rustix::fs::getpath(dir)?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())).join(name))
}

/// The space of the removed files that descriptors of this process still name, of those whose paths
/// fit; 0 where the system does not list them.
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

/// Opens the directory at `path`, links followed, without the right to read it (`O_PATH`).
pub fn open_dir_path(path: &Path) -> SysResult<OwnedFd> {
    Ok(rustix::fs::openat(
        CWD,
        path,
        DIR_PATH_FLAGS,
        Mode::empty(),
    )?)
}

/// As [`open_dir_path`], but ENOTDIR or ELOOP if the last name of `path` is a link.
pub fn open_dir_itself(path: &Path) -> SysResult<OwnedFd> {
    Ok(rustix::fs::openat(
        CWD,
        path,
        DIR_PATH_FLAGS | OFlags::NOFOLLOW,
        Mode::empty(),
    )?)
}

/// As [`open_dir_path`], of what is called `name` in `dir`; a link is followed.
pub fn open_dir_in(dir: impl AsFd, name: &str) -> SysResult<OwnedFd> {
    Ok(rustix::fs::openat(
        dir,
        name,
        DIR_PATH_FLAGS,
        Mode::empty(),
    )?)
}

/// Whether there is anything at `path`, itself and not what a link leads to; it is not opened, and
/// its attributes are not asked for where that can be avoided. The errors are those of open(2).
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

/// Opens the file `name` in `dir` to append to it, and makes it (mode 0600) if there is none. Never
/// through a link, never anything but a file.
///
/// Errors: ELOOP of a link, EINVAL of what is no regular file or has other names too: appending to
/// it would change what is elsewhere.
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

/// Size in bytes of `name` in `dir`, itself and not what a link leads to; 0 if there is nothing.
pub fn size_in(dir: impl AsFd, name: &str) -> u64 {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
}

/// Whether `dir` holds something called `name`.
pub fn holds(dir: impl AsFd, name: &str) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Sets the permission bits of `name` in `dir`, a link followed.
pub fn chmod_in(dir: impl AsFd, name: &str, mode: u32) -> SysResult<()> {
    Ok(rustix::fs::chmodat(
        dir,
        name,
        super::name::permissions(mode),
        AtFlags::empty(),
    )?)
}

/// Runs the calling thread, and those that it starts, before ordinary ones; best effort, for it
/// takes a privilege.
pub fn raise_priority() {
    // A refusal costs some microseconds of latency on a busy machine and nothing else.
    let _ = rustix::process::setpriority_process(None, CONTROL_NICE);
}

/// Keeps all descriptors above 2 that this process inherited from what it starts from now on.
pub fn close_on_exec() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: close_range(2) takes integers only, and the flag closes nothing now. Its failure
        // (before Linux 5.11) leaves descriptors inherited, as they would have been anyway.
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
        // SAFETY: fcntl(2) with F_SETFD takes integers only; a number that is no descriptor is
        // EBADF.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Makes descriptor 0, 1 or 2 of this process what `to` is (dup2(2)); EINVAL for other numbers.
pub fn redirect_stdio(number: i32, to: impl AsFd) -> SysResult<()> {
    if !(0..=2).contains(&number) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the standard descriptors are owned by nobody in Rust's eyes, and `to` is borrowed
    // through the call.
    match unsafe { libc::dup2(to.as_fd().as_raw_fd(), number) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}

/// The number of the mount that `path` is on, links followed, asked without a request to the
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

/// Not to be had here: ENOSYS.
#[cfg(not(target_os = "linux"))]
pub fn mount_id(_path: &Path) -> SysResult<u64> {
    Err(Errno::ENOSYS)
}

/// Whether two threads of a process have the same open files, mappings and directories (kcmp(2)).
/// One that took its own, and a first thread that has ended, differ. True where that cannot be
/// told.
#[cfg(target_os = "linux")]
pub fn same_tables(one: u32, other: u32) -> bool {
    /// `KCMP_VM`, `KCMP_FILES` and `KCMP_FS` of linux/kcmp.h.
    const TABLES: [libc::c_int; 3] = [1, 2, 3];
    // SAFETY: kcmp(2) takes integers only; these types look at no descriptor.
    TABLES
        .into_iter()
        .all(|table| unsafe { libc::syscall(libc::SYS_kcmp, one, other, table, 0, 0) } <= 0)
}

/// Not to be had here: true.
#[cfg(not(target_os = "linux"))]
pub fn same_tables(_one: u32, _other: u32) -> bool {
    true
}

/// Names this mount of the filesystem that `dir` is on, as no other mount before or after is named:
/// boot and number of the mount (Linux 6.8). What one process wrote there another finds, whatever
/// became of the first; on another mount only what was on disk. `None` where it cannot be told.
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

/// Not to be had here.
#[cfg(not(target_os = "linux"))]
pub fn mount_instance(_dir: impl std::os::fd::AsFd) -> Option<String> {
    None
}

/// A step that is to be left out, so that a test can show what it is for: named in
/// `CKPTFS_UNSAFE_FOR_TESTS`, and only in a debug build.
pub fn left_out(step: &str) -> bool {
    cfg!(debug_assertions)
        && std::env::var("CKPTFS_UNSAFE_FOR_TESTS")
            .is_ok_and(|steps| steps.split(',').any(|named| named == step))
}

/// The kernel's release, such as `6.18.1`.
pub fn kernel_release() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    read.map(|release| release.trim().to_owned())
        .unwrap_or_default()
}

/// The listening socket that a service manager has handed to this process (sd_listen_fds(3)): the
/// first one, once.
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
    // SAFETY: fcntl(2) with F_SETFD takes integers only; a number that is no descriptor is EBADF.
    if unsafe { libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return None;
    }
    // SAFETY: whoever set these variables for this very process has put the descriptor there for
    // it; it is taken once, so nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(FIRST) };
    Some(fd.into())
}
