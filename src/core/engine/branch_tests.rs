//! Tests of a branch, served with its parent in this process and without a mount: the branch shows
//! inherited inodes, and its changes never affect the parent.

#[cfg(debug_assertions)]
mod calls;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use super::request::{
    Caller, LookupResult, NewNode, NodeId, RenameMode, Service, SetAttr, XattrMode,
};
use super::requester::Requester;
use super::{Config, Engine};
use ckptfs_api::{Actor, CheckpointId, CheckpointOptions, RestoreOptions, StateName};
use ckptfs_sys::{Errno, Kind, SysResult, open_flags};

/// O_RDWR.
const RDWR: i32 = 2;
const ROOT: NodeId = NodeId(1);
const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
    request: 0,
    again: false,
};

/// A served directory, accessed as its owner.
pub(super) struct Tree(pub(super) Arc<Engine>);

/// A path's type, inode number, mode, content or target, and extended attributes.
type Seen = (Kind, u64, u32, Vec<u8>, Vec<Vec<u8>>);

/// [`Seen`] without the inode number.
type Unnumbered = (Kind, u32, Vec<u8>, Vec<Vec<u8>>);

impl Tree {
    pub(super) fn open(dir: &Path, base: Option<(&Tree, u64)>) -> Tree {
        let root = ckptfs_sys::open_root(dir).expect("a directory");
        let config = Config {
            base: base.map(|(tree, id)| tree.0.as_base(CheckpointId(id))),
            ..Config::bare(root, dir.to_owned())
        };
        let engine = Engine::open(config).expect("it is served");
        engine.started(false);
        Tree(engine)
    }

    pub(super) fn by() -> Requester {
        Requester::from(Actor {
            uid: 0,
            gid: 0,
            pid: 1,
            process: "test".into(),
        })
    }

    pub(super) fn checkpoint(&self) -> u64 {
        let options = CheckpointOptions::default();
        let made = super::verb::Execute::run(options, &self.0, &Tree::by());
        made.expect("a checkpoint").id.0
    }

    fn restore(&self, id: u64) {
        let options = RestoreOptions {
            to: StateName(id.to_string()),
            paths: Vec::new(),
            dry_run: false,
            times: None,
        };
        super::verb::Execute::run(options, &self.0, &Tree::by()).expect("a restore");
    }

    fn node(&self, path: &str) -> SysResult<NodeId> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(ROOT, |at, name| {
            match self.0.lookup(CALLER, at, name.as_bytes())? {
                LookupResult::Found(entry) => Ok(entry.node),
                LookupResult::Absent(_) => Err(Errno::ENOENT),
            }
        })
    }

    fn place<'a>(&self, path: &'a str) -> SysResult<(NodeId, &'a [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.node(dir)?, name.as_bytes()))
    }

    pub(super) fn create(&self, path: &str, data: &str) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        let flags = RDWR;
        let (entry, opened) = self.0.create(CALLER, dir, name, 0o644, 0o022, flags)?;
        self.0
            .write(CALLER, entry.node, opened.fh, 0, data.as_bytes(), false)?;
        self.0.release(entry.node, opened.fh);
        Ok(())
    }

    fn mkdir(&self, path: &str) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        let new = NewNode {
            kind: Kind::Dir,
            mode: 0o755,
            umask: 0o022,
            rdev: 0,
        };
        self.0.make(CALLER, dir, name, new).map(drop)
    }

    pub(super) fn write(&self, path: &str, at: u64, data: &str) -> SysResult<()> {
        let node = self.node(path)?;
        let opened = self.0.open(CALLER, node, RDWR)?;
        self.0
            .write(CALLER, node, opened.fh, at, data.as_bytes(), false)?;
        self.0.release(node, opened.fh);
        Ok(())
    }

    fn read(&self, node: NodeId) -> SysResult<Vec<u8>> {
        let opened = self.0.open(CALLER, node, open_flags::RDONLY)?;
        let data = self.0.read(node, opened.fh, 0, 1 << 20, true);
        self.0.release(node, opened.fh);
        data
    }

    fn unlink(&self, path: &str) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        self.0.unlink(CALLER, dir, name)
    }

    fn rmdir(&self, path: &str) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        self.0.rmdir(CALLER, dir, name)
    }

    fn rename(&self, from: &str, to: &str, how: RenameMode) -> SysResult<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        self.0.rename(CALLER, from.0, from.1, to.0, to.1, how)
    }

    /// Lists a directory in batches of two names.
    fn list(&self, dir: NodeId) -> Vec<(Vec<u8>, u64)> {
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let part = self.0.readdir(dir, offset).expect("a listing");
            for listed in part.names.iter().take(2) {
                offset = listed.next;
                if !matches!(listed.name.as_slice(), b"." | b"..") {
                    names.push((listed.name.clone(), listed.node.0));
                }
            }
            if part.last && part.names.len() <= 2 {
                return names;
            }
        }
    }

    /// Returns the state of the whole tree.
    fn seen(&self) -> BTreeMap<String, Seen> {
        let (mut seen, mut open) = (BTreeMap::new(), vec![String::new()]);
        while let Some(path) = open.pop() {
            let node = self.node(&path).expect("it is listed");
            let attr = self.0.getattr(node, None).expect("attributes").stat;
            let content = match attr.kind {
                Kind::File => self.read(node).expect("content"),
                Kind::Symlink => self.0.readlink(node).expect("a target"),
                _ => Vec::new(),
            };
            if attr.kind == Kind::File {
                assert_eq!(attr.size, content.len() as u64, "{path}");
            }
            if attr.kind == Kind::Dir {
                for (name, number) in self.list(node) {
                    let name = String::from_utf8(name).expect("a name");
                    let below = format!("{path}/{name}");
                    assert_eq!(
                        self.node(&below).expect("it is listed").0,
                        number,
                        "{below}"
                    );
                    open.push(below);
                }
            }
            let mut xattrs = self.0.listxattr(CALLER, node).expect("names");
            xattrs.sort();
            seen.insert(path, (attr.kind, node.0, attr.mode, content, xattrs));
        }
        seen
    }

    fn close(self) {
        self.0.close();
    }
}

/// Creates a parent with a checkpoint and a branch of it.
fn branched() -> (tempfile::TempDir, Tree, Tree) {
    let place = match std::env::var_os("CKPTFS_TEST_REFLINK_DIR") {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let place = place.expect("a directory");
    let (parent, branch) = (place.path().join("p"), place.path().join("b"));
    std::fs::create_dir(&parent).expect("a directory");
    std::fs::create_dir(&branch).expect("a directory");
    let parent = Tree::open(&parent, None);
    for dir in ["a", "a/b", "a/b/c", "e"] {
        parent.mkdir(dir).expect("a directory");
    }
    for (path, data) in [
        ("f", "one"),
        ("a/g", "two"),
        ("a/b/h", "three"),
        ("e/i", ""),
    ] {
        parent.create(path, data).expect("a file");
    }
    let (dir, name) = parent.place("a/link").expect("a directory");
    parent
        .0
        .symlink(CALLER, dir, name, b"../f")
        .expect("a link");
    let node = parent.node("a/g").expect("a file");
    parent
        .0
        .setxattr(CALLER, node, b"user.x", b"1", XattrMode::Any)
        .expect("an attribute");
    assert_eq!(parent.checkpoint(), 1);
    let branch = Tree::open(&branch, Some((&parent, 1)));
    assert_eq!(branch.checkpoint(), 1);
    (place, parent, branch)
}

fn again(place: &tempfile::TempDir, parent: &Tree, branch: Tree) -> Tree {
    branch.close();
    Tree::open(&place.path().join("b"), Some((parent, 1)))
}

#[test]
fn a_fresh_branch_is_its_parent() {
    let (place, parent, branch) = branched();
    let before = parent.seen();
    assert_eq!(branch.seen(), before);
    let own = std::fs::read_dir(place.path().join("b")).expect("a directory");
    assert_eq!(own.count(), 1, "reading takes nothing but the store");
    parent.write("f", 0, "ONE and more").expect("written");
    parent.unlink("a/g").expect("removed");
    parent
        .rename("a/b", "e/b", RenameMode::Replace)
        .expect("renamed");
    assert_eq!(branch.seen(), before, "whatever the parent does");
    let branch = again(&place, &parent, branch);
    assert_eq!(branch.seen(), before);
}

#[test]
fn what_is_changed_in_a_branch_is_changed_there_alone() {
    let (place, parent, branch) = branched();
    let (before, root) = (parent.seen(), place.path().join("b"));
    branch.write("a/b/h", 5, "!").expect("written");
    branch.create("a/b/new", "born").expect("made");
    branch.mkdir("a/b/c/d").expect("made");
    branch.unlink("a/g").expect("removed");
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let node = branch.node("f").expect("a file");
    branch.0.setattr(CALLER, node, None, set).expect("set");
    let node = branch.node("e").expect("a directory");
    branch
        .0
        .setxattr(CALLER, node, b"user.y", b"2", XattrMode::Any)
        .expect("set");
    let check = |branch: &Tree| {
        let mut seen = branch.seen();
        assert_eq!(seen.remove("/a/b/new").expect("born").3, b"born");
        seen.remove("/a/b/c/d").expect("made");
        let mut wanted = before.clone();
        wanted.remove("/a/g");
        let is = |path: &str| wanted.get(path).expect("known").clone();
        let (mut h, mut f, mut e) = (is("/a/b/h"), is("/f"), is("/e"));
        h.3 = b"three!".to_vec();
        f.2 = 0o600;
        e.4 = vec![b"user.y".to_vec()];
        wanted.extend([("/a/b/h".into(), h), ("/f".into(), f), ("/e".into(), e)]);
        assert_eq!(seen, wanted);
    };
    check(&branch);
    assert_eq!(parent.seen(), before);
    let branch = again(&place, &parent, branch);
    check(&branch);
    branch.restore(1);
    let numbers = |seen: BTreeMap<String, Seen>| -> Vec<(String, Unnumbered)> {
        let without = |(path, seen): (String, Seen)| (path, (seen.0, seen.2, seen.3, seen.4));
        seen.into_iter().map(without).collect()
    };
    assert_eq!(numbers(branch.seen()), numbers(before.clone()));
    let branch = again(&place, &parent, branch);
    assert_eq!(numbers(branch.seen()), numbers(before.clone()));
    assert_eq!(parent.seen(), before);
    let mode = std::fs::metadata(&root).expect("the root");
    let of = std::fs::metadata(place.path().join("p")).expect("the root");
    assert_eq!(
        (mode.permissions().mode(), mode.uid()),
        (of.permissions().mode(), of.uid())
    );
}

#[test]
fn directories_are_renamed_with_what_is_inherited_below() {
    let (place, parent, branch) = branched();
    let before = parent.seen();
    branch
        .rename("a", "e/z", RenameMode::Replace)
        .expect("renamed");
    branch
        .rename("e/z/b/h", "f", RenameMode::Replace)
        .expect("renamed over");
    branch.mkdir("a").expect("a new one in its place");
    branch.create("a/g", "other").expect("made");
    let check = |branch: &Tree| {
        let seen = branch.seen();
        let paths: Vec<&str> = seen.keys().map(String::as_str).collect();
        let wanted = [
            "",
            "/a",
            "/a/g",
            "/e",
            "/e/i",
            "/e/z",
            "/e/z/b",
            "/e/z/b/c",
            "/e/z/g",
            "/e/z/link",
            "/f",
        ];
        assert_eq!(paths, wanted);
        for (new, old) in [
            ("/e/z", "/a"),
            ("/e/z/b", "/a/b"),
            ("/e/z/g", "/a/g"),
            ("/f", "/a/b/h"),
        ] {
            assert_eq!(seen[new], before[old], "{new}");
        }
        assert_eq!(seen["/a/g"].3, b"other");
        assert_eq!(branch.list(branch.node("a").expect("a directory")).len(), 1);
    };
    check(&branch);
    let branch = again(&place, &parent, branch);
    check(&branch);
    branch.unlink("a/g").expect("removed");
    branch.rmdir("a").expect("removed");
    assert_eq!(branch.node("a").err(), Some(Errno::ENOENT));
    assert_eq!(branch.rmdir("e/z").err(), Some(Errno::ENOTEMPTY));
    let branch = again(&place, &parent, branch);
    assert_eq!(branch.node("a").err(), Some(Errno::ENOENT));
    branch
        .rename("e/z", "f", RenameMode::Exchange)
        .expect("exchanged");
    branch.restore(1);
    let paths = |seen: BTreeMap<String, Seen>| -> Vec<String> { seen.into_keys().collect() };
    assert_eq!(paths(branch.seen()), paths(before.clone()));
    assert_eq!(parent.seen(), before);
}

#[test]
fn a_reader_sees_what_is_written_after_it_opened() {
    let (_place, parent, branch) = branched();
    let node = branch.node("f").expect("a file");
    let reader = branch
        .0
        .open(CALLER, node, open_flags::RDONLY)
        .expect("open");
    branch.write("f", 0, "NEW").expect("written");
    let read = branch.0.read(node, reader.fh, 0, 100, false);
    assert_eq!(read.expect("read"), b"NEW");
    branch.unlink("f").expect("removed");
    let read = branch.0.read(node, reader.fh, 0, 100, false);
    assert_eq!(read.expect("read"), b"NEW");
    branch.0.release(node, reader.fh);
    assert_eq!(
        parent
            .read(parent.node("f").expect("a file"))
            .expect("read"),
        b"one"
    );
}

#[test]
fn a_branch_of_a_branch_looks_through_both() {
    let (place, parent, branch) = branched();
    branch.write("f", 0, "1").expect("written");
    branch.create("a/new", "born").expect("made");
    branch.unlink("a/g").expect("removed");
    let (id, seen) = (branch.checkpoint(), branch.seen());
    let dir = place.path().join("bb");
    std::fs::create_dir(&dir).expect("a directory");
    let below = Tree::open(&dir, Some((&branch, id)));
    assert_eq!(below.checkpoint(), 1);
    assert_eq!(below.seen(), seen);
    below.write("a/new", 0, "B").expect("written");
    below.write("a/b/h", 0, "T").expect("written");
    branch.write("f", 0, "2").expect("written");
    parent.write("a/b/h", 0, "X").expect("written");
    let now = below.seen();
    assert_eq!(now["/a/new"].3, b"Born");
    assert_eq!(now["/a/b/h"].3, b"Three");
    assert_eq!(now["/f"].3, b"1ne");
    assert_eq!(now["/a/new"].1, seen["/a/new"].1);
}

#[test]
fn hard_links_lead_to_one_inode_whichever_is_changed() {
    let (place, parent, branch) = branched();
    for to in ["a/f2", "e/f3"] {
        let node = parent.node("f").expect("a file");
        let (dir, name) = parent.place(to).expect("a directory");
        parent.0.link(CALLER, node, dir, name).expect("linked");
    }
    assert_eq!(parent.checkpoint(), 2);
    branch.close();
    std::fs::remove_dir_all(place.path().join("b")).expect("removed");
    std::fs::create_dir(place.path().join("b")).expect("a directory");
    let open = || Tree::open(&place.path().join("b"), Some((&parent, 2)));
    let (branch, before) = (open(), parent.seen());
    assert_eq!(branch.checkpoint(), 1);
    let is = |branch: &Tree, path: &str| {
        let node = branch.node(path).expect("it is there");
        let stat = branch.0.getattr(node, None).expect("attributes").stat;
        (node.0, stat.nlink, branch.read(node).expect("content"))
    };
    let number = is(&parent, "f").0;
    branch.write("a/f2", 0, "TWO").expect("written");
    for path in ["e/f3", "f", "a/f2"] {
        assert_eq!(is(&branch, path), (number, 3, b"TWO".to_vec()), "{path}");
    }
    branch.close();
    let branch = open();
    for path in ["f", "e/f3", "a/f2"] {
        assert_eq!(is(&branch, path), (number, 3, b"TWO".to_vec()), "{path}");
    }
    branch.write("e/f3", 0, "3").expect("written");
    branch.unlink("f").expect("removed");
    assert_eq!(is(&branch, "a/f2"), (number, 2, b"3WO".to_vec()));
    branch.unlink("a/f2").expect("removed");
    branch.close();
    let branch = open();
    assert_eq!(is(&branch, "e/f3"), (number, 1, b"3WO".to_vec()));
    branch
        .rename("e/f3", "f4", RenameMode::Replace)
        .expect("renamed");
    assert_eq!(is(&branch, "f4"), (number, 1, b"3WO".to_vec()));
    branch.unlink("f4").expect("removed");
    let links = place.path().join("b/.ckptfs/tmp/links");
    assert_eq!(std::fs::read_dir(links).expect("a directory").count(), 0);
    branch.restore(1);
    let names = |seen: &BTreeMap<String, Seen>| -> Vec<String> { seen.keys().cloned().collect() };
    let seen = branch.seen();
    assert_eq!(names(&seen), names(&before));
    assert_eq!(seen["/f"].1, seen["/e/f3"].1);
    assert_eq!(
        (seen["/f"].3.as_slice(), seen["/a/f2"].1),
        (b"one".as_slice(), seen["/f"].1)
    );
    assert_eq!(parent.seen(), before);
}

/// Root or the daemon's user can copy or forge a mark while nothing is mounted.
#[test]
fn marks_that_were_copied_or_forged_say_nothing() {
    let (place, parent, branch) = branched();
    let before = parent.seen();
    branch.write("a/g", 0, "TWO").expect("written");
    branch.create("born", "born").expect("made");
    let number = branch.node("a/g").expect("a file").0;
    branch.close();
    let at = |path: &str| place.path().join("b/.ckptfs/tree").join(path);
    let marks = ckptfs_sys::all_xattrs(std::fs::File::open(at("a/g")).expect("own"));
    let (name, mark) = marks.expect("marks").remove(0);
    let put = |path: &str, slot: u64| {
        let mut mark = mark.clone();
        mark[..8].copy_from_slice(&slot.to_le_bytes());
        let file = std::fs::File::open(at(path)).expect("own");
        ckptfs_sys::set_file_xattr(&file, &name, &mark).expect("set");
    };
    std::fs::copy(at("a/g"), at("a/copy")).expect("copied");
    put("a/copy", number);
    for (path, slot) in [("f0", 0), ("f1", 1), ("f2", 1 << 56 | 77), ("f3", u64::MAX)] {
        std::fs::write(at(path), path).expect("written");
        put(path, slot);
    }
    std::fs::create_dir_all(at(".ckptfs-hidden-1/full")).expect("made");
    let branch = Tree::open(&place.path().join("b"), Some((&parent, 1)));
    let seen = branch.seen();
    let numbers: std::collections::BTreeSet<u64> = seen.values().map(|seen| seen.1).collect();
    assert_eq!(numbers.len(), seen.len(), "{seen:?}");
    assert_eq!(
        (seen["/a/g"].3.as_slice(), seen["/a/copy"].3.as_slice()),
        (&b"TWO"[..], &b"TWO"[..])
    );
    assert!([seen["/a/g"].1, seen["/a/copy"].1].contains(&number));
    assert!(
        ["f0", "f1", "f2", "f3"]
            .iter()
            .all(|path| seen[&format!("/{path}")].3 == path.as_bytes())
    );
    // Names that would be hidden, and removed by the next mount, are rejected.
    for name in [".ckptfs-hidden-1", "a/.ckptfs-hidden-"] {
        let renamed = branch.rename("f", name, RenameMode::Replace);
        assert_eq!(renamed, Err(Errno::EPERM));
        assert_eq!(branch.create(name, ""), Err(Errno::EPERM));
    }
    assert_eq!(parent.seen(), before);
}
