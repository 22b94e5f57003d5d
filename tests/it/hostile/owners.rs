//! Set-id bits, owners and devices in another user's tree or filesystem are not trusted by a copy.
//!
//! Everything runs in a separate mount namespace, in which an ordinary user may mount with
//! `allow_other`.

use std::path::Path;

use crate::common::command::copy_program;
use crate::common::{Fs, Image, run_limited, skip, tool};

/// An unused user ID.
const USER: u32 = 61_235;

const STORY: &str = r#"
set -eu
ckptfs=$1 home=$2 user=$3
as() { setpriv --reuid $user --regid $user --clear-groups env HOME="$home" "$@"; }
mkdir "$home/project" "$home/special"
cd "$home/project"
for name in theirs own; do cp "$(command -v id)" $name; done
chown 65534:65534 theirs; chown $user:$user own; chmod 6755 theirs own; chown $user:$user . ..
cd "$home/special"
for name in roots capped; do cp "$(command -v id)" $name; done
chmod 4755 roots; mknod null c 1 3; setcap cap_net_raw+ep capped; chown $user:$user .
cd "$home"
trap 'cd /; for dir in "$home/project" "$home/special" "$home/new"; do umount -l "$dir" 2>/dev/null || true; done' EXIT

# An ordinary user copies what somebody else made set-id: it would run as whoever made the copy.
as $ckptfs mount --allow-other project 2>/dev/null
as $ckptfs -C project checkpoint >/dev/null
as $ckptfs -C project fork latest "$home/copy" >/dev/null 2>&1
as $ckptfs -C project export latest "$home/exported" >/dev/null 2>&1
as $ckptfs -C project export --check latest "$home/exported"
as $ckptfs import --tree "$home/project" --into "$home/new" >/dev/null 2>&1
as $ckptfs import --tree "$home/project" --into "$home/new" 2>&1 | grep 'nothing has changed'
stat -c '%n %a %u' copy/theirs copy/own exported/theirs new/theirs new/own

# Root asks nothing of a daemon of somebody else's, which could say anything.
for verb in status checkpoint "restore latest" "export latest $home/rootexport" "run --at latest true" "import $home/special --into $home/project"; do
    if said=$($ckptfs -C project $verb 2>&1) || ! echo "$said" | grep -q 'belongs to another user\|is not empty'; then echo "$verb: $said"; fi
done
test ! -e rootexport
test "$(as $ckptfs -C project log --json | grep -o '"id":' | wc -l)" = 1
$ckptfs umount project 2>&1 | sed "s#$home/##"

# What a filesystem says that somebody else answers for.
as $ckptfs mount --allow-other special 2>&1 | sed "s#$home/##"
$ckptfs import --tree "$home/special" --into "$home/../rootcopy" 2>&1 | grep -o 'is a filesystem mounted by user [0-9]*\|null: .*\|[0-9]* paths* could not.*'
stat -c '%n %a %u' ../rootcopy/roots
getcap ../rootcopy/capped
ls ../rootcopy
echo done
"#;

/// Failed before: an ordinary user's copy of another user's set-id file kept these bits, so its
/// author could run code as the copying user. Root's import from an ordinary user's filesystem took
/// over everything, including a set-uid root program.
#[test]
fn set_id_bits_owners_and_devices_are_not_taken_over_from_strangers() {
    if let Some(reason) = Fs::Xfs.unavailable() {
        return skip(&reason);
    }
    if run_limited(&mut tool("sh", &["-c", "command -v fusermount3 && command -v setpriv && command -v unshare && command -v setcap"]), 60)
        .stdout
        .is_empty()
    {
        return skip("fusermount3, or setcap, is not installed");
    }
    let image = Image::of(Fs::Xfs);
    let home = image.dir("home");
    // The binary is copied because only root may have access to the build directory.
    let binary = home.join("ckptfs");
    copy_program(Path::new(env!("CARGO_BIN_EXE_ckptfs")), &binary);
    let prepare = format!(
        "mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse && \
         (cat /etc/passwd; echo 'stranger:x:{USER}:{USER}::/:/bin/sh') > /mnt/passwd && mount --bind /mnt/passwd /etc/passwd && \
         echo user_allow_other > /mnt/fuse.conf && mount --bind /mnt/fuse.conf /etc/fuse.conf && exec \"$@\""
    );
    let mut command = tool(
        "unshare",
        &[
            "--mount", "sh", "-c", &prepare, "sh", "bash", "-c", STORY, "story",
        ],
    );
    command
        .arg(&binary)
        .arg(&home)
        .arg(USER.to_string())
        .env("HOME", "/nonexistent")
        .current_dir("/");
    let output = run_limited(&mut command, 90);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let name = home.join("project");
    let expected = format!(
        "1  {0}: nothing has changed\n\
         copy/theirs 755 {USER}\ncopy/own 6755 {USER}\nexported/theirs 755 {USER}\nnew/theirs 755 {USER}\nnew/own 6755 {USER}\n\
         project is unmounted\nspecial is mounted (io: daemon, writes: daemon)\n\
         is a filesystem mounted by user {USER}\nnull: Operation not permitted (os error 1)\n1 path could not be imported\n../rootcopy/roots 755 0\ncapped\nroots\ndone\n",
        name.display()
    );
    assert_eq!(said, expected);
}
