//! Spike 2: checkpoints of a tree of 36,076 files, and 87 bands of 8 MiB.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use crate::common::Mount;
use crate::common::command::succeeds;
use crate::options::Seed;
use crate::report::{Report, Row, Value};
use crate::shapes;
use crate::shared::stats::Samples;
use crate::shared::tree::regular_files;
use crate::world::{SECONDS, SeedEnv, client, cp, remove, rsync, spread, stamp, timed};
use ckptfs_api::{CheckpointOptions, RestoreOptions, StateName};

const CHECKPOINTS: &str = "Spike 2: a checkpoint of the tree";
const RESTORES: &str = "Spike 2: restore to the checkpoint";
const BANDS_TITLE: &str = "Spike 2: 87 bands of 8 MiB";
const DISK: &str = "Spike 2: disk cost, by `df`";
const SEED: &str = "Spike 2 (macOS, APFS, another machine)";

/// Files changed before a checkpoint, and the seed's figure.
const CHANGED: [(usize, &str); 4] = [
    (0, "-"),
    (1, "64 ms"),
    (5, "112 ms"),
    (60, "32 ms (cached)"),
];
const BANDS: usize = 87;
const BANDS_QUICK: usize = 12;
const BAND_BYTES: usize = 8 << 20;
/// Checkpoints per measurement by `df`.
const MANY: usize = 100;
/// Bytes that a change writes.
const STAMP_BYTES: u64 = 16;

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    let tree = world.tree();
    let files = regular_files(&tree, STAMP_BYTES);
    let (copy, other) = (
        world.path().join("spike2-copy"),
        world.path().join("spike2-other"),
    );
    [&copy, &other].iter().for_each(|to| {
        remove(to);
        succeeds(&mut cp(&tree, to), SECONDS);
    });
    world.sync();
    let mut mount = world.mount(&tree);
    checkpoints(world, &mount, &files, &copy, report);
    restores(world, &mount, &files, (&copy, &other), report);
    disk(world, &mount, &files, report);
    mount.umount();
    [&copy, &other].iter().for_each(|dir| remove(dir));
    bands(world, report);
}

fn checkpoint(mount: &Mount, samples: &mut Samples) -> u64 {
    let mut client = client(mount);
    samples
        .time(|| client.ask(CheckpointOptions::default()))
        .unwrap_or_else(|error| panic!("checkpoint failed: {error}"))
        .id
        .0
}

/// Measures the process `ckptfs checkpoint`.
fn process(mount: &Mount, arguments: &[&str], samples: &mut Samples) {
    let mut command = mount.command(arguments);
    let status = samples.time(|| {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    });
    assert!(
        status.expect("the binary can be started").success(),
        "ckptfs {} failed",
        arguments.join(" ")
    );
}

fn checkpoints(
    world: &SeedEnv<'_>,
    mount: &Mount,
    files: &[PathBuf],
    plain: &Path,
    report: &mut Report,
) {
    let mut rows: Vec<_> = CHANGED
        .iter()
        .map(|(changed, seed)| {
            (
                *changed,
                *seed,
                [const { None::<Samples> }; 3].map(|_| Samples::default()),
            )
        })
        .collect();
    checkpoint(mount, &mut Samples::default());
    for round in world.options.rounds(40, 20) {
        for (changed, _, [socket, whole, scan]) in &mut rows {
            for (root, number) in [(mount.path(), round), (plain, round)] {
                let before = SystemTime::now();
                // A file's mtime is that of the last tick of the kernel's clock.
                std::thread::sleep(std::time::Duration::from_millis(10));
                spread(files, *changed, round)
                    .iter()
                    .for_each(|file| stamp(&root.join(file), number));
                if root == plain {
                    scan.time(|| scan_and_hash(plain, before, *changed));
                }
            }
            checkpoint(mount, socket);
            spread(files, *changed, round)
                .iter()
                .for_each(|file| stamp(&mount.path().join(file), round + 1));
            process(mount, &["checkpoint"], whole);
        }
    }
    for (changed, seed, [socket, whole, scan]) in rows {
        let what = match changed {
            0 => "none changed".to_owned(),
            1 => "1 file".to_owned(),
            changed => format!("{changed} files"),
        };
        let row = Row::new(world.fs(), what)
            .ours(&socket)
            .cell("process `ckptfs checkpoint`", Value::Time(whole));
        let row = row
            .rival("plain: mtime scan, hash of the changed files", &scan)
            .text(SEED, seed);
        report.add(Seed::Spike2, CHECKPOINTS, row);
    }
}

/// Does the job of the seed: checks the mtime of every file, and reads those that are newer.
fn scan_and_hash(top: &Path, since: SystemTime, changed: usize) {
    let (mut pending, mut found) = (vec![top.to_owned()], 0);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir)
            .expect("a plain directory can be listed")
            .flatten()
        {
            let meta = entry
                .metadata()
                .expect("the metadata of a plain file can be read");
            if meta.is_dir() {
                pending.push(entry.path());
            } else if meta.is_file() && meta.modified().is_ok_and(|modified| modified >= since) {
                found += 1;
                std::hint::black_box(blake3::hash(
                    &fs::read(entry.path()).expect("a plain file can be read"),
                ));
            }
        }
    }
    assert!(
        found >= changed,
        "the scan finds {found} of {changed} changed files"
    );
}

fn restores(
    world: &SeedEnv<'_>,
    mount: &Mount,
    files: &[PathBuf],
    (copy, other): (&Path, &Path),
    report: &mut Report,
) {
    let mut rows: Vec<_> = CHANGED
        .iter()
        .map(|(changed, _)| (*changed, Samples::default(), Samples::default()))
        .collect();
    succeeds(&mut rsync(copy, other), SECONDS);
    for round in world.options.rounds(20, 20) {
        for (changed, ours, rival) in &mut rows {
            let id = checkpoint(mount, &mut Samples::default());
            for root in [mount.path(), other] {
                spread(files, *changed, round)
                    .iter()
                    .for_each(|file| stamp(&root.join(file), usize::MAX - round));
            }
            let mut client = client(mount);
            let options = RestoreOptions {
                to: StateName(id.to_string()),
                paths: Vec::new(),
                dry_run: false,
                times: None,
            };
            let restored = ours
                .time(|| client.ask(options))
                .unwrap_or_else(|error| panic!("restore failed: {error}"));
            assert_eq!(
                restored.changes.len(),
                *changed,
                "a restore changes exactly the modified files"
            );
            timed(rival, &mut rsync(copy, other));
        }
    }
    for (changed, ours, rival) in rows {
        let row = Row::new(world.fs(), format!("{changed} files changed"))
            .ours(&ours)
            .rival("`rsync -a` from a copy", &rival)
            .text(SEED, "-");
        report.add(Seed::Spike2, RESTORES, row.why("rsync trusts sizes and times; ckptfs first saves the current state in a guard checkpoint"));
    }
}

fn disk(world: &SeedEnv<'_>, mount: &Mount, files: &[PathBuf], report: &mut Report) {
    let mut add = |what: &str, bytes: i64, seed: &str| {
        report.add(
            Seed::Spike2,
            DISK,
            Row::new(world.fs(), what)
                .cell("bytes", Value::Bytes(bytes))
                .text(SEED, seed),
        );
    };
    let before = world.used();
    for _ in 0..MANY {
        checkpoint(mount, &mut Samples::default());
    }
    add(
        "a checkpoint, nothing changed (of 100, each)",
        (world.used() - before) / MANY as i64,
        "-",
    );
    checkpoint(mount, &mut Samples::default());
    let before = world.used();
    spread(files, 60, 1)
        .iter()
        .for_each(|file| stamp(&mount.path().join(file), 9));
    add(
        "60 files changed after it (their first writes)",
        world.used() - before,
        "-",
    );
}

/// Measures two directories of bands, one mounted and one plain.
fn bands(world: &SeedEnv<'_>, report: &mut Report) {
    let count = if world.options.quick {
        BANDS_QUICK
    } else {
        BANDS
    };
    let (ours, plain) = (world.dir("bands"), world.dir("bands-plain"));
    for dir in [&ours, &plain] {
        fs::create_dir(dir.join("bands")).expect("a directory can be created");
        (0..count).for_each(|band| {
            shapes::write(
                &dir.join("bands").join(format!("{band:x}")),
                BAND_BYTES,
                band,
            )
        });
    }
    world.sync();
    let mut mount = world.mount(&ours);
    reads(world, &mount, &plain, report);
    clones(world, &mount, &plain, count, report);
    mount.umount();
    [&ours, &plain].iter().for_each(|dir| remove(dir));
}

fn reads(world: &SeedEnv<'_>, mount: &Mount, plain: &Path, report: &mut Report) {
    type Work = fn(&Path);
    let works: [(&str, &str, Work); 3] = [
        ("List all bands", "14 ms", list),
        ("Stat all bands", "14 ms", stat),
        ("Hash ALL bands", "1,285 ms", hash),
    ];
    for (what, seed, work) in works {
        let (mut ours, mut rival) = (Samples::default(), Samples::default());
        work(&mount.path().join("bands"));
        for _ in world.options.rounds(9, 8) {
            ours.time(|| work(&mount.path().join("bands")));
            rival.time(|| work(&plain.join("bands")));
        }
        let row = Row::new(world.fs(), what)
            .ours(&ours)
            .rival("plain directory", &rival)
            .text(SEED, seed);
        report.add(Seed::Spike2, BANDS_TITLE, row.why("each first look-up goes through FUSE; without reflink the daemon also transfers the data"));
    }
}

fn list(dir: &Path) {
    std::hint::black_box(fs::read_dir(dir).expect("it can be listed").count());
}

fn stat(dir: &Path) {
    let sizes = fs::read_dir(dir).expect("it can be listed").map(|entry| {
        entry
            .and_then(|entry| entry.metadata())
            .expect("its metadata can be read")
            .len()
    });
    std::hint::black_box(sizes.sum::<u64>());
}

fn hash(dir: &Path) {
    let mut hasher = blake3::Hasher::new();
    for entry in fs::read_dir(dir).expect("it can be listed") {
        let path = entry.expect("it can be listed").path();
        hasher
            .update_reader(File::open(path).expect("it can be opened"))
            .expect("it can be read");
    }
    std::hint::black_box(hasher.finalize());
}

fn clones(world: &SeedEnv<'_>, mount: &Mount, plain: &Path, count: usize, report: &mut Report) {
    let names = [
        "Incremental detection (1 band)",
        "Clone single band",
        "Clone entire bands dir",
        "Clone entire bands dir, writable: `ckptfs fork`",
    ];
    let mut all = names.map(|_| (Samples::default(), Samples::default()));
    let (mut fork_bytes, mut cp_bytes) = (0, 0);
    for round in world.options.rounds(7, 25) {
        let [detect, band, dir, fork] = &mut all;
        checkpoint(mount, &mut Samples::default());
        let since = SystemTime::now();
        // The first write after a checkpoint clones the band.
        band.0.time(|| {
            stamp(
                &mount
                    .path()
                    .join("bands")
                    .join(format!("{:x}", round % count)),
                round,
            )
        });
        timed(
            &mut band.1,
            &mut cp(&plain.join("bands/0"), &plain.join("one")),
        );
        process(mount, &["status"], &mut detect.0);
        stamp(&plain.join("bands/1"), round);
        detect
            .1
            .time(|| scan_and_hash(&plain.join("bands"), since, 1));
        checkpoint(mount, &mut dir.0);
        let (clone, copy) = (
            world.path().join("bands-clone"),
            world.path().join("bands-fork"),
        );
        [&clone, &copy].iter().for_each(|dir| remove(dir));
        let used = world.used();
        let mut took = Samples::default();
        timed(&mut took, &mut cp(plain, &clone));
        cp_bytes = world.used() - used;
        dir.1.add_us(took.max());
        fork.1.add_us(took.max());
        let used = world.used();
        process(
            mount,
            &["fork", "latest", &copy.to_string_lossy()],
            &mut fork.0,
        );
        fork_bytes = world.used() - used;
        [&clone, &copy].iter().for_each(|dir| remove(dir));
    }
    tell_clones(world, names, &all, [cp_bytes, fork_bytes], report);
}

/// Adds the rows of [`clones`].
fn tell_clones(
    world: &SeedEnv<'_>,
    names: [&str; 4],
    all: &[(Samples, Samples)],
    [cp_bytes, fork_bytes]: [i64; 2],
    report: &mut Report,
) {
    let rivals = [
        "plain: mtime scan, hash of the changed files",
        "`cp --reflink=auto`",
        "`cp --reflink=auto`",
        "`cp --reflink=auto`",
    ];
    let whys = [
        "the process asks the daemon, which compares; the scan examines only 87 files, and trusts their times",
        "the first write also records the change in the journal; without reflink it copies the band",
        "",
        "a fork starts processes that read a view over the socket, and creates a history",
    ];
    for (index, (ours, rival)) in all.iter().enumerate() {
        let seed = ["12 ms (scan)", "12 ms", "19 ms", "19 ms"][index];
        let row = Row::new(world.fs(), names[index])
            .ours(ours)
            .rival(rivals[index], rival)
            .text(SEED, seed)
            .why(whys[index]);
        report.add(Seed::Spike2, BANDS_TITLE, row);
    }
    for (what, bytes) in [
        ("`cp --reflink=auto` of the bands dir", cp_bytes),
        ("`ckptfs fork` of the bands dir", fork_bytes),
    ] {
        report.add(
            Seed::Spike2,
            DISK,
            Row::new(world.fs(), what)
                .cell("bytes", Value::Bytes(bytes))
                .text(SEED, "0 (blocks shared)"),
        );
    }
}
