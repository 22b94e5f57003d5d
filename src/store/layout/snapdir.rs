//! The name of a tree's snapshot directory. A tree may have an entry with the usual name, such as
//! the snapshots of another tool; a mount can then choose another. The name is in a file of the
//! store, where the next mount and the commands find it.

use std::os::fd::AsFd;

use super::super::at;
use super::Layout;
use crate::error::{StoreError, StoreResult};

/// The usual name.
pub const SNAPDIR: &str = ".snapshots";
/// The file, which has only the name. Without it the usual name counts.
const FILE: &str = "snapdir";
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

impl Layout {
    /// Stores the name for the next mount; durable on return, except a change back to the usual
    /// name.
    ///
    /// # Errors
    /// Those of write(2), fsync(2), rename(2) and unlink(2).
    pub fn note_snapdir(&self, name: &str) -> StoreResult<()> {
        let noted = noted_snapdir(&self.dir);
        if noted.as_deref().unwrap_or(SNAPDIR) == name {
            return Ok(());
        }
        let failed = StoreError::io("write", FILE);
        if name == SNAPDIR {
            return at::remove_tree(&self.dir, FILE.as_bytes()).map_err(failed);
        }
        at::write_whole(&self.dir, FILE, name.as_bytes()).map_err(failed)
    }
}

/// Returns the name last stored by [`Layout::note_snapdir`]; `None`: the usual or an invalid name.
pub fn noted_snapdir(store: impl AsFd) -> Option<String> {
    let bytes = at::read_small(store, FILE, NAME_MAX as u64).ok()?;
    String::from_utf8(bytes)
        .ok()
        .filter(|name| is_snapdir_name(name))
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
