//! Reads a tree from a filesystem and compares it with the model.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::tree::{Body, Id, Stamp, Tree};

/// Maximum number of differences reported.
const TOLD_MAX: usize = 12;

#[derive(Debug)]
pub struct ObservedNode {
    pub body: Body,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, i64),
    pub nlink: u64,
    pub ino: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A tree by path; the root is the empty path.
pub type ObservedTree = BTreeMap<Vec<u8>, ObservedNode>;

/// The real time of each stamp, once known.
#[derive(Clone, Default)]
pub struct StampTimes(HashMap<Stamp, (i64, i64)>);

impl StampTimes {
    pub fn set(&mut self, stamp: Stamp, time: (i64, i64)) {
        self.0.insert(stamp, time);
    }

    pub fn get(&self, stamp: Stamp) -> Option<(i64, i64)> {
        self.0.get(&stamp).copied()
    }

    /// Compares a time with the known one, or records it.
    fn agrees(&mut self, stamp: Stamp, time: (i64, i64)) -> bool {
        *self.0.entry(stamp).or_insert(time) == time
    }
}

/// Returns the absolute path of a path of the tree.
pub fn absolute(root: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() || path == b"." {
        root.to_owned()
    } else {
        root.join(OsStr::from_bytes(path))
    }
}

/// Reads a tree, except for `.ckptfs` and `.snapshots` in the root.
pub fn observe(root: &Path) -> Result<ObservedTree, String> {
    let mut sight = ObservedTree::new();
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let at = absolute(root, &path);
        let cannot = |what: &str, error: std::io::Error| {
            format!(
                "{what} {:?} in {}: {error}",
                path.escape_ascii().to_string(),
                root.display()
            )
        };
        let seen = read(&at).map_err(|error| cannot("cannot read", error))?;
        if let Body::Dir(names) = &seen.body {
            let own =
                |name: &[u8]| path.is_empty() && (name == b".ckptfs" || name == b".snapshots");
            for name in names.keys().filter(|name| !own(name)) {
                open.push(if path.is_empty() {
                    name.clone()
                } else {
                    [&path[..], b"/", name].concat()
                });
            }
        }
        sight.insert(path, seen);
    }
    Ok(sight)
}

fn read(path: &Path) -> std::io::Result<ObservedNode> {
    let meta = fs::symlink_metadata(path)?;
    let kind = meta.file_type();
    let body = if kind.is_dir() {
        // A listing has no ids of the model.
        Body::Dir(
            fs::read_dir(path)?
                .map(|entry| Ok((entry?.file_name().into_vec(), 0)))
                .collect::<std::io::Result<_>>()?,
        )
    } else if kind.is_symlink() {
        Body::Symlink(fs::read_link(path)?.into_os_string().into_vec())
    } else if kind.is_fifo() {
        Body::Fifo
    } else if kind.is_socket() {
        Body::Socket
    } else {
        let file = rustix::fs::open(
            path,
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut content = Vec::with_capacity(meta.len() as usize);
        fs::File::from(file).read_to_end(&mut content)?;
        if content.len() as u64 != meta.len() {
            return Err(std::io::Error::other(format!(
                "{} bytes are read, the size is {}",
                content.len(),
                meta.len()
            )));
        }
        Body::File(content.into())
    };
    Ok(ObservedNode {
        body,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        nlink: meta.nlink(),
        ino: meta.ino(),
        xattrs: xattrs(path)?,
    })
}

fn xattrs(path: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0_u8; 16 << 10];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut found = BTreeMap::new();
    for name in names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && !name.starts_with(b"security."))
    {
        let mut value = vec![0_u8; 16 << 10];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(length);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

/// Compares a tree with the model. The times of `loose` nodes, which are mapped, are not compared
/// exactly.
pub fn compare(
    what: &str,
    tree: &Tree,
    sight: &ObservedTree,
    times: &mut StampTimes,
    loose: &BTreeSet<Id>,
) -> Result<(), String> {
    let mut told = Vec::new();
    let paths = tree.paths();
    for (path, id) in &paths {
        match sight.get(path) {
            None => told.push(format!("{}: missing", shown(path))),
            Some(seen) => compare_node(tree, *id, path, seen, times, loose, &mut told),
        }
    }
    told.extend(
        sight
            .keys()
            .filter(|path| !paths.contains_key(*path))
            .map(|path| format!("{}: must not exist", shown(path))),
    );
    compare_groups(&paths, sight, &mut told);
    if told.is_empty() {
        return Ok(());
    }
    let mut text = format!("{what}: {} differences\n", told.len());
    for line in told.iter().take(TOLD_MAX) {
        let _ = writeln!(text, "  {line}");
    }
    Err(text)
}

pub fn shown(path: &[u8]) -> String {
    if path.is_empty() {
        return "the root".to_owned();
    }
    if path.len() > 200 {
        format!("{}...", path[..20].escape_ascii())
    } else {
        path.escape_ascii().to_string()
    }
}

fn compare_node(
    tree: &Tree,
    id: Id,
    path: &[u8],
    seen: &ObservedNode,
    times: &mut StampTimes,
    loose: &BTreeSet<Id>,
    told: &mut Vec<String>,
) {
    let node = tree.node(id);
    let mut tell = |what: &str, is: String, expected: String| {
        if is != expected {
            told.push(format!(
                "{}: {what} is {is}, expected {expected}",
                shown(path)
            ));
        }
    };
    tell(
        "kind",
        seen.body.letter().to_string(),
        node.body.letter().to_string(),
    );
    match (&seen.body, &node.body) {
        (Body::File(is), Body::File(expected)) if is != expected => {
            tell("content", content(is, expected), content(expected, is))
        }
        (Body::Symlink(is), Body::Symlink(expected)) => tell("target", shown(is), shown(expected)),
        _ => {}
    }
    tell(
        "mode",
        format!("{:o}", seen.mode),
        format!("{:o}", node.mode),
    );
    tell(
        "owner",
        format!("{}:{}", seen.uid, seen.gid),
        format!("{}:{}", node.uid, node.gid),
    );
    tell(
        "xattrs",
        format!("{:?}", names(&seen.xattrs)),
        format!("{:?}", names(&node.xattrs)),
    );
    if !node.is_dir() {
        tell("nlink", seen.nlink.to_string(), node.links.to_string());
    }
    if !loose.contains(&id) && !times.agrees(node.mtime, seen.mtime) {
        tell(
            "mtime",
            format!("{:?}", seen.mtime),
            format!("{:?}", times.get(node.mtime).unwrap_or_default()),
        );
    }
}

fn names(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<String> {
    xattrs
        .iter()
        .map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii()))
        .collect()
}

/// Describes the size and the byte at the first difference.
fn content(is: &[u8], other: &[u8]) -> String {
    let first = is
        .iter()
        .zip(other)
        .position(|(a, b)| a != b)
        .unwrap_or(is.len().min(other.len()));
    format!("{} bytes, at {first} {:?}", is.len(), is.get(first))
}

/// Checks that the names of each inode are hard links, and no others.
fn compare_groups(paths: &BTreeMap<Vec<u8>, Id>, sight: &ObservedTree, told: &mut Vec<String>) {
    let (mut by_id, mut by_ino) = (HashMap::new(), HashMap::new());
    for (path, id) in paths {
        let Some(seen) = sight.get(path) else {
            continue;
        };
        if *by_id.entry(id).or_insert(seen.ino) != seen.ino {
            told.push(format!(
                "{}: is not the same inode as its other names",
                shown(path)
            ));
        }
        if by_ino.entry(seen.ino).or_insert(id) != &id {
            told.push(format!(
                "{}: is the same inode as another file",
                shown(path)
            ));
        }
    }
}
