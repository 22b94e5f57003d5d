//! Common programs: git, cargo, npm.

use std::fs;
use std::path::Path;

use crate::common::succeeds;
use crate::fixtures::{GIT_CHANGED, cargo, git, npm};
use crate::lanes::Lane;
use crate::workload::{
    BenchEnv, SETUP_SECONDS, Scenario, Workload, place, timed, twice, within, workload,
};

pub const GIT: Scenario = Scenario {
    name: "git",
    title: "git",
    rounds: 3,
    pins: true,
    missing: |fixtures| fixtures.git.as_ref().err().cloned(),
    setup: |world, lane| copy(&world.fixtures.git().dir, lane, "git"),
    workloads: &[
        Workload {
            before: |_, lane| twice(|| _ = git_status(lane)),
            ..workload(
                "git-status",
                "`git status`, warm",
                |fixtures| Some(fixtures.git().files),
                |_, lane| git_status(lane),
            )
        },
        Workload {
            changes: true,
            ..workload(
                "git-checkout",
                "`git checkout` between two tags",
                |_| Some(GIT_CHANGED),
                git_checkout,
            )
        },
    ],
};

pub const CARGO: Scenario = Scenario {
    name: "cargo",
    title: "cargo",
    rounds: 3,
    pins: false,
    missing: |fixtures| fixtures.cargo.as_ref().err().cloned(),
    setup: |world, lane| copy(&world.fixtures.cargo().dir, lane, "cargo"),
    workloads: &[Workload {
        changes: true,
        before: |_, lane| remove(lane, "cargo/target"),
        ..workload(
            "cargo-build",
            "`cargo build` of a small program",
            |fixtures| Some(fixtures.cargo().files),
            |_, lane| timed(&mut cargo(&place(lane, "cargo"), &["build", "--offline"])),
        )
    }],
};

pub const NPM: Scenario = Scenario {
    name: "npm",
    title: "npm",
    rounds: 3,
    pins: false,
    missing: |fixtures| fixtures.npm.as_ref().err().cloned(),
    setup: |world, lane| copy(&world.fixtures.npm().project, lane, "npm"),
    workloads: &[Workload {
        changes: true,
        before: |_, lane| remove(lane, "npm/node_modules"),
        ..workload(
            "npm-ci",
            "`npm ci` of 176 packages",
            |fixtures| Some(fixtures.npm().files),
            |world, lane| {
                timed(
                    npm(&place(lane, "npm"), &world.fixtures.npm().cache, &["ci"]).arg("--offline"),
                )
            },
        )
    }],
};

/// Copies a directory of the fixtures into the lane.
fn copy(from: &Path, lane: &Lane, name: &str) {
    succeeds(
        within(lane.root(), "cp", &["-a"]).arg(from).arg(name),
        SETUP_SECONDS,
    );
}

fn remove(lane: &Lane, name: &str) {
    succeeds(
        &mut within(lane.root(), "rm", &["-rf", name]),
        SETUP_SECONDS,
    );
}

fn git_status(lane: &Lane) -> f64 {
    timed(&mut git(&place(lane, "git"), &["status", "--porcelain"]))
}

/// Checks out the other tag.
fn git_checkout(world: &BenchEnv<'_>, lane: &Lane) -> f64 {
    let dir = place(lane, "git");
    let head = fs::read_to_string(dir.join(".git/HEAD")).expect("a repository has a HEAD");
    let to = if head.trim() == world.fixtures.git().second {
        "first"
    } else {
        "second"
    };
    timed(&mut git(&dir, &["checkout", "-q", to]))
}
