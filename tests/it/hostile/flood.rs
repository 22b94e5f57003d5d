//! Checkpoints made with mkdir(2) by users who may write to the root directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::common::{Rig, Variant, for_each_variant, run_limited, tool};

for_each_variant! { xfs =>
    a_user_makes_so_many_checkpoints_with_mkdir_and_so_many_in_a_minute,
    what_was_deleted_with_rmdir_is_kept_within_the_same_limit,
    a_name_given_with_mkdir_keeps_nothing_from_gc,
}

fn start(v: Variant, settings: &[(&str, u32)]) -> Rig {
    let rig = v.start();
    fs::set_permissions(rig.path(), Permissions::from_mode(0o777)).expect("chmod");
    for (key, value) in settings {
        rig.mount.ok(&["config", "set", key, &value.to_string()]);
    }
    rig
}

/// Runs a shell command in `.snapshots` with the given arguments of setpriv(1).
fn run_as(rig: &Rig, who: &[&str], script: &str) -> Output {
    let mut command = tool("setpriv", who);
    command
        .args(["sh", "-c", script])
        .current_dir(rig.path().join(".snapshots"));
    run_limited(&mut command, 60)
}

/// Returns the number of directories with this first letter made before an error, and the error.
fn made_by(rig: &Rig, who: &[&str], letter: char, most: u32) -> (u32, String) {
    let script = format!(
        "n=0; while [ $n -lt {most} ]; do mkdir {letter}$n || break; n=$((n+1)); done; echo $n"
    );
    let output = run_as(rig, who, &script);
    let said = String::from_utf8_lossy(&output.stderr)
        .rsplit(": ")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    (
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .expect("a number"),
        said,
    )
}

const QUOTA: &str = "Disk quota exceeded";
const PACE: &str = "Resource temporarily unavailable";

fn user(id: &'static str) -> [&'static str; 5] {
    ["--reuid", id, "--regid", id, "--clear-groups"]
}

/// Root in a container.
const CONTAINED: [&str; 2] = ["--bounding-set", "-sys_admin"];

/// Failed before: a container made 40,963 checkpoints in 20 s.
fn a_user_makes_so_many_checkpoints_with_mkdir_and_so_many_in_a_minute(v: Variant) {
    let rig = start(v, &[("snapdir.per-user", 5), ("snapdir.per-minute", 1000)]);
    let refused = |count, why: &str| (count, why.to_owned());
    assert_eq!(made_by(&rig, &user("1001"), 'a', 5), refused(5, ""));
    assert_eq!(made_by(&rig, &user("1001"), 'b', 5), refused(0, QUOTA));
    assert!(run_as(&rig, &user("1001"), "rmdir a3").status.success());
    assert_eq!(
        made_by(&rig, &user("1001"), 'c', 5),
        refused(1, QUOTA),
        "deletions free the quota"
    );
    assert_eq!(
        made_by(&rig, &user("1002"), 'd', 9),
        refused(5, QUOTA),
        "each user has the same quota"
    );
    assert_eq!(
        made_by(&rig, &CONTAINED, 'e', 9),
        refused(5, QUOTA),
        "the same quota for root without the capabilities of the daemon"
    );
    assert_eq!(made_by(&rig, &user("1003"), 'f', 9), refused(5, QUOTA));
    assert_eq!(
        made_by(&rig, &user("1004"), 'g', 9),
        refused(0, QUOTA),
        "all users together have four times the quota"
    );
    assert_eq!(
        made_by(&rig, &["--reuid", "0"], 'h', 9),
        refused(9, ""),
        "users who may send verbs have no limit"
    );
    rig.mount.ok(&["config", "set", "snapdir.per-user", "100"]);
    // The pace is three in a minute: the next is allowed after 20 s.
    rig.mount.ok(&["config", "set", "snapdir.per-minute", "3"]);
    assert_eq!(made_by(&rig, &user("1005"), 'i', 3), refused(3, ""));
    assert_eq!(made_by(&rig, &user("1005"), 'j', 3), refused(0, PACE));
    assert_eq!(made_by(&rig, &user("1006"), 'k', 4), refused(3, PACE));
    assert_eq!(made_by(&rig, &["--reuid", "0"], 'l', 9), refused(9, ""));
}

fn what_was_deleted_with_rmdir_is_kept_within_the_same_limit(v: Variant) {
    let rig = start(v, &[("snapdir.per-user", 4), ("snapdir.per-minute", 1000)]);
    rig.mount.ok(&["checkpoint", "--tag", "ours"]);
    rig.mount.ok(&["delete", "ours"]);
    let script = "n=0; while [ $n -lt 12 ]; do mkdir a$n && rmdir a$n || exit 1; n=$((n+1)); done";
    let output = run_as(&rig, &user("1001"), script);
    assert!(output.status.success(), "{output:?}");
    let hidden = rig.mount.json(&["log", "--deleted"]);
    let ids: Vec<_> = hidden
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["id"].as_u64().expect("a number"))
        .collect();
    assert_eq!(
        ids,
        [13, 12, 11, 10, 1],
        "their last four, and the checkpoints of others"
    );
}

fn a_name_given_with_mkdir_keeps_nothing_from_gc(v: Variant) {
    let rig = start(v, &[]);
    for name in ["one", "two", "three"] {
        fs::create_dir(rig.path().join(".snapshots").join(name)).expect("mkdir");
    }
    rig.mount.ok(&["tag", "two", "wanted"]);
    rig.mount.ok(&["checkpoint"]);
    rig.mount.ok(&["gc", "--keep-last", "1"]);
    let left: Vec<_> = rig
        .mount
        .log_json()
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["id"].as_u64().expect("a number"))
        .collect();
    assert_eq!(
        left,
        [4, 3, 2],
        "the last of each kind, and those with a name from a user"
    );
}
