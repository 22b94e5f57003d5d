//! Random operations on a directory, serializable and repeatable on a plain directory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{RenameFlags, XattrFlags};
use serde::{Deserialize, Serialize};

use crate::common::random::Random;

/// Components of the paths.
const DIRS: [&str; 5] = ["", "a", "b", "a/x", "b/y"];
const FILES: [&str; 6] = ["f0", "f1", "f2", "f3", "old0", "old1"];
/// Maximum bytes of a write: one request, so that it happens whole or not at all.
const WRITE_MAX: u64 = 60_000;

/// An operation with one modifying system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CrashOp {
    Create {
        path: PathBuf,
    },
    Write {
        path: PathBuf,
        offset: u64,
        length: u64,
        fill: u8,
    },
    Append {
        path: PathBuf,
        length: u64,
        fill: u8,
    },
    Store {
        path: PathBuf,
        fill: u8,
    },
    Truncate {
        path: PathBuf,
        length: u64,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Exchange {
        from: PathBuf,
        to: PathBuf,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Symlink {
        target: String,
        to: PathBuf,
    },
    Unlink {
        path: PathBuf,
    },
    Mkdir {
        path: PathBuf,
    },
    Rmdir {
        path: PathBuf,
    },
    Chmod {
        path: PathBuf,
        mode: u32,
    },
    SetXattr {
        path: PathBuf,
        fill: u8,
    },
    RemoveXattr {
        path: PathBuf,
    },
    Sync {
        path: PathBuf,
    },
}

/// Draws an operation.
pub fn random_op(random: &mut Random) -> CrashOp {
    let dir = |random: &mut Random| PathBuf::from(*random.pick(&DIRS[1..]));
    let file = |random: &mut Random| Path::new(*random.pick(&DIRS)).join(*random.pick(&FILES));
    let (path, fill) = (file(random), b'a' + random.below(26) as u8);
    match random.below(34) {
        0..=5 => CrashOp::Create { path },
        6..=10 => CrashOp::Write {
            path,
            offset: random.below(20_000),
            length: 1 + random.below(WRITE_MAX),
            fill,
        },
        11..=13 => CrashOp::Append {
            path,
            length: 1 + random.below(4000),
            fill,
        },
        14 => CrashOp::Store { path, fill },
        15..=16 => CrashOp::Truncate {
            path,
            length: random.below(30_000),
        },
        17..=19 => CrashOp::Rename {
            from: path,
            to: file(random),
        },
        20 => CrashOp::Rename {
            from: dir(random),
            to: dir(random),
        },
        21 => CrashOp::Exchange {
            from: path,
            to: file(random),
        },
        22..=23 => CrashOp::Link {
            from: path,
            to: file(random),
        },
        24 => CrashOp::Symlink {
            target: format!("to-{fill}"),
            to: path,
        },
        25..=27 => CrashOp::Unlink { path },
        28..=29 => CrashOp::Mkdir { path: dir(random) },
        30 => CrashOp::Rmdir { path: dir(random) },
        31 => CrashOp::Chmod {
            path,
            mode: 0o600 + random.below(64) as u32,
        },
        32 => CrashOp::SetXattr { path, fill },
        _ => {
            if random.once_in(2) {
                CrashOp::Sync { path }
            } else {
                CrashOp::RemoveXattr { path }
            }
        }
    }
}

impl CrashOp {
    /// Performs the operation below `root`.
    pub fn carry_out(&self, root: &Path) -> io::Result<()> {
        let flags = |from: &PathBuf, to: &PathBuf, flags| {
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                root.join(from),
                rustix::fs::CWD,
                root.join(to),
                flags,
            )
            .map_err(io::Error::from)
        };
        match self {
            CrashOp::Create { path } => OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(root.join(path))
                .map(drop),
            CrashOp::Write {
                path,
                offset,
                length,
                fill,
            } => whole(&open(root, path)?, &vec![*fill; *length as usize], *offset),
            CrashOp::Append { path, length, fill } => {
                let file = OpenOptions::new()
                    .append(true)
                    .custom_flags_nofollow()
                    .open(root.join(path))?;
                io::Write::write_all(&mut &file, &vec![*fill; *length as usize])
            }
            CrashOp::Store { path, fill } => store(
                &OpenOptions::new()
                    .read(true)
                    .write(true)
                    .custom_flags_nofollow()
                    .open(root.join(path))?,
                *fill,
            ),
            CrashOp::Truncate { path, length } => open(root, path)?.set_len(*length),
            CrashOp::Rename { from, to } => flags(from, to, RenameFlags::empty()),
            CrashOp::Exchange { from, to } => flags(from, to, RenameFlags::EXCHANGE),
            CrashOp::Link { from, to } => fs::hard_link(root.join(from), root.join(to)),
            CrashOp::Symlink { target, to } => symlink(target, root.join(to)),
            CrashOp::Unlink { path } => fs::remove_file(root.join(path)),
            CrashOp::Mkdir { path } => fs::create_dir(root.join(path)),
            CrashOp::Rmdir { path } => fs::remove_dir(root.join(path)),
            CrashOp::Chmod { path, mode } => {
                open(root, path)?.set_permissions(fs::Permissions::from_mode(*mode))
            }
            CrashOp::SetXattr { path, fill } => Ok(rustix::fs::lsetxattr(
                root.join(path),
                c"user.k",
                &[*fill; 9],
                XattrFlags::empty(),
            )?),
            CrashOp::RemoveXattr { path } => {
                Ok(rustix::fs::lremovexattr(root.join(path), c"user.k")?)
            }
            CrashOp::Sync { path } => open(root, path)?.sync_all(),
        }
    }
}

trait NoFollow {
    fn custom_flags_nofollow(&mut self) -> &mut Self;
}

impl NoFollow for OpenOptions {
    fn custom_flags_nofollow(&mut self) -> &mut OpenOptions {
        std::os::unix::fs::OpenOptionsExt::custom_flags(self, libc::O_NOFOLLOW | libc::O_NONBLOCK)
    }
}

fn open(root: &Path, path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags_nofollow()
        .open(root.join(path))
}

/// A short write, because the daemon died between two requests: the number of bytes written.
#[derive(Debug)]
pub struct ShortWrite(pub u64);

impl std::fmt::Display for ShortWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "only {} bytes were written", self.0)
    }
}

impl std::error::Error for ShortWrite {}

/// Returns the number of bytes of a short write.
pub fn written_of(error: &io::Error) -> Option<u64> {
    error
        .get_ref()?
        .downcast_ref::<ShortWrite>()
        .map(|short| short.0)
}

/// Writes with one call, which must write everything or fail.
fn whole(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    match file.write_at(bytes, offset)? {
        written if written == bytes.len() => Ok(()),
        written => Err(io::Error::other(ShortWrite(written as u64))),
    }
}

/// Stores up to nine bytes at the beginning of a file through a mapping and syncs them.
pub fn store(file: &File, fill: u8) -> io::Result<()> {
    let length = file.metadata()?.len().min(9) as usize;
    if length == 0 {
        return Ok(());
    }
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
    // SAFETY: a new mapping of a file that only this process changes, at an address chosen by the
    // kernel. The `length` bytes are within the file, and the mapping is not used after munmap.
    unsafe {
        let at = rustix::mm::mmap(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )?;
        for index in 0..length {
            at.cast::<u8>().add(index).write_volatile(fill);
        }
        let synced = rustix::mm::msync(at, length, MsyncFlags::SYNC);
        rustix::mm::munmap(at, length)?;
        Ok(synced?)
    }
}
/// Reports whether the daemon is gone; the operation may have happened.
pub fn is_dead(error: &io::Error) -> bool {
    [libc::ENOTCONN, libc::ECONNABORTED].contains(&error.raw_os_error().unwrap_or(0))
}
