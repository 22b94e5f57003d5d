//! A writer stores i into file A, then into file B, in a loop: a checkpoint with `atomic` shows A =
//! B or A = B + 1.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::common::mount_opts::MountOpts;
use crate::common::{Io, Rig, Variant, for_each_variant};
use crate::cut::writer::{WriteMethod, Writer, shown};
use ckptfs_api::{CheckpointInfo, CheckpointOptions, Client};

/// Default number of checkpoints in each variant (`CKPTFS_CUTS`).
const CUTS: u64 = 40;
/// Checkpoints until a new writer starts with new files, which limits the size of logs.
const CUTS_OF_A_WRITER: u64 = 20;
/// With a pause of this length at least half of the checkpoints must be atomic.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns the number of checkpoints.
pub fn cuts() -> u64 {
    std::env::var("CKPTFS_CUTS")
        .ok()
        .map_or(CUTS, |cuts| cuts.parse().expect("CKPTFS_CUTS is a number"))
}

/// Connects to the daemon of a mount.
pub fn connect(mount: &Path) -> Client {
    let store: OwnedFd = rustix::fs::open(
        mount.join(".ckptfs"),
        OFlags::PATH | OFlags::DIRECTORY,
        Mode::empty(),
    )
    .expect("the store exists");
    Client::connect(&store).expect("the daemon listens")
}

/// Mounts with a lifetime that covers the requested checkpoints.
pub fn start(v: Variant, arguments: &[&str]) -> Rig {
    let mut opts = arguments
        .iter()
        .fold(MountOpts::new(v.io), |opts, argument| opts.arg(argument));
    opts.limit += Duration::from_secs(cuts());
    v.start_with(opts, |_| {})
}

/// The content of one checkpoint.
struct CutObservation {
    id: u64,
    atomic: bool,
    shown: Vec<u64>,
}

/// The number of all, and of atomic checkpoints.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtomicCounts {
    pub all: u64,
    pub atomic: u64,
}

/// Makes a checkpoint while `writer` writes in `dir`, and checks its view against the rounds before
/// and after the request.
fn cut(rig: &Rig, client: &mut Client, writer: &Writer, dir: &Path) -> CutObservation {
    let done_before = writer.done();
    let info: CheckpointInfo = client
        .ask(CheckpointOptions::default())
        .expect("a checkpoint can be created");
    let begun_after = writer.begun();
    let shown = shown(&rig.view(info.id.0).join(dir), writer.ways());
    let (id, atomic) = (info.id.0, info.atomic);
    for value in &shown {
        assert!(
            (done_before..=begun_after).contains(value),
            "checkpoint {id}: {shown:?} was not written from {done_before} to {begun_after}"
        );
    }
    assert!(
        !atomic || of_one_instant(&shown),
        "checkpoint {id} is reported as atomic, but shows {shown:?}"
    );
    CutObservation { id, atomic, shown }
}

/// Returns whether these values existed at one instant: a round has stored its value up to some
/// point of its order, and the rest has the previous one.
fn of_one_instant(values: &[u64]) -> bool {
    let newest = values[0];
    let stored = values.iter().take_while(|value| **value == newest).count();
    values[stored..].iter().all(|value| value + 1 == newest)
}

#[test]
fn what_one_instant_looks_like() {
    for (values, right) in [
        ([7, 7, 7], true),
        ([7, 6, 6], true),
        ([7, 7, 6], true),
        ([6, 7, 6], false),
        ([7, 6, 7], false),
        ([7, 5, 5], false),
    ] {
        assert_eq!(of_one_instant(&values), right, "{values:?}");
    }
}

/// Makes `count` checkpoints for each pause while a writer writes in these ways. With the long
/// pause, makes more of them if necessary, until half of `count` were atomic.
pub fn cut_many(
    rig: &Rig,
    ways: [WriteMethod; 2],
    pauses: &[Duration],
    count: u64,
) -> AtomicCounts {
    let mut client = connect(rig.path());
    let mut counts = AtomicCounts::default();
    for pause in pauses {
        let (mut made, mut atomic) = (0, 0);
        while made < count || (*pause >= PAUSE && atomic < count / 2 && made < 3 * count) {
            let dir = PathBuf::from(format!(
                "{:?}-{:?}-{}-{made}",
                ways[0],
                ways[1],
                pause.as_micros()
            ));
            fs::create_dir(rig.path().join(&dir)).unwrap();
            let writer = Writer::start(&rig.path().join(&dir), ways, *pause);
            let seen: Vec<CutObservation> = (0..count.min(CUTS_OF_A_WRITER))
                .map(|_| cut(rig, &mut client, &writer, &dir))
                .collect();
            writer.stop();
            for seen in &seen {
                let again = shown(&rig.view(seen.id).join(&dir), ways);
                assert_eq!(
                    again, seen.shown,
                    "the view of checkpoint {} changed",
                    seen.id
                );
            }
            made += seen.len() as u64;
            atomic += seen.iter().filter(|seen| seen.atomic).count() as u64;
        }
        println!(
            "{ways:?}, pause {} us: {made} checkpoints, {atomic} atomic",
            pause.as_micros()
        );
        assert!(
            *pause < PAUSE || atomic >= count / 2,
            "only {atomic} of {made} checkpoints were atomic"
        );
        counts.all += made;
        counts.atomic += atomic;
    }
    counts
}

fn both(v: Variant, ways: [WriteMethod; 2]) {
    let rig = start(v, &[]);
    let counts = cut_many(
        &rig,
        ways,
        &[Duration::ZERO, Duration::from_micros(50), PAUSE],
        cuts().div_ceil(3),
    );
    println!("{v:?} {ways:?}: {counts:?}");
}

fn pwrite(v: Variant) {
    both(v, [WriteMethod::Pwrite, WriteMethod::Pwrite]);
}

fn mmap(v: Variant) {
    both(v, [WriteMethod::Mmap, WriteMethod::Mmap]);
}

fn mmap_then_pwrite(v: Variant) {
    both(v, [WriteMethod::Mmap, WriteMethod::Pwrite]);
}

fn pwrite_then_mmap(v: Variant) {
    both(v, [WriteMethod::Pwrite, WriteMethod::Mmap]);
}

fn append(v: Variant) {
    both(v, [WriteMethod::Append, WriteMethod::Append]);
}

for_each_variant! { reflink => pwrite, mmap, mmap_then_pwrite, pwrite_then_mmap, append }

/// `--writes=daemon`: writes pass through the daemon and wait during a checkpoint, so every cut is
/// exact under any load.
fn strict(v: Variant) {
    let rig = start(
        Variant {
            io: Io::Daemon,
            ..v
        },
        &["--writes=daemon"],
    );
    assert_eq!(rig.mount.status_json()["writes"], "daemon");
    for ways in [
        [WriteMethod::Pwrite, WriteMethod::Pwrite],
        [WriteMethod::Append, WriteMethod::Append],
        [WriteMethod::Append, WriteMethod::Pwrite],
    ] {
        let counts = cut_many(&rig, ways, &[Duration::ZERO, PAUSE], cuts().div_ceil(6));
        assert_eq!(
            counts.atomic, counts.all,
            "{v:?} {ways:?}: a checkpoint of a strict mount is not atomic"
        );
    }
}

mod strict_mode {
    use crate::common::for_each_variant;

    for_each_variant! { @test strict xfs Xfs Daemon }
    for_each_variant! { @test strict btrfs Btrfs Daemon }
}
