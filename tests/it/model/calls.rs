//! The system calls of each operation.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    Uid, XattrFlags,
};

use super::observe::absolute;
use super::ops::{Op, Verb};
use super::tree::OpResult;
use super::world::data;

/// Performs an operation on the filesystem.
pub(super) fn actual(root: &Path, op: &Op, path: &[u8], second: &[u8]) -> OpResult<()> {
    let (path, second) = (absolute(root, path), absolute(root, second));
    let (path, second) = (path.as_path(), second.as_path());
    let n = |index| op.number(index);
    let mode = Mode::from_raw_mode(n(0) as u32);
    match op.verb {
        Verb::Create => open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode).map(drop),
        Verb::Mkdir => rustix::fs::mkdir(path, mode),
        Verb::Mkfifo => rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0),
        Verb::Mksock => rustix::fs::mknodat(CWD, path, FileType::Socket, mode, 0),
        Verb::Symlink => rustix::fs::symlink(&target(n(0))[..], path),
        Verb::Unlink => rustix::fs::unlink(path),
        Verb::Rmdir => rustix::fs::rmdir(path),
        Verb::Rename => rustix::fs::rename(path, second),
        Verb::RenameNoReplace => {
            rustix::fs::renameat_with(CWD, path, CWD, second, RenameFlags::NOREPLACE)
        }
        Verb::Exchange => rustix::fs::renameat_with(CWD, path, CWD, second, RenameFlags::EXCHANGE),
        Verb::Link => rustix::fs::linkat(CWD, path, CWD, second, AtFlags::empty()),
        Verb::Copy => copy(path, second, op),
        Verb::Put | Verb::Write | Verb::Append | Verb::Punch | Verb::Truncate => {
            write_content(op, path)
        }
        _ => set_attributes(op, path),
    }
}

pub fn target(number: u64) -> Vec<u8> {
    format!(
        "nowhere-{}/{}",
        number % 5,
        "x".repeat((number % 40) as usize)
    )
    .into_bytes()
}

pub fn xattr(number: u64) -> Vec<u8> {
    format!("user.a{}", number % 4).into_bytes()
}

pub(super) fn open(path: &Path, flags: OFlags, mode: Mode) -> OpResult<OwnedFd> {
    rustix::fs::open(
        path,
        flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
        mode,
    )
}

pub(super) fn write_all(file: &OwnedFd, content: &[u8], offset: u64) -> OpResult<()> {
    let mut done = 0;
    loop {
        done += rustix::io::pwrite(file, &content[done..], offset + done as u64)?;
        if done >= content.len() {
            return Ok(());
        }
    }
}

fn write_content(op: &Op, path: &Path) -> OpResult<()> {
    let n = |index| op.number(index);
    match op.verb {
        Verb::Put => {
            let file = open(
                path,
                OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
                Mode::from_raw_mode(0o644),
            )?;
            write_all(&file, &data(n(1), n(0)), 0)
        }
        Verb::Write => write_all(
            &open(path, OFlags::WRONLY, Mode::empty())?,
            &data(n(2), n(1)),
            n(0),
        ),
        Verb::Append => write_all(
            &open(path, OFlags::WRONLY | OFlags::APPEND, Mode::empty())?,
            &data(n(1), n(0)),
            0,
        ),
        Verb::Punch => {
            let file = open(path, OFlags::WRONLY, Mode::empty())?;
            rustix::fs::fallocate(
                &file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                n(0),
                n(1),
            )
        }
        Verb::Truncate => super::map::truncate(path, n(0)),
        _ => panic!("unexpected operation {op}"),
    }
}

fn set_attributes(op: &Op, path: &Path) -> OpResult<()> {
    let n = |index| op.number(index);
    let mode = Mode::from_raw_mode(n(0) as u32);
    match op.verb {
        Verb::Chmod => rustix::fs::chmod(path, mode),
        Verb::Chown => {
            let ids = (Uid::from_raw(n(0) as u32), Gid::from_raw(n(1) as u32));
            rustix::fs::chownat(
                CWD,
                path,
                Some(ids.0),
                Some(ids.1),
                AtFlags::SYMLINK_NOFOLLOW,
            )
        }
        Verb::Utimens => {
            let time = Timespec {
                tv_sec: n(0) as i64,
                tv_nsec: n(1) as _,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        }
        Verb::SetXattr => rustix::fs::lsetxattr(
            path,
            &xattr(n(0))[..],
            &data(n(2), n(1)),
            XattrFlags::empty(),
        ),
        Verb::RemoveXattr => rustix::fs::lremovexattr(path, &xattr(n(0))[..]),
        _ => panic!("unexpected operation {op}"),
    }
}

fn copy(path: &Path, second: &Path, op: &Op) -> OpResult<()> {
    let from = open(path, OFlags::RDONLY, Mode::empty())?;
    let stat = rustix::fs::fstat(&from)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    let to = open(second, OFlags::WRONLY, Mode::empty())?;
    if rustix::fs::fstat(&to)?.st_ino == stat.st_ino {
        return Ok(());
    }
    let (mut offset, mut target, mut left) = (op.number(0), op.number(1), op.number(2) as usize);
    while left > 0 {
        match rustix::fs::copy_file_range(&from, Some(&mut offset), &to, Some(&mut target), left)? {
            0 => break,
            got => left -= got,
        }
    }
    Ok(())
}
