//! Watches on the inodes of a filesystem, and threads that may access our mount.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Timestamps};

use super::super::args::{SetTime, Watched};
use super::super::fault::CallKind;
use super::super::name::{component, device_major, device_minor, last_errno, retry};
use super::super::types::{Errno, SysResult};
use super::attr::timespec;

/// `CLOSE_RANGE_UNSHARE` of linux/close_range.h.
const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;

/// Returns the inodes of the filesystem with device `dev` that are watched with inotify(7) or
/// fanotify(7), as far as this process may see it. The source is `/proc/PID/fdinfo` of every
/// process (proc_pid_fdinfo(5)). It makes no request to the filesystem.
///
/// Errors: those of reading `/proc` itself; processes that may not be examined are skipped.
pub fn watched(dev: u64) -> SysResult<Watched> {
    let mut found = Watched::default();
    // The kernel's internal encoding of a device number, as printed.
    let device = u64::from(device_major(dev)) << 20 | u64::from(device_minor(dev));
    for process in fs::read_dir("/proc")?.flatten() {
        if process
            .file_name()
            .as_bytes()
            .first()
            .is_some_and(u8::is_ascii_digit)
        {
            watched_by(&process.path(), device, &mut found);
        }
    }
    Ok(found)
}

fn watched_by(process: &Path, device: u64, found: &mut Watched) {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return;
    };
    for descriptor in descriptors.flatten() {
        let watches = fs::read_link(descriptor.path()).is_ok_and(|to| {
            matches!(
                to.as_os_str().as_bytes(),
                b"anon_inode:inotify" | b"anon_inode:[fanotify]"
            )
        });
        if !watches {
            continue;
        }
        if let Ok(info) = fs::read_to_string(process.join("fdinfo").join(descriptor.file_name())) {
            info.lines().for_each(|line| add_watch(line, device, found));
        }
    }
}

/// Parses a line such as `inotify wd:1 ino:83 sdev:2c mask:fff ...` or `fanotify ino:83 sdev:2c
/// ...`; a fanotify line without `ino` is for the whole filesystem.
fn add_watch(line: &str, device: u64, found: &mut Watched) {
    let mut words = line.split(' ');
    if !matches!(words.next(), Some("inotify" | "fanotify")) {
        return;
    }
    let (mut ino, mut on) = (None, None);
    for word in words {
        match word.split_once(':') {
            Some(("ino", value)) => ino = u64::from_str_radix(value, 16).ok(),
            Some(("sdev", value)) => on = u64::from_str_radix(value, 16).ok(),
            _ => {}
        }
    }
    match (on == Some(device), ino) {
        (true, Some(ino)) => drop(found.inodes.insert(ino)),
        (true, None) => found.all = true,
        (false, _) => {}
    }
}

/// Gives the calling thread a separate table of descriptors that contains only 0, 1 and 2
/// (close_range(2), Linux 5.9).
///
/// A thread of a FUSE daemon that makes a request to its own mount needs this. It waits for the
/// reply in an unkillable state. If it had `/dev/fuse` open, the connection would survive a kill of
/// the process, and no reply would ever come. **Descriptors of other threads are invalid in this
/// thread from then on**: it must neither use nor drop one.
pub fn leave_descriptors() -> SysResult<()> {
    // SAFETY: the call takes integers only; it closes duplicates that nothing in this thread uses.
    if unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, CLOSE_RANGE_UNSHARE) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// As [`leave_descriptors`], but also keeps descriptor `number`.
pub fn keep_descriptor(number: i32) -> SysResult<()> {
    let number = libc::c_uint::try_from(number).map_err(|_| Errno::EBADF)?;
    for (first, last) in [
        (3, number.saturating_sub(1)),
        (number.saturating_add(1).max(3), u32::MAX),
    ] {
        if first > last {
            continue;
        }
        // SAFETY: as above.
        let closed =
            unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_UNSHARE) };
        if closed != 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// Sets the times of `name` in `dir` to now, without following a link: the modification time only,
/// or also the access time. Unlike [`super::utimens_fd`] it does not use `/proc/self`, which shows
/// the descriptors of another thread after [`leave_descriptors`].
pub fn touch_at(dir: impl AsFd, name: &[u8], content_only: bool) -> SysResult<()> {
    let name = component(name)?;
    let last_access = timespec(if content_only {
        SetTime::Omit
    } else {
        SetTime::Now
    })?;
    let times = Timestamps {
        last_access,
        last_modification: timespec(SetTime::Now)?,
    };
    retry(CallKind::SetAttributes, || {
        rustix::fs::utimensat(&dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Vec<u64>, bool) {
        let mut found = Watched::default();
        text.lines()
            .for_each(|line| add_watch(line, 0x2c, &mut found));
        let mut inodes: Vec<u64> = found.inodes.into_iter().collect();
        inodes.sort_unstable();
        (inodes, found.all)
    }

    #[test]
    fn watches_of_this_device_are_told_from_others() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1057\n\
            inotify wd:2 ino:83 sdev:2c mask:fff ignored_mask:0 fhandle-bytes:8 fhandle-type:81\n\
            inotify wd:1 ino:84 sdev:2d mask:fff ignored_mask:0\n\
            fanotify flags:10 event-flags:0\nfanotify ino:ff sdev:2c mflags:0 mask:1 ignored_mask:40000000\n";
        assert_eq!(parsed(text), (vec![0x83, 0xff], false));
        assert_eq!(
            parsed("fanotify sdev:2c mflags:0 mask:3b ignored_mask:0\n"),
            (vec![], true)
        );
    }

    #[test]
    fn a_watch_of_our_own_is_found() {
        let dir = tempfile::tempdir().expect("directory");
        let stat = super::super::stat_fd(fs::File::open(dir.path()).expect("opens")).expect("stat");
        let is_watched = || watched(stat.dev).expect("/proc").has(stat.ino);
        assert!(!is_watched());
        let inotify =
            rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("inotify");
        rustix::fs::inotify::add_watch(
            &inotify,
            dir.path(),
            rustix::fs::inotify::WatchFlags::CREATE,
        )
        .expect("watch");
        // Filesystems on several devices (btrfs, overlay) report one device to stat(2) and print
        // another: only then the watch is not found.
        let device = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let plain = device.contains(&format!(
            " {}:{} ",
            device_major(stat.dev),
            device_minor(stat.dev)
        ));
        assert!(is_watched() || !plain);
    }

    #[test]
    fn a_thread_that_leaves_its_descriptors_keeps_those_of_the_others() {
        use std::os::fd::AsRawFd;
        let file = fs::File::open("/proc/self/stat").expect("opens");
        let number = file.as_raw_fd();
        let there = |number: i32| {
            // SAFETY: fcntl(2) with F_GETFD takes integers only; an unused number returns EBADF.
            unsafe { libc::fcntl(number, libc::F_GETFD) != -1 }
        };
        assert!(there(number));
        let left = std::thread::spawn(move || {
            leave_descriptors().expect("Linux 5.9");
            there(number)
        });
        assert!(!left.join().expect("thread"));
        assert!(there(number));
    }
}
