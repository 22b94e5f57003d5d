//! Exports to a directory.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::support::{assert_is, copies, copy_at, history};
use crate::common::command::sh;
use crate::common::tree::tree;
use crate::common::wait::wait_until;
use crate::common::{Io, MountOpts, Rig, Variant, for_each_variant, sample_tree, scratch};

fn start(v: Variant) -> Rig {
    v.start_with(MountOpts::new(v.io), sample_tree)
}

fn export(rig: &Rig, id: u64, dest: &Path) -> serde_json::Value {
    rig.mount
        .json(&["export", &id.to_string(), &dest.display().to_string()])
}

/// Forward, across several states, backward, and to a filesystem that shares no extents with the
/// tree's.
fn an_export_is_the_tree_and_goes_on_from_any_other(v: Variant) {
    let rig = start(v);
    let history = history(&rig);
    let far = scratch();
    let (near, far) = (copies(&rig).join("near"), far.path().join("copy"));
    let mut before: Option<u64> = None;
    for step in [0, 1, 2, 3, 4, 1, 0, 4] {
        let (id, expected) = &history[step];
        let said = export(&rig, *id, &near);
        assert_eq!(
            (&said["from"], &said["refused"]),
            (&serde_json::json!(before), &serde_json::json!([])),
            "{said}"
        );
        assert_is(&near, expected);
        assert_eq!(
            rig.mount.ok(&[
                "export",
                "--check",
                &id.to_string(),
                &near.display().to_string()
            ]),
            ""
        );
        if v.fs.has_reflink() && before.is_none() {
            assert!(
                said["cloned"].as_u64() > Some(300) && said["copied"] == 0,
                "{said}"
            );
        }
        before = Some(*id);
    }
    for step in [0, 4, 2] {
        let said = export(&rig, history[step].0, &far);
        assert_eq!(said["cloned"], 0, "{said}");
        assert_is(&far, &history[step].1);
    }
}

/// Unchanged files keep their inodes and ctimes.
fn only_what_changed_is_touched(v: Variant) {
    let rig = start(v);
    let dest = copies(&rig).join("c");
    let first = rig.mount.checkpoint();
    export(&rig, first, &dest);
    let stamp = |name: &str| {
        fs::symlink_metadata(dest.join(name))
            .map(|meta| (meta.ino(), meta.ctime(), meta.ctime_nsec()))
            .expect("stat")
    };
    let names = [
        "wide/file-100",
        "deep/er/and/deeper/leaf",
        "links/same-as-plain",
        "wide",
        "deep",
        "fifo",
    ];
    let (before, changed) = (names.map(stamp), stamp("wide/file-101"));
    sh(rig.path(), "echo more >> wide/file-101");
    let second = rig.mount.checkpoint();
    let told = rig.mount.json(&[
        "export",
        "-n",
        &second.to_string(),
        &dest.display().to_string(),
    ]);
    assert_eq!(
        (
            told["made"].as_u64(),
            told["removed"].as_u64(),
            told["dry_run"].as_bool()
        ),
        (Some(2), Some(0), Some(true)),
        "{told}"
    );
    let said = export(&rig, second, &dest);
    assert_eq!(said["from"], first);
    let after = names.map(stamp);
    // The directory of the replaced file has its times set.
    assert_eq!((&before[..3], &before[4..]), (&after[..3], &after[4..]));
    assert_ne!(changed, stamp("wide/file-101"));
    assert_is(&dest, &tree(rig.path()));
}

/// Failed before: XFS reused the inode number of a directory removed during an absence; the names
/// in the new directory had no record and were missing from the copy.
fn a_directory_with_the_number_of_a_removed_one_is_exported_whole(v: Variant) {
    let mut rig = start(v);
    let dest = copies(&rig).join("c");
    sh(rig.path(), "for n in $(seq 64); do mkdir r$n; done");
    let number = |dir: &Path| fs::metadata(dir).expect("stat").ino();
    let dirs = (1..=64).map(|n| rig.path().join(format!("r{n}")));
    let before: HashMap<u64, PathBuf> = dirs.map(|dir| (number(&dir), dir)).collect();
    let first = rig.mount.checkpoint();
    export(&rig, first, &dest);
    rig.mount.umount();
    sh(rig.path(), "rm -r r*");
    rig.mount.remount();
    // The filesystem reuses the numbers with a delay, after other free ones.
    let mut made = 0;
    let mut next = || {
        made += 1;
        let next = rig.path().join(format!("next-{made}"));
        fs::create_dir(&next).expect("mkdir");
        let dir = before.get(&number(&next))?;
        fs::rename(&next, dir).expect("renamed");
        Some(dir)
    };
    let mut dir = None;
    wait_until("an inode number is reused", || {
        dir = next();
        dir.is_some()
    });
    fs::write(dir.expect("it was found").join("new"), "new").expect("written");
    let second = rig.mount.checkpoint();
    export(&rig, second, &dest);
    assert_is(&dest, &tree(rig.path()));
    export(&rig, first, &dest);
    assert_is(&dest, &tree(&rig.mount.view(first)));
}

/// A killed export is repeated, also into a directory in an arbitrary state.
fn an_interrupted_export_is_finished_by_the_next(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sample_tree(dir);
        sh(dir, "for d in $(seq 40); do mkdir m$d; for f in $(seq 40); do echo $d $f > m$d/$f; done; done");
    });
    let first = rig.mount.checkpoint();
    let dest = copies(&rig).join("c");
    for entries in [1, 30] {
        let mut command =
            rig.mount
                .command(&["export", &first.to_string(), &dest.display().to_string()]);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        while fs::read_dir(&dest).map_or(0, Iterator::count) < entries
            && child.try_wait().expect("wait").is_none()
        {}
        let _ = child.kill();
        let _ = child.wait();
    }
    export(&rig, first, &dest);
    assert_is(&dest, &tree(rig.path()));
    sh(
        rig.path(),
        "rm -r m1 m2; mkdir x; echo new > m3/1; ln m3/2 x/linked",
    );
    let second = rig.mount.checkpoint();
    sh(
        &dest,
        "rm -r m4; echo dirt > m5/1; echo dirt > dirt; mkdir m6/d; ln m7/1 m7/more; rm m8/1; mkdir m8/1; : > .ckptfs-export-1-1; chmod 0 m9",
    );
    let mark = "setfattr -n user.ckptfs.export -v \"$(getfattr --only-values -n user.ckptfs.export . | sed s/whole/begun/)\" .";
    sh(&dest, mark);
    let said = export(&rig, second, &dest);
    assert!(said["from"].is_null(), "{said}");
    assert_is(&dest, &tree(rig.path()));
    assert_eq!(export(&rig, second, &dest)["from"], second);
}

/// `--check` reports every path changed in the copy, and `--full` restores them.
fn changes_to_the_copy_are_found_when_asked_for(v: Variant) {
    let rig = start(v);
    let id = rig.mount.checkpoint().to_string();
    let dest = copies(&rig).join("c");
    let at = dest.display().to_string();
    rig.mount.ok(&["export", &id, &at]);
    sh(
        &dest,
        "touch -r wide/file-001 r; printf Y > wide/file-001; touch -r r wide/file-001; rm r wide/file-002; touch -r plain.txt r; cp -p links/same-again t; mv t links/same-again; rm r",
    );
    let found = rig.mount.run(&["export", "--check", &id, &at]);
    let found = (
        found.status.code(),
        String::from_utf8(found.stdout).expect("text"),
    );
    for path in ["wide/file-001\n", "wide/file-002\n", "links/same-again\n"] {
        assert!(
            found.0 == Some(1) && found.1.contains(path),
            "{path} {found:?}"
        );
    }
    let untouched = copy_at(&dest);
    rig.mount.ok(&["export", &id, &at]);
    assert_eq!(
        untouched.get(Path::new("wide/file-001")),
        copy_at(&dest).get(Path::new("wide/file-001")),
        "without --full no file is examined"
    );
    // A changed byte with the same size and times is found only by `--check`; other differences are
    // repaired.
    sh(&dest, "touch wide/file-001");
    rig.mount.ok(&["export", "--full", &id, &at]);
    assert_is(&dest, &tree(rig.path()));
}

/// A clone of a live file counts only after a check that the file was unchanged. This test provokes
/// the change deterministically.
fn what_changes_while_it_is_exported_is_given_again(v: Variant) {
    use ckptfs_api::Client;
    use ckptfs_api::ExportAsk;
    use ckptfs_api::StateName;
    let rig = start(v);
    let id = rig.mount.checkpoint();
    let store = ckptfs_sys::host::open_dir_path(&rig.path().join(".ckptfs")).expect("the store");
    let mut client = Client::connect(&store).expect("connect");
    let (begun, _) = client
        .ask_with_files(ExportAsk::Begin {
            state: StateName(id.to_string()),
            from: None,
        })
        .expect("begins");
    let (mut given, mut done, mut changed, mut again) = (0, Vec::new(), false, Vec::new());
    loop {
        let (part, files) = client
            .ask_with_files(ExportAsk::Next {
                run: begun.run,
                done: std::mem::take(&mut done),
            })
            .expect("part");
        if part.finished {
            break;
        }
        done.extend((part.part > 0).then_some(part.part));
        let mut files = files.into_iter();
        for entry in part.entries {
            let file = (entry.data == ckptfs_api::ExportData::File)
                .then(|| files.next().expect("a descriptor"));
            given += 1;
            let begins = || {
                let mut bytes = [0; 16];
                let read = ckptfs_sys::read_full_at(file.as_ref().expect("a file"), &mut bytes, 0)
                    .expect("read");
                bytes[..read].to_vec()
            };
            if entry.path.0 == b"wide/file-123" && !entry.again {
                // Sent, and changed before the confirmation.
                fs::write(rig.path().join("wide/file-123"), "changed").expect("write");
                changed = true;
                assert_eq!(begins(), b"changed", "the live file was sent");
            } else if entry.again {
                again.push((
                    String::from_utf8_lossy(&entry.path.0).into_owned(),
                    begins(),
                ));
            }
        }
    }
    assert!(changed && given > 300);
    assert_eq!(again, [("wide/file-123".to_owned(), b"123".to_vec())]);
    // Resources of the export are released when its connection closes.
    drop(client);
    let mut other = Client::connect(&store).expect("connect");
    wait_until("the export is no longer registered", || {
        let done = Vec::new();
        let next = ExportAsk::Next {
            run: begun.run,
            done,
        };
        other.ask_with_files(next).is_err()
    });
}

/// The same with the program and continuous writers.
fn writers_do_not_reach_an_export(v: Variant) {
    let rig = start(v);
    let expected = tree(rig.path());
    let id = rig.mount.checkpoint();
    let dest = copies(&rig);
    let writers = "while [ -e go ]; do for f in wide/file-*; do echo changed > $f; done; for f in wide/file-1*; do mv $f $f.x; done; rm -f wide/*.x; \
        mkdir -p wide/d; for i in $(seq 100); do echo $i > wide/file-1$i; done; chmod 600 wide/file-2*; ln -f binary wide/b; rm -r deep 2>/dev/null || true; done";
    fs::write(rig.path().join("go"), "").expect("go");
    let mut child = crate::common::tool("bash", &["-c", writers])
        .current_dir(rig.path())
        .spawn()
        .expect("spawn");
    for round in 0..3 {
        export(&rig, id, &dest.join(round.to_string()));
    }
    fs::remove_file(rig.path().join("go")).expect("stop");
    child.wait().expect("the writers exit");
    for round in 0..3 {
        assert_is(&dest.join(round.to_string()), &expected);
    }
}

/// A fork is independent; with `--mount` it has its own history.
fn a_fork_is_independent(v: Variant) {
    let rig = start(v);
    let history = history(&rig);
    let fork = copies(&rig).join("fork");
    let at = fork.display().to_string();
    rig.mount.ok(&["fork", &history[1].0.to_string(), &at]);
    assert_is(&fork, &history[1].1);
    sh(
        &fork,
        "[ -z \"$(getfattr -m ckptfs . 2>/dev/null)\" ]; echo changed > plain.txt; rm -r wide",
    );
    assert_is(
        &{
            let again = copies(&rig).join("again");
            rig.mount.ok(&[
                "fork",
                &history[1].0.to_string(),
                &again.display().to_string(),
            ]);
            again
        },
        &history[1].1,
    );
    let said = rig.mount.run(&["fork", "1", &at]);
    assert!(
        !said.status.success() && String::from_utf8_lossy(&said.stderr).contains("is not empty")
    );
    if v.io == Io::Passthrough {
        let mounted = copies(&rig).join("mounted");
        let at = mounted.display().to_string();
        rig.mount.ok(&["fork", "1", &at, "--mount"]);
        sh(
            &mounted,
            "\"$0\" checkpoint"
                .replace("$0", env!("CARGO_BIN_EXE_ckptfs"))
                .as_str(),
        );
        let unmounted = rig.mount.run(&["umount", &at]);
        assert!(
            unmounted.status.success(),
            "{}",
            String::from_utf8_lossy(&unmounted.stderr)
        );
    }
}

for_each_variant! { xfs =>
    a_directory_with_the_number_of_a_removed_one_is_exported_whole,
    only_what_changed_is_touched,
    an_interrupted_export_is_finished_by_the_next,
    changes_to_the_copy_are_found_when_asked_for,
    a_fork_is_independent,
}
for_each_variant! { reflink => what_changes_while_it_is_exported_is_given_again }
for_each_variant! { all => an_export_is_the_tree_and_goes_on_from_any_other }
for_each_variant! { xfs => writers_do_not_reach_an_export }
