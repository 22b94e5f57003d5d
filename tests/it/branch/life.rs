//! The life of a branch from `create` to `gc`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::support::{create, inside, is_mounted, listed, place, refused, verb};
use crate::common::command::{TOOL_SECONDS, succeeds};
use crate::common::mount::{VERB_SECONDS, mount_table};
use crate::common::{Fs, MountOpts, Variant, fails, for_each_variant, skip, tool};

for_each_variant! { xfs =>
    a_branch_is_a_tree_of_its_own, it_comes_back_with_its_parent, a_dropped_branch_comes_back_until_gc,
    what_nobody_has_merged_is_told, it_takes_little,
    a_base_is_held, a_branch_of_a_branch, the_daemon_is_killed, everything_is_killed
}

fn a_branch_is_a_tree_of_its_own(v: Variant) {
    let rig = v.start();
    fs::write(rig.path().join("here"), "parent").unwrap();
    let (one, two) = (create(&rig, "one"), create(&rig, "two"));
    fs::write(one.join("both"), "1").unwrap();
    fs::write(two.join("both"), "2").unwrap();
    fs::write(two.join("alone"), "2").unwrap();
    assert!(!rig.path().join("both").exists(), "the parent also has it");
    assert_eq!(fs::read(one.join("here")).unwrap(), b"parent");
    assert_eq!(fs::read(one.join("both")).unwrap(), b"1");
    let (root, like) = (
        fs::metadata(&one).unwrap(),
        fs::metadata(rig.path()).unwrap(),
    );
    assert_eq!(
        (root.mode(), root.uid(), root.gid()),
        (like.mode(), like.uid(), like.gid())
    );
    let told = listed(&rig, "two").unwrap();
    assert_eq!(
        (&told["changed"], &told["mounted"]),
        (&2.into(), &true.into())
    );
    // All verbs work in a branch.
    let id = inside(&two, &["checkpoint"]);
    fs::remove_file(two.join("alone")).unwrap();
    inside(&two, &["restore", id.trim_end()]);
    assert_eq!(fs::read(two.join("alone")).unwrap(), b"2");
    assert_eq!(
        rig.mount.ok(&["branch", "diff", "two"]),
        "A alone\nA both\n"
    );
    assert!(
        rig.mount
            .ok(&["branch", "diff", "-p", "one"])
            .contains("+1")
    );
    // Files touched by several branches are listed.
    assert_eq!(rig.mount.ok(&["branch", "conflicts"]), "both\tone, two\n");
    fs::write(rig.path().join("alone"), "parent").unwrap();
    assert_eq!(
        rig.mount.ok(&["branch", "conflicts"]),
        "alone\ttwo, this tree\nboth\tone, two\n"
    );
}

fn it_comes_back_with_its_parent(v: Variant) {
    let mut rig = v.start();
    let (one, gone) = (create(&rig, "one"), create(&rig, "gone"));
    fs::write(one.join("f"), "1").unwrap();
    // A single branch.
    rig.mount.ok(&["umount", one.to_str().unwrap()]);
    assert!(!is_mounted(&one) && is_mounted(&gone) && is_mounted(rig.path()));
    assert_eq!(listed(&rig, "one").unwrap()["mounted"], false);
    let alone = verb(&rig, &["mount", one.to_str().unwrap()]);
    assert!(
        !alone.0 && alone.1.contains("branch mount one"),
        "{}",
        alone.1
    );
    rig.mount.ok(&["branch", "mount", "one"]);
    assert_eq!(fs::read(one.join("f")).unwrap(), b"1");
    refused(&rig, &["branch", "mount", "one"], "already-mounted");
    // The parent with all its branches.
    rig.mount.umount();
    assert!(!is_mounted(&one) && !is_mounted(&gone) && !is_mounted(rig.path()));
    fs::rename(&gone, gone.with_file_name("elsewhere")).unwrap();
    rig.mount.remount();
    assert_eq!(fs::read(one.join("f")).unwrap(), b"1");
    // A missing branch is named in a warning and stays registered.
    let warnings = rig.mount.status_json()["warnings"].to_string();
    assert!(
        warnings.contains("the branch gone is not mounted"),
        "{warnings}"
    );
    assert_eq!(listed(&rig, "gone").unwrap()["mounted"], false);
    fs::rename(gone.with_file_name("elsewhere"), &gone).unwrap();
    rig.mount.ok(&["branch", "mount", "gone"]);
    // Another directory at its place is not mistaken for the branch.
    rig.mount.ok(&["umount", gone.to_str().unwrap()]);
    fs::rename(&gone, gone.with_file_name("elsewhere")).unwrap();
    fs::create_dir(&gone).unwrap();
    refused(&rig, &["branch", "mount", "gone"], "bad-branch");
}

fn a_dropped_branch_comes_back_until_gc(v: Variant) {
    let rig = v.start();
    let one = create(&rig, "one");
    fs::write(one.join("work"), "unmerged").unwrap();
    let would = rig.mount.json(&["branch", "drop", "-n", "one"]);
    assert_eq!(would["changed"][0], "work");
    assert!(is_mounted(&one));
    // The error names a process with an open file.
    let open = fs::File::open(one.join("work")).unwrap();
    let message = refused(&rig, &["branch", "drop", "one"], "branch-in-use");
    assert!(
        message.contains(&format!("pid {}", std::process::id())),
        "{message}"
    );
    let (done, said) = verb(&rig, &["umount", rig.path().to_str().unwrap()]);
    assert!(!done && said.contains("branch one is in use"), "{said}");
    assert!(is_mounted(&one) && is_mounted(rig.path()));
    drop(open);
    let told = rig.mount.ok(&["branch", "drop", "one"]);
    assert!(told.contains("work"), "{told}");
    assert!(!one.exists() && listed(&rig, "one").is_none());
    refused(&rig, &["delete", "1"], "held");
    // A drop is an ordinary operation.
    let undone = rig.mount.ok(&["undo"]);
    assert!(undone.contains("branch drop one"), "{undone}");
    assert_eq!(fs::read(one.join("work")).unwrap(), b"unmerged");
    rig.mount.ok(&["redo"]);
    assert!(!one.exists());
    rig.mount.ok(&["branch", "restore", "one"]);
    assert_eq!(fs::read(one.join("work")).unwrap(), b"unmerged");
    // With `--force` open files do not prevent it.
    let open = fs::File::open(one.join("work")).unwrap();
    rig.mount.ok(&["branch", "drop", "--force", "one"]);
    assert!(open.sync_all().is_err(), "it is still served");
    drop(open);
    let plan = rig.mount.json(&["gc", "-n", "--keep-last", "1"]);
    assert!(plan["kept"].to_string().contains("\"branch\""), "{plan}");
    rig.mount.ok(&["gc"]);
    refused(&rig, &["branch", "restore", "one"], "unknown-branch");
    let (done, said) = verb(&rig, &["undo"]);
    assert!(!done && said.contains("no longer exists"), "{said}");
    let left = fs::read_dir(rig.path().join(".ckptfs/dropped")).unwrap();
    assert_eq!(left.count(), 0, "the trash is empty");
    rig.mount.ok(&["delete", "1"]);
}

fn what_nobody_has_merged_is_told(v: Variant) {
    let rig = v.start();
    fs::write(rig.path().join("f"), "base").unwrap();
    let (one, two) = (create(&rig, "one"), create(&rig, "two"));
    let unmerged = |name: &str| {
        let status = rig.mount.json(&["status"]);
        let all = status["branches"].as_array().expect("branches").clone();
        let found = all.into_iter().find(|one| one["name"] == name);
        found.expect("it exists")["unmerged"].clone()
    };
    let told = || rig.mount.ok(&["status"]);
    assert_eq!((unmerged("one"), unmerged("two")), (0.into(), 0.into()));
    assert!(!told().contains("unmerged"), "{}", told());
    fs::write(one.join("new"), "1").unwrap();
    fs::write(one.join("f"), "1").unwrap();
    fs::write(two.join("f"), "2").unwrap();
    assert_eq!((unmerged("one"), unmerged("two")), (2.into(), 1.into()));
    let said = told();
    assert!(
        said.contains("unmerged one (2 changes), two (1 change) ("),
        "{said}"
    );
    // The cached count is valid until the next change.
    fs::write(two.join("f"), "base").unwrap();
    assert_eq!((unmerged("one"), unmerged("two")), (2.into(), 0.into()));
    fs::write(two.join("f"), "2").unwrap();
    fs::write(rig.path().join("f"), "1").unwrap();
    assert_eq!((unmerged("one"), unmerged("two")), (1.into(), 1.into()));
    fs::write(rig.path().join("f"), "base").unwrap();
    assert_eq!((unmerged("one"), unmerged("two")), (2.into(), 1.into()));
    // Changes that the parent already contains are not lost.
    fs::write(rig.path().join("new"), "1").unwrap();
    let would = rig.mount.json(&["branch", "drop", "-n", "one"]);
    assert_eq!(would["branch"]["changed"], 2);
    assert_eq!(
        (would["unmerged"].to_string(), &would["branch"]["unmerged"]),
        ("[\"f\"]".to_owned(), &1.into())
    );
    rig.mount.ok(&["merge", "one"]);
    assert_eq!(unmerged("one"), 0);
    // After the merge the changes are part of the merge base.
    let dropped = rig.mount.ok(&["branch", "drop", "one"]);
    assert!(
        dropped.starts_with("dropped one (0 changes)\n"),
        "{dropped}"
    );
    // Conflicting changes are not merged.
    assert_eq!(unmerged("two"), 1);
    let dropped = rig.mount.ok(&["branch", "drop", "two"]);
    assert!(
        dropped.starts_with("dropped two (1 change, not merged:)\n  f\n"),
        "{dropped}"
    );
}

fn a_base_is_held(v: Variant) {
    let mut rig = v.start();
    for text in ["1", "2", "3"] {
        fs::write(rig.path().join("f"), text).unwrap();
        rig.mount.checkpoint();
    }
    rig.mount.ok(&["branch", "create", "one", "--at", "2"]);
    assert_eq!(listed(&rig, "one").unwrap()["base"], 2);
    let message = refused(&rig, &["delete", "2"], "held");
    assert!(message.contains("branch one"), "{message}");
    refused(&rig, &["delete", "--now", "2"], "held");
    rig.mount.ok(&["gc", "--keep-last", "1"]);
    assert_eq!(fs::read(rig.view(2).join("f")).unwrap(), b"2");
    assert!(!rig.view(1).exists());
    // The registry holds the base, without a daemon.
    rig.mount.umount();
    refused(&rig, &["delete", "--now", "2"], "held");
    verb(&rig, &["gc", "--keep-last", "1"]);
    rig.mount.remount();
    assert_eq!(fs::read(rig.view(2).join("f")).unwrap(), b"2");
    // The checkpoint cannot be undone while it is held.
    rig.mount.ok(&["branch", "create", "two"]);
    let base = listed(&rig, "two").unwrap()["base"].to_string();
    let (done, said) = verb(&rig, &["undo"]);
    assert!(!done && said.contains("branch two"), "{said}");
    rig.mount.ok(&["branch", "drop", "two"]);
    rig.mount.ok(&["gc"]);
    rig.mount.ok(&["delete", &base]);
}

fn a_branch_of_a_branch(v: Variant) {
    let mut rig = v.start();
    let one = create(&rig, "one");
    fs::write(one.join("f"), "1").unwrap();
    let said = inside(&one, &["branch", "create", "deep"]);
    let deep = one.with_file_name("project@one@deep");
    assert_eq!(said.trim_end(), deep.to_str().unwrap());
    fs::write(deep.join("g"), "2").unwrap();
    assert!(!one.join("g").exists());
    refused(&rig, &["branch", "drop", "one"], "held");
    rig.mount.umount();
    assert!(!is_mounted(&deep));
    rig.mount.remount();
    assert_eq!(fs::read(deep.join("g")).unwrap(), b"2");
    let mut dir = deep;
    for depth in 3..=8 {
        let made = inside(&dir, &["branch", "create", "d"]);
        dir = made.trim_end().into();
        assert!(is_mounted(&dir), "{depth}");
    }
    let mut ninth = tool(env!("CARGO_BIN_EXE_ckptfs"), &["-C"]);
    let said = fails(
        ninth.arg(&dir).args(["branch", "create", "d"]),
        VERB_SECONDS,
    );
    assert!(said.contains("at most 8 deep"), "{said}");
    rig.mount.umount();
}

/// A successor takes over the parent and its branches.
fn the_daemon_is_killed(v: Variant) {
    let mut rig = v.start();
    let one = create(&rig, "one");
    fs::write(one.join("f"), "1").unwrap();
    rig.mount.replace_worker();
    assert_eq!(fs::read(one.join("f")).unwrap(), b"1");
    assert_eq!(listed(&rig, "one").unwrap()["mounted"], true);
    fs::write(one.join("g"), "2").unwrap();
    assert_eq!(rig.mount.ok(&["branch", "diff", "one"]), "A f\nA g\n");
    let table = mount_table("self");
    let mounts = table.matches(one.to_str().unwrap()).count();
    assert_eq!(mounts, 2, "one mount, as source and target: {table}");
}

fn everything_is_killed(v: Variant) {
    let mut rig = v.start();
    let one = create(&rig, "one");
    fs::write(one.join("f"), "1").unwrap();
    rig.mount.kill();
    assert!(fs::read(one.join("f")).is_err());
    // An unmount of the parent also removes the dead mounts of its branches.
    succeeds(
        tool(env!("CARGO_BIN_EXE_ckptfs"), &["umount"]).arg(rig.path()),
        VERB_SECONDS,
    );
    assert!(!is_mounted(&one));
    rig.mount.remount();
    assert_eq!(fs::read(place(&rig, "one").join("f")).unwrap(), b"1");
    assert_eq!(rig.mount.ok(&["branch", "diff", "one"]), "A f\n");
}

/// Returns the used bytes and inodes of the filesystem at `dir`.
fn taken(dir: &Path) -> (u64, u64) {
    succeeds(tool("sync", &["-f"]).arg(dir), TOOL_SECONDS);
    let stat = rustix::fs::statvfs(dir).unwrap();
    (
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize,
        stat.f_files - stat.f_ffree,
    )
}

fn it_takes_little(v: Variant) {
    if v.fs != Fs::Xfs {
        return skip("only XFS counts the space exactly, in blocks and inodes");
    }
    let git = |dir: &Path, arguments: &[&str]| {
        let mut git = tool(
            "git",
            &["-c", "user.name=t", "-c", "user.email=t@example.org"],
        );
        succeeds(git.arg("-C").arg(dir).args(arguments), TOOL_SECONDS);
    };
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        git(dir, &["init", "-q"]);
        for number in 0..300 {
            fs::write(dir.join(format!("f{number}")), format!("{number}")).unwrap();
        }
        git(dir, &["add", "."]);
        git(dir, &["commit", "-q", "-m", "all"]);
    });
    create(&rig, "first");
    // XFS preallocates blocks beyond the end of an appended file and frees them later: the minimum
    // of several costs is checked.
    let costs = ["second", "third", "fourth"].map(|name| {
        let before = taken(rig.image.path());
        create(&rig, name);
        let after = taken(rig.image.path());
        (after.0.saturating_sub(before.0), after.1 - before.1)
    });
    assert!(
        costs
            .iter()
            .any(|&(bytes, inodes)| bytes < 100_000 && inodes < 50),
        "bytes and inodes: {costs:?}"
    );
}
