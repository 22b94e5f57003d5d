//! Undo and redo of operations on the history.

use std::fs;

use super::support::{Ran, Sandbox};

/// A mounted project with two checkpoints: `one` in v1, `two` in 2; the tree contains `three`.
fn three() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/a.txt", "one\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
        .ckptfs_in("p", &["checkpoint", "-t", "v1", "-m", "the first"])
        .is(0, "1\n", "");
    sandbox.file("p/a.txt", "two\n");
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "2\n", "");
    sandbox.file("p/a.txt", "three\n");
    sandbox
}

impl Sandbox {
    fn does(&self, args: &[&str]) -> Ran {
        self.ckptfs_in("p", args)
    }

    fn content(&self) -> String {
        fs::read_to_string(self.path.join("p/a.txt")).expect("it exists")
    }

    fn ids(&self) -> Vec<u64> {
        let list = self.does(&["log", "--json"]).ok().json();
        list.as_array()
            .expect("a list")
            .iter()
            .map(|one| one["id"].as_u64().expect("a number"))
            .collect()
    }

    fn ops(&self) -> Vec<(u64, String, Option<u64>, bool)> {
        let list = self.does(&["ops", "--json"]).ok().json();
        let one = |op: &serde_json::Value| {
            let (number, what) = (
                op["number"].as_u64().expect("a number"),
                op["what"].as_str().expect("a word").to_owned(),
            );
            (
                number,
                what,
                op["undoes"].as_u64(),
                op["in_effect"].as_bool().expect("a boolean"),
            )
        };
        list.as_array().expect("a list").iter().map(one).collect()
    }
}

/// Undo of a restore brings back the previous state byte for byte; later changes are in a
/// checkpoint.
#[test]
fn a_restore_is_undone_and_done_again() {
    let sandbox = three();
    sandbox.does(&["restore", "v1"]).ok();
    assert_eq!(
        (sandbox.content().as_str(), sandbox.ids()),
        ("one\n", vec![3, 2, 1])
    );
    sandbox.file("p/a.txt", "after the restore\n");
    sandbox.does(&["undo"]).is(
        0,
        "undone: 3 restore 1 (before: 3); 1 change; the previous state is checkpoint 4\n",
        "",
    );
    assert_eq!(
        (sandbox.content().as_str(), sandbox.ids()),
        ("three\n", vec![4, 3, 2, 1])
    );
    assert_eq!(
        fs::read_to_string(sandbox.path.join("p/.snapshots/4/a.txt")).expect("the guard"),
        "after the restore\n"
    );
    sandbox.does(&["redo"]).is(
        0,
        "redone: 3 restore 1 (before: 3); 1 change; the previous state is checkpoint 5\n",
        "",
    );
    assert_eq!(sandbox.content(), "after the restore\n");
    // Undo and redo alternate to any depth.
    sandbox.does(&["undo"]).ok();
    assert_eq!(sandbox.content(), "three\n");
    sandbox.does(&["redo"]).ok();
    assert_eq!(sandbox.content(), "after the restore\n");
    let expected = [
        (7, Some(6), true),
        (6, Some(5), false),
        (5, Some(4), true),
        (4, Some(3), false),
        (3, None, true),
    ];
    let told: Vec<_> = sandbox
        .ops()
        .into_iter()
        .filter(|op| op.1 == "restore")
        .map(|op| (op.0, op.2, op.3))
        .collect();
    assert_eq!(told, expected);
}

#[test]
fn a_restore_of_paths_is_undone_for_those_paths() {
    let sandbox = three();
    sandbox.file("p/b.txt", "b\n");
    sandbox.does(&["restore", "1", "a.txt"]).ok();
    sandbox.file("p/b.txt", "written since\n");
    sandbox.does(&["undo"]).ok();
    assert_eq!(sandbox.content(), "three\n");
    assert_eq!(
        fs::read_to_string(sandbox.path.join("p/b.txt")).expect("b"),
        "written since\n",
        "the restore does not touch other files"
    );
}

/// Undo and redo of checkpoints, deletions, tags and pins preserve number, tags and note, to any
/// depth and across `kill -9` and remounts.
#[test]
fn everything_else_is_undone_and_done_again() {
    let sandbox = three();
    let show = |id: &str| sandbox.does(&["show", id]).ok().out();
    let before = [show("1"), show("2")];
    sandbox.does(&["tag", "2", "v2", "mid"]).ok();
    sandbox.does(&["tag", "--force", "2", "v1"]).ok();
    sandbox.does(&["pin", "2", "-r", "mine"]).ok();
    sandbox.does(&["tag", "-m", "mid", "middle"]).ok();
    sandbox.does(&["delete", "1"]).ok();
    fs::create_dir(sandbox.path.join("p/.snapshots/three")).expect("a checkpoint");
    let after = [show("2"), show("3")];
    let gone = sandbox.does(&["show", "1"]);
    assert!(
        gone.code == 1
            && gone
                .err()
                .contains("checkpoint 1 is deleted\nHint: it is not freed yet"),
        "{gone:?}"
    );
    for round in 0..3 {
        sandbox.does(&["undo", "--force", "3"]).ok();
        sandbox.does(&["undo", "--force", "3"]).ok();
        assert_eq!([show("1"), show("2")], before, "round {round}");
        assert_eq!(sandbox.ids(), [2, 1]);
        assert_eq!(
            fs::read_to_string(sandbox.path.join("p/.snapshots/v1/a.txt")).expect("v1"),
            "one\n"
        );
        assert!(!sandbox.path.join("p/.snapshots/three").exists());
        match round {
            0 => sandbox.kill_daemons(),
            1 => drop(sandbox.ckptfs(&["umount", "p"]).ok()),
            _ => {}
        }
        if round < 2 {
            sandbox.ckptfs(&["mount", "p"]).ok();
        }
        sandbox.does(&["redo", "6"]).ok();
        assert_eq!([show("2"), show("3")], after, "round {round}");
        assert_eq!(sandbox.ids(), [3, 2]);
        assert_eq!(
            fs::read_to_string(sandbox.path.join("p/.snapshots/three/a.txt"))
                .expect("created by mkdir"),
            "three\n"
        );
    }
    sandbox.does(&["redo"]).is(
        1,
        "",
        "Error: nothing can be redone\nHint: `ckptfs ops` lists all operations\n",
    );
    sandbox.does(&["undo", "9"]).is(
        1,
        "",
        "Error: only 8 operations can be undone\nHint: `ckptfs ops` lists all operations\n",
    );
    assert_eq!(sandbox.content(), "three\n", "the tree was not touched");
}

/// Deleted checkpoints stay restorable, even if all were deleted and the tree has changed since.
#[test]
fn what_is_changed_while_a_checkpoint_is_deleted_is_kept_for_it() {
    let sandbox = three();
    sandbox.does(&["delete", "1"]).ok();
    sandbox.does(&["delete", "2"]).ok();
    sandbox.file("p/a.txt", "four\n");
    fs::write(sandbox.path.join("p/new.txt"), "new").expect("a file");
    sandbox.kill_daemons();
    sandbox.ckptfs(&["mount", "p"]).ok();
    fs::remove_file(sandbox.path.join("p/a.txt")).expect("the call succeeds");
    sandbox.does(&["undo", "2"]).ok();
    let then = |id: u64| {
        fs::read_to_string(sandbox.path.join(format!("p/.snapshots/{id}/a.txt")))
            .expect("it is unchanged")
    };
    assert_eq!((then(1), then(2)), ("one\n".to_owned(), "two\n".to_owned()));
    assert!(!sandbox.path.join("p/.snapshots/2/new.txt").exists());
    sandbox.ckptfs(&["umount", "p"]).ok();
    let verified = sandbox.ckptfs(&["-C", "p", "verify", "--deep"]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

/// An operation after an undo starts another line; nothing of the undone line is lost.
#[test]
fn a_line_that_was_left_is_reached_by_its_operations() {
    let sandbox = three();
    sandbox
        .does(&["undo", "--force"])
        .is(0, "undone: 2 checkpoint 2\n", "");
    sandbox.does(&["checkpoint"]).is(0, "3\n", "");
    assert_eq!(
        sandbox.does(&["redo"]).code,
        1,
        "nothing can be redone after a new operation"
    );
    assert_eq!(sandbox.ids(), [3, 1]);
    sandbox.does(&["undo", "--to", "2", "--dry-run"]).is(
        0,
        "would be undone: 4 checkpoint 3\nwould be undone: 2 checkpoint 2\n",
        "",
    );
    sandbox.does(&["undo", "--to", "2"]).ok();
    assert_eq!(
        (sandbox.ids(), sandbox.content().as_str()),
        (vec![4, 2, 1], "two\n")
    );
    assert_eq!(
        fs::read_to_string(sandbox.path.join("p/.snapshots/2/a.txt")).expect("it is unchanged"),
        "two\n"
    );
    sandbox.does(&["undo", "--to", "4"]).ok();
    assert_eq!(
        (
            sandbox.ids()[..].ends_with(&[3, 1]),
            sandbox.content().as_str()
        ),
        (true, "three\n")
    );
    sandbox.does(&["undo", "--to", "0"]).ok();
    assert!(
        sandbox.ids().iter().all(|id| *id > 3),
        "guards: {:?}",
        sandbox.ids()
    );
    sandbox.does(&["undo", "--to", "99"]).is(
        1,
        "",
        "Error: there is no operation 99\nHint: `ckptfs ops` lists all operations\n",
    );
}

#[test]
fn what_cannot_be_undone_says_why_and_can_be_left_out() {
    let sandbox = three();
    sandbox.does(&["delete", "--now", "2"]).ok();
    let says = "Error: operation 3 cannot be undone: checkpoint 2 was freed\nHint: to undo the one before it: ckptfs undo --skip\n";
    sandbox.does(&["undo"]).is(1, "", says);
    sandbox.does(&["pin", "1", "-r", "mine"]).ok();
    // The pin is an operation: it is undone first, and then checkpoint 1 can be undone.
    sandbox
        .does(&["undo", "2"])
        .is(1, "undone: 4 pin 1: mine\n", says);
    let left = "skipped: 3 delete --now 2; checkpoint 2 was freed\nskipped: 2 checkpoint 2; checkpoint 2 was freed\nundone: 1 checkpoint 1\n";
    sandbox.does(&["undo", "--skip", "--force"]).is(0, left, "");
    assert_eq!(sandbox.ids(), Vec::<u64>::new());
    sandbox
        .does(&["redo"])
        .is(0, "redone: 1 checkpoint 1\n", "");
    // A deleted checkpoint is freed by its number.
    sandbox.does(&["delete", "1"]).ok();
    assert_eq!(
        sandbox.does(&["log", "--deleted", "--json"]).ok().json()[0]["id"],
        1
    );
    sandbox.does(&["delete", "--now", "1"]).ok();
    assert_eq!(
        sandbox.does(&["log", "--deleted", "--json"]).ok().json(),
        serde_json::json!([])
    );
    assert!(
        sandbox
            .does(&["undo"])
            .err()
            .contains("checkpoint 1 was freed")
    );
}

/// A deleted checkpoint occupies space until it is freed, but not afterwards.
#[test]
fn a_deleted_checkpoint_keeps_its_versions_until_it_is_freed() {
    let sandbox = three();
    let objects = || -> usize {
        let layers = fs::read_dir(sandbox.path.join("p/.ckptfs/layers"))
            .expect("layers")
            .flatten();
        layers
            .map(|layer| fs::read_dir(layer.path().join("objects")).map_or(0, Iterator::count))
            .sum()
    };
    sandbox.ckptfs(&["umount", "p"]).ok();
    let kept = objects();
    assert!(kept >= 2, "{kept} versions");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox.does(&["delete", "1"]).ok();
    sandbox.does(&["delete", "2"]).ok();
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert_eq!(objects(), kept);
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox.does(&["delete", "--now", "2"]).ok();
    sandbox.does(&["delete", "--now", "1"]).ok();
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert_eq!(objects(), 0);
}

/// After a restore, the next checkpoint's parent is the restored one. A restore of paths starts no
/// line, and deleted checkpoints are skipped.
#[test]
fn each_checkpoint_tells_which_one_it_comes_from() {
    let sandbox = three();
    sandbox.does(&["restore", "1"]).ok();
    sandbox
        .does(&["checkpoint", "-m", "from the first"])
        .is(0, "4\n", "");
    sandbox.does(&["restore", "2", "a.txt"]).ok();
    sandbox
        .does(&["checkpoint", "-m", "goes on"])
        .is(0, "6\n", "");
    let parents = || -> Vec<(u64, Option<u64>)> {
        let list = sandbox.does(&["log", "--json"]).ok().json();
        list.as_array()
            .expect("a list")
            .iter()
            .map(|one| {
                (
                    one["id"].as_u64().expect("a number"),
                    one["parent"].as_u64(),
                )
            })
            .collect()
    };
    let expected = vec![
        (6, Some(5)),
        (5, Some(4)),
        (4, Some(1)),
        (3, Some(2)),
        (2, Some(1)),
        (1, None),
    ];
    assert_eq!(parents(), expected);
    let graph = || -> Vec<String> {
        let text = sandbox.does(&["log", "--graph"]).ok().out();
        text.lines()
            .map(|line| line.split("  20").next().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(
        graph(),
        ["* 6", "* 5", "* 4", "| * 3", "| * 2", "|/", "* 1"]
    );
    // From the index, from the journal, and without a daemon.
    sandbox.kill_daemons();
    sandbox.ckptfs(&["mount", "p"]).ok();
    assert_eq!(parents(), expected);
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert_eq!(parents(), expected);
    fs::remove_dir_all(sandbox.path.join("p/.ckptfs/index")).expect("a cache");
    sandbox.ckptfs(&["mount", "p"]).ok();
    assert_eq!(parents(), expected);
    sandbox.does(&["delete", "2"]).ok();
    assert_eq!(
        parents(),
        [
            (6, Some(5)),
            (5, Some(4)),
            (4, Some(1)),
            (3, Some(1)),
            (1, None)
        ]
    );
}

#[test]
fn a_log_is_told_by_the_page() {
    let sandbox = three();
    for _ in 0..5 {
        sandbox.does(&["checkpoint"]).ok();
    }
    let page = |args: &[&str]| -> Vec<u64> {
        let list = sandbox
            .does(&[&["log", "--json"], args].concat())
            .ok()
            .json();
        list.as_array()
            .expect("a list")
            .iter()
            .map(|one| one["id"].as_u64().expect("a number"))
            .collect()
    };
    assert_eq!(page(&["-n", "3"]), [7, 6, 5]);
    assert_eq!(page(&["--limit", "3", "--before", "5"]), [4, 3, 2]);
    assert_eq!(
        (page(&["--before", "v1"]), page(&["--before", "latest~1"])),
        (vec![], vec![5, 4, 3, 2, 1])
    );
    assert_eq!(
        sandbox
            .does(&["ops", "-n", "2", "--before", "3", "--json"])
            .ok()
            .json()[0]["number"],
        2
    );
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert_eq!(page(&["--limit", "3", "--before", "5"]), [4, 3, 2]);
}
