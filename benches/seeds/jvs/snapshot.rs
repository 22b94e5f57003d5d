//! Making a checkpoint, and the cost of the first writes after it.

use super::served::InProcessEngine;
use super::{by_engine, tell};
use crate::alloc::Op;
use crate::options::{NO_TIME, Seed};
use crate::report::{OURS, Report, Row, Value};
use crate::shapes;
use crate::shared::stats::Samples;
use crate::shared::tree::regular_files;
use crate::world::{SeedEnv, cp, remove, timed};
use ckptfs_core::engine::request::NodeId;

const TITLE: &str = "JVS: Snapshot Operations";
/// "Small files (<100KB)" and "Medium files (~1MB)".
pub const SMALL_BYTES: usize = 64 << 10;
pub const MEDIUM_BYTES: usize = 1 << 20;
/// Files changed where changing the whole tree would take too long.
pub const SOME: usize = 1000;
/// The reason for that.
const SLOWLY: &str = "omitted: each capture is a copy that is synced before the change, which takes minutes in total";
/// Size of each of many files.
pub const EACH_BYTES: usize = 1 << 10;

/// Returns the reason if not every file of the tree can be changed here. btrfs repeats the result
/// of XFS.
pub fn no_time_for_all(world: &SeedEnv<'_>) -> Option<&'static str> {
    if world.captures_slowly() {
        return Some(SLOWLY);
    }
    let options = world.options;
    let said_already = world.fs() == "btrfs" && options.filesystems.len() > 1 && !options.long;
    (said_already || options.is_late()).then_some(NO_TIME)
}

/// Makes and serves a directory of `files` files of `bytes` bytes.
pub fn project(world: &SeedEnv<'_>, files: usize, bytes: usize) -> (InProcessEngine, Vec<NodeId>) {
    let dir = world.dir("jvs");
    (0..files).for_each(|file| shapes::write(&dir.join(format!("file{file}")), bytes, file));
    world.sync();
    let served = InProcessEngine::open(&dir);
    let nodes = (0..files)
        .map(|file| served.node(format!("file{file}").as_ref()))
        .collect();
    (served, nodes)
}

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    let sizes = [
        (
            by_engine(world, "SnapshotCreation", "Small"),
            "1 file of 64 KiB",
            1,
            SMALL_BYTES,
        ),
        (
            by_engine(world, "SnapshotCreation", "Medium"),
            "1 file of 1 MiB",
            1,
            MEDIUM_BYTES,
        ),
        (
            "SnapshotCreation_MultiFile".to_owned(),
            "100 files",
            100,
            EACH_BYTES,
        ),
        (
            "SnapshotCreation_MultiFile_Large".to_owned(),
            "1,000 files",
            1000,
            EACH_BYTES,
        ),
    ];
    for (name, what, files, bytes) in sizes {
        let (served, nodes) = project(world, files, bytes);
        snapshots(world, &served, &nodes, (&name, what), report);
        served.end();
    }
    let tree = world.tree();
    let count = world.files();
    let served = InProcessEngine::open(&tree);
    let files = regular_files(&tree, 1);
    let nodes: Vec<NodeId> = files
        .iter()
        .filter(|path| !path.starts_with(".ckptfs"))
        .map(|path| served.node(path))
        .collect();
    snapshots(
        world,
        &served,
        &nodes[..SOME.min(nodes.len())],
        ("", &format!("{count} files, {SOME} changed")),
        report,
    );
    let what = format!("{count} files, all changed");
    if let Some(why) = no_time_for_all(world) {
        report.add(Seed::Jvs, TITLE, Row::new(world.fs(), what).text(OURS, why));
    } else {
        snapshots(world, &served, &nodes, ("", &what), report);
    }
    drop(served);
    remove(&tree.join(".ckptfs"));
}

fn snapshots(
    world: &SeedEnv<'_>,
    served: &InProcessEngine,
    nodes: &[NodeId],
    name: (&str, &str),
    report: &mut Report,
) {
    let (mut op, mut first, mut again, mut copied) = (
        Op::default(),
        Samples::default(),
        Samples::default(),
        Samples::default(),
    );
    let copy = world.path().join("jvs-copy");
    served.checkpoint();
    for round in world.options.rounds(100, 4) {
        nodes.iter().for_each(|node| served.write(*node, round));
        let made = op.run(|| served.checkpoint());
        assert!(
            made.dirty >= nodes.len() as u64,
            "{} of {} files are known as changed",
            made.dirty,
            nodes.len()
        );
        first.time(|| nodes.iter().for_each(|node| served.write(*node, round + 1)));
        again.time(|| nodes.iter().for_each(|node| served.write(*node, round + 2)));
    }
    for _ in world.options.rounds(15, 3) {
        remove(&copy);
        timed(&mut copied, &mut cp(&served.dir, &copy));
    }
    remove(&copy);
    tell(world, report, TITLE, name, &op, |row| {
        let row = row
            .cell(
                "then the first write to each (captures)",
                Value::Time(first),
            )
            .cell("the same writes again", Value::Time(again));
        row.rival("`cp -a --reflink=auto`", &copied)
            .why("a checkpoint is one record; nothing is read")
    });
}
