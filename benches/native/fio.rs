//! Reads and writes of one large file with fio.

use crate::common::command::{stdout_of, succeeds};
use crate::common::mount::VERB_SECONDS;
use crate::fixtures::Fixtures;
use crate::lanes::{Column, Lane};
use crate::workload::{
    BenchEnv, SETUP_SECONDS, Scenario, Unit, Workload, any, missing, nothing, within,
};

const FILE: &str = "fio.dat";
const FILE_MB: usize = 64;
const RUNTIME: &str = "--runtime=200ms";

const fn read(
    name: &'static str,
    title: &'static str,
    unit: Unit,
    run: fn(&BenchEnv<'_>, &Lane) -> f64,
) -> Workload {
    Workload {
        name,
        title,
        unit,
        changes: false,
        can: any,
        files: unknown,
        before: nothing,
        run,
    }
}

/// The file is recreated and synced: its capture need not write it back, and earlier random writes
/// have not split it into thousands of extents, which a reflink would have to copy.
const fn write(
    name: &'static str,
    title: &'static str,
    unit: Unit,
    run: fn(&BenchEnv<'_>, &Lane) -> f64,
) -> Workload {
    Workload {
        changes: true,
        can: |_| true,
        before: lay_out,
        ..read(name, title, unit, run)
    }
}

pub const SCENARIO: Scenario = Scenario {
    name: "fio",
    title: "One file of 64 MiB",
    rounds: 3,
    pins: true,
    missing: |_| missing("fio"),
    setup: lay_out,
    workloads: &[
        read(
            "seq-read",
            "sequential read, 1 MiB",
            Unit::Mebibyte,
            |_, lane| fio(lane, &["--rw=read", "--bs=1M"]),
        ),
        read("rand-read", "random read, 4 KiB", Unit::Each, |_, lane| {
            fio(lane, &["--rw=randread", "--bs=4k"])
        }),
        read(
            "mmap-read",
            "random read, 4 KiB, mmap",
            Unit::Each,
            |_, lane| fio(lane, &["--rw=randread", "--bs=4k", "--ioengine=mmap"]),
        ),
        write(
            "seq-write",
            "sequential write, 1 MiB",
            Unit::Mebibyte,
            |_, lane| fio(lane, &["--rw=write", "--bs=1M"]),
        ),
        write(
            "rand-write",
            "random write, 4 KiB",
            Unit::Each,
            |_, lane| fio(lane, &["--rw=randwrite", "--bs=4k"]),
        ),
        write(
            "mmap-write",
            "random write, 4 KiB, mmap",
            Unit::Each,
            |_, lane| fio(lane, &["--rw=randwrite", "--bs=4k", "--ioengine=mmap"]),
        ),
        write(
            "seq-fsync",
            "sequential write, 1 MiB, fsync after 16",
            Unit::Mebibyte,
            |_, lane| fio(lane, &["--rw=write", "--bs=1M", "--fsync=16"]),
        ),
        write(
            "rand-fsync",
            "random write, 4 KiB, fsync after 16",
            Unit::Each,
            |_, lane| fio(lane, &["--rw=randwrite", "--bs=4k", "--fsync=16"]),
        ),
    ],
};

/// The number of operations depends on the time.
fn unknown(_: &Fixtures) -> Option<usize> {
    None
}

fn lay_out(_: &BenchEnv<'_>, lane: &Lane) {
    let count = format!("count={FILE_MB}");
    succeeds(&mut within(lane.root(), "rm", &["-f", FILE]), SETUP_SECONDS);
    succeeds(
        &mut within(
            lane.root(),
            "dd",
            &[
                "if=/dev/zero",
                &format!("of={FILE}"),
                "bs=1M",
                &count,
                "conv=fsync",
                "status=none",
            ],
        ),
        SETUP_SECONDS,
    );
    if lane.column == Column::Cloned {
        succeeds(
            &mut within(lane.root(), "cp", &["--reflink=always", FILE, "clone.dat"]),
            SETUP_SECONDS,
        );
    }
}

/// Returns the seconds per operation or mebibyte, the unit of the job's block size.
fn fio(lane: &Lane, arguments: &[&str]) -> f64 {
    let mut command = within(
        lane.root(),
        "fio",
        &[
            "--name=job",
            "--output-format=json",
            "--time_based",
            RUNTIME,
            "--randrepeat=1",
            "--norandommap",
        ],
    );
    // The file is cached, because the disk is not compared.
    command.args([
        "--invalidate=0",
        "--fallocate=none",
        "--gtod_reduce=1",
        "--group_reporting",
        &format!("--filename={FILE}"),
        &format!("--size={FILE_MB}M"),
    ]);
    let said = stdout_of(command.args(arguments), VERB_SECONDS);
    let report: serde_json::Value = serde_json::from_str(&said)
        .unwrap_or_else(|error| panic!("fio printed no JSON ({error}): {said}"));
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "fio failed: {said}");
    let side = if arguments.iter().any(|argument| argument.ends_with("write")) {
        "write"
    } else {
        "read"
    };
    1.0 / job[side]["iops"]
        .as_f64()
        .expect("fio reports the operations per second")
}
