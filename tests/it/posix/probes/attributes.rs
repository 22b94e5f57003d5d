//! Attributes: times, extended attributes, and inode flags.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, StatxFlags, Timespec, Timestamps, XattrFlags,
    mknodat, statx, utimensat,
};

use super::{ProbeResult, create, said};

pub(super) fn birth_time(dir: &Path) -> ProbeResult {
    let file = create(&dir.join("f"), b"text")?;
    let found = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::ALL)?;
    Ok(format!(
        "{}",
        found.stx_mask & StatxFlags::BTIME.bits() != 0
    ))
}

pub(super) fn attributes_of_a_directory(dir: &Path) -> ProbeResult {
    let made = dir.join("d");
    fs::create_dir(&made)?;
    (0..3).try_for_each(|number| fs::create_dir(made.join(number.to_string())))?;
    create(&made.join("f"), b"text")?;
    let (dir, file) = (fs::metadata(&made)?, fs::metadata(made.join("f"))?);
    Ok(format!(
        "{} {} {} {} {}",
        dir.nlink(),
        dir.size(),
        dir.blksize(),
        file.blksize(),
        file.nlink()
    ))
}

pub(super) fn inode_flags(dir: &Path) -> ProbeResult {
    let file = create(&dir.join("f"), b"text")?;
    Ok(format!("{:?}", rustix::fs::ioctl_getflags(&file)?))
}

pub(super) fn xattrs(dir: &Path) -> ProbeResult {
    let path = dir.join("f");
    create(&path, b"text")?;
    let set = |name: &str, length, how| {
        said(rustix::fs::setxattr(&path, name, &vec![1; length], how).map_err(io::Error::from))
    };
    let long = format!("user.{}", "n".repeat(250));
    let mut all = vec![
        set("user.a", 10, XattrFlags::CREATE),
        set("user.a", 11, XattrFlags::CREATE),
        set("user.b", 1, XattrFlags::REPLACE),
        set("user.a", 0, XattrFlags::REPLACE),
        set("trusted.t", 5, XattrFlags::empty()),
        set(&long, 5, XattrFlags::empty()),
        set(&format!("{long}n"), 5, XattrFlags::empty()),
        set("user.", 5, XattrFlags::empty()),
        set("nonsense.a", 5, XattrFlags::empty()),
        set("user.large", 3000, XattrFlags::empty()),
    ];
    let mut small = [0u8; 2];
    all.push(said(
        rustix::fs::getxattr(&path, "user.large", &mut small[..]).map_err(io::Error::from),
    ));
    all.push(said(
        rustix::fs::listxattr(&path, &mut small[..]).map_err(io::Error::from),
    ));
    all.push(said(
        rustix::fs::removexattr(&path, "user.none").map_err(io::Error::from),
    ));
    let mut list = vec![0u8; 4096];
    let length = rustix::fs::listxattr(&path, &mut list[..])?;
    let mut names: Vec<_> = list[..length]
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    names.sort();
    Ok(format!("{} {}", all.join(" "), names.join(" ")))
}

pub(super) fn xattr_too_long(dir: &Path) -> ProbeResult {
    let path = dir.join("f");
    create(&path, b"text")?;
    let set = |length| {
        rustix::fs::setxattr(&path, "user.a", &vec![1; length], XattrFlags::empty())
            .map_err(io::Error::from)
    };
    Ok(format!(
        "{} {}",
        set(60_000).map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
        said(set(65_537))
    ))
}

pub(super) fn xattrs_of_a_link_and_a_fifo(dir: &Path) -> ProbeResult {
    symlink("nowhere", dir.join("link"))?;
    mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::RWXU, 0)?;
    let set = |name: &str, key: &str| {
        said(
            rustix::fs::lsetxattr(dir.join(name), key, b"1", XattrFlags::empty())
                .map_err(io::Error::from),
        )
    };
    Ok([
        set("link", "trusted.t"),
        set("link", "user.u"),
        set("fifo", "trusted.t"),
        set("fifo", "user.u"),
    ]
    .join(" "))
}

/// Sets access and modification time to seconds near the epoch.
fn make_old(path: &Path, accessed: i64, modified: i64) -> io::Result<()> {
    let time = |seconds| Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    Ok(utimensat(
        CWD,
        path,
        &Timestamps {
            last_access: time(accessed),
            last_modification: time(modified),
        },
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Reports which of atime and mtime have changed since [`make_old`].
fn news(path: &Path) -> io::Result<String> {
    let meta = fs::symlink_metadata(path)?;
    Ok([("a", meta.atime()), ("m", meta.mtime())]
        .iter()
        .filter(|(_, time)| *time > 1_000_000)
        .map(|(name, _)| *name)
        .collect())
}

/// Truncation to the current size still changes the times (open(2), ftruncate(2)).
pub(super) fn times_of_truncation(dir: &Path) -> ProbeResult {
    let mut all = Vec::new();
    for (name, bytes) in [("empty", &b""[..]), ("full", b"text")] {
        let path = dir.join(name);
        let file = create(&path, bytes)?;
        make_old(&path, 1000, 1000)?;
        file.set_len(bytes.len() as u64)?;
        all.push(news(&path)?);
        make_old(&path, 1000, 1000)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4)?;
        all.push(news(&path)?);
        file.set_len(bytes.len() as u64)?;
        make_old(&path, 1000, 1000)?;
        all.push(said(rustix::fs::ftruncate(&file, 0).map_err(io::Error::from)) + &news(&path)?);
        make_old(&path, 1000, 1000)?;
        File::create(&path)?;
        all.push(news(&path)?);
    }
    Ok(all.join(","))
}

/// A write of zero bytes changes nothing.
pub(super) fn times_of_nothing(dir: &Path) -> ProbeResult {
    let path = dir.join("f");
    let file = create(&path, b"text")?;
    make_old(&path, 1000, 1000)?;
    file.write_at(b"", 0)?;
    let mut all = vec![news(&path)?];
    file.write_at(b"x", 0)?;
    all.push(news(&path)?);
    Ok(all.join(","))
}

/// relatime: a read updates the access time unless it is newer than the modification time.
pub(super) fn access_time(dir: &Path) -> ProbeResult {
    let path = dir.join("f");
    create(&path, b"text")?;
    make_old(&path, 1000, 2000)?;
    fs::read(&path)?;
    let read = news(&path)?;
    symlink("f", dir.join("l"))?;
    make_old(&dir.join("l"), 1000, 2000)?;
    fs::read_link(dir.join("l"))?;
    Ok(format!("{read} {}", news(&dir.join("l"))?))
}

pub(super) fn access_time_of_a_directory(dir: &Path) -> ProbeResult {
    let path = dir.join("d");
    fs::create_dir(&path)?;
    create(&path.join("f"), b"text")?;
    make_old(&path, 1000, 2000)?;
    fs::read_dir(&path)?.for_each(drop);
    news(&path)
}

pub(super) fn access_time_not_wanted(dir: &Path) -> ProbeResult {
    let path = dir.join("f");
    create(&path, b"text")?;
    make_old(&path, 1000, 2000)?;
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(&path)?;
    file.read_to_end(&mut Vec::new())?;
    news(&path)
}

pub(super) fn set_group_directory(dir: &Path) -> ProbeResult {
    let path = dir.join("d");
    fs::create_dir(&path)?;
    std::os::unix::fs::chown(&path, None, Some(1))?;
    rustix::fs::chmod(&path, Mode::from_raw_mode(0o2775))?;
    fs::create_dir(path.join("e"))?;
    create(&path.join("f"), b"")?;
    let (made, file) = (fs::metadata(path.join("e"))?, fs::metadata(path.join("f"))?);
    Ok(format!(
        "{:o} {} {:o} {}",
        made.mode() & 0o7000,
        made.gid(),
        file.mode() & 0o7000,
        file.gid()
    ))
}
