//! A clock that was ahead and was set back before the mount. The tests write a later ctime into the
//! image instead of setting the clock of the machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::command::{check, succeeds, tool};
use crate::common::wait::wait_until;
use crate::common::{Fs, Image, Io, Mount, MountOpts, Variant, for_each_variant};

for_each_variant! { xfs =>
    what_was_changed_while_the_clock_was_ahead_is_in_views_and_restored,
    what_is_changed_past_the_mount_is_seen_whatever_the_clock_was,
}

/// Without reflink, where captures are copies.
#[test]
fn what_was_changed_while_the_clock_was_ahead_is_in_views_on_ext4() {
    what_was_changed_while_the_clock_was_ahead_is_in_views_and_restored(Variant {
        fs: Fs::Ext4,
        io: Io::Daemon,
    });
}

const FILES: [&str; 4] = ["kept", "written", "removed", "dir/below"];
const OTHERS: [&str; 3] = ["", "dir", "link"];

/// Returns an image with a tree whose ctimes are in the future.
fn ahead(v: Variant) -> (Image, PathBuf) {
    let mut image = Image::of(v.fs);
    let backing = image.dir("backing");
    fs::create_dir(backing.join("dir")).unwrap();
    for name in FILES {
        fs::write(backing.join(name), format!("{name} as it was")).unwrap();
    }
    std::os::unix::fs::symlink("kept", backing.join("link")).unwrap();
    set_ahead(&mut image, &backing);
    assert!(is_ahead(&backing.join("kept")), "the image was changed");
    (image, backing)
}

/// Failed before: views reported EIO, and a restore left the files unchanged.
fn what_was_changed_while_the_clock_was_ahead_is_in_views_and_restored(v: Variant) {
    let (image, backing) = ahead(v);
    let mut mount = Mount::start(&backing, &MountOpts::new(v.io).hasty());
    let live = mount.path().to_owned();
    let first = mount.checkpoint();
    as_it_was(&mount.view(first));
    fs::write(live.join("written"), "later").unwrap();
    fs::remove_file(live.join("removed")).unwrap();
    as_it_was(&mount.view(first));

    // Once no ctime is in the future, the clock no longer matters.
    let below = image.below();
    let below_backing = below.path().join("backing");
    wait_until("nothing is ahead of the clock", || {
        let mut all = FILES.iter().chain(&OTHERS);
        !all.any(|name| *name != "removed" && is_ahead(&below_backing.join(name)))
    });
    drop(below);
    as_it_was(&mount.view(first));
    let second = mount.checkpoint();
    assert_eq!(mount.dirty(), Vec::<String>::new());
    for _ in 0..2 {
        mount.umount();
        mount.remount();
        as_it_was(&mount.view(first));
        assert_eq!(
            fs::read(mount.view(second).join("kept")).unwrap(),
            b"kept as it was"
        );
    }
    assert_eq!(check(&live, &["verify", "--deep"]).0, 0);
    mount.restore(first);
    as_it_was(&live);
}

/// The mount is elsewhere, so that the backing directory stays reachable.
fn what_is_changed_past_the_mount_is_seen_whatever_the_clock_was(v: Variant) {
    let (image, backing) = ahead(v);
    let opts = MountOpts {
        mountpoint: Some(image.dir("mounted")),
        ..MountOpts::new(v.io).hasty().arg("--seal=hash")
    };
    let mount = Mount::start(&backing, &opts);
    let first = mount.checkpoint();
    fs::write(backing.join("kept"), "KEPT AS IT WAS").unwrap();
    let second = mount.checkpoint();
    let read = |id, name: &str| fs::read_to_string(mount.view(id).join(name));
    assert_eq!(
        read(first, "kept").unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert_eq!(read(second, "kept").unwrap(), "KEPT AS IT WAS");
    for id in [first, second] {
        assert_eq!(read(id, "dir/below").unwrap(), "dir/below as it was");
    }
}

#[track_caller]
fn as_it_was(root: &Path) {
    for name in FILES {
        let content = fs::read_to_string(root.join(name));
        assert_eq!(
            content.ok(),
            Some(format!("{name} as it was")),
            "{name} in {}",
            root.display()
        );
    }
    assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("kept"));
}

fn is_ahead(path: &Path) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    fs::symlink_metadata(path).unwrap().ctime() > now.as_secs() as i64
}

/// Sets the ctimes of the files and directories in `backing` to years from now.
fn set_ahead(image: &mut Image, backing: &Path) {
    let inodes: Vec<u64> = OTHERS
        .iter()
        .chain(&FILES)
        .map(|name| fs::symlink_metadata(backing.join(name)).unwrap().ino())
        .collect();
    image.unmount();
    let mut command = match image.fs() {
        Fs::Xfs => {
            let mut command = tool("xfs_db", &["-x"]);
            for inode in inodes {
                command.args(["-c", &format!("inode {inode}")]);
                command.args(["-c", "write core.ctime.sec \"Jan 1 00:00:00 2035\""]);
            }
            command
        }
        Fs::Ext4 => {
            let mut command = tool("debugfs", &["-w"]);
            let script = image.file().unwrap().with_extension("script");
            let lines = inodes
                .iter()
                .map(|inode| format!("set_inode_field <{inode}> ctime 20350101000000\n"));
            fs::write(&script, lines.collect::<String>()).unwrap();
            command.arg("-f").arg(script);
            command
        }
        other => panic!("{other:?}: no tool changes a time of change in its image"),
    };
    succeeds(command.arg(image.file().unwrap()), 60);
    image.mount_with("");
}
