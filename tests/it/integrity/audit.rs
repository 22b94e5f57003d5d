//! The audit log: the journal records each operation with its time and requester.

use std::fs;
use std::os::unix::process::CommandExt;

use serde_json::Value;

use crate::common::command::check;
use crate::common::{MountOpts, Rig, Variant, for_each_variant, run_limited, tool};

for_each_variant! { xfs => what_was_asked_for_is_told_with_who_asked }

/// An unused user id.
const USER: u32 = 61_235;

fn what_was_asked_for_is_told_with_who_asked(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).arg("--allow-other"), |dir| {
        fs::write(dir.join("f"), "one").unwrap();
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    });
    let root = rig.path().to_owned();
    rig.mount
        .checkpoint_json(&["-m", "a note", "--tag", "v1", "--tag", "v2"]);
    // Another user makes a checkpoint with plain mkdir.
    let mut mkdir = tool("mkdir", &[root.join(".snapshots/theirs")]);
    assert!(run_limited(mkdir.uid(USER).gid(USER), 60).status.success());
    fs::remove_file(root.join(".snapshots/v2")).unwrap();
    fs::write(root.join("f"), "two").unwrap();
    rig.mount.ok(&["restore", "1", "--", "f"]);
    assert!(
        run_limited(&mut tool("rmdir", &[root.join(".snapshots/theirs")]), 60)
            .status
            .success()
    );
    let served = check(&root, &["ops", "--all"]).1;
    rig.mount.umount();
    let (status, told) = check(&root, &["ops", "--all"]);
    assert_eq!(status, 0);
    assert_eq!(
        told.as_array().unwrap()[..served.as_array().unwrap().len()],
        served.as_array().unwrap()[..],
        "mounted or not"
    );

    let events: Vec<&Value> = told.as_array().unwrap().iter().collect();
    let whats: Vec<&str> = events
        .iter()
        .map(|event| event["what"].as_str().unwrap())
        .collect();
    assert_eq!(
        whats,
        [
            "mount",
            "checkpoint",
            "checkpoint",
            "tag",
            "checkpoint",
            "restore",
            "restored",
            "delete",
            "unmount"
        ],
        "{told}"
    );
    assert_events(&events);
    let times: Vec<&str> = events
        .iter()
        .filter_map(|event| event["at"].as_str())
        .collect();
    assert!(
        times.len() >= events.len() - 1 && times.is_sorted(),
        "{told}"
    );
    assert!(
        events
            .iter()
            .filter(|event| event["by"].is_object())
            .all(|event| event["by"]["pid"].as_u64() > Some(0)),
        "{told}"
    );

    a_forged_name_is_found(&rig);
}

/// Asserts the fields and the requester of each event.
fn assert_events(events: &[&Value]) {
    let by = |at: usize| {
        (
            events[at]["by"]["uid"].as_u64(),
            events[at]["by"]["process"].as_str(),
        )
    };
    assert_eq!(
        (by(1), &events[1]["note"], &events[1]["tags"]),
        (
            (Some(0), Some("ckptfs")),
            &"a note".into(),
            &serde_json::json!(["v1", "v2"])
        )
    );
    assert_eq!(
        (by(2), &events[2]["tags"]),
        (
            (Some(u64::from(USER)), Some("mkdir")),
            &serde_json::json!(["theirs"])
        )
    );
    assert_eq!(
        (by(3).0, &events[3]["checkpoint"], &events[3]["tags"]),
        (Some(0), &1.into(), &serde_json::json!(["v1"]))
    );
    assert_eq!(
        (by(4), &events[4]["guard"]),
        ((Some(0), Some("ckptfs")), &1.into()),
        "the guard is the restorer's"
    );
    assert_eq!(
        (by(5), &events[5]["checkpoint"], &events[5]["guard"]),
        ((Some(0), Some("ckptfs")), &1.into(), &3.into())
    );
    assert_eq!(events[5]["paths"], serde_json::json!(["f"]));
    assert_eq!(
        (by(7), &events[7]["checkpoint"]),
        ((Some(0), Some("rmdir")), &2.into())
    );
}

/// A forged process name in the journal is detected.
fn a_forged_name_is_found(rig: &Rig) {
    let root = rig.path();
    let segment = root.join(".ckptfs/journal/00000001");
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes
        .windows(5)
        .position(|window| window == b"mkdir")
        .expect("the name of the process");
    bytes[at..at + 5].copy_from_slice(b"touch");
    fs::write(&segment, bytes).unwrap();
    let output = run_limited(&mut rig.mount.command(&["ops", "--all"]), 60);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(check(root, &["verify"]).0, 4);
}
