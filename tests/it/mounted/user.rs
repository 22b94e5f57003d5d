//! An ordinary user: mounts with fusermount3, in the daemon's I/O path, and is alone in the mount.
//!
//! Everything runs in a mount namespace of its own, in which `/dev/fuse` is open to all, as it is
//! on a desktop.

use std::os::unix::fs::chown;
use std::path::Path;

use super::support::put;
use crate::common::{Fs, Image, run_limited, skip, tool};

/// Nobody else's on this machine.
const USER: u32 = 61_234;

/// What the user does. Ends with 0 if every step went as it should.
const STORY: &str = r#"
set -eu
ckptfs=$1 dir=$2
trap '$ckptfs umount "$dir" >/dev/null 2>&1 || $ckptfs umount -l "$dir" >/dev/null 2>&1 || true' EXIT
$ckptfs mount "$dir"
cd "$dir"
$ckptfs status --json | grep -q '"io":"daemon"'
test "$($ckptfs checkpoint --tag v1)" = 1
cp -a .snapshots/1 "$HOME/copy"
echo more >> a; rm b; mkdir d; echo new > d/new; chmod 600 c; ln c hard; ln -s a link; mkfifo fifo; setfattr -n user.note -v mine c
diff -r .snapshots/v1 "$HOME/copy"
test "$(cat .snapshots/1/a)" = a
test "$(stat -c %u d/new)" = "$(id -u)"
$ckptfs status | grep -q '^D b$'
$ckptfs restore 1 >/dev/null
diff -r --no-dereference . "$HOME/copy"
if command -v inotifywait >/dev/null; then
    echo again >> a
    inotifywait -m . > "$HOME/events" 2> "$HOME/watching" & watcher=$!
    until grep -q established "$HOME/watching"; do sleep 0.01; done
    $ckptfs restore 1 >/dev/null
    until grep -q 'MOVED_TO a' "$HOME/events"; do sleep 0.01; done
    kill $watcher
    diff -r --no-dereference . "$HOME/copy"
fi
mkdir .snapshots/again
test "$(cat .snapshots/again/b)" = b
rmdir .snapshots/again
cd "$HOME"
number() { $ckptfs -C "$dir" status --json | sed "s/.*\"$1\":\([0-9]*\).*/\1/"; }
pid=$(number pid)
test "$(stat -c %u /proc/$pid)" = "$(id -u)"
exec 8<>"$dir/open"
echo before >&8
kill -9 $pid
echo after >&8
test "$(cat "$dir/open")" = "$(printf 'before\nafter')"
exec 8>&-
rm "$dir/open"
test "$(cat "$dir/.snapshots/1/b")" = b
test "$(number takeovers)" = 1
pid=$(number pid) holder=$(number holder)
kill -9 $holder $pid
while kill -0 $pid 2>/dev/null; do sleep 0.01; done
$ckptfs mount "$dir" 2>/dev/null
test "$(cat "$dir/.snapshots/1/b")" = b
$ckptfs umount "$dir"
test "$(cat "$dir/a")" = a
echo done
"#;

fn on(fs: Fs) {
    if let Some(reason) = fs.unavailable() {
        return skip(&reason);
    }
    if run_limited(
        &mut tool(
            "sh",
            &[
                "-c",
                "command -v fusermount3 && command -v setpriv && command -v unshare",
            ],
        ),
        10,
    )
    .stdout
    .is_empty()
    {
        return skip("fusermount3 is not installed");
    }
    let image = Image::of(fs);
    let (home, dir) = (image.dir("home"), image.dir("home/project"));
    for name in ["a", "b", "c"] {
        put(dir.join(name), format!("{name}\n"));
        chown(dir.join(name), Some(USER), Some(USER)).unwrap();
    }
    chown(&home, Some(USER), Some(USER)).unwrap();
    chown(&dir, Some(USER), Some(USER)).unwrap();
    let output = as_user(&home, &dir);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && said.starts_with("done\n") && !said.contains("unsafe"),
        "{}: {said}",
        output.status
    );
}

/// The binary is copied: the directory that it is built in may be root's alone.
fn as_user(home: &Path, dir: &Path) -> std::process::Output {
    let binary = home.join("ckptfs");
    std::fs::copy(env!("CARGO_BIN_EXE_ckptfs"), &binary).unwrap();
    // fusermount3 wants a user with a name. The mounts of tests beside go: they could not be
    // unmounted while this namespace lives.
    let open_fuse = "awk '$3 == \"fuse.ckptfs\" { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l; mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse && \
                     (cat /etc/passwd; echo 'somebody:x:61234:61234::/:/bin/sh') > /mnt/passwd && mount --bind /mnt/passwd /etc/passwd && exec \"$@\"";
    let user = USER.to_string();
    let mut command = tool(
        "unshare",
        &[
            "--mount",
            "sh",
            "-c",
            open_fuse,
            "sh",
            "setpriv",
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
        ],
    );
    command
        .args(["bash", "-c", STORY, "story"])
        .arg(&binary)
        .arg(dir);
    run_limited(
        command
            .env("HOME", home)
            .env("USER", "somebody")
            .current_dir(home),
        90,
    )
}

#[test]
fn an_ordinary_user_has_it_all_on_xfs() {
    on(Fs::Xfs);
}

#[test]
fn an_ordinary_user_has_it_all_on_ext4() {
    on(Fs::Ext4);
}
