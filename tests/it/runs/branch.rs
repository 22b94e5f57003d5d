//! `ckptfs branch run` as an ordinary user.

use std::fs;

use crate::common::user::{self, USER};
use crate::common::{Fs, Image};

const STORY: &str = r#"
set -eu
ckptfs=$1 dir=$2
trap 'cd /; for at in "$dir@try" "$dir"; do $ckptfs umount "$at" >/dev/null 2>&1 || $ckptfs umount -l "$at" >/dev/null 2>&1 || true; done' EXIT
cd "$dir"
git init -q -b main && git config user.name u && git config user.email u@example.org && git add -A && git commit -q -m first
$ckptfs mount "$dir"
cd "$dir"
$ckptfs branch run try -- sh -ec 'id -u; grep CapEff /proc/self/status; pwd; cat b; echo changed > b; git commit -q -a -m inside; git status --short'
cat b "$dir@try/b"
git log --format=%s try
git worktree list | wc -l
stat -c %u .git/worktrees/try/index .git/refs/heads/try "$dir@try/.git" "$dir@try"
! $ckptfs branch run try -- mount -t tmpfs none /mnt 2>/dev/null
echo done
"#;

#[test]
fn an_ordinary_user_works_in_a_branch_with_the_rights_it_has() {
    if !user::can_have_a_namespace() {
        return;
    }
    let image = Image::of(Fs::Tmpfs);
    let (home, dir) = (user::home(&image), image.dir("home/project"));
    fs::write(dir.join("b"), "b\n").unwrap();
    for path in [&dir, &dir.join("b")] {
        user::own(path);
    }
    let output = user::runs(STORY, &home, &dir);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let shown = dir.display();
    assert_eq!(
        said,
        format!(
            "{USER}\nCapEff:\t0000000000000000\n{shown}\nb\nb\nchanged\ninside\nfirst\n2\n{USER}\n{USER}\n{USER}\n{USER}\ndone\n"
        ),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
