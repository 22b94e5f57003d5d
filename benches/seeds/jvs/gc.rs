//! Planning and removing checkpoints.

use super::served::InProcessEngine;
use super::snapshot::{EACH_BYTES, project};
use super::tell;
use crate::alloc::{self, Op};
use crate::report::Report;
use crate::world::SeedEnv;
use ckptfs_api::{Delete, GcOptions, ListCheckpoints, PinCheckpoint, Retention, StateName};

const TITLE: &str = "JVS: GC Operations";

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    for (name, checkpoints) in [
        ("GCPlan_Small", 10),
        ("GCPlan_Medium", 100),
        ("GCPlan_Large", 1000),
    ] {
        let served = history(world, checkpoints);
        plan(
            world,
            &served,
            (name, &format!("{checkpoints} checkpoints, none to delete")),
            None,
            0,
            report,
        );
        if checkpoints == 100 {
            plan(
                world,
                &served,
                ("GCPlan_WithDeletable", "100 checkpoints, 50 to delete"),
                Some(50),
                50,
                report,
            );
            lineage(world, &served, checkpoints, report);
            pins(world, &served, report);
        }
        served.end();
    }
    let served = history(world, 0);
    plan(
        world,
        &served,
        ("GCEmptyRepo", "no checkpoint"),
        None,
        0,
        report,
    );
    served.end();
    runs(world, report);
}

/// Makes a history of checkpoints, each with one version.
fn history(world: &SeedEnv<'_>, checkpoints: usize) -> InProcessEngine {
    let (served, nodes) = project(world, 1, EACH_BYTES);
    for number in 0..checkpoints {
        served.write(nodes[0], number);
        served.checkpoint();
    }
    served
}

fn options(keep_last: Option<u64>, dry_run: bool) -> GcOptions {
    GcOptions {
        retention: Retention {
            keep_last,
            ..Retention::default()
        },
        dry_run,
        ..GcOptions::default()
    }
}

fn plan(
    world: &SeedEnv<'_>,
    served: &InProcessEngine,
    name: (&str, &str),
    keep_last: Option<u64>,
    gone: usize,
    report: &mut Report,
) {
    // FIEMAP of data that is not on disk would wait for its writeback.
    world.sync();
    alloc::settle();
    let mut op = Op::default();
    for _ in world.options.rounds(50, 2) {
        assert_eq!(
            op.run(|| served.gc(options(keep_last, true))).gone.len(),
            gone
        );
    }
    tell(world, report, TITLE, name, &op, |row| row);
}

/// Walks from the newest checkpoint to the oldest by `parent`.
fn lineage(world: &SeedEnv<'_>, served: &InProcessEngine, checkpoints: usize, report: &mut Report) {
    let mut op = Op::default();
    for _ in world.options.rounds(50, 2) {
        let steps = op.run(|| {
            let log = served.ask(ListCheckpoints).expect("a list");
            let mut at = log.first();
            let mut steps = 0;
            while let Some(info) = at {
                steps += 1;
                at = info
                    .parent
                    .and_then(|parent| log.iter().find(|info| info.id == parent));
            }
            steps
        });
        assert_eq!(
            steps, checkpoints,
            "each checkpoint is the parent of the next"
        );
    }
    tell(
        world,
        report,
        TITLE,
        (
            "GCLineageTraversal",
            "from the newest of 100 to the oldest, by `parent`",
        ),
        &op,
        |row| row,
    );
}

fn pins(world: &SeedEnv<'_>, served: &InProcessEngine, report: &mut Report) {
    for id in 1..=25 {
        served
            .ask(PinCheckpoint {
                state: StateName(id.to_string()),
                reason: Some("kept".into()),
            })
            .expect("it can be pinned");
    }
    plan(
        world,
        served,
        (
            "GCWithPins",
            "100 checkpoints, 25 of them pinned, 25 to delete",
        ),
        Some(50),
        25,
        report,
    );
    for id in 26..=35 {
        served
            .ask(Delete {
                state: StateName(id.to_string()),
                now: false,
            })
            .expect("it can be deleted");
    }
    let nearest = "ckptfs has no intents; the nearest equivalent: 10 deleted checkpoints that `undo` could restore, in addition to the pins";
    plan(
        world,
        served,
        ("GCWithIntents", nearest),
        Some(50),
        25,
        report,
    );
}

fn runs(world: &SeedEnv<'_>, report: &mut Report) {
    for (name, count) in [("GCRun_DeleteSingle", 1), ("GCRun_DeleteMultiple", 100)] {
        let (served, nodes) = project(world, 1, EACH_BYTES);
        served.checkpoint();
        let mut op = Op::default();
        for round in world.options.rounds(30, 4) {
            for number in 0..count {
                served.write(nodes[0], round * count + number + 1);
                served.checkpoint();
            }
            assert_eq!(
                op.run(|| served.gc(options(Some(1), false))).gone.len(),
                count
            );
        }
        tell(
            world,
            report,
            TITLE,
            (name, &format!("{count} to delete, one version each")),
            &op,
            |row| row,
        );
        served.end();
    }
}
