//! VRift: imports of existing trees, tier by tier, with and without sharing from earlier imports.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;

use crate::common::command::{run_limited, tool};
use crate::options::{NO_TIME, Seed};
use crate::report::{OURS, Report, Row, Value, grouped, size, time};
use crate::shared::stats::Samples;
use crate::shared::tree::regular_files;
use crate::world::{SECONDS, SeedEnv, cp, remove, said, timed};

const TIERS: &str = "VRift: ingest by tier";
const SPEEDUP: &str = "VRift: parallel speedup";
const SCENARIOS: &str = "VRift: its four projects (Large with `--long`), A (fresh) and B (re-run)";
const SEED: &str = "VRift (macOS, APFS, another machine)";

/// Name, files, and the seed's figure with 4 threads.
const TIER: [(&str, usize, &str); 4] = [
    ("Extra-Small", 16_647, "2.55 s, 6,521 files/s"),
    ("Small", 23_948, "3.57 s, 6,698 files/s"),
    ("Medium", 61_703, "10.24 s, 6,026 files/s"),
    ("Large", 300_000, "~60 s, 5,000+ files/s"),
];
/// The seed's results of a fresh start and of a re-run, by tier.
const FOUND: [[&str; 2]; 4] = [
    ["17.2% dedup, 3 MB saved, 8,549/s", "100%, 11,634/s"],
    ["71.5% dedup, 224 MB saved, 11,003/s", "100%, 11,790/s"],
    ["49.8% dedup, 365 MB saved, 8,904/s", "100%, 12,027/s"],
    ["~50% dedup, ~1 GB saved, ~5,000/s", "~100%, 10,000+/s"],
];
const THREADS: [usize; 3] = [1, 2, 4];
/// Divisor for the files of a tier in a quick run.
const QUICK_SHARE: usize = 10;

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    let program = Program::find();
    let source = Source::find();
    // Without reflink every tier would be copied, and only the smallest is measured.
    let large = if world.options.long { 4 } else { 3 };
    let count = if world.has_reflink() { large } else { 1 };
    let tiers: Vec<_> = TIER.iter().take(count).enumerate().collect();
    for (index, (name, files, seed)) in &tiers {
        if *index > 0 && world.options.is_late() {
            report.add(
                Seed::Vrift,
                TIERS,
                Row::new(
                    world.fs(),
                    format!("{name} ({} files), 4 threads", grouped(*files as i64)),
                )
                .text(OURS, NO_TIME),
            );
            continue;
        }
        let files = if world.options.quick {
            *files / QUICK_SHARE
        } else {
            *files
        };
        let dir = world.path().join(format!("vrift-{index}"));
        source.make(&dir, files);
        world.sync();
        tier(world, &program, (name, files, seed), &dir, report);
    }
    if let Some(why) = program.lacks() {
        report.missing(Seed::Vrift, format!("{}: {why}", world.fs()));
    }
    let made = tiers
        .iter()
        .map(|(index, _)| *index)
        .filter(|index| world.path().join(format!("vrift-{index}")).exists());
    scenarios(world, &program, &made.collect::<Vec<_>>(), report);
    tiers
        .iter()
        .for_each(|(index, _)| remove(&world.path().join(format!("vrift-{index}"))));
}

/// `ckptfs import` and its help text, which lists its options.
struct Program {
    help: String,
}

impl Program {
    fn find() -> Program {
        let help = run_limited(
            tool(env!("CARGO_BIN_EXE_ckptfs"), &["import"]).arg("--help"),
            SECONDS,
        );
        Program {
            help: String::from_utf8_lossy(&help.stdout).into_owned(),
        }
    }

    /// Returns the reason if it cannot be measured.
    fn lacks(&self) -> Option<String> {
        let missing: Vec<&str> = ["--threads", "--hash", "--with"]
            .into_iter()
            .filter(|option| !self.has(option))
            .collect();
        (!missing.is_empty()).then(|| {
            format!(
                "`ckptfs import` of this build does not support {}",
                missing.join(", ")
            )
        })
    }

    fn has(&self, option: &str) -> bool {
        self.help.contains(option)
    }

    /// Returns the command, if it supports all of these options.
    fn import(&self, dir: &Path, into: &Path, threads: usize, more: &[&str]) -> Option<Command> {
        let known = more
            .iter()
            .filter(|option| option.starts_with("--"))
            .all(|option| self.has(option));
        if !known || !self.has("--threads") {
            return None;
        }
        let mut command = tool(env!("CARGO_BIN_EXE_ckptfs"), &["import"]);
        command
            .arg(dir)
            .arg("--into")
            .arg(into)
            .args(["--threads", &threads.to_string(), "--json"])
            .args(more);
        // The directory contains directories, but is not a series of snapshots.
        command.args(self.has("--tree").then_some("--tree"));
        Some(command)
    }
}

/// The files of the crates that cargo has fetched. If a tier needs more, they are repeated with
/// another first line, so that duplicates within a tier are those of real code.
struct Source {
    top: PathBuf,
    files: Vec<PathBuf>,
}

impl Source {
    fn find() -> Source {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home
            .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
            .expect("the home directory of cargo is known");
        let top = home.join("registry/src");
        let files = regular_files(&top, 0);
        assert!(
            !files.is_empty(),
            "no crates in {}: run `cargo fetch`",
            top.display()
        );
        Source { top, files }
    }

    /// Makes the first `count` files: a larger tier includes a smaller one.
    fn make(&self, dir: &Path, count: usize) {
        remove(dir);
        for number in 0..count {
            let (set, path) = (
                number / self.files.len(),
                &self.files[number % self.files.len()],
            );
            let to = dir.join(format!("set-{set}")).join(path);
            fs::create_dir_all(to.parent().expect("a file has a parent directory"))
                .expect("a directory can be created");
            let content = fs::read(self.top.join(path)).expect("a crate's file can be read");
            let mut file = File::create(to).expect("a file can be created");
            if set > 0 {
                writeln!(file, "// {set}").expect("a file can be written");
            }
            file.write_all(&content).expect("a file can be written");
        }
    }
}

/// The thread count, and times of a fresh import, of one with `--hash`, and of a repeated one.
type Fresh = (usize, Samples, Samples, Samples);

fn tier(
    world: &SeedEnv<'_>,
    program: &Program,
    (name, files, seed): (&str, usize, &str),
    dir: &Path,
    report: &mut Report,
) {
    let into = world.path().join("vrift-into");
    // The speedup is measured with the smallest tier; with all if there is time.
    let threads = THREADS
        .into_iter()
        .filter(|threads| *threads == 4 || name == TIER[0].0 || world.options.long);
    let mut fresh: Vec<Fresh> = threads
        .map(|threads| {
            (
                threads,
                Samples::default(),
                Samples::default(),
                Samples::default(),
            )
        })
        .collect();
    let (mut copied, mut walked) = (Samples::default(), Samples::default());
    for _ in world.options.rounds(3, 45) {
        for (threads, plain, hashed, again) in &mut fresh {
            for (more, samples) in [(&[][..], plain), (&["--hash"][..], hashed)] {
                let Some(mut import) = program.import(dir, &into, *threads, more) else {
                    continue;
                };
                remove(&into);
                world.sync();
                timed(samples, &mut import);
            }
            if let Some(mut import) = program.import(dir, &into, *threads, &[]) {
                timed(again, &mut import);
            }
        }
        remove(&into);
        world.sync();
        timed(&mut copied, &mut cp(dir, &into));
        remove(&into);
        walked.time(|| hash_walk(dir, 1));
    }
    for (threads, plain, hashed, again) in &fresh {
        let what = format!(
            "{name} ({} files), {threads} threads",
            grouped(files as i64)
        );
        let row = Row::new(world.fs(), what)
            .ours(plain)
            .text("files/s", rate(files, plain));
        let row = row
            .cell("with --hash", Value::Time(hashed.clone()))
            .text("files/s hashed", rate(files, hashed))
            .cell("re-run", Value::Time(again.clone()));
        let row = row
            .rival("`cp -a --reflink=auto`", &copied)
            .cell("hash walk, 1 thread", Value::Time(walked.clone()));
        let seed = if *threads == 4 { seed } else { "-" };
        report.add(
            Seed::Vrift,
            TIERS,
            row.text(SEED, seed)
                .why("an import also creates a store with a record of the imported files"),
        );
    }
    if name == TIER[0].0 {
        tell_speedup(world, &fresh, report);
    }
}

/// Formats files per second.
fn rate(files: usize, samples: &Samples) -> String {
    if samples.len() == 0 {
        "-".to_owned()
    } else {
        grouped((files as f64 / samples.p50() * 1e6) as i64)
    }
}

/// Adds the speedup by threads, for the smallest tier.
fn tell_speedup(world: &SeedEnv<'_>, fresh: &[Fresh], report: &mut Report) {
    let one = fresh[0].2.p50();
    let speedups = [("3.93 s (12K files)"), ("-"), ("1.65 s, 2.4x (12K files)")];
    for ((threads, _, hashed, _), seed) in fresh
        .iter()
        .zip(speedups)
        .filter(|((_, _, hashed, _), _)| hashed.len() > 0)
    {
        let row = Row::new(world.fs(), format!("{threads} threads"))
            .cell("time, hashed", Value::Time(hashed.clone()));
        report.add(
            Seed::Vrift,
            SPEEDUP,
            row.text("speedup", format!("{:.1}x", one / hashed.p50()))
                .text(SEED, seed),
        );
    }
}

/// Reads and hashes every file, as `b3sum` would.
fn hash_walk(dir: &Path, threads: usize) {
    let files = regular_files(dir, 0);
    let shares = files.chunks(files.len().div_ceil(threads).max(1));
    std::thread::scope(|scope| {
        for share in shares {
            scope.spawn(move || {
                for file in share {
                    std::hint::black_box(blake3::hash(
                        &fs::read(dir.join(file)).expect("a file can be read"),
                    ));
                }
            });
        }
    });
}

/// Imports the tiers in sequence, each sharing with the previous ones, then all again.
fn scenarios(world: &SeedEnv<'_>, program: &Program, tiers: &[usize], report: &mut Report) {
    let into = |tier: usize| world.path().join(format!("vrift-into-{tier}"));
    tiers.iter().for_each(|tier| remove(&into(*tier)));
    for (run, scenario) in ["A", "B"].into_iter().enumerate() {
        for (at, tier) in tiers.iter().enumerate() {
            let before: Vec<String> = tiers[..at]
                .iter()
                .map(|tier| into(*tier).to_string_lossy().into_owned())
                .collect();
            let mut more = vec!["--hash"];
            before.iter().for_each(|dir| more.extend(["--with", dir]));
            let dir = world.path().join(format!("vrift-{tier}"));
            let Some(mut import) = program.import(&dir, &into(*tier), 4, &more) else {
                continue;
            };
            let used = world.used();
            let mut took = Samples::default();
            let output = took.time(|| said(&mut import));
            let answer: Json = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let name = TIER[*tier].0;
            let [new, rate, saved, speed] = told(&answer, took.p50());
            let row = Row::new(world.fs(), format!("{scenario}: {name}"))
                .text("import --hash, with those before", time(took.p50()));
            let row = row
                .text("new blobs", new)
                .text("dedup rate", rate)
                .text("space saved", saved)
                .text("speed", speed);
            let row = row
                .text("new bytes on disk, by `df`", size(world.used() - used))
                .text(SEED, FOUND[*tier][run]);
            report.add(Seed::Vrift, SCENARIOS, row);
        }
    }
    tiers.iter().for_each(|tier| remove(&into(*tier)));
}

/// Returns VRift's figures from the report of an import: new blobs, share of known files, bytes
/// saved, files per second.
fn told(answer: &Json, us: f64) -> [String; 4] {
    let made = answer["checkpoints"]
        .as_array()
        .and_then(|all| all.last())
        .unwrap_or(answer);
    let number = |value: &Json, name: &str| value[name].as_i64().unwrap_or_default();
    let files = number(made, "files");
    let speed = format!("{}/s", grouped((files as f64 / us * 1e6) as i64));
    if made["unchanged"] == true {
        return [
            "0".to_owned(),
            "100%".to_owned(),
            size(number(made, "bytes")),
            speed,
        ];
    }
    let contents = &made["contents"];
    if contents.is_null() {
        return ["-".to_owned(), "-".to_owned(), "-".to_owned(), speed];
    }
    let both = |what: &str| {
        number(contents, &format!("duplicate_{what}")) + number(contents, &format!("known_{what}"))
    };
    // Without reflink, known contents are detected but save no space.
    let found = both("files") + number(contents, "unshared_files");
    let rate = found as f64 / number(contents, "hashed_files").max(1) as f64 * 100.0;
    [
        grouped(number(contents, "new_contents")),
        format!("{rate:.1}%"),
        size(both("bytes")),
        speed,
    ]
}
