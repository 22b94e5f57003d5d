//! restic and `pull` restore the pushed trees exactly.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{SECONDS, User, mark, pulled};
use crate::common::command::{has, sh, succeeds};
use crate::common::strace::Strace;
use crate::common::tree::{Tree, assert_same, tree};
use crate::common::{MountOpts, Variant, for_each_variant, sample_tree, skip, tree_of};
use crate::export::support::history;

for_each_variant! { reflink => every_checkpoint_comes_back }

/// Checkpoints with changes of every kind, each pushed incrementally.
fn every_checkpoint_comes_back(v: Variant) {
    if !has("restic") {
        skip("restic is not installed");
        return;
    }
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    let history = history(&rig);
    let user = User::new();
    // The last two are pushed separately, so their parent is read from the repository.
    let first = user.push(&rig, &["1", "2", "3"]);
    let rest = user.push(&rig, &[]);
    assert_eq!((first.len(), rest.len()), (3, history.len() - 3));
    assert!(user.push(&rig, &[]).is_empty(), "everything exists");
    for sent in first.iter().skip(1).chain(&rest) {
        assert_eq!(
            sent["from"],
            sent["checkpoint"].as_u64().expect("a number") - 1,
            "{sent}"
        );
        assert!(sent["files_kept"].as_u64() > Some(10), "{sent}");
    }
    user.check();
    let into = rig.path().parent().expect("the image").join("into");
    for (sent, (id, expected)) in first.iter().chain(&rest).zip(&history) {
        user.pull(&rig, &id.to_string(), &into);
        assert_same(&pulled(&into), expected);
        assert_eq!(mark(&into), "whole");
        let restored = user.dir.path().join(format!("restored-{id}"));
        let snapshot = sent["snapshot"].as_str().expect("a number");
        let mut restore = user.restic(&["restore", snapshot, "--target"]);
        succeeds(restore.arg(&restored), SECONDS);
        let root = rig.path().file_name().expect("a name");
        assert_same(&tree_of(&restored.join(root)), &as_restic_has_it(expected));
    }
}

/// restic restores no sockets.
pub fn as_restic_has_it(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    tree.remove(Path::new("socket"));
    tree
}

for_each_variant! { xfs => what_has_not_changed_is_not_opened }

/// A push opens only the files that changed, in client and daemon, whatever the size of the tree.
fn what_has_not_changed_is_not_opened(v: Variant) {
    const FILES: u32 = 2_000;
    const CHANGED: u32 = 60;
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        for n in 0..FILES {
            let below = dir.join(format!("d{}", n % 40));
            fs::create_dir_all(&below).expect("mkdir");
            fs::write(below.join(n.to_string()), format!("file {n}")).expect("written");
        }
    });
    let user = User::new();
    rig.mount.checkpoint();
    let first = &user.push(&rig, &[])[0];
    assert_eq!(first["files_read"], FILES);
    for n in 0..CHANGED {
        let file = rig.path().join(format!("d{}/{}", n % 40, n));
        // Size and mtime stay the same.
        let before = fs::metadata(&file)
            .and_then(|found| found.modified())
            .expect("a time");
        fs::write(&file, format!("FILE {n}")).expect("written");
        let open = fs::File::options().write(true).open(&file).expect("opened");
        open.set_modified(before).expect("set");
    }
    rig.mount.checkpoint();
    let log = user.dir.path().join("opened");
    let strace = Strace::watch(rig.mount.pid(), "open,openat,openat2", &log);
    let second = &user.push(&rig, &[])[0];
    assert_eq!(
        (&second["files_read"], &second["files_kept"]),
        (&CHANGED.into(), &(FILES - CHANGED).into())
    );
    let Some(strace) = strace else {
        return skip("strace cannot trace the daemon");
    };
    drop(strace);
    let text = fs::read_to_string(&log).expect("the output of strace");
    // Without the daemon's accesses to its own captures.
    let opened = text
        .lines()
        .filter(|line| {
            !line.contains("O_PATH") && !line.contains("O_DIRECTORY") && line.contains("O_RDONLY")
        })
        .filter(|line| !line.contains("ENOENT") && !line.contains(".c\""))
        .count();
    assert!(
        (CHANGED as usize..=CHANGED as usize + 20).contains(&opened),
        "{opened} files were opened: {text}"
    );
    let into = rig.path().parent().expect("the image").join("into");
    user.pull(&rig, "latest", &into);
    assert_same(&pulled(&into), &tree(rig.path()));
}

for_each_variant! { xfs => what_the_format_cannot_hold_is_refused }

fn what_the_format_cannot_hold_is_refused(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("a"), "a").expect("written")
    });
    let user = User::new();
    rig.mount.checkpoint();
    user.push(&rig, &[]);
    let name = std::ffi::OsStr::from_bytes(b"user.\xff");
    rustix::fs::setxattr(
        rig.path().join("a"),
        name,
        b"",
        rustix::fs::XattrFlags::empty(),
    )
    .expect("set");
    rig.mount.checkpoint();
    let said =
        crate::common::command::fails(&mut user.command(rig.path(), &["push", "home"]), SECONDS);
    assert!(
        said.contains("a: an extended attribute has a name that is not UTF-8"),
        "{said}"
    );
    assert_eq!(
        user.log(&rig),
        [1],
        "there is no snapshot of an incomplete tree"
    );
    sh(rig.path(), "setfattr -x \"$(printf 'user.\\377')\" a");
    rig.mount.checkpoint();
    assert_eq!(user.push(&rig, &["3"]).len(), 1);
}
