//! An ordinary user: mounts with fusermount3, in a mount namespace in which `/dev/fuse` is open to
//! all, as it is on a desktop.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::command::{copy_program, has, run_limited, tool};
use super::image::Image;
use super::variant::skip;

/// Nobody else's on this machine.
pub const USER: u32 = 61_234;
/// Seconds for what the user does.
const SECONDS: u64 = 120;

/// The programs by which a user mounts, and the tests become one; if one is missing, that is said.
pub fn can_mount() -> bool {
    let all = ["fusermount3", "setpriv", "unshare"];
    let missing = all.into_iter().find(|program| !has(program));
    missing
        .map(|program| skip(&format!("{program} is not installed")))
        .is_none()
}

/// Whether an ordinary user can mount, and have a namespace of its own; if not, that is said.
pub fn can_have_a_namespace() -> bool {
    let permitted = tool(
        "setpriv",
        &[
            "--reuid=61234",
            "--regid=61234",
            "--clear-groups",
            "unshare",
            "--user",
            "--mount",
            "true",
        ],
    );
    if !run_limited(&mut { permitted }, 60).status.success() {
        skip("user namespaces are not permitted here");
        return false;
    }
    can_mount()
}

/// A home of the user's.
pub fn home(image: &Image) -> PathBuf {
    let home = image.dir("home");
    own(&home);
    home
}

/// Gives a path to the user.
pub fn own(path: &Path) {
    chown(path, Some(USER), Some(USER))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Prepares the namespace: fusermount3 wants a user with a name. The mounts of tests beside go:
/// they could not be unmounted while this namespace lives.
const PREPARE: &str = r#"
awk '$3 == "fuse.ckptfs" { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l
mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse &&
(cat /etc/passwd; echo 'somebody:x:61234:61234::/:/bin/sh') > /mnt/passwd && mount --bind /mnt/passwd /etc/passwd && exec "$@"
"#;

/// Runs a script as the user: `$1` is the program, `$2` the directory.
pub fn runs(script: &str, home: &Path, dir: &Path) -> Output {
    // The binary is copied: the directory that it is built in may be root's alone.
    let binary = home.join("ckptfs");
    copy_program(Path::new(env!("CARGO_BIN_EXE_ckptfs")), &binary);
    let user = USER.to_string();
    let become_it = [
        "setpriv",
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
    ];
    let mut command = tool("unshare", &["--mount", "sh", "-c", PREPARE, "sh"]);
    command
        .args(become_it)
        .args(["bash", "-c", script, "story"])
        .arg(&binary)
        .arg(dir)
        .env("HOME", home)
        .env("USER", "somebody")
        .current_dir(home);
    run_limited(&mut command, SECONDS)
}
