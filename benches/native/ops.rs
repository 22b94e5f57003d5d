//! Single operations on many files in one directory.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use crate::fixtures::Fixtures;
use crate::lanes::Lane;
use crate::workload::{BenchEnv, Scenario, Unit, Workload, place, seconds, workload};

const FILES: usize = 10_000;
const DIR: &str = "ops";

const fn each_of(
    name: &'static str,
    title: &'static str,
    run: fn(&BenchEnv<'_>, &Lane) -> f64,
) -> Workload {
    Workload {
        unit: Unit::Each,
        changes: true,
        ..workload(name, title, files, run)
    }
}

pub const SCENARIO: Scenario = Scenario {
    name: "ops",
    title: "10,000 files in one directory",
    rounds: 3,
    pins: true,
    missing: |_| None,
    setup: |_, lane| fs::create_dir(place(lane, DIR)).expect("a directory can be created"),
    workloads: &[
        each_of("create", "create, write 64 bytes, close", |_, lane| {
            each(lane, |path| {
                File::create_new(path).and_then(|mut file| file.write_all(&[b'x'; 64]))
            })
        }),
        each_of("rename", "rename", |_, lane| {
            each(lane, |path| fs::rename(path, path.with_extension("b")))
        }),
        each_of("unlink", "unlink", |_, lane| {
            each(lane, |path| fs::remove_file(path.with_extension("b")))
        }),
    ],
};

fn files(_: &Fixtures) -> Option<usize> {
    Some(FILES)
}

/// Returns the seconds per file.
fn each(lane: &Lane, operation: fn(&PathBuf) -> std::io::Result<()>) -> f64 {
    let dir = place(lane, DIR);
    let paths: Vec<PathBuf> = (0..FILES)
        .map(|index| dir.join(format!("file-{index}.a")))
        .collect();
    let all = seconds(|| {
        paths.iter().for_each(|path| {
            operation(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
    });
    all / FILES as f64
}
