//! Cost of the size of a tree: the verbs, and the daemon's memory.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::common::Image;
use crate::lanes::{Column, Lane};
use crate::shared::markdown;
use crate::shared::stats::{Samples, ms};
use crate::workload::{shell, timed};
use ckptfs_api::{
    CheckpointOptions, Client, Compare, Delete, RestoreOptions, StateName, VerbError,
};

/// The name for `--only`.
pub const NAME: &str = "tree";
const SIZES: [usize; 3] = [1_000, 36_000, 250_000];
const DIRTY: [usize; 3] = [1, 60, 10_000];
const DIRECTORY: usize = 100;
const ROUNDS: usize = 3;

/// The memory bound: bytes per inode cached by the kernel, plus a base.
const INODE_BYTES: u64 = 200;
const BASE_BYTES: u64 = 64 << 20;

/// Times of the verbs on a tree of `files`, of which `dirty` were written since the previous
/// checkpoint, in microseconds: median, minimum, maximum.
#[derive(Clone, Debug, Serialize)]
pub struct Verb {
    pub fs: &'static str,
    pub files: usize,
    pub dirty: usize,
    pub rounds: usize,
    pub checkpoint_us: [f64; 3],
    pub diff_us: [f64; 3],
    pub restore_us: [f64; 3],
}

/// The daemon's resident memory after a walk over every file.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    pub fs: &'static str,
    pub inodes: usize,
    pub before_bytes: u64,
    pub after_bytes: u64,
    pub bound_bytes: u64,
}

/// Measures both on trees of every size.
pub fn measure(image: &Image, quick: bool) -> (Vec<Verb>, Vec<Memory>) {
    let fs = image.fs().name();
    let (mut verbs, mut memory) = (Vec::new(), Vec::new());
    for files in SIZES
        .into_iter()
        .filter(|files| !quick || *files < SIZES[2])
    {
        eprintln!("{fs}: a tree of {files} files");
        let dir = image.dir(&format!("tree-{files}"));
        let paths = fill(&dir, files);
        let lane = Lane::over(&dir, Column::Passthrough);
        let daemon = lane.daemon().expect("a ckptfs mount has a daemon");
        let before_bytes = resident(daemon);
        timed(&mut shell(lane.root(), "find . -printf '%s\\n'"));
        let inodes = files + files / DIRECTORY + 1;
        memory.push(Memory {
            fs,
            inodes,
            before_bytes,
            after_bytes: resident(daemon),
            bound_bytes: INODE_BYTES * inodes as u64 + BASE_BYTES,
        });
        eprintln!("{:?}", memory.last());
        let mut client = lane.client();
        for dirty in DIRTY.into_iter().filter(|dirty| *dirty <= files) {
            verbs.push(round(
                &mut client,
                lane.root(),
                &paths,
                (fs, dirty),
                if quick { 1 } else { ROUNDS },
            ));
            eprintln!("{:?}", verbs.last());
        }
        drop(client);
        drop(lane);
        fs::remove_dir_all(&dir).expect("a tree can be removed");
    }
    (verbs, memory)
}

/// Makes files of 64 bytes, 100 per directory; returns their relative paths.
fn fill(dir: &Path, files: usize) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = (0..files)
        .map(|index| PathBuf::from(format!("d{}/f{index}", index / DIRECTORY)))
        .collect();
    for (index, path) in paths.iter().enumerate() {
        if index % DIRECTORY == 0 {
            fs::create_dir(
                dir.join(path)
                    .parent()
                    .expect("a file has a parent directory"),
            )
            .expect("a directory can be created");
        }
        write_stamp(&dir.join(path), 0);
    }
    paths
}

fn write_stamp(path: &Path, stamp: usize) {
    File::create(path)
        .and_then(|mut file| file.write_all(format!("{stamp:064}").as_bytes()))
        .expect("a file can be written");
}

fn fail(error: VerbError) -> ! {
    panic!("a verb failed: {error}")
}

fn delete(client: &mut Client, id: String) {
    let delete = Delete {
        state: StateName(id),
        now: false,
    };
    client.ask(delete).unwrap_or_else(|error| fail(error));
}

fn round(
    client: &mut Client,
    root: &Path,
    paths: &[PathBuf],
    (fs, dirty): (&'static str, usize),
    rounds: usize,
) -> Verb {
    let (mut checkpoint, mut diff, mut restore) =
        (Samples::default(), Samples::default(), Samples::default());
    let step = paths.len() / dirty;
    for round in 1..=rounds {
        let base = client
            .ask(CheckpointOptions::default())
            .unwrap_or_else(|error| fail(error))
            .id
            .to_string();
        paths
            .iter()
            .step_by(step)
            .take(dirty)
            .for_each(|path| write_stamp(&root.join(path), round * 100_000 + dirty));
        let made = checkpoint
            .time(|| client.ask(CheckpointOptions::default()))
            .unwrap_or_else(|error| fail(error))
            .id
            .to_string();
        let found = diff
            .time(|| {
                client.ask(Compare {
                    from: StateName(base.clone()),
                    to: Some(StateName(made.clone())),
                    sizes: false,
                })
            })
            .unwrap_or_else(|error| fail(error));
        assert_eq!(
            found.len(),
            dirty,
            "the difference is the set of changed files"
        );
        let options = RestoreOptions {
            to: StateName(base.clone()),
            paths: Vec::new(),
            dry_run: false,
            times: None,
        };
        let restored = restore
            .time(|| client.ask(options))
            .unwrap_or_else(|error| fail(error));
        assert_eq!(
            restored.changes.len(),
            dirty,
            "a restore changes exactly the modified files"
        );
        let guard = restored.guard.map(|id| id.to_string());
        for id in [Some(base), Some(made), guard].into_iter().flatten() {
            delete(client, id);
        }
    }
    let three = |samples: &Samples| [samples.p50(), samples.at(0.0), samples.max()];
    Verb {
        fs,
        files: paths.len(),
        dirty,
        rounds,
        checkpoint_us: three(&checkpoint),
        diff_us: three(&diff),
        restore_us: three(&restore),
    }
}

/// Returns the resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon is alive");
    let kb = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    kb.expect("the kernel reports the resident memory") * 1024
}

pub fn verb_table(verbs: &[Verb]) -> String {
    let cell =
        |[median, least, most]: [f64; 3]| format!("{} ({} to {})", ms(median), ms(least), ms(most));
    let row = |verb: &Verb| {
        let mut row = vec![
            verb.fs.to_owned(),
            verb.files.to_string(),
            verb.dirty.to_string(),
            verb.rounds.to_string(),
        ];
        row.extend([verb.checkpoint_us, verb.diff_us, verb.restore_us].map(cell));
        row
    };
    let rows: Vec<Vec<String>> = verbs.iter().map(row).collect();
    markdown::table(
        &[
            "",
            "files",
            "dirty",
            "rounds",
            "checkpoint",
            "diff",
            "restore",
        ],
        &rows,
    )
}

pub fn memory_table(memory: &[Memory]) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let row = |memory: &Memory| {
        let verdict = if memory.after_bytes <= memory.bound_bytes {
            "met"
        } else {
            "**not met**"
        };
        let each = memory.after_bytes.saturating_sub(memory.before_bytes) / memory.inodes as u64;
        let mut row = vec![memory.fs.to_owned(), memory.inodes.to_string()];
        row.extend([
            mib(memory.before_bytes),
            mib(memory.after_bytes),
            each.to_string(),
            mib(memory.bound_bytes),
            verdict.to_owned(),
        ]);
        row
    };
    let rows: Vec<Vec<String>> = memory.iter().map(row).collect();
    markdown::table(
        &[
            "",
            "inodes known to the kernel",
            "resident before",
            "after a walk",
            "bytes each",
            "at most",
            "",
        ],
        &rows,
    )
}
