//! Restores of a checkpoint.

use std::path::PathBuf;

use super::served::InProcessEngine;
use super::snapshot::{EACH_BYTES, MEDIUM_BYTES, SMALL_BYTES, SOME, no_time_for_all, project};
use super::{by_engine, tell};
use crate::alloc::Op;
use crate::common::command::tool;
use crate::options::Seed;
use crate::report::{OURS, Report, Row};
use crate::shared::stats::Samples;
use crate::shared::tree::regular_files;
use crate::world::{SECONDS, SeedEnv, cp, remove, timed};

const TITLE: &str = "JVS: Restore Operations";
const WHY: &str = "a restore saves the current state in a guard checkpoint, finds the differences and writes records; cp overwrites everything and cannot be undone";

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    let sizes = [
        (
            by_engine(world, "Restore", "Small"),
            "1 file of 64 KiB",
            1,
            SMALL_BYTES,
        ),
        (
            by_engine(world, "Restore", "Medium"),
            "1 file of 1 MiB",
            1,
            MEDIUM_BYTES,
        ),
        ("Restore_MultiFile".to_owned(), "100 files", 100, EACH_BYTES),
        (
            "Restore_MultiFile_Large".to_owned(),
            "1,000 files",
            1000,
            EACH_BYTES,
        ),
    ];
    for (name, what, files, bytes) in sizes {
        every_file(world, (&name, what), files, bytes, report);
    }
    kinds(world, report);
    whole_tree(world, report);
}

/// Measures a restore after a write to every file.
fn every_file(
    world: &SeedEnv<'_>,
    name: (&str, &str),
    files: usize,
    bytes: usize,
    report: &mut Report,
) {
    let (served, _) = project(world, files, bytes);
    let (plain, work) = (
        world.path().join("jvs-plain"),
        world.path().join("jvs-work"),
    );
    [&plain, &work].iter().for_each(|to| {
        remove(to);
        crate::common::command::succeeds(&mut cp(&served.dir, to), SECONDS);
    });
    let mut op = Op::default();
    for round in world.options.rounds(50, 3) {
        let id = served.checkpoint().id.0;
        // A restored file is another inode and needs a lookup, as by the kernel.
        (0..files)
            .for_each(|file| served.write(served.node(format!("file{file}").as_ref()), round + 1));
        assert_eq!(
            op.run(|| served.restore(id)),
            files,
            "all changed files are restored"
        );
    }
    let mut copied = Samples::default();
    for _ in world.options.rounds(15, 2) {
        timed(
            &mut copied,
            tool("cp", &["-aT", "--reflink=auto", "--"])
                .arg(&plain)
                .arg(&work),
        );
    }
    tell(world, report, TITLE, name, &op, |row| {
        row.rival("`cp -a` over the tree", &copied).why(WHY)
    });
    [&plain, &work].iter().for_each(|to| remove(to));
    served.end();
}

fn kinds(world: &SeedEnv<'_>, report: &mut Report) {
    let (served, _) = project(world, 1, SMALL_BYTES);
    let write = |number: usize| served.write(served.node("file0".as_ref()), number);
    let mut ops = [(); 4].map(|()| Op::default());
    let first = served.checkpoint().id.0;
    for round in world.options.rounds(50, 6) {
        write(1000 + round);
        let latest = served.checkpoint().id.0;
        write(2000 + round);
        assert_eq!(ops[0].run(|| served.restore(latest)), 1);
        write(3000 + round);
        assert_eq!(ops[1].run(|| served.restore(first)), 1);
        write(4000 + round);
        ops[2].run(|| {
            served.restore(latest);
            served.verify(latest, true);
        });
        assert_eq!(ops[3].run(|| served.restore(first)), 1);
    }
    let names = [
        ("RestoreToLatest", ""),
        ("Restore_DetachedState", "to an older one"),
        (
            "Restore_IntegrityVerification",
            "then `verify --deep` of it",
        ),
        ("Restore_SnapshotToSnapshot", ""),
    ];
    for (name, op) in names.into_iter().zip(&ops) {
        tell(world, report, TITLE, name, op, |row| row);
    }
    let mut op = Op::default();
    for round in world.options.rounds(50, 3) {
        let id = served.checkpoint().id.0;
        served.unlink("file0");
        assert_eq!(op.run(|| served.restore(id)), 1, "round {round}");
    }
    tell(
        world,
        report,
        TITLE,
        ("Restore_EmptyWorktree", "the file was deleted"),
        &op,
        |row| row,
    );
    served.end();
}

/// Measures restores of every file of the tree, or of some, to the latest checkpoint and to an
/// older one.
fn whole_tree(world: &mut SeedEnv<'_>, report: &mut Report) {
    let tree = world.tree();
    let files: Vec<PathBuf> = regular_files(&tree, 1);
    let served = InProcessEngine::open(&tree);
    for (which, changed) in [
        (format!("{SOME} changed"), SOME.min(files.len())),
        ("all changed".to_owned(), files.len()),
    ] {
        let what = format!("{} files, {which}", world.files());
        if let Some(why) = no_time_for_all(world).filter(|_| changed > SOME) {
            report.add(
                Seed::Jvs,
                TITLE,
                Row::new(world.fs(), format!("{what}, to the latest")).text(OURS, why),
            );
            continue;
        }
        let mut ops = [Op::default(), Op::default()];
        for round in world.options.rounds(3, 15) {
            let first = served.checkpoint().id.0;
            write_all(&served, &files[..changed], 2 * round + 1);
            let latest = served.checkpoint().id.0;
            write_all(&served, &files[..changed], 2 * round + 2);
            assert_eq!(
                ops[0].run(|| served.restore(latest)),
                changed,
                "every changed file is restored"
            );
            assert_eq!(
                ops[1].run(|| served.restore(first)),
                changed,
                "every changed file is restored"
            );
        }
        for (op, to) in ops.iter().zip(["to the latest", "to an older one"]) {
            tell(
                world,
                report,
                TITLE,
                ("", &format!("{what}, {to}")),
                op,
                |row| row,
            );
        }
    }
    drop(served);
    remove(&tree.join(".ckptfs"));
}

fn write_all(served: &InProcessEngine, files: &[PathBuf], number: usize) {
    files
        .iter()
        .for_each(|file| served.write(served.node(file), number));
}
