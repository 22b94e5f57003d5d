//! `fsx`: one process changes one file in every supported way and verifies its content, while
//! checkpoints are made continuously.
//!
//! A checkpoint is made every 50 ms, unless the machine is so busy that this takes most of the
//! time. At every other one fsx is stopped first, and the live file is copied: the view must equal
//! that copy, bit for bit. At the others fsx keeps running, and their views must never change.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::support::{SuiteDir, checkpoint, connect, suite};
use crate::common::random::{is_long, told_seed};
use crate::common::wait::wait_longer;
use crate::common::{Image, Mount, MountOpts, Rig, Variant, for_each_variant};
use ckptfs_api::Client;

/// Operations of one run, short and long form.
const OPERATIONS: u64 = 20_000;
const OPERATIONS_LONG: u64 = 200_000;
/// Operations on the plain filesystem, which show that the suite requires nothing it lacks.
const OPERATIONS_PLAIN: u64 = 2_000;
/// Interval between checkpoints.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(50);
/// Time limit per operation, on a busy machine.
const OPERATION_SECONDS_MAX: f64 = 0.02;
/// Size of the file before the mount.
const THERE_BYTES: usize = 200_000;
/// Space for every version of the file: thousands of checkpoints, each with all of its 256 KiB
/// changed.
const IMAGE_BYTES: u64 = 8 << 30;
/// One view in this many is also read immediately.
const READ_AT_ONCE_EVERY: u64 = 5;
/// Checkpoints after which the interval grows, so that a slow run on a busy machine does not fill
/// the image.
const QUICK_CHECKPOINTS_MAX: u64 = 8_000;
const SLOW_CHECKPOINT_PAUSE: Duration = Duration::from_secs(1);
/// fsx runs at least this many times as long as the last checkpoint took.
const PAUSE_TURNS: u32 = 3;
/// Resolution of a reported difference.
const PAGE_BYTES: usize = 4096;

/// The parameters of a run of fsx.
#[derive(Clone, Copy, Debug)]
struct Plan {
    config: &'static str,
    seed: u64,
    operations: u64,
}

impl Plan {
    fn limit(self) -> Duration {
        Duration::from_secs(120)
            + Duration::from_secs_f64(self.operations as f64 * OPERATION_SECONDS_MAX)
    }
}

/// A running fsx, killed on drop, stopped or not.
struct Fsx {
    child: Child,
    pid: Pid,
    said: PathBuf,
    plan: Plan,
}

impl Fsx {
    /// Starts on `file`; output, and fsx's expected content after a failure, are stored in
    /// `artifacts`.
    fn start(plan: Plan, file: &Path, artifacts: &Path) -> Fsx {
        let said = artifacts.join("said");
        let out = File::create(&said).expect("the run directory is writable");
        let config = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/it/posix")
            .join(plan.config);
        let mut command = Command::new(suite("fsx"));
        command
            .arg("-f")
            .arg(config)
            .arg("-P")
            .arg(artifacts)
            .args([
                "-N",
                &plan.operations.to_string(),
                "-S",
                &plan.seed.to_string(),
            ])
            .arg(file);
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a descriptor can be duplicated"))
            .stderr(out);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let pid = Pid::from_child(&child);
        Fsx {
            child,
            pid,
            said,
            plan,
        }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Stops fsx and waits until each of its threads is stopped; returns `false` if it has exited.
    fn stop(&mut self) -> bool {
        kill_process(self.pid, Signal::STOP)
            .expect("it has not been reaped, so its PID cannot be reused");
        wait_longer("fsx is stopped", 120, || {
            self.ended().is_some() || self.stands_still()
        });
        self.ended().is_none()
    }

    /// Reports whether every thread is in state T, on its return from the kernel, with no call in
    /// progress.
    fn stands_still(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.pid.as_raw_nonzero());
        let Ok(tasks) = fs::read_dir(tasks) else {
            return false;
        };
        let mut states = tasks.flatten().map(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
        });
        states.all(|stopped| stopped)
    }

    /// Returns the kernel stacks of its threads.
    fn waits_in(&self) -> String {
        let tasks = format!("/proc/{}/task", self.pid.as_raw_nonzero());
        let stacks = fs::read_dir(tasks).into_iter().flatten().flatten();
        stacks
            .map(|task| fs::read_to_string(task.path().join("stack")).unwrap_or_default())
            .collect::<Vec<_>>()
            .join("and\n")
    }

    fn go_on(&self) {
        kill_process(self.pid, Signal::CONT)
            .expect("it has not been reaped, so its PID cannot be reused");
    }

    /// Panics with the output of fsx unless it completed without a difference.
    fn assert_right(&mut self) {
        let status = self.ended().expect("it has ended");
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        let right = status.success() && said.contains("All operations completed A-OK!");
        assert!(right, "fsx {:?} ended with {status}:\n{said}", self.plan);
    }
}

impl Drop for Fsx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The content of a file as hashes, because thousands of copies would not fit.
#[derive(PartialEq, Eq)]
struct Content {
    length: usize,
    pages: Vec<blake3::Hash>,
}

impl Content {
    fn of(bytes: &[u8]) -> Content {
        Content {
            length: bytes.len(),
            pages: bytes.chunks(PAGE_BYTES).map(blake3::hash).collect(),
        }
    }

    /// Describes the difference from another content.
    fn difference(&self, other: &Content) -> String {
        let differ: Vec<usize> = (0..self.pages.len().min(other.pages.len()))
            .filter(|page| self.pages[*page] != other.pages[*page])
            .collect();
        format!(
            "{} bytes against {}, different pages {differ:?}",
            self.length, other.length
        )
    }
}

/// The content that a view must show.
enum Expected {
    /// The live file while fsx was stopped.
    Copy(Content),
    /// The content of the first read.
    First(Content),
}

/// The checkpoints of one run.
#[derive(Default)]
struct ExpectedViews {
    by_id: BTreeMap<u64, Expected>,
    not_atomic: u64,
}

impl ExpectedViews {
    /// Makes a checkpoint with fsx stopped, and copies the live file.
    fn stopped(&mut self, rig: &Rig, client: &mut Client) {
        let info = checkpoint(client);
        let id = info.id.0;
        // In daemon mode a page may still be on its way to the kernel's cache, and may stem from a
        // store.
        assert!(
            info.atomic || rig.mount.status_json()["io"] == "daemon",
            "checkpoint {id} is not atomic although nothing was written"
        );
        self.not_atomic += u64::from(!info.atomic);
        let copy = fs::read(rig.path().join("f")).expect("the live file can be read");
        self.by_id.insert(id, Expected::Copy(Content::of(&copy)));
        if id.is_multiple_of(READ_AT_ONCE_EVERY) {
            self.check(rig, id, "at once");
        }
    }

    /// Makes a checkpoint while fsx runs, and reads its view.
    fn running(&mut self, rig: &Rig, client: &mut Client) {
        let info = checkpoint(client);
        let id = info.id.0;
        self.not_atomic += u64::from(!info.atomic);
        self.by_id
            .insert(id, Expected::First(Content::of(&shown(rig, id))));
        self.check(rig, id, "at once");
    }

    fn check(&self, rig: &Rig, id: u64, when: &str) {
        let shown = Content::of(&shown(rig, id));
        let (expected, what) = match &self.by_id[&id] {
            Expected::Copy(copy) => (copy, "differs from its copy"),
            Expected::First(first) => (first, "has changed"),
        };
        assert!(
            shown == *expected,
            "checkpoint {id}, read {when}, {what}: {}",
            shown.difference(expected)
        );
    }

    fn check_all(&self, rig: &Rig, when: &str) {
        self.by_id.keys().for_each(|id| self.check(rig, *id, when));
    }

    fn count(&self, wanted: fn(&Expected) -> bool) -> usize {
        self.by_id
            .values()
            .filter(|expected| wanted(expected))
            .count()
    }
}

fn shown(rig: &Rig, id: u64) -> Vec<u8> {
    fs::read(rig.view(id).join("f")).unwrap_or_else(|error| panic!("checkpoint {id}: {error}"))
}

fn start(v: Variant, plan: Plan) -> Rig {
    let image = Image::new(v.fs, IMAGE_BYTES);
    let mut opts = MountOpts::new(v.io);
    opts.limit = plan.limit() * 2;
    // The file predates the first operations of fsx, and a branch inherits it.
    let there = vec![b'.'; THERE_BYTES];
    fs::write(image.dir("project").join("f"), there).expect("the image is empty");
    let mount = Mount::start(&image.dir("project"), &opts);
    Rig { mount, image }
}

/// Runs fsx to its end, with a checkpoint every 50 ms, every other one with fsx stopped.
fn run(rig: &Rig, plan: Plan) -> ExpectedViews {
    let artifacts = SuiteDir::new("fsx");
    let mut client = connect(rig.path());
    let mut kept = ExpectedViews::default();
    let mut fsx = Fsx::start(plan, &rig.path().join("f"), artifacts.path());
    let (began, mut turn, mut took) = (Instant::now(), 0u64, Duration::ZERO);
    while fsx.ended().is_none() {
        assert!(
            began.elapsed() < plan.limit(),
            "fsx {plan:?} has not finished after {} s and {} checkpoints, the last turn took {} ms; it waits in {}, and printed:\n{}\nthe daemon: {}",
            plan.limit().as_secs(),
            kept.by_id.len(),
            took.as_millis(),
            fsx.waits_in(),
            fs::read_to_string(&fsx.said).unwrap_or_default(),
            rig.mount.status_json()
        );
        turn += 1;
        let began_turn = Instant::now();
        if turn.is_multiple_of(2) {
            kept.running(rig, &mut client);
        } else if fsx.stop() {
            kept.stopped(rig, &mut client);
            fsx.go_on();
        }
        // On a busy machine a checkpoint and the first write after it are slow; fsx must have time
        // for more.
        took = began_turn.elapsed();
        let pause = if turn <= QUICK_CHECKPOINTS_MAX {
            CHECKPOINT_PAUSE
        } else {
            SLOW_CHECKPOINT_PAUSE
        };
        thread::sleep(pause.saturating_sub(took).max(took * PAUSE_TURNS));
    }
    fsx.assert_right();
    let (copied, free) = (
        kept.count(|expected| matches!(expected, Expected::Copy(_))),
        kept.count(|expected| matches!(expected, Expected::First(_))),
    );
    eprintln!(
        "{plan:?}: {:.0} s, {copied} checkpoints with fsx stopped, {free} with it running; {} not atomic",
        began.elapsed().as_secs_f64(),
        kept.not_atomic
    );
    assert!(copied > 2 && free > 2, "fsx was too fast for checkpoints");
    kept
}

fn views_of_a_file_that_fsx_changes(v: Variant) {
    let seed = told_seed();
    let operations = if is_long() {
        OPERATIONS_LONG
    } else {
        OPERATIONS
    };
    let mut plans: Vec<Plan> = (1..=3)
        .map(|seed| Plan {
            config: "fsx.toml",
            seed,
            operations,
        })
        .collect();
    plans.push(Plan {
        config: "fsx-small.toml",
        seed: 4,
        operations,
    });
    if let Some(seed) = seed {
        plans = ["fsx.toml", "fsx-small.toml"]
            .map(|config| Plan {
                config,
                seed,
                operations,
            })
            .to_vec();
    } else if !is_long() && MountOpts::new(v.io).branch {
        plans = vec![Plan {
            operations: operations / 4,
            ..plans[0]
        }];
    } else if !is_long() {
        // One of each configuration, half as long.
        plans = vec![
            Plan {
                operations: operations / 2,
                ..plans[0]
            },
            Plan {
                operations: operations / 2,
                ..plans[3]
            },
        ];
    }
    for plan in plans {
        let mut rig = start(v, plan);
        let kept = run(&rig, plan);
        kept.check_all(&rig, "at the end");
        rig.mount.umount();
        rig.mount.remount();
        kept.check_all(&rig, "after a new mount");
    }
}

fn the_plain_filesystem_passes(v: Variant) {
    let (image, artifacts) = (Image::of(v.fs), SuiteDir::new("fsx"));
    for config in ["fsx.toml", "fsx-small.toml"] {
        let plan = Plan {
            config,
            seed: 1,
            operations: OPERATIONS_PLAIN,
        };
        let mut fsx = Fsx::start(plan, &image.path().join("f"), artifacts.path());
        wait_longer("fsx has finished", plan.limit().as_secs(), || {
            fsx.ended().is_some()
        });
        fsx.assert_right();
    }
}

for_each_variant! { reflink => views_of_a_file_that_fsx_changes }
for_each_variant! { branch => views_of_a_file_that_fsx_changes }

mod plain {
    use crate::common::{Fs, Io, Variant, skip};

    #[test]
    fn fsx_passes_on_xfs_and_btrfs() {
        for fs in [Fs::Xfs, Fs::Btrfs] {
            let variant = Variant { fs, io: Io::Daemon };
            match variant.unavailable() {
                Some(reason) => return skip(&reason),
                None => super::the_plain_filesystem_passes(variant),
            }
        }
    }
}
