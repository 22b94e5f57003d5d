//! Runs random steps on a tree, its branches and nested branches, and shrinks failures.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::side::BranchSide;
use crate::common::image::DEFAULT_BYTES;
use crate::common::random::{count, seed};
use crate::common::{Fs, Image, skip};
use crate::model::generate::{Generator, Random};
use crate::model::ops::{Op, Verb};
use ckptfs_core::engine::IoChoice;

/// Maximum number of trees.
const SIDES_MAX: usize = 4;
/// Limit for the shrinking of a failure.
const SHRINK: Duration = Duration::from_secs(60);
/// Weights of the operations, as in tests/it/model.
const WEIGHTS: &[(u64, Verb)] = &[
    (5, Verb::Create),
    (12, Verb::Put),
    (9, Verb::Write),
    (5, Verb::Append),
    (5, Verb::Truncate),
    (9, Verb::Unlink),
    (9, Verb::Mkdir),
    (5, Verb::Rmdir),
    (16, Verb::Rename),
    (2, Verb::RenameNoReplace),
    (5, Verb::Exchange),
    (7, Verb::Link),
    (3, Verb::Symlink),
    (2, Verb::Mkfifo),
    (1, Verb::Mksock),
    (4, Verb::Chmod),
    (3, Verb::Chown),
    (4, Verb::Utimens),
    (4, Verb::SetXattr),
    (2, Verb::RemoveXattr),
    (2, Verb::Punch),
    (3, Verb::Copy),
    (6, Verb::Open),
    (6, Verb::HandleWrite),
    (2, Verb::HandleTruncate),
    (4, Verb::HandleRead),
    (1, Verb::Fsync),
    (3, Verb::Close),
    (5, Verb::Checkpoint),
    (3, Verb::Restore),
    (2, Verb::Delete),
    (3, Verb::Remount),
    (3, Verb::Idle),
    (16, Verb::CheckLive),
    (2, Verb::CheckViews),
];

/// A step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the tree; 0 is the root of all branches.
    pub on: usize,
    /// `None`: creates a branch.
    pub op: Option<Op>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Some(op) => write!(f, "{} {op}", self.on),
            None => write!(f, "{} branch", self.on),
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(line: &str) -> Result<Step, String> {
        let (on, op) = line
            .trim()
            .split_once(' ')
            .ok_or("a tree and a step are expected")?;
        Ok(Step {
            on: on.parse().map_err(|_| format!("{on} is not a tree"))?,
            op: match op {
                "branch" => None,
                op => Some(op.parse()?),
            },
        })
    }
}

/// Parses a list of steps; `#` starts a comment.
pub fn steps(text: &str) -> Vec<Step> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""));
    lines
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.parse().unwrap_or_else(|told| panic!("{line}: {told}")))
        .collect()
}

/// A tree and its branches.
struct BranchTrees {
    /// Branches follow their parents.
    sides: Vec<BranchSide>,
    dir: std::path::PathBuf,
}

impl BranchTrees {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let number = self.sides.len();
        let Some(side) = self.sides.get_mut(step.on) else {
            return Ok(());
        };
        match &step.op {
            None if number >= SIDES_MAX => Ok(()),
            None => {
                let dir = self.dir.join(format!("t{number}"));
                std::fs::create_dir(&dir).map_err(|error| error.to_string())?;
                let mut branch = side.branch(step.on, &dir)?;
                let same = branch.check_live();
                self.sides.push(branch);
                same.map_err(|told| format!("a fresh branch: {told}"))
            }
            Some(op) if op.verb == Verb::Remount => self.remount(step.on),
            Some(op) => side.run(op),
        }
    }

    /// Stops and restarts a tree and all its branches.
    fn remount(&mut self, on: usize) -> Result<(), String> {
        let mut ended = vec![on];
        for (number, side) in self.sides.iter().enumerate() {
            if side
                .from
                .as_ref()
                .is_some_and(|from| ended.contains(&from.side))
            {
                ended.push(number);
            }
        }
        for number in ended.iter().rev() {
            self.sides[*number].close();
        }
        for number in ended {
            let base = self.sides[number]
                .from
                .as_ref()
                .map(|from| self.sides[from.side].base(from.at));
            self.sides[number].open(base)?;
        }
        Ok(())
    }

    /// Checks all trees.
    fn check(&mut self) -> Result<(), String> {
        for (number, side) in self.sides.iter_mut().enumerate() {
            side.check_live()
                .and_then(|()| side.check_views())
                .map_err(|told| format!("tree {number}: {told}"))?;
        }
        Ok(())
    }
}

/// Source of the steps.
enum Source<'a> {
    List(&'a [Step]),
    /// Seed, number of steps, and whether branches are created.
    Seed(u64, u64, bool),
}

pub struct Failure {
    steps: Vec<Step>,
    problem: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", text(&self.steps), self.problem)
    }
}

/// Fresh directories on one image.
pub struct BranchBench {
    image: Image,
    io: IoChoice,
    next: AtomicU64,
}

impl BranchBench {
    /// Returns `None`, after a message, if the filesystem is not available.
    pub fn new(fs: Fs, io: IoChoice) -> Option<BranchBench> {
        match fs.unavailable() {
            Some(reason) => {
                skip(&reason);
                None
            }
            None => Some(BranchBench {
                image: Image::in_memory(fs, DEFAULT_BYTES),
                io,
                next: AtomicU64::new(1),
            }),
        }
    }

    /// Runs a list.
    pub fn list(&self, list: &[Step]) -> Result<(), Failure> {
        self.once(&Source::List(list))
    }

    fn once(&self, source: &Source<'_>) -> Result<(), Failure> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let dir = self.image.dir(&format!("r{number}"));
        let mut done = Vec::new();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let first = dir.join("t0");
            std::fs::create_dir(&first).map_err(|error| error.to_string())?;
            let mut sides = BranchTrees {
                sides: vec![BranchSide::new(&first, self.io)?],
                dir: dir.clone(),
            };
            let result = drive(&mut sides, source, &mut done);
            // A branch is stopped before its parent.
            while sides.sides.pop().is_some() {}
            result
        }));
        let result = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        });
        if let Err(error) = std::fs::remove_dir_all(&dir) {
            eprintln!("branch_model: {} was not removed: {error}", dir.display());
        }
        result.map_err(|problem| Failure {
            steps: done,
            problem,
        })
    }

    /// Runs seeds, with or without branches: `CKPTFS_SEED`, `CKPTFS_CASES`, `CKPTFS_OPS`;
    /// `CKPTFS_REPLAY=FILE` runs one list.
    pub fn seeds(&self, name: &str, branches: bool) {
        if let Ok(file) = std::env::var("CKPTFS_REPLAY") {
            let text = std::fs::read_to_string(&file);
            let list = steps(&text.unwrap_or_else(|error| panic!("{file}: {error}")));
            return self
                .list(&list)
                .unwrap_or_else(|failure| self.fail(name, "a replay", failure));
        }
        let first = seed(name, 1);
        let (cases, length) = (count("CKPTFS_CASES", 8, 300), count("CKPTFS_OPS", 160, 300));
        for seed in first..first + cases {
            self.once(&Source::Seed(seed, length, branches))
                .unwrap_or_else(|failure| self.fail(name, &format!("CKPTFS_SEED={seed}"), failure));
        }
    }

    /// Shrinks a failure and panics with it.
    pub fn fail(&self, name: &str, what: &str, failure: Failure) {
        let (steps, problem) = (failure.steps.len(), &failure.problem);
        eprintln!("{name}: {what} failed after {steps} steps: {problem}");
        let run = |list: &[Step]| self.list(list).err().map(|failure| failure.problem);
        let (list, problem) = shrink(failure.steps, failure.problem, SHRINK, run);
        panic!(
            "{name}: {what} failed; shrunk to {} steps:\n{}{problem}\n(CKPTFS_REPLAY=FILE replays a list; the list of a fixed bug belongs in tests/it/branch_model/cases.rs)",
            list.len(),
            text(&list)
        );
    }
}

/// Removes steps that the failure does not need, larger parts first. `run` returns the problem of a
/// list.
pub fn shrink<T: Clone>(
    mut list: Vec<T>,
    mut problem: String,
    limit: Duration,
    run: impl Fn(&[T]) -> Option<String>,
) -> (Vec<T>, String) {
    let started = Instant::now();
    let mut part = list.len().div_ceil(2);
    while part > 0 && started.elapsed() < limit {
        let (mut at, mut smaller) = (0, false);
        while at < list.len() && started.elapsed() < limit {
            let mut shorter = list.clone();
            shorter.drain(at..list.len().min(at + part));
            match run(&shorter) {
                Some(told) => {
                    (list, problem) = (shorter, told);
                    smaller = true;
                }
                None => at += part,
            }
        }
        part = if part == 1 && smaller { 1 } else { part / 2 };
    }
    (list, problem)
}

/// Formats a list.
pub fn text(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}

/// Draws or reads steps and performs them; `done` receives those performed.
fn drive(sides: &mut BranchTrees, source: &Source<'_>, done: &mut Vec<Step>) -> Result<(), String> {
    let mut step = |sides: &mut BranchTrees, step: Step| {
        done.push(step.clone());
        sides
            .step(&step)
            .map_err(|problem| format!("at {step}: {problem}"))
    };
    match source {
        Source::List(list) => list.iter().try_for_each(|one| step(sides, one.clone()))?,
        Source::Seed(seed, length, branches) => {
            let mut random = Random::new(seed.wrapping_mul(0x51_7c_c1));
            let generator = |number| Generator::of(seed * SIDES_MAX as u64 + number, WEIGHTS);
            let mut generators: Vec<Generator> = (0..SIDES_MAX as u64).map(generator).collect();
            for number in 0..*length {
                let count = sides.sides.len();
                // Branches are created at intervals, the first one early, each from a random tree.
                let due = length * (2 * count as u64 - 1) / (2 * SIDES_MAX as u64 + 1);
                if *branches && count < SIDES_MAX && number >= due {
                    let on = random.below(count as u64) as usize;
                    step(sides, Step { on, op: None })?;
                    continue;
                }
                // The newest tree is used most.
                let on = match random.one_in(2) {
                    true => count - 1,
                    false => random.below(count as u64) as usize,
                };
                let op = generators[on].next(&sides.sides[on].scene());
                step(sides, Step { on, op: Some(op) })?;
            }
        }
    }
    sides
        .check()
        .map_err(|problem| format!("at the end: {problem}"))
}

/// A list survives a round trip through its text.
#[test]
fn a_list_is_read_as_it_was_written() {
    let text = "0 put a 5 6\n0 branch\n1 rename a/odd b\n1 check-live\n";
    let list = steps(text);
    assert_eq!(super::run::text(&list), text);
}
