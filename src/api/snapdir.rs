//! The name of a tree's snapshot directory, and its inode number.

use std::io::Read;
use std::os::fd::AsFd;

use ckptfs_sys::{self as sys, Access};

/// Inode number of the snapshot directory in the mount; also the bit that marks inodes that are no
/// part of the tree.
pub const SNAPDIR_INODE: u64 = 1 << 61;
/// The usual name.
pub const SNAPDIR: &str = ".snapshots";
/// The file in the store, which has only the name. Without it the usual name counts.
pub const SNAPDIR_FILE: &str = "snapdir";
/// Bytes of a name.
const NAME_MAX: usize = 64;
/// Names with another meaning in the root directory.
const TAKEN: [&str; 4] = [".ckptfs", ".branches", ".zfs", ".git"];

/// Reports whether the snapshot directory can have this name: it begins with a dot and is easy to
/// type.
pub fn is_snapdir_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() > 1
        && name.len() <= NAME_MAX
        && name.starts_with('.')
        && name != ".."
        && !name.starts_with(".ckptfs")
        && !TAKEN.contains(&name)
        && name.bytes().all(is_good)
}

/// Returns whether an inode number is that of the snapshot directory, which is not part of the tree,
/// under any name.
pub fn is_snapdir_inode(ino: u64) -> bool {
    ino == SNAPDIR_INODE
}

/// Returns the name that is stored in the store's directory; `None`: the usual or an invalid name.
pub fn noted_snapdir(store: impl AsFd) -> Option<String> {
    let file = sys::open_file_at(store, SNAPDIR_FILE.as_bytes(), Access::READ).ok()?;
    let mut name = String::new();
    file.take(NAME_MAX as u64 + 1)
        .read_to_string(&mut name)
        .ok()?;
    is_snapdir_name(&name).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_begins_with_a_dot_and_is_nobody_else_s() {
        for good in [".snapshots", ".past", ".history-2", ".a"] {
            assert!(is_snapdir_name(good), "{good}");
        }
        let long = format!(".{}", "x".repeat(NAME_MAX));
        for bad in [
            "",
            ".",
            "..",
            "past",
            ".a/b",
            ".zfs",
            ".ckptfs",
            ".ckptfs-x",
            ".é",
            &long,
        ] {
            assert!(!is_snapdir_name(bad), "{bad}");
        }
    }
}
