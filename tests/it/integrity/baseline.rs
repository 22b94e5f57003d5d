//! The baseline: its update at unmount, folding of changes, and old, damaged or large baselines.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::absence::{Copies, assert_all, assert_names, change, fill, keep, story, wait};
use super::story::Random;
use crate::common::command::check;
use crate::common::command::sh;
use crate::common::{Fs, MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { xfs => a_baseline_that_is_old_or_damaged_shows_nothing_false, no_attributes_are_too_many_for_a_baseline, a_number_that_was_given_away_is_no_damage }
for_each_variant! { all => what_changed_brings_a_baseline_up_to_date, many_changes_become_a_part_of_the_baseline }

/// A baseline written in idle time and updated at each unmount equals one written by a walk, and an
/// unmount does not walk the tree.
fn what_changed_brings_a_baseline_up_to_date(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).comparing(), fill);
    let root = rig.path().to_owned();
    let written = |name: &str| {
        let file = root.join(".ckptfs").join(name);
        fs::metadata(file).map(|stat| stat.modified().unwrap()).ok()
    };
    rig.mount.checkpoint();
    let before = wait(|| written("baseline"));
    let mut copies = Copies::new();
    for round in 0..4 {
        sh(
            &root,
            "echo open > src/edited; mkdir -p born/deep; echo 1 > born/deep/file; ln src/linked src/again; mkfifo src/pipe; rm src/pipe",
        );
        change(&root, 10 + round);
        sh(
            &root,
            "echo second >> src/edited; echo 2 > born/deep/more; mv born/deep born/moved; rm born/moved/file; rm src/again; mkdir empty2",
        );
        if round % 2 == 0 {
            keep(&rig, &mut copies);
            sh(
                &root,
                "echo third >> src/edited; echo 3 >> born/moved/more; setfattr -n user.x -v y src/kept; truncate -s 7 src/touched",
            );
        }
        // Recreates the files that the next round needs.
        sh(
            &root,
            "rm -rf changes empty2 empty born src/link[0-9]* ; mkdir -p dir lost empty; touch changes src/gone src/moved src/away src/twice1; mkfifo src/fifo",
        );
        rig.mount.umount();
        if round == 0 {
            assert_eq!(
                written("baseline"),
                Some(before),
                "it is updated, not written again"
            );
        }
        let exact = v.fs == Fs::Xfs || v.fs == Fs::Btrfs || v.fs == Fs::Ext4;
        assert!(
            rig.mount.compared_baseline().unwrap() || !exact,
            "an unmount walks the tree, round {round}: {}",
            fs::read_to_string(root.join(".ckptfs/daemon.log")).unwrap_or_default()
        );
        if round == 1 {
            change(&root, 20);
            sh(
                &root,
                "rm -rf changes empty; mkdir -p dir lost empty; touch changes src/gone src/moved src/away src/twice1; mkfifo src/fifo",
            );
        }
        rig.mount.remount();
        assert_names(&rig, &copies);
    }
}

/// Failed before: a FIFO's inode number that was reused by a file was taken for damage, so the
/// unmount walked the tree. XFS reuses numbers this quickly.
fn a_number_that_was_given_away_is_no_damage(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).comparing(), |root| {
        fill(root);
        sh(root, "mkfifo src/z");
    });
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    rig.mount.umount();
    let _ = rig.mount.compared_baseline();
    sh(
        &root,
        "had=$(stat -c %i src/z); rm src/z
        for i in $(seq 300); do echo $i > src/a; test $(stat -c %i src/a) != $had || exit 0; mv src/a src/b$i; done
        echo nobody was given $had; exit 1",
    );
    rig.mount.remount();
    rig.mount.umount();
    assert!(
        rig.mount.compared_baseline().unwrap(),
        "only changed entries were examined, not the tree"
    );
}

/// Changes are stored in a separate file that each mount reads; many of them are folded into the
/// baseline.
///
/// Failed before: a long history had as many changes there as the tree has names.
fn many_changes_become_a_part_of_the_baseline(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).comparing().folding(), |root| {
        fill(root);
        sh(root, "mkdir -p many/below; for i in $(seq 60); do echo $i > many/$i; echo $i > many/below/$i; done");
    });
    let root = rig.path().to_owned();
    let size =
        |name: &str| fs::metadata(root.join(".ckptfs").join(name)).map_or(0, |found| found.len());
    let mut copies = Copies::new();
    keep(&rig, &mut copies);
    rig.mount.umount();
    rig.mount.remount();
    sh(&root, "echo few > many/1; mv many/2 src/two");
    rig.mount.umount();
    assert_ne!(
        size("baseline.changes"),
        0,
        "a few changes are stored in a separate file"
    );
    let written = fs::read(root.join(".ckptfs/baseline")).unwrap();
    rig.mount.remount();
    change(&root, 0);
    sh(
        &root,
        "for i in $(seq 3 60); do echo more >> many/$i; done; mv many/below src/deep/below; rm src/deep/below/7; rm -r untouched; ln many/9 many/below",
    );
    keep(&rig, &mut copies);
    sh(&root, "rm many/10; echo open > many/11; mkdir many/10");
    rig.mount.umount();
    assert!(
        rig.mount.compared_baseline().unwrap(),
        "only changed entries were examined, not the tree"
    );
    assert_ne!(fs::read(root.join(".ckptfs/baseline")).unwrap(), written);
    assert!(
        size("baseline.changes") < 200,
        "except for removals in the open epoch, no change is stored separately"
    );
    let (status, report) = check(&root, &["verify", "--deep"]);
    assert_eq!(status, 0, "{report}");
    for round in 1..4 {
        sh(
            &root,
            &format!(
                "echo {round} >> many/9; mv src/deep/below/{round} moved{round}; rm src/deep/below/4{round}; chmod 600 many/3{round}"
            ),
        );
        rig.mount.remount();
        assert_all(&rig, &copies);
        keep(&rig, &mut copies);
        sh(
            &root,
            &format!(
                "echo served{round} > many/9; mv src/deep src/deep{round}; mv src/deep{round} src/deep"
            ),
        );
        rig.mount.umount();
        rig.mount.compared_baseline().unwrap();
    }
}

/// A store may be restored from a backup, and a disk may flip bits.
fn a_baseline_that_is_old_or_damaged_shows_nothing_false(v: Variant) {
    let (mut rig, copies) = story(v, "");
    let root = rig.path().to_owned();
    // The baseline, and the changes since it was written.
    let files = ["baseline", "baseline.changes"].map(|name| root.join(".ckptfs").join(name));
    let umount = |rig: &mut Rig| {
        sh(
            &root,
            "echo seen >> src/edited; rm -f src/gone; mkdir -p src/seen",
        );
        rig.mount.umount();
    };
    let mut old = [fs::read(&files[0]).unwrap(), Vec::new()];
    rig.mount.remount();
    umount(&mut rig);
    old[1] = fs::read(&files[1]).unwrap();
    let mut random = Random::new("flips");
    for round in 0..16 {
        if !files[1].exists() {
            rig.mount.remount();
            umount(&mut rig);
        }
        let (which, round) = (round % 2, round / 2);
        let good = fs::read(&files[which]).unwrap();
        let mut bytes = good.clone();
        match round {
            0 => bytes.clone_from(&old[which]),
            1 => bytes.truncate(good.len() / 2),
            2 => bytes.clear(),
            _ => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }
        let damaged = round > 0;
        fs::write(&files[which], &bytes).unwrap();
        if damaged {
            let (status, report) = check(&root, &["verify"]);
            assert!(
                status != 0 && report.to_string().contains("baseline-damaged"),
                "{status} {report}"
            );
        }
        sh(
            &root,
            &format!(
                "echo unseen{round} > src/new{round}; echo {round} >> src/kept; mv untouched/x untouched/y; mv untouched/y untouched/x"
            ),
        );
        rig.mount.remount();
        assert_nothing_false(&rig, &copies, round);
        rig.mount.umount();
        assert!(
            !damaged || fs::read(&files[which]).ok() != Some(bytes),
            "it was written again or removed"
        );
    }
}

/// Asserts that views show the original content or EIO, and no file made during the absence.
fn assert_nothing_false(rig: &Rig, copies: &BTreeMap<u64, PathBuf>, round: usize) {
    for (id, copy) in copies {
        for path in [
            "src/edited",
            "src/gone",
            "src/kept",
            "untouched/x/e",
            "dir/below/it/b",
            "src/deep/er/f",
        ] {
            match fs::read(rig.view(*id).join(path)) {
                Ok(content) => assert_eq!(
                    content,
                    fs::read(copy.join(path)).unwrap(),
                    "{path} in {id}, round {round}"
                ),
                Err(error) => assert_eq!(
                    error.raw_os_error(),
                    Some(libc::EIO),
                    "{path} in {id}, round {round}"
                ),
            }
        }
        let unseen = fs::metadata(rig.view(*id).join(format!("src/new{round}")))
            .expect_err("it did not exist");
        assert!(
            unseen.kind() == ErrorKind::NotFound || unseen.raw_os_error() == Some(libc::EIO),
            "{unseen}"
        );
    }
}

/// Failed before: more than 1 MiB of extended attributes on one file prevented a baseline, so any
/// user who could set them could disable it.
fn no_attributes_are_too_many_for_a_baseline(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), fill);
    let root = rig.path().to_owned();
    let value = vec![b'x'; 60_000];
    let set = |number: u32| {
        rustix::fs::setxattr(
            root.join("src/kept"),
            format!("user.{number}"),
            &value,
            rustix::fs::XattrFlags::empty(),
        )
    };
    let many = (0..100).take_while(|number| set(*number).is_ok()).count();
    assert!(
        (20..100).contains(&many),
        "{many}: the mount has a limit, and it is above 1 MiB"
    );
    let mut copies = Copies::new();
    keep(&rig, &mut copies);
    rig.mount.umount();
    change(&root, 0);
    rig.mount.remount();
    assert_all(&rig, &copies);
}
