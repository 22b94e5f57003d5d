//! Runs one list or one seed in a fresh directory, runs seeds until the time is up, and shrinks
//! failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::counts::Counts;
use super::cut::CutDisk;
use super::generate::{Generator, Random};
use super::ops::{self, Op, Verb};
use super::setup::RunProperties;
use super::world::ModelRun;
use crate::common::{Image, Io, MountOpts, Variant};

/// Limit for the life of a mount.
const RUN_LIMIT: Duration = Duration::from_secs(180);
/// Limit for the shrinking of a failure.
const SHRINK: Duration = Duration::from_secs(60);
/// Failures of one test after which no more seeds are run.
const FAILURES_MAX: usize = 10;
/// Lines of the daemon's log printed with a failure.
const LOG_LINES: usize = 12;

pub struct Failure {
    pub ops: Vec<Op>,
    pub problem: String,
}

/// Source of the operations.
enum Source<'a> {
    List(&'a [Op]),
    Seed(u64, usize),
}

impl Source<'_> {
    fn setup(&self) -> RunProperties {
        match self {
            Source::List(list) => RunProperties::of_list(list),
            Source::Seed(seed, _) => RunProperties::of_seed(*seed),
        }
    }
}

/// Location of the directories.
enum BenchStorage {
    Image(Image),
    /// Supports power cuts; slower.
    Disk(Arc<CutDisk>),
}

/// Fresh directories on one image.
pub struct ModelBench {
    ground: BenchStorage,
    opts: Option<MountOpts>,
    next: AtomicU64,
    counts: Mutex<Counts>,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .and_then(|value| value.parse().ok())
}

impl ModelBench {
    pub fn new(variant: Variant) -> ModelBench {
        let opts = MountOpts {
            limit: RUN_LIMIT,
            ..MountOpts::new(variant.io).packing().comparing()
        };
        let opts = if variant.io == Io::Daemon {
            opts.folding()
        } else {
            opts
        };
        ModelBench {
            ground: BenchStorage::Image(Image::of(variant.fs)),
            opts: Some(opts),
            next: AtomicU64::new(1),
            counts: Mutex::default(),
        }
    }

    /// A bench on a disk that supports power cuts.
    pub fn cutting(variant: Variant) -> ModelBench {
        ModelBench {
            ground: BenchStorage::Disk(Arc::new(CutDisk::new(variant.fs))),
            ..ModelBench::new(variant)
        }
    }

    /// A bench without a mount, which compares the model with the filesystem itself.
    pub fn plain(variant: Variant) -> ModelBench {
        ModelBench {
            opts: None,
            ..ModelBench::new(variant)
        }
    }

    /// Runs a list.
    pub fn list(&self, list: &[Op]) -> Result<(), Failure> {
        self.once(&Source::List(list))
    }

    fn once(&self, source: &Source<'_>) -> Result<(), Failure> {
        let name = format!("p{}", self.next.fetch_add(1, Ordering::Relaxed));
        let dir = match &self.ground {
            BenchStorage::Image(image) => image.dir(&name),
            BenchStorage::Disk(disk) => disk.path().join(name),
        };
        std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let mut done = Vec::new();
        let setup = source.setup();
        let opts = self.opts.as_ref().map(|opts| setup.opts(opts));
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut world = ModelRun::new(&dir, opts.as_ref());
            world.watch = setup.watch;
            if let BenchStorage::Disk(disk) = &self.ground {
                world.disk = Some(Arc::clone(disk));
            }
            let result = drive(&mut world, source, &mut done);
            *self
                .counts
                .lock()
                .expect("no thread panicked with the lock") += std::mem::take(&mut world.counts);
            // Open files would keep the mount busy.
            world.close_all();
            result
        }));
        let result = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(format!(
                "panic: {}",
                text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_default()
            ))
        });
        let result = result.map_err(|problem| Failure {
            ops: done,
            problem: format!("{problem}\n{}", log_of(&dir)),
        });
        if let Err(error) = std::fs::remove_dir_all(&dir) {
            eprintln!("model: {} was not removed: {error}", dir.display());
        }
        result
    }

    /// Runs successive seeds until the time is up.
    pub fn seeds(&self, name: &str, seconds_default: u64) {
        if let Ok(file) = std::env::var("CKPTFS_REPLAY") {
            let list = ops::parse(
                &std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}")),
            );
            return self
                .list(&list)
                .unwrap_or_else(|failure| self.fail(name, "a replay", failure));
        }
        let seconds = number("CKPTFS_SECONDS").unwrap_or(seconds_default);
        let length = number("CKPTFS_OPS").unwrap_or(250) as usize;
        let random = std::env::var("CKPTFS_SEED").is_ok_and(|seed| seed == "random");
        let chosen = number("CKPTFS_SEED");
        let first = if random {
            Random::new(now()).below(1 << 40)
        } else {
            chosen.unwrap_or(1)
        };
        eprintln!("{name}: seeds from {first}");
        let started = Instant::now();
        let (mut seed, mut failures, mut counts) = (first, Vec::new(), Counts::default());
        loop {
            let result = self.once(&Source::Seed(seed, length));
            counts += std::mem::take(
                &mut *self
                    .counts
                    .lock()
                    .expect("no thread panicked with the lock"),
            );
            if let Err(failure) = result {
                let what = format!("CKPTFS_SEED={seed} ({} s)", started.elapsed().as_secs());
                let problem = self.shrunk(name, &what, failure);
                *self
                    .counts
                    .lock()
                    .expect("no thread panicked with the lock") = Counts::default();
                eprintln!("{problem}");
                failures.push(problem);
            }
            seed += 1;
            let ended = started.elapsed() >= Duration::from_secs(seconds);
            if ended || failures.len() >= FAILURES_MAX {
                break;
            }
        }
        counts.runs = seed - first;
        let said = format!(
            "{name}: seeds {first} to {}, {} s, with shrinking: {counts}",
            seed - 1,
            started.elapsed().as_secs()
        );
        println!("{said}");
        assert!(
            failures.is_empty(),
            "{said}; {} failed\n{}",
            failures.len(),
            failures.join("\n")
        );
    }

    /// Shrinks a failure and panics with it.
    fn fail(&self, name: &str, what: &str, failure: Failure) {
        panic!("{}", self.shrunk(name, what, failure));
    }

    /// Shrinks a failure and returns its text.
    fn shrunk(&self, name: &str, what: &str, failure: Failure) -> String {
        eprintln!(
            "{name}: {what} failed after {} operations: {}",
            failure.ops.len(),
            failure.problem
        );
        let shrunk = self.shrink(failure);
        format!(
            "{name}: {what} failed; shrunk to {} operations:\n{}{}\n(CKPTFS_REPLAY=FILE replays a list; the list of a fixed bug belongs in tests/it/model/cases.rs)",
            shrunk.ops.len(),
            ops::text(&shrunk.ops),
            shrunk.problem
        )
    }

    /// Removes operations that the failure does not need, larger parts first.
    fn shrink(&self, failure: Failure) -> Failure {
        let started = Instant::now();
        let limit = number("CKPTFS_SHRINK_SECONDS").map_or(SHRINK, Duration::from_secs);
        let mut best = failure;
        let mut part = best.ops.len().div_ceil(2);
        while part > 0 {
            let mut at = 0;
            let mut smaller = false;
            while at < best.ops.len() && started.elapsed() < limit {
                let mut list = best.ops.clone();
                list.drain(at..list.len().min(at + part));
                match self.list(&list) {
                    Err(failure) if same_kind(&failure, &best) => {
                        best = failure;
                        smaller = true;
                    }
                    _ => at += part,
                }
            }
            if started.elapsed() >= limit {
                break;
            }
            part = match part {
                1 if smaller => 1,
                _ => part / 2,
            };
        }
        best
    }
}

/// Compares the kinds of two failures: shrinking must not switch to another problem.
fn same_kind(a: &Failure, b: &Failure) -> bool {
    let kind = |failure: &Failure| -> String {
        let said = failure
            .problem
            .split_once(": ")
            .map_or(&*failure.problem, |(_, said)| said);
        said.chars()
            .filter(|c| !c.is_ascii_digit())
            .take(10)
            .collect()
    };
    kind(a) == kind(b)
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64)
}

/// Draws or reads operations and performs them; `done` receives those performed.
fn drive(world: &mut ModelRun, source: &Source<'_>, done: &mut Vec<Op>) -> Result<(), String> {
    let mut step = |world: &mut ModelRun, op: Op| {
        done.push(op.clone());
        world
            .run(&op)
            .map_err(|problem| format!("at {op}: {problem}"))
    };
    match source {
        Source::List(list) => list.iter().try_for_each(|op| step(world, op.clone()))?,
        Source::Seed(seed, length) => {
            let mut generator = Generator::new(*seed);
            if let Some(op) = RunProperties::of_seed(*seed).op() {
                step(world, op)?;
            }
            for _ in 0..*length {
                let op = generator.next(&world.scene());
                step(world, op)?;
            }
        }
    }
    world
        .finish()
        .map_err(|problem| format!("at the end: {problem}"))?;
    let log = std::fs::read(world.root.join(".ckptfs/daemon.log")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    // Expected messages:
    // - fuser: the unmount of a filesystem that is not mounted, and a reply to a request of a
    //   killed worker;
    // - the holder: a killed worker;
    // - the daemon: the checkpoint quota of a user.
    let told = [
        "fuser::session",
        "the daemon died; another takes over",
        "Failed to send FUSE reply: No such file or directory",
        "mkdir(2) may make no more checkpoints",
    ];
    let expected = |line: &&str| told.iter().any(|told| line.contains(told));
    let complaint = log
        .lines()
        .filter(|line| !expected(line))
        .find(|line| line.contains(" WARN ") || line.contains(" ERROR "));
    complaint.map_or(Ok(()), |line| {
        Err(format!("at the end: the daemon logged: {line}"))
    })
}

/// Returns the end of the daemon's log.
fn log_of(dir: &Path) -> String {
    let log = std::fs::read(dir.join(".ckptfs/daemon.log")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    let end = lines
        .iter()
        .skip(lines.len().saturating_sub(LOG_LINES))
        .map(|line| format!("  daemon: {line}\n"));
    end.collect()
}

/// A list survives a round trip through its text.
#[test]
fn a_list_is_read_as_it_was_written() {
    let list = vec![
        Op::new(Verb::Rename, &["a/odd", "b"], &[]),
        Op::new(Verb::Write, &["a"], &[5, 6, 7]),
        Op::new(Verb::Kill, &[], &[]),
    ];
    assert_eq!(ops::parse(&ops::text(&list)), list);
}
