//! `restore --only-by`.

use super::support::{WriterRig, letters, shared};
use crate::common::command::sh;
use crate::common::tree::assert_tree_is;
use crate::common::{
    TreeOpts, Variant, for_each_variant, run_limited, skip, tool, tree_of as tree,
};

for_each_variant! { xfs => one_that_is_cut_short_is_finished_with_the_same_paths }
for_each_variant! { reflink =>
    one_writer_s_paths_come_back_and_the_others_stay,
    directories_go_and_come_whole_or_not_at_all,
    hard_links_and_files_that_changed_hands,
    what_was_taken_back_is_undone_and_done_again,
    a_process_has_its_children,
}

/// Attribution through links, renames and replaced files.
fn hard_links_and_files_that_changed_hands(v: Variant) {
    let stage = WriterRig::start(v, |dir| {
        drop(sh(
            dir,
            "echo 1 > one; ln one two; echo s > swap; echo t > target; mkdir d; echo f > d/f",
        ))
    });
    stage.rig.mount.checkpoint();
    // A file made by one process and removed by another is attributed to neither; a replaced one to
    // both the remover and the maker.
    stage.does(
        "alice",
        "put('passing', 'A'); unlink('swap'); put('tmp', 'A')",
    );
    stage.does("bob", "unlink('passing'); put('swap', 'B')");
    // Renamed over: the name is attributed to the renamer, the content to its maker.
    stage.does("carol", "rename('tmp', 'target')");
    // Written through one of two names: both are dirty and attributed to bob.
    stage.does("bob", "add('one', 'B')");
    // A link by alice to a file written by bob.
    stage.does("alice", "link('d/f', 'third') or die");
    let done = stage.take_back(&["alice"]);
    assert_eq!(letters(&done["changes"]), ["D third"]);
    assert_eq!(shared(&done), ["swap", "target"]);
    let done = stage.take_back(&["bob", "1"]);
    assert_eq!(letters(&done["changes"]), ["M one", "M two"]);
    assert_eq!(
        (stage.get("one"), stage.get("two"), stage.get("swap")),
        ("1\n".to_owned(), "1\n".to_owned(), "B".to_owned())
    );
    assert_eq!(
        sh(stage.rig.path(), "stat -c %i one two | uniq | wc -l").trim(),
        "1",
        "hard links are preserved"
    );
    assert_eq!(stage.get("target"), "A");
    let done = stage.take_back(&["carol", "1", "--also-shared"]);
    assert_eq!(
        (letters(&done["changes"]), stage.get("target")),
        (vec!["M target".to_owned()], "t\n".to_owned())
    );
}

/// `undo` reverts exactly the restored paths, and `redo` restores them again.
fn what_was_taken_back_is_undone_and_done_again(v: Variant) {
    let stage = WriterRig::start(v, |dir| {
        drop(sh(
            dir,
            "for f in a gone; do echo $f > $f; done; mkdir -p dir/sub kept full; for f in x y sub/z; do echo $f > dir/$f; done; echo f > full/f",
        ));
    });
    stage.rig.mount.checkpoint();
    stage.does(
        "alice",
        "add('a', 'A'); unlink('gone'); rename('dir', 'moved'); put('moved/x', 'A'); unlink('moved/sub/z'); put('moved/new', 'A'); chmod(0700, 'kept');
         mkdir('made'); put('made/one', 'A'); unlink('full/f'); rmdir('full')",
    );
    stage.does("bob", "put('of-bob', 'B')");
    let state = || {
        sh(
            stage.rig.path(),
            "for f in $(find . | sort); do stat -c '%A %n' $f; [ -d $f ] || cat $f; done",
        )
    };
    let before = state();
    stage.take_back(&["alice"]);
    let taken = state();
    assert_ne!(before, taken);
    for _ in 0..2 {
        stage.rig.mount.json(&["undo"]);
        assert_eq!(state(), before);
        stage.rig.mount.json(&["redo"]);
        assert_eq!(state(), taken);
    }
    // Later changes of others are kept, including those in directories that appear or vanish.
    stage.does(
        "bob",
        "put('of-bob', '2'); put('kept/new', 'B'); put('full/new', 'B');",
    );
    stage.rig.mount.json(&["undo"]);
    for (name, content) in [
        ("a", "a\nA"),
        ("of-bob", "2"),
        ("kept/new", "B"),
        ("full/new", "B"),
        ("made/one", "A"),
        ("moved/x", "A"),
    ] {
        assert_eq!(stage.get(name), content, "{name}");
    }
    assert!(
        ["gone", "dir", "full/f", "moved/sub/z"]
            .iter()
            .all(|name| !stage.has(name)),
        "{}",
        state()
    );
    assert_eq!(sh(stage.rig.path(), "stat -c %a kept").trim(), "700");
    // Only a restore of the whole tree starts another line of history.
    let id = stage.rig.mount.checkpoint();
    assert_eq!(stage.rig.mount.log_json()[0]["parent"], id - 1);
}

/// Kills the daemon at different system calls of the restore.
fn one_that_is_cut_short_is_finished_with_the_same_paths(v: Variant) {
    if run_limited(&mut tool("strace", &["-V"]), 60).status.code() != Some(0) {
        return skip("strace is not installed");
    }
    let mut kills = 0;
    for nth in [2, 4, 6, 9, 12] {
        let mut stage = WriterRig::start(v, |dir| {
            drop(sh(
                dir,
                "mkdir -p a/b old; for f in 1 2 3; do echo $f > a/$f; done; echo m > old/m; ln a/1 hard",
            ))
        });
        stage.rig.mount.checkpoint();
        stage.does("bob", "add('a/3', 'B'); put('of-bob', 'B')");
        stage.does(
            "alice",
            "add('a/1', 'A'); unlink('a/2'); rename('old', 'a/b/new'); mkdir('n'); put('n/f', 'A'); chmod(0700, 'a'); put('of-alice', 'A')",
        );
        stage.killed_at(
            "renameat2,unlinkat,linkat,mkdirat,fchmodat,fchownat,utimensat",
            nth,
            &["restore", "--only-by", "alice"],
        );
        let begun = stage.rig.mount.log_json()[0]["id"].as_u64() != Some(1);
        if !begun {
            // Another thread made the call before the restore began.
            assert!(stage.has("of-alice") && stage.has("a/b/new/m"));
            stage.take_back(&["alice"]);
        }
        kills += u32::from(begun);
        for (name, content) in [
            ("a/1", "1\n"),
            ("hard", "1\n"),
            ("a/2", "2\n"),
            ("a/3", "3\nB"),
            ("old/m", "m\n"),
            ("of-bob", "B"),
        ] {
            assert_eq!(stage.get(name), content, "{name}, killed at {nth}");
        }
        assert!(
            ["n", "a/b/new", "of-alice"]
                .iter()
                .all(|name| !stage.has(name)),
            "{nth}: {}",
            sh(stage.rig.path(), "find .")
        );
    }
    assert!(kills > 0, "the daemon was never killed in the middle");
}

fn one_writer_s_paths_come_back_and_the_others_stay(v: Variant) {
    let stage = WriterRig::start(v, |dir| {
        sh(
            dir,
            "for f in a b both gone turn; do echo $f > $f; done; mkdir dir; echo x > dir/x; ln a hard; mkdir keep; echo k > keep/k",
        );
    });
    let id = stage.rig.mount.checkpoint().to_string();
    stage.does(
        "alice",
        "add('a', 'A'); add('both', 'A'); put('new', 'A'); unlink('gone'); mkdir('made'); put('made/one', 'A'); rename('dir', 'moved')",
    );
    stage.does("bob", "add('b', 'B'); add('both', 'B'); put('of-bob', 'B'); unlink('turn'); mkdir('turn'); put('keep/new', 'B')");
    let before = tree(stage.rig.path());
    let planned = stage.take_back(&["alice", "--dry-run"]);
    assert_tree_is(stage.rig.path(), &before, &TreeOpts::default());
    let done = stage.take_back(&["alice"]);
    assert_eq!(
        (&planned["changes"], &planned["shared"]),
        (&done["changes"], &done["shared"])
    );
    assert_eq!(
        letters(&done["changes"]),
        [
            "M a",
            "R dir",
            "A gone",
            "M hard",
            "D made",
            "D made/one",
            "D new"
        ]
    );
    assert_eq!(
        (
            shared(&done),
            &done["shared"][0]["by"][0].as_str().expect("who")[..4]
        ),
        (vec!["both".to_owned()], "bob[")
    );
    for (name, content) in [
        ("a", "a\n"),
        ("hard", "a\n"),
        ("gone", "gone\n"),
        ("dir/x", "x\n"),
        ("both", "both\nAB"),
        ("b", "b\nB"),
        ("of-bob", "B"),
        ("keep/new", "B"),
    ] {
        assert_eq!(stage.get(name), content, "{name}");
    }
    assert!(["new", "made", "moved"].iter().all(|name| !stage.has(name)));
    assert_eq!(
        sh(stage.rig.path(), "stat -c %i a hard | uniq | wc -l").trim(),
        "1",
        "hard links are preserved"
    );
    // The guard has the previous state and restores it completely.
    let guard = done["guard"].as_u64().expect("a guard");
    stage.rig.mount.restore(guard);
    assert_tree_is(stage.rig.path(), &before, &TreeOpts::default());
    the_other_s_come_back_too(&stage, &id);
}

/// Relative to the first checkpoint the attribution is unchanged; an unknown name is an error.
fn the_other_s_come_back_too(stage: &WriterRig, id: &str) {
    let again = stage.take_back(&["bob", id, "--also-shared"]);
    assert_eq!(
        letters(&again["changes"]).first().map(String::as_str),
        Some("M b"),
        "{again}"
    );
    assert_eq!(
        (stage.get("b"), stage.get("turn")),
        ("b\n".to_owned(), "turn\n".to_owned())
    );
    let none = stage
        .rig
        .mount
        .run(&["restore", "--only-by", "nobody-of-that-name"]);
    assert!(
        !none.status.success()
            && String::from_utf8_lossy(&none.stderr).contains("Hint: these have"),
        "{none:?}"
    );
}

fn directories_go_and_come_whole_or_not_at_all(v: Variant) {
    let stage = WriterRig::start(v, |dir| {
        sh(
            dir,
            "for d in moved kept gone; do mkdir -p $d/sub; echo 1 > $d/one; echo 2 > $d/sub/two; done",
        );
    });
    stage.rig.mount.checkpoint();
    // Bob changes a file in a directory renamed by alice, has a file in one that she made, and
    // removed a file of one that she removes.
    stage.does("bob", "unlink('gone/one')");
    stage.does("alice", "rename('moved', 'there'); rename('kept', 'here'); mkdir('made'); put('made/a', 'A'); unlink('gone/sub/two'); rmdir('gone/sub'); rmdir('gone')");
    stage.does("bob", "add('there/one', 'B'); put('made/b', 'B')");
    stage.does("alice", "put('here/new', 'A'); add('here/sub/two', 'A')");
    let done = stage.take_back(&["alice"]);
    // `there` and `made` remain because of bob's files; alice's own files in `made` are removed.
    let left = shared(&done);
    assert!(
        ["there", "made"]
            .iter()
            .all(|path| left.contains(&(*path).to_owned())),
        "{left:?}"
    );
    for (name, content) in [
        ("there/one", "1\nB"),
        ("there/sub/two", "2\n"),
        ("made/b", "B"),
        ("kept/one", "1\n"),
        ("kept/sub/two", "2\n"),
        ("gone/sub/two", "2\n"),
    ] {
        assert_eq!(stage.get(name), content, "{name}");
    }
    assert!(
        ["moved", "made/a", "here", "kept/new", "gone/one"]
            .iter()
            .all(|name| !stage.has(name)),
        "{}",
        sh(stage.rig.path(), "find .")
    );
}

/// Descendants of a process are included, because an agent changes files only through nested
/// shells.
///
/// Failed before: `--only-by` of the agent matched no process.
fn a_process_has_its_children(v: Variant) {
    let stage = WriterRig::start(v, |dir| {
        drop(sh(dir, "echo 1 > one; echo 2 > two; echo 3 > three"))
    });
    stage.rig.mount.checkpoint();
    // The given shell only starts another, which writes and starts a third.
    let script =
        "sh -c 'echo agent > one; sh -c \"echo child > two; echo new > four; true\"; true'; true";
    let mut agent = std::process::Command::new("sh")
        .args(["-c", script])
        .current_dir(stage.rig.path())
        .spawn()
        .expect("spawn");
    let pid = agent.id();
    assert!(agent.wait().expect("wait").success());
    sh(stage.rig.path(), "echo mine > three");
    let done = stage.take_back(&[&pid.to_string()]);
    assert_eq!(letters(&done["changes"]), ["D four", "M one", "M two"]);
    assert_eq!(
        (stage.get("one"), stage.get("two"), stage.get("three")),
        ("1\n".to_owned(), "2\n".to_owned(), "mine\n".to_owned())
    );
}
