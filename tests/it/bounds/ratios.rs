//! Quotients of CPU time: that of the client beyond its start and of the daemon together, over
//! that of the plain tool.
//!
//! Time on the clock is for benchmarks: two processes that wake each other up wait for a machine
//! that does something else, `cp` does not, and no number of rounds takes that out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::ClockId;
use nix::unistd::Pid;

use crate::bounds::baseline::{self, FACTOR};
use crate::bounds::shapes::{self, Shape};
use crate::common::{Fs, Image, Io, Mount, MountOpts, Variant, skip, succeeds, tool};

/// Rounds of a session at least, ...
const ROUNDS_MIN: usize = 5;
/// ... and at most, as long as it has found too much; and how long it goes on.
const ROUNDS_MAX: usize = 60;
const SESSION: Duration = Duration::from_secs(12);
/// For the image: the largest tree, three times, on a filesystem that wants room.
const IMAGE_BYTES: u64 = 1 << 30;
const SECONDS: u64 = 120;

const VARIANT: Variant = Variant {
    fs: Fs::Xfs,
    io: Io::Passthrough,
};

/// A tree that is mounted, with a checkpoint; the same as a plain directory; both on a filesystem
/// whose image lies in memory.
struct Bench {
    mount: Mount,
    plain: PathBuf,
    image: Image,
}

impl Bench {
    fn new(shape: Shape) -> Bench {
        let image = Image::in_memory(VARIANT.fs, IMAGE_BYTES);
        let (dir, plain) = (image.dir("project"), image.dir("plain"));
        (shape.make)(&dir);
        (shape.make)(&plain);
        let mount = Mount::start(&dir, &MountOpts::new(VARIANT.io).arg("--seal=off"));
        mount.checkpoint();
        Bench {
            mount,
            plain,
            image,
        }
    }

    fn to(&self, name: &str) -> PathBuf {
        self.image.path().join(name)
    }

    fn export(&self, to: &Path) -> Command {
        let mut command = self.mount.command(&["export", "latest"]);
        command.arg(to);
        command
    }

    fn cp(&self, arguments: &[&str], to: &Path) -> Command {
        let mut command = tool("cp", arguments);
        command.arg("--").arg(&self.plain).arg(to);
        command
    }

    /// The CPU time of one of our commands and of the daemon, without the start of the process.
    ///
    /// The start is most of a short command, and its cost next to that of copying files differs
    /// between machines by a factor of three. `counts` bounds it.
    fn ours(&self, command: &mut Command) -> Duration {
        let of_daemon = || -> Duration {
            let pid = Pid::from_raw(self.mount.pid().try_into().expect("it is a pid"));
            ClockId::pid_cpu_clock_id(pid)
                .and_then(ClockId::now)
                .expect("the daemon runs")
                .into()
        };
        let start = cpu(&mut self.mount.command(&["--version"]));
        let before = of_daemon();
        (cpu(command) + (of_daemon() - before)).saturating_sub(start)
    }

    /// Nothing of what came before is written back while something is measured.
    fn settle(&self) {
        succeeds(tool("sync", &["-f"]).arg(self.image.path()), SECONDS);
    }
}

/// CPU time of the children that were waited for.
fn of_children() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("it is told");
    let microseconds =
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(microseconds.try_into().expect("it is positive"))
}

/// What a process that must succeed took of the CPU.
fn cpu(command: &mut Command) -> Duration {
    let before = of_children();
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
    of_children() - before
}

/// The least of ours over the least of the other, from rounds that do both in turn.
fn session(most: f64, mut round: impl FnMut(usize) -> (Duration, Duration)) -> f64 {
    let started = Instant::now();
    let (mut ours, mut other) = (Duration::MAX, Duration::MAX);
    let mut rounds = 0;
    loop {
        let (a, b) = round(rounds);
        (ours, other, rounds) = (ours.min(a), other.min(b), rounds + 1);
        let quotient = ours.as_secs_f64() / other.as_secs_f64();
        let content = rounds >= ROUNDS_MIN && quotient <= most;
        if content || rounds == ROUNDS_MAX || started.elapsed() > SESSION {
            return quotient;
        }
    }
}

/// Compares with the baseline `name`, or says why it cannot be measured here.
fn holds(name: &str, shape: Shape, mut round: impl FnMut(&Bench, usize) -> (Duration, Duration)) {
    if let Some(reason) = VARIANT.unavailable() {
        return skip(&reason);
    }
    let bench = Bench::new(shape);
    // What is found first is cold.
    round(&bench, 0);
    let mut number = 0;
    baseline::holds(
        name,
        |known| known * FACTOR,
        |most| {
            session(most, |_| {
                number += 1;
                round(&bench, number)
            })
        },
    );
}

/// An export to a directory that is not there, beside `cp -a`.
fn export(bench: &Bench, _: usize) -> (Duration, Duration) {
    let (ours, other) = (bench.to("exported"), bench.to("copied"));
    bench.settle();
    let took = (
        bench.ours(&mut bench.export(&ours)),
        cpu(&mut bench.cp(&["-a"], &other)),
    );
    [ours, other]
        .iter()
        .for_each(|dir| fs::remove_dir_all(dir).expect("a copy can be removed"));
    took
}

#[test]
fn exporting_100_small_files_beside_cp() {
    holds(
        "export of 100 small files / cp -a",
        shapes::SMALL_100,
        export,
    );
}

#[test]
fn exporting_1000_small_files_beside_cp() {
    holds(
        "export of 1,000 small files / cp -a",
        shapes::SMALL_1000,
        export,
    );
}

#[test]
fn exporting_100_files_of_100_kb_beside_cp() {
    holds(
        "export of 100 files of 100 KB / cp -a",
        shapes::MEDIUM_100,
        export,
    );
}

#[test]
fn exporting_one_large_file_beside_cp() {
    holds(
        "export of a file of 100 MB / cp -a",
        shapes::LARGE_100,
        export,
    );
}

#[test]
fn exporting_a_deep_tree_beside_cp() {
    holds(
        "export of 5 levels with 200 files / cp -a",
        shapes::DEEP_5,
        export,
    );
}

#[test]
fn exporting_fifty_levels_beside_cp() {
    holds("export of 50 levels / cp -a", shapes::DEEP_50, export);
}

#[test]
fn exporting_again_with_nothing_changed_beside_cp() {
    holds(
        "export of 1,000 unchanged files again / cp -a",
        shapes::SMALL_1000,
        |bench, _| {
            let (ours, other) = (bench.to("exported"), bench.to("copied"));
            bench.settle();
            let took = (
                bench.ours(&mut bench.export(&ours)),
                cpu(&mut bench.cp(&["-a"], &other)),
            );
            fs::remove_dir_all(other).expect("a copy can be removed");
            took
        },
    );
}

#[test]
fn exporting_one_changed_mib_of_a_hundred_beside_cp() {
    holds(
        "export of 1 MiB changed in 100 MiB / cp -a --reflink=never",
        shapes::LARGE_100,
        |bench, round| {
            shapes::change(bench.mount.path(), round);
            bench.mount.checkpoint();
            let (ours, other) = (bench.to("exported"), bench.to("copied"));
            bench.settle();
            let took = (
                bench.ours(&mut bench.export(&ours)),
                cpu(&mut bench.cp(&["-a", "--reflink=never"], &other)),
            );
            fs::remove_dir_all(other).expect("a copy can be removed");
            took
        },
    );
}

#[test]
fn restoring_1000_small_files_beside_cp() {
    holds(
        "restore of 1,000 small files / cp -a",
        shapes::SMALL_1000,
        |bench, round| {
            assert_eq!(shapes::touch_all(bench.mount.path(), round), 1000);
            let other = bench.to("copied");
            bench.settle();
            let took = (
                bench.ours(&mut bench.mount.command(&["restore", "1"])),
                cpu(&mut bench.cp(&["-a"], &other)),
            );
            fs::remove_dir_all(other).expect("a copy can be removed");
            took
        },
    );
}

#[test]
fn a_checkpoint_of_1000_changed_files_beside_cp() {
    holds(
        "the process `checkpoint` after 1,000 files changed / cp -a",
        shapes::SMALL_1000,
        |bench, round| {
            assert_eq!(shapes::touch_all(bench.mount.path(), round), 1000);
            let other = bench.to("copied");
            bench.settle();
            let took = (
                bench.ours(&mut bench.mount.command(&["checkpoint"])),
                cpu(&mut bench.cp(&["-a"], &other)),
            );
            fs::remove_dir_all(other).expect("a copy can be removed");
            took
        },
    );
}

/// The control: what takes five times as long breaks a bound of twice what it takes.
#[test]
fn five_exports_in_the_place_of_one_are_found() {
    if let Some(reason) = VARIANT.unavailable() {
        return skip(&reason);
    }
    let bench = Bench::new(shapes::SMALL_1000);
    let mut quotients = [1, 5].map(|_| f64::MAX);
    for round in 0..2 * ROUNDS_MIN {
        let times = [1, 5][round % 2];
        let found = session(f64::MAX, |number| {
            let (mut ours, other) = export(&bench, number);
            (1..times).for_each(|_| ours += export(&bench, number).0);
            (ours, other)
        });
        quotients[round % 2] = quotients[round % 2].min(found);
        if round % 2 == 1 && quotients[1] > FACTOR * quotients[0] {
            return;
        }
    }
    panic!(
        "five exports: {:.2}, one: {:.2}",
        quotients[1], quotients[0]
    );
}
