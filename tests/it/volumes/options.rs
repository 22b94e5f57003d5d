//! The guarantees of volume options.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use serde_json::json;

use crate::common::Fs;
use crate::common::mount::minor_of;
use crate::common::wait::{seen, wait_until};
use crate::volumes::support::{Container, Rig, unavailable};

#[test]
fn an_option_that_is_not_known_is_refused_with_the_nearest() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let said = rig.error("Create", &json!({"Name": "v", "Opts": {"chekpoint": "1"}}));
    assert_eq!(
        said,
        "there is no option \"chekpoint\" (did you mean checkpoint?)"
    );
    rig.error(
        "Create",
        &json!({"Name": "v", "Opts": {"k": "a=b,c", "k2": "", "readonly": ""}}),
    );
    rig.error("Create", &json!({"Name": "v", "Opts": {"uid": 5}}));
    let from = rig.error("Create", &json!({"Name": "v", "Opts": {"from": "none"}}));
    assert!(from.starts_with("no such volume: none"), "{from}");
    rig.error("Get", &json!({"Name": "v"}));
    assert_eq!(
        fs::read_dir(rig.root.join("volumes")).unwrap().count(),
        0,
        "a refused request leaves nothing"
    );
    // Docker calls only Get for an existing volume and reports nothing; a repeated Create returns
    // the error.
    rig.create("v", json!({"mode": "0700"}));
    rig.create("v", json!({"mode": "0700"}));
    assert!(
        rig.error("Create", &json!({"Name": "v", "Opts": {}}))
            .contains("already exists, with other options")
    );
}

#[test]
fn a_volume_from_a_checkpoint_is_on_its_own() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("base", json!({"uid": "70", "mode": "0750"}));
    let point = rig.mount("base", "a");
    let container = Container::start(&point);
    fs::write(point.join("f"), "one").unwrap();
    rig.ok(&["--volume", "base", "checkpoint"]);
    fs::write(point.join("f"), "two").unwrap();
    rig.create("then", json!({"from": "base", "checkpoint": "1"}));
    rig.create("same", json!({"from": "base@1"}));
    rig.create("alias", json!({"from": "base", "fromSnapshot": "latest"}));
    rig.create("now", json!({"from": "base"}));
    container.end();
    rig.unmount("base", "a");
    rig.done("Remove", &json!({"Name": "base"}));
    for (name, content) in [
        ("then", "one"),
        ("same", "one"),
        ("alias", "one"),
        ("now", "two"),
    ] {
        let point = rig.mount(name, "b");
        assert_eq!(
            fs::read_to_string(point.join("f")).unwrap(),
            content,
            "{name}"
        );
        let root = fs::metadata(&point).unwrap();
        assert_eq!((root.uid(), root.mode() & 0o7777), (70, 0o750));
        fs::write(point.join("f"), name).unwrap();
        rig.unmount(name, "b");
    }
    assert_eq!(rig.status("then")["parent"], "base@1");
    assert_eq!(rig.status("then")["checkpoints_kept"], 0);
}

#[test]
fn a_size_is_kept_to() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    assert!(
        rig.error("Create", &json!({"Name": "v", "Opts": {"size": "10M"}}))
            .contains("at least 300M")
    );
    rig.create("v", json!({"size": "300M"}));
    rig.create("other", json!({}));
    let fill = |id: &str| {
        let mut file = fs::File::create(rig.mount("v", id).join("big")).unwrap();
        let part = vec![7; 1 << 20];
        let failed = (0..400).find_map(|_| file.write_all(&part).err());
        assert_eq!(
            failed.and_then(|error| error.raw_os_error()),
            Some(28),
            "ENOSPC"
        );
    };
    fill("a");
    fs::write(rig.mount("other", "a").join("f"), vec![1; 1 << 20])
        .expect("the other volumes have space");
    fs::remove_file(rig.point("v").join("big")).expect("a written file can be removed");
    // The kernel sends RELEASE asynchronously, and XFS frees the blocks of a removed file in the
    // background.
    wait_until("there is space", || {
        fs::write(rig.point("v").join("small"), "x")
    });
    rig.unmount("v", "a");
    rig.unmount("other", "a");
    // The limit also applies to the next mount.
    fill("b");
    assert_eq!(fs::read(rig.point("v").join("small")).unwrap(), b"x");
    rig.unmount("v", "b");
    rig.done("Remove", &json!({"Name": "v"}));
    assert_eq!(fs::read_dir(rig.root.join("images")).unwrap().count(), 0);
}

#[test]
fn a_directory_that_there_is_is_served_in_place_and_never_removed() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let source = rig.disk().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "mine").unwrap();
    rig.create("v", json!({"source": source}));
    rig.error(
        "Create",
        &json!({"Name": "w", "Opts": {"source": "/not/there"}}),
    );
    rig.error(
        "Create",
        &json!({"Name": "w", "Opts": {"source": source.join("f")}}),
    );
    assert_eq!(rig.mount("v", "a"), source);
    assert!(minor_of(&source).is_some());
    rig.ok(&["--volume", "v", "checkpoint"]);
    fs::write(source.join("f"), "changed").unwrap();
    rig.unmount("v", "a");
    assert!(minor_of(&source).is_none());
    // A mount made by another process stays mounted.
    rig.ok(&["mount", source.to_str().unwrap()]);
    rig.mount("v", "b");
    rig.unmount("v", "b");
    assert!(minor_of(&source).is_some());
    rig.done("Remove", &json!({"Name": "v"}));
    rig.ok(&["umount", source.to_str().unwrap()]);
    assert_eq!(fs::read(source.join("f")).unwrap(), b"changed");
    assert!(source.join(".ckptfs").is_dir(), "its history also remains");
}

#[test]
fn readonly_snapdir_and_owners_are_as_asked_for() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create(
        "v",
        json!({"snapdir": "visible", "uid": "5", "gid": "6", "mode": "1777"}),
    );
    let point = rig.mount("v", "a");
    assert!(
        fs::read_dir(&point)
            .unwrap()
            .any(|entry| entry.unwrap().file_name() == ".snapshots")
    );
    let root = fs::metadata(&point).unwrap();
    assert_eq!(
        (root.uid(), root.gid(), root.mode() & 0o7777),
        (5, 6, 0o1777)
    );
    fs::write(point.join("f"), "x").unwrap();
    rig.ok(&["--volume", "v", "checkpoint"]);
    rig.unmount("v", "a");
    // Podman's alternative to v@1, which it rejects.
    rig.create(
        "r",
        json!({"from": "v", "checkpoint": "1", "readonly": "true"}),
    );
    let point = rig.mount("r", "a");
    assert_eq!(fs::read(point.join("f")).unwrap(), b"x");
    for path in ["f", "g"] {
        assert_eq!(
            fs::write(point.join(path), "y").unwrap_err().raw_os_error(),
            Some(30),
            "EROFS"
        );
    }
    rig.unmount("r", "a");
}

#[test]
fn an_ephemeral_volume_begins_anew_each_time() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("base", json!({}));
    fs::write(rig.mount("base", "a").join("f"), "base").unwrap();
    rig.unmount("base", "a");
    rig.create("v", json!({"from": "base", "ephemeral": "true"}));
    for id in ["b", "c"] {
        let point = rig.mount("v", id);
        assert_eq!(fs::read(point.join("f")).unwrap(), b"base");
        fs::write(point.join("f"), "test").unwrap();
        fs::write(rig.mount("v", "beside").join("g"), "test").unwrap();
        rig.unmount("v", id);
        assert!(point.join("g").exists(), "it is still in use");
        rig.unmount("v", "beside");
        assert!(!rig.root.join("volumes/v").exists(), "nothing is left");
    }
    assert_eq!(fs::read_dir(rig.root.join("gone")).unwrap().count(), 0);
}

#[test]
fn checkpoints_by_themselves_and_rules_for_keeping_them() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v", json!({"auto": "mount,unmount,2h", "keep": "4h:1d:2w"}));
    let point = rig.mount("v", "a");
    fs::write(point.join("f"), "x").unwrap();
    rig.unmount("v", "a");
    rig.mount("v", "b");
    rig.unmount("v", "b");
    let notes: Vec<_> = rig.status("v")["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["note"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        notes,
        ["unmounted", "mounted"],
        "newest first, and none without a change"
    );
    let rules = rig.ok(&["--volume", "v", "config", "show"]);
    for rule in [
        "retention.keep-within = \"14400s\"",
        "retention.keep-hourly = 24",
        "retention.keep-daily = 14",
        "retention.auto = \"1h\"",
        "retention.manual = true",
    ] {
        assert!(rules.contains(rule), "{rules}");
    }
    assert_eq!(
        rig.status("v")["checkpoints_kept"],
        2,
        "a verb is not a use by a container"
    );
}

#[test]
fn a_removed_volume_goes_to_the_trash_if_asked_for() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    for (name, options) in [("kept", json!({"on-remove": "trash"})), ("gone", json!({}))] {
        rig.create(name, options);
        fs::write(rig.mount(name, "a").join("f"), name).unwrap();
        rig.ok(&["--volume", name, "checkpoint", "-m", "remember"]);
        rig.unmount(name, "a");
        rig.done("Remove", &json!({"Name": name}));
    }
    let trash: Vec<_> = fs::read_dir(rig.root.join("trash"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(trash.len(), 1);
    assert_eq!(fs::read(trash[0].join("tree/f")).unwrap(), b"kept");
    assert!(trash[0].join("volume.json").exists());
    // It can be recovered with its history, unless another volume has its name.
    rig.create("kept", json!({}));
    assert!(
        rig.refused(&["volumes", "recover", "kept"])
            .contains("there is another volume kept")
    );
    rig.done("Remove", &json!({"Name": "kept"}));
    assert_eq!(rig.ok(&["volumes", "recover", "kept"]), "kept\n");
    assert_eq!(fs::read(rig.mount("kept", "a").join("f")).unwrap(), b"kept");
    assert!(rig.ok(&["--volume", "kept", "log"]).contains("remember"));
    rig.unmount("kept", "a");
    assert_eq!(rig.ok(&["volumes", "ls", "--trash"]), "");
    // It can also be deleted permanently.
    rig.done("Remove", &json!({"Name": "kept"}));
    rig.ok(&["volumes", "purge", "kept"]);
    assert!(
        rig.refused(&["volumes", "recover", "kept"])
            .contains("no volume kept is in the trash")
    );
    rig.create("kept", json!({"size": "300M", "on-remove": "trash"}));
    fs::write(rig.mount("kept", "a").join("f"), "sized").unwrap();
    rig.unmount("kept", "a");
    rig.done("Remove", &json!({"Name": "kept"}));
    rig.ok(&["volumes", "recover", "kept"]);
    assert_eq!(
        fs::read(rig.mount("kept", "a").join("f")).unwrap(),
        b"sized"
    );
    rig.unmount("kept", "a");
    assert_eq!(rig.end(), 0);
    rig.serve(&["--on-remove", "trash"]);
    rig.create("by-the-driver", json!({}));
    rig.done("Remove", &json!({"Name": "by-the-driver"}));
    assert!(
        rig.ok(&["volumes", "ls", "--trash"])
            .starts_with("by-the-driver@")
    );
}

#[test]
fn a_pool_without_reflink_says_what_it_costs_and_works() {
    if unavailable() {
        return;
    }
    let rig = Rig::start_on(Fs::Ext4, &[]);
    assert!(
        rig.log().contains("cannot share data between files") && rig.log().contains("--pool-image"),
        "{}",
        rig.log()
    );
    rig.create("v", json!({}));
    fs::write(rig.mount("v", "a").join("f"), "x").unwrap();
    rig.create("w", json!({"from": "v"}));
    assert_eq!(fs::read(rig.mount("w", "a").join("f")).unwrap(), b"x");
    rig.unmount("v", "a");
    rig.unmount("w", "a");
}

#[test]
fn a_pool_image_is_made_mounted_and_found_again() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start_on(Fs::Ext4, &[]);
    assert_eq!(rig.end(), 0);
    let image = rig.disk().join("pool.img");
    let image = image.to_str().unwrap();
    let socket = rig.socket.to_str().unwrap().to_owned();
    let none = rig.refused(&[
        "serve",
        "volumes",
        "--socket",
        &socket,
        "--pool-image",
        image,
    ]);
    assert!(
        none.contains("pool.img does not exist") && none.contains("--pool-size"),
        "{none}"
    );
    let warned = rig.log().matches("cannot share data").count();
    rig.serve(&["--pool-image", image, "--pool-size", "400M"]);
    assert_eq!(
        rig.log().matches("cannot share data").count(),
        warned,
        "there is no warning on XFS"
    );
    rig.create("v", json!({}));
    rig.kill();
    rig.serve(&["--pool-image", image]);
    rig.done("Get", &json!({"Name": "v"}));
}

#[test]
fn what_the_history_takes_is_told_once_it_was_counted() {
    if unavailable() {
        return;
    }
    let mut rig = Rig::start();
    rig.create("v", json!({}));
    rig.create("sized", json!({"size": "300M"}));
    let point = rig.mount("v", "a");
    rig.mount("sized", "a");
    fs::write(point.join("f"), vec![1; 1 << 20]).unwrap();
    rig.ok(&["--volume", "v", "checkpoint"]);
    fs::write(point.join("f"), vec![2; 1 << 20]).unwrap();
    assert!(rig.status("v")["checkpoints"][0].get("bytes").is_none());
    // The next driver scans at once, not after half a minute.
    rig.kill();
    rig.serve(&[]);
    wait_until("the use was counted", || {
        let bytes = rig.status("v")["history_bytes"].as_u64();
        seen(bytes >= Some(1 << 20), bytes)
    });
    assert!(
        rig.status("v")["checkpoints"][0]["bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes >= 1 << 20)
    );
    assert!(
        rig.status("sized")["used_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes < 300 << 20)
    );
    rig.unmount("v", "a");
    rig.unmount("sized", "a");
    rig.done("Remove", &json!({"Name": "v"}));
    assert_eq!(fs::read_dir(rig.root.join("meta")).unwrap().count(), 1);
}
