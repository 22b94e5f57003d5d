//! Invalid input causes a one-line error, a hint and an exit code, and no damage.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;

use super::support::{errno, get, names, noise, put, sh, tree};
use crate::common::wait::wait_until;
use crate::common::{
    Fs, Image, Io, Mount, MountOpts, Variant, fails, for_each_variant, run_limited, skip, succeeds,
    tool,
};

for_each_variant! { xfs => unknown_ids_and_paths_are_named }
for_each_variant! { xfs => on_a_full_filesystem_the_past_is_kept_and_the_live_file_untouched, a_restore_that_finds_no_room_loses_nothing }

/// Asserts a failure with one error line, a hint, and an empty stdout.
#[track_caller]
fn refused(output: &Output, code: i32, what: &str, hint: &str) {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    assert_eq!(out, "");
    let errors: Vec<&str> = err
        .lines()
        .filter(|line| line.starts_with("Error: "))
        .collect();
    assert!(
        errors.len() == 1 && errors[0].contains(what),
        "no line with {what:?}: {err}"
    );
    let hints = err
        .lines()
        .filter(|line| line.starts_with("Hint: "))
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        hints.contains(hint) && (hint.is_empty() || !hints.is_empty()),
        "no hint with {hint:?}: {err}"
    );
    assert!(err.lines().count() <= 4, "short: {err}");
}

fn on_xfs(test: impl FnOnce(&Image)) {
    match Fs::Xfs.unavailable() {
        Some(reason) => skip(&reason),
        None => test(&Image::of(Fs::Xfs)),
    }
}

fn opts() -> MountOpts {
    MountOpts::new(Io::Daemon)
}

#[test]
fn what_is_no_directory_cannot_be_mounted() {
    on_xfs(|image| {
        let dir = image.dir("d");
        put(dir.join("file"), "x");
        symlink("nowhere", dir.join("dangling")).unwrap();
        refused(
            &Mount::try_start(&dir.join("file"), &opts()),
            1,
            "not a directory",
            "",
        );
        refused(&Mount::try_start(&dir.join("none"), &opts()), 1, "none", "");
        refused(
            &Mount::try_start(&dir.join("dangling"), &opts()),
            1,
            "dangling",
            "",
        );
        assert_eq!(names(&dir), ["dangling", "file"]);
    });
}

#[test]
fn a_directory_is_mounted_once() {
    on_xfs(|image| {
        let dir = image.dir("d");
        let mount = Mount::start(&dir, &opts());
        refused(
            &Mount::try_start(&dir, &opts()),
            1,
            "already mounted",
            "ckptfs umount",
        );
        put(mount.path().join("f"), "still works");
    });
}

/// Failed before: the store was reported as in use, after 20 s.
#[test]
fn a_store_with_a_file_in_place_of_a_directory_is_damaged() {
    on_xfs(|image| {
        let dir = image.dir("d");
        Mount::start(&dir, &opts()).umount();
        fs::rename(dir.join(".ckptfs/layers"), dir.join("layers")).unwrap();
        put(dir.join(".ckptfs/layers"), "");
        refused(
            &Mount::try_start(&dir, &opts()),
            1,
            "layers is not trusted: it is not a directory",
            "the store may be damaged",
        );
    });
}

#[test]
fn a_store_of_a_newer_format_is_left_alone() {
    on_xfs(|image| {
        let dir = image.dir("d");
        let mut mount = Mount::start(&dir, &opts());
        put(mount.path().join("f"), "1");
        mount.checkpoint();
        mount.umount();
        let format = dir.join(".ckptfs/format");
        let text = get(&format);
        put(&format, text.replace("version 1", "version 2"));
        let before = sh(
            &dir,
            "find .ckptfs -type f -printf '%p %s %T@\n' | grep -v -e /lock -e daemon.log | sort",
        );
        refused(
            &Mount::try_start(&dir, &opts()),
            1,
            "made by a newer ckptfs: it has format 2, and this program knows formats up to 1",
            "newer",
        );
        refused(
            &mount.run(&["log"]),
            1,
            "made by a newer ckptfs: it has format 2, and this program knows formats up to 1",
            "newer",
        );
        assert_eq!(
            sh(
                &dir,
                "find .ckptfs -type f -printf '%p %s %T@\n' | grep -v -e /lock -e daemon.log | sort"
            ),
            before
        );
        put(&format, text.replace("features -", "features time-travel"));
        refused(&Mount::try_start(&dir, &opts()), 1, "time-travel", "");
        put(&format, text);
        mount.remount();
        assert_eq!(get(mount.view(1).join("f")), "1");
    });
}

#[test]
fn a_store_on_another_filesystem_is_refused() {
    on_xfs(|image| {
        let dir = image.dir("d");
        fs::create_dir(dir.join(".ckptfs")).unwrap();
        let mut mount = tool("mount", &["-t", "tmpfs", "-o", "size=1m", "ckptfs-test"]);
        succeeds(mount.arg(dir.join(".ckptfs")), 60);
        let output = Mount::try_start(&dir, &opts());
        succeeds(tool("umount", &[dir.join(".ckptfs")]).arg("-l"), 60);
        refused(&output, 1, "filesystem", "");
    });
}

#[test]
fn somebody_elses_directory_named_like_the_store_is_left_alone() {
    on_xfs(|image| {
        let dir = image.dir("d");
        fs::create_dir(dir.join(".ckptfs")).unwrap();
        put(dir.join(".ckptfs/mine"), "not a store");
        refused(&Mount::try_start(&dir, &opts()), 1, ".ckptfs", "");
        assert_eq!(
            (names(dir.join(".ckptfs")), get(dir.join(".ckptfs/mine"))),
            (vec!["mine".to_owned()], "not a store".to_owned())
        );
    });
}

#[test]
fn passthrough_without_reflink_is_refused() {
    if let Some(reason) = Fs::Ext4.unavailable() {
        return skip(&reason);
    }
    let image = Image::of(Fs::Ext4);
    refused(
        &Mount::try_start(&image.dir("d"), &MountOpts::new(Io::Passthrough)),
        1,
        "ext4 has no reflink",
        "--io auto",
    );
}

#[test]
fn without_dev_fuse_it_says_so() {
    on_xfs(|image| {
        let dir = image.dir("d");
        // A mount namespace with an empty /dev except null, and without copies of other tests'
        // mounts, which would prevent their unmount.
        let script = "awk '$3 == \"fuse.ckptfs\" { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l; mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$0\" mount \"$1\"";
        let mut command = tool(
            "unshare",
            &["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_ckptfs")],
        );
        refused(&run_limited(command.arg(&dir), 60), 1, "FUSE", "doctor");
    });
}

/// With nested daemons, a restore of the outer tree would restore the store of the inner one while
/// it is mounted.
#[test]
fn a_directory_in_a_mount_is_refused_by_whatever_name() {
    on_xfs(|image| {
        let mount = Mount::start(&image.dir("d"), &opts());
        let (inner, other, bound) = (
            mount.path().join("inner"),
            image.dir("other"),
            image.dir("bound"),
        );
        fs::create_dir(&inner).unwrap();
        succeeds(tool("mount", &["--bind"]).args([&inner, &bound]), 60);
        let at = |dir: &Path, mountpoint: Option<&Path>| {
            Mount::try_start(
                dir,
                &MountOpts {
                    mountpoint: mountpoint.map(Path::to_owned),
                    ..opts()
                },
            )
        };
        let outputs = [
            at(&inner, None),
            at(&inner, Some(&other)),
            at(&bound, None),
            at(&other, Some(&inner)),
        ];
        succeeds(&mut tool("umount", &[&bound]), 60);
        outputs
            .iter()
            .for_each(|output| refused(output, 1, "is inside the mount", "ckptfs umount"));
        assert!(
            names(&inner).is_empty() && names(&other).is_empty(),
            "nothing was created"
        );
    });
}

/// Inode numbers come from several filesystems there. Failed before: it was mounted, and the
/// creation of a file returned EXDEV.
#[test]
fn an_overlay_of_several_filesystems_is_refused() {
    on_xfs(|image| {
        let dirs = ["lower", "above", "merged"].map(|name| image.dir(name));
        let [lower, above, merged] = &dirs;
        fs::create_dir(lower.join("d")).unwrap();
        succeeds(tool("mount", &["-t", "tmpfs", "none"]).arg(above), 60);
        ["upper", "work"]
            .iter()
            .for_each(|name| fs::create_dir(above.join(name)).unwrap());
        let layers = format!(
            "lowerdir={},upperdir={a}/upper,workdir={a}/work",
            lower.display(),
            a = above.display()
        );
        succeeds(
            tool("mount", &["-t", "overlay", "none", "-o", &layers]).arg(merged),
            60,
        );
        let output = Mount::try_start(&merged.join("d"), &opts());
        // The daemon that rejected it may not have exited yet, and its working directory is in
        // there.
        for dir in [merged, above] {
            wait_until("it is unmounted", || {
                run_limited(&mut tool("umount", &[dir]), 60)
                    .status
                    .success()
            });
        }
        refused(&output, 1, "on other devices", "underlying");
    });
}

/// The daemon is in the namespace, and keeps it alive. Failed before: neither the mount nor
/// anything else on the filesystem could be unmounted.
#[test]
fn a_mount_in_a_namespace_that_was_left_is_ended_from_outside() {
    on_xfs(|image| {
        let dir = image.dir("d");
        // Without copies of other tests' mounts, as above.
        let others =
            "awk '$3 == \"fuse.ckptfs\" { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l";
        let script = format!("{others}; \"$0\" mount --io daemon \"$1\" && echo new > \"$1/f\"");
        let mut command = tool(
            "unshare",
            &[
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                &script,
                env!("CARGO_BIN_EXE_ckptfs"),
            ],
        );
        succeeds(command.arg(&dir), 60);
        let ckptfs =
            |verb: &str| run_limited(tool(env!("CARGO_BIN_EXE_ckptfs"), &[verb]).arg(&dir), 60);
        refused(
            &ckptfs("mount"),
            1,
            "in use by another process",
            "ckptfs umount",
        );
        let ended = ckptfs("umount");
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        let mount = Mount::start(&dir, &opts());
        assert_eq!(get(mount.path().join("f")), "new\n");
    });
}

#[test]
fn an_ordinary_user_needs_a_directory_of_his_own() {
    on_xfs(|image| {
        let dir = image.dir("d");
        put(dir.join("f"), "root's");
        let nobody = MountOpts {
            user: Some(65534),
            ..opts()
        };
        let output = Mount::try_start(&dir, &nobody);
        refused(&output, 1, "ermission", "");
        assert!(!dir.join(".ckptfs").exists(), "nothing was created");
        let mount = Mount::start(&dir, &opts());
        let mut theirs = tool(
            "setpriv",
            &[
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                env!("CARGO_BIN_EXE_ckptfs"),
                "-C",
            ],
        );
        let said = fails(
            theirs.arg(mount.path()).arg("checkpoint").current_dir("/"),
            60,
        );
        assert!(said.contains("Error: "), "{said}");
        assert_eq!(mount.log_json(), serde_json::json!([]));
    });
}

fn unknown_ids_and_paths_are_named(v: Variant) {
    let rig = v.start();
    put(rig.path().join("f"), "1");
    rig.mount.checkpoint();
    refused(&rig.mount.run(&["restore", "7"]), 1, "\"7\"", "ckptfs log");
    refused(
        &rig.mount.run(&["diff", "1", "nosuch"]),
        1,
        "nosuch",
        "ckptfs log",
    );
    refused(
        &rig.mount.run(&["restore", "1", "no/such/path"]),
        1,
        "no/such/path",
        ".snapshots/1",
    );
    refused(
        &rig.mount.run(&["restore", "1", "../outside"]),
        1,
        "outside",
        "",
    );
    refused(
        &rig.mount.run(&["checkpoint", "--tag", "a/b"]),
        1,
        "a/b",
        "tag",
    );
    assert_eq!(rig.mount.run(&["restore"]).status.code(), Some(2));
    assert_eq!(rig.mount.log_json().as_array().unwrap().len(), 1);
}

/// Fills a filesystem to the last block.
fn fill(dir: &Path) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("filler"))
        .unwrap();
    for size in [1 << 20, 64 << 10, 4 << 10, 512] {
        let block = noise(size, 3);
        while file.write(&block).is_ok_and(|written| written == size) {}
    }
    // Dirty pages may not find space at writeback.
    let _ = file.sync_all();
    let mut number = 0;
    while fs::write(dir.join(format!("filler-{number}")), noise(3000, 4)).is_ok() && number < 20_000
    {
        number += 1;
    }
}

fn on_a_full_filesystem_the_past_is_kept_and_the_live_file_untouched(v: Variant) {
    let image = Image::new(v.fs, 320 << 20);
    let dir = image.dir("project");
    for number in 0..40 {
        put(dir.join(format!("f{number:02}")), noise(20_000, number));
    }
    // The log of the daemon is also on the full filesystem.
    let env = vec![("CKPTFS_LOG".to_owned(), "debug".to_owned())];
    let mut mount = Mount::start(
        &dir,
        &MountOpts {
            env,
            ..MountOpts::new(v.io)
        },
    );
    let root = mount.path().to_owned();
    let id = mount.checkpoint();
    let was = tree(&mount.view(id));
    fill(image.path());
    let mut refused = 0;
    for number in 0..40_u8 {
        let path = root.join(format!("f{number:02}"));
        let changed = OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.write_all_at(&[0; 100], 0));
        let content = fs::read(&path).unwrap();
        match changed {
            Ok(()) => assert!(
                content[..100] == [0; 100] && content[100..] == noise(20_000, number)[100..],
                "f{number:02}"
            ),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "f{number:02}");
                assert!(
                    content == noise(20_000, number),
                    "f{number:02}: the change failed, but the live file differs"
                );
                refused += 1;
            }
        }
    }
    eprintln!("{refused} of 40 changes were refused");
    let _ = mount.run(&["checkpoint"]);
    assert_eq!(
        errno(
            fs::create_dir_all(root.join("no/room/for/these/directories"))
                .and(fs::write(root.join("new"), noise(4 << 20, 1)))
        ),
        libc::ENOSPC
    );
    crate::common::tree::assert_tree_is(&mount.view(id), &was, &crate::common::TreeOpts::default());
    sh(image.path(), "rm -f filler*");
    put(root.join("f00"), "there is room again");
    assert_eq!(get(root.join("f00")), "there is room again");
    let next = mount.checkpoint();
    assert_eq!(get(mount.view(next).join("f00")), "there is room again");
    crate::common::tree::assert_tree_is(&mount.view(id), &was, &crate::common::TreeOpts::default());
    mount.umount();
    mount.remount();
    crate::common::tree::assert_tree_is(&mount.view(id), &was, &crate::common::TreeOpts::default());
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
}

fn a_restore_that_finds_no_room_loses_nothing(v: Variant) {
    let image = Image::new(v.fs, 320 << 20);
    let dir = image.dir("project");
    sh(
        &dir,
        "mkdir -p a/b moved; for i in $(seq 300); do echo $i > a/b/$i; done; echo m > moved/m; ln a/b/1 hard",
    );
    let mut mount = Mount::start(&dir, &MountOpts::new(v.io));
    let root = mount.path().to_owned();
    let (id, was) = (mount.checkpoint(), tree(&root));
    sh(
        &root,
        "for i in $(seq 150); do echo changed > a/b/$i; done; rm a/b/2??; mv moved a/; mkdir new; echo n > new/n",
    );
    let then = tree(&root);
    fill(image.path());
    let whole = crate::common::TreeOpts::default();
    let restored = mount.run(&["restore", &id.to_string()]);
    let failed = !restored.status.success();
    eprintln!(
        "restore on a full filesystem: {}",
        String::from_utf8_lossy(&restored.stderr)
    );
    sh(image.path(), "rm -f filler*");
    let newest = mount.log_json()[0]["id"].as_u64().unwrap();
    if !failed {
        crate::common::tree::assert_tree_is(&root, &was, &whole);
    } else if newest == id {
        crate::common::tree::assert_tree_is(&root, &then, &whole);
    }
    if newest != id {
        crate::common::tree::assert_tree_is(&mount.view(newest), &then, &whole);
        mount.umount();
        mount.remount();
        mount.restore(newest);
        crate::common::tree::assert_tree_is(&root, &then, &whole);
    }
    mount.restore(id);
    crate::common::tree::assert_tree_is(&root, &was, &whole);
    crate::common::tree::assert_tree_is(&mount.view(id), &was, &whole);
}
