//! Restores of a whole tree and of paths, and their effect on the model.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::control::said;
use super::observe::absolute;
use super::ops::{Op, bytes};
use super::tree::{Body, Id, Node, Tree};
use super::world::ModelRun;
use ckptfs_api::{Code, RestoreOptions, Restored, StateName, Times, TreePath, VerbError};

impl ModelRun {
    /// Runs `restore --dry-run`, which must not change anything.
    pub(super) fn dry_restore(&mut self, op: &Op) -> Result<(), String> {
        let Some(index) = self.pick(op.number(0)) else {
            return Ok(());
        };
        let (id, tree) = (self.snaps[index].id, self.snaps[index].tree.clone());
        let options = RestoreOptions {
            to: StateName(id.to_string()),
            paths: Vec::new(),
            dry_run: true,
            times: None,
        };
        let told = self
            .client()?
            .ask(options)
            .map_err(|error| said("restore --dry-run", &error))?;
        if told.guard.is_some() {
            return Err("a dry run created a checkpoint".to_owned());
        }
        let live = self.model.tree.reachable();
        self.check_changes(
            &format!("the dry run of restore {id}"),
            &told.changes,
            &live,
            &tree,
        )
    }

    pub(super) fn ask_restore(
        &mut self,
        id: u64,
        paths: Vec<TreePath>,
    ) -> Result<Result<Restored, VerbError>, String> {
        Ok(self.client()?.ask(RestoreOptions {
            to: StateName(id.to_string()),
            paths,
            dry_run: false,
            times: Some(Times::Kept),
        }))
    }

    pub(super) fn restore(&mut self, op: &Op) -> Result<(), String> {
        let Some(index) = self.pick(op.number(0)) else {
            return Ok(());
        };
        let (id, mut tree) = (self.snaps[index].id, self.snaps[index].tree.clone());
        let inodes = self.inodes(&self.model.tree)?;
        let restored = self
            .ask_restore(id, Vec::new())?
            .map_err(|error| said("restore", &error))?;
        let before = self.model.tree.reachable();
        self.check_changes(
            &format!("the changes of restore {id}"),
            &restored.changes,
            &before,
            &tree,
        )?;
        match restored.guard {
            Some(guard) => self.keep(guard.0, false)?,
            None if restored.changes.is_empty() => return Ok(()),
            None => return Err("a restore without a guard".to_owned()),
        }
        for node in tree.nodes.values_mut().filter(|node| node.is_dir()) {
            node.entries = self.model.counter.next();
        }
        let tree = self.named_by_inode(tree, &inodes)?;
        self.become_tree(tree)
    }

    /// Returns the inode numbers of a tree that is the live one.
    fn inodes(&self, tree: &Tree) -> Result<HashMap<u64, Id>, String> {
        let mut inodes = HashMap::new();
        for (path, id) in tree.paths() {
            let path = absolute(&self.root, &path);
            let stat = rustix::fs::lstat(&path)
                .map_err(|errno| format!("expected, but {}: {errno}", path.display()))?;
            inodes.insert(stat.st_ino, id);
        }
        Ok(inodes)
    }

    /// Returns the modification times of a tree at `root`: different stamps may be equal times.
    fn times(root: &Path, tree: &Tree) -> Result<HashMap<Id, (i64, i64)>, String> {
        let paths = tree.paths();
        let time = |(path, id): (Vec<u8>, Id)| {
            let path = absolute(root, &path);
            let stat = rustix::fs::lstat(&path)
                .map_err(|errno| format!("expected, but {}: {errno}", path.display()))?;
            Ok((id, (stat.st_mtime as i64, stat.st_mtime_nsec as i64)))
        };
        paths.into_iter().map(time).collect()
    }

    /// Returns the tree left by a restore, with adjusted ids. An inode in `inodes`, which existed
    /// before, keeps its id; others get new ones. Which files a restore creates again is not
    /// specified, and a later restore treats them as other files.
    fn named_by_inode(&mut self, tree: Tree, inodes: &HashMap<u64, Id>) -> Result<Tree, String> {
        let ids: HashMap<Id, Id> = self
            .inodes(&tree)?
            .into_iter()
            .map(|(inode, id)| {
                let known = inodes.get(&inode).copied();
                (id, known.unwrap_or_else(|| self.model.counter.next()))
            })
            .collect();
        let renamed = |id: Id| ids.get(&id).copied().unwrap_or(id);
        let nodes = tree.nodes.into_iter().map(|(id, mut node)| {
            if let Body::Dir(names) = &mut node.body {
                names
                    .values_mut()
                    .for_each(|child| *child = renamed(*child));
            }
            (renamed(id), node)
        });
        Ok(Tree {
            nodes: nodes.collect(),
        })
    }

    /// Replaces the live tree. The filesystem shows whether open files are still in it; their
    /// content is known in either case.
    pub(super) fn become_tree(&mut self, tree: Tree) -> Result<(), String> {
        let before = std::mem::replace(&mut self.model.tree, tree);
        let mut live = HashMap::new();
        for (path, id) in self.model.tree.paths() {
            let path = absolute(&self.root, &path);
            let stat = rustix::fs::lstat(&path)
                .map_err(|errno| format!("restored, but {}: {errno}", path.display()))?;
            live.insert(stat.st_ino, id);
        }
        let mut now: HashMap<Id, Id> = HashMap::new();
        let handles = self
            .handles
            .iter()
            .flatten()
            .map(|handle| (handle.id, handle.ino));
        let open: Vec<(Id, u64)> = handles
            .chain(
                self.maps
                    .iter()
                    .flatten()
                    .map(|mapped| (mapped.id, mapped.ino)),
            )
            .collect();
        for (id, ino) in open {
            let was_linked = before.node(id).links > 0;
            let same = live
                .get(&ino)
                .copied()
                .filter(|same| was_linked && self.model.tree.node(*same).content().is_some());
            let becomes = match same {
                Some(same) => same,
                None => *now.entry(id).or_insert_with(|| self.model.counter.next()),
            };
            now.insert(id, becomes);
            if same.is_none() {
                let mut orphan = before.node(id).clone();
                orphan.links = 0;
                self.model.tree.nodes.entry(becomes).or_insert(orphan);
            }
        }
        self.handles
            .iter_mut()
            .flatten()
            .for_each(|handle| handle.id = now[&handle.id]);
        self.maps
            .iter_mut()
            .flatten()
            .for_each(|mapped| mapped.id = now[&mapped.id]);
        self.model.held = now.into_values().collect();
        Ok(())
    }

    pub(super) fn restore_paths(&mut self, op: &Op) -> Result<(), String> {
        let Some(index) = self.pick(op.number(0)) else {
            return Ok(());
        };
        let (id, then, now) = (
            self.snaps[index].id,
            self.snaps[index].tree.clone(),
            self.model.tree.reachable(),
        );
        let asked: Vec<Vec<u8>> = op.paths.iter().map(|path| bytes(path)).collect();
        if asked.is_empty() || asked.iter().any(|path| path == b".") {
            return Ok(());
        }
        let unknown = asked
            .iter()
            .any(|path| then.lookup(path).is_err() && now.lookup(path).is_err());
        let inodes = self.inodes(&self.model.tree)?;
        let view = self.root.join(".snapshots").join(id.to_string());
        let times = [
            Self::times(&view, &then)?,
            Self::times(&self.root, &self.model.tree)?,
        ];
        let answer = self.ask_restore(id, asked.iter().cloned().map(TreePath).collect())?;
        let restored = match answer {
            Err(error) if unknown && error.code == Code::UnknownPath => return Ok(()),
            Err(error) => return Err(said("restore of paths", &error)),
            Ok(_) if unknown => return Err("a path that never existed was restored".to_owned()),
            Ok(restored) => restored,
        };
        match restored.guard {
            Some(guard) => self.keep(guard.0, false)?,
            None if restored.changes.is_empty() => return Ok(()),
            None => return Err("a restore without a guard".to_owned()),
        }
        let split = restored.split.into_iter().map(|path| path.0).collect();
        let tree = self.with_paths(&then, &now, &asked, &split, &times);
        let tree = self.named_by_inode(tree, &inodes)?;
        self.become_tree(tree)
    }

    /// Returns the live tree with some paths restored. A missing parent directory is created
    /// without other entries.
    fn with_paths(
        &mut self,
        then: &Tree,
        now: &Tree,
        asked: &[Vec<u8>],
        split: &BTreeSet<Vec<u8>>,
        [times_then, times_now]: &[HashMap<Id, (i64, i64)>; 2],
    ) -> Tree {
        let tops = asked.iter().filter(|path| {
            !asked
                .iter()
                .any(|other| other != *path && is_below(path, other))
        });
        let mut tree = now.clone();
        let same = |old: Id, new: Id| {
            let (then, now) = (then.node(old), now.node(new));
            let dress = |node: &Node| (node.mode, node.uid, node.gid);
            !now.is_dir()
                && then.body == now.body
                && dress(then) == dress(now)
                && times_then.get(&old) == times_now.get(&new)
                && then.xattrs == now.xattrs
        };
        let mut fresh = stays(then, now, asked, split, same);
        let mut on_the_way = BTreeSet::new();
        for top in tops.collect::<BTreeSet<_>>() {
            let ways = top
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == b'/')
                .map(|(at, _)| &top[..at]);
            for way in ways {
                let there = tree.lookup(way).is_ok_and(|id| tree.node(id).is_dir());
                let Some(wanted) = then
                    .lookup(way)
                    .ok()
                    .filter(|id| !there && then.node(*id).is_dir())
                else {
                    continue;
                };
                let id = self.model.counter.next();
                let mut node = then.node(wanted).clone();
                (node.body, node.entries) = (Body::Dir(BTreeMap::new()), self.model.counter.next());
                tree.nodes.insert(id, node);
                self.put(&mut tree, way, Some(id), &on_the_way);
                on_the_way.insert(id);
            }
            let wanted = then.lookup(top).ok().map(|id| {
                copy_below(then, id, &mut tree, &mut fresh, &mut || {
                    self.model.counter.next()
                })
            });
            if wanted.is_some() || tree.lookup(top).is_ok() {
                self.put(&mut tree, top, wanted, &on_the_way);
            }
        }
        tree = tree.reachable();
        tree.count_links();
        tree
    }

    /// Points a name to another node or removes it. Directories in `came_back` keep their times.
    pub(super) fn put(
        &mut self,
        tree: &mut Tree,
        path: &[u8],
        to: Option<Id>,
        came_back: &BTreeSet<Id>,
    ) {
        let (dir, name, _) = tree
            .resolve(path)
            .expect("its directory is in the live tree");
        let stamps = (self.model.counter.next(), self.model.counter.next());
        let node = tree.nodes.get_mut(&dir).expect("it was found");
        if !came_back.contains(&dir) {
            (node.mtime, node.entries) = stamps;
        }
        if let Body::Dir(names) = &mut node.body {
            match to {
                Some(id) => drop(names.insert(name, id)),
                None => drop(names.remove(&name)),
            }
        }
    }
}

fn is_below(path: &[u8], above: &[u8]) -> bool {
    path == above || (path.starts_with(above) && path.get(above.len()) == Some(&b'/'))
}

/// Maps each wanted inode that is not a directory to the live inode that the restore leaves in
/// place.
///
/// An inode stays if it is unchanged and has a name in the restored paths, or a name elsewhere that
/// it had in the checkpoint. The daemon may have no record of names elsewhere, and then reports
/// them as `split`. An inode created by an earlier restore stays if all its names lead to it.
fn stays(
    then: &Tree,
    now: &Tree,
    asked: &[Vec<u8>],
    split: &BTreeSet<Vec<u8>>,
    same: impl Fn(Id, Id) -> bool,
) -> HashMap<Id, Id> {
    let is_asked = |path: &[u8]| asked.iter().any(|top| is_below(path, top));
    let (paths_then, paths_now) = (then.paths(), now.paths());
    let mut wanted: BTreeMap<Id, Vec<&[u8]>> = BTreeMap::new();
    for (path, id) in paths_then.iter().filter(|(path, _)| is_asked(path)) {
        if !then.node(*id).is_dir() {
            wanted.entry(*id).or_default().push(path);
        }
    }
    let is_itself = |id: Id| {
        let mut names = paths_now.iter().filter(|(_, there)| **there == id);
        let is_split = wanted
            .get(&id)
            .is_some_and(|names| names.iter().any(|name| split.contains(*name)));
        names.any(|(path, _)| is_asked(path) || (!is_split && paths_then.get(path) == Some(&id)))
            && same(id, id)
    };
    let mut stays: HashMap<Id, Id> = now
        .nodes
        .keys()
        .filter(|id| then.nodes.contains_key(id) && is_itself(**id))
        .map(|id| (*id, *id))
        .collect();
    // Returns the live inode at all names of the wanted one, in directories that stayed.
    let stands_in = |id: Id, names: &[&[u8]]| {
        let there: Option<BTreeSet<Id>> = names
            .iter()
            .map(|name| {
                let is_top = asked.iter().any(|top| top == name);
                let dirs = (then.resolve(name).ok()?.0, now.resolve(name).ok()?.0);
                now.lookup(name).ok().filter(|_| is_top || dirs.0 == dirs.1)
            })
            .collect();
        let there = there?;
        let one = *there.first().filter(|_| there.len() == 1)?;
        (same(id, one) && !wanted.contains_key(&one)).then_some(one)
    };
    let mut stands_for: HashMap<Id, Vec<Id>> = HashMap::new();
    for (id, names) in &wanted {
        if let Some(one) = stands_in(*id, names).filter(|_| !stays.contains_key(id)) {
            stands_for.entry(one).or_default().push(*id);
        }
    }
    stays.extend(
        stands_for
            .into_iter()
            .filter(|(_, wanted)| wanted.len() == 1)
            .filter_map(|(one, wanted)| Some((*wanted.first()?, one))),
    );
    stays
}

/// Copies a subtree into another tree under new ids.
fn copy_below(
    from: &Tree,
    id: Id,
    to: &mut Tree,
    fresh: &mut HashMap<Id, Id>,
    next: &mut dyn FnMut() -> u64,
) -> Id {
    if let Some(known) = fresh.get(&id) {
        return *known;
    }
    let new = next();
    fresh.insert(id, new);
    let mut node = from.node(id).clone();
    node.entries = next();
    if let Body::Dir(names) = &mut node.body {
        for child in names.values_mut() {
            *child = copy_below(from, *child, to, fresh, next);
        }
    }
    to.nodes.insert(new, node);
    new
}
