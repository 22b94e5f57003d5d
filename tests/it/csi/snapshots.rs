//! Snapshots are checkpoints: consistent while pods write, ready at once, and preserved until they
//! are deleted.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tonic::Code;

use crate::csi::support::{NODE, Rig, code, from_snapshot, from_volume, unavailable, wanted};
use ckptfs_volumes::csi::proto::{CreateVolumeRequest, GetSnapshotRequest, ListSnapshotsRequest};

/// Returns the numbers in two files that a writer increments, the first before the second.
fn pair(dir: &std::path::Path) -> (u64, u64) {
    let number = |name: &str| {
        fs::read_to_string(dir.join(name))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    (number("first"), number("second"))
}

/// Failed before: a checkpoint that a program in the volume made, with the tag of the driver, was
/// used as the snapshot, with content of another time.
#[test]
fn a_checkpoint_of_somebody_else_is_no_snapshot() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let at = rig.use_it("v", "pod");
    fs::create_dir(at.join(".snapshots/csi.s")).unwrap();
    assert!(rig.try_snapshot("v", "s").is_err());
    fs::remove_dir(at.join(".snapshots/csi.s")).unwrap();
    let made = rig.snapshot("v", "s");
    assert_eq!(rig.snapshot("v", "s").snapshot_id, made.snapshot_id);
}

#[test]
fn a_snapshot_of_a_volume_under_write_is_one_instant() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let at = rig.use_it("v", "pod");
    // Overwritten in place, as by a database; ten digits, so that no write extends a file.
    let write = |number: u64| {
        ["first", "second"]
            .iter()
            .for_each(|name| overwrite(&at.join(name), number))
    };
    write(0);
    let stop = AtomicBool::new(false);
    let made: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..)
                .take_while(|_| !stop.load(Ordering::SeqCst))
                .for_each(write)
        });
        let made = (0..5)
            .map(|number| rig.snapshot("v", &format!("s{number}")))
            .collect();
        stop.store(true, Ordering::SeqCst);
        made
    });
    let mut before = 0;
    for snapshot in &made {
        assert!(snapshot.ready_to_use && snapshot.source_volume_id == "v");
        let name = format!("restored-{}", snapshot.snapshot_id.replace('@', "-"));
        rig.create_from(&name, from_snapshot(&snapshot.snapshot_id));
        let (first, second) = pair(&rig.use_it(&name, "reader"));
        assert!(
            first == second || first == second + 1,
            "{first} {second}: not the same instant"
        );
        assert!(first >= before, "snapshots are in order");
        before = first;
        rig.leave(&name, "reader");
        rig.delete(&name).unwrap();
    }
    assert_eq!(pair(&at).0, pair(&at).1, "the volume itself continued");
    rig.leave("v", "pod");
}

fn overwrite(path: &std::path::Path, number: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .unwrap();
    file.write_all_at(format!("{number:010}").as_bytes(), 0)
        .unwrap();
}

#[test]
fn a_volume_of_a_snapshot_has_its_bytes_and_outlives_it() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let at = rig.use_it("v", "pod");
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/f"), "old").unwrap();
    let snapshot = rig.snapshot("v", "before");
    fs::write(at.join("d/f"), "new").unwrap();
    fs::remove_dir_all(at.join("d")).unwrap();
    let made = rig.create_from("restored", from_snapshot(&snapshot.snapshot_id));
    assert_eq!(made.content_source, from_snapshot(&snapshot.snapshot_id));
    rig.delete_snapshot(&snapshot.snapshot_id).unwrap();
    assert_eq!(
        code(
            rig.try_create(ckptfs_volumes::csi::proto::CreateVolumeRequest {
                volume_content_source: from_snapshot(&snapshot.snapshot_id),
                ..wanted("late", 0)
            })
        ),
        Code::NotFound
    );
    let restored = rig.use_it("restored", "pod");
    assert_eq!(fs::read(restored.join("d/f")).unwrap(), b"old");
    fs::write(restored.join("d/f"), "its own").unwrap();
    assert_eq!(
        fs::read_dir(&at).unwrap().count(),
        0,
        "writes to it are not visible here"
    );
    // A clone contains the current state.
    fs::write(at.join("g"), "now").unwrap();
    rig.create_from("copy", from_volume("v"));
    fs::write(at.join("g"), "later").unwrap();
    assert_eq!(
        fs::read(rig.use_it("copy", "pod").join("g")).unwrap(),
        b"now"
    );
}

#[test]
fn a_volume_is_deleted_before_its_snapshots_and_they_go_on() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    fs::write(rig.use_it("v", "pod").join("f"), "kept").unwrap();
    let (first, second) = (rig.snapshot("v", "a"), rig.snapshot("v", "b"));
    assert_eq!(
        code(rig.delete("v")),
        Code::FailedPrecondition,
        "a pod uses it"
    );
    rig.leave("v", "pod");
    rig.delete("v").unwrap();
    rig.delete("v").unwrap();
    let volumes = rig
        .controller(|mut client| async move {
            client
                .list_volumes(ckptfs_volumes::csi::proto::ListVolumesRequest::default())
                .await
        })
        .unwrap();
    assert!(volumes.entries.is_empty());
    assert_eq!(
        code(rig.try_stage(
            "v",
            ckptfs_volumes::csi::proto::volume_capability::access_mode::Mode::SingleNodeWriter
        )),
        Code::NotFound
    );
    assert_eq!(code(rig.try_snapshot("v", "c")), Code::NotFound);
    let listed = list(&rig, ListSnapshotsRequest::default());
    assert_eq!(
        listed,
        [first.snapshot_id.clone(), second.snapshot_id.clone()]
    );
    rig.create_from("restored", from_snapshot(&first.snapshot_id));
    assert_eq!(
        fs::read(rig.use_it("restored", "pod").join("f")).unwrap(),
        b"kept"
    );
    rig.leave("restored", "pod");
    rig.delete("restored").unwrap();
    rig.delete_snapshot(&first.snapshot_id).unwrap();
    assert!(rig.root.join("meta/v.json").exists());
    rig.delete_snapshot(&second.snapshot_id).unwrap();
    assert!(
        !rig.root.join("meta/v.json").exists() && !rig.root.join("volumes/v").exists(),
        "it is removed with the last of them"
    );
    rig.delete_snapshot(&second.snapshot_id).unwrap();
}

fn list(rig: &Rig, request: ListSnapshotsRequest) -> Vec<String> {
    let listed = rig
        .controller(|mut client| async move { client.list_snapshots(request).await })
        .unwrap();
    listed
        .entries
        .into_iter()
        .map(|entry| entry.snapshot.expect("a snapshot").snapshot_id)
        .collect()
}

#[test]
fn a_snapshot_is_a_pinned_checkpoint_with_its_name_and_time() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    // The volume is not staged: it is mounted for the snapshot, and unmounted again.
    let snapshot = rig.snapshot("v", "nightly/ä");
    assert!(!rig.is_mounted("v"));
    assert_eq!(
        rig.snapshot("v", "nightly/ä"),
        snapshot,
        "the repeated request returns the same"
    );
    rig.create("w");
    assert_eq!(
        code(rig.try_snapshot("w", "nightly/ä")),
        Code::AlreadyExists
    );
    assert_eq!(code(rig.try_snapshot("nothing", "x")), Code::NotFound);
    let log: Vec<Value> =
        serde_json::from_str(&rig.ok(&["--volume", "v", "log", "--json"])).unwrap();
    assert_eq!(log.len(), 1, "{log:?}");
    let time = snapshot.creation_time.unwrap();
    let told: jiff::Timestamp = log[0]["created"].as_str().unwrap().parse().unwrap();
    assert_eq!(
        (time.seconds, time.nanos),
        (told.as_second(), told.subsec_nanosecond())
    );
    assert_eq!(snapshot.snapshot_id, format!("v@{}@{NODE}", log[0]["id"]));
    assert!(log[0]["note"].as_str().unwrap().contains("nightly/ä"));
    let refused = rig.refused(&["--volume", "v", "delete", "1"]);
    assert!(refused.contains("pinned"), "{refused}");
    rig.delete_snapshot("v@1").unwrap();
    assert_eq!(rig.ok(&["--volume", "v", "log", "--json"]).trim(), "[]");
    assert_eq!(
        rig.snapshot("v", "nightly/ä").snapshot_id,
        "v@2@node-1",
        "the name is reused, and the number is not"
    );
    // Deleting a nonexistent snapshot succeeds.
    for none in ["v@1", "v@99", "nothing@1", "nonsense", "../v@1"] {
        rig.delete_snapshot(none).unwrap();
    }
    assert_eq!(code(rig.delete_snapshot("")), Code::InvalidArgument);
}

#[test]
fn a_checkpoint_that_somebody_made_is_a_snapshot_for_whoever_knows_its_number() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    fs::write(rig.use_it("v", "pod").join("f"), "mine").unwrap();
    rig.ok(&["--volume", "v", "checkpoint", "-m", "by hand"]);
    let of_v = || ListSnapshotsRequest {
        source_volume_id: "v".into(),
        ..ListSnapshotsRequest::default()
    };
    assert_eq!(list(&rig, of_v()), Vec::<String>::new());
    assert_eq!(
        list(
            &rig,
            ListSnapshotsRequest {
                snapshot_id: "v@1".into(),
                ..ListSnapshotsRequest::default()
            }
        ),
        ["v@1"]
    );
    let get = |id: &str| {
        let request = GetSnapshotRequest {
            snapshot_id: id.to_owned(),
            ..GetSnapshotRequest::default()
        };
        rig.controller(|mut client| async move { client.get_snapshot(request).await })
    };
    assert!(get("v@1").unwrap().snapshot.unwrap().ready_to_use);
    assert_eq!(code(get("v@2")), Code::NotFound);
    rig.create_from("restored", from_snapshot("v@1"));
    assert_eq!(
        fs::read(rig.use_it("restored", "pod").join("f")).unwrap(),
        b"mine"
    );
    rig.ok(&["--volume", "v", "pin", "1"]);
    assert_eq!(
        code(rig.delete_snapshot("v@1")),
        Code::FailedPrecondition,
        "another user has pinned it"
    );
}

#[test]
fn lists_come_in_pages() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let _pod = rig.use_it("v", "pod");
    let made: Vec<String> = (0..5)
        .map(|number| rig.snapshot("v", &format!("s{number}")).snapshot_id)
        .collect();
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let request = ListSnapshotsRequest {
            max_entries: 2,
            starting_token: token,
            ..ListSnapshotsRequest::default()
        };
        let page = rig
            .controller(|mut client| async move { client.list_snapshots(request).await })
            .unwrap();
        assert!(page.entries.len() <= 2);
        seen.extend(
            page.entries
                .into_iter()
                .map(|entry| entry.snapshot.unwrap().snapshot_id),
        );
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, made);
    let request = ListSnapshotsRequest {
        starting_token: "nonsense".into(),
        ..ListSnapshotsRequest::default()
    };
    assert_eq!(
        code(rig.controller(|mut client| async move { client.list_snapshots(request).await })),
        Code::Aborted
    );
}

/// Failed before: the provisioner of another node received NotFound and retried forever, instead of
/// scheduling the pod on the snapshot's node.
#[test]
fn a_snapshot_of_another_node_says_so() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let here = rig.snapshot("v", "a").snapshot_id;
    assert_eq!(here, format!("v@1@{NODE}"));
    let there = "v@1@node-2";
    let create = |id: &str| {
        let request = CreateVolumeRequest {
            volume_content_source: from_snapshot(id),
            ..wanted("restored", 0)
        };
        rig.controller(|mut client| async move { client.create_volume(request).await })
    };
    let refused = create(there).unwrap_err();
    assert!(
        refused.code() == Code::ResourceExhausted && refused.message().contains("node-2"),
        "{refused}"
    );
    let deleted = rig.delete_snapshot(there).unwrap_err();
    assert_eq!(
        deleted.code(),
        Code::FailedPrecondition,
        "if reported as deleted, it would stay forever"
    );
    assert_eq!(
        list(
            &rig,
            ListSnapshotsRequest {
                snapshot_id: there.into(),
                ..ListSnapshotsRequest::default()
            }
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        list(&rig, ListSnapshotsRequest::default()),
        std::slice::from_ref(&here)
    );
    // An id entered by hand may omit the node; repeating the request returns the same volume.
    let made = create("v@1").unwrap();
    assert_eq!(create("v@1").unwrap(), made);
    rig.delete_snapshot(&here).unwrap();
}
