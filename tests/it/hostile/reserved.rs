//! What a filesystem keeps for root is not for those for whom root's daemon writes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::users::as_nobody;
use crate::common::{Fs, Image, Io, MountOpts, Variant, skip};

/// Bytes of the filesystem, and how much of it root alone may use.
const BYTES: u64 = 64 << 20;
const RESERVED: &str = "25";

/// Free blocks, and those that anybody may use, in bytes.
fn free(dir: &Path) -> (u64, u64) {
    let found = rustix::fs::statvfs(dir).unwrap();
    (
        found.f_bfree * found.f_frsize,
        found.f_bavail * found.f_frsize,
    )
}

/// Another user could fill the disk to the last block, and so keep root from its work.
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
        // A part of it is what the store keeps for its own needs.
        let (left, _) = free(below);
        assert!(left >= reserved - (1 << 20), "{what}: {left} of {reserved}");
    }
    // Root has what is kept for it.
    fs::write(root.join("root"), vec![1; 4 << 20]).unwrap();
}
