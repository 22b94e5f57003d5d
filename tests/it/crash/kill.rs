//! The daemon is killed at random moments while processes work and checkpoints are made, deleted
//! and restored.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::crew::{Crew, Done, WORKERS, again, part};
use super::load::Load;
use super::usual_seed;
use crate::common::random::{Random, count, seed};
use crate::common::tree::{Tree, TreeOpts, compare, copy_tree, tree, try_tree_without};
use crate::common::{Mount, MountOpts, Rig, Variant, for_each_variant, scratch};

/// Kills of one variant.
const KILLS: u64 = 3;
const KILLS_LONG: u64 = 55;
/// The longest life of a daemon.
const LIFE_MS: u64 = 1500;

/// A checkpoint as the test knows it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// What its view shows.
    tree: Option<Tree>,
    tags: Vec<String>,
    /// Where a plain copy of the workers' directories is, if they paused.
    plain: Option<PathBuf>,
}

/// A verb that was asked for and not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UnderWay {
    Nothing,
    Checkpoint { tags: Vec<String>, quiet: bool },
    Delete(u64),
    Restore { to: u64, paths: Vec<String> },
}

struct World {
    known: BTreeMap<u64, Known>,
    under_way: UnderWay,
    /// The last that was made, deleted or not.
    last: u64,
    tags: u64,
    /// Plain directories that have what was answered.
    plain: PathBuf,
    copies: u64,
    /// The verbs, for a test that fails.
    history: Vec<String>,
}

/// Says whether a verb was answered; the daemon's death is no answer.
fn answer(output: &Output) -> Option<serde_json::Value> {
    if output.status.success() {
        return Some(serde_json::from_slice(&output.stdout).expect("--json prints JSON"));
    }
    None
}

impl World {
    fn new(root: &Path, plain: PathBuf) -> World {
        copy_tree(root, &plain);
        World {
            known: BTreeMap::new(),
            under_way: UnderWay::Nothing,
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

    fn made(&mut self, id: u64, known: Known) {
        self.last = id;
        self.known.insert(id, known);
        self.under_way = UnderWay::Nothing;
    }
}

/// One life of the daemon: verbs until it is dead.
struct Life<'a> {
    world: &'a mut World,
    mount: &'a Mount,
    dead: &'a AtomicBool,
    random: Random,
    /// What each process has done before it paused last is in the plain directory.
    replayed: Vec<usize>,
    dir: &'a Path,
}

impl Life<'_> {
    fn run(&mut self, crew: &Crew) {
        while !self.dead.load(Ordering::SeqCst) {
            match self.random.below(12) {
                0..=3 => self.checkpoint(),
                4..=6 => self.quietly(crew, Life::quiet_checkpoint),
                7..=8 => self.delete(),
                9..=10 => self.quietly(crew, Life::restore),
                _ => thread::sleep(Duration::from_millis(self.random.below(30))),
            }
        }
    }

    fn quietly(&mut self, crew: &Crew, what: fn(&mut Self)) {
        crew.pause();
        if !self.dead.load(Ordering::SeqCst) {
            self.catch_up();
            what(self);
        }
        if self.world.under_way == UnderWay::Nothing {
            crew.work();
        }
    }

    /// Does in the plain directories what the processes have done.
    fn catch_up(&mut self) {
        for (index, done) in super::crew::done(self.dir).into_iter().enumerate() {
            let plain = self.world.plain.join(part(index as u64));
            for op in &done.answered[self.replayed[index]..] {
                again(op, &plain).unwrap_or_else(|problem| panic!("{problem}"));
            }
            self.replayed[index] = done.answered.len();
        }
    }

    fn verb(&mut self, under_way: UnderWay, arguments: &[&str]) -> Option<serde_json::Value> {
        self.world.under_way = under_way.clone();
        let answer = answer(&self.mount.run(&[arguments, &["--json"]].concat()));
        self.world.history.push(format!(
            "{under_way:?}: {}",
            answer
                .as_ref()
                .map_or("no answer".to_owned(), |answer| answer["id"].to_string())
        ));
        if answer.is_some() {
            self.world.under_way = UnderWay::Nothing;
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
            UnderWay::Checkpoint {
                tags: tags.clone(),
                quiet,
            },
            &arguments,
        ) else {
            return;
        };
        let id = made["id"].as_u64().expect("a checkpoint has an id");
        // To read a view takes longer than anything else: most are read after the kill.
        let shown = if self.random.once_in(4) {
            read(&self.mount.view(id))
        } else {
            None
        };
        if let (Some(expected), Some(shown)) = (&expected, &shown) {
            assert_eq!(
                compare(shown, expected, &TreeOpts::default()),
                Vec::<String>::new(),
                "checkpoint {id} and the tree that nobody changed"
            );
        }
        self.world.made(
            id,
            Known {
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
            .verb(UnderWay::Delete(id), &["delete", "--yes", &id.to_string()])
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
            UnderWay::Restore {
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
                "only a restore of nothing has no guard"
            );
            return;
        };
        let from = self.world.known[&id]
            .plain
            .clone()
            .expect("it was chosen for that");
        self.world.restore_plain(&from, &paths);
        self.world.made(
            guard,
            Known {
                tree: before,
                tags: Vec::new(),
                plain: Some(plain),
            },
        );
    }
}

/// A tree of a mount that may die meanwhile.
fn read(root: &Path) -> Option<Tree> {
    try_tree_without(root, &TreeOpts::default().ignore).ok()
}

/// Every part of the tree is as the same part of a plain directory, but for times.
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

/// After the kill: what was under way happened or did not, and everything else is as it was
/// answered.
fn settle(rig: &Rig, world: &mut World, done: &[Done]) -> Result<(), String> {
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
            "checkpoints {new:?} were never answered, and only one was under way"
        ));
    }
    let before = world.plain.clone();
    settle_under_way(rig, world, &ids, new.first().copied())?;
    assert_eq!(before, world.plain);
    let expected: Vec<u64> = world.known.keys().copied().collect();
    if ids != expected {
        return Err(format!("the checkpoints are {ids:?} and not {expected:?}"));
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

/// What was under way when the daemon was killed, of which `new` is the checkpoint, happened or did
/// not.
fn settle_under_way(
    rig: &Rig,
    world: &mut World,
    ids: &[u64],
    new: Option<u64>,
) -> Result<(), String> {
    match (
        std::mem::replace(&mut world.under_way, UnderWay::Nothing),
        new,
    ) {
        (UnderWay::Checkpoint { tags, quiet }, Some(id)) => {
            let plain = quiet.then(|| world.copy());
            world.made(
                id,
                Known {
                    tree: None,
                    tags,
                    plain,
                },
            );
        }
        (UnderWay::Restore { to, paths }, Some(id)) => {
            let plain = Some(world.copy());
            // The guard comes first. Killed right after it, the restore had not begun, and nothing
            // else has happened: nobody worked meanwhile.
            if is_as(rig.path(), &world.plain) {
                println!("killed between a guard and its restore");
            } else {
                let from = world.known[&to]
                    .plain
                    .clone()
                    .expect("it was chosen for that");
                world.restore_plain(&from, &paths);
            }
            world.made(
                id,
                Known {
                    tree: None,
                    tags: Vec::new(),
                    plain,
                },
            );
        }
        (UnderWay::Delete(id), None) if !ids.contains(&id) => drop(world.known.remove(&id)),
        (_, None) => {}
        (under_way, Some(id)) => {
            return Err(format!(
                "checkpoint {id} was not asked for: {under_way:?} was under way"
            ));
        }
    }
    Ok(())
}

/// Every view is what it was, and the dirty set is what a comparison finds.
fn check(rig: &Rig, world: &mut World) -> Result<(), String> {
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
    // What the tree comes from: no guard, and after a restore of all of it what was restored.
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

/// `status` names every path that differs from the checkpoint that the tree comes from, and no
/// other.
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
    // A renamed file is named, and may be at its new name what another was before.
    let renamed =
        |path: &PathBuf| then.get(path).map(|node| node.ino) != now.get(path).map(|node| node.ino);
    // A restore gives directories their times back, also of those in which nothing else differs
    // from the newest checkpoint.
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
    let mut rig = v.start_with(opts, |dir| Load::prepare(dir, WORKERS));
    let notes = scratch();
    // The plain directories are on the same filesystem, where the same operations have the same
    // results.
    let plain = rig.image.path().join("plain");
    let mut world = World::new(rig.path(), plain);
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
            panic!("round {round}, CKPTFS_SEED={seed}: {problem}\nthe last verbs, backwards:\n  {}\nthe daemon's log:\n{log}", last())
        });
    }
    println!("{v:?}: {kills} kills, {} checkpoints", world.last);
}

/// One life of the daemon: everybody works until it is killed.
fn live(rig: &Rig, world: &mut World, random: &mut Random, notes: &Path, seed: u64) -> Crew {
    let life = Duration::from_millis(20 + random.below(LIFE_MS));
    let dead = AtomicBool::new(false);
    let crew = Crew::start(rig.path(), notes, seed);
    let (holder, pid) = (rig.mount.holder_pid(), rig.mount.pid());
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            thread::sleep(life);
            dead.store(true, Ordering::SeqCst);
            // Nobody is to take over: what is left is what the daemon left.
            holder
                .into_iter()
                .chain([pid])
                .for_each(crate::common::process::kill);
        });
        let replayed = vec![0; WORKERS as usize];
        let mut life = Life {
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
        // What was replayed must not be replayed again.
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
