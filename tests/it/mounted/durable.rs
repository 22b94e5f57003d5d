//! Acknowledged operations survive a crash of the daemon; the index is a cache; a remount repairs a
//! dead mount.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::status::dirty;
use super::support::{Tree, get, names, put, sh, tree};
use crate::common::mount::mount_table;
use crate::common::strace::Strace;
use crate::common::tree::assert_tree_is;
use crate::common::{MountOpts, Rig, TreeOpts, Variant, for_each_variant, run_limited, tool};

for_each_variant! { xfs =>
    the_index_is_made_again_when_it_is_gone,
    a_torn_end_of_the_journal_loses_what_is_in_it_and_no_more,
    a_stack_of_dead_mounts_is_repaired_by_mounting,
    a_kill_in_the_middle_of_an_operation_is_finished_or_undone,
    a_kill_in_the_middle_of_a_restore_is_finished_at_the_next_mount,
    unmounted_the_directory_is_plain_complete_and_current,
}
for_each_variant! { xfs => checkpoints_and_dirty_state_survive_kill_9_at_any_moment }

/// Runs a shell loop of changes until the mount dies.
fn busy_shell(root: &Path) -> Child {
    let script = "i=0; while :; do i=$((i+1)); echo $i >> log || exit 0; echo $i > t.$i; mv t.$i current; mkdir -p d/$((i%7)); \
                  cp log d/$((i%7))/copy; chmod 6$((i%8))4 current; rm -rf d/$(((i+3)%7)); ln -f current hard; done";
    tool("bash", &["-c", script])
        .current_dir(root)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash starts")
}

fn checkpoints_and_dirty_state_survive_kill_9_at_any_moment(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "mkdir fixed; seq 1000 > fixed/f; echo 0 > log").truncate(0)
    });
    let root = rig.path().to_owned();
    for round in 0..4_u64 {
        let before = rig.mount.log_json().as_array().unwrap().len();
        let mut shell = busy_shell(&root);
        let mut acknowledged = Vec::new();
        for number in 0..3 {
            put(
                root.join(format!("mark-{round}-{number}")),
                format!("{round} {number}"),
            );
            acknowledged.push((
                rig.mount.checkpoint(),
                format!("mark-{round}-{number}"),
                format!("{round} {number}"),
            ));
            std::thread::sleep(Duration::from_millis(7 * (round + 1)));
        }
        put(
            root.join(format!("late-{round}")),
            "after the last checkpoint",
        );
        rig.mount.kill();
        shell.wait().unwrap();
        rig.mount.remount();
        assert_eq!(rig.mount.log_json().as_array().unwrap().len(), before + 3);
        for (id, name, content) in &acknowledged {
            assert_eq!(get(rig.view(*id).join(name)), *content);
            assert_eq!(get(rig.view(*id).join("fixed/f")).lines().count(), 1000);
        }
        assert!(
            dirty(&rig.mount).contains(&format!("A late-{round}")),
            "{:?}",
            dirty(&rig.mount)
        );
        assert_dirty_is_what_differs(&rig, acknowledged[2].0);
    }
}

/// Asserts that the dirty set names exactly the paths in which the two trees differ.
fn assert_dirty_is_what_differs(rig: &Rig, id: u64) {
    let (then, now) = (tree(&rig.view(id)), tree(rig.path()));
    let differs = |path: &PathBuf| match (then.get(path), now.get(path)) {
        (Some(a), Some(b)) => {
            let is_dir = b.kind == crate::common::tree::NodeKind::Dir;
            a.kind != b.kind || a.mode != b.mode || (!is_dir && a.mtime != b.mtime)
        }
        _ => true,
    };
    let paths: std::collections::BTreeSet<PathBuf> = then
        .keys()
        .chain(now.keys())
        .filter(|path| differs(path))
        .cloned()
        .collect();
    let status = rig.mount.status_json();
    let mut named = std::collections::BTreeSet::new();
    for entry in status["dirty"].as_array().unwrap() {
        for key in ["path", "from"] {
            named.extend(entry[key].as_str().map(PathBuf::from));
        }
    }
    let carried = |path: &PathBuf| path.ancestors().skip(1).any(|above| named.contains(above));
    let missing: Vec<_> = paths
        .iter()
        .filter(|path| !named.contains(*path) && !carried(path))
        .collect();
    let wrong: Vec<_> = named.iter().filter(|path| !paths.contains(*path)).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "not reported: {missing:?}; reported, but identical: {wrong:?}"
    );
}

/// Makes three checkpoints with renames, deletions and hard links between them, and returns the
/// expected tree of each.
fn with_history(v: Variant) -> (Rig, Vec<(u64, Tree)>) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "mkdir -p a/b c; for f in 1 2 3 4 5 6; do echo $f > a/$f; echo $f > a/b/$f; done; ln a/1 c/one; ln -s a link");
    });
    let root = rig.path().to_owned();
    let mut states = vec![(rig.mount.checkpoint(), tree(&root))];
    for script in [
        "mv a/b c/; rm a/2; echo changed > a/3; chmod 600 a/4",
        "rm -rf c; mkdir c; ln a/1 c/again; truncate -s 0 a/5; setfattr -n user.x -v y a/6",
    ] {
        sh(&root, script);
        states.push((rig.mount.checkpoint(), tree(&root)));
    }
    sh(&root, "echo dirty > a/1; rm link; mkdir new");
    (rig, states)
}

fn assert_history(rig: &Rig, states: &[(u64, Tree)]) {
    for (id, expected) in states {
        assert_tree_is(&rig.view(*id), expected, &TreeOpts::default());
    }
}

fn the_index_is_made_again_when_it_is_gone(v: Variant) {
    let (mut rig, states) = with_history(v);
    let root = rig.path().to_owned();
    let changed = dirty(&rig.mount);
    let damages: [fn(&Path); 3] = [
        |store| fs::remove_dir_all(store.join("index")).unwrap(),
        |store| {
            sh(
                store,
                "for f in index/db index/conf; do [ ! -f $f ] || truncate -s 100 $f; done",
            )
            .truncate(0)
        },
        |store| {
            sh(store, "f=$(find index -type f -size +0 | head -1); dd if=/dev/urandom of=$f bs=4096 count=2 conv=notrunc status=none").truncate(0)
        },
    ];
    for damage in damages {
        rig.mount.umount();
        damage(&root.join(".ckptfs"));
        rig.mount.remount();
        assert_eq!(dirty(&rig.mount), changed);
        assert_history(&rig, &states);
        assert_eq!(rig.mount.log_json().as_array().unwrap().len(), 3);
    }
    rig.mount.restore(states[0].0);
    assert_tree_is(&root, &states[0].1, &TreeOpts::default());
}

fn a_torn_end_of_the_journal_loses_what_is_in_it_and_no_more(v: Variant) {
    let (mut rig, states) = with_history(v);
    let root = rig.path().to_owned();
    let changed = dirty(&rig.mount);
    rig.mount.umount();
    // An incomplete frame after a power cut: a length, and zeros in place of the rest.
    let segment = root.join(".ckptfs/journal/00000001");
    let bytes = fs::read(&segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let file = OpenOptions::new().write(true).open(&segment).unwrap();
    file.write_all_at(&[200, 0, 0, 0, 1, 0, 0, 0], end as u64)
        .unwrap();
    drop(file);
    rig.mount.remount();
    let warnings = rig.mount.status_json()["warnings"].to_string();
    assert!(warnings.contains("torn"), "it is reported: {warnings}");
    assert_eq!(dirty(&rig.mount), changed);
    assert_history(&rig, &states);
    put(root.join("after"), "x");
    let id = rig.mount.checkpoint();
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(
        get(rig.view(id).join("after")),
        "x",
        "the journal continues"
    );
    assert_history(&rig, &states);
}

fn a_stack_of_dead_mounts_is_repaired_by_mounting(v: Variant) {
    let mut rig = v.start();
    put(rig.path().join("f"), "kept");
    rig.mount.checkpoint();
    for _ in 0..3 {
        rig.mount.kill();
        let dead = fs::metadata(rig.path().join("f"))
            .unwrap_err()
            .raw_os_error()
            .unwrap();
        assert!(
            [libc::ENOTCONN, libc::ECONNABORTED].contains(&dead),
            "errno {dead}"
        );
        rig.mount.remount();
        assert_eq!(
            (get(rig.path().join("f")), get(rig.view(1).join("f"))),
            ("kept".into(), "kept".into())
        );
    }
    let table = mount_table("self");
    let path = rig.path().to_str().unwrap().to_owned();
    assert_eq!(
        table
            .lines()
            .filter(|line| line.split(' ').nth(4) == Some(&path))
            .count(),
        1,
        "one mount, and no dead ones"
    );
}

/// Runs `action` while strace kills the daemon at its N-th call of one of `calls`. Returns whether
/// it was killed.
fn killed_at(rig: &mut Rig, calls: &str, nth: u32, action: impl FnOnce(&Rig)) -> bool {
    // No successor may take over.
    rig.mount.kill_holder();
    let log = rig.image.path().join("strace.log");
    let strace = Strace::kills(rig.mount.pid(), calls, nth, &log);
    action(rig);
    strace.has_killed(&rig.mount)
}

/// After a kill during an operation, a remount completes or undoes it.
fn a_kill_in_the_middle_of_an_operation_is_finished_or_undone(v: Variant) {
    if !have_strace() {
        return;
    }
    let mut rig = v.start();
    let root = rig.path().to_owned();
    let operations: [(&str, &str); 5] = [
        ("rename over a file", "mv -T x y"),
        ("unlink", "rm y"),
        ("rename of a directory", "mv d e"),
        ("rmdir", "rmdir empty"),
        (
            "exchange",
            "mv --exchange -T x y 2>/dev/null || python3 -c 'import os' && mv x z",
        ),
    ];
    for (what, script) in operations {
        for nth in 1..=4 {
            sh(
                &root,
                "rm -rf -- *; mkdir d empty; echo x > x; echo y > y; echo f > d/f",
            );
            let (id, was) = (rig.mount.checkpoint(), tree(&root));
            let died = killed_at(&mut rig, "renameat2,unlinkat", nth, |rig| {
                let _ = run_limited(tool("bash", &["-c", script]).current_dir(rig.path()), 60);
            });
            if !died {
                break;
            }
            rig.mount.kill();
            eprintln!(
                "{what}, killed at call {nth}: {}",
                fs::read_to_string(rig.image.path().join("strace.log")).unwrap()
            );
            rig.mount.remount();
            assert_tree_is(&rig.view(id), &was, &TreeOpts::default());
            assert_dirty_is_what_differs(&rig, id);
            let now: BTreeMap<_, _> = tree(&root);
            assert!(
                now.contains_key(Path::new("d/f")) || now.contains_key(Path::new("e/f")),
                "{what}: d/f is gone"
            );
            rig.mount.restore(id);
            assert_tree_is(&root, &was, &TreeOpts::default());
        }
    }
}

fn a_kill_in_the_middle_of_a_restore_is_finished_at_the_next_mount(v: Variant) {
    if !have_strace() {
        return;
    }
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            "mkdir -p a/b gone/deep moved; for f in 1 2 3; do echo $f > a/$f; echo $f > gone/deep/$f; done; echo m > moved/m; ln a/1 hard; ln -s a l",
        );
    });
    let root = rig.path().to_owned();
    let (id, was) = (rig.mount.checkpoint(), tree(&root));
    let mut kills = 0;
    for nth in (1..60).step_by(3) {
        sh(
            &root,
            "echo changed > a/1; rm a/2; rm -r gone; mv moved a/b/; echo new > new; mkdir -p n/n; echo n > n/n/f; chmod 700 a; ln -sfn b l; rm hard",
        );
        let then = tree(&root);
        let died = killed_at(
            &mut rig,
            "renameat2,unlinkat,linkat,mkdirat,fchmodat,fchownat,utimensat",
            nth,
            |rig| {
                let _ = rig.mount.run(&["restore", &id.to_string()]);
            },
        );
        if !died {
            assert_tree_is(&root, &was, &TreeOpts::default());
            break;
        }
        kills += 1;
        rig.mount.kill();
        rig.mount.remount();
        let guard = rig.mount.log_json()[0]["id"].as_u64().unwrap();
        if guard == id {
            // Another thread of the daemon made the call, before the restore began.
            assert_tree_is(&root, &then, &TreeOpts::default());
            rig.mount.restore(id);
            let guard = rig.mount.log_json()[0]["id"].as_u64().unwrap();
            rig.mount.ok(&["delete", "--yes", &guard.to_string()]);
        } else {
            assert_tree_is(&root, &was, &TreeOpts::default());
            assert_tree_is(&rig.view(guard), &then, &TreeOpts::default());
            rig.mount.ok(&["delete", "--yes", &guard.to_string()]);
        }
        assert_tree_is(&rig.view(id), &was, &TreeOpts::default());
        assert_eq!(
            names(root.join(".ckptfs/tmp/restore")),
            Vec::<String>::new()
        );
    }
    assert!(kills >= 3, "the restore was killed only {kills} times");
}

fn have_strace() -> bool {
    let found = crate::common::command::try_run_limited(&mut tool("strace", &["-V"]), 60)
        .is_ok_and(|output| output.status.success());
    if !found {
        crate::common::skip("strace is not installed");
    }
    found
}

fn unmounted_the_directory_is_plain_complete_and_current(v: Variant) {
    let (mut rig, states) = with_history(v);
    let root = rig.path().to_owned();
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(root.join("log"))
        .unwrap();
    log.write_all(b"line\n").unwrap();
    drop(log);
    let now = tree(&root);
    rig.mount.umount();
    assert_tree_is(&root, &now, &TreeOpts::default());
    assert!(!root.join(".snapshots").exists(), "only the store is left");
    rig.mount.remount();
    assert_tree_is(&root, &now, &TreeOpts::default());
    assert_history(&rig, &states);
}
