//! An ordinary user: mounts with fusermount3, in the daemon's I/O path, and is alone in the mount.

use super::support::put;
use crate::common::{Fs, Image, skip, user};

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
    if !user::can_mount() {
        return;
    }
    let image = Image::of(fs);
    let (home, dir) = (user::home(&image), image.dir("home/project"));
    for name in ["a", "b", "c"] {
        put(dir.join(name), format!("{name}\n"));
        user::own(&dir.join(name));
    }
    user::own(&dir);
    let output = user::runs(STORY, &home, &dir);
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

#[test]
fn an_ordinary_user_has_it_all_on_xfs() {
    on(Fs::Xfs);
}

#[test]
fn an_ordinary_user_has_it_all_on_ext4() {
    on(Fs::Ext4);
}
