//! The end of branches that are in use, and the options under which branches are served.

use std::fs;
use std::path::Path;

use super::support::{create, inside, listed, verb};
use crate::common::command::{TOOL_SECONDS, succeeds};
use crate::common::mount::VERB_SECONDS;
use crate::common::{Fs, Image, Io, MountOpts, Variant, for_each_variant, tool};

for_each_variant! { reflink => a_branch_is_served_as_its_parent }

/// Failed before: without the FUSE control filesystem, `branch drop --force` only detached the
/// mount. The bare backing directory became visible, and the branch still existed.
#[test]
fn a_branch_in_use_is_dropped_without_the_control_filesystem() {
    let script = r#"
        set -e
        umount -a -t fuse.ckptfs 2>/dev/null || umount -l -a -t fuse.ckptfs 2>/dev/null || true
        umount /sys/fs/fuse/connections 2>/dev/null || true
        test ! -e /sys/fs/fuse/connections/*/abort
        cd /
        "$1" mount "$2" --io "$3"
        "$1" -C "$2" branch create one --no-git
        sleep 600 5>>"$2@one/f" &
        user=$!
        trap 'kill $user; "$1" umount "$2"' EXIT
        if "$1" -C "$2" branch drop one; then exit 1; fi
        test -e "$2@one/f"
        "$1" -C "$2" branch drop --force one
        test ! -e "$2@one"
        "$1" -C "$2" branch restore one
        test -e "$2@one/f"
    "#;
    for (fs, io) in [(Fs::Xfs, Io::Passthrough), (Fs::Btrfs, Io::Daemon)] {
        let image = Image::of(fs);
        let dir = image.dir("project");
        fs::write(dir.join("f"), "1").unwrap();
        let mut private = tool("unshare", &["-m", "--propagation", "private"]);
        private.args(["bash", "-c", script, "bash", env!("CARGO_BIN_EXE_ckptfs")]);
        private.arg(&dir).arg(io.name());
        succeeds(&mut private, VERB_SECONDS);
    }
}

fn reasons(dir: &Path) -> Vec<String> {
    let log: serde_json::Value = serde_json::from_str(&inside(dir, &["log", "--json"])).unwrap();
    let all = log.as_array().unwrap().iter();
    all.map(|one| one["reason"].to_string()).collect()
}

/// Failed before: with `--auto-absence off` a branch still got a checkpoint `auto:unmount`, and it
/// ignored the settings in its parent's store.
fn a_branch_is_served_as_its_parent(v: Variant) {
    let opts = MountOpts::new(v.io).arg("--auto-absence=off");
    let mut rig = v.start_with(opts, |_| {});
    rig.mount.ok(&["config", "set", "snapdir.per-user", "1"]);
    let branch = create(&rig, "one");
    let user = |name: &str| {
        let mut make = tool(
            "setpriv",
            &["--reuid=12345", "--regid=12345", "--clear-groups"],
        );
        make.arg("mkdir").arg(branch.join(".snapshots").join(name));
        crate::common::run_limited(&mut make, TOOL_SECONDS)
    };
    fs::set_permissions(&branch, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert!(user("a").status.success());
    assert!(!user("b").status.success(), "as many as the parent allows");
    inside(&branch, &["checkpoint"]);
    fs::write(branch.join("f"), "1").unwrap();
    let before = reasons(&branch);
    let again = |rig: &mut crate::common::Rig, how: usize| match how {
        0 => {
            succeeds(tool("umount", &[] as &[&str]).arg(&branch), TOOL_SECONDS);
            fs::write(branch.join(".ckptfs/tree/f"), "2").unwrap();
            let (done, said) = verb(rig, &["branch", "mount", "one"]);
            assert!(done, "{said}");
        }
        1 => drop(rig.mount.replace_worker()),
        _ => {
            rig.mount.umount();
            fs::write(branch.join(".ckptfs/tree/f"), "3").unwrap();
            rig.mount.remount();
        }
    };
    for how in 0..3 {
        again(&mut rig, how);
        assert_eq!(reasons(&branch), before, "after {how}");
        assert!(!user("b").status.success(), "after {how}");
    }
    assert_eq!(fs::read(branch.join("f")).unwrap(), b"3");
    assert!(listed(&rig, "one").is_some());
}
