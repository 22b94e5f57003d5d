//! An ordinary user, who mounts with fusermount3 in a mount namespace in which all users may open
//! `/dev/fuse`, as on a desktop.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::command::{copy_program, has, run_limited, tool};
use super::image::Image;
use super::variant::skip;

/// An unused user ID.
pub const USER: u32 = 61_234;
/// Time limit of a script, in seconds.
const SECONDS: u64 = 120;

/// Returns whether the programs for a mount as the user are installed; skips the test otherwise.
pub fn can_mount() -> bool {
    let all = ["fusermount3", "setpriv", "unshare"];
    let missing = all.into_iter().find(|program| !has(program));
    missing
        .map(|program| skip(&format!("{program} is not installed")))
        .is_none()
}

/// Returns whether an ordinary user can mount and create a user namespace; skips the test
/// otherwise.
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

/// Makes a home directory of the user.
pub fn home(image: &Image) -> PathBuf {
    let home = image.dir("home");
    own(&home);
    home
}

/// Changes the owner of a path to the user.
pub fn own(path: &Path) {
    chown(path, Some(USER), Some(USER))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Prepares the namespace: fusermount3 requires a user with a name. Unmounts its copies of other
/// tests' mounts, which would prevent their unmount while this namespace exists.
const PREPARE: &str = r#"
awk '$3 == "fuse.ckptfs" { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l
mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse &&
(cat /etc/passwd; echo 'somebody:x:61234:61234::/:/bin/sh') > /mnt/passwd && mount --bind /mnt/passwd /etc/passwd && exec "$@"
"#;

/// Runs a script as the user: `$1` is the program, `$2` the directory.
pub fn runs(script: &str, home: &Path, dir: &Path) -> Output {
    // The binary is copied because only root may have access to the build directory.
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
