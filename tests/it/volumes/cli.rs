//! The verbs on volumes.

use std::fs;

use serde_json::{Value, json};

use crate::volumes::support::{Container, Rig, unavailable};

#[test]
fn every_verb_acts_on_a_volume() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    let point = rig.mount("v", "a");
    let container = Container::start(&point);
    fs::write(point.join("f"), "one").unwrap();
    assert_eq!(
        rig.ok(&["checkpoint", "--volume", "v", "-m", "before the upgrade"]),
        "1\n"
    );
    fs::write(point.join("f"), "two").unwrap();
    let diff = rig.ok(&["--volume", "v", "diff", "1"]);
    assert!(diff.contains("f\n"), "{diff}");
    rig.ok(&["--volume", "v", "tag", "1", "good"]);
    rig.ok(&["--volume", "v", "restore", "good", "f"]);
    assert_eq!(
        fs::read(point.join("f")).unwrap(),
        b"one",
        "live, without stopping the container"
    );
    container.writes_on();
    container.end();
    rig.unmount("v", "a");
    // It is mounted only for the duration of a verb.
    fs::write(rig.root.join("volumes/v/f"), "three").unwrap();
    rig.ok(&["--volume", "v", "restore", "1", "f"]);
    assert!(!rig.is_mounted("v"));
    assert_eq!(fs::read(rig.root.join("volumes/v/f")).unwrap(), b"one");
    assert!(
        rig.ok(&["--volume", "v", "log"])
            .contains("before the upgrade")
    );
    // A program of its own, which needs the volume until it ends.
    assert!(
        rig.refused(&["--volume", "v", "browse"])
            .contains("browse needs a terminal")
    );
    assert!(
        rig.refused(&["--volume", "w", "log"])
            .contains("no such volume: w")
    );
    assert!(
        rig.refused(&["--volume", "v@1", "log"])
            .contains("past state")
    );
    assert!(
        rig.refused(&["--volume", "../v", "log"])
            .contains("cannot be the name of a volume")
    );
    assert_eq!(rig.record("v")["mounts"], json!([]));
}

#[test]
fn volumes_are_made_listed_shown_and_removed() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    assert_eq!(
        rig.ok(&[
            "volumes",
            "create",
            "v",
            "-o",
            "mode=0700",
            "-o",
            "readonly"
        ]),
        "v\n"
    );
    let said = rig.refused(&["volumes", "create", "w", "-o", "sise=1G"]);
    assert!(said.contains("Hint: did you mean size?"), "{said}");
    let parsed = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    assert_eq!(
        parsed(rig.ok(&["volumes", "ls", "--json"]))[0]["options"],
        json!({"mode": "0700", "readonly": ""})
    );
    // The engine sees volumes created on the command line.
    assert_eq!(rig.done("List", &json!({}))["Volumes"][0]["Name"], "v");
    assert_eq!(parsed(rig.ok(&["volumes", "inspect", "v"]))["Name"], "v");
    let point = rig.mount("v", "a");
    let container = rig.is_mounted("v");
    assert!(container && rig.ok(&["volumes", "ls"]).contains("  mounted"));
    assert_eq!(
        parsed(rig.ok(&["volumes", "inspect", "v", "--json"]))["Mountpoint"],
        point.to_str().unwrap()
    );
    rig.unmount("v", "a");
    assert!(
        rig.ok(&["volumes", "rm", "-n", "v"])
            .contains("would be deleted")
    );
    rig.ok(&["volumes", "inspect", "v"]);
    assert_eq!(
        parsed(rig.ok(&["volumes", "rm", "v", "--json"]))["removed"],
        "v"
    );
    assert!(
        rig.refused(&["volumes", "rm", "v"])
            .contains("no such volume: v")
    );
    assert_eq!(rig.ok(&["volumes", "ls"]), "");
    let json = rig.refused(&["volumes", "inspect", "v", "--json"]);
    assert_eq!(parsed(json)["error"]["code"], "no-such-volume");
}

#[test]
fn a_volume_in_use_is_not_removed() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    let point = rig.mount("v", "a");
    let open = fs::File::create(point.join("f")).unwrap();
    let said = rig.refused(&["volumes", "rm", "v"]);
    assert!(said.contains("is in use"), "{said}");
    assert!(
        rig.error("Remove", &json!({"Name": "v"}))
            .contains("is in use")
    );
    drop(open);
    rig.ok(&["volumes", "rm", "v"]);
}
