//! The cache in the store: its contents, its size limit, and damage to it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use super::RemoteMount;
use crate::common::command::{fails, run_limited, sh};
use crate::common::tree::{assert_same, tree};
use crate::common::{Mount, MountOpts, Rig, Variant, for_each_variant};
use crate::remote::restic::{SECONDS, User};

/// Pushes a tree of 40 small files and a large one.
pub(super) fn pushed(v: Variant) -> (Rig, User) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "for n in $(seq 40); do head -c 100000 /dev/urandom > $n; done; head -c 9000000 /dev/urandom > large");
    });
    rig.mount.checkpoint();
    let user = User::new();
    user.push(&rig, &[]);
    (rig, user)
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("opened");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("written");
}

for_each_variant! { xfs => what_is_damaged_is_fetched_again_or_refused }

fn what_is_damaged_is_fetched_again_or_refused(v: Variant) {
    let (rig, user) = pushed(v);
    let expected = tree(rig.path());
    let mut lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    // Concurrent readers of one file and of others receive the right content, and each file is
    // fetched once.
    let readers: Vec<_> = (0..8)
        .map(|n| {
            let path = path.join(if n < 4 { "large" } else { "7" });
            thread::spawn(move || fs::read(path).expect("read").len())
        })
        .collect();
    let lengths: Vec<usize> = readers
        .into_iter()
        .map(|one| one.join().expect("no panic"))
        .collect();
    assert_eq!(lengths, [[9_000_000; 4], [100_000; 4]].concat());
    assert_eq!(lazy.files_here(), 2);
    assert_same(&tree(&path), &expected);
    lazy.mount.umount();
    let origin = path.join(".ckptfs/origin");
    // Flips one bit of the fetched content.
    let cached: Vec<_> = fs::read_dir(origin.join("cache"))
        .expect("read")
        .flatten()
        .collect();
    assert_eq!(cached.len(), 41);
    for file in cached
        .iter()
        .filter(|file| file.metadata().expect("there").len() == 100_000)
    {
        flip(&file.path(), 50_000);
    }
    fs::write(origin.join("cache/1.9.new"), "half").expect("written");
    lazy.mount.remount();
    assert_same(&tree(&path), &expected);
    assert!(!origin.join("cache/1.9.new").exists());
    lazy.mount.umount();
    lazy.mount.remount();
    assert_same(&tree(&path), &expected);
}

for_each_variant! { xfs => a_store_that_is_damaged_is_refused }

fn a_store_that_is_damaged_is_refused(v: Variant) {
    let (rig, user) = pushed(v);
    let expected = tree(rig.path());
    let mut lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    lazy.mount.umount();
    let origin = path.join(".ckptfs/origin");
    // A modified list of names, a truncated record, and a mount that was not completed.
    let length = fs::metadata(origin.join("tree")).expect("there").len();
    let refused = |why: &str| {
        let ran = Mount::try_start(&path, &RemoteMount::opts(v, &user));
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(
            !ran.status.success() && said.contains(why) && !said.contains("panicked"),
            "{said}"
        );
    };
    flip(&origin.join("tree"), length / 2);
    refused("the list of names of the remote that this tree was mounted from is damaged");
    flip(&origin.join("tree"), length / 2);
    let record = fs::read(origin.join("record")).expect("read");
    fs::write(origin.join("record"), &record[..record.len() - 5]).expect("written");
    refused("the record of the remote");
    fs::remove_file(origin.join("record")).expect("removed");
    refused("was not finished");
    fs::write(origin.join("record"), &record).expect("written");
    // An older program rejects the store because of its feature flags; this one must not serve the
    // local content as the whole tree.
    let format = fs::read_to_string(path.join(".ckptfs/format")).expect("read");
    assert!(format.contains("\nfeatures origin tree\n"), "{format}");
    fs::rename(&origin, path.join(".ckptfs/aside")).expect("moved");
    refused("of the remote that this tree was mounted from is damaged");
    fs::rename(path.join(".ckptfs/aside"), &origin).expect("moved");
    // A store from before the feature flags receives them at mount.
    fs::write(
        path.join(".ckptfs/format"),
        format.replace("features origin tree", "features -"),
    )
    .expect("written");
    lazy.mount.remount();
    lazy.mount.umount();
    let again = fs::read_to_string(path.join(".ckptfs/format")).expect("read");
    assert_eq!(again, format);
    // A directory mounted from one checkpoint is not mounted from another.
    let said = fails(
        &mut user.command(
            rig.path(),
            &["mount", "--from", "home:99", path.to_str().expect("UTF-8")],
        ),
        SECONDS,
    );
    assert!(
        said.contains("was mounted from checkpoint 1 of home"),
        "{said}"
    );
    let full = rig.image.dir("full");
    fs::write(full.join("a"), "").expect("written");
    let full = full.to_str().expect("UTF-8");
    let said = fails(
        &mut user.command(rig.path(), &["mount", "--from", "home", full]),
        SECONDS,
    );
    assert!(said.contains("is not empty"), "{said}");
    lazy.mount.remount();
    assert_same(&tree(&path), &expected);
}

for_each_variant! { xfs => what_has_no_room_keeps_nothing_else_from_coming }

/// Failed before: the first file exceeded the limit, and nothing was fetched in the background.
fn what_has_no_room_keeps_nothing_else_from_coming(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            "head -c 200000 /dev/urandom > a; for n in 1 2 3; do echo $n > small$n; done",
        );
    });
    rig.mount.checkpoint();
    let user = User::new();
    user.push(&rig, &[]);
    let lazy = RemoteMount::mount(v, &user, &rig, &["--cache", "100K"]);
    crate::common::wait_until("the content that fits is local", || lazy.files_here() == 3);
}

for_each_variant! { xfs => another_repository_and_a_limit }

fn another_repository_and_a_limit(v: Variant) {
    let (rig, user) = pushed(v);
    let expected = tree(rig.path());
    // 40 files of 100,000 bytes and a large one, with a cache limit of 3 MiB.
    let mut lazy = RemoteMount::mount(v, &user, &rig, &["--cache", "3M"]);
    let path = lazy.mount.path().to_owned();
    assert_same(&tree(&path), &expected);
    assert_same(&tree(&path), &expected);
    let bytes = lazy.origin()["bytes_here"].as_u64().expect("a number");
    assert!((2_000_000..=3 << 20).contains(&bytes), "{}", lazy.origin());
    lazy.mount.umount();
    // The address has another repository: cached files are readable, the others are not.
    fs::rename(user.repository(), user.dir.path().join("first")).expect("moved");
    user.add(&user.url);
    lazy.mount.opts = RemoteMount::opts(v, &user).arg("--no-fetch");
    lazy.mount.remount();
    let read = |n: u32| fs::read(path.join(n.to_string())).is_ok();
    let here = (1..=40).filter(|n| read(*n)).count();
    assert!((1..40).contains(&here), "{here}");
    assert!(
        lazy.warnings().contains("another repository"),
        "{}",
        lazy.warnings()
    );
    // Recovers without a remount.
    fs::rename(user.repository(), user.dir.path().join("second")).expect("moved");
    fs::rename(user.dir.path().join("first"), user.repository()).expect("moved");
    crate::common::wait_until("it is found again", || (1..=40).all(read));
    assert_same(&tree(&path), &expected);
    lazy.mount.umount();
    // Without a remote of that name, only names are visible.
    run_limited(
        &mut user.command(rig.path(), &["remote", "remove", "home"]),
        SECONDS,
    );
    lazy.mount.remount();
    assert_eq!(fs::read_dir(&path).expect("read").count(), 41);
}

for_each_variant! { xfs => nothing_is_forged_while_it_is_not_mounted }

/// Failed before, as for a branch (`hostile/forged_marks.rs`): a user's changes to the unmounted
/// directory took effect.
fn nothing_is_forged_while_it_is_not_mounted(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "echo roots > cfg; mkdir secret pub; echo token > secret/token; chmod 700 secret; echo roots > pub/script; echo roots > pub/late; chmod 1777 pub; chmod 755 .");
    });
    rig.mount.checkpoint();
    let user = User::new();
    user.push(&rig, &[]);
    let mut lazy = RemoteMount::mount(v, &user, &rig, &["--no-fetch"]);
    let path = lazy.mount.path().to_owned();
    let as_user = "as() { setpriv --reuid 12345 --regid 12345 --clear-groups sh -c \"$1\"; }";
    sh(
        &path,
        &format!("{as_user}; as 'mkdir pub/d; echo evil > pub/x'"),
    );
    // Little-endian, without a birth time.
    let mark = "mark() { printf 0x; printf %016x $(stat -c %i $1) | fold -w2 | tac | tr -d '\\n'; printf 0000000000000000ffffffff; printf %s \"$2\" | od -An -tx1 | tr -d ' \\n'; }; mark cfg > ../cfg; mark secret secret > ../secret";
    sh(&path, mark);
    lazy.mount.umount();
    let forge = "cd pub && setfattr -n user.ckptfs.origin -v $(cat ../../secret) d; setfattr -n user.ckptfs.origin -v $(cat ../../cfg) x; echo evil > script; mknod late c 0 0";
    sh(
        &path,
        &format!("{as_user}; as \"{}\" || true", forge.replace('$', "\\$")),
    );
    lazy.mount.remount();
    sh(
        &path,
        &format!(
            "{as_user}; [ \"$(cat cfg pub/script pub/late | sort -u)\" = roots ]; [ $(stat -c %u cfg) = 0 ]; as 'ls -la pub > /dev/null; ! cat pub/d/token'"
        ),
    );
}
