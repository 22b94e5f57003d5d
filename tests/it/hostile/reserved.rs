//! The blocks that a filesystem reserves for root are not available to other users through root's
//! daemon.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::users::as_nobody;
use crate::common::{Fs, Image, Io, MountOpts, Variant, skip};

/// Size of the filesystem in bytes, and the percentage reserved for root.
const BYTES: u64 = 64 << 20;
const RESERVED: &str = "25";

/// Returns the free and the available bytes (statvfs(3)).
fn free(dir: &Path) -> (u64, u64) {
    let found = rustix::fs::statvfs(dir).unwrap();
    (
        found.f_bfree * found.f_frsize,
        found.f_bavail * found.f_frsize,
    )
}

/// Failed before: another user could fill the disk to the last block, and block root's work.
#[test]
fn what_ext4_keeps_for_root_is_for_nobody_else() {
    let variant = Variant {
        fs: Fs::Ext4,
        io: Io::Daemon,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let image = Image::with(variant.fs, BYTES, &["-m", RESERVED]);
    let rig = variant.start_on(image, MountOpts::new(variant.io), |dir| {
        fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
    });
    let (root, below) = (rig.path().to_owned(), rig.image.path());
    let (before, any) = free(below);
    let reserved = before - any;
    assert!(reserved > BYTES / 5, "{reserved}");
    for what in [
        "head -c 100M /dev/zero > big",
        "head -c 100M /dev/zero >> big",
        "fallocate -l 10M large",
        "i=0; while mkdir dir$i; do i=$((i+1)); done; false",
    ] {
        let output = as_nobody(&format!("cd {} && LC_ALL=C; {what}", root.display()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("No space left on device"),
            "{what}: {said}"
        );
        rustix::fs::sync();
        // A part of the reserve serves the store itself.
        let (left, _) = free(below);
        assert!(left >= reserved - (1 << 20), "{what}: {left} of {reserved}");
    }
    // Root can use the reserve.
    fs::write(root.join("root"), vec![1; 4 << 20]).unwrap();
}
