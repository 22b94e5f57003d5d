//! Reflink: the upper rung of the ladder (ioctl_ficlone(2)).

use std::fs::File;
use std::os::fd::AsFd;

use super::super::args::Open;
use super::super::fault::{self, Call};
use super::super::path::unlink_at;
use super::super::types::{Errno, SysResult};
use super::open::create_file_at;

/// Makes `dst`, open for writing, share all of `src`'s data, in place of its own; attributes stay.
///
/// Dirty pages of `src` are written back first. Not durable when it returns.
/// Errors: EOPNOTSUPP (EXDEV across filesystems, EINVAL for what is no regular file) where only a copy will do.
pub fn clone_file(src: &File, dst: &File) -> SysResult<()> {
    fault::check(Call::Clone)?;
    loop {
        match reflink_copy::reflink_file(src, dst).map_err(Errno::from) {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

/// Makes the new file `name` in `dir`, mode 0600, share all of `src`'s data, and gives it open for reading and writing.
///
/// EEXIST when the name is taken; other errors as [`clone_file`]. After a failure the name is not there.
pub fn clone_to(src: &File, dir: impl AsFd, name: &[u8]) -> SysResult<File> {
    let dst = create_file_at(&dir, name, Open::READ_WRITE, 0o600)?;
    match clone_file(src, &dst) {
        Ok(()) => Ok(dst),
        Err(errno) => {
            // What went wrong first is what the caller must know; an empty file that stays is found by fsck.
            let _ = unlink_at(&dir, name);
            Err(errno)
        }
    }
}
