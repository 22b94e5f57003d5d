//! Restores of a whole tree and of paths, and what they make of the model.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ckptfs::api::{Code, RestoreOptions, Restored, StateName, Times, TreePath, VerbError};

use super::control::said;
use super::observe::absolute;
use super::ops::{Op, bytes};
use super::tree::{Body, Id, Node, Tree};
use super::world::World;

impl World {
    /// Tells what a restore would change, and changes nothing.
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
            return Err("a dry run made a checkpoint".to_owned());
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
        self.become_tree(tree)
    }

    /// The live tree was replaced. Whether what is open is still in it is asked of the filesystem;
    /// what it reads is known either way.
    pub(super) fn become_tree(&mut self, tree: Tree) -> Result<(), String> {
        let before = std::mem::replace(&mut self.model.tree, tree);
        let mut live = HashMap::new();
        for (path, id) in self.model.tree.paths() {
            let path = absolute(&self.root, &path);
            let stat = rustix::fs::lstat(&path)
                .map_err(|errno| format!("restored, and {}: {errno}", path.display()))?;
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
        let tree = self.with_paths(&then, &now, &asked);
        self.become_tree(tree)
    }

    /// The live tree with some paths as they were. A directory on the way that is missing comes
    /// back too, with nothing else in it.
    pub(super) fn with_paths(&mut self, then: &Tree, now: &Tree, asked: &[Vec<u8>]) -> Tree {
        let tops = asked.iter().filter(|path| {
            !asked
                .iter()
                .any(|other| other != *path && is_below(path, other))
        });
        let mut tree = now.clone();
        let mut fresh: HashMap<Id, Id> = kept(then, now, asked)
            .into_iter()
            .map(|id| (id, id))
            .collect();
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

    /// A name leads to something else or to nothing. Directories that came back keep the time that
    /// they had.
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

/// Files of the live tree that stay what they are: they have a name in the paths, and nothing of
/// them changed.
fn kept(then: &Tree, now: &Tree, asked: &[Vec<u8>]) -> BTreeSet<Id> {
    let inside = now
        .paths()
        .into_iter()
        .filter(|(path, _)| asked.iter().any(|top| is_below(path, top)))
        .map(|(_, id)| id);
    let same = |id: &Id| {
        then.nodes.get(id).is_some_and(|old| {
            let new = now.node(*id);
            let dress = |node: &Node| (node.mode, node.uid, node.gid, node.mtime);
            !new.is_dir()
                && old.body == new.body
                && dress(old) == dress(new)
                && old.xattrs == new.xattrs
        })
    };
    inside.filter(same).collect()
}

/// Copies a node and all below it into another tree, under new numbers.
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
