//! The verbs: checkpoint, restore, mount.

use std::fs::{self, File, OpenOptions};
use std::process::Stdio;
use std::time::Duration;

use crate::common::command::{succeeds, tool};
use crate::report::{Bound, Report};
use crate::rig::{Rig, make_checkpoint, write_stamp};
use crate::shared::stats::{Samples, ms};
use ckptfs_api::{RestoreOptions, StateName};

/// Numbers of dirty files, and rounds per block for each.
const DIRTY: [(usize, usize); 3] = [(1, 20), (60, 20), (10_000, 1)];
/// Blocks of a whole run: 300 rounds with 1 and 60 dirty files, 15 with 10,000.
const BLOCKS: usize = 15;
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(10);
/// Files changed before a restore.
const RESTORED: usize = 60;
/// Numbers of files open for writing.
const HOT: [usize; 6] = [0, 1, 2, 4, 16, 64];

const P50_MS: f64 = 1.0;
const P99_MS: f64 = 5.0;
const RATIO: f64 = 1.5;
const CLI_MS: f64 = 10.0;
const RESTORE_MS: f64 = 20.0;
const MOUNT_MS: f64 = 100.0;

/// Measures `checkpoint` over a persistent connection, after writes to 1, 60 and 10,000 files
/// through the mount.
fn checkpoint_latency(rig: &mut Rig<'_>, blocks: usize) -> Vec<(usize, Samples, Samples)> {
    let mut client = rig.client();
    make_checkpoint(&mut client);
    let mut measured: Vec<_> = DIRTY
        .iter()
        .map(|(dirty, _)| (*dirty, Samples::default(), Samples::default()))
        .collect();
    for _ in 0..blocks {
        let rounds = DIRTY.iter().map(|(_, rounds)| *rounds).max().unwrap_or(0);
        for round in 0..rounds {
            for (index, (dirty, _)) in DIRTY
                .iter()
                .enumerate()
                .filter(|(_, (_, rounds))| round < *rounds)
            {
                // Checkpoints are not made back to back in practice: the caches are cold after
                // 10,000 changes, and must be after one.
                std::thread::sleep(PAUSE);
                rig.change(*dirty);
                let made = measured[index].1.time(|| make_checkpoint(&mut client));
                assert!(
                    made.dirty >= *dirty as u64,
                    "{} of {dirty} changed files are known as dirty",
                    made.dirty
                );
                measured[index].2.add_us(
                    made.duration_us
                        .expect("the reply to checkpoint has a duration")
                        as f64,
                );
            }
        }
    }
    measured
}

pub fn checkpoint(rig: &mut Rig<'_>, quick: bool, report: &mut Report) {
    let measured = checkpoint_latency(rig, if quick { 3 } else { BLOCKS });
    let head = [
        "mount",
        "dirty files",
        "rounds",
        "p50 ms",
        "p99 ms",
        "max ms",
        "in the daemon: p50 ms",
        "p99 ms",
        "max ms",
    ];
    let name = rig.name();
    for (dirty, client, daemon) in &measured {
        let mut row = vec![name.clone(), dirty.to_string(), client.len().to_string()];
        row.extend(
            [
                client.p50(),
                client.p99(),
                client.max(),
                daemon.p50(),
                daemon.p99(),
                daemon.max(),
            ]
            .map(ms),
        );
        report.row("checkpoint", "`checkpoint` over the socket", &head, row);
        let what =
            |which: &str| format!("checkpoint over the socket, {dirty} dirty files, {which}");
        report.bound(
            &name,
            &Bound {
                what: what("p50"),
                limit: P50_MS,
                measured: client.p50() / 1e3,
                unit: "ms",
            },
        );
        report.bound(
            &name,
            &Bound {
                what: what("p99"),
                limit: P99_MS,
                measured: client.p99() / 1e3,
                unit: "ms",
            },
        );
    }
    if let [(few, one, _), .., (many, all, _)] = measured.as_slice() {
        let what = format!("checkpoint p50 with {many} dirty files over p50 with {few}");
        report.bound(
            &name,
            &Bound {
                what,
                limit: RATIO,
                measured: all.p50() / one.p50(),
                unit: "x",
            },
        );
    }
}

/// Measures the process `ckptfs checkpoint`, from fork to exit, after one file changed.
pub fn cli(rig: &mut Rig<'_>, quick: bool, report: &mut Report) {
    let mut took = Samples::default();
    for _ in 0..if quick { 20 } else { 200 } {
        rig.change(1);
        let mut command = rig.mount.command(&["checkpoint"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let status = took
            .time(|| command.status())
            .expect("the binary can be started");
        assert!(status.success(), "ckptfs checkpoint failed: {status}");
    }
    let name = rig.name();
    let mut row = vec![name.clone(), took.len().to_string()];
    row.extend([took.p50(), took.p99(), took.max()].map(ms));
    report.row(
        "cli",
        "The process `ckptfs checkpoint`",
        &["mount", "rounds", "p50 ms", "p99 ms", "max ms"],
        row,
    );
    report.bound(
        &name,
        &Bound {
            what: "the process `ckptfs checkpoint`, p50".into(),
            limit: CLI_MS,
            measured: took.p50() / 1e3,
            unit: "ms",
        },
    );
}

/// Measures a restore of the whole tree after 60 files changed.
pub fn restore(rig: &mut Rig<'_>, quick: bool, report: &mut Report) {
    let mut client = rig.client();
    let (mut took, mut daemon) = (Samples::default(), Samples::default());
    for _ in 0..if quick { 5 } else { 50 } {
        let id = make_checkpoint(&mut client).id;
        rig.change(RESTORED);
        let options = RestoreOptions {
            to: StateName(id.to_string()),
            paths: Vec::new(),
            dry_run: false,
            times: None,
        };
        let restored = took
            .time(|| client.ask(options))
            .unwrap_or_else(|error| panic!("restore failed: {error}"));
        assert_eq!(
            restored.changes.len(),
            RESTORED,
            "a restore changes exactly the modified files"
        );
        daemon.add_us(restored.duration_us as f64);
    }
    let name = rig.name();
    let mut row = vec![name.clone(), took.len().to_string()];
    row.extend(
        [
            took.p50(),
            took.p99(),
            took.max(),
            daemon.p50(),
            daemon.max(),
        ]
        .map(ms),
    );
    let head = [
        "mount",
        "rounds",
        "p50 ms",
        "p99 ms",
        "max ms",
        "in the daemon: p50 ms",
        "max ms",
    ];
    report.row(
        "restore",
        "Restore after 60 of 36,000 files changed",
        &head,
        row,
    );
    let what = format!("restore after {RESTORED} files changed, p50");
    report.bound(
        &name,
        &Bound {
            what,
            limit: RESTORE_MS,
            measured: took.p50() / 1e3,
            unit: "ms",
        },
    );
}

/// Measures checkpoints with files open for writing, all or none written since the previous
/// checkpoint.
pub fn hot(rig: &mut Rig<'_>, quick: bool, report: &mut Report) {
    let rounds = if quick { 10 } else { 100 };
    let root = rig.mount.path().to_owned();
    let mut client = rig.client();
    let mut measured: Vec<_> = HOT
        .iter()
        .map(|hot| (*hot, Samples::default(), Samples::default()))
        .collect();
    for (hot, idle, busy) in &mut measured {
        let open = |path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(root.join(path))
                .expect("a file can be opened")
        };
        let files: Vec<File> = rig.files(*hot).into_iter().map(open).collect();
        make_checkpoint(&mut client);
        for _ in 0..rounds {
            for (samples, writes) in [(&mut *idle, false), (&mut *busy, true)] {
                let stamp = rig.stamp();
                files
                    .iter()
                    .filter(|_| writes)
                    .for_each(|file| write_stamp(file, stamp));
                let made = samples.time(|| make_checkpoint(&mut client));
                assert!(made.atomic, "no process writes during the checkpoint");
            }
        }
    }
    let name = rig.name();
    let none = measured.first().map_or(f64::NAN, |(_, _, busy)| busy.p50());
    for (hot, idle, busy) in &measured {
        let each = if *hot == 0 {
            "-".to_owned()
        } else {
            ms((busy.p50() - none) / *hot as f64)
        };
        let mut row = vec![name.clone(), hot.to_string(), idle.len().to_string()];
        row.extend([idle.p50(), idle.p99(), busy.p50(), busy.p99()].map(ms));
        row.push(each);
        let head = [
            "mount",
            "files open for writing",
            "rounds",
            "no writes: p50 ms",
            "p99 ms",
            "writes to all: p50 ms",
            "p99 ms",
            "per file ms",
        ];
        report.row(
            "hot",
            "`checkpoint` while files are open for writing",
            &head,
            row,
        );
    }
}

/// Measures the process `ckptfs mount` after a clean unmount, with warm and with dropped caches.
pub fn mount(rig: &mut Rig<'_>, quick: bool, report: &mut Report) {
    let rounds = if quick { 3 } else { 15 };
    let (mut warm, mut cold) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        for (samples, drops) in [(&mut warm, false), (&mut cold, true)] {
            rig.change(RESTORED);
            make_checkpoint(&mut rig.client());
            rig.mount.umount();
            if drops {
                succeeds(&mut tool::<&str>("sync", &[]), 120);
                fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
            }
            samples.add(rig.mount_again());
        }
    }
    let name = rig.name();
    for (what, samples) in [("warm", &warm), ("caches dropped", &cold)] {
        let mut row = vec![name.clone(), what.to_owned(), samples.len().to_string()];
        row.extend([samples.p50(), samples.p99(), samples.max()].map(ms));
        report.row(
            "mount",
            "The process `ckptfs mount`",
            &["mount", "caches", "rounds", "p50 ms", "p99 ms", "max ms"],
            row,
        );
        let what = format!("mount, {what}, p50");
        report.bound(
            &name,
            &Bound {
                what,
                limit: MOUNT_MS,
                measured: samples.p50() / 1e3,
                unit: "ms",
            },
        );
    }
}
