//! Branches and merges on real mounts, compared with the model of both: random operations on a
//! tree, its branches and nested branches. A merge gives the result of the model, or is refused and
//! changes nothing; `undo` reverses it. Unmounts and kills occur in between.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::str::FromStr;
use std::time::Duration;

use super::run::shrink;
use super::three::{Merged, merge};
use crate::common::mount::VERB_SECONDS;
use crate::common::random::{count, seed};
use crate::common::{Fs, Image, Io, MountOpts, Variant, run_limited, skip, tool};
use crate::model::generate::{DrawContext, Generator, Random};
use crate::model::observe::{compare, observe};
use crate::model::ops::{Op, Verb};
use crate::model::tree::{Body, Id, Node, Tree};
use crate::model::world::ModelRun;

const TREES_MAX: usize = 4;
const DEPTH_MAX: usize = 3;
const SHRINK: Duration = Duration::from_secs(90);
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
    (5, Verb::Exchange),
    (7, Verb::Link),
    (3, Verb::Symlink),
    (2, Verb::Mkfifo),
    (4, Verb::Chmod),
    (4, Verb::Utimens),
    (4, Verb::SetXattr),
    (2, Verb::RemoveXattr),
    (3, Verb::Copy),
    (5, Verb::Open),
    (5, Verb::HandleWrite),
    (3, Verb::HandleRead),
    (3, Verb::Close),
    (4, Verb::Map),
    (4, Verb::Store),
    (2, Verb::Unmap),
    (12, Verb::CheckLive),
];

/// A step of a run.
#[derive(Clone, Debug)]
enum MountedStep {
    Do(usize, Op),
    Branch(usize),
    /// Merges into the parent, and undoes the merge if `undo`.
    Merge {
        branch: usize,
        undo: bool,
    },
    /// Merges the parent's changes into the branch, and undoes this if `undo`.
    Update {
        branch: usize,
        undo: bool,
    },
    Drop(usize),
    Remount,
    Kill,
}

impl fmt::Display for MountedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountedStep::Do(on, op) => write!(f, "{on} {op}"),
            MountedStep::Branch(of) => write!(f, "{of} branch"),
            MountedStep::Merge { branch, undo } => write!(f, "{branch} merge, undo {undo}"),
            MountedStep::Update { branch, undo } => write!(f, "{branch} update, undo {undo}"),
            MountedStep::Drop(branch) => write!(f, "{branch} drop"),
            MountedStep::Remount => f.write_str("remount"),
            MountedStep::Kill => f.write_str("kill"),
        }
    }
}

impl FromStr for MountedStep {
    type Err = String;

    fn from_str(act: &str) -> Result<MountedStep, String> {
        let of = |on: &str, what: &str| {
            let on = on.parse().map_err(|_| format!("no tree: {on}"))?;
            let undo = what.ends_with("undo true");
            Ok(match what.split(',').next() {
                Some("branch") => MountedStep::Branch(on),
                Some("merge") => MountedStep::Merge { branch: on, undo },
                Some("update") => MountedStep::Update { branch: on, undo },
                Some("drop") => MountedStep::Drop(on),
                _ => MountedStep::Do(on, what.parse()?),
            })
        };
        match act.split_once(' ') {
            None if act == "remount" => Ok(MountedStep::Remount),
            None if act == "kill" => Ok(MountedStep::Kill),
            None => Err(format!("unknown step: {act}")),
            Some((on, what)) => of(on, what),
        }
    }
}

/// The origin of a branch.
struct MountedOrigin {
    parent: usize,
    name: String,
    /// The merge base: the state at creation, or at the last merge.
    base: Tree,
    depth: usize,
}

struct MountedTree {
    world: ModelRun,
    from: Option<MountedOrigin>,
    /// Numbers of the inherited inodes, which never change.
    numbers: HashMap<Id, u64>,
}

struct MountedTrees {
    /// `None`: dropped.
    trees: Vec<Option<MountedTree>>,
}

fn ckptfs(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = tool(env!("CARGO_BIN_EXE_ckptfs"), &[] as &[&str]);
    run_limited(command.arg("-C").arg(dir).args(arguments), VERB_SECONDS)
}

fn said(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    format!("{}: {}", output.status, String::from_utf8_lossy(&said))
}

fn works(dir: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = ckptfs(dir, arguments);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned());
    }
    Err(format!("{arguments:?}: {}", said(&output)))
}

impl MountedTree {
    /// Compares the tree with the model, and inherited inode numbers with those of the parent.
    fn check(&mut self) -> Result<(), String> {
        let loose = self.world.loose();
        let sight = observe(&self.world.root)?;
        let (model, times) = (&self.world.model.tree, &mut self.world.times);
        compare("the tree", model, &sight, times, &loose)?;
        for (path, id) in self.world.model.tree.paths() {
            let number = sight[&path].ino;
            if self.numbers.get(&id).is_some_and(|known| *known != number) {
                let path = path.escape_ascii();
                return Err(format!(
                    "{path}: number {number}, inherited {}",
                    self.numbers[&id]
                ));
            }
        }
        Ok(())
    }
}

impl MountedTrees {
    fn get(&mut self, number: usize) -> Option<&mut MountedTree> {
        self.trees.get_mut(number)?.as_mut()
    }

    fn act(&mut self, act: &MountedStep) -> Result<(), String> {
        match act {
            MountedStep::Do(on, op) => match self.get(*on) {
                Some(tree) if op.verb == Verb::CheckLive => tree.check(),
                Some(tree) => tree.world.run(op),
                None => Ok(()),
            },
            MountedStep::Branch(of) => self.branch(*of),
            MountedStep::Merge { branch, undo } => self.merge((*branch, "merge"), *undo),
            MountedStep::Update { branch, undo } => self.merge((*branch, "update"), *undo),
            MountedStep::Drop(branch) => self.drop_branch(*branch),
            MountedStep::Remount => self.again(false),
            MountedStep::Kill => self.again(true),
        }
    }

    fn branch(&mut self, of: usize) -> Result<(), String> {
        let number = self.trees.len();
        let Some(tree) = self.get(of) else {
            return Ok(());
        };
        let depth = tree.from.as_ref().map_or(0, |from| from.depth);
        if number >= TREES_MAX || depth >= DEPTH_MAX {
            return Ok(());
        }
        // A mapped file may be stored to at any time, and a checkpoint does not sync it.
        tree.world.close_all();
        tree.check()?;
        let sight = observe(&tree.world.root)?;
        let name = format!("n{number}");
        let path = PathBuf::from(works(&tree.world.root, &["branch", "create", &name])?);
        let base = tree.world.model.tree.reachable();
        let paths = base.paths().into_iter();
        let mut branch = MountedTree {
            world: tree.world.branch(&path),
            numbers: paths.map(|(path, id)| (id, sight[&path].ino)).collect(),
            from: Some(MountedOrigin {
                parent: of,
                name,
                base,
                depth: depth + 1,
            }),
        };
        let same = branch.check();
        self.trees.push(Some(branch));
        same.map_err(|told| format!("a fresh branch: {told}"))
    }

    /// `verb` is `merge`, of a branch into its parent, or `update`, of the parent into the branch.
    fn merge(&mut self, (branch, verb): (usize, &str), undo: bool) -> Result<(), String> {
        let Some(from) = self.get(branch).and_then(|tree| tree.from.as_ref()) else {
            return Ok(());
        };
        let (parent, name, base) = (from.parent, from.name.clone(), from.base.clone());
        let (from, into) = match verb {
            "merge" => (branch, parent),
            _ => (parent, branch),
        };
        let (Some(asked), Some(theirs)) = (
            self.get(parent).map(|tree| tree.world.root.clone()),
            self.get(from),
        ) else {
            return Ok(());
        };
        theirs.world.close_all();
        let after = theirs.world.model.tree.reachable();
        let Some(ours) = self.get(into) else {
            return Ok(());
        };
        ours.world.close_all();
        let before = ours.world.model.tree.reachable();
        let mut ask: Vec<&str> = match verb {
            "merge" => vec!["merge", &name],
            _ => vec!["branch", "update", &name],
        };
        ask.push("--dry-run");
        let dry = ckptfs(&asked, &ask);
        ask.pop();
        ours.check().map_err(|told| format!("a dry run: {told}"))?;
        let model = merge(&base, &before, &after);
        if matches!(model, Merged::Unclear(_)) {
            return Ok(());
        }
        let done = ckptfs(&asked, &ask);
        if dry.status.success() != done.status.success() {
            return Err(format!("dry {}, done {}", said(&dry), said(&done)));
        }
        match (model, done.status.code()) {
            (Merged::Conflict(_), Some(1)) => {
                return ours.check().map_err(|told| format!("a conflict: {told}"));
            }
            (Merged::Clean(tree), Some(0)) => {
                let changed = is_other(&tree, &before);
                let root = ours.world.root.clone();
                ours.become_tree(tree)?;
                if undo && changed {
                    works(&root, &["undo"])?;
                    ours.become_tree(before)
                        .map_err(|told| format!("undone: {told}"))?;
                    return Ok(());
                }
            }
            (model, _) => return Err(format!("{}; the model: {model:?}", said(&done))),
        }
        if let Some(from) = self.get(branch).and_then(|tree| tree.from.as_mut()) {
            from.base = after;
        }
        // The source of the merge and the base are unchanged.
        self.get(from).map_or(Ok(()), MountedTree::check)
    }

    fn drop_branch(&mut self, branch: usize) -> Result<(), String> {
        let is_base =
            |tree: &&MountedTree| tree.from.as_ref().is_some_and(|from| from.parent == branch);
        if self.trees.iter().flatten().any(|tree| is_base(&tree)) {
            return Ok(());
        }
        let Some(tree) = self.get(branch) else {
            return Ok(());
        };
        let Some(from) = tree.from.as_ref() else {
            return Ok(());
        };
        let (name, parent) = (from.name.clone(), from.parent);
        tree.world.close_all();
        let place = tree.world.root.clone();
        self.trees[branch] = None;
        let Some(parent) = self.get(parent) else {
            return Ok(());
        };
        works(&parent.world.root, &["branch", "drop", &name])?;
        if place.exists() {
            return Err(format!("{} still exists", place.display()));
        }
        parent.check()
    }

    /// Unmounts or kills everything, and mounts again.
    fn again(&mut self, kill: bool) -> Result<(), String> {
        for tree in self.trees.iter_mut().flatten() {
            tree.world.close_all();
        }
        let mounted = self.get(0).and_then(|tree| tree.world.mounted.as_mut());
        let mounted = mounted.ok_or("the first is mounted")?;
        mounted.client = None;
        if kill {
            mounted.mount.kill();
        } else {
            mounted.mount.umount();
        }
        mounted.mount.remount();
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        for (number, tree) in self.trees.iter_mut().enumerate() {
            if let Some(tree) = tree {
                tree.check()
                    .map_err(|told| format!("tree {number}: {told}"))?;
            }
        }
        Ok(())
    }
}

/// Reports whether two trees differ in anything except times.
fn is_other(a: &Tree, b: &Tree) -> bool {
    let shown = |tree: &Tree| -> BTreeMap<Id, (String, u32, u32, u32)> {
        let node = |node: &Node| {
            let rest = format!("{:?} {:?}", node.body, node.xattrs);
            (rest, node.mode, node.uid, node.gid)
        };
        tree.nodes
            .iter()
            .map(|(id, one)| (*id, node(one)))
            .collect()
    };
    shown(a) != shown(b)
}

/// Returns the names of each inode with their directories.
fn places(tree: &Tree) -> BTreeMap<Id, BTreeSet<(Id, Vec<u8>)>> {
    let mut places: BTreeMap<Id, BTreeSet<(Id, Vec<u8>)>> = BTreeMap::new();
    for (dir, node) in &tree.nodes {
        if let Body::Dir(names) = &node.body {
            for (name, id) in names {
                places.entry(*id).or_default().insert((*dir, name.clone()));
            }
        }
    }
    places
}

impl MountedTree {
    /// Sets the tree after a merge or its undo. New times are unspecified, but an inode that was
    /// neither changed nor moved keeps its time.
    fn become_tree(&mut self, mut tree: Tree) -> Result<(), String> {
        let before = self.world.model.tree.reachable();
        let (was_at, is_at) = (places(&before), places(&tree));
        for (id, node) in &mut tree.nodes {
            let same = before.nodes.get(id).is_some_and(|old| {
                let dress = |node: &Node| (node.mode, node.uid, node.gid, node.links);
                !node.is_dir()
                    && was_at.get(id) == is_at.get(id)
                    && old.body == node.body
                    && dress(old) == dress(node)
                    && old.xattrs == node.xattrs
                    && old.mtime == node.mtime
            });
            if !same {
                node.mtime = self.world.model.counter.next();
                node.entries = node.mtime;
                self.numbers.remove(id);
            }
        }
        self.world.model.tree = tree;
        self.world.model.held = BTreeSet::new();
        self.check()
    }
}

/// Draws or reads steps and performs them.
fn drive(
    forest: &mut MountedTrees,
    list: Result<&[MountedStep], u64>,
    length: u64,
    done: &mut Vec<MountedStep>,
) -> Result<(), String> {
    let mut step = |forest: &mut MountedTrees, act: MountedStep| {
        done.push(act.clone());
        let answer = forest.act(&act);
        answer.map_err(|told| format!("at {act}: {told}"))
    };
    let seed = match list {
        Ok(list) => {
            list.iter().try_for_each(|act| step(forest, act.clone()))?;
            return forest.check();
        }
        Err(seed) => seed,
    };
    let mut random = Random::new(seed ^ 0x00b4_a2c3);
    let generator = |number| Generator::of(seed * TREES_MAX as u64 + number, WEIGHTS);
    let mut generators: Vec<Generator> = (0..TREES_MAX as u64).map(generator).collect();
    for number in 0..length {
        let alive: Vec<usize> = (0..forest.trees.len())
            .filter(|number| forest.trees[*number].is_some())
            .collect();
        let on = *random.pick(&alive).unwrap_or(&0);
        let act = match random.below(40) {
            _ if number < length / 5 => None,
            0..=2 => Some(MountedStep::Branch(on)),
            3..=5 => Some(MountedStep::Merge {
                branch: on,
                undo: random.one_in(3),
            }),
            6..=8 => Some(MountedStep::Update {
                branch: on,
                undo: random.one_in(3),
            }),
            9 => Some(MountedStep::Drop(on)),
            10 if random.one_in(2) => Some(MountedStep::Remount),
            10 => Some(MountedStep::Kill),
            _ => None,
        };
        let act = act.or_else(|| {
            let tree = forest.trees[on].as_ref()?;
            let scene = DrawContext {
                set_ids: false,
                held: Vec::new(),
                ..tree.world.scene()
            };
            Some(MountedStep::Do(on, generators[on].next(&scene)))
        });
        if let Some(act) = act {
            step(forest, act)?;
        }
    }
    forest.check().map_err(|told| format!("at the end: {told}"))
}

/// One run in a fresh directory of the image.
fn once(
    (image, io): (&Image, Io),
    number: u64,
    list: Result<&[MountedStep], u64>,
    length: u64,
) -> Result<(), (Vec<MountedStep>, String)> {
    let dir = image.dir(&format!("m{number}"));
    let project = dir.join("project");
    std::fs::create_dir(&project).expect("the directory is new");
    let mut done = Vec::new();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let opts = MountOpts {
            limit: Duration::from_secs(180),
            ..MountOpts::new(io)
        };
        let mut forest = MountedTrees {
            trees: vec![Some(MountedTree {
                world: ModelRun::new(&project, Some(&opts)),
                from: None,
                numbers: HashMap::new(),
            })],
        };
        let result = drive(&mut forest, list, length, &mut done);
        for tree in forest.trees.iter_mut().flatten() {
            tree.world.close_all();
        }
        result
    }));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!("panic: {}", text.unwrap_or_default()))
    });
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        eprintln!("branch_model: {} was not removed: {error}", dir.display());
    }
    result.map_err(|told| (done, told))
}

fn random_runs(name: &str, fs: Fs, io: Io) {
    if let Some(reason) = (Variant { fs, io }).unavailable() {
        return skip(&reason);
    }
    let image = Image::of(fs);
    let first = seed(name, 1);
    let (cases, length) = (count("CKPTFS_CASES", 3, 60), count("CKPTFS_OPS", 120, 200));
    let mut next = 0;
    for seed in first..first + cases {
        next += 1;
        let Err((acts, told)) = once((&image, io), next, Err(seed), length) else {
            continue;
        };
        eprintln!(
            "{name}: CKPTFS_SEED={seed} failed after {} steps: {told}",
            acts.len()
        );
        let number = std::cell::Cell::new(next);
        let (acts, told) = shrink(acts, told, SHRINK, |acts| {
            number.set(number.get() + 1);
            once((&image, io), number.get(), Ok(acts), 0)
                .err()
                .map(|(_, told)| told)
        });
        let list: String = acts.iter().map(|act| format!("{act}\n")).collect();
        panic!("{name}: CKPTFS_SEED={seed} failed; shrunk to\n{list}{told}");
    }
}

#[test]
fn mounted_xfs_passthrough() {
    random_runs("mounted_xfs_passthrough", Fs::Xfs, Io::Passthrough);
}

#[test]
fn mounted_btrfs_daemon() {
    random_runs("mounted_btrfs_daemon", Fs::Btrfs, Io::Daemon);
}

#[test]
fn mounted_ext4_daemon() {
    random_runs("mounted_ext4_daemon", Fs::Ext4, Io::Daemon);
}

/// Runs a shrunk failure.
fn runs(fs: Fs, io: Io, acts: &[&str]) {
    if let Some(reason) = (Variant { fs, io }).unavailable() {
        return skip(&reason);
    }
    let acts: Vec<MountedStep> = acts.iter().map(|act| act.parse().unwrap()).collect();
    if let Err((_, told)) = once((&Image::of(fs), io), 1, Ok(&acts), 0) {
        panic!("{told}");
    }
}

/// An inherited file has the same inode number in parent and branch, and is live in both. Failed
/// before: content written in the branch was attributed to the parent and was not merged.
#[test]
fn what_is_written_to_an_inherited_file_is_merged() {
    let acts = [
        "0 put a 100 1",
        "0 branch",
        "1 put a 100 2",
        "1 merge, undo false",
    ];
    runs(Fs::Xfs, Io::Daemon, &acts);
}

/// Failed before: a file made after the newest checkpoint was changed without a record after a
/// remount. The unmount skipped it, the next mount attributed the change to an absence, and the
/// branch, which is a checkpoint, showed the old content.
#[test]
fn what_is_new_and_changed_after_a_remount_is_written_down() {
    for io in [Io::Passthrough, Io::Daemon] {
        let acts = [
            "0 mkdir e 448",
            "0 mkdir e/e 448",
            "0 branch",
            "0 mkdir e/e/e 448",
            "0 create e/e/e/f 420",
            "remount",
            "0 put e/e/e/f 20000 7",
            "0 branch",
            "remount",
        ];
        runs(Fs::Xfs, io, &acts);
    }
}
