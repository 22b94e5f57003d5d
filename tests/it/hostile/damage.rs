//! Damage to each file of a store, one at a time: a flipped bit or a truncation. The store has two
//! checkpoints and a branch with its own changes.
//!
//! The tree is mounted, read, compared with its original content, restored, and unmounted. Each
//! step may fail with an error. None may panic, hang, use excessive memory, or return wrong bytes.
//! A view reads the content of an old version without its hash: `verify --deep` must find damage
//! there, and a restore must not copy it into the tree.
//!
//! `CKPTFS_LONG=1` tries `CKPTFS_ROUNDS` damages of each kind in each file (40); the short form
//! tries one in each file. The seed chooses the offsets.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::store::UnmountGuard;
use super::support::{noise, put, sh};
use crate::common::random::{Random, count, is_long, seed};
use crate::common::{Fs, Image, Io, Mount, MountOpts, run_limited, skip, tool};

/// Time limit of a command with any store, in seconds.
const LIMIT_S: u64 = 60;
/// Memory limit of the daemon, in KiB.
const MEMORY_KIB: u64 = 400 << 10;

/// Content by path, relative to the directory that contains the tree `t` and its branch `t@b`.
type ExpectedContent = Vec<(&'static str, Vec<u8>)>;

fn live() -> ExpectedContent {
    vec![
        ("t/a", noise(6000, 3)),
        ("t/e/c", b"c of checkpoint 2, changed".to_vec()),
        ("t/linked", b"linked".to_vec()),
    ]
}

fn past() -> ExpectedContent {
    vec![
        ("t/.snapshots/1/a", noise(5000, 1)),
        ("t/.snapshots/1/b", noise(5000, 2)),
        ("t/.snapshots/1/d/c", b"c of checkpoint 1".to_vec()),
        ("t/.snapshots/2/a", noise(6000, 3)),
        ("t/.snapshots/2/d/c", b"c of checkpoint 1".to_vec()),
        ("t/.snapshots/2/linked", b"linked".to_vec()),
    ]
}

fn branch() -> ExpectedContent {
    vec![
        ("t@b/e/c", b"c of the branch".to_vec()),
        ("t@b/new", b"new in the branch".to_vec()),
        ("t@b/linked", b"linked".to_vec()),
    ]
}

/// The contents that a restore of checkpoint 1 may leave.
fn restored() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let c = vec![b"c of checkpoint 1".to_vec(), live()[1].1.clone()];
    vec![
        ("t/a", vec![noise(5000, 1), noise(6000, 3)]),
        ("t/b", vec![noise(5000, 2)]),
        ("t/d/c", c.clone()),
        ("t/e/c", c),
    ]
}

fn good(dir: &Path) {
    let tree = dir.join("t");
    fs::create_dir_all(tree.join("d")).expect("mkdir");
    put(tree.join("a"), noise(5000, 1));
    put(tree.join("b"), noise(5000, 2));
    put(tree.join("d/c"), "c of checkpoint 1");
    let mut mount = Mount::start(&tree, &MountOpts::new(Io::Daemon));
    assert_eq!(mount.checkpoint(), 1);
    put(tree.join("a"), noise(6000, 3));
    fs::remove_file(tree.join("b")).expect("rm");
    put(tree.join("linked"), "linked");
    fs::hard_link(tree.join("linked"), tree.join("again")).expect("link");
    assert_eq!(mount.checkpoint(), 2);
    put(tree.join("d/c"), "c of checkpoint 2, changed");
    fs::rename(tree.join("d"), tree.join("e")).expect("mv");
    mount.ok(&["branch", "create", "b"]);
    let branch = dir.join("t@b");
    put(branch.join("e/c"), "c of the branch");
    put(branch.join("new"), "new in the branch");
    fs::remove_file(branch.join("a")).expect("rm");
    succeeded("checkpoint", &run(&branch, &["checkpoint"]));
    crate::integrity::story::caught_up(&mount);
    mount.umount();
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = tool(env!("CARGO_BIN_EXE_ckptfs"), &["-C"]);
    run_limited(command.arg(dir).args(arguments), LIMIT_S)
}

fn succeeded(what: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {said}");
}

/// Asserts that a command succeeded or printed an error, without a panic. Returns whether it
/// succeeded.
#[track_caller]
fn is_told(name: &str, what: &str, output: &Output) -> bool {
    let said = [&output.stderr[..], &output.stdout[..]].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        !said.contains("panicked at src") && matches!(output.status.code(), Some(0..=4)),
        "{name}: {what}: {:?}: {said}",
        output.status
    );
    let is_fine = output.status.success();
    assert!(is_fine || !said.is_empty(), "{name}: {what} prints nothing");
    is_fine
}

/// Returns the non-empty files of the stores below a directory, in a fixed order.
fn store_files(dir: &Path) -> Vec<PathBuf> {
    let (mut files, mut open) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).expect("stat");
        if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("list");
            open.extend(entries.map(|entry| entry.expect("entry").path()));
        } else if meta.is_file() && meta.len() > 0 {
            let path = path.strip_prefix(dir).expect("it is below the directory");
            let text = path.to_string_lossy();
            // The reserve has no content, and `tree/` is the branch's tree, as written by the user.
            let counts = |part: &str| text.contains("/.ckptfs/") && !text.contains(part);
            if ["/reserve/", "/tree/", "/.git"]
                .iter()
                .all(|part| counts(part))
            {
                files.push(path.to_owned());
            }
        }
    }
    files.sort();
    files
}

/// A flipped bit or a truncation.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip(u64, u8),
    Cut(u64),
}

impl Damage {
    /// Returns a damage at a random offset before the zeros at the end of the file.
    fn any(path: &Path, cut: bool, random: &mut Random) -> Damage {
        let bytes = fs::read(path).expect("read");
        let used = bytes.iter().rposition(|byte| *byte != 0);
        let used = used.map_or(1, |last| last as u64 + 1);
        match cut {
            true => Damage::Cut(random.below(used)),
            false => Damage::Flip(random.below(used), random.below(8) as u8),
        }
    }

    fn does(self, path: &Path) {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(path).expect("open");
        match self {
            Damage::Cut(length) => file.set_len(length).expect("truncate"),
            Damage::Flip(at, bit) => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).expect("read");
                file.write_all_at(&[byte[0] ^ (1 << bit)], at)
                    .expect("write");
            }
        }
    }
}

/// Asserts that each readable file has its expected content.
fn compare(name: &str, dir: &Path, truth: &ExpectedContent) {
    for (path, content) in truth {
        if let Ok(found) = fs::read(dir.join(path)) {
            assert!(found == *content, "{name}: {path} has other content");
        }
    }
}

fn daemon_memory_kib(tree: &Path) -> Option<u64> {
    let said = run(tree, &["status", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&said).ok()?;
    let pid = status["daemon"]["pid"].as_u64()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix(" kB")?.parse().ok()
}

fn without_mount(name: &str, tree: &Path) {
    for verb in [&["log"][..], &["verify", "--deep"]] {
        is_told(name, verb[0], &run(tree, verb));
    }
}

/// Uses a damaged store. `is_content`: the damage is in the content of an old version. Returns
/// whether the tree was mounted.
fn use_it(name: &str, dir: &Path, is_content: bool) -> bool {
    let tree = dir.join("t");
    let mounted = Mount::try_start(&tree, &MountOpts::new(Io::Daemon));
    if !is_told(name, "mount", &mounted) {
        for (path, content) in live() {
            let found = fs::read(dir.join(path));
            assert!(found.ok() == Some(content), "{name}: {path}");
        }
        without_mount(name, &tree);
        return false;
    }
    for (path, content) in live() {
        let found = fs::read(dir.join(path));
        assert!(found.ok() == Some(content), "{name}: {path}");
    }
    // A store that lost the end of its journal may reuse a checkpoint ID.
    let knows = run(&tree, &["show", "2"]).status.success();
    if knows && !is_content {
        compare(name, dir, &past());
    }
    let found = run(&tree, &["verify", "--deep"]);
    let is_whole = is_told(name, "verify", &found);
    assert!(
        !is_content || !is_whole,
        "{name}: not found by verify --deep"
    );
    if is_told(name, "branch", &run(&tree, &["branch", "mount", "b"])) && !is_content {
        compare(name, dir, &branch());
        let gone = fs::symlink_metadata(dir.join("t@b/a"));
        assert!(gone.is_err(), "{name}: the branch shows a removed file");
    }
    let is_restored = is_told(name, "restore", &run(&tree, &["restore", "1"]));
    if knows {
        for (path, contents) in restored() {
            if let Ok(found) = fs::read(dir.join(path)) {
                assert!(contents.contains(&found), "{name}: restored {path}");
            }
        }
        let a = fs::read(tree.join("a")).ok();
        assert!(!is_restored || a == Some(noise(5000, 1)), "{name}: restore");
    }
    let peak = daemon_memory_kib(&tree).unwrap_or(0);
    assert!(peak < MEMORY_KIB, "{name}: the daemon had {peak} KiB");
    assert!(is_told(name, "umount", &run(&tree, &["umount", "."])));
    if is_long() {
        without_mount(name, &tree);
    }
    true
}

#[test]
fn a_changed_bit_and_a_cut_of_any_file_show_no_other_bytes() {
    if let Some(reason) = Fs::Btrfs.unavailable() {
        return skip(&reason);
    }
    let image = Image::of(Fs::Btrfs);
    sh(image.path(), "btrfs -q subvolume create good");
    good(&image.path().join("good"));
    let files = store_files(&image.path().join("good"));
    let names: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
    for part in [
        "journal/",
        "objects/",
        "index/",
        "branches/b",
        "baseline",
        "@b/.ckptfs/branch",
    ] {
        let is_there = names.iter().any(|name| name.contains(part));
        assert!(is_there, "no {part} in {names:?}");
    }
    let mut random = Random::new(seed("damage of a store", 3));
    let (rounds, kinds) = (count("CKPTFS_ROUNDS", 1, 40), if is_long() { 2 } else { 1 });
    let (dir, mut served, mut tried) = (image.path().join("bad"), 0, 0);
    for (number, file) in files.iter().enumerate() {
        for round in 0..rounds * kinds {
            let cut = (number as u64 + round) % 2 == 1;
            sh(
                image.path(),
                "if [ -e bad ]; then btrfs -q subvolume delete bad; fi; btrfs -q subvolume snapshot good bad",
            );
            let _cleared = (UnmountGuard(dir.join("t")), UnmountGuard(dir.join("t@b")));
            let damage = Damage::any(&dir.join(file), cut, &mut random);
            damage.does(&dir.join(file));
            let name = format!("{} {damage:?}", file.display());
            let is_content = file.to_string_lossy().starts_with("t/.ckptfs/layers/");
            served += usize::from(use_it(&name, &dir, is_content));
            tried += 1;
        }
    }
    eprintln!("{tried} damaged files of {}: {served} served", files.len());
    assert!(served > tried / 2, "{served} of {tried}");
}
