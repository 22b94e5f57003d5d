//! Replies of the filesystems that the tests serve.

use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};

/// Returns constant attributes of an inode of root.
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
