//! Many small files: unpack, walk, read, search, change, remove.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use crate::fixtures::Fixtures;
use crate::lanes::{Column, Lane};
use crate::workload::{
    BenchEnv, Scenario, Workload, drop_caches, missing, nothing, place, seconds, shell, timed,
    twice, within, workload,
};

const DIR: &str = "small";
const WALK: &str = "find . -type f -printf '%s\\n'";
const XARGS: &str = "find . -type f -print0 | xargs -0 stat --format=%s";
const PATTERN: &str = "fn [a-z_]+_mut";

const fn all(
    name: &'static str,
    title: &'static str,
    run: fn(&BenchEnv<'_>, &Lane) -> f64,
) -> Workload {
    workload(name, title, all_files, run)
}

pub const SCENARIO: Scenario = Scenario {
    name: "small",
    title: "Many small files",
    rounds: 3,
    pins: true,
    missing: |_| missing("rg"),
    setup: nothing,
    workloads: &[
        Workload {
            changes: true,
            before: read_tar,
            ..all("untar", "untar", untar)
        },
        Workload {
            before: cold,
            ..all(
                "walk-cold",
                "`find -printf %s`, caches dropped",
                |_, lane| find(lane, WALK),
            )
        },
        Workload {
            before: |_, lane| twice(|| _ = find(lane, WALK)),
            ..all("walk", "`find -printf %s`, warm", |_, lane| {
                find(lane, WALK)
            })
        },
        all("xargs-stat", "`find | xargs stat`, warm", |_, lane| {
            find(lane, XARGS)
        }),
        Workload {
            before: |world, lane| _ = cat(world, lane),
            ..all("cat", "`cat` of every file, warm", cat)
        },
        Workload {
            before: |_, lane| _ = search(lane, DIR),
            ..all("rg", "`rg` over the tree, warm", |_, lane| {
                search(lane, DIR)
            })
        },
        Workload {
            can: views,
            before: |_, lane| open_view(lane, view_walk),
            ..all(
                "view-walk",
                "`find -printf %s` in a view, warm",
                |_, lane| view_walk(lane),
            )
        },
        Workload {
            can: views,
            before: |_, lane| open_view(lane, view_search),
            ..all("view-rg", "`rg` in a view, warm", |_, lane| {
                view_search(lane)
            })
        },
        Workload {
            changes: true,
            files: rewritten,
            ..all("rewrite", "open, write 64 bytes, close", rewrite)
        },
        Workload {
            changes: true,
            ..all("rm", "`rm -rf`", remove)
        },
    ],
};

fn all_files(fixtures: &Fixtures) -> Option<usize> {
    Some(fixtures.small.len())
}

fn rewritten(fixtures: &Fixtures) -> Option<usize> {
    Some(fixtures.small.len() / 5)
}

fn views(column: Column) -> bool {
    column == Column::Checkpointed
}

fn read_tar(world: &BenchEnv<'_>, lane: &Lane) {
    timed(within(lane.root(), "cat", &[]).arg(&world.fixtures.tar));
    fs::create_dir(place(lane, DIR)).expect("a directory can be created");
}

fn untar(world: &BenchEnv<'_>, lane: &Lane) -> f64 {
    timed(within(&place(lane, DIR), "tar", &["-xf"]).arg(&world.fixtures.tar))
}

fn cold(world: &BenchEnv<'_>, _: &Lane) {
    drop_caches(world.image);
}

fn find(lane: &Lane, script: &str) -> f64 {
    timed(&mut shell(&place(lane, DIR), script))
}

fn cat(world: &BenchEnv<'_>, lane: &Lane) -> f64 {
    timed(
        within(&place(lane, DIR), "xargs", &["-0", "-a"])
            .arg(&world.fixtures.list)
            .arg("cat"),
    )
}

fn search(lane: &Lane, dir: &str) -> f64 {
    timed(&mut within(
        &place(lane, dir),
        "rg",
        &[
            "--no-config",
            "--no-ignore",
            "--hidden",
            "--count",
            PATTERN,
            ".",
        ],
    ))
}

/// Makes a checkpoint and accesses its view once.
fn open_view(lane: &Lane, look: fn(&Lane) -> f64) {
    lane.hold();
    look(lane);
}

fn view_of(lane: &Lane) -> String {
    format!(".snapshots/{}/{DIR}", lane.held())
}

fn view_walk(lane: &Lane) -> f64 {
    timed(&mut shell(&place(lane, &view_of(lane)), WALK))
}

fn view_search(lane: &Lane) -> f64 {
    search(lane, &view_of(lane))
}

/// Rewrites every fifth file.
fn rewrite(world: &BenchEnv<'_>, lane: &Lane) -> f64 {
    let dir = place(lane, DIR);
    let stamp = format!("{:064}", world.round);
    seconds(|| {
        for file in world.fixtures.small.iter().step_by(5) {
            let file = OpenOptions::new()
                .write(true)
                .open(dir.join(file))
                .expect("a file can be opened");
            file.write_all_at(stamp.as_bytes(), 0)
                .expect("a file can be written");
        }
    })
}

fn remove(_: &BenchEnv<'_>, lane: &Lane) -> f64 {
    timed(&mut within(lane.root(), "rm", &["-rf", DIR]))
}
