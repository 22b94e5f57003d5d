//! Removal of mounts whose daemon has died.

use std::path::Path;

use ckptfs_api::{Code, VerbResult, error};
pub use ckptfs_core::engine::unmount::{unmount, unmount_error};
use ckptfs_sys::MountPoint;
use ckptfs_ui::mounts::{all, dead_around, is_dead, top};

/// Limit of the stacked dead mounts that are removed at one place.
const STACKED_MAX: usize = 64;

/// Removes the dead mounts of ckptfs that are stacked on top at `at`, and returns their number.
pub fn repair(at: &Path) -> VerbResult<usize> {
    for repaired in 0..STACKED_MAX {
        if !top(&all()?, at).is_some_and(MountPoint::is_ours) || !is_dead(at) {
            return Ok(repaired);
        }
        unmount(at, true).map_err(|cause| unmount_error(at, cause))?;
    }
    Err(error(
        Code::Busy,
        format!(
            "more than {STACKED_MAX} dead mounts are stacked at {}",
            at.display()
        ),
    ))
}

/// Removes the dead mounts of ckptfs at `path` and above it, the uppermost first, and returns their
/// number.
pub fn repair_above(path: &Path) -> VerbResult<usize> {
    let mut repaired = 0;
    while let Some(mount) = dead_around(&all()?, path) {
        match repair(&mount.at)? {
            // Another process was faster.
            0 => break,
            some => repaired += some,
        }
    }
    Ok(repaired)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ckptfs_sys::Errno;

    #[test]
    fn a_living_directory_needs_no_repair() {
        let dir = tempfile::tempdir().expect("directory");
        assert!(!is_dead(dir.path()));
        assert_eq!(repair_above(dir.path()).expect("repair"), 0);
        assert_eq!(unmount(dir.path(), true), Err(Errno::EINVAL));
    }
}
