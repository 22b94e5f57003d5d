//! Mounts and subvolumes inside the tree are not part of its history: they are visible and usable,
//! and no change of the tree detaches, moves or removes one. Failed before: a restore detached
//! them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::common::{Fs, Io, MountOpts, Variant, for_each_variant};

for_each_variant! { all =>
    a_restore_leaves_what_is_mounted_in_the_tree,
    a_merge_that_would_detach_a_mount_is_refused,
    what_was_mounted_before_is_there_and_comes_back,
}

/// A tmpfs with one file, unmounted when dropped.
struct InnerTestMount(PathBuf);

impl InnerTestMount {
    fn at(path: PathBuf) -> InnerTestMount {
        rustix::mount::mount("none", &path, "tmpfs", MountFlags::empty(), None).expect("tmpfs");
        fs::write(path.join("data"), "precious").unwrap();
        InnerTestMount(path)
    }

    /// Bind-mounts a file over a file.
    fn over(file: PathBuf, from: &Path) -> InnerTestMount {
        rustix::mount::mount_bind(from, &file).expect("a bind mount");
        InnerTestMount(file)
    }

    fn is_there(&self) -> bool {
        fs::read_to_string(self.0.join("data")).is_ok_and(|text| text == "precious")
    }
}

impl Drop for InnerTestMount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn a_restore_leaves_what_is_mounted_in_the_tree(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir_all(dir.join("a/vol")).unwrap();
        fs::create_dir(dir.join("kept")).unwrap();
        fs::write(dir.join("a/f"), "1").unwrap();
        fs::write(dir.join("conf"), "1").unwrap();
    });
    let root = rig.path().to_owned();
    let outside = rig.image.path().join("outside");
    fs::write(&outside, "bound").unwrap();
    assert_eq!(rig.mount.checkpoint(), 1);
    // Mounts on a new directory, below a new one, below a renamed one, over a changed file, and on
    // an unchanged directory.
    fs::create_dir_all(root.join("new/deep/cache")).unwrap();
    fs::create_dir(root.join("cache")).unwrap();
    fs::write(root.join("conf"), "2").unwrap();
    fs::rename(root.join("a"), root.join("b")).unwrap();
    let mounts = ["cache", "new/deep/cache", "b/vol", "kept"];
    let mounts = mounts.map(|path| InnerTestMount::at(root.join(path)));
    let _conf = InnerTestMount::over(root.join("conf"), &outside);
    let stay = |after: &str| {
        for mount in &mounts {
            assert!(
                mount.is_there(),
                "{after}: {} is missing",
                mount.0.display()
            );
        }
        assert_eq!(fs::read_to_string(root.join("conf")).unwrap(), "bound");
        fs::write(root.join("f"), "changed").unwrap();
    };
    stay("mount");
    let dry = rig.mount.json(&["restore", "1", "-n"]);
    let done = rig.mount.json(&["restore", "1"]);
    assert_eq!(done["changes"], dry["changes"]);
    let left = ["b", "cache", "conf", "new"];
    assert_eq!(done["mounted"], serde_json::json!(left));
    stay("restore");
    assert_eq!(fs::read_to_string(root.join("a/f")).unwrap(), "1");
    rig.mount.ok(&["undo"]);
    stay("undo");
    rig.mount.ok(&["restore", "1", "cache", "new", "f"]);
    stay("restore PATHS");
    // A restore that would move a mount fails with an error that names it.
    let refused = rig.mount.run(&["restore", "1", "a"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() || root.join("a/f").exists(),
        "{said}"
    );
    stay("restore of a directory that was moved");
    rig.mount.kill_worker();
    rig.mount.ok(&["restore", "1"]);
    stay("takeover and restore");
    drop(mounts);
    drop(_conf);
    rig.mount.umount();
}

fn a_merge_that_would_detach_a_mount_is_refused(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir_all(dir.join("sub/vol")).unwrap();
        fs::write(dir.join("f"), "1").unwrap();
    });
    let root = rig.path().to_owned();
    let branch = rig.mount.json(&["branch", "create", "b"])["path"].clone();
    let branch = PathBuf::from(branch.as_str().expect("a path"));
    fs::remove_dir_all(branch.join("sub")).unwrap();
    fs::write(branch.join("f"), "2").unwrap();
    let mounted = InnerTestMount::at(root.join("sub/vol"));
    let refused = rig.mount.run(&["merge", "b"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("sub/vol is a mount point"), "{said}");
    assert!(mounted.is_there());
    assert_eq!(fs::read_to_string(root.join("f")).unwrap(), "1");
    drop(mounted);
    rig.mount.ok(&["merge", "b"]);
    assert!(!root.join("sub").exists());
    rig.mount.umount();
}

fn what_was_mounted_before_is_there_and_comes_back(v: Variant) {
    let mut before = Vec::new();
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir_all(dir.join("sub/vol")).unwrap();
        fs::write(dir.join("conf"), "hidden").unwrap();
        fs::write(dir.join("f"), "1").unwrap();
        before.push(InnerTestMount::at(dir.join("sub/vol")));
        before.push(InnerTestMount::over(dir.join("conf"), &dir.join("f")));
        if v.fs == Fs::Btrfs {
            for subvolume in ["volume", "sub/volume"] {
                let made = Command::new("btrfs")
                    .args(["-q", "subvolume", "create"])
                    .arg(dir.join(subvolume))
                    .status();
                assert!(made.expect("btrfs").success());
                fs::write(dir.join(subvolume).join("in"), "in").unwrap();
            }
        }
    });
    let root = rig.path().to_owned();
    let mut inside = vec!["conf", "sub/vol"];
    if v.fs == Fs::Btrfs {
        inside.extend(["sub/volume", "volume"]);
    }
    assert_eq!(
        rig.mount.json(&["status"])["mounted"],
        serde_json::json!(inside)
    );
    assert!(before[0].is_there());
    assert_eq!(fs::read_to_string(root.join("conf")).unwrap(), "1");
    assert_eq!(rig.mount.checkpoint(), 1);
    for dir in inside.iter().filter(|path| **path != "conf") {
        let dir = root.join(dir);
        fs::write(dir.join("new"), "new").unwrap();
        fs::rename(dir.join("new"), dir.join("renamed")).unwrap();
        assert_eq!(fs::remove_dir(&dir).unwrap_err().raw_os_error(), Some(16));
        // A view does not have the name, and lists its own entries.
        let seen = rig.view(1).join(dir.strip_prefix(&root).unwrap());
        assert!(fs::symlink_metadata(seen).is_err());
    }
    let listed = fs::read_dir(rig.view(1).join("sub")).unwrap();
    assert_eq!(listed.count(), 0);
    assert!(rig.mount.dirty().is_empty(), "{:?}", rig.mount.dirty());
    fs::write(root.join("sub/f"), "2").unwrap();
    rig.mount.restore(1);
    assert!(!root.join("sub/f").exists());
    let number = fs::metadata(root.join("sub/vol")).unwrap().dev();
    rig.mount.umount();
    for dir in inside.iter().filter(|path| **path != "conf") {
        let renamed = fs::read_to_string(root.join(dir).join("renamed"));
        assert_eq!(renamed.unwrap(), "new", "{dir}");
    }
    assert_eq!(fs::metadata(root.join("sub/vol")).unwrap().dev(), number);
    rig.mount.remount();
    assert!(before[0].is_there());
    // A mount in use remains, and so does the tree's mount.
    let open = fs::File::open(root.join("sub/vol/data")).unwrap();
    let busy = rig.mount.run(&["umount", "."]);
    let said = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(!busy.status.success() && said.contains("sub/vol"), "{said}");
    assert!(before[0].is_there());
    drop(open);
    rig.mount.umount();
}

/// Any user may mount over the tree in a user namespace; a restore changes the covered files.
#[test]
fn a_mount_in_another_user_s_namespace_is_in_nobody_s_way() {
    let v = Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    };
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("f"), "1").unwrap();
    });
    let root = rig.path().to_owned();
    assert_eq!(rig.mount.checkpoint(), 1);
    fs::create_dir(root.join("new")).unwrap();
    fs::write(root.join("new/f"), "2").unwrap();
    let line = format!(
        "mount -t tmpfs none {0}/new && echo mounted && exec sleep 600",
        root.display()
    );
    let mut stranger = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args([
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            &line,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("setpriv");
    let mut said = String::new();
    let stdout = stranger.stdout.take().expect("stdout");
    BufReader::new(stdout).read_line(&mut said).unwrap();
    assert_eq!(said, "mounted\n");
    let done = rig.mount.json(&["restore", "1"]);
    assert!(
        done["mounted"].is_null() && !root.join("new").exists(),
        "{done}"
    );
    let _ = stranger.kill();
    let _ = stranger.wait();
    rig.mount.umount();
}
