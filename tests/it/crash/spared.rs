//! The daemon is killed at calls of a restore that leaves files as they are, because a tier dropped
//! their content or because they changed while nothing was mounted, in a directory that goes: they
//! are there at the next mount, whichever call it was.

use std::fs;

use super::nth::operation_killed;
use crate::common::command::{sh, try_run_limited};
use crate::common::random::is_long;
use crate::common::tree::{TreeOpts, compare, tree};
use crate::common::{Image, Mount, MountOpts, Variant, for_each_variant, skip, tool};

const CONFIG: &str =
    "[umount]\nkeep = \"none\"\n[[tiers]]\npaths = [\"node_modules\", \"*.tmp\"]\nkeep = \"1ms\"\n";
/// What stays, below a directory that was removed and made anew since.
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
    let (mut nth, mut found) = (1, [0, 0]);
    loop {
        let root = image.dir(&format!("project-{nth}"));
        let mut mount = Mount::start(&root, &MountOpts::new(v.io));
        sh(
            &root,
            "mkdir -p a/node_modules a/b a/c; echo then > a/c/unseen; echo then > a/file; echo then > a/node_modules/then; echo then > a/b/kept.tmp; echo then > a/b/file",
        );
        fs::write(root.join(".ckptfs/ckptfs.toml"), CONFIG).unwrap();
        mount.checkpoint();
        sh(&root, "echo 2 > a/node_modules/then; echo 2 > a/b/kept.tmp");
        mount.checkpoint();
        mount.umount();
        sh(&root, "mkdir c; echo here > c/unseen; rm -r a/c; mv c a");
        mount.remount();
        sh(
            &root,
            "rm -r a; mkdir -p a/node_modules a/b a/c; echo here > a/c/unseen; echo now > a/node_modules/now; echo kept > a/b/kept.tmp; echo new > a/new",
        );
        let before = tree(&root);
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
            "call {nth}: nothing is left aside"
        );
        found[usize::from(done)] += 1;
        if !killed {
            break;
        }
        nth += if is_long() { 1 } else { 1 + nth / 4 };
    }
    assert!(found.iter().all(|count| *count > 1), "{found:?}");
    println!(
        "{v:?}: killed {} times before it was done, {} times after",
        found[0], found[1]
    );
}

for_each_variant! { xfs => what_stays_is_there_after_a_kill }
