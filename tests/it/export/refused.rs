//! Refused exports, forks and imports, and their errors.

use super::support::copies;
use crate::common::command::sh;
use crate::common::{Fs, Io, Rig, Variant, skip};

fn refused(rig: &Rig, arguments: &[&str]) -> (String, String) {
    let mut all = arguments.to_vec();
    all.push("--json");
    let output = rig.mount.run(&all);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    let error: serde_json::Value =
        serde_json::from_slice(&output.stderr).expect("an error in JSON");
    let text = |field: &str| {
        error["error"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert!(
        !text("hint").is_empty()
            || text("code") == "not-a-directory"
            || text("code") == "not-found",
        "{error}: it has a hint"
    );
    (text("code"), text("message"))
}

#[test]
fn a_destination_that_is_somebody_s_is_left_alone() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let rig = variant.start();
    sh(rig.path(), "echo 1 > f");
    let id = rig.mount.checkpoint().to_string();
    let dir = copies(&rig);
    sh(
        &dir,
        "mkdir full other marked; echo mine > full/mine; echo mine > file; echo mine > marked/x; setfattr -n user.ckptfs.export -v nonsense marked",
    );
    let at = |name: &str| dir.join(name).display().to_string();
    for verb in ["export", "fork"] {
        assert_eq!(refused(&rig, &[verb, &id, &at("full")]).0, "not-empty");
        assert_eq!(
            refused(&rig, &[verb, &id, &at("file")]).0,
            "not-a-directory"
        );
        assert_eq!(
            refused(&rig, &[verb, &id, &at("none/below")]).0,
            "not-found"
        );
        assert_eq!(
            refused(&rig, &[verb, "77", &at("new")]).0,
            "unknown-checkpoint"
        );
        assert_eq!(
            refused(&rig, &[verb, "live", &at("new")]).0,
            "unknown-checkpoint"
        );
    }
    assert_eq!(
        refused(&rig, &["export", &id, &at("marked")]).0,
        "not-empty"
    );
    let other = dir.join("other");
    rig.mount.ok(&["export", &id, &at("other")]);
    sh(
        &other,
        "setfattr -n user.ckptfs.export -v '1 00112233445566778899aabbccddeeff 1 whole' .",
    );
    assert!(
        refused(&rig, &["export", &id, &at("other")])
            .1
            .contains("another tree")
    );
    assert_eq!(
        refused(&rig, &["import", &at("file"), "--into", &at("x")]).0,
        "not-a-directory"
    );
    // A plain tree can be imported, but is not a series, and the import refuses a non-empty
    // destination.
    assert_eq!(
        refused(&rig, &["import", "--series", &at("full")]).0,
        "not-found"
    );
    assert_eq!(
        refused(&rig, &["import", &at("full"), "--into", &at("marked")]).0,
        "not-empty"
    );
    sh(
        &dir,
        "[ \"$(cat full/mine file marked/x)\" = \"mine\nmine\nmine\" ]",
    );
}
