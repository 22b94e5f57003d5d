//! The mounts of ckptfs among all mounts: search, and detection of dead ones.

use std::path::Path;

use crate::error::ErrorContext;
use ckptfs_api::VerbResult;
pub use ckptfs_sys::topmost_mount as top;
use ckptfs_sys::{self as sys, Errno, MountPoint, host};

/// Returns all mounts in the namespace of this process.
pub fn all() -> VerbResult<Vec<MountPoint>> {
    sys::mounts().on("the table of mounts")
}

/// Returns the mount that `path` is on.
pub fn containing<'a>(mounts: &'a [MountPoint], path: &Path) -> Option<&'a MountPoint> {
    path.ancestors().find_map(|dir| top(mounts, dir))
}

/// Reports whether the daemon of the mount at `at` is gone.
///
/// Uses statfs(2), which always sends a request to the daemon; the attributes for stat(2) may be
/// cached. A daemon that dies during the request causes ECONNABORTED.
pub fn is_dead(at: &Path) -> bool {
    host::open_dir_path(at)
        .and_then(sys::statfs_fd)
        .is_err_and(|cause| matches!(cause, Errno::ENOTCONN | Errno::ECONNABORTED))
}

/// Returns the uppermost mount of ckptfs around `path` whose daemon is gone.
pub fn dead_around<'a>(table: &'a [MountPoint], path: &Path) -> Option<&'a MountPoint> {
    let around = path
        .ancestors()
        .filter_map(|dir| top(table, dir))
        .filter(|mount| mount.is_ours() && is_dead(&mount.at));
    around.last()
}

/// Reports whether `path` is on a live mount of ckptfs.
pub fn serves_around(table: &[MountPoint], path: &Path) -> bool {
    containing(table, path).is_some_and(|mount| mount.is_ours() && !is_dead(&mount.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_counts() {
        let mount = |id: u64, at: &str| MountPoint {
            id,
            parent: 0,
            dev: id,
            root: "/".into(),
            at: at.into(),
            read_only: false,
            fs_type: "xfs".into(),
            source: "/dev/a".into(),
            owner: None,
        };
        let table = [mount(1, "/"), mount(2, "/p"), mount(3, "/p")];
        assert_eq!(top(&table, Path::new("/p")).map(|mount| mount.id), Some(3));
        assert_eq!(
            containing(&table, Path::new("/p/a/b")).map(|mount| mount.id),
            Some(3)
        );
        assert_eq!(
            containing(&table, Path::new("/q")).map(|mount| mount.id),
            Some(1)
        );
    }
}
