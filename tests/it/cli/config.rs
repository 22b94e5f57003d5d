//! The configuration: two files, the keys each may contain, and error messages.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::support::Sandbox;
use crate::common::OpenStore;

fn mounted() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/a.txt", "one\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
}

#[test]
fn what_is_set_is_shown_with_where_it_is_set() {
    let sandbox = mounted();
    sandbox
        .ckptfs_in("p", &["config", "set", "retention.keep-last", "5"])
        .is(
            0,
            "",
            "retention.keep-last = 5\nwith these rules `ckptfs gc` deletes no checkpoint\n",
        );
    sandbox
        .ckptfs_in(
            "p",
            &["config", "set", "--user", "retention.keep-last", "9"],
        )
        .ok();
    sandbox
        .ckptfs_in(
            "p",
            &["config", "set", "--user", "retention.max-size", "2G"],
        )
        .ok();
    let shown = "retention.keep-last = 5  # [DIR]/p/.ckptfs/ckptfs.toml:2\nretention.max-size = 2147483648  # [DIR]/.config/ckptfs/config.toml:3\n";
    sandbox
        .ckptfs_in("p", &["config", "show", "--origin"])
        .is(0, shown, "");
    let json = sandbox
        .ckptfs_in("p", &["config", "show", "--json"])
        .ok()
        .json();
    assert_eq!(
        (
            &json[0]["key"],
            &json[0]["value"],
            &json[0]["origin"],
            &json[0]["line"]
        ),
        (
            &"retention.keep-last".into(),
            &5.into(),
            &"store".into(),
            &2.into()
        )
    );
    // Elsewhere the user's value applies; XDG_CONFIG_HOME takes precedence over ~/.config.
    sandbox
        .ckptfs(&["config", "get", "retention.keep-last"])
        .is(0, "9\n", "");
    let mut command = sandbox.command("");
    command
        .args(["config", "get", "retention.keep-last"])
        .env("XDG_CONFIG_HOME", sandbox.path.join("nowhere"));
    sandbox
        .run(command)
        .is(1, "", "retention.keep-last is not set\n");
    // The store's value belongs to the store, mounted or not.
    sandbox.ckptfs(&["umount", "p"]).ok();
    sandbox
        .ckptfs_in("p", &["config", "get", "retention.keep-last"])
        .is(0, "5\n", "");
    sandbox
        .ckptfs_in("p", &["config", "set", "retention.keep-last"])
        .ok();
    sandbox
        .ckptfs_in("p", &["config", "get", "retention.keep-last"])
        .is(0, "9\n", "");
}

#[test]
fn mistakes_are_told_with_file_line_and_the_nearest_key() {
    let sandbox = mounted();
    sandbox
        .ckptfs_in("p", &["config", "check"])
        .is(0, "nothing is wrong\n", "");
    sandbox.ckptfs_in("p", &["config", "set", "retention.keep-lats", "5"]).is(
        1,
        "",
        "Error: there is no key \"retention.keep-lats\"\nHint: did you mean retention.keep-last?\n",
    );
    sandbox.ckptfs_in("p", &["config", "set", "retention.keep-within", "soon"]).is(
        1,
        "",
        "Error: retention.keep-within: \"soon\" is not a length of time such as \"30d\" or \"1h 30m\"\nHint: for example: ckptfs config set retention.keep-within 30d\n",
    );
    let store = OpenStore::of(&sandbox.path.join("p"));
    let file = store.file("ckptfs.toml");
    fs::write(&file, "# mine\n[retention]\nkeep_last = 5\n").expect("write");
    let said = "[DIR]/p/.ckptfs/ckptfs.toml:3: there is no key retention.keep_last";
    sandbox.ckptfs_in("p", &["config", "show"]).is(
        1,
        "",
        &format!("Error: {said}\nHint: did you mean retention.keep-last?\n"),
    );
    sandbox.ckptfs_in("p", &["config", "check"]).is(
        1,
        &format!("{said} (did you mean retention.keep-last?)\n"),
        "",
    );
    // The daemon also warns, and `config set` does not modify an invalid file.
    let status = sandbox.ckptfs_in("p", &["status", "--json"]).ok().json();
    let warning = status["warnings"][0]
        .as_str()
        .expect("a warning")
        .to_owned();
    assert!(
        warning.contains("ckptfs.toml: line 3: there is no key retention.keep_last"),
        "{warning}"
    );
    assert_eq!(
        sandbox
            .ckptfs_in("p", &["config", "set", "mount.seal", "off"])
            .code,
        1
    );
    // A tree is not mounted with unknown options.
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert!(
        sandbox
            .ckptfs(&["mount", "p"])
            .err()
            .contains("ckptfs.toml:3: there is no key retention.keep_last")
    );
    fs::write(&file, "# mine\n[retention]\nkeep-last = 5\n").expect("write");
    sandbox.ckptfs(&["mount", "p"]).ok();
    assert_eq!(
        sandbox.ckptfs_in("p", &["status", "--json"]).ok().json()["warnings"],
        serde_json::json!([])
    );
}

#[test]
fn a_file_longer_than_the_daemon_reads_is_not_written() {
    let sandbox = mounted();
    let copy = sandbox.path.join("copy");
    fs::write(&copy, "#".repeat(64 << 10)).expect("write");
    let write = ["config", "write", "../copy"];
    sandbox.ckptfs_in("p", &write).ok();
    fs::write(&copy, "#".repeat((64 << 10) + 1)).expect("write");
    sandbox.ckptfs_in("p", &write).is(
        1,
        "",
        "Error: ../copy has more than 65536 bytes\nHint: a configuration is shorter; name its file\n",
    );
    let store = OpenStore::of(&sandbox.path.join("p"));
    let written = fs::metadata(store.file("ckptfs.toml")).expect("there");
    assert_eq!(written.len(), 64 << 10);
}

#[test]
fn the_options_of_a_mount_come_from_the_files_unless_they_are_given() {
    let sandbox = mounted();
    let writes = |sandbox: &Sandbox| {
        sandbox.ckptfs_in("p", &["status", "--json"]).ok().json()["writes"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    let seal = |sandbox: &Sandbox| {
        sandbox
            .ckptfs_in("p", &["status", "-v", "--json"])
            .ok()
            .json()["stats"]["sealer"]["mode"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    sandbox
        .ckptfs_in("p", &["config", "set", "mount.writes", "daemon"])
        .ok();
    sandbox
        .ckptfs_in("p", &["config", "set", "--user", "mount.seal", "off"])
        .ok();
    sandbox.ckptfs(&["umount", "p"]).ok();
    sandbox.ckptfs(&["mount", "p"]).ok();
    assert_eq!(
        (writes(&sandbox).as_str(), seal(&sandbox).as_str()),
        ("daemon", "off")
    );
    sandbox.ckptfs(&["umount", "p"]).ok();
    sandbox.ckptfs(&["mount", "--seal=hash", "p"]).ok();
    assert_eq!(
        (writes(&sandbox).as_str(), seal(&sandbox).as_str()),
        ("daemon", "hash")
    );
}

#[test]
fn a_user_s_file_cannot_make_a_daemon_do_things() {
    let sandbox = mounted();
    let refused = sandbox.ckptfs_in("p", &["config", "set", "--user", "tripwire.count", "0"]);
    assert!(
        refused.code == 1
            && refused
                .err()
                .contains("tripwire.count can only be set in the store's file"),
        "{refused:?}"
    );
    sandbox.file(".config/ckptfs/config.toml", "[tripwire]\ncount = 0\n");
    let refused = sandbox.ckptfs_in("p", &["config", "show"]);
    assert!(
        refused.code == 1
            && refused
                .err()
                .contains("[DIR]/.config/ckptfs/config.toml:2: tripwire.count can only be set"),
        "{refused:?}"
    );
    fs::remove_file(sandbox.path.join(".config/ckptfs/config.toml")).expect("remove");
    // A file in the store that is writable by others, or not regular, is rejected.
    let store = OpenStore::of(&sandbox.path.join("p"));
    let file = store.file("ckptfs.toml");
    fs::write(&file, "[retention]\nkeep-last = 5\n").expect("write");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("chmod");
    let refused = sandbox.ckptfs_in("p", &["config", "show"]);
    assert!(
        refused.code == 1
            && refused
                .err()
                .contains("ckptfs.toml: it is writable by others"),
        "{refused:?}"
    );
    fs::remove_file(&file).expect("remove");
    sandbox.file("outside.toml", "[retention]\nkeep-last = 5\n");
    std::os::unix::fs::symlink(sandbox.path.join("outside.toml"), &file).expect("symlink");
    let refused = sandbox.ckptfs_in("p", &["config", "show"]);
    assert!(
        refused.code == 1
            && refused
                .err()
                .contains("ckptfs.toml: it is not a regular file"),
        "{refused:?}"
    );
}
