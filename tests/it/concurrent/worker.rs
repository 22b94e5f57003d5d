//! A worker performs random operations on its own names, in its own and in shared directories, and
//! checks each against its model.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::concurrent::contention;
use crate::concurrent::model::{DiskNode, Model, ModelNode, WorkerRng, is_below};
use crate::concurrent::role::{ProcessTask, WORKERS};
use crate::concurrent::walk;

/// The root of the tree: the directory of the fight, the workers' directories, the shared ones, and
/// the step counters.
pub const TOP: [&str; 4] = [contention::DIR, "own", "shared", "steps"];
/// The directories of the workers' names.
pub const OWNED: [&str; 2] = ["own", "shared"];
const SHARED_DIRS: usize = 4;
/// The maximum of names of one worker, in one directory and in total.
const NAMES: usize = 8;
const NAMES_MAX: usize = 28;
const BYTES_MAX: usize = 6000;

/// Returns the name of a worker, which is the prefix of its names in shared directories.
pub fn name(index: usize) -> String {
    format!("w{index:02}")
}

/// Creates the initial tree.
pub fn prepare(root: &Path, workers: usize) {
    let make = |path: String| {
        fs::create_dir_all(root.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    make(contention::DIR.to_owned());
    (0..SHARED_DIRS).for_each(|number| make(format!("shared/s{number}")));
    for index in 0..workers {
        make(format!("own/{}", name(index)));
        make(format!("steps/{}", name(index)));
        fs::write(root.join(format!("steps/{}/0", name(index))), "").expect("the tree is new");
    }
}

/// Asserts that in each view every worker is at exactly one step, not earlier than in the previous
/// view.
pub fn steps_follow(snapshots: &Path, views: &[String]) {
    let mut last = [0_u64; WORKERS];
    for view in views {
        for (index, last) in last.iter_mut().enumerate() {
            let dir = snapshots.join(view).join("steps").join(name(index));
            let steps =
                walk::names(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
            assert_eq!(
                steps.len(),
                1,
                "{} is at the steps {steps:?}",
                dir.display()
            );
            let step: u64 = steps[0].parse().expect("a step is a number");
            assert!(
                step >= *last,
                "{} is at step {step}, the previous view at {last}",
                dir.display()
            );
            *last = step;
        }
    }
}

/// Works until the end of the run; returns the operation count and the model.
pub fn work(orders: &ProcessTask) -> (u64, BTreeMap<String, DiskNode>) {
    let started = Instant::now();
    let mut worker = Worker {
        rng: WorkerRng::new(orders.seed),
        tree: orders.tree.clone(),
        me: name(orders.index),
        model: Model::default(),
        step: 0,
    };
    let mut operations = 0_u64;
    while started.elapsed() < orders.limit() {
        worker.operate();
        operations += 1;
    }
    let mut all = worker.model.all();
    if orders.index == 0 {
        (0..SHARED_DIRS)
            .for_each(|number| drop(all.insert(format!("shared/s{number}"), DiskNode::Dir)));
    }
    all.insert(format!("own/{}", worker.me), DiskNode::Dir);
    (operations, all)
}

struct Worker {
    rng: WorkerRng,
    tree: PathBuf,
    me: String,
    model: Model,
    step: u64,
}

impl Worker {
    fn at(&self, path: &str) -> PathBuf {
        self.tree.join(path)
    }

    /// Unwraps a result that must be `Ok`, because only this worker uses the name.
    #[track_caller]
    fn must<T>(what: &str, path: &str, result: io::Result<T>) -> T {
        result.unwrap_or_else(|error| panic!("{what} {path}: {error}"))
    }

    /// Returns a parent directory: the worker's own, a shared one, or one created in the run.
    fn some_dir(&mut self) -> String {
        let made = self.model.paths(|what| *what == ModelNode::Dir);
        match self.rng.below(4) {
            0 => format!("own/{}", self.me),
            1 => format!("shared/s{}", self.rng.below(SHARED_DIRS)),
            _ => self
                .rng
                .of(&made)
                .cloned()
                .unwrap_or_else(|| format!("own/{}", self.me)),
        }
    }

    /// Returns a name of this worker, existing or not.
    fn some_name(&mut self) -> String {
        let dir = self.some_dir();
        format!("{dir}/{}-{}", self.me, self.rng.below(NAMES))
    }

    fn some_path(&mut self, wanted: impl Fn(&ModelNode) -> bool) -> Option<String> {
        let paths = self.model.paths(wanted);
        self.rng.of(&paths).cloned()
    }

    fn some_file(&mut self) -> Option<(String, usize)> {
        let path = self.some_path(|what| matches!(what, ModelNode::File(_)))?;
        match self.model.get(&path) {
            Some(ModelNode::File(number)) => Some((path.clone(), *number)),
            _ => None,
        }
    }

    fn operate(&mut self) {
        match self.rng.below(24) {
            0..=2 => self.make(),
            3..=6 => self.change_content(),
            7..=10 => self.rename(),
            11 => self.exchange(),
            12 | 13 => self.link(),
            14..=16 => self.remove(),
            17 => self.next_step(),
            18 | 19 => self.look(),
            20 => self.list(),
            _ => contention::fight(&mut self.rng, &self.tree),
        }
    }

    fn make(&mut self) {
        let path = self.some_name();
        if self.model.get(&path).is_some() || self.model.len() >= NAMES_MAX {
            return;
        }
        match self.rng.below(6) {
            0 => {
                Self::must("mkdir", &path, fs::create_dir(self.at(&path)));
                self.model.put(&path, ModelNode::Dir);
            }
            1 => {
                let target = format!("to {}", self.rng.below(1000));
                Self::must("symlink", &path, symlink(&target, self.at(&path)));
                self.model.put(&path, ModelNode::Link(target));
            }
            _ => {
                let data = self.rng.content(BYTES_MAX);
                let mut file = Self::must(
                    "create",
                    &path,
                    OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .open(self.at(&path)),
                );
                Self::must("write", &path, file.write_all(&data));
                self.model.create(&path, data);
            }
        }
    }

    fn change_content(&mut self) {
        let Some((path, number)) = self.some_file() else {
            return;
        };
        let (at, data) = (self.at(&path), self.rng.content(BYTES_MAX));
        let mut known = std::mem::take(&mut self.model.contents[number]);
        match self.rng.below(4) {
            0 => {
                Self::must("write", &path, fs::write(at, &data));
                known = data;
            }
            1 => {
                let offset = self.rng.below(known.len() + 1);
                let file = Self::must(
                    "open",
                    &path,
                    OpenOptions::new().read(true).write(true).open(at),
                );
                Self::must("pwrite", &path, file.write_all_at(&data, offset as u64));
                known.resize(known.len().max(offset + data.len()), 0);
                known[offset..offset + data.len()].copy_from_slice(&data);
            }
            2 => {
                let len = self.rng.below(BYTES_MAX);
                let file = Self::must("open", &path, OpenOptions::new().write(true).open(at));
                Self::must("truncate", &path, file.set_len(len as u64));
                known.resize(len, 0);
            }
            _ => {
                let mut file = Self::must("open", &path, OpenOptions::new().append(true).open(at));
                if known.len() < 4 * BYTES_MAX {
                    Self::must("append", &path, file.write_all(&data));
                    known.extend_from_slice(&data);
                }
            }
        }
        self.model.contents[number] = known;
    }

    fn rename(&mut self) {
        let Some(from) = self.some_path(|_| true) else {
            return;
        };
        let to = self.some_name();
        let (moving, target) = (self.model.get(&from).cloned(), self.model.get(&to).cloned());
        if from == to || is_below(&to, &from) || is_below(&from, &to) {
            return;
        }
        let fits = match (&moving, &target) {
            (_, None) => true,
            (Some(ModelNode::Dir), Some(ModelNode::Dir)) => self.model.is_empty_dir(&to),
            (Some(ModelNode::Dir), _) | (_, Some(ModelNode::Dir)) => false,
            // rename(2) of two links to one file succeeds without an effect.
            (one, other) => one != other,
        };
        if fits {
            Self::must(
                "rename",
                &format!("{from} to {to}"),
                fs::rename(self.at(&from), self.at(&to)),
            );
            self.model.rename(&from, &to);
        }
    }

    fn exchange(&mut self) {
        let (Some(one), Some(two)) = (self.some_path(|_| true), self.some_path(|_| true)) else {
            return;
        };
        if one == two || is_below(&one, &two) || is_below(&two, &one) {
            return;
        }
        let result = renameat_with(
            CWD,
            self.at(&one),
            CWD,
            self.at(&two),
            RenameFlags::EXCHANGE,
        );
        Self::must(
            "exchange",
            &format!("{one} and {two}"),
            result.map_err(Into::into),
        );
        self.model.exchange(&one, &two);
    }

    fn link(&mut self) {
        let (Some((from, number)), to) = (self.some_file(), self.some_name()) else {
            return;
        };
        if self.model.get(&to).is_none() && self.model.len() < NAMES_MAX {
            Self::must(
                "link",
                &format!("{from} to {to}"),
                fs::hard_link(self.at(&from), self.at(&to)),
            );
            self.model.put(&to, ModelNode::File(number));
        }
    }

    fn remove(&mut self) {
        let Some(path) = self.some_path(|_| true) else {
            return;
        };
        if self.model.get(&path) != Some(&ModelNode::Dir) {
            Self::must("unlink", &path, fs::remove_file(self.at(&path)));
            self.model.remove(&path);
        } else if self.model.is_empty_dir(&path) {
            Self::must("rmdir", &path, fs::remove_dir(self.at(&path)));
            self.model.remove(&path);
        }
    }

    /// Renames one file continuously: a view with two of its names, or without one, does not show
    /// one instant.
    fn next_step(&mut self) {
        let path = |step: u64| format!("steps/{}/{step}", self.me);
        let (from, to) = (path(self.step), path(self.step + 1));
        Self::must("rename", &from, fs::rename(self.at(&from), self.at(&to)));
        self.step += 1;
    }

    fn look(&mut self) {
        let path = self.some_name();
        match self.model.shown(&path) {
            Some(shown) => assert_eq!(DiskNode::at(&self.at(&path)), shown, "{path}"),
            None => {
                let kind = fs::symlink_metadata(self.at(&path))
                    .map(|stat| stat.file_type())
                    .map_err(|error| error.kind());
                assert_eq!(kind, Err(io::ErrorKind::NotFound), "{path}");
            }
        }
        if let Some(path) = self.some_path(|_| true) {
            assert_eq!(
                Some(DiskNode::at(&self.at(&path))),
                self.model.shown(&path),
                "{path}"
            );
        }
    }

    fn list(&mut self) {
        let dir = self.some_dir();
        let mut listed = Self::must("list", &dir, walk::names(&self.at(&dir)));
        listed.retain(|name| name.starts_with(&self.me));
        let prefix = format!("{dir}/");
        let mut known = self.model.paths(|_| true);
        known.retain(|path| {
            path.strip_prefix(&prefix)
                .is_some_and(|rest| !rest.contains('/'))
        });
        let known: Vec<&str> = known.iter().map(|path| &path[prefix.len()..]).collect();
        assert_eq!(listed, known, "{dir}");
    }
}
