//! Journals with valid hashes and invalid contents: the creator of a store has its ID, and can
//! chain any frames. Impossible records are rejected with a description of the damage. No walk over
//! the others loops, uses unbounded memory, or shows the store as a part of the tree.
//!
//! The frames are made here byte by byte (docs/format.md), as an attacker makes them, because our
//! encoder would reject them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::support::put;
use crate::common::{Fs, Image, Io, Mount, MountOpts, run_limited, tool};

/// Time limit of a command, in seconds: an endless loop exceeds it.
const LIMIT_S: u64 = 60;
/// Memory limit of the daemon, in KiB: an endless walk allocates a gigabyte in eight seconds.
const MEMORY_KIB: u64 = 300 << 10;

/// Encodes an integer as in the journal.
fn uint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn place(parent: u64, name: &str) -> Vec<u8> {
    [
        uint(parent),
        uint(name.len() as u64),
        name.as_bytes().to_vec(),
    ]
    .concat()
}

/// A previous `Entry` that led to a directory.
fn entry(dir: u64, name: &str, child: u64) -> Vec<u8> {
    [vec![0], place(dir, name), vec![1], uint(child), vec![1]].concat()
}

/// Attributes of a directory, changed in 2000.
fn attr(slot: u64, mode: u64) -> Vec<u8> {
    let time = [uint(2 * 946_684_800), uint(0)].concat();
    let numbers = [mode, 1, 0, 0, 0, 0, 8, 4096].map(uint).concat();
    [
        vec![1],
        uint(slot),
        uint(1),
        uint(slot),
        vec![1],
        numbers,
        time.repeat(3),
        vec![0, 0],
    ]
    .concat()
}

fn home(slot: u64, parent: u64, name: &str) -> Vec<u8> {
    [vec![4], uint(slot), place(parent, name)].concat()
}

/// The payload of a frame of kind 1.
fn undo(epoch: u64, items: &[Vec<u8>]) -> (u16, Vec<u8>) {
    (
        1,
        [uint(epoch), uint(items.len() as u64), items.concat()].concat(),
    )
}

/// The payload of a frame of kind 3.
fn moved(slot: u64, parent: u64, name: &str) -> (u16, Vec<u8>) {
    (3, [uint(1), uint(slot), place(parent, name)].concat())
}

/// Appends frames to the journal of a tree, as if a daemon had been killed immediately afterwards.
/// Removes the index and the tail, so that only the journal remains.
fn forge(tree: &Path, frames: &[(u16, Vec<u8>)]) {
    let store = tree.join(".ckptfs");
    let format = fs::read_to_string(store.join("format")).expect("format");
    let id = format
        .lines()
        .find_map(|line| line.strip_prefix("id "))
        .expect("id");
    let id: Vec<u8> = (0..16)
        .map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect();
    let key = blake3::derive_key("ckptfs journal v1", &id);
    let segment = store.join("journal/00000001");
    let mut bytes = fs::read(&segment).expect("segment");
    let (mut at, mut seq, mut prev) = (64, 0_u64, blake3::keyed_hash(&key, b""));
    loop {
        let number = u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("8 bytes"));
        if number != seq + 1 {
            break;
        }
        let end =
            at + 56 + u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize;
        prev = blake3::keyed_hash(&key, &bytes[at..end]);
        (at, seq) = (end + 32, number);
    }
    for (kind, payload) in frames {
        let mut frame = Vec::new();
        frame.extend((payload.len() as u32).to_le_bytes());
        frame.extend(kind.to_le_bytes());
        frame.extend(0_u16.to_le_bytes());
        frame.extend((seq + 1).to_le_bytes());
        frame.extend(seq.to_le_bytes());
        frame.extend(prev.as_bytes());
        frame.extend(payload);
        prev = blake3::keyed_hash(&key, &frame);
        frame.extend(prev.as_bytes());
        bytes[at..at + frame.len()].copy_from_slice(&frame);
        (at, seq) = (at + frame.len(), seq + 1);
    }
    fs::write(&segment, bytes).expect("segment");
    fs::remove_dir_all(store.join("index")).expect("index");
    let _ = fs::remove_file(store.join("ended"));
    for name in fs::read_dir(store.join("journal"))
        .expect("journal")
        .map(|entry| entry.expect("entry").file_name())
    {
        if name.to_string_lossy().starts_with("tail-") {
            fs::remove_file(store.join("journal").join(name)).expect("tail");
        }
    }
}

/// The slots of `a`, `a/b` and the store.
struct Slots {
    a: u64,
    b: u64,
    store: u64,
}

/// A tree with one checkpoint and no changes in its second epoch.
fn tree(image: &Image, name: &str) -> (std::path::PathBuf, Slots) {
    let dir = image.dir(name);
    fs::create_dir_all(dir.join("a/b")).expect("mkdir");
    put(dir.join("a/b/file"), "of checkpoint 1");
    let mut mount = Mount::start(&dir, &MountOpts::new(Io::Daemon));
    assert_eq!(mount.checkpoint(), 1);
    mount.umount();
    let ino = |path: &str| fs::metadata(dir.join(path)).expect("stat").ino();
    let slots = Slots {
        a: ino("a"),
        b: ino("a/b"),
        store: ino(".ckptfs"),
    };
    (dir, slots)
}

fn ckptfs(dir: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = run_limited(
        tool(env!("CARGO_BIN_EXE_ckptfs"), &[] as &[&str])
            .arg("-C")
            .arg(dir)
            .args(arguments),
        LIMIT_S,
    );
    let said = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    (output.status.code(), said)
}

/// Asserts that `verify` of an unmounted store reports damage with this text.
fn fsck_finds(dir: &Path, what: &str) {
    let (status, said) = ckptfs(dir, &["verify"]);
    assert!(
        status == Some(4) && said.contains(what),
        "{status:?}: {said}"
    );
}

/// Asserts that the store is not mounted, for this reason, and that the tree remains an ordinary
/// directory.
fn is_refused(dir: &Path, why: &str) {
    let output = Mount::try_start(dir, &MountOpts::new(Io::Daemon));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mounted = crate::common::mount::minor_of(dir).is_some();
    if mounted {
        let _ = run_limited(tool("umount", &["-l"]).arg(dir), LIMIT_S);
    }
    assert!(
        !mounted
            && said.contains("the record at")
            && said.contains(why)
            && !said.contains("panicked"),
        "{said}"
    );
    fsck_finds(dir, why);
}

/// Runs every verb that walks over history, and asserts that each ends within the time and memory
/// limits.
fn all_walks_end(mount: &mut Mount) {
    put(mount.path().join("a/b/file"), "of later");
    fs::rename(mount.path().join("a/b"), mount.path().join("a/c")).expect("mv");
    let dest = crate::common::scratch();
    let verbs: [&[&str]; 11] = [
        &["status"],
        &["status", "--by", "process"],
        &["diff", "1"],
        &["log", "a/b/file"],
        &["verify", "--deep"],
        &["du"],
        &["restore", "-n", "1"],
        &["restore", "1", "a/b/file"],
        &["restore", "1", "a"],
        &["restore", "1"],
        &["undo"],
    ];
    let began = Instant::now();
    for verb in verbs {
        let (status, said) = ckptfs(mount.path(), verb);
        eprintln!("{verb:?}: {status:?} {said:.200}");
        let rss_kib = mount.status_memory_kib();
        assert!(
            rss_kib < MEMORY_KIB,
            "{verb:?}: the daemon has {rss_kib} KiB"
        );
    }
    let to = dest.path().join("copy");
    ckptfs(mount.path(), &["export", "1", to.to_str().expect("UTF-8")]);
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

trait Memory {
    fn status_memory_kib(&self) -> u64;
}

impl Memory for Mount {
    fn status_memory_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("the daemon is alive");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .expect("VmHWM");
        line.split_ascii_whitespace()
            .next()
            .and_then(|kib| kib.parse().ok())
            .expect("a number")
    }
}

/// Failed before: with a place that named a directory as its own parent, the daemon climbed without
/// end and recorded each step: 1 GB in 8 s, at the first `restore`.
#[test]
fn a_directory_in_itself_is_refused() {
    let image = Image::of(Fs::Tmpfs);
    let (dir, slots) = tree(&image, "itself");
    forge(&dir, &[moved(slots.b, slots.b, "b")]);
    is_refused(&dir, "a directory leads to itself");
    let (dir, slots) = tree(&image, "entry");
    forge(&dir, &[undo(2, &[entry(slots.b, "loop", slots.b)])]);
    is_refused(&dir, "a directory leads to itself");
}

/// Two directories are each in the other. No single record is invalid, yet every walk ends, and
/// `verify` reports the cycle both mounted and unmounted.
#[test]
fn no_walk_goes_in_circles() {
    let image = Image::of(Fs::Tmpfs);
    let (dir, Slots { a, b, .. }) = tree(&image, "places");
    forge(&dir, &[moved(a, b, "loop"), moved(b, a, "pool")]);
    let mut mount = Mount::start(&dir, &MountOpts::new(Io::Daemon));
    all_walks_end(&mut mount);
    mount.umount();
    let (dir, Slots { a, b, .. }) = tree(&image, "homes");
    forge(
        &dir,
        &[undo(
            2,
            &[
                entry(b, "loop", a),
                entry(a, "b", b),
                home(a, b, "loop"),
                home(b, a, "b"),
            ],
        )],
    );
    fsck_finds(&dir, "lead in a circle");
    let mut mount = Mount::start(&dir, &MountOpts::new(Io::Daemon));
    let (status, said) = ckptfs(mount.path(), &["verify"]);
    assert!(
        status == Some(4) && said.contains("lead in a circle"),
        "{status:?}: {said}"
    );
    let _ = run_limited(tool("ls", &["-laR"]).arg(mount.view(1)), LIMIT_S);
    all_walks_end(&mut mount);
    mount.umount();
}

/// Forty directories, each under two names in its parent: a walk along every path to each never
/// ends.
#[test]
fn a_directory_in_many_places_is_gone_through_once() {
    let image = Image::of(Fs::Tmpfs);
    let (dir, Slots { a, .. }) = tree(&image, "bomb");
    let slot = |level: u64| 1_000_000_000 + level;
    let mut items = vec![entry(a, "bomb", slot(0))];
    for level in 0..40 {
        items.extend([
            attr(slot(level), 0o755),
            entry(slot(level), "x", slot(level + 1)),
            entry(slot(level), "y", slot(level + 1)),
        ]);
    }
    items.push(attr(slot(40), 0o755));
    forge(&dir, &[undo(2, &items)]);
    let mut mount = Mount::start(&dir, &MountOpts::new(Io::Daemon));
    all_walks_end(&mut mount);
    mount.umount();
}

/// Failed before: a record of a closed or a future epoch caused a panic of `fsck`: "range start is
/// greater than range end".
#[test]
fn what_is_not_of_the_time_at_which_it_stands_is_refused() {
    let image = Image::of(Fs::Tmpfs);
    let checkpoint = |id: u64| {
        (
            4,
            [
                uint(id),
                uint(0),
                uint(0),
                uint(0),
                vec![1],
                uint(0),
                vec![0],
            ]
            .concat(),
        )
    };
    let data = |slot: u64| {
        [
            vec![3],
            uint(slot),
            vec![1],
            uint(3),
            uint(slot),
            uint(0),
            vec![0],
            uint(5),
            vec![0],
        ]
        .concat()
    };
    let frames: [Vec<(u16, Vec<u8>)>; 8] = [
        vec![undo(1, &[attr(7, 0o755)])],
        vec![undo(3, &[attr(7, 0o755)])],
        vec![checkpoint(1)],
        vec![checkpoint(u64::MAX)],
        vec![undo(2, &[data(7)])],
        vec![(6, uint(2))],
        vec![(8, [uint(2), uint(1), uint(0)].concat())],
        vec![(2, [uint(9), uint(7)].concat())],
    ];
    for (number, frames) in frames.into_iter().enumerate() {
        let (dir, _) = tree(&image, &format!("time-{number}"));
        forge(&dir, &frames);
        is_refused(&dir, "it is not of the time at which it stands");
    }
}

/// Failed before: a view showed `.ckptfs`, with the mode in the record, and a restore could have
/// put it anywhere.
#[test]
fn the_store_is_no_part_of_any_tree() {
    let image = Image::of(Fs::Tmpfs);
    let (dir, slots) = tree(&image, "entry-of-store");
    forge(
        &dir,
        &[undo(
            2,
            &[
                entry(1, ".ckptfs", slots.store),
                attr(slots.store, 0o777),
                home(slots.store, 1, ".ckptfs"),
            ],
        )],
    );
    is_refused(&dir, "the store as a part of the tree");
    let (dir, slots) = tree(&image, "place-of-store");
    forge(
        &dir,
        &[
            undo(
                2,
                &[entry(1, "shown", slots.store), attr(slots.store, 0o777)],
            ),
            moved(slots.store, 1, ".ckptfs"),
        ],
    );
    is_refused(&dir, "the store as a part of the tree");
    // Under another name nothing is found: a lookup never resolves to the store.
    let (dir, slots) = tree(&image, "another-name");
    forge(
        &dir,
        &[undo(
            2,
            &[
                entry(slots.a, "shown", slots.store),
                attr(slots.store, 0o777),
                home(slots.store, slots.a, "shown"),
            ],
        )],
    );
    let mut mount = Mount::start(&dir, &MountOpts::new(Io::Daemon));
    for below in ["journal", "format", "layers"] {
        assert!(
            fs::symlink_metadata(mount.view(1).join("a/shown").join(below)).is_err(),
            "{below}"
        );
    }
    all_walks_end(&mut mount);
    assert!(dir.join(".ckptfs/format").exists());
    mount.umount();
}

/// Failed before: a tag with a slash made the kernel reject the whole listing of `.snapshots`, and
/// a numeric tag hid the checkpoint of that number.
#[test]
fn what_can_be_no_tag_names_nothing() {
    let image = Image::of(Fs::Tmpfs);
    let (dir, _) = tree(&image, "tags");
    let tags = [
        "",
        "../../etc",
        "a/b",
        "good",
        "latest",
        ".",
        "..",
        "1",
        "\u{1b}[31m",
    ];
    let tags = tags
        .map(|tag| [uint(tag.len() as u64), tag.as_bytes().to_vec()].concat())
        .concat();
    forge(&dir, &[(5, [uint(1), uint(9), tags].concat())]);
    let mut mount = Mount::start(&dir, &MountOpts::new(Io::Daemon));
    let listed = fs::read_dir(dir.join(".snapshots"))
        .expect("list")
        .map(|entry| entry.expect("entry").file_name());
    assert_eq!(
        listed.collect::<std::collections::BTreeSet<_>>(),
        ["1", "good", "latest"].map(Into::into).into()
    );
    assert_eq!(mount.log_json()[0]["tags"], serde_json::json!(["good"]));
    mount.umount();
    let (_, said) = ckptfs(&dir, &["log"]);
    assert!(said.contains("[good]"), "{said}");
}
