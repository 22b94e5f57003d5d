//! Failed mounts, waiting mounts, file modes and messages.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::command::run_limited;
use crate::common::mount::VERB_SECONDS;
use crate::common::{Fs, Image, Io, Mount, MountOpts, Variant, for_each_variant, skip};

for_each_variant! { xfs => a_change_beside_a_long_capture_waits_for_it }

fn ckptfs(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
    command
        .arg("-C")
        .arg(dir)
        .args(arguments)
        .env("NO_COLOR", "1");
    command
}

fn run(dir: &Path, arguments: &[&str]) -> (Output, String) {
    let output = run_limited(&mut ckptfs(dir, arguments), VERB_SECONDS);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output, said)
}

/// Collects every file below a directory, with its mode.
fn files(dir: &Path, found: &mut Vec<(std::path::PathBuf, u32)>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let meta = entry.metadata().unwrap();
        found.push((entry.path(), meta.permissions().mode()));
        if meta.is_dir() {
            files(&entry.path(), found);
        }
    }
}

/// Failed before: sled created its files with the daemon's umask, which clears nothing. In a store
/// copied without its modes, or bind-mounted elsewhere, any user could read and change the index.
/// `git add -A` in a mounted repository must not add the store.
#[test]
fn the_store_is_its_owner_s_alone_and_git_s_never() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let mut rig = variant.start();
    for round in 0..3 {
        fs::write(rig.path().join("f"), format!("{round}")).unwrap();
        rig.mount.checkpoint();
    }
    fs::remove_file(rig.path().join("f")).unwrap();
    rig.mount.umount();
    let store = rig.image.path().join("project/.ckptfs");
    assert_eq!(fs::read(store.join(".gitignore")).unwrap(), b"*\n");
    let mut found = Vec::new();
    files(&store, &mut found);
    // A moved inode keeps its mode.
    found.retain(|(path, mode)| {
        mode & 0o077 != 0 && path.extension().is_none_or(|suffix| suffix != "m")
    });
    assert!(found.is_empty(), "{found:?}");
    // A store made by an older version gets the file; a modified one is preserved.
    fs::remove_file(store.join(".gitignore")).unwrap();
    fs::set_permissions(store.join("index/db"), fs::Permissions::from_mode(0o666)).unwrap();
    rig.mount.remount();
    rig.mount.umount();
    assert_eq!(fs::read(store.join(".gitignore")).unwrap(), b"*\n");
    assert_eq!(
        fs::metadata(store.join("index/db"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    fs::write(store.join(".gitignore"), "mine").unwrap();
    rig.mount.remount();
    rig.mount.umount();
    assert_eq!(fs::read(store.join(".gitignore")).unwrap(), b"mine");
}

/// A failed mount leaves no new store, and preserves an existing one.
#[test]
fn a_mount_that_fails_leaves_no_store() {
    if let Some(reason) = (Variant {
        fs: Fs::Ext4,
        io: Io::Daemon,
    })
    .unavailable()
    {
        return skip(&reason);
    }
    let image = Image::new(Fs::Ext4, 64 << 20);
    let dir = image.dir("project");
    let refused = || {
        let output = Mount::try_start(&dir, &MountOpts::new(Io::Passthrough));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("passthrough is not possible here"),
            "{output:?}"
        );
    };
    refused();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    let mut mount = Mount::start(&dir, &MountOpts::new(Io::Daemon));
    fs::write(dir.join("f"), "kept").unwrap();
    let id = mount.checkpoint();
    mount.umount();
    refused();
    mount.remount();
    assert_eq!(fs::read(mount.view(id).join("f")).unwrap(), b"kept");
}

/// A mount on ext4 has the daemon's I/O and copies. Failed before: `doctor` printed that the kernel
/// could read and write by itself.
#[test]
fn doctor_says_what_a_mount_without_reflink_does() {
    if let Some(reason) = (Variant {
        fs: Fs::Ext4,
        io: Io::Daemon,
    })
    .unavailable()
    {
        return skip(&reason);
    }
    let image = Image::new(Fs::Ext4, 64 << 20);
    let (_, said) = run(&image.dir("project"), &["doctor"]);
    assert!(
        said.contains("the daemon does all I/O, and captures are copies")
            && !said.contains("by itself"),
        "{said}"
    );
}

/// A killed daemon may hold the store's lock longer than a remount takes. Failed before: `mount`
/// reported "in-use".
#[test]
fn a_mount_waits_for_a_daemon_that_dies() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let mut rig = variant.start();
    rig.mount.umount();
    let lock = File::open(rig.image.path().join("project/.ckptfs/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let dies = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(6500));
        drop(lock);
    });
    rig.mount.remount();
    dies.join().unwrap();
}

/// Messages that were missing or wrong before.
#[test]
fn what_is_done_and_who_may_is_said() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let mut rig = variant.start();
    fs::write(rig.path().join("f"), "1").unwrap();
    let id = rig.mount.checkpoint();
    let fork = rig
        .mount
        .json(&["fork", "-n", "latest", "/var/tmp/ckptfs-no-such-fork"]);
    assert_eq!(
        (&fork["forked"], &fork["dry_run"]),
        (&id.into(), &true.into())
    );
    assert!(rig.mount.ok(&["restore", "--help"]).contains("session:PID"));
    let mut other = ckptfs(Path::new("/"), &["umount"]);
    let output = run_limited(other.arg(rig.path()).uid(65534).gid(65534), VERB_SECONDS);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success()
            && said.contains("was mounted by another user")
            && said.contains("the user who mounted it may unmount it"),
        "{said}"
    );
    rig.mount.umount();
    let dir = rig.image.path().join("project");
    fs::remove_dir_all(dir.join(".ckptfs/index")).unwrap();
    let (output, said) = run(&dir, &["verify", "--repair"]);
    assert!(
        output.status.success()
            && said.contains("the index was made from the journal")
            && !said.contains("can be repaired"),
        "{said}"
    );
    let (output, said) = run(&dir, &["verify"]);
    assert!(output.status.success(), "{said}");
    rig.mount.remount();
}

/// A checkpoint captures open files before the freeze, and a file with very many extents takes
/// long. Failed before: a change of the file failed with EBUSY after 0.7 s.
fn a_change_beside_a_long_capture_waits_for_it(v: Variant) {
    const EXTENTS: u64 = 60_000;
    let rig = v.start();
    let path = rig.path().join("file");
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    (0..EXTENTS).for_each(|n| file.write_all_at(&[1; 4096], n * 8192).unwrap());
    file.sync_all().unwrap();
    let ended = AtomicBool::new(false);
    let changed = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                file.write_all_at(b"changed", 0).unwrap();
                rig.mount.checkpoint();
            }
            ended.store(true, Ordering::SeqCst);
        });
        (0_u32..)
            .take_while(|_| !ended.load(Ordering::SeqCst))
            .map(|n| {
                fs::set_permissions(&path, Permissions::from_mode(0o600 | (n & 1) << 6)).unwrap()
            })
            .count()
    });
    assert!(changed > 0);
}
