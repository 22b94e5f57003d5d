//! sy: exports of a tree and restores, compared with `rsync -a` and `cp -a`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::Mount;
use crate::common::command::{succeeds, tool};
use crate::options::Seed;
use crate::report::{Report, Row};
use crate::shapes::{self, Shape};
use crate::shared::stats::Samples;
use crate::world::{SECONDS, SeedEnv, cp, remove, rsync, timed};

const EXPORTS: &str = "sy: export to a new directory";
const AGAIN: &str = "sy: repeated export to the same directory";
const RESTORES: &str = "sy: restore after every file was modified";
const SEED: &str = "sy (macOS, APFS, another machine): sy / rsync / cp";
const RSYNC: &str = "`rsync -a`";
const CP: &str = "`cp -a`";

/// The shapes, with the seed's figures for itself, rsync and cp.
const SHAPES: [(Shape, &str); 8] = [
    (shapes::SMALL_100, "19.7 ms / 35.3 ms / 34.7 ms"),
    (shapes::SMALL_1000, "183 ms / 255 ms / 268 ms"),
    (shapes::SMALL_1000_KB, "107 ms / 186 ms / -"),
    (shapes::MEDIUM_100, "21 ms / 64 ms / -"),
    (shapes::LARGE_50, "2.7 ms / 173 ms / 18.8 ms"),
    (shapes::LARGE_100, "39 ms / 335 ms / -"),
    (shapes::DEEP_5, "34 ms / 45 ms / -"),
    (shapes::DEEP_50, "bound 500 ms"),
];

const WHY_EXPORT: &str = "an export starts a process, opens a connection and marks the copy as complete, which is most of the time for so little data; without reflink the data is also read from a view";
const WHY_RESTORE: &str = "a restore first saves the current state in a guard checkpoint, so that it can be undone; the others discard it";

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    for (shape, seed) in SHAPES {
        let bench = Bench::new(world, shape);
        bench.exports(seed, report);
        bench.restores(report);
        bench.end();
    }
    idempotent(world, report);
    delta(world, report);
}

/// A mounted tree, and the same tree as a plain directory.
struct Bench<'a> {
    world: &'a SeedEnv<'a>,
    shape: Shape,
    mount: Mount,
    dir: PathBuf,
    plain: PathBuf,
}

impl<'a> Bench<'a> {
    fn new(world: &'a SeedEnv<'a>, shape: Shape) -> Bench<'a> {
        let (dir, plain) = (world.dir("sy"), world.dir("sy-plain"));
        (shape.make)(&dir);
        (shape.make)(&plain);
        world.sync();
        let mount = world.mount(&dir);
        mount.checkpoint();
        Bench {
            world,
            shape,
            mount,
            dir,
            plain,
        }
    }

    fn end(self) {
        let Bench {
            mut mount,
            dir,
            plain,
            ..
        } = self;
        mount.umount();
        [&dir, &plain].iter().for_each(|dir| remove(dir));
    }

    fn to(&self, name: &str) -> PathBuf {
        self.world.path().join(format!("sy-{name}"))
    }

    fn export(&self, to: &Path) -> Command {
        let mut command = self.mount.command(&["export", "latest"]);
        command.arg(to);
        command
    }

    fn exports(&self, seed: &str, report: &mut Report) {
        let (mut ours, mut rsynced, mut copied) =
            (Samples::default(), Samples::default(), Samples::default());
        let all = ["ours", "rsync", "cp"].map(|name| self.to(name));
        for _ in self.world.options.rounds(15, 5) {
            all.iter().for_each(|to| remove(to));
            self.world.sync();
            timed(&mut ours, &mut self.export(&all[0]));
            timed(&mut rsynced, &mut rsync(&self.plain, &all[1]));
            timed(&mut copied, &mut cp(&self.plain, &all[2]));
        }
        all.iter().for_each(|to| remove(to));
        let row = Row::new(self.world.fs(), self.shape.name)
            .ours(&ours)
            .rival(RSYNC, &rsynced)
            .rival(CP, &copied)
            .text(SEED, seed);
        report.add(Seed::Sy, EXPORTS, row.why(WHY_EXPORT));
    }

    fn restores(&self, report: &mut Report) {
        let (mut ours, mut rsynced, mut copied) =
            (Samples::default(), Samples::default(), Samples::default());
        let work = ["rsync", "cp"].map(|name| self.to(name));
        work.iter()
            .for_each(|to| drop(succeeds(&mut cp(&self.plain, to), SECONDS)));
        for round in self.world.options.rounds(15, 5) {
            for dir in [self.mount.path(), &work[0], &work[1]] {
                assert!(shapes::touch_all(dir, round) > 0, "the tree has files");
            }
            timed(&mut ours, &mut self.mount.command(&["restore", "1"]));
            timed(&mut rsynced, &mut rsync(&self.plain, &work[0]));
            timed(
                &mut copied,
                tool("cp", &["-aT", "--"]).arg(&self.plain).arg(&work[1]),
            );
        }
        work.iter().for_each(|to| remove(to));
        let row = Row::new(self.world.fs(), self.shape.name)
            .ours(&ours)
            .rival(RSYNC, &rsynced)
            .rival(CP, &copied)
            .text(SEED, "-");
        report.add(Seed::Sy, RESTORES, row.why(WHY_RESTORE));
    }
}

/// Measures a repeated export without changes.
fn idempotent(world: &SeedEnv<'_>, report: &mut Report) {
    for (shape, seed) in [
        (shapes::SMALL_100, "2.9 ms / 13.7 ms / -"),
        (shapes::SMALL_1000, "-"),
    ] {
        let bench = Bench::new(world, shape);
        let all = ["ours", "rsync", "cp"].map(|name| bench.to(name));
        succeeds(&mut bench.export(&all[0]), SECONDS);
        all[1..]
            .iter()
            .for_each(|to| drop(succeeds(&mut cp(&bench.plain, to), SECONDS)));
        let (mut ours, mut rsynced, mut copied) =
            (Samples::default(), Samples::default(), Samples::default());
        for _ in world.options.rounds(25, 5) {
            timed(&mut ours, &mut bench.export(&all[0]));
            timed(&mut rsynced, &mut rsync(&bench.plain, &all[1]));
            timed(
                &mut copied,
                tool("cp", &["-auT", "--"]).arg(&bench.plain).arg(&all[2]),
            );
        }
        all.iter().for_each(|to| remove(to));
        let files = shape.name.split(' ').next().unwrap_or_default();
        let what = format!("Idempotent Sync ({files} unchanged files)");
        let row = Row::new(world.fs(), what)
            .ours(&ours)
            .rival(RSYNC, &rsynced)
            .rival("`cp -au`", &copied)
            .text(SEED, seed);
        report.add(Seed::Sy, AGAIN, row.why("the process asks the daemon whether anything changed; `cp -au` compares only timestamps"));
        bench.end();
    }
}

/// Measures a repeated export with 1 MiB changed in 100 MiB.
fn delta(world: &SeedEnv<'_>, report: &mut Report) {
    let bench = Bench::new(world, shapes::LARGE_100);
    let all = ["ours", "rsync", "cp"].map(|name| bench.to(name));
    succeeds(&mut bench.export(&all[0]), SECONDS);
    all[1..]
        .iter()
        .for_each(|to| drop(succeeds(&mut cp(&bench.plain, to), SECONDS)));
    let (mut ours, mut rsynced, mut copied) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in world.options.rounds(11, 10) {
        [bench.mount.path(), &bench.plain]
            .iter()
            .for_each(|dir| shapes::change(dir, round));
        bench.mount.checkpoint();
        world.sync();
        timed(&mut ours, &mut bench.export(&all[0]));
        timed(&mut rsynced, &mut rsync(&bench.plain, &all[1]));
        timed(
            &mut copied,
            tool("cp", &["-aT", "--"]).arg(&bench.plain).arg(&all[2]),
        );
    }
    all.iter().for_each(|to| remove(to));
    let row = Row::new(world.fs(), "Delta sync (1MB in 100MB)")
        .ours(&ours)
        .rival(RSYNC, &rsynced)
        .rival(CP, &copied);
    report.add(
        Seed::Sy,
        AGAIN,
        row.text(SEED, "61 ms / 337 ms / -").why(WHY_EXPORT),
    );
    bench.end();
}
