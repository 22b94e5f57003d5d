//! Changes made while the tree is not mounted (an absence) become ordinary changes at the next
//! mount and leave older checkpoints intact.
//!
//! Failed before: one `sed -i` after an unmount made whole directories of every view fail with EIO.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::common::command::{check, sh};
use crate::common::wait::wait_longer;
use crate::common::{
    Fs, MountOpts, Rig, TreeOpts, Variant, assert_same_tree, copy_tree, for_each_variant, tree_of,
};

for_each_variant! { reflink => content_is_kept_ahead_from_the_first_unmount_on, what_a_killed_daemon_has_not_kept_the_next_does }
for_each_variant! { all =>
    all_that_was_there_is_kept,
    what_is_kept_goes_with_its_checkpoints,
    without_reflink_small_files_are_copied,
    names_and_attributes_are_always_known,
    an_inode_number_that_is_given_away_takes_nothing_along,
}

/// Makes every kind of change to the files of [`fill`] and to those of earlier rounds.
pub fn change(root: &Path, round: usize) {
    sh(
        root,
        &format!(
            "echo edited {round} >> src/edited; sed -i s/replaced/{round}/ src/replaced; chmod 600 src/mode; rm src/gone; mv src/moved src/deep/moved{round}
        mv dir elsewhere{round}; rm -r lost; mkdir -p new{round}/er; echo n > new{round}/er/file; mv src/away new{round}/er/; ln src/linked src/link{round}
        rm src/twice1; ln -sf somewhere src/symbolic; setfattr -n user.a -v {round} src/attributes; : > src/emptied; rm src/fifo; touch -d 2001-01-01 src/touched
        rmdir empty; echo f > empty; rm changes; mkdir changes; mv swapped1 s; mv swapped2 swapped1; mv s swapped2"
        ),
    );
}

pub fn fill(root: &Path) {
    for dir in [
        "src/deep/er",
        "dir/below/it",
        "lost/sub/sub",
        "empty",
        "untouched/x",
        "swapped1",
        "swapped2",
    ] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for name in [
        "edited",
        "replaced",
        "mode",
        "gone",
        "moved",
        "away",
        "linked",
        "twice1",
        "attributes",
        "emptied",
        "touched",
        "deep/er/f",
        "kept",
    ] {
        fs::write(
            root.join("src").join(name),
            format!("{name}: replaced\n").repeat(500),
        )
        .unwrap();
    }
    for name in [
        "dir/a",
        "dir/below/it/b",
        "lost/c",
        "lost/sub/sub/d",
        "untouched/x/e",
        "changes",
        "swapped1/one",
        "swapped2/two",
    ] {
        fs::write(root.join(name), name).unwrap();
    }
    fs::hard_link(root.join("src/twice1"), root.join("src/twice2")).unwrap();
    symlink("edited", root.join("src/symbolic")).unwrap();
    fs::set_permissions(root.join("src/kept"), PermissionsExt::from_mode(0o640)).unwrap();
    sh(
        root,
        "mkfifo src/fifo; setfattr -n user.a -v before src/attributes; setfattr -n user.d -v dir dir",
    );
}

/// Checkpoints, each with a plain copy of the tree at that time.
pub type Copies = BTreeMap<u64, PathBuf>;

pub fn keep(rig: &Rig, copies: &mut Copies) {
    let id = rig.mount.checkpoint();
    let copy = rig.image.path().join(format!("copy-{id}"));
    copy_tree(rig.path(), &copy);
    copies.insert(id, copy);
}

/// Returns an unmounted tree with two checkpoints and later changes.
pub(super) fn story(v: Variant, keep_time: &str) -> (Rig, Copies) {
    let mut rig = v.start_with(MountOpts::new(v.io), fill);
    if !keep_time.is_empty() {
        rig.mount.ok(&["config", "set", "umount.keep", keep_time]);
    }
    let mut copies = Copies::new();
    keep(&rig, &mut copies);
    sh(
        rig.path(),
        "echo changed > src/deep/er/f; mv dir/a dir/renamed; mkdir dir/made; echo x > dir/made/x",
    );
    keep(&rig, &mut copies);
    sh(
        rig.path(),
        "echo dirty > untouched/x/e; echo new > dir/made/y",
    );
    rig.mount.umount();
    (rig, copies)
}

pub fn assert_all(rig: &Rig, copies: &Copies) {
    for (id, copy) in copies {
        assert_same_tree(&rig.view(*id), copy, &TreeOpts::default());
    }
}

fn all_that_was_there_is_kept(v: Variant) {
    let (mut rig, mut copies) = story(v, "");
    let root = rig.path().to_owned();
    for round in 0..3 {
        change(&root, round);
        rig.mount.remount();
        assert_all(&rig, &copies);
        let (status, report) = check(&root, &["verify", "--deep"]);
        assert_eq!(status, 0, "{report}");
        let dirty = rig.mount.dirty();
        for path in [
            "src/edited",
            "src/gone",
            "src/mode",
            "new0/er/file",
            "lost/c",
        ]
        .iter()
        .filter(|_| round == 0)
        {
            assert!(
                dirty.iter().any(|dirty| dirty == path),
                "{path} in {dirty:?}"
            );
        }
        // Later changes through the mount, a checkpoint, a kill and a restore leave the views
        // intact.
        sh(
            &root,
            &format!("echo {round} > src/edited; echo {round} > src/kept; rm -rf src/deep"),
        );
        keep(&rig, &mut copies);
        rig.mount.kill();
        rig.mount.remount();
        assert_all(&rig, &copies);
        rig.mount.restore(1);
        assert_same_tree(
            &root,
            &copies[&1],
            &TreeOpts {
                dir_mtime: false,
                ..TreeOpts::default()
            },
        );
        keep(&rig, &mut copies);
        rig.mount.umount();
    }
    // The directory is an ordinary one again, without leftovers.
    assert_eq!(
        sh(
            &root,
            "find .ckptfs -maxdepth 1 -name '*.new' -o -path '.ckptfs/tmp/*' ! -name restore"
        )
        .trim(),
        ""
    );
}

/// Files whose content is lost: exactly those that were changed, replaced or removed.
const LOST: [&str; 8] = [
    "changes",
    "lost/c",
    "lost/sub/sub/d",
    "src/edited",
    "src/emptied",
    "src/gone",
    "src/replaced",
    "src/touched",
];

pub(super) fn assert_known(rig: &Rig, copies: &Copies) {
    for (id, copy) in copies {
        let mut lost = Vec::new();
        let (was, is) = (tree_of(copy), described(&rig.view(*id)));
        let (lines, is): (BTreeSet<String>, BTreeSet<String>) = (described(copy), is);
        let differ: Vec<_> = lines.symmetric_difference(&is).collect();
        assert!(differ.is_empty(), "checkpoint {id}: {differ:#?}");
        for path in was.keys() {
            let path = path.to_str().expect("names of tests are text").to_owned();
            let file = rig.view(*id).join(&path);
            if !fs::symlink_metadata(&file).expect("it exists").is_file() {
                continue;
            }
            match fs::read(&file) {
                Ok(content) => assert_eq!(
                    content,
                    fs::read(copy.join(&path)).unwrap(),
                    "{path} in {id}"
                ),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{path} in {id}");
                    lost.push(path);
                }
            }
        }
        assert_eq!(lost, LOST, "in {id}");
    }
}

/// Returns the names below `root` and their attributes, link targets and extended attributes.
pub(super) fn described(root: &Path) -> BTreeSet<String> {
    let said = sh(
        root,
        "find . -mindepth 1 -not -path './.ckptfs*' -not -path './.snapshots*' -printf '%p %y %m %n %U %G %s %T@ %l\\n' | sed 's/\\(^[^ ]* d [^ ]*\\) [^ ]* \\([^ ]* [^ ]*\\) [^ ]*/\\1 \\2/' | sort
        getfattr -R -d . 2>/dev/null | grep -v '^# file: .snapshots' || true",
    );
    said.lines().map(str::to_owned).collect()
}

fn names_and_attributes_are_always_known(v: Variant) {
    let (mut rig, copies) = story(v, "none");
    let root = rig.path().to_owned();
    change(&root, 0);
    for _ in 0..2 {
        rig.mount.remount();
        assert_known(&rig, &copies);
        assert_eq!(
            check(&root, &["verify", "1"]).0,
            4,
            "lost content is reported"
        );
        // A record of a later change must not turn the current content into that of the checkpoint.
        sh(
            &root,
            "for f in edited replaced mode; do echo later >> src/$f; done",
        );
        assert_known(&rig, &copies);
        rig.mount.umount();
    }
}

/// After a clean end content is cloned in idle time, and an unmount handles only the changed files,
/// even when all clones have been removed.
fn content_is_kept_ahead_from_the_first_unmount_on(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).comparing(), fill);
    let root = rig.path().to_owned();
    let mut copies = Copies::new();
    let kept = || fs::read_dir(root.join(".ckptfs/kept")).map_or(0, Iterator::count);
    keep(&rig, &mut copies);
    wait(|| root.join(".ckptfs/baseline").exists().then_some(()));
    assert_eq!(kept(), 0, "no mount of it has ended yet");
    rig.mount.ok(&["umount", "--keep=none"]);
    rig.mount.remount();
    wait(|| root.join(".ckptfs/kept/whole").exists().then_some(()));
    let all = kept();
    sh(
        &root,
        "echo a >> src/edited; rm src/gone; mv dir moved; mv src/away src/kept2",
    );
    keep(&rig, &mut copies);
    // The layer has the previous versions of these.
    sh(&root, "echo b >> src/edited; rm src/touched");
    rig.mount.umount();
    assert!(rig.mount.compared_baseline().unwrap());
    // Dropped: `gone`, `touched`, and `edited`, which has a record.
    assert_eq!(kept(), all - 3, "{}", sh(&root, "ls -l .ckptfs/kept"));
    change_to_what_is_kept(&root);
    rig.mount.remount();
    assert_all(&rig, &copies);
}

/// After a kill the next daemon writes the baseline again; changes of the killed daemon are not in
/// its list of changes, and the earlier complete set of clones no longer counts.
///
/// Failed before: the reference model found a file of that period without its content.
fn what_a_killed_daemon_has_not_kept_the_next_does(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).comparing(), fill);
    let root = rig.path().to_owned();
    let mut copies = Copies::new();
    keep(&rig, &mut copies);
    rig.mount.umount();
    assert!(root.join(".ckptfs/kept/whole").exists());
    rig.mount.remount();
    sh(&root, "echo new > src/new; echo changed > src/edited");
    let written = || {
        fs::metadata(root.join(".ckptfs/baseline"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let before = written();
    rig.mount.kill();
    rig.mount.remount();
    keep(&rig, &mut copies);
    wait(|| (written() != before).then_some(()));
    rig.mount.umount();
    change_to_what_is_kept(&root);
    rig.mount.remount();
    assert_all(&rig, &copies);
}

/// Appends to every file in place.
fn change_to_what_is_kept(root: &Path) {
    sh(
        root,
        "find . -path ./.ckptfs -prune -o -type f -exec sh -c 'echo lost >> \"$1\"' _ {} \\;",
    );
}

/// Asserts that every checkpoint has its names, and that readable content is the original content.
pub(super) fn assert_names(rig: &Rig, copies: &Copies) {
    for (id, copy) in copies {
        let view = rig.view(*id);
        let (was, is) = (described(copy), described(&view));
        let differ: Vec<_> = was.symmetric_difference(&is).collect();
        assert!(differ.is_empty(), "checkpoint {id}: {differ:#?}");
        for path in tree_of(copy).keys() {
            if let Ok(content) = fs::read(view.join(path)) {
                assert_eq!(
                    content,
                    fs::read(copy.join(path)).unwrap(),
                    "{path:?} in {id}"
                );
            }
        }
    }
}

pub(super) fn wait<T>(found: impl Fn() -> Option<T>) -> T {
    wait_longer("the record is written in idle time", 180, found)
}

fn what_is_kept_goes_with_its_checkpoints(v: Variant) {
    let (mut rig, copies) = story(v, "");
    let root = rig.path().to_owned();
    let kept = || fs::read_dir(root.join(".ckptfs/kept")).map_or(0, Iterator::count);
    let all = kept();
    assert!(all > 10, "{all} files are stored");
    // Unchanged files are not cloned again.
    let inodes = || {
        sh(&root, "ls -i --ignore=whole .ckptfs/kept")
            .lines()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    let before = inodes();
    rig.mount.remount();
    rig.mount.umount();
    assert!(inodes().is_superset(&before), "{before:?} {:?}", inodes());
    rig.mount.remount();
    rig.mount.ok(&["gc", "--keep-last", "1"]);
    assert_eq!(kept(), 0, "they may reuse the freed numbers");
    rig.mount.ok(&["umount", "--keep", "none"]);
    assert_eq!(kept(), 0);
    rig.mount.remount();
    rig.mount.ok(&["umount", "--keep=all"]);
    assert!(kept() >= all);
    // Earlier clones are dropped.
    rig.mount.remount();
    rig.mount.ok(&["umount", "--keep=none"]);
    assert_eq!(kept(), 0);
    rig.mount.remount();
    assert_all(&rig, &copies.into_iter().skip(1).collect());
    rig.mount.ok(&["delete", "--now", "--yes", "2"]);
    rig.mount.umount();
    assert_eq!(
        (kept(), root.join(".ckptfs/baseline").exists()),
        (0, false),
        "there are no versions without a checkpoint"
    );
}

/// With reflink every file is cloned. Without it, only files up to 1 MiB are copied, 64 MiB in
/// total, unless `--keep=all` is set.
fn without_reflink_small_files_are_copied(v: Variant) {
    const MANY: usize = 70;
    let write = |root: &Path, byte: u8| {
        fs::write(root.join("large"), vec![byte; (1 << 20) + 1]).unwrap();
        (0..MANY).for_each(|number| {
            fs::write(root.join(format!("small{number}")), vec![byte; 1 << 20]).unwrap()
        });
    };
    let mut rig = v.start_with(MountOpts::new(v.io), |root| write(root, b'1'));
    let root = rig.path().to_owned();
    for (byte, keep) in [(b'1', "--keep=some"), (b'2', "--keep=all")] {
        let id = rig.mount.checkpoint();
        let said: serde_json::Value =
            serde_json::from_str(&rig.mount.ok(&["umount", "--json", keep])).unwrap();
        let not_kept = if v.fs.has_reflink() || keep == "--keep=all" {
            None
        } else {
            Some(1 + MANY as u64 - 64)
        };
        assert_eq!(said["not_kept"].as_u64(), not_kept, "{said}");
        write(&root, byte + 1);
        rig.mount.remount();
        let view = rig.view(id);
        let is_kept = |name: &str| match fs::read(view.join(name)) {
            Ok(content) => {
                content.iter().all(|there| *there == byte) || panic!("{name} in {id} differs")
            }
            Err(error) => {
                error.raw_os_error() != Some(libc::EIO) && panic!("{name} in {id}: {error}")
            }
        };
        let small = (0..MANY)
            .filter(|number| is_kept(&format!("small{number}")))
            .count();
        let all = v.fs.has_reflink() || keep == "--keep=all";
        assert_eq!(
            (is_kept("large"), small),
            if all { (true, MANY) } else { (false, 64) },
            "{keep}"
        );
    }
}

/// When an inode number is reused during an absence, records of the new inode do not apply to the
/// removed one.
fn an_inode_number_that_is_given_away_takes_nothing_along(v: Variant) {
    const DIRS: usize = 30;
    let each = |root: &Path, command: &str| {
        sh(root, &format!("for i in $(seq {DIRS}); do {command}; done"))
    };
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        drop(each(dir, "mkdir d$i; echo $i > d$i/was"))
    });
    let root = rig.path().to_owned();
    let mut copies = Copies::new();
    keep(&rig, &mut copies);
    let numbers = |name: &str| {
        each(&root, &format!("stat -c %i {name}$i"))
            .lines()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    let before = numbers("d");
    rig.mount.umount();
    sh(&root, "rm -r d*");
    each(&root, "mkdir e$i; echo $i > e$i/other");
    rig.mount.remount();
    if v.fs == Fs::Ext4 {
        assert!(
            !before.is_disjoint(&numbers("e")),
            "no inode number was reused"
        );
    }
    let names = |copies: &Copies| {
        for (id, copy) in copies {
            let names = |root: &Path| sh(root, "find . -mindepth 1 -not -path './.ckptfs*' | sort");
            assert_eq!(names(&rig.view(*id)), names(copy), "in {id}");
        }
    };
    names(&copies);
    for round in 0..3 {
        keep(&rig, &mut copies);
        names(&copies);
        each(
            &root,
            &format!(
                "rm e$i/*; echo {round} > e$i/later{round}; mkdir e$i/dir{round}; rmdir e$i/dir{round}"
            ),
        );
        names(&copies);
    }
}
