//! Hooks: commands before and after checkpoints and restores.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use crate::common::command::{sh, write_script};
use crate::common::{MountOpts, Rig, Variant, for_each_variant, run_limited, scratch};

fn hook(dir: &Path, name: &str, script: &str) {
    write_script(&dir.join(name), &format!("#!/bin/sh\n{script}\n"));
}

/// Mounts with a hooks directory and a time limit.
fn start(variant: Variant, dir: &Path, timeout: &str) -> Rig {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let opts = MountOpts::new(variant.io)
        .arg("--hooks")
        .arg(dir.to_str().unwrap())
        .arg("--hook-timeout")
        .arg(timeout);
    variant.start_with(opts, |_| {})
}

/// A hook quiesces an application, the checkpoint shows it quiet, and the post hook resumes it.
fn hooks_read_and_write_the_mount_and_know_what_for(variant: Variant) {
    let hooks = scratch();
    let log = hooks.path().join("log");
    let note = format!(
        "echo $CKPTFS_HOOK $CKPTFS_VERB $CKPTFS_ID $CKPTFS_RESULT >> {}",
        log.display()
    );
    hook(
        hooks.path(),
        "pre-checkpoint",
        &format!(
            "{note}; test \"$PWD\" = / || exit 9; cd \"$CKPTFS_MOUNT\"; cat state; echo quiet > state"
        ),
    );
    hook(
        hooks.path(),
        "post-checkpoint",
        &format!("{note}; echo busy > $CKPTFS_MOUNT/state"),
    );
    hook(
        hooks.path(),
        "pre-restore",
        &format!(
            "{note}; {} -C $CKPTFS_MOUNT checkpoint --tag of-the-hook",
            env!("CARGO_BIN_EXE_ckptfs")
        ),
    );
    hook(
        hooks.path(),
        "post-restore",
        &format!("{note}; cd $CKPTFS_MOUNT; cat state > copy"),
    );
    let rig = start(variant, hooks.path(), "60s");
    fs::write(rig.path().join("state"), "busy\n").unwrap();
    let id = rig.mount.checkpoint();
    assert_eq!(
        fs::read_to_string(rig.view(id).join("state")).unwrap(),
        "quiet\n"
    );
    assert_eq!(
        fs::read_to_string(rig.path().join("state")).unwrap(),
        "busy\n"
    );
    fs::create_dir(rig.path().join(".snapshots/by-mkdir")).unwrap();
    assert_eq!(
        fs::read_to_string(rig.path().join(".snapshots/by-mkdir/state")).unwrap(),
        "quiet\n"
    );
    rig.mount.restore(id);
    assert_eq!(
        fs::read_to_string(rig.path().join("copy")).unwrap(),
        "quiet\n"
    );
    rig.mount.ok(&["restore", "--dry-run", &id.to_string()]);
    rig.mount.ok(&["show", "of-the-hook"]);
    let told = fs::read_to_string(&log).unwrap();
    let expected = "pre-checkpoint checkpoint\npost-checkpoint checkpoint 1 done\npre-checkpoint checkpoint\npost-checkpoint checkpoint 2 done\n\
                    pre-restore restore 1\npost-restore restore 1 done\n";
    assert_eq!(
        told.lines()
            .map(|line| line.trim_end())
            .collect::<Vec<_>>()
            .join("\n")
            + "\n",
        expected
    );
}

fn a_hook_that_fails_or_hangs_stops_what_it_is_before(variant: Variant) {
    let hooks = scratch();
    hook(
        hooks.path(),
        "pre-checkpoint",
        "cd $CKPTFS_MOUNT; if [ -e hang ]; then sleep 1000 & sleep 1000; fi; if [ -e veto ]; then echo the database is busy >&2; exit 3; fi",
    );
    hook(hooks.path(), "pre-restore", "exit 1");
    hook(
        hooks.path(),
        "post-checkpoint",
        "if [ -e $CKPTFS_MOUNT/late ]; then exit 5; fi",
    );
    let rig = start(variant, hooks.path(), "2s");
    let id = rig.mount.checkpoint();
    let refused = |arguments: &[&str]| {
        let output = run_limited(&mut rig.mount.command(arguments), 60);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    fs::write(rig.path().join("veto"), "").unwrap();
    let said = refused(&["checkpoint"]);
    assert!(
        said.contains("pre-checkpoint failed: the database is busy"),
        "{said}"
    );
    assert!(fs::create_dir(rig.path().join(".snapshots/name")).is_err());
    let said = refused(&["restore", &id.to_string()]);
    assert!(said.contains("pre-restore failed"), "{said}");
    assert!(rig.path().join("veto").exists(), "nothing was restored");
    fs::rename(rig.path().join("veto"), rig.path().join("hang")).unwrap();
    let said = refused(&["checkpoint"]);
    assert!(said.contains("did not end within 2s"), "{said}");
    assert_eq!(
        rig.mount.log_json().as_array().map(Vec::len),
        Some(1),
        "none of these was created"
    );
    fs::rename(rig.path().join("hang"), rig.path().join("late")).unwrap();
    rig.mount.checkpoint();
    let warnings = rig.mount.status_json()["warnings"].to_string();
    assert!(warnings.contains("post-checkpoint failed"), "{warnings}");
}

/// Hooks writable by others are not run: a container with the volume must not choose the commands
/// that root runs.
fn what_others_can_write_is_not_run(variant: Variant) {
    let hooks = scratch();
    let ran = hooks.path().join("ran");
    hook(
        hooks.path(),
        "pre-checkpoint",
        &format!("echo >> {}", ran.display()),
    );
    let rig = start(variant, hooks.path(), "60s");
    let path = hooks.path().join("pre-checkpoint");
    let refused = || {
        let output = run_limited(&mut rig.mount.command(&["checkpoint"]), 60);
        assert!(!output.status.success() && !ran.exists(), "{output:?}");
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    refused();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&path, Some(61_234), None).unwrap();
    refused();
    chown(&path, Some(0), None).unwrap();
    fs::set_permissions(hooks.path(), fs::Permissions::from_mode(0o777)).unwrap();
    refused();
    fs::set_permissions(hooks.path(), fs::Permissions::from_mode(0o755)).unwrap();
    rig.mount.checkpoint();
    assert!(ran.exists());
    // A hooks directory within the tree or its store is refused.
    sh(
        rig.path(),
        "mkdir hooks && printf '#!/bin/sh\\nexit 1\\n' > hooks/pre-checkpoint && chmod 755 hooks hooks/pre-checkpoint",
    );
    let inside = rig.path().join("hooks");
    let refused = crate::common::Mount::try_start(
        rig.path(),
        &MountOpts::new(variant.io)
            .arg("--hooks")
            .arg(inside.to_str().unwrap()),
    );
    assert!(!refused.status.success());
    rig.mount.checkpoint();
}

/// Every directory above the hooks must belong to the owner, and the checked file is the one
/// executed.
///
/// Failed before: the owner of a directory above exchanged the hooks directory, between check and
/// execution, for one made of root's own files. The race was won at the eighth attempt.
fn whoever_exchanges_names_above_runs_nothing(variant: Variant) {
    let above = scratch();
    fs::set_permissions(above.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let hooks = above.path().join("theirs/hooks");
    fs::create_dir_all(&hooks).unwrap();
    let ran = above.path().join("ran");
    hook(
        &hooks,
        "pre-checkpoint",
        &format!("echo >> {}", ran.display()),
    );
    let opts = MountOpts::new(variant.io)
        .arg("--hooks")
        .arg(hooks.to_str().unwrap());
    let rig = variant.start_with(opts, |_| {});
    let refused = |why: &str| {
        let output = run_limited(&mut rig.mount.command(&["checkpoint"]), 60);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && said.contains(why) && !ran.exists(),
            "{said}"
        );
    };
    let theirs = above.path().join("theirs");
    chown(&theirs, Some(61_234), None).unwrap();
    refused("belongs to user 61234");
    chown(&theirs, Some(0), None).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777)).unwrap();
    refused("is writable by others");
    // With the sticky bit other users cannot rename entries they do not own.
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o1777)).unwrap();
    rig.mount.checkpoint();
    assert!(ran.exists());
    fs::remove_file(&ran).unwrap();
    // A symbolic link in place of a directory, and of a hook.
    fs::rename(&theirs, above.path().join("moved")).unwrap();
    std::os::unix::fs::symlink("moved", &theirs).unwrap();
    refused("is not a directory");
    fs::remove_file(&theirs).unwrap();
    fs::rename(above.path().join("moved"), &theirs).unwrap();
    fs::rename(hooks.join("pre-checkpoint"), hooks.join("real")).unwrap();
    std::os::unix::fs::symlink("real", hooks.join("pre-checkpoint")).unwrap();
    refused("is not a regular file");
}

/// Exchanges names continuously, with permission (here: as root), while the hook runs repeatedly:
/// only the checked hook ever runs.
fn what_was_looked_at_is_what_runs(variant: Variant) {
    let above = scratch();
    fs::set_permissions(above.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (good, bad) = (above.path().join("hooks"), above.path().join("bad"));
    let (ran, evil) = (above.path().join("ran"), above.path().join("evil"));
    for (dir, log) in [(&good, &ran), (&bad, &evil)] {
        fs::create_dir(dir).unwrap();
        hook(dir, "pre-checkpoint", &format!("echo >> {}", log.display()));
    }
    // The other hook differs only by its owner, which the check rejects.
    chown(bad.join("pre-checkpoint"), Some(61_234), None).unwrap();
    let rig = variant.start_with(
        MountOpts::new(variant.io)
            .arg("--hooks")
            .arg(good.to_str().unwrap()),
        |_| {},
    );
    let ended = std::sync::atomic::AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                exchange(&good, &bad);
            }
        });
        let tries = (0..60).map(|_| {
            run_limited(&mut rig.mount.command(&["checkpoint"]), 60)
                .status
                .success()
        });
        let refused = tries.filter(|made| !made).count();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        refused
    });
    assert!(!evil.exists(), "the replaced hook has run");
    assert!(
        ran.exists() && refused > 0,
        "{refused} of 60 found the other one"
    );
}

/// Calls renameat2(2) with `RENAME_EXCHANGE`.
fn exchange(one: &Path, other: &Path) {
    rustix::fs::renameat_with(
        rustix::fs::CWD,
        one,
        rustix::fs::CWD,
        other,
        rustix::fs::RenameFlags::EXCHANGE,
    )
    .unwrap();
}

for_each_variant! { xfs => hooks_read_and_write_the_mount_and_know_what_for }

mod refusals {
    use super::*;
    use crate::common::{Fs, Io};

    const VARIANT: Variant = Variant {
        fs: Fs::Tmpfs,
        io: Io::Daemon,
    };

    #[test]
    fn a_hook_that_fails_or_hangs_stops_what_it_is_before() {
        super::a_hook_that_fails_or_hangs_stops_what_it_is_before(VARIANT);
    }

    #[test]
    fn whoever_exchanges_names_above_runs_nothing() {
        super::whoever_exchanges_names_above_runs_nothing(VARIANT);
    }

    #[test]
    fn what_was_looked_at_is_what_runs() {
        super::what_was_looked_at_is_what_runs(VARIANT);
    }

    #[test]
    fn what_others_can_write_is_not_run() {
        super::what_others_can_write_is_not_run(VARIANT);
    }
}
