//! Attributes of a filesystem beyond stat(2): nodatacow (btrfs), quota projects (XFS, ext4). They
//! affect captures, moves and restores.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::command::sh;
use crate::common::{Fs, Io, MountOpts, TreeOpts, Variant, assert_same_tree, copy_tree};

#[test]
fn files_without_copy_on_write_on_btrfs() {
    let fs = Fs::Btrfs;
    [Io::Passthrough, Io::Daemon]
        .into_iter()
        .for_each(|io| a_file_without_copy_on_write(Variant { fs, io }));
}

#[test]
fn directories_of_several_projects_on_xfs() {
    let fs = Fs::Xfs;
    [Io::Passthrough, Io::Daemon]
        .into_iter()
        .for_each(|io| directories_of_several_projects(Variant { fs, io }));
}

/// btrfs clones only between files with equal nodatacow flags. Failed before: the first write after
/// a checkpoint returned EINVAL.
fn a_file_without_copy_on_write(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir(dir.join("db")).unwrap();
        sh(dir, "chattr +C db; echo one > db/small; head -c 2M /dev/urandom > db/large; echo plain > plain");
    });
    let root = rig.path().to_owned();
    // The kernel does not pass this ioctl to a mount.
    let flags = |path: &Path| {
        sh(
            path.parent().unwrap(),
            &format!("lsattr -d {} | cut -d' ' -f1", path.display()),
        )
    };
    let mut copies = Vec::new();
    let mut keep = |id: u64| {
        let copy = rig.image.path().join(format!("copy{id}"));
        copy_tree(&root, &copy);
        assert_eq!(rig.mount.checkpoint(), id);
        copies.push((id, copy));
    };
    keep(1);
    sh(
        &root,
        "echo two >> db/small; printf x | dd of=db/large conv=notrunc status=none; echo new > db/new; cp plain db/copy",
    );
    keep(2);
    sh(
        &root,
        ": > db/small; truncate -s 1M db/large; chmod 600 db/new; mv db/copy plain; rm db/new",
    );
    for (id, copy) in &copies {
        assert_same_tree(&rig.view(*id), copy, &TreeOpts::default());
    }
    for (id, copy) in &copies {
        rig.mount.restore(*id);
        assert_same_tree(&root, copy, &TreeOpts::default());
        rig.mount.umount();
        for name in ["small", "large"] {
            assert!(flags(&root.join("db").join(name)).contains('C'), "{name}");
        }
        rig.mount.remount();
    }
    rig.mount.restore(1);
    rig.mount.umount();
    assert!(!flags(&root.join("plain")).contains('C'));
}

/// No file of another project can be renamed into a directory with project inheritance. Failed
/// before: `rm`, `mv`, `restore` and `merge` returned EXDEV.
fn directories_of_several_projects(v: Variant) {
    let fill = |dir: &Path| {
        // The tree has a project, and earlier files have another or none.
        sh(
            dir,
            "mkdir -p one/deep two; echo 1 > one/a; echo 1 > one/deep/b; echo 1 > two/c; echo 1 > of-none",
        );
        sh(
            dir,
            "chattr -R -p 42 one; chattr +P one one/deep; chattr -R -p 43 two; chattr +P two; chattr -p 41 .; chattr +P .",
        );
        symlink("a", dir.join("one/link")).unwrap();
    };
    let mut rig = v.start_with(MountOpts::new(v.io), fill);
    let root = rig.path().to_owned();
    let projects = || {
        let said = sh(
            &root,
            "lsattr -pR one two 2>/dev/null | grep -v '^$' | grep -v ':$' | awk '{print $1, $3}' | sort",
        );
        assert!(
            said.contains("42 one/a") && said.contains("43 two/c"),
            "{said}"
        );
        said
    };
    rig.mount.umount();
    let before = projects();
    rig.mount.remount();
    let copy = rig.image.path().join("copy");
    copy_tree(&root, &copy);
    assert_eq!(rig.mount.checkpoint(), 1);
    let change = "echo 2 > one/a; rm one/deep/b; echo 2 > new; rm of-none; echo x > two/x; mv two/x two/c; rm one/link; ln -s b one/link; mv one/deep one/moved; rm two/c";
    sh(&root, change);
    assert_same_tree(&rig.view(1), &copy, &TreeOpts::default());
    rig.mount.restore(1);
    assert_same_tree(&root, &copy, &TreeOpts::default());
    rig.mount.umount();
    assert_eq!(projects(), before);
    rig.mount.remount();
    rig.mount.ok(&["undo"]);
    assert_eq!(fs::read_to_string(root.join("one/a")).unwrap(), "2\n");
    rig.mount.ok(&["restore", "1", "one/a", "two"]);
    assert_eq!(fs::read_to_string(root.join("one/a")).unwrap(), "1\n");
    rig.mount.restore(1);
    // A merge renames the branch's new files into place.
    let branch = rig.mount.json(&["branch", "create", "b"])["path"].clone();
    let branch = Path::new(branch.as_str().expect("a path")).to_owned();
    sh(&branch, "echo 3 > one/a; echo 3 > two/new; rm one/deep/b");
    rig.mount.ok(&["merge", "b"]);
    assert_eq!(fs::read_to_string(root.join("one/a")).unwrap(), "3\n");
    assert_eq!(fs::read_to_string(root.join("two/new")).unwrap(), "3\n");
    // A program receives the filesystem's own error.
    let refused = Command::new("python3")
        .args(["-c", "import os, sys; os.rename('of-none', 'two/of-none')"])
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Invalid cross-device link"));
    rig.mount.umount();
}
