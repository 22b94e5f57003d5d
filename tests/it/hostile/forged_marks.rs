//! The content of a branch follows from the names, whiteouts and marks in its backing directory. A
//! user who can write to that directory, while it is unmounted or past the mount, must gain
//! nothing: no access to another user's file, and no file of that user in place of another's.
//!
//! The user owns files in the branch, and may write to directories with and without the sticky bit.
//! The user does each of [`FORGERIES`] in the backing directory of the branch: while it is
//! unmounted, and past the mount across a takeover, as from a mount namespace without a mount of
//! the branch. A row that begins with "guard" passed before the fix as well as after it.

use std::fmt::Write as _;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::support::sh;
use crate::common::command::{run_limited, tool};
use crate::common::{Fs, Image, Io, Mount, MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { xfs =>
    nothing_is_forged_while_a_branch_is_not_mounted,
    nothing_is_forged_past_the_mount_over_a_takeover,
    no_user_reaches_the_files_of_a_branch_past_its_mount,
    a_branch_of_an_older_program_is_refused_and_stays,
}

/// An unused user ID.
const USER: u32 = 12_345;

/// The tree: the files that contain `roots` belong to root.
const TREE: &str = "
for name in cfg other changed; do echo roots > $name; done; mkdir etc secret secret2 pub open mine .git twice
echo 'echo real' > etc/tool; chmod 755 etc/tool; echo roots > etc/copied
for name in secret secret2; do echo token > $name/token; chmod 700 $name; done
for name in script config gone late; do echo roots > pub/$name; done; mkdir pub/dir; echo roots > pub/dir/inside; chmod 1777 pub
echo token > open/token; chmod 700 open
echo roots > mine/kept; chown 12345:12345 mine
echo roots > .git/config
echo roots > twice/one; ln twice/one twice/two
chmod 1777 .
";

/// Changes in the branch, by root and then by the user.
const CHANGES: &str = "
rm open/token; chmod 777 open; rm pub/gone; touch etc/copied mine; echo more >> changed
setpriv --reuid 12345 --regid 12345 --clear-groups sh -euc '
umask 022; for name in x t c n s w; do echo evil > pub/$name; done; chmod 755 pub/t; mkdir pub/d pub/r pub/u; echo theirs > mine/own'
";

/// The description, the user's commands in the backing directory of the branch, and the condition
/// in the branch afterwards. The variables `CFG` and others are marks of base files ([`marks`]);
/// `as` runs a command as the user.
const FORGERIES: [(&str, &str, &str); 22] = [
    (
        "a mark of root's file",
        "setfattr -n user.ckptfs.origin -v $CFG pub/x",
        "[ \"$(cat cfg)\" = roots ]; [ $(stat -c %u cfg) = 0 ]",
    ),
    (
        "a mark of root's program",
        "setfattr -n user.ckptfs.origin -v $TOOL pub/t",
        "[ \"$(sh etc/tool)\" = real ]; [ $(stat -c %u etc/tool) = 0 ]",
    ),
    (
        "a mark of root's private directory",
        "setfattr -n user.ckptfs.origin -v $SECRET pub/d",
        "! as cat pub/d/token; ! as ls secret",
    ),
    (
        "a mark of root's private directory, on a new one",
        "mkdir pub/new; setfattr -n user.ckptfs.origin -v $SECRET2 pub/new",
        "! as cat pub/new/token",
    ),
    (
        "a mark of a file with two names",
        "setfattr -n user.ckptfs.origin -v $TWICE pub/n",
        "[ \"$(head -1 twice/two)\" = roots ]; [ $(stat -c %u twice/two) = 0 ]",
    ),
    (
        "guard: a mark that the daemon has set, copied",
        "setfattr -n user.ckptfs.origin -v 0x$(getfattr --only-values -n user.ckptfs.origin etc/copied | od -An -v -tx1 | tr -d ' \\n') pub/c",
        "[ \"$(cat etc/copied)\" = roots ]; [ $(stat -c %u etc/copied) = 0 ]",
    ),
    (
        "guard: a mark in the namespace of root",
        "setfattr -n trusted.ckptfs.origin -v $OTHER pub/s",
        "[ \"$(cat other)\" = roots ]",
    ),
    (
        "guard: a mark of the root directory",
        "setfattr -n user.ckptfs.origin -v $ROOT pub/r",
        "! as cat pub/r/secret/token; ! [ -e pub/r/cfg ]",
    ),
    (
        "guard: a mark of nothing",
        "setfattr -n user.ckptfs.origin -v 0xffffffffffffffffffffffffffffffffffffffff pub/u",
        "[ -d pub/u ]",
    ),
    (
        "a mark is removed",
        "setfattr -x user.ckptfs.origin mine",
        "[ \"$(cat mine/kept)\" = roots ]",
    ),
    (
        "a file where the sticky bit keeps root's",
        "echo evil > pub/script",
        "[ \"$(cat pub/script)\" = roots ]",
    ),
    (
        "a link where the sticky bit keeps root's file",
        "ln -s ../mine/own pub/config",
        "[ -f pub/config ] && ! [ -L pub/config ]",
    ),
    (
        "a directory where the sticky bit keeps root's",
        "mkdir pub/dir; echo evil > pub/dir/inside",
        "[ \"$(cat pub/dir/inside)\" = roots ]; [ $(stat -c %u pub/dir) = 0 ]",
    ),
    (
        "a repository where the sticky bit keeps root's",
        "mkdir .git; echo evil > .git/config",
        "[ \"$(cat .git/config)\" = roots ]",
    ),
    (
        "a whiteout where the sticky bit keeps root's file",
        "mknod pub/late c 0 0",
        "[ \"$(cat pub/late)\" = roots ]",
    ),
    (
        "a whiteout is removed, and a file that root removed reappears",
        "rm -f open/token",
        "! [ -e open/token ]",
    ),
    (
        "guard: a whiteout of root is removed",
        "rm -f pub/gone",
        "! [ -e pub/gone ]",
    ),
    (
        "guard: a hidden name",
        "mkdir pub/.ckptfs-hidden-7; echo x > pub/.ckptfs-hidden-7/f; echo x > pub/.ckptfs-hidden-8",
        "! ls -A pub | grep hidden",
    ),
    (
        "guard: a store of another user",
        "mv .ckptfs .gone; mkdir .ckptfs; echo evil > .ckptfs/branch",
        "[ -e .snapshots/1 ]",
    ),
    (
        "guard: content of the store",
        "cat .ckptfs/branch .ckptfs/format > pub/leak; echo evil > .ckptfs/tmp/links/1-1; setfattr -n user.ckptfs.0000000100000040 -v x .ckptfs/journal/00000001",
        "! grep ckptfs pub/leak",
    ),
    (
        "guard: marks of an import and an export",
        "setfattr -n user.ckptfs.export -v '1 00112233445566778899aabbccddeeff 1 whole' pub/w; setfattr -n user.ckptfs.import -v /x pub/w",
        "[ -z \"$(getfattr -d -m ckptfs pub/w)\" ]",
    ),
    (
        "names of control directories",
        "mkdir .snapshots",
        "[ -e .snapshots/1 ]",
    ),
];

/// Returns a mark of a base file, with this path, in the format that an older version trusted.
fn mark(at: &Path, path: &str) -> String {
    let number = fs::metadata(at).expect("it exists").ino();
    let mut hex = String::from("0x");
    let bytes = [&number.to_le_bytes()[..], &[0; 8], &[0xff; 4]].concat();
    for byte in bytes.iter().chain(path.as_bytes()) {
        write!(hex, "{byte:02x}").expect("a string can be written to");
    }
    hex
}

fn as_user(dir: &Path, script: &str) -> bool {
    let user = USER.to_string();
    let mut command = tool("setpriv", &["--reuid", &user, "--regid", &user]);
    command.args(["--clear-groups", "sh", "-euc", script]);
    let output = run_limited(command.arg("sh").arg(dir).current_dir("/"), 60);
    output.status.success()
}

/// Starts a tree with a branch in which root and the user have made changes.
fn start(v: Variant) -> (Rig, PathBuf) {
    let mut opts = MountOpts::new(v.io);
    opts.branch = false;
    let rig = v.start_with(opts, |dir| drop(sh(dir, TREE)));
    let branch = rig.mount.ok(&["branch", "create", "b", "--no-git"]);
    let branch = PathBuf::from(branch.trim_end());
    sh(&branch, CHANGES);
    (rig, branch)
}

/// Runs every forgery as the user in `backing`, the branch's backing directory, if accessible.
fn forge(backing: &Path, marks: &str) {
    for (_, act, _) in FORGERIES {
        as_user(backing, &format!("{marks} cd \"$1\"; {act}"));
    }
}

fn marks(branch: &Path) -> String {
    let of = |name: &str, at: &str, path: &str| format!("{name}={};", mark(&branch.join(at), path));
    [
        of("CFG", "cfg", ""),
        of("TOOL", "etc/tool", ""),
        of("SECRET", "secret", "secret"),
        of("SECRET2", "secret2", "secret2"),
        of("OTHER", "other", ""),
        of("TWICE", "twice/two", ""),
        of("ROOT", ".", ""),
    ]
    .concat()
}

/// Returns the forgeries that succeeded.
fn gained(branch: &Path) -> Vec<&'static str> {
    let holds = |script: &str| {
        let script = format!(
            "as() {{ setpriv --reuid {USER} --regid {USER} --clear-groups \"$@\"; }}; {}",
            script.replace("; ", " && ")
        );
        let mut command = tool("bash", &["-c", &script]);
        run_limited(command.current_dir(branch), 60)
            .status
            .success()
    };
    // The user looks up everything first, so that the daemon has nodes for lookups by number.
    as_user(branch, "cd \"$1\"; (ls -laR .; cat pub/*) > /dev/null || :");
    let gained = FORGERIES.iter().filter(|(_, _, then)| !holds(then));
    gained.map(|(what, _, _)| *what).collect()
}

/// Asserts that a merge brings no forgery into the parent.
fn merged(rig: &Rig) {
    let _ = rig.mount.run(&["merge", "b", "--theirs"]);
    sh(
        rig.path(),
        "[ \"$(cat cfg)\" = roots ] && [ \"$(sh etc/tool)\" = real ] && [ $(stat -c %u cfg etc/tool secret | sort -u) = 0 ]
         [ \"$(cat pub/script pub/config pub/late .git/config | sort -u)\" = roots ]",
    );
}

fn nothing_is_forged_while_a_branch_is_not_mounted(v: Variant) {
    let (mut rig, branch) = start(v);
    let marks = marks(&branch);
    assert_eq!(gained(&branch), Vec::<&str>::new(), "before");
    rig.mount.umount();
    forge(&branch, &marks);
    rig.mount.remount();
    assert_eq!(gained(&branch), Vec::<&str>::new());
    merged(&rig);
}

fn nothing_is_forged_past_the_mount_over_a_takeover(v: Variant) {
    let (mut rig, branch) = start(v);
    let below = rig.image.below();
    let name = branch.file_name().expect("it has a name");
    forge(&below.path().join(name), &marks(&branch));
    rig.mount.replace_worker();
    assert_eq!(gained(&branch), Vec::<&str>::new(), "after a takeover");
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(gained(&branch), Vec::<&str>::new(), "after a mount");
    merged(&rig);
}

/// A user cannot reach the backing directory of a branch from its creation on, not even through a
/// descriptor opened before.
fn no_user_reaches_the_files_of_a_branch_past_its_mount(v: Variant) {
    let (mut rig, branch) = start(v);
    let below = rig.image.below();
    let name = branch.file_name().expect("it has a name");
    let reached = |at: &Path| as_user(at, "ls \"$1\" || stat \"$1/cfg\" || stat \"$1/.ckptfs\"");
    assert!(!reached(&below.path().join(name)), "past the mount");
    // A directory that the user made, and has open, before it becomes a branch.
    let theirs = rig.image.dir("theirs");
    sh(&theirs, "chown 12345:12345 .; chmod 777 .");
    let held = fs::File::open(&theirs).expect("opened");
    let link = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let at = theirs.to_str().expect("UTF-8");
    let create = ["branch", "create", "c", "--no-git", "--path", at];
    let asked = rig.mount.run(&create);
    assert!(!asked.status.success(), "it belongs to a stranger");
    sh(&theirs, "chown 0:0 .");
    rig.mount.ok(&create);
    assert!(
        fs::read_dir(&link)
            .expect("root has the permission")
            .all(|entry| entry.expect("read").file_name() == ".ckptfs")
    );
    let mode = fs::metadata(&link).expect("root has the permission").mode();
    assert_eq!(
        mode & 0o7777,
        0o700,
        "directories that were open are closed"
    );
    rig.mount.umount();
    for at in [&branch, &theirs] {
        assert!(!reached(at), "{} while unmounted", at.display());
    }
    rig.mount.remount();
    assert!(as_user(&branch, "cat \"$1/cfg\""), "through the mount");
}

/// Its marks could be forged, so it is not mounted. It remains unmodified, and can be dropped.
fn a_branch_of_an_older_program_is_refused_and_stays(v: Variant) {
    let (mut rig, branch) = start(v);
    rig.mount.umount();
    // The layout of the older version.
    sh(
        &branch,
        "mv .ckptfs/tree/* .; mv .ckptfs/tree/.[a-z]* . 2>/dev/null || true; rmdir .ckptfs/tree; sed -i s/^features.*/features\\ -/ .ckptfs/format",
    );
    let format = fs::read(branch.join(".ckptfs/format")).expect("read");
    rig.mount.remount();
    let warnings = rig.mount.status_json()["warnings"].to_string();
    assert!(warnings.contains("older ckptfs"), "{warnings}");
    let said = rig.mount.run(&["--json", "branch", "mount", "b"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("bad-branch"), "{said}");
    assert_eq!(sh(&branch, "cat changed"), "roots\nmore\n");
    let after = fs::read(branch.join(".ckptfs/format")).expect("read");
    assert_eq!(after, format, "the older program can serve it");
    rig.mount.ok(&["branch", "drop", "b"]);
    assert!(!branch.exists());
    drop(rig);
}

/// Guard: in a root directory that the user may write to, a store made by the user in any form is
/// not accepted as root's.
#[test]
fn a_store_in_the_place_of_roots_is_refused() {
    let image = Image::of(Fs::Ext4);
    let project = image.dir("project");
    sh(&project, "echo roots > f; chmod 777 .");
    let mut mount = Mount::start(&project, &MountOpts::new(Io::Daemon));
    mount.umount();
    for forged in [
        "mkdir .ckptfs; echo evil > .ckptfs/ckptfs.toml",
        "mkdir .ckptfs .ckptfs/journal .ckptfs/layers .ckptfs/tmp",
        "ln -s .ckptfs-root .ckptfs",
        "mkdir .ckptfs; echo /x > .ckptfs/importing",
        "mkdir .ckptfs; printf 'ckptfs branch\\nversion 1\\nstate made\\n' > .ckptfs/branch",
        "mkfifo .ckptfs",
        "echo evil > .ckptfs",
    ] {
        let script = format!("cd \"$1\"; mv .ckptfs .ckptfs-root; {forged}");
        assert!(as_user(&project, &script), "{forged}");
        let output = Mount::try_start(&project, &MountOpts::new(Io::Daemon));
        assert!(!output.status.success(), "{forged}: it was mounted");
        sh(&project, "rm -rf .ckptfs; mv .ckptfs-root .ckptfs");
    }
    mount.remount();
    assert_eq!(sh(&project, "cat f"), "roots\n");
}
