//! An ordinary user mounts with fusermount3, with the daemon's I/O, and has exclusive access to the
//! mount.

use super::support::put;
use crate::common::{Fs, Image, skip, user};

/// The user's commands; exits with 0 if every step succeeded.
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

/// Failed before: a restore failed where extended attributes of files without write permission
/// differed.
const READ_ONLY: &str = r#"
set -eu
ckptfs=$1 dir=$2
trap '$ckptfs umount "$dir" >/dev/null 2>&1 || $ckptfs umount -l "$dir" >/dev/null 2>&1 || true' EXIT
cd "$dir"
mkdir d
setfattr -n user.note -v was b
$ckptfs mount "$dir" >/dev/null
cd "$dir"
state() { stat -c '%n %a' a b c d; getfattr -d -m user a b c d; }
before=$(state)
$ckptfs checkpoint >/dev/null
setfattr -n user.note -v is a; setfattr -x user.note b; setfattr -n user.note -v is c; setfattr -n user.note -v is d
chmod 400 a; chmod 444 c; chmod 555 d
after=$(state)
$ckptfs restore 1 >/dev/null
test "$(state)" = "$before"
$ckptfs undo >/dev/null
test "$(state)" = "$after"
cd "$HOME"
$ckptfs umount "$dir"
echo done
"#;

/// As [`STORY`], in a tree with files and directories that their owner may not read or write.
const CLOSED: &str = r#"
set -eu
ckptfs=$1 dir=$2
trap 'cd "$HOME"; $ckptfs umount "$dir" >/dev/null 2>&1 || $ckptfs umount -l "$dir" >/dev/null 2>&1 || true' EXIT
fail() { echo "line $1: $(cat "$HOME/said" 2>/dev/null)"; exit 1; }
trap 'fail $LINENO' ERR
cd "$dir"
echo w > wo; echo n > none; mkdir -p rod/deep noned gone; echo x > rod/x; echo y > rod/y; echo z > rod/deep/z; echo x > noned/x
for f in wo none rod/x; do setfattr -n user.note -v mine $f; done
ln wo hard
chmod 200 wo; chmod 000 none noned; chmod 555 rod/deep rod
state() { find . -path ./.ckptfs -prune -o -printf '%p %m %s %n %y\n' 2>/dev/null | sort; }
cd "$HOME"; $ckptfs mount "$dir"; cd "$dir"
test "$($ckptfs checkpoint)" = 1
state > "$HOME/before"
echo more >> wo
chmod 600 none; echo more >> none; chmod 000 none
chmod 755 rod rod/deep; rm rod/x; echo 1 > rod/new; echo bb > rod/deep/z; mkdir -p rod/made/below; echo m > rod/made/below/f
mv rod/deep deep; chmod 555 deep rod/made/below rod/made rod
$ckptfs status > "$HOME/said"
for line in 'M wo' 'M hard' 'M none' 'D rod/x' 'A rod/new' 'A rod/made/below/f'; do grep -q "^$line\$" "$HOME/said"; done
$ckptfs restore 1 > "$HOME/said" 2>&1
state > "$HOME/after"
diff "$HOME/before" "$HOME/after" > "$HOME/said"
$ckptfs undo > "$HOME/said" 2>&1
test "$(stat -c %a rod/made)" = 555
test -e rod/made/below/f -a -e deep/z -a ! -e rod/x
$ckptfs restore 1 rod wo hard > "$HOME/said" 2>&1
$ckptfs restore 1 > "$HOME/said" 2>&1
state > "$HOME/after"
diff "$HOME/before" "$HOME/after" > "$HOME/said"
# Removed, a file that cannot be read comes back all the same.
rm -f none hard; chmod 755 rod; rm -rf rod/y; chmod 555 rod
$ckptfs restore 1 > "$HOME/said" 2>&1
state > "$HOME/after"
diff "$HOME/before" "$HOME/after" > "$HOME/said"
# What cannot be looked at is named.
chmod 755 noned; echo 1 > noned/new; chmod 000 noned
state > "$HOME/before"
for verb in 'status' 'diff 1' 'restore 1'; do
    if $ckptfs $verb > "$HOME/said" 2>&1; then fail $LINENO; fi
    grep -q "$dir/noned has mode 0000" "$HOME/said"
    grep -q "chmod u+rx $dir/noned" "$HOME/said"
done
state > "$HOME/after"
diff "$HOME/before" "$HOME/after" > "$HOME/said"
chmod 700 noned
$ckptfs restore 1 > "$HOME/said" 2>&1
test "$(stat -c %a noned)" = 0
chmod 600 wo none; chmod 700 noned
test "$(cat wo none hard noned/x)" = "$(printf 'w\nn\nw\nx')"
test "$(getfattr --only-values -n user.note wo none rod/x)" = mineminemine
$ckptfs verify > "$HOME/said" 2>&1
cd "$HOME"
$ckptfs umount "$dir"
echo done
"#;

fn on(fs: Fs, story: &str) {
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
    let output = user::runs(story, &home, &dir);
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
    on(Fs::Xfs, STORY);
}

#[test]
fn an_ordinary_user_has_it_all_on_ext4() {
    on(Fs::Ext4, STORY);
}

#[test]
fn a_restore_by_an_ordinary_user_sets_attributes_of_what_is_read_only() {
    for fs in [Fs::Xfs, Fs::Ext4] {
        on(fs, READ_ONLY);
    }
}

#[test]
fn what_its_owner_may_not_read_or_write_on_xfs() {
    on(Fs::Xfs, CLOSED);
}

#[test]
fn what_its_owner_may_not_read_or_write_on_ext4() {
    on(Fs::Ext4, CLOSED);
}
