//! An archive or a copy of a directory including its `.ckptfs`, unpacked over the mount, does not
//! modify the history, and the unpacking program receives an error.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::{get, put, sh};
use crate::common::command::{check, try_run_limited};
use crate::common::mount_opts::mount_command;
use crate::common::tree::{assert_same, tree};
use crate::common::{Fs, Image, Mount, Rig, Variant, for_each_variant, has, skip, tool, user};

for_each_variant! { reflink => an_archive_of_the_directory_leaves_the_store_alone }
for_each_variant! { branch => an_archive_of_the_directory_leaves_the_store_alone }
for_each_variant! { xfs =>
    nor_does_it_where_no_mount_can_be_copied,
    the_store_is_shown_read_only_by_each_daemon,
}

/// Archives `$1/aside` as `$1/a.tar` and `$1/a.zip`.
const ARCHIVES: &str = r#"
set -eu
find "$1/aside" -type s -delete
tar -C "$1/aside" -cf "$1/a.tar" .
cd "$1/aside"
python=$(command -v python3)
test ! -x /usr/bin/python3 || python=/usr/bin/python3
"$python" -c 'import os, sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as archive:
    for dir, _, names in os.walk("."):
        archive.write(dir)
        for name in names: archive.write(os.path.join(dir, name))' "$1/a.zip"
"#;

/// Unpacks these archives and copies `$1/aside` over `$2`; prints the commands that succeed.
const UNPACK: &str = r#"
cd "$2"
python=$(command -v python3)
test ! -x /usr/bin/python3 || python=/usr/bin/python3
while read -r command; do
    if sh -c "$command" sh "$1" "$python" > /dev/null 2>> "$1/said"; then echo "no error: $command"; fi
done <<'END'
tar -xf "$1/a.tar"
tar --overwrite -xf "$1/a.tar"
tar --keep-directory-symlink -xpf "$1/a.tar"
tar --unlink-first --recursive-unlink -xf "$1/a.tar"
"$2" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(".")' "$1/a.zip"
"$2" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(".")' "$1/a.tar"
rsync -a "$1/aside/" .
rsync -aK --delete "$1/aside/" .
rsync -aK --inplace "$1/aside/" .
cp -a "$1/aside/." .
cp -rT --remove-destination "$1/aside" .
cp "$1/aside/.ckptfs/format" .ckptfs/format
mkdir .ckptfs/new
rm -r .ckptfs/journal
mv .ckptfs/journal moved
chmod -R 700 .ckptfs/
END
"#;

fn script(text: &str, aside: &Path, root: &Path) -> Command {
    let mut command = tool("sh", &["-c", text, "sh"]);
    command.arg(aside).arg(root);
    command
}

/// Archives the tree and its store at the previous checkpoint, without files that the daemon
/// removes during the copy. Returns the IDs of the two checkpoints.
fn archive(mount: &Mount, aside: &Path) -> [u64; 2] {
    let root = mount.path();
    put(root.join("f"), "1");
    let first = mount.checkpoint();
    let copy = aside.join("aside");
    fs::create_dir_all(&copy).unwrap();
    put(copy.join("f"), "1");
    sh(
        root,
        &format!("cp -a .ckptfs/. {}/.ckptfs 2>&1 || true", copy.display()),
    );
    let made = script(ARCHIVES, aside, root).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    put(root.join("f"), "2");
    put(root.join("g"), "2");
    [first, mount.checkpoint()]
}

/// Unpacks the archives, and checks that the history is complete after a remount.
fn unpack(mount: &mut Mount, aside: &Path) {
    let views = archive(mount, aside).map(|id| (id, tree(&mount.view(id))));
    let said = try_run_limited(&mut script(UNPACK, aside, mount.path()), 120).unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "", "{said:?}");
    assert_eq!(
        get(mount.path().join("f")),
        "1",
        "the other files are unpacked"
    );
    put(mount.path().join("f"), "3");
    let third = mount.checkpoint();
    mount.umount();
    mount.remount();
    for (id, view) in &views {
        assert_same(&tree(&mount.view(*id)), view);
    }
    assert_eq!(get(mount.view(third).join("f")), "3");
    let (status, report) = check(mount.path(), &["verify", "--deep"]);
    assert_eq!(status, 0, "{report}");
}

/// Failed before: tar and Python's zipfile followed the hidden link `.ckptfs` and overwrote the
/// store without an error; the store could not be opened after the next unmount.
fn an_archive_of_the_directory_leaves_the_store_alone(v: Variant) {
    let mut rig = v.start();
    let aside = rig.image.dir("aside");
    unpack(&mut rig.mount, &aside);
}

/// Starts the daemon with open_tree(2) failing, as on an older kernel.
fn remount_without_copies(rig: &mut Rig) -> bool {
    rig.mount.umount();
    let dir = rig.image.path().join("project");
    let mount = mount_command(&dir, &rig.mount.opts);
    let mut strace = tool("strace", &["-D", "-f", "-q", "-o", "/dev/null"]);
    strace
        .args(["--seccomp-bpf", "-e", "trace=open_tree"])
        .args(["-e", "inject=open_tree:error=ENOSYS"])
        .arg(mount.get_program())
        .args(mount.get_args())
        // strace lives as long as the daemon.
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    for (name, value) in mount.get_envs() {
        value.map(|value| strace.env(name, value));
    }
    let mounted = has("strace") && strace.status().is_ok_and(|status| status.success());
    if mounted {
        rig.mount.adopt();
    }
    mounted
}

/// Without a copy of the mount, the link leads to the store itself, and other programs do not see
/// it.
fn nor_does_it_where_no_mount_can_be_copied(v: Variant) {
    let mut rig = v.start();
    let aside = rig.image.dir("aside");
    let [first, second] = archive(&rig.mount, &aside);
    if !remount_without_copies(&mut rig) {
        return skip("strace cannot trace the daemon");
    }
    let root = rig.path().to_owned();
    assert_eq!(
        sh(&root, "ls .ckptfs 2>&1 || true"),
        "ls: cannot access '.ckptfs': No such file or directory\n"
    );
    let said = try_run_limited(&mut script(UNPACK, &aside, &root), 120).unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "", "{said:?}");
    // A satellite is one of ours.
    let said = rig.mount.run(&["browse"]);
    assert!(
        String::from_utf8_lossy(&said.stderr).contains("needs a terminal"),
        "{said:?}"
    );
    rig.mount.ok(&["config", "set", "retention.keep-last", "5"]);
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(
        rig.mount.ok(&["config", "get", "retention.keep-last"]),
        "5\n"
    );
    assert_eq!(
        get(rig.view(first).join("f")) + &get(rig.view(second).join("f")),
        "12"
    );
    let (status, report) = check(&root, &["verify", "--deep"]);
    assert_eq!(status, 0, "{report}");
}

/// The successor makes its own copy of the mount, and no copy prevents an unmount of the underlying
/// filesystem.
fn the_store_is_shown_read_only_by_each_daemon(v: Variant) {
    let mut rig = v.start();
    let root = rig.path().to_owned();
    let touch = "touch .ckptfs/x 2>&1 || true; test -s .ckptfs/format && echo read";
    let read_only = "touch: cannot touch '.ckptfs/x': Read-only file system\nread\n";
    assert_eq!(sh(&root, touch), read_only);
    rig.mount.replace_worker();
    assert_eq!(sh(&root, touch), read_only);
    rig.mount.kill_worker();
    assert_eq!(sh(&root, touch), read_only);
    rig.mount.adopt();
    assert_eq!(sh(&root, "realpath .ckptfs"), "/.ckptfs\n");
    rig.mount.umount();
    rig.image.unmount();
}

/// The same in the mount of an ordinary user, with a takeover.
const BY_A_USER: &str = r#"
set -eu
ckptfs=$1 dir=$2 aside=$HOME/work
trap 'cd "$HOME"; $ckptfs umount "$dir" >/dev/null 2>&1 || $ckptfs umount -l "$dir" >/dev/null 2>&1 || true' EXIT
mkdir -p "$aside/aside"
$ckptfs mount "$dir" >/dev/null
cd "$dir"
echo 1 > f; $ckptfs checkpoint >/dev/null
cp f "$aside/aside"; cp -a .ckptfs/. "$aside/aside/.ckptfs" 2>/dev/null || true
sh -c "$ARCHIVES" sh "$aside" "$dir"
echo 2 > f; echo 2 > g; $ckptfs checkpoint >/dev/null
sh -c "$UNPACK" sh "$aside" "$dir"
test "$(cat f)" = 1
$ckptfs config set retention.keep-last 5 2>/dev/null
kill -9 "$($ckptfs status --json | sed 's/.*"pid":\([0-9]*\).*/\1/')"
! touch .ckptfs/x 2>/dev/null && test -s .ckptfs/format
cd "$HOME"
$ckptfs umount "$dir"
$ckptfs mount "$dir" >/dev/null
cd "$dir"
test "$($ckptfs config get retention.keep-last)" = 5
test "$(cat .snapshots/1/f .snapshots/2/f .snapshots/2/g)" = "$(printf '1\n2\n2')"
$ckptfs verify --deep >/dev/null
cd "$HOME"
$ckptfs umount "$dir"
echo done
"#;

#[test]
fn nor_does_it_in_the_mount_of_an_ordinary_user() {
    if let Some(reason) = Fs::Xfs.unavailable() {
        return skip(&reason);
    }
    if !user::can_have_a_namespace() {
        return;
    }
    let image = Image::of(Fs::Xfs);
    let (home, dir) = (user::home(&image), image.dir("home/project"));
    user::own(&dir);
    let story = format!(
        "ARCHIVES='{}' UNPACK='{}'\n{BY_A_USER}",
        quoted(ARCHIVES),
        quoted(UNPACK)
    );
    let output = user::runs(&story, &home, &dir);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said == "done\n", "{output:?}");
}

/// Quotes text for a shell's single quotes.
fn quoted(text: &str) -> String {
    text.replace('\'', r"'\''")
}
