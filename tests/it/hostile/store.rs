//! Foreign stores, for example from an archive: truncated, flipped, oversized, in another format,
//! with link loops or links that lead outside.
//!
//! Each damage is done to a copy of one good tree with its store: a btrfs snapshot, which preserves
//! inode numbers. The copy is mounted, read, changed, and mounted again. The mount may fail with a
//! clear error, or serve the rest. It must not panic, hang, return wrong bytes, or touch files
//! outside.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Instant;

use super::support::{noise, put, sh};
use crate::common::random::{count, seed};
use crate::common::{Fs, Image, Io, Mount, MountOpts, run_limited, skip, succeeds, tool};

/// Time limit of a command with any store, in seconds.
const LIMIT_S: u64 = 60;

/// A directory outside every tree.
struct Outside {
    dir: PathBuf,
}

impl Outside {
    fn new(image: &Image) -> Outside {
        let dir = image.dir("outside");
        put(dir.join("file"), "outside");
        fs::create_dir_all(dir.join("dir/objects")).expect("mkdir");
        Outside { dir }
    }

    fn state(dir: &Path) -> Vec<(PathBuf, u64, i64, i64)> {
        let mut state = Vec::new();
        let mut open = vec![dir.to_owned()];
        while let Some(path) = open.pop() {
            let meta = fs::symlink_metadata(&path).expect("stat");
            state.push((path.clone(), meta.size(), meta.ctime(), meta.ctime_nsec()));
            if meta.is_dir() {
                open.extend(
                    fs::read_dir(&path)
                        .expect("list")
                        .map(|entry| entry.expect("entry").path()),
                );
            }
        }
        state.sort();
        state
    }
}

/// Makes a tree with two checkpoints, and files changed, removed and renamed since.
fn good_store(dir: &Path) {
    put(dir.join("a"), noise(5000, 1));
    put(dir.join("b"), noise(5000, 2));
    put(dir.join("shared"), "shared");
    fs::create_dir(dir.join("d")).expect("mkdir");
    put(dir.join("d/c"), "c of checkpoint 1");
    let mut mount = Mount::start(dir, &MountOpts::new(Io::Daemon));
    assert_eq!(mount.checkpoint(), 1);
    put(dir.join("a"), noise(6000, 3));
    fs::remove_file(dir.join("b")).expect("rm");
    assert_eq!(mount.checkpoint_json(&["--tag", "the-second"])["id"], 2);
    put(dir.join("d/c"), "c of checkpoint 2, changed");
    fs::rename(dir.join("d"), dir.join("e")).expect("mv");
    mount.umount();
}

type Damage = (&'static str, Box<dyn Fn(&Path, &Path)>);

fn damage(name: &'static str, does: impl Fn(&Path, &Path) + 'static) -> Damage {
    (name, Box::new(does))
}

fn remove(path: &Path) {
    let removed = if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    if let Err(error) = removed {
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::NotFound,
            "{}",
            path.display()
        );
    }
}

/// Replaces `name` in the store with a symbolic link.
fn link(name: &'static str, to: &'static str) -> impl Fn(&Path, &Path) {
    move |store, outside| {
        remove(&store.join(name));
        symlink(
            if to.starts_with('.') {
                PathBuf::from(to)
            } else {
                outside.join(to)
            },
            store.join(name),
        )
        .expect("symlink");
    }
}

fn fifo(name: &'static str) -> impl Fn(&Path, &Path) {
    move |store, _| {
        remove(&store.join(name));
        sh(store, &format!("mkfifo {name}"));
    }
}

fn content(name: &'static str, content: impl Into<Vec<u8>>) -> impl Fn(&Path, &Path) {
    let content = content.into();
    move |store, _| {
        remove(&store.join(name));
        put(store.join(name), &content);
    }
}

fn gone(name: &'static str) -> impl Fn(&Path, &Path) {
    move |store, _| remove(&store.join(name))
}

fn directory(name: &'static str) -> impl Fn(&Path, &Path) {
    move |store, _| {
        remove(&store.join(name));
        fs::create_dir(store.join(name)).expect("mkdir");
    }
}

fn length(name: &'static str, bytes: u64) -> impl Fn(&Path, &Path) {
    move |store, _| {
        OpenOptions::new()
            .write(true)
            .open(store.join(name))
            .and_then(|file| file.set_len(bytes))
            .expect("truncate")
    }
}

fn flip(name: &'static str, at: u64) -> impl Fn(&Path, &Path) {
    move |store, _| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(store.join(name))
            .expect("open");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 0x10], at).expect("write");
    }
}

/// Overwrites the unused part of the segment with headers that claim a frame of 4 MiB.
fn false_frames(store: &Path, _: &Path) {
    let segment = store.join("journal/00000001");
    let bytes = fs::read(&segment).expect("read");
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(64, |last| last + 1);
    let mut header = Vec::new();
    header.extend((4_u32 << 20).to_le_bytes());
    header.extend(2_u16.to_le_bytes());
    header.extend(0_u16.to_le_bytes());
    header.extend(1_000_u64.to_le_bytes());
    header.extend(1_u64.to_le_bytes());
    header.extend([0; 32]);
    let file = OpenOptions::new().write(true).open(&segment).expect("open");
    file.write_all_at(
        &header.repeat((64 << 20) / header.len() - used / header.len()),
        used as u64,
    )
    .expect("write");
}

fn damages() -> Vec<Damage> {
    let store_format = |version: &str| {
        format!(
            "ckptfs store\nversion {version}\nfeatures -\nid 00112233445566778899aabbccddeeff\n"
        )
    };
    vec![
        damage("no format", gone("format")),
        damage("format empty", content("format", "")),
        damage("random bytes as format", content("format", noise(4096, 9))),
        damage(
            "format newer",
            content("format", store_format("4294967295")),
        ),
        damage(
            "format of another store",
            content("format", store_format("1")),
        ),
        damage("format oversized", content("format", vec![b'\n'; 1 << 20])),
        damage("format a directory", directory("format")),
        damage("format a FIFO", fifo("format")),
        damage("format links outside", link("format", "file")),
        damage("format looped", link("format", "./format")),
        damage("lock links outside", link("lock", "file")),
        damage("lock a FIFO", fifo("lock")),
        damage("lock a directory", directory("lock")),
        damage("journal links outside", link("journal", "dir")),
        damage("journal looped", link("journal", "./journal")),
        damage("no journal", gone("journal")),
        damage("journal a file", content("journal", "x")),
        damage("no segment", gone("journal/00000001")),
        damage("segment links outside", link("journal/00000001", "file")),
        damage("segment a FIFO", fifo("journal/00000001")),
        damage("segment a directory", directory("journal/00000001")),
        damage("segment empty", length("journal/00000001", 0)),
        damage("segment without a record", length("journal/00000001", 40)),
        damage("segment truncated", length("journal/00000001", 700)),
        damage("segment of 1 TiB", length("journal/00000001", 1 << 40)),
        damage("segment's header flipped", flip("journal/00000001", 20)),
        damage("first frame flipped", flip("journal/00000001", 100)),
        damage("a frame flipped", flip("journal/00000001", 900)),
        damage(
            "the segment with the last number",
            content("journal/4294967295", "x"),
        ),
        damage(
            "only the segment with the last number",
            |store: &Path, _: &Path| {
                fs::rename(
                    store.join("journal/00000001"),
                    store.join("journal/4294967295"),
                )
                .expect("mv");
            },
        ),
        damage("an additional segment", content("journal/00000003", "x")),
        damage(
            "the next segment rubbish",
            content("journal/00000002", noise(100_000, 5)),
        ),
        damage("false frames", false_frames),
    ]
}

/// Damages to everything except the journal and the format file.
fn further_damages() -> Vec<Damage> {
    vec![
        damage("layers links outside", link("layers", "dir")),
        damage("layers looped", link("layers", "./layers")),
        damage("no layers", gone("layers")),
        damage("a layer links outside", link("layers/2", "dir")),
        damage("a layer looped", link("layers/2", "..")),
        damage("objects links outside", link("layers/2/objects", "dir")),
        damage("the open layer links outside", link("layers/3", "dir")),
        damage("objects gone", gone("layers/2/objects")),
        damage(
            "objects link outside one by one",
            |store: &Path, outside: &Path| {
                for object in fs::read_dir(store.join("layers/2/objects")).expect("list") {
                    let object = object.expect("entry").path();
                    remove(&object);
                    symlink(outside.join("file"), object).expect("symlink");
                }
            },
        ),
        damage("no index", gone("index")),
        damage("index links outside", link("index", "dir")),
        damage("index a file", content("index", "x")),
        damage("index/db links outside", link("index/db", "file")),
        damage(
            "index/db links to a missing file outside",
            link("index/db", "made"),
        ),
        damage("index/db a FIFO", fifo("index/db")),
        damage("index/conf links outside", link("index/conf", "file")),
        damage("index/blobs links outside", link("index/blobs", "dir")),
        damage("index/db shared", |store: &Path, _: &Path| {
            remove(&store.join("index/db"));
            fs::hard_link(store.join("../shared"), store.join("index/db")).expect("link");
        }),
        damage("tmp links outside", link("tmp", "dir")),
        damage("tmp/restore links outside", link("tmp/restore", "dir")),
        damage("tmp full of links", |store: &Path, outside: &Path| {
            symlink(outside.join("dir"), store.join("tmp/l")).expect("symlink");
            symlink("l2", store.join("tmp/l2")).expect("symlink");
        }),
        damage("tmp deep", |store: &Path, _: &Path| {
            fs::create_dir_all(store.join("tmp/1/2/3/4/5/6/7/8")).expect("mkdir")
        }),
        damage("control.sock links outside", link("control.sock", "file")),
        damage("control.sock a file", content("control.sock", "x")),
        damage("control.sock a directory", directory("control.sock")),
        damage("daemon.log links outside", link("daemon.log", "file")),
        damage(
            "daemon.log links to a missing file outside",
            link("daemon.log", "made"),
        ),
        damage("daemon.log a FIFO", fifo("daemon.log")),
        damage("daemon.log shared", |store: &Path, _: &Path| {
            remove(&store.join("daemon.log"));
            fs::hard_link(store.join("../shared"), store.join("daemon.log")).expect("link");
        }),
    ]
}

/// One image with a good store and a directory outside it.
struct DamageRig {
    image: Image,
    outside: Outside,
}

impl DamageRig {
    fn new() -> Option<DamageRig> {
        if let Some(reason) = Fs::Btrfs.unavailable() {
            skip(&reason);
            return None;
        }
        let image = Image::of(Fs::Btrfs);
        succeeds(
            &mut tool(
                "btrfs",
                &[
                    "-q".as_ref(),
                    "subvolume".as_ref(),
                    "create".as_ref(),
                    image.path().join("good").as_os_str(),
                ],
            ),
            LIMIT_S,
        );
        good_store(&image.path().join("good"));
        let outside = Outside::new(&image);
        Some(DamageRig { image, outside })
    }

    /// Damages a copy and uses it. Returns whether it was mounted.
    fn try_damage(&self, name: &str, does: &dyn Fn(&Path, &Path)) -> bool {
        let dir = self.image.path().join("bad");
        sh(
            self.image.path(),
            "if [ -e bad ]; then btrfs -q subvolume delete bad; fi; btrfs -q subvolume snapshot good bad",
        );
        let _cleared = UnmountGuard(dir.clone());
        does(&dir.join(".ckptfs"), &self.outside.dir);
        let before = Outside::state(&self.outside.dir);
        let served = self.use_it(name, &dir) && self.use_it(name, &dir);
        let after = Outside::state(&self.outside.dir);
        assert_eq!(
            after, before,
            "{name}: a file outside the store was changed"
        );
        // A file of the tree that is hard-linked in the damaged store.
        assert_eq!(
            fs::read_to_string(dir.join("shared")).expect("read"),
            "shared",
            "{name}"
        );
        let log = dir.join(".ckptfs/daemon.log");
        if log.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
            let log = fs::read_to_string(&log).expect("the log");
            // sled panics on some damage, which is caught; our own code may not.
            assert!(
                !log.lines().any(|line| line.contains("panicked at src")),
                "{name}: {log}"
            );
        }
        served
    }

    fn use_it(&self, name: &str, dir: &Path) -> bool {
        let began = Instant::now();
        let output = Mount::try_start(dir, &MountOpts::new(Io::Daemon));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked at src"), "{name}: {said}");
        if !output.status.success() {
            let error = said.lines().find(|line| line.starts_with("Error: "));
            assert!(
                output.status.code() == Some(1)
                    && error
                        .is_some_and(|error| !error.contains("exited before the mount was ready")),
                "{name}: {said}"
            );
            assert!(
                crate::common::mount::minor_of(dir).is_none(),
                "{name}: refused, but mounted"
            );
            // The tree itself is an ordinary directory with any store.
            assert_eq!(
                fs::read(dir.join("a")).expect("the tree"),
                noise(6000, 3),
                "{name}"
            );
            eprintln!(
                "{name}: refused in {:?}: {}",
                began.elapsed(),
                error.unwrap_or_default()
            );
            return false;
        }
        let asked = self.ask(name, dir);
        let umount = run(dir, &["umount", "."]);
        assert!(
            umount.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&umount.stderr)
        );
        eprintln!("{name}: served in {:?}: {asked}", began.elapsed());
        true
    }

    /// Does everything possible in a mount, and returns the failures. Successful reads must return
    /// the right content.
    fn ask(&self, name: &str, dir: &Path) -> String {
        let mut failed = Vec::new();
        let mut expect = |path: &str, content: &[u8]| match fs::read(dir.join(path)) {
            Ok(found) => assert!(found == content, "{name}: {path} has other content"),
            Err(_) => failed.push(path.to_owned()),
        };
        expect("a", &noise(6000, 3));
        expect("e/c", b"c of checkpoint 2, changed");
        // A store without the end of its journal has no such checkpoints, and may reuse their IDs.
        if run(dir, &["show", "the-second"]).status.success() {
            expect(".snapshots/1/a", &noise(5000, 1));
            expect(".snapshots/1/b", &noise(5000, 2));
            expect(".snapshots/1/d/c", b"c of checkpoint 1");
            expect(".snapshots/2/d/c", b"c of checkpoint 1");
        }
        for verb in [&["status"][..], &["diff", "1"], &["checkpoint"], &["log"]] {
            if !run(dir, verb).status.success() {
                failed.push(verb[0].to_owned());
            }
        }
        if let Err(error) = fs::write(dir.join("e/c"), "c of checkpoint 2, changed")
            .and_then(|()| fs::write(dir.join("new"), "n"))
        {
            failed.push(format!("write: {error}"));
        }
        if fs::remove_file(dir.join("new")).is_err() {
            failed.push("rm".to_owned());
        }
        failed.join(", ")
    }
}

/// Unmounts a directory that a failed test has left mounted.
pub struct UnmountGuard(pub PathBuf);

impl Drop for UnmountGuard {
    fn drop(&mut self) {
        if crate::common::mount::minor_of(&self.0).is_some() {
            crate::common::mount::abort(&self.0);
            let _ = run_limited(tool("umount", &["-l"]).arg(&self.0), LIMIT_S);
        }
    }
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    run_limited(
        tool(env!("CARGO_BIN_EXE_ckptfs"), &[] as &[&str])
            .arg("-C")
            .arg(dir)
            .args(arguments),
        LIMIT_S,
    )
}

#[test]
fn no_damage_leads_out_or_panics() {
    let Some(bench) = DamageRig::new() else {
        return;
    };
    assert!(
        bench.try_damage("none", &|_, _| ()),
        "the good store can be used"
    );
    assert!(
        bench.try_damage(
            "the index links outside and is gone",
            &link("index/db", "file")
        ),
        "an index is only a cache"
    );
    let (mut served, mut refused) = (0, 0);
    for (name, does) in damages().into_iter().chain(further_damages()) {
        if bench.try_damage(name, &*does) {
            served += 1
        } else {
            refused += 1
        }
    }
    eprintln!("{served} served, {refused} refused");
}

/// sled panics on some damage and trusts other damage; the index is rebuilt in each case, and every
/// view is right.
#[test]
fn a_damaged_index_is_set_aside_and_made_anew() {
    let Some(bench) = DamageRig::new() else {
        return;
    };
    let rounds = count("CKPTFS_ROUNDS", 4, 4);
    let seed = seed("a damaged index", 1);
    for round in seed..seed + rounds {
        let random = noise(4096, (round % 256) as u8);
        let damage = move |store: &Path, _: &Path| {
            let mut random = random.iter();
            let mut next = |below: usize| {
                random
                    .by_ref()
                    .take(4)
                    .fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
                    % below.max(1)
            };
            for file in fs::read_dir(store.join("index"))
                .expect("list")
                .map(|entry| entry.expect("entry").path())
                .filter(|path| path.is_file())
            {
                let mut bytes = fs::read(&file).expect("read");
                match next(4) {
                    0 => bytes.truncate(next(bytes.len())),
                    1 => (0..20).for_each(|_| {
                        let at = next(bytes.len());
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte ^= 1 << next(8);
                        }
                    }),
                    2 => {
                        let (from, count) = (next(bytes.len()), next(4096));
                        bytes
                            .iter_mut()
                            .skip(from)
                            .take(count)
                            .for_each(|byte| *byte = 0xff);
                    }
                    _ => bytes.extend(noise(next(10_000), 7)),
                }
                File::create(&file)
                    .and_then(|file| file.write_all_at(&bytes, 0))
                    .expect("write");
            }
        };
        assert!(
            bench.try_damage(&format!("index, seed {round}"), &damage),
            "an index is only a cache"
        );
    }
}
