//! The daemon is killed at random moments while processes work and checkpoints are made, deleted
//! and restored.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::load::CrashLoad;
use super::usual_seed;
use super::worker_processes::{OpLog, WORKERS, WorkerProcesses, again, part};
use crate::common::random::{Random, count, seed};
use crate::common::tree::{Tree, TreeOpts, compare, copy_tree, tree, try_tree_without};
use crate::common::{Mount, MountOpts, Rig, Variant, for_each_variant, scratch};

/// Kills per variant.
const KILLS: u64 = 3;
const KILLS_LONG: u64 = 55;
/// Maximum life of a daemon.
const LIFE_MS: u64 = 1500;

/// The expected state of a checkpoint.
#[derive(Clone, Debug, Default)]
struct ExpectedCheckpoint {
    /// Content of its view.
    tree: Option<Tree>,
    tags: Vec<String>,
    /// A plain copy of the workers' directories, if they were paused.
    plain: Option<PathBuf>,
}

/// A verb without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PendingVerb {
    Nothing,
    Checkpoint { tags: Vec<String>, quiet: bool },
    Delete(u64),
    Restore { to: u64, paths: Vec<String> },
}

struct KillModel {
    known: BTreeMap<u64, ExpectedCheckpoint>,
    under_way: PendingVerb,
    /// Newest checkpoint, deleted or not.
    last: u64,
    tags: u64,
    /// Plain directory to which all answered operations are applied.
    plain: PathBuf,
    copies: u64,
    /// The verbs, printed on failure.
    history: Vec<String>,
}

/// Returns the answer of a verb, or `None` if it failed because the daemon died.
fn answer(output: &Output) -> Option<serde_json::Value> {
    if output.status.success() {
        return Some(serde_json::from_slice(&output.stdout).expect("--json prints JSON"));
    }
    None
}

impl KillModel {
    fn new(root: &Path, plain: PathBuf) -> KillModel {
        copy_tree(root, &plain);
        KillModel {
            known: BTreeMap::new(),
            under_way: PendingVerb::Nothing,
            last: 0,
            tags: 0,
            plain,
            copies: 0,
            history: Vec::new(),
        }
    }

    fn copy(&mut self) -> PathBuf {
        self.copies += 1;
        let to = self.plain.with_file_name(format!("copy-{}", self.copies));
        copy_tree(&self.plain, &to);
        to
    }

    fn restore_plain(&self, from: &Path, paths: &[String]) {
        let parts: Vec<String> = if paths.is_empty() {
            (0..WORKERS).map(part).collect()
        } else {
            paths.to_vec()
        };
        for part in parts {
            fs::remove_dir_all(self.plain.join(&part)).unwrap();
            copy_tree(&from.join(&part), &self.plain.join(&part));
        }
    }

    fn made(&mut self, id: u64, known: ExpectedCheckpoint) {
        self.last = id;
        self.known.insert(id, known);
        self.under_way = PendingVerb::Nothing;
    }
}

/// One life of the daemon: verbs until it is killed.
struct DaemonLife<'a> {
    world: &'a mut KillModel,
    mount: &'a Mount,
    dead: &'a AtomicBool,
    random: Random,
    /// Operations of each process that are applied to the plain directory.
    replayed: Vec<usize>,
    dir: &'a Path,
}

impl DaemonLife<'_> {
    fn run(&mut self, crew: &WorkerProcesses) {
        while !self.dead.load(Ordering::SeqCst) {
            match self.random.below(12) {
                0..=3 => self.checkpoint(),
                4..=6 => self.quietly(crew, DaemonLife::quiet_checkpoint),
                7..=8 => self.delete(),
                9..=10 => self.quietly(crew, DaemonLife::restore),
                _ => thread::sleep(Duration::from_millis(self.random.below(30))),
            }
        }
    }

    fn quietly(&mut self, crew: &WorkerProcesses, what: fn(&mut Self)) {
        crew.pause();
        if !self.dead.load(Ordering::SeqCst) {
            self.catch_up();
            what(self);
        }
        if self.world.under_way == PendingVerb::Nothing {
            crew.work();
        }
    }

    /// Applies the operations of the processes to the plain directory.
    fn catch_up(&mut self) {
        for (index, done) in super::worker_processes::done(self.dir)
            .into_iter()
            .enumerate()
        {
            let plain = self.world.plain.join(part(index as u64));
            for op in &done.answered[self.replayed[index]..] {
                again(op, &plain).unwrap_or_else(|problem| panic!("{problem}"));
            }
            self.replayed[index] = done.answered.len();
        }
    }

    fn verb(&mut self, under_way: PendingVerb, arguments: &[&str]) -> Option<serde_json::Value> {
        self.world.under_way = under_way.clone();
        let answer = answer(&self.mount.run(&[arguments, &["--json"]].concat()));
        self.world.history.push(format!(
            "{under_way:?}: {}",
            answer
                .as_ref()
                .map_or("no answer".to_owned(), |answer| answer["id"].to_string())
        ));
        if answer.is_some() {
            self.world.under_way = PendingVerb::Nothing;
        }
        answer
    }

    fn make(&mut self, quiet: bool) {
        let mut tags = Vec::new();
        if self.random.once_in(3) {
            self.world.tags += 1;
            tags.push(format!("tag-{}", self.world.tags));
        }
        let mut arguments = vec!["checkpoint"];
        for tag in &tags {
            arguments.extend(["--tag", tag]);
        }
        let plain = quiet.then(|| self.world.copy());
        let expected = quiet.then(|| read(self.mount.path())).flatten();
        let Some(made) = self.verb(
            PendingVerb::Checkpoint {
                tags: tags.clone(),
                quiet,
            },
            &arguments,
        ) else {
            return;
        };
        let id = made["id"].as_u64().expect("a checkpoint has an id");
        // Reading a view is the slowest step: most views are read after the kill.
        let shown = if self.random.once_in(4) {
            read(&self.mount.view(id))
        } else {
            None
        };
        if let (Some(expected), Some(shown)) = (&expected, &shown) {
            assert_eq!(
                compare(shown, expected, &TreeOpts::default()),
                Vec::<String>::new(),
                "checkpoint {id} and the unchanged tree"
            );
        }
        self.world.made(
            id,
            ExpectedCheckpoint {
                tree: expected.or(shown),
                tags,
                plain,
            },
        );
    }

    fn checkpoint(&mut self) {
        self.make(false);
    }

    fn quiet_checkpoint(&mut self) {
        self.make(true);
    }

    fn delete(&mut self) {
        if self.world.known.len() < 4 {
            return;
        }
        let ids: Vec<u64> = self.world.known.keys().copied().collect();
        let id = *self.random.pick(&ids);
        if self
            .verb(
                PendingVerb::Delete(id),
                &["delete", "--yes", &id.to_string()],
            )
            .is_some()
        {
            self.world.known.remove(&id);
        }
    }

    fn restore(&mut self) {
        let quiet: Vec<u64> = self
            .world
            .known
            .iter()
            .filter(|(_, known)| known.plain.is_some())
            .map(|(id, _)| *id)
            .collect();
        if quiet.is_empty() {
            return;
        }
        let id = *self.random.pick(&quiet);
        let paths = if self.random.once_in(2) {
            vec![part(self.random.below(WORKERS))]
        } else {
            Vec::new()
        };
        let (text, before) = (id.to_string(), read(self.mount.path()));
        let mut arguments = vec!["restore", text.as_str()];
        arguments.extend(paths.iter().map(String::as_str));
        let plain = self.world.copy();
        let Some(restored) = self.verb(
            PendingVerb::Restore {
                to: id,
                paths: paths.clone(),
            },
            &arguments,
        ) else {
            return;
        };
        let Some(guard) = restored["guard"].as_u64() else {
            assert_eq!(
                restored["changes"],
                serde_json::json!([]),
                "only a restore without changes has no guard"
            );
            return;
        };
        let from = self.world.known[&id]
            .plain
            .clone()
            .expect("chosen because it has one");
        self.world.restore_plain(&from, &paths);
        self.world.made(
            guard,
            ExpectedCheckpoint {
                tree: before,
                tags: Vec::new(),
                plain: Some(plain),
            },
        );
    }
}

/// Reads a tree; `None` if the mount dies.
fn read(root: &Path) -> Option<Tree> {
    try_tree_without(root, &TreeOpts::default().ignore).ok()
}

/// Reports whether all workers' directories equal their plain copies, except for times.
fn is_as(live: &Path, plain: &Path) -> bool {
    let opts = TreeOpts {
        mtime: false,
        dir_mtime: false,
        ..TreeOpts::default()
    };
    (0..WORKERS)
        .map(part)
        .all(|part| compare(&tree(&live.join(&part)), &tree(&plain.join(&part)), &opts).is_empty())
}

/// Checks the state after a kill: the unanswered verb took effect or not, and everything else is as
/// answered.
fn settle(rig: &Rig, world: &mut KillModel, done: &[OpLog]) -> Result<(), String> {
    let log = rig.mount.log_json();
    let entries = log.as_array().expect("the log is a list");
    let ids: Vec<u64> = entries
        .iter()
        .filter_map(|entry| entry["id"].as_u64())
        .rev()
        .collect();
    let new: Vec<u64> = ids.iter().copied().filter(|id| *id > world.last).collect();
    if new.len() > 1 {
        return Err(format!(
            "no reply came for the checkpoints {new:?}, but only one was in progress"
        ));
    }
    let before = world.plain.clone();
    settle_under_way(rig, world, &ids, new.first().copied())?;
    assert_eq!(before, world.plain);
    let expected: Vec<u64> = world.known.keys().copied().collect();
    if ids != expected {
        return Err(format!(
            "the checkpoints are {ids:?}, expected {expected:?}"
        ));
    }
    for entry in entries {
        let known = &world.known[&entry["id"].as_u64().expect("an id")];
        if entry["tags"] != serde_json::json!(known.tags) {
            return Err(format!("the tags of {entry} are not {:?}", known.tags));
        }
    }
    for (index, done) in done.iter().enumerate() {
        let part = part(index as u64);
        done.compare(&world.plain.join(&part), &rig.path().join(&part))
            .map_err(|problem| format!("{part}: {problem}"))?;
    }
    Ok(())
}

/// Resolves the unanswered verb; `new` is the checkpoint it made, if any.
fn settle_under_way(
    rig: &Rig,
    world: &mut KillModel,
    ids: &[u64],
    new: Option<u64>,
) -> Result<(), String> {
    match (
        std::mem::replace(&mut world.under_way, PendingVerb::Nothing),
        new,
    ) {
        (PendingVerb::Checkpoint { tags, quiet }, Some(id)) => {
            let plain = quiet.then(|| world.copy());
            world.made(
                id,
                ExpectedCheckpoint {
                    tree: None,
                    tags,
                    plain,
                },
            );
        }
        (PendingVerb::Restore { to, paths }, Some(id)) => {
            let plain = Some(world.copy());
            // The guard is made first. If the kill came right after it, the restore had not begun
            // and the tree is unchanged, because the workers were paused.
            if is_as(rig.path(), &world.plain) {
                println!("killed between a guard and its restore");
            } else {
                let from = world.known[&to]
                    .plain
                    .clone()
                    .expect("chosen because it has one");
                world.restore_plain(&from, &paths);
            }
            world.made(
                id,
                ExpectedCheckpoint {
                    tree: None,
                    tags: Vec::new(),
                    plain,
                },
            );
        }
        (PendingVerb::Delete(id), None) if !ids.contains(&id) => drop(world.known.remove(&id)),
        (_, None) => {}
        (under_way, Some(id)) => {
            return Err(format!(
                "checkpoint {id} was not requested: {under_way:?} was in progress"
            ));
        }
    }
    Ok(())
}

/// Checks that every view is unchanged and that `status` lists exactly the differences.
fn check(rig: &Rig, world: &mut KillModel) -> Result<(), String> {
    for (id, known) in &mut world.known {
        let shown = tree(&rig.view(*id));
        match &known.tree {
            Some(tree) => {
                let differences = compare(&shown, tree, &TreeOpts::default());
                if !differences.is_empty() {
                    return Err(format!(
                        "the view of {id} has changed:\n  {}",
                        differences.join("\n  ")
                    ));
                }
            }
            None => known.tree = Some(shown),
        }
    }
    let status = rig.mount.status_json();
    // The checkpoint that the tree comes from: never a guard, and after a full restore the restored
    // one.
    let Some(id) = status["base"].as_u64() else {
        return Ok(());
    };
    exact_dirty(
        rig,
        &status,
        id,
        world.known[&id].tree.as_ref().expect("it was read"),
    )
}

/// Checks that `status` lists all paths that differ from the base checkpoint, and no others.
fn exact_dirty(rig: &Rig, status: &serde_json::Value, id: u64, then: &Tree) -> Result<(), String> {
    let now = tree(rig.path());
    let opts = TreeOpts {
        dir_mtime: false,
        ..TreeOpts::default()
    };
    let single = |tree: &Tree, path: &PathBuf| {
        tree.get(path)
            .map(|node| BTreeMap::from([(path.clone(), node.clone())]))
    };
    let differs = |path: &PathBuf| match (single(then, path), single(&now, path)) {
        (Some(a), Some(b)) => !compare(
            &a,
            &b,
            &TreeOpts {
                links: false,
                ..opts.clone()
            },
        )
        .is_empty(),
        (a, b) => a.is_some() || b.is_some(),
    };
    let mut named: Vec<PathBuf> = Vec::new();
    for entry in status["dirty"]
        .as_array()
        .expect("status has the dirty set")
    {
        named.extend(
            ["path", "from"]
                .iter()
                .filter_map(|key| entry[*key].as_str())
                .map(PathBuf::from),
        );
    }
    let carried = |path: &PathBuf| {
        path.ancestors()
            .any(|above| named.iter().any(|name| name == above))
    };
    let missing: Vec<&PathBuf> = then
        .keys()
        .chain(now.keys())
        .filter(|path| differs(path) && !carried(path))
        .collect();
    // A renamed file is listed and may equal the file that had its new name before.
    let renamed =
        |path: &PathBuf| then.get(path).map(|node| node.ino) != now.get(path).map(|node| node.ino);
    // A restore sets the times of directories, also of those that otherwise equal the newest
    // checkpoint.
    let retimed = |path: &PathBuf| {
        then.get(path).map(|node| node.mtime) != now.get(path).map(|node| node.mtime)
    };
    let wrong: Vec<&PathBuf> = named
        .iter()
        .filter(|path| !differs(path) && !renamed(path) && !retimed(path))
        .collect();
    if missing.is_empty() && wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "dirty against {id}: missing {missing:?}, wrong {wrong:?}, warnings {}",
        status["warnings"]
    ))
}

fn killed_at_any_moment(v: Variant) {
    let seed = seed(&format!("kills on {v:?}"), usual_seed());
    let kills = count("CKPTFS_KILLS", KILLS, KILLS_LONG);
    let mut opts = MountOpts::new(v.io).packing();
    opts.limit += Duration::from_secs(kills * 20);
    let mut rig = v.start_with(opts, |dir| CrashLoad::prepare(dir, WORKERS));
    let notes = scratch();
    // On the same filesystem, where operations have the same results.
    let plain = rig.image.path().join("plain");
    let mut world = KillModel::new(rig.path(), plain);
    let mut random = Random::new(seed);
    for round in 0..kills {
        let crew = live(
            &rig,
            &mut world,
            &mut random,
            notes.path(),
            seed * 1000 + round,
        );
        rig.mount.kill();
        let mut done = crew.end().unwrap_or_else(|problem| panic!("{problem}"));
        let replayed: Vec<usize> =
            serde_json::from_str(&fs::read_to_string(notes.path().join("replayed")).unwrap())
                .unwrap();
        for (done, replayed) in done.iter_mut().zip(replayed) {
            done.answered.drain(..replayed);
        }
        rig.mount.remount();
        let checked = settle(&rig, &mut world, &done).and_then(|()| check(&rig, &mut world));
        world.history.push(format!("killed, round {round}"));
        let last = || {
            world
                .history
                .iter()
                .rev()
                .take(30)
                .cloned()
                .collect::<Vec<_>>()
                .join("\n  ")
        };
        checked.unwrap_or_else(|problem| {
            let log = fs::read_to_string(rig.mount.path().join(".ckptfs/daemon.log")).unwrap_or_default();
            panic!("round {round}, CKPTFS_SEED={seed}: {problem}\nthe last verbs, newest first:\n  {}\nthe daemon's log:\n{log}", last())
        });
    }
    println!("{v:?}: {kills} kills, {} checkpoints", world.last);
}

/// One life of the daemon: all work until it is killed.
fn live(
    rig: &Rig,
    world: &mut KillModel,
    random: &mut Random,
    notes: &Path,
    seed: u64,
) -> WorkerProcesses {
    let life = Duration::from_millis(20 + random.below(LIFE_MS));
    let dead = AtomicBool::new(false);
    let crew = WorkerProcesses::start(rig.path(), notes, seed);
    let (holder, pid) = (rig.mount.holder_pid(), rig.mount.pid());
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            thread::sleep(life);
            dead.store(true, Ordering::SeqCst);
            // The holder first: no successor may change the state left by the daemon.
            holder
                .into_iter()
                .chain([pid])
                .for_each(crate::common::process::kill);
        });
        let replayed = vec![0; WORKERS as usize];
        let mut life = DaemonLife {
            world: &mut *world,
            mount: &rig.mount,
            dead: &dead,
            random: random.clone(),
            replayed,
            dir: notes,
        };
        crew.work();
        life.run(&crew);
        killer.join().unwrap();
        // Operations must not be applied twice.
        *random = life.random.clone();
        let replayed = std::mem::take(&mut life.replayed);
        fs::write(
            notes.join("replayed"),
            serde_json::to_string(&replayed).unwrap(),
        )
        .unwrap();
    });
    crew
}

for_each_variant! { reflink => killed_at_any_moment }
