//! A volume from another volume or from a snapshot is a branch of it, and outlives it.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tonic::Code;

use crate::common::strace::Strace;
use crate::common::{scratch, skip};
use crate::csi::support::{Rig, class, code, from_snapshot, from_volume, unavailable, wanted};
use ckptfs_volumes::csi::proto::{
    CreateVolumeRequest, ListSnapshotsRequest, ListVolumesRequest, Volume,
};

/// Returns how a volume was created from its source.
fn made_as(volume: &Volume) -> &str {
    &volume.volume_context["clone"]
}

fn branches(rig: &Rig, volume: &str) -> Vec<String> {
    let all: Vec<Value> =
        serde_json::from_str(&rig.ok(&["--volume", volume, "branch", "list", "--json"])).unwrap();
    all.iter()
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

fn checkpoints(rig: &Rig, volume: &str) -> Vec<u64> {
    let log: Vec<Value> =
        serde_json::from_str(&rig.ok(&["--volume", volume, "log", "--json"])).unwrap();
    log.iter().map(|one| one["id"].as_u64().unwrap()).collect()
}

fn volumes(rig: &Rig) -> Vec<String> {
    let listed = rig
        .controller(
            |mut client| async move { client.list_volumes(ListVolumesRequest::default()).await },
        )
        .unwrap();
    let ids = listed.entries.into_iter();
    ids.map(|entry| entry.volume.unwrap().volume_id).collect()
}

fn snapshots(rig: &Rig) -> Vec<String> {
    let listed = rig
        .controller(|mut client| async move {
            client.list_snapshots(ListSnapshotsRequest::default()).await
        })
        .unwrap();
    let ids = listed.entries.into_iter();
    ids.map(|entry| entry.snapshot.unwrap().snapshot_id)
        .collect()
}

/// Returns the entries of the pool, except those under deletion in the background.
fn left(rig: &Rig) -> Vec<String> {
    let dirs = ["meta", "volumes", "staging", "mnt", "trash"];
    let mut all = Vec::new();
    for dir in dirs {
        let entries = fs::read_dir(rig.root.join(dir)).into_iter().flatten();
        all.extend(
            entries.map(|entry| format!("{dir}/{}", entry.unwrap().file_name().to_string_lossy())),
        );
    }
    all
}

#[track_caller]
fn reads(at: &Path, name: &str, text: &str) {
    assert_eq!(fs::read_to_string(at.join(name)).unwrap(), text);
}

#[test]
fn a_clone_is_a_branch_and_outlives_its_source() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let source = rig.use_it("v", "a");
    fs::create_dir(source.join("d")).unwrap();
    fs::write(source.join("d/f"), "source").unwrap();
    let made = rig.create_from("c", from_volume("v"));
    assert_eq!(made_as(&made), "branch");
    assert_eq!(rig.create_from("c", from_volume("v")), made);
    assert_eq!(branches(&rig, "v"), ["volume.c"]);
    let clone = rig.use_it("c", "b");
    fs::write(clone.join("d/f"), "clone").unwrap();
    fs::write(source.join("d/g"), "later").unwrap();
    reads(&source, "d/f", "source");
    assert!(!clone.join("d/g").exists());
    // The source is deleted before its clone, which stays usable.
    rig.leave("v", "a");
    assert!(rig.is_mounted("v"), "it serves the clone");
    rig.delete("v").unwrap();
    rig.delete("v").unwrap();
    assert_eq!(volumes(&rig), ["c"]);
    reads(&clone, "d/f", "clone");
    rig.leave("c", "b");
    assert!(!rig.is_mounted("v"), "the clone is no longer in use");
    let clone = rig.use_it("c", "b");
    reads(&clone, "d/f", "clone");
    assert_eq!(
        code(rig.delete("c")),
        Code::FailedPrecondition,
        "a pod uses it"
    );
    reads(&clone, "d/f", "clone");
    rig.leave("c", "b");
    rig.delete("c").unwrap();
    rig.delete("c").unwrap();
    assert_eq!(left(&rig), Vec::<String>::new(), "nothing is left");
}

#[test]
fn a_clone_of_a_snapshot_keeps_it_after_its_deletion() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let source = rig.use_it("v", "a");
    fs::write(source.join("f"), "old").unwrap();
    let snapshot = rig.snapshot("v", "s").snapshot_id;
    fs::write(source.join("f"), "new").unwrap();
    for name in ["c", "e"] {
        let made = rig.create_from(name, from_snapshot(&snapshot));
        assert_eq!(made_as(&made), "branch");
    }
    reads(&rig.use_it("c", "b"), "f", "old");
    rig.delete_snapshot(&snapshot).unwrap();
    rig.delete_snapshot(&snapshot).unwrap();
    assert_eq!(snapshots(&rig), Vec::<String>::new());
    let again = CreateVolumeRequest {
        volume_content_source: from_snapshot(&snapshot),
        ..wanted("late", 0)
    };
    assert_eq!(code(rig.try_create(again)), Code::NotFound);
    // The name can be used again for another state.
    let second = rig.snapshot("v", "s").snapshot_id;
    assert_ne!(second, snapshot);
    rig.create_from("n", from_snapshot(&second));
    reads(&rig.use_it("n", "b"), "f", "new");
    reads(&rig.staging("c"), "f", "old");
    rig.leave("c", "b");
    rig.delete("c").unwrap();
    assert_eq!(checkpoints(&rig, "v").len(), 2, "the other clone needs it");
    rig.delete("e").unwrap();
    assert_eq!(checkpoints(&rig, "v").len(), 1);
    rig.leave("n", "b");
    rig.delete("n").unwrap();
    assert_eq!(snapshots(&rig), std::slice::from_ref(&second));
    // A checkpoint made only for a clone is deleted with it.
    rig.create_from("c", from_volume("v"));
    assert_eq!(checkpoints(&rig, "v").len(), 2);
    rig.delete("c").unwrap();
    assert_eq!(checkpoints(&rig, "v").len(), 1);
    rig.leave("v", "a");
    rig.delete_snapshot(&second).unwrap();
    rig.delete("v").unwrap();
    assert_eq!(left(&rig), Vec::<String>::new());
}

/// Branches nest up to 8 deep. A deeper clone is a copy, which is a root again.
#[test]
fn clones_of_clones_are_branches_until_they_are_too_deep() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("c0");
    fs::write(rig.use_it("c0", "a").join("f"), "0").unwrap();
    for depth in 1..=10 {
        let (from, name) = (format!("c{}", depth - 1), format!("c{depth}"));
        let made = rig.create_from(&name, from_volume(&from));
        let how = if depth == 9 { "copy" } else { "branch" };
        assert_eq!(made_as(&made), how, "{name}");
        if depth == 8 {
            let at = rig.use_it(&name, "a");
            reads(&at, "f", "0");
            fs::write(at.join("f"), "8").unwrap();
            rig.leave(&name, "a");
        }
    }
    rig.leave("c0", "a");
    assert!(!rig.is_mounted("c0"));
    // Each is retained for the next.
    for depth in 0..10 {
        rig.delete(&format!("c{depth}")).unwrap();
    }
    assert_eq!(volumes(&rig), ["c10"]);
    assert!(
        !rig.root.join("meta/c8.json").exists(),
        "the copy needs no checkpoint"
    );
    // A deep clone supports snapshots, and only it is in use.
    let at = rig.use_it("c10", "a");
    reads(&at, "f", "8");
    let snapshot = rig.snapshot("c10", "s").snapshot_id;
    fs::write(at.join("f"), "changed").unwrap();
    rig.create_from("last", from_snapshot(&snapshot));
    reads(&rig.use_it("last", "a"), "f", "8");
    rig.leave("c10", "a");
    reads(&rig.staging("last"), "f", "8");
    rig.delete("c10").unwrap();
    rig.delete_snapshot(&snapshot).unwrap();
    reads(&rig.staging("last"), "f", "8");
    rig.leave("last", "a");
    assert!(!rig.is_mounted("c9"));
    rig.delete("last").unwrap();
    assert_eq!(left(&rig), Vec::<String>::new());
}

#[test]
fn what_cannot_be_a_branch_is_a_copy() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    fs::write(rig.use_it("v", "a").join("f"), "x").unwrap();
    // A branch of the source has that name.
    rig.ok(&["--volume", "v", "branch", "create", "volume.taken"]);
    type Parameters = [(&'static str, &'static str)];
    let classes: [(&str, &Parameters, &str); 5] = [
        ("taken", &[], "copy"),
        ("sized", &[("size", "300M")], "copy"),
        ("kept", &[("on-remove", "trash")], "copy"),
        ("timed", &[("auto", "1h")], "copy"),
        ("owned", &[("mode", "0700"), ("keep", "1d")], "branch"),
    ];
    for (name, parameters, how) in classes {
        let made = rig.try_create(CreateVolumeRequest {
            parameters: class(parameters),
            volume_content_source: from_volume("v"),
            ..wanted(name, 0)
        });
        assert_eq!(made_as(&made.unwrap()), how, "{name}");
        reads(&rig.use_it(name, "a"), "f", "x");
    }
    let owned = rig.target("owned", "a");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(owned).unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o700);
    // A branch that the source itself created prevents its deletion.
    rig.leave("v", "a");
    assert_eq!(code(rig.delete("v")), Code::FailedPrecondition);
}

/// Kubernetes generates names, but another orchestrator may reuse one.
#[test]
fn the_name_of_a_volume_that_is_kept_for_its_clones_is_free() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    for name in ["v", "a/b ..\u{1}ä"] {
        let first = rig.create(name).volume_id;
        fs::write(rig.use_it(&first, "a").join("f"), "first").unwrap();
        let clone = rig.create_from(&format!("clone of {name}"), from_volume(&first));
        rig.leave(&first, "a");
        rig.delete(&first).unwrap();
        let second = rig.create(name).volume_id;
        assert_ne!(first, second);
        assert_eq!(fs::read_dir(rig.use_it(&second, "a")).unwrap().count(), 0);
        reads(&rig.use_it(&clone.volume_id, "a"), "f", "first");
        rig.leave(&clone.volume_id, "a");
        rig.delete(&clone.volume_id).unwrap();
        assert_eq!(rig.create(name).volume_id, second, "the repeated request");
        rig.leave(&second, "a");
        rig.delete(&second).unwrap();
    }
    assert_eq!(left(&rig), Vec::<String>::new());
}

/// A kill is simulated: the last call has taken effect, but the record shows the state before it.
#[test]
fn what_a_kill_leaves_of_a_clone_is_finished_or_taken_back() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    rig.create("v");
    fs::write(rig.use_it("v", "a").join("f"), "x").unwrap();
    rig.create_from("c", from_volume("v"));
    rig.create_from("e", from_volume("v"));
    // The branches exist, but their records do not show it yet.
    let unfinished = |rig: &Rig, name: &str| {
        let mut record = rig.record(name);
        record["removing"] = true.into();
        fs::write(rig.record_path(name), record.to_string()).unwrap();
    };
    unfinished(&rig, "c");
    let base = checkpoints(&rig, "v");
    fs::write(rig.staging("v").join("f"), "y").unwrap();
    let made = rig.create_from("c", from_volume("v"));
    assert_eq!(made_as(&made), "branch");
    reads(&rig.use_it("c", "a"), "f", "y");
    assert_eq!(checkpoints(&rig, "v").len(), base.len(), "{base:?}");
    rig.leave("c", "a");
    // Without a retry, the next driver removes it.
    unfinished(&rig, "e");
    rig.kill();
    rig.serve();
    crate::common::wait_until("the pool is cleaned up", || !rig.record_path("e").exists());
    assert_eq!(branches(&rig, "v"), ["volume.c"]);
    // The branch was dropped, and the record remains.
    rig.ok(&["--volume", "v", "branch", "drop", "volume.c"]);
    rig.delete("c").unwrap();
    let dropped = rig.ok(&["--volume", "v", "branch", "list", "--dropped", "--json"]);
    assert_eq!(dropped.trim(), "[]", "it is freed");
    // The clone was removed, but not its source, which was deleted earlier.
    rig.create_from("c", from_volume("v"));
    rig.leave("v", "a");
    rig.delete("v").unwrap();
    rig.kill();
    rig.ok(&["volumes", "rm", "-y", "c"]);
    assert_eq!(left(&rig), Vec::<String>::new());
}

/// Returns the number of system calls of a volume's daemon during a clone, and the inodes it
/// consumes, for a volume with `files` files.
fn cost(files: usize) -> Option<(usize, u64)> {
    let rig = Rig::start();
    rig.create("v");
    let source = rig.use_it("v", "a");
    for number in 0..files {
        let dir = source.join(format!("d{}", number / 100));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(number.to_string()), "x").unwrap();
    }
    // The first clone settles recent writes, which would affect the measurement.
    rig.create_from("first", from_volume("v"));
    let status: Value =
        serde_json::from_str(&rig.ok(&["--volume", "v", "status", "--json"])).unwrap();
    let pid = u32::try_from(status["daemon"]["pid"].as_u64().unwrap()).unwrap();
    let inodes = || {
        let found = rustix::fs::statvfs(rig.disk()).unwrap();
        found.f_files - found.f_ffree
    };
    let dir = scratch();
    let log = dir.path().join("log");
    let before = inodes();
    let strace = Strace::watch(pid, "openat,openat2,ioctl,mkdirat,getdents64,statx", &log)?;
    let made = rig.create_from("c", from_volume("v"));
    drop(strace);
    assert_eq!(made_as(&made), "branch");
    let after = inodes();
    let calls = fs::read_to_string(&log).unwrap().lines().count();
    Some((calls, after.saturating_sub(before)))
}

#[test]
fn a_clone_costs_the_same_whatever_the_number_of_files() {
    if unavailable() {
        return;
    }
    let Some(few) = cost(10) else {
        return skip("strace cannot trace the daemon");
    };
    let many = cost(2000).expect("strace could trace it before");
    assert!(few.0 > 0);
    // Tolerates calls of other threads; a call for every tenth file would be detected.
    assert!(many.0 < few.0 + 200, "{few:?} {many:?}");
    assert!(many.1 < few.1 + 100, "{few:?} {many:?}");
}
