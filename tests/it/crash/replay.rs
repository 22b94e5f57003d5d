//! Power cuts, method B: a recorder below the disk logs every write and flush. At random points a
//! disk image is built with all flushed writes and all, none, or random ones of the rest.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use super::disk::ImageHost;
use super::load::{CrashLoad, DurablePromises, WORKERS};
use super::recorder::{DiskEvent, DiskLog, Recorder};
use super::recovery_checks::{self, RecoveryCounts};
use super::usual_seed;
use crate::common::random::{Random, count, seed};
use crate::common::{Mount, MountOpts, Variant, for_each_variant, succeeds, tool};

/// States per variant.
const STATES: u64 = 5;
const STATES_LONG: u64 = 60;
/// Duration of the workload.
const WORK: Duration = Duration::from_secs(2);
/// Unit of a torn write.
const BLOCK: usize = 4096;

/// The fate of unflushed writes.
#[derive(Clone, Copy, Debug)]
enum CacheFate {
    Kept,
    Lost,
    /// Percentage that is kept.
    Picked(u64),
    /// As `Picked`; a large write may be truncated.
    Torn(u64),
}

/// Numbers of events with the promises in force at that time.
type Promises = Vec<(usize, DurablePromises)>;

fn reordered(v: Variant) {
    let seed = seed(&format!("reordered writes on {v:?}"), usual_seed());
    let states = count("CKPTFS_STATES", STATES, STATES_LONG);
    let host = ImageHost::new();
    let image = host.format(v.fs, "recorded.img");
    let mut opts = MountOpts::new(v.io).packing();
    prepare(&host, v, &image);
    let pristine = host.file("pristine.img");
    succeeds(
        tool("cp", &["--reflink=always"]).arg(&image).arg(&pristine),
        60,
    );
    opts.limit += WORK * 10;
    let (log, promises, load) = record(&host, v, &image, &opts, seed);
    let known = load.known();
    let mut random = Random::new(seed ^ 0xb);
    // Starts at the first promise: before it nothing can be lost.
    let first = promises
        .iter()
        .find(|(_, promised)| !promised.checkpoints.is_empty())
        .map_or(0, |(events, _)| *events);
    let mut points: Vec<usize> = (0..states)
        .map(|_| first + random.below((log.len() - first) as u64) as usize)
        .collect();
    points.sort_unstable();
    let path = host.file("flushed.img");
    let mut replay = Replay::new(&log, &pristine, &path);
    let (mut found, mut wrong) = (RecoveryCounts::default(), Vec::new());
    for (number, point) in points.into_iter().enumerate() {
        replay.advance(point);
        let cached = match number % 4 {
            0 => CacheFate::Kept,
            1 => CacheFate::Lost,
            2 => CacheFate::Picked(random.below(101)),
            _ => CacheFate::Torn(random.below(101)),
        };
        let state = host.file(&format!("state-{number}.img"));
        let waiting = replay.make(&state, cached, &mut random);
        let promised = promises
            .iter()
            .rev()
            .find(|(events, _)| *events <= point)
            .map(|(_, promised)| promised.clone());
        let promised = promised.unwrap_or(DurablePromises {
            checkpoints: Vec::new(),
            synced: [0; 2],
        });
        match recovery_checks::look(&host, v.fs, &state, &opts, &promised, &known) {
            Ok(more) => found += more,
            Err(problem) => wrong.push(format!(
                "{}, event {point}, {waiting} waiting, {cached:?}: {problem}",
                state.display()
            )),
        }
        std::fs::remove_file(&state).unwrap();
    }
    println!(
        "{v:?}: {states} states of {} events, {} checkpoints; {found:?}",
        log.len(),
        known.len()
    );
    assert!(
        wrong.is_empty(),
        "{} of {states} states (CKPTFS_SEED={seed}):\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Creates the tree before the recording starts.
fn prepare(host: &ImageHost, v: Variant, image: &Path) {
    let disk = host.mount(v.fs, image);
    std::fs::create_dir(disk.path().join("project")).unwrap();
    CrashLoad::prepare(&disk.path().join("project"), WORKERS);
}

/// Runs the workload on the recorded disk and samples the promises.
fn record(
    host: &ImageHost,
    v: Variant,
    image: &Path,
    opts: &MountOpts,
    seed: u64,
) -> (DiskLog, Promises, CrashLoad) {
    let recorder = Recorder::start(image, &host.file("log"), &host.file("recorder"));
    let log = recorder.log.clone();
    let load = CrashLoad::default();
    let promises: Mutex<Promises> = Mutex::default();
    {
        let disk = host.mount(v.fs, &recorder.disk());
        let mount = Mount::start(&disk.path().join("project"), opts);
        thread::scope(|scope| {
            let worker = scope.spawn(|| load.run(&mount, seed, WORK));
            while !worker.is_finished() {
                // In this order: the promises hold at the latest from this number of events on.
                let promised = load.promised();
                promises.lock().unwrap().push((log.len(), promised));
                thread::sleep(Duration::from_millis(1));
            }
            worker.join().expect("the load works");
        });
        // The promises are not filtered by later deletions: at the cut the checkpoint may not have
        // been deleted, and then it was promised.
        drop(mount);
        drop(disk);
    }
    drop(recorder);
    (log, promises.into_inner().unwrap(), load)
}

/// The disk at one point of the log.
struct Replay<'a> {
    log: &'a DiskLog,
    events: Vec<DiskEvent>,
    /// The image with all flushed writes.
    flushed: File,
    path: &'a Path,
    /// Unflushed writes in order.
    waiting: VecDeque<(u64, Vec<u8>)>,
    next: usize,
}

impl<'a> Replay<'a> {
    fn new(log: &'a DiskLog, pristine: &Path, path: &'a Path) -> Replay<'a> {
        succeeds(
            tool("cp", &["--reflink=always"]).arg(pristine).arg(path),
            60,
        );
        let flushed = OpenOptions::new()
            .write(true)
            .open(path)
            .expect("it was copied");
        Replay {
            log,
            events: log.events(),
            flushed,
            path,
            waiting: VecDeque::new(),
            next: 0,
        }
    }

    /// Replays the events before `point`.
    fn advance(&mut self, point: usize) {
        while self.next < point {
            match self.events[self.next] {
                DiskEvent::Write { offset, length, at } => {
                    self.waiting.push_back((offset, self.log.bytes(at, length)))
                }
                DiskEvent::Flush => {
                    for (offset, bytes) in self.waiting.drain(..) {
                        self.flushed
                            .write_all_at(&bytes, offset)
                            .expect("the host has space");
                    }
                }
            }
            self.next += 1;
        }
    }

    /// Creates an image as a power cut may leave it. Returns the number of unflushed writes.
    fn make(&self, state: &Path, cached: CacheFate, random: &mut Random) -> usize {
        succeeds(
            tool("cp", &["--reflink=always"]).arg(self.path).arg(state),
            60,
        );
        let image = OpenOptions::new()
            .write(true)
            .open(state)
            .expect("it was copied");
        for (offset, bytes) in &self.waiting {
            let keep = match cached {
                CacheFate::Kept => bytes.len(),
                CacheFate::Lost => 0,
                CacheFate::Picked(part) | CacheFate::Torn(part) if random.below(100) >= part => 0,
                CacheFate::Torn(_) if bytes.len() > BLOCK && random.once_in(3) => {
                    BLOCK * (1 + random.below((bytes.len() / BLOCK) as u64) as usize)
                }
                CacheFate::Picked(_) | CacheFate::Torn(_) => bytes.len(),
            };
            image
                .write_all_at(&bytes[..keep.min(bytes.len())], *offset)
                .expect("the host has space");
        }
        self.waiting.len()
    }
}

for_each_variant! { reflink => reordered }
