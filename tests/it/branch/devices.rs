//! Character devices 0:0, which are whiteouts in a branch.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;

use super::support::{create, inside};
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { reflink => a_device_without_a_number_hides_nothing }

/// The device number that represents 0:0 in the backing directory of a branch.
const STAND_IN: u64 = 0x3ff1_ffff;

fn make(path: &Path, device: u64) -> Result<(), Errno> {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR, device)
}

fn is_there(path: &Path, mode: u32) {
    let shown = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    assert!(shown.file_type().is_char_device(), "{path:?}");
    assert_eq!((shown.rdev(), shown.mode() & 0o7777), (0, mode), "{path:?}");
}

/// Failed before: mknod(2) of such a device returned EPERM (45 cases of pjdfstest), and an
/// inherited one disappeared when it was changed.
fn a_device_without_a_number_hides_nothing(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        make(&dir.join("old"), 0).unwrap();
        make(&dir.join("kept"), 0).unwrap();
    });
    let one = create(&rig, "one");
    fs::set_permissions(one.join("old"), Permissions::from_mode(0o640)).unwrap();
    is_there(&one.join("old"), 0o640);
    fs::rename(one.join("old"), one.join("moved")).unwrap();
    make(&one.join("new"), 0).unwrap();
    assert_eq!(make(&one.join("new"), 0), Err(Errno::EXIST));
    // Replaces the whiteout of the name.
    fs::remove_file(one.join("kept")).unwrap();
    make(&one.join("kept"), 0).unwrap();
    fs::hard_link(one.join("new"), one.join("hard")).unwrap();
    let all = |dir: &Path| {
        is_there(&dir.join("moved"), 0o640);
        for name in ["new", "kept", "hard"] {
            is_there(&dir.join(name), 0o400);
        }
        assert!(!dir.join("old").exists());
    };
    all(&one);
    let id = inside(&one, &["checkpoint"]);
    for name in ["moved", "new", "kept", "hard"] {
        fs::remove_file(one.join(name)).unwrap();
    }
    assert_eq!(
        fs::read_dir(&one)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name() != ".ckptfs")
            .count(),
        0
    );
    all(&one.join(".snapshots").join(id.trim_end()));
    inside(&one, &["restore", id.trim_end()]);
    all(&one);
    rig.mount.umount();
    rig.mount.remount();
    all(&one);
    inside(&one, &["verify"]);
    rig.mount.ok(&["merge", "one"]);
    all(rig.path());
    assert_eq!(make(&one.join("never"), STAND_IN), Err(Errno::PERM));
    assert!(!one.join("never").exists());
}
