//! The daemon is killed at the calls of a restore that leaves files in place, in a directory that
//! the restore removes. They stay because a tier dropped their content or because they changed
//! while nothing was mounted. The files exist at the next mount, whichever call was interrupted.

use std::fs;
use std::path::Path;

use super::nth::operation_killed;
use crate::common::command::{sh, try_run_limited};
use crate::common::random::is_long;
use crate::common::tree::{TreeOpts, compare, tree};
use crate::common::{Image, Mount, MountOpts, OpenStore, Variant, for_each_variant, skip, tool};

const CONFIG: &str =
    "[umount]\nkeep = \"none\"\n[[tiers]]\npaths = [\"node_modules\", \"*.tmp\"]\nkeep = \"1ms\"\n";
/// Files left in place, below a directory that was removed and recreated.
const STAYS: [(&str, &str); 3] = [
    ("a/node_modules/now", "now\n"),
    ("a/b/kept.tmp", "kept\n"),
    ("a/c/unseen", "here\n"),
];

fn what_stays_is_there_after_a_kill(v: Variant) {
    if !try_run_limited(&mut tool("strace", &["-V"]), 60)
        .is_ok_and(|output| output.status.success())
    {
        return skip("strace is not installed");
    }
    let image = Image::of(v.fs);
    let (mut early, mut late) = (0, None);
    let mut found = [0, 0];
    let mut nth = 1;
    // Searches upwards until the restore takes effect, then bisects for the first such call.
    loop {
        let (killed, done) = restore_killed(v, &image.dir(&format!("project-{nth}")), nth);
        found[usize::from(done)] += usize::from(killed);
        match done {
            true => late = Some(nth),
            false => early = nth,
        }
        assert!(killed || done, "call {nth}: the restore did nothing");
        nth = match late {
            _ if is_long() && killed => nth + 1,
            _ if is_long() => break,
            Some(late) if late == early + 1 => break,
            Some(late) => early.midpoint(late),
            None => nth + 1 + nth / 4,
        };
    }
    assert!(found.iter().all(|count| *count > 0), "{found:?}");
    println!(
        "{v:?}: killed {} times before the commit, {} times after it",
        found[0], found[1]
    );
}

/// Kills a restore at its N-th call. Returns whether the daemon was killed, and whether the next
/// mount shows the result.
fn restore_killed(v: Variant, root: &Path, nth: u32) -> (bool, bool) {
    let mut mount = Mount::start(root, &MountOpts::new(v.io));
    sh(
        root,
        "mkdir -p a/node_modules a/b a/c; echo then > a/c/unseen; echo then > a/file; echo then > a/node_modules/then; echo then > a/b/kept.tmp; echo then > a/b/file",
    );
    OpenStore::of(root).configure(CONFIG);
    mount.checkpoint();
    sh(root, "echo 2 > a/node_modules/then; echo 2 > a/b/kept.tmp");
    mount.checkpoint();
    mount.umount();
    sh(root, "mkdir c; echo here > c/unseen; rm -r a/c; mv c a");
    mount.remount();
    sh(
        root,
        "rm -r a; mkdir -p a/node_modules a/b a/c; echo here > a/c/unseen; echo now > a/node_modules/now; echo kept > a/b/kept.tmp; echo new > a/new",
    );
    let before = tree(root);
    mount.ok(&["gc"]);
    mount.kill_holder();
    let killed = operation_killed(&mount, "$CKPTFS restore 1", nth);
    mount.kill();
    mount.remount();
    let done = mount.path().join("a/file").exists();
    for (path, content) in STAYS {
        assert_eq!(
            fs::read_to_string(mount.path().join(path)).ok().as_deref(),
            Some(content),
            "call {nth}, done: {done}: {path}"
        );
    }
    assert!(
        !mount.path().join("a/node_modules/then").exists(),
        "call {nth}"
    );
    let there = |path: &str| mount.path().join(path).exists();
    match done {
        true => assert!(!there("a/new") && there("a/b/file"), "call {nth}"),
        false => assert_eq!(
            compare(&tree(mount.path()), &before, &TreeOpts::default()),
            Vec::<String>::new(),
            "call {nth}"
        ),
    }
    assert_eq!(
        fs::read_dir(root.join(".ckptfs/tmp/restore")).map_or(0, Iterator::count),
        0,
        "call {nth}: no staged file is left"
    );
    mount.umount();
    fs::remove_dir_all(root).unwrap();
    (killed, done)
}

for_each_variant! { xfs => what_stays_is_there_after_a_kill }
