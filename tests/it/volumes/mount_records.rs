//! Mounts and unmounts: the records of uses, and actual uses.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use crate::common::mount::mount_table;
use crate::common::{run_limited, tool};
use crate::volumes::support::{Container, NamespaceHolder, Rig, SECONDS, unavailable};

#[test]
fn uses_are_a_set() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    // After a missed Unmount, Docker mounts with the same id again: a counter would never reach
    // zero.
    for id in ["a", "a", "b", "a"] {
        rig.mount("v", id);
    }
    assert_eq!(rig.record("v")["mounts"].as_array().map(Vec::len), Some(2));
    rig.unmount("v", "a");
    assert!(rig.is_mounted("v"));
    rig.unmount("v", "a");
    rig.unmount("v", "never-there");
    assert!(rig.is_mounted("v"), "b uses it");
    rig.unmount("v", "b");
    assert!(!rig.is_mounted("v"));
    rig.unmount("v", "b");
    rig.unmount("no-such-volume", "b");
}

#[test]
fn removal_goes_by_what_is_mounted_and_not_by_what_is_recorded() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    let point = rig.mount("v", "a");
    let container = Container::start(&point);
    let said = rig.error("Remove", &json!({"Name": "v"}));
    assert!(said.contains("is mounted at /data of process"), "{said}");
    container.writes_on();
    // The engine was killed: "a" is never released, and the container has ended.
    container.end();
    rig.done("Remove", &json!({"Name": "v"}));
    assert!(!rig.is_mounted("v") && !rig.record_path("v").exists());
    assert!(
        rig.error("Mount", &json!({"Name": "v", "ID": "a"}))
            .starts_with("no such volume")
    );
}

#[test]
fn what_a_container_uses_stays_mounted_although_nobody_is_recorded() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    let container = Container::start(&rig.mount("v", "a"));
    rig.unmount("v", "a");
    assert!(rig.is_mounted("v"));
    container.writes_on();
    container.end();
    rig.unmount("v", "a");
    assert!(!rig.is_mounted("v"));
}

#[test]
fn a_past_state_is_mounted_read_only_beside_the_volume() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    let point = rig.mount("v", "a");
    fs::write(point.join("f"), "old").unwrap();
    rig.ok(&["--volume", "v", "checkpoint", "-m", "one"]);
    rig.ok(&["--volume", "v", "tag", "1", "good"]);
    fs::write(point.join("f"), "new").unwrap();
    // The same id for both, because Podman has one for all containers.
    for name in ["v@1", "v@good"] {
        assert_eq!(
            rig.done("Get", &json!({"Name": name}))["Volume"]["Name"],
            name
        );
        rig.done("Create", &json!({"Name": name, "Opts": {}}));
        let view = rig.mount(name, "a");
        assert_eq!(fs::read(view.join("f")).unwrap(), b"old");
        for path in ["f", "g"] {
            assert_eq!(
                fs::write(view.join(path), "x").unwrap_err().raw_os_error(),
                Some(30),
                "EROFS, because :ro is not passed to a plugin"
            );
        }
    }
    rig.unmount("v", "a");
    assert!(rig.is_mounted("v"), "the past states are in use");
    rig.unmount("v@1", "a");
    rig.unmount("v@good", "a");
    assert!(!rig.is_mounted("v"));
    let view = rig.mount("v@1", "b");
    assert_eq!(fs::read(view.join("f")).unwrap(), b"old");
    rig.unmount("v@1", "b");
    for (call, name) in [
        ("Get", "v@2"),
        ("Mount", "v@2"),
        ("Create", "v@nothing"),
        ("Get", "w@1"),
    ] {
        rig.error(call, &json!({"Name": name, "ID": "c", "Opts": null}));
    }
    assert!(
        !rig.is_mounted("v")
            && rig.record("v")["mounts"]
                .as_array()
                .is_some_and(Vec::is_empty),
        "a failed mount is not a use"
    );
    rig.done("Remove", &json!({"Name": "v@1"}));
    assert_eq!(
        rig.status("v")["checkpoints_kept"],
        1,
        "an engine drops its name for a past state, but no checkpoint"
    );
}

#[test]
fn ten_at_once() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("shared", json!({}));
    let ids: Vec<String> = (0..10).map(|number| format!("id{number}")).collect();
    std::thread::scope(|scope| {
        for id in &ids {
            let rig = &rig;
            scope.spawn(move || {
                let own = format!("own-{id}");
                rig.create(&own, json!(null));
                fs::write(rig.mount(&own, id).join("f"), id).unwrap();
                fs::write(rig.mount("shared", id).join(id), "x").unwrap();
                rig.unmount(&own, id);
            });
        }
    });
    assert_eq!(fs::read_dir(rig.point("shared")).unwrap().count(), 10);
    assert_eq!(
        rig.record("shared")["mounts"].as_array().map(Vec::len),
        Some(10)
    );
    std::thread::scope(|scope| {
        for id in &ids {
            let rig = &rig;
            scope.spawn(move || {
                rig.unmount("shared", id);
                rig.done("Remove", &json!({"Name": format!("own-{id}")}));
            });
        }
    });
    assert!(!rig.is_mounted("shared"));
    assert_eq!(
        rig.done("List", &json!({}))["Volumes"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}

#[test]
fn a_new_volume_is_empty_and_anybody_can_use_it() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({"mode": "0777"}));
    let point = rig.mount("v", "a");
    // Docker copies an image's files into a volume whose root directory is empty, so our names must
    // be hidden.
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
    let write = format!("echo mine >{}/f", point.display());
    let mut other = tool(
        "setpriv",
        &[
            "--reuid=1000",
            "--regid=1000",
            "--clear-groups",
            "sh",
            "-c",
            &write,
        ],
    );
    assert!(run_limited(&mut other, SECONDS).status.success());
    assert_eq!(fs::metadata(point.join("f")).unwrap().uid(), 1000);
    let mut root = tool(
        "setpriv",
        &["--reuid=1000", "--regid=1000", "--clear-groups", "ls"],
    );
    assert!(
        !run_limited(root.arg(rig.root.join("volumes")), SECONDS)
            .status
            .success(),
        "but no other user can reach it outside the mount"
    );
    rig.unmount("v", "a");
}

#[test]
fn copies_of_the_host_s_mounts_are_no_use_and_keep_nothing() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    let point = rig.mount("v", "a");
    // A copy of our namespace, and a container with the whole host below a directory, as for
    // monitoring.
    let mut copy = NamespaceHolder::start("read -r _", rig.disk());
    let with_host = "mkdir \"$1/own\" && mount --bind \"$1/own\" \"$1/own\" && cd \"$1/own\" && mkdir host && mount --rbind / host \
                     && for dir in usr bin lib lib64; do ln -s host/$dir $dir; done && exec chroot . /bin/sh -c 'read -r _'";
    let mut host = NamespaceHolder::start(with_host, rig.disk());
    host.is_rooted_elsewhere();
    for held in [&copy, &host] {
        held.sees(&point);
    }
    rig.unmount("v", "a");
    assert!(!rig.is_mounted("v"));
    // The old filesystem lives on in the copies; the volume is served by a new one.
    fs::write(rig.mount("v", "b").join("f"), "x").unwrap();
    rig.unmount("v", "b");
    rig.done("Remove", &json!({"Name": "v"}));
    assert!(
        copy.lives() && host.lives(),
        "they have kept their copies of the mount the whole time"
    );
    // A container that has a directory served in place at the same path uses it.
    let source = rig.disk().join("source");
    fs::create_dir(&source).unwrap();
    rig.create("s", json!({"source": source}));
    rig.mount("s", "a");
    let own = "mkdir -p \"$1/c$1/source\" && mount --bind \"$1/c\" \"$1/c\" && cd \"$1/c\" && mkdir usr && mount --bind /usr usr \
               && for dir in bin lib lib64; do ln -s usr/$dir $dir; done && mount --bind \"$1/source\" \"$1/c$1/source\" && umount -l \"$1/source\" \
               && exec chroot . /bin/sh -c 'read -r _'";
    let container = NamespaceHolder::start(own, rig.disk());
    container.is_rooted_elsewhere();
    container.sees(&source);
    let said = rig.error("Remove", &json!({"Name": "s"}));
    assert!(said.contains("is mounted at"), "{said}");
    drop(container);
    rig.done("Remove", &json!({"Name": "s"}));
}

/// Failed before: a killed engine releases nothing, and the next container of an ephemeral volume
/// found the data of the last one.
#[test]
fn an_ephemeral_volume_is_fresh_after_its_engine_was_killed() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("base", json!({}));
    fs::write(rig.mount("base", "a").join("f"), "base").unwrap();
    rig.unmount("base", "a");
    rig.create("trial", json!({"from": "base", "ephemeral": "true"}));
    rig.mount_for_the_dead("trial", "killed");
    let point = rig.point("trial");
    fs::write(point.join("f"), "dirty").unwrap();
    // A container that outlives its engine keeps its data.
    let container = Container::start(&point);
    assert_eq!(
        fs::read(rig.mount("trial", "beside").join("f")).unwrap(),
        b"dirty"
    );
    rig.unmount("trial", "beside");
    container.end();
    // The engine mounts it under another id, or under the same one after restarting the container.
    for id in ["another", "killed"] {
        rig.mount_for_the_dead("trial", "killed");
        fs::write(point.join("f"), "dirty").unwrap();
        assert_eq!(
            fs::read(rig.mount("trial", id).join("f")).unwrap(),
            b"base",
            "{id}"
        );
        rig.unmount("trial", id);
        assert!(!rig.is_mounted("trial"), "no other container uses it");
    }
}

/// Failed before: `gc` deleted checkpoints that containers had mounted.
#[test]
fn a_past_state_in_use_is_pinned() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    fs::write(rig.mount("v", "a").join("f"), "old").unwrap();
    for _ in 0..2 {
        rig.ok(&["--volume", "v", "checkpoint"]);
    }
    rig.ok(&["--volume", "v", "pin", "2", "-r", "mine"]);
    let pinned = || -> Vec<Value> {
        let log: Value =
            serde_json::from_str(&rig.ok(&["--volume", "v", "log", "--json"])).unwrap();
        log.as_array()
            .unwrap_or_else(|| panic!("{log}"))
            .iter()
            .rev()
            .map(|one| one["pinned"].clone())
            .collect()
    };
    for (state, id) in [("v@1", "b"), ("v@1", "c"), ("v@2", "b")] {
        assert_eq!(fs::read(rig.mount(state, id).join("f")).unwrap(), b"old");
    }
    assert_eq!(pinned(), [json!("in use as a volume"), json!("mine")]);
    assert!(
        rig.refused(&["--volume", "v", "delete", "1"])
            .contains("in use as a volume")
    );
    rig.unmount("v@1", "b");
    assert!(
        rig.refused(&["--volume", "v", "delete", "1"])
            .contains("in use as a volume"),
        "c uses it"
    );
    rig.unmount("v@1", "c");
    rig.unmount("v@2", "b");
    assert_eq!(pinned(), [Value::Null, json!("mine")]);
    rig.ok(&["--volume", "v", "delete", "1"]);
    rig.unmount("v", "a");
}

/// A user can mount a FUSE filesystem in a private namespace under a volume's source name. Failed
/// before: the volume could not be unmounted or removed.
#[test]
fn a_mount_that_only_says_it_is_of_a_volume_is_no_use_of_it() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({}));
    let point = rig.mount("v", "a");
    let table = mount_table("self");
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(4) == point.to_str())
        .expect("it is mounted");
    let source = line
        .split(" - ")
        .nth(1)
        .and_then(|rest| rest.split(' ').nth(1))
        .expect("a source")
        .replace("\\043", "#");
    assert!(source.starts_with("ckptfs#"), "{line}");
    let forge = |user: u32, at: &str| {
        let options = format!("fd=9,rootmode=40000,user_id={user},group_id={user}");
        format!(
            "mkdir {at} && exec 9<>/dev/fuse && mount -i -n -t fuse.ckptfs -o {options} '{source}' {at} && read -r _"
        )
    };
    let mut other = NamespaceHolder::start(&forge(65_534, "\"$1/one\""), rig.disk());
    // In a user namespace the user is root, and so the mount table shows user 0.
    let as_root = format!(
        "export AT=\"$1/two\"; exec unshare --user --map-root-user --mount bash -c '{}'",
        forge(0, "$AT").replace('\'', "")
    );
    let mut root = NamespaceHolder::start(&as_root, rig.disk());
    other.sees(&rig.disk().join("one"));
    root.sees(&rig.disk().join("two"));
    rig.unmount("v", "a");
    assert!(
        !rig.is_mounted("v"),
        "it was kept for a mount that only claims to be one of the volume"
    );
    rig.mount("v", "b");
    rig.done("Remove", &json!({"Name": "v"}));
    assert!(other.lives() && root.lives());
}
