//! The mount table, and unmounting.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsmount, fsopen,
};

use super::super::args::MountPoint;
use super::super::fault::CallKind;
use super::super::mounted::covered;
use super::super::name::{device_major, device_minor, make_device, retry};
use super::super::types::{Errno, SysResult};

/// The helpers that unmount for ordinary users, in the order of attempts.
const FUSERMOUNT: [&str; 2] = ["fusermount3", "fusermount"];

/// Returns all mounts that this process sees, lower ones before those that cover them
/// (proc_pid_mountinfo(5)).
pub fn mounts() -> SysResult<Vec<MountPoint>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    text.split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| parse_mount(line).ok_or(Errno::EIO))
        .collect()
}

/// Returns the device of the filesystem mounted at `at`, without a request to its server: if no
/// attribute is requested, FUSE fills in only the device (fs/fuse/dir.c).
///
/// # Errors
/// Those of statx(2).
pub fn device_at(at: &Path) -> SysResult<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = retry(CallKind::Probe, || {
        rustix::fs::statx(rustix::fs::CWD, at, flags, StatxFlags::empty())
    })?;
    Ok(make_device(stat.stx_dev_major, stat.stx_dev_minor))
}

/// Opens the file that aborts a FUSE connection when written to: every call then fails with
/// ENOTCONN (Documentation/filesystems/fuse/fuse.rst, "Control filesystem"). If that filesystem is
/// not mounted, it is mounted detached (fsopen(2)).
///
/// # Errors
/// ENOENT: the connection does not exist. EPERM: the filesystem is not mounted, and this process
/// may not mount it.
pub fn fuse_abort_file(minor: u32) -> SysResult<File> {
    let (below, flags) = (format!("{minor}/abort"), OFlags::WRONLY | OFlags::CLOEXEC);
    match File::options()
        .write(true)
        .open(Path::new("/sys/fs/fuse/connections").join(&below))
    {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
        opened => return Ok(opened?),
    }
    let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&control)?;
    let root = fsmount(
        &control,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    let opened = rustix::fs::openat(root, below, flags, Mode::empty())?;
    Ok(File::from(opened))
}

/// Returns the mounts that satisfy `wanted`, of all processes that may be examined, each with a
/// process that sees it. Processes with the same mount table count once.
pub fn mounts_of_all(wanted: impl Fn(&MountPoint) -> bool) -> SysResult<Vec<(u32, MountPoint)>> {
    mounts_of(HashSet::new(), |_| true, wanted)
}

/// As [`mounts_of_all`], for the filesystem on this device, and without the mount table of this
/// process.
pub fn mounts_of_others(
    dev: u64,
    wanted: impl Fn(&MountPoint) -> bool,
) -> SysResult<Vec<(u32, MountPoint)>> {
    let own = table_of(Path::new("/proc/self"));
    let number = format!("{}:{}", device_major(dev), device_minor(dev));
    let is_on_it = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        fields.nth(2) == Some(number.as_bytes())
    };
    mounts_of(own.into_iter().collect(), is_on_it, wanted)
}

/// The identity of a mount table: a namespace and the root directory of the process.
type Table = (PathBuf, PathBuf);

fn table_of(process: &Path) -> Option<Table> {
    let at = |name: &str| std::fs::read_link(process.join(name)).ok();
    at("ns/mnt").zip(at("root"))
}

fn mounts_of(
    seen: HashSet<Table>,
    line_wanted: impl Fn(&[u8]) -> bool,
    wanted: impl Fn(&MountPoint) -> bool,
) -> SysResult<Vec<(u32, MountPoint)>> {
    let mut found = Vec::new();
    each_table((seen, |_: &Path| true), |pid, text| {
        let lines = text.split(|&byte| byte == b'\n');
        let mounts = lines
            .filter(|line| line_wanted(line))
            .filter_map(parse_mount);
        found.extend(
            mounts
                .filter(|mount| wanted(mount))
                .map(|mount| (pid, mount)),
        );
    })?;
    Ok(found)
}

/// Reads the mount tables of all processes that may be examined and satisfy `counts`, which
/// receives their `/proc` directories. Each table is read once; those in `seen` are skipped.
fn each_table(
    (mut seen, counts): (HashSet<Table>, impl Fn(&Path) -> bool),
    mut take: impl FnMut(u32, &[u8]),
) -> SysResult<()> {
    for entry in std::fs::read_dir("/proc")?.map_while(Result::ok) {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let process = entry.path();
        if !counts(&process) || table_of(&process).is_some_and(|table| !seen.insert(table)) {
            continue;
        }
        if let Ok(text) = std::fs::read(process.join("mountinfo")) {
            take(pid, &text);
        }
    }
    Ok(())
}

/// Returns the mount points on the filesystem of this device, as paths in it: directories and files
/// covered by another mount in the mount namespace of any process that may be examined. User
/// namespaces of other users are skipped, because there any user can mount, and so could block a
/// restore.
///
/// # Errors
/// Those of reading `/proc` (proc_pid_mountinfo(5)).
pub fn mount_points_on(dev: u64) -> SysResult<BTreeSet<PathBuf>> {
    let number = format!("{}:{} ", device_major(dev), device_minor(dev));
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/user")).ok();
    let (own, (uid, _)) = (
        namespace(Path::new("/proc/self")),
        super::super::process::ids(),
    );
    let is_ours = |process: &Path| {
        let owner = || std::fs::metadata(process).map(|stat| stat.uid());
        namespace(process) == own || owner().is_ok_and(|owner| owner == uid)
    };
    let mut found = BTreeSet::new();
    each_table((HashSet::new(), is_ours), |_, text| {
        // Most processes are in a mount namespace without this filesystem.
        if text
            .windows(number.len())
            .any(|part| part == number.as_bytes())
        {
            let lines = text.split(|&byte| byte == b'\n');
            let table: Vec<MountPoint> = lines.filter_map(parse_mount).collect();
            found.extend(covered(&table, dev));
        }
    })?;
    Ok(found)
}

/// Returns the mount of the inode of `fd`, and whether the inode is its root, without a request to
/// the filesystem (statx(2), since Linux 5.8).
///
/// # Errors
/// EACCES: a FUSE mount that only its owner may access. ENOENT: the mount is not in the table of
/// this process. ENOSYS before Linux 5.8.
pub fn mount_of(fd: impl AsFd) -> SysResult<(MountPoint, bool)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let stat = retry(CallKind::Probe, || {
        rustix::fs::statx(&fd, "", flags, StatxFlags::MNT_ID)
    })?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::ENOSYS);
    }
    let mount = mounts()?
        .into_iter()
        .find(|mount| mount.id == stat.stx_mnt_id)
        .ok_or(Errno::ENOENT)?;
    Ok((
        mount,
        stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    ))
}

/// Parses a line: `id parent major:minor root at options [optional ...] - type source options`.
fn parse_mount(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let device = fields.next()?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let (major, minor) = (
        number(device.get(..colon)?)?,
        number(device.get(colon + 1..)?)?,
    );
    let (root, at) = (fields.next()?, fields.next()?);
    let read_only = fields
        .next()?
        .split(|&byte| byte == b',')
        .any(|option| option == b"ro");
    fields.find(|field| *field == b"-")?;
    let (fs_type, source) = (fields.next()?, fields.next()?);
    let options = fields.next().unwrap_or_default();
    let fs_type = String::from_utf8_lossy(&unescape(fs_type)).into_owned();
    // FUSE's `user_id=` comes first, and commas in strings chosen by the mounting user are escaped.
    let owner = options
        .split(|&byte| byte == b',')
        .find_map(|option| number(option.strip_prefix(b"user_id=")?));
    let owner = owner.filter(|_| fs_type.starts_with("fuse"));
    Some(MountPoint {
        id,
        parent,
        dev: make_device(u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        root: path(root),
        at: path(at),
        read_only,
        fs_type,
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        // An invalid number is no known user.
        owner: owner.map(|owner| u32::try_from(owner).unwrap_or(u32::MAX)),
    })
}

/// Parses a decimal number.
fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Decodes a field as a path.
fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

/// Decodes `\ooo`, the octal escapes of blanks, tabs, newlines, `#` and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        match (first, after.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

/// Decodes three octal digits.
fn octal(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    u8::from_str_radix(digits, 8).ok()
}

/// Unmounts the mount at `path`, without following a link. `lazy` detaches it at once and ends it
/// when it is no longer in use (umount2(2), `MNT_DETACH`). EBUSY while in use, EPERM for ordinary
/// users: see [`fusermount_unmount`].
pub fn unmount(path: &Path, lazy: bool) -> SysResult<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    retry(CallKind::Probe, || rustix::mount::unmount(path, flags))
}

/// Unmounts a FUSE mount of this user through the set-user-ID helper fusermount3(1).
///
/// Errors: ENOENT without the helper, EBUSY while in use, EINVAL if this user has no mount there,
/// EPERM otherwise.
pub fn fusermount_unmount(path: &Path, lazy: bool) -> SysResult<()> {
    for helper in FUSERMOUNT {
        let mut command = Command::new(helper);
        command
            .env("LC_ALL", "C")
            .arg("-u")
            .args(lazy.then_some("-z"))
            .arg("--")
            .arg(path)
            .stdin(Stdio::null());
        match command.output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => return Err(helper_errno(&String::from_utf8_lossy(&output.stderr))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::ENOENT)
}

/// Converts the message of the helper, its only error report, to an errno.
fn helper_errno(message: &str) -> Errno {
    if message.contains("busy") {
        Errno::EBUSY
    } else if message.contains("not found") || message.contains("Invalid argument") {
        Errno::EINVAL
    } else {
        Errno::EPERM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_broken_ones_kept() {
        assert_eq!(unescape(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescape(br"\04"), br"\04");
        assert_eq!(unescape(br"\999\"), br"\999\");
        assert_eq!(unescape(br"\777"), br"\777");
    }

    #[test]
    fn a_line_with_optional_fields_is_parsed() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue";
        let mount = parse_mount(line).expect("parses");
        assert_eq!(
            (mount.id, mount.parent, mount.dev),
            (36, 35, make_device(98, 0))
        );
        assert_eq!(
            (mount.root, mount.at),
            (PathBuf::from("/mnt1"), PathBuf::from("/mnt 2"))
        );
        assert_eq!(
            (mount.fs_type.as_str(), mount.source.as_str()),
            ("ext3", "/dev/root")
        );
        assert_eq!(mount.owner, None);
        let fuse = br"36 35 0:9 / /m rw - fuse.ckptfs ckptfs#/p,user_id=0 rw,user_id=1000,group_id=0,allow_other";
        assert_eq!(parse_mount(fuse).expect("parses").owner, Some(1000));
        assert_eq!(parse_mount(b"36 35 98:0 /mnt1 /mnt2 rw"), None);
    }

    #[test]
    fn own_mounts_hold_a_root() {
        assert!(
            mounts()
                .expect("mounts")
                .iter()
                .any(|mount| mount.at == Path::new("/"))
        );
    }

    #[test]
    fn helper_messages_become_errors() {
        assert_eq!(
            helper_errno("fusermount3: failed to unmount /m: Device or resource busy"),
            Errno::EBUSY
        );
        assert_eq!(
            helper_errno("fusermount3: entry for /m not found in /etc/mtab"),
            Errno::EINVAL
        );
        assert_eq!(
            helper_errno("fusermount3: failed to unmount /m: Operation not permitted"),
            Errno::EPERM
        );
    }

    #[test]
    fn unmounting_nothing_fails() {
        assert!(unmount(Path::new("/var/tmp/ckptfs-not-there"), false).is_err());
    }
}
