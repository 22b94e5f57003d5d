//! A snapshot of a tree, and the comparison of two.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ckptfs_sys::{self as sys, Kind};

/// The observable state of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSnapshot {
    pub kind: Kind,
    pub mode: u32,
    pub owner: (u32, u32),
    /// Of files and symbolic links; the mtime of a directory depends on its entries.
    pub mtime: (i64, u32),
    pub content: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl NodeSnapshot {
    /// Returns a placeholder for a directory.
    pub fn dir() -> NodeSnapshot {
        NodeSnapshot {
            kind: Kind::Dir,
            mode: 0,
            owner: (0, 0),
            mtime: (0, 0),
            content: Vec::new(),
            xattrs: BTreeMap::new(),
        }
    }
}

/// A tree, by path.
pub type Tree = BTreeMap<String, NodeSnapshot>;

pub(super) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() {
        name.to_owned()
    } else {
        format!("{dir}/{name}")
    }
}

pub(super) fn plain(dir: &Path, path: &str, tree: &mut Tree) {
    let Ok(entries) = fs::read_dir(dir.join(path)) else {
        return;
    };
    for entry in entries {
        let entry = entry.expect("a plain directory can be listed");
        let path = join(path, &entry.file_name().to_string_lossy());
        let full = dir.join(&path);
        let meta = fs::symlink_metadata(&full).expect("the metadata of a plain file can be read");
        let fd = sys::open_beneath(
            File::open(dir).unwrap(),
            path.as_bytes(),
            sys::OpenKind::Path,
        )
        .unwrap();
        let stat = sys::stat_fd(&fd).unwrap();
        let content = match stat.kind {
            Kind::File => fs::read(&full).expect("a plain file can be read"),
            Kind::Symlink => fs::read_link(&full)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes(),
            _ => Vec::new(),
        };
        let xattrs = sys::all_xattrs(&fd).unwrap().into_iter().collect();
        let mtime = if stat.kind == Kind::Dir {
            (0, 0)
        } else {
            (meta.mtime(), meta.mtime_nsec() as u32)
        };
        let seen = NodeSnapshot {
            kind: stat.kind,
            mode: stat.mode,
            owner: (meta.uid(), meta.gid()),
            mtime,
            content,
            xattrs,
        };
        let is_dir = seen.kind == Kind::Dir;
        tree.insert(path.clone(), seen);
        if is_dir {
            plain(dir, &path, tree);
        }
    }
}

/// Returns the paths at which two trees differ, sorted.
pub fn differing(a: &Tree, b: &Tree) -> Vec<String> {
    let mut paths: Vec<String> = a
        .iter()
        .filter(|(path, seen)| b.get(*path) != Some(seen))
        .map(|(path, _)| path.clone())
        .collect();
    paths.extend(b.keys().filter(|path| !a.contains_key(*path)).cloned());
    paths.sort();
    paths
}

/// Returns a tree without times, to compare two runs of an operation.
pub fn without_times(tree: &Tree) -> Tree {
    tree.iter()
        .map(|(path, seen)| {
            (
                path.clone(),
                NodeSnapshot {
                    mtime: (0, 0),
                    ..seen.clone()
                },
            )
        })
        .collect()
}
