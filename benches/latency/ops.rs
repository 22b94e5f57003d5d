//! Plain operations in the mount, compared with a plain directory on the same filesystem.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::path::{Path, PathBuf};

use crate::common::command::{succeeds, tool};
use crate::report::Report;
use crate::rig::{Rig, make_checkpoint, write_stamp};
use crate::shared::stats::Samples;

/// Files per operation and round.
const BATCH: usize = 200;
/// The directory of a file with many names.
const MANY: &str = "bench-names";
/// The number of its names.
const NAMES: usize = 10_000;
/// Time limit for the copy of the tree.
const COPY_SECONDS: u64 = 600;

/// One operation with its times per file in the mount and in the plain directory.
struct Op {
    what: &'static str,
    mount: Samples,
    plain: Samples,
}

/// Measures all operations, interleaved, and adds the table.
pub fn compare(rig: &mut Rig<'_>, quick: bool, report: &mut Report) {
    let plain = rig.tree.image.path().join("plain");
    rig.mount.umount();
    let mut copy = tool("cp", &["-a", "--reflink=always"]);
    succeeds(copy.arg(rig.mount.path()).arg(&plain), COPY_SECONDS);
    // The history is not part of the tree.
    fs::remove_dir_all(plain.join(".ckptfs")).expect("the copied history can be removed");
    rig.mount_again();
    let ops = measure(rig, &plain, if quick { 3 } else { 20 });
    let name = rig.name();
    for op in &ops {
        let (mount, plain) = (op.mount.p50(), op.plain.p50());
        let row = vec![
            name.clone(),
            op.what.to_owned(),
            op.mount.len().to_string(),
            format!("{plain:.1}"),
            format!("{mount:.1}"),
            format!("{:.1}", op.mount.max()),
            format!("{:.1}x", mount / plain),
        ];
        let head = [
            "mount",
            "operation",
            "rounds",
            "plain us",
            "through the mount us",
            "worst round us",
            "ratio",
        ];
        report.row(
            "ops",
            "Plain operations, microseconds for each file (median of rounds)",
            &head,
            row,
        );
    }
    fs::remove_dir_all(&plain).expect("Plain operations, microseconds per file (median of rounds)");
}

/// Returns the operation of this name, or adds it.
fn op_of<'a>(ops: &'a mut Vec<Op>, what: &'static str) -> &'a mut Op {
    let index = ops.iter().position(|op| op.what == what);
    let index = index.unwrap_or_else(|| {
        ops.push(Op {
            what,
            mount: Samples::default(),
            plain: Samples::default(),
        });
        ops.len() - 1
    });
    &mut ops[index]
}

fn measure(rig: &mut Rig<'_>, plain: &Path, rounds: usize) -> Vec<Op> {
    let mounted = rig.mount.path().to_owned();
    let mut client = rig.client();
    let mut ops: Vec<Op> = Vec::new();
    let mut both = |what: &'static str, files: usize, run: &mut dyn FnMut(&Path)| {
        let op = op_of(&mut ops, what);
        for (samples, root) in [(&mut op.plain, plain), (&mut op.mount, mounted.as_path())] {
            let mut took = Samples::default();
            took.time(|| run(root));
            samples.add_us(took.max() / files as f64);
        }
    };
    [plain, &mounted].into_iter().for_each(make_many);
    for _ in 0..rounds {
        let files = rig.files(BATCH);
        let stamp = rig.stamp();
        let mut write = |root: &Path| {
            files
                .iter()
                .for_each(|file| write_stamp(&open_to_write(&root.join(file)), stamp))
        };
        make_checkpoint(&mut client);
        both(
            "first write after a checkpoint (open, write, close)",
            BATCH,
            &mut write,
        );
        both("second write", BATCH, &mut write);
        both("open, read all, close", BATCH, &mut |root| {
            files
                .iter()
                .for_each(|file| drop(black_box(fs::read(root.join(file)))))
        });
        both(
            "stat of every file (walk)",
            crate::rig::FILES,
            &mut |root| {
                black_box(walk(root));
            },
        );
        new_files(&mut both, [plain, &mounted]);
        names(&mut both);
        let old = rig.files(BATCH);
        make_checkpoint(&mut client);
        both("unlink of a file in a checkpoint", BATCH, &mut |root| {
            old.iter()
                .for_each(|file| fs::remove_file(root.join(file)).expect("a file can be removed"));
        });
        old.iter().for_each(|file| {
            for root in [plain, &mounted] {
                fs::write(root.join(file), [b'x'; 4096]).expect("a file can be recreated");
            }
        });
    }
    for root in [plain, &mounted] {
        fs::remove_dir_all(root.join(MANY)).expect("a directory can be removed");
    }
    ops
}

fn make_many(root: &Path) {
    let dir = root.join(MANY);
    fs::create_dir(&dir).expect("a directory can be created");
    fs::write(dir.join("file"), "x").expect("a file can be created");
    link(&dir, 1..NAMES);
}

/// Measures an operation in both places, given its name and number of files.
type Both<'a> = dyn FnMut(&'static str, usize, &mut dyn FnMut(&Path)) + 'a;

/// Measures creation, rename and removal of files.
fn new_files(both: &mut Both<'_>, roots: [&Path; 2]) {
    let new: Vec<PathBuf> = (0..BATCH)
        .map(|index| Path::new("bench-new").join(format!("file-{index}")))
        .collect();
    for root in roots {
        fs::create_dir(root.join("bench-new")).expect("a directory can be created");
    }
    both("create, write, close", BATCH, &mut |root| {
        new.iter().for_each(|file| {
            write_stamp(
                &File::create_new(root.join(file)).expect("a file can be created"),
                1,
            )
        })
    });
    both("rename", BATCH, &mut |root| {
        new.iter().for_each(|file| {
            fs::rename(root.join(file), root.join(file).with_extension("b"))
                .expect("a file can be renamed")
        });
    });
    both(
        "unlink of a file created after the checkpoint",
        BATCH,
        &mut |root| {
            new.iter().for_each(|file| {
                fs::remove_file(root.join(file).with_extension("b")).expect("a file can be removed")
            });
        },
    );
    for root in roots {
        fs::remove_dir(root.join("bench-new")).expect("a directory can be removed");
    }
}

/// Adds and removes names of a file that has 10,000.
fn names(both: &mut Both<'_>) {
    let dir = |root: &Path| root.join(MANY);
    // The first change after a checkpoint records every known name.
    both(
        "first link to a file with 10,000 names after a checkpoint",
        1,
        &mut |root| link(&dir(root), NAMES..NAMES + 1),
    );
    both("link to a file with 10,000 names", BATCH, &mut |root| {
        link(&dir(root), NAMES + 1..NAMES + 1 + BATCH)
    });
    both("unlink of one of 10,000 names", BATCH + 1, &mut |root| {
        (NAMES..NAMES + 1 + BATCH).for_each(|name| {
            fs::remove_file(dir(root).join(name.to_string())).expect("a name can be removed")
        });
    });
}

/// Makes further hard links to `file`.
fn link(dir: &Path, names: std::ops::Range<usize>) {
    names.for_each(|name| {
        fs::hard_link(dir.join("file"), dir.join(name.to_string())).expect("a link can be created")
    });
}

fn open_to_write(path: &Path) -> File {
    OpenOptions::new()
        .write(true)
        .open(path)
        .expect("a file can be opened")
}

/// Returns the number of files below `root` after a stat of each.
fn walk(root: &Path) -> usize {
    let mut found = 0;
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).expect("the tree can be listed") {
            let entry = entry.expect("the tree can be listed");
            let meta = entry.metadata().expect("the tree can be read");
            if entry.file_name() == ".ckptfs" {
                continue;
            }
            if meta.is_dir() {
                pending.push(entry.path());
            } else {
                found += 1;
            }
        }
    }
    found
}
