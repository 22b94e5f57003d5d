//! A branch of a volume as a volume: `VOLUME@branch/NAME`.

use std::fs;

use serde_json::json;

use crate::volumes::support::{Container, Rig, unavailable};

fn names(told: &serde_json::Value) -> String {
    told["branches"].to_string()
}

#[test]
fn a_branch_is_made_by_its_first_mount_and_dropped_by_its_removal() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    fs::write(rig.mount("v", "a").join("f"), "volume").unwrap();
    rig.unmount("v", "a");
    // An engine calls Get before Mount, so a container need not name a driver.
    let told = rig.done("Get", &json!({"Name": "v@branch/try"}))["Volume"].clone();
    assert_eq!(
        (&told["Status"]["made"], &told["Mountpoint"]),
        (&json!(false), &json!(""))
    );
    let point = rig.mount("v@branch/try", "b");
    assert_eq!(fs::read(point.join("f")).unwrap(), b"volume");
    fs::write(point.join("f"), "branch").unwrap();
    assert!(rig.is_mounted("v"), "the daemon of the volume serves it");
    let told = rig.done("Get", &json!({"Name": "v@branch/try"}))["Volume"].clone();
    assert_eq!(
        (&told["Status"]["made"], told["Mountpoint"].as_str()),
        (&json!(true), point.to_str())
    );
    // Podman uses one id for all containers.
    let volume = rig.mount("v", "b");
    assert_eq!(fs::read(volume.join("f")).unwrap(), b"volume");
    rig.unmount("v", "b");
    assert!(rig.is_mounted("v"), "the branch is in use");
    assert_eq!(names(&rig.status("v")), r#"["try"]"#);
    rig.unmount("v@branch/try", "b");
    assert!(!rig.is_mounted("v"));
    // Its content is preserved.
    let point = rig.mount("v@branch/try", "c");
    assert_eq!(fs::read(point.join("f")).unwrap(), b"branch");
    let list: serde_json::Value =
        serde_json::from_str(&rig.ok(&["--volume", "v", "branch", "list", "--json"])).unwrap();
    assert_eq!(
        (&list[0]["name"], &list[0]["changed"]),
        (&json!("try"), &json!(1))
    );
    // A container uses it, whatever the engine recorded.
    let container = Container::start(&point);
    rig.unmount("v@branch/try", "c");
    assert!(rig.is_mounted("v"));
    container.writes_on();
    let said = rig.error("Remove", &json!({"Name": "v@branch/try"}));
    assert!(said.contains("is in use"), "{said}");
    let said = rig.error("Remove", &json!({"Name": "v"}));
    assert!(said.contains("has branches: try"), "{said}");
    container.writes_on();
    container.end();
    rig.done("Remove", &json!({"Name": "v@branch/try"}));
    rig.done("Remove", &json!({"Name": "v@branch/try"}));
    assert!(!point.exists() && !rig.is_mounted("v"));
    assert_eq!(rig.status("v")["mounts"], 0, "no use is recorded");
    // It is in the trash of the volume, and the removal is an operation there.
    rig.ok(&["--volume", "v", "branch", "restore", "try"]);
    let point = rig.mount("v@branch/try", "d");
    assert_eq!(fs::read(point.join("f")).unwrap(), b"branch");
    rig.ok(&["--volume", "v", "merge", "try"]);
    rig.unmount("v@branch/try", "d");
    rig.done("Remove", &json!({"Name": "v@branch/try"}));
    assert_eq!(fs::read(rig.mount("v", "e").join("f")).unwrap(), b"branch");
    rig.unmount("v", "e");
    rig.done("Remove", &json!({"Name": "v"}));
}

#[test]
fn what_cannot_be_branched_says_so_and_leaves_nothing() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    for bad in ["v@branch/", "v@branch/.x", "v@branch/a/b", "v@branch/-x"] {
        for call in ["Get", "Create", "Mount"] {
            rig.error(call, &json!({"Name": bad, "ID": "a", "Opts": {}}));
        }
    }
    rig.error("Get", &json!({"Name": "none@branch/try"}));
    rig.error(
        "Create",
        &json!({"Name": "v@branch/try", "Opts": {"mode": "0700"}}),
    );
    rig.error(
        "Create",
        &json!({"Name": "w", "Opts": {"from": "v@branch/try"}}),
    );
    // An ephemeral copy is deleted after its last use, and a branch would be deleted with it.
    rig.create("e", json!({"from": "v", "ephemeral": "true"}));
    let said = rig.error("Mount", &json!({"Name": "e@branch/try", "ID": "a"}));
    assert!(said.contains("fresh copy"), "{said}");
    assert!(!rig.is_mounted("e"), "a failed mount is not a use");
    // A sized volume is a separate filesystem, without room next to its tree.
    rig.create("s", json!({"size": "300M"}));
    rig.error("Mount", &json!({"Name": "s@branch/try", "ID": "a"}));
    assert!(!rig.is_mounted("s"));
    rig.done("Remove", &json!({"Name": "s"}));
    let beside = fs::read_dir(rig.root.join("volumes")).unwrap();
    let left: Vec<_> = beside.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        left.iter()
            .all(|name| !name.to_string_lossy().contains('@')),
        "{left:?}"
    );
    // A branch starts from the state of the volume at its creation.
    fs::write(rig.mount("v", "a").join("f"), "before").unwrap();
    rig.done("Create", &json!({"Name": "v@branch/now", "Opts": null}));
    fs::write(rig.point("v").join("f"), "after").unwrap();
    let point = rig.mount("v@branch/now", "a");
    assert_eq!(fs::read(point.join("f")).unwrap(), b"before");
}
