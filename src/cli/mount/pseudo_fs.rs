//! Pseudo filesystems of the kernel, over which nothing is mounted.

use std::path::Path;

use ckptfs_api::{Code, VerbResult};
use ckptfs_sys::MountPoint;
use ckptfs_ui::error::hinted;
use ckptfs_ui::mounts;

/// Types of pseudo filesystems, as in the mount table.
const INTERFACES: &[&str] = &[
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Rejects a backing directory on a pseudo filesystem, because creating a directory on some of them
/// has side effects.
pub fn check_filesystem(table: &[MountPoint], backing: &Path) -> VerbResult<()> {
    match mounts::containing(table, backing) {
        Some(mount) if INTERFACES.contains(&mount.fs_type.as_str()) => Err(hinted(
            Code::BadMountpoint,
            format!(
                "{} is on {}, an interface of the kernel, and no history can be kept in it",
                backing.display(),
                mount.fs_type
            ),
            "mount a directory on a filesystem for files, such as XFS, btrfs or ext4",
        )),
        _ => Ok(()),
    }
}
