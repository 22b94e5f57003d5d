//! Endurance: external load for some time, with and without checkpoints, after which nothing has
//! failed or hangs, and no descriptors or memory have leaked.
//!
//! `CKPTFS_SECONDS` is the duration of each stressor in a round, `CKPTFS_ROUNDS` the number of
//! rounds for the memory check; `make soak` sets both.

mod daemon;
mod git;
mod load;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Fs, Image, Io, Mount, MountOpts, Rig, Variant, skip};
use daemon::DaemonUsage;

/// Space for the load, its captures, and the plain directory. The image is sparse.
const IMAGE_BYTES: u64 = 6 << 30;
/// Interval between checkpoints.
const PAUSE: Duration = Duration::from_millis(50);
/// Tolerated growth of the daemon's memory over the rounds, in percent.
const GROWTH_MAX_PERCENT: u64 = 10;
/// Repetitions of the rounds: memory that reaches a plateau is not a leak.
const ATTEMPTS: u32 = 5;
/// Store descriptors for a long history: layers and journal segments stay open, up to a limit.
const STORE_DESCRIPTORS_MAX: usize = 160;

fn told(variable: &str, short: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(short)
}

/// Makes checkpoints continuously during `work`; returns their number.
fn under_checkpoints(rig: &Rig, work: impl FnOnce()) -> u64 {
    let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
    /// Stops the thread even if the work panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let path = rig.path().join(format!(
                    ".snapshots/c{}",
                    made.fetch_add(1, Ordering::SeqCst)
                ));
                fs::create_dir(&path)
                    .unwrap_or_else(|error| panic!("the checkpoint {}: {error}", path.display()));
                thread::sleep(PAUSE);
            }
        });
        work();
    });
    made.load(Ordering::SeqCst)
}

/// Runs one round of all load generators in a temporary directory.
fn round(rig: &Rig, stressors: &[&str]) {
    let (dir, plain) = (rig.path().join("round"), rig.image.dir("plain"));
    fs::create_dir(&dir).unwrap();
    load::stress(&dir, &plain, stressors, told("CKPTFS_SECONDS", 1));
    load::fio(&dir);
    git::clone_gc_fsck(&dir, &rig.image.dir("origin"));
    fs::remove_dir_all(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
}

fn start(v: Variant) -> Rig {
    let image = Image::new(v.fs, IMAGE_BYTES);
    let dir = image.dir("project");
    let mut opts = MountOpts::new(v.io);
    // Each round runs every stressor in turn, on a slow and busy machine.
    opts.limit = Duration::from_secs(
        900 + (told("CKPTFS_SECONDS", 1) + 10)
            * 20
            * (told("CKPTFS_ROUNDS", 2) * u64::from(ATTEMPTS) + 2),
    );
    Rig {
        mount: Mount::start(&dir, &opts),
        image,
    }
}

/// Asserts constant memory over rounds without a checkpoint. A single increase to a plateau is
/// accepted.
fn flat_memory(rig: &Rig, stressors: &[&str]) -> DaemonUsage {
    let mut before = DaemonUsage::of(rig);
    for attempt in 1..=ATTEMPTS {
        for _ in 0..told("CKPTFS_ROUNDS", 2) {
            round(rig, stressors);
        }
        let after = DaemonUsage::of(rig);
        println!("  {} kB and then {} kB", before.rss_kb, after.rss_kb);
        if after.rss_kb * 100 <= before.rss_kb * (100 + GROWTH_MAX_PERCENT) {
            return after;
        }
        assert!(
            attempt < ATTEMPTS,
            "the daemon's memory grows: {} kB, then {} kB",
            before.rss_kb,
            after.rss_kb
        );
        before = after;
    }
    before
}

fn nothing_leaks(fs: Fs, io: Io) {
    let v = Variant { fs, io };
    if let Some(reason) = v
        .unavailable()
        .or_else(|| load::missing(&["stress-ng", "fio", "git"]))
    {
        return skip(&reason);
    }
    let (rig, started) = (start(v), Instant::now());
    git::make_origin(&rig.image.dir("origin"));
    let stressors = load::stressors();
    let few = &stressors[..stressors.len() / 4];
    let new = DaemonUsage::of(&rig);

    // With a checkpoint each later change may need a record; the round also lets the daemon do all
    // one-time work.
    rig.mount.checkpoint();
    round(&rig, &stressors);
    let level = flat_memory(&rig, few);
    level.has_no_more_descriptors_than(&new, 1);

    let kept = daemon::kept(&rig);
    let checkpoints = under_checkpoints(&rig, || round(&rig, &stressors));
    let after = DaemonUsage::of(&rig);
    after.has_no_more_descriptors_than(&new, STORE_DESCRIPTORS_MAX);
    let captures = daemon::kept(&rig) - kept;
    println!(
        "{} {}: {} stressors, {checkpoints} checkpoints, {captures} captures in the last round; {} kB without checkpoints, {} kB with, {} B per capture; {} descriptors, {} with history; {} s",
        fs.name(),
        io.name(),
        stressors.len(),
        level.rss_kb,
        after.rss_kb,
        after.rss_kb.saturating_sub(level.rss_kb) * 1024 / captures.max(1),
        level.descriptors(),
        after.descriptors(),
        started.elapsed().as_secs()
    );
    daemon::has_not_panicked(&rig);
    old_views_can_be_read(&rig, checkpoints);
}

/// Reads some views of the round under checkpoints completely.
fn old_views_can_be_read(rig: &Rig, checkpoints: u64) {
    for number in (0..checkpoints).step_by((checkpoints / 5).max(1) as usize) {
        let view = rig.path().join(format!(".snapshots/c{number}"));
        read_whole(&view).unwrap_or_else(|error| panic!("the view {}: {error}", view.display()));
    }
}

fn read_whole(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let named = |error: std::io::Error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let kind = entry.metadata().map_err(named)?.file_type();
        if kind.is_dir() {
            read_whole(&path)?;
        } else if kind.is_file() {
            fs::read(&path).map_err(named)?;
        }
    }
    Ok(())
}

#[test]
fn xfs_passthrough() {
    nothing_leaks(Fs::Xfs, Io::Passthrough);
}

#[test]
#[ignore = "long: make soak"]
fn btrfs_daemon() {
    nothing_leaks(Fs::Btrfs, Io::Daemon);
}

#[test]
#[ignore = "long: make soak"]
fn xfs_daemon() {
    nothing_leaks(Fs::Xfs, Io::Daemon);
}

#[test]
#[ignore = "long: make soak"]
fn btrfs_passthrough() {
    nothing_leaks(Fs::Btrfs, Io::Passthrough);
}
