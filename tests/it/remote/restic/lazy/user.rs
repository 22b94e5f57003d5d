//! An ordinary user mounts a tree that root pushed.

use std::fs;

use super::super::{PASSWORD, User};
use crate::common::command::{sh, succeeds, tool};
use crate::common::{MountOpts, Variant, for_each_variant, user};

/// The user's script. It exits with 0 if every step succeeds.
const STORY: &str = r#"
set -eu
ckptfs=$1 dir=$2
export CKPTFS_REMOTE_PASSWORD='correct horse'
mkdir -p "$dir"
end() { cd "$HOME"; $ckptfs umount "$dir" >/dev/null 2>&1 || umount -l "$dir" >/dev/null 2>&1 || true; }
trap end EXIT
listed() { find . -mindepth 1 -printf '%P %y %m %s %n %l %T@\n' | grep -v ' d ' | sort; find . -type d -printf '%P %m\n' | sort; find . -type f -perm -400 -exec md5sum {} + | sort; }
$ckptfs mount --from home --no-fetch "$dir" 2> "$HOME/said"
grep -q 'left out: 1 name' "$HOME/said"
cd "$dir"
listed > "$HOME/before"
test "$(find . ! -user "$(id -u)")" = ""
test "$(find . -perm /6000)" = ""
test "$(getfattr -hRd -m 'trusted|security|user.note' . 2>/dev/null | grep -c =)" = 1
# What only its name tells of can be changed, as a file can.
rm link fifo; mv dangling moved; touch -h other
test "$(readlink moved)" = nowhere
# And what is in a directory that may not be written to, and that directory.
touch read-only/f; chmod 600 read-only/below/f; cat read-only/large > /dev/null
test "$(stat -c %a read-only read-only/below)" = "$(printf '555\n555')"
chmod -R u+w read-only; echo more >> read-only/f; rm -r read-only/below
# And what may not be read.
chmod 0 secret
test "$(stat -c '%a %h' secret closed)" = "$(printf '0 1\n0 1')"
touch closed
cd "$HOME"
$ckptfs umount "$dir" >/dev/null
$ckptfs mount --no-fetch "$dir" 2>/dev/null
cd "$dir"
test "$(readlink moved)" = nowhere
test "$(stat -c '%a %h' secret closed moved other)" = "$(printf '0 1\n0 1\n777 1\n777 1')"
chmod 644 secret
test "$(cat secret)" = s
test "$($ckptfs diff 1 | sort)" = "$(printf 'D fifo\nD link\nD read-only/below\nD read-only/below/f\nM closed\nM other\nM read-only\nM read-only/f\nR dangling -> moved')" || { $ckptfs diff 1; exit 3; }
rm closed moved; rm -r d
$ckptfs restore 1 >/dev/null
listed > "$HOME/after"
diff "$HOME/before" "$HOME/after"
test "$($ckptfs diff 1 2>/dev/null)" = '? closed'
chmod 0 d
cd "$HOME"
$ckptfs umount "$dir" >/dev/null
$ckptfs mount --no-fetch "$dir" 2>/dev/null
chmod 700 "$dir/d"
test "$(cat "$dir/d/f")" = f
echo done
"#;

for_each_variant! { xfs => an_ordinary_user_changes_what_root_has_pushed }

/// Failed before: a daemon without root could not change symbolic links, FIFOs and unreadable
/// files, for which it has no mark, nor read-only directories. A file of mode 0 prevented the next
/// mount.
fn an_ordinary_user_changes_what_root_has_pushed(v: Variant) {
    if !user::can_mount() {
        return;
    }
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            "echo 1 > plain; ln -s plain link; ln -s nowhere dangling; ln -s plain other; mkfifo fifo; mknod null c 1 3
             cp /bin/true program; chmod 4755 program; echo theirs > theirs; chown 33:33 theirs; chmod 6750 theirs
             setfattr -n user.note -v 1 plain; setfattr -n trusted.note -v 1 plain
             mkdir -p d read-only/below; echo f > d/f; echo f > read-only/f; echo f > read-only/below/f; head -c 300000 /dev/zero > read-only/large
             chmod 444 read-only/f read-only/below/f; chmod 555 read-only/below read-only
             echo s > secret; echo c > closed; chmod 0 closed",
        );
    });
    rig.mount.checkpoint();
    let root = User::new();
    root.push(&rig, &[]);
    let home = user::home(&rig.image);
    let config = home.join(".config/ckptfs");
    fs::create_dir_all(&config).expect("mkdir");
    let repository = home.join("repository");
    succeeds(
        tool("cp", &["-r"]).args([&root.repository(), &repository]),
        60,
    );
    let remote = format!("[home]\nurl = \"{}\"\n", repository.display());
    fs::write(config.join("remotes.toml"), remote).expect("written");
    sh(
        &home,
        "chmod 600 .config/ckptfs/remotes.toml; chown -R 61234:61234 .",
    );
    assert_eq!(PASSWORD, "correct horse");
    let output = user::runs(STORY, &home, &home.join("lazy"));
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && said.contains("done\n"),
        "{}: {said}",
        output.status
    );
}
