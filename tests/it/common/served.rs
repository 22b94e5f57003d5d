//! What the filesystems say that the tests serve themselves.

use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};

/// The attributes of an inode of root's that never changes.
pub fn attributes(ino: u64, kind: FileType, perm: u16, size: u64) -> FileAttr {
    let [atime, mtime, ctime, crtime] = [UNIX_EPOCH; 4];
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size / 512,
        atime,
        mtime,
        ctime,
        crtime,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}
