//! Other users in the mount: their access to old versions, set-id programs and device nodes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Output;

use super::support::{get, put, sh};
use crate::common::{MountOpts, Rig, Variant, for_each_variant, run_limited, tool};

for_each_variant! { xfs =>
    the_past_keeps_its_permissions,
    the_snapshot_directory_has_the_mode_that_was_asked_for,
    the_snapshot_directory_follows_the_root_directory,
    set_id_programs_and_devices_work_only_if_asked_for,
}

const NOBODY: u32 = 65_534;

/// Runs a shell command as user nobody.
pub fn as_nobody(script: &str) -> Output {
    let user = NOBODY.to_string();
    let mut command = tool(
        "setpriv",
        &[
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
            "sh",
            "-c",
            script,
        ],
    );
    run_limited(command.current_dir("/"), 60)
}

#[track_caller]
fn nobody_may(script: &str) -> String {
    let output = as_nobody(script);
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[track_caller]
fn nobody_may_not(script: &str) {
    let output = as_nobody(script);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{script} succeeded");
    assert!(
        said.contains("ermission denied") || said.contains("not permitted"),
        "{script}: {said}"
    );
}

fn mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn start(v: Variant, args: &[&str]) -> Rig {
    let opts = args
        .iter()
        .fold(MountOpts::new(v.io), |opts, arg| opts.arg(arg));
    v.start_with(opts, |dir| mode(dir, 0o755))
}

fn the_past_keeps_its_permissions(v: Variant) {
    let rig = start(v, &[]);
    let root = rig.path();
    put(root.join("open"), "for all");
    put(root.join("closed"), "for one");
    mode(root.join("closed"), 0o600);
    fs::create_dir(root.join("private")).expect("mkdir");
    put(root.join("private/f"), "for one");
    mode(root.join("private"), 0o700);
    put(root.join("theirs"), "nobody's");
    chown(root.join("theirs"), Some(NOBODY), Some(NOBODY)).expect("chown");
    mode(root.join("theirs"), 0o600);
    let id = rig.mount.checkpoint();
    // Current permissions do not affect access to the past, and vice versa.
    mode(root.join("closed"), 0o644);
    mode(root.join("private"), 0o755);
    mode(root.join("open"), 0o600);
    let then = rig.view(id);
    let then = then.display();
    assert_eq!(nobody_may(&format!("cat {then}/open")), "for all");
    nobody_may_not(&format!("cat {then}/closed"));
    nobody_may_not(&format!("cat {then}/private/f"));
    nobody_may_not(&format!("ls {then}/private"));
    assert_eq!(nobody_may(&format!("cat {then}/theirs")), "nobody's");
    assert_eq!(
        nobody_may(&format!("cat {}/closed", root.display())),
        "for one"
    );
    nobody_may_not(&format!("mkdir {}/.snapshots/mine", root.display()));
    nobody_may_not(&format!("rmdir {then}"));
    assert_eq!(get(rig.view(id).join("closed")), "for one", "its owner may");
}

fn the_snapshot_directory_has_the_mode_that_was_asked_for(v: Variant) {
    let mut rig = start(v, &["--snapdir-mode=0700"]);
    put(rig.path().join("f"), "for all");
    let id = rig.mount.checkpoint();
    let then = rig.view(id);
    assert_eq!(get(then.join("f")), "for all");
    assert_eq!(
        fs::metadata(rig.path().join(".snapshots"))
            .expect("stat")
            .permissions()
            .mode()
            & 0o7777,
        0o700
    );
    assert_eq!(
        nobody_may(&format!("cat {}/f", rig.path().display())),
        "for all"
    );
    nobody_may_not(&format!("cat {}/f", then.display()));
    nobody_may_not(&format!("ls {}/.snapshots", rig.path().display()));
    // The same through its alias `.zfs`.
    let zfs = format!("{}/.zfs", rig.path().display());
    for script in [format!("ls {zfs}"), format!("cat {zfs}/snapshot/{id}/f")] {
        nobody_may_not(&script);
    }
    rig.mount.umount();
    for wrong in ["8", "4755", "rwx", "", "-1"] {
        let opts = MountOpts::new(v.io).arg(&format!("--snapdir-mode={wrong}"));
        assert_eq!(
            crate::common::Mount::try_start(&rig.image.path().join("project"), &opts)
                .status
                .code(),
            Some(2),
            "{wrong:?}"
        );
    }
    rig.mount.remount();
    nobody_may_not(&format!("cat {}/f", then.display()));
}

fn the_snapshot_directory_follows_the_root_directory(v: Variant) {
    let rig = start(v, &[]);
    let (root, snapshots) = (rig.path(), rig.path().join(".snapshots"));
    put(root.join("f"), "1");
    rig.mount.checkpoint();
    let list = format!("ls {}", snapshots.display());
    let zfs = format!("ls {}/.zfs {0}/.zfs/snapshot/1", root.display());
    nobody_may(&list);
    assert_eq!(
        nobody_may(&format!("cat {}/.zfs/snapshot/1/f", root.display())),
        "1"
    );
    nobody_may_not(&format!("mkdir {}/.zfs/snapshot/mine", root.display()));
    mode(root, 0o700);
    nobody_may_not(&list);
    nobody_may_not(&zfs);
    mode(root, 0o755);
    nobody_may(&list);
    nobody_may(&zfs);
    // In a sticky directory that all users may write to, other users cannot delete the owner's
    // checkpoint.
    mode(root, 0o1777);
    nobody_may_not(&format!("rmdir {}/1", snapshots.display()));
    nobody_may(&format!("mkdir {}/theirs", snapshots.display()));
    mode(root, 0o770);
    // The ACL excludes the owning group although the group bits, which are its mask, are set.
    chown(root, Some(0), Some(NOBODY)).expect("chown");
    nobody_may(&list);
    sh(root, "setfacl -m u:1234:rwx,g::---,m::rwx .");
    nobody_may_not(&format!("ls {}", root.display()));
    nobody_may_not(&list);
    nobody_may_not(&zfs);
    nobody_may_not(&format!("mkdir {}/again", snapshots.display()));
}

fn set_id_programs_and_devices_work_only_if_asked_for(v: Variant) {
    let mut rig = start(v, &[]);
    let project = rig.image.path().join("project");
    sh(
        rig.path(),
        "cp \"$(command -v id)\" id; chown 0:0 id; chmod 4755 id; mknod null c 1 3; chmod 666 null",
    );
    let id = rig.mount.checkpoint();
    sh(
        rig.path(),
        "rm id null; cp \"$(command -v id)\" id; chmod 4755 id; mknod null c 1 3; chmod 666 null",
    );
    let live = rig.path().to_owned();
    let places = [live, rig.view(id)];
    for place in &places {
        let place = place.display();
        assert_eq!(
            nobody_may(&format!("{place}/id -u")),
            NOBODY.to_string(),
            "{place}"
        );
        nobody_may_not(&format!("echo > {place}/null"));
        assert_eq!(
            sh(rig.path(), &format!("stat -c %f {place}/id {place}/null")).trim(),
            "89ed\n21b6",
            "they exist nevertheless"
        );
    }
    rig.mount.umount();
    drop(rig.mount);
    let mount =
        crate::common::Mount::start(&project, &MountOpts::new(v.io).arg("-o").arg("suid,dev"));
    for place in &places {
        let place = place.display();
        assert_eq!(nobody_may(&format!("{place}/id -u")), "0", "{place}");
        if !place.to_string().contains(".snapshots") {
            nobody_may(&format!("echo > {place}/null"));
        }
        nobody_may(&format!("cat {place}/null"));
    }
    drop(mount);
    // Of two opposite options, the last one applies.
    let mount = crate::common::Mount::start(
        &project,
        &MountOpts::new(v.io).arg("-o").arg("suid,dev,nosuid,noexec"),
    );
    let table = crate::common::mount::mount_table("self");
    let line = table
        .lines()
        .find(|line| line.contains("ckptfs") && line.contains(&*project.to_string_lossy()))
        .expect("our mount");
    assert!(
        line.contains("nosuid") && line.contains("noexec") && !line.contains("nodev"),
        "{line}"
    );
    nobody_may_not(&format!("{}/id", places[0].display()));
    drop(mount);
    rig_is_gone(rig.image);
}

/// The image is dropped last.
fn rig_is_gone(image: crate::common::Image) {
    drop(image);
}
