//! A file made after the newest checkpoint is in no view. Removing or rewriting it captures
//! nothing, even after a restart of the daemon or after the tripwire freed a mark. Everything that
//! a view shows is kept, and the next checkpoint shows the new files unchanged.

use std::fs;
use std::path::Path;

use crate::common::command::{sh, stdout_of};
use crate::common::mount::VERB_SECONDS;
use crate::common::tree::assert_tree_is;
use crate::common::wait::{same, wait_until};
use crate::common::{
    MountOpts, Rig, TreeOpts, Variant, for_each_variant, sample_tree, tool, tree_of,
};

/// Makes files before the checkpoint.
const OLD: &str = "mkdir old; for n in 1 2 3 linked away cut over; do head -c 30000 /dev/zero | tr '\\0' $n > old/$n; done";
/// Makes files of a megabyte after the checkpoint, and moves old ones to where new files are.
const NEW: &str = "mkdir -p new/below; for name in new/removed new/below/removed new/emptied new/cut new/rewritten new/replaced new/moved new/one; do
    head -c 1000000 /dev/zero | tr '\\0' x > $name; done; mv new/moved old/moved; ln new/one new/two; rm new/one
    ln old/linked new/linked; rm old/linked; mv old/away new/away; mv old/cut new/below/cut; mv old/over new/over; echo > old/over";
/// Makes changes that capture files shown by a checkpoint.
const CHANGE: &str = "chmod 600 new/removed; rm new/removed; : > new/emptied; truncate -s 10 new/cut; truncate -s 10 new/below/cut
    dd if=/dev/zero of=new/rewritten bs=1000000 count=1 conv=notrunc status=none; echo > new/other; mv new/other new/replaced; rm old/moved new/two
    rm old/1; : > old/2; mv old/3 new/3; rm new/3; : > new/linked; rm new/away; echo > new/over; mv new/over old/over; rm -r new/below
    mkdir new/later; mv new/emptied new/later; mv new/later later; echo more >> later/emptied; echo last > new/last";

/// Returns the size of the objects in the layers, in bytes.
fn kept(root: &Path) -> u64 {
    let sizes = sh(
        root,
        "find .ckptfs/layers/ -type f -printf '%s\\n' 2>/dev/null || true",
    );
    sizes
        .lines()
        .filter_map(|size| size.parse::<u64>().ok())
        .sum()
}

/// Runs `ckptfs -C ROOT ...` and returns its output.
fn ask(root: &Path, arguments: &[&str]) -> String {
    let mut command = tool(env!("CARGO_BIN_EXE_ckptfs"), &[] as &[&str]);
    let said = stdout_of(command.arg("-C").arg(root).args(arguments), VERB_SECONDS);
    said.trim_end().to_owned()
}

/// Waits until the tripwire has freed its mark, and the versions that only the mark needed.
fn await_no_mark(root: &Path) {
    wait_until("the mark is freed", || {
        same(ask(root, &["log", "--deleted", "--json"]), "[]")
    });
}

fn again(rig: &mut Rig) {
    rig.mount.umount();
    rig.mount.compared_baseline().unwrap();
    rig.mount.remount();
}

fn changes_after(rig: &mut Rig, root: &Path, restart: impl FnOnce(&mut Rig)) {
    sh(root, OLD);
    let asked = ask(root, &["checkpoint"]);
    let before = tree_of(root);
    sh(root, NEW);
    restart(rig);
    let kept_before = kept(root);
    sh(root, CHANGE);
    await_no_mark(root);
    ask(root, &["gc"]);
    let more = kept(root) - kept_before;
    assert!(
        more < 500_000,
        "{more} bytes were kept of files that are in no view"
    );
    let view = |id: &str| root.join(".snapshots").join(id);
    assert_tree_is(&view(&asked), &before, &TreeOpts::default());
    let after = tree_of(root);
    let second = ask(root, &["checkpoint"]);
    again(rig);
    let log = ask(root, &["log", "--json"]);
    assert!(!log.contains("\"absence\""), "nothing was changed: {log}");
    assert_tree_is(&view(&asked), &before, &TreeOpts::default());
    assert_tree_is(&view(&second), &after, &TreeOpts::default());
    ask(root, &["verify", "--deep"]);
    ask(root, &["restore", &asked]);
    assert_tree_is(root, &before, &TreeOpts::default());
    ask(root, &["restore", &second]);
    assert_tree_is(root, &after, &TreeOpts::default());
    for name in ["old", "new", "later"] {
        fs::remove_dir_all(root.join(name)).unwrap();
    }
}

fn changes_after_restarts(rig: &mut Rig, root: &Path) {
    changes_after(rig, root, again);
    changes_after(rig, root, |rig| {
        rig.mount.kill();
        rig.mount.remount();
    });
    changes_after(rig, root, |rig| {
        rig.mount.replace_worker();
    });
}

/// With `absence` on, a change without a record would be reported as an absence.
fn opts(variant: Variant) -> MountOpts {
    let mut opts = MountOpts::new(variant.io).comparing();
    opts.env.push(("CKPTFS_AUTO_ABSENCE".into(), "on".into()));
    opts
}

fn a_new_file_is_not_kept_after_a_restart(variant: Variant) {
    let mut rig = variant.start_with(opts(variant).arg("--tripwire=off"), sample_tree);
    let root = rig.path().to_owned();
    changes_after_restarts(&mut rig, &root);
}

fn a_new_file_of_a_branch_is_not_kept_after_a_restart(variant: Variant) {
    let mut rig = variant.start_with(opts(variant).arg("--tripwire=off"), sample_tree);
    let branch = ask(rig.path(), &["branch", "create", "one"]);
    changes_after_restarts(&mut rig, Path::new(&branch));
}

fn a_new_file_is_not_kept_after_a_mark(variant: Variant) {
    let opts = opts(variant).arg("--tripwire=1000/100ms");
    let mut rig = variant.start_with(opts, sample_tree);
    let root = rig.path().to_owned();
    changes_after(&mut rig, &root.clone(), |_| {
        sh(&root, "echo > temporary; sleep 0.2; rm temporary");
        await_no_mark(&root);
        // The deletion counts only once it is on disk.
        sh(&root, "sync -f .");
    });
}

/// A file shown only by a deleted checkpoint is in no view.
fn a_new_file_is_not_kept_after_its_checkpoint_was_deleted(variant: Variant) {
    let mut rig = variant.start_with(opts(variant).arg("--tripwire=off"), sample_tree);
    let root = rig.path().to_owned();
    changes_after(&mut rig, &root.clone(), |rig| {
        let showed = ask(&root, &["checkpoint"]);
        again(rig);
        ask(&root, &["delete", "--now", "-y", &showed]);
        again(rig);
    });
}

for_each_variant! { reflink =>
    a_new_file_is_not_kept_after_a_restart, a_new_file_of_a_branch_is_not_kept_after_a_restart,
    a_new_file_is_not_kept_after_a_mark, a_new_file_is_not_kept_after_its_checkpoint_was_deleted
}
